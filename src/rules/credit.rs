//! Credits: what a tenant has paid for in advance (purchased) or was given (granted), and how usage
//! draws on it before it is billed.
//!
//! A grant is an amount of some unit, a currency or credits, and says what one unit of usage of
//! each meter costs in it. A cut covers what its window has grown by from the grants that hold in
//! it, in the order of [`DrawOrder`]; only what is left is billed. When a window shrinks, first
//! what was billed shrinks, then the draws are given back in reverse order.
//!
//! Invariant: what a grant has left is never negative and never above its amount; its amount equals
//! what is left plus all that was drawn and not given back, expired or taken back. Every change is
//! one entry between the tenant's credit accounts (`rules::account`), so the same holds of sums.

use super::account::{Floor, NewPosting};
use super::ids::{AccountName, MeterNo, OnceKey, TenantId, Unit};
use super::quantity::{Quantity, SCALE};
use super::refusal::Refusal;
use super::span::Span;
use super::timestamp::Timestamp;
use super::window::Window;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Grants of one tenant with anything left.
pub const GRANTS_MAX: usize = 100;
/// Meters of one grant.
pub const RATES_MAX: usize = 50;
/// Priorities are 0, drawn first, to this.
pub const PRIORITY_MAX: u8 = 100;
/// By how much the clocks of two servers that stamp events may differ, and more.
const CLOCKS_APART: Span = Span::from_hours(1);

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Given.
    Granted,
    /// Paid for.
    Purchased,
}

impl Pool {
    pub fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Purchased => "purchased",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Granted, Self::Purchased].into_iter().find(|pool| pool.name() == name)
    }
}

/// Which grants are drawn on first. Within each step of the order: by priority, then the one that
/// expires sooner, then the older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DrawOrder {
    /// What was given before what was paid for.
    #[default]
    GrantedFirst,
    PurchasedFirst,
    /// Whichever expires sooner, of either pool.
    SoonestFirst,
}

/// What a grant is, for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantTerms {
    pub tenant: TenantId,
    /// Under which it is issued once.
    pub key: OnceKey,
    pub pool: Pool,
    pub unit: Unit,
    pub amount: Quantity,
    /// What one unit of usage costs, for each meter it applies to.
    pub rates: BTreeMap<MeterNo, Quantity>,
    /// 0 is drawn first.
    pub priority: u8,
    /// Usage from then on is covered.
    pub effective_at: Timestamp,
    /// Usage from then on is not.
    pub expires_at: Option<Timestamp>,
    /// Why, for whoever reads the history.
    pub memo: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub number: u64,
    pub terms: GrantTerms,
    /// What is left of it.
    pub remaining: Quantity,
    pub created_at: Timestamp,
}

/// What happened to a grant.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Issued,
    /// Usage was covered by it.
    Drawn,
    /// Usage it had covered turned out not to have been used.
    GivenBack,
    Expired,
    /// Paid back to whoever had paid.
    Refunded,
    /// Taken away again.
    Voided,
}

impl ChangeKind {
    pub const ALL: [Self; 6] =
        [Self::Issued, Self::Drawn, Self::GivenBack, Self::Expired, Self::Refunded, Self::Voided];

    pub fn name(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Drawn => "drawn",
            Self::GivenBack => "given_back",
            Self::Expired => "expired",
            Self::Refunded => "refunded",
            Self::Voided => "voided",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it raises what is left of its grant.
    fn raises(self) -> bool {
        match self {
            Self::Issued | Self::GivenBack => true,
            Self::Drawn | Self::Expired | Self::Refunded | Self::Voided => false,
        }
    }
}

/// Usage that a change covers or uncovers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covered {
    pub meter: MeterNo,
    pub window: Window,
    /// In units of the meter.
    pub quantity: Quantity,
}

/// A change of a grant, as the history shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreditChange {
    /// Order of creation.
    pub number: u64,
    pub tenant: TenantId,
    pub grant: u64,
    pub kind: ChangeKind,
    /// In the grant's unit; never negative: the kind tells the direction.
    pub amount: Quantity,
    /// What it left of the grant.
    pub remaining: Quantity,
    /// For draws and what is given back.
    pub covered: Option<Covered>,
    /// For refunds and voids.
    pub key: Option<OnceKey>,
    pub memo: String,
    pub at: Timestamp,
}

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

/// Larger than can be held, or not exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an amount of credits cannot be held exactly")]
pub struct Inexact;

/// Plans the covering of a window. `grants` are the tenant's with anything left, as the transaction
/// holds them; `drawn` what the window has drawn and not given back, oldest first.
pub fn plan_covering(
    order: &CoverOrder,
    grants: &[Grant],
    drawn: &[Draw],
    draw_order: DrawOrder,
) -> Result<Covering, Inexact> {
    let (before, now) = (order.before.max(Quantity::ZERO), order.now.max(Quantity::ZERO));
    if now < order.covered {
        let surplus = order.covered.checked_sub(now).ok_or(Inexact)?;
        let given_back = plan_giving_back(drawn, surplus)?;
        return Ok(Covering { covered: now, drawn: Vec::new(), given_back });
    }
    if now <= before {
        return Ok(Covering { covered: order.covered, ..Covering::default() });
    }
    let grown = now.checked_sub(before).ok_or(Inexact)?;
    let drawn = plan_draws(order, grants, grown, draw_order)?;
    let sum = sum(drawn.iter().map(|draw| draw.quantity))?;
    let covered = order.covered.checked_add(sum).ok_or(Inexact)?;
    assert!(sum <= grown && covered <= now, "no more is covered than was used");
    Ok(Covering { covered, drawn, given_back: Vec::new() })
}

/// The most that usage of unknown moments can draw on each grant, each taken by itself: where a
/// grant begins or ends inside the window, the moments decide which grants cover it.
pub fn bound_draws(order: &CoverOrder, grants: &[Grant]) -> Result<Vec<Draw>, Inexact> {
    let (before, now) = (order.before.max(Quantity::ZERO), order.now.max(Quantity::ZERO));
    let grown = now.max(before).checked_sub(before).ok_or(Inexact)?;
    let alone = grants
        .iter()
        .map(|grant| plan_draws(order, std::slice::from_ref(grant), grown, DrawOrder::default()));
    Ok(alone.collect::<Result<Vec<_>, Inexact>>()?.concat())
}

/// How much of a grant may be taken back: what was asked for, or all, of what usage that was not
/// cut yet (`reserved`) leaves of it. The error is what that is, if it is too little.
pub fn plan_taking_back(
    grant: &Grant,
    reserved: Quantity,
    asked: Option<Quantity>,
) -> Result<Quantity, Quantity> {
    let free = grant.remaining.checked_sub(reserved).unwrap_or_default().max(Quantity::ZERO);
    let amount = asked.unwrap_or(free);
    if amount > Quantity::ZERO && amount <= free { Ok(amount) } else { Err(free) }
}

/// Grants that expired by the returned moment cover nothing more: usage from before it is too old
/// to be accepted, and what was accepted is cut. `cut_marks` are the moments up to which each
/// billed meter is cut; none while one of them never was.
pub fn used_up_by(
    now: Timestamp,
    accept_horizon: Span,
    cut_marks: impl IntoIterator<Item = Option<Timestamp>>,
) -> Option<Timestamp> {
    let mut known = now;
    for mark in cut_marks {
        known = known.min(mark?);
    }
    Some(CLOCKS_APART.before(accept_horizon.before(known)))
}

fn plan_draws(
    order: &CoverOrder,
    grants: &[Grant],
    grown: Quantity,
    draw_order: DrawOrder,
) -> Result<Vec<Draw>, Inexact> {
    let mut due = grown;
    let mut draws = Vec::new();
    for grant in in_order(grants, draw_order) {
        let Some(rate) = grant.terms.rates.get(&order.meter) else { continue };
        if due == Quantity::ZERO || !grant.terms.holds_during(order.during) {
            continue;
        }
        let quantity = affordable(grant.remaining, *rate, order.scale, due)?;
        if quantity > Quantity::ZERO {
            let cost = cost_of(quantity, *rate)?;
            assert!(cost <= grant.remaining, "a grant is never overdrawn");
            due = due.checked_sub(quantity).ok_or(Inexact)?;
            draws.push(Draw { grant: grant.number, quantity, cost });
        }
    }
    Ok(draws)
}

/// Gives back from the last draw to the first; a part of a draw at its own rate.
fn plan_giving_back(drawn: &[Draw], surplus: Quantity) -> Result<Vec<Draw>, Inexact> {
    let mut due = surplus;
    let mut given_back = Vec::new();
    for draw in drawn.iter().rev() {
        if due == Quantity::ZERO {
            break;
        }
        let quantity = draw.quantity.min(due);
        let cost = share_of(draw, quantity)?;
        due = due.checked_sub(quantity).ok_or(Inexact)?;
        given_back.push(Draw { grant: draw.grant, quantity, cost });
    }
    // More was covered than was drawn: what is stored contradicts itself.
    if due != Quantity::ZERO {
        return Err(Inexact);
    }
    Ok(given_back)
}

/// What of a window's draws stands, oldest first, from its changes, oldest first.
pub fn standing_draws(changes: &[(ChangeKind, Draw)]) -> Result<Vec<Draw>, Inexact> {
    let mut standing: Vec<Draw> = Vec::new();
    for (kind, draw) in changes {
        match kind {
            ChangeKind::Drawn => standing.push(*draw),
            ChangeKind::GivenBack => {
                // What was given back is always the end of what stood.
                let last = standing.last_mut().filter(|last| last.grant == draw.grant);
                let last = last.ok_or(Inexact)?;
                last.quantity = last.quantity.checked_sub(draw.quantity).ok_or(Inexact)?;
                last.cost = last.cost.checked_sub(draw.cost).ok_or(Inexact)?;
                if last.quantity == Quantity::ZERO {
                    standing.pop();
                }
            }
            ChangeKind::Issued
            | ChangeKind::Expired
            | ChangeKind::Refunded
            | ChangeKind::Voided => return Err(Inexact),
        }
    }
    Ok(standing)
}

/// What a grant has left after a change; none if it would be negative or above its amount.
pub fn remaining_after(grant: &Grant, kind: ChangeKind, amount: Quantity) -> Option<Quantity> {
    let after = match kind.raises() {
        true => grant.remaining.checked_add(amount)?,
        false => grant.remaining.checked_sub(amount)?,
    };
    (Quantity::ZERO <= after && after <= grant.terms.amount).then_some(after)
}

impl GrantTerms {
    /// Whether usage of a window is covered, of which nobody knows at which moments it was: whoever
    /// tops up and goes on using expects it to be.
    fn holds_during(&self, window: Window) -> bool {
        self.effective_at < window.end && self.expires_at.is_none_or(|end| window.start < end)
    }

    /// Whether usage is covered in a part of the window only.
    pub fn begins_or_ends_in(&self, window: Window) -> bool {
        let inside = |at: Timestamp| window.start < at && at < window.end;
        inside(self.effective_at) || self.expires_at.is_some_and(inside)
    }

    /// Whether usage of that moment is covered.
    pub fn holds_at(&self, at: Timestamp) -> bool {
        self.effective_at <= at && self.expires_at.is_none_or(|end| at < end)
    }

    /// Checks what can be told from the terms and the decimal places of the meters' usage.
    pub fn check(&self, scale_of: impl Fn(MeterNo) -> Option<u32>) -> Result<(), Refusal> {
        if self.amount <= Quantity::ZERO {
            return Err(Refusal::new("invalid_amount", "amount must be above 0"));
        }
        if self.priority > PRIORITY_MAX {
            let detail = format!("priority is 0, drawn first, to {PRIORITY_MAX}");
            return Err(Refusal::new("invalid_priority", detail));
        }
        if self.rates.is_empty() || self.rates.len() > RATES_MAX {
            let detail =
                format!("rates names 1 to {RATES_MAX} meters and what a unit of each costs");
            return Err(Refusal::new("invalid_rates", detail));
        }
        if self.expires_at.is_some_and(|end| end <= self.effective_at) {
            let detail = "expires_at must lie after effective_at";
            return Err(Refusal::new("invalid_expiry", detail));
        }
        for (meter, rate) in &self.rates {
            let scale = scale_of(*meter).ok_or_else(|| {
                Refusal::new("unknown_meter", "rates names a meter that is not declared")
            })?;
            check_rate(*rate, scale)?;
        }
        Ok(())
    }

    /// Whether it says the same as one that is sent under its key.
    pub fn says(&self, other: &Self) -> bool {
        self == other
    }

    /// Whether it says the same as one that was sent before, but for the moment it holds from.
    pub fn says_later(&self, before: &Self) -> bool {
        let effective_at = before.effective_at;
        Self { effective_at, ..self.clone() } == *before
    }
}

/// A rate and a meter's decimals must multiply exactly.
fn check_rate(rate: Quantity, scale: u32) -> Result<(), Refusal> {
    if rate <= Quantity::ZERO {
        return Err(Refusal::new("invalid_rates", "a rate must be above 0"));
    }
    let step = 10i128.pow(SCALE - scale.min(SCALE));
    if step % Ratio::of(rate).denominator != 0 {
        let detail = format!(
            "the decimals of a meter and of its rate add up to at most {SCALE}; the meter has \
             {scale}"
        );
        return Err(Refusal::new("rate_too_precise", detail));
    }
    Ok(())
}

/// A rate in lowest terms.
struct Ratio {
    numerator: i128,
    denominator: i128,
}

impl Ratio {
    fn of(rate: Quantity) -> Self {
        let one = Quantity::ONE.units();
        let common = gcd(rate.units(), one);
        Self { numerator: rate.units() / common, denominator: one / common }
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// Exactly quantity times rate.
pub fn cost_of(quantity: Quantity, rate: Quantity) -> Result<Quantity, Inexact> {
    let Ratio { numerator, denominator } = Ratio::of(rate);
    if quantity.units() % denominator != 0 {
        return Err(Inexact);
    }
    let units = (quantity.units() / denominator).checked_mul(numerator).ok_or(Inexact)?;
    Ok(Quantity::from_units(units))
}

/// The most usage, at most `due`, that an amount pays for: whole steps of the meter's scale.
pub fn affordable(
    amount: Quantity,
    rate: Quantity,
    scale: u32,
    due: Quantity,
) -> Result<Quantity, Inexact> {
    let step = 10i128.pow(SCALE - scale.min(SCALE));
    let price = cost_of(Quantity::from_units(step), rate)?.units();
    let steps = (amount.units() / price).min(due.units() / step);
    Ok(Quantity::from_units(steps.checked_mul(step).ok_or(Inexact)?))
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

fn sum(quantities: impl Iterator<Item = Quantity>) -> Result<Quantity, Inexact> {
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

/// An account that credits move through, for one tenant and unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CreditAccount {
    /// The other side of all that was issued.
    Issued,
    Pool(Pool),
    Spent,
    Expired,
    TakenBack,
}

impl CreditAccount {
    fn name(self, unit: &Unit) -> AccountName {
        let side = match self {
            Self::Issued => "issued",
            Self::Pool(pool) => pool.name(),
            Self::Spent => "spent",
            Self::Expired => "expired",
            Self::TakenBack => "taken_back",
        };
        AccountName::parse(&format!("credits.{unit}.{side}")).expect("a short name of units")
    }

    fn floor(self) -> Floor {
        match self {
            Self::Pool(_) => Floor::Zero,
            Self::Issued | Self::Spent | Self::Expired | Self::TakenBack => Floor::None,
        }
    }
}

/// The accounts that a change moves between, each with its floor, and the postings: from the first
/// to the second.
pub fn postings_of(
    terms: &GrantTerms,
    kind: ChangeKind,
    amount: Quantity,
) -> Result<[(NewPosting, Floor); 2], Inexact> {
    let pool = CreditAccount::Pool(terms.pool);
    let (from, to) = match kind {
        ChangeKind::Issued => (CreditAccount::Issued, pool),
        ChangeKind::Drawn => (pool, CreditAccount::Spent),
        ChangeKind::GivenBack => (CreditAccount::Spent, pool),
        ChangeKind::Expired => (pool, CreditAccount::Expired),
        ChangeKind::Refunded | ChangeKind::Voided => (pool, CreditAccount::TakenBack),
    };
    let posting = |account: CreditAccount, amount| {
        let account_name = account.name(&terms.unit);
        (NewPosting { account: account_name, amount, expected_version: None }, account.floor())
    };
    let taken = Quantity::ZERO.checked_sub(amount).ok_or(Inexact)?;
    Ok([posting(from, taken), posting(to, amount)])
}

/// The key of the entry that a change is written with.
pub fn entry_key(change: u64) -> OnceKey {
    OnceKey::parse(&format!("credits.{change}")).expect("a short key")
}

#[cfg(test)]
mod tests;
