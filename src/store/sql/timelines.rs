//! Timelines: states of subscriptions, each with the moment from which it held.
//!
//! Invariant: a timeline is a set, by its primary key, in which a digest identifies the state; the
//! order of arrival plays no part, and an entry that exists changes nothing. Entries are only
//! added, in the order of that key, after all rows of mirrors and webhooks of their transaction.
//!
//! An entry that divides usage anew which may have been cut requests a recut in its transaction.
//!
//! A crash leaves an entry together with its webhook or reading, or neither.

use super::recuts::request_expedited;
use super::subscriptions::read_agreed;
use super::value::FromValue;
use super::{Done, Row, Session, Value, values};
use crate::faults::planted;
use crate::rules::attribution::Attribution;
use crate::rules::ids::{CustomerId, TenantId, TenantNo};
use crate::rules::span::Span;
use crate::rules::subscription::{Subscription, TimelineEntry};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// How far back windows are cut again: of what is older the provider takes nothing.
const REACH: Span = Span::from_hours(33 * 24);

/// Adds what is not there yet, and requests that windows be cut again which it divides anew.
pub fn insert_entries<'e>(
    session: &dyn Session,
    entries: impl IntoIterator<Item = &'e TimelineEntry>,
    at: Timestamp,
) -> Done<()> {
    let keyed = |entry: &'e TimelineEntry| {
        let TimelineEntry { subscription, at, origin, version, state } = entry;
        let text = state.text();
        let digest: [u8; 32] = Sha256::digest(&text).into();
        ((subscription, at, origin, version, digest), (entry, text))
    };
    let rows: BTreeMap<_, _> = entries.into_iter().map(keyed).collect();
    let mut added: BTreeMap<&CustomerId, Vec<&TimelineEntry>> = BTreeMap::new();
    for ((subscription, at, origin, version, digest), (entry, state)) in rows {
        let customer = &entry.state.customer;
        let sql = "-- insert_entries
            INSERT INTO timeline_entries
                (subscription, at, origin, version, digest, customer, state)
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
        let values = values![subscription, at, origin, version, digest, customer, state];
        if session.run(sql, values)? > 0 {
            added.entry(customer).or_default().push(entry);
        }
    }
    for (customer, added) in added {
        if planted("bug.timeline_changes_nothing") {
            continue;
        }
        request_recuts(session, customer, &added, at)?;
    }
    Ok(())
}

/// Requests recuts for the time that added entries divide otherwise.
fn request_recuts(
    session: &dyn Session,
    customer: &CustomerId,
    added: &[&TimelineEntry],
    at: Timestamp,
) -> Done<()> {
    let sql = "-- request_recuts
        SELECT tenant_no FROM tenants WHERE customer = $1
        UNION ALL
        SELECT tenant_no FROM former_customers WHERE customer = $1
        LIMIT 1";
    let tenant: Option<TenantNo> = session.read_optional(sql, values![customer], Row::only)?;
    let Some(tenant) = tenant else { return Ok(()) };
    let tenants = BTreeSet::from([tenant]);
    let agreed = read_agreed(session, &tenants)?.remove(&tenant).unwrap_or_default();
    let all = read_timelines(session, &tenants)?.remove(&tenant).unwrap_or_default();
    let before = all.iter().filter(|entry| !added.contains(entry)).cloned();
    let before: Vec<TimelineEntry> = before.collect();
    let within = Window { start: REACH.before(at), end: at };
    let now = Attribution::new(&agreed, &all);
    match now.differs_from(&Attribution::new(&agreed, &before), within) {
        Some(range) => request_expedited(session, tenant, range, at),
        None => Ok(()),
    }
}

/// Requests recuts for a tenant that has got another customer, or none: its timeline is another.
/// A tenant of which nothing is known has nothing to divide.
pub fn follow_mapping(session: &dyn Session, tenant: TenantNo, at: Timestamp) -> Done<()> {
    let known = read_timelines(session, &BTreeSet::from([tenant]))?;
    if known.values().any(|timeline| !timeline.is_empty()) {
        request_expedited(session, tenant, Window { start: REACH.before(at), end: at }, at)?;
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

/// All states of the subscriptions of these tenants' customers, and of those that were: what was
/// used under them stays theirs, unless the customer is another tenant now.
pub fn read_timelines(
    session: &dyn Session,
    tenants: &BTreeSet<TenantNo>,
) -> Done<BTreeMap<TenantNo, Vec<TimelineEntry>>> {
    let sql = "-- read_timelines
        WITH given (number) AS (VALUES ($::int4), ...)
        SELECT tenants.tenant_no, subscription, at, origin, version, state
        FROM given CROSS JOIN tenants CROSS JOIN timeline_entries
        WHERE tenants.tenant_no = number AND timeline_entries.customer = tenants.customer";
    let former = "-- read_timelines
        WITH given (number) AS (VALUES ($::int4), ...)
        SELECT former_customers.tenant_no, subscription, at, origin, version, state
        FROM given CROSS JOIN former_customers CROSS JOIN timeline_entries
        WHERE former_customers.tenant_no = number
            AND timeline_entries.customer = former_customers.customer
            AND NOT EXISTS (
                SELECT 1 FROM tenants WHERE tenants.customer = former_customers.customer
            )";
    let mut timelines: BTreeMap<TenantNo, Vec<TimelineEntry>> = BTreeMap::new();
    for sql in [sql, former] {
        let rows = tenants.iter().map(|tenant| values![tenant].to_vec());
        session.read_batch(sql, rows, |row| {
            timelines.entry(row.get("tenants.tenant_no")?).or_default().push(decode_entry(row)?);
            Ok(())
        })?;
    }
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
