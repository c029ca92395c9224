//! Holds: tenants whose later pushes wait while a saga changes what they are charged by; and the
//! earlier pushes that the saga waits for.
//!
//! Invariant: one for each saga, put by the current claimant of one that has not ended; a push
//! that a hold keeps back is claimed by nobody (`claim_pushes` looks). A crash leaves all of a call
//! or nothing, and every call may be repeated: the first hold of a saga remains, and one that is
//! gone stays gone.

use super::push_history::{collect_windows, decode_window};
use super::{Done, Row, Session, values};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::push::stamp_inside;
use crate::rules::timestamp::Timestamp;
use crate::store::push::SubmittedWindow;

/// Whether the hold of the saga is there; false if its claim is not current or it has ended.
pub fn put_hold(
    session: &dyn Session,
    (saga, fence): (u64, u64),
    from: Timestamp,
    at: Timestamp,
) -> Done<bool> {
    let sql = "-- put_hold
        SELECT id, tenant_no FROM sagas
        WHERE saga_no = $1 AND fence = $2 AND state IN ('running', 'compensating')
        FOR UPDATE";
    let found = session.read_optional(sql, values![saga, fence], |row| {
        Ok((row.get::<String>("sagas.id")?, row.get::<TenantNo>("sagas.tenant_no")?))
    })?;
    let Some((id, tenant)) = found else { return Ok(false) };
    let sql = "-- put_hold
        INSERT INTO holds (saga, tenant_no, held_from, created_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (saga) DO NOTHING";
    session.run(sql, values![id, tenant, from, at])?;
    Ok(true)
}

/// Pushes that the saga's hold keeps back, and that nobody has tried to send, are not stamped
/// before `first`.
pub fn stamp_held(session: &dyn Session, saga: &str, first: Timestamp) -> Done<()> {
    let sql = "-- stamp_held
        SELECT DISTINCT window_start, window_end
        FROM pushes JOIN holds ON holds.tenant_no = pushes.tenant_no
        WHERE saga = $1 AND window_start >= held_from AND state = 'observed' AND attempts = 0
            AND stamped_at < $2
        ORDER BY window_start, window_end";
    let windows = session.read_all(sql, values![saga, first], decode_window)?;
    for window in windows {
        let sql = "-- stamp_held
            UPDATE pushes SET stamped_at = $2
            FROM holds
            WHERE saga = $1 AND pushes.tenant_no = holds.tenant_no
                AND window_start = $4 AND window_end = $5 AND state = 'observed'
                AND attempts = 0 AND stamped_at < $3";
        let stamp = stamp_inside(window, first);
        session.run(sql, values![saga, stamp, first, window.start, window.end])?;
    }
    Ok(())
}

/// Whether there was one.
pub fn release_hold(session: &dyn Session, saga: &str) -> Done<bool> {
    let sql = "-- release_hold\nDELETE FROM holds WHERE saga = $1";
    Ok(session.run(sql, values![saga])? == 1)
}

/// Pushes that the provider has not taken yet; dead ones wait for an operator.
pub fn count_pushes_before(
    session: &dyn Session,
    tenant: &TenantId,
    before: Timestamp,
) -> Done<u64> {
    let sql = "-- count_pushes_before
        SELECT COUNT(*) AS unsent FROM pushes
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND state IN ('observed', 'waiting') AND window_start < $2 AND NOT shadow";
    session.read_one(sql, values![tenant, before], Row::only)
}

/// Windows of one tenant with submitted pushes, the oldest first; one for each customer that it
/// was sent for, as each has a summary of its own.
pub fn list_unconfirmed_before(
    session: &dyn Session,
    tenant: &TenantId,
    before: Timestamp,
    limit: usize,
) -> Done<Vec<SubmittedWindow>> {
    let sql = "-- list_unconfirmed_before
        WITH due AS (
            SELECT pushes.tenant_no, meter_no, window_start, tenant,
                COALESCE(pushes.customer, tenants.customer) AS customer,
                MIN(push_no) AS first_no
            FROM tenants JOIN pushes ON pushes.tenant_no = tenants.tenant_no
            WHERE tenant = $1 AND state = 'submitted' AND window_start < $2 AND NOT shadow
            GROUP BY 1, 2, 3, 4, 5
            ORDER BY window_start, meter_no LIMIT $3
        )
        SELECT first_no, tenant, due.customer, due.meter_no, due.window_start, window_end, mode,
            push_no, quantity, value, state, state_at
        FROM due JOIN pushes ON pushes.tenant_no = due.tenant_no
            AND pushes.meter_no = due.meter_no AND pushes.window_start = due.window_start
        WHERE state IN ('submitted', 'confirmed', 'reconciled')
            AND COALESCE(pushes.customer, due.customer) = due.customer
        ORDER BY due.window_start, due.meter_no, first_no, revision";
    collect_windows(&session.rows(sql, values![tenant, before, limit])?)
}
