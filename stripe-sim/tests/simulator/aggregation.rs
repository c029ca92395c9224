//! Events are aggregated some time after they were received; summaries show and invoices bill only
//! what was aggregated.

use super::billing::{invoices, price, subscribe};
use super::{DAY, HOUR, NOON, World};
use serde_json::Value;
use stripe_sim::{Options, SimRequest};

const LAG: i64 = 90;

fn slow() -> World {
    World::with(Options { summary_lag_seconds: LAG, ..Options::default() })
}

fn quantity(invoice: &Value) -> &str {
    invoice["lines"]["data"][0]["quantity_decimal"].as_str().unwrap()
}

#[test]
fn aggregation_takes_time_by_default() {
    let mut world = World::with(Options::default());
    world.send("a", "10", NOON + 1);
    let query = format!("start_time={NOON}&end_time={}", NOON + HOUR);
    assert_eq!(world.summaries(&query).json()["data"], serde_json::json!([]));
    world.advance(60);
    assert_eq!(world.summaries(&query).json()["data"][0]["aggregated_value"], 10.0);
}

#[test]
fn final_invoice_bills_only_aggregated_usage() {
    let mut world = slow();
    let subscription = subscribe(&mut world);
    world.send("a", "1000", NOON + 1);
    world.advance(LAG);
    world.send("b", "200", NOON + 2);
    world.advance(10);
    let target = format!("/v1/subscriptions/{subscription}?invoice_now=true&prorate=false");
    assert_eq!(world.simulator.handle(&SimRequest::new("DELETE", &target)).status, 200);
    assert_eq!(quantity(&invoices(&mut world)[0]), "1000");
    world.advance(2 * HOUR);
    let paid = &invoices(&mut world)[0];
    assert_eq!((paid["status"].as_str(), quantity(paid)), (Some("paid"), "1000"));
}

#[test]
fn price_change_bills_only_aggregated_usage() {
    let mut world = slow();
    let subscription = subscribe(&mut world);
    let path = format!("/v1/subscriptions/{subscription}");
    let item = world.get(&path).json()["items"]["data"][0]["id"].as_str().unwrap().to_owned();
    let new = price(&mut world, "2");
    world.send("a", "1000", NOON + 1);
    world.advance(LAG);
    world.send("b", "200", NOON + 2);
    world.post(&path, &[("items[0][id]", &item), ("items[0][price]", &new)]);
    world.advance(2 * HOUR);
    assert_eq!(quantity(&invoices(&mut world)[0]), "1000");
    // Nor is it billed at the end of the period.
    world.advance(31 * DAY);
    let all = invoices(&mut world);
    assert_eq!(all.iter().map(quantity).collect::<Vec<_>>(), ["0", "1000"]);
}

#[test]
fn cycle_invoice_bills_usage_that_is_aggregated_before_finalization() {
    let mut world = slow();
    subscribe(&mut world);
    let period_end = NOON + 30 * DAY;
    world.advance(30 * DAY);
    world.send("a", "1000", period_end - 10);
    assert_eq!(quantity(&invoices(&mut world)[0]), "0");
    world.advance(HOUR - LAG / 2);
    world.send("late", "200", period_end - 10);
    world.advance(HOUR);
    let paid = &invoices(&mut world)[0];
    assert_eq!((paid["status"].as_str(), quantity(paid)), (Some("paid"), "1000"));
}
