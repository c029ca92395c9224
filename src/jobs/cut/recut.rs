//! Recuts: windows that are cut again on request, though no event came.
//!
//! A request names a tenant and a range of time. All windows in it that were cut before are cut
//! again, also while they are open; those that were not are cut now if they are no longer open,
//! however old they are, and otherwise with the ordinary pass. A request that is expedited, because
//! a subscription changed, also cuts windows that are open, and those that settle before it.
//!
//! Invariant: a request is removed after all of its windows are cut. If one cannot be cut for what
//! is stored of it, the request stays and is tried again after a while, and an alert names the
//! tenant (`failures`). A crash leaves the request, and its windows are looked at again.

use super::failures::Cause;
use super::{Billed, CutJob, Keeper, Pass, Recorded};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Catalog;
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::rules::window_life::WindowState;
use crate::store;
use crate::store::push::{CutOrder, Recut};
use std::collections::BTreeMap;

/// How long a request that failed waits.
const AGAIN_AFTER: Span = Span::from_minutes(1);

/// Why windows of a meter could not be cut, by tenant.
type Failed = BTreeMap<MeterNo, BTreeMap<TenantId, String>>;

impl CutJob {
    /// Does what was requested; false if the lease was lost.
    pub(super) async fn cut_again(
        &self,
        keeper: &mut Keeper<'_>,
        catalog: &Catalog,
        mut recuts: Vec<Recut>,
        now: Timestamp,
        done: &mut Pass,
    ) -> store::Result<bool> {
        let waits = |at: &Timestamp| *at <= now && now < AGAIN_AFTER.after(*at);
        recuts.retain(|recut| !self.memory().failed_recuts.get(&recut.number).is_some_and(waits));
        if recuts.is_empty() {
            return Ok(true);
        }
        let mut failed = Failed::new();
        for recut in recuts {
            let cut = self.cut_request(keeper, catalog, &recut, now, done).await?;
            let Some((of_recut, left_over)) = cut else { return Ok(false) };
            if left_over {
                // The request stays, and the next pass goes on.
                continue;
            }
            if of_recut.is_empty() {
                self.memory().failed_recuts.remove(&recut.number);
                if !self.store.finish_recut(keeper.lease(), recut.number).await? {
                    keeper.warn_of_loss();
                    return Ok(false);
                }
                continue;
            }
            self.memory().failed_recuts.insert(recut.number, now);
            for (meter, error) in of_recut {
                failed.entry(meter).or_default().insert(recut.tenant.clone(), error);
            }
        }
        let mut memory = self.memory();
        for (number, _) in catalog.billed() {
            let of_meter = failed.remove(&number).unwrap_or_default();
            memory.failures.replace(Cause::Recut, number, of_meter);
        }
        Ok(true)
    }

    /// Cuts the windows of one request; the meters that failed and whether windows are left over,
    /// or none if the lease was lost.
    async fn cut_request(
        &self,
        keeper: &mut Keeper<'_>,
        catalog: &Catalog,
        recut: &Recut,
        now: Timestamp,
        done: &mut Pass,
    ) -> store::Result<Option<(BTreeMap<MeterNo, String>, bool)>> {
        let (mut failed, mut left_over) = (BTreeMap::new(), false);
        for (number, meter) in catalog.billed() {
            let Some(billing) = meter.spec.billing.as_ref() else { continue };
            let billed = Billed { number, meter: meter.as_ref(), billing, mark: None };
            let orders = match self.order_recut(&billed, recut, now).await {
                Ok(orders) => orders,
                Err(error) if error.is_of_data() => {
                    failed.insert(number, error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.record(keeper, orders, done).await? {
                Recorded::LeaseLost => return Ok(None),
                Recorded::AllBut { failed: some, left_over: rest } => {
                    failed.extend(some.first().map(|(_, error)| (number, error.to_string())));
                    left_over |= rest;
                }
            }
        }
        Ok(Some((failed, left_over)))
    }

    /// The windows of a request that were cut before, or would have been by now.
    async fn order_recut(
        &self,
        billed: &Billed<'_>,
        recut: &Recut,
        now: Timestamp,
    ) -> store::Result<Vec<CutOrder>> {
        let Billed { number, meter, billing, .. } = *billed;
        let mut range = recut.range;
        if recut.expedited {
            range.start = meter.spec.cut_every.before(meter.spec.settle_after.before(range.start));
        }
        let found = self.find_windows(billed, &recut.tenant, range).await?;
        let due = found.into_iter().filter(|(window, counts)| {
            let closed = meter.window_life().state(window.end, now) != WindowState::Open;
            window.start >= billing.start() && (counts.cut.is_some() || closed || recut.expedited)
        });
        let order = |(window, _)| CutOrder {
            tenant: recut.tenant.clone(),
            meter: number,
            window,
            recut: true,
        };
        Ok(due.map(order).collect())
    }
}
