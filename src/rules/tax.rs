//! Tax and discounts: what a list of amounts costs, with what is taken off and what is put on.
//!
//! A quote is a function of its request, the coupon and the rates that hold at its moment; nothing
//! else, so the same question always has the same answer. Discounts come first, then tax.
//!
//! Invariant: every figure of a quote is a whole number of the currency's smallest unit; net plus
//! tax is gross, on every line and in total; the discounts of the lines sum to the coupon's.
//! Rounding is half away from zero, once for each rate on each line; a price that holds its tax is
//! rounded once and its tax split. The answer states it.

use super::ids::{OnceKey, TenantId, Unit};
use super::quantity::{Quantity, SCALE};
use super::refusal::Refusal;
use super::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// Lines of one quote.
pub const LINES_MAX: usize = 200;
const JURISDICTION_BYTES_MAX: usize = 64;
/// How figures are rounded, in words, for checking a quote.
pub const ROUNDING: &str = "half away from zero; each rate on each line, or, where prices hold \
                            their tax, the tax of each line";

/// A tax on what is sold in a place, while it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaxRate {
    /// Such as `de` or `us-ny`; a place within another pays the rates of both.
    pub jurisdiction: String,
    /// What it is called on the bill; a jurisdiction has one rate of a name at a time.
    pub name: String,
    /// Such as 19 for 19 %.
    pub percent: Quantity,
    pub valid_from: Timestamp,
    /// None until another one is known.
    pub valid_until: Option<Timestamp>,
}

impl TaxRate {
    pub fn check(&self) -> Result<(), Refusal> {
        check_jurisdiction(&self.jurisdiction)?;
        if !is_plain(&self.name, JURISDICTION_BYTES_MAX) {
            let detail = "name has 1 to 64 bytes and no control characters, such as vat";
            return Err(Refusal::new("invalid_rate_name", detail));
        }
        // Six decimals of a percent are more than any law asks for, and keep products exact.
        let fine = self.percent.units() % 10i128.pow(SCALE - 6) == 0;
        if self.percent < Quantity::ZERO || self.percent > hundred() || !fine {
            let detail = "percent is 0 to 100 with at most 6 decimals";
            return Err(Refusal::new("invalid_percent", detail));
        }
        if self.valid_until.is_some_and(|end| end <= self.valid_from) {
            let detail = "valid_until must lie after valid_from";
            return Err(Refusal::new("invalid_validity", detail));
        }
        Ok(())
    }

    pub fn holds_at(&self, at: Timestamp) -> bool {
        self.valid_from <= at && self.valid_until.is_none_or(|end| at < end)
    }

    /// Whether both could hold at one moment under one name.
    pub fn overlaps(&self, other: &Self) -> bool {
        let begins_before =
            |one: &Self, two: &Self| two.valid_until.is_none_or(|end| one.valid_from < end);
        self.jurisdiction == other.jurisdiction
            && self.name == other.name
            && begins_before(self, other)
            && begins_before(other, self)
    }

    /// Whether what is sold in `place` pays it.
    fn applies_in(&self, place: &str) -> bool {
        place == self.jurisdiction
            || place.strip_prefix(&self.jurisdiction).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Text for people that has a length and fits on a line.
fn is_plain(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Money has the three letters of ISO 4217; other units have names of their own.
fn check_currency(text: &str) -> Result<(), Refusal> {
    if text.len() != 3 || !text.bytes().all(|b| b.is_ascii_lowercase()) {
        let detail = "currency is three small letters, such as eur or usd";
        return Err(Refusal::new("invalid_unit", detail));
    }
    Ok(())
}

pub fn check_jurisdiction(text: &str) -> Result<(), Refusal> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || text.len() > JURISDICTION_BYTES_MAX || !text.bytes().all(allowed) {
        let detail =
            "a jurisdiction is 1 to 64 characters of a-z, 0-9 and '-', such as de or us-ny";
        return Err(Refusal::new("invalid_jurisdiction", detail));
    }
    Ok(())
}

/// What a coupon takes off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Off {
    /// Of every line.
    Percent(Quantity),
    /// Of all lines together, in their currency.
    Amount(Quantity),
}

/// A discount that a tenant gets once in each billing cycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coupon {
    pub code: String,
    pub off: Off,
    /// For amounts: the currency.
    pub currency: Option<String>,
    pub valid_from: Timestamp,
    pub valid_until: Option<Timestamp>,
    /// In how many cycles one tenant gets it; none for all.
    pub cycles_max: Option<u32>,
}

impl Coupon {
    pub fn check(&self) -> Result<(), Refusal> {
        OnceKey::parse(&self.code)
            .map_err(|_| Refusal::new("invalid_coupon", "a coupon's code has 1 to 255 bytes"))?;
        let fits = match &self.off {
            Off::Percent(percent) => {
                self.currency.is_none() && *percent > Quantity::ZERO && *percent <= hundred()
            }
            Off::Amount(amount) => match &self.currency {
                Some(currency) => {
                    Unit::parse(currency).is_ok()
                        && *amount > Quantity::ZERO
                        && amount.units() % smallest(currency) == 0
                }
                None => false,
            },
        };
        if !fits {
            let detail = "off is {\"percent\": above 0 to 100} without a currency, or \
                          {\"amount\": above 0} in whole smallest units of its currency";
            return Err(Refusal::new("invalid_coupon", detail));
        }
        if self.valid_until.is_some_and(|end| end <= self.valid_from) || self.cycles_max == Some(0)
        {
            let detail = "valid_until must lie after valid_from, and cycles_max is at least 1";
            return Err(Refusal::new("invalid_coupon", detail));
        }
        Ok(())
    }

    pub fn holds_at(&self, at: Timestamp) -> bool {
        self.valid_from <= at && self.valid_until.is_none_or(|end| at < end)
    }
}

/// Whether a line's amount holds its tax already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceKind {
    Inclusive,
    Exclusive,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuoteLine {
    /// The sender's name for it.
    pub id: String,
    pub amount: Quantity,
}

/// What is to be quoted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuoteRequest {
    pub tenant: TenantId,
    pub currency: String,
    pub jurisdiction: String,
    pub prices: PriceKind,
    /// The moment whose rates hold.
    pub at: Timestamp,
    pub lines: Vec<QuoteLine>,
    pub coupon: Option<String>,
    /// Start of the billing cycle, in which a coupon counts once.
    pub cycle: Option<Timestamp>,
}

impl QuoteRequest {
    pub fn check(&self) -> Result<(), Refusal> {
        check_currency(&self.currency)?;
        check_jurisdiction(&self.jurisdiction)?;
        if self.lines.is_empty() || self.lines.len() > LINES_MAX {
            let detail = format!("a quote has 1 to {LINES_MAX} lines");
            return Err(Refusal::new("invalid_lines", detail));
        }
        let smallest = smallest(&self.currency);
        for line in &self.lines {
            if line.amount < Quantity::ZERO || line.amount.units() % smallest != 0 {
                let detail = format!(
                    "the amount of line {} must be a whole number of the smallest units of {}",
                    line.id, self.currency
                );
                return Err(Refusal::new("invalid_amount", detail));
            }
        }
        if self.coupon.is_some() && self.cycle.is_none() {
            let detail = "a coupon counts once in a billing cycle: give cycle, its start";
            return Err(Refusal::new("cycle_missing", detail));
        }
        Ok(())
    }
}

/// One tax on one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineTax {
    pub jurisdiction: String,
    pub name: String,
    pub percent: Quantity,
    pub amount: Quantity,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotedLine {
    pub id: String,
    /// As it was asked.
    pub amount: Quantity,
    pub discount: Quantity,
    /// After the discount, without tax.
    pub net: Quantity,
    pub taxes: Vec<LineTax>,
    /// What is to be paid.
    pub gross: Quantity,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quote {
    pub lines: Vec<QuotedLine>,
    pub discount: Quantity,
    pub net: Quantity,
    pub tax: Quantity,
    pub gross: Quantity,
    pub rounding: String,
}

/// What each line loses by a coupon; the parts sum to what the coupon takes off.
pub fn discounts(
    request: &QuoteRequest,
    coupon: Option<&Coupon>,
) -> Result<Vec<Quantity>, Refusal> {
    let amounts: Vec<i128> = request.lines.iter().map(|line| line.amount.units()).collect();
    let smallest = smallest(&request.currency);
    let none = vec![Quantity::ZERO; amounts.len()];
    let Some(coupon) = coupon else { return Ok(none) };
    let taken = match &coupon.off {
        Off::Percent(percent) => amounts
            .iter()
            .map(|amount| round_ratio(*amount, percent.units(), hundred().units(), smallest))
            .collect::<Option<Vec<i128>>>()
            .ok_or_else(too_large)?,
        Off::Amount(off) => spread(&amounts, off.units(), smallest).ok_or_else(too_large)?,
    };
    Ok(taken.into_iter().map(Quantity::from_units).collect())
}

/// Spreads an amount over lines in proportion, in whole smallest units, never more than a line
/// has; what proportions leave goes to the first lines that have room.
fn spread(amounts: &[i128], off: i128, smallest: i128) -> Option<Vec<i128>> {
    let total: i128 = amounts.iter().sum();
    let off = off.min(total);
    if total == 0 {
        return Some(vec![0; amounts.len()]);
    }
    let mut parts = Vec::with_capacity(amounts.len());
    for amount in amounts {
        let share = (amount / smallest).checked_mul(off / smallest)? / (total / smallest);
        parts.push(share * smallest);
    }
    let mut left = off - parts.iter().sum::<i128>();
    for (part, amount) in parts.iter_mut().zip(amounts) {
        let more = left.min(amount - *part).min(smallest);
        *part += more;
        left -= more;
    }
    assert_eq!(left, 0, "proportions leave less than a unit for each line");
    Some(parts)
}

/// Quotes by a table of rates.
pub fn quote(
    request: &QuoteRequest,
    discounts: &[Quantity],
    rates: &[TaxRate],
) -> Result<Quote, Refusal> {
    let mut holding: Vec<&TaxRate> = rates
        .iter()
        .filter(|rate| rate.applies_in(&request.jurisdiction) && rate.holds_at(request.at))
        .collect();
    if holding.is_empty() {
        let detail = format!(
            "there is no tax rate for {} at {}; PUT /v1/tax/rates declares one, with percent 0 if \
             nothing is due there",
            request.jurisdiction, request.at
        );
        return Err(Refusal::new("no_tax_rate", detail));
    }
    holding.sort_by(|a, b| (&a.jurisdiction, &a.name).cmp(&(&b.jurisdiction, &b.name)));
    let mut lines = Vec::with_capacity(request.lines.len());
    for (line, discount) in request.lines.iter().zip(discounts) {
        lines.push(quote_line(request, line, *discount, &holding).ok_or_else(too_large)?);
    }
    total_up(lines).ok_or_else(too_large)
}

/// A quote of lines, with their sums.
pub fn total_up(lines: Vec<QuotedLine>) -> Option<Quote> {
    let zero = Quantity::ZERO;
    let (mut discount, mut net, mut gross) = (zero, zero, zero);
    for line in &lines {
        discount = discount.checked_add(line.discount)?;
        net = net.checked_add(line.net)?;
        gross = gross.checked_add(line.gross)?;
    }
    let tax = gross.checked_sub(net)?;
    Some(Quote { lines, discount, net, tax, gross, rounding: ROUNDING.to_owned() })
}

fn quote_line(
    request: &QuoteRequest,
    line: &QuoteLine,
    discount: Quantity,
    rates: &[&TaxRate],
) -> Option<QuotedLine> {
    let smallest = smallest(&request.currency);
    let price = line.amount.checked_sub(discount)?;
    let units = match request.prices {
        PriceKind::Exclusive => tax_on(price.units(), rates, smallest)?,
        PriceKind::Inclusive => tax_within(price.units(), rates, smallest)?,
    };
    let mut taxes = Vec::with_capacity(rates.len());
    let mut tax = Quantity::ZERO;
    for (rate, units) in rates.iter().zip(units) {
        let amount = Quantity::from_units(units);
        tax = tax.checked_add(amount)?;
        let (jurisdiction, name) = (rate.jurisdiction.clone(), rate.name.clone());
        taxes.push(LineTax { jurisdiction, name, percent: rate.percent, amount });
    }
    let (net, gross) = match request.prices {
        PriceKind::Exclusive => (price, price.checked_add(tax)?),
        PriceKind::Inclusive => (price.checked_sub(tax)?, price),
    };
    let (id, amount) = (line.id.clone(), line.amount);
    Some(QuotedLine { id, amount, discount, net, taxes, gross })
}

/// What each rate puts on a price.
fn tax_on(price: i128, rates: &[&TaxRate], smallest: i128) -> Option<Vec<i128>> {
    let tax =
        |rate: &&TaxRate| round_ratio(price, rate.percent.units(), hundred().units(), smallest);
    rates.iter().map(tax).collect()
}

/// What of a price is each rate's: the whole is rounded and then split, so that it never exceeds
/// the price.
fn tax_within(price: i128, rates: &[&TaxRate], smallest: i128) -> Option<Vec<i128>> {
    let percents: i128 = rates.iter().map(|rate| rate.percent.units()).sum();
    if percents == 0 {
        return Some(vec![0; rates.len()]);
    }
    let whole = round_ratio(price, percents, hundred().units() + percents, smallest)?;
    let fine = 10i128.pow(SCALE - 6);
    let mut parts = Vec::with_capacity(rates.len());
    for rate in rates {
        let share = (whole / smallest).checked_mul(rate.percent.units() / fine)?;
        parts.push(share / (percents / fine) * smallest);
    }
    let left = (whole - parts.iter().sum::<i128>()) / smallest;
    let left = usize::try_from(left).ok()?;
    let taxed = parts.iter_mut().zip(rates).filter(|(_, rate)| rate.percent > Quantity::ZERO);
    taxed.take(left).for_each(|(part, _)| *part += smallest);
    Some(parts)
}

/// units × part / whole, to a whole number of `smallest`, half away from zero.
fn round_ratio(units: i128, part: i128, whole: i128, smallest: i128) -> Option<i128> {
    // Amounts are whole smallest units and percents have six decimals: both shrink exactly.
    let fine = 10i128.pow(SCALE - 6);
    let (part, whole) = if part % fine == 0 { (part / fine, whole / fine) } else { (part, whole) };
    let product = (units / smallest).checked_mul(part)?;
    let (quotient, rest) = (product / whole, product % whole);
    let up = rest.abs().checked_mul(2)? >= whole;
    let rounded = if up { quotient + product.signum() } else { quotient };
    rounded.checked_mul(smallest)
}

fn hundred() -> Quantity {
    Quantity::from_units(100 * Quantity::ONE.units())
}

/// The smallest unit of a currency: its cent, for most.
pub fn smallest(currency: &str) -> i128 {
    let digits = match currency {
        "bif" | "clp" | "djf" | "gnf" | "isk" | "jpy" | "kmf" | "krw" | "pyg" | "rwf" | "ugx"
        | "uyi" | "vnd" | "vuv" | "xaf" | "xof" | "xpf" => 0,
        "bhd" | "iqd" | "jod" | "kwd" | "lyd" | "omr" | "tnd" => 3,
        _ => 2,
    };
    10i128.pow(SCALE - digits)
}

fn too_large() -> Refusal {
    Refusal::new("amount_too_large", "an amount is larger than can be held exactly")
}

#[cfg(test)]
mod tests;
