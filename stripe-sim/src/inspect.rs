//! The endpoints under `/_sim/`, which Stripe does not have: exact state, clock, plan of faults,
//! usage that no client sent, outcome of payments.
//!
//! | call | body |
//! |---|---|
//! | `GET /_sim/state` | |
//! | `GET /_sim/customers`, `GET /_sim/subscriptions` | all, deleted and ended ones included |
//! | `POST /_sim/clock` | `now` (RFC 3339) or `advance_seconds` |
//! | `POST /_sim/faults` | a plan of faults |
//! | `POST /_sim/payments` | `fails`; `customer`, or none for all |
//! | `POST /_sim/tax` | `invoice`, `rate_percent` (a text) |
//! | `POST /_sim/meter_events` | `customer`, `event_name`, `value`, `timestamp`, `identifier` |
//! | `POST /_sim/meter_events/lose` | `identifier` |
//! | `POST /_sim/customer_check` | `asynchronous` |
//! | `POST /_sim/reset` | |
//!
//! Invariant: these calls need no key, meet no fault and are not counted. A crash leaves nothing.

use crate::params::Params;
use crate::request::{Answer, ApiError, SimRequest, SimResponse};
use crate::timestamp::{MICROS_PER_SECOND, Timestamp};
use crate::{CustomerCheck, FaultPlan, ReceivedState, Simulator, payments, tax, usage};
use serde_json::{Map, Value, json};

pub fn answer(simulator: &mut Simulator, request: &SimRequest) -> SimResponse {
    let answer = match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/_sim/state") => Ok(state(simulator)),
        ("GET", "/_sim/customers") => Ok(json!({ "data": simulator.customers() })),
        ("GET", "/_sim/subscriptions") => Ok(json!({ "data": simulator.subscriptions() })),
        ("POST", "/_sim/clock") => move_clock(simulator, request),
        ("POST", "/_sim/faults") => set_faults(simulator, request),
        ("POST", "/_sim/customer_check") => set_customer_check(simulator, request),
        ("POST", "/_sim/meter_events") => with(simulator, request, usage::record),
        ("POST", "/_sim/meter_events/lose") => with(simulator, request, usage::lose),
        ("POST", "/_sim/payments") => with(simulator, request, payments::set),
        ("POST", "/_sim/tax") => with(simulator, request, tax::set),
        ("POST", "/_sim/reset") => {
            simulator.reset();
            Ok(json!({}))
        }
        (method, path) => {
            let message = format!("Unrecognized request URL ({method}: {path}).");
            Err(ApiError::new(404, "invalid_request_error", message))
        }
    };
    match answer {
        Ok(body) => SimResponse::of(200, &body),
        Err(error) => error.response(),
    }
}

/// Passes the parameters of the request on.
fn with(
    simulator: &mut Simulator,
    request: &SimRequest,
    act: fn(&mut Simulator, &Params) -> Answer,
) -> Answer {
    act(simulator, &Params::of(request)?)
}

fn state(simulator: &Simulator) -> Value {
    let totals: Vec<Value> = simulator
        .exact_totals()
        .into_iter()
        .map(|((customer, event_name, hour), total)| {
            json!({
                "customer": customer, "event_name": event_name, "hour": hour.to_string(),
                "total": total.to_string(),
            })
        })
        .collect();
    let received = simulator.events_received();
    let in_state =
        |wanted: ReceivedState| received.iter().filter(|event| event.state == wanted).count();
    let injected: Map<String, Value> = simulator
        .faults_injected()
        .iter()
        .map(|(kind, count)| (kind.name().to_owned(), (*count).into()))
        .collect();
    let meters: Vec<Value> = simulator.meters.all().map(crate::meters::Meter::to_json).collect();
    json!({
        "clock": simulator.now().to_string(),
        "customers": simulator.customers.ids(),
        "meters": meters,
        "totals": totals,
        "events": {
            "received": received.len(), "accepted": in_state(ReceivedState::Counted),
            "cancelled": in_state(ReceivedState::Cancelled),
            "dropped": in_state(ReceivedState::Dropped),
            "lost": in_state(ReceivedState::Lost),
        },
        "repeats": {
            "replayed": simulator.repeats.replayed, "refused": simulator.repeats.refused,
        },
        "webhooks": { "outstanding": simulator.webhooks_outstanding() },
        "faults_injected": injected,
        "calls": simulator.calls(),
    })
}

fn move_clock(simulator: &mut Simulator, request: &SimRequest) -> Answer {
    let params = Params::of(request)?;
    params.only(&["now", "advance_seconds"])?;
    if let Some(text) = params.text("now", usize::MAX)? {
        let refused = |_| ApiError::parameter("now", "now must be an RFC 3339 date-time");
        simulator.set_clock(text.parse::<Timestamp>().map_err(refused)?);
    }
    if let Some(seconds) = params.integer("advance_seconds")? {
        let micros = seconds.saturating_mul(MICROS_PER_SECOND);
        simulator.set_clock(simulator.now().saturating_add_micros(micros));
    }
    Ok(json!({ "clock": simulator.now().to_string() }))
}

fn set_customer_check(simulator: &mut Simulator, request: &SimRequest) -> Answer {
    let params = Params::of(request)?;
    params.only(&["asynchronous"])?;
    let asynchronous = params.boolean("asynchronous")?;
    simulator.set_customer_check(match asynchronous {
        Some(true) => CustomerCheck::Asynchronous,
        Some(false) => CustomerCheck::Synchronous,
        None => return Err(params.missing("asynchronous")),
    });
    Ok(json!({ "asynchronous": asynchronous }))
}

fn set_faults(simulator: &mut Simulator, request: &SimRequest) -> Answer {
    let text = String::from_utf8_lossy(&request.body);
    let plan: FaultPlan =
        text.parse().map_err(|error: String| ApiError::parameter("faults", error))?;
    let shown = serde_json::to_value(&plan).unwrap_or(Value::Null);
    simulator.set_faults(plan);
    Ok(shown)
}
