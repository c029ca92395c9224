//! Every window of 1,070 tenants and two meters in 47 hours, compared hour by hour.

use anyhow::{Context, Result, ensure};
use counterfoil::clock::Clock;
use counterfoil::config::{self, Config, Secret};
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::reconcile::ReconcileJob;
use counterfoil::jobs::{self, Job, Stopper};
use counterfoil::provider::Provider;
use counterfoil::provider::stripe::Stripe;
use counterfoil::rules::drift::Verdict;
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterSlug, TenantId};
use counterfoil::rules::meter::Meter;
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use counterfoil::rules::verdict::Acceptance;
use counterfoil::store::push::PushAges;
use counterfoil::store::{DeliveryBatch, Store, TenantFields};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stripe_sim::{Handle, Options, SimRequest, Simulator};

const TENANTS: usize = 1_070;
const METERS: [&str; 2] = ["calls", "tokens"];
/// A pass covers 48 hours, of which one is still open.
const HOURS: usize = 47;

pub async fn measure(name: &str, store: &Arc<dyn Store>) -> Result<()> {
    let clock = Clock::system();
    // The pass follows the pushes at once.
    let options = Options { summary_lag_seconds: 0, ..Options::default() };
    let simulator = Simulator::following(stripe_sim::Timestamp::now, options);
    let simulator = Arc::new(Mutex::new(simulator));
    let mut handle = Handle::start("127.0.0.1:0".parse()?, Arc::clone(&simulator)).await?;
    let config = settings(&handle.url())?;
    let provider: Arc<dyn Provider> =
        Arc::new(Stripe::connect(&config.stripe).map_err(|error| anyhow::anyhow!(error))?);
    prepare(&**store, &simulator, &clock).await?;
    cut_and_push(store, &provider, &clock, &config).await?;
    let reconciler = ReconcileJob::new(&context(store, &clock, &config), &provider);
    let started = Instant::now();
    let number = reconciler.pass().await?.context("a pass is due")?;
    let seconds = started.elapsed().as_secs_f64();
    let pass = store.find_pass(number).await?.context("the pass is stored")?;
    let windows = u64::try_from(TENANTS * METERS.len() * HOURS)?;
    let equal = pass.progress.verdicts.get(&Verdict::Equal).copied().unwrap_or(0);
    ensure!(equal == windows, "{equal} of {windows} windows are equal: {:?}", pass.progress);
    println!(
        "{name}: {windows} windows (tenant, meter, hour) reconciled in {seconds:.1} s with {} reads \
         of the provider; all equal",
        pass.progress.reads
    );
    handle.stop().await?;
    Ok(())
}

fn settings(url: &str) -> Result<Config> {
    let mut config = config::load(None)?;
    config.stripe.api_base = url.to_owned();
    config.stripe.api_key = Secret::new("sk_test_bench");
    config.push.rate_per_second = 100_000;
    config.push.concurrency_max = 256;
    config.reconcile.reads_per_hour = 0;
    Ok(config)
}

/// One event in each hour of each tenant and meter.
async fn prepare(store: &dyn Store, simulator: &Mutex<Simulator>, clock: &Clock) -> Result<()> {
    let now = clock.now();
    let this_hour = now.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR;
    for meter in METERS {
        let fields = [
            ("display_name", meter),
            ("event_name", meter),
            ("default_aggregation[formula]", "sum"),
        ];
        ask(simulator, &SimRequest::form("/v1/billing/meters", &fields))?;
        let spec = r#"{"aggregation":"sum","settle_after":"0s","late_until":"0s","cut_every":"1s",
            "billing":{"from":"2020-01-01T00:00:00Z"}}"#;
        let meter = Meter::declare(MeterSlug::parse(meter)?, serde_json::from_str(spec)?)?;
        store.declare_meter(meter, now).await?;
    }
    let catalog = store.load_catalog().await?;
    for tenant in 0..TENANTS {
        let name = format!("tenant-{tenant}");
        let made = ask(simulator, &SimRequest::form("/v1/customers", &[("name", &name)]))?;
        let customer = made["id"].as_str().context("a customer has an id")?;
        let fields =
            TenantFields { name: None, customer: Some(CustomerId::parse(customer)?), unmap: false };
        store.put_tenant(&TenantId::parse(&name)?, fields, now).await?;
        let mut events = Vec::new();
        for (meter, hour) in METERS.iter().flat_map(|meter| (0..HOURS).map(move |h| (meter, h))) {
            let start = this_hour - (i64::try_from(hour)? + 1) * MICROS_PER_HOUR;
            let at = Timestamp::from_micros(start);
            let quantity = tenant % 7 + hour + 1;
            let json = format!(
                r#"{{"tenant":"{name}","id":"{meter}{hour}","meter":"{meter}","quantity":"{quantity}.25","occurred_at":"{at}"}}"#
            );
            let item: Item<'_> = serde_json::from_str(&json)?;
            events.push(parse_event(&item, &catalog).map_err(|refused| refused.refusal)?);
        }
        let acceptance = Acceptance { now, horizon_micros: 168 * MICROS_PER_HOUR };
        let (refused, strict_tenants) = (Vec::new(), false);
        let batch =
            DeliveryBatch { events, refused, acceptance, strict_tenants, groups_per_day: 100_000 };
        store.record_deliveries(0, batch).await?;
    }
    Ok(())
}

fn ask(simulator: &Mutex<Simulator>, request: &SimRequest) -> Result<serde_json::Value> {
    let response = simulator.lock().unwrap().handle(request);
    ensure!(response.status == 200, "the simulator answered {}", response.json());
    Ok(response.json())
}

fn context(store: &Arc<dyn Store>, clock: &Clock, config: &Config) -> jobs::Context {
    jobs::Context::new(Arc::clone(store), clock.clone(), config, "bench".into(), 1)
}

/// Hands every window to the simulator.
async fn cut_and_push(
    store: &Arc<dyn Store>,
    provider: &Arc<dyn Provider>,
    clock: &Clock,
    config: &Config,
) -> Result<()> {
    let context = context(store, clock, config);
    CutJob::new(&context, 15).pass().await?;
    let submitter = PushJob::new(&context, provider);
    let (stopper, stop) = Stopper::new();
    let running = tokio::spawn(async move { submitter.run(stop).await });
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = clock.now();
        let ages = PushAges { observed_before: now, submitted_before: now };
        if store.count_pushes(ages).await?.observed == 0 {
            break;
        }
    }
    stopper.stop();
    running.await?;
    Ok(())
}
