//! Stripe's objects as mirrors show them.
//!
//! Invariant: amounts are whole numbers of the smallest unit, quantities are read from their
//! decimal text; no number passes through a float. An object that lacks what is needed is not a
//! snapshot: nothing is guessed.

use super::METADATA_SAGA;
use crate::provider::{RemoteItem, RemoteSubscription};
use crate::rules::ids::{CustomerId, SubscriptionId};
use crate::rules::invoice::{Invoice, InvoiceLine};
use crate::rules::mirror::{CreditGrant, Customer, ErrorReport, ErrorSample, ObjectKind, Snapshot};
use crate::rules::quantity::Quantity;
use crate::rules::subscription::Subscription;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use serde_json::Value;

/// An object of this kind; the lines of an invoice are left out.
pub fn read_snapshot(kind: ObjectKind, object: &Value) -> Option<Snapshot> {
    match kind {
        ObjectKind::Subscription => read_subscription(object).map(Snapshot::Subscription),
        ObjectKind::Invoice => read_invoice(object).map(Snapshot::Invoice),
        ObjectKind::CreditGrant => read_credit_grant(object).map(Snapshot::CreditGrant),
        ObjectKind::Customer => {
            let deleted = object["deleted"].as_bool().unwrap_or(false);
            Some(Snapshot::Customer(Customer { deleted }))
        }
        ObjectKind::ErrorReport => read_error_report(object).map(Snapshot::ErrorReport),
    }
}

pub fn read_subscription(object: &Value) -> Option<Subscription> {
    let items = object["items"]["data"].as_array()?;
    let price = |item: &Value| item["price"]["id"].as_str().map(str::to_owned);
    let mut prices: Vec<String> = items.iter().filter_map(price).collect();
    prices.sort_unstable();
    Some(Subscription {
        customer: read_customer(object)?,
        status: object["status"].as_str()?.to_owned(),
        prices,
        period: read_period(object),
        trial: window(object, "trial_start", "trial_end"),
        cancel_at_period_end: object["cancel_at_period_end"].as_bool().unwrap_or(false),
        ended_at: instant(&object["ended_at"]),
    })
}

/// The same as sagas need it, which must know every item.
pub fn read_remote(object: &Value) -> Option<RemoteSubscription> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut items = Vec::new();
    for item in object["items"]["data"].as_array()? {
        let (id, price) = (text(&item["id"])?, text(&item["price"]["id"])?);
        items.push(RemoteItem { id, price, since: instant(&item["created"]) });
    }
    Some(RemoteSubscription {
        id: SubscriptionId::parse(object["id"].as_str()?).ok()?,
        status: text(&object["status"])?,
        items,
        saga: text(&object["metadata"][METADATA_SAGA]),
        cancel_at_period_end: object["cancel_at_period_end"].as_bool()?,
        period_end: read_period(object).map(|period| period.end),
        started_at: instant(&object["start_date"]),
        bills_replaced: object["billing_mode"]["type"] == "flexible",
    })
}

/// Periods stand with the items since 2025; before, with the subscription.
fn read_period(object: &Value) -> Option<Window> {
    let period = |object: &Value| window(object, "current_period_start", "current_period_end");
    period(&object["items"]["data"][0]).or_else(|| period(object))
}

/// Without its lines.
pub fn read_invoice(object: &Value) -> Option<Invoice> {
    let subtotal = object["subtotal"].as_i64()?;
    let total = object["total"].as_i64()?;
    let taxes = object["total_taxes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut taxes = taxes.iter().filter_map(|tax| tax["amount"].as_i64());
    let details = &object["parent"]["subscription_details"]["subscription"];
    let subscription = details.as_str().or_else(|| object["subscription"].as_str());
    Some(Invoice {
        customer: read_customer(object)?,
        subscription: subscription.map(str::to_owned),
        status: object["status"].as_str()?.to_owned(),
        reason: object["billing_reason"].as_str().map(str::to_owned),
        currency: object["currency"].as_str().unwrap_or_default().to_owned(),
        created_at: instant(&object["created"])?,
        period: window(object, "period_start", "period_end")?,
        finalizes_at: instant(&object["automatically_finalizes_at"]),
        subtotal,
        total_excluding_tax: object["total_excluding_tax"].as_i64().unwrap_or(subtotal),
        tax: taxes.try_fold(0, i64::checked_add)?,
        total,
        amount_due: object["amount_due"].as_i64().unwrap_or(total),
        attempt_count: object["attempt_count"]
            .as_u64()
            .and_then(|n| n.try_into().ok())
            .unwrap_or(0),
        next_attempt_at: instant(&object["next_payment_attempt"]),
        lines: Vec::new(),
    })
}

/// A line and the id of its price; what the price meters is for the caller to find out.
pub fn read_line(line: &Value) -> Option<InvoiceLine> {
    let pricing = &line["pricing"];
    let price = pricing["price_details"]["price"].as_str();
    let quantity = match line["quantity_decimal"].as_str() {
        Some(text) => Quantity::parse_stored(text)?,
        // Before 2026 there was only the whole number.
        None => Quantity::from_count(line["quantity"].as_u64().unwrap_or(0))?,
    };
    Some(InvoiceLine {
        id: line["id"].as_str()?.to_owned(),
        price: price.map(str::to_owned),
        event_name: None,
        quantity,
        unit_amount: pricing["unit_amount_decimal"].as_str().and_then(Quantity::parse_stored),
        subtotal: line["subtotal"].as_i64().or_else(|| line["amount"].as_i64())?,
        period: window(&line["period"], "start", "end")?,
    })
}

fn read_credit_grant(object: &Value) -> Option<CreditGrant> {
    let money = &object["amount"]["monetary"];
    Some(CreditGrant {
        customer: read_customer(object)?,
        category: object["category"].as_str()?.to_owned(),
        currency: money["currency"].as_str().unwrap_or_default().to_owned(),
        amount: money["value"].as_i64()?,
        effective_at: instant(&object["effective_at"]),
        expires_at: instant(&object["expires_at"]),
        voided_at: instant(&object["voided_at"]),
    })
}

/// A thin event with its data; the meter's id takes the place of its name.
fn read_error_report(event: &Value) -> Option<ErrorReport> {
    let data = &event["data"];
    let border = |name: &str| Timestamp::parse(data[name].as_str()?).ok();
    let mut samples = Vec::new();
    for error_type in data["reason"]["error_types"].as_array().into_iter().flatten() {
        let code = error_type["code"].as_str().unwrap_or("unknown");
        for sample in error_type["sample_errors"].as_array().into_iter().flatten() {
            let request = &sample["request"];
            // Two shapes have been seen; both hold the identifier we gave.
            let request_key = || request["idempotency_key"].as_str().map(push_key_of);
            let key = request["identifier"].as_str().or_else(request_key);
            let message = sample["error_message"].as_str().unwrap_or_default();
            samples.extend(key.map(|key| ErrorSample {
                key: key.to_owned(),
                code: code.to_owned(),
                message: message.to_owned(),
            }));
        }
    }
    Some(ErrorReport {
        event_name: event["related_object"]["id"].as_str().map(str::to_owned),
        validated_in: Window { start: border("validation_start")?, end: border("validation_end")? },
        error_count: data["reason"]["error_count"].as_u64().unwrap_or(0),
        samples,
    })
}

/// The push's key that an `Idempotency-Key` was made of: after a stored failure it carries a suffix
/// (see `Stripe::send_push`), and push keys hold no dot.
fn push_key_of(request_key: &str) -> &str {
    match request_key.rsplit_once('.') {
        Some((key, fresh)) if fresh.bytes().all(|byte| byte.is_ascii_digit()) => key,
        Some(_) | None => request_key,
    }
}

fn read_customer(object: &Value) -> Option<CustomerId> {
    // An expanded customer is an object.
    let customer = &object["customer"];
    CustomerId::parse(customer.as_str().or_else(|| customer["id"].as_str())?).ok()
}

fn window(object: &Value, start: &str, end: &str) -> Option<Window> {
    Some(Window { start: instant(&object[start])?, end: instant(&object[end])? })
}

/// Seconds since 1970. A moment without a spelling is none: it could not be read again.
fn instant(seconds: &Value) -> Option<Timestamp> {
    Timestamp::from_seconds(seconds.as_i64()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn taxes_are_added_up_exactly_or_the_invoice_is_not_read() {
        let read = |taxes: Value| {
            let invoice = json!({
                "customer": "cus_1", "status": "draft", "created": 1, "period_start": 0,
                "period_end": 1, "subtotal": 1_000, "total": 1_190, "total_taxes": taxes,
            });
            read_invoice(&invoice).map(|invoice| invoice.tax)
        };
        assert_eq!(read(json!([{ "amount": 100 }, { "amount": 90 }])), Some(190));
        assert_eq!(read(json!([{ "amount": i64::MAX }, { "amount": 1 }])), None);
    }

    #[test]
    fn a_derived_request_key_names_its_push() {
        let check = |request: Value, expected: &str| {
            let report = read_error_report(&json!({ "data": {
                "validation_start": "2026-11-15T15:00:00Z",
                "validation_end": "2026-11-15T15:00:10Z",
                "reason": { "error_types": [{ "sample_errors": [{ "request": request }] }] },
            }}));
            let samples = report.expect("complete").samples;
            assert_eq!(samples[0].key, expected);
        };
        check(json!({ "identifier": "cf1-a" }), "cf1-a");
        check(json!({ "idempotency_key": "cf1-a" }), "cf1-a");
        check(json!({ "idempotency_key": "cf1-a.1" }), "cf1-a");
        check(json!({ "idempotency_key": "cf1-a.12" }), "cf1-a");
        check(json!({ "idempotency_key": "another.name" }), "another.name");
    }
}
