//! Timelines: states of subscriptions, each with the moment from which it held.
//!
//! Invariant: a timeline is a set, by its primary key; the order of arrival plays no part, and what
//! is there already changes nothing. Entries are written in the order of that key, after all other
//! rows of their transaction.
//!
//! A crash leaves an entry together with its webhook or reading, or neither.

use super::push_rows::each;
use super::scalars::{SqlTimestamp, column, damaged, instant, read_count, write_count};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::subscription::{Origin, Subscription, TimelineEntry};
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Adds what is not there yet.
pub async fn insert_entries(client: &ClientWrapper, entries: &[&TimelineEntry]) -> Done<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let sql = "-- insert_entries
        INSERT INTO timeline_entries (subscription, at, origin, version, digest, customer, state)
        SELECT subscription, at, origin, version, digest, customer, state
        FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::int8[], $5::bytea[],
            $6::text[], $7::text[])
            AS given (subscription, at, origin, version, digest, customer, state)
        ORDER BY subscription COLLATE \"C\", at, origin COLLATE \"C\", version, digest
        ON CONFLICT DO NOTHING";
    let versions: Vec<i64> =
        entries.iter().map(|entry| write_count(entry.version)).collect::<Result<_>>()?;
    let texts = each(entries, |entry| entry.state.text());
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &each(entries, |entry| entry.subscription.as_str()),
        &each(entries, |entry| SqlTimestamp(entry.at)),
        &each(entries, |entry| entry.origin.name()),
        &versions,
        &each(&texts, |text| Sha256::digest(text.as_bytes()).to_vec()),
        &each(entries, |entry| entry.state.customer.as_str()),
        &texts,
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// All states of the subscriptions of the tenant's customer.
pub async fn read_timeline(
    client: &ClientWrapper,
    tenant: &TenantId,
) -> Result<Vec<TimelineEntry>> {
    let sql = "-- read_timeline
        SELECT subscription, at, origin, version, state FROM timeline_entries
        WHERE customer = (SELECT customer FROM tenants WHERE tenant = $1)";
    let rows = client.read_all(sql, &[&tenant.as_str()]).await?;
    rows.iter().map(timeline_entry).collect()
}

/// The same for many tenants, by their numbers.
pub async fn read_timelines(
    client: &ClientWrapper,
    tenants: &[i32],
) -> Result<BTreeMap<i32, Vec<TimelineEntry>>> {
    let sql = "-- read_timelines
        SELECT e.subscription, e.at, e.origin, e.version, e.state, t.tenant_no
        FROM tenants t JOIN timeline_entries e ON e.customer = t.customer
        WHERE t.tenant_no = ANY($1)";
    let statement = client.prepare_cached(sql).await?;
    let mut timelines: BTreeMap<i32, Vec<TimelineEntry>> = BTreeMap::new();
    for row in client.query(&statement, &[&tenants]).await? {
        timelines.entry(column(&row, 5)?).or_default().push(timeline_entry(&row)?);
    }
    Ok(timelines)
}

fn timeline_entry(row: &Row) -> Result<TimelineEntry> {
    let (subscription, origin): (String, String) = (column(row, 0)?, column(row, 2)?);
    let state: String = column(row, 4)?;
    let state: Subscription =
        serde_json::from_str(&state).map_err(|_| damaged("timeline_entries.state", &state))?;
    Ok(TimelineEntry {
        subscription: SubscriptionId::parse(&subscription)
            .map_err(|_| damaged("timeline_entries.subscription", &subscription))?,
        at: instant(row, 1)?,
        origin: Origin::from_name(&origin)
            .ok_or_else(|| damaged("timeline_entries.origin", &origin))?,
        version: read_count(column(row, 3)?)?,
        state,
    })
}
