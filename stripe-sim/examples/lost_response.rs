//! A client sends a meter event, gets no response, and sends it again: it counts once. A day later
//! Stripe has forgotten the identifier, and the same event counts again.
//!
//! Run it with `cargo run -p stripe-sim --example lost_response`.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stripe_sim::{
    FaultKind, FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator, TEST_KEY, Timestamp,
};

/// 2026-11-15T12:00:00Z.
const NOON: Timestamp = Timestamp::from_seconds(1_794_744_000);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut simulator = Simulator::new(NOON, Options::default());
    let customer = simulator.handle(&SimRequest::form("/v1/customers", &[("name", "Ada")])).json();
    let customer = customer["id"].as_str().ok_or("a customer has an id")?.to_owned();
    let meter = [
        ("display_name", "API calls"),
        ("event_name", "api_calls"),
        ("default_aggregation[formula]", "sum"),
    ];
    simulator.handle(&SimRequest::form("/v1/billing/meters", &meter));
    let lost = FaultRule::new(FaultKind::LostAfter).on_path("/meter_events");
    simulator.set_faults(FaultPlan::of_rules(vec![lost]));

    let stripe = Handle::start("127.0.0.1:0".parse()?, Arc::new(Mutex::new(simulator))).await?;
    let event = format!(
        "event_name=api_calls&identifier=order-17&timestamp={}\
         &payload[stripe_customer_id]={customer}&payload[value]=5",
        NOON.seconds()
    );
    for title in ["first attempt", "again at once", "again a day later"] {
        if title == "again a day later" {
            let day = Duration::from_secs(86_400);
            stripe.simulator().lock().unwrap_or_else(PoisonError::into_inner).advance(day);
        }
        let outcome = send(&stripe.url(), &event).await;
        let simulator = stripe.simulator();
        let simulator = simulator.lock().unwrap_or_else(PoisonError::into_inner);
        let total = simulator.exact_total(&customer, "api_calls", NOON);
        println!("{title}: {outcome}; total at Stripe: {total}");
    }
    Ok(())
}

async fn send(url: &str, event: &str) -> String {
    let call = reqwest::Client::new()
        .post(format!("{url}/v1/billing/meter_events"))
        .header("authorization", format!("Bearer {TEST_KEY}"))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(event.to_owned());
    match call.send().await {
        Ok(response) => format!("response {}", response.status()),
        Err(_) => "no response".to_owned(),
    }
}
