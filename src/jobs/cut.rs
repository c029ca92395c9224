//! The cut: hands the totals of windows that are no longer open to billing, and again whenever late
//! events have changed them.
//!
//! A pass looks at the tenants that have received anything since the meter's mark, and a little
//! longer; reads their totals and their last cuts; and orders a cut of each window whose number of
//! events differs. The store reads the totals again inside its transaction, so what was read here
//! only chooses. The mark says that all that was received before it lies in windows that were no
//! longer open when they were cut; it moves when all orders of a pass are done.
//!
//! Invariant: every window that has changed since its last cut and is no longer open is cut by the
//! next pass. One holder of the lease passes at a time, and a window that has not changed is not
//! cut again; so any number of servers, started at any time, cut each change once.
//!
//! A draft of an invoice hurries its tenant's windows (`flush`).
//!
//! A crash leaves windows cut or not, each as a whole, and the mark where it was: the next pass
//! looks at the same tenants again.

mod flush;

use super::{Stop, repeat};
use crate::clock::Clock;
use crate::config::{Config, Shadow};
use crate::faults::crash_point;
use crate::provider::Provider;
use crate::rules::billing::{Billing, Granularity};
use crate::rules::credit::DrawOrder;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Meter;
use crate::rules::span::Span;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::FUTURE_MICROS_MAX;
use crate::rules::window::Window;
use crate::rules::window_life::WindowState;
use crate::store::push::{CutOrder, CutTerms, Lease};
use crate::store::{self, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEASE: &str = "cut";
/// How often to look whether a meter is due.
const PAUSE: Duration = Duration::from_secs(1);
/// Windows that one transaction cuts.
const ORDERS_MAX: usize = 200;
/// Events of one window that one transaction turns into pushes.
const EVENTS_MAX: usize = 1_000;
/// How much longer than needed a pass looks back: for servers whose clocks differ, and for events
/// that were received before the last pass and committed after it.
const MARGIN: Span = Span::from_hours(2);

pub struct Cutter {
    store: Arc<dyn Store>,
    clock: Clock,
    settings: CutSettings,
    /// When this process last passed over each meter.
    passed_at: Mutex<BTreeMap<MeterNo, Timestamp>>,
    flushes: Mutex<flush::Flushes>,
}

#[derive(Debug, Clone)]
pub struct CutSettings {
    /// Names this process among all that share the store.
    pub holder: String,
    pub accept_horizon_hours: u32,
    pub shadow: bool,
    pub digits_max: u32,
    /// Which credits are drawn on first.
    pub draw_order: DrawOrder,
    /// A holder that was not heard of for so long has lost the lease.
    pub lease_ms: u32,
}

impl CutSettings {
    /// As the settings of the server have it, for the provider that totals go to.
    pub fn of(config: &Config, provider: &dyn Provider, holder: String) -> Self {
        Self {
            holder,
            accept_horizon_hours: config.ingest.accept_horizon_hours,
            shadow: config.provider.shadow != Shadow::Off,
            digits_max: provider.limits().digits_max,
            draw_order: config.credits.order,
            lease_ms: config.push.lease_ms,
        }
    }
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

impl Cutter {
    pub fn new(store: Arc<dyn Store>, clock: Clock, settings: CutSettings) -> Self {
        Self { store, clock, settings, passed_at: Mutex::default(), flushes: Mutex::default() }
    }

    pub async fn run(self, stop: Stop) {
        repeat("cut", PAUSE, stop, || async {
            self.flush().await?;
            self.pass().await.map(drop)
        })
        .await;
    }

    /// Cuts what is due, unless another server is at it.
    pub async fn pass(&self) -> store::Result<Pass> {
        let now = self.clock.now();
        let (catalog, marks) = (self.store.load_catalog().await?, self.marks().await?);
        let meters = catalog.billed();
        let due: Vec<Billed<'_>> = meters
            .iter()
            .filter_map(|(number, meter)| {
                let (number, billing) = (*number, meter.spec.billing.as_ref()?);
                let mark = marks.get(&number).copied();
                let due = self.is_due(number, meter, now);
                due.then_some(Billed { number, meter: meter.as_ref(), billing, mark })
            })
            .collect();
        let mut done = Pass::default();
        if due.is_empty() {
            return Ok(done);
        }
        let Some(lease) = self.claim().await? else { return Ok(done) };
        for billed in due {
            let Some(one) = self.cut_meter(&lease, &billed, now).await? else { break };
            done.windows += one.windows;
            done.pushes += one.pushes;
        }
        self.store.release_lease(&lease).await?;
        metrics::counter!("counterfoil_cut_pushes_total").increment(done.pushes);
        if done.windows > 0 {
            let Pass { windows, pushes } = done;
            tracing::debug!(windows, pushes, "cut {windows} windows, {pushes} pushes");
        }
        Ok(done)
    }

    /// Cuts all of a tenant's windows that end by `border`, also those that have not settled; false
    /// if another server is cutting.
    pub async fn cut_until(&self, tenant: &TenantId, border: Timestamp) -> store::Result<bool> {
        let now = self.clock.now();
        let horizon = Span::from_hours(self.settings.accept_horizon_hours);
        let range = Window { start: horizon.before(border), end: border };
        let orders = self.order_hurried(tenant, range, now).await?;
        if orders.is_empty() {
            return Ok(true);
        }
        let Some(lease) = self.claim().await? else { return Ok(false) };
        let mut windows = 0;
        for batch in orders.chunks(ORDERS_MAX) {
            if self.record(&lease, batch.to_vec(), &mut windows).await?.is_none() {
                return Ok(false);
            }
        }
        self.store.release_lease(&lease).await?;
        Ok(true)
    }

    /// Windows of a period that have changed, although they are open.
    async fn order_hurried(
        &self,
        tenant: &TenantId,
        period: Window,
        now: Timestamp,
    ) -> store::Result<Vec<CutOrder>> {
        let catalog = self.store.load_catalog().await?;
        let mut orders = Vec::new();
        for (number, meter) in catalog.billed() {
            let Some(billing) = meter.spec.billing.as_ref() else { continue };
            let billed = Billed { number, meter: meter.as_ref(), billing, mark: None };
            let inside = period.end.saturating_add_micros(-1);
            let last = billing.window_around(inside, meter.spec.bucket);
            let range = Window { start: period.start, end: last.end };
            let seek = Seek { range, now, closed_until: Some(period.end) };
            orders.extend(self.find_changed(&billed, tenant, seek).await?);
        }
        Ok(orders)
    }

    fn is_due(&self, number: MeterNo, meter: &Meter, now: Timestamp) -> bool {
        let passed_at = self.passed_at.lock().expect("no holder panics").get(&number).copied();
        passed_at.is_none_or(|at| meter.spec.cut_every.after(at) <= now)
    }

    async fn marks(&self) -> store::Result<BTreeMap<MeterNo, Timestamp>> {
        Ok(self.store.read_cut_marks().await?.into_iter().collect())
    }

    async fn claim(&self) -> store::Result<Option<Lease>> {
        let now = self.clock.now();
        let until = now.saturating_add_micros(i64::from(self.settings.lease_ms) * 1_000);
        self.store.claim_lease(LEASE, &self.settings.holder, now, until).await
    }

    /// None if the lease was lost.
    async fn cut_meter(
        &self,
        lease: &Lease,
        billed: &Billed<'_>,
        now: Timestamp,
    ) -> store::Result<Option<Pass>> {
        let mut done = Pass::default();
        let mut orders = Vec::new();
        let reach = self.reach(billed, now);
        for tenant in self.tenants_since(reach.received_since, now).await? {
            let seek = Seek { range: reach.windows, now, closed_until: None };
            orders.extend(self.find_changed(billed, &tenant, seek).await?);
            while orders.len() >= ORDERS_MAX {
                let rest = orders.split_off(ORDERS_MAX);
                let batch = std::mem::replace(&mut orders, rest);
                let Some(pushes) = self.record(lease, batch, &mut done.windows).await? else {
                    return Ok(None);
                };
                done.pushes += pushes;
            }
        }
        let Some(pushes) = self.record(lease, orders, &mut done.windows).await? else {
            return Ok(None);
        };
        done.pushes += pushes;
        crash_point("cut.before_mark");
        let mark = reach.next_mark.max(billed.mark.unwrap_or(reach.next_mark));
        if !self.store.record_cut_mark(lease, billed.number, mark).await? {
            return Ok(None);
        }
        self.passed_at.lock().expect("no holder panics").insert(billed.number, now);
        Ok(Some(done))
    }

    /// How far back a pass must look, and what the next one need not look at.
    fn reach(&self, billed: &Billed<'_>, now: Timestamp) -> Reach {
        let around = billed.billing.window_around(now, billed.meter.spec.bucket);
        let window_micros = around.end.micros() - around.start.micros();
        let horizon = Span::from_hours(self.settings.accept_horizon_hours);
        let start = billed.billing.start();
        let received_since = MARGIN.before(billed.mark.unwrap_or(start));
        // An event may lie a little ahead of its receipt, and its window ends after it.
        let ahead_micros = FUTURE_MICROS_MAX + window_micros;
        let settled = billed.meter.spec.settle_after.before(now);
        let next_mark = settled.saturating_add_micros(-ahead_micros);
        let oldest = horizon.before(received_since).saturating_add_micros(-window_micros);
        let windows = Window { start: oldest.max(start), end: around.end };
        Reach { received_since, windows, next_mark }
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
        // A day's first hours may lie before the range; the window is cut as a whole.
        let whole = billing.window_around(range.start, meter.spec.bucket);
        let range = Window { start: whole.start, ..range };
        let rows = self.store.read_usage(tenant, number, range).await?;
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
        let changed = counts.into_values().filter(|(window, count)| {
            let billed_by_now = window.start >= billing.start()
                && (billing.granularity == Granularity::Event
                    || closed_until.is_some_and(|border| is_hurried(*window, border, now))
                    || meter.window_life().state(window.end, now) != WindowState::Open);
            billed_by_now && cut.get(&window.start) != Some(count)
        });
        let order = |(window, _)| CutOrder { tenant: tenant.clone(), meter: number, window };
        Ok(changed.map(order).collect())
    }

    /// Cuts the windows; the number of pushes, or none if the lease was lost.
    async fn record(
        &self,
        lease: &Lease,
        mut orders: Vec<CutOrder>,
        windows: &mut usize,
    ) -> store::Result<Option<u64>> {
        let mut pushes = 0;
        *windows += orders.len();
        while !orders.is_empty() {
            let terms = CutTerms {
                at: self.clock.now(),
                shadow: self.settings.shadow,
                digits_max: self.settings.digits_max,
                events_max: EVENTS_MAX,
                draw_order: self.settings.draw_order,
            };
            crash_point("cut.before");
            let report = self.store.record_cuts(lease, orders, terms).await?;
            crash_point("cut.after");
            if report.lease_lost || self.claim().await?.as_ref() != Some(lease) {
                return Ok(None);
            }
            pushes += report.pushes;
            orders = report.unfinished;
        }
        Ok(Some(pushes))
    }
}

/// Which windows are looked for.
#[derive(Clone, Copy)]
struct Seek {
    range: Window,
    now: Timestamp,
    /// Windows that are invoiced with the period that ends then are cut although they are open.
    closed_until: Option<Timestamp>,
}

/// Whether a window is on the invoice of a period that ends at `border`, and has ended itself. A
/// window that holds the border is where its stamp is.
fn is_hurried(window: Window, border: Timestamp, now: Timestamp) -> bool {
    window.end <= border || (window.middle() < border && window.end <= now)
}

struct Reach {
    /// Only tenants that received anything since then are looked at.
    received_since: Timestamp,
    /// And only these windows.
    windows: Window,
    /// All that was received before it lies in windows that are not open now.
    next_mark: Timestamp,
}
