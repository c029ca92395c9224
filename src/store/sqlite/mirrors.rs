//! Mirrors: tickets, leases on readings, and readings as they were written.
//!
//! Invariant: an object's version only grows and is never above the highest ticket given out; it
//! is due exactly while a higher ticket is wanted. A reading is written in one transaction with
//! what it means for the webhooks that asked for it, for the timeline and for subscription records.
//! A crash leaves a lease that ends by itself; the object is then read again.

use super::push_rows::{get, moment};
use super::statements::Statements;
use super::{SqliteStore, damaged, rejections, sagas, timelines, webhooks};
use crate::rules::ids::{CustomerId, SubscriptionId, TenantId};
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::subscription::{Origin, TimelineEntry};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::saga::SubscriptionReading;
use crate::store::webhook::{
    Mirror, MirrorClaim, MirrorQuery, MirrorReading, Mirrored, Mirrors, Rejection, RejectionReport,
    WantedMirror,
};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

#[async_trait]
impl Mirrors for SqliteStore {
    async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>> {
        self.write(move |writer| {
            writer.write(|c| names.iter().map(|name| raise_ticket(c, name, at)).collect())
        })
        .await
    }

    async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
        // A reader looks first, so that a claim of nothing costs no transaction.
        let found = self.read(move |_, connection| find_wanted(connection, claim)).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        self.write(move |writer| writer.write(|c| lease_mirrors(c, claim))).await
    }

    async fn record_mirrors(
        &self,
        readings: Vec<MirrorReading>,
        at: Timestamp,
    ) -> Result<Vec<Mirrored>> {
        self.write(move |writer| {
            writer.write(|c| readings.iter().map(|reading| record_mirror(c, reading, at)).collect())
        })
        .await
    }

    async fn put_off_mirror(
        &self,
        wanted: &WantedMirror,
        until: Timestamp,
        detail: &str,
    ) -> Result<()> {
        let (wanted, detail) = (wanted.clone(), detail.to_owned());
        self.write(move |writer| writer.write(|c| put_off_mirror(c, &wanted, until, &detail))).await
    }

    async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>> {
        let name = name.clone();
        self.read(move |_, connection| find_mirror(connection, &name)).await
    }

    async fn list_mirrors(&self, query: MirrorQuery) -> Result<Vec<Mirror>> {
        self.read(move |_, connection| list_mirrors(connection, &query)).await
    }

    async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
        let tenant = tenant.clone();
        self.read(move |_, connection| timelines::read_timeline(connection, &tenant)).await
    }

    async fn reject_pushes(&self, rejection: Rejection, at: Timestamp) -> Result<RejectionReport> {
        self.write(move |writer| rejections::reject_pushes(writer, &rejection, at)).await
    }
}

/// Gives out the next ticket of an object, in the caller's transaction. One that is due already
/// keeps its turn, and one that was put off stays so.
pub fn raise_ticket(connection: &Connection, name: &ObjectName, at: Timestamp) -> Result<u64> {
    connection.read_one(
        "-- raise_ticket
         INSERT INTO mirrors (kind, object_id, wanted, version, due_at, attempts)
         VALUES (?, ?, 1, 0, ?, 0)
         ON CONFLICT DO UPDATE SET wanted = wanted + 1,
             due_at = COALESCE(due_at, excluded.due_at)
         RETURNING wanted",
        params![name.kind.name(), name.id, at.micros()],
        |row| Ok(row.get(0)?),
    )
}

/// Objects that could be read now, longest due first.
fn find_wanted(connection: &Connection, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
    let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- find_wanted
         SELECT kind, object_id, wanted, attempts FROM mirrors
         WHERE due_at IS NOT NULL AND due_at <= ?1 AND wanted > version
             AND (leased_until IS NULL OR leased_until <= ?1)
         ORDER BY due_at LIMIT ?2",
        params![claim.now.micros(), limit],
        |row| {
            Ok(WantedMirror {
                name: name_of(row)?,
                ticket: get(row, "wanted")?,
                attempts: get(row, "attempts")?,
            })
        },
    )
}

fn lease_mirrors(connection: &Connection, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
    let wanted = find_wanted(connection, claim)?;
    for WantedMirror { name, .. } in &wanted {
        connection.run(
            "-- lease_mirrors
             UPDATE mirrors SET leased_until = ? WHERE kind = ? AND object_id = ?",
            params![claim.lease_until.micros(), name.kind.name(), name.id],
        )?;
    }
    Ok(wanted)
}

fn record_mirror(
    connection: &Connection,
    reading: &MirrorReading,
    at: Timestamp,
) -> Result<Mirrored> {
    let MirrorReading { name, ticket, snapshot, .. } = reading;
    // An object without a row was never wanted, so there is no such ticket.
    let Some((version, before)) = read_version(connection, name)? else {
        return Ok(Mirrored::Stale);
    };
    if *ticket <= version {
        return Ok(Mirrored::Stale);
    }
    let before = before
        .map(|text| Snapshot::from_json(&text).ok_or_else(|| damaged("mirrors.snapshot", &text)))
        .transpose()?;
    write_mirror(connection, reading, at)?;
    webhooks::settle_waiting(connection, (name, *ticket), snapshot, at)?;
    enter_timeline(connection, reading)?;
    follow_subscriptions(connection, reading)?;
    Ok(Mirrored::Written(before))
}

fn read_version(
    connection: &Connection,
    name: &ObjectName,
) -> Result<Option<(u64, Option<String>)>> {
    let asked = params![name.kind.name(), name.id];
    connection.read_optional(
        "-- read_version
         SELECT version, snapshot FROM mirrors WHERE kind = ? AND object_id = ?",
        asked,
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
}

fn write_mirror(connection: &Connection, reading: &MirrorReading, at: Timestamp) -> Result<()> {
    let MirrorReading { name, ticket, snapshot, read_at } = reading;
    connection.run(
        "-- write_mirror
         UPDATE mirrors SET version = ?1, customer = ?2, status = ?3, snapshot = ?4,
             read_at = ?5, due_at = CASE WHEN wanted > ?1 THEN ?6 END, attempts = 0,
             leased_until = NULL
         WHERE kind = ?7 AND object_id = ?8",
        params![
            ticket,
            snapshot.customer().map(CustomerId::as_str),
            snapshot.status(),
            snapshot.to_json(),
            read_at.micros(),
            at.micros(),
            name.kind.name(),
            name.id
        ],
    )?;
    Ok(())
}

/// Adds what was read of a subscription to its timeline.
fn enter_timeline(connection: &Connection, reading: &MirrorReading) -> Result<()> {
    let Snapshot::Subscription(state) = &reading.snapshot else { return Ok(()) };
    // An id that no event could name has no timeline.
    let Ok(subscription) = SubscriptionId::parse(&reading.name.id) else { return Ok(()) };
    let entry = TimelineEntry {
        subscription,
        at: reading.read_at,
        origin: Origin::Read,
        version: reading.ticket,
        state: state.clone(),
    };
    timelines::insert_entry(connection, &entry)
}

/// Ends or suspends subscription records as what was read of their subscription says.
fn follow_subscriptions(connection: &Connection, reading: &MirrorReading) -> Result<()> {
    let MirrorReading { name, ticket, snapshot, read_at } = reading;
    let Snapshot::Subscription(state) = snapshot else { return Ok(()) };
    // An id that no subscription record could name has none.
    let Ok(subscription) = SubscriptionId::parse(&name.id) else { return Ok(()) };
    let reading = SubscriptionReading { state, version: *ticket, read_at: *read_at };
    sagas::follow_reading(connection, &subscription, &reading)
}

fn put_off_mirror(
    connection: &Connection,
    wanted: &WantedMirror,
    until: Timestamp,
    detail: &str,
) -> Result<()> {
    let WantedMirror { name, ticket, .. } = wanted;
    let put_off = connection.run(
        "-- put_off_mirror
         UPDATE mirrors SET due_at = ?, leased_until = NULL, attempts = attempts + 1
         WHERE kind = ? AND object_id = ? AND version < ?",
        params![until.micros(), name.kind.name(), name.id, ticket],
    )?;
    if put_off == 0 {
        return Ok(());
    }
    webhooks::explain_waiting(connection, name, detail)
}

pub fn find_mirror(connection: &Connection, name: &ObjectName) -> Result<Option<Mirror>> {
    connection.read_optional(
        "-- find_mirror
         SELECT kind, object_id, version, snapshot, read_at FROM mirrors
         WHERE kind = ? AND object_id = ? AND version > 0",
        params![name.kind.name(), name.id],
        decode_mirror,
    )
}

fn list_mirrors(connection: &Connection, query: &MirrorQuery) -> Result<Vec<Mirror>> {
    // Each question has an index that names its mirrors.
    let sql = match (&query.customer, &query.status) {
        (Some(_), _) => {
            "-- list_mirrors
             SELECT kind, object_id, version, snapshot, read_at
             FROM mirrors INDEXED BY mirrors_by_customer
             WHERE kind = ?1 AND version > 0 AND (?2 IS NULL OR status = ?2)
                 AND customer = ?3 AND object_id > ?4
             ORDER BY object_id LIMIT ?5"
        }
        (None, Some(_)) => {
            "-- list_mirrors
             SELECT kind, object_id, version, snapshot, read_at
             FROM mirrors INDEXED BY mirrors_by_status
             WHERE kind = ?1 AND version > 0 AND status = ?2 AND ?3 IS NULL AND object_id > ?4
             ORDER BY object_id LIMIT ?5"
        }
        (None, None) => {
            "-- list_mirrors
             SELECT kind, object_id, version, snapshot, read_at FROM mirrors
             WHERE kind = ?1 AND version > 0 AND ?2 IS NULL AND ?3 IS NULL AND object_id > ?4
             ORDER BY object_id LIMIT ?5"
        }
    };
    let asked = params![
        query.kind.name(),
        query.status,
        query.customer.as_ref().map(CustomerId::as_str),
        query.after.as_deref().unwrap_or(""),
        i64::try_from(query.limit).unwrap_or(i64::MAX)
    ];
    connection.read_all(sql, asked, decode_mirror)
}

fn decode_mirror(row: &Row<'_>) -> Result<Mirror> {
    let snapshot: String = get(row, "snapshot")?;
    Ok(Mirror {
        name: name_of(row)?,
        version: get(row, "version")?,
        snapshot: Snapshot::from_json(&snapshot)
            .ok_or_else(|| damaged("mirrors.snapshot", &snapshot))?,
        read_at: moment(row, "read_at")?,
    })
}

fn name_of(row: &Row<'_>) -> Result<ObjectName> {
    let kind: String = get(row, "kind")?;
    let kind = ObjectKind::from_name(&kind).ok_or_else(|| damaged("mirrors.kind", &kind))?;
    Ok(ObjectName { kind, id: get(row, "object_id")? })
}
