//! The outbox: messages about changes, and notices of alerts.
//!
//! Invariant: a message is written once under its id and never changes but in how it is delivered.
//! Only the holder of its lease under its last fence settles it. A crash leaves a lease that ends
//! by itself; the message is then sent again under the same id and number.

use super::push_rows::{get, moment};
use super::statements::Statements;
use super::{SqliteStore, corrupt};
use crate::rules::alert::{NewNotice, Unsent};
use crate::rules::change::CHANGES_DESTINATION;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::outbox::{ClaimedMessage, FeedChange, Message, Outbox, Queue, SendOutcome};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

#[async_trait]
impl Outbox for SqliteStore {
    async fn publish_changes(&self, messages: Vec<FeedChange>, at: Timestamp) -> Result<usize> {
        self.write(move |writer| {
            let tenants = tenants_of(&messages);
            writer.write_for_all(&tenants, at, |connection, numbers| {
                append_changes(connection, &messages, numbers, at)
            })
        })
        .await
    }

    async fn list_changes(
        &self,
        tenant: Option<&TenantId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Message>> {
        let tenant = match tenant {
            None => None,
            Some(name) => match self.shared.read_memory().tenants.find(name) {
                Some(number) => Some(number),
                None => return Ok(Vec::new()),
            },
        };
        self.read(move |_, connection| match tenant {
            Some(tenant) => list_changes_of(connection, tenant, after, limit),
            None => list_changes(connection, after, limit),
        })
        .await
    }

    async fn claim_messages(
        &self,
        queue: Queue,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        // A reader looks first, so that a claim of nothing costs no transaction.
        let found = self.read(move |_, connection| find_due(connection, queue, now, limit)).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        self.write(move |writer| {
            writer.write(|connection| {
                let due = find_due(connection, queue, now, limit)?;
                due.into_iter().map(|number| lease(connection, number, lease_until)).collect()
            })
        })
        .await
    }

    async fn settle_message(
        &self,
        number: u64,
        fence: u64,
        outcome: SendOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        self.write(move |writer| writer.write(|c| settle(c, number, fence, &outcome, at))).await
    }

    async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.write(move |writer| writer.write(|c| prune_messages(c, before, limit))).await
    }
}

/// Those that messages name, in the order of the messages.
pub fn tenants_of(messages: &[FeedChange]) -> Vec<&TenantId> {
    messages.iter().filter_map(|message| message.tenant.as_ref()).collect()
}

/// Writes messages inside the caller's transaction; `tenants` are the numbers of [`tenants_of`].
/// Returns how many were new.
pub fn append_changes(
    connection: &Connection,
    messages: &[FeedChange],
    tenants: &[TenantNo],
    at: Timestamp,
) -> Result<usize> {
    let mut numbers = tenants.iter().copied();
    let mut written = 0;
    for message in messages {
        let tenant = message.tenant.as_ref().and_then(|_| numbers.next());
        written += usize::from(append_change(connection, message, tenant, at)?);
    }
    Ok(written)
}

/// Writes a message inside the caller's transaction; false if it exists.
pub fn append_change(
    connection: &Connection,
    message: &FeedChange,
    tenant: Option<TenantNo>,
    at: Timestamp,
) -> Result<bool> {
    let FeedChange { kind, payload, .. } = message;
    let (to, tenant) = (CHANGES_DESTINATION, tenant.map(|tenant| tenant.0));
    let written = connection.run(
        "-- append_change
         INSERT INTO outbox (id, queue, destination, kind, tenant_no, payload, at, state,
                             attempts, due_at, fence)
         VALUES (?1, 'changes', ?2, ?3, ?4, ?5, ?6, 'waiting', 0, ?6, 0)
         ON CONFLICT DO NOTHING",
        params![message.id(), to, kind, tenant, payload, at.micros()],
    )?;
    Ok(written == 1)
}

/// Writes notices inside the transaction of their alert's change.
pub fn write_notices(connection: &Connection, notices: &[NewNotice], at: Timestamp) -> Result<()> {
    for NewNotice { id, alert, event, destination, payload, due_at } in notices {
        let (event, at, due_at) = (event.name(), at.micros(), due_at.micros());
        connection.run(
            "-- write_notices
             INSERT INTO outbox (id, queue, destination, kind, alert_no, payload, at, state,
                                 attempts, due_at, fence)
             VALUES (?, 'alerts', ?, ?, ?, ?, ?, 'waiting', 0, ?, 0)",
            params![id, destination, event, alert, payload, at, due_at],
        )?;
    }
    Ok(())
}

/// Gives up the openings of an alert that still wait.
pub fn give_up_openings(connection: &Connection, alert: u64, at: Timestamp) -> Result<Vec<Unsent>> {
    let waiting = connection.read_all(
        "-- give_up_openings
         SELECT destination, attempts, leased_until FROM outbox
         WHERE alert_no = ? AND kind = 'opened' AND state = 'waiting'",
        [alert],
        |row| {
            let until: Option<i64> = row.get(2)?;
            let leased_until = until.map(Timestamp::from_micros);
            Ok(Unsent { alert, destination: row.get(0)?, attempts: row.get(1)?, leased_until })
        },
    )?;
    connection.run(
        "-- give_up_openings
         UPDATE outbox SET state = 'given_up', settled_at = ?, leased_until = NULL,
             detail = 'the alert ended before it was sent'
         WHERE alert_no = ? AND kind = 'opened' AND state = 'waiting'",
        params![at.micros(), alert],
    )?;
    Ok(waiting)
}

fn list_changes(connection: &Connection, after: u64, limit: usize) -> Result<Vec<Message>> {
    let (after, limit) = (number(after), i64::try_from(limit).unwrap_or(i64::MAX));
    connection.read_all(
        "-- list_changes
         SELECT message_no, id, destination, kind, tenant, payload, at
         FROM outbox LEFT JOIN tenants ON tenants.tenant_no = outbox.tenant_no
         WHERE queue = 'changes' AND message_no > ? ORDER BY message_no LIMIT ?",
        params![after, limit],
        decode_message,
    )
}

fn list_changes_of(
    connection: &Connection,
    tenant: TenantNo,
    after: u64,
    limit: usize,
) -> Result<Vec<Message>> {
    let (after, limit) = (number(after), i64::try_from(limit).unwrap_or(i64::MAX));
    connection.read_all(
        "-- list_changes_of
         SELECT message_no, id, destination, kind, tenant, payload, at
         FROM outbox JOIN tenants ON tenants.tenant_no = outbox.tenant_no
         WHERE outbox.tenant_no = ? AND message_no > ? ORDER BY message_no LIMIT ?",
        params![tenant.0, after, limit],
        decode_message,
    )
}

/// A number that somebody asks for; nothing comes after the highest that a row can have.
fn number(asked: u64) -> i64 {
    i64::try_from(asked).unwrap_or(i64::MAX)
}

fn decode_message(row: &Row<'_>) -> Result<Message> {
    let tenant: Option<String> = get(row, "tenant")?;
    let tenant = tenant.as_deref().map(TenantId::parse).transpose();
    Ok(Message {
        number: get(row, "message_no")?,
        id: get(row, "id")?,
        destination: get(row, "destination")?,
        kind: get(row, "kind")?,
        tenant: tenant.map_err(|_| corrupt("a message's tenant"))?,
        payload: get(row, "payload")?,
        at: moment(row, "at")?,
    })
}

/// Numbers of messages that could be claimed now, longest due first.
fn find_due(
    connection: &Connection,
    queue: Queue,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<u64>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let asked = params![queue.name(), now.micros(), limit];
    connection.read_all(
        "-- find_due
         SELECT message_no FROM outbox
         WHERE queue = ?1 AND state = 'waiting' AND due_at <= ?2
             AND (leased_until IS NULL OR leased_until <= ?2)
         ORDER BY due_at, message_no LIMIT ?3",
        asked,
        |row| Ok(row.get(0)?),
    )
}

/// A claim counts as an attempt: nobody knows how far a claimant came that was not heard of again.
fn lease(connection: &Connection, number: u64, until: Timestamp) -> Result<ClaimedMessage> {
    connection.run(
        "-- lease
         UPDATE outbox SET leased_until = ?, fence = fence + 1, attempts = attempts + 1
         WHERE message_no = ?",
        params![until.micros(), number],
    )?;
    let mut select = connection.prepare_cached(
        "-- lease
         SELECT message_no, id, destination, kind, tenant, payload, at, fence,
                attempts - 1 AS attempts
         FROM outbox LEFT JOIN tenants ON tenants.tenant_no = outbox.tenant_no
         WHERE message_no = ?",
    )?;
    let mut rows = select.query([number])?;
    let row = rows.next()?.ok_or_else(|| corrupt("a message's number"))?;
    let (fence, attempts) = (get(row, "fence")?, get(row, "attempts")?);
    Ok(ClaimedMessage { message: decode_message(row)?, fence, attempts })
}

fn settle(
    connection: &Connection,
    number: u64,
    fence: u64,
    outcome: &SendOutcome,
    at: Timestamp,
) -> Result<bool> {
    let (state, due_at, detail) = outcome.parts();
    let settled_at = due_at.is_none().then_some(at);
    let (due_at, settled_at) = (due_at.map(Timestamp::micros), settled_at.map(Timestamp::micros));
    let settled = connection.run(
        "-- settle
         UPDATE outbox SET state = ?, due_at = COALESCE(?, due_at), settled_at = ?,
             detail = ?, leased_until = NULL
         WHERE message_no = ? AND fence = ? AND state = 'waiting'
             AND leased_until IS NOT NULL",
        params![state, due_at, settled_at, detail, number, fence],
    )?;
    Ok(settled == 1)
}

fn prune_messages(connection: &Connection, before: Timestamp, limit: usize) -> Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.run(
        "-- prune_messages
         DELETE FROM outbox WHERE message_no IN (
             SELECT message_no FROM outbox WHERE at < ? AND kind NOT LIKE 'dunning.%'
             ORDER BY at LIMIT ?
         )",
        params![before.micros(), limit],
    )
}
