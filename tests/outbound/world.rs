//! A small world for one test: store, jobs, provider and clock, and what a test asks of them.

use crate::stripe::{start_stripe, stripe_time};
use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, ProviderKind, Secret};
use counterfoil::jobs::confirm::ConfirmJob;
use counterfoil::jobs::cut::{CutJob, Pass};
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::watch::WatchJob;
use counterfoil::jobs::{Context, Job};
use counterfoil::provider::{self, Provider};
use counterfoil::rules::delivery::{Class, PushState};
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterSlug, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::store::push::{Push, PushQuery, PushTrace, Ruling};
use counterfoil::store::reconciliation::SummaryReading;
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::{Declaration, DeliveryBatch, Store, TenantFields};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use stripe_sim::{
    Decimal, FaultKind, FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator,
};

/// Where every world begins.
pub const NOON: &str = "2026-11-15T12:00:00Z";
/// A billed meter: cut an hour after a window's end.
pub const CALLS: &str = r#"{"aggregation":"sum","billing":{"from":"2026-11-15T00:00:00Z"}}"#;
pub const EVENTS: &str = "/v1/billing/meter_events";
pub const SUMMARIES: &str = "event_summaries";

pub struct World {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub handle: Handle,
    pub config: Config,
    pub jobs: Jobs,
    pub directory: tempfile::TempDir,
    sent: AtomicU64,
}

/// The jobs of one server.
pub struct Jobs {
    pub context: Context,
    pub cutter: CutJob,
    pub submitter: PushJob,
    pub confirmer: ConfirmJob,
    pub watcher: WatchJob,
}

pub fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn tenant_id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

impl World {
    pub async fn new() -> Self {
        Self::with(Options::default(), |_| {}).await
    }

    pub async fn with(options: Options, change: impl FnOnce(&mut Config)) -> Self {
        let clock = Clock::by_hand(at(NOON));
        let handle = start_stripe(&clock, options).await;
        let mut config = config::load(None).unwrap();
        config.provider.kind = ProviderKind::Stripe;
        config.stripe.api_base = handle.url();
        config.stripe.api_key = Secret::new("sk_test_outbound");
        config.stripe.timeout_ms = 2_000;
        config.push.rate_per_second = 1_000_000;
        config.push.poll_ms = 5;
        change(&mut config);
        let directory = scratch();
        let store: Arc<dyn Store> =
            SqliteStore::open(&directory.path().join("data"), &config.sqlite).unwrap();
        let jobs = Jobs::new(&store, &clock, &config);
        let sent = AtomicU64::new(0);
        Self { store, clock, handle, config, jobs, directory, sent }
    }

    /// With a tenant `acme` that is a customer, and the meter `calls`.
    pub async fn usual() -> (Self, String) {
        let world = Self::new().await;
        world.meter("calls", CALLS).await;
        let customer = world.tenant("acme").await;
        (world, customer)
    }

    /// The jobs of a server with other settings, on the same store and clock.
    pub fn other_server(&self, change: impl FnOnce(&mut Config)) -> Jobs {
        let mut config = self.config.clone();
        change(&mut config);
        Jobs::new(&self.store, &self.clock, &config)
    }

    /// The store's directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn simulator(&self) -> Arc<Mutex<Simulator>> {
        self.handle.simulator()
    }

    /// Asks the simulator for something as another program would.
    pub fn ask(&self, path: &str, fields: &[(&str, &str)]) -> serde_json::Value {
        let response = lock(&self.simulator()).handle(&SimRequest::form(path, fields));
        assert_eq!(response.status, 200, "{path}: {}", response.json());
        response.json()
    }

    pub fn faults(&self, rules: Vec<FaultRule>) {
        lock(&self.simulator()).set_faults(FaultPlan::of_rules(rules));
    }

    /// So many meter events meet this accident from now on.
    pub fn fault(&self, kind: FaultKind, times: u64) {
        self.faults(vec![FaultRule::new(kind).on_path(EVENTS).times(times)]);
    }

    /// The provider's id of its first meter.
    pub fn ask_meter(&self) -> String {
        let listed = lock(&self.simulator()).handle(&SimRequest::get("/v1/billing/meters"));
        listed.json()["data"][0]["id"].as_str().unwrap().to_owned()
    }

    pub async fn meter(&self, slug: &str, spec: &str) {
        self.declare(slug, spec).await;
        let spec: serde_json::Value = serde_json::from_str(spec).unwrap();
        let billing = &spec["billing"];
        let name = billing["event_name"].as_str().unwrap_or(slug);
        let mut fields = vec![
            ("display_name", slug),
            ("event_name", name),
            ("default_aggregation[formula]", "sum"),
        ];
        if billing["mode"] == "absolute" {
            let day = billing["granularity"] == "day";
            fields.push(("event_time_window", if day { "day" } else { "hour" }));
        }
        self.ask("/v1/billing/meters", &fields);
    }

    /// Declares a meter here only.
    pub async fn declare(&self, slug: &str, spec: &str) {
        let spec = serde_json::from_str(spec).unwrap();
        let meter = Meter::declare(MeterSlug::parse(slug).unwrap(), spec).unwrap();
        let declared = self.store.declare_meter(meter, self.clock.now()).await.unwrap();
        assert!(!matches!(declared, Declaration::Refused(_)), "{declared:?}");
    }

    /// A tenant that is a customer; returns the customer.
    pub async fn tenant(&self, id: &str) -> String {
        let customer = self.ask("/v1/customers", &[])["id"].as_str().unwrap().to_owned();
        self.map(id, &customer).await;
        customer
    }

    pub async fn map(&self, tenant: &str, customer: &str) {
        let customer = Some(CustomerId::parse(customer).unwrap());
        let fields = TenantFields { customer, ..TenantFields::default() };
        self.store.put_tenant(&tenant_id(tenant), fields, self.clock.now()).await.unwrap();
    }

    /// One event of the meter `calls`.
    pub async fn used(&self, tenant: &str, quantity: &str, occurred_at: &str) {
        self.deliver(tenant, &format!(r#""quantity":"{quantity}""#), occurred_at).await;
    }

    /// One event of the meter `calls` with these fields.
    pub async fn deliver(&self, tenant: &str, fields: &str, occurred_at: &str) {
        self.deliver_many(tenant, &[fields.to_owned()], occurred_at).await;
    }

    /// One event of another meter.
    pub async fn deliver_to(&self, meter: &str, tenant: &str, quantity: &str, at: &str) {
        let fields = [format!(r#""quantity":"{quantity}""#)];
        self.deliver_events(meter, tenant, &fields, at).await;
    }

    /// One event of the meter `calls` for each of these texts of fields.
    pub async fn deliver_many(&self, tenant: &str, fields: &[String], occurred_at: &str) {
        self.deliver_events("calls", tenant, fields, occurred_at).await;
    }

    async fn deliver_events(&self, meter: &str, tenant: &str, fields: &[String], at: &str) {
        let catalog = self.store.load_catalog().await.unwrap();
        let write = |fields: &String| {
            let number = self.sent.fetch_add(1, Ordering::SeqCst);
            format!(
                r#"{{"tenant":"{tenant}","id":"e{number}","meter":"{meter}","occurred_at":"{at}",{fields}}}"#
            )
        };
        let read = |text: String| {
            let item: Item<'_> = serde_json::from_str(&text).unwrap();
            parse_event(&item, &catalog).unwrap()
        };
        let hours = i64::from(self.config.ingest.accept_horizon_hours);
        let batch = DeliveryBatch {
            events: fields.iter().map(write).map(read).collect(),
            refused: Vec::new(),
            acceptance: Acceptance {
                now: self.clock.now(),
                horizon_micros: hours * MICROS_PER_HOUR,
            },
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        let verdicts = self.store.record_deliveries(0, batch).await.unwrap();
        let accepted = verdicts.iter().all(|verdict| *verdict == Verdict::Accepted);
        assert!(accepted, "{fields:?} at {at}: {verdicts:?}");
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

    pub async fn cut(&self) -> Pass {
        self.jobs.cutter.pass().await.unwrap()
    }

    pub async fn push(&self) -> usize {
        self.jobs.submitter.pass().await.unwrap()
    }

    pub async fn confirm(&self) -> usize {
        self.jobs.confirmer.pass().await.unwrap()
    }

    /// Usage of this hour, from its first event to a push that waits.
    pub async fn planned(&self, quantity: &str) -> Push {
        if self.clock.now() < at("2026-11-15T12:30:00Z") {
            self.go_to("2026-11-15T12:30:00Z");
        }
        self.used("acme", quantity, "2026-11-15T12:30:00Z").await;
        if self.clock.now() < at("2026-11-15T14:00:00Z") {
            self.go_to("2026-11-15T14:00:00Z");
        } else {
            self.pass_hours(1);
        }
        assert_eq!(self.cut().await.pushes, 1);
        self.pushes().await.pop().unwrap()
    }

    /// Every push, oldest first.
    pub async fn pushes(&self) -> Vec<Push> {
        let query = PushQuery { limit: 10_000, ..PushQuery::default() };
        let mut pushes = self.store.list_pushes(query).await.unwrap();
        pushes.reverse();
        pushes
    }

    pub async fn trace(&self, number: u64) -> PushTrace {
        self.store.trace_push(number).await.unwrap().unwrap()
    }

    /// The words of a push's history.
    pub async fn history(&self, number: u64) -> Vec<&'static str> {
        let trace = self.trace(number).await;
        trace.transitions.iter().map(|transition| transition.class.name()).collect()
    }

    /// Checks the state and the reason of a push.
    pub async fn check(&self, number: u64, state: PushState, class: Class) -> Push {
        let push = self.trace(number).await.push;
        assert_eq!((push.state, push.class), (state, class), "{push:?}");
        push
    }

    /// The total of a push's window is read twice, an hour apart, as hourly passes do.
    pub async fn read_twice(&self, number: u64) {
        let push = self.trace(number).await.push;
        let customer = push.customer.unwrap();
        for _ in 0..2 {
            self.pass_hours(1);
            let start = push.window.start;
            let value =
                lock(&self.simulator()).exact_total(customer.as_str(), "calls", stripe_time(start));
            let reading = SummaryReading {
                tenant: push.tenant.clone(),
                meter: push.meter,
                customer: customer.clone(),
                window: push.window,
                value: Quantity::from_units(value.units()),
            };
            self.store.record_summaries(vec![reading], self.clock.now()).await.unwrap();
        }
    }

    pub async fn retry(&self, number: u64) -> Ruling {
        self.store.retry_push(number, self.clock.now()).await.unwrap()
    }

    /// What the provider really holds of an hour.
    pub fn provider_total(&self, customer: &str, hour: &str) -> String {
        lock(&self.simulator()).exact_total(customer, "calls", stripe_time(at(hour))).to_string()
    }

    /// What the provider really holds of a customer.
    pub fn provider_sum(&self, customer: &str) -> String {
        let totals = lock(&self.simulator()).exact_totals();
        let own = totals.into_iter().filter(|((whose, _, _), _)| whose == customer);
        own.map(|(_, total)| total).sum::<Decimal>().to_string()
    }

    /// How often meter events were posted.
    pub fn posts(&self) -> u64 {
        let calls = lock(&self.simulator()).calls().clone();
        calls.get("POST /v1/billing/meter_events").copied().unwrap_or(0)
    }

    /// Makes the database refuse changes that meet the condition.
    pub fn break_store(&self, trigger: &str) {
        let path = self.data().join("counterfoil.db");
        let connection = rusqlite::Connection::open(path).unwrap();
        let sql = format!("CREATE TRIGGER broken {trigger} BEGIN SELECT RAISE(ABORT, 'no'); END");
        connection.execute_batch(&sql).unwrap();
    }

    pub fn mend_store(&self) {
        let path = self.data().join("counterfoil.db");
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch("DROP TRIGGER broken").unwrap();
    }
}

impl Jobs {
    pub fn new(store: &Arc<dyn Store>, clock: &Clock, config: &Config) -> Self {
        let Config { provider, stripe, sink, .. } = config;
        let provider = provider::connect_heard_by(provider, stripe, sink, clock);
        Self::towards(provider.unwrap().unwrap(), store, clock, config)
    }

    pub fn towards(
        provider: Arc<dyn Provider>,
        store: &Arc<dyn Store>,
        clock: &Clock,
        config: &Config,
    ) -> Self {
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        let holder = format!("server-{}", SERVERS.fetch_add(1, Ordering::SeqCst));
        let context = Context::new(Arc::clone(store), clock.clone(), config, holder, 1);
        Self {
            cutter: CutJob::new(&context, provider.limits().digits_max),
            submitter: PushJob::new(&context, &provider),
            confirmer: ConfirmJob::new(&context, &provider),
            watcher: WatchJob::new(&context),
            context,
        }
    }
}

pub fn lock(simulator: &Mutex<Simulator>) -> MutexGuard<'_, Simulator> {
    simulator.lock().unwrap()
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
