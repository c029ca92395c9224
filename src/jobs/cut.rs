//! The cut: hands the totals of windows that are no longer open to billing, and again whenever
//! late events have changed them.
//!
//! A pass looks at the tenants that have received anything since the meter's mark, and a little
//! longer; reads their totals and their last cuts; and orders a cut of each window whose number of
//! events differs. The store reads the totals again inside its transaction, so what was read here
//! only chooses. The mark says that all that was received before it lies in windows that were no
//! longer open when they were cut; it moves when all orders of a walk over the tenants are done.
//!
//! Invariant: every window that has changed since its last cut and is no longer open is cut by the
//! next walk. One holder of the lease walks at a time, and a window that has not changed is not
//! cut again; so any number of servers, started at any time, cut each change once. A window that
//! cannot be cut for what is stored of it fails alone: the others are cut, the mark stays, and an
//! alert names the tenant (`failures`).
//!
//! The lease is renewed by time while tenants are walked over (`keeper`). A walk that has lost the
//! lease, or has met a failing store, goes on from where it was broken off (`walk`).
//!
//! What a decision or a timeline changed of windows is cut again on request (`recut`).
//!
//! A draft of an invoice expedites its tenant's windows (`flush`), in a task and under a lease of
//! its own.
//!
//! A crash leaves windows cut or not, each as a whole, and the mark where it was: the next pass
//! looks at the same tenants again.

mod failures;
mod flush;
mod recut;
mod walk;

pub use failures::{CutFailure, read_failures};

use super::keeper::{Keeper, LeaseTerms};
use super::{Context, Job, Stop, repeat, sure_time};
use crate::clock::Clock;
use crate::config::Config;
use crate::faults::crash_point;
use crate::rules::billing::{Billing, Granularity, Mode};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::span::Span;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::FUTURE_MICROS_MAX;
use crate::rules::window::Window;
use crate::rules::window_life::WindowState;
use crate::store::push::{CutOrder, CutTerms};
use crate::store::{self, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use walk::{Memory, Walk};

const LEASE: &str = "cut";
const DRAIN_LEASE: &str = "cut.drain";
/// Windows that one transaction cuts.
const ORDERS_MAX: usize = 200;
/// Requests to cut windows again that one pass looks at.
const RECUTS_MAX: usize = 100;
/// Events of one window that one transaction turns into pushes.
const EVENTS_MAX: usize = 1_000;
/// Calls after which unfinished windows are left to the next pass: their events come faster than
/// they are cut, and others wait.
const ROUNDS_MAX: usize = 200;
/// How much longer than needed a pass looks back: for servers whose clocks differ, and for events
/// that were received before the last pass and committed after it.
const MARGIN: Span = Span::from_hours(2);

pub struct CutJob {
    store: Arc<dyn Store>,
    clock: Clock,
    config: Arc<Config>,
    holder: String,
    /// Significant digits that the provider holds.
    digits_max: u32,
    memory: Mutex<Memory>,
    flushes: Mutex<flush::Flushes>,
}

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    pub windows: usize,
    pub pushes: u64,
}

/// A meter that is billed.
struct Billed<'a> {
    number: MeterNo,
    meter: &'a Meter,
    billing: &'a Billing,
    /// What was received before it needs no look any more.
    mark: Option<Timestamp>,
}

impl Job for CutJob {
    const NAME: &'static str = "cut";
    /// How often to look whether a meter is due.
    const PAUSE: Duration = Duration::from_secs(1);
    type Done = Pass;
    type Error = store::Error;

    /// Runs passes and flushes. Neither waits for the other: a long pass does not delay drafts, and
    /// a draft that cannot be read does not stop passes.
    async fn run(&self, stop: Stop) {
        let flushes = flush::Flush(self);
        tokio::join!(repeat(self, stop.clone()), repeat(&flushes, stop));
    }

    /// Cuts what is due, unless another server is at it.
    async fn pass(&self) -> store::Result<Pass> {
        let Some(now) = sure_time(&self.clock, "cut") else { return Ok(Pass::default()) };
        let (catalog, marks) = (self.store.load_catalog().await?, self.marks().await?);
        let meters = catalog.billed();
        let mut due: Vec<Billed<'_>> = meters
            .iter()
            .filter_map(|(number, meter)| {
                let (number, billing) = (*number, meter.spec.billing.as_ref()?);
                let mark = marks.get(&number).copied();
                let due = self.memory().is_due(number, meter, now);
                due.then_some(Billed { number, meter: meter.as_ref(), billing, mark })
            })
            .collect();
        let mut done = Pass::default();
        // Those that wait after a failure do not keep others out.
        let waiting = self.memory().failed_recuts.len();
        let recuts = self.store.list_recuts(RECUTS_MAX.saturating_add(waiting)).await?;
        if due.is_empty() && recuts.is_empty() {
            return Ok(done);
        }
        // A meter whose last pass was broken off does not keep the others from theirs.
        due.sort_by_key(|billed| self.memory().tried_at.get(&billed.number).copied());
        let Some(mut keeper) = self.claim(LEASE).await? else { return Ok(done) };
        if !self.cut_again(&mut keeper, &catalog, recuts, now, &mut done).await? {
            return Ok(done);
        }
        for billed in due {
            self.memory().tried_at.insert(billed.number, now);
            if !self.cut_meter(&mut keeper, &billed, now, &mut done).await? {
                break;
            }
        }
        self.show_failures(&catalog).await?;
        keeper.release().await?;
        metrics::counter!("counterfoil_cut_pushes_total").increment(done.pushes);
        if done.windows > 0 {
            let Pass { windows, pushes } = done;
            tracing::debug!(windows, pushes, "cut {windows} windows, {pushes} pushes");
        }
        Ok(done)
    }
}

impl CutJob {
    pub fn new(context: &Context, digits_max: u32) -> Self {
        let Context { store, clock, config, holder, .. } = context.clone();
        let (memory, flushes) = (Mutex::default(), Mutex::default());
        Self { store, clock, config, holder, digits_max, memory, flushes }
    }

    /// Cuts all of a tenant's windows that end by `border`, also those that have not settled;
    /// false if another server is cutting, or a window could not be cut.
    pub async fn cut_until(&self, tenant: &TenantId, border: Timestamp) -> store::Result<bool> {
        let Some(now) = sure_time(&self.clock, "cut") else { return Ok(false) };
        let horizon = Span::from_hours(self.config.ingest.accept_horizon_hours);
        let range = Window { start: horizon.before(border), end: border };
        let catalog = self.store.load_catalog().await?;
        let orders = self.order_expedited(&catalog, tenant, (range, true), now).await?;
        if orders.is_empty() {
            return Ok(true);
        }
        let Some(mut keeper) = self.claim(DRAIN_LEASE).await? else { return Ok(false) };
        let mut done = Pass::default();
        let (failed, left_over) = match self.record(&mut keeper, orders, &mut done).await? {
            Recorded::LeaseLost => return Ok(false),
            Recorded::AllBut { failed, left_over } => (failed, left_over),
        };
        keeper.release().await?;
        match failed.into_iter().next() {
            None => Ok(!left_over),
            Some((_, error)) => Err(error),
        }
    }

    /// Windows of a period that have changed, although they have not settled; with those that hold
    /// its end and are not over, if `with_open`.
    async fn order_expedited(
        &self,
        catalog: &Catalog,
        tenant: &TenantId,
        (period, with_open): (Window, bool),
        now: Timestamp,
    ) -> store::Result<Vec<CutOrder>> {
        let mut orders = Vec::new();
        for (number, meter) in catalog.billed() {
            let Some(billing) = meter.spec.billing.as_ref() else { continue };
            let billed = Billed { number, meter: meter.as_ref(), billing, mark: None };
            let inside = period.end.saturating_add_micros(-1);
            let last = billing.window_around(inside, meter.spec.bucket);
            let range = Window { start: period.start, end: last.end };
            let seek = Seek { range, now, closed_until: Some((period.end, with_open)) };
            orders.extend(self.find_changed(&billed, tenant, seek).await?);
        }
        Ok(orders)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder panics")
    }

    async fn marks(&self) -> store::Result<BTreeMap<MeterNo, Timestamp>> {
        Ok(self.store.read_cut_marks().await?.into_iter().collect())
    }

    async fn claim(&self, name: &'static str) -> store::Result<Option<Keeper<'_>>> {
        let span_micros = i64::from(self.config.push.lease_ms) * 1_000;
        let terms = LeaseTerms { name, holder: &self.holder, span_micros };
        Keeper::claim(&*self.store, &self.clock, terms).await
    }

    /// Walks over the meter's tenants, from where the last walk was broken off; false if the lease
    /// was lost.
    async fn cut_meter(
        &self,
        keeper: &mut Keeper<'_>,
        billed: &Billed<'_>,
        now: Timestamp,
        done: &mut Pass,
    ) -> store::Result<bool> {
        let broken_off = self.memory().walks.remove(&billed.number);
        let mut walk = broken_off.unwrap_or_else(|| Walk::starting(now));
        let ended = match self.walk(keeper, billed, &mut walk, now, done).await {
            Ok(true) => self.end_walk(keeper, billed, &walk).await,
            broken_off => broken_off,
        };
        let mut memory = self.memory();
        match ended {
            Ok(true) => memory.end_walk(billed.number, walk),
            Ok(false) | Err(_) => drop(memory.walks.insert(billed.number, walk)),
        }
        ended
    }

    /// Cuts what has changed of each tenant; false if the lease was lost, or windows are left over.
    async fn walk(
        &self,
        keeper: &mut Keeper<'_>,
        billed: &Billed<'_>,
        walk: &mut Walk,
        now: Timestamp,
        done: &mut Pass,
    ) -> store::Result<bool> {
        let reach = self.reach(billed, now);
        let seek = Seek { range: reach.windows, now, closed_until: None };
        let mut tenants = self.tenants_since(reach.received_since, now).await?;
        tenants.retain(|tenant| walk.after.as_ref().is_none_or(|after| tenant > after));
        let (mut orders, last) = (Vec::new(), tenants.last().cloned());
        for tenant in tenants {
            match self.find_changed(billed, &tenant, seek).await {
                Ok(changed) => orders.extend(changed),
                Err(error) if error.is_of_data() => walk.fail(&tenant, &error),
                Err(error) => return Err(error),
            }
            if orders.len() >= ORDERS_MAX || last.as_ref() == Some(&tenant) {
                let batch = std::mem::take(&mut orders);
                match self.record(keeper, batch, done).await? {
                    Recorded::LeaseLost => return Ok(false),
                    Recorded::AllBut { failed, left_over } => {
                        failed.iter().for_each(|(tenant, error)| walk.fail(tenant, error));
                        if left_over {
                            // The next pass goes on with these tenants, and the mark stays.
                            return Ok(false);
                        }
                    }
                }
                walk.after = Some(tenant);
            } else if !keeper.keep().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the mark to where the walk's beginning allows; false if the lease was lost. The mark
    /// stays where it is if some tenant's windows could not be cut: they must be looked at again.
    async fn end_walk(
        &self,
        keeper: &mut Keeper<'_>,
        billed: &Billed<'_>,
        walk: &Walk,
    ) -> store::Result<bool> {
        crash_point("cut.before_mark");
        if !walk.failed.is_empty() {
            return keeper.keep().await;
        }
        let next_mark = self.reach(billed, walk.began_at).next_mark;
        let mark = next_mark.max(billed.mark.unwrap_or(next_mark));
        let recorded = self.store.record_cut_mark(keeper.lease(), billed.number, mark).await?;
        if !recorded {
            keeper.warn_of_loss();
        }
        Ok(recorded)
    }

    /// How far back a pass must look, and what the next one need not look at.
    fn reach(&self, billed: &Billed<'_>, now: Timestamp) -> Lookback {
        let around = billed.billing.window_around(now, billed.meter.spec.bucket);
        let window_micros = around.end.micros() - around.start.micros();
        let horizon = Span::from_hours(self.config.ingest.accept_horizon_hours);
        let start = billed.billing.start();
        let received_since = MARGIN.before(billed.mark.unwrap_or(start));
        // An event may lie a little ahead of its receipt, and its window ends after it.
        let ahead_micros = FUTURE_MICROS_MAX + window_micros;
        let settled = billed.meter.spec.settle_after.before(now);
        let next_mark = settled.saturating_add_micros(-ahead_micros);
        let oldest = horizon.before(received_since).saturating_add_micros(-window_micros);
        let windows = Window { start: oldest.max(start), end: around.end };
        Lookback { received_since, windows, next_mark }
    }

    /// Tenants of which anything was counted since then.
    async fn tenants_since(
        &self,
        since: Timestamp,
        now: Timestamp,
    ) -> store::Result<BTreeSet<TenantId>> {
        let hour = since.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR;
        let range =
            Window { start: Timestamp::from_micros(hour), end: Span::from_hours(1).after(now) };
        let counters = self.store.read_counters(range).await?;
        let counted = counters.into_iter().filter(|row| row.tally.accepted > 0);
        Ok(counted.filter_map(|row| row.tenant).collect())
    }

    /// Windows that hold another number of events than at their last cut.
    async fn find_changed(
        &self,
        billed: &Billed<'_>,
        tenant: &TenantId,
        Seek { range, now, closed_until }: Seek,
    ) -> store::Result<Vec<CutOrder>> {
        let Billed { number, meter, billing, .. } = *billed;
        let found = self.find_windows(billed, tenant, range).await?;
        let changed = found.into_iter().filter(|(window, Counts { now: count, cut })| {
            let billed_by_now = window.start >= billing.start()
                && (billing.granularity == Granularity::Event
                    || closed_until
                        .is_some_and(|until| is_expedited(billing, *window, until, now))
                    || meter.window_life().state(window.end, now) != WindowState::Open);
            billed_by_now && *cut != Some(*count)
        });
        let order =
            |(window, _)| CutOrder { tenant: tenant.clone(), meter: number, window, recut: false };
        Ok(changed.map(order).collect())
    }

    /// A tenant's windows that overlap a range and hold events, and their numbers of events.
    async fn find_windows(
        &self,
        billed: &Billed<'_>,
        tenant: &TenantId,
        range: Window,
    ) -> store::Result<Vec<(Window, Counts)>> {
        let Billed { number, meter, billing, .. } = *billed;
        // A day's first hours may lie before the range; the window is cut as a whole.
        let whole = billing.window_around(range.start, meter.spec.bucket);
        let range = Window { start: whole.start, ..range };
        let rows = self.store.read_usage(tenant, number, range, usize::MAX).await?;
        let mut counts: BTreeMap<Timestamp, (Window, u64)> = BTreeMap::new();
        for row in rows {
            let window = billing.window_around(row.bucket_start, meter.spec.bucket);
            counts.entry(window.start).or_insert((window, 0)).1 += row.rollup.count;
        }
        if counts.is_empty() {
            return Ok(Vec::new());
        }
        let cuts = self.store.read_cuts(tenant, number, range).await?;
        let cut: BTreeMap<Timestamp, u64> =
            cuts.into_iter().map(|(start, state)| (start, state.count)).collect();
        let found = counts.into_values().map(|(window, now)| {
            let cut = cut.get(&window.start).copied();
            (window, Counts { now, cut })
        });
        Ok(found.collect())
    }

    /// Cuts the windows. A window that cannot be cut for what is stored of it is found by halving
    /// its batch, and left out.
    async fn record(
        &self,
        keeper: &mut Keeper<'_>,
        orders: Vec<CutOrder>,
        done: &mut Pass,
    ) -> store::Result<Recorded> {
        done.windows += orders.len();
        let mut batches: Vec<Vec<CutOrder>> =
            orders.chunks(ORDERS_MAX).map(<[CutOrder]>::to_vec).rev().collect();
        let (mut failed, mut left_over, mut rounds) = (Vec::new(), false, 0);
        while let Some(mut batch) = batches.pop() {
            let terms = CutTerms {
                at: self.clock.now(),
                shadow: self.config.provider.is_shadow(),
                digits_max: self.digits_max,
                events_max: EVENTS_MAX,
                draw_order: self.config.credits.order,
                outside: self.config.billing.outside,
            };
            crash_point("cut.before");
            let report = match self.store.record_cuts(keeper.lease(), batch.clone(), terms).await {
                Ok(report) => report,
                Err(error) if error.is_of_data() => {
                    let rest = batch.split_off(batch.len() / 2);
                    match (batch.is_empty(), rest) {
                        (true, rest) => {
                            failed.extend(rest.into_iter().map(|o| (o.tenant, error.clone())))
                        }
                        (false, rest) => batches.extend([rest, batch]),
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            crash_point("cut.after");
            if report.lease_lost {
                keeper.warn_of_loss();
                return Ok(Recorded::LeaseLost);
            }
            if !keeper.keep().await? {
                return Ok(Recorded::LeaseLost);
            }
            done.pushes += report.pushes;
            if report.unfinished.is_empty() {
                continue;
            }
            rounds += 1;
            if rounds < ROUNDS_MAX {
                batches.push(report.unfinished);
            } else {
                left_over = true;
            }
        }
        Ok(Recorded::AllBut { failed, left_over })
    }
}

/// The outcome of orders.
enum Recorded {
    /// Another server has taken the lease; what was recorded before stays.
    LeaseLost,
    /// All are recorded but those of tenants that failed, and, if some are left over, windows into
    /// which events come faster than they are cut.
    AllBut { failed: Vec<(TenantId, store::Error)>, left_over: bool },
}

/// How many events a window has, and had at its last cut.
struct Counts {
    now: u64,
    /// None before the first.
    cut: Option<u64>,
}

/// Which windows are looked for.
#[derive(Clone, Copy)]
struct Seek {
    range: Window,
    now: Timestamp,
    /// Windows that are invoiced with the period that ends then are cut although they have not
    /// settled, and if the flag says so although they are not over.
    closed_until: Option<(Timestamp, bool)>,
}

/// Whether some of a window may be on the invoice of a period that ends at `border`. One that is
/// billed by its total is not divided, so its total must be there.
fn is_expedited(
    billing: &Billing,
    window: Window,
    (border, with_open): (Timestamp, bool),
    now: Timestamp,
) -> bool {
    let divided = with_open && billing.mode == Mode::Delta;
    window.end <= border || (window.start < border && (divided || window.end <= now))
}

struct Lookback {
    /// Only tenants that received anything since then are looked at.
    received_since: Timestamp,
    /// And only these windows.
    windows: Window,
    /// All that was received before it lies in windows that are not open now.
    next_mark: Timestamp,
}
