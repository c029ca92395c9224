//! Keys in SQLite: functions on a connection that the caller owns, and a store that owns one.
//!
//! Invariant: each function is to be called inside a transaction that was begun IMMEDIATE, which
//! has the database's one write lock; what it read is then still true when it writes. An effect in
//! the same database belongs into the transaction of [`end`]: both are there afterwards, or none.

mod store;

pub use store::SqliteStore;

use crate::judge::{
    Judgement, RELEASED_KEPT, Stored, check_point, judge, new_owner, state_of, write_headers,
};
use crate::record::{
    Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError, whole_millis,
};
use rusqlite::{Connection, OptionalExtension, params};
use std::time::Duration;

/// The table `idempotency_keys`; running it again changes nothing.
pub const SCHEMA: &str = include_str!("../schema/sqlite.sql");

/// See [`crate::Store::claim`].
pub fn claim(
    connection: &Connection,
    scope: &Scope,
    fingerprint: &Fingerprint,
    lease: Duration,
    now: Millis,
) -> Result<Claimed, StoreError> {
    let Some(stored) = read(connection, scope)? else {
        return insert(connection, scope, fingerprint, lease, now);
    };
    match judge(&stored, fingerprint, now)? {
        Judgement::Free { fence } => take_over(connection, scope, stored, fence, lease, now),
        Judgement::Ended(answer) => Ok(Claimed::Ended(answer)),
        Judgement::Busy { retry_after, shortened } => {
            if let Some(until) = shortened {
                shorten(connection, scope, stored.fence, until)?;
            }
            Ok(Claimed::Busy { retry_after })
        }
        Judgement::Mismatch => Ok(Claimed::Mismatch),
    }
}

/// See [`crate::Store::renew`].
pub fn renew(
    connection: &Connection,
    claim: &Claim,
    lease: Duration,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- sqlite::renew
        UPDATE idempotency_keys SET lease_until = ?6, lease_ms = ?7
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND owner = ?5
          AND state = 'claimed'";
    let Scope { tenant, route, key } = &claim.scope;
    let until = now.after(lease).0;
    let values = params![tenant, route, key, claim.fence, claim.owner, until, whole_millis(lease)];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))
}

/// See [`crate::Store::reach`].
pub fn reach(connection: &Connection, claim: &Claim, point: &str) -> Result<(), StoreError> {
    check_point(point)?;
    let sql = "
        -- sqlite::reach
        UPDATE idempotency_keys SET recovery_point = ?6
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND owner = ?5
          AND state = 'claimed'";
    let Scope { tenant, route, key } = &claim.scope;
    let values = params![tenant, route, key, claim.fence, claim.owner, point];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))
}

/// See [`crate::Store::end`]. On an error roll the transaction back: the effect in it must not be
/// kept without its end.
pub fn end(
    connection: &Connection,
    claim: &Claim,
    answer: &Answer,
    ending: Ending,
    keep: Duration,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- sqlite::end
        UPDATE idempotency_keys
        SET state = ?6, status = ?7, headers = ?8, body = ?9, ended_at = ?10, expires_at = ?11,
            lease_until = NULL
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND owner = ?5
          AND state = 'claimed'";
    let Scope { tenant, route, key } = &claim.scope;
    let values = params![
        tenant,
        route,
        key,
        claim.fence,
        claim.owner,
        state_of(ending),
        answer.status,
        write_headers(answer)?,
        answer.body.as_ref(),
        now.0,
        now.after(keep).0
    ];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))
}

/// See [`crate::Store::release`].
pub fn release(connection: &Connection, claim: &Claim, now: Millis) -> Result<(), StoreError> {
    let sql = "
        -- sqlite::release
        UPDATE idempotency_keys
        SET state = 'released', lease_until = NULL,
            expires_at = CASE WHEN recovery_point IS NULL THEN ?6 END
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND owner = ?5
          AND state = 'claimed'";
    let Scope { tenant, route, key } = &claim.scope;
    let expires_at = now.after(RELEASED_KEPT).0;
    let values = params![tenant, route, key, claim.fence, claim.owner, expires_at];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))
}

/// See [`crate::Store::forget`]. Only the first owner can know that nothing has begun.
pub fn forget(connection: &Connection, claim: &Claim, now: Millis) -> Result<(), StoreError> {
    let sql = "
        -- sqlite::forget
        DELETE FROM idempotency_keys
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND owner = ?5
          AND state = 'claimed' AND fence = 1 AND recovery_point IS NULL";
    let Scope { tenant, route, key } = &claim.scope;
    let values = params![tenant, route, key, claim.fence, claim.owner];
    match written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values))) {
        Err(StoreError::Fenced) => release(connection, claim, now),
        done @ (Ok(()) | Err(StoreError::Unavailable(_) | StoreError::Unreadable(_))) => done,
    }
}

/// See [`crate::Store::sweep`]. The time should come from a [`crate::SweepTime`], or a clock that
/// was set forward by mistake makes everything forgotten at once.
pub fn sweep(connection: &Connection, limit: u32, now: Millis) -> Result<u32, StoreError> {
    let sql = "
        -- sqlite::sweep
        DELETE FROM idempotency_keys WHERE rowid IN (
            SELECT rowid FROM idempotency_keys
            WHERE expires_at IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
    let removed = connection
        .prepare_cached(sql)
        .and_then(|mut sql| sql.execute(params![now.0, limit]))
        .map_err(|error| failed(&error))?;
    Ok(u32::try_from(removed).unwrap_or(u32::MAX))
}

fn read(connection: &Connection, scope: &Scope) -> Result<Option<Stored>, StoreError> {
    let sql = "
        -- sqlite::read
        SELECT fingerprint, state, owner, fence, lease_until, lease_ms, recovery_point, status,
               headers, body
        FROM idempotency_keys WHERE tenant = ?1 AND route = ?2 AND key = ?3";
    let Scope { tenant, route, key } = scope;
    let read = connection.prepare_cached(sql).and_then(|mut sql| {
        sql.query_row(params![tenant, route, key], |row| {
            Ok(Stored {
                fingerprint: row.get(0)?,
                state: row.get(1)?,
                owner: row.get(2)?,
                fence: row.get(3)?,
                lease_until: row.get(4)?,
                lease_ms: row.get(5)?,
                recovery_point: row.get(6)?,
                status: row.get(7)?,
                headers: row.get(8)?,
                body: row.get(9)?,
            })
        })
        .optional()
    });
    read.map_err(|error| failed(&error))
}

fn insert(
    connection: &Connection,
    scope: &Scope,
    fingerprint: &Fingerprint,
    lease: Duration,
    now: Millis,
) -> Result<Claimed, StoreError> {
    let sql = "
        -- sqlite::insert
        INSERT INTO idempotency_keys
            (tenant, route, key, fingerprint, state, owner, fence, lease_until, lease_ms,
             created_at)
        VALUES (?1, ?2, ?3, ?4, 'claimed', ?5, 1, ?6, ?7, ?8)";
    let Scope { tenant, route, key } = scope;
    let owner = new_owner();
    let until = now.after(lease).0;
    let values =
        params![tenant, route, key, fingerprint.0, owner, until, whole_millis(lease), now.0];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))?;
    Ok(Claimed::Owned(Claim { scope: scope.clone(), owner, fence: 1, recovery_point: None }))
}

fn take_over(
    connection: &Connection,
    scope: &Scope,
    stored: Stored,
    fence: i64,
    lease: Duration,
    now: Millis,
) -> Result<Claimed, StoreError> {
    let sql = "
        -- sqlite::take_over
        UPDATE idempotency_keys
        SET state = 'claimed', owner = ?5, fence = ?6, lease_until = ?7, lease_ms = ?8,
            expires_at = NULL
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND owner = ?9
          AND state = ?10 AND lease_until IS ?11 AND recovery_point IS ?12";
    let Scope { tenant, route, key } = scope;
    let owner = new_owner();
    let until = now.after(lease).0;
    let values = params![
        tenant,
        route,
        key,
        stored.fence,
        owner,
        fence,
        until,
        whole_millis(lease),
        stored.owner,
        stored.state,
        stored.lease_until,
        stored.recovery_point
    ];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))?;
    let recovery_point = stored.recovery_point;
    Ok(Claimed::Owned(Claim { scope: scope.clone(), owner, fence, recovery_point }))
}

fn shorten(
    connection: &Connection,
    scope: &Scope,
    fence: i64,
    until: Millis,
) -> Result<(), StoreError> {
    let sql = "
        -- sqlite::shorten
        UPDATE idempotency_keys SET lease_until = ?5
        WHERE tenant = ?1 AND route = ?2 AND key = ?3 AND fence = ?4 AND state = 'claimed'";
    let Scope { tenant, route, key } = scope;
    let values = params![tenant, route, key, fence, until.0];
    written(connection.prepare_cached(sql).and_then(|mut sql| sql.execute(values)))
}

/// A write that found no row had no right to it.
fn written(rows: rusqlite::Result<usize>) -> Result<(), StoreError> {
    match rows.map_err(|error| failed(&error))? {
        0 => Err(StoreError::Fenced),
        _ => Ok(()),
    }
}

fn failed(error: &rusqlite::Error) -> StoreError {
    let unreadable = matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
    );
    let message = error.to_string();
    if unreadable { StoreError::Unreadable(message) } else { StoreError::Unavailable(message) }
}
