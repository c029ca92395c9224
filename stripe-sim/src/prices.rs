//! Prices: metered ones, and flat ones that are paid in advance.
//!
//! Invariant: a price never changes, and its meter was active when it was made. A crash leaves
//! nothing.

use crate::Simulator;
use crate::lists::{PAGING, page_of};
use crate::params::Params;
use crate::rates::Rate;
use crate::request::{Answer, ApiError};
use jiff::ToSpan;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    Day,
    Week,
    Month,
    Year,
}

impl Cadence {
    /// The anchor plus this many steps. A month without the anchor's day ends the step on its last.
    pub fn after(self, anchor: i64, steps: i64) -> i64 {
        let span = match self {
            Self::Day => steps.days(),
            Self::Week => steps.weeks(),
            Self::Month => steps.months(),
            Self::Year => steps.years(),
        };
        let start = jiff::Timestamp::from_second(anchor).expect("a simulated instant is in range");
        let end = start.to_zoned(jiff::tz::TimeZone::UTC).checked_add(span);
        end.expect("a simulated period is in range").timestamp().as_second()
    }
}

#[derive(Debug, Clone)]
pub struct Price {
    pub id: String,
    /// None if the price is flat.
    pub meter: Option<String>,
    pub product: String,
    pub currency: String,
    pub rate: Rate,
    pub cadence: Cadence,
    created: i64,
}

impl Price {
    pub fn to_json(&self) -> Value {
        let interval = match self.cadence {
            Cadence::Day => "day",
            Cadence::Week => "week",
            Cadence::Month => "month",
            Cadence::Year => "year",
        };
        let usage_type = if self.meter.is_some() { "metered" } else { "licensed" };
        json!({
            "id": self.id, "object": "price", "active": true, "created": self.created,
            "billing_scheme": self.rate.scheme(), "tiers_mode": self.rate.tiers_mode(),
            "tiers": self.rate.tiers_json(), "currency": self.currency, "livemode": false,
            "product": self.product, "type": "recurring", "metadata": {},
            "unit_amount_decimal": self.rate.unit_amount(),
            "recurring": {
                "interval": interval, "interval_count": 1, "meter": self.meter,
                "usage_type": usage_type,
            },
        })
    }
}

/// Prices by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Prices {
    all: BTreeMap<String, Price>,
}

impl Prices {
    pub fn get(&self, id: &str) -> Result<&Price, ApiError> {
        self.all.get(id).ok_or_else(|| ApiError::missing("price", id))
    }
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[
        "currency",
        "product",
        "product_data",
        "recurring",
        "unit_amount",
        "unit_amount_decimal",
        "billing_scheme",
        "tiers",
        "tiers_mode",
        "metadata",
        "nickname",
    ])?;
    let currency = params.required_text("currency", 3)?;
    let recurring = params.required_nested("recurring")?;
    recurring.only(&["interval", "interval_count", "meter", "usage_type"])?;
    let interval = recurring.choice("interval", &["day", "week", "month", "year"])?;
    let cadence = match interval.as_deref() {
        Some("day") => Cadence::Day,
        Some("week") => Cadence::Week,
        Some("month") => Cadence::Month,
        Some(_) => Cadence::Year,
        None => return Err(recurring.missing("interval")),
    };
    if recurring.integer("interval_count")?.unwrap_or(1) != 1 {
        let message = "This simulator knows no interval_count other than 1.";
        return Err(ApiError::parameter("recurring[interval_count]", message));
    }
    let usage_type = recurring.choice("usage_type", &["metered", "licensed"])?;
    let meter = match usage_type.as_deref() {
        Some("licensed") => None,
        Some(_) | None => Some(active_meter(simulator, &recurring)?),
    };
    let rate = Rate::read(params)?;
    let product = match params.text("product", usize::MAX)? {
        Some(product) => product,
        None => simulator.next_id("prod"),
    };
    let (id, created) = (simulator.next_id("price"), simulator.now_seconds());
    let price = Price { id, meter, product, currency, rate, cadence, created };
    let shown = price.to_json();
    simulator.prices.all.insert(price.id.clone(), price);
    simulator.emit("price.created", &shown);
    Ok(shown)
}

fn active_meter(simulator: &Simulator, recurring: &Params) -> Result<String, ApiError> {
    let meter = recurring.required_text("meter", usize::MAX)?;
    let known = simulator.meters.get(&meter).map_err(|e| e.referenced("recurring[meter]"))?;
    if !known.is_active() {
        return Err(ApiError::refused("An inactive meter cannot be attached to a price."));
    }
    Ok(meter)
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    Ok(simulator.prices.get(id)?.to_json())
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["product", "recurring"]].concat())?;
    let product = params.text("product", usize::MAX)?;
    let meter = match params.nested("recurring")? {
        Some(recurring) => recurring.text("meter", usize::MAX)?,
        None => None,
    };
    let wanted = |price: &&Price| {
        product.as_ref().is_none_or(|product| price.product == *product)
            && meter.as_ref().is_none_or(|meter| price.meter.as_ref() == Some(meter))
    };
    let found: Vec<&Price> = simulator.prices.all.values().rev().filter(wanted).collect();
    page_of(&found, |price| &price.id, |price| price.to_json(), params, "/v1/prices")
}
