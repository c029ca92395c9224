//! Holds: tenants whose later pushes wait while a saga changes what they are charged by.
//!
//! Invariant: one for each saga, put by the current claimant of one that has not ended; a push
//! that a hold keeps back is claimed by nobody (`pushes::claim_due` looks). A crash leaves all of
//! a call or nothing, and every call may be repeated: the first hold of a saga remains, and one
//! that is gone stays gone.

use super::scalars::{SqlTimestamp, column, read_count, write_count};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use deadpool_postgres::ClientWrapper;

/// Whether the hold of the saga is there; false if its claim is not current or it has ended.
pub async fn put_hold(
    client: &ClientWrapper,
    (saga, fence): (u64, u64),
    from: Timestamp,
    at: Timestamp,
) -> Done<bool> {
    let sql = "-- put_hold
        SELECT id, tenant_no FROM sagas
        WHERE saga_no = $1 AND fence = $2 AND state IN ('running', 'compensating')
        FOR UPDATE";
    let found = client.query_opt(sql, &[&write_count(saga)?, &write_count(fence)?]).await?;
    let Some(row) = found else { return Ok(false) };
    let (id, tenant_no): (String, i32) = (column(&row, 0)?, column(&row, 1)?);
    let sql = "-- put_hold
        INSERT INTO holds (saga, tenant_no, held_from, created_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (saga) DO NOTHING";
    client.execute(sql, &[&id, &tenant_no, &SqlTimestamp(from), &SqlTimestamp(at)]).await?;
    Ok(true)
}

/// Pushes that the saga's hold keeps back, and that nobody has tried to send, are not stamped
/// before `first`.
pub async fn stamp_held(client: &ClientWrapper, saga: &str, first: Timestamp) -> Done<()> {
    let sql = "-- stamp_held
        UPDATE pushes p SET stamped_at = LEAST($1, p.window_end - interval '1 second')
        FROM holds h
        WHERE h.saga = $2 AND p.tenant_no = h.tenant_no AND p.window_start >= h.held_from
            AND p.state = 'observed' AND p.attempts = 0 AND p.stamped_at < $1";
    client.execute(sql, &[&SqlTimestamp(first), &saga]).await?;
    Ok(())
}

/// Whether there was one.
pub async fn release(client: &ClientWrapper, saga: &str) -> Done<bool> {
    let sql = "-- release
        DELETE FROM holds WHERE saga = $1";
    Ok(client.execute(sql, &[&saga]).await? == 1)
}

/// Pushes that the provider has not taken yet; dead ones wait for a person and not for it.
pub async fn count_pushes_before(
    client: &ClientWrapper,
    tenant: &TenantId,
    before: Timestamp,
) -> Result<u64> {
    let sql = "-- count_pushes_before
        SELECT count(*) FROM pushes
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND state IN ('observed', 'waiting') AND window_start < $2 AND NOT shadow";
    let row = client.read_one(sql, &[&tenant.as_str(), &SqlTimestamp(before)]).await?;
    read_count(column(&row, 0)?)
}
