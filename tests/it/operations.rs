//! What sagas change at a provider, against the Stripe simulator over a real socket: each call
//! done, made again under its key, and failed before and after its effect.

mod faults;
mod looks;
mod subscriptions;

use crate::world::{SimulatedStripe, default_config, tenant_id};
use counterfoil::clock::Clock;
use counterfoil::config::{Secret, StripeConfig};
use counterfoil::provider::stripe::Stripe;
use counterfoil::provider::{
    Called, CustomerFacts, Operations, Provider, RemoteSubscription, SubscriptionFacts,
};
use counterfoil::rules::ids::{CustomerId, SubscriptionId, TenantId};
use counterfoil::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use serde_json::Value;
use stripe_sim::{Options, TEST_KEY};

/// 2026-11-15T12:00:00Z.
const NOON: i64 = 1_794_744_000;
const DAY: i64 = 86_400;
const SAGA: &str = "saga_1";

/// The simulator behind a port, a client of it, and three prices.
struct World {
    simulated: SimulatedStripe,
    clock: Clock,
    stripe: Stripe,
    tenant: TenantId,
    prices: Vec<String>,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::by_hand(at(NOON));
        let simulated = SimulatedStripe::start(&clock, Options::default()).await;
        let config = StripeConfig {
            api_key: Secret::new(TEST_KEY),
            api_base: simulated.handle.url(),
            timeout_ms: 2_000,
            ..default_config().stripe
        };
        let stripe = Stripe::connect(&config).unwrap();
        let mut world =
            Self { simulated, clock, stripe, tenant: tenant_id("acme"), prices: Vec::new() };
        world.add_prices(3);
        world
    }

    fn add_prices(&mut self, count: usize) {
        let event_name = format!("calls_{}", self.prices.len());
        self.simulated.meter(&event_name, &[]);
        let price = |_| self.simulated.price(&event_name, "1", "month");
        self.prices.extend((0..count).map(price).collect::<Vec<_>>());
    }

    fn operations(&self) -> &dyn Operations {
        self.stripe.operations().unwrap()
    }

    fn advance(&self, seconds: i64) {
        self.clock.advance(seconds * MICROS_PER_SECOND);
        self.simulated.lock().tick();
    }

    fn calls(&self, call: &str) -> u64 {
        self.simulated.lock().calls().get(call).copied().unwrap_or(0)
    }

    fn customers(&self) -> Vec<Value> {
        self.simulated.lock().customers()
    }

    fn subscriptions(&self) -> Vec<Value> {
        self.simulated.lock().subscriptions()
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
        let facts =
            SubscriptionFacts { customer, prices, tenant: &self.tenant, saga: SAGA, anchor: None };
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
