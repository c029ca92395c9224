//! What sagas change at a provider, against the Stripe simulator over a real socket: each call
//! done, made again under its key, and failed before and after its effect.

#![allow(clippy::unwrap_used)]

mod faults;
mod looks;
mod subscriptions;

use counterfoil::config::{Secret, StripeConfig};
use counterfoil::provider::stripe::Stripe;
use counterfoil::provider::{
    Called, CustomerFacts, Operations, Provider, RemoteSubscription, SubscriptionFacts,
};
use counterfoil::rules::ids::{CustomerId, SubscriptionId, TenantId};
use counterfoil::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stripe_sim::{FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator, TEST_KEY};

/// 2026-11-15T12:00:00Z.
const NOON: i64 = 1_794_744_000;
const DAY: i64 = 86_400;
const SAGA: &str = "saga_1";

/// The simulator behind a port, a client of it, and three prices.
struct World {
    _handle: Handle,
    simulator: Arc<Mutex<Simulator>>,
    stripe: Stripe,
    tenant: TenantId,
    prices: Vec<String>,
}

impl World {
    async fn new() -> Self {
        let simulator =
            Simulator::new(stripe_sim::Timestamp::from_seconds(NOON), Options::default());
        let simulator = Arc::new(Mutex::new(simulator));
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = Handle::start(listen, Arc::clone(&simulator)).await.unwrap();
        let config = StripeConfig {
            api_key: Secret::new(TEST_KEY),
            api_base: handle.url(),
            timeout_ms: 2_000,
            webhook_secrets: Secret::new(""),
        };
        let stripe = Stripe::connect(&config).unwrap();
        let tenant = TenantId::parse("acme").unwrap();
        let mut world = Self { _handle: handle, simulator, stripe, tenant, prices: Vec::new() };
        world.add_prices(3);
        world
    }

    fn add_prices(&mut self, count: usize) {
        let number = self.prices.len();
        let event_name = format!("calls_{number}");
        let fields = [
            ("display_name", "Calls"),
            ("event_name", event_name.as_str()),
            ("default_aggregation[formula]", "sum"),
        ];
        let meter = self.ask("/v1/billing/meters", &fields)["id"].as_str().unwrap().to_owned();
        for _ in 0..count {
            let fields = [
                ("currency", "usd"),
                ("unit_amount_decimal", "1"),
                ("recurring[interval]", "month"),
                ("recurring[usage_type]", "metered"),
                ("recurring[meter]", &meter),
                ("product_data[name]", "Calls"),
            ];
            let price = self.ask("/v1/prices", &fields);
            self.prices.push(price["id"].as_str().unwrap().to_owned());
        }
    }

    fn operations(&self) -> &dyn Operations {
        self.stripe.operations().unwrap()
    }

    /// Calls the simulator directly, not through the port.
    fn ask(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        self.handle(&SimRequest::form(path, fields))
    }

    fn handle(&self, request: &SimRequest) -> Value {
        let response = self.simulator.lock().unwrap().handle(request);
        assert_eq!(response.status, 200, "{}", response.json());
        response.json()
    }

    fn advance(&self, seconds: i64) {
        let seconds = Duration::from_secs(seconds.try_into().unwrap());
        self.simulator.lock().unwrap().advance(seconds);
    }

    fn set_fault(&self, rule: FaultRule) {
        self.simulator.lock().unwrap().set_faults(FaultPlan::of_rules(vec![rule]));
    }

    fn calls(&self, call: &str) -> u64 {
        self.simulator.lock().unwrap().calls().get(call).copied().unwrap_or(0)
    }

    fn customers(&self) -> Vec<Value> {
        self.simulator.lock().unwrap().customers()
    }

    fn subscriptions(&self) -> Vec<Value> {
        self.simulator.lock().unwrap().subscriptions()
    }

    fn invoices(&self) -> Vec<Value> {
        let list = self.handle(&SimRequest::get("/v1/invoices?limit=100"));
        list["data"].as_array().unwrap().clone()
    }

    async fn create_customer(&self, saga: &str, key: &str) -> Called<CustomerId> {
        let facts = CustomerFacts {
            tenant: &self.tenant,
            name: Some("Ada & Søn"),
            email: Some("ada@example.com"),
            saga,
        };
        self.operations().create_customer(&facts, key).await
    }

    async fn subscribe(
        &self,
        customer: &CustomerId,
        prices: &[String],
        key: &str,
    ) -> Called<RemoteSubscription> {
        let facts = SubscriptionFacts { customer, prices, tenant: &self.tenant, saga: SAGA };
        self.operations().create_subscription(&facts, key).await
    }

    /// A customer and a subscription to the first two prices.
    async fn subscribed(&self) -> (CustomerId, RemoteSubscription) {
        let customer = done(self.create_customer(SAGA, "the customer").await);
        let subscription =
            done(self.subscribe(&customer, &self.prices[..2], "the subscription").await);
        (customer, subscription)
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * MICROS_PER_SECOND)
}

fn customer_id(id: &str) -> CustomerId {
    CustomerId::parse(id).unwrap()
}

fn subscription_id(id: &str) -> SubscriptionId {
    SubscriptionId::parse(id).unwrap()
}

fn done<T: std::fmt::Debug>(called: Called<T>) -> T {
    match called {
        Called::Done(value) => value,
        Called::Refused(_) | Called::Retry(_) | Called::Kept(_) => panic!("{called:?}"),
    }
}

/// The word for what came of a call.
fn word<T>(called: &Called<T>) -> &'static str {
    match called {
        Called::Done(_) => "done",
        Called::Refused(_) => "refused",
        Called::Retry(_) => "retry",
        Called::Kept(_) => "kept",
    }
}
