//! Timelines: states of subscriptions, a set.
//!
//! Invariant: a row is identified by all of its columns, its state by a digest; so writing it again
//! changes nothing, and the order of writes plays no part. Rows are only added, in the transaction
//! of the webhook or the reading that tells them; a crash leaves both or neither.

use super::damaged;
use super::push_rows::{get, moment};
use super::statements::Statements;
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::subscription::{Origin, Subscription, TimelineEntry};
use crate::store::Result;
use rusqlite::{Connection, Row, params};
use sha2::{Digest, Sha256};

/// Adds a state, unless it is there.
pub fn insert_entry(connection: &Connection, entry: &TimelineEntry) -> Result<()> {
    let text = entry.state.text();
    let digest: [u8; 32] = Sha256::digest(&text).into();
    connection.run(
        "-- insert_entry
         INSERT INTO timeline_entries
             (subscription, at, origin, version, digest, customer, state)
         VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        params![
            entry.subscription.as_str(),
            entry.at.micros(),
            entry.origin.name(),
            entry.version,
            digest,
            entry.state.customer.as_str(),
            text
        ],
    )?;
    Ok(())
}

pub fn read_timeline(connection: &Connection, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
    connection.read_all(
        "-- read_timeline
         SELECT subscription, at, origin, version, state FROM timeline_entries
         WHERE customer = (SELECT customer FROM tenants WHERE tenant = ?)",
        [tenant.as_str()],
        decode_entry,
    )
}

fn decode_entry(row: &Row<'_>) -> Result<TimelineEntry> {
    let (subscription, origin): (String, String) = (get(row, "subscription")?, get(row, "origin")?);
    let state: String = get(row, "state")?;
    let state: Subscription =
        serde_json::from_str(&state).map_err(|_| damaged("timeline_entries.state", &state))?;
    Ok(TimelineEntry {
        subscription: SubscriptionId::parse(&subscription)
            .map_err(|_| damaged("timeline_entries.subscription", &subscription))?,
        at: moment(row, "at")?,
        origin: Origin::from_name(&origin)
            .ok_or_else(|| damaged("timeline_entries.origin", &origin))?,
        version: get(row, "version")?,
        state,
    })
}
