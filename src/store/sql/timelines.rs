//! Timelines: states of subscriptions, each with the moment from which it held.
//!
//! Invariant: a timeline is a set, by its primary key, in which a digest identifies the state; the
//! order of arrival plays no part, and an entry that exists changes nothing. Entries are only
//! added, in the order of that key, after all rows of mirrors and webhooks of their transaction.
//!
//! A crash leaves an entry together with its webhook or reading, or neither.

use super::value::FromValue;
use super::{Done, Row, Session, Value, values};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::subscription::{Subscription, TimelineEntry};
use crate::store::Result;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Adds what is not there yet.
pub fn insert_entries<'e>(
    session: &dyn Session,
    entries: impl IntoIterator<Item = &'e TimelineEntry>,
) -> Done<()> {
    let keyed = |entry: &'e TimelineEntry| {
        let TimelineEntry { subscription, at, origin, version, state } = entry;
        let text = state.text();
        let digest: [u8; 32] = Sha256::digest(&text).into();
        ((subscription, at, origin, version, digest), (&state.customer, text))
    };
    let rows: BTreeMap<_, _> = entries.into_iter().map(keyed).collect();
    for ((subscription, at, origin, version, digest), (customer, state)) in rows {
        let sql = "-- insert_entries
            INSERT INTO timeline_entries
                (subscription, at, origin, version, digest, customer, state)
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
        session.run(sql, values![subscription, at, origin, version, digest, customer, state])?;
    }
    Ok(())
}

/// All states of the subscriptions of the tenant's customer.
pub fn read_timeline(session: &dyn Session, tenant: &TenantId) -> Done<Vec<TimelineEntry>> {
    let sql = "-- read_timeline
        SELECT subscription, at, origin, version, state FROM timeline_entries
        WHERE customer = (SELECT customer FROM tenants WHERE tenant = $1)";
    session.read_all(sql, values![tenant], decode_entry)
}

/// All states of the subscriptions of these tenants' customers.
pub fn read_timelines(
    session: &dyn Session,
    tenants: &BTreeSet<TenantNo>,
) -> Done<BTreeMap<TenantNo, Vec<TimelineEntry>>> {
    let sql = "-- read_timelines
        WITH given (number) AS (VALUES ($::int4), ...)
        SELECT tenants.tenant_no, subscription, at, origin, version, state
        FROM given CROSS JOIN tenants CROSS JOIN timeline_entries
        WHERE tenants.tenant_no = number AND timeline_entries.customer = tenants.customer";
    let mut timelines: BTreeMap<TenantNo, Vec<TimelineEntry>> = BTreeMap::new();
    let rows = tenants.iter().map(|tenant| values![tenant].to_vec());
    session.read_batch(sql, rows, |row| {
        timelines.entry(row.get("tenants.tenant_no")?).or_default().push(decode_entry(row)?);
        Ok(())
    })?;
    Ok(timelines)
}

fn decode_entry(row: &Row) -> Result<TimelineEntry> {
    Ok(TimelineEntry {
        subscription: row.get("timeline_entries.subscription")?,
        at: row.get("timeline_entries.at")?,
        origin: row.get("timeline_entries.origin")?,
        version: row.get("timeline_entries.version")?,
        state: row.get("timeline_entries.state")?,
    })
}

impl FromValue for Subscription {
    fn from_value(value: &Value) -> Option<Self> {
        serde_json::from_str(&String::from_value(value)?).ok()
    }
}
