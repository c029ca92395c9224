//! Changes that are written in the transaction of what they tell; see `sql/outbox.rs`.

use super::push_rows::each;
use super::scalars::SqlTimestamp;
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::change::CHANGES_DESTINATION;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;
use crate::store::outbox::FeedChange;
pub use crate::store::sql::MESSAGES_LOCK;
use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::ToSql;

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
