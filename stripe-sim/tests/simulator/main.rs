//! The simulator against the facts of Stripe that it must reproduce, each a small test.
//!
//! Most tests call the state machine; those about connections go through its port.

#![allow(clippy::unwrap_used)]

mod aggregation;
mod billing;
mod changes;
mod customers;
mod events;
mod faults;
mod idempotency;
mod invoices;
mod meter_events;
mod meters;
mod port;
mod subscriptions;
mod summaries;
mod usage;
mod webhooks;

use serde_json::Value;
use std::time::Duration;
use stripe_sim::{Options, SimRequest, SimResponse, Simulator, Timestamp};

/// 2026-11-15T12:00:00Z, a whole hour.
const NOON: i64 = 1_794_744_000;
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

/// A simulator at noon with a customer and a raw sum meter of the event name `calls`.
struct World {
    simulator: Simulator,
    customer: String,
    meter: String,
}

impl World {
    /// With events that are aggregated at once: most tests are about something else.
    fn new() -> Self {
        Self::with(Options { summary_lag_seconds: 0, ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let mut simulator = Simulator::new(seconds(NOON), options);
        let customer = id(&simulator.handle(&SimRequest::form("/v1/customers", &[])));
        let mut world = Self { simulator, customer, meter: String::new() };
        world.meter = world.add_meter("calls", "sum", None);
        world
    }

    fn add_meter(&mut self, event_name: &str, formula: &str, window: Option<&str>) -> String {
        let mut fields = vec![
            ("display_name", event_name),
            ("event_name", event_name),
            ("default_aggregation[formula]", formula),
        ];
        fields.extend(window.map(|window| ("event_time_window", window)));
        id(&self.simulator.handle(&SimRequest::form("/v1/billing/meters", &fields)))
    }

    /// Fields of a meter event of this customer.
    fn event(&self, identifier: &str, value: &str, timestamp: i64) -> SimRequest {
        self.event_of("calls", identifier, value, timestamp)
    }

    fn event_of(&self, name: &str, identifier: &str, value: &str, timestamp: i64) -> SimRequest {
        SimRequest::form(
            "/v1/billing/meter_events",
            &[
                ("event_name", name),
                ("payload[stripe_customer_id]", &self.customer),
                ("payload[value]", value),
                ("identifier", identifier),
                ("timestamp", &timestamp.to_string()),
            ],
        )
    }

    fn send(&mut self, identifier: &str, value: &str, timestamp: i64) -> SimResponse {
        let request = self.event(identifier, value, timestamp);
        self.simulator.handle(&request)
    }

    fn get(&mut self, target: &str) -> SimResponse {
        self.simulator.handle(&SimRequest::get(target))
    }

    fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> SimResponse {
        self.simulator.handle(&SimRequest::form(path, fields))
    }

    fn advance(&mut self, seconds: i64) {
        self.simulator.advance(Duration::from_secs(seconds.try_into().unwrap()));
    }

    /// What the provider holds for the hour that begins at `start`.
    fn exact(&self, start: i64) -> String {
        self.simulator.exact_total(&self.customer, "calls", seconds(start)).to_string()
    }

    fn summaries(&mut self, query: &str) -> SimResponse {
        let (meter, customer) = (&self.meter, &self.customer);
        let target =
            format!("/v1/billing/meters/{meter}/event_summaries?customer={customer}&{query}");
        self.get(&target)
    }
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn id(response: &SimResponse) -> String {
    response.json()["id"].as_str().unwrap_or_else(|| panic!("{}", response.json())).to_owned()
}

/// Events of a type, the earliest first.
fn told(world: &mut World, kind: &str) -> Vec<Value> {
    let list = world.get(&format!("/v1/events?limit=100&type={kind}")).json();
    list["data"].as_array().unwrap().iter().rev().cloned().collect()
}

/// Type, code and message of a refusal.
fn refusal(response: &SimResponse) -> (u16, String, Option<String>, String) {
    let error = response.json()["error"].clone();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    (
        response.status,
        text(&error["type"]).unwrap_or_default(),
        text(&error["code"]),
        text(&error["message"]).unwrap_or_default(),
    )
}
