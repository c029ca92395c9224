//! Payments of invoices: attempted at finalization, and retried days later.
//!
//! Invariant: an invoice is paid at most once, and an invoice of zero is paid without an attempt.
//! While the payment of an invoice fails, its subscription is past due; after the last retry it is
//! unpaid, and when nothing is owed it is active again. A crash leaves nothing.

use crate::invoices::{self, Sheet};
use crate::params::Params;
use crate::request::{Answer, ApiError, Stage};
use crate::schedule::Task;
use crate::subscriptions::{self, Failure};
use crate::{Simulator, credit_grants};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const DAY: i64 = 86_400;
/// Days from each failed attempt to the next.
const RETRY_DAYS: [i64; 3] = [3, 5, 7];

/// The outcome of payment attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PaymentOutcome {
    /// The payment succeeds.
    #[default]
    Succeeds,
    /// The card is declined.
    Fails,
}

/// The outcome of payments, by default and by customer.
#[derive(Debug, Default)]
pub struct Payments {
    everyone: PaymentOutcome,
    by_customer: BTreeMap<String, PaymentOutcome>,
}

impl Simulator {
    /// Sets the outcome of a customer's payments from now on.
    pub fn set_payments_of(&mut self, customer: &str, outcome: PaymentOutcome) {
        self.payments.by_customer.insert(customer.to_owned(), outcome);
    }

    /// Sets the outcome of payments from now on, for customers without an outcome of their own.
    pub fn set_payments(&mut self, outcome: PaymentOutcome) {
        self.payments.everyone = outcome;
    }
}

/// `POST /_sim/payments`.
pub fn set(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["customer", "fails"])?;
    let fails = params.boolean("fails")?;
    let outcome = match fails {
        Some(true) => PaymentOutcome::Fails,
        Some(false) => PaymentOutcome::Succeeds,
        None => return Err(params.missing("fails")),
    };
    let customer = params.text("customer", usize::MAX)?;
    match &customer {
        Some(customer) => simulator.set_payments_of(customer, outcome),
        None => simulator.set_payments(outcome),
    }
    Ok(json!({ "customer": customer, "fails": fails }))
}

/// Refuses if the first payment of a subscription would fail.
pub fn check_first(simulator: &Simulator, customer: &str) -> Result<(), ApiError> {
    let payments = &simulator.payments;
    let outcome = payments.by_customer.get(customer).copied().unwrap_or(payments.everyone);
    match outcome {
        PaymentOutcome::Succeeds => Ok(()),
        PaymentOutcome::Fails => Err(declined()),
    }
}

fn declined() -> ApiError {
    let mut error = ApiError::new(402, "card_error", "Your card was declined.");
    error.stage = Stage::Executing;
    error.with_code("card_declined")
}

/// Who makes an attempt. A manual attempt does not move the automatic ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    Automatic,
    Manual,
}

/// Tries to collect an open invoice.
pub fn collect(simulator: &mut Simulator, id: &str, at: i64, attempt: Attempt) -> PaymentOutcome {
    let Ok(invoice) = simulator.invoices.get(id) else { return PaymentOutcome::Fails };
    let Some(sheet) = &invoice.fixed else { return PaymentOutcome::Fails };
    if sheet.amount("amount_due") == 0 {
        paid(simulator, id, at, 0);
        return PaymentOutcome::Succeeds;
    }
    let attempts = match attempt {
        Attempt::Manual => sheet.amount("attempt_count").max(1),
        Attempt::Automatic => sheet.amount("attempt_count") + 1,
    };
    let payments = &simulator.payments;
    let outcome = payments.by_customer.get(&invoice.customer).copied();
    let outcome = outcome.unwrap_or(payments.everyone);
    let counts = attempts > sheet.amount("attempt_count");
    match outcome {
        PaymentOutcome::Succeeds => paid(simulator, id, at, attempts),
        PaymentOutcome::Fails if counts => failed(simulator, id, at, attempts),
        PaymentOutcome::Fails => {
            let shown = invoices::retrieve(simulator, id).unwrap_or(Value::Null);
            simulator.emit("invoice.payment_failed", &shown);
        }
    }
    outcome
}

/// Retries a payment, if the invoice still has its retry at this time.
pub fn collect_again(simulator: &mut Simulator, id: &str, at: i64) {
    let Ok(invoice) = simulator.invoices.get(id) else { return };
    let Some(sheet) = &invoice.fixed else { return };
    if sheet.status() == "open" && sheet.header["next_payment_attempt"] == at {
        collect(simulator, id, at, Attempt::Automatic);
    }
}

fn paid(simulator: &mut Simulator, id: &str, at: i64, attempts: i64) {
    let shown = invoices::change(simulator, id, |sheet| {
        let header = &mut sheet.header;
        header["status"] = "paid".into();
        // An invoice of zero counts as attempted, with no attempt.
        header["attempted"] = true.into();
        header["attempt_count"] = attempts.into();
        header["next_payment_attempt"] = Value::Null;
        header["auto_advance"] = false.into();
        header["amount_paid"] = header["amount_due"].clone();
        header["amount_remaining"] = 0.into();
        header["status_transitions"]["paid_at"] = at.into();
    });
    simulator.emit("invoice.paid", &shown);
    simulator.emit("invoice.payment_succeeded", &shown);
    settled(simulator, id);
}

fn failed(simulator: &mut Simulator, id: &str, at: i64, attempts: i64) {
    let pause = usize::try_from(attempts - 1).ok().and_then(|place| RETRY_DAYS.get(place));
    let next = pause.map(|days| at + days * DAY);
    let shown = invoices::change(simulator, id, |sheet| {
        let header = &mut sheet.header;
        header["attempted"] = true.into();
        header["attempt_count"] = attempts.into();
        header["next_payment_attempt"] = next.into();
        header["auto_advance"] = next.is_some().into();
    });
    simulator.emit("invoice.payment_failed", &shown);
    let failure = match next {
        Some(next) => {
            simulator.schedule.add(next, Task::Collect(id.to_owned()));
            Failure::Retried
        }
        None => Failure::Final,
    };
    if let Ok(invoice) = simulator.invoices.get(id) {
        let subscription = invoice.subscription.clone();
        subscriptions::payment_failed(simulator, &subscription, id, failure);
    }
}

/// Nothing is owed on the invoice from now on.
fn settled(simulator: &mut Simulator, id: &str) {
    if let Ok(invoice) = simulator.invoices.get(id) {
        let subscription = invoice.subscription.clone();
        subscriptions::payment_settled(simulator, &subscription, id);
    }
}

pub fn pay(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&["paid_out_of_band", "payment_method", "source", "forgive", "off_session"])?;
    let elsewhere = params.boolean("paid_out_of_band")? == Some(true);
    match simulator.invoices.get(id)?.status() {
        "draft" => invoices::finalize_draft(simulator, id)?,
        "open" | "uncollectible" => {}
        "paid" => return Err(ApiError::refused("Invoice is already paid")),
        status => return Err(ApiError::refused(format!("A {status} invoice cannot be paid."))),
    }
    let now = simulator.now_seconds();
    if elsewhere {
        let attempts = simulator.invoices.get(id)?.fixed.as_ref();
        let attempts = attempts.map_or(0, |sheet| sheet.amount("attempt_count"));
        paid(simulator, id, now, attempts);
        return invoices::retrieve(simulator, id);
    }
    match collect(simulator, id, now, Attempt::Manual) {
        PaymentOutcome::Succeeds => invoices::retrieve(simulator, id),
        PaymentOutcome::Fails => Err(declined()),
    }
}

/// Voids an invoice, which gives credit back.
pub fn void(simulator: &mut Simulator, id: &str) -> Answer {
    refuse_unless(simulator, id, &["open", "uncollectible"])?;
    let sheet = simulator.invoices.get(id)?.fixed.clone();
    let credits = sheet.map(|sheet| sheet.header["total_pretax_credit_amounts"].clone());
    for credit in credits.as_ref().and_then(Value::as_array).into_iter().flatten() {
        let grant = credit["credit_grant"].as_str().unwrap_or_default();
        credit_grants::give_back(simulator, grant, credit["amount"].as_i64().unwrap_or(0));
    }
    Ok(close(simulator, id, "void", "voided_at", "invoice.voided"))
}

pub fn mark_uncollectible(simulator: &mut Simulator, id: &str) -> Answer {
    refuse_unless(simulator, id, &["open"])?;
    let (moment, event) = ("marked_uncollectible_at", "invoice.marked_uncollectible");
    Ok(close(simulator, id, "uncollectible", moment, event))
}

fn refuse_unless(simulator: &Simulator, id: &str, statuses: &[&str]) -> Result<(), ApiError> {
    let status = simulator.invoices.get(id)?.status();
    if statuses.contains(&status) {
        return Ok(());
    }
    let wanted = statuses.join(" or ");
    Err(ApiError::refused(format!("The invoice is {status}; it must be {wanted}.")))
}

fn close(simulator: &mut Simulator, id: &str, status: &str, moment: &str, event: &str) -> Value {
    let now = simulator.now_seconds();
    let shown = invoices::change(simulator, id, |sheet: &mut Sheet| {
        let header = &mut sheet.header;
        header["status"] = status.into();
        header["next_payment_attempt"] = Value::Null;
        header["auto_advance"] = false.into();
        header["status_transitions"][moment] = now.into();
    });
    simulator.emit(event, &shown);
    settled(simulator, id);
    shown
}
