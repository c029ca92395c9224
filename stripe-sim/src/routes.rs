//! Routes of calls, and what is known of a call before its execution.
//!
//! Invariant: an unknown path gets the response that Stripe gives. A crash leaves nothing.

use crate::faults::Subject;
use crate::params::Params;
use crate::request::{Answer, ApiError, SimRequest};
use crate::{
    Simulator, account, credit_grants, credit_notes, customers, events, invoices, meter_events,
    meters, payments, prices, subscriptions, summaries, webhooks,
};
use serde_json::Value;

const STREAM: &str = "/v2/billing/meter_event_stream";
const METER_EVENTS: [&str; 2] = ["/v1/billing/meter_events", "/v2/billing/meter_events"];

pub fn is_stream(request: &SimRequest) -> bool {
    request.path == STREAM
}

/// Whether only one such call at a time is accepted for a customer and a meter.
pub fn is_meter_event(request: &SimRequest) -> bool {
    request.method == "POST" && METER_EVENTS.contains(&request.path.as_str())
}

/// Method and path with `:id` in place of ids.
pub fn pattern(request: &SimRequest) -> String {
    let is_id = |part: &str| part.bytes().any(|byte| byte.is_ascii_digit()) && part.contains('_');
    let parts: Vec<&str> =
        request.path.split('/').map(|part| if is_id(part) { ":id" } else { part }).collect();
    format!("{} {}", request.method, parts.join("/"))
}

/// What rules and seeds of faults see of the call.
pub fn subject(simulator: &Simulator, request: &SimRequest) -> Subject {
    let (path, call) = (request.path.clone(), pattern(request));
    let mut subject = Subject { path, call, ..Subject::default() };
    let body = Params::of(request).map_or(Value::Null, Params::into_value);
    let event = if is_stream(request) { &body["events"][0] } else { &body };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let parts: Vec<&str> = request.path.split('/').collect();
    let mut identifier = None;
    if is_meter_event(request) || is_stream(request) {
        subject.event_name = text(&event["event_name"]);
        let meter = subject.event_name.as_deref().and_then(|name| simulator.meters.named(name));
        let key = meter.map_or("stripe_customer_id", |meter| meter.customer_key.as_str());
        subject.customer = text(&event["payload"][key]);
        identifier = text(&event["identifier"]);
    } else {
        let meter_id = parts.get(4).copied().unwrap_or_default();
        let meter = simulator.meters.get(meter_id).ok();
        subject.event_name = meter.map(|meter| meter.event_name.clone());
        subject.customer = text(&body["customer"]);
    }
    let key = request.header("idempotency-key").map(str::to_owned);
    subject.key = identifier.or(key).unwrap_or_else(|| {
        let body = String::from_utf8_lossy(&request.body);
        format!("{} {}?{} {body}", request.method, request.path, request.query)
    });
    subject
}

pub fn route(simulator: &mut Simulator, request: &SimRequest, params: &Params) -> Answer {
    let path = request.path.trim_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    let method = request.method.as_str();
    let answer = match parts.as_slice() {
        ["v1", "account"] if method == "GET" => Some(account::retrieve(simulator, request)),
        ["v1", "billing", rest @ ..] => route_billing(simulator, method, rest, params),
        ["v1", rest @ ..] => route_v1(simulator, method, rest, params),
        ["v2", rest @ ..] => route_v2(simulator, method, rest, params),
        _ => None,
    };
    answer.unwrap_or_else(|| {
        let message = format!("Unrecognized request URL ({method}: {}).", request.path);
        Err(ApiError::new(404, "invalid_request_error", message))
    })
}

fn route_billing(
    simulator: &mut Simulator,
    method: &str,
    parts: &[&str],
    params: &Params,
) -> Option<Answer> {
    Some(match (method, parts) {
        ("POST", ["meter_events"]) => meter_events::create_v1(simulator, params),
        ("POST", ["meter_event_adjustments"]) => meter_events::adjust_v1(simulator, params),
        ("POST", ["meters"]) => meters::create(simulator, params),
        ("GET", ["meters"]) => meters::list(simulator, params),
        ("GET", ["meters", id]) => meters::retrieve(simulator, id),
        ("POST", ["meters", id]) => meters::update(simulator, id, params),
        ("POST", ["meters", id, "deactivate"]) => meters::deactivate(simulator, id),
        ("POST", ["meters", id, "reactivate"]) => meters::reactivate(simulator, id),
        ("GET", ["meters", id, "event_summaries"]) => summaries::list(simulator, id, params),
        ("POST", ["credit_grants"]) => credit_grants::create(simulator, params),
        ("GET", ["credit_grants"]) => credit_grants::list(simulator, params),
        ("GET", ["credit_grants", id]) => credit_grants::retrieve(simulator, id),
        ("POST", ["credit_grants", id]) => credit_grants::update(simulator, id, params),
        ("POST", ["credit_grants", id, "expire"]) => credit_grants::expire(simulator, id),
        ("POST", ["credit_grants", id, "void"]) => credit_grants::void(simulator, id),
        _ => return None,
    })
}

fn route_v1(
    simulator: &mut Simulator,
    method: &str,
    parts: &[&str],
    params: &Params,
) -> Option<Answer> {
    Some(match (method, parts) {
        ("POST", ["customers"]) => customers::create(simulator, params),
        ("GET", ["customers"]) => customers::list(simulator, params),
        ("GET", ["customers", id]) => customers::retrieve(simulator, id),
        ("POST", ["customers", id]) => customers::update(simulator, id, params),
        ("DELETE", ["customers", id]) => customers::delete(simulator, id),
        ("POST", ["prices"]) => prices::create(simulator, params),
        ("GET", ["prices"]) => prices::list(simulator, params),
        ("GET", ["prices", id]) => prices::retrieve(simulator, id),
        ("POST", ["subscriptions"]) => subscriptions::create(simulator, params),
        ("GET", ["subscriptions"]) => subscriptions::list(simulator, params),
        ("GET", ["subscriptions", id]) => subscriptions::retrieve(simulator, id),
        ("POST", ["subscriptions", id]) => subscriptions::update(simulator, id, params),
        ("DELETE", ["subscriptions", id]) => subscriptions::cancel(simulator, id, params),
        ("GET", ["subscription_items"]) => subscriptions::list_items(simulator, params),
        ("GET", ["invoices"]) => invoices::list(simulator, params),
        ("GET", ["invoices", id]) => invoices::retrieve(simulator, id),
        ("GET", ["invoices", id, "lines"]) => invoices::lines(simulator, id, params),
        ("POST", ["invoices", id, "finalize"]) => invoices::finalize_now(simulator, id, params),
        ("POST", ["invoices", id, "pay"]) => payments::pay(simulator, id, params),
        ("POST", ["invoices", id, "void"]) => payments::void(simulator, id),
        ("POST", ["invoices", id, "mark_uncollectible"]) => {
            payments::mark_uncollectible(simulator, id)
        }
        ("POST", ["credit_notes"]) => credit_notes::create(simulator, params),
        ("GET", ["credit_notes"]) => credit_notes::list(simulator, params),
        ("GET", ["events"]) => events::list_snapshots(simulator, params),
        ("GET", ["events", id]) => events::retrieve_snapshot(simulator, id),
        ("POST", ["webhook_endpoints"]) => webhooks::create_endpoint(simulator, params),
        ("GET", ["webhook_endpoints"]) => webhooks::list_endpoints(simulator, params),
        ("DELETE", ["webhook_endpoints", id]) => webhooks::delete_endpoint(simulator, id),
        _ => return None,
    })
}

fn route_v2(
    simulator: &mut Simulator,
    method: &str,
    parts: &[&str],
    params: &Params,
) -> Option<Answer> {
    Some(match (method, parts) {
        ("POST", ["billing", "meter_events"]) => meter_events::create_v2(simulator, params),
        ("POST", ["billing", "meter_event_session"]) => {
            meter_events::create_session(simulator, params)
        }
        ("POST", ["billing", "meter_event_stream"]) => {
            meter_events::create_stream(simulator, params)
        }
        ("POST", ["billing", "meter_event_adjustments"]) => {
            meter_events::adjust_v2(simulator, params)
        }
        ("GET", ["core", "events"]) => events::list_thin(simulator, params),
        ("GET", ["core", "events", id]) => events::retrieve_thin(simulator, id),
        ("POST", ["core", "event_destinations"]) => webhooks::create_destination(simulator, params),
        _ => return None,
    })
}
