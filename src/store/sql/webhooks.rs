//! Webhooks of the provider, one for each fact; and the positions of jobs that read its lists.
//!
//! Invariant: a fact has one webhook because each of its names has one row in `webhook_names`. Two
//! servers that record one fact at once meet at that key; the later one redoes its transaction and
//! finds the fact known. Here and in `mirrors` locks are taken in one order: mirrors by kind and
//! id, names, webhooks by number, entries of timelines; so nobody waits in a circle. What changes
//! the status or the ticket of a webhook holds the lock of its object's mirror.
//!
//! A crash leaves all of a call or nothing. A batch that is repeated because its outcome was lost
//! finds its facts known and adds only to the counts of their deliveries. A replay that is repeated
//! finds the webhook waiting.

use super::mirrors::{lock_mirror, raise_tickets};
use super::reconciliation::within_column;
use super::timelines::insert_entries;
use super::{Done, Filter, Row, Session, SqlStore, values};
use crate::faults::planted;
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::{WebhookSource, WebhookStatus, is_of_content, judge_webhook};
use crate::store::push::Ruling;
use crate::store::webhook::{
    MirrorReading, Receipted, WebhookCounts, WebhookFilter, WebhookReceipt, WebhookRecord, Webhooks,
};
use crate::store::{Query, Result};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};

#[async_trait]
impl<S: SqlStore> Webhooks for S {
    async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>> {
        if receipts.is_empty() {
            return Ok(Vec::new());
        }
        self.in_transaction(move |session| record_webhooks(session, &receipts)).await
    }

    async fn list_webhooks(&self, query: Query<WebhookFilter>) -> Result<Vec<WebhookRecord>> {
        let WebhookFilter { status, event_type } = query.filter;
        let select = "-- list_webhooks
            SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
                created_at, received_at, settled_at, deliveries, detail
            FROM webhooks";
        let filter = match status {
            // Those that wait are few among all that ever came: their index names them.
            Some(WebhookStatus::Waiting) => Filter::new(select).and_always(
                "webhook_no IN (SELECT webhook_no FROM webhooks WHERE status = 'waiting')",
            ),
            Some(WebhookStatus::Applied | WebhookStatus::Stale | WebhookStatus::Kept) | None => {
                Filter::new(select).and_if("status = $", status)
            }
        };
        let (sql, values) = filter
            .and_if("event_type = $", event_type)
            .and_if("webhook_no < $", query.after.map(within_column))
            .order("webhook_no DESC", query.limit);
        self.in_reader(move |session| session.read_all(&sql, &values, decode_webhook)).await
    }

    async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
        self.in_reader(move |session| find_webhook(session, number)).await
    }

    async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.in_transaction(move |session| replay_webhook(session, number, at)).await
    }

    async fn count_webhooks(&self) -> Result<WebhookCounts> {
        let sql = "-- count_webhooks
            SELECT COUNT(*) AS waiting, MIN(waiting_since) AS waiting_since FROM webhooks
            WHERE status = 'waiting'";
        self.in_reader(move |session| {
            session.read_one(sql, &[], |row| {
                let (waiting, waiting_since) = (row.get("waiting")?, row.get("waiting_since")?);
                Ok(WebhookCounts { waiting, waiting_since })
            })
        })
        .await
    }

    async fn read_cursor(&self, name: &'static str) -> Result<Option<String>> {
        let sql = "-- read_cursor\nSELECT value FROM cursors WHERE name = $1";
        self.in_reader(move |session| session.read_optional(sql, values![name], Row::only)).await
    }

    async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()> {
        let value = value.to_owned();
        self.in_transaction(move |session| {
            let sql = "-- record_cursor
                INSERT INTO cursors (name, value) VALUES ($1, $2)
                ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            session.run(sql, values![name, value])?;
            Ok(())
        })
        .await
    }
}

/// A batch, sorted by facts.
#[derive(Default)]
struct WebhookBatch<'r> {
    /// Each with its deliveries in the batch: those that are known, then the others by arrival.
    facts: Vec<(Fact<'r>, u64)>,
    /// The fact of each name, by its place.
    places: BTreeMap<&'r str, usize>,
    /// Names that are not stored yet.
    new_names: Vec<&'r str>,
    /// Receipts that are known by their content alone.
    alike: Vec<&'r WebhookReceipt>,
}

enum Fact<'r> {
    /// It has this webhook.
    Known(u64),
    /// This is the first receipt of it.
    Fresh(&'r WebhookReceipt),
}

impl<'r> WebhookBatch<'r> {
    /// `known` holds those of the receipts' names that are stored, with their webhooks.
    fn new(known: BTreeMap<&'r str, u64>) -> Self {
        let mut batch = Self::default();
        let mut by_number = BTreeMap::new();
        for (name, number) in known {
            let place = *by_number.entry(number).or_insert_with(|| {
                batch.facts.push((Fact::Known(number), 0));
                batch.facts.len() - 1
            });
            batch.places.insert(name, place);
        }
        batch
    }

    /// The place of a receipt's fact, and whether the receipt is the first of it.
    fn add(&mut self, receipt: &'r WebhookReceipt) -> (usize, bool) {
        let names = &receipt.facts.names;
        let by = names.iter().find(|name| self.places.contains_key(name.as_str()));
        let place = by.map_or(self.facts.len(), |name| self.places[name.as_str()]);
        let fresh = by.is_none();
        if fresh {
            self.facts.push((Fact::Fresh(receipt), 0));
        }
        if by.is_some_and(|name| is_of_content(name)) {
            self.alike.push(receipt);
        }
        // What a list shows again was not delivered again.
        self.facts[place].1 += u64::from(receipt.source == WebhookSource::Delivered);
        for name in names {
            self.places.entry(name).or_insert_with(|| {
                self.new_names.push(name);
                place
            });
        }
        (place, fresh)
    }
}

fn record_webhooks(session: &dyn Session, receipts: &[WebhookReceipt]) -> Done<Vec<Receipted>> {
    let mut batch = WebhookBatch::new(find_names(session, receipts)?);
    let sorted: Vec<(usize, bool)> = receipts.iter().map(|receipt| batch.add(receipt)).collect();
    let numbers = write_fresh(session, &batch)?;
    // In the order of names: of two servers with the same ones, the later waits for the first. One
    // that was written meanwhile fails the statement, and the transaction begins again.
    batch.new_names.sort_unstable();
    let sql = "-- record_webhooks\nINSERT INTO webhook_names (name, webhook_no) VALUES ($, $), ...";
    let names = batch.new_names.iter();
    let names = names.map(|name| values![name, numbers[batch.places[name]]].to_vec());
    session.run_batch(sql, names)?;
    count_deliveries(session, &batch)?;
    // Also what a known webhook tells: the one that came before may have been a thin twin.
    let kept = |_: &&WebhookReceipt| !planted("bug.webhook_without_effect");
    let kept = receipts.iter().filter(kept);
    let entries = kept.filter_map(|receipt| receipt.facts.timeline.as_ref());
    let last_at = receipts.iter().map(|receipt| receipt.received_at).max();
    insert_entries(session, entries, last_at.unwrap_or(Timestamp::from_micros(0)))?;
    let answer = |(place, fresh): (usize, bool)| Receipted { number: numbers[place], fresh };
    Ok(sorted.into_iter().map(answer).collect())
}

/// Those of the names that are stored, with their webhooks.
fn find_names<'r>(
    session: &dyn Session,
    receipts: &'r [WebhookReceipt],
) -> Done<BTreeMap<&'r str, u64>> {
    let names: BTreeSet<&'r str> =
        receipts.iter().flat_map(|receipt| &receipt.facts.names).map(String::as_str).collect();
    let sql = "-- find_names
        WITH given (name) AS (VALUES ($::text), ...)
        SELECT given.name, webhook_no FROM given
        JOIN webhook_names ON webhook_names.name = given.name";
    let rows = names.iter().map(|name| values![name].to_vec());
    let found: BTreeMap<String, u64> = session
        .read_batch(sql, rows, |row| {
            Ok((row.get("webhook_names.name")?, row.get("webhook_names.webhook_no")?))
        })?
        .into_iter()
        .collect();
    Ok(names.into_iter().filter_map(|name| Some((name, *found.get(name)?))).collect())
}

/// Writes webhooks of new facts in the order of arrival; the webhook of each fact. One with an
/// object asks for a reading, and so does a receipt that is known by its content alone.
fn write_fresh(session: &dyn Session, batch: &WebhookBatch<'_>) -> Done<Vec<u64>> {
    let fresh = batch.facts.iter().filter_map(|(fact, _)| match fact {
        Fact::Known(_) => None,
        Fact::Fresh(receipt) => Some(*receipt),
    });
    // Those of new webhooks first, since these keep their tickets.
    let wishes: Vec<(&ObjectName, Timestamp)> = fresh
        .chain(batch.alike.iter().copied())
        .filter_map(|receipt| Some((receipt.facts.object.as_ref()?, receipt.received_at)))
        .collect();
    let mut tickets = raise_tickets(session, &wishes)?.into_iter();
    let mut numbers = Vec::with_capacity(batch.facts.len());
    for (fact, deliveries) in &batch.facts {
        numbers.push(match fact {
            Fact::Known(number) => *number,
            Fact::Fresh(receipt) => {
                let ticket = receipt.facts.object.as_ref().and_then(|_| tickets.next());
                insert_webhook(session, receipt, ticket, *deliveries)?
            }
        });
    }
    Ok(numbers)
}

fn insert_webhook(
    session: &dyn Session,
    receipt: &WebhookReceipt,
    ticket: Option<u64>,
    deliveries: u64,
) -> Done<u64> {
    let WebhookReceipt { facts, payload, source, received_at } = receipt;
    let (status, settled_at) = match ticket {
        Some(_) => (WebhookStatus::Waiting, None),
        None => (WebhookStatus::Kept, Some(received_at)),
    };
    let sql = "-- insert_webhook
        INSERT INTO webhooks (event_id, event_type, object_kind, object_id, ticket, source, status,
            created_at, received_at, waiting_since, settled_at, deliveries, shown, payload)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11, $12, $13)
        RETURNING webhook_no";
    let values = values![
        facts.event_id,
        facts.event_type,
        facts.object.as_ref().map(|object| object.kind),
        facts.object.as_ref().map(|object| &object.id),
        ticket,
        source,
        status,
        facts.created_at,
        received_at,
        settled_at,
        deliveries,
        facts.snapshot,
        payload,
    ];
    session.read_one(sql, values, Row::only)
}

/// Counts what came again.
fn count_deliveries(session: &dyn Session, batch: &WebhookBatch<'_>) -> Done<()> {
    let again = batch.facts.iter().filter_map(|(fact, deliveries)| match fact {
        Fact::Known(number) if *deliveries > 0 => Some((*number, *deliveries)),
        Fact::Known(_) | Fact::Fresh(_) => None,
    });
    for (number, deliveries) in again.collect::<BTreeMap<u64, u64>>() {
        let sql = "-- count_deliveries
            UPDATE webhooks SET deliveries = deliveries + $2 WHERE webhook_no = $1";
        session.run(sql, values![number, deliveries])?;
    }
    Ok(())
}

fn find_webhook(session: &dyn Session, number: u64) -> Done<Option<(WebhookRecord, Vec<u8>)>> {
    // A number that no column can hold names no webhook.
    if i64::try_from(number).is_err() {
        return Ok(None);
    }
    let sql = "-- find_webhook
        SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
            created_at, received_at, settled_at, deliveries, detail, payload
        FROM webhooks WHERE webhook_no = $1";
    session.read_optional(sql, values![number], |row| {
        Ok((decode_webhook(row)?, row.get("webhooks.payload")?))
    })
}

fn replay_webhook(session: &dyn Session, number: u64, at: Timestamp) -> Done<Ruling> {
    // What a webhook is about never changes, so it may be read before anything is locked.
    let Some((WebhookRecord { object, .. }, _)) = find_webhook(session, number)? else {
        return Ok(Ruling::NotFound);
    };
    let Some(object) = object else {
        return Ok(Ruling::Refused("it is of a type that has no effect, and is only kept"));
    };
    lock_mirror(session, object.kind, &object.id)?;
    let sql = "-- replay_webhook\nSELECT status FROM webhooks WHERE webhook_no = $1";
    let status: WebhookStatus = session.read_one(sql, values![number], Row::only)?;
    if status == WebhookStatus::Waiting {
        return Ok(Ruling::Done(None));
    }
    let ticket = raise_tickets(session, &[(&object, at)])?.pop();
    let sql = "-- replay_webhook
        UPDATE webhooks SET status = 'waiting', settled_at = NULL, detail = NULL, ticket = $2,
            waiting_since = $3
        WHERE webhook_no = $1";
    session.run(sql, values![number, ticket, at])?;
    Ok(Ruling::Done(None))
}

/// Settles the webhooks that waited for these readings, each by the first that is late enough. The
/// caller holds the locks of the objects' mirrors, so they are read without locks of their own.
pub fn settle_webhooks(
    session: &dyn Session,
    written: &[&MirrorReading],
    at: Timestamp,
) -> Done<()> {
    let mut settled: BTreeMap<u64, WebhookStatus> = BTreeMap::new();
    for MirrorReading { name, ticket, snapshot, .. } in written {
        let sql = "-- settle_webhooks
            SELECT webhook_no, shown FROM webhooks
            WHERE status = 'waiting' AND object_kind = $1 AND object_id = $2 AND ticket <= $3";
        let waiting = session.read_all(sql, values![name.kind, name.id, ticket], |row| {
            let shown: Option<Snapshot> = row.get("webhooks.shown")?;
            Ok((row.get("webhooks.webhook_no")?, judge_webhook(shown.as_ref(), snapshot)))
        })?;
        for (number, status) in waiting {
            settled.entry(number).or_insert(status);
        }
    }
    for (number, status) in settled {
        let sql = "-- settle_webhooks
            UPDATE webhooks SET status = $2, settled_at = $3, detail = NULL WHERE webhook_no = $1";
        session.run(sql, values![number, status, at])?;
    }
    Ok(())
}

/// Says why the object of these webhooks could not be read.
pub fn explain_waiting(session: &dyn Session, name: &ObjectName, detail: &str) -> Done<()> {
    let sql = "-- explain_waiting
        WITH waiting AS MATERIALIZED (
            SELECT webhook_no FROM webhooks
            WHERE status = 'waiting' AND object_kind = $1 AND object_id = $2
            ORDER BY webhook_no
            FOR UPDATE
        )
        UPDATE webhooks SET detail = $3
        FROM waiting WHERE webhooks.webhook_no = waiting.webhook_no";
    session.run(sql, values![name.kind, name.id, detail])?;
    Ok(())
}

fn decode_webhook(row: &Row) -> Result<WebhookRecord> {
    let kind: Option<ObjectKind> = row.get("webhooks.object_kind")?;
    let object = match kind {
        Some(kind) => Some(ObjectName { kind, id: row.get("webhooks.object_id")? }),
        None => None,
    };
    Ok(WebhookRecord {
        number: row.get("webhooks.webhook_no")?,
        event_id: row.get("webhooks.event_id")?,
        event_type: row.get("webhooks.event_type")?,
        object,
        source: row.get("webhooks.source")?,
        status: row.get("webhooks.status")?,
        created_at: row.get("webhooks.created_at")?,
        received_at: row.get("webhooks.received_at")?,
        settled_at: row.get("webhooks.settled_at")?,
        deliveries: row.get("webhooks.deliveries")?,
        detail: row.get("webhooks.detail")?,
    })
}
