//! Invoices of subscriptions: drafted at the end of a period, finalized an hour later.
//!
//! Invariant: the invoice of a whole period bills the usage that was aggregated before it was
//! finalized. An invoice within a period, for a price that was replaced or a subscription that
//! ended, bills the usage that was aggregated when it was drafted. Usage that is aggregated later,
//! and usage of a trial, is on no invoice. A negative quantity is invoiced as zero.
//! While the webhook about the draft is not delivered, finalization waits, for up to three days.
//! A graduated price has a line for each tier, see `rates`.
//! An invoice includes its first ten lines; a list of its own has all. A crash leaves nothing.

use crate::decimal::Decimal;
use crate::lists::{PAGING, Range, page, page_of};
use crate::params::Params;
use crate::rates::Charge;
use crate::request::{Answer, ApiError};
use crate::schedule::Task;
use crate::subscriptions::{Item, Subscription};
use crate::summaries::{Interval, aggregate, aggregated_until, counted};
use crate::{Simulator, credit_grants, payments, tax};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const DRAFT_SECONDS: i64 = 3_600;
const DRAFT_SECONDS_MAX: i64 = 72 * 3_600;
const LINES_SHOWN_MAX: usize = 10;

/// Why the invoice was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Cycle,
    /// A subscription begins, and its flat prices are paid in advance.
    Create,
    /// A price was replaced or the subscription ended, within a period.
    Update,
}

/// What a line bills.
#[derive(Debug, Clone)]
pub struct Billed {
    pub item: Item,
    pub period: Interval,
    /// Whether the period is a trial, which costs nothing.
    pub trial: bool,
    /// The billed usage, once later usage is not added any more.
    pub fixed: Option<Decimal>,
}

/// An invoice as the API returns it: everything but its lines, and all of its lines.
#[derive(Debug, Clone)]
pub struct Sheet {
    pub header: Value,
    pub lines: Vec<Value>,
}

impl Sheet {
    /// The invoice with the lines that it includes.
    pub fn shown(&self) -> Value {
        let mut shown = self.header.clone();
        let first = self.lines.len().min(LINES_SHOWN_MAX);
        shown["lines"] = json!({
            "object": "list", "data": self.lines[..first],
            "has_more": self.lines.len() > first,
            "url": format!("/v1/invoices/{}/lines", shown["id"].as_str().unwrap_or_default()),
        });
        shown
    }

    pub fn status(&self) -> &str {
        self.header["status"].as_str().unwrap_or_default()
    }

    pub fn amount(&self, name: &str) -> i64 {
        self.header[name].as_i64().unwrap_or(0)
    }
}

#[derive(Debug, Clone)]
pub struct Invoice {
    pub id: String,
    pub subscription: String,
    pub customer: String,
    pub tax_percent: Option<Decimal>,
    /// The invoice as finalized.
    pub fixed: Option<Sheet>,
    reason: Reason,
    billed: Vec<Billed>,
    period: Interval,
    /// When it will be finalized; none if only a call finalizes it.
    due: Option<i64>,
    /// The id of the event `invoice.created`.
    created_event: String,
}

impl Invoice {
    pub fn status(&self) -> &str {
        self.fixed.as_ref().map_or("draft", Sheet::status)
    }
}

/// Invoices by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Invoices {
    all: BTreeMap<String, Invoice>,
}

impl Invoices {
    pub fn get(&self, id: &str) -> Result<&Invoice, ApiError> {
        self.all.get(id).ok_or_else(|| ApiError::missing("invoice", id))
    }
}

/// Drafts an invoice with these lines; returns its id. While the subscription is unpaid, a new
/// invoice stays a draft, as at Stripe.
pub fn draft(
    simulator: &mut Simulator,
    subscription: &Subscription,
    billed: Vec<Billed>,
    reason: Reason,
    period: Interval,
) -> String {
    let id = simulator.next_id("in");
    let due = (subscription.status() != "unpaid").then_some(period.end + DRAFT_SECONDS);
    let mut invoice = Invoice {
        id: id.clone(),
        subscription: subscription.id.clone(),
        customer: subscription.customer.clone(),
        tax_percent: None,
        fixed: None,
        reason,
        billed,
        period,
        due,
        created_event: String::new(),
    };
    if reason != Reason::Cycle {
        for place in 0..invoice.billed.len() {
            let aggregated = usage(simulator, &invoice, &invoice.billed[place], period.end);
            invoice.billed[place].fixed = Some(aggregated);
        }
    }
    let shown = sheet(simulator, &invoice, period.end).shown();
    invoice.created_event = simulator.emit("invoice.created", &shown);
    simulator.invoices.all.insert(id.clone(), invoice);
    if let Some(due) = due {
        simulator.schedule.add(due, Task::Finalize(id.clone()));
    }
    id
}

/// Finalizes a draft that is due, or postpones it.
pub fn finalize_or_wait(simulator: &mut Simulator, id: &str, at: i64) {
    let Some(invoice) = simulator.invoices.all.get_mut(id) else { return };
    if invoice.fixed.is_some() || invoice.due != Some(at) {
        return;
    }
    let latest = invoice.period.end + DRAFT_SECONDS_MAX;
    if at < latest && !simulator.webhooks.all_delivered(&invoice.created_event) {
        let due = latest.min(at + DRAFT_SECONDS);
        invoice.due = Some(due);
        simulator.schedule.add(due, Task::Finalize(id.to_owned()));
        return;
    }
    finalize(simulator, id, at);
    payments::collect(simulator, id, at, payments::Attempt::Automatic);
}

fn finalize(simulator: &mut Simulator, id: &str, at: i64) {
    let Some(invoice) = simulator.invoices.all.get(id).cloned() else { return };
    let draft = sheet(simulator, &invoice, at);
    let before = draft.shown();
    let mut fixed = draft;
    apply_credit(simulator, &invoice.customer, &mut fixed, at);
    tax::total(&mut fixed, invoice.tax_percent);
    let header = &mut fixed.header;
    header["status"] = "open".into();
    header["automatically_finalizes_at"] = Value::Null;
    header["next_payment_attempt"] = Value::Null;
    header["status_transitions"]["finalized_at"] = at.into();
    let after = fixed.shown();
    if let Some(invoice) = simulator.invoices.all.get_mut(id) {
        invoice.fixed = Some(fixed);
    }
    simulator.emit_change("invoice.updated", &before, &after);
    simulator.emit("invoice.finalized", &after);
}

/// Pays lines from credit, the first line first.
fn apply_credit(simulator: &mut Simulator, customer: &str, sheet: &mut Sheet, at: i64) {
    let currency = sheet.header["currency"].as_str().unwrap_or_default().to_owned();
    let mut totals: Vec<(String, i64)> = Vec::new();
    let shown = |(grant, amount): &(String, i64)| {
        let kind = "credit_balance_transaction";
        json!({ "amount": amount, "type": kind, "credit_grant": grant })
    };
    for line in &mut sheet.lines {
        let amount = line["amount"].as_i64().unwrap_or(0);
        let paid = credit_grants::apply(simulator, customer, &currency, amount, at);
        line["pretax_credit_amounts"] = paid.iter().map(shown).collect();
        for (grant, amount) in paid {
            match totals.iter_mut().find(|(known, _)| *known == grant) {
                Some((_, total)) => *total += amount,
                None => totals.push((grant, amount)),
            }
        }
    }
    sheet.header["total_pretax_credit_amounts"] = totals.iter().map(shown).collect();
}

pub fn finalize_now(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&["auto_advance"])?;
    let automatic = params.boolean("auto_advance")?.unwrap_or(true);
    finalize_draft(simulator, id)?;
    if automatic {
        let now = simulator.now_seconds();
        payments::collect(simulator, id, now, payments::Attempt::Automatic);
    } else {
        change(simulator, id, |sheet| sheet.header["auto_advance"] = false.into());
    }
    retrieve(simulator, id)
}

/// Finalizes a draft before its time.
pub fn finalize_draft(simulator: &mut Simulator, id: &str) -> Result<(), ApiError> {
    if simulator.invoices.get(id)?.fixed.is_some() {
        return Err(ApiError::refused("This invoice is already finalized."));
    }
    let now = simulator.now_seconds();
    finalize(simulator, id, now);
    Ok(())
}

/// Changes a finalized invoice and emits the event; returns the invoice.
pub fn change(simulator: &mut Simulator, id: &str, edit: impl FnOnce(&mut Sheet)) -> Value {
    let invoice = simulator.invoices.all.get_mut(id);
    let Some(sheet) = invoice.and_then(|invoice| invoice.fixed.as_mut()) else {
        return Value::Null;
    };
    let before = sheet.shown();
    edit(sheet);
    let after = sheet.shown();
    simulator.emit_change("invoice.updated", &before, &after);
    after
}

/// Sets the tax rate of an invoice and emits the event.
pub fn set_tax(simulator: &mut Simulator, id: &str, percent: Decimal) -> Answer {
    let now = simulator.now_seconds();
    let before = simulator.invoices.get(id)?.clone();
    let mut after = before.clone();
    after.tax_percent = Some(percent);
    if let Some(fixed) = &mut after.fixed {
        tax::total(fixed, Some(percent));
    }
    let shown = sheet(simulator, &after, now).shown();
    simulator.emit_change("invoice.updated", &sheet(simulator, &before, now).shown(), &shown);
    simulator.invoices.all.insert(id.to_owned(), after);
    Ok(shown)
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    let invoice = simulator.invoices.get(id)?;
    Ok(sheet(simulator, invoice, simulator.now_seconds()).shown())
}

pub fn lines(simulator: &Simulator, id: &str, params: &Params) -> Answer {
    params.only(&PAGING)?;
    let invoice = simulator.invoices.get(id)?;
    let sheet = sheet(simulator, invoice, simulator.now_seconds());
    page(&sheet.lines, params, &format!("/v1/invoices/{id}/lines"))
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["customer", "subscription", "status", "created"]].concat())?;
    let customer = params.text("customer", usize::MAX)?;
    let subscription = params.text("subscription", usize::MAX)?;
    let created = Range::read(params, "created")?;
    let status = params.choice("status", &["draft", "open", "paid", "uncollectible", "void"])?;
    let wanted = |invoice: &&Invoice| {
        created.contains(invoice.period.end)
            && customer.as_ref().is_none_or(|customer| invoice.customer == *customer)
            && subscription.as_ref().is_none_or(|id| invoice.subscription == *id)
            && status.as_ref().is_none_or(|status| invoice.status() == status)
    };
    let now = simulator.now_seconds();
    let found: Vec<&Invoice> = simulator.invoices.all.values().rev().filter(wanted).collect();
    let show = |invoice: &&Invoice| sheet(simulator, invoice, now).shown();
    page_of(&found, |invoice| &invoice.id, show, params, "/v1/invoices")
}

/// The invoice: as finalized, or with the usage that was aggregated until then.
fn sheet(simulator: &Simulator, invoice: &Invoice, until: i64) -> Sheet {
    if let Some(fixed) = &invoice.fixed {
        return fixed.clone();
    }
    let mut lines = Vec::new();
    for billed in &invoice.billed {
        let quantity = usage(simulator, invoice, billed, until);
        for charge in billed.item.price.rate.charges(quantity) {
            let mut shown = line(invoice, billed, charge);
            shown["id"] = format!("il_{}_{}", invoice.id, lines.len()).into();
            lines.push(shown);
        }
    }
    let currency = invoice.billed.first().map(|billed| billed.item.price.currency.clone());
    let reason = match invoice.reason {
        Reason::Cycle => "subscription_cycle",
        Reason::Create => "subscription_create",
        Reason::Update => "subscription_update",
    };
    let header = json!({
        "id": invoice.id, "object": "invoice", "status": "draft", "livemode": false,
        "billing_reason": reason, "customer": invoice.customer,
        "created": invoice.period.end, "automatically_finalizes_at": invoice.due,
        "auto_advance": invoice.due.is_some(), "collection_method": "charge_automatically",
        "currency": currency, "attempted": false, "attempt_count": 0, "amount_paid": 0,
        "next_payment_attempt": invoice.due,
        "period_start": invoice.period.start, "period_end": invoice.period.end,
        "total_pretax_credit_amounts": [], "metadata": {},
        "pre_payment_credit_notes_amount": 0, "post_payment_credit_notes_amount": 0,
        "status_transitions": {
            "finalized_at": null, "paid_at": null, "voided_at": null,
            "marked_uncollectible_at": null,
        },
        "parent": {
            "type": "subscription_details",
            "subscription_details": { "subscription": invoice.subscription, "metadata": {} },
        },
    });
    let mut sheet = Sheet { header, lines };
    tax::total(&mut sheet, invoice.tax_percent);
    sheet
}

fn usage(simulator: &Simulator, invoice: &Invoice, billed: &Billed, until: i64) -> Decimal {
    if billed.trial {
        return Decimal::ZERO;
    }
    if let Some(fixed) = billed.fixed {
        return fixed;
    }
    let Some(meter) = &billed.item.price.meter else { return Decimal::ONE };
    let Ok(meter) = simulator.meters.get(meter) else { return Decimal::ZERO };
    let customer = &invoice.customer;
    let until = aggregated_until(simulator, until);
    let events = counted(&simulator.meter_events, meter, customer, billed.period, until);
    aggregate(meter.formula, &events).max(Decimal::ZERO)
}

fn line(invoice: &Invoice, billed: &Billed, charge: Charge) -> Value {
    let price = &billed.item.price;
    let Charge { quantity, unit_amount, amount, description } = charge;
    let whole = i64::try_from(quantity.units() / Decimal::ONE.units()).unwrap_or(i64::MAX);
    let description = match (billed.trial, &price.meter) {
        (true, _) => "Trial period",
        (false, Some(_)) => &description,
        (false, None) => "Flat fee",
    };
    json!({
        "object": "line_item", "amount": amount, "subtotal": amount, "invoice": invoice.id,
        "currency": price.currency, "description": description, "discounts": [],
        "livemode": false, "metadata": {},
        "quantity": whole, "quantity_decimal": quantity.to_string(),
        "period": { "start": billed.period.start, "end": billed.period.end },
        "pricing": {
            "type": "price_details",
            "unit_amount_decimal": unit_amount.map(|amount| amount.to_string()),
            "price_details": { "price": price.id, "product": price.product },
        },
        "parent": {
            "type": "subscription_item_details",
            "subscription_item_details": {
                "subscription": invoice.subscription, "subscription_item": billed.item.id,
            },
        },
        "pretax_credit_amounts": [], "taxes": [],
    })
}
