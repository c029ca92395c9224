//! What reconciliation does to pushes: it sends again what the provider lost, and closes days.
//!
//! Invariant: as in `settlements`, pushes are locked first, in the order of their numbers, then the
//! window's row in `cuts`, without which no push of the window can be added. A correction is judged
//! under both locks, so it is written only if the window is still as it was judged.
//!
//! A crash leaves all of a call or nothing. A correction that is repeated because its outcome was
//! lost finds its own push on its way, and is refused.

use super::PostgresStore;
use super::cuts::{States, WindowKey, lock_states, write_revisions};
use super::declarations::Creation;
use super::epochs::secret_now;
use super::failure::Failure;
use super::push_rows::{change_pushes, insert_pushes, lock_pushes, log_lines, read_pushes};
use super::scalars::{SqlTimestamp, column, meter_number, tenant_number};
use super::statements::Statements;
use super::summaries::find_summary;
use super::transaction::{Done, Transaction};
use crate::rules::correction::{Correcting, CorrectionOrder, plan_correcting};
use crate::rules::fault::Fault;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::push::StoredPush;
use crate::rules::settlement::plan_closing;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{Ruling, TransitionLine};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
use std::sync::Arc;

impl PostgresStore {
    pub(super) async fn correct(&self, order: &CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        self.number_tenants(std::iter::once(&order.tenant), Creation::Never).await?;
        let Some(tenant_no) = self.tenant_no(&order.tenant) else { return Ok(Ruling::NotFound) };
        let window = WindowKey { tenant_no, meter: order.meter, start: order.window.start };
        let work = move |client: Arc<Transaction>| async move {
            let secret = secret_now(&client, &self.push_secret).await?;
            correct_window(&client, &secret, (window, order), at).await
        };
        let (ruling, lines) = self.transact(work).await?;
        log_lines(&lines);
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
            let changes = confirmed.iter().map(|found| plan_closing(found, at));
            let changes: Vec<_> = changes.collect::<std::result::Result<_, Fault>>()?;
            change_pushes(&client, &changes, at).await
        };
        let lines = self.transact(work).await?;
        log_lines(&lines);
        Ok(u64::try_from(lines.len()).expect("a length fits 64 bits"))
    }
}

/// Everything but the COMMIT.
async fn correct_window(
    client: &ClientWrapper,
    secret: &[u8; 32],
    (window, order): (WindowKey, &CorrectionOrder),
    at: Timestamp,
) -> Done<(Ruling, Vec<TransitionLine>)> {
    let (pushes, mut states) = lock_window(client, window).await?;
    let Some(state) = states.get_mut(&window) else {
        return Ok((Ruling::NotFound, Vec::new()));
    };
    let whose = (&order.tenant, &order.customer);
    let summary = find_summary(client, whose, order.meter, order.window).await?;
    let Correcting { state: after, pushes } =
        match plan_correcting(order, state, &pushes, summary.as_ref())? {
            Ok(plan) => plan,
            Err(refusal) => return Ok((Ruling::Refused(refusal), Vec::new())),
        };
    *state = after;
    write_revisions(client, &states).await?;
    let lines = insert_pushes(client, secret, &pushes, at).await?;
    let again = lines.last().map(|line| line.push);
    Ok((Ruling::Done(again), lines))
}

/// Locks all pushes of a window and its state; the pushes, oldest revision first. Nothing can be
/// added to the window from here on.
pub async fn lock_window(
    client: &ClientWrapper,
    window: WindowKey,
) -> Done<(Vec<StoredPush>, States)> {
    let locked = list_window(client, window).await?;
    lock_pushes(client, &locked).await?;
    let states = lock_states(client, &BTreeSet::from([window])).await?;
    // One that was added between the two locks is not locked.
    let numbers = list_window(client, window).await?;
    if numbers != locked {
        return Err(Failure::Again("a push was added to the window".into()));
    }
    let mut pushes = read_pushes(client, &numbers).await?;
    pushes.sort_by_key(|found| found.push.revision);
    Ok((pushes, states))
}

/// The numbers of the window's pushes, in their order.
pub async fn list_window(client: &ClientWrapper, window: WindowKey) -> Done<Vec<i64>> {
    let sql = "-- list_window
        SELECT push_no FROM pushes
        WHERE tenant_no = $1 AND meter_no = $2 AND window_start = $3
        ORDER BY push_no";
    let (meter, start) = (meter_number(window.meter), SqlTimestamp(window.start));
    let rows = client.read_all(sql, &[&tenant_number(window.tenant_no), &meter, &start]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
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
    let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
    let rows =
        client.read_all(sql, &[&tenant.as_str(), &meter_number(meter), &start, &end]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}
