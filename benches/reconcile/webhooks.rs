//! 10,000 webhooks of 2,000 subscriptions, each sent three times, in a random order, over HTTP.

use anyhow::{Context, Result, ensure};
use counterfoil::clock::Clock;
use counterfoil::config::{self, Secret};
use counterfoil::http::{self, App};
use counterfoil::jobs::ingest::Ingest;
use counterfoil::jobs::mirror::MirrorJob;
use counterfoil::jobs::webhook::WebhookInbox;
use counterfoil::jobs::{self, Job, Stopper};
use counterfoil::provider::Provider;
use counterfoil::provider::stripe::Stripe;
use counterfoil::store::webhook::WebhookFilter;
use counterfoil::store::{Query, Store};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stripe_sim::{Handle, Options, SimRequest, Simulator, sign};
use tokio::net::TcpListener;

const SUBSCRIPTIONS: usize = 2_000;
const EVENTS_EACH: usize = 5;
const TIMES: usize = 3;
const CONNECTIONS: usize = 64;
const SECRET: &str = "whsec_bench";

pub async fn measure(name: &str, store: &Arc<dyn Store>) -> Result<()> {
    let clock = Clock::system();
    let simulator = Simulator::following(stripe_sim::Timestamp::now, Options::default());
    let simulator = Arc::new(Mutex::new(simulator));
    let mut handle = Handle::start("127.0.0.1:0".parse()?, Arc::clone(&simulator)).await?;
    let bodies = events(&simulator)?;
    let mut config = config::load(None)?;
    config.stripe.api_base = handle.url();
    config.stripe.api_key = Secret::new("sk_test_bench");
    config.stripe.webhook_secrets = Secret::new(SECRET);
    let provider: Arc<dyn Provider> =
        Arc::new(Stripe::connect(&config.stripe).map_err(|error| anyhow::anyhow!(error))?);
    let ingest = Ingest::start(Arc::clone(store), clock.clone(), config.ingest.clone(), false);
    let inbox = WebhookInbox::start(store.clone());
    let arrived = inbox.arrived();
    let (own, share) = (Arc::clone(store), Some(Arc::clone(&provider)));
    let app = App::new(own, ingest, inbox, clock.clone(), share, &config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/webhooks/stripe", listener.local_addr()?);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(http::serve(listener, app, async { drop(ended.await) }));
    let context = jobs::Context::new(Arc::clone(store), clock, &config, "bench".into(), 1);
    let reader = MirrorJob::new(&context, &provider, arrived);
    let (stopper, stop) = Stopper::new();
    let reading = tokio::spawn(async move { reader.run(stop).await });

    let started = Instant::now();
    let fresh = send_all(&url, bodies).await?;
    let sent_seconds = started.elapsed().as_secs_f64();
    while store.count_webhooks().await?.waiting > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    ensure!(fresh == SUBSCRIPTIONS * EVENTS_EACH, "{fresh} webhooks were fresh");
    check(&**store).await?;
    println!(
        "{name}: {} webhooks, each sent {TIMES} times, shuffled: answered in {sent_seconds:.1} s, all \
         effects after {seconds:.1} s; each had its effect once",
        SUBSCRIPTIONS * EVENTS_EACH,
    );
    stopper.stop();
    reading.await?;
    drop(end);
    serving.await??;
    handle.stop().await?;
    Ok(())
}

/// Lives of subscriptions, as the simulator tells them; each three times, shuffled.
fn events(simulator: &Mutex<Simulator>) -> Result<Vec<String>> {
    let mut simulator = simulator.lock().unwrap();
    let mut ask = |path: &str, fields: &[(&str, &str)]| -> Result<serde_json::Value> {
        let response = simulator.handle(&SimRequest::form(path, fields));
        ensure!(response.status == 200, "{path}: {}", response.json());
        Ok(response.json())
    };
    let meter =
        [("display_name", "m"), ("event_name", "m"), ("default_aggregation[formula]", "sum")];
    let meter = ask("/v1/billing/meters", &meter)?["id"].as_str().context("an id")?.to_owned();
    let price = [
        ("currency", "usd"),
        ("unit_amount", "1"),
        ("recurring[interval]", "month"),
        ("recurring[usage_type]", "metered"),
        ("recurring[meter]", &meter),
        ("product_data[name]", "p"),
    ];
    let price = ask("/v1/prices", &price)?["id"].as_str().context("an id")?.to_owned();
    for number in 0..SUBSCRIPTIONS {
        let name = format!("customer {number}");
        let made = ask("/v1/customers", &[("name", &name)])?;
        let customer = made["id"].as_str().context("an id")?;
        let fields = [("customer", customer), ("items[0][price]", price.as_str())];
        let made = ask("/v1/subscriptions", &fields)?;
        let path = format!("/v1/subscriptions/{}", made["id"].as_str().context("an id")?);
        for change in 1..EVENTS_EACH {
            ask(&path, &[("metadata[change]", &change.to_string())])?;
        }
    }
    let mut bodies = Vec::new();
    let mut after = String::new();
    loop {
        let query = format!(
            "limit=100&types[0]=customer.subscription.created\
            &types[1]=customer.subscription.updated{after}"
        );
        let mut request = SimRequest::get("/v1/events");
        request.query = query;
        let page = simulator.handle(&request).json();
        let events = page["data"].as_array().context("a list of events")?;
        bodies.extend(events.iter().map(ToString::to_string));
        let last = events.last().and_then(|event| event["id"].as_str());
        if page["has_more"] != true {
            break;
        }
        after = format!("&starting_after={}", last.context("an id")?);
    }
    ensure!(bodies.len() == SUBSCRIPTIONS * EVENTS_EACH, "{} events", bodies.len());
    let mut all: Vec<String> = (0..TIMES).flat_map(|_| bodies.clone()).collect();
    // A fixed shuffle: the same order in each run.
    let mut state = 42u64;
    for place in (1..all.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(place, usize::try_from(state >> 33)? % (place + 1));
    }
    Ok(all)
}

/// Sends all of them; returns how many were fresh.
async fn send_all(url: &str, bodies: Vec<String>) -> Result<usize> {
    let client = reqwest::Client::builder().build()?;
    let clock = Clock::system();
    let bodies = Arc::new(Mutex::new(bodies));
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (client, url, clock) = (client.clone(), url.to_owned(), clock.clone());
        let bodies = Arc::clone(&bodies);
        senders.spawn(async move {
            let mut fresh = 0;
            loop {
                let Some(body) = bodies.lock().unwrap().pop() else { return Ok(fresh) };
                let signature = sign(SECRET, clock.now().micros() / 1_000_000, &body);
                let request = client.post(&url).header("stripe-signature", signature);
                let response = request.body(body).send().await?;
                ensure!(response.status() == 200, "answered {}", response.status());
                let answer: serde_json::Value = serde_json::from_slice(&response.bytes().await?)?;
                fresh += usize::from(answer["duplicate"] == false);
            }
        });
    }
    let mut fresh = 0;
    while let Some(one) = senders.join_next().await {
        fresh += one??;
    }
    Ok(fresh)
}

/// Every webhook came three times and is one row.
async fn check(store: &dyn Store) -> Result<()> {
    let (mut before, mut rows) = (None, 0);
    loop {
        let query = Query { filter: WebhookFilter::default(), after: before, limit: 1_000 };
        let page = store.list_webhooks(query).await?;
        let Some(last) = page.last() else { break };
        before = Some(last.number);
        rows += page.len();
        ensure!(
            page.iter().all(|one| one.deliveries == u64::try_from(TIMES).unwrap_or(0)),
            "counts"
        );
    }
    ensure!(rows == SUBSCRIPTIONS * EVENTS_EACH, "{rows} webhooks are stored");
    Ok(())
}
