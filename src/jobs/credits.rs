//! Credits beside the cut: what is left of them right now, and the end of those that have expired.
//!
//! Invariant: a balance counts usage that no cut has seen yet as the next cut would, by the same
//! rule and from the same totals; it changes nothing. A grant is taken away only some time after it
//! has expired, so that usage from before, which is cut later, is still covered. A crash leaves a
//! grant expired or not, as a whole.

use super::{Stop, repeat};
use crate::clock::Clock;
use crate::rules::credit::{
    CoverOrder, DrawOrder, Grant, Pool, affordable, in_order, plan_covering,
};
use crate::rules::ids::{MeterNo, TenantId, Unit};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::push::{CutState, WindowUsage};
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store::credit::GrantFilter;
use crate::store::{self, Error, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(60);
/// Grants that one transaction ends.
const EXPIRE_MAX: usize = 100;
/// More than a tenant can have with anything left.
const GRANTS_READ_MAX: usize = 1_000;

/// How balances are reckoned.
#[derive(Debug, Clone, Copy)]
pub struct Reckoning {
    pub now: Timestamp,
    pub order: DrawOrder,
    /// No usage is older that can still come.
    pub accept_horizon_hours: u32,
    /// Whether windows are only compared, and nothing is drawn.
    pub shadow: bool,
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
}

/// A tenant's credits as they are now, with usage that was counted and not cut.
pub async fn read_balance(
    store: &dyn Store,
    catalog: &Catalog,
    tenant: &TenantId,
    reckoning: Reckoning,
) -> store::Result<Balance> {
    let stored = store.list_grants(tenant, GrantFilter::Live, 0, GRANTS_READ_MAX).await?;
    let mut grants = stored.clone();
    let meters: BTreeSet<MeterNo> =
        grants.iter().flat_map(|grant| grant.terms.rates.keys().copied()).collect();
    if !reckoning.shadow {
        for (number, meter) in catalog.billed() {
            if meters.contains(&number) {
                draw_uncut(store, tenant, (number, &meter), &mut grants, reckoning).await?;
            }
        }
    }
    add_up(&stored, grants, reckoning.now).ok_or_else(too_large)
}

fn add_up(stored: &[Grant], grants: Vec<Grant>, now: Timestamp) -> Option<Balance> {
    let mut pools: BTreeMap<(Unit, Pool), PoolBalance> = BTreeMap::new();
    for (before, after) in stored.iter().zip(&grants) {
        let terms = &before.terms;
        let pool = pools.entry((terms.unit.clone(), terms.pool)).or_default();
        let drawn = before.remaining.checked_sub(after.remaining)?;
        pool.remaining = pool.remaining.checked_add(before.remaining)?;
        pool.pending = pool.pending.checked_add(drawn)?;
        if terms.holds_at(now) {
            pool.available = pool.available.checked_add(after.remaining)?;
        }
    }
    Some(Balance { pools, grants })
}

/// Takes off the grants what the next cuts of a meter's windows will draw.
async fn draw_uncut(
    store: &dyn Store,
    tenant: &TenantId,
    (number, meter): (MeterNo, &Meter),
    grants: &mut [Grant],
    reckoning: Reckoning,
) -> store::Result<()> {
    let Some(billing) = meter.spec.billing.as_ref() else { return Ok(()) };
    let around = |at: Timestamp| billing.window_around(at, meter.spec.bucket);
    let oldest = Span::from_hours(reckoning.accept_horizon_hours).before(reckoning.now);
    // An event may lie a little ahead.
    let newest = Span::from_hours(1).after(reckoning.now);
    let start = around(oldest.max(billing.start())).start;
    let range = Window { start, end: around(newest).end };
    let rows = store.read_usage(tenant, number, range).await?;
    let cuts = store.read_cuts(tenant, number, range).await?;
    let cuts: BTreeMap<Timestamp, CutState> = cuts.into_iter().collect();
    let mut windows: BTreeMap<Timestamp, (Window, Vec<UsageRow>)> = BTreeMap::new();
    for row in rows {
        let window = around(row.bucket_start);
        if window.start >= billing.start() {
            windows.entry(window.start).or_insert((window, Vec::new())).1.push(row);
        }
    }
    for (start, (window, rows)) in windows {
        let usage = WindowUsage::measure(&rows).map_err(|_| too_large())?;
        let cut = cuts.get(&start).cloned().unwrap_or_else(|| CutState::new(false));
        // What shrinks gives back at the cut; until then less is shown than will be there.
        if usage.count == cut.count || cut.shadow || usage.billable < cut.covered {
            continue;
        }
        let order = CoverOrder {
            meter: number,
            scale: meter.usage_scale(),
            during: window,
            before: cut.total,
            now: usage.billable,
            covered: cut.covered,
        };
        let plan = plan_covering(&order, grants, &[], reckoning.order).map_err(|_| too_large())?;
        for draw in plan.drawn {
            let drawn = grants.iter_mut().find(|grant| grant.number == draw.grant);
            let grant = drawn.expect("draws name grants");
            grant.remaining = grant.remaining.checked_sub(draw.cost).ok_or_else(too_large)?;
        }
    }
    Ok(())
}

/// How much more usage of a meter the credits cover now.
pub fn coverable(
    balance: &Balance,
    (number, meter): (MeterNo, &Meter),
    reckoning: Reckoning,
) -> store::Result<Quantity> {
    let mut covered = Quantity::ZERO;
    for grant in in_order(&balance.grants, reckoning.order) {
        let Some(rate) = grant.terms.rates.get(&number) else { continue };
        if !grant.terms.holds_at(reckoning.now) {
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
pub struct GrantExpirer {
    store: Arc<dyn Store>,
    clock: Clock,
    /// How long after a grant has expired usage from before is still covered by it.
    grace: Span,
}

impl GrantExpirer {
    pub fn new(store: Arc<dyn Store>, clock: Clock, grace_hours: u32) -> Self {
        Self { store, clock, grace: Span::from_hours(grace_hours) }
    }

    pub async fn run(self, stop: Stop) {
        repeat("grants", PAUSE, stop, || async { self.pass().await.map(drop) }).await;
    }

    /// Ends what is due; returns how many grants that was.
    pub async fn pass(&self) -> store::Result<usize> {
        let mut ended = 0;
        loop {
            let now = self.clock.now();
            let expired_by = self.grace.before(now);
            let some = self.store.expire_grants(expired_by, now, EXPIRE_MAX).await?;
            ended += some;
            if some < EXPIRE_MAX {
                return Ok(ended);
            }
        }
    }
}
