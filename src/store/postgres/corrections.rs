//! What reconciliation does to pushes: it sends again what the provider lost, and closes days.
//!
//! Invariant: as in `settlements`, pushes are locked first, in the order of their numbers, then the
//! window's row in `cuts`, without which no push of the window can be added. A correction is judged
//! under both locks, so it is written only if the window is still as it was judged.
//!
//! A crash leaves all of a call or nothing. A correction that is repeated because its outcome was
//! lost finds its own push on its way, and is refused.

use super::PostgresStore;
use super::cuts::{WindowKey, lock_states};
use super::declarations::Creation;
use super::epochs::secret_now;
use super::failure::Failure;
use super::push_rows::{
    Change, NewPush, StoredPush, insert_pushes, key_of, lock_pushes, log_changes, read_pushes,
};
use super::scalars::{SqlTimestamp, column, corrupt, meter_number, tenant_number};
use super::settlements::{Words, apply, turn, write_revisions};
use super::summaries::find_summary;
use super::transaction::{Done, Transaction};
use crate::rules::delivery::{Class, PushState};
use crate::rules::drift::{WindowPush, judge_correction};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::push::{Correction, PlannedPush, plan_correction};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{Push, Ruling};
use crate::store::reconciliation::CorrectionOrder;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What the history says of a push that is closed; the push keeps the words it has.
const CLOSED: Words<'static> = Words { class: Class::Reconciled, request_id: None, detail: None };

impl PostgresStore {
    pub(super) async fn correct(&self, order: &CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        self.number_tenants(std::iter::once(&order.tenant), Creation::Never).await?;
        let Some(tenant) = self.tenant_no(&order.tenant) else { return Ok(Ruling::NotFound) };
        let (tenant_no, meter, start) = (tenant_number(tenant), order.meter, order.window.start);
        let window = WindowKey { tenant_no, meter, start };
        let work = move |client: Arc<Transaction>| async move {
            let secret = secret_now(&client, &self.push_secret).await?;
            correct_window(&client, &secret, (window, order), at).await
        };
        let (ruling, changes) = self.transact(work).await?;
        log_changes(changes);
        Ok(ruling)
    }

    pub(super) async fn close_windows(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        let work = move |client: Arc<Transaction>| async move {
            let numbers = lock_confirmed(&client, tenant, meter, range).await?;
            let confirmed = read_pushes(&client, &numbers).await?;
            let mut turns = Vec::with_capacity(confirmed.len());
            for found in &confirmed {
                let reconciled = (PushState::Reconciled, Class::Reconciled);
                turns.push((turn(found, reconciled, found.push.detail.clone()), Some(CLOSED)));
            }
            apply(&client, &turns, at).await
        };
        let changes = self.transact(work).await?;
        let closed = u64::try_from(changes.len()).expect("a length fits 64 bits");
        log_changes(changes);
        Ok(closed)
    }
}

/// Everything but the COMMIT.
async fn correct_window(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (window, order): (WindowKey, &CorrectionOrder),
    at: Timestamp,
) -> Done<(Ruling, Vec<Change>)> {
    let locked = list_window(client, window).await?;
    lock_pushes(client, &locked).await?;
    let mut states = lock_states(client, &BTreeSet::from([window])).await?;
    let Some(state) = states.get_mut(&window) else {
        return Ok((Ruling::NotFound, Vec::new()));
    };
    // From here on none can be added; one that was added between the two locks is not locked.
    let numbers = list_window(client, window).await?;
    if numbers != locked {
        return Err(Failure::Again("a push was added to the window".into()));
    }
    let mut pushes = read_pushes(client, &numbers).await?;
    pushes.sort_by_key(|found| found.push.revision);
    if let Err(refusal) = judge(client, &pushes, order).await? {
        return Ok((Ruling::Refused(refusal), Vec::new()));
    }
    let last = pushes.last().ok_or_else(|| corrupt("a window was told and has no pushes"))?;
    let plan = plan_correction(state, (order.settled, order.provider), last.push.mode)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    let Correction { state: next, lost, again } = plan;
    *state = next;
    write_revisions(client, &states).await?;
    let lost = NewPush {
        customer: Some(order.customer.clone()),
        state: PushState::Reconciled,
        class: Class::Lost,
        ..new_push(secret, last, lost, order.pass)
    };
    let again = new_push(secret, last, again, order.pass);
    let changes = insert_pushes(client, &[lost, again], at).await?;
    let again = changes.last().map(|change| change.push);
    Ok((Ruling::Done(again), changes))
}

/// Whether the window may be corrected, by its pushes and its customer's total as they are now.
async fn judge(
    client: &ClientWrapper,
    pushes: &[StoredPush],
    order: &CorrectionOrder,
) -> Done<std::result::Result<(), &'static str>> {
    let whose = (&order.tenant, &order.customer);
    let summary = find_summary(client, whose, order.meter, order.window).await?;
    let seen: Vec<WindowPush> = pushes.iter().map(|found| window_push(&found.push)).collect();
    let halves = (order.settled, order.provider);
    Ok(judge_correction(&seen, &order.customer, halves, summary.as_ref()))
}

/// The numbers of the window's pushes, in their order.
pub async fn list_window(client: &ClientWrapper, window: WindowKey) -> Done<Vec<i64>> {
    let sql = "-- list_window
        SELECT push_no FROM pushes
        WHERE tenant_no = $1 AND meter_no = $2 AND window_start = $3
        ORDER BY push_no";
    let statement = client.prepare_cached(sql).await?;
    let (meter, start) = (meter_number(window.meter), SqlTimestamp(window.start));
    let rows = client.query(&statement, &[&window.tenant_no, &meter, &start]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}

pub fn window_push(push: &Push) -> WindowPush {
    WindowPush {
        number: push.number,
        window: push.window,
        revision: push.revision,
        shadow: push.shadow,
        mode: push.mode,
        quantity: push.quantity,
        value: push.value,
        stamped_at: push.stamped_at,
        state: push.state,
        class: push.class,
        customer: push.customer.clone(),
        attempts: push.attempts,
        state_at: push.state_at,
    }
}

/// A push that sends again what was lost; it lies where the window's last push does.
fn new_push(secret: &[u8; 32], last: &StoredPush, planned: PlannedPush, pass: u64) -> NewPush {
    let push = &last.push;
    NewPush {
        tenant_no: last.tenant_no,
        tenant: push.tenant.clone(),
        meter: push.meter,
        window: push.window,
        shadow: push.shadow,
        mode: push.mode,
        key: key_of(secret, (&push.tenant, &last.slug), push.window, &planned),
        planned,
        stamped_at: push.stamped_at,
        subscriptions: push.subscriptions.clone(),
        event: None,
        detail: Some(format!("found by pass {pass}")),
        customer: None,
        state: PushState::Observed,
        class: Class::Correction,
    }
}

/// Locks the confirmed pushes of the windows.
async fn lock_confirmed(
    client: &ClientWrapper,
    tenant: &TenantId,
    meter: MeterNo,
    range: Window,
) -> Done<Vec<i64>> {
    let sql = "-- lock_confirmed
        SELECT push_no FROM pushes
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND window_start >= $3 AND window_start < $4
            AND state = 'confirmed'
        ORDER BY push_no FOR UPDATE";
    let statement = client.prepare_cached(sql).await?;
    let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
    let rows =
        client.query(&statement, &[&tenant.as_str(), &meter_number(meter), &start, &end]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}
