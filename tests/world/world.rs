//! The world of one test: a real store, the jobs of a server, the Stripe simulator behind a port,
//! and one clock that only the test moves. Suites add steps of their own to it.
//!
//! What happened is read from the store and from the simulator's own state, never from what a job
//! returns.

mod database;
mod dice;
mod ground;
mod jobs;
mod plant;
mod receiver;
mod recorder;
mod scratch;
mod server;
mod standard_webhooks;
mod store_faults;
mod stripe;
mod tables;

pub use counterfoil::jobs::Job;
pub use dice::Dice;
pub use ground::Ground;
pub use jobs::{Jobs, Recorders, connect};
pub use receiver::{Receiver, serve_on_loopback};
pub use recorder::Heard;
pub use server::{Answer, NOW, Server, configured, default_config, each, event, new_app, send};
pub use standard_webhooks::standard_signature;
pub use store_faults::StoreFaults;
pub use stripe::{EVENTS, SUMMARIES, SimulatedStripe, id_of};

use counterfoil::clock::Clock;
use counterfoil::config::{Config, ProviderKind, Secret, UnknownSubscriptions};
use counterfoil::provider::Provider;
use counterfoil::rules::event::{Event, Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterNo, MeterSlug, SubscriptionId, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::mirror::{ObjectKind, ObjectName};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::store::push::{Push, PushAges, PushCounts, PushFilter};
use counterfoil::store::saga::SubscriptionRecord;
use counterfoil::store::webhook::Mirror;
use counterfoil::store::{Declaration, DeliveryBatch, Query, Store, TenantFields};
use serde_json::Value;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stripe_sim::Options;

/// A billed meter: cut an hour after a window's end.
pub const CALLS: &str = r#"{"aggregation":"sum","billing":{"from":"2026-11-15T00:00:00Z"}}"#;
pub const ABSOLUTE: &str =
    r#"{"aggregation":"sum","billing":{"from":"2026-11-15T00:00:00Z","mode":"absolute"}}"#;

/// The same with a further term of billing.
pub fn calls_with(term: &str) -> String {
    CALLS.replace(r#""billing":{"#, &format!(r#""billing":{{{term},"#))
}

pub struct World {
    pub store: Arc<dyn Store>,
    pub store_faults: Arc<StoreFaults>,
    pub clock: Clock,
    pub stripe: SimulatedStripe,
    pub config: Config,
    pub provider: Arc<dyn Provider>,
    pub jobs: Jobs,
    pub recorders: Recorders,
    pub ground: Arc<Ground>,
    events: AtomicU64,
}

impl World {
    pub async fn on(ground: Ground) -> Self {
        Self::with(ground, |_| {}).await
    }

    /// With other settings.
    pub async fn with(ground: Ground, change: impl FnOnce(&mut Config)) -> Self {
        Self::with_stripe(ground, Options::default(), change).await
    }

    pub async fn with_stripe(
        ground: Ground,
        options: Options,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let clock = Clock::by_hand(at(NOW));
        let stripe = SimulatedStripe::start(&clock, options).await;
        let mut config = default_config();
        config.provider.kind = ProviderKind::Stripe;
        config.stripe.api_base = stripe.handle.url();
        config.stripe.api_key = Secret::new("sk_test_world");
        config.stripe.timeout_ms = 5_000;
        config.push.rate_per_second = 1_000_000;
        config.push.poll_ms = 5;
        config.reconcile.reads_per_hour = 0;
        // Most worlds make subscriptions at the provider, without subscription records here.
        config.reconcile.unknown_subscriptions = UnknownSubscriptions::Ignore;
        change(&mut config);
        let (store, store_faults) = StoreFaults::around(ground.open(None).await);
        let (provider, recorders) = (connect(&config, &clock), Recorders::default());
        let jobs = Jobs::new(&provider, &store, &clock, &config, &recorders);
        let events = AtomicU64::new(0);
        Self {
            store,
            store_faults,
            clock,
            stripe,
            config,
            provider,
            jobs,
            recorders,
            ground: Arc::new(ground),
            events,
        }
    }

    /// With a tenant `acme` that is a customer, and the meter `calls`; returns the customer.
    pub async fn usual(ground: Ground) -> (Self, String) {
        Self::usual_with(ground, |_| {}).await
    }

    pub async fn usual_with(ground: Ground, change: impl FnOnce(&mut Config)) -> (Self, String) {
        let world = Self::with(ground, change).await;
        let customer = world.set_up().await;
        (world, customer)
    }

    /// With a tenant `acme` that is a customer, and the meter `calls` of other terms.
    pub async fn metered(ground: Ground, spec: &str) -> (Self, String) {
        let world = Self::on(ground).await;
        world.meter("calls", spec).await;
        let customer = world.tenant("acme").await;
        (world, customer)
    }

    /// The meter `calls`, and a tenant `acme` that is a customer; returns the customer.
    pub async fn set_up(&self) -> String {
        self.meter("calls", CALLS).await;
        self.tenant("acme").await
    }

    /// The jobs of a server with other settings, on the same store and clock.
    pub fn other_server(&self, change: impl FnOnce(&mut Config)) -> Jobs {
        let mut config = self.config.clone();
        change(&mut config);
        let provider = connect(&config, &self.clock);
        Jobs::new(&provider, &self.store, &self.clock, &config, &self.recorders)
    }

    pub fn go_to(&self, text: &str) {
        self.clock.advance(at(text).micros() - self.clock.now().micros());
    }

    pub fn pass_hours(&self, hours: i64) {
        self.clock.advance(hours * MICROS_PER_HOUR);
    }

    pub fn pass_seconds(&self, seconds: i64) {
        self.clock.advance(seconds * MICROS_PER_SECOND);
    }

    /// Declares a meter, and creates it at the provider.
    pub async fn meter(&self, slug: &str, spec: &str) {
        self.declare(slug, spec).await;
        let spec: Value = serde_json::from_str(spec).unwrap();
        let billing = &spec["billing"];
        let window = match (billing["mode"].as_str(), billing["granularity"].as_str()) {
            (Some("absolute"), Some("day")) => vec![("event_time_window", "day")],
            (Some("absolute"), _) => vec![("event_time_window", "hour")],
            _ => Vec::new(),
        };
        self.stripe.meter(billing["event_name"].as_str().unwrap_or(slug), &window);
    }

    /// Declares a meter here only.
    pub async fn declare(&self, slug: &str, spec: &str) {
        let spec = serde_json::from_str(spec).unwrap();
        let meter = Meter::declare(MeterSlug::parse(slug).unwrap(), spec).unwrap();
        let declared = self.store.declare_meter(meter, self.clock.now()).await.unwrap();
        assert!(!matches!(declared, Declaration::Refused(_)), "{declared:?}");
    }

    pub async fn meter_no(&self, slug: &str) -> MeterNo {
        self.store.load_catalog().await.unwrap().find(slug).unwrap().0
    }

    /// A tenant that is a customer; returns the customer.
    pub async fn tenant(&self, id: &str) -> String {
        let customer = self.stripe.customer();
        self.map(id, &customer).await;
        customer
    }

    pub async fn map(&self, tenant: &str, customer: &str) {
        let customer = Some(CustomerId::parse(customer).unwrap());
        let fields = TenantFields { customer, ..TenantFields::default() };
        self.store.put_tenant(&tenant_id(tenant), fields, self.clock.now()).await.unwrap();
    }

    /// One event of the meter `calls`.
    pub async fn used(&self, tenant: &str, quantity: &str, occurred_at: impl Display) {
        self.used_of("calls", tenant, quantity, occurred_at).await;
    }

    pub async fn used_of(
        &self,
        meter: &str,
        tenant: &str,
        quantity: &str,
        occurred_at: impl Display,
    ) {
        let fields = [format!(r#""quantity":"{quantity}""#)];
        self.used_with(meter, tenant, &fields, occurred_at).await;
    }

    /// One event with each of these texts of fields.
    pub async fn used_with(
        &self,
        meter: &str,
        tenant: &str,
        fields: &[String],
        occurred_at: impl Display,
    ) {
        let number = || self.events.fetch_add(1, Ordering::SeqCst);
        let texts: Vec<String> = fields
            .iter()
            .map(|fields| {
                event_text(meter, tenant, &format!("e{}", number()), fields, &occurred_at)
            })
            .collect();
        let verdicts = self.record(self.parse(&texts).await).await;
        let accepted = verdicts.iter().all(|verdict| *verdict == Verdict::Accepted);
        assert!(accepted, "{fields:?} at {occurred_at}: {verdicts:?}");
    }

    /// Events as they are read from JSON.
    pub async fn parse(&self, texts: &[String]) -> Vec<Event> {
        let catalog = self.store.load_catalog().await.unwrap();
        let parse = |text: &String| {
            let item: Item<'_> = serde_json::from_str(text).unwrap();
            parse_event(&item, &catalog).unwrap()
        };
        texts.iter().map(parse).collect()
    }

    pub async fn record(&self, events: Vec<Event>) -> Vec<Verdict> {
        let hours = i64::from(self.config.ingest.accept_horizon_hours);
        let horizon_micros = hours * MICROS_PER_HOUR;
        let batch = DeliveryBatch {
            events,
            refused: Vec::new(),
            acceptance: Acceptance { now: self.clock.now(), horizon_micros },
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        self.store.record_deliveries(0, batch).await.unwrap()
    }

    /// Every push, oldest first.
    pub async fn pushes(&self) -> Vec<Push> {
        let query = Query::first(PushFilter::default(), 10_000);
        let mut pushes = self.store.list_pushes(query).await.unwrap();
        pushes.reverse();
        pushes
    }

    /// How many pushes wait, by now.
    pub async fn count_pushes(&self) -> PushCounts {
        let now = self.clock.now();
        let ages = PushAges { observed_before: now, submitted_before: now };
        self.store.count_pushes(ages).await.unwrap()
    }

    /// A record of a subscription to the plan pro that begins now.
    pub fn subscription_record(&self, tenant: &str, subscription: &str) -> SubscriptionRecord {
        SubscriptionRecord {
            tenant: tenant_id(tenant),
            subscription: SubscriptionId::parse(subscription).unwrap(),
            plan: "pro".into(),
            prices: Vec::new(),
            features: vec!["exports".into()],
            access: false,
            suspended: false,
            saga: format!("saga of {subscription}"),
            began_at: self.clock.now(),
            ended_at: None,
        }
    }

    /// Records a subscription, and opens its features.
    pub async fn agree(&self, record: SubscriptionRecord) {
        let saga = record.saga.clone();
        self.store.record_subscription(record).await.unwrap();
        self.store.set_access(&saga, true).await.unwrap();
    }

    pub async fn mirror(&self, kind: ObjectKind, id: &str) -> Option<Mirror> {
        self.store.find_mirror(&ObjectName { kind, id: id.to_owned() }).await.unwrap()
    }
}

/// An event as JSON.
pub fn event_text(
    meter: &str,
    tenant: &str,
    id: &str,
    fields: &str,
    occurred_at: impl Display,
) -> String {
    format!(
        r#"{{"tenant":"{tenant}","id":"{id}","meter":"{meter}","occurred_at":"{occurred_at}",{fields}}}"#
    )
}

pub fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn tenant_id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}
