//! A store in memory for tests of the edge: correct, simple, and gone with the process.

use async_trait::async_trait;
use counterfoil::rules::event::Event;
use counterfoil::rules::ids::{EventId, MeterNo, TenantId};
use counterfoil::rules::meter::{Catalog, Meter};
use counterfoil::rules::rollup::Rollup;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::usage::UsageRow;
use counterfoil::rules::verdict::{Tally, Verdict, judge_known, judge_new};
use counterfoil::rules::window::{Bucket, Window};
use counterfoil::store::{
    ApiKey, ApiKeys, CheckReport, ConflictRecord, CounterRow, Declaration, Declarations,
    Deliveries, DeliveryBatch, EventQuery, EventTrace, InboxPage, InboxQuery, Progress,
    QuarantineRecord, Queries, Result, Store, StoredEvent, Tenant,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
pub struct MemoryStore(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    catalog: Catalog,
    tenants: BTreeMap<TenantId, Tenant>,
    events: BTreeMap<(TenantId, EventId), StoredEvent>,
    conflicts: Vec<ConflictRecord>,
    quarantined: Vec<QuarantineRecord>,
    counters: BTreeMap<(Timestamp, Option<TenantId>), Tally>,
    keys: Vec<ApiKey>,
}

impl MemoryStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap()
    }
}

impl Tables {
    fn record(&mut self, event: Event, batch: &DeliveryBatch) -> Verdict {
        let now = batch.acceptance.now;
        let payload = event.to_json(&self.catalog.get(event.meter).unwrap().slug);
        let key = (event.tenant.clone(), event.id.clone());
        let Some(stored) = self.events.get(&key) else {
            let verdict = judge_new(&event, batch.acceptance);
            if let Verdict::Quarantined(reason) = verdict {
                self.quarantined.push(QuarantineRecord {
                    tenant: key.0,
                    id: key.1,
                    payload,
                    reason,
                    first_received_at: now,
                    last_received_at: now,
                    deliveries: 1,
                });
            } else {
                self.tenants.entry(key.0.clone()).or_insert_with(|| Tenant {
                    id: event.tenant.clone(),
                    name: None,
                    created_at: now,
                });
                self.events.insert(key, StoredEvent { event, received_at: now });
            }
            return verdict;
        };
        let verdict = judge_known(&stored.event, &event);
        if let Verdict::Conflict { .. } = &verdict {
            let standing =
                stored.event.to_json(&self.catalog.get(stored.event.meter).unwrap().slug);
            let known = self
                .conflicts
                .iter_mut()
                .find(|c| c.tenant == key.0 && c.id == key.1 && c.arriving == payload);
            match known {
                Some(record) => {
                    record.deliveries += 1;
                    record.last_received_at = now;
                }
                None => self.conflicts.push(ConflictRecord {
                    tenant: key.0,
                    id: key.1,
                    standing,
                    arriving: payload,
                    first_received_at: now,
                    last_received_at: now,
                    deliveries: 1,
                }),
            }
        }
        verdict
    }
}

#[async_trait]
impl Deliveries for MemoryStore {
    fn partitions(&self) -> usize {
        1
    }

    async fn record_deliveries(&self, _: usize, mut batch: DeliveryBatch) -> Result<Vec<Verdict>> {
        let mut tables = self.tables();
        let hour = Bucket::Hour.start_of(batch.acceptance.now);
        let mut verdicts = Vec::new();
        for event in std::mem::take(&mut batch.events) {
            let tenant = Some(event.tenant.clone());
            let verdict = tables.record(event, &batch);
            tables.counters.entry((hour, tenant)).or_default().add(&verdict);
            verdicts.push(verdict);
        }
        for (tenant, count) in batch.refused {
            tables.counters.entry((hour, tenant)).or_default().rejected += count;
        }
        Ok(verdicts)
    }
}

#[async_trait]
impl Declarations for MemoryStore {
    async fn declare_meter(&self, meter: Meter, _: Timestamp) -> Result<Declaration<Meter>> {
        let mut tables = self.tables();
        let known = tables.catalog.find(meter.slug.as_str()).map(|(no, m)| (no, Arc::clone(m)));
        match known {
            Some((_, known)) if !known.counts_like(&meter) => {
                Ok(Declaration::Refused((*known).clone()))
            }
            Some((number, _)) => {
                tables.catalog.insert(number, Arc::new(meter));
                Ok(Declaration::Updated)
            }
            None => {
                let number = MeterNo(u16::try_from(tables.catalog.len() + 1).unwrap());
                tables.catalog.insert(number, Arc::new(meter));
                Ok(Declaration::Created)
            }
        }
    }

    async fn load_catalog(&self) -> Result<Catalog> {
        Ok(self.tables().catalog.clone())
    }

    async fn put_tenant(
        &self,
        tenant: &TenantId,
        name: Option<&str>,
        at: Timestamp,
    ) -> Result<Tenant> {
        let mut tables = self.tables();
        let entry = tables.tenants.entry(tenant.clone()).or_insert_with(|| Tenant {
            id: tenant.clone(),
            name: None,
            created_at: at,
        });
        entry.name = name.map(str::to_owned);
        Ok(entry.clone())
    }

    async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>> {
        Ok(self.tables().tenants.get(tenant).cloned())
    }

    async fn list_tenants(&self, after: Option<&TenantId>, limit: usize) -> Result<Vec<Tenant>> {
        let tables = self.tables();
        let later = tables.tenants.values().filter(|t| after.is_none_or(|after| t.id > *after));
        Ok(later.take(limit).cloned().collect())
    }
}

#[async_trait]
impl Queries for MemoryStore {
    async fn read_usage(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<UsageRow>> {
        let tables = self.tables();
        let definition = Arc::clone(tables.catalog.get(meter).unwrap());
        let rows = tables
            .events
            .values()
            .filter(|stored| stored.event.tenant == *tenant && stored.event.meter == meter)
            .map(|stored| {
                let (bucket_start, group, rollup) = Rollup::of_event(&stored.event, &definition);
                UsageRow { bucket_start, group, rollup }
            })
            .filter(|row| range.start <= row.bucket_start && row.bucket_start < range.end);
        Ok(rows.collect())
    }

    async fn list_events(&self, query: EventQuery) -> Result<Vec<StoredEvent>> {
        let rank = |stored: &StoredEvent| (stored.event.occurred_at, stored.event.id.clone());
        let tables = self.tables();
        let mut events: Vec<_> = tables
            .events
            .values()
            .filter(|stored| stored.event.tenant == query.tenant)
            .filter(|stored| query.meter.is_none_or(|meter| stored.event.meter == meter))
            .filter(|stored| {
                let at = stored.event.occurred_at;
                query.range.is_none_or(|range| range.start <= at && at < range.end)
            })
            .filter(|stored| query.before.as_ref().is_none_or(|before| rank(stored) < *before))
            .cloned()
            .collect();
        events.sort_by_key(|stored| std::cmp::Reverse(rank(stored)));
        events.truncate(query.limit);
        Ok(events)
    }

    async fn trace_event(&self, tenant: &TenantId, id: &EventId) -> Result<EventTrace> {
        let tables = self.tables();
        let conflicts = tables.conflicts.iter().filter(|c| c.tenant == *tenant && c.id == *id);
        let quarantined = tables.quarantined.iter().filter(|q| q.tenant == *tenant && q.id == *id);
        Ok(EventTrace {
            counted: tables.events.get(&(tenant.clone(), id.clone())).cloned(),
            conflicts: conflicts.cloned().collect(),
            quarantined: quarantined.cloned().collect(),
        })
    }

    async fn list_conflicts(&self, query: InboxQuery) -> Result<InboxPage<ConflictRecord>> {
        Ok(page(&self.tables().conflicts, &query, |record| &record.tenant))
    }

    async fn list_quarantine(&self, query: InboxQuery) -> Result<InboxPage<QuarantineRecord>> {
        Ok(page(&self.tables().quarantined, &query, |record| &record.tenant))
    }

    async fn read_counters(&self, range: Window) -> Result<Vec<CounterRow>> {
        let tables = self.tables();
        let inside =
            tables.counters.iter().filter(|((h, _), _)| range.start <= *h && *h < range.end);
        let row = |((hour, tenant), tally): (&(Timestamp, Option<TenantId>), &Tally)| CounterRow {
            tenant: tenant.clone(),
            hour: *hour,
            tally: *tally,
        };
        Ok(inside.map(row).collect())
    }

    async fn check(&self, _: Progress<'_>) -> Result<CheckReport> {
        Ok(CheckReport::default())
    }
}

fn page<T: Clone>(
    records: &[T],
    query: &InboxQuery,
    tenant: impl Fn(&T) -> &TenantId,
) -> InboxPage<T> {
    (1u64..)
        .zip(records)
        .filter(|(number, _)| *number > query.after)
        .filter(|(_, record)| query.tenant.as_ref().is_none_or(|t| t == tenant(record)))
        .take(query.limit)
        .map(|(number, record)| (number, record.clone()))
        .collect()
}

#[async_trait]
impl ApiKeys for MemoryStore {
    fn token_secret(&self) -> [u8; 32] {
        [7; 32]
    }

    async fn create_api_key(&self, key: ApiKey) -> Result<()> {
        self.tables().keys.push(key);
        Ok(())
    }

    async fn list_api_keys(&self) -> Result<Vec<ApiKey>> {
        Ok(self.tables().keys.clone())
    }

    async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool> {
        let mut tables = self.tables();
        let key = tables.keys.iter_mut().find(|key| key.id == id && key.revoked_at.is_none());
        Ok(key.map(|key| key.revoked_at = Some(at)).is_some())
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn high_water(&self) -> Timestamp {
        Timestamp::default()
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {}
}
