//! The process that is killed: a real store, the real jobs, a clock that the parent moves. It reads
//! one order on each line and answers with one line when the order is done; a planted crash ends it
//! in the middle of one.

use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, Secret, StoreUrl};
use counterfoil::jobs::confirm::Confirmer;
use counterfoil::jobs::cut::{CutSettings, Cutter};
use counterfoil::jobs::push::Submitter;
use counterfoil::jobs::reconcile::Reconciler;
use counterfoil::provider::Provider;
use counterfoil::provider::stripe::Stripe;
use counterfoil::rules::delivery::{Class, PushState};
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterSlug, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::push::WindowUsage;
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::rules::window::Window;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::push::{PushAges, PushQuery, Ruling};
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::{DeliveryBatch, Store, TenantFields};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::Arc;

/// What the parent asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    Clock {
        at: i64,
    },
    Meter {
        slug: String,
        spec: String,
    },
    Tenant {
        id: String,
        customer: Option<String>,
    },
    Send {
        events: Vec<String>,
    },
    Cut,
    Push,
    Confirm,
    /// Runs the pass that is due, if any.
    Reconcile,
    /// A person retries every dead push that may be retried.
    Retry,
    Open,
    /// Every push that is not replaced, for the parent to look at.
    Audit,
    /// Pushes that are not resolved, with what happened to them last.
    Describe,
    Totals {
        tenants: Vec<String>,
        meters: Vec<String>,
        from: i64,
        to: i64,
    },
    Exit,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Open {
    pub observed: u64,
    pub submitted: u64,
    pub dead: u64,
    /// Dead ones that no rule allows to retry.
    pub undecidable: u64,
}

/// A push as an auditor sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Audited {
    pub number: u64,
    pub window: (String, u16, i64),
    pub key: String,
    pub value: String,
    /// Whether the provider is said to have it.
    pub settled: bool,
    /// Whether it was begun and nobody knows what became of it.
    pub unresolved: bool,
}

/// By tenant, meter and hour.
pub type Totals = Vec<(String, String, i64, String)>;

pub fn run(store: &str, stripe: &str, at: i64) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let _scenario = fail::FailScenario::setup();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut worker = Worker::start(store, stripe, Timestamp::from_micros(at)).await;
        let mut output = std::io::stdout();
        for line in std::io::stdin().lock().lines() {
            let order: Order = serde_json::from_str(&line.unwrap()).unwrap();
            let exit = matches!(order, Order::Exit);
            let answer = worker.obey(order).await;
            writeln!(output, "{answer}").and_then(|()| output.flush()).unwrap();
            if exit {
                return;
            }
        }
    });
}

struct Worker {
    store: Arc<dyn Store>,
    clock: Clock,
    config: Config,
    cutter: Cutter,
    submitter: Arc<Submitter>,
    confirmer: Confirmer,
    reconciler: Reconciler,
}

impl Worker {
    async fn start(store: &str, stripe: &str, now: Timestamp) -> Self {
        let mut config = config::load(None).unwrap();
        config.store.url = StoreUrl::try_from(store.to_owned()).unwrap();
        config.sqlite.segment_events = 8;
        config.postgres.writers = 1;
        config.postgres.readers = 3;
        config.stripe.api_base = stripe.to_owned();
        config.stripe.api_key = Secret::new("sk_test_simulation");
        config.stripe.timeout_ms = 200;
        config.push.rate_per_second = 1_000_000;
        config.push.concurrency_max = 8;
        let clock = Clock::by_hand(now);
        let store = open(&config).await;
        clock.raise_floor(store.high_water());
        let provider: Arc<dyn Provider> = Arc::new(Stripe::connect(&config.stripe).unwrap());
        let holder = format!("worker-{}", std::process::id());
        let settings = CutSettings {
            holder: holder.clone(),
            accept_horizon_hours: config.ingest.accept_horizon_hours,
            shadow: false,
            digits_max: provider.limits().digits_max,
            draw_order: Default::default(),
            lease_ms: config.push.lease_ms,
        };
        let cutter = Cutter::new(Arc::clone(&store), clock.clone(), settings);
        let (push, share) = (config.push.clone(), Arc::clone(&provider));
        let submitter = Submitter::new(Arc::clone(&store), share, clock.clone(), push, (false, 1));
        let confirmer = Confirmer::new(
            Arc::clone(&store),
            Arc::clone(&provider),
            clock.clone(),
            (holder.clone(), config.push.clone()),
            false,
        );
        config.reconcile.reads_per_hour = 0;
        config.reconcile.correct = true;
        let reconcile = (holder, config.reconcile.clone());
        let reconciler =
            Reconciler::new(Arc::clone(&store), provider, clock.clone(), reconcile, false);
        Self { store, clock, config, cutter, submitter, confirmer, reconciler }
    }

    async fn obey(&mut self, order: Order) -> String {
        match order {
            Order::Clock { at } => {
                self.clock.raise_floor(Timestamp::from_micros(at));
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
                let fields = TenantFields { name: None, customer };
                let id = TenantId::parse(&id).unwrap();
                self.store.put_tenant(&id, fields, self.clock.now()).await.unwrap();
                String::new()
            }
            Order::Send { events } => self.send(&events).await.to_string(),
            Order::Cut => self.cutter.pass().await.unwrap().pushes.to_string(),
            Order::Push => self.submitter.run_due().await.unwrap().to_string(),
            Order::Confirm => self.confirmer.pass().await.unwrap().to_string(),
            Order::Reconcile => self.reconciler.tick().await.unwrap().is_some().to_string(),
            Order::Retry => self.retry().await.to_string(),
            Order::Open => serde_json::to_string(&self.open_pushes().await).unwrap(),
            Order::Audit => serde_json::to_string(&self.audit().await).unwrap(),
            Order::Describe => serde_json::to_string(&self.describe().await).unwrap(),
            Order::Totals { tenants, meters, from, to } => {
                let range =
                    Window { start: Timestamp::from_micros(from), end: Timestamp::from_micros(to) };
                serde_json::to_string(&self.totals(&tenants, &meters, range).await).unwrap()
            }
            Order::Exit => {
                self.store.close().await;
                String::new()
            }
        }
    }

    /// Delivers events as a sender does; returns how many were accepted.
    async fn send(&self, events: &[String]) -> usize {
        let catalog = self.store.load_catalog().await.unwrap();
        let read = |text: &String| {
            let item: Item<'_> = serde_json::from_str(text).unwrap();
            parse_event(&item, &catalog).unwrap()
        };
        let hours = i64::from(self.config.ingest.accept_horizon_hours);
        let batch = DeliveryBatch {
            events: events.iter().map(read).collect(),
            refused: Vec::new(),
            acceptance: Acceptance {
                now: self.clock.now(),
                horizon_micros: hours * MICROS_PER_HOUR,
            },
            strict_tenants: false,
        };
        let verdicts = self.store.record_deliveries(0, batch).await.unwrap();
        verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted).count()
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
        let query =
            PushQuery { state: Some(PushState::Dead), limit: 1_000, ..PushQuery::default() };
        let dead = self.store.list_pushes(query).await.unwrap();
        dead.into_iter().map(|push| push.number).collect()
    }

    async fn open_pushes(&self) -> Open {
        let now = self.clock.now();
        let ages = PushAges { observed_before: now, submitted_before: now };
        let counts = self.store.count_pushes(ages).await.unwrap();
        let query =
            PushQuery { state: Some(PushState::Dead), limit: 1_000, ..PushQuery::default() };
        let dead = self.store.list_pushes(query).await.unwrap();
        let stuck = |push: &&counterfoil::store::push::Push| {
            counterfoil::rules::delivery::judge_retry(push.state, push.class).is_err()
        };
        let undecidable = u64::try_from(dead.iter().filter(stuck).count()).unwrap();
        Open {
            observed: counts.observed,
            submitted: counts.submitted,
            dead: counts.dead,
            undecidable,
        }
    }

    async fn audit(&self) -> Vec<Audited> {
        let (mut audited, mut before) = (Vec::new(), None);
        loop {
            let query = PushQuery { before, limit: 1_000, ..PushQuery::default() };
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
                key: push.key,
                value: push.value.to_string(),
            }));
        }
    }

    async fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for state in [PushState::Observed, PushState::Submitted, PushState::Dead] {
            let query = PushQuery { state: Some(state), limit: 5, ..PushQuery::default() };
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
    async fn totals(&self, tenants: &[String], meters: &[String], range: Window) -> Totals {
        let catalog = self.store.load_catalog().await.unwrap();
        let mut totals = Totals::new();
        for (tenant, slug) in tenants.iter().flat_map(|t| meters.iter().map(move |m| (t, m))) {
            let (number, _) = catalog.find(slug).unwrap();
            let id = TenantId::parse(tenant).unwrap();
            let rows = self.store.read_usage(&id, number, range).await.unwrap();
            let mut hours: BTreeMap<i64, Vec<_>> = BTreeMap::new();
            for row in rows {
                hours.entry(row.bucket_start.micros()).or_default().push(row);
            }
            for (hour, rows) in hours {
                let billable = WindowUsage::measure(&rows).unwrap().billable.to_string();
                totals.push((tenant.clone(), slug.clone(), hour, billable));
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
