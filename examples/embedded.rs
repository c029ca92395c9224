//! Counterfoil as a library, without its HTTP API: `cargo run --example embedded`.
//!
//! Opens a store in a temporary directory, declares a meter, submits events and reads the usage.
//! A program of your own would keep the directory: what `submit` has answered survives a crash.

use anyhow::{Context, Result, ensure};
use counterfoil::clock::Clock;
use counterfoil::config;
use counterfoil::jobs::ingest::Ingest;
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{MeterSlug, TenantId};
use counterfoil::rules::meter::{Meter, MeterSpec};
use counterfoil::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use counterfoil::rules::usage::UsageShape;
use counterfoil::rules::verdict::Verdict;
use counterfoil::rules::window::Window;
use counterfoil::store::Store;
use counterfoil::store::sqlite::SqliteStore;
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<()> {
    // The default settings, and those in the environment.
    let config = config::load(None)?;
    let directory = tempfile::tempdir()?;
    let clock = Clock::system();
    let store: Arc<dyn Store> = SqliteStore::open(directory.path(), &config.sqlite)?;

    let spec: MeterSpec = serde_json::from_str(r#"{"aggregation": "sum"}"#)?;
    let meter = Meter::declare(MeterSlug::parse("api_calls")?, spec)?;
    store.declare_meter(meter, clock.now()).await?;

    let ingest = Ingest::start(
        Arc::clone(&store),
        clock.clone(),
        config.ingest.clone(),
        config.tenants.strict,
    );
    let at = clock.now();
    let first = submit(&*store, &ingest, "request-1", "0.1", at).await?;
    let second = submit(&*store, &ingest, "request-2", "0.2", at).await?;
    // A client that got no answer sends the same event again.
    let again = submit(&*store, &ingest, "request-2", "0.2", at).await?;
    println!("request-1 {first:?}\nrequest-2 {second:?}\nrequest-2 {again:?}");
    ensure!([&first, &second] == [&Verdict::Accepted; 2], "a new event was not counted");
    ensure!(again == Verdict::Duplicate { restamped: false }, "an event was counted twice");

    let total = read_total(&*store, at).await?;
    println!("acme has used {total} api_calls");
    ensure!(total == "0.3", "the total is not exact");

    ingest.drain().await;
    store.close().await;
    Ok(())
}

/// Submits one event of the tenant acme. A batch takes one commit as well, and is much faster.
async fn submit(
    store: &dyn Store,
    ingest: &Ingest,
    id: &str,
    quantity: &str,
    occurred_at: Timestamp,
) -> Result<Verdict> {
    let json = serde_json::json!({
        "tenant": "acme", "id": id, "meter": "api_calls", "quantity": quantity,
        "occurred_at": occurred_at,
    })
    .to_string();
    let item: Item<'_> = serde_json::from_str(&json)?;
    let event = parse_event(&item, &store.load_catalog().await?);
    let verdicts = ingest.submit(vec![event]).await?;
    verdicts.into_iter().next().context("one event has one verdict")
}

/// The usage of the last two days.
async fn read_total(store: &dyn Store, now: Timestamp) -> Result<String> {
    let catalog = store.load_catalog().await?;
    let (number, meter) = catalog.find("api_calls").context("the meter was declared")?;
    // Usage is kept by the hour, and the border of a day is the border of an hour.
    let today = now.micros() - now.micros().rem_euclid(MICROS_PER_DAY);
    let range = Window {
        start: Timestamp::from_micros(today - MICROS_PER_DAY),
        end: Timestamp::from_micros(today + MICROS_PER_DAY),
    };
    let shape = UsageShape {
        windows: vec![range],
        group_by: Vec::new(),
        aggregation: meter.spec.aggregation,
        rows_max: 10_000,
    };
    let usage = store.compose_usage(&TenantId::parse("acme")?, number, range, shape).await?;
    Ok(usage.total.to_string())
}
