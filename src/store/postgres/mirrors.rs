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
use super::push_rows::each;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, read_count, write_count, write_limit,
};
use super::statements::Statements;
use super::timelines::{insert_entries, read_timeline};
use super::transaction::{Done, Transaction};
use super::{PostgresStore, subscriptions};
use crate::rules::ids::{CustomerId, SubscriptionId, TenantId};
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::subscription::{Origin, TimelineEntry};
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::judge_webhook;
use crate::store::Result;
use crate::store::saga::SubscriptionReading;
use crate::store::webhook::{
    Mirror, MirrorClaim, MirrorQuery, MirrorReading, Mirrored, Mirrors, Rejection, RejectionReport,
    WantedMirror,
};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

#[async_trait]
impl Mirrors for PostgresStore {
    async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>> {
        let wishes: Vec<(&ObjectName, Timestamp)> = names.iter().map(|name| (name, at)).collect();
        let wishes = wishes.as_slice();
        let work =
            move |client: Arc<Transaction>| async move { raise_tickets(&client, wishes).await };
        self.transact(work).await?.into_iter().map(read_count).collect()
    }

    async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>> {
        let work = move |client: Arc<Transaction>| async move { claim_due(&client, claim).await };
        self.transact(work).await
    }

    async fn record_mirrors(
        &self,
        readings: Vec<MirrorReading>,
        at: Timestamp,
    ) -> Result<Vec<Mirrored>> {
        if readings.is_empty() {
            return Ok(Vec::new());
        }
        let readings = readings.as_slice();
        let work = move |client: Arc<Transaction>| async move {
            record_readings(&client, readings, at).await
        };
        self.transact(work).await
    }

    async fn put_off_mirror(
        &self,
        wanted: &WantedMirror,
        until: Timestamp,
        detail: &str,
    ) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move {
            put_off(&client, wanted, until, detail).await
        };
        self.transact(work).await
    }

    async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>> {
        let client = self.reader().await?;
        let sql = "-- find_mirror
            SELECT kind, object_id, version, snapshot, read_at FROM mirrors
            WHERE kind = $1 AND object_id = $2 AND snapshot IS NOT NULL";
        let found = client.read_optional(sql, &[&name.kind.name(), &name.id]).await?;
        found.as_ref().map(mirror).transpose()
    }

    async fn list_mirrors(&self, query: MirrorQuery) -> Result<Vec<Mirror>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_mirrors
            SELECT kind, object_id, version, snapshot, read_at FROM mirrors
            WHERE kind = $1 AND snapshot IS NOT NULL
                AND ($2::text IS NULL OR status = $2)
                AND ($3::text IS NULL OR customer = $3)
                AND ($4::text IS NULL OR object_id > $4)
            ORDER BY object_id LIMIT $5";
        let parameters: [&(dyn ToSql + Sync); 5] = [
            &query.kind.name(),
            &query.status,
            &query.customer.as_ref().map(CustomerId::as_str),
            &query.after,
            &write_limit(query.limit),
        ];
        client.query(sql, &parameters).await?.iter().map(mirror).collect()
    }

    async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>> {
        let client = self.reader().await?;
        read_timeline(&client, tenant).await
    }

    async fn reject_pushes(&self, rejection: Rejection, at: Timestamp) -> Result<RejectionReport> {
        self.reject(&rejection, at).await
    }
}

/// Gives each wish the next ticket of its object, in order. An object is due from its first wish
/// on, or from when it was put off to.
pub async fn raise_tickets(
    client: &ClientWrapper,
    wishes: &[(&ObjectName, Timestamp)],
) -> Done<Vec<i64>> {
    if wishes.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- raise_tickets
        INSERT INTO mirrors AS standing (kind, object_id, wanted, version, due_at, attempts)
        SELECT kind, object_id, count(*), 0, min(due_at), 0
        FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS given (kind, object_id, due_at)
        GROUP BY kind, object_id
        ORDER BY kind COLLATE \"C\", object_id COLLATE \"C\"
        ON CONFLICT (kind, object_id) DO UPDATE SET
            wanted = standing.wanted + excluded.wanted,
            due_at = COALESCE(standing.due_at, excluded.due_at)
        RETURNING kind, object_id, wanted";
    let statement = client.prepare_cached(sql).await?;
    let parameters: [&(dyn ToSql + Sync); 3] = [
        &each(wishes, |(name, _)| name.kind.name()),
        &each(wishes, |(name, _)| name.id.as_str()),
        &each(wishes, |(_, at)| SqlTimestamp(*at)),
    ];
    let mut last: BTreeMap<ObjectName, i64> = BTreeMap::new();
    for row in client.query(&statement, &parameters).await? {
        last.insert(known_object(&row, 0)?, column(&row, 2)?);
    }
    // From the last wish back, each object's tickets go down by one.
    let mut tickets = Vec::with_capacity(wishes.len());
    for (name, _) in wishes.iter().rev() {
        let ticket =
            last.get_mut(*name).ok_or_else(|| corrupt("mirrors row vanished mid-transaction"))?;
        tickets.push(*ticket);
        *ticket -= 1;
    }
    tickets.reverse();
    Ok(tickets)
}

/// Leases objects that are due; those that another server is claiming are passed over. Nothing but
/// the moment orders them: of thousands that one batch wanted, the index stops at the limit.
async fn claim_due(client: &ClientWrapper, claim: MirrorClaim) -> Done<Vec<WantedMirror>> {
    let sql = "-- claim_due
        WITH due AS MATERIALIZED (
            SELECT kind, object_id FROM mirrors
            WHERE due_at <= $1 AND wanted > version
                AND (leased_until IS NULL OR leased_until <= $1)
            ORDER BY due_at
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        )
        UPDATE mirrors m SET leased_until = $2
        FROM due WHERE m.kind = due.kind AND m.object_id = due.object_id
        RETURNING m.kind, m.object_id, m.wanted, m.attempts, m.due_at";
    let (now, until) = (SqlTimestamp(claim.now), SqlTimestamp(claim.lease_until));
    let rows = client.read_all(sql, &[&now, &until, &write_limit(claim.limit)]).await?;
    let mut wanted = Vec::with_capacity(rows.len());
    for row in &rows {
        let attempts: i64 = column(row, 3)?;
        let object = WantedMirror {
            name: known_object(row, 0)?,
            ticket: read_count(column(row, 2)?)?,
            attempts: u32::try_from(attempts).map_err(|_| damaged("mirrors.attempts", attempts))?,
        };
        wanted.push((instant(row, 4)?, object));
    }
    wanted.sort_by(|(a_due, a), (b_due, b)| (a_due, &a.name).cmp(&(b_due, &b.name)));
    Ok(wanted.into_iter().map(|(_, wanted)| wanted).collect())
}

/// What a mirror shows before a reading.
#[derive(Default)]
struct MirrorStanding {
    version: u64,
    snapshot: Option<Snapshot>,
}

/// Everything but the COMMIT.
async fn record_readings(
    client: &ClientWrapper,
    readings: &[MirrorReading],
    at: Timestamp,
) -> Done<Vec<Mirrored>> {
    let mut standing = lock_mirrors(client, readings).await?;
    let (mut answers, mut written, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    for reading in readings {
        let shown = standing.entry(reading.name.clone()).or_default();
        if shown.version >= reading.ticket {
            answers.push(Mirrored::Stale);
            continue;
        }
        entries.extend(entry_of(reading));
        shown.version = reading.ticket;
        answers.push(Mirrored::Written(shown.snapshot.replace(reading.snapshot.clone())));
        written.push(reading);
    }
    write_mirrors(client, &written, at).await?;
    settle_webhooks(client, &written, at).await?;
    insert_entries(client, &entries.iter().collect::<Vec<_>>()).await?;
    follow_subscriptions(client, &written, at).await?;
    Ok(answers)
}

/// Ends or suspends subscription records as what was read of their subscriptions says.
async fn follow_subscriptions(
    client: &ClientWrapper,
    written: &[&MirrorReading],
    at: Timestamp,
) -> Done<()> {
    let mut changes = Vec::new();
    for MirrorReading { name, ticket, snapshot, read_at } in written {
        let Snapshot::Subscription(state) = snapshot else { continue };
        // An id that no subscription record could name has none.
        let Ok(subscription) = SubscriptionId::parse(&name.id) else { continue };
        let reading = SubscriptionReading { state, version: *ticket, read_at: *read_at };
        changes.extend(subscriptions::follow_reading(client, &subscription, &reading).await?);
    }
    append_changes(client, &changes, at).await?;
    Ok(())
}

/// Locks the mirror of a subscription, so that no reading of it is written in the meantime; what it
/// shows. One that nobody had asked for gets its row here, as in [`lock_mirrors`].
pub async fn lock_subscription(
    client: &ClientWrapper,
    subscription: &SubscriptionId,
) -> Done<Option<Mirror>> {
    let sql = "-- lock_subscription
        INSERT INTO mirrors (kind, object_id, wanted, version, attempts)
        VALUES ($1, $2, 0, 0, 0)
        ON CONFLICT DO NOTHING";
    let kind = ObjectKind::Subscription.name();
    client.execute(sql, &[&kind, &subscription.as_str()]).await?;
    let sql = "-- lock_subscription
        SELECT kind, object_id, version, snapshot, read_at FROM mirrors
        WHERE kind = $1 AND object_id = $2
        FOR UPDATE";
    let row = client.query_one(sql, &[&kind, &subscription.as_str()]).await?;
    let unread = snapshot(&row, 3)?.is_none();
    Ok(if unread { None } else { Some(mirror(&row)?) })
}

/// Locks the rows of the objects that were read; one that nobody had asked for gets its row here.
async fn lock_mirrors(
    client: &ClientWrapper,
    readings: &[MirrorReading],
) -> Done<BTreeMap<ObjectName, MirrorStanding>> {
    let names: BTreeSet<&ObjectName> = readings.iter().map(|reading| &reading.name).collect();
    let kinds: Vec<&str> = names.iter().map(|name| name.kind.name()).collect();
    let ids: Vec<&str> = names.iter().map(|name| name.id.as_str()).collect();
    let sql = "-- lock_mirrors
        INSERT INTO mirrors (kind, object_id, wanted, version, attempts)
        SELECT kind, object_id, 0, 0, 0
        FROM unnest($1::text[], $2::text[]) AS given (kind, object_id)
        ORDER BY kind COLLATE \"C\", object_id COLLATE \"C\"
        ON CONFLICT DO NOTHING";
    client.run(sql, &[&kinds, &ids]).await?;
    let sql = "-- lock_mirrors
        SELECT m.kind, m.object_id, m.version, m.snapshot
        FROM unnest($1::text[], $2::text[]) AS given (kind, object_id)
        JOIN mirrors m ON m.kind = given.kind AND m.object_id = given.object_id
        ORDER BY m.kind, m.object_id
        FOR UPDATE OF m";
    let statement = client.prepare_cached(sql).await?;
    let mut standing = BTreeMap::new();
    for row in client.query(&statement, &[&kinds, &ids]).await? {
        let version = read_count(column(&row, 2)?)?;
        standing.insert(
            known_object(&row, 0)?,
            MirrorStanding { version, snapshot: snapshot(&row, 3)? },
        );
    }
    Ok(standing)
}

/// What a reading adds to a timeline.
fn entry_of(reading: &MirrorReading) -> Option<TimelineEntry> {
    match &reading.snapshot {
        Snapshot::Subscription(state) => Some(TimelineEntry {
            // An id that no event could name has no timeline.
            subscription: SubscriptionId::parse(&reading.name.id).ok()?,
            at: reading.read_at,
            origin: Origin::Read,
            version: reading.ticket,
            state: state.clone(),
        }),
        Snapshot::Invoice(_)
        | Snapshot::CreditGrant(_)
        | Snapshot::Customer(_)
        | Snapshot::ErrorReport(_)
        | Snapshot::Gone => None,
    }
}

/// Writes what was read; of two readings of one object the later one here, which is the higher.
async fn write_mirrors(
    client: &ClientWrapper,
    written: &[&MirrorReading],
    at: Timestamp,
) -> Done<()> {
    let last: BTreeMap<&ObjectName, &MirrorReading> =
        written.iter().map(|reading| (&reading.name, *reading)).collect();
    if last.is_empty() {
        return Ok(());
    }
    let sql = "-- write_mirrors
        UPDATE mirrors m SET version = given.version, wanted = GREATEST(m.wanted, given.version),
            customer = given.customer, status = given.status, snapshot = given.snapshot,
            read_at = given.read_at, attempts = 0, leased_until = NULL,
            due_at = CASE WHEN m.wanted > given.version THEN LEAST(m.due_at, $8) END
        FROM unnest($1::text[], $2::text[], $3::int8[], $4::text[], $5::text[], $6::text[],
            $7::timestamptz[])
            AS given (kind, object_id, version, customer, status, snapshot, read_at)
        WHERE m.kind = given.kind AND m.object_id = given.object_id";
    let last: Vec<&MirrorReading> = last.into_values().collect();
    let versions: Vec<i64> =
        last.iter().map(|reading| write_count(reading.ticket)).collect::<Result<_>>()?;
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &each(&last, |reading| reading.name.kind.name()),
        &each(&last, |reading| reading.name.id.as_str()),
        &versions,
        &each(&last, |reading| reading.snapshot.customer().map(CustomerId::as_str)),
        &each(&last, |reading| reading.snapshot.status()),
        &each(&last, |reading| reading.snapshot.to_json()),
        &each(&last, |reading| SqlTimestamp(reading.read_at)),
        &SqlTimestamp(at),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// Settles the webhooks that waited for these readings, each by the first that is late enough.
async fn settle_webhooks(
    client: &ClientWrapper,
    written: &[&MirrorReading],
    at: Timestamp,
) -> Done<()> {
    if written.is_empty() {
        return Ok(());
    }
    let sql = "-- settle_webhooks
        SELECT w.webhook_no, w.object_kind, w.object_id, w.ticket, w.shown
        FROM (
            SELECT kind, object_id, max(ticket) AS ticket
            FROM unnest($1::text[], $2::text[], $3::int8[]) AS given (kind, object_id, ticket)
            GROUP BY kind, object_id
        ) written
        JOIN webhooks w ON w.object_kind = written.kind AND w.object_id = written.object_id
            AND w.ticket <= written.ticket
        WHERE w.status = 'waiting'
        ORDER BY w.webhook_no
        FOR UPDATE OF w";
    let statement = client.prepare_cached(sql).await?;
    let tickets: Vec<i64> =
        written.iter().map(|reading| write_count(reading.ticket)).collect::<Result<_>>()?;
    let kinds = each(written, |reading| reading.name.kind.name());
    let ids = each(written, |reading| reading.name.id.as_str());
    let (mut numbers, mut statuses) = (Vec::<i64>::new(), Vec::new());
    for row in client.query(&statement, &[&kinds, &ids, &tickets]).await? {
        let (name, ticket) = (known_object(&row, 1)?, read_count(column(&row, 3)?)?);
        let fits = |reading: &&&MirrorReading| reading.name == name && reading.ticket >= ticket;
        let reading = written.iter().find(fits);
        let reading =
            reading.ok_or_else(|| corrupt("webhooks row waits for an object that was not read"))?;
        let shown = snapshot(&row, 4)?;
        numbers.push(column(&row, 0)?);
        statuses.push(judge_webhook(shown.as_ref(), &reading.snapshot).name());
    }
    let sql = "-- settle_webhooks
        UPDATE webhooks w SET status = given.status, settled_at = $3, detail = NULL
        FROM unnest($1::int8[], $2::text[]) AS given (webhook_no, status)
        WHERE w.webhook_no = given.webhook_no";
    client.run(sql, &[&numbers, &statuses, &SqlTimestamp(at)]).await?;
    Ok(())
}

/// Everything but the COMMIT. An object that was read meanwhile, for this ticket or a higher one,
/// is left alone.
async fn put_off(
    client: &ClientWrapper,
    wanted: &WantedMirror,
    until: Timestamp,
    detail: &str,
) -> Done<()> {
    let sql = "-- put_off
        UPDATE mirrors SET due_at = $4, attempts = attempts + 1, leased_until = NULL
        WHERE kind = $1 AND object_id = $2 AND version < $3";
    let (kind, id) = (wanted.name.kind.name(), wanted.name.id.as_str());
    let ticket = write_count(wanted.ticket)?;
    if client.execute(sql, &[&kind, &id, &ticket, &SqlTimestamp(until)]).await? == 0 {
        return Ok(());
    }
    let sql = "-- put_off
        WITH waiting AS MATERIALIZED (
            SELECT webhook_no FROM webhooks
            WHERE status = 'waiting' AND object_kind = $1 AND object_id = $2
            ORDER BY webhook_no
            FOR UPDATE
        )
        UPDATE webhooks w SET detail = $3
        FROM waiting WHERE w.webhook_no = waiting.webhook_no";
    client.execute(sql, &[&kind, &id, &detail]).await?;
    Ok(())
}

/// Reads kind and id of an object, in this order; none where there is no object.
pub fn object_name(row: &Row, from: usize) -> Result<Option<ObjectName>> {
    let (kind, id): (Option<String>, Option<String>) = (column(row, from)?, column(row, from + 1)?);
    let (Some(kind), Some(id)) = (kind, id) else { return Ok(None) };
    let kind = ObjectKind::from_name(&kind).ok_or_else(|| damaged("mirrors.kind", &kind))?;
    Ok(Some(ObjectName { kind, id }))
}

fn known_object(row: &Row, from: usize) -> Result<ObjectName> {
    object_name(row, from)?.ok_or_else(|| corrupt("mirrors row without an object_id"))
}

fn snapshot(row: &Row, place: usize) -> Result<Option<Snapshot>> {
    let text: Option<String> = column(row, place)?;
    let damaged = || corrupt("mirrors.snapshot is not valid");
    text.map(|text| Snapshot::from_json(&text).ok_or_else(damaged)).transpose()
}

fn mirror(row: &Row) -> Result<Mirror> {
    Ok(Mirror {
        name: known_object(row, 0)?,
        version: read_count(column(row, 2)?)?,
        snapshot: snapshot(row, 3)?.ok_or_else(|| corrupt("mirrors.snapshot is empty"))?,
        read_at: instant(row, 4)?,
    })
}
