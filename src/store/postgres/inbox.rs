//! The inboxes: payloads that came under a key another payload holds, and events that were kept and
//! not counted.
//!
//! Invariant: each kept payload has one row; the same payload again only raises `deliveries` and
//! `last_received_at`. A payload is found by its fingerprint and compared by its text; where
//! another payload has the fingerprint, it has the next free one. An inbox keeps
//! [`INBOX_PAYLOADS_MAX`] payloads of an id, and a few more where two servers record at once.
//! Deliveries of further payloads are counted in `inbox_overflow`.

use super::failure::Failure;
use super::judgement::{Conflicting, Quarantined, meter_of};
use super::scalars::{SqlHash, SqlTimestamp, column, read_count, tenant_number};
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::store::{INBOX_PAYLOADS_MAX, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A payload on its way to an inbox.
struct InboxEntry {
    /// The standing payload of a conflict, the reason of a quarantine.
    context: String,
    slot: u128,
    deliveries: i64,
}

/// Entries by tenant, id and payload: a payload that came twice in a batch is one entry.
type Entries<'b> = BTreeMap<(TenantNo, &'b str, String), InboxEntry>;

fn add_entry<'b>(
    entries: &mut Entries<'b>,
    (tenant, event): (TenantNo, &'b Event),
    context: String,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> Result<()> {
    let payload = event.to_json(&meter_of(catalog, event.meter)?.slug);
    let fresh = || InboxEntry { context, slot: fingerprinter.payload(event), deliveries: 0 };
    let key = (tenant, event.id.as_str(), payload);
    entries.entry(key).or_insert_with(fresh).deliveries += 1;
    Ok(())
}

/// Keeps conflicting payloads, inside the caller's transaction.
pub async fn record_conflicts(
    client: &ClientWrapper,
    conflicts: &[Conflicting<'_>],
    received_at: Timestamp,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> std::result::Result<(), Failure> {
    let mut entries = Entries::new();
    for Conflicting { tenant, standing, arriving } in conflicts {
        let event = (*tenant, *arriving);
        add_entry(&mut entries, event, standing.clone(), catalog, fingerprinter)?;
    }
    CONFLICTS.record(client, entries, received_at).await
}

/// Keeps events that are not counted, inside the caller's transaction.
pub async fn record_quarantine(
    client: &ClientWrapper,
    quarantined: &[Quarantined<'_>],
    received_at: Timestamp,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> std::result::Result<(), Failure> {
    let mut entries = Entries::new();
    for Quarantined { tenant, event, reason } in quarantined {
        let event = (*tenant, *event);
        add_entry(&mut entries, event, reason.code().to_owned(), catalog, fingerprinter)?;
    }
    QUARANTINE.record(client, entries, received_at).await
}

/// A table of kept payloads.
struct Inbox {
    /// Also its name in `inbox_overflow`.
    name: &'static str,
    /// The columns of a payload, and of what is said beside it.
    payload: &'static str,
    context: &'static str,
}

const CONFLICTS: Inbox = Inbox { name: "conflicts", payload: "arriving", context: "standing" };
const QUARANTINE: Inbox = Inbox { name: "quarantine", payload: "payload", context: "reason" };

impl Inbox {
    async fn record(
        &self,
        client: &ClientWrapper,
        entries: Entries<'_>,
        received_at: Timestamp,
    ) -> std::result::Result<(), Failure> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut room = self.read_room(client, &entries).await?;
        let mut new_payloads: BTreeMap<(TenantNo, &str), usize> = BTreeMap::new();
        for (tenant, id, _) in entries.keys() {
            *new_payloads.entry((*tenant, *id)).or_default() += 1;
        }
        // Where all of an id's payloads have room, nothing has to be known of those that are kept.
        let short = |key: &(TenantNo, &str)| new_payloads[key] > room[key];
        let (scarce, mut kept): (Entries<'_>, Entries<'_>) =
            entries.into_iter().partition(|((tenant, id, _), _)| short(&(*tenant, *id)));
        let known = self.find_kept(client, &scarce).await?;
        let mut overflow: BTreeMap<(TenantNo, &str), i64> = BTreeMap::new();
        for (key, entry) in scarce {
            let id = (key.0, key.1);
            let left = room.entry(id).or_default();
            if known.contains(&(tenant_number(key.0), key.1.to_owned(), key.2.clone())) {
                kept.insert(key, entry);
            } else if *left > 0 {
                *left -= 1;
                kept.insert(key, entry);
            } else {
                *overflow.entry(id).or_default() += entry.deliveries;
            }
        }
        upsert_entries(client, &self.upsert(), kept, received_at).await?;
        self.count_overflow(client, &overflow, received_at).await
    }

    /// How many more payloads each id of the entries may have.
    async fn read_room<'b>(
        &self,
        client: &ClientWrapper,
        entries: &Entries<'b>,
    ) -> std::result::Result<BTreeMap<(TenantNo, &'b str), usize>, Failure> {
        let mut ids: Vec<(TenantNo, &str)> = entries.keys().map(|(t, id, _)| (*t, *id)).collect();
        ids.dedup();
        let tenants: Vec<i32> = ids.iter().map(|(tenant, _)| tenant_number(*tenant)).collect();
        let names: Vec<&str> = ids.iter().map(|(_, id)| *id).collect();
        let sql = format!(
            "-- count_kept
            SELECT kept.tenant_no, kept.id, count(*)
            FROM unnest($1::int4[], $2::text[]) AS given (tenant_no, id)
            JOIN {} kept ON kept.tenant_no = given.tenant_no AND kept.id = given.id
            GROUP BY kept.tenant_no, kept.id",
            self.name
        );
        let mut counts: HashMap<(i32, String), usize> = HashMap::with_capacity(ids.len());
        for row in client.read_all(&sql, &[&tenants, &names]).await? {
            let count = usize::try_from(read_count(column(&row, 2)?)?).unwrap_or(usize::MAX);
            counts.insert((column(&row, 0)?, column(&row, 1)?), count);
        }
        let room = |(tenant, id): (TenantNo, &'b str)| {
            let kept = counts.get(&(tenant_number(tenant), id.to_owned())).copied();
            ((tenant, id), INBOX_PAYLOADS_MAX.saturating_sub(kept.unwrap_or(0)))
        };
        Ok(ids.into_iter().map(room).collect())
    }

    /// Those of the payloads that are kept already, as far as no other has their fingerprint.
    async fn find_kept(
        &self,
        client: &ClientWrapper,
        entries: &Entries<'_>,
    ) -> std::result::Result<HashSet<(i32, String, String)>, Failure> {
        let mut known = HashSet::new();
        if entries.is_empty() {
            return Ok(known);
        }
        let tenants: Vec<i32> = entries.keys().map(|(tenant, ..)| tenant_number(*tenant)).collect();
        let ids: Vec<&str> = entries.keys().map(|(_, id, _)| *id).collect();
        let slots: Vec<SqlHash> = entries.values().map(|entry| SqlHash(entry.slot)).collect();
        let Self { name, payload, .. } = self;
        let sql = format!(
            "-- find_kept
            SELECT kept.tenant_no, kept.id, kept.{payload}
            FROM unnest($1::int4[], $2::text[], $3::uuid[]) AS given (tenant_no, id, fingerprint)
            JOIN {name} kept USING (tenant_no, id, fingerprint)"
        );
        for row in client.read_all(&sql, &[&tenants, &ids, &slots]).await? {
            known.insert((column(&row, 0)?, column(&row, 1)?, column(&row, 2)?));
        }
        Ok(known)
    }

    /// Counts deliveries whose payloads are not kept. The map keeps the order of the primary key,
    /// so that two writers never wait in a circle.
    async fn count_overflow(
        &self,
        client: &ClientWrapper,
        overflow: &BTreeMap<(TenantNo, &str), i64>,
        received_at: Timestamp,
    ) -> std::result::Result<(), Failure> {
        if overflow.is_empty() {
            return Ok(());
        }
        let tenants: Vec<i32> = overflow.keys().map(|(t, _)| tenant_number(*t)).collect();
        let ids: Vec<&str> = overflow.keys().map(|(_, id)| *id).collect();
        let deliveries: Vec<i64> = overflow.values().copied().collect();
        let sql = "-- count_overflow
            INSERT INTO inbox_overflow AS kept
                (tenant_no, id, deliveries, inbox, first_received_at, last_received_at)
            SELECT given.*, $4::text, $5::timestamptz, $5::timestamptz
            FROM unnest($1::int4[], $2::text[], $3::int8[]) AS given
            ON CONFLICT (tenant_no, id, inbox) DO UPDATE SET
                deliveries = kept.deliveries + excluded.deliveries,
                last_received_at = GREATEST(kept.last_received_at, excluded.last_received_at)";
        let at = SqlTimestamp(received_at);
        client.run(sql, &[&tenants, &ids, &deliveries, &self.name, &at]).await?;
        Ok(())
    }

    /// Writes payloads, each where its fingerprint says; not where another payload is.
    fn upsert(&self) -> String {
        let Self { name, payload, context } = self;
        format!(
            "-- upsert
            INSERT INTO {name} AS kept (tenant_no, id, fingerprint, {payload}, {context},
                deliveries, first_received_at, last_received_at)
            SELECT given.*, $7::timestamptz, $7::timestamptz FROM unnest($1::int4[], $2::text[],
                $3::uuid[], $4::text[], $5::text[], $6::int8[]) AS given
            ON CONFLICT (tenant_no, id, fingerprint) DO UPDATE SET
                deliveries = kept.deliveries + excluded.deliveries,
                last_received_at = GREATEST(kept.last_received_at, excluded.last_received_at)
                WHERE kept.{payload} = excluded.{payload}
            RETURNING tenant_no, id, fingerprint"
        )
    }
}

/// Writes each entry at its fingerprint; those that find another payload there go on to the next.
async fn upsert_entries(
    client: &ClientWrapper,
    sql: &str,
    entries: Entries<'_>,
    received_at: Timestamp,
) -> std::result::Result<(), Failure> {
    let received_at = SqlTimestamp(received_at);
    let mut open: Vec<_> = entries.into_iter().collect();
    while !open.is_empty() {
        let statement = client.prepare_cached(sql).await?;
        open.sort_by(|((ta, ia, _), a), ((tb, ib, _), b)| (ta, ia, a.slot).cmp(&(tb, ib, b.slot)));
        // One statement cannot write one place twice: only the first entry of a place takes part.
        let mut rows: Vec<usize> = Vec::with_capacity(open.len());
        for (place, ((tenant, id, _), entry)) in open.iter().enumerate() {
            let same = |before: usize| {
                let ((other, other_id, _), other_entry) = &open[before];
                (other, other_id, other_entry.slot) == (tenant, id, entry.slot)
            };
            if !rows.last().is_some_and(|before| same(*before)) {
                rows.push(place);
            }
        }
        let tenants: Vec<i32> = rows.iter().map(|row| tenant_number(open[*row].0.0)).collect();
        let ids: Vec<&str> = rows.iter().map(|row| open[*row].0.1).collect();
        let slots: Vec<SqlHash> = rows.iter().map(|row| SqlHash(open[*row].1.slot)).collect();
        let payloads: Vec<&str> = rows.iter().map(|row| open[*row].0.2.as_str()).collect();
        let contexts: Vec<&str> = rows.iter().map(|row| open[*row].1.context.as_str()).collect();
        let deliveries: Vec<i64> = rows.iter().map(|row| open[*row].1.deliveries).collect();
        let written = client
            .query(
                &statement,
                &[&tenants, &ids, &slots, &payloads, &contexts, &deliveries, &received_at],
            )
            .await?;
        let mut done: HashSet<(i32, String, SqlHash)> = HashSet::with_capacity(written.len());
        for row in &written {
            done.insert((column(row, 0)?, column(row, 1)?, column(row, 2)?));
        }
        let took_part: HashSet<usize> = rows.into_iter().collect();
        let mut left = Vec::new();
        for (place, (key, entry)) in open.into_iter().enumerate() {
            let at = (tenant_number(key.0), key.1.to_owned(), SqlHash(entry.slot));
            if !(took_part.contains(&place) && done.contains(&at)) {
                left.push((key, InboxEntry { slot: entry.slot.wrapping_add(1), ..entry }));
            }
        }
        open = left;
    }
    Ok(())
}
