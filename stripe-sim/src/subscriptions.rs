//! Subscriptions to metered and flat prices: trials, periods, changes of prices, failed payments.
//! Flat prices are paid in advance and never prorated.
//!
//! Invariant: the periods of a subscription follow each other without gap or overlap, a trial
//! first. Each later period is counted from the anchor, so that a short month does not move those
//! after it. Usage is billed at the price of its time, or not at all. A crash leaves nothing.

use crate::invoices::{self, Billed, Reason};
use crate::lists::{PAGING, Range, page, page_of};
use crate::metadata;
use crate::params::Params;
use crate::prices::{Cadence, Price};
use crate::request::{Answer, ApiError};
use crate::schedule::Task;
use crate::summaries::Interval;
use crate::{Simulator, payments};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const DAY: i64 = 86_400;
/// How many items a subscription includes; a list of its own has all.
const ITEMS_SHOWN_MAX: usize = 10;
const PRORATIONS: [&str; 3] = ["create_prorations", "none", "always_invoice"];
/// Where a first payment is due, all of these act as `error_if_incomplete`.
const PAYMENT_BEHAVIORS: [&str; 4] =
    ["allow_incomplete", "default_incomplete", "error_if_incomplete", "pending_if_incomplete"];
const UPDATED: &str = "customer.subscription.updated";
const DELETED: &str = "customer.subscription.deleted";

/// One price of a subscription.
#[derive(Debug, Clone)]
pub struct Item {
    pub id: String,
    pub price: Price,
    created: i64,
    /// From when usage is billed at this price.
    since: i64,
}

/// What happens to the usage of a price that is replaced within a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BillingMode {
    /// It is dropped.
    Classic,
    /// It is billed at once, as far as aggregated.
    Flexible,
}

/// Whether a failed payment will be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Retried,
    Final,
}

#[derive(Debug, Clone)]
pub struct Subscription {
    pub id: String,
    pub customer: String,
    pub items: Vec<Item>,
    cancel_at_period_end: bool,
    /// When it was cancelled, in seconds.
    ended: Option<i64>,
    created: i64,
    /// Where periods are counted from.
    anchor: i64,
    trial: Option<Interval>,
    /// The time before an anchor that was asked for; usage of it is billed.
    lead: Option<Interval>,
    /// Periods that have ended, the trial or the time before the anchor included.
    periods: i64,
    mode: BillingMode,
    latest_invoice: Option<String>,
    /// Invoices whose payment failed and that are still open.
    failing: BTreeMap<String, Failure>,
    metadata: Map<String, Value>,
}

impl Subscription {
    pub fn period(&self) -> Interval {
        let cadence = self.items.first().map_or(Cadence::Month, |item| item.price.cadence);
        let step = match self.trial.or(self.lead) {
            Some(first) if self.periods == 0 => return first,
            Some(_) => self.periods - 1,
            None => self.periods,
        };
        Interval {
            start: cadence.after(self.anchor, step),
            end: cadence.after(self.anchor, step + 1),
        }
    }

    pub fn status(&self) -> &'static str {
        if self.ended.is_some() {
            "canceled"
        } else if self.is_in_trial() {
            "trialing"
        } else if self.failing.values().any(|failure| *failure == Failure::Final) {
            "unpaid"
        } else if self.failing.is_empty() {
            "active"
        } else {
            "past_due"
        }
    }

    fn is_in_trial(&self) -> bool {
        self.trial.is_some() && self.periods == 0
    }

    /// What an item is billed for in the current period, up to `end`.
    fn billed(&self, item: &Item, end: i64) -> Billed {
        let start = self.period().start.max(item.since);
        let (period, trial) = (Interval { start, end }, self.is_in_trial());
        Billed { item: item.clone(), period, trial, fixed: None }
    }

    /// What its metered items are billed for in the current period, up to `end`.
    fn metered(&self, end: i64) -> Vec<Billed> {
        let metered = self.items.iter().filter(|item| item.price.meter.is_some());
        metered.map(|item| self.billed(item, end)).collect()
    }

    /// What its flat items cost for a period.
    fn flat(&self, period: Interval) -> Vec<Billed> {
        let flat = self.items.iter().filter(|item| item.price.meter.is_none());
        let bill = |item: &Item| Billed { item: item.clone(), period, trial: false, fixed: None };
        flat.map(bill).collect()
    }

    pub fn to_json(&self) -> Value {
        let items: Vec<Value> = self.items_json().take(ITEMS_SHOWN_MAX).collect();
        let mode = match self.mode {
            BillingMode::Classic => "classic",
            BillingMode::Flexible => "flexible",
        };
        json!({
            "id": self.id, "object": "subscription", "customer": self.customer,
            "created": self.created, "start_date": self.created,
            "billing_cycle_anchor": self.anchor, "livemode": false, "metadata": self.metadata,
            "billing_mode": { "type": mode }, "collection_method": "charge_automatically",
            "cancel_at_period_end": self.cancel_at_period_end,
            "canceled_at": self.ended, "ended_at": self.ended,
            "trial_start": self.trial.map(|trial| trial.start),
            "trial_end": self.trial.map(|trial| trial.end),
            "latest_invoice": self.latest_invoice, "status": self.status(),
            "items": {
                "object": "list", "data": items,
                "has_more": self.items.len() > ITEMS_SHOWN_MAX,
                "url": format!("/v1/subscription_items?subscription={}", self.id),
            },
        })
    }

    fn items_json(&self) -> impl Iterator<Item = Value> {
        let period = self.period();
        self.items.iter().map(move |item| {
            json!({
                "id": item.id, "object": "subscription_item", "created": item.created,
                "current_period_start": period.start, "current_period_end": period.end,
                "price": item.price.to_json(), "subscription": self.id, "metadata": {},
            })
        })
    }
}

/// Subscriptions by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Subscriptions {
    all: BTreeMap<String, Subscription>,
}

impl Subscriptions {
    pub fn all(&self) -> impl Iterator<Item = &Subscription> {
        self.all.values()
    }
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[
        "customer",
        "items",
        "metadata",
        "billing_cycle_anchor",
        "billing_mode",
        "cancel_at_period_end",
        "payment_behavior",
        "proration_behavior",
        "trial_end",
        "trial_period_days",
    ])?;
    params.choice("payment_behavior", &PAYMENT_BEHAVIORS)?;
    let proration = params.choice("proration_behavior", &PRORATIONS)?;
    let customer = params.required_text("customer", usize::MAX)?;
    simulator.customers.referenced(&customer)?;
    let now = simulator.now_seconds();
    let mut items = Vec::new();
    for item in params.objects("items")? {
        item.only(&["price", "metadata"])?;
        let price = price_of(simulator, &item)?.ok_or_else(|| item.missing("price"))?;
        items.push(Item { id: simulator.next_id("si"), price, created: now, since: now });
    }
    if items.is_empty() {
        return Err(params.missing("items"));
    }
    check_items(&items)?;
    let trial = trial(params, now)?;
    let lead = lead(params, now, &items, trial)?;
    let flat = items.iter().any(|item| item.price.meter.is_none());
    if lead.is_some() && flat && proration.as_deref() != Some("none") {
        let message = "This simulator knows no proration of flat prices.";
        return Err(ApiError::parameter("proration_behavior", message));
    }
    let mut metadata = Map::new();
    metadata::merge(&mut metadata, params)?;
    let mut subscription = Subscription {
        customer,
        items,
        cancel_at_period_end: params.boolean("cancel_at_period_end")?.unwrap_or(false),
        ended: None,
        created: now,
        anchor: trial.or(lead).map_or(now, |first| first.end),
        trial,
        lead,
        periods: 0,
        mode: billing_mode(params)?,
        latest_invoice: None,
        failing: BTreeMap::new(),
        metadata,
        id: simulator.next_id("sub"),
    };
    pay_in_advance(simulator, &mut subscription)?;
    let end = subscription.period().end;
    simulator.schedule.add(end, Task::EndPeriod(subscription.id.clone()));
    Ok(store(simulator, subscription, "customer.subscription.created"))
}

/// Collects the first invoice of flat prices. If that fails there is no subscription.
fn pay_in_advance(
    simulator: &mut Simulator,
    subscription: &mut Subscription,
) -> Result<(), ApiError> {
    let flat = subscription.flat(subscription.period());
    if flat.is_empty() || subscription.is_in_trial() || subscription.lead.is_some() {
        return Ok(());
    }
    payments::check_first(simulator, &subscription.customer)?;
    let now = subscription.created;
    let moment = Interval { start: now, end: now };
    let invoice = invoices::draft(simulator, subscription, flat, Reason::Create, moment);
    invoices::finalize_draft(simulator, &invoice)?;
    payments::collect(simulator, &invoice, now, payments::Attempt::Automatic);
    subscription.latest_invoice = Some(invoice);
    Ok(())
}

fn price_of(simulator: &Simulator, item: &Params) -> Result<Option<Price>, ApiError> {
    let Some(id) = item.text("price", usize::MAX)? else { return Ok(None) };
    let price = simulator.prices.get(&id).map_err(|error| error.referenced("items[price]"))?;
    Ok(Some(price.clone()))
}

fn check_items(items: &[Item]) -> Result<(), ApiError> {
    for (place, item) in items.iter().enumerate() {
        if items[..place].iter().any(|earlier| earlier.price.id == item.price.id) {
            let message = format!(
                "Cannot add multiple subscription items with the same plan: {}",
                item.price.id
            );
            return Err(ApiError::refused(message));
        }
    }
    let first = items.first().map(|item| item.price.cadence);
    if items.iter().any(|item| Some(item.price.cadence) != first) {
        let message = "This simulator knows no subscription with prices of different intervals, \
                       and no change of the interval.";
        return Err(ApiError::parameter("items", message));
    }
    Ok(())
}

fn trial(params: &Params, now: i64) -> Result<Option<Interval>, ApiError> {
    let end = params.integer("trial_end")?;
    let days = params.integer("trial_period_days")?;
    let (name, end) = match (end, days) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let message = "You may only specify one of trial_end and trial_period_days.";
            return Err(ApiError::parameter("trial_end", message));
        }
        (Some(end), None) => ("trial_end", end),
        (None, Some(days)) => ("trial_period_days", now.saturating_add(days.saturating_mul(DAY))),
    };
    if end <= now {
        return Err(ApiError::parameter(name, format!("Invalid {name}: must be in the future")));
    }
    Ok(Some(Interval { start: now, end }))
}

/// The time before an anchor that is asked for, which is at most one period away.
fn lead(
    params: &Params,
    now: i64,
    items: &[Item],
    trial: Option<Interval>,
) -> Result<Option<Interval>, ApiError> {
    let name = "billing_cycle_anchor";
    let Some(end) = params.integer(name)? else { return Ok(None) };
    let cadence = items.first().map_or(Cadence::Month, |item| item.price.cadence);
    let refused = |message: &str| Err(ApiError::parameter(name, message));
    if trial.is_some() {
        return refused("This simulator knows no trial beside a billing_cycle_anchor.");
    }
    if end <= now {
        return refused("billing_cycle_anchor must be a timestamp in the future");
    }
    if end > cadence.after(now, 1) {
        return refused("billing_cycle_anchor cannot be later than next natural billing date");
    }
    Ok(Some(Interval { start: now, end }))
}

fn billing_mode(params: &Params) -> Result<BillingMode, ApiError> {
    let Some(mode) = params.nested("billing_mode")? else { return Ok(BillingMode::Flexible) };
    let kind = mode.choice("type", &["classic", "flexible"])?;
    Ok(match kind.as_deref() {
        Some("classic") => BillingMode::Classic,
        Some(_) => BillingMode::Flexible,
        None => return Err(mode.missing("type")),
    })
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    Ok(find(simulator, id)?.to_json())
}

fn find<'s>(simulator: &'s Simulator, id: &str) -> Result<&'s Subscription, ApiError> {
    let found = simulator.subscriptions.all.get(id);
    found.ok_or_else(|| ApiError::missing("subscription", id))
}

pub fn update(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    let other = ["cancel_at_period_end", "items", "payment_behavior", "proration_behavior"];
    params.only(&[&other[..], &["metadata"]].concat())?;
    params.choice("payment_behavior", &PAYMENT_BEHAVIORS)?;
    let proration = params.choice("proration_behavior", &PRORATIONS)?;
    let mut subscription = find(simulator, id)?.clone();
    if subscription.ended.is_some() && other.iter().any(|name| params.is_given(name)) {
        return Err(ApiError::refused(
            "A canceled subscription can only update its cancellation_details and metadata.",
        ));
    }
    metadata::merge(&mut subscription.metadata, params)?;
    if let Some(cancel) = params.boolean("cancel_at_period_end")? {
        subscription.cancel_at_period_end = cancel;
    }
    let replaced = change_items(simulator, &mut subscription, params)?;
    let billed = subscription.mode == BillingMode::Flexible
        && !subscription.is_in_trial()
        && proration.as_deref() != Some("none");
    if billed && !replaced.is_empty() {
        let now = simulator.now_seconds();
        let period = Interval { start: subscription.period().start, end: now };
        let invoice = invoices::draft(simulator, &subscription, replaced, Reason::Update, period);
        subscription.latest_invoice = Some(invoice);
    }
    Ok(store(simulator, subscription, UPDATED))
}

/// Changes, adds and removes items; returns what was billed at the prices that are gone.
fn change_items(
    simulator: &mut Simulator,
    subscription: &mut Subscription,
    params: &Params,
) -> Result<Vec<Billed>, ApiError> {
    let now = simulator.now_seconds();
    let mut replaced = Vec::new();
    for change in params.objects("items")? {
        change.only(&["id", "price", "deleted", "metadata"])?;
        let price = price_of(simulator, &change)?;
        let Some(id) = change.text("id", usize::MAX)? else {
            let price = price.ok_or_else(|| change.missing("price"))?;
            let id = simulator.next_id("si");
            subscription.items.push(Item { id, price, created: now, since: now });
            continue;
        };
        let place = subscription.items.iter().position(|item| item.id == id);
        let missing = || ApiError::missing("subscription item", &id).referenced("items[id]");
        let place = place.ok_or_else(missing)?;
        let old = subscription.billed(&subscription.items[place], now);
        let is_metered = old.item.price.meter.is_some();
        if change.boolean("deleted")? == Some(true) {
            subscription.items.remove(place);
            replaced.extend(is_metered.then_some(old));
        } else if let Some(price) = price.filter(|price| price.id != old.item.price.id) {
            subscription.items[place].price = price;
            subscription.items[place].since = now;
            replaced.extend(is_metered.then_some(old));
        }
    }
    if subscription.items.is_empty() {
        return Err(ApiError::refused("A subscription must have at least one item."));
    }
    check_items(&subscription.items)?;
    Ok(replaced)
}

/// Ends the current period if it ends now, with its invoice, and begins the next.
pub fn end_period(simulator: &mut Simulator, id: &str, at: i64) {
    let Some(mut subscription) = simulator.subscriptions.all.get(id).cloned() else { return };
    let period = subscription.period();
    if subscription.ended.is_some() || period.end != at {
        return;
    }
    let mut lines = subscription.metered(at);
    subscription.periods += 1;
    if !subscription.cancel_at_period_end {
        lines.extend(subscription.flat(subscription.period()));
    }
    let invoice = invoices::draft(simulator, &subscription, lines, Reason::Cycle, period);
    subscription.latest_invoice = Some(invoice);
    if subscription.cancel_at_period_end {
        subscription.ended = Some(at);
        store(simulator, subscription, DELETED);
        return;
    }
    simulator.schedule.add(subscription.period().end, Task::EndPeriod(id.to_owned()));
    store(simulator, subscription, UPDATED);
}

/// Records that an invoice could not be paid.
pub fn payment_failed(simulator: &mut Simulator, id: &str, invoice: &str, failure: Failure) {
    let Some(mut subscription) = simulator.subscriptions.all.get(id).cloned() else { return };
    subscription.failing.insert(invoice.to_owned(), failure);
    store(simulator, subscription, UPDATED);
}

/// Records that nothing is owed on an invoice.
pub fn payment_settled(simulator: &mut Simulator, id: &str, invoice: &str) {
    let Some(mut subscription) = simulator.subscriptions.all.get(id).cloned() else { return };
    if subscription.failing.remove(invoice).is_some() {
        store(simulator, subscription, UPDATED);
    }
}

/// Cancels a subscription now. One that has ended is refused as missing, though it can be
/// retrieved.
pub fn cancel(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&["invoice_now", "prorate"])?;
    let prorated = params.boolean("prorate")?.unwrap_or(false);
    let last_invoice = params.boolean("invoice_now")?.unwrap_or(false);
    let mut subscription = find(simulator, id)?.clone();
    if subscription.ended.is_some() {
        return Err(ApiError::missing("subscription", id));
    }
    if prorated && subscription.items.iter().any(|item| item.price.meter.is_none()) {
        let message = "This simulator knows no proration of flat prices.";
        return Err(ApiError::parameter("prorate", message));
    }
    let now = simulator.now_seconds();
    if last_invoice && !subscription.is_in_trial() {
        let lines = subscription.metered(now);
        let period = Interval { start: subscription.period().start, end: now };
        let invoice = invoices::draft(simulator, &subscription, lines, Reason::Update, period);
        subscription.latest_invoice = Some(invoice);
    }
    subscription.ended = Some(now);
    Ok(store(simulator, subscription, DELETED))
}

/// Cancels the subscriptions of a deleted customer.
pub fn cancel_all(simulator: &mut Simulator, customer: &str) {
    let live = |subscription: &&Subscription| {
        subscription.customer == customer && subscription.ended.is_none()
    };
    let found: Vec<Subscription> =
        simulator.subscriptions.all.values().filter(live).cloned().collect();
    for mut subscription in found {
        subscription.ended = Some(simulator.now_seconds());
        store(simulator, subscription, DELETED);
    }
}

/// The items of one subscription, in their order.
pub fn list_items(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["subscription"]].concat())?;
    let id = params.required_text("subscription", usize::MAX)?;
    let subscription = find(simulator, &id).map_err(|error| error.referenced("subscription"))?;
    let items: Vec<Value> = subscription.items_json().collect();
    page(&items, params, "/v1/subscription_items")
}

/// Without `status` canceled ones are left out, as at Stripe.
pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["customer", "status", "price", "created"]].concat())?;
    let customer = params.text("customer", usize::MAX)?;
    let price = params.text("price", usize::MAX)?;
    let created = Range::read(params, "created")?;
    let statuses = [
        "all",
        "active",
        "trialing",
        "past_due",
        "unpaid",
        "canceled",
        "ended",
        "paused",
        "incomplete",
        "incomplete_expired",
    ];
    let status = params.choice("status", &statuses)?;
    let wanted = |subscription: &&Subscription| {
        let of_status = match status.as_deref() {
            Some("all") => true,
            Some("ended") => subscription.ended.is_some(),
            Some(status) => subscription.status() == status,
            None => subscription.ended.is_none(),
        };
        let has_price =
            |price: &String| subscription.items.iter().any(|item| item.price.id == *price);
        of_status
            && created.contains(subscription.created)
            && customer.as_ref().is_none_or(|customer| subscription.customer == *customer)
            && price.as_ref().is_none_or(has_price)
    };
    let all = simulator.subscriptions.all.values().rev();
    let found: Vec<&Subscription> = all.filter(wanted).collect();
    let url = "/v1/subscriptions";
    page_of(&found, |found| &found.id, |found| found.to_json(), params, url)
}

/// Stores a subscription and emits the event.
fn store(simulator: &mut Simulator, subscription: Subscription, event: &str) -> Value {
    let shown = subscription.to_json();
    let before = simulator.subscriptions.all.insert(subscription.id.clone(), subscription);
    match before {
        Some(before) if event == UPDATED => {
            simulator.emit_change(event, &before.to_json(), &shown);
        }
        Some(_) | None => {
            simulator.emit(event, &shown);
        }
    }
    shown
}
