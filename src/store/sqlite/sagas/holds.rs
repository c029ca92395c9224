//! Holds: tenants whose later pushes wait while a plan changes.
//!
//! Invariant: a saga has one hold at most, and it stays as it was first written; only the current
//! claimant of a saga that has not ended puts one. `claim_pushes` leaves out what a hold keeps
//! back. A crash leaves a hold in place; its saga releases it.

use super::super::statements::Statements;
use crate::rules::ids::TenantNo;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use rusqlite::{Connection, params};

/// Whether the hold of the saga is there; false if its claim is not current or it has ended.
pub fn put_hold(
    connection: &Connection,
    (saga, fence): (u64, u64),
    (from, at): (Timestamp, Timestamp),
) -> Result<bool> {
    connection.run(
        "-- put_hold
         INSERT INTO holds (saga, tenant_no, held_from, created_at)
         SELECT id, tenant_no, ?, ? FROM sagas
         WHERE saga_no = ? AND fence = ? AND state IN ('running', 'compensating')
         ON CONFLICT DO NOTHING",
        params![from.micros(), at.micros(), saga, fence],
    )?;
    connection.read_one(
        "-- put_hold
         SELECT EXISTS (
             SELECT 1 FROM holds JOIN sagas ON sagas.id = holds.saga
             WHERE saga_no = ? AND fence = ? AND state IN ('running', 'compensating')
         )",
        params![saga, fence],
        |row| Ok(row.get(0)?),
    )
}

/// Pushes that the saga's hold keeps back, and that nobody has tried to send, are not stamped
/// before `first`.
pub fn stamp_held(connection: &Connection, saga: &str, first: Timestamp) -> Result<()> {
    connection.run(
        "-- stamp_held
         UPDATE pushes SET stamped_at = MIN(?1, window_end - 1000000)
         FROM holds
         WHERE holds.saga = ?2 AND pushes.tenant_no = holds.tenant_no
             AND window_start >= holds.held_from AND state = 'observed' AND attempts = 0
             AND stamped_at < ?1",
        params![first.micros(), saga],
    )?;
    Ok(())
}

pub fn release_hold(connection: &Connection, saga: &str) -> Result<bool> {
    let released = connection.run("-- release_hold\nDELETE FROM holds WHERE saga = ?", [saga])?;
    Ok(released == 1)
}

/// Pushes that the provider has not taken yet, with or without attempts.
pub fn count_pushes_before(
    connection: &Connection,
    tenant: TenantNo,
    before: Timestamp,
) -> Result<u64> {
    connection.read_one(
        "-- count_pushes_before
         SELECT COUNT(*) FROM pushes
         WHERE tenant_no = ? AND state IN ('observed', 'waiting') AND NOT shadow
             AND window_start < ?",
        params![tenant.0, before.micros()],
        |row| Ok(row.get(0)?),
    )
}
