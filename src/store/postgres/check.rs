//! The check: every total and counter recomputed from the events, by the same rules, in one
//! snapshot, and every event found again by its key. It reads only; memory holds the totals, never
//! the events.

use super::connection::{Connector, Snapshot};
use super::declarations::read_catalog;
use super::events::stored_event;
use super::rollups::{Totals, fold_event, usage_row};
use super::scalars::{
    SqlHash, column, damaged, read_count, read_meter_no, read_tenant_no, tenant_number,
};
use super::session::read_snapshot;
use crate::rules::event::Event;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::rollup::RollupKey;
use crate::store::sql::verify_passes;
use crate::store::{CHECK_FINDINGS_MAX, CheckReport, Progress, Result};
use deadpool_postgres::ClientWrapper;
use futures_util::TryStreamExt;
use std::collections::HashMap;
use std::pin::pin;
use tokio_postgres::RowStream;

/// How many events lie between two calls of the progress function.
const PROGRESS_EVENTS: u64 = 10_000;

/// Compares totals and counters with the events, in this snapshot, which it ends.
pub async fn check(
    snapshot: Snapshot,
    connector: &Connector,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let client: &ClientWrapper = &snapshot;
    client.batch_execute("-- check\nSET LOCAL statement_timeout = 0").await?;
    let catalog = read_catalog(client).await?;
    let tenants = read_tenants(client).await?;
    let mut report = CheckReport::default();
    let mut displaced = Displaced::default();
    let event = |tenant, slot, event: &Event| displaced.note(fingerprinter, tenant, slot, event);
    let (totals, counted) =
        recompute(client, &catalog, &tenants, event, progress, &mut report).await?;
    displaced.check(client, &tenants, &mut report).await?;
    compare_rollups(client, &catalog, &tenants, totals, &mut report).await?;
    compare_uniques(client, &mut report).await?;
    compare_counters(client, &tenants, counted, &mut report).await?;
    report.audit = read_snapshot(snapshot, connector, verify_passes).await?;
    if let Some(broken) = report.audit.broken.clone() {
        report.add(|| format!("the chain of nightly passes is broken: {broken}"));
    }
    Ok(report)
}

type CheckedTenants = HashMap<TenantNo, TenantId>;
/// How many events each tenant has.
type CountedEvents = HashMap<TenantNo, u64>;

async fn read_tenants(client: &ClientWrapper) -> Result<CheckedTenants> {
    let sql = "-- read_tenants
        SELECT tenant_no, tenant FROM tenants";
    let mut tenants = CheckedTenants::new();
    for row in client.query(sql, &[]).await? {
        let name: String = column(&row, 1)?;
        let tenant = TenantId::parse(&name).map_err(|_| damaged("tenants.tenant", &name))?;
        tenants.insert(read_tenant_no(column(&row, 0)?)?, tenant);
    }
    Ok(tenants)
}

async fn recompute(
    client: &ClientWrapper,
    catalog: &Catalog,
    tenants: &CheckedTenants,
    mut seen: impl FnMut(TenantNo, u128, &Event),
    progress: Progress<'_>,
    report: &mut CheckReport,
) -> Result<(Totals, CountedEvents)> {
    let sql = "-- recompute
        SELECT tenant_no, key_hash, meter_no, trial, occurred_at, received_at, quantity, id,
            properties, subscription
        FROM events";
    let mut totals = Totals::new();
    let mut counted = CountedEvents::new();
    let mut rows = pin!(stream(client, sql).await?);
    while let Some(row) = rows.try_next().await? {
        let tenant_no = read_tenant_no(column(&row, 0)?)?;
        report.events += 1;
        if report.events.is_multiple_of(PROGRESS_EVENTS) {
            progress(report.events);
        }
        let Some(tenant) = tenants.get(&tenant_no) else {
            report.add(|| format!("an event belongs to no tenant (number {})", tenant_no.0));
            continue;
        };
        *counted.entry(tenant_no).or_default() += 1;
        let event = stored_event(&row, tenant.clone())?.event;
        let SqlHash(slot) = column(&row, 1)?;
        seen(tenant_no, slot, &event);
        if catalog.get(event.meter).is_none() {
            report.add(|| format!("event {} of {tenant} belongs to no meter", event.id));
            continue;
        }
        fold_event(&mut totals, tenant_no, &event, catalog)?;
    }
    progress(report.events);
    Ok((totals, counted))
}

/// Events that do not lie at their key's own fingerprint: after a collision that is right, if
/// other events lie at every place from there on. Otherwise a redelivery would not find them.
#[derive(Default)]
struct Displaced {
    /// Tenant, the key's own fingerprint, the place it lies at, and the id.
    events: Vec<(TenantNo, u128, u128, EventId)>,
}

/// Displaced events that are looked at: collisions of 128 bits do not happen, so even a few mean
/// that the store's secret is not the one the keys were made with.
const DISPLACED_MAX: usize = 10_000;

impl Displaced {
    fn note(&mut self, fingerprinter: &Fingerprinter, tenant: TenantNo, slot: u128, event: &Event) {
        let home = fingerprinter.event_key(tenant, &event.id);
        if home != slot && self.events.len() < DISPLACED_MAX {
            self.events.push((tenant, home, slot, event.id.clone()));
        }
    }

    async fn check(
        &self,
        client: &ClientWrapper,
        tenants: &CheckedTenants,
        report: &mut CheckReport,
    ) -> Result<()> {
        let sql = "-- displaced
            SELECT count(*), count(*) FILTER (WHERE id = $4) FROM events
            WHERE tenant_no = $1 AND key_hash >= $2 AND key_hash < $3";
        let statement = client.prepare(sql).await?;
        for (tenant, home, slot, id) in &self.events {
            let name = tenants.get(tenant).map_or("?", TenantId::as_str);
            let distance = slot.checked_sub(*home);
            let (number, from, to) = (tenant_number(*tenant), SqlHash(*home), SqlHash(*slot));
            let row = client.query_one(&statement, &[&number, &from, &to, &id.as_str()]).await?;
            let between = u128::from(read_count(column(&row, 0)?)?);
            if distance != Some(between) {
                report.add(|| format!("event {id} of {name} does not lie where its key is found"));
            } else if read_count(column(&row, 1)?)? > 0 {
                report.add(|| format!("event {id} of {name} is stored twice"));
            }
            if report.findings.len() >= CHECK_FINDINGS_MAX {
                return Ok(());
            }
        }
        Ok(())
    }
}

async fn compare_rollups(
    client: &ClientWrapper,
    catalog: &Catalog,
    tenants: &CheckedTenants,
    mut totals: Totals,
    report: &mut CheckReport,
) -> Result<()> {
    let sql = "-- compare_rollups
        SELECT r.tenant_no, r.meter_no, r.bucket_start, COALESCE(r.grp_text, r.grp), r.count,
            r.total, r.latest_at, r.latest_id,
            ARRAY(
                SELECT u.value FROM rollup_uniques u
                WHERE u.tenant_no = r.tenant_no AND u.meter_no = r.meter_no
                    AND u.bucket_start = r.bucket_start AND u.grp = r.grp
            )
        FROM rollups r";
    let mut rows = pin!(stream(client, sql).await?);
    while let Some(row) = rows.try_next().await? {
        report.rollups += 1;
        let tenant = read_tenant_no(column(&row, 0)?)?;
        let meter = read_meter_no(column(&row, 1)?)?;
        let Some(definition) = catalog.get(meter) else {
            report.add(|| format!("a total belongs to no meter (number {})", meter.0));
            continue;
        };
        let stored = usage_row(&row, 2, definition.spec.aggregation)?;
        let (bucket_start, group) = (stored.bucket_start, stored.group);
        let key = RollupKey { tenant, meter, bucket_start, group };
        match totals.remove(&key) {
            None => report
                .add(|| format!("{} has a total and no events", describe(&key, catalog, tenants))),
            Some(computed) if computed != stored.rollup => report.add(|| {
                let name = describe(&key, catalog, tenants);
                format!("{name} is {:?}, its events give {computed:?}", stored.rollup)
            }),
            Some(_) => {}
        }
    }
    let mut missing: Vec<&RollupKey> = totals.keys().collect();
    missing.sort_unstable();
    for key in missing {
        report.add(|| format!("{} has events and no total", describe(key, catalog, tenants)));
    }
    Ok(())
}

async fn compare_uniques(client: &ClientWrapper, report: &mut CheckReport) -> Result<()> {
    let sql = "-- compare_uniques
        SELECT count(*) FROM rollup_uniques u
        WHERE NOT EXISTS (
            SELECT FROM rollups r
            WHERE r.tenant_no = u.tenant_no AND r.meter_no = u.meter_no
                AND r.bucket_start = u.bucket_start AND r.grp = u.grp
        )";
    let row = client.query_one(sql, &[]).await?;
    let surplus: i64 = column(&row, 0)?;
    if surplus > 0 {
        report.add(|| format!("{surplus} unique values belong to no total"));
    }
    Ok(())
}

async fn compare_counters(
    client: &ClientWrapper,
    tenants: &CheckedTenants,
    mut counted: CountedEvents,
    report: &mut CheckReport,
) -> Result<()> {
    let sql = "-- compare_counters
        SELECT tenant_no, sum(accepted)::bigint FROM counters
        GROUP BY tenant_no ORDER BY tenant_no";
    let name = |tenant: TenantNo| match tenants.get(&tenant) {
        Some(name) => format!("tenant {name}"),
        None => "no tenant".to_owned(),
    };
    for row in client.query(sql, &[]).await? {
        let tenant = read_tenant_no(column(&row, 0)?)?;
        let accepted = read_count(column(&row, 1)?)?;
        let events = counted.remove(&tenant).unwrap_or(0);
        if accepted != events {
            report.add(|| {
                let tenant = name(tenant);
                format!("counters of {tenant} say {accepted} accepted, there are {events} events")
            });
        }
    }
    for (tenant, events) in counted {
        report.add(|| format!("{} has {events} events and no counters", name(tenant)));
    }
    Ok(())
}

async fn stream(client: &ClientWrapper, sql: &str) -> Result<RowStream> {
    let statement = client.prepare(sql).await?;
    Ok(client.query_raw(&statement, std::iter::empty::<i32>()).await?)
}

fn describe(key: &RollupKey, catalog: &Catalog, tenants: &CheckedTenants) -> String {
    let tenant = tenants.get(&key.tenant).map_or("?", TenantId::as_str);
    let meter = catalog.get(key.meter).map_or("?", |meter| meter.slug.as_str());
    let (bucket_start, group) = (key.bucket_start, key.group.as_text());
    format!("the total of tenant {tenant}, meter {meter}, bucket {bucket_start}, group {group:?}")
}
