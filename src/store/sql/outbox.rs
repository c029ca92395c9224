//! The outbox: messages about changes, and notices of alerts.
//!
//! Invariant: a message is written once under its id, in the transaction of what it tells. Numbers
//! of changes are given in the order of commits: their writer holds one lock from the first of them
//! to the end of its transaction, so that a reader who goes on after the highest number it has seen
//! misses none. That lock is the last one of a transaction but for its request's key. Only the
//! holder of a message's lease under its last fence settles it.
//!
//! A crash leaves a message waiting, or leased until its lease ends. A claim that is repeated
//! because its outcome was lost passes over what the lost one leased; a settlement that is repeated
//! finds no lease and is refused; writing and removing may be repeated.

use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, SqlStore, values};
use crate::rules::alert::{NewNotice, Unsent};
use crate::rules::change::CHANGES_DESTINATION;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::store::outbox::{ClaimedMessage, FeedChange, Message, Outbox, Queue, SendOutcome};
use crate::store::{Query, Result};
use async_trait::async_trait;

/// Any number, as long as every version of this program takes the same one, and no other lock does.
const MESSAGES_LOCK: i64 = 0x6d65_7373_6167_6573;

#[async_trait]
impl<S: SqlStore> Outbox for S {
    async fn publish_changes(&self, messages: Vec<FeedChange>, at: Timestamp) -> Result<usize> {
        self.in_transaction(move |session| append_changes(session, &messages, at)).await
    }

    async fn list_changes(&self, query: Query<Option<TenantId>>) -> Result<Vec<Message>> {
        let select = "-- list_changes
            SELECT message_no, id, destination, kind, tenant, payload, at
            FROM outbox LEFT JOIN tenants ON tenants.tenant_no = outbox.tenant_no";
        let (sql, values) = Filter::new(select)
            .and_always("queue = 'changes'")
            .and("message_no > $", within_column(query.after.unwrap_or(0)))
            .and_if(
                "outbox.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)",
                query.filter,
            )
            .order("message_no", query.limit);
        self.in_reader(move |session| session.read_all(&sql, &values, decode_message)).await
    }

    async fn claim_messages(
        &self,
        queue: Queue,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        self.in_transaction_if(
            move |session| any_due(session, queue, now),
            move |session| claim_due(session, queue, now, lease_until, limit),
        )
        .await
    }

    async fn settle_message(
        &self,
        number: u64,
        fence: u64,
        outcome: SendOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        self.in_transaction(move |session| {
            let (state, due_at, detail) = outcome.parts();
            let settled_at = due_at.is_none().then_some(at);
            let sql = "-- settle_message
                UPDATE outbox SET state = $3, due_at = COALESCE($4, due_at), detail = $5,
                    settled_at = $6, leased_until = NULL
                WHERE message_no = $1 AND fence = $2 AND state = 'waiting'
                    AND leased_until IS NOT NULL";
            let values = values![number, fence, state, due_at, detail, settled_at];
            Ok(session.run(sql, values)? == 1)
        })
        .await
    }

    async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.in_transaction(move |session| {
            let sql = "-- prune_messages
                DELETE FROM outbox WHERE message_no IN (
                    SELECT message_no FROM outbox
                    WHERE at < $1 AND kind NOT LIKE 'dunning.%'
                    ORDER BY at, message_no LIMIT $2
                    FOR UPDATE SKIP LOCKED
                )";
            let removed = session.run(sql, values![before, limit])?;
            Ok(usize::try_from(removed).unwrap_or(usize::MAX))
        })
        .await
    }
}

/// Writes messages in their order, inside the caller's transaction, whose last locks these are;
/// returns how many were new.
pub fn append_changes(
    session: &dyn Session,
    messages: &[FeedChange],
    at: Timestamp,
) -> Done<usize> {
    let number = |message: &FeedChange| {
        let tenant = message.tenant.as_ref().map(|tenant| session.number_tenant(tenant, at));
        Ok((tenant.transpose()?, message.clone()))
    };
    append_numbered(session, &messages.iter().map(number).collect::<Done<Vec<_>>>()?, at)
}

/// As [`append_changes`], each with its tenant's number.
pub fn append_numbered(
    session: &dyn Session,
    messages: &[(Option<TenantNo>, FeedChange)],
    at: Timestamp,
) -> Done<usize> {
    if messages.is_empty() {
        return Ok(0);
    }
    session.lock(MESSAGES_LOCK)?;
    let sql = "-- append_numbered
        INSERT INTO outbox (id, queue, destination, kind, tenant_no, payload, at, state, attempts,
            due_at, fence)
        VALUES ($, 'changes', $, $, $, $, $, 'waiting', 0, $, 0), ...
        ON CONFLICT (id) DO NOTHING";
    let rows = messages.iter().map(|(tenant, message)| {
        let FeedChange { kind, payload, .. } = message;
        values![message.id(), CHANGES_DESTINATION, kind, tenant, payload, at, at].to_vec()
    });
    let written = session.run_batch(sql, rows)?;
    Ok(usize::try_from(written).unwrap_or(usize::MAX))
}

/// Writes notices in their order, inside the transaction of their alerts' changes.
pub fn write_notices(session: &dyn Session, notices: &[NewNotice], at: Timestamp) -> Done<()> {
    for NewNotice { id, alert, event, destination, payload, due_at } in notices {
        let sql = "-- write_notices
            INSERT INTO outbox (id, queue, destination, kind, alert_no, payload, at, state,
                attempts, due_at, fence)
            VALUES ($1, 'alerts', $2, $3, $4, $5, $6, 'waiting', 0, $7, 0)";
        session.run(sql, values![id, destination, event, alert, payload, at, due_at])?;
    }
    Ok(())
}

/// Gives up the openings of an alert that still wait.
pub fn give_up_openings(session: &dyn Session, alert: u64, at: Timestamp) -> Done<Vec<Unsent>> {
    let sql = "-- give_up_openings
        SELECT destination, attempts, leased_until FROM outbox
        WHERE alert_no = $1 AND kind = 'opened' AND state = 'waiting'
        ORDER BY message_no FOR UPDATE";
    let waiting = session.read_all(sql, values![alert], |row| {
        Ok(Unsent {
            alert,
            destination: row.get("outbox.destination")?,
            attempts: row.get("outbox.attempts")?,
            leased_until: row.get("outbox.leased_until")?,
        })
    })?;
    let sql = "-- give_up_openings
        UPDATE outbox SET state = 'given_up', settled_at = $2, leased_until = NULL,
            detail = 'the alert ended before it was sent'
        WHERE alert_no = $1 AND kind = 'opened' AND state = 'waiting'";
    session.run(sql, values![alert, at])?;
    Ok(waiting)
}

fn any_due(session: &dyn Session, queue: Queue, now: Timestamp) -> Done<bool> {
    let sql = "-- any_due
        SELECT 1::bigint AS due FROM outbox
        WHERE queue = $1 AND state = 'waiting' AND due_at <= $2
            AND (leased_until IS NULL OR leased_until <= $2)
        LIMIT 1";
    Ok(session.read_optional(sql, values![queue, now], |_| Ok(()))?.is_some())
}

/// Leases messages that are due; those that another server is claiming are passed over. Each claim
/// is an attempt: nobody knows how far a claimant came that was not heard of again.
fn claim_due(
    session: &dyn Session,
    queue: Queue,
    now: Timestamp,
    lease_until: Timestamp,
    limit: usize,
) -> Done<Vec<ClaimedMessage>> {
    let sql = "-- claim_due
        WITH due AS MATERIALIZED (
            SELECT message_no FROM outbox
            WHERE queue = $4 AND state = 'waiting' AND due_at <= $1
                AND (leased_until IS NULL OR leased_until <= $1)
            ORDER BY due_at, message_no LIMIT $3
            FOR UPDATE SKIP LOCKED
        )
        UPDATE outbox SET leased_until = $2, fence = fence + 1, attempts = attempts + 1
        FROM due WHERE outbox.message_no = due.message_no
        RETURNING outbox.message_no, id, destination, kind, payload, at, fence, attempts, due_at,
            (SELECT tenant FROM tenants WHERE tenants.tenant_no = outbox.tenant_no) AS tenant";
    let mut claimed = session.read_all(sql, values![now, lease_until, limit, queue], |row| {
        let (fence, attempts): (u64, u32) = (row.get("outbox.fence")?, row.get("outbox.attempts")?);
        let due_at: Timestamp = row.get("outbox.due_at")?;
        let message = decode_message(row)?;
        Ok((due_at, ClaimedMessage { message, fence, attempts: attempts - 1 }))
    })?;
    claimed.sort_by_key(|(due_at, claimed)| (*due_at, claimed.message.number));
    Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
}

fn decode_message(row: &Row) -> Result<Message> {
    Ok(Message {
        number: row.get("outbox.message_no")?,
        id: row.get("outbox.id")?,
        destination: row.get("outbox.destination")?,
        kind: row.get("outbox.kind")?,
        tenant: row.get("tenants.tenant")?,
        payload: row.get("outbox.payload")?,
        at: row.get("outbox.at")?,
    })
}
