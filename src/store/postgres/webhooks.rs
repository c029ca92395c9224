//! Webhooks of the provider, one for each fact; and the positions of jobs that read its lists.
//!
//! Invariant: a fact has one webhook because each of its names has one row in `webhook_names`. Two
//! servers that record one fact at once meet at that key; the later one redoes its transaction and
//! finds the fact known. Here and in `mirrors` locks are taken in one order: mirrors by kind and
//! id, names, webhooks by number, entries of timelines; so nobody waits in a circle.
//!
//! A crash leaves all of a call or nothing. A batch that is repeated because its outcome was lost
//! finds its facts known and adds only to the counts of their deliveries. A replay that is repeated
//! finds the webhook waiting.

use super::PostgresStore;
use super::mirrors::{object_name, raise_tickets};
use super::push_rows::each;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, instant_if_any, read_count, write_count,
    write_limit,
};
use super::statements::Statements;
use super::timelines::insert_entries;
use super::transaction::{Done, Transaction};
use crate::rules::mirror::{ObjectName, Snapshot};
use crate::rules::subscription::TimelineEntry;
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::{WebhookSource, WebhookStatus, is_of_content};
use crate::store::push::Ruling;
use crate::store::webhook::{
    Receipted, WebhookCounts, WebhookQuery, WebhookReceipt, WebhookRecord, Webhooks,
};
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

#[async_trait]
impl Webhooks for PostgresStore {
    async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>> {
        if receipts.is_empty() {
            return Ok(Vec::new());
        }
        let receipts = receipts.as_slice();
        let work =
            move |client: Arc<Transaction>| async move { record_all(&client, receipts).await };
        self.transact(work).await
    }

    async fn list_webhooks(&self, query: WebhookQuery) -> Result<Vec<WebhookRecord>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_webhooks
            SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
                created_at, received_at, settled_at, deliveries, detail
            FROM webhooks
            WHERE ($1::text IS NULL OR status = $1)
                AND ($2::text IS NULL OR event_type = $2)
                AND ($3::int8 IS NULL OR webhook_no < $3)
            ORDER BY webhook_no DESC LIMIT $4";
        let before = query.before.and_then(|number| write_count(number).ok());
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &query.status.map(WebhookStatus::name),
            &query.event_type,
            &before,
            &write_limit(query.limit),
        ];
        client.query(sql, &parameters).await?.iter().map(webhook_record).collect()
    }

    async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
        let Ok(number) = write_count(number) else { return Ok(None) };
        let client = self.reader().await?;
        let sql = "-- find_webhook
            SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
                created_at, received_at, settled_at, deliveries, detail, payload
            FROM webhooks WHERE webhook_no = $1";
        let found = client.read_optional(sql, &[&number]).await?;
        found.map(|row| Ok((webhook_record(&row)?, column(&row, 12)?))).transpose()
    }

    async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        let work = move |client: Arc<Transaction>| async move { replay(&client, number, at).await };
        self.transact(work).await
    }

    async fn count_webhooks(&self) -> Result<WebhookCounts> {
        let client = self.reader().await?;
        let sql = "-- count_webhooks
            SELECT count(*), min(waiting_since) FROM webhooks WHERE status = 'waiting'";
        let row = client.query_one(sql, &[]).await?;
        Ok(WebhookCounts {
            waiting: read_count(column(&row, 0)?)?,
            waiting_since: instant_if_any(&row, 1)?,
        })
    }

    async fn read_cursor(&self, name: &'static str) -> Result<Option<String>> {
        let client = self.reader().await?;
        let sql = "-- read_cursor
            SELECT value FROM cursors WHERE name = $1";
        let found = client.query_opt(sql, &[&name]).await?;
        found.map(|row| column(&row, 0)).transpose()
    }

    async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()> {
        let work = move |client: Arc<Transaction>| async move {
            let sql = "-- record_cursor
                INSERT INTO cursors (name, value) VALUES ($1, $2)
                ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            client.execute(sql, &[&name, &value]).await?;
            Ok(())
        };
        self.transact(work).await
    }
}

/// One fact of a batch.
struct WebhookFact<'r> {
    /// Its webhook, if it has one already.
    known: Option<i64>,
    /// The first receipt of it in the batch.
    receipt: &'r WebhookReceipt,
    /// Its receipts in the batch.
    deliveries: i64,
}

/// A batch, sorted by facts.
#[derive(Default)]
struct WebhookBatch<'r> {
    facts: Vec<WebhookFact<'r>>,
    /// Each receipt's fact, by its place.
    places: Vec<usize>,
    /// Names that are not stored yet, in the order in which they are written, with their facts.
    new_names: BTreeMap<&'r str, usize>,
    /// Receipts that are known by their content alone.
    alike: Vec<&'r WebhookReceipt>,
}

impl<'r> WebhookBatch<'r> {
    /// Sorts receipts by facts; `known` holds those of their names that are stored.
    fn sort(receipts: &'r [WebhookReceipt], known: &BTreeMap<String, i64>) -> Self {
        let mut batch = Self::default();
        let mut by_number: BTreeMap<i64, usize> = BTreeMap::new();
        for receipt in receipts {
            let names = &receipt.facts.names;
            let by = names.iter().find(|name| known.contains_key(*name));
            let stored = by.map(|name| known[name]);
            // What is stored comes first: a fact that is new in the batch has no number yet.
            let by = by.or_else(|| names.iter().find(|n| batch.new_names.contains_key(n.as_str())));
            let met = match stored {
                Some(number) => by_number.get(&number).copied(),
                None => by.and_then(|name| batch.new_names.get(name.as_str()).copied()),
            };
            if by.is_some_and(|name| is_of_content(name)) {
                batch.alike.push(receipt);
            }
            let place = met.unwrap_or(batch.facts.len());
            if met.is_none() {
                batch.facts.push(WebhookFact { known: stored, receipt, deliveries: 0 });
            }
            if let Some(number) = stored {
                by_number.insert(number, place);
            }
            // What a list shows again was not delivered again.
            let delivered = receipt.source == WebhookSource::Delivered;
            batch.facts[place].deliveries += i64::from(delivered);
            batch.places.push(place);
            for name in names.iter().filter(|name| !known.contains_key(*name)) {
                batch.new_names.entry(name.as_str()).or_insert(place);
            }
        }
        batch
    }

    fn fresh(&self) -> impl Iterator<Item = &WebhookFact<'r>> {
        self.facts.iter().filter(|fact| fact.known.is_none())
    }
}

/// Everything but the COMMIT.
async fn record_all(client: &ClientWrapper, receipts: &[WebhookReceipt]) -> Done<Vec<Receipted>> {
    let known = find_names(client, receipts).await?;
    let batch = WebhookBatch::sort(receipts, &known);
    // Those of new webhooks first, since these keep theirs.
    let wishing = batch.fresh().map(|fact| fact.receipt).chain(batch.alike.iter().copied());
    let wishes: Vec<(&ObjectName, Timestamp)> = wishing
        .filter_map(|receipt| Some((receipt.facts.object.as_ref()?, receipt.received_at)))
        .collect();
    let tickets = raise_tickets(client, &wishes).await?;
    let fresh: Vec<&WebhookFact<'_>> = batch.fresh().collect();
    let mut written = insert_webhooks(client, &fresh, tickets).await?.into_iter();
    let mut numbers = Vec::with_capacity(batch.facts.len());
    for fact in &batch.facts {
        let number = fact.known.or_else(|| written.next());
        numbers.push(number.ok_or_else(|| corrupt("webhooks row vanished mid-transaction"))?);
    }
    insert_names(client, &batch, &numbers).await?;
    count_deliveries(client, &batch).await?;
    // Also what a known webhook tells: the one that came before may have been a thin twin.
    let entries: Vec<&TimelineEntry> =
        receipts.iter().filter_map(|receipt| receipt.facts.timeline.as_ref()).collect();
    insert_entries(client, &entries).await?;
    let mut answers = Vec::with_capacity(receipts.len());
    let mut shown = vec![false; batch.facts.len()];
    for place in &batch.places {
        // Of a new fact the first receipt is fresh, and its twins in the batch are not.
        let again = std::mem::replace(&mut shown[*place], true);
        let fresh = batch.facts[*place].known.is_none() && !again;
        answers.push(Receipted { number: read_count(numbers[*place])?, fresh });
    }
    Ok(answers)
}

/// Those of the names that are stored, with their webhooks.
async fn find_names(
    client: &ClientWrapper,
    receipts: &[WebhookReceipt],
) -> Done<BTreeMap<String, i64>> {
    let sql = "-- find_names
        SELECT name, webhook_no FROM webhook_names WHERE name = ANY ($1)";
    let names: Vec<&str> =
        receipts.iter().flat_map(|receipt| &receipt.facts.names).map(String::as_str).collect();
    let rows = client.read_all(sql, &[&names]).await?;
    Ok(rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?))).collect::<Result<_>>()?)
}

/// Writes new webhooks in their order; each that has an object takes the next ticket.
async fn insert_webhooks(
    client: &ClientWrapper,
    fresh: &[&WebhookFact<'_>],
    tickets: Vec<i64>,
) -> Done<Vec<i64>> {
    if fresh.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- insert_webhooks
        INSERT INTO webhooks (event_id, event_type, object_kind, object_id, ticket, source, status,
            created_at, received_at, waiting_since, settled_at, deliveries, shown, payload)
        SELECT event_id, event_type, object_kind, object_id, ticket, source,
            CASE WHEN ticket IS NULL THEN 'kept' ELSE 'waiting' END, created_at, received_at,
            received_at, CASE WHEN ticket IS NULL THEN received_at END, deliveries, shown, payload
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::text[],
            $7::timestamptz[], $8::timestamptz[], $9::int8[], $10::text[], $11::bytea[])
            WITH ORDINALITY AS given (event_id, event_type, object_kind, object_id, ticket, source,
            created_at, received_at, deliveries, shown, payload, place)
        ORDER BY place
        RETURNING webhook_no, event_id";
    let object = |fact: &WebhookFact<'_>| fact.receipt.facts.object.clone();
    let mut next = tickets.into_iter();
    let tickets: Vec<Option<i64>> =
        fresh.iter().map(|fact| object(fact).and_then(|_| next.next())).collect();
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &each(fresh, |fact| fact.receipt.facts.event_id.as_str()),
        &each(fresh, |fact| fact.receipt.facts.event_type.as_str()),
        &each(fresh, |fact| object(fact).map(|object| object.kind.name())),
        &each(fresh, |fact| object(fact).map(|object| object.id)),
        &tickets,
        &each(fresh, |fact| fact.receipt.source.name()),
        &each(fresh, |fact| SqlTimestamp(fact.receipt.facts.created_at)),
        &each(fresh, |fact| SqlTimestamp(fact.receipt.received_at)),
        &each(fresh, |fact| fact.deliveries),
        &each(fresh, |fact| fact.receipt.facts.snapshot.as_ref().map(Snapshot::to_json)),
        &each(fresh, |fact| fact.receipt.payload.as_slice()),
    ];
    let rows = client.read_all(sql, &parameters).await?;
    let mut numbers = Vec::with_capacity(rows.len());
    for (row, fact) in rows.iter().zip(fresh) {
        if column::<String>(row, 1)? != fact.receipt.facts.event_id {
            let what = "webhooks were not written in their order".into();
            return Err(Error::Internal { what }.into());
        }
        numbers.push(column(row, 0)?);
    }
    Ok(numbers)
}

/// Writes names that are not known. One that another server has written meanwhile fails the
/// statement, and the transaction begins again.
async fn insert_names(
    client: &ClientWrapper,
    batch: &WebhookBatch<'_>,
    numbers: &[i64],
) -> Done<()> {
    if batch.new_names.is_empty() {
        return Ok(());
    }
    let sql = "-- insert_names
        INSERT INTO webhook_names (name, webhook_no)
        SELECT name, webhook_no
        FROM unnest($1::text[], $2::int8[]) WITH ORDINALITY AS given (name, webhook_no, place)
        ORDER BY place";
    let names: Vec<&str> = batch.new_names.keys().copied().collect();
    let owners: Vec<i64> = batch.new_names.values().map(|place| numbers[*place]).collect();
    client.run(sql, &[&names, &owners]).await?;
    Ok(())
}

/// Counts what came again.
async fn count_deliveries(client: &ClientWrapper, batch: &WebhookBatch<'_>) -> Done<()> {
    let again: Vec<(i64, i64)> =
        batch.facts.iter().filter_map(|fact| Some((fact.known?, fact.deliveries))).collect();
    if again.is_empty() {
        return Ok(());
    }
    let sql = "-- count_deliveries
        WITH again AS MATERIALIZED (
            SELECT w.webhook_no, given.deliveries
            FROM unnest($1::int8[], $2::int8[]) AS given (webhook_no, deliveries)
            JOIN webhooks w ON w.webhook_no = given.webhook_no
            ORDER BY w.webhook_no
            FOR UPDATE OF w
        )
        UPDATE webhooks w SET deliveries = w.deliveries + again.deliveries
        FROM again WHERE w.webhook_no = again.webhook_no";
    let (numbers, deliveries): (Vec<i64>, Vec<i64>) = again.into_iter().unzip();
    client.run(sql, &[&numbers, &deliveries]).await?;
    Ok(())
}

/// Everything but the COMMIT.
async fn replay(client: &ClientWrapper, number: u64, at: Timestamp) -> Done<Ruling> {
    // A number that no column can hold names no webhook.
    let Ok(number) = write_count(number) else { return Ok(Ruling::NotFound) };
    // What a webhook is about never changes, so it may be read before anything is locked.
    let sql = "-- replay
        SELECT object_kind, object_id FROM webhooks WHERE webhook_no = $1";
    let Some(row) = client.query_opt(sql, &[&number]).await? else {
        return Ok(Ruling::NotFound);
    };
    let Some(object) = object_name(&row, 0)? else {
        return Ok(Ruling::Refused("it is of a type that has no effect, and is only kept"));
    };
    let sql = "-- replay
        SELECT FROM mirrors WHERE kind = $1 AND object_id = $2 FOR UPDATE";
    client.query(sql, &[&object.kind.name(), &object.id]).await?;
    let sql = "-- replay
        SELECT FROM webhooks WHERE webhook_no = $1 AND status <> 'waiting' FOR UPDATE";
    if client.query(sql, &[&number]).await?.is_empty() {
        return Ok(Ruling::Done(None));
    }
    let tickets = raise_tickets(client, &[(&object, at)]).await?;
    let sql = "-- replay
        UPDATE webhooks SET status = 'waiting', settled_at = NULL, detail = NULL, ticket = $2,
            waiting_since = $3
        WHERE webhook_no = $1";
    client.execute(sql, &[&number, &tickets.first(), &SqlTimestamp(at)]).await?;
    Ok(Ruling::Done(None))
}

fn webhook_record(row: &Row) -> Result<WebhookRecord> {
    let (source, status): (String, String) = (column(row, 5)?, column(row, 6)?);
    Ok(WebhookRecord {
        number: read_count(column(row, 0)?)?,
        event_id: column(row, 1)?,
        event_type: column(row, 2)?,
        object: object_name(row, 3)?,
        source: WebhookSource::from_name(&source)
            .ok_or_else(|| damaged("webhooks.source", &source))?,
        status: WebhookStatus::from_name(&status)
            .ok_or_else(|| damaged("webhooks.status", &status))?,
        created_at: instant(row, 7)?,
        received_at: instant(row, 8)?,
        settled_at: instant_if_any(row, 9)?,
        deliveries: read_count(column(row, 10)?)?,
        detail: column(row, 11)?,
    })
}
