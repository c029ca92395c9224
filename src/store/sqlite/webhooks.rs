//! Webhooks in their table, with all their names; and cursors of jobs that read lists.
//!
//! Invariant: a name belongs to one webhook, so a fact has one row however often and under
//! whichever of its names it comes. Its row, its names, its entry in a timeline and its ticket are
//! written in one transaction of the writer, which is the only one: nothing comes between the look
//! for a name and the row. A crash leaves all of a call, or nothing of it.

use super::mirrors::raise_ticket;
use super::push_rows::{get, moment};
use super::statements::Statements;
use super::{SqliteStore, corrupt, damaged, timelines};
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::{WebhookSource, WebhookStatus, is_of_content, judge_webhook};
use crate::store::Result;
use crate::store::push::Ruling;
use crate::store::webhook::{
    Receipted, WebhookCounts, WebhookQuery, WebhookReceipt, WebhookRecord, Webhooks,
};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

#[async_trait]
impl Webhooks for SqliteStore {
    async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>> {
        if receipts.is_empty() {
            return Ok(Vec::new());
        }
        self.write(move |writer| {
            writer.write(|c| receipts.iter().map(|receipt| record_webhook(c, receipt)).collect())
        })
        .await
    }

    async fn list_webhooks(&self, query: WebhookQuery) -> Result<Vec<WebhookRecord>> {
        self.read(move |_, connection| list_webhooks(connection, &query)).await
    }

    async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
        self.read(move |_, connection| find_webhook(connection, number)).await
    }

    async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.write(move |writer| writer.write(|c| replay_webhook(c, number, at))).await
    }

    async fn count_webhooks(&self) -> Result<WebhookCounts> {
        self.read(|_, connection| count_webhooks(connection)).await
    }

    async fn read_cursor(&self, name: &'static str) -> Result<Option<String>> {
        self.read(move |_, connection| read_cursor(connection, name)).await
    }

    async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()> {
        let value = value.to_owned();
        self.write(move |writer| writer.write(|c| record_cursor(c, name, &value))).await
    }
}

fn record_webhook(connection: &Connection, receipt: &WebhookReceipt) -> Result<Receipted> {
    let facts = &receipt.facts;
    let known = find_by_names(connection, &facts.names)?;
    let number = match known {
        Some((name, number)) => {
            // What a list shows again was not delivered again.
            if receipt.source == WebhookSource::Delivered {
                count_delivery(connection, number)?;
            }
            if let Some(object) = facts.object.as_ref().filter(|_| is_of_content(name)) {
                raise_ticket(connection, object, receipt.received_at)?;
            }
            number
        }
        None => insert_webhook(connection, receipt)?,
    };
    for name in &facts.names {
        insert_name(connection, name, number)?;
    }
    if let Some(entry) = &facts.timeline {
        timelines::insert_entry(connection, entry)?;
    }
    Ok(Receipted { number, fresh: known.is_none() })
}

/// The first of these names that is known, and its webhook.
fn find_by_names<'n>(
    connection: &Connection,
    names: &'n [String],
) -> Result<Option<(&'n str, u64)>> {
    let mut select = connection
        .prepare_cached("-- find_by_names\nSELECT webhook_no FROM webhook_names WHERE name = ?")?;
    for name in names {
        let number = select.query_row([name], |row| row.get(0)).optional()?;
        if let Some(number) = number {
            return Ok(Some((name, number)));
        }
    }
    Ok(None)
}

fn count_delivery(connection: &Connection, number: u64) -> Result<()> {
    connection.run(
        "-- count_delivery
         UPDATE webhooks SET deliveries = deliveries + 1 WHERE webhook_no = ?",
        [number],
    )?;
    Ok(())
}

/// Writes a webhook that was not known; one with an object asks for a reading.
fn insert_webhook(connection: &Connection, receipt: &WebhookReceipt) -> Result<u64> {
    let WebhookReceipt { facts, payload, source, received_at } = receipt;
    let object = facts.object.as_ref();
    let ticket = object.map(|name| raise_ticket(connection, name, *received_at)).transpose()?;
    let (status, settled_at) = match object {
        Some(_) => (WebhookStatus::Waiting, None),
        None => (WebhookStatus::Kept, Some(received_at.micros())),
    };
    connection.run("-- insert_webhook
             INSERT INTO webhooks (event_id, event_type, object_kind, object_id, ticket, source,
                 status, created_at, received_at, waiting_since, settled_at, deliveries, shown, payload)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, ?11, ?12, ?13)", params![
                facts.event_id,
                facts.event_type,
                object.map(|name| name.kind.name()),
                object.map(|name| &name.id),
                ticket,
                source.name(),
                status.name(),
                facts.created_at.micros(),
                received_at.micros(),
                settled_at,
                u64::from(*source == WebhookSource::Delivered),
                facts.snapshot.as_ref().map(Snapshot::to_json),
                payload
            ])?;
    Ok(u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1"))
}

fn insert_name(connection: &Connection, name: &str, number: u64) -> Result<()> {
    connection.run(
        "-- insert_name
         INSERT INTO webhook_names (name, webhook_no) VALUES (?, ?) ON CONFLICT DO NOTHING",
        params![name, number],
    )?;
    Ok(())
}

fn list_webhooks(connection: &Connection, query: &WebhookQuery) -> Result<Vec<WebhookRecord>> {
    // Those that wait are few among all that ever came.
    let sql = match query.status {
        Some(WebhookStatus::Waiting) => {
            "-- list_webhooks
             SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
                    created_at, received_at, settled_at, deliveries, detail
             FROM webhooks INDEXED BY webhooks_waiting_since
             WHERE status = ?1 AND status = 'waiting' AND (?2 IS NULL OR event_type = ?2)
                 AND webhook_no < ?3
             ORDER BY webhook_no DESC LIMIT ?4"
        }
        Some(WebhookStatus::Applied | WebhookStatus::Stale | WebhookStatus::Kept) | None => {
            "-- list_webhooks
             SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
                    created_at, received_at, settled_at, deliveries, detail
             FROM webhooks
             WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR event_type = ?2)
                 AND webhook_no < ?3
             ORDER BY webhook_no DESC LIMIT ?4"
        }
    };
    let before = query.before.and_then(|number| i64::try_from(number).ok());
    let asked = params![
        query.status.map(WebhookStatus::name),
        query.event_type,
        before.unwrap_or(i64::MAX),
        i64::try_from(query.limit).unwrap_or(i64::MAX)
    ];
    connection.read_all(sql, asked, decode_webhook)
}

fn find_webhook(connection: &Connection, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>> {
    connection.read_optional(
        "-- find_webhook
         SELECT webhook_no, event_id, event_type, object_kind, object_id, source, status,
                created_at, received_at, settled_at, deliveries, detail, payload
         FROM webhooks WHERE webhook_no = ?",
        [number],
        |row| Ok((decode_webhook(row)?, get(row, "payload")?)),
    )
}

fn decode_webhook(row: &Row<'_>) -> Result<WebhookRecord> {
    let (source, status): (String, String) = (get(row, "source")?, get(row, "status")?);
    Ok(WebhookRecord {
        number: get(row, "webhook_no")?,
        event_id: get(row, "event_id")?,
        event_type: get(row, "event_type")?,
        object: object_of(row)?,
        source: WebhookSource::from_name(&source)
            .ok_or_else(|| damaged("webhooks.source", &source))?,
        status: WebhookStatus::from_name(&status)
            .ok_or_else(|| damaged("webhooks.status", &status))?,
        created_at: moment(row, "created_at")?,
        received_at: moment(row, "received_at")?,
        settled_at: get::<Option<i64>>(row, "settled_at")?.map(Timestamp::from_micros),
        deliveries: get(row, "deliveries")?,
        detail: get(row, "detail")?,
    })
}

fn object_of(row: &Row<'_>) -> Result<Option<ObjectName>> {
    let kind: Option<String> = get(row, "object_kind")?;
    let Some(kind) = kind else { return Ok(None) };
    let kind =
        ObjectKind::from_name(&kind).ok_or_else(|| damaged("webhooks.object_kind", &kind))?;
    Ok(Some(ObjectName { kind, id: get(row, "object_id")? }))
}

fn replay_webhook(connection: &Connection, number: u64, at: Timestamp) -> Result<Ruling> {
    let Some((webhook, _)) = find_webhook(connection, number)? else {
        return Ok(Ruling::NotFound);
    };
    match webhook.status {
        WebhookStatus::Waiting => return Ok(Ruling::Done(None)),
        WebhookStatus::Kept => {
            return Ok(Ruling::Refused("it is of a type that has no effect; it is only kept"));
        }
        WebhookStatus::Applied | WebhookStatus::Stale => {}
    }
    let object = webhook.object.ok_or_else(|| corrupt("webhooks.object_id"))?;
    let ticket = raise_ticket(connection, &object, at)?;
    connection.run(
        "-- replay_webhook
         UPDATE webhooks SET status = 'waiting', ticket = ?, waiting_since = ?,
             settled_at = NULL
         WHERE webhook_no = ?",
        params![ticket, at.micros(), number],
    )?;
    Ok(Ruling::Done(None))
}

fn count_webhooks(connection: &Connection) -> Result<WebhookCounts> {
    connection.read_one(
        "-- count_webhooks
         SELECT COUNT(*), MIN(waiting_since) FROM webhooks WHERE status = 'waiting'",
        [],
        |row| {
            let since: Option<i64> = row.get(1)?;
            let waiting_since = since.map(Timestamp::from_micros);
            Ok(WebhookCounts { waiting: row.get(0)?, waiting_since })
        },
    )
}

/// Settles what waited for a reading that was begun for this ticket or an earlier one.
pub fn settle_waiting(
    connection: &Connection,
    (name, ticket): (&ObjectName, u64),
    read: &Snapshot,
    at: Timestamp,
) -> Result<()> {
    let asked = params![name.kind.name(), name.id, ticket];
    let waiting: Vec<(u64, Option<String>)> = connection.read_all(
        "-- settle_waiting
         SELECT webhook_no, shown FROM webhooks
         WHERE status = 'waiting' AND object_kind = ? AND object_id = ? AND ticket <= ?",
        asked,
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    for (number, shown) in waiting {
        let shown = shown
            .map(|text| Snapshot::from_json(&text).ok_or_else(|| damaged("webhooks.shown", &text)));
        let status = judge_webhook(shown.transpose()?.as_ref(), read);
        connection.run(
            "-- settle_waiting
             UPDATE webhooks SET status = ?, settled_at = ?, detail = NULL
             WHERE webhook_no = ?",
            params![status.name(), at.micros(), number],
        )?;
    }
    Ok(())
}

/// Says why the object of these webhooks could not be read.
pub fn explain_waiting(connection: &Connection, name: &ObjectName, detail: &str) -> Result<()> {
    connection.run(
        "-- explain_waiting
         UPDATE webhooks SET detail = ?
         WHERE status = 'waiting' AND object_kind = ? AND object_id = ?",
        params![detail, name.kind.name(), name.id],
    )?;
    Ok(())
}

fn read_cursor(connection: &Connection, name: &'static str) -> Result<Option<String>> {
    connection.read_optional(
        "-- read_cursor\nSELECT value FROM cursors WHERE name = ?",
        [name],
        |row| Ok(row.get(0)?),
    )
}

fn record_cursor(connection: &Connection, name: &'static str, value: &str) -> Result<()> {
    connection.run(
        "-- record_cursor
         INSERT INTO cursors (name, value) VALUES (?, ?)
         ON CONFLICT DO UPDATE SET value = excluded.value",
        params![name, value],
    )?;
    Ok(())
}
