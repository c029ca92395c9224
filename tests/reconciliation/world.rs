//! A small world for one test: a real store, the Stripe simulator behind a port, one clock that
//! only the test moves, and every job that bills and reconciles, run step by step.
//!
//! Webhooks are taken from the simulator's own lists, signed, verified, parsed and recorded, as the
//! HTTP edge would; a test may lose them or tell them twice.

use crate::database::create_database;
use crate::plant::{plant_in_database, plant_in_directory};
use crate::stripe::{start_stripe, stripe_time};
use async_trait::async_trait;
use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, PostgresConfig, ProviderKind, Secret};
use counterfoil::config::{SqliteConfig, UnknownSubscriptions};
use counterfoil::destinations::{Destination, Notice, Sending};
use counterfoil::jobs::alerts::AlertsJob;
use counterfoil::jobs::backfill::BackfillJob;
use counterfoil::jobs::confirm::ConfirmJob;
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::mirror::MirrorJob;
use counterfoil::jobs::outbox::{OutboxJob, Receivers};
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::reconcile::ReconcileJob;
use counterfoil::jobs::{Context, Job};
use counterfoil::provider;
use counterfoil::provider::stripe::signature::verify;
use counterfoil::provider::stripe::webhook::parse_webhook;
use counterfoil::rules::alert::{Alert, AlertKind, NoticeEvent, Severity};
use counterfoil::rules::delivery::{Class, PushState};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::event::{Event, Item, parse_event};
use counterfoil::rules::finding::{Finding, FindingKind};
use counterfoil::rules::ids::{CustomerId, MeterNo, MeterSlug, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::mirror::{ObjectKind, ObjectName};
use counterfoil::rules::pass::{Pass, PassKind, PassOrder, PassRow, PassState};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict as Judged};
use counterfoil::rules::webhook::WebhookSource;
use counterfoil::rules::window::Window;
use counterfoil::store::alert::AlertQuery;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::push::{Push, PushQuery};
use counterfoil::store::reconciliation::{FindingQuery, PassQuery, PassRowQuery};
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::webhook::{Mirror, WebhookReceipt};
use counterfoil::store::{Declaration, DeliveryBatch, Store, TenantFields};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use stripe_sim::{
    Decimal, FaultKind, FaultPlan, FaultRule, ForeignUsage, Handle, Options, SimRequest, Simulator,
    sign,
};

/// Where every world begins.
pub const NOON: &str = "2026-11-15T12:00:00Z";
/// A billed meter: cut an hour after a window's end.
pub const CALLS: &str = r#"{"aggregation":"sum","billing":{"from":"2026-11-15T00:00:00Z"}}"#;
pub const ABSOLUTE: &str =
    r#"{"aggregation":"sum","billing":{"from":"2026-11-15T00:00:00Z","mode":"absolute"}}"#;
pub const EVENTS: &str = "/v1/billing/meter_events";
pub const SUMMARIES: &str = "event_summaries";
/// How far a world goes at a time in which little happens.
const STRIDE_HOURS: i64 = 6;
const WEBHOOK_SECRET: &str = "whsec_reconciliation";
const REPORTS: &str = "/v2/core/events?limit=100\
    &types[0]=v1.billing.meter.error_report_triggered&types[1]=v1.billing.meter.no_meter_found";

/// Where a world's store lives.
pub enum Ground {
    Directory(tempfile::TempDir),
    Database(String),
}

impl Ground {
    /// Changes rows behind the store's back; the statements must suit both stores.
    pub async fn plant(&self, sql: &str) {
        match self {
            Self::Directory(directory) => plant_in_directory(directory.path(), sql),
            Self::Database(url) => plant_in_database(url, sql).await,
        }
    }

    pub fn sqlite() -> Self {
        // In memory where there is such a place: nothing here is about disks.
        let memory = Path::new("/dev/shm");
        let inside = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
        Self::Directory(inside.unwrap_or_else(|| tempfile::tempdir().unwrap()))
    }

    /// None, with a printed line, if there is no PostgreSQL to test on.
    pub async fn postgres() -> Option<Self> {
        create_database("reconciliation").await.map(Self::Database)
    }

    /// Changes stored data behind the store's back.
    pub async fn tamper(&self, sql: &str) {
        match self {
            Self::Directory(directory) => {
                let file = directory.path().join("counterfoil.db");
                rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap();
            }
            Self::Database(url) => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client.batch_execute(sql).await.unwrap();
            }
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

/// What a destination was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub number: u64,
    pub event: NoticeEvent,
    pub kind: AlertKind,
    pub subject: String,
    pub summary: String,
    pub taken: bool,
}

/// A destination that remembers, and fails as often as it is told to.
#[derive(Default)]
pub struct Recorder {
    pub heard: Mutex<Vec<Heard>>,
    pub failures: AtomicU64,
}

struct Told(&'static str, Arc<Recorder>);

#[async_trait]
impl Destination for Told {
    fn name(&self) -> &'static str {
        self.0
    }

    async fn send(&self, notice: &Notice<'_>) -> Sending {
        let fails = |left: u64| left.checked_sub(1);
        let failed = self.1.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails);
        let Alert { kind, subject, summary, .. } = notice.alert;
        self.1.heard.lock().unwrap().push(Heard {
            number: notice.number,
            event: notice.event,
            kind: *kind,
            subject: subject.clone(),
            summary: summary.clone(),
            taken: failed.is_err(),
        });
        match failed {
            Ok(_) => Sending::Later { detail: "not now".into() },
            Err(_) => Sending::Sent,
        }
    }
}

/// The jobs of one server.
pub struct Jobs {
    pub cutter: CutJob,
    pub submitter: PushJob,
    pub confirmer: ConfirmJob,
    pub mirror: MirrorJob,
    pub backfill: BackfillJob,
    pub reconciler: ReconcileJob,
    pub alerter: AlertsJob,
    pub messenger: OutboxJob,
}

/// What is known of the webhooks that were made.
#[derive(Default)]
struct Post {
    seen: BTreeSet<String>,
    lost: bool,
    /// How often each is told.
    copies: usize,
}

pub struct World {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub handle: Handle,
    pub config: Config,
    pub jobs: Jobs,
    pub pager: Arc<Recorder>,
    pub mail: Arc<Recorder>,
    post: Mutex<Post>,
    sent: AtomicU64,
    backfills: AtomicBool,
    pub ground: Ground,
}

pub fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn tenant_id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

pub fn quantity(text: &str) -> Quantity {
    Quantity::parse_stored(text).unwrap()
}

pub fn window(start: &str, end: &str) -> Window {
    Window { start: at(start), end: at(end) }
}

pub fn lock<T>(simulator: &Mutex<T>) -> MutexGuard<'_, T> {
    simulator.lock().unwrap()
}

impl World {
    pub async fn on(ground: Ground) -> Self {
        Self::with(ground, |_| {}).await
    }

    pub async fn with(ground: Ground, change: impl FnOnce(&mut Config)) -> Self {
        let clock = Clock::by_hand(at(NOON));
        let handle = start_stripe(&clock, Options::default()).await;
        let mut config = config::load(None).unwrap();
        config.provider.kind = ProviderKind::Stripe;
        config.stripe.api_base = handle.url();
        config.stripe.api_key = Secret::new("sk_test_reconciliation");
        config.stripe.webhook_secrets = Secret::new(WEBHOOK_SECRET);
        config.stripe.timeout_ms = 5_000;
        config.push.rate_per_second = 1_000_000;
        config.reconcile.reads_per_hour = 0;
        // Most worlds make subscriptions at the provider, without agreements here.
        config.reconcile.unknown_subscriptions = UnknownSubscriptions::Ignore;
        change(&mut config);
        let store = ground.open().await;
        let (pager, mail) = (Arc::default(), Arc::default());
        let jobs = Jobs::new(&store, &clock, &config, [&pager, &mail]);
        let post = Mutex::new(Post { copies: 1, ..Post::default() });
        let (sent, backfills) = (AtomicU64::new(0), AtomicBool::new(true));
        Self { store, clock, handle, config, jobs, pager, mail, post, sent, backfills, ground }
    }

    /// With a tenant `acme` that is a customer, and the meter `calls`; returns the customer.
    pub async fn usual(ground: Ground) -> (Self, String) {
        Self::usual_with(ground, |_| {}).await
    }

    pub async fn usual_with(ground: Ground, change: impl FnOnce(&mut Config)) -> (Self, String) {
        let world = Self::with(ground, change).await;
        world.meter("calls", CALLS).await;
        let customer = world.tenant("acme").await;
        (world, customer)
    }

    /// The jobs of another server on the same store and clock.
    pub fn other_server(&self, change: impl FnOnce(&mut Config)) -> Jobs {
        let mut config = self.config.clone();
        change(&mut config);
        Jobs::new(&self.store, &self.clock, &config, [&self.pager, &self.mail])
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

    pub fn answer(&self, request: &SimRequest) -> Value {
        let response = lock(&self.simulator()).handle(request);
        assert_eq!(response.status, 200, "{}: {}", request.path, response.json());
        response.json()
    }

    pub fn faults(&self, rules: Vec<FaultRule>) {
        lock(&self.simulator()).set_faults(FaultPlan::of_rules(rules));
    }

    /// So many meter events meet this accident from now on.
    pub fn fault(&self, kind: FaultKind, times: u64) {
        self.faults(vec![FaultRule::new(kind).on_path(EVENTS).times(times)]);
    }

    /// The provider answers every call for totals, or for anything, with an error.
    pub fn out_of_reach(&self, part: &str) {
        let rule = FaultRule::new(FaultKind::Error503).on_path(part).times(u64::MAX / 2);
        self.faults(vec![rule]);
    }

    pub async fn meter(&self, slug: &str, spec: &str) {
        let parsed = serde_json::from_str(spec).unwrap();
        let meter = Meter::declare(MeterSlug::parse(slug).unwrap(), parsed).unwrap();
        let declared = self.store.declare_meter(meter, self.clock.now()).await.unwrap();
        assert!(!matches!(declared, Declaration::Refused(_)), "{declared:?}");
        let spec: Value = serde_json::from_str(spec).unwrap();
        let mut fields = vec![
            ("display_name", slug),
            ("event_name", slug),
            ("default_aggregation[formula]", "sum"),
        ];
        if spec["billing"]["mode"] == "absolute" {
            fields.push(("event_time_window", "hour"));
        }
        self.ask("/v1/billing/meters", &fields);
    }

    pub async fn meter_no(&self, slug: &str) -> MeterNo {
        self.store.load_catalog().await.unwrap().find(slug).unwrap().0
    }

    pub fn customer(&self) -> String {
        self.ask("/v1/customers", &[])["id"].as_str().unwrap().to_owned()
    }

    /// A tenant that is a customer; returns the customer.
    pub async fn tenant(&self, id: &str) -> String {
        let customer = self.customer();
        self.map(id, &customer).await;
        customer
    }

    pub async fn map(&self, tenant: &str, customer: &str) {
        let customer = Some(CustomerId::parse(customer).unwrap());
        let fields = TenantFields { customer, ..TenantFields::default() };
        self.store.put_tenant(&tenant_id(tenant), fields, self.clock.now()).await.unwrap();
    }

    /// One event of the meter `calls`, of the tenant `acme`.
    pub async fn used(&self, quantity: &str, occurred_at: &str) {
        self.used_by("acme", "calls", quantity, occurred_at).await;
    }

    pub async fn used_by(&self, tenant: &str, meter: &str, quantity: &str, occurred_at: &str) {
        let number = self.sent.fetch_add(1, Ordering::SeqCst);
        let event = self.event((tenant, meter), &format!("e{number}"), quantity, occurred_at).await;
        let verdicts = self.deliver(vec![event]).await;
        assert_eq!(verdicts, [Judged::Accepted], "{quantity} at {occurred_at}");
    }

    pub async fn event(
        &self,
        (tenant, meter): (&str, &str),
        id: &str,
        quantity: &str,
        occurred_at: &str,
    ) -> Event {
        let text = format!(
            r#"{{"tenant":"{tenant}","id":"{id}","meter":"{meter}","occurred_at":"{occurred_at}","quantity":"{quantity}"}}"#
        );
        let catalog = self.store.load_catalog().await.unwrap();
        let item: Item<'_> = serde_json::from_str(&text).unwrap();
        parse_event(&item, &catalog).unwrap()
    }

    pub async fn deliver(&self, events: Vec<Event>) -> Vec<Judged> {
        let hours = i64::from(self.config.ingest.accept_horizon_hours);
        let acceptance =
            Acceptance { now: self.clock.now(), horizon_micros: hours * MICROS_PER_HOUR };
        let batch = DeliveryBatch {
            events,
            refused: Vec::new(),
            acceptance,
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        self.store.record_deliveries(0, batch).await.unwrap()
    }

    pub fn go_to(&self, text: &str) {
        self.clock.advance(at(text).micros() - self.clock.now().micros());
    }

    pub fn pass_seconds(&self, seconds: i64) {
        self.clock.advance(seconds * MICROS_PER_SECOND);
    }

    /// Hour by hour, everything that a server does.
    pub async fn hours(&self, hours: u32) {
        for _ in 0..hours {
            self.clock.advance(MICROS_PER_HOUR);
            self.work().await;
        }
    }

    /// The same for a longer time in which little happens, and the last hours one by one.
    pub async fn rest(&self, hours: i64) {
        let until = self.clock.now().saturating_add_micros(hours * MICROS_PER_HOUR);
        while self.clock.now() < until {
            let left = (until.micros() - self.clock.now().micros()) / MICROS_PER_HOUR;
            let step = if left > STRIDE_HOURS { STRIDE_HOURS } else { 1 };
            self.clock.advance(step * MICROS_PER_HOUR);
            self.work().await;
        }
    }

    /// The same until this moment, which is a whole number of hours away.
    pub async fn until(&self, text: &str) {
        self.rest((at(text).micros() - self.clock.now().micros()) / MICROS_PER_HOUR).await;
        assert_eq!(self.clock.now(), at(text), "a whole number of hours");
    }

    /// Goes to a moment with no work in between, and then does everything.
    pub async fn leap(&self, text: &str) {
        self.go_to(text);
        self.work().await;
    }

    /// Everything that a server does at this moment. Alerts are looked at in between too, where
    /// something has changed: what heals itself must not call anybody at any time.
    pub async fn work(&self) {
        self.tell().await;
        self.read_objects().await;
        if self.backfills.load(Ordering::SeqCst) {
            self.jobs.backfill.pass().await.unwrap();
        }
        self.read_objects().await;
        self.send().await;
        if self.jobs.confirmer.pass().await.unwrap() > 0 {
            self.look().await;
        }
        self.reconcile().await;
        self.read_objects().await;
        self.jobs.submitter.pass().await.unwrap();
        self.look().await;
    }

    /// Cuts and pushes, and takes what is told of the pushes.
    pub async fn send(&self) {
        self.jobs.cutter.flush().await.unwrap();
        self.jobs.cutter.pass().await.unwrap();
        self.jobs.submitter.pass().await.unwrap();
        self.tell().await;
        self.read_objects().await;
    }

    pub async fn read_objects(&self) {
        while self.jobs.mirror.pass().await.unwrap() > 0 {}
    }

    /// Runs all passes that are due; returns their numbers.
    pub async fn reconcile(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(number) = self.jobs.reconciler.pass().await.unwrap() {
            numbers.push(number);
        }
        numbers
    }

    pub async fn look(&self) {
        self.jobs.alerter.pass().await.unwrap();
        while self.jobs.messenger.pass().await.unwrap() > 0 {}
    }

    /// From now on webhooks are lost, or arrive again.
    pub fn lose_webhooks(&self, lost: bool) {
        lock(&self.post).lost = lost;
    }

    /// Whether the provider's list of events is read.
    pub fn keep_backfill(&self, kept: bool) {
        self.backfills.store(kept, Ordering::SeqCst);
    }

    pub fn copy_webhooks(&self, copies: usize) {
        lock(&self.post).copies = copies;
    }

    /// Delivers the webhooks that were made since the last time, oldest first.
    pub async fn tell(&self) {
        lock(&self.simulator()).tick();
        let mut bodies = self.fresh_events("/v1/events?limit=100");
        for mut report in self.fresh_events(REPORTS) {
            // A thin event is posted without its data.
            report.as_object_mut().unwrap().remove("data");
            bodies.push(report);
        }
        let (lost, copies) = {
            let post = lock(&self.post);
            (post.lost, post.copies)
        };
        for body in bodies.into_iter().filter(|_| !lost) {
            for _ in 0..copies {
                self.receive(&body.to_string()).await;
            }
        }
    }

    /// A webhook comes in; returns whether it was not known.
    pub async fn receive(&self, body: &str) -> bool {
        let now = self.clock.now();
        let seconds = now.micros().div_euclid(MICROS_PER_SECOND);
        let header = sign(WEBHOOK_SECRET, seconds, body);
        let secrets = [Secret::new("whsec_old"), Secret::new(WEBHOOK_SECRET)];
        verify(&secrets, &header, body.as_bytes(), now).unwrap();
        let facts = parse_webhook(body.as_bytes()).unwrap();
        let (payload, source) = (body.as_bytes().to_vec(), WebhookSource::Delivered);
        let receipt = WebhookReceipt { facts, payload, source, received_at: now };
        self.store.record_webhooks(vec![receipt]).await.unwrap()[0].fresh
    }

    fn fresh_events(&self, target: &str) -> Vec<Value> {
        let mut fresh: Vec<Value> = Vec::new();
        let mut asked = target.to_owned();
        loop {
            let page = self.get(&asked);
            let events = page["data"].as_array().unwrap().clone();
            let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
            let last = events.last().map(id);
            let mut post = lock(&self.post);
            let known = events.iter().any(|event| post.seen.contains(&id(event)));
            fresh.extend(events.into_iter().filter(|event| post.seen.insert(id(event))));
            match last {
                Some(last) if !known && page["has_more"] == true => {
                    asked = format!("{target}&starting_after={last}");
                }
                _ => break,
            }
        }
        fresh.reverse();
        fresh
    }

    /// Usage that somebody else reports; returns its identifier.
    pub fn foreign(&self, customer: &str, meter: &str, value: &str, timestamp: &str) -> String {
        lock(&self.simulator()).record_usage(ForeignUsage {
            customer: customer.to_owned(),
            event_name: meter.to_owned(),
            value: value.parse().unwrap(),
            timestamp: stripe_time(at(timestamp)),
            identifier: None,
        })
    }

    /// The provider loses what it had counted.
    pub fn lose(&self, identifier: &str) {
        assert!(lock(&self.simulator()).lose_usage(identifier), "{identifier}");
    }

    /// What the provider really holds of an hour.
    pub fn provider_total(&self, customer: &str, meter: &str, hour: &str) -> String {
        lock(&self.simulator()).exact_total(customer, meter, stripe_time(at(hour))).to_string()
    }

    /// What the provider really holds of a customer.
    pub fn provider_sum(&self, customer: &str) -> String {
        let totals = lock(&self.simulator()).exact_totals();
        let own = totals.into_iter().filter(|((whose, _, _), _)| whose == customer);
        own.map(|(_, total)| total).sum::<Decimal>().to_string()
    }

    /// How often the simulator was called, by method and path.
    pub fn calls(&self, part: &str) -> u64 {
        let calls = lock(&self.simulator()).calls().clone();
        calls.iter().filter(|(name, _)| name.contains(part)).map(|(_, count)| count).sum()
    }

    /// Every push, oldest first.
    pub async fn pushes(&self) -> Vec<Push> {
        let query = PushQuery { limit: 10_000, ..PushQuery::default() };
        let mut pushes = self.store.list_pushes(query).await.unwrap();
        pushes.reverse();
        pushes
    }

    /// Checks quantity, state and reason of every push, oldest first.
    pub async fn check_pushes(&self, expected: &[(&str, PushState, Class)]) {
        let pushes = self.pushes().await;
        let found: Vec<(String, PushState, Class)> =
            pushes.iter().map(|push| (push.quantity.to_string(), push.state, push.class)).collect();
        let wanted: Vec<(String, PushState, Class)> =
            expected.iter().map(|(text, state, class)| ((*text).into(), *state, *class)).collect();
        assert_eq!(found, wanted);
    }

    /// The sum of all pushes that count, which is what was handed to billing.
    pub async fn planned_sum(&self) -> String {
        let pushes = self.pushes().await;
        let live = pushes.iter().filter(|push| push.state != PushState::Replaced);
        let sum = live.map(|push| push.quantity).reduce(|a, b| a.checked_add(b).unwrap());
        sum.unwrap_or_default().to_string()
    }

    /// Every finding, oldest first.
    pub async fn findings(&self) -> Vec<Finding> {
        let query = FindingQuery { limit: 10_000, ..FindingQuery::default() };
        let mut findings = self.store.list_findings(query).await.unwrap();
        findings.reverse();
        findings
    }

    pub async fn open_findings(&self, kind: FindingKind) -> Vec<Finding> {
        let findings = self.findings().await.into_iter();
        findings.filter(|one| one.cleared_at.is_none() && one.seen.kind == kind).collect()
    }

    /// The only open finding of a kind.
    pub async fn only_finding(&self, kind: FindingKind) -> Finding {
        let mut open = self.open_findings(kind).await;
        assert_eq!(open.len(), 1, "{open:#?}");
        open.remove(0)
    }

    /// Checks the only open finding of usage, and whether it has paged.
    pub async fn check_finding(&self, verdict: Verdict, reason: Reason, paged: bool) -> Finding {
        let finding = self.only_finding(FindingKind::Usage).await;
        let seen = &finding.seen;
        assert_eq!((seen.verdict, seen.reason), (verdict, reason), "{finding:#?}");
        assert_eq!(finding.paged_at.is_some(), paged, "{finding:#?}");
        finding
    }

    /// Passes of a kind, oldest first.
    pub async fn passes(&self, kind: PassKind) -> Vec<Pass> {
        let query = PassQuery { kind: Some(kind), limit: 10_000, ..PassQuery::default() };
        let mut passes = self.store.list_passes(query).await.unwrap();
        passes.reverse();
        passes
    }

    pub async fn rows(&self, pass: u64) -> Vec<PassRow> {
        let query = PassRowQuery { pass, after: None, limit: 10_000 };
        self.store.list_pass_rows(query).await.unwrap()
    }

    /// A pass that a person orders; returns it when it is closed.
    pub async fn one_shot(&self, from: &str, to: &str, apply: bool) -> Pass {
        let pass = self.ordered(from, to, apply).await;
        assert_eq!(pass.state, PassState::Closed);
        pass
    }

    /// A pass that a person orders, when it has ended.
    pub async fn ordered(&self, from: &str, to: &str, apply: bool) -> Pass {
        let (kind, range) = (PassKind::OneShot, window(from, to));
        let order = PassOrder { kind, range, tenant: None, apply };
        let number = self.store.create_pass(order, self.clock.now()).await.unwrap();
        self.reconcile().await;
        self.store.find_pass(number).await.unwrap().unwrap()
    }

    /// Every alert, oldest first.
    pub async fn alerts(&self) -> Vec<Alert> {
        let query = AlertQuery { limit: 10_000, ..AlertQuery::default() };
        let mut alerts = self.store.list_alerts(query).await.unwrap();
        alerts.reverse();
        alerts
    }

    /// Alerts of a kind: how many were ever opened, and how many are open.
    pub async fn alerted(&self, kind: AlertKind) -> (usize, usize) {
        let alerts = self.alerts().await;
        let own = || alerts.iter().filter(|alert| alert.kind == kind);
        (own().count(), own().filter(|alert| alert.resolved_at.is_none()).count())
    }

    /// Kinds that somebody was called for, in the order of the calls.
    pub fn pages(&self) -> Vec<AlertKind> {
        let heard = lock(&self.pager.heard);
        let page = |one: &&Heard| {
            one.event == NoticeEvent::Opened && one.kind.severity() == Severity::Page && one.taken
        };
        heard.iter().filter(page).map(|one| one.kind).collect()
    }

    /// What the pager took of a kind.
    pub fn told(&self, kind: AlertKind) -> Vec<NoticeEvent> {
        let heard = lock(&self.pager.heard);
        heard.iter().filter(|one| one.kind == kind && one.taken).map(|one| one.event).collect()
    }

    pub async fn mirror(&self, kind: ObjectKind, id: &str) -> Option<Mirror> {
        let name = ObjectName { kind, id: id.to_owned() };
        self.store.find_mirror(&name).await.unwrap()
    }

    /// A metered price of a meter.
    pub fn price(&self, meter: &str, unit_amount: &str, interval: &str) -> String {
        self.price_of(meter, interval, &[("unit_amount_decimal", unit_amount)])
    }

    /// A metered price at this rate.
    pub fn price_of(&self, meter: &str, interval: &str, rate: &[(&str, &str)]) -> String {
        let listed = self.get("/v1/billing/meters?limit=100");
        let meters = listed["data"].as_array().unwrap();
        let found = meters.iter().find(|one| one["event_name"] == meter).unwrap();
        let common = [
            ("currency", "usd"),
            ("recurring[interval]", interval),
            ("recurring[usage_type]", "metered"),
            ("recurring[meter]", found["id"].as_str().unwrap()),
            ("product_data[name]", "Calls"),
        ];
        let price = self.ask("/v1/prices", &[&common, rate].concat());
        price["id"].as_str().unwrap().to_owned()
    }

    pub fn subscribe(&self, customer: &str, price: &str) -> String {
        let fields = [("customer", customer), ("items[0][price]", price)];
        self.ask("/v1/subscriptions", &fields)["id"].as_str().unwrap().to_owned()
    }

    /// The provider's invoices, the oldest first.
    pub fn invoices(&self) -> Vec<Value> {
        let mut all = self.get("/v1/invoices?limit=100")["data"].as_array().unwrap().clone();
        all.reverse();
        all
    }
}

impl Jobs {
    fn new(
        store: &Arc<dyn Store>,
        clock: &Clock,
        config: &Config,
        [pager, mail]: [&Arc<Recorder>; 2],
    ) -> Self {
        let Config { provider, stripe, sink, .. } = config;
        let provider = provider::connect_heard_by(provider, stripe, sink, clock);
        let provider = provider.unwrap().unwrap();
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        let holder = format!("server-{}", SERVERS.fetch_add(1, Ordering::SeqCst));
        let destinations: Vec<Arc<dyn Destination>> = vec![
            Arc::new(Told("pagerduty", Arc::clone(pager))),
            Arc::new(Told("email", Arc::clone(mail))),
        ];
        let context = Context {
            destinations: destinations.iter().map(|one| one.name()).collect(),
            ..Context::new(Arc::clone(store), clock.clone(), config, holder, 1)
        };
        Self {
            cutter: CutJob::new(&context, provider.limits().digits_max),
            submitter: PushJob::new(&context, &provider),
            confirmer: ConfirmJob::new(&context, &provider),
            mirror: MirrorJob::new(&context, &provider, Arc::default()),
            backfill: BackfillJob::new(&context, &provider, Arc::default()),
            reconciler: ReconcileJob::new(&context, &provider),
            alerter: AlertsJob::new(&context),
            messenger: OutboxJob::new(&context, Receivers::Alerts(destinations)),
        }
    }
}
