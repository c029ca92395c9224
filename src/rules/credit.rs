//! Credits: what a tenant has paid for in advance (purchased) or was given (granted), and how usage
//! draws on it before it is billed.
//!
//! A grant is an amount of some unit, a currency or credits, and says what one unit of usage of
//! each meter costs in it. `covering` plans what a cut draws and gives back; `rules::grant` plans
//! how grants are issued, voided and expire.
//!
//! Invariant: what a grant has left is never negative and never above its amount; its amount equals
//! what is left plus all that was drawn and not given back, expired or voided. Every change is
//! one entry between the tenant's credit accounts (`rules::account`), so the same holds of sums.

pub mod covering;

use super::ids::{MeterNo, OnceKey, TenantId, Unit};
use super::named::named_enum;
use super::quantity::{Quantity, SCALE};
use super::refusal::Refusal;
use super::span::Span;
use super::timestamp::Timestamp;
use super::window::Window;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Grants of one tenant with anything left.
pub const GRANTS_MAX: usize = 100;
/// Meters of one grant.
pub const RATES_MAX: usize = 50;
/// Priorities are 0, drawn first, to this.
pub const PRIORITY_MAX: u8 = 100;
/// By how much the clocks of two servers that stamp events may differ, and more.
const CLOCKS_APART: Span = Span::from_hours(1);

named_enum! {
    pub enum Pool {
        /// Given.
        Granted = "granted",
        /// Paid for.
        Purchased = "purchased",
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
    /// Why, for readers of the history.
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

named_enum! {
    /// What happened to a grant.
    pub enum ChangeKind {
        Issued = "issued",
        /// Usage was covered by it.
        Drawn = "drawn",
        /// Usage it had covered turned out not to have been used.
        GivenBack = "given_back",
        Expired = "expired",
        /// Paid back to the payer.
        Refunded = "refunded",
        /// Taken away again.
        Voided = "voided",
    }
}

impl ChangeKind {
    /// Whether it raises what is left of its grant.
    pub(super) fn raises(self) -> bool {
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

/// Larger than can be held, or not exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an amount of credits cannot be held exactly")]
pub struct Inexact;

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

impl GrantTerms {
    /// Whether usage of a window, at unknown moments inside it, is covered: a tenant that
    /// tops up and continues to use expects it to be.
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

    /// Checks what follows from the terms and the decimal places of the meters' usage.
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

#[cfg(test)]
mod tests;
