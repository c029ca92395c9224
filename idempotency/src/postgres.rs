//! Keys in PostgreSQL: functions on a connection or transaction that the caller owns, and a store
//! that owns a pool.
//!
//! Invariant: correct under READ COMMITTED, which is PostgreSQL's default. Every write names the
//! fence it has seen and looks at the number of rows it changed. No function provokes an error to
//! find something out, since an error would spoil the caller's transaction. Under REPEATABLE READ
//! or SERIALIZABLE a race ends in an error, and the caller has to run its transaction again.

mod store;

pub use store::PostgresStore;

use crate::judge::{
    Judgement, RELEASED_KEPT, Stored, check_point, judge, new_owner, state_of, write_headers,
};
use crate::record::{
    Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError, whole_millis,
};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

/// The table `idempotency_keys`; running it again changes nothing.
pub const SCHEMA: &str = include_str!("../schema/postgres.sql");

/// How often a claim looks again because others changed the record under its eyes.
const CLAIM_TRIES: u32 = 32;

/// See [`crate::Store::claim`]. Outside a transaction it is durable when it returns; inside one,
/// nobody else can claim the key before that ends.
pub async fn claim(
    client: &(impl GenericClient + Sync),
    scope: &Scope,
    fingerprint: &Fingerprint,
    lease: Duration,
    now: Millis,
) -> Result<Claimed, StoreError> {
    for _ in 0..CLAIM_TRIES {
        if let Some(claim) = insert(client, scope, fingerprint, lease, now).await? {
            return Ok(Claimed::Owned(claim));
        }
        // Between the two statements a sweep may have removed the record.
        let Some(stored) = read(client, scope).await? else { continue };
        match judge(&stored, fingerprint, now)? {
            Judgement::Free { fence } => {
                if let Some(claim) = take_over(client, scope, stored, fence, lease, now).await? {
                    return Ok(Claimed::Owned(claim));
                }
            }
            Judgement::Ended(answer) => return Ok(Claimed::Ended(answer)),
            Judgement::Busy { retry_after, shortened } => {
                if let Some(until) = shortened {
                    shorten(client, scope, &stored, until).await?;
                }
                return Ok(Claimed::Busy { retry_after });
            }
            Judgement::Mismatch => return Ok(Claimed::Mismatch),
        }
    }
    Err(StoreError::Unavailable(format!("the record changed {CLAIM_TRIES} times meanwhile")))
}

/// See [`crate::Store::renew`].
pub async fn renew(
    client: &(impl GenericClient + Sync),
    claim: &Claim,
    lease: Duration,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- postgres::renew
        UPDATE idempotency_keys SET lease_until = $6, lease_ms = $7
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND owner = $5
          AND state = 'claimed'";
    let (until, lease_ms) = (now.after(lease).0, whole_millis(lease));
    update(client, sql, claim, &[(&until, Type::INT8), (&lease_ms, Type::INT8)]).await
}

/// See [`crate::Store::reach`].
pub async fn reach(
    client: &(impl GenericClient + Sync),
    claim: &Claim,
    point: &str,
) -> Result<(), StoreError> {
    check_point(point)?;
    let sql = "
        -- postgres::reach
        UPDATE idempotency_keys SET recovery_point = $6
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND owner = $5
          AND state = 'claimed'";
    update(client, sql, claim, &[(&point, Type::TEXT)]).await
}

/// See [`crate::Store::end`]. On an error roll the transaction back: the effect in it must not be
/// kept without its end.
pub async fn end(
    client: &(impl GenericClient + Sync),
    claim: &Claim,
    answer: &Answer,
    ending: Ending,
    keep: Duration,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- postgres::end
        UPDATE idempotency_keys
        SET state = $6, status = $7, headers = $8, body = $9, ended_at = $10, expires_at = $11,
            lease_until = NULL
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND owner = $5
          AND state = 'claimed'";
    let (state, status) = (state_of(ending), i64::from(answer.status));
    let (headers, body) = (write_headers(answer)?, answer.body.as_ref());
    let values: [(&(dyn ToSql + Sync), Type); 6] = [
        (&state, Type::TEXT),
        (&status, Type::INT8),
        (&headers, Type::TEXT),
        (&body, Type::BYTEA),
        (&now.0, Type::INT8),
        (&now.after(keep).0, Type::INT8),
    ];
    update(client, sql, claim, &values).await
}

/// See [`crate::Store::release`].
pub async fn release(
    client: &(impl GenericClient + Sync),
    claim: &Claim,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- postgres::release
        UPDATE idempotency_keys
        SET state = 'released', lease_until = NULL,
            expires_at = CASE WHEN recovery_point IS NULL THEN $6::bigint END
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND owner = $5
          AND state = 'claimed'";
    let expires_at = now.after(RELEASED_KEPT).0;
    update(client, sql, claim, &[(&expires_at, Type::INT8)]).await
}

/// See [`crate::Store::forget`]. Only the first owner can know that nothing has begun.
pub async fn forget(
    client: &(impl GenericClient + Sync),
    claim: &Claim,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- postgres::forget
        DELETE FROM idempotency_keys
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND owner = $5
          AND state = 'claimed' AND fence = 1 AND recovery_point IS NULL";
    match update(client, sql, claim, &[]).await {
        Err(StoreError::Fenced) => release(client, claim, now).await,
        done @ (Ok(()) | Err(StoreError::Unavailable(_) | StoreError::Unreadable(_))) => done,
    }
}

/// See [`crate::Store::sweep`]. The time should come from a [`crate::SweepTime`], or a clock that
/// was set forward by mistake makes everything forgotten at once.
pub async fn sweep(
    client: &(impl GenericClient + Sync),
    limit: u32,
    now: Millis,
) -> Result<u32, StoreError> {
    // The rows are locked as they are chosen and looked at again once they are, so that one which
    // was claimed meanwhile stays.
    let sql = "
        -- postgres::sweep
        WITH due AS (
            SELECT tenant, route, key FROM idempotency_keys
            WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
        DELETE FROM idempotency_keys AS kept USING due
        WHERE kept.tenant = due.tenant AND kept.route = due.route AND kept.key = due.key";
    let removed =
        client.execute_typed(sql, &[(&now.0, Type::INT8), (&i64::from(limit), Type::INT8)]).await;
    let removed = removed.map_err(|error| unavailable(&error))?;
    Ok(u32::try_from(removed).unwrap_or(u32::MAX))
}

/// Writes a record that is still the claim's: its statement names the claim as $1 to $5, and what
/// is written from $6 on.
async fn update(
    client: &(impl GenericClient + Sync),
    sql: &str,
    claim: &Claim,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<(), StoreError> {
    let Scope { tenant, route, key } = &claim.scope;
    let owner = claim.owner.as_slice();
    let mut all: Vec<(&(dyn ToSql + Sync), Type)> = vec![
        (tenant, Type::TEXT),
        (route, Type::TEXT),
        (key, Type::TEXT),
        (&claim.fence, Type::INT8),
        (&owner, Type::BYTEA),
    ];
    all.extend(values.iter().cloned());
    written(client.execute_typed(sql, &all).await)
}

/// None if there is a record. Waits for the end of a transaction that is making one.
async fn insert(
    client: &(impl GenericClient + Sync),
    scope: &Scope,
    fingerprint: &Fingerprint,
    lease: Duration,
    now: Millis,
) -> Result<Option<Claim>, StoreError> {
    let sql = "
        -- postgres::insert
        INSERT INTO idempotency_keys
            (tenant, route, key, fingerprint, state, owner, fence, lease_until, lease_ms,
             created_at)
        VALUES ($1, $2, $3, $4, 'claimed', $5, 1, $6, $7, $8)
        ON CONFLICT (tenant, route, key) DO NOTHING";
    let Scope { tenant, route, key } = scope;
    let owner = new_owner();
    let (fingerprint, owner_bytes) = (fingerprint.0.as_slice(), owner.as_slice());
    let (until, lease_ms) = (now.after(lease).0, whole_millis(lease));
    let rows = client
        .execute_typed(
            sql,
            &[
                (tenant, Type::TEXT),
                (route, Type::TEXT),
                (key, Type::TEXT),
                (&fingerprint, Type::BYTEA),
                (&owner_bytes, Type::BYTEA),
                (&until, Type::INT8),
                (&lease_ms, Type::INT8),
                (&now.0, Type::INT8),
            ],
        )
        .await;
    let inserted = rows.map_err(|error| unavailable(&error))? == 1;
    let claim = || Claim { scope: scope.clone(), owner, fence: 1, recovery_point: None };
    Ok(inserted.then(claim))
}

async fn read(
    client: &(impl GenericClient + Sync),
    scope: &Scope,
) -> Result<Option<Stored>, StoreError> {
    let sql = "
        -- postgres::read
        SELECT fingerprint, state, owner, fence, lease_until, lease_ms, recovery_point, status,
               headers, body
        FROM idempotency_keys WHERE tenant = $1 AND route = $2 AND key = $3";
    let Scope { tenant, route, key } = scope;
    let row = client
        .query_typed_opt(sql, &[(tenant, Type::TEXT), (route, Type::TEXT), (key, Type::TEXT)])
        .await;
    let row = row.map_err(|error| unavailable(&error))?;
    let read = row.as_ref().map(stored).transpose();
    read.map_err(|error| StoreError::Unreadable(error.to_string()))
}

fn stored(row: &Row) -> Result<Stored, tokio_postgres::Error> {
    Ok(Stored {
        fingerprint: row.try_get(0)?,
        state: row.try_get(1)?,
        owner: row.try_get(2)?,
        fence: row.try_get(3)?,
        lease_until: row.try_get(4)?,
        lease_ms: row.try_get(5)?,
        recovery_point: row.try_get(6)?,
        status: row.try_get(7)?,
        headers: row.try_get(8)?,
        body: row.try_get(9)?,
    })
}

/// None if the record is not any more as it was read: another took it, or its owner lives.
async fn take_over(
    client: &(impl GenericClient + Sync),
    scope: &Scope,
    stored: Stored,
    fence: i64,
    lease: Duration,
    now: Millis,
) -> Result<Option<Claim>, StoreError> {
    let sql = "
        -- postgres::take_over
        UPDATE idempotency_keys
        SET state = 'claimed', owner = $5, fence = $6, lease_until = $7, lease_ms = $8,
            expires_at = NULL
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND owner = $9
          AND state = $10 AND lease_until IS NOT DISTINCT FROM $11
          AND recovery_point IS NOT DISTINCT FROM $12";
    let Scope { tenant, route, key } = scope;
    let owner = new_owner();
    let owner_bytes = owner.as_slice();
    let (until, lease_ms) = (now.after(lease).0, whole_millis(lease));
    let rows = client
        .execute_typed(
            sql,
            &[
                (tenant, Type::TEXT),
                (route, Type::TEXT),
                (key, Type::TEXT),
                (&stored.fence, Type::INT8),
                (&owner_bytes, Type::BYTEA),
                (&fence, Type::INT8),
                (&until, Type::INT8),
                (&lease_ms, Type::INT8),
                (&stored.owner, Type::BYTEA),
                (&stored.state, Type::TEXT),
                (&stored.lease_until, Type::INT8),
                (&stored.recovery_point, Type::TEXT),
            ],
        )
        .await;
    let taken = rows.map_err(|error| unavailable(&error))? == 1;
    let recovery_point = stored.recovery_point;
    let claim = || Claim { scope: scope.clone(), owner, fence, recovery_point };
    Ok(taken.then(claim))
}

/// If the lease has changed meanwhile, its owner lives and there is nothing to shorten.
async fn shorten(
    client: &(impl GenericClient + Sync),
    scope: &Scope,
    stored: &Stored,
    until: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- postgres::shorten
        UPDATE idempotency_keys SET lease_until = $6
        WHERE tenant = $1 AND route = $2 AND key = $3 AND fence = $4 AND lease_until = $5";
    let Scope { tenant, route, key } = scope;
    let rows = client
        .execute_typed(
            sql,
            &[
                (tenant, Type::TEXT),
                (route, Type::TEXT),
                (key, Type::TEXT),
                (&stored.fence, Type::INT8),
                (&stored.lease_until, Type::INT8),
                (&until.0, Type::INT8),
            ],
        )
        .await;
    rows.map(|_| ()).map_err(|error| unavailable(&error))
}

/// A write that found no row had no right to it.
fn written(rows: Result<u64, tokio_postgres::Error>) -> Result<(), StoreError> {
    match rows.map_err(|error| unavailable(&error))? {
        0 => Err(StoreError::Fenced),
        _ => Ok(()),
    }
}

fn unavailable(error: &tokio_postgres::Error) -> StoreError {
    // The library's own text is only "db error"; the server's is below it.
    let message = match error.as_db_error() {
        Some(server) => format!("{} ({})", server.message(), server.code().code()),
        None => error.to_string(),
    };
    StoreError::Unavailable(message)
}
