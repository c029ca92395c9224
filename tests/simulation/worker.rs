//! The worker process, which is killed: a real store, the real jobs, a clock that the parent moves.
//! It reads one order on each line and answers with one line when the order is done; a planted
//! crash ends it in the middle of one, and a planted stall stops it there until the parent
//! continues it.

mod money;

use crate::orders::{Audited, HourTotal, Open, Order, STALLED, Start};
use counterfoil::jobs::{Context, Job};

use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, Secret, StoreUrl};
use counterfoil::jobs::backfill::BackfillJob;
use counterfoil::jobs::confirm::ConfirmJob;
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::mirror::MirrorJob;
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::reconcile::ReconcileJob;
use counterfoil::jobs::sagas::SagasJob;
use counterfoil::provider::Provider;
use counterfoil::provider::stripe::Stripe;
use counterfoil::provider::stripe::webhook::parse_webhook;
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterSlug, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::push::{WindowUsage, billed_of};
use counterfoil::rules::restore::Cause;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::rules::webhook::WebhookSource;
use counterfoil::rules::window::Window;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::push::{PushAges, PushFilter, Ruling};
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::webhook::{Rejection, WebhookReceipt};
use counterfoil::store::{DeliveryBatch, Query, Store, TenantFields};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub fn run(start: &str) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let _scenario = fail::FailScenario::setup();
    let start: Start = serde_json::from_str(start).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut worker = Worker::start(&start).await;
        while let Some(line) = read_line() {
            let order: Order = serde_json::from_str(&line).unwrap();
            let exit = matches!(order, Order::Exit);
            let answer = worker.obey(order).await;
            say(&answer);
            if exit {
                return;
            }
        }
    });
}

fn read_line() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap();
    (read > 0).then_some(line)
}

fn say(line: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "{line}").and_then(|()| output.flush()).unwrap();
}

/// How often a point is passed between two stalls.
const STALL_EVERY: u64 = 4;

/// The thread that comes to this point stops there; the line that continues it holds the time.
fn plant_stall(point: &str, hits: u64, clock: Clock) {
    let seen = AtomicU64::new(0);
    let stall = move || {
        if seen.fetch_add(1, Ordering::SeqCst) % STALL_EVERY == hits {
            say(STALLED);
            let line = read_line().expect("the parent continues a worker or kills it");
            let (at, ahead) = line.trim().split_once(' ').expect("the time and how far it is off");
            clock.advance_to(Timestamp::from_micros(at.parse().unwrap()));
            clock.set_wall_ahead(ahead.parse().unwrap());
        }
    };
    fail::cfg_callback(point, stall).unwrap();
}

struct Worker {
    store: Arc<dyn Store>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    config: Config,
    cutter: Arc<CutJob>,
    submitter: PushJob,
    confirmer: ConfirmJob,
    reconciler: ReconcileJob,
    sagas: SagasJob,
    mirrors: MirrorJob,
    backfill: BackfillJob,
}

impl Worker {
    async fn start(start: &Start) -> Self {
        let mut config = config::load(None).unwrap();
        config.store.url = StoreUrl::try_from(start.store.clone()).unwrap();
        config.sqlite.segment_events = 8;
        config.postgres.writers = 1;
        config.postgres.readers = 3;
        config.stripe.api_base = start.stripe.clone();
        config.stripe.api_key = Secret::new("sk_test_simulation");
        config.stripe.timeout_ms = 200;
        config.push.rate_per_second = 1_000_000;
        config.push.concurrency_max = 8;
        let truth = Clock::by_hand(Timestamp::from_micros(start.at));
        let clock = truth.of_machine_ahead(start.ahead);
        clock.require_confirmation();
        if let Some((point, hits)) = &start.stall {
            plant_stall(point, *hits, clock.clone());
        }
        let store = open(&config).await;
        clock.start_after(store.high_water());
        let provider: Arc<dyn Provider> =
            Arc::new(Stripe::connect(&config.stripe).unwrap().heard_by(&clock));
        provider.ask_time().await;
        config.reconcile.reads_per_hour = start.reads_per_hour;
        config.reconcile.reissue = true;
        let (own, holder) = (Arc::clone(&store), start.holder.clone());
        let context = Context::new(own, clock.clone(), &config, holder, 1);
        let cutter = Arc::new(CutJob::new(&context, provider.limits().digits_max));
        let sagas = SagasJob::new(&context, &provider);
        let submitter = PushJob::new(&context, &provider);
        let confirmer = ConfirmJob::new(&context, &provider);
        let reconciler = ReconcileJob::new(&context, &provider);
        let mirrors = MirrorJob::new(&context, &provider, Arc::default());
        let backfill = BackfillJob::new(&context, &provider, Arc::default());
        Self {
            store,
            provider,
            clock,
            config,
            cutter,
            submitter,
            confirmer,
            reconciler,
            sagas,
            mirrors,
            backfill,
        }
    }

    async fn obey(&mut self, order: Order) -> String {
        match order {
            Order::Clock { at, ahead } => {
                self.clock.advance_to(Timestamp::from_micros(at));
                self.clock.set_wall_ahead(ahead);
                self.keep_clock().await;
                String::new()
            }
            Order::Meter { slug, spec } => {
                let spec = serde_json::from_str(&spec).unwrap();
                let meter = Meter::declare(MeterSlug::parse(&slug).unwrap(), spec).unwrap();
                self.store.declare_meter(meter, self.clock.now()).await.unwrap();
                String::new()
            }
            Order::Tenant { id, customer } => {
                let customer = customer.map(|customer| CustomerId::parse(&customer).unwrap());
                let fields = TenantFields { customer, ..TenantFields::default() };
                let id = TenantId::parse(&id).unwrap();
                self.store.put_tenant(&id, fields, self.clock.now()).await.unwrap();
                String::new()
            }
            Order::Send { events } => serde_json::to_string(&self.send(&events).await).unwrap(),
            Order::Cut => self.cutter.pass().await.unwrap().pushes.to_string(),
            Order::Push => self.submitter.pass().await.unwrap().to_string(),
            Order::Confirm => self.confirmer.pass().await.unwrap().to_string(),
            Order::Reconcile => self.reconciler.pass().await.unwrap().is_some().to_string(),
            Order::Retry => self.retry().await.to_string(),
            Order::Report { keys } => self.report(keys).await,
            Order::Open => serde_json::to_string(&self.open_pushes().await).unwrap(),
            Order::Audit => serde_json::to_string(&self.audit().await).unwrap(),
            Order::Describe => serde_json::to_string(&self.describe().await).unwrap(),
            Order::Totals { tenants, meters, from, to } => {
                let range =
                    Window { start: Timestamp::from_micros(from), end: Timestamp::from_micros(to) };
                serde_json::to_string(&self.totals(&tenants, &meters, range).await).unwrap()
            }
            Order::Grant { tenant, key, amount, effective_at, expires_at } => {
                self.grant((&tenant, &key), &amount, (effective_at, expires_at)).await
            }
            Order::VoidGrant { tenant, key, grant } => self.void_grant(&tenant, &key, grant).await,
            Order::Restored => {
                let cause = Cause::known("a test");
                let epoch = self.store.record_restore(&cause, self.clock.now()).await.unwrap();
                epoch.number.to_string()
            }
            Order::Expire => self.expire().await,
            Order::Balance { tenant, during_cut } => self.balance(&tenant, during_cut).await,
            Order::Covered { tenants } => {
                serde_json::to_string(&self.covered(&tenants).await).unwrap()
            }
            Order::Begin { tenant, key, saga } => self.begin(&tenant, &key, saga).await,
            Order::Hear { payloads } => self.hear(&payloads).await,
            Order::Backfill => self.backfill.pass().await.unwrap_or(0).to_string(),
            Order::Mirror => self.mirror().await,
            Order::Sagas => self.sagas.pass().await.unwrap().to_string(),
            Order::SagaState { id } => self.saga_state(&id).await,
            Order::Resume { id } => self.resume(&id).await,
            Order::Exit => {
                self.store.close().await;
                String::new()
            }
        }
    }

    /// Delivers events as a sender does; returns the places of those that were not taken.
    async fn send(&self, events: &[String]) -> Vec<usize> {
        let catalog = self.store.load_catalog().await.unwrap();
        let read = |text: &String| {
            let item: Item<'_> = serde_json::from_str(text).unwrap();
            parse_event(&item, &catalog).unwrap()
        };
        let hours = i64::from(self.config.ingest.accept_horizon_hours);
        let moment = self.clock.moment();
        if moment.doubt.is_some() {
            // Answered 503: the sender tries again.
            return (0..events.len()).collect();
        }
        let batch = DeliveryBatch {
            events: events.iter().map(read).collect(),
            refused: Vec::new(),
            acceptance: Acceptance { now: moment.now, horizon_micros: hours * MICROS_PER_HOUR },
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        let verdicts = self.store.record_deliveries(0, batch).await.unwrap();
        let taken =
            |verdict: &Verdict| matches!(verdict, Verdict::Accepted | Verdict::Duplicate { .. });
        (0..verdicts.len()).filter(|place| !taken(&verdicts[*place])).collect()
    }

    /// The provider refuses pushes that it took.
    async fn report(&self, keys: Vec<String>) -> String {
        let said = "the value is not valid".to_owned();
        let samples = keys.into_iter().map(|key| (key, said.clone())).collect();
        let rejection = Rejection { samples, recheck: None };
        let report = self.store.reject_pushes(rejection, self.clock.now()).await.unwrap();
        report.rejected.to_string()
    }

    /// Reads objects, and cuts what is on a draft; what cannot be read now is read later.
    async fn mirror(&self) -> String {
        while self.mirrors.pass().await.unwrap_or(0) > 0 {}
        self.cutter.flush().await.unwrap().to_string()
    }

    /// Records webhooks as the route does.
    async fn hear(&self, payloads: &[String]) -> String {
        let receipt = |payload: &String| WebhookReceipt {
            facts: parse_webhook(payload.as_bytes()).unwrap(),
            payload: payload.as_bytes().to_vec(),
            source: WebhookSource::Delivered,
            received_at: self.clock.now(),
        };
        let receipts = payloads.iter().map(receipt).collect();
        self.store.record_webhooks(receipts).await.unwrap().len().to_string()
    }

    /// Hears the provider's clock, and resets what a wrong clock has moved, as servers do.
    async fn keep_clock(&self) {
        self.provider.ask_time().await;
        if let Ok(now) = self.clock.sure()
            && self.clock.mark_is_wrong()
        {
            self.store.lower_time_marks(now).await.unwrap();
            self.clock.mark_was_lowered();
        }
    }

    async fn retry(&self) -> usize {
        let mut retried = 0;
        for push in self.dead().await {
            let ruling = self.store.retry_push(push, self.clock.now()).await.unwrap();
            retried += usize::from(matches!(ruling, Ruling::Done(_)));
        }
        retried
    }

    async fn dead(&self) -> Vec<u64> {
        let dead = PushFilter { state: Some(PushState::Dead), ..PushFilter::default() };
        let query = Query::first(dead, 1_000);
        let dead = self.store.list_pushes(query).await.unwrap();
        dead.into_iter().map(|push| push.number).collect()
    }

    async fn open_pushes(&self) -> Open {
        let now = self.clock.now();
        let ages = PushAges { observed_before: now, submitted_before: now };
        let counts = self.store.count_pushes(ages).await.unwrap();
        let dead = PushFilter { state: Some(PushState::Dead), ..PushFilter::default() };
        let query = Query::first(dead, 1_000);
        let dead = self.store.list_pushes(query).await.unwrap();
        let stuck = |push: &&counterfoil::store::push::Push| {
            counterfoil::rules::submission::judge_retry(push.state, push.class).is_err()
        };
        let waiting: u64 = counts.without_customer.values().map(|sum| sum.pushes).sum();
        let undecidable = u64::try_from(dead.iter().filter(stuck).count()).unwrap();
        Open {
            observed: counts.observed + waiting,
            submitted: counts.submitted,
            dead: counts.dead,
            undecidable,
        }
    }

    async fn audit(&self) -> Vec<Audited> {
        let (mut audited, mut before) = (Vec::new(), None);
        loop {
            let query = Query { filter: PushFilter::default(), after: before, limit: 1_000 };
            let page = self.store.list_pushes(query).await.unwrap();
            let Some(last) = page.last() else { return audited };
            before = Some(last.number);
            let standing = page.into_iter().filter(|push| push.state != PushState::Replaced);
            audited.extend(standing.map(|push| Audited {
                number: push.number,
                window: (push.tenant.to_string(), push.meter.0, push.window.start.micros()),
                // What the provider lost is written down and never sent.
                settled: push.state.settled() && push.class != Class::Lost,
                unresolved: push.state == PushState::Observed && push.attempts > 0,
                attempts: push.attempts,
                key: push.key,
                value: push.value.to_string(),
            }));
        }
    }

    async fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for state in [PushState::Observed, PushState::Submitted, PushState::Dead] {
            let query = Query::first(PushFilter { state: Some(state), ..PushFilter::default() }, 5);
            for push in self.store.list_pushes(query).await.unwrap() {
                let trace = self.store.trace_push(push.number).await.unwrap().unwrap();
                lines.push(format!("{push:?}"));
                let history = trace.transitions.iter().rev().take(6).rev();
                lines.extend(history.map(|transition| format!("    {transition:?}")));
            }
        }
        lines
    }

    /// What the ledger says is billed, by hour.
    async fn totals(&self, tenants: &[String], meters: &[String], range: Window) -> Vec<HourTotal> {
        let catalog = self.store.load_catalog().await.unwrap();
        let mut totals = Vec::new();
        for (tenant, slug) in tenants.iter().flat_map(|t| meters.iter().map(move |m| (t, m))) {
            let (number, _) = catalog.find(slug).unwrap();
            let id = TenantId::parse(tenant).unwrap();
            let rows = self.store.read_usage(&id, number, range, usize::MAX).await.unwrap();
            let mut hours: BTreeMap<i64, Vec<_>> = BTreeMap::new();
            for row in rows {
                hours.entry(row.bucket_start.micros()).or_default().push(row);
            }
            let cuts = self.store.read_cuts(&id, number, range).await.unwrap();
            let cuts: BTreeMap<i64, _> =
                cuts.into_iter().map(|(start, cut)| (start.micros(), cut)).collect();
            for (hour, rows) in hours {
                let used = WindowUsage::measure(&rows).unwrap().billable;
                let amount = billed_of(cuts.get(&hour), used).unwrap().to_string();
                let (tenant, meter) = (tenant.clone(), slug.clone());
                totals.push(HourTotal { tenant, meter, hour, amount });
            }
        }
        totals
    }
}

async fn open(config: &Config) -> Arc<dyn Store> {
    match &config.store.url {
        StoreUrl::Sqlite(directory) => SqliteStore::open(directory, &config.sqlite).unwrap(),
        StoreUrl::Postgres(url) => PostgresStore::open(url, &config.postgres).await.unwrap(),
    }
}
