//! A world for one test: a store, the router, the jobs of the inbound half, a Stripe
//! simulator behind a port, and a clock that is moved by hand.

use crate::database::create_database;
use crate::store_faults::StoreFaults;
use crate::stripe::start_stripe;
use ::http::{HeaderMap, Method, Request};
use axum::Router;
use axum::body::Body;
use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, PostgresConfig, ProviderKind, Secret, SqliteConfig};
use counterfoil::http::{self, App, auth};
use counterfoil::jobs::alerts::AlertsJob;
use counterfoil::jobs::backfill::BackfillJob;
use counterfoil::jobs::ingest::Ingest;
use counterfoil::jobs::mirror::MirrorJob;
use counterfoil::jobs::webhook::WebhookInbox;
use counterfoil::jobs::{Context, Job};
use counterfoil::provider::{self, Provider};
use counterfoil::rules::ids::{CustomerId, TenantId};
use counterfoil::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use counterfoil::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::webhook::{Mirror, MirrorQuery};
use counterfoil::store::{Store, TenantFields};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use stripe_sim::{FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator, sign};
use tower::ServiceExt;

pub const NOON: &str = "2026-11-15T12:00:00Z";
/// The secrets of a rotation: the one that begins and the one that ends.
pub const SECRET: &str = "whsec_new";
pub const OLD_SECRET: &str = "whsec_old";
/// What the simulator gives its first endpoint.
pub const SIM_SECRET: &str = "whsec_00000000000001";
pub const HOOK: &str = "/webhooks/stripe";
pub const DAY: i64 = 86_400;

/// Where a world keeps its data.
pub enum Place {
    Directory(tempfile::TempDir),
    Database(String),
}

impl Place {
    pub fn sqlite() -> Self {
        Self::Directory(scratch())
    }

    /// None, with a printed line, if there is no PostgreSQL to test on.
    pub async fn postgres() -> Option<Self> {
        create_database("webhooks").await.map(Self::Database)
    }

    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Directory(directory) => {
                let settings = SqliteConfig {
                    segment_events: 40,
                    segment_age_max_ms: 3_600_000,
                    readers: 2,
                    query_timeout_ms: 30_000,
                };
                SqliteStore::open(directory.path(), &settings).unwrap()
            }
            Self::Database(url) => {
                let settings = PostgresConfig {
                    writers: 2,
                    readers: 2,
                    request_writers: 4,
                    job_connections: 2,
                    timeout_ms: 20_000,
                    query_timeout_ms: 30_000,
                };
                PostgresStore::open(url, &settings).await.unwrap()
            }
        }
    }
}

pub struct World {
    pub place: Place,
    pub store: Arc<dyn Store>,
    pub faults: Arc<StoreFaults>,
    pub clock: Clock,
    pub handle: Handle,
    pub config: Config,
    pub router: Router,
    pub reader: MirrorJob,
    pub backfill: BackfillJob,
    pub alerter: AlertsJob,
    pub admin: String,
}

impl World {
    pub async fn new(place: Place) -> Self {
        Self::with(place, SECRET).await
    }

    pub async fn with(place: Place, secrets: &str) -> Self {
        let clock = Clock::by_hand(at(NOON));
        let handle = start_stripe(&clock, Options::default()).await;
        let mut config = config::load(None).unwrap();
        config.provider.kind = ProviderKind::Stripe;
        config.stripe.api_base = handle.url();
        config.stripe.api_key = Secret::new("sk_test_webhooks");
        config.stripe.timeout_ms = 5_000;
        config.stripe.webhook_secrets = Secret::new(secrets);
        let (store, faults) = StoreFaults::around(place.open().await);
        let shared = Arc::clone(&store);
        let provider = connect(&config);
        let admin = auth::create_first_admin_key(&*shared, &clock, None).await.unwrap().unwrap();
        let router = router(&shared, &clock, &provider, &config);
        let context = Context::new(shared, clock.clone(), &config, "server-1".into(), 1);
        let reader = MirrorJob::new(&context, &provider, Arc::default());
        let backfill = BackfillJob::new(&context, &provider, Arc::default());
        let alerter = AlertsJob::new(&context);
        Self {
            place,
            store,
            faults,
            clock,
            handle,
            config,
            router,
            reader,
            backfill,
            alerter,
            admin,
        }
    }

    /// The router of another server on the same store, with other secrets.
    pub fn other_router(&self, secrets: &str) -> Router {
        let mut config = self.config.clone();
        config.stripe.webhook_secrets = Secret::new(secrets);
        router(&self.store, &self.clock, &connect(&config), &config)
    }

    /// The backfill of another server on the same store.
    pub fn other_backfill(&self, holder: &str) -> BackfillJob {
        let (store, clock) = (Arc::clone(&self.store), self.clock.clone());
        let context = Context::new(store, clock, &self.config, holder.to_owned(), 1);
        BackfillJob::new(&context, &connect(&self.config), Arc::default())
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.place, Place::Database(_))
    }

    pub fn simulator(&self) -> Arc<Mutex<Simulator>> {
        self.handle.simulator()
    }

    /// Asks the simulator for something as another program would.
    pub fn ask(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        self.answer(&SimRequest::form(path, fields))
    }

    pub fn get_from_provider(&self, target: &str) -> Value {
        self.answer(&SimRequest::get(target))
    }

    pub fn answer(&self, request: &SimRequest) -> Value {
        let response = lock(&self.simulator()).handle(request);
        assert_eq!(response.status, 200, "{}: {}", request.path, response.json());
        response.json()
    }

    pub fn faults(&self, rules: Vec<FaultRule>) {
        lock(&self.simulator()).set_faults(FaultPlan::of_rules(rules));
    }

    pub fn pass_seconds(&self, seconds: i64) {
        self.clock.advance(seconds * MICROS_PER_SECOND);
        lock(&self.simulator()).tick();
    }

    pub fn seconds(&self) -> i64 {
        self.clock.now().micros().div_euclid(MICROS_PER_SECOND)
    }

    /// A customer of the provider, who is this tenant.
    pub async fn customer(&self, tenant: &str) -> String {
        let customer = id_of(&self.ask("/v1/customers", &[]));
        self.map(tenant, &customer).await;
        customer
    }

    pub async fn map(&self, tenant: &str, customer: &str) {
        let customer = Some(CustomerId::parse(customer).unwrap());
        let fields = TenantFields { customer, ..TenantFields::default() };
        let tenant = TenantId::parse(tenant).unwrap();
        self.store.put_tenant(&tenant, fields, self.clock.now()).await.unwrap();
    }

    /// A meter at the provider and a price of it; returns the price.
    pub fn price(&self, event_name: &str, cents: &str) -> String {
        let known = self.get_from_provider("/v1/billing/meters?limit=100");
        let known =
            known["data"].as_array().unwrap().iter().find(|m| m["event_name"] == event_name);
        let meter = known.cloned().unwrap_or_else(|| {
            self.ask(
                "/v1/billing/meters",
                &[
                    ("display_name", event_name),
                    ("event_name", event_name),
                    ("default_aggregation[formula]", "sum"),
                ],
            )
        });
        let meter = id_of(&meter);
        let fields = [
            ("currency", "usd"),
            ("product", "prod_1"),
            ("unit_amount_decimal", cents),
            ("recurring[interval]", "month"),
            ("recurring[usage_type]", "metered"),
            ("recurring[meter]", &meter),
        ];
        id_of(&self.ask("/v1/prices", &fields))
    }

    pub fn use_at_provider(&self, customer: &str, event_name: &str, value: &str) {
        let timestamp = (self.seconds() - 1).to_string();
        let fields = [
            ("event_name", event_name),
            ("payload[stripe_customer_id]", customer),
            ("payload[value]", value),
            ("timestamp", &timestamp),
        ];
        self.ask("/v1/billing/meter_events", &fields);
    }

    pub fn payments_fail(&self, fails: bool) {
        let body = json!({ "fails": fails });
        self.answer(&SimRequest::json("/_sim/payments", &body));
    }

    /// Every event of the provider's list, the oldest first.
    pub fn events(&self) -> Vec<Value> {
        let mut events: Vec<Value> = Vec::new();
        loop {
            let after = events.last().map(|last| format!("&starting_after={}", id_of(last)));
            let target = format!("/v1/events?limit=100{}", after.unwrap_or_default());
            let page = self.get_from_provider(&target);
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
        let found =
            self.get_from_provider(&format!("/v2/core/events?object_id={object}&limit=100"));
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
        let answer = self.deliver(event).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let told = answer.json();
        (told["id"].as_u64().unwrap(), told["duplicate"].as_bool().unwrap())
    }

    pub async fn post_hook(&self, signature: &str, body: &[u8]) -> Answer {
        send(&self.router, hook(Some(signature), body)).await
    }

    /// Reads what is due until nothing is.
    pub async fn read_all(&self) -> usize {
        let mut read = 0;
        loop {
            match self.reader.pass().await.unwrap() {
                0 => return read,
                count => read += count,
            }
        }
    }

    pub async fn call(&self, method: Method, path: &str, key: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json");
        send(&self.router, request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.call(Method::GET, path, &self.admin, "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    pub async fn key(&self, scope: &str, tenant: Option<&str>) -> String {
        let body = json!({"name": "test", "scopes": [scope], "tenant": tenant}).to_string();
        let answer = self.call(Method::POST, "/v1/keys", &self.admin, &body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.json()["token"].as_str().unwrap().to_owned()
    }

    /// All webhooks, the oldest first.
    pub async fn webhooks(&self) -> Vec<Value> {
        let mut found: Vec<Value> = Vec::new();
        let mut path = "/v1/webhooks?limit=1000".to_owned();
        loop {
            let page = self.get(&path).await;
            found.extend(page["webhooks"].as_array().unwrap().iter().cloned());
            let Some(before) = page["next_before"].as_u64() else { break };
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

    pub async fn mirror(&self, kind: ObjectKind, id: &str) -> Option<Mirror> {
        self.store.find_mirror(&ObjectName { kind, id: id.into() }).await.unwrap()
    }

    pub async fn snapshot(&self, kind: ObjectKind, id: &str) -> Snapshot {
        self.mirror(kind, id).await.unwrap_or_else(|| panic!("{id} was not read")).snapshot
    }

    pub async fn mirrors(&self, kind: ObjectKind) -> Vec<Mirror> {
        let query = MirrorQuery { kind, status: None, customer: None, after: None, limit: 100_000 };
        self.store.list_mirrors(query).await.unwrap()
    }

    pub async fn timeline(&self, tenant: &str, at: &str) -> Value {
        self.get(&format!("/v1/timeline?tenant={tenant}&at={at}")).await
    }

    /// The alerts of a kind, the oldest first.
    pub async fn alerts(&self, kind: &str) -> Vec<Value> {
        let page = self.get(&format!("/v1/alerts?kind={kind}&limit=1000")).await;
        let mut alerts = page["alerts"].as_array().unwrap().clone();
        alerts.reverse();
        alerts
    }

    /// What the webhooks of all tests of this process were refused for, by reason.
    pub async fn refused(&self, reason: &str) -> u64 {
        let answer = self.call(Method::GET, "/metrics", &self.admin, "").await;
        let name = format!("counterfoil_webhooks_refused_total{{reason=\"{reason}\"}} ");
        let line = answer.body.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().unwrap())
    }

    /// Everything that webhooks could have changed, row by row.
    pub async fn rows(&self) -> Vec<String> {
        let tables = [
            "webhooks",
            "webhook_names",
            "mirrors",
            "timeline_entries",
            "leases",
            "cursors",
            "alerts",
        ];
        let mut rows = Vec::new();
        match &self.place {
            Place::Directory(directory) => {
                let path = directory.path().join("counterfoil.db");
                let connection = rusqlite::Connection::open(path).unwrap();
                for table in tables {
                    rows.extend(sqlite_rows(&connection, table));
                }
            }
            Place::Database(url) => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                for table in tables {
                    let sql = format!("SELECT t::text FROM {table} t ORDER BY 1");
                    for row in client.query(&sql, &[]).await.unwrap() {
                        rows.push(format!("{table} {}", row.get::<_, String>(0)));
                    }
                }
            }
        }
        rows
    }
}

fn sqlite_rows(connection: &rusqlite::Connection, table: &str) -> Vec<String> {
    let mut select = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = select.column_count();
    let mut found = select.query([]).unwrap();
    let mut rows = Vec::new();
    while let Some(row) = found.next().unwrap() {
        let show = |place: usize| match row.get_ref(place).unwrap() {
            rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
            value => format!("{value:?}"),
        };
        let values: Vec<String> = (0..columns).map(show).collect();
        rows.push(format!("{table} {values:?}"));
    }
    rows.sort();
    rows
}

fn connect(config: &Config) -> Arc<dyn Provider> {
    provider::connect(&config.provider, &config.stripe, &config.sink).unwrap().unwrap()
}

fn router(
    store: &Arc<dyn Store>,
    clock: &Clock,
    provider: &Arc<dyn Provider>,
    config: &Config,
) -> Router {
    let ingest = Ingest::start(Arc::clone(store), clock.clone(), config.ingest.clone(), false);
    let inbox = WebhookInbox::start(store.clone());
    let provider = Some(Arc::clone(provider));
    http::router(App::new(Arc::clone(store), ingest, inbox, clock.clone(), provider, config))
}

/// A delivery; with no signature if none is given.
pub fn hook(signature: Option<&str>, body: &[u8]) -> Request<Body> {
    let mut request = Request::builder().method(Method::POST).uri(HOOK);
    if let Some(signature) = signature {
        request = request.header("stripe-signature", signature);
    }
    request.header("content-type", "application/json").body(Body::from(body.to_vec())).unwrap()
}

pub async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    /// Checks that this is a well-formed problem with the code.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert_eq!(problem["code"], code, "{}", self.body);
        assert_eq!(problem["type"], format!("urn:counterfoil:problem:{code}"));
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        assert_eq!(self.headers.contains_key("retry-after"), status == 503);
        problem
    }
}

pub fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn id_of(object: &Value) -> String {
    object["id"].as_str().unwrap_or_else(|| panic!("no id: {object}")).to_owned()
}

pub fn lock(simulator: &Mutex<Simulator>) -> MutexGuard<'_, Simulator> {
    simulator.lock().unwrap()
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

/// In memory where there is such a place: nothing here is about disks.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(directory) = tempfile::tempdir_in(memory)
    {
        return directory;
    }
    tempfile::tempdir().unwrap()
}
