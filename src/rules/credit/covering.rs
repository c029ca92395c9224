//! Covering: which grants a window's usage draws on, and what a window that shrinks gives back.
//!
//! A cut covers what its window has grown by from the grants that hold in it, in the order of
//! [`DrawOrder`]; only the rest is billed. When a window shrinks, first what was billed shrinks,
//! then the draws are given back in reverse order.
//!
//! Invariant: no more of a window is covered than it used, its net draws are what of it
//! is covered, and usage is billed only when no grant that holds can pay for one step more of it.

use super::{ChangeKind, DrawOrder, Grant, Inexact, Pool, affordable, cost_of, gcd};
use crate::rules::fault::{Fault, must, shown};
use crate::rules::ids::MeterNo;
use crate::rules::quantity::{Quantity, SCALE};
use crate::rules::window::Window;
use std::cmp::Reverse;

/// Usage covered by a grant: so much, at this cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub grant: u64,
    /// In units of the meter.
    pub quantity: Quantity,
    /// In the grant's unit.
    pub cost: Quantity,
}

/// What a cut changes of a window's covering.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Covering {
    /// How much of the window is covered afterwards.
    pub covered: Quantity,
    /// New draws, in the order in which they are made.
    pub drawn: Vec<Draw>,
    /// What is given back, in that order.
    pub given_back: Vec<Draw>,
}

/// A window's usage that is to be covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoverOrder {
    pub meter: MeterNo,
    /// Decimal places of the meter's usage.
    pub scale: u32,
    /// When it was used: a grant covers it that holds at any moment of this.
    pub during: Window,
    /// The window's billable total at its last cut, and now.
    pub before: Quantity,
    pub now: Quantity,
    /// How much of it is covered so far.
    pub covered: Quantity,
}

impl CoverOrder {
    fn ids(&self) -> String {
        let Self { meter, during, before, now, covered, .. } = self;
        let (start, end) = (during.start, during.end);
        format!("meter={} {start}/{end} before={before} now={now} covered={covered}", meter.0)
    }

    /// The smallest amount of usage that the meter counts.
    fn step(&self) -> i128 {
        10i128.pow(SCALE - self.scale.min(SCALE))
    }

    /// The facts that must hold of a window before it is covered.
    fn check(&self) -> Result<(), Fault> {
        must!(self.scale <= SCALE, "a meter has at most 12 decimal places", "{}", self.ids());
        must!(self.during.start < self.during.end, "usage takes some time", "{}", self.ids());
        must!(self.covered >= Quantity::ZERO, "covered usage is not negative", "{}", self.ids());
        must!(
            self.covered.units() % self.step() == 0,
            "covered usage has no more decimal places than its meter",
            "{}",
            self.ids()
        );
        must!(
            self.now.units() % self.step() == 0,
            "usage has no more decimal places than its meter",
            "{}",
            self.ids()
        );
        Ok(())
    }

    fn exact<T>(&self, value: Result<T, Inexact>) -> Result<T, Fault> {
        value.map_err(|Inexact| Fault {
            fact: "an amount of credits can be held exactly",
            ids: self.ids(),
        })
    }
}

/// Plans the covering of a window. `grants` are the tenant's with anything left, as the transaction
/// holds them; `drawn` what the window has drawn and not given back, oldest first.
pub fn plan_covering(
    order: &CoverOrder,
    grants: &[Grant],
    drawn: &[Draw],
    draw_order: DrawOrder,
) -> Result<Covering, Fault> {
    order.check()?;
    let (before, now) = (order.before.max(Quantity::ZERO), order.now.max(Quantity::ZERO));
    if now < order.covered {
        let given_back = plan_giving_back(order, drawn, now)?;
        return Ok(Covering { covered: now, drawn: Vec::new(), given_back });
    }
    // A window that got no push for a while may have shrunk below what is covered of it: that much
    // of its growth is covered already.
    let before = before.max(order.covered);
    if now <= before {
        return Ok(Covering { covered: order.covered, ..Covering::default() });
    }
    let grown = order.exact(now.checked_sub(before).ok_or(Inexact))?;
    let drawn = order.exact(plan_draws(order, grants, grown, draw_order))?;
    check_draws(order, grants, &drawn, grown, draw_order)?;
    let sum = order.exact(sum(drawn.iter().map(|draw| draw.quantity)))?;
    must!(sum <= grown, "no more is drawn than a window has grown by", "{}", order.ids());
    let covered = order.exact(order.covered.checked_add(sum).ok_or(Inexact))?;
    must!(covered <= now, "no more of a window is covered than it used", "{}", order.ids());
    Ok(Covering { covered, drawn, given_back: Vec::new() })
}

/// The most that usage of unknown moments can draw on each grant, each taken by itself: where a
/// grant begins or ends inside the window, the moments decide which grants cover it.
pub fn bound_draws(order: &CoverOrder, grants: &[Grant]) -> Result<Vec<Draw>, Fault> {
    order.check()?;
    let (before, now) = (order.before.max(Quantity::ZERO), order.now.max(Quantity::ZERO));
    let grown = order.exact(now.max(before).checked_sub(before).ok_or(Inexact))?;
    let alone = grants
        .iter()
        .map(|grant| plan_draws(order, std::slice::from_ref(grant), grown, DrawOrder::default()));
    Ok(order.exact(alone.collect::<Result<Vec<_>, Inexact>>())?.concat())
}

fn plan_draws(
    order: &CoverOrder,
    grants: &[Grant],
    grown: Quantity,
    draw_order: DrawOrder,
) -> Result<Vec<Draw>, Inexact> {
    let mut due = grown;
    let mut draws = Vec::new();
    for (grant, rate) in payers(order, grants, draw_order) {
        if due == Quantity::ZERO {
            break;
        }
        let quantity = affordable(grant.remaining, rate, order.scale, due)?;
        if quantity > Quantity::ZERO {
            due = due.checked_sub(quantity).ok_or(Inexact)?;
            draws.push(Draw { grant: grant.number, quantity, cost: cost_of(quantity, rate)? });
        }
    }
    Ok(draws)
}

/// Grants that pay for the usage, each with its rate, in the order in which they are drawn on.
fn payers<'g>(
    order: &CoverOrder,
    grants: &'g [Grant],
    draw_order: DrawOrder,
) -> impl Iterator<Item = (&'g Grant, Quantity)> {
    let (meter, during) = (order.meter, order.during);
    in_order(grants, draw_order).into_iter().filter_map(move |grant| {
        let rate = grant.terms.rates.get(&meter)?;
        grant.terms.holds_during(during).then_some((grant, *rate))
    })
}

/// The facts that must hold of draws before they are written.
pub(super) fn check_draws(
    order: &CoverOrder,
    grants: &[Grant],
    draws: &[Draw],
    grown: Quantity,
    draw_order: DrawOrder,
) -> Result<(), Fault> {
    let mut rest = draws.iter().peekable();
    let mut due = grown;
    // A grant before this one that could pay for one step more.
    let mut open: Option<u64> = None;
    let mut last: Option<&Grant> = None;
    for (grant, rate) in payers(order, grants, draw_order) {
        if rest.peek().is_none() && due.units() < order.step() {
            break;
        }
        let number = grant.number;
        let mut left = grant.remaining;
        if let Some(draw) = rest.next_if(|draw| draw.grant == number) {
            let Draw { quantity, cost, .. } = draw;
            must!(*quantity > Quantity::ZERO, "a draw covers some usage", "grant={number}");
            must!(
                quantity.units() % order.step() == 0,
                "a draw covers whole steps of its meter",
                "grant={number} quantity={quantity}"
            );
            must!(
                cost_of(*quantity, rate) == Ok(*cost),
                "a draw costs its usage times the rate",
                "grant={number} quantity={quantity} rate={rate} cost={cost}"
            );
            must!(
                open.is_none(),
                "a grant is drawn on after all before it are used up",
                "grant={number} before={}",
                shown(open)
            );
            must!(
                last.is_none_or(|last| !outlasts(last, grant)),
                "of equal grants the one that expires sooner is drawn on first",
                "grant={number} after={}",
                shown(last.map(|last| last.number))
            );
            last = Some(grant);
            left = order.exact(left.checked_sub(*cost).ok_or(Inexact))?;
            due = order.exact(due.checked_sub(*quantity).ok_or(Inexact))?;
        }
        must!(left >= Quantity::ZERO, "a grant is never overdrawn", "grant={number} left={left}");
        let price = order.exact(cost_of(Quantity::from_units(order.step()), rate))?;
        if left >= price {
            open = Some(number);
        }
    }
    let stray = rest.next();
    must!(stray.is_none(), "a draw is on a grant that pays for its usage", "{stray:?}");
    must!(
        due.units() < order.step() || open.is_none(),
        "usage is billed only when no grant can pay for it",
        "grant={} {}",
        shown(open),
        order.ids()
    );
    Ok(())
}

/// Whether two grants differ in nothing that the order goes by before expiry, and the first expires
/// later.
pub(super) fn outlasts(first: &Grant, second: &Grant) -> bool {
    let (first, second) = (&first.terms, &second.terms);
    let equal = (first.pool, first.priority) == (second.pool, second.priority);
    let sooner = |end| first.expires_at.is_none_or(|first| first > end);
    equal && second.expires_at.is_some_and(sooner)
}

/// Gives back from the last draw to the first; a part of a draw at its own rate.
fn plan_giving_back(order: &CoverOrder, drawn: &[Draw], now: Quantity) -> Result<Vec<Draw>, Fault> {
    let standing = order.exact(sum(drawn.iter().map(|draw| draw.quantity)))?;
    must!(
        standing == order.covered,
        "the net draws of a window are what of it is covered",
        "standing={standing} {}",
        order.ids()
    );
    let surplus = order.exact(order.covered.checked_sub(now).ok_or(Inexact))?;
    let mut due = surplus;
    let mut given_back = Vec::new();
    for draw in drawn.iter().rev() {
        if due == Quantity::ZERO {
            break;
        }
        let quantity = draw.quantity.min(due);
        let cost = order.exact(share_of(draw, quantity))?;
        must!(
            Quantity::ZERO < cost && cost <= draw.cost,
            "a draw gives back at most what it cost",
            "grant={} cost={} back={cost}",
            draw.grant,
            draw.cost
        );
        due = order.exact(due.checked_sub(quantity).ok_or(Inexact))?;
        given_back.push(Draw { grant: draw.grant, quantity, cost });
    }
    must!(due == Quantity::ZERO, "a window gives back all it covers no more", "{}", order.ids());
    Ok(given_back)
}

/// The net draws of a window, oldest first, from its changes, oldest first.
pub fn standing_draws(changes: &[(ChangeKind, Draw)]) -> Result<Vec<Draw>, Fault> {
    let mut standing: Vec<Draw> = Vec::new();
    for (kind, draw) in changes {
        let number = draw.grant;
        must!(
            draw.quantity > Quantity::ZERO && draw.cost > Quantity::ZERO,
            "a window's change moves usage and credits",
            "grant={number} quantity={} cost={}",
            draw.quantity,
            draw.cost
        );
        match kind {
            ChangeKind::Drawn => standing.push(*draw),
            ChangeKind::GivenBack => give_back_last(&mut standing, draw)?,
            ChangeKind::Issued
            | ChangeKind::Expired
            | ChangeKind::Refunded
            | ChangeKind::Voided => {
                let fact = "a window's changes are draws and what is given back";
                return Err(Fault { fact, ids: format!("grant={number} kind={}", kind.name()) });
            }
        }
    }
    Ok(standing)
}

/// What is given back is always the end of what stood.
fn give_back_last(standing: &mut Vec<Draw>, back: &Draw) -> Result<(), Fault> {
    let Draw { grant, quantity, cost } = *back;
    let last = standing.pop();
    let Some(last) = last.filter(|last| last.grant == grant) else {
        let fact = "what is given back is of the last net draw";
        return Err(Fault { fact, ids: format!("grant={grant} last={last:?}") });
    };
    must!(
        quantity <= last.quantity && cost <= last.cost,
        "no more is given back than was drawn",
        "grant={grant} drawn={last:?} back={back:?}"
    );
    must!(
        (quantity == last.quantity) == (cost == last.cost),
        "a draw's usage and its cost are given back together",
        "grant={grant} drawn={last:?} back={back:?}"
    );
    let left = last.quantity.checked_sub(quantity).zip(last.cost.checked_sub(cost));
    if let Some((quantity, cost)) = left.filter(|(quantity, _)| *quantity > Quantity::ZERO) {
        standing.push(Draw { grant, quantity, cost });
    }
    Ok(())
}

/// The cost of a part of a draw: its own rate, exactly.
fn share_of(draw: &Draw, quantity: Quantity) -> Result<Quantity, Inexact> {
    if quantity == draw.quantity {
        return Ok(draw.cost);
    }
    let common = gcd(draw.cost.units(), draw.quantity.units());
    let (numerator, denominator) = (draw.cost.units() / common, draw.quantity.units() / common);
    if quantity.units() % denominator != 0 {
        return Err(Inexact);
    }
    let units = (quantity.units() / denominator).checked_mul(numerator).ok_or(Inexact)?;
    Ok(Quantity::from_units(units))
}

pub(super) fn sum(quantities: impl Iterator<Item = Quantity>) -> Result<Quantity, Inexact> {
    let mut sum = Quantity::ZERO;
    for quantity in quantities {
        sum = sum.checked_add(quantity).ok_or(Inexact)?;
    }
    Ok(sum)
}

/// Grants in the order in which they are drawn on.
pub fn in_order(grants: &[Grant], order: DrawOrder) -> Vec<&Grant> {
    let mut sorted: Vec<&Grant> = grants.iter().collect();
    sorted.sort_by_key(|grant| {
        let terms = &grant.terms;
        let pool = match order {
            DrawOrder::GrantedFirst => u8::from(terms.pool == Pool::Purchased),
            DrawOrder::PurchasedFirst => u8::from(terms.pool == Pool::Granted),
            DrawOrder::SoonestFirst => 0,
        };
        // One that never expires comes after all that do.
        let expiry = Reverse(terms.expires_at.map(|at| Reverse(at.micros())));
        (pool, terms.priority, expiry, terms.effective_at, grant.number)
    });
    sorted
}
