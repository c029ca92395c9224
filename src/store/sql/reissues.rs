//! What reconciliation does to pushes: it sends again what the provider lacks, and closes what is
//! equal.
//!
//! Invariant: a reissue is a pair of revisions that cancel out, written with the window's new
//! revision in one transaction; so the sum of a window's pushes never changes here. Pushes are
//! locked first, in the order of their numbers, then the window's row in `cuts`, without which no
//! push of the window can be added. A reissue is judged under both locks, so it is written only
//! if the window is still as it was judged.
//!
//! A crash leaves all of a call or nothing. A reissue that is repeated because its outcome was
//! lost finds its own push on its way, and is refused.

use super::cut_rows::{States, WindowKey, lock_states, write_revisions};
use super::failure::Failure;
use super::summaries::find_summary;
use super::{Done, Row, Session, values};
use crate::rules::fault::Fault;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::push::{CutState, StoredPush};
use crate::rules::reissue::{ReissueOrder, Reissuing, plan_reissuing};
use crate::rules::settlement::{Change, plan_closing};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{Ruling, TransitionLine};
use std::collections::BTreeSet;

pub fn record_reissue(
    session: &dyn Session,
    secret: &[u8; 32],
    order: &ReissueOrder,
    at: Timestamp,
) -> Done<(Ruling, Vec<TransitionLine>)> {
    let nothing = |ruling| Ok((ruling, Vec::new()));
    let Some(tenant) = session.find_tenant(&order.tenant)? else {
        return nothing(Ruling::NotFound);
    };
    let key = WindowKey { tenant_no: tenant, meter: order.meter, start: order.window.start };
    let (pushes, Some(state)) = lock_window(session, key)? else {
        return nothing(Ruling::NotFound);
    };
    let whose = (&order.tenant, &order.customer);
    let summary = find_summary(session, whose, order.meter, order.window)?;
    let Reissuing { state, pushes } =
        match plan_reissuing(order, &state, &pushes, summary.as_ref())? {
            Ok(plan) => plan,
            Err(refusal) => return nothing(Ruling::Refused(refusal)),
        };
    write_revisions(session, &States::from([(key, state)]))?;
    let lines = session.insert_pushes(secret, &pushes, at)?;
    Ok((Ruling::Done(lines.last().map(|line| line.push)), lines))
}

/// Locks all pushes of a window and its state; the pushes, oldest revision first. Nothing can be
/// added to the window from here on.
pub fn lock_window(
    session: &dyn Session,
    key: WindowKey,
) -> Done<(Vec<StoredPush>, Option<CutState>)> {
    let locked = list_window(session, key)?;
    session.lock_pushes(&locked)?;
    let state = lock_states(session, &BTreeSet::from([key]))?.remove(&key);
    // One that was added between the two locks is not locked.
    let numbers = list_window(session, key)?;
    if numbers != locked {
        return Err(Failure::Again("a push was added to the window".into()));
    }
    let mut pushes = session.read_pushes(&numbers)?;
    pushes.sort_by_key(|found| found.push.revision);
    Ok((pushes, state))
}

/// The numbers of the window's pushes, in their order.
fn list_window(session: &dyn Session, key: WindowKey) -> Done<Vec<u64>> {
    let sql = "-- list_window
        SELECT push_no FROM pushes /*+ INDEXED BY pushes_by_window */
        WHERE tenant_no = $1 AND meter_no = $2 AND window_start = $3
        ORDER BY push_no";
    session.read_all(sql, &key.values(), Row::only)
}

/// Closes confirmed pushes of windows that start in `range`.
pub fn close_pushes(
    session: &dyn Session,
    tenant: &TenantId,
    meter: MeterNo,
    range: Window,
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    let sql = "-- close_pushes
        SELECT push_no FROM pushes /*+ INDEXED BY pushes_by_window */
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND window_start >= $3 AND window_start < $4
            AND state = 'confirmed'
        ORDER BY push_no FOR UPDATE";
    let asked = values![tenant, meter, range.start, range.end];
    let numbers: Vec<u64> = session.read_all(sql, asked, Row::only)?;
    let confirmed = session.read_pushes(&numbers)?;
    let changes = confirmed.iter().map(|found| plan_closing(found, at));
    let changes: Vec<Change> = changes.collect::<Result<_, Fault>>()?;
    session.change_pushes(&changes, at)
}
