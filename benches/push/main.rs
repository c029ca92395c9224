//! The push benchmark: 10,000 windows to the simulated Stripe at its limits, with every tenth
//! answer lost to a timeout after the event was taken.
//!
//! Invariant: the exit code says whether every customer and hour has exactly what was counted, and
//! never how fast it was.

#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "measurements are not money"
)]

use anyhow::{Context, Result, bail, ensure};
use counterfoil::clock::Clock;
use counterfoil::config::{self, Secret};
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::{self, Job, Stopper};
use counterfoil::provider::Provider;
use counterfoil::provider::stripe::Stripe;
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterSlug, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use counterfoil::rules::verdict::Acceptance;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::push::PushAges;
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::{DeliveryBatch, Store, TenantFields};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stripe_sim::{
    Decimal, FaultKind, FaultPlan, Handle, Options, RateClock, RateLimit, SimRequest, Simulator,
};

const TENANTS: usize = 1_000;
const HOURS: usize = 10;
const CALLS_PER_SECOND: u32 = 1_000;
const TIMEOUTS_PER_MILLE: u64 = 100;
const TIMEOUT_MS: u64 = 1_000;

fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match runtime.block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let config = config::load(None)?;
    measure("sqlite", SqliteStore::open(directory.path(), &config.sqlite)?).await?;
    match std::env::var("COUNTERFOIL_TEST_POSTGRES") {
        Ok(url) => measure("postgres", PostgresStore::open(&url, &config.postgres).await?).await,
        Err(_) => {
            println!("postgres: left out; `cargo xtask bench push` starts one");
            Ok(())
        }
    }
}

async fn measure(name: &str, store: Arc<dyn Store>) -> Result<()> {
    let clock = Clock::system();
    let options = Options {
        rate: Some(RateLimit {
            calls_per_second: i64::from(CALLS_PER_SECOND),
            clock: RateClock::Machine,
        }),
        ..Options::default()
    };
    let simulator = Arc::new(Mutex::new(Simulator::following(stripe_sim::Timestamp::now, options)));
    let listen = "127.0.0.1:0".parse()?;
    let mut handle = Handle::start(listen, Arc::clone(&simulator)).await?;
    let windows = prepare(&*store, &simulator, &clock).await?;
    simulator.lock().unwrap().set_faults(FaultPlan {
        seed: 1,
        per_mille: BTreeMap::from([(FaultKind::HangAfter, TIMEOUTS_PER_MILLE)]),
        paths: vec!["meter_events".into()],
        ..FaultPlan::default()
    });
    let cut_seconds = cut(&store, &clock).await?;
    let seconds = push(&store, &clock, &handle.url(), windows.len()).await?;
    let (calls, timeouts) = {
        let simulator = simulator.lock().unwrap();
        ensure!(simulator.accepted_events() == windows.len(), "an event was taken twice or never");
        ensure!(simulator.exact_totals() == windows, "a total at the provider is wrong");
        let calls: u64 = simulator.calls().values().sum();
        (calls, simulator.faults_injected().get(&FaultKind::HangAfter).copied().unwrap_or(0))
    };
    println!(
        "{name}: {} windows cut in {cut_seconds:.1} s; pushed in {seconds:.1} s with {calls} calls \
         ({:.0} a second), {timeouts} timeouts after the event was taken; 0 doubled, 0 lost",
        windows.len(),
        calls as f64 / seconds,
    );
    handle.stop().await?;
    store.close().await;
    Ok(())
}

type Windows = BTreeMap<(String, String, stripe_sim::Timestamp), Decimal>;

/// One event in each hour of each tenant; returns what the provider must show in the end.
async fn prepare(
    store: &dyn Store,
    simulator: &Mutex<Simulator>,
    clock: &Clock,
) -> Result<Windows> {
    let fields = [
        ("display_name", "calls"),
        ("event_name", "calls"),
        ("default_aggregation[formula]", "sum"),
    ];
    let made = ask(simulator, &SimRequest::form("/v1/billing/meters", &fields)).await?;
    ensure!(made["id"].is_string(), "the simulator made no meter: {made}");
    let now = clock.now();
    let this_hour = now.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR;
    let spec = r#"{"aggregation":"sum","settle_after":"0s","late_until":"0s","cut_every":"1s",
        "billing":{"from":"2020-01-01T00:00:00Z"}}"#;
    let meter = Meter::declare(MeterSlug::parse("calls")?, serde_json::from_str(spec)?)?;
    store.declare_meter(meter, now).await?;
    let catalog = store.load_catalog().await?;
    let mut windows = Windows::new();
    for tenant in 0..TENANTS {
        let name = format!("tenant-{tenant}");
        let made = ask(simulator, &SimRequest::form("/v1/customers", &[("name", &name)])).await?;
        let customer = made["id"].as_str().context("a customer has an id")?.to_owned();
        let mapped = Some(CustomerId::parse(&customer)?);
        let fields = TenantFields { name: None, customer: mapped, unmap: false };
        store.put_tenant(&TenantId::parse(&name)?, fields, now).await?;
        let mut events = Vec::new();
        for hour in 0..HOURS {
            let start = this_hour - (i64::try_from(hour)? + 1) * MICROS_PER_HOUR;
            let at = Timestamp::from_micros(start + 60_000_000);
            let quantity = format!("{}.25", tenant % 7 + hour + 1);
            let json = format!(
                r#"{{"tenant":"{name}","id":"e{hour}","meter":"calls","quantity":"{quantity}","occurred_at":"{at}"}}"#
            );
            let item: Item<'_> = serde_json::from_str(&json)?;
            events.push(parse_event(&item, &catalog).map_err(|refused| refused.refusal)?);
            let hour = stripe_sim::Timestamp::from_micros(start);
            let total = quantity.parse::<Decimal>().map_err(anyhow::Error::msg)?;
            windows.insert((customer.clone(), "calls".to_owned(), hour), total);
        }
        let acceptance = Acceptance { now, horizon_micros: 168 * MICROS_PER_HOUR };
        let (refused, strict_tenants) = (Vec::new(), false);
        let batch =
            DeliveryBatch { events, refused, acceptance, strict_tenants, groups_per_day: 100_000 };
        store.record_deliveries(0, batch).await?;
    }
    Ok(windows)
}

/// Calls the simulator directly, at its rate.
async fn ask(simulator: &Mutex<Simulator>, request: &SimRequest) -> Result<serde_json::Value> {
    loop {
        let response = simulator.lock().unwrap().handle(request);
        match response.status {
            200 => return Ok(response.json()),
            429 => tokio::time::sleep(Duration::from_millis(20)).await,
            status => bail!("the simulator answered {status}: {}", response.json()),
        }
    }
}

async fn cut(store: &Arc<dyn Store>, clock: &Clock) -> Result<f64> {
    let context = jobs::Context::new(
        Arc::clone(store),
        clock.clone(),
        &config::load(None)?,
        "bench".into(),
        1,
    );
    let cutter = CutJob::new(&context, 15);
    let started = Instant::now();
    let pass = cutter.pass().await?;
    ensure!(pass.windows == TENANTS * HOURS, "{} windows were cut", pass.windows);
    Ok(started.elapsed().as_secs_f64())
}

/// Runs the submitter until everything is submitted.
async fn push(store: &Arc<dyn Store>, clock: &Clock, url: &str, windows: usize) -> Result<f64> {
    let mut config = config::load(None)?;
    config.stripe.api_base = url.to_owned();
    config.stripe.api_key = Secret::new("sk_test_bench");
    config.stripe.timeout_ms = TIMEOUT_MS;
    config.push.rate_per_second = CALLS_PER_SECOND;
    config.push.concurrency_max = 256;
    let provider: Arc<dyn Provider> =
        Arc::new(Stripe::connect(&config.stripe).map_err(|error| anyhow::anyhow!(error))?);
    let context = jobs::Context::new(Arc::clone(store), clock.clone(), &config, "bench".into(), 1);
    let submitter = PushJob::new(&context, &provider);
    let (stopper, stop) = Stopper::new();
    let started = Instant::now();
    let running = tokio::spawn(async move { submitter.run(stop).await });
    let mut seconds;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        seconds = started.elapsed().as_secs_f64();
        let now = clock.now();
        let ages = PushAges { observed_before: now, submitted_before: now };
        let counts = store.count_pushes(ages).await?;
        if counts.submitted == u64::try_from(windows)? {
            break;
        }
        ensure!(counts.dead == 0, "{} pushes are dead", counts.dead);
        ensure!(seconds < 600.0, "{} pushes are left after ten minutes", counts.observed);
    }
    stopper.stop();
    running.await?;
    Ok(seconds)
}
