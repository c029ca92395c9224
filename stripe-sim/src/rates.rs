//! Rates of prices: one amount for each unit, or graduated tiers.
//!
//! A graduated price bills the units inside each tier at the tier's amount. An invoice then has one
//! line for each tier that was reached, and one more with quantity zero for each tier that has a
//! flat amount; the first tier is on the invoice even if nothing was used. The unit amount that
//! such a line shows is rounded to the currency's smallest unit, so it does not reproduce the
//! line's amount.
//!
//! Invariant: the quantities of a price's lines sum to what was used. A crash leaves nothing.

use crate::decimal::Decimal;
use crate::params::Params;
use crate::request::ApiError;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub enum Rate {
    /// Of the currency's smallest unit.
    PerUnit(Decimal),
    Graduated(Vec<Tier>),
}

/// Units above the tier before it, up to its own bound.
#[derive(Debug, Clone)]
pub struct Tier {
    /// None for the last one.
    up_to: Option<Decimal>,
    unit_amount: Decimal,
    flat_amount: Option<Decimal>,
}

/// What one line of an invoice bills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    pub quantity: Decimal,
    pub unit_amount: Option<Decimal>,
    pub amount: i64,
    pub description: String,
}

impl Rate {
    pub fn read(params: &Params) -> Result<Self, ApiError> {
        let scheme = params.choice("billing_scheme", &["per_unit", "tiered"])?;
        if scheme.as_deref() != Some("tiered") {
            let amount = amount(params, "unit_amount")?;
            let amount = amount.ok_or_else(|| params.missing("unit_amount_decimal"))?;
            return Ok(Self::PerUnit(amount));
        }
        let mode = params.required_text("tiers_mode", usize::MAX)?;
        if mode != "graduated" {
            let message = "This simulator knows no tiers_mode other than graduated.";
            return Err(ApiError::parameter("tiers_mode", message));
        }
        let tiers = params.objects("tiers")?;
        let tiers: Vec<Tier> = tiers.iter().map(read_tier).collect::<Result<_, _>>()?;
        let (last, bounded) = tiers.split_last().ok_or_else(|| params.missing("tiers"))?;
        let bounds: Vec<Option<Decimal>> = bounded.iter().map(|tier| tier.up_to).collect();
        if last.up_to.is_some() || bounds.contains(&None) || !bounds.is_sorted() {
            let message = "Tiers must ascend, and the last one has `up_to` = `inf`.";
            return Err(ApiError::parameter("tiers", message));
        }
        Ok(Self::Graduated(tiers))
    }

    pub fn scheme(&self) -> &'static str {
        match self {
            Self::PerUnit(_) => "per_unit",
            Self::Graduated(_) => "tiered",
        }
    }

    pub fn tiers_mode(&self) -> Option<&'static str> {
        match self {
            Self::PerUnit(_) => None,
            Self::Graduated(_) => Some("graduated"),
        }
    }

    pub fn unit_amount(&self) -> Option<String> {
        match self {
            Self::PerUnit(amount) => Some(amount.to_string()),
            Self::Graduated(_) => None,
        }
    }

    pub fn tiers_json(&self) -> Value {
        match self {
            Self::PerUnit(_) => Value::Null,
            Self::Graduated(tiers) => tiers
                .iter()
                .map(|tier| {
                    json!({
                        "up_to": tier.up_to.map(|up_to| up_to.units() / Decimal::ONE.units()),
                        "unit_amount_decimal": tier.unit_amount.to_string(),
                        "flat_amount_decimal": tier.flat_amount.map(|flat| flat.to_string()),
                    })
                })
                .collect(),
        }
    }

    /// The lines for a quantity.
    pub fn charges(&self, quantity: Decimal) -> Vec<Charge> {
        match self {
            Self::PerUnit(unit) => vec![Charge {
                quantity,
                unit_amount: Some(*unit),
                amount: multiply(*unit, quantity),
                description: "Usage".to_owned(),
            }],
            Self::Graduated(tiers) => graduated(tiers, quantity),
        }
    }
}

fn read_tier(params: &Params) -> Result<Tier, ApiError> {
    let names = ["unit_amount", "unit_amount_decimal", "flat_amount", "flat_amount_decimal"];
    params.only(&[&names[..], &["up_to"]].concat())?;
    let up_to = match params.required_text("up_to", 20)?.as_str() {
        "inf" => None,
        number => Some(decimal("tiers[up_to]", number)?),
    };
    let unit_amount = amount(params, "unit_amount")?.unwrap_or_default();
    Ok(Tier { up_to, unit_amount, flat_amount: amount(params, "flat_amount")? })
}

/// An amount as `name` or `name_decimal`.
fn amount(params: &Params, name: &str) -> Result<Option<Decimal>, ApiError> {
    let long = format!("{name}_decimal");
    let text = match params.text(name, 20)? {
        Some(text) => Some(text),
        None => params.text(&long, 40)?,
    };
    text.map(|text| decimal(&long, &text)).transpose()
}

fn decimal(name: &str, text: &str) -> Result<Decimal, ApiError> {
    let refused = |_| ApiError::parameter(name, format!("Invalid decimal: {text}"));
    text.parse().map_err(refused)
}

fn graduated(tiers: &[Tier], quantity: Decimal) -> Vec<Charge> {
    let (mut charges, mut below) = (Vec::new(), Decimal::ZERO);
    for (place, tier) in tiers.iter().enumerate() {
        if place > 0 && quantity <= below {
            break;
        }
        let reached = tier.up_to.map_or(quantity, |up_to| up_to.min(quantity));
        let inside = Decimal::from_units(reached.units() - below.units());
        let named = |amount: Decimal| format!("(Tier {} at {amount})", place + 1);
        charges.push(Charge {
            quantity: inside,
            unit_amount: Some(rounded(tier.unit_amount)),
            amount: multiply(tier.unit_amount, inside),
            description: format!("{inside} × Usage {}", named(tier.unit_amount)),
        });
        charges.extend(tier.flat_amount.map(|flat| Charge {
            quantity: Decimal::ZERO,
            unit_amount: None,
            amount: multiply(flat, Decimal::ONE),
            description: format!("Usage {}", named(flat)),
        }));
        below = reached;
    }
    charges
}

fn rounded(amount: Decimal) -> Decimal {
    let whole = i128::from(multiply(amount, Decimal::ONE));
    Decimal::from_units(whole * Decimal::ONE.units())
}

/// Quantity times price, rounded to the smallest unit, halves up.
fn multiply(unit: Decimal, quantity: Decimal) -> i64 {
    let (one, unit) = (Decimal::ONE.units(), unit.units());
    let (whole, fraction) = (quantity.units() / one, quantity.units() % one);
    let exact = whole
        .checked_mul(unit)
        .and_then(|amount| amount.checked_add(fraction.checked_mul(unit)? / one))
        .expect("a simulated amount fits into an i128");
    i64::try_from((exact + one / 2).div_euclid(one)).expect("a simulated amount fits into 64 bits")
}
