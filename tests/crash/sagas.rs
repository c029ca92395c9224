//! Crashes of the real binary at each step of a saga, after its intent and before its result. After
//! a restart, and when the lease of the dead runner has ended, the saga goes on by itself and ends
//! completed, with one customer and one subscription.
//!
//! The lease ends by itself after ten seconds of real time: that it ends is part of what is tested.
//! All kills of a store wait for it at the same time.

use super::load::{client, get};
use super::server::{KEY, Place, Server};
use super::stage::{Stage, following};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const STEPS: usize = 4;
const POINTS: [&str; 2] = ["saga.after_intent", "saga.before_result"];
/// The lease and some time for a slow machine.
const ENDED_WITHIN: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_secs(1);

/// The settings besides those of the provider.
const SETTINGS: [(&str, &str); 2] =
    [("COUNTERFOIL_STRIPE_TIMEOUT_MS", "5000"), ("COUNTERFOIL_SAGAS_LEASE_MS", "10000")];

impl Stage {
    /// What is there at the provider in the end.
    fn check_provider(&self, name: &str) {
        let simulator = self.handle.simulator();
        let simulator = simulator.lock().unwrap();
        let (customers, subscriptions) = (simulator.customers(), simulator.subscriptions());
        assert_eq!(customers.len(), 1, "{name}: {customers:#?}");
        assert!(customers[0]["metadata"]["counterfoil_state"].is_null(), "{name}: {customers:#?}");
        assert_eq!(subscriptions.len(), 1, "{name}: {subscriptions:#?}");
        assert_eq!(subscriptions[0]["status"], "active", "{name}: {subscriptions:#?}");
    }
}

/// Asks for the subscription, each time under the same key; none where the server is gone before it
/// answers.
async fn begin(server: &Server, price: &str) -> Option<Value> {
    let body = json!({"plan": "pro", "prices": [price], "features": ["exports"]}).to_string();
    let path = "/v1/tenants/acme/subscriptions";
    let request = client().post(format!("{}{path}", server.url)).bearer_auth(KEY);
    let request = request.header("idempotency-key", "once").body(body);
    let answer = request.header("content-type", "application/json").send().await.ok()?;
    assert_eq!(answer.status(), 202);
    serde_json::from_slice(&answer.bytes().await.ok()?).ok()
}

async fn kill_at(place: Place, point: &str, step: usize) {
    let stage = Stage::set(place, following(), &SETTINGS).await;
    let price = stage.price("calls");
    let name = format!("{point} of step {step}");
    let mut server = stage.launch(&format!("{point}={step}*off->return")).expect("it starts");
    let first = begin(&server, &price).await;
    let ended = server.ended_within(Duration::from_secs(60)).await;
    assert!(ended.is_some_and(|status| !status.success()), "it crashes at {name}");
    let server = stage.start();
    let begun = begin(&server, &price).await.expect("it is up");
    let id = begun["id"].as_str().unwrap();
    assert!(first.is_none_or(|first| first["id"] == id), "{name}: one saga under one key");
    let started = Instant::now();
    let story = loop {
        let story = get(&server, &format!("/v1/sagas/{id}")).await;
        if story["saga"]["state"] != "running" {
            break story;
        }
        assert!(started.elapsed() < ENDED_WITHIN, "{name}: it does not go on: {story:#}");
        tokio::time::sleep(PAUSE).await;
    };
    assert_eq!(story["saga"]["state"], "completed", "{name}: {story:#}");
    stage.check_provider(&name);
    let agreed = get(&server, "/v1/tenants/acme/subscriptions").await;
    assert_eq!(agreed["features"], json!(["exports"]), "{name}");
}

async fn kill_at_each_step(places: Vec<Place>) {
    let kills = POINTS.iter().flat_map(|point| (0..STEPS).map(move |step| (*point, step)));
    let tasks: Vec<_> = kills
        .zip(places)
        .map(|((point, step), place)| tokio::spawn(kill_at(place, point, step)))
        .collect();
    assert_eq!(tasks.len(), POINTS.len() * STEPS);
    for task in tasks {
        task.await.unwrap();
    }
}

// A start blocks its thread, and a server asks the provider, which runs here, before it is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn sqlite_saga_goes_on_after_a_kill_at_each_step() {
    kill_at_each_step((0..POINTS.len() * STEPS).map(|_| Place::sqlite()).collect()).await;
}

// A start blocks its thread, and a server asks the provider, which runs here, before it is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn postgres_saga_goes_on_after_a_kill_at_each_step() {
    let mut places = Vec::new();
    for _ in 0..POINTS.len() * STEPS {
        let Some(place) = Place::postgres().await else { return };
        places.push(place);
    }
    kill_at_each_step(places).await;
}
