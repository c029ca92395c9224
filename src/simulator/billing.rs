//! Metered prices and subscriptions to them.
//!
//! Invariant: the periods of a subscription follow each other without gap or overlap, each counted
//! from the anchor, so that the end of a short month does not move those after it. A crash leaves
//! nothing.

use super::lists::{PAGING, page};
use super::params::Params;
use super::request::ApiError;
use super::summaries::Interval;
use super::{Answer, Simulator};
use crate::rules::quantity::Quantity;
use jiff::ToSpan;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cadence {
    Day,
    Week,
    Month,
    Year,
}

#[derive(Debug, Clone)]
pub struct Price {
    pub id: String,
    pub meter: String,
    pub product: String,
    pub currency: String,
    /// Of the currency's smallest unit.
    pub unit_amount: Quantity,
    cadence: Cadence,
    created: i64,
}

impl Price {
    fn to_json(&self) -> Value {
        let interval = match self.cadence {
            Cadence::Day => "day",
            Cadence::Week => "week",
            Cadence::Month => "month",
            Cadence::Year => "year",
        };
        json!({
            "id": self.id, "object": "price", "active": true, "created": self.created,
            "billing_scheme": "per_unit", "currency": self.currency, "livemode": false,
            "product": self.product, "type": "recurring", "metadata": {},
            "unit_amount_decimal": self.unit_amount.to_string(),
            "recurring": {
                "interval": interval, "interval_count": 1, "meter": self.meter,
                "usage_type": "metered",
            },
        })
    }
}

/// One price of a subscription.
#[derive(Debug, Clone)]
pub struct Item {
    pub id: String,
    pub price: Price,
}

#[derive(Debug, Clone)]
pub struct Subscription {
    pub id: String,
    pub customer: String,
    pub items: Vec<Item>,
    pub cancel_at_period_end: bool,
    /// When it was cancelled, in seconds.
    pub ended: Option<i64>,
    anchor: i64,
    /// Periods that have ended.
    periods: i64,
    metadata: Map<String, Value>,
}

impl Subscription {
    pub fn period(&self) -> Interval {
        let cadence = self.items.first().map_or(Cadence::Month, |item| item.price.cadence);
        Interval {
            start: after(self.anchor, cadence, self.periods),
            end: after(self.anchor, cadence, self.periods + 1),
        }
    }

    pub fn to_json(&self) -> Value {
        let period = self.period();
        let items: Vec<Value> = self
            .items
            .iter()
            .map(|item| {
                json!({
                    "id": item.id, "object": "subscription_item", "created": self.anchor,
                    "current_period_start": period.start, "current_period_end": period.end,
                    "price": item.price.to_json(), "subscription": self.id, "metadata": {},
                })
            })
            .collect();
        json!({
            "id": self.id, "object": "subscription", "customer": self.customer,
            "created": self.anchor, "start_date": self.anchor,
            "billing_cycle_anchor": self.anchor, "livemode": false, "metadata": self.metadata,
            "cancel_at_period_end": self.cancel_at_period_end,
            "canceled_at": self.ended, "ended_at": self.ended,
            "status": if self.ended.is_some() { "canceled" } else { "active" },
            "items": {
                "object": "list", "data": items, "has_more": false,
                "url": format!("/v1/subscription_items?subscription={}", self.id),
            },
        })
    }
}

/// The anchor and so many steps; a month has its last day where the anchor's day is missing.
fn after(anchor: i64, cadence: Cadence, steps: i64) -> i64 {
    let span = match cadence {
        Cadence::Day => steps.days(),
        Cadence::Week => steps.weeks(),
        Cadence::Month => steps.months(),
        Cadence::Year => steps.years(),
    };
    let start = jiff::Timestamp::from_second(anchor).expect("a simulated instant is in range");
    let end = start.to_zoned(jiff::tz::TimeZone::UTC).checked_add(span);
    end.expect("a simulated period is in range").timestamp().as_second()
}

/// Prices and subscriptions by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Billing {
    prices: BTreeMap<String, Price>,
    subscriptions: BTreeMap<String, Subscription>,
}

impl Billing {
    /// When the first of the periods under way ends.
    pub fn next_end(&self) -> Option<i64> {
        let live = self.subscriptions.values().filter(|subscription| subscription.ended.is_none());
        live.map(|subscription| subscription.period().end).min()
    }

    /// Ends the first period that is over by now, and begins the next. Returns the subscription as
    /// it was.
    pub fn end_period(&mut self, now: i64) -> Option<Subscription> {
        let live = self.subscriptions.values_mut().filter(|found| found.ended.is_none());
        let first = live.min_by_key(|subscription| subscription.period().end);
        let subscription = first.filter(|subscription| subscription.period().end <= now)?;
        let before = subscription.clone();
        subscription.periods += 1;
        if subscription.cancel_at_period_end {
            subscription.ended = Some(before.period().end);
        }
        Some(before)
    }
}

pub fn create_price(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[
        "currency",
        "product",
        "product_data",
        "recurring",
        "unit_amount",
        "unit_amount_decimal",
        "billing_scheme",
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
    recurring.choice("usage_type", &["metered"])?;
    let meter = recurring.required_text("meter", usize::MAX)?;
    let known = simulator.meters.get(&meter).map_err(|e| e.referenced("recurring[meter]"))?;
    if !known.is_active() {
        return Err(ApiError::refused("An inactive meter cannot be attached to a price."));
    }
    let decimal = match params.text("unit_amount", 20)? {
        Some(amount) => amount,
        None => params.required_text("unit_amount_decimal", 40)?,
    };
    let unit_amount = Quantity::parse_stored(&decimal).ok_or_else(|| {
        ApiError::parameter("unit_amount_decimal", format!("Invalid decimal: {decimal}"))
    })?;
    let product = match params.text("product", usize::MAX)? {
        Some(product) => product,
        None => simulator.next_id("prod"),
    };
    let (id, created) = (simulator.next_id("price"), simulator.now_seconds());
    let price = Price { id, meter, product, currency, unit_amount, cadence, created };
    let shown = price.to_json();
    simulator.billing.prices.insert(price.id.clone(), price);
    simulator.emit("price.created", &shown);
    Ok(shown)
}

pub fn retrieve_price(simulator: &Simulator, id: &str) -> Answer {
    Ok(find_price(simulator, id)?.to_json())
}

fn find_price<'s>(simulator: &'s Simulator, id: &str) -> Result<&'s Price, ApiError> {
    simulator.billing.prices.get(id).ok_or_else(|| ApiError::missing("price", id))
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["customer", "items", "metadata", "billing_mode", "cancel_at_period_end"])?;
    let customer = params.required_text("customer", usize::MAX)?;
    simulator.customers.referenced(&customer)?;
    let mut items = Vec::new();
    for item in params.objects("items")? {
        item.only(&["price", "metadata"])?;
        let price = find_price(simulator, &item.required_text("price", usize::MAX)?);
        let price = price.map_err(|error| error.referenced("items[price]"))?.clone();
        items.push(Item { id: simulator.next_id("si"), price });
    }
    if items.is_empty() {
        return Err(params.missing("items"));
    }
    let subscription = Subscription {
        id: simulator.next_id("sub"),
        customer,
        items,
        cancel_at_period_end: params.boolean("cancel_at_period_end")?.unwrap_or(false),
        ended: None,
        anchor: simulator.now_seconds(),
        periods: 0,
        metadata: params.text_map("metadata")?,
    };
    Ok(store(simulator, subscription, "customer.subscription.created"))
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    Ok(find(simulator, id)?.to_json())
}

fn find<'s>(simulator: &'s Simulator, id: &str) -> Result<&'s Subscription, ApiError> {
    let found = simulator.billing.subscriptions.get(id);
    found.ok_or_else(|| ApiError::missing("subscription", id))
}

pub fn update(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&["metadata", "cancel_at_period_end"])?;
    let mut subscription = find(simulator, id)?.clone();
    subscription.metadata.extend(params.text_map("metadata")?);
    if let Some(cancel) = params.boolean("cancel_at_period_end")? {
        subscription.cancel_at_period_end = cancel;
    }
    Ok(store(simulator, subscription, "customer.subscription.updated"))
}

pub fn cancel(simulator: &mut Simulator, id: &str) -> Answer {
    let mut subscription = find(simulator, id)?.clone();
    if subscription.ended.is_some() {
        return Err(ApiError::missing("subscription", id));
    }
    subscription.ended = Some(simulator.now_seconds());
    Ok(store(simulator, subscription, "customer.subscription.deleted"))
}

/// Cancels what a customer that is deleted has.
pub fn cancel_all(simulator: &mut Simulator, customer: &str) {
    let live = |subscription: &&Subscription| {
        subscription.customer == customer && subscription.ended.is_none()
    };
    let found: Vec<Subscription> =
        simulator.billing.subscriptions.values().filter(live).cloned().collect();
    for mut subscription in found {
        subscription.ended = Some(simulator.now_seconds());
        store(simulator, subscription, "customer.subscription.deleted");
    }
}

/// Without `status` those that have ended are left out, as the provider does.
pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["customer", "status", "price"]].concat())?;
    let customer = params.text("customer", usize::MAX)?;
    let price = params.text("price", usize::MAX)?;
    let status = params.choice("status", &["all", "active", "canceled", "ended"])?;
    let wanted = |subscription: &&Subscription| {
        let of_status = match status.as_deref() {
            Some("all") => true,
            Some("canceled" | "ended") => subscription.ended.is_some(),
            Some(_) | None => subscription.ended.is_none(),
        };
        let has_price =
            |price: &String| subscription.items.iter().any(|item| item.price.id == *price);
        of_status
            && customer.as_ref().is_none_or(|customer| subscription.customer == *customer)
            && price.as_ref().is_none_or(has_price)
    };
    let found = simulator.billing.subscriptions.values().rev().filter(wanted);
    page(found.map(Subscription::to_json).collect(), params, "/v1/subscriptions")
}

fn store(simulator: &mut Simulator, subscription: Subscription, event: &str) -> Value {
    let shown = subscription.to_json();
    simulator.billing.subscriptions.insert(subscription.id.clone(), subscription);
    simulator.invoices.look_again();
    simulator.emit(event, &shown);
    shown
}
