//! The inboxes: payloads that came under a key another payload holds, and events that were kept
//! and not counted.
//!
//! Invariant: each different payload has one row; the same payload again only raises `deliveries`
//! and `last_received_at`. A payload is found by its fingerprint and judged by its text: where
//! another payload lies at the fingerprint, it lies at the next free one.

use super::failure::Failure;
use super::judgement::{Conflicting, Quarantined, meter_of};
use super::scalars::{
    SqlHash, SqlTimestamp, column, corrupt, instant, read_count, tenant_number, write_limit,
};
use crate::rules::event::Event;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Quarantine;
use crate::store::{ConflictRecord, InboxPage, InboxQuery, QuarantineRecord, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, HashSet};
use tokio_postgres::Row;

/// A payload on its way to an inbox.
struct Entry {
    /// The standing payload of a conflict, the reason of a quarantine.
    context: String,
    slot: u128,
    deliveries: i64,
}

/// Entries by tenant, id and payload: a payload that came twice in a batch is one entry.
type Entries<'b> = BTreeMap<(TenantNo, &'b str, String), Entry>;

fn add_entry<'b>(
    entries: &mut Entries<'b>,
    (tenant, event): (TenantNo, &'b Event),
    context: String,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> Result<()> {
    let payload = event.to_json(&meter_of(catalog, event.meter)?.slug);
    let fresh = || Entry { context, slot: fingerprinter.payload(event), deliveries: 0 };
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
    let sql = "-- record_conflicts
        INSERT INTO conflicts AS kept (tenant_no, id, fingerprint, arriving, standing, deliveries,
            first_received_at, last_received_at)
        SELECT given.*, $7::timestamptz, $7::timestamptz FROM unnest($1::int4[], $2::text[],
            $3::uuid[], $4::text[], $5::text[], $6::int8[]) AS given
        ON CONFLICT (tenant_no, id, fingerprint) DO UPDATE SET
            deliveries = kept.deliveries + excluded.deliveries,
            last_received_at = GREATEST(kept.last_received_at, excluded.last_received_at)
            WHERE kept.arriving = excluded.arriving
        RETURNING tenant_no, id, fingerprint";
    upsert_entries(client, sql, entries, received_at).await
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
    let sql = "-- record_quarantine
        INSERT INTO quarantine AS kept (tenant_no, id, fingerprint, payload, reason, deliveries,
            first_received_at, last_received_at)
        SELECT given.*, $7::timestamptz, $7::timestamptz FROM unnest($1::int4[], $2::text[],
            $3::uuid[], $4::text[], $5::text[], $6::int8[]) AS given
        ON CONFLICT (tenant_no, id, fingerprint) DO UPDATE SET
            deliveries = kept.deliveries + excluded.deliveries,
            last_received_at = GREATEST(kept.last_received_at, excluded.last_received_at)
            WHERE kept.payload = excluded.payload
        RETURNING tenant_no, id, fingerprint";
    upsert_entries(client, sql, entries, received_at).await
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
                left.push((key, Entry { slot: entry.slot.wrapping_add(1), ..entry }));
            }
        }
        open = left;
    }
    Ok(())
}

/// A page of the conflicts, oldest first.
pub async fn list_conflicts(
    client: &ClientWrapper,
    query: &InboxQuery,
) -> Result<InboxPage<ConflictRecord>> {
    let sql = "-- list_conflicts
        SELECT c.conflict_no, t.tenant, c.id, c.first_received_at, c.last_received_at,
            c.deliveries, c.standing, c.arriving
        FROM conflicts c JOIN tenants t USING (tenant_no)
        WHERE c.conflict_no > $1 AND ($2::text IS NULL OR t.tenant = $2)
        ORDER BY c.conflict_no
        LIMIT $3";
    let rows = list(client, sql, query).await?;
    rows.iter().map(|row| Ok((read_count(column(row, 0)?)?, conflict_record(row)?))).collect()
}

/// A page of the quarantine, oldest first.
pub async fn list_quarantine(
    client: &ClientWrapper,
    query: &InboxQuery,
) -> Result<InboxPage<QuarantineRecord>> {
    let sql = "-- list_quarantine
        SELECT q.quarantine_no, t.tenant, q.id, q.first_received_at, q.last_received_at,
            q.deliveries, q.payload, q.reason
        FROM quarantine q JOIN tenants t USING (tenant_no)
        WHERE q.quarantine_no > $1 AND ($2::text IS NULL OR t.tenant = $2)
        ORDER BY q.quarantine_no
        LIMIT $3";
    let rows = list(client, sql, query).await?;
    rows.iter().map(|row| Ok((read_count(column(row, 0)?)?, quarantine_record(row)?))).collect()
}

async fn list(client: &ClientWrapper, sql: &str, query: &InboxQuery) -> Result<Vec<Row>> {
    let statement = client.prepare_cached(sql).await?;
    let after = i64::try_from(query.after).unwrap_or(i64::MAX);
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    Ok(client.query(&statement, &[&after, &tenant, &write_limit(query.limit)]).await?)
}

/// The conflicts of one event key, oldest first.
pub async fn conflicts_of(
    client: &ClientWrapper,
    tenant: TenantNo,
    id: &EventId,
) -> Result<Vec<ConflictRecord>> {
    let sql = "-- conflicts_of
        SELECT c.conflict_no, t.tenant, c.id, c.first_received_at, c.last_received_at,
            c.deliveries, c.standing, c.arriving
        FROM conflicts c JOIN tenants t USING (tenant_no)
        WHERE c.tenant_no = $1 AND c.id = $2
        ORDER BY c.conflict_no";
    let statement = client.prepare_cached(sql).await?;
    let rows = client.query(&statement, &[&tenant_number(tenant), &id.as_str()]).await?;
    rows.iter().map(conflict_record).collect()
}

/// The quarantined payloads of one event key, oldest first.
pub async fn quarantined_of(
    client: &ClientWrapper,
    tenant: TenantNo,
    id: &EventId,
) -> Result<Vec<QuarantineRecord>> {
    let sql = "-- quarantined_of
        SELECT q.quarantine_no, t.tenant, q.id, q.first_received_at, q.last_received_at,
            q.deliveries, q.payload, q.reason
        FROM quarantine q JOIN tenants t USING (tenant_no)
        WHERE q.tenant_no = $1 AND q.id = $2
        ORDER BY q.quarantine_no";
    let statement = client.prepare_cached(sql).await?;
    let rows = client.query(&statement, &[&tenant_number(tenant), &id.as_str()]).await?;
    rows.iter().map(quarantine_record).collect()
}

fn conflict_record(row: &Row) -> Result<ConflictRecord> {
    Ok(ConflictRecord {
        tenant: tenant_id(row)?,
        id: event_id(row)?,
        standing: column(row, 6)?,
        arriving: column(row, 7)?,
        first_received_at: instant(row, 3)?,
        last_received_at: instant(row, 4)?,
        deliveries: read_count(column(row, 5)?)?,
    })
}

fn quarantine_record(row: &Row) -> Result<QuarantineRecord> {
    let reason: String = column(row, 7)?;
    Ok(QuarantineRecord {
        tenant: tenant_id(row)?,
        id: event_id(row)?,
        payload: column(row, 6)?,
        reason: Quarantine::from_code(&reason)
            .ok_or_else(|| corrupt("a quarantined event has no known reason"))?,
        first_received_at: instant(row, 3)?,
        last_received_at: instant(row, 4)?,
        deliveries: read_count(column(row, 5)?)?,
    })
}

fn tenant_id(row: &Row) -> Result<TenantId> {
    let text: String = column(row, 1)?;
    TenantId::parse(&text).map_err(|_| corrupt("an inbox names no valid tenant"))
}

fn event_id(row: &Row) -> Result<EventId> {
    let text: String = column(row, 2)?;
    EventId::parse(&text).map_err(|_| corrupt("an inbox names no valid event id"))
}
