//! Timelines for cuts, which are written for this store; see `sql/timelines.rs`.

use super::scalars::{column, damaged, instant, read_count};
use crate::rules::ids::SubscriptionId;
use crate::rules::subscription::{Origin, Subscription, TimelineEntry};
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Row;

/// All states of the subscriptions of these tenants' customers, by the tenants' numbers.
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
