//! Mirrors: the provider's objects as they were last read, and which are to be read.
//!
//! Invariant: an object's version only grows, and it is due exactly while a ticket above its
//! version is wanted. A reading is compared with the version under the lock of its row, so of two
//! that are written at once the higher stays. Locks are taken as `webhooks` says: rows of mirrors
//! by kind and id, then webhooks by number, then entries of timelines, then subscription records,
//! then the lock of changes. What writes a subscription record locks the mirror of its subscription
//! first.
//!
//! A crash leaves all of a call or nothing, and leases that end by themselves. A reading that is
//! repeated because its outcome was lost is stale. A claim that is repeated passes over what the
//! lost one leased; a wish that is repeated takes another ticket, which costs one reading.

use super::outbox::append_changes;
use super::subscriptions::follow_reading;
use super::timelines::{insert_entries, read_timeline};
use super::value::FromValue;
use super::webhooks::{explain_waiting, settle_webhooks};
use super::{Done, Filter, IntoValue, Row, Session, SqlStore, Value, values};
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::subscription::{Origin, TimelineEntry};
use crate::rules::timestamp::Timestamp;
use crate::store::saga::SubscriptionReading;
use crate::store::webhook::{
    Mirror, MirrorClaim, MirrorFilter, MirrorReading, Mirrored, Mirrors, WantedMirror,
};
use crate::store::{Query, Result};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};

#[async_trait]
impl<S: SqlStore> Mirrors for S {
    async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>> {
        self.in_transaction(move |session| {
            let wishes: Vec<_> = names.iter().map(|name| (name, at)).collect();
            raise_tickets(session, &wishes)
        })
        .await
    }

    async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
        self.in_transaction_if(
            move |session| any_due(session, claim.now),
            move |session| claim_due(session, claim),
        )
        .await
    }

    async fn record_mirrors(
        &self,
        readings: Vec<MirrorReading>,
        at: Timestamp,
    ) -> Result<Vec<Mirrored>> {
        self.in_transaction(move |session| record_readings(session, &readings, at)).await
    }

    async fn put_off_mirror(
        &self,
        wanted: &WantedMirror,
        until: Timestamp,
        detail: &str,
    ) -> Result<()> {
        let (WantedMirror { name, ticket, .. }, detail) = (wanted.clone(), detail.to_owned());
        self.in_transaction(move |session| {
            let sql = "-- put_off_mirror
                UPDATE mirrors SET due_at = $4, attempts = attempts + 1, leased_until = NULL
                WHERE kind = $1 AND object_id = $2 AND version < $3";
            if session.run(sql, values![name.kind, name.id, ticket, until])? == 1 {
                explain_waiting(session, &name, &detail)?;
            }
            Ok(())
        })
        .await
    }

    async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>> {
        let name = name.clone();
        self.in_reader(move |session| find_mirror(session, &name)).await
    }

    async fn list_mirrors(&self, query: Query<MirrorFilter, String>) -> Result<Vec<Mirror>> {
        let MirrorFilter { kind, status, customer } = query.filter;
        // What names the mirrors reads an index alone: SQLite would prefer the table otherwise.
        let select = "-- list_mirrors
            SELECT kind, object_id, version, snapshot, read_at FROM mirrors
            WHERE (kind, object_id) IN (SELECT kind, object_id FROM mirrors";
        let filter = Filter::new(select).and("kind = $", kind);
        let filter = match customer {
            // Nothing but what was read has a customer.
            Some(customer) => filter.and("customer = $", customer),
            None => filter.and_always("status IS NOT NULL"),
        };
        let (sql, values) = filter
            .and_if("status = $", status)
            .and_if("object_id > $", query.after)
            .order("object_id", query.limit);
        let sql = format!("{sql}) ORDER BY object_id");
        self.in_reader(move |session| session.read_all(&sql, &values, decode_mirror)).await
    }

    async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
        let tenant = tenant.clone();
        self.in_reader(move |session| read_timeline(session, &tenant)).await
    }
}

/// Gives each wish the next ticket of its object, in order. An object is due from its first wish
/// on, or from when it was put off to.
pub fn raise_tickets(session: &dyn Session, wishes: &[(&ObjectName, Timestamp)]) -> Done<Vec<u64>> {
    let mut places: Vec<usize> = (0..wishes.len()).collect();
    // Stable: wishes of one object keep their order.
    places.sort_by_key(|place| wishes[*place].0);
    let mut tickets = vec![0; wishes.len()];
    for place in places {
        let (name, at) = wishes[place];
        let sql = "-- raise_tickets
            INSERT INTO mirrors (kind, object_id, wanted, version, due_at, attempts)
            VALUES ($1, $2, 1, 0, $3, 0)
            ON CONFLICT (kind, object_id) DO UPDATE SET wanted = mirrors.wanted + 1,
                due_at = COALESCE(mirrors.due_at, excluded.due_at)
            RETURNING wanted";
        tickets[place] = session.read_one(sql, values![name.kind, name.id, at], Row::only)?;
    }
    Ok(tickets)
}

fn any_due(session: &dyn Session, now: Timestamp) -> Done<bool> {
    let sql = "-- any_due
        SELECT 1::bigint AS due FROM mirrors
        WHERE due_at <= $1 AND wanted > version AND (leased_until IS NULL OR leased_until <= $1)
        LIMIT 1";
    Ok(session.read_optional(sql, values![now], |_| Ok(()))?.is_some())
}

/// Leases objects that are due; those that another server is claiming are passed over. Nothing but
/// the moment orders them: of thousands that one batch wanted, the index stops at the limit.
fn claim_due(session: &dyn Session, claim: MirrorClaim) -> Done<Vec<WantedMirror>> {
    let sql = "-- claim_due
        WITH due AS MATERIALIZED (
            SELECT kind, object_id FROM mirrors
            WHERE due_at <= $1 AND wanted > version
                AND (leased_until IS NULL OR leased_until <= $1)
            ORDER BY due_at LIMIT $3
            FOR UPDATE SKIP LOCKED
        )
        UPDATE mirrors SET leased_until = $2
        FROM due WHERE mirrors.kind = due.kind AND mirrors.object_id = due.object_id
        RETURNING mirrors.kind AS kind, mirrors.object_id AS object_id, wanted, attempts, due_at";
    let MirrorClaim { now, lease_until, limit } = claim;
    let mut wanted = session.read_all(sql, values![now, lease_until, limit], |row| {
        let (ticket, attempts) = (row.get("mirrors.wanted")?, row.get("mirrors.attempts")?);
        let due_at: Timestamp = row.get("mirrors.due_at")?;
        Ok((due_at, WantedMirror { name: decode_name(row)?, ticket, attempts }))
    })?;
    wanted.sort_by(|(a_due, a), (b_due, b)| (a_due, &a.name).cmp(&(b_due, &b.name)));
    Ok(wanted.into_iter().map(|(_, wanted)| wanted).collect())
}

fn record_readings(
    session: &dyn Session,
    readings: &[MirrorReading],
    at: Timestamp,
) -> Done<Vec<Mirrored>> {
    let names: BTreeSet<&ObjectName> = readings.iter().map(|reading| &reading.name).collect();
    let mut shown: BTreeMap<&ObjectName, (u64, Option<Snapshot>)> = BTreeMap::new();
    for name in names {
        let mirror = lock_mirror(session, name.kind, &name.id)?;
        shown.insert(name, mirror.map(|m| (m.version, Some(m.snapshot))).unwrap_or_default());
    }
    let (mut answers, mut written) = (Vec::new(), Vec::new());
    for reading in readings {
        let (version, snapshot) = shown.entry(&reading.name).or_default();
        if *version >= reading.ticket {
            answers.push(Mirrored::Stale);
            continue;
        }
        *version = reading.ticket;
        answers.push(Mirrored::Written(snapshot.replace(reading.snapshot.clone())));
        write_mirror(session, reading, at)?;
        written.push(reading);
    }
    settle_webhooks(session, &written, at)?;
    follow_subscriptions(session, &written, at)?;
    Ok(answers)
}

/// Writes what was read. It is due again only if a higher ticket is wanted.
fn write_mirror(session: &dyn Session, reading: &MirrorReading, at: Timestamp) -> Done<()> {
    let MirrorReading { name, ticket, snapshot, read_at } = reading;
    let (customer, status) = (snapshot.customer(), snapshot.status());
    let sql = "-- write_mirror
        UPDATE mirrors SET version = $3, customer = $4, status = $5, snapshot = $6, read_at = $7,
            attempts = 0, leased_until = NULL,
            wanted = CASE WHEN wanted > $3 THEN wanted ELSE $3 END,
            due_at = CASE WHEN wanted > $3 THEN CASE WHEN due_at < $8 THEN due_at ELSE $8 END END
        WHERE kind = $1 AND object_id = $2";
    let values = values![name.kind, name.id, ticket, customer, status, snapshot, read_at, at];
    session.run(sql, values)?;
    Ok(())
}

/// Adds what was read of subscriptions to their timelines, and ends or suspends their subscription
/// records as it says.
fn follow_subscriptions(
    session: &dyn Session,
    written: &[&MirrorReading],
    at: Timestamp,
) -> Done<()> {
    let mut read = Vec::new();
    for MirrorReading { name, ticket, snapshot, read_at } in written {
        let Snapshot::Subscription(state) = snapshot else { continue };
        // An id that no event could name has no timeline and no subscription record.
        let Ok(subscription) = SubscriptionId::parse(&name.id) else { continue };
        read.push((
            SubscriptionReading { state, version: *ticket, read_at: *read_at },
            TimelineEntry {
                subscription,
                at: *read_at,
                origin: Origin::Read,
                version: *ticket,
                state: state.clone(),
            },
        ));
    }
    insert_entries(session, read.iter().map(|(_, entry)| entry), at)?;
    let mut changes = Vec::new();
    for (reading, entry) in &read {
        changes.extend(follow_reading(session, &entry.subscription, reading)?);
    }
    append_changes(session, &changes, at)?;
    Ok(())
}

/// Locks the mirror of a subscription, so that no reading of it is written in the meantime; what it
/// shows.
pub fn lock_subscription(
    session: &dyn Session,
    subscription: &SubscriptionId,
) -> Done<Option<Mirror>> {
    lock_mirror(session, ObjectKind::Subscription, subscription.as_str())
}

/// Locks a mirror; what it shows. One that nobody had asked for gets its row here.
pub fn lock_mirror(session: &dyn Session, kind: ObjectKind, id: &str) -> Done<Option<Mirror>> {
    let sql = "-- lock_mirror
        INSERT INTO mirrors (kind, object_id, wanted, version, attempts) VALUES ($1, $2, 0, 0, 0)
        ON CONFLICT (kind, object_id) DO UPDATE SET version = mirrors.version
        RETURNING kind, object_id, version, snapshot, read_at";
    session.read_one(sql, values![kind, id], |row| {
        let unread = row.get::<Option<Snapshot>>("mirrors.snapshot")?.is_none();
        if unread { Ok(None) } else { decode_mirror(row).map(Some) }
    })
}

pub fn find_mirror(session: &dyn Session, name: &ObjectName) -> Done<Option<Mirror>> {
    let sql = "-- find_mirror
        SELECT kind, object_id, version, snapshot, read_at FROM mirrors
        WHERE kind = $1 AND object_id = $2 AND snapshot IS NOT NULL";
    session.read_optional(sql, values![name.kind, name.id], decode_mirror)
}

fn decode_mirror(row: &Row) -> Result<Mirror> {
    Ok(Mirror {
        name: decode_name(row)?,
        version: row.get("mirrors.version")?,
        snapshot: row.get("mirrors.snapshot")?,
        read_at: row.get("mirrors.read_at")?,
    })
}

fn decode_name(row: &Row) -> Result<ObjectName> {
    Ok(ObjectName { kind: row.get("mirrors.kind")?, id: row.get("mirrors.object_id")? })
}

impl IntoValue for Snapshot {
    fn to_value(&self) -> Value {
        Value::Text(self.to_json())
    }
}

impl FromValue for Snapshot {
    fn from_value(value: &Value) -> Option<Self> {
        Self::from_json(&String::from_value(value)?)
    }
}
