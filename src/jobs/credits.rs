//! Credits beside the cut: what is left of them right now, and the end of those that have expired.
//!
//! Invariant: a balance counts usage that no cut has seen yet as the next cut would, by the same
//! rule and from the same totals; it changes nothing, and it never promises more than is there. A
//! grant is taken away only once no usage from before its expiry can come any more and all that
//! came is cut. A crash leaves a grant expired or not, as a whole.

use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::faults::{crash_point, planted};
use crate::rules::billing::Granularity;
use crate::rules::credit::covering::{CoverOrder, bound_draws, in_order, plan_covering};
use crate::rules::credit::{DrawOrder, Grant, Pool, affordable, used_up_by};
use crate::rules::ids::{MeterNo, TenantId, Unit};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::push::{CutState, WindowUsage, billed_of};
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store::credit::{Credits, GrantFilter};
use crate::store::push::Cuts;
use crate::store::{self, Declarations, Error, Queries, Query};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Grants that one transaction ends.
const EXPIRE_MAX: usize = 100;
/// More than a tenant can have with anything left.
const GRANTS_READ_MAX: usize = 1_000;
/// How often a balance is read anew because a cut drew on the grants meanwhile.
const READ_TRIES: usize = 5;

/// How a balance is computed.
#[derive(Debug, Clone, Copy)]
pub struct BalanceSettings {
    pub now: Timestamp,
    pub order: DrawOrder,
    /// No usage is older that can still come.
    pub accept_horizon_hours: u32,
    /// Whether windows are only compared, and nothing is drawn.
    pub shadow: bool,
    /// Totals of usage that was not cut yet which may be read of a meter.
    pub usage_rows_max: usize,
}

/// A tenant's credits of one unit and pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolBalance {
    /// What is left after the last cuts.
    pub remaining: Quantity,
    /// What usage that was not cut yet will draw.
    pub pending: Quantity,
    /// What is left after that, without what has expired or does not hold yet.
    pub available: Quantity,
}

/// What a tenant's grants come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    pub pools: BTreeMap<(Unit, Pool), PoolBalance>,
    /// The grants, with what the next cut will leave of them.
    pub grants: Vec<Grant>,
    /// What the next cut will draw on each grant, by its number.
    pub pending: BTreeMap<u64, Quantity>,
}

impl Balance {
    /// What usage that was not cut yet will draw on a grant: it cannot be voided.
    pub fn reserved(&self, grant: u64) -> Quantity {
        if planted("bug.void_ignores_pending") {
            return Quantity::ZERO;
        }
        self.pending.get(&grant).copied().unwrap_or_default()
    }
}

/// A window's usage that no cut has seen.
struct Uncut {
    order: CoverOrder,
    /// Whether the cut goes by the moment of each event.
    by_event: bool,
}

/// A tenant's credits as they are now, with usage that was counted and not cut. Grants, usage and
/// cuts are read one after the other; if the grants are the same afterwards, no cut drew on them in
/// between, and the three belong together.
pub async fn read_balance(
    store: &(impl Credits + Cuts + Queries + ?Sized),
    catalog: &Catalog,
    tenant: &TenantId,
    balance_settings: BalanceSettings,
) -> store::Result<Balance> {
    let filter = GrantFilter { tenant: tenant.clone(), live: true };
    let live = || store.list_grants(Query::first(filter.clone(), GRANTS_READ_MAX));
    let mut stored = live().await?;
    for _ in 0..READ_TRIES {
        crash_point("credits.grants_read");
        let uncut = read_all_uncut(store, catalog, tenant, &stored, balance_settings).await?;
        let again = live().await?;
        if again == stored || planted("bug.balance_overstates") {
            return compute_balance(&stored, &uncut, balance_settings);
        }
        stored = again;
    }
    Err(Error::Unavailable { what: "the tenant's credits change while they are read".into() })
}

/// Draws on the grants what the next cut will, and adds up what is left.
fn compute_balance(
    stored: &[Grant],
    uncut: &[Uncut],
    balance_settings: BalanceSettings,
) -> store::Result<Balance> {
    let mut grants = stored.to_vec();
    for Uncut { order, by_event } in uncut {
        let borders = grants.iter().any(|grant| grant.terms.begins_or_ends_in(order.during));
        let draws = if *by_event && borders {
            bound_draws(order, &grants)?
        } else {
            plan_covering(order, &grants, &[], balance_settings.order)?.drawn
        };
        for draw in draws {
            for grant in grants.iter_mut().filter(|grant| grant.number == draw.grant) {
                let left = grant.remaining.checked_sub(draw.cost);
                grant.remaining = left.ok_or_else(too_large)?;
            }
        }
    }
    sum_up(stored, grants, balance_settings).ok_or_else(too_large)
}

/// Adds up what was left of the grants and what is left of them now.
fn sum_up(
    stored: &[Grant],
    grants: Vec<Grant>,
    balance_settings: BalanceSettings,
) -> Option<Balance> {
    let mut balance = Balance::default();
    for (before, after) in stored.iter().zip(&grants) {
        let terms = &before.terms;
        let pool = balance.pools.entry((terms.unit.clone(), terms.pool)).or_default();
        let drawn = before.remaining.checked_sub(after.remaining)?;
        pool.remaining = pool.remaining.checked_add(before.remaining)?;
        pool.pending = pool.pending.checked_add(drawn)?;
        if terms.holds_at(balance_settings.now) {
            pool.available = pool.available.checked_add(after.remaining)?;
        }
        balance.pending.insert(before.number, drawn);
    }
    Some(Balance { grants, ..balance })
}

/// Usage of the grants' meters that no cut has seen; shadow windows draw nothing.
async fn read_all_uncut(
    store: &(impl Cuts + Queries + ?Sized),
    catalog: &Catalog,
    tenant: &TenantId,
    grants: &[Grant],
    balance_settings: BalanceSettings,
) -> store::Result<Vec<Uncut>> {
    let meters: BTreeSet<MeterNo> =
        grants.iter().flat_map(|grant| grant.terms.rates.keys().copied()).collect();
    let mut uncut = Vec::new();
    if balance_settings.shadow || meters.is_empty() {
        return Ok(uncut);
    }
    let marks: BTreeMap<MeterNo, Timestamp> = store.read_cut_marks().await?.into_iter().collect();
    for (number, meter) in catalog.billed() {
        if meters.contains(&number) {
            let mark = marks.get(&number).copied();
            uncut
                .extend(read_uncut(store, tenant, (number, &meter), mark, balance_settings).await?);
        }
    }
    Ok(uncut)
}

/// Windows of a meter that have grown since their last cut. Everything received before the mark is
/// cut, and what came after it is at most as old as events are accepted.
async fn read_uncut(
    store: &(impl Cuts + Queries + ?Sized),
    tenant: &TenantId,
    (number, meter): (MeterNo, &Meter),
    mark: Option<Timestamp>,
    balance_settings: BalanceSettings,
) -> store::Result<Vec<Uncut>> {
    let Some(billing) = meter.spec.billing.as_ref() else { return Ok(Vec::new()) };
    let around = |at: Timestamp| billing.window_around(at, meter.spec.bucket);
    let received_since = mark.map_or(billing.start(), |mark| mark.min(balance_settings.now));
    let oldest = Span::from_hours(balance_settings.accept_horizon_hours).before(received_since);
    // An event may lie a little ahead.
    let newest = Span::from_hours(1).after(balance_settings.now);
    let start = around(oldest.max(billing.start())).start;
    let range = Window { start, end: around(newest).end };
    let rows = store.read_usage(tenant, number, range, balance_settings.usage_rows_max).await?;
    let cuts = store.read_cuts(tenant, number, range).await?;
    let cuts: BTreeMap<Timestamp, CutState> = cuts.into_iter().collect();
    let mut windows: BTreeMap<Timestamp, (Window, Vec<UsageRow>)> = BTreeMap::new();
    for row in rows {
        let window = around(row.bucket_start);
        if window.start >= billing.start() {
            windows.entry(window.start).or_insert((window, Vec::new())).1.push(row);
        }
    }
    let mut uncut = Vec::new();
    for (start, (window, rows)) in windows {
        let usage = WindowUsage::measure(&rows).map_err(|_| too_large())?;
        let cut = cuts.get(&start).cloned().unwrap_or_else(|| CutState::new(false));
        let billed = billed_of(Some(&cut), usage.billable).ok_or_else(too_large)?;
        // What shrinks gives back at the cut; until then less is shown than will be there.
        if usage.count == cut.count || cut.shadow || billed < cut.covered {
            continue;
        }
        let order = CoverOrder {
            meter: number,
            scale: meter.usage_scale(),
            during: window,
            before: cut.total,
            now: billed,
            covered: cut.covered,
        };
        uncut.push(Uncut { order, by_event: billing.granularity == Granularity::Event });
    }
    Ok(uncut)
}

/// How much more usage of a meter the credits cover now.
pub fn coverable(
    balance: &Balance,
    (number, meter): (MeterNo, &Meter),
    balance_settings: BalanceSettings,
) -> store::Result<Quantity> {
    let mut covered = Quantity::ZERO;
    for grant in in_order(&balance.grants, balance_settings.order) {
        let Some(rate) = grant.terms.rates.get(&number) else { continue };
        if !grant.terms.holds_at(balance_settings.now) {
            continue;
        }
        let most = Quantity::from_units(i128::MAX);
        let more = affordable(grant.remaining, *rate, meter.usage_scale(), most);
        covered = more.ok().and_then(|more| covered.checked_add(more)).ok_or_else(too_large)?;
    }
    Ok(covered)
}

fn too_large() -> Error {
    Error::Internal { what: "a balance of credits is larger than can be held exactly".into() }
}

/// Ends grants that have expired.
pub struct CreditsJob {
    store: Arc<dyn Credits>,
    declarations: Arc<dyn Declarations>,
    cuts: Arc<dyn Cuts>,
    clock: Clock,
    /// For how long usage from before a grant's expiry can still come.
    accept_horizon: Span,
}

impl Job for CreditsJob {
    const NAME: &'static str = "grants";
    const PAUSE: Duration = Duration::from_secs(60);
    type Done = usize;
    type Error = store::Error;

    /// Ends what is due; returns how many grants that was.
    async fn pass(&self) -> store::Result<usize> {
        let mut ended = 0;
        loop {
            let Some(now) = sure_time(&self.clock, "grants") else { return Ok(ended) };
            let Some(expired_by) = self.expired_by(now).await? else { return Ok(ended) };
            let some = self.store.expire_grants(expired_by, now, EXPIRE_MAX).await?;
            ended += some;
            if some < EXPIRE_MAX {
                return Ok(ended);
            }
        }
    }
}

impl CreditsJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, config, .. } = context.clone();
        let accept_horizon = Span::from_hours(config.ingest.accept_horizon_hours);
        let (declarations, cuts) = (store.clone(), store.clone());
        Self { store, declarations, cuts, clock, accept_horizon }
    }

    /// Grants that expired by then cover nothing more; none while a billed meter was never cut.
    async fn expired_by(&self, now: Timestamp) -> store::Result<Option<Timestamp>> {
        if planted("bug.expired_grants_end_early") {
            return Ok(Some(Span::from_hours(26).before(now)));
        }
        let catalog = self.declarations.load_catalog().await?;
        let marks: BTreeMap<MeterNo, Timestamp> =
            self.cuts.read_cut_marks().await?.into_iter().collect();
        let billed = catalog.billed().into_iter().map(|(number, _)| marks.get(&number).copied());
        Ok(used_up_by(now, self.accept_horizon, billed))
    }
}
