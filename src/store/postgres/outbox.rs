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

use super::PostgresStore;
use super::declarations::Creation;
use super::push_rows::each;
use super::scalars::{
    SqlTimestamp, column, corrupt, instant, instant_if_any, read_count, read_ordinal, write_count,
    write_limit,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::alert::{NewNotice, Unsent};
use crate::rules::change::CHANGES_DESTINATION;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::outbox::{ClaimedMessage, FeedChange, Message, Outbox, Queue, SendOutcome};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Any number, as long as every version of this program takes the same one, and no other lock does.
const MESSAGES_LOCK: i64 = 0x6d65_7373_6167_6573;

#[async_trait]
impl Outbox for PostgresStore {
    async fn publish_changes(&self, messages: Vec<FeedChange>, at: Timestamp) -> Result<usize> {
        self.number_tenants_of(&messages, at).await?;
        let messages = messages.as_slice();
        let work = move |client: Arc<Transaction>| async move {
            append_changes(&client, messages, at).await
        };
        self.transact(work).await
    }

    async fn list_changes(
        &self,
        tenant: Option<&TenantId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Message>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_changes
            SELECT m.message_no, m.id, m.destination, m.kind, t.tenant, m.payload, m.at
            FROM outbox m LEFT JOIN tenants t ON t.tenant_no = m.tenant_no
            WHERE m.queue = 'changes' AND m.message_no > $2
                AND ($1::text IS NULL
                    OR m.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1))
            ORDER BY m.message_no LIMIT $3";
        let tenant = tenant.map(TenantId::as_str);
        // No message has a number that no column can hold.
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let rows = client.query(sql, &[&tenant, &after, &write_limit(limit)]).await?;
        rows.iter().map(message).collect()
    }

    async fn claim_messages(
        &self,
        queue: Queue,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        let work = move |client: Arc<Transaction>| async move {
            claim_due(&client, queue, now, lease_until, limit).await
        };
        self.transact(work).await
    }

    async fn settle_message(
        &self,
        number: u64,
        fence: u64,
        outcome: SendOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        let outcome = &outcome;
        let work = move |client: Arc<Transaction>| async move {
            settle(&client, number, fence, outcome, at).await
        };
        self.transact(work).await
    }

    async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let work = move |client: Arc<Transaction>| async move {
            let sql = "-- prune_messages
                DELETE FROM outbox WHERE message_no IN (
                    SELECT message_no FROM outbox
                    WHERE at < $1 AND kind NOT LIKE 'dunning.%'
                    ORDER BY at, message_no LIMIT $2
                    FOR UPDATE SKIP LOCKED
                )";
            let (before, limit) = (SqlTimestamp(before), write_limit(limit));
            let removed = client.execute(sql, &[&before, &limit]).await?;
            Ok(usize::try_from(removed).unwrap_or(usize::MAX))
        };
        self.transact(work).await
    }
}

impl PostgresStore {
    /// Makes sure that the tenants of messages are there before [`append_changes`].
    pub(super) async fn number_tenants_of(
        &self,
        messages: &[FeedChange],
        at: Timestamp,
    ) -> Result<()> {
        let tenants = messages.iter().filter_map(|message| message.tenant.as_ref());
        self.number_tenants(tenants, Creation::At(at)).await
    }
}

/// Writes messages in their order, inside the caller's transaction, whose last locks these are; the
/// tenants are known. Returns how many were not written before.
pub async fn append_changes(
    client: &ClientWrapper,
    messages: &[FeedChange],
    at: Timestamp,
) -> Done<usize> {
    if messages.is_empty() {
        return Ok(0);
    }
    let sql = "-- append_changes
        SELECT pg_advisory_xact_lock($1)";
    client.run(sql, &[&MESSAGES_LOCK]).await?;
    let sql = "-- append_changes
        INSERT INTO outbox
            (id, queue, destination, kind, tenant_no, payload, at, state, attempts, due_at, fence)
        SELECT given.id, 'changes', $6, given.kind, t.tenant_no, given.payload, $5, 'waiting', 0,
            $5, 0
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
            WITH ORDINALITY AS given (id, kind, tenant, payload, place)
        LEFT JOIN tenants t ON t.tenant = given.tenant
        ORDER BY given.place
        ON CONFLICT (id) DO NOTHING";
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &each(messages, FeedChange::id),
        &each(messages, |message| message.kind),
        &each(messages, |message| message.tenant.as_ref().map(TenantId::as_str)),
        &each(messages, |message| message.payload.as_str()),
        &SqlTimestamp(at),
        &CHANGES_DESTINATION,
    ];
    let written = client.run(sql, &parameters).await?;
    Ok(usize::try_from(written).unwrap_or(usize::MAX))
}

/// Writes notices in their order, inside the transaction of their alerts' changes.
pub async fn insert_notices(
    client: &ClientWrapper,
    notices: &[NewNotice],
    at: Timestamp,
) -> Done<()> {
    if notices.is_empty() {
        return Ok(());
    }
    let alerts: Vec<i64> =
        notices.iter().map(|notice| write_count(notice.alert)).collect::<Result<_>>()?;
    let sql = "-- insert_notices
        INSERT INTO outbox
            (id, queue, destination, kind, alert_no, payload, at, state, attempts, due_at, fence)
        SELECT id, 'alerts', destination, kind, alert_no, payload, $7, 'waiting', 0, due_at, 0
        FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::timestamptz[])
            WITH ORDINALITY AS given (id, destination, kind, alert_no, payload, due_at, place)
        ORDER BY place";
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &each(notices, |notice| notice.id.as_str()),
        &each(notices, |notice| notice.destination),
        &each(notices, |notice| notice.event.name()),
        &alerts,
        &each(notices, |notice| notice.payload.as_str()),
        &each(notices, |notice| SqlTimestamp(notice.due_at)),
        &SqlTimestamp(at),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// Gives up the openings of these alerts that still wait.
pub async fn give_up_openings(
    client: &ClientWrapper,
    alerts: &[i64],
    at: Timestamp,
) -> Done<Vec<Unsent>> {
    let sql = "-- give_up_openings
        WITH unsent AS MATERIALIZED (
            SELECT message_no, alert_no, destination, attempts, leased_until FROM outbox
            WHERE alert_no = ANY ($1) AND kind = 'opened' AND state = 'waiting'
            ORDER BY message_no
            FOR UPDATE
        ), given_up AS (
            UPDATE outbox o SET state = 'given_up', settled_at = $2, leased_until = NULL,
                detail = 'the alert ended before it was sent'
            FROM unsent WHERE o.message_no = unsent.message_no
        )
        SELECT alert_no, destination, attempts, leased_until FROM unsent";
    let statement = client.prepare_cached(sql).await?;
    let mut unsent = Vec::new();
    for row in client.query(&statement, &[&alerts, &SqlTimestamp(at)]).await? {
        unsent.push(Unsent {
            alert: read_count(column(&row, 0)?)?,
            destination: column(&row, 1)?,
            attempts: read_ordinal(column(&row, 2)?)?,
            leased_until: instant_if_any(&row, 3)?,
        });
    }
    Ok(unsent)
}

/// Leases messages that are due; those that another server is claiming are passed over. Each claim
/// is an attempt: nobody knows how far a claimant came that was not heard of again.
async fn claim_due(
    client: &ClientWrapper,
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
            ORDER BY due_at, message_no
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE outbox m SET leased_until = $2, fence = m.fence + 1, attempts = m.attempts + 1
            FROM due WHERE m.message_no = due.message_no
            RETURNING m.*
        )
        SELECT c.message_no, c.id, c.destination, c.kind, t.tenant, c.payload, c.at, c.fence,
            c.attempts - 1
        FROM claimed c LEFT JOIN tenants t ON t.tenant_no = c.tenant_no
        ORDER BY c.due_at, c.message_no";
    let statement = client.prepare_cached(sql).await?;
    let (now, until, limit) = (SqlTimestamp(now), SqlTimestamp(lease_until), write_limit(limit));
    let mut claimed = Vec::new();
    for row in client.query(&statement, &[&now, &until, &limit, &queue.name()]).await? {
        claimed.push(ClaimedMessage {
            message: message(&row)?,
            fence: read_count(column(&row, 7)?)?,
            attempts: read_ordinal(column(&row, 8)?)?,
        });
    }
    Ok(claimed)
}

/// False if the fence is not current.
async fn settle(
    client: &ClientWrapper,
    number: u64,
    fence: u64,
    outcome: &SendOutcome,
    at: Timestamp,
) -> Done<bool> {
    // Numbers that no column can hold name no message and no claim.
    let (Ok(number), Ok(fence)) = (write_count(number), write_count(fence)) else {
        return Ok(false);
    };
    let (state, due_at, detail) = outcome.parts();
    let due_at = due_at.map(SqlTimestamp);
    let sql = "-- settle
        UPDATE outbox SET state = $3, due_at = COALESCE($4, due_at), detail = $5,
            leased_until = NULL,
            settled_at = CASE WHEN $3::text = 'waiting' THEN NULL ELSE $6::timestamptz END
        WHERE message_no = $1 AND fence = $2 AND state = 'waiting' AND leased_until IS NOT NULL";
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&number, &fence, &state, &due_at, &detail, &SqlTimestamp(at)];
    Ok(client.run(sql, &parameters).await? == 1)
}

/// Reads number, id, destination, kind, tenant, payload and time, from the first column on.
fn message(row: &Row) -> Result<Message> {
    let tenant: Option<String> = column(row, 4)?;
    let valid = |id: String| TenantId::parse(&id).map_err(|_| corrupt("a tenant has no valid id"));
    Ok(Message {
        number: read_count(column(row, 0)?)?,
        id: column(row, 1)?,
        destination: column(row, 2)?,
        kind: column(row, 3)?,
        tenant: tenant.map(valid).transpose()?,
        payload: column(row, 5)?,
        at: instant(row, 6)?,
    })
}
