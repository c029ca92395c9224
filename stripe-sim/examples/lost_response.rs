//! A client sends a meter event, gets no response, and sends it again: it counts once. A day later
//! Stripe has forgotten the identifier, and the same event counts again.
//!
//! Run it with `cargo run -p stripe-sim --example lost_response`.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stripe_sim::{
    FaultKind, FaultPlan, FaultRule, Handle, Options, SimRequest, Simulator, TEST_KEY, Timestamp,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
        let outcome = send(stripe.address(), &event).await?;
        let simulator = stripe.simulator();
        let simulator = simulator.lock().unwrap_or_else(PoisonError::into_inner);
        let total = simulator.exact_total(&customer, "api_calls", NOON);
        println!("{title}: {outcome}; total at Stripe: {total}");
    }
    Ok(())
}

/// Posts the event as any HTTP client would; returns the status line.
async fn send(address: SocketAddr, event: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /v1/billing/meter_events HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {TEST_KEY}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{event}",
        event.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    // The connection may be closed by a reset.
    let _ = stream.read_to_string(&mut response).await;
    Ok(response.lines().next().unwrap_or("no response").to_owned())
}
