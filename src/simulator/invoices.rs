//! Invoices of subscription cycles: drafted at the end of a period, finalized an hour later.
//!
//! Invariant: usage of the period that was received before finalization is on the invoice; what
//! comes later is on none. A negative quantity is invoiced as zero. As long as nobody takes the
//! webhook about the draft, finalization waits, for three days at most. A crash leaves nothing.

use super::billing::{Item, Price, Subscription};
use super::lists::{PAGING, page};
use super::params::Params;
use super::request::ApiError;
use super::summaries::{Interval, aggregate, counted};
use super::{Answer, Simulator, credit_grants};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const DRAFT_SECONDS: i64 = 3_600;
const DRAFT_SECONDS_MAX: i64 = 72 * 3_600;

#[derive(Debug, Clone)]
struct Invoice {
    id: String,
    subscription: Subscription,
    period: Interval,
    /// When it will be finalized.
    due: i64,
    /// The event that told of the draft.
    told: String,
    /// The invoice as it was finalized.
    fixed: Option<Value>,
}

/// Invoices by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Invoices {
    all: BTreeMap<String, Invoice>,
    /// Nothing is due before this, in seconds; none means that nobody has looked.
    next: Option<i64>,
}

impl Invoices {
    /// Says that something may be due earlier than was thought.
    pub fn look_again(&mut self) {
        self.next = None;
    }
}

/// Drafts and finalizes what is due, in the order of time.
pub fn tick(simulator: &mut Simulator) {
    let now = simulator.now_seconds();
    if simulator.invoices.next.is_some_and(|next| now < next) {
        return;
    }
    loop {
        let end = simulator.billing.next_end().unwrap_or(i64::MAX);
        let drafts = simulator.invoices.all.values().filter(|invoice| invoice.fixed.is_none());
        let first = drafts.map(|invoice| (invoice.due, invoice.id.clone())).min();
        let due = first.as_ref().map_or(i64::MAX, |(due, _)| *due);
        if end.min(due) > now {
            simulator.invoices.next = Some(end.min(due));
            return;
        }
        match first {
            Some((due, id)) if due < end => finalize_or_wait(simulator, &id, due),
            Some(_) | None => draft(simulator, now),
        }
    }
}

/// Drafts the invoice of the first period that is over.
fn draft(simulator: &mut Simulator, now: i64) {
    let Some(subscription) = simulator.billing.end_period(now) else { return };
    let period = subscription.period();
    let id = simulator.next_id("in");
    let due = period.end + DRAFT_SECONDS;
    let told = String::new();
    let mut invoice = Invoice { id: id.clone(), subscription, period, due, told, fixed: None };
    let shown = show(simulator, &invoice, period.end);
    invoice.told = simulator.emit("invoice.created", &shown);
    simulator.invoices.all.insert(id, invoice);
}

fn finalize_or_wait(simulator: &mut Simulator, id: &str, at: i64) {
    let Some(invoice) = simulator.invoices.all.get_mut(id) else { return };
    let latest = invoice.period.end + DRAFT_SECONDS_MAX;
    if at < latest && !simulator.webhooks.all_delivered(&invoice.told) {
        invoice.due = latest.min(at + DRAFT_SECONDS);
        return;
    }
    finalize(simulator, id, at);
}

fn finalize(simulator: &mut Simulator, id: &str, at: i64) {
    let Some(invoice) = simulator.invoices.all.get(id).cloned() else { return };
    let mut fixed = show(simulator, &invoice, at);
    let subtotal = fixed["subtotal"].as_i64().unwrap_or(0);
    let currency = fixed["currency"].as_str().unwrap_or_default().to_owned();
    let customer = &invoice.subscription.customer;
    let applied = credit_grants::apply(simulator, customer, &currency, subtotal, at);
    let credit: i64 = applied.iter().map(|(_, amount)| *amount).sum();
    let amounts: Vec<Value> = applied
        .iter()
        .map(|(grant, amount)| {
            json!({ "amount": amount, "type": "credit_balance_transaction", "credit_grant": grant })
        })
        .collect();
    fixed["total_pretax_credit_amounts"] = amounts.into();
    for field in ["total", "total_excluding_tax", "amount_due"] {
        fixed[field] = (subtotal - credit).into();
    }
    fixed["status"] = "open".into();
    fixed["automatically_finalizes_at"] = Value::Null;
    fixed["status_transitions"]["finalized_at"] = at.into();
    if let Some(invoice) = simulator.invoices.all.get_mut(id) {
        invoice.fixed = Some(fixed.clone());
    }
    simulator.emit("invoice.finalized", &fixed);
}

pub fn finalize_now(simulator: &mut Simulator, id: &str) -> Answer {
    if find(simulator, id)?.fixed.is_some() {
        return Err(ApiError::refused("This invoice is already finalized."));
    }
    let now = simulator.now_seconds();
    finalize(simulator, id, now);
    retrieve(simulator, id)
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    let invoice = find(simulator, id)?;
    Ok(show(simulator, invoice, simulator.now_seconds()))
}

fn find<'s>(simulator: &'s Simulator, id: &str) -> Result<&'s Invoice, ApiError> {
    simulator.invoices.all.get(id).ok_or_else(|| ApiError::missing("invoice", id))
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["customer", "subscription", "status"]].concat())?;
    let customer = params.text("customer", usize::MAX)?;
    let subscription = params.text("subscription", usize::MAX)?;
    let status = params.choice("status", &["draft", "open", "paid", "void"])?;
    let wanted = |invoice: &&Invoice| {
        customer.as_ref().is_none_or(|customer| invoice.subscription.customer == *customer)
            && subscription.as_ref().is_none_or(|id| invoice.subscription.id == *id)
    };
    let now = simulator.now_seconds();
    let all = simulator.invoices.all.values().rev().filter(wanted);
    let shown = all.map(|invoice| show(simulator, invoice, now));
    let of_status =
        |shown: &Value| status.as_ref().is_none_or(|status| shown["status"] == status.as_str());
    page(shown.filter(of_status).collect(), params, "/v1/invoices")
}

/// The invoice with the usage that was received until then, unless it was finalized before.
fn show(simulator: &Simulator, invoice: &Invoice, until: i64) -> Value {
    if let Some(fixed) = &invoice.fixed {
        return fixed.clone();
    }
    let subscription = &invoice.subscription;
    let mut lines = Vec::new();
    let mut subtotal = 0;
    for (number, item) in subscription.items.iter().enumerate() {
        let quantity = usage(simulator, invoice, item, until);
        let amount = price_of(&item.price, quantity);
        subtotal += amount;
        let mut shown = line(invoice, item, quantity, amount);
        shown["id"] = format!("il_{}_{number}", invoice.id).into();
        lines.push(shown);
    }
    let currency = subscription.items.first().map(|item| item.price.currency.clone());
    json!({
        "id": invoice.id, "object": "invoice", "status": "draft", "livemode": false,
        "billing_reason": "subscription_cycle", "customer": subscription.customer,
        "created": invoice.period.end, "automatically_finalizes_at": invoice.due,
        "auto_advance": true, "collection_method": "charge_automatically", "currency": currency,
        "period_start": invoice.period.start, "period_end": invoice.period.end,
        "subtotal": subtotal, "subtotal_excluding_tax": subtotal, "total": subtotal,
        "total_excluding_tax": subtotal, "amount_due": subtotal, "total_taxes": [],
        "total_pretax_credit_amounts": [], "metadata": {},
        "status_transitions": { "finalized_at": null },
        "parent": {
            "type": "subscription_details",
            "subscription_details": { "subscription": subscription.id, "metadata": {} },
        },
        "lines": {
            "object": "list", "data": lines, "has_more": false,
            "url": format!("/v1/invoices/{}/lines", invoice.id),
        },
    })
}

fn usage(simulator: &Simulator, invoice: &Invoice, item: &Item, until: i64) -> Quantity {
    let Ok(meter) = simulator.meters.get(&item.price.meter) else { return Quantity::ZERO };
    let customer = &invoice.subscription.customer;
    // The whole last second counts.
    let until = Timestamp::from_micros(until.saturating_add(1).saturating_mul(MICROS_PER_SECOND));
    let events = counted(&simulator.meter_events, meter, customer, invoice.period, until);
    aggregate(meter.formula, &events).max(Quantity::ZERO)
}

fn line(invoice: &Invoice, item: &Item, quantity: Quantity, amount: i64) -> Value {
    let whole = i64::try_from(quantity.units() / Quantity::ONE.units()).unwrap_or(i64::MAX);
    json!({
        "object": "line_item", "amount": amount, "subtotal": amount,
        "currency": item.price.currency, "discounts": [], "livemode": false, "metadata": {},
        "quantity": whole, "quantity_decimal": quantity.to_string(),
        "period": { "start": invoice.period.start, "end": invoice.period.end },
        "pricing": {
            "type": "price_details", "unit_amount_decimal": item.price.unit_amount.to_string(),
            "price_details": { "price": item.price.id, "product": item.price.product },
        },
        "parent": {
            "type": "subscription_item_details",
            "subscription_item_details": {
                "subscription": invoice.subscription.id, "subscription_item": item.id,
            },
        },
        "pretax_credit_amounts": [], "taxes": [],
    })
}

/// Quantity times price, to the nearest of the smallest unit; a half goes up.
fn price_of(price: &Price, quantity: Quantity) -> i64 {
    let (one, unit) = (Quantity::ONE.units(), price.unit_amount.units());
    let (whole, fraction) = (quantity.units() / one, quantity.units() % one);
    let exact = whole
        .checked_mul(unit)
        .and_then(|amount| amount.checked_add(fraction.checked_mul(unit)? / one))
        .expect("a simulated amount fits into an i128");
    i64::try_from((exact + one / 2).div_euclid(one)).expect("a simulated amount fits into 64 bits")
}
