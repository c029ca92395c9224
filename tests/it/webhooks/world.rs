//! The world of webhooks: the jobs of the inbound half, and the router that takes deliveries.

pub use crate::world::{Answer, Ground, Server, at, each, id_of, send};

use crate::world::{self, connect, new_app};
use axum::body::Body;
use counterfoil::config::{Config, Secret};
use counterfoil::http::Routes;
use counterfoil::jobs::Context;
use counterfoil::jobs::Job;
use counterfoil::jobs::backfill::BackfillJob;
use counterfoil::rules::mirror::{ObjectKind, Snapshot};
use counterfoil::rules::timestamp::MICROS_PER_SECOND;
use counterfoil::store::Query;
use counterfoil::store::webhook::{Mirror, MirrorFilter};
use http::{Method, Request};
use serde_json::{Value, json};
use std::sync::Arc;
use stripe_sim::{SimRequest, sign};

/// The secrets of a rotation: the one that begins and the one that ends.
pub const SECRET: &str = "whsec_new";
pub const OLD_SECRET: &str = "whsec_old";
/// What the simulator gives its first endpoint.
pub const SIM_SECRET: &str = "whsec_00000000000001";
pub const HOOK: &str = "/webhooks/stripe";
pub const DAY: i64 = 86_400;

pub struct World {
    base: world::World,
    pub server: Server,
}

extend_world!(World);

impl World {
    pub async fn on(ground: Ground) -> Self {
        Self::with(ground, SECRET).await
    }

    pub async fn with(ground: Ground, secrets: &str) -> Self {
        let secrets = Secret::new(secrets);
        let change = |config: &mut Config| config.stripe.webhook_secrets = secrets;
        let base = world::World::with(ground, change).await;
        let server = Server::over(&base).await;
        Self { base, server }
    }

    /// With a tenant that has subscribed; returns the subscription and its first event.
    pub async fn subscribed(ground: Ground) -> (Self, String, Value) {
        let world = Self::on(ground).await;
        let customer = world.tenant("acme").await;
        let price = world.price("calls", "2");
        let subscription = world.stripe.subscribe(&customer, &price);
        let event = world.events_of(&subscription).remove(0);
        (world, subscription, event)
    }

    /// The routes of another server on the same store, with other secrets.
    pub fn other_routes(&self, secrets: &str) -> Routes {
        let mut config = self.config.clone();
        config.stripe.webhook_secrets = Secret::new(secrets);
        let provider = Some(connect(&config, &self.clock));
        Routes::new(new_app(&self.store, &self.clock, provider, &config))
    }

    pub fn other_backfill(&self, holder: &str) -> BackfillJob {
        let context = Context { holder: holder.to_owned(), ..self.jobs.context.clone() };
        BackfillJob::new(&context, &self.provider, Arc::default())
    }

    pub fn is_postgres(&self) -> bool {
        matches!(*self.ground, Ground::Database(_))
    }

    pub fn pass_seconds(&self, seconds: i64) {
        self.clock.advance(seconds * MICROS_PER_SECOND);
        self.stripe.lock().tick();
    }

    pub fn seconds(&self) -> i64 {
        self.clock.now().micros().div_euclid(MICROS_PER_SECOND)
    }

    pub fn use_at_provider(&self, customer: &str, event_name: &str, value: &str) {
        let timestamp = (self.seconds() - 1).to_string();
        let fields = [
            ("event_name", event_name),
            ("payload[stripe_customer_id]", customer),
            ("payload[value]", value),
            ("timestamp", &timestamp),
        ];
        self.stripe.ask("/v1/billing/meter_events", &fields);
    }

    pub fn payments_fail(&self, fails: bool) {
        let body = json!({ "fails": fails });
        self.stripe.answer(&SimRequest::json("/_sim/payments", &body));
    }

    /// Every event of the provider's list, the oldest first.
    pub fn events(&self) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        loop {
            let after = events.last().map(|last| format!("&starting_after={}", id_of(last)));
            let target = format!("/v1/events?limit=100{}", after.unwrap_or_default());
            let page = self.stripe.get(&target);
            events.extend(page["data"].as_array().unwrap().iter().cloned());
            if page["has_more"] == false {
                events.reverse();
                return events;
            }
        }
    }

    /// The events about an object, the oldest first.
    pub fn events_of(&self, id: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["data"]["object"]["id"] == id).collect()
    }

    /// The thin twin of an event, as it is delivered.
    pub fn twin(&self, event: &Value) -> Value {
        let object = event["data"]["object"]["id"].as_str().unwrap();
        let found = self.stripe.get(&format!("/v2/core/events?object_id={object}&limit=100"));
        let twins = found["data"].as_array().unwrap();
        twins.iter().find(|twin| twin["snapshot_event"] == event["id"]).unwrap().clone()
    }

    /// Delivers an event, signed as the provider signs it.
    pub async fn deliver(&self, event: &Value) -> Answer {
        self.deliver_text(&event.to_string()).await
    }

    pub async fn deliver_text(&self, body: &str) -> Answer {
        self.post_hook(&sign(SECRET, self.seconds(), body), body.as_bytes()).await
    }

    /// Delivers, and expects it to be taken; returns its number and whether it was known.
    pub async fn taken(&self, event: &Value) -> (u64, bool) {
        let told = self.deliver(event).await.ok(200);
        (told["id"].as_u64().unwrap(), told["duplicate"].as_bool().unwrap())
    }

    pub async fn post_hook(&self, signature: &str, body: &[u8]) -> Answer {
        send(&self.server.routes, hook(Some(signature), body)).await
    }

    /// Reads what is due until nothing is.
    pub async fn read_all(&self) -> usize {
        let mut read = 0;
        loop {
            match self.jobs.mirror.pass().await.unwrap() {
                0 => return read,
                count => read += count,
            }
        }
    }

    pub async fn get(&self, path: &str) -> Value {
        self.server.get(path).await.ok(200)
    }

    /// All webhooks, the oldest first.
    pub async fn webhooks(&self) -> Vec<Value> {
        let mut found: Vec<Value> = Vec::new();
        let mut path = "/v1/webhooks?limit=1000".to_owned();
        loop {
            let page = self.server.get(&path).await;
            found.extend(page.rows("webhooks"));
            let Some(before) = page.json()["next_before"].as_u64() else { break };
            path = format!("/v1/webhooks?limit=1000&before={before}");
        }
        found.reverse();
        found
    }

    /// The only webhook of an event.
    pub async fn webhook(&self, event: &Value) -> Value {
        let id = id_of(event);
        let all = self.webhooks().await;
        let found: Vec<&Value> = all.iter().filter(|hook| hook["event_id"] == id).collect();
        assert_eq!(found.len(), 1, "{id}");
        found[0].clone()
    }

    pub async fn snapshot(&self, kind: ObjectKind, id: &str) -> Snapshot {
        self.mirror(kind, id).await.unwrap_or_else(|| panic!("{id} was not read")).snapshot
    }

    pub async fn mirrors(&self, kind: ObjectKind) -> Vec<Mirror> {
        let query = Query::first(MirrorFilter { kind, status: None, customer: None }, 100_000);
        self.store.list_mirrors(query).await.unwrap()
    }

    pub async fn timeline(&self, tenant: &str, at: &str) -> Value {
        self.get(&format!("/v1/timeline?tenant={tenant}&at={at}")).await
    }

    /// The alerts of a kind, the oldest first.
    pub async fn alerts(&self, kind: &str) -> Vec<Value> {
        let path = format!("/v1/alerts?kind={kind}&limit=1000");
        let mut alerts = self.server.get(&path).await.rows("alerts");
        alerts.reverse();
        alerts
    }

    /// What the webhooks of all tests of this process were refused for, by reason.
    pub async fn refused(&self, reason: &str) -> u64 {
        let answer = self.server.get("/metrics").await;
        let name = format!("counterfoil_webhooks_refused_total{{reason=\"{reason}\"}} ");
        let line = answer.body.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().unwrap())
    }

    /// A metered price of a meter, which is created if there is none.
    pub fn price(&self, event_name: &str, cents: &str) -> String {
        if self.stripe.find_meter(event_name).is_none() {
            self.stripe.meter(event_name, &[]);
        }
        self.stripe.price(event_name, cents, "month")
    }

    /// Everything that webhooks could have changed, row by row.
    pub async fn rows(&self) -> Vec<String> {
        let inbound = ["webhooks", "webhook_names", "mirrors", "timeline_entries"];
        let shared = ["leases", "cursors", "alerts"];
        self.ground.rows(&[&inbound[..], &shared].concat()).await
    }
}

/// A delivery; with no signature if none is given.
pub fn hook(signature: Option<&str>, body: &[u8]) -> Request<Body> {
    let mut request = Request::builder().method(Method::POST).uri(HOOK);
    if let Some(signature) = signature {
        request = request.header("stripe-signature", signature);
    }
    request.header("content-type", "application/json").body(Body::from(body.to_vec())).unwrap()
}

/// Random numbers by seed, for orders that a failing test can repeat.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % u64::try_from(limit).unwrap()).unwrap()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for place in (1..items.len()).rev() {
            items.swap(place, self.below(place + 1));
        }
    }
}
