//! A small world for one story: a real store, the Stripe simulator behind a port, one clock that
//! only the test moves, and runners of sagas that are made anew for each pass, as after a restart.
//!
//! Invariant: what happened is read from the simulator's own state and from the store, never from
//! what a runner says.

use super::script::Script;
use super::scripted_provider::ScriptedProvider;
use crate::database::create_database;
use crate::stripe::start_stripe;
use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, PostgresConfig, ProviderKind, Secret, SqliteConfig};
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::sagas::{SagasJob, boundary_after};
use counterfoil::jobs::{Context, Job};
use counterfoil::provider::{self, Provider};
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterSlug, OnceKey, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::saga::{LogLine, Saga, SagaKind, SagaState, saga_id};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::push::{Push, PushQuery};
use counterfoil::store::saga::{Agreement, Begun, NewSaga};
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::{DeliveryBatch, Store, TenantFields};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use stripe_sim::{FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator};

/// Where every world begins: inside an hour, so that a window is open.
pub const BEGINNING: &str = "2026-11-15T12:20:00Z";
const CALLS: &str = r#"{"aggregation":"sum","billing":{"from":"2026-11-15T00:00:00Z"}}"#;
/// A second more than a runner's lease.
const BEYOND_LEASE_SECONDS: i64 = 181;
/// Passes after which a saga is said not to end by itself.
const PASSES_MAX: usize = 300;

/// Where a world's store lives.
pub enum Ground {
    Directory(tempfile::TempDir),
    Database(String),
}

impl Ground {
    pub fn sqlite() -> Self {
        // In memory where there is such a place: nothing here is about disks.
        let memory = Path::new("/dev/shm");
        let inside = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
        Self::Directory(inside.unwrap_or_else(|| tempfile::tempdir().unwrap()))
    }

    /// None, with a printed line, if there is no PostgreSQL to test on.
    pub async fn postgres() -> Option<Self> {
        create_database("sagas").await.map(Self::Database)
    }

    /// Another place of the same kind.
    pub async fn another(&self) -> Self {
        match self {
            Self::Directory(_) => Self::sqlite(),
            Self::Database(_) => Self::postgres().await.unwrap(),
        }
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
                    writers: 1,
                    readers: 2,
                    request_writers: 4,
                    job_connections: 2,
                    timeout_ms: 20_000,
                    query_timeout_ms: 30_000,
                };
                PostgresStore::open_with_fingerprinter_bits(url, &settings, None).await.unwrap()
            }
        }
    }
}

pub struct World {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub config: Config,
    pub provider: Arc<dyn Provider>,
    pub submitter: PushJob,
    pub cutter: CutJob,
    /// Of the meter `calls`, at one cent, two and three.
    pub prices: [String; 3],
    /// Five dollars a month, paid in advance.
    pub flat: String,
    handle: Handle,
    numbers: AtomicU64,
    _ground: Ground,
}

pub fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn tenant_id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

impl World {
    pub async fn on(ground: Ground) -> Self {
        let clock = Clock::by_hand(at(BEGINNING));
        let handle = start_stripe(&clock, Options::default()).await;
        let mut config = config::load(None).unwrap();
        config.provider.kind = ProviderKind::Stripe;
        config.stripe.api_base = handle.url();
        config.stripe.api_key = Secret::new("sk_test_sagas");
        config.stripe.timeout_ms = 1_000;
        config.push.rate_per_second = 1_000_000;
        let store = ground.open().await;
        let Config { provider, stripe, sink, .. } = &config;
        let provider = provider::connect_heard_by(provider, stripe, sink, &clock);
        let provider = provider.unwrap().unwrap();
        let context = Context::new(Arc::clone(&store), clock.clone(), &config, "cutter".into(), 1);
        let submitter = PushJob::new(&context, &provider);
        let cutter = CutJob::new(&context, provider.limits().digits_max);
        let numbers = AtomicU64::new(0);
        let (prices, _ground) = (Default::default(), ground);
        let mut world = Self {
            store,
            clock,
            config,
            provider,
            submitter,
            cutter,
            prices,
            flat: String::new(),
            handle,
            numbers,
            _ground,
        };
        world.declare_calls().await;
        world
    }

    /// Stops its store and its provider.
    pub async fn close(mut self) {
        self.store.close().await;
        self.handle.stop().await.unwrap();
    }

    async fn declare_calls(&mut self) {
        self.prices = self.declare("calls", CALLS, ["1", "2", "3"]).await;
        let fields = [
            ("currency", "usd"),
            ("unit_amount", "500"),
            ("recurring[interval]", "month"),
            ("recurring[usage_type]", "licensed"),
            ("product_data[name]", "Plan"),
        ];
        self.flat = self.ask("/v1/prices", &fields)["id"].as_str().unwrap().to_owned();
    }

    /// Declares a meter, here and at the provider, with prices of so many cents; returns these.
    pub async fn declare<const N: usize>(
        &self,
        slug: &str,
        spec: &str,
        cents: [&str; N],
    ) -> [String; N] {
        let spec = serde_json::from_str(spec).unwrap();
        let meter = Meter::declare(MeterSlug::parse(slug).unwrap(), spec).unwrap();
        self.store.declare_meter(meter, self.clock.now()).await.unwrap();
        let fields =
            [("display_name", slug), ("event_name", slug), ("default_aggregation[formula]", "sum")];
        let meter = self.ask("/v1/billing/meters", &fields)["id"].as_str().unwrap().to_owned();
        cents.map(|cents| {
            let fields = [
                ("currency", "usd"),
                ("unit_amount_decimal", cents),
                ("recurring[interval]", "month"),
                ("recurring[usage_type]", "metered"),
                ("recurring[meter]", &meter),
                ("product_data[name]", "Calls"),
            ];
            self.ask("/v1/prices", &fields)["id"].as_str().unwrap().to_owned()
        })
    }

    pub fn simulator(&self) -> Arc<Mutex<Simulator>> {
        self.handle.simulator()
    }

    /// Asks the simulator for something as another program would.
    pub fn ask(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        self.answer(&SimRequest::form(path, fields))
    }

    pub fn get(&self, target: &str) -> Value {
        self.answer(&SimRequest::get(target))
    }

    fn answer(&self, request: &SimRequest) -> Value {
        let response = lock(&self.simulator()).handle(request);
        assert_eq!(response.status, 200, "{}: {}", request.path, response.json());
        response.json()
    }

    pub fn faults(&self, rules: Vec<FaultRule>) {
        lock(&self.simulator()).set_faults(FaultPlan::of_rules(rules));
    }

    /// A name that nothing here has yet.
    pub fn fresh(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.numbers.fetch_add(1, Ordering::SeqCst))
    }

    /// A customer of the provider that a tenant is mapped to; returns it.
    pub async fn map_customer(&self, tenant: &str) -> String {
        let customer = self.ask("/v1/customers", &[])["id"].as_str().unwrap().to_owned();
        let fields = TenantFields {
            customer: Some(CustomerId::parse(&customer).unwrap()),
            ..TenantFields::default()
        };
        self.store.put_tenant(&tenant_id(tenant), fields, self.clock.now()).await.unwrap();
        customer
    }

    /// One event of the meter `calls`.
    pub async fn used(&self, tenant: &str, quantity: &str, occurred_at: Timestamp) {
        self.used_of("calls", tenant, quantity, occurred_at).await;
    }

    pub async fn used_of(&self, meter: &str, tenant: &str, quantity: &str, occurred_at: Timestamp) {
        let id = self.fresh("event");
        let text = format!(
            r#"{{"tenant":"{tenant}","id":"{id}","meter":"{meter}","occurred_at":"{occurred_at}","quantity":"{quantity}"}}"#
        );
        let catalog = self.store.load_catalog().await.unwrap();
        let item: Item<'_> = serde_json::from_str(&text).unwrap();
        let hours = i64::from(self.config.ingest.accept_horizon_hours);
        let acceptance =
            Acceptance { now: self.clock.now(), horizon_micros: hours * MICROS_PER_HOUR };
        let events = vec![parse_event(&item, &catalog).unwrap()];
        let batch = DeliveryBatch {
            events,
            refused: Vec::new(),
            acceptance,
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        let verdicts = self.store.record_deliveries(0, batch).await.unwrap();
        assert_eq!(verdicts, [Verdict::Accepted], "{quantity} at {occurred_at}");
    }

    /// The end of the window under way.
    pub async fn boundary(&self) -> Timestamp {
        boundary_after(&self.store.load_catalog().await.unwrap(), self.clock.now())
    }

    /// Begins a saga and returns its id.
    pub async fn begin(
        &self,
        tenant: &str,
        kind: SagaKind,
        params: &impl serde::Serialize,
    ) -> String {
        let (tenant, key) = (tenant_id(tenant), OnceKey::parse(&self.fresh("key")).unwrap());
        let id = saga_id(&self.store.token_secret(), &tenant, &key);
        let params = serde_json::to_string(params).unwrap();
        let new = NewSaga { id: id.clone(), kind, tenant, key, params };
        let begun = self.store.begin_saga(new, self.clock.now(), None).await.unwrap();
        assert!(matches!(begun, Begun::Created(_)), "{begun:?}");
        id
    }

    pub async fn saga(&self, id: &str) -> (Saga, Vec<LogLine>) {
        self.store.find_saga(id).await.unwrap().unwrap()
    }

    pub fn context(&self, store: Arc<dyn Store>, holder: &str) -> Context {
        Context::new(store, self.clock.clone(), &self.config, holder.to_owned(), 1)
    }

    /// A runner as of a server that has just started; its calls meet the script's accidents.
    pub fn runner(&self, script: &Arc<Script>) -> SagasJob {
        let store = script.around(Arc::clone(&self.store));
        let (inner, script) = (Arc::clone(&self.provider), Arc::clone(script));
        let provider: Arc<dyn Provider> = Arc::new(ScriptedProvider { inner, script });
        SagasJob::new(&self.context(store, &self.fresh("runner")), &provider)
    }

    /// Lets runners have the saga, one after the other, until it has ended or needs a person.
    pub async fn drive(&self, id: &str, script: &Arc<Script>) -> SagaState {
        let mut stalled: Option<tokio::task::JoinHandle<_>> = None;
        for _ in 0..PASSES_MAX {
            let (saga, log) = self.saga(id).await;
            if !saga.state.is_moving() {
                let Some(task) = stalled.take() else { return saga.state };
                // The runner that stalled goes on, with a fence that is not current any more, after
                // the provider has forgotten its keys.
                self.clock.advance(30 * 3_600_000_000);
                script.go_on.notify_one();
                let _ = task.await.unwrap();
                assert_eq!(self.saga(id).await, (saga, log), "a stale runner has written");
                continue;
            }
            let runner = self.runner(script);
            let mut task = tokio::spawn(async move { runner.pass().await });
            tokio::select! {
                passed = &mut task => drop(passed.unwrap()),
                () = script.reached.notified() => {
                    if script.stalls() {
                        stalled = Some(task);
                    } else {
                        task.abort();
                        assert!(task.await.unwrap_err().is_cancelled());
                    }
                }
            }
            self.submitter.pass().await.unwrap();
            self.wait_for(id).await;
        }
        panic!("it does not end: {:#?}", self.saga(id).await);
    }

    /// Goes to when the saga is due, or past the lease of a runner that is gone.
    pub async fn wait_for(&self, id: &str) {
        let (saga, _) = self.saga(id).await;
        let ahead = saga.due_at.micros() - self.clock.now().micros();
        let micros = if ahead > 0 { ahead } else { BEYOND_LEASE_SECONDS * MICROS_PER_SECOND };
        if saga.state.is_moving() {
            self.clock.advance(micros);
        }
    }

    /// Drives it without accidents of the script.
    pub async fn finish(&self, id: &str) -> SagaState {
        self.drive(id, &Arc::default()).await
    }

    /// Customers at the provider that were made for a tenant.
    pub fn made_customers(&self, tenant: &str) -> Vec<Value> {
        let all = lock(&self.simulator()).customers();
        all.into_iter().filter(|one| one["metadata"]["counterfoil_tenant"] == tenant).collect()
    }

    pub fn customer(&self, id: &str) -> Value {
        lock(&self.simulator()).customers().into_iter().find(|one| one["id"] == id).unwrap()
    }

    /// What a customer has paid and did not get back, in cents; nothing else may be owed.
    pub fn kept(&self, customer: &str) -> i64 {
        let all = self.get(&format!("/v1/invoices?limit=100&customer={customer}"));
        let rows = all["data"].as_array().unwrap().iter();
        rows.map(|one| {
            let amount = |name: &str| one[name].as_i64().unwrap();
            let status = one["status"].as_str().unwrap();
            let owed = ["draft", "open"].contains(&status) && amount("amount_due") > 0;
            assert!(!owed, "{one:#}");
            amount("amount_paid") - amount("post_payment_credit_notes_amount")
        })
        .sum()
    }

    /// Subscriptions of a customer, those that have ended too.
    pub fn subscriptions(&self, customer: &str) -> Vec<Value> {
        let all = lock(&self.simulator()).subscriptions();
        all.into_iter().filter(|one| one["customer"] == customer).collect()
    }

    pub async fn agreements(&self, tenant: &str) -> Vec<Agreement> {
        self.store.list_agreements(&tenant_id(tenant), 100).await.unwrap()
    }

    pub async fn mapped_to(&self, tenant: &str) -> Option<String> {
        let found = self.store.find_tenant(&tenant_id(tenant)).await.unwrap();
        found.and_then(|found| found.customer).map(|customer| customer.as_str().to_owned())
    }

    /// Kinds of the messages about a tenant's sagas, oldest first.
    pub async fn told(&self, tenant: &str) -> Vec<String> {
        let found = self.store.list_messages(Some(&tenant_id(tenant)), 0, 1_000).await.unwrap();
        let kinds = found.into_iter().map(|message| message.kind);
        kinds.filter(|kind| kind.starts_with("saga.")).collect()
    }

    /// Every push of a tenant, oldest first.
    pub async fn pushes(&self, tenant: &str) -> Vec<Push> {
        let tenant = Some(tenant_id(tenant));
        let query = PushQuery { tenant, limit: 10_000, ..PushQuery::default() };
        self.store.list_pushes(query).await.unwrap().into_iter().rev().collect()
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// What a subscription is charged by.
pub fn prices_of(subscription: &Value) -> Vec<&str> {
    let items = subscription["items"]["data"].as_array().unwrap();
    items.iter().map(|item| item["price"]["id"].as_str().unwrap()).collect()
}
