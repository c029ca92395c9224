//! The signed sink: a receiver of the user's own that verifies, counts an id once, and refuses.

use crate::world::{CALLS, Ground, World, serve_on_loopback, standard_signature};
use axum::extract::State;
use counterfoil::config::{ProviderKind, Secret};
use counterfoil::jobs::Job;
use counterfoil::rules::restore::Cause;
use counterfoil::rules::submission::{Class, PushState};
use counterfoil::store::push::Ruling;
use http::{HeaderMap, StatusCode};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// Base64 of the secret `counterfoil-sink-secret-for-tests`, as `base64` prints it.
const SECRET: &str = "whsec_Y291bnRlcmZvaWwtc2luay1zZWNyZXQtZm9yLXRlc3Rz";
const SECRET_BYTES: &[u8] = b"counterfoil-sink-secret-for-tests";

/// A receiver as the documentation of Standard Webhooks asks for it.
#[derive(Default)]
struct Receiver {
    /// What it answers to the next calls; 200 when there is none.
    script: Mutex<VecDeque<u16>>,
    /// Every call: id and body.
    calls: Mutex<Vec<(String, String)>>,
    /// What it counted, by id.
    counted: Mutex<BTreeMap<String, serde_json::Value>>,
}

impl Receiver {
    fn answers(&self, script: &[u16]) {
        self.script.lock().unwrap().extend(script);
    }

    fn ids(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|(id, _)| id.clone()).collect()
    }

    fn values(&self) -> Vec<String> {
        let counted = self.counted.lock().unwrap();
        counted.values().map(|body| body["data"]["value"].as_str().unwrap().to_owned()).collect()
    }
}

async fn receive(
    State(receiver): State<Arc<Receiver>>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let header = |name: &str| headers.get(name).unwrap().to_str().unwrap().to_owned();
    let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
    if header("webhook-signature") != standard_signature(SECRET_BYTES, &id, &timestamp, &body) {
        return StatusCode::UNAUTHORIZED;
    }
    receiver.calls.lock().unwrap().push((id.clone(), body.clone()));
    let status = receiver.script.lock().unwrap().pop_front().unwrap_or(200);
    // A 500 comes after it was counted, which is the worst case; a 503 before.
    if status == 200 || status == 500 {
        let read = serde_json::from_str(&body).unwrap();
        receiver.counted.lock().unwrap().entry(id).or_insert(read);
    }
    StatusCode::from_u16(status).unwrap()
}

async fn start(ground: Ground) -> (World, Arc<Receiver>) {
    let receiver = Arc::new(Receiver::default());
    let router = axum::Router::new().fallback(receive).with_state(Arc::clone(&receiver));
    let url = serve_on_loopback(router).await;
    let world = World::with(ground, |config| {
        config.provider.kind = ProviderKind::Sink;
        config.sink.url = format!("{url}/usage");
        config.sink.secret = Secret::new(SECRET);
    })
    .await;
    world.meter("calls", CALLS).await;
    world.tenant("acme").await;
    (world, receiver)
}

pub async fn what_the_receiver_verified_and_took_is_confirmed(ground: Ground) {
    let (world, receiver) = start(ground).await;
    let push = world.planned("5.25").await;
    world.push().await;
    world.check(push.number, PushState::Confirmed, Class::Accepted).await;
    let (id, body) = receiver.calls.lock().unwrap()[0].clone();
    assert_eq!(id, push.key);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["type"], "counterfoil.push");
    assert_eq!(body["data"]["key"], push.key.as_str());
    assert_eq!(body["data"]["value"], "5.25");
    assert_eq!(body["data"]["event_name"], "calls");
    assert_eq!(body["timestamp"], "2026-11-15T12:30:00Z");
    assert_eq!(world.confirm().await, 0, "there is no summary to ask");
}

pub async fn a_long_stop_makes_no_dead_letter_where_no_total_can_be_compared(ground: Ground) {
    let (world, receiver) = start(ground).await;
    let push = world.planned("5").await;
    let stop = Cause { reason: "a long stop".into(), suspected: true };
    world.store.record_restore(&stop, world.clock.now()).await.unwrap();
    world.push().await;
    world.check(push.number, PushState::Confirmed, Class::Accepted).await;
    assert_eq!(receiver.ids(), [push.key]);
    // A restore that is known leaves it to a person.
    let push = world.planned("6").await;
    world.store.record_restore(&Cause::known("a test"), world.clock.now()).await.unwrap();
    world.push().await;
    world.check(push.number, PushState::Dead, Class::Undecidable).await;
}

pub async fn a_receiver_in_trouble_gets_the_same_id_and_bytes_until_it_takes_them(ground: Ground) {
    let (world, receiver) = start(ground).await;
    let push = world.planned("5").await;
    receiver.answers(&[500, 503, 404, 429, 302]);
    for _ in 0..5 {
        world.push().await;
        world.check(push.number, PushState::Observed, Class::Unknown).await;
        world.pass_hours(1);
    }
    // However long it takes: a receiver counts an id once for ever.
    world.pass_hours(24 * 60);
    world.push().await;
    world.check(push.number, PushState::Confirmed, Class::Accepted).await;
    let calls = receiver.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 6);
    assert!(calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    assert_eq!(receiver.values(), ["5"]);
}

pub async fn what_the_receiver_refuses_is_dead_and_can_be_retried(ground: Ground) {
    for status in [400, 410, 413, 422] {
        let (world, receiver) = start(ground.another().await).await;
        let push = world.planned("5").await;
        receiver.answers(&[status]);
        world.push().await;
        let dead = world.check(push.number, PushState::Dead, Class::Refused).await;
        assert!(dead.detail.unwrap().contains(&status.to_string()));
        world.pass_hours(5);
        assert_eq!(world.push().await, 0);
        assert!(matches!(world.retry(push.number).await, Ruling::Done(Some(_))));
        world.push().await;
        assert_eq!((receiver.ids().len(), receiver.values()), (2, vec!["5".to_owned()]));
    }
}

/// The first attempt may have counted, and there is no summary to ask: a person must look. Sending
/// it again at once and for ever would help nobody.
pub async fn a_refusal_after_trouble_needs_a_person(ground: Ground) {
    let (world, receiver) = start(ground).await;
    let push = world.planned("5").await;
    receiver.answers(&[500, 400, 400, 400, 400]);
    world.push().await;
    world.pass_hours(1);
    tokio::time::timeout(std::time::Duration::from_secs(20), world.push()).await.unwrap();
    let dead = world.check(push.number, PushState::Dead, Class::Undecidable).await;
    assert_eq!((dead.attempts, receiver.ids().len()), (2, 2));
    assert!(matches!(world.retry(push.number).await, Ruling::Refused(_)), "it counted already");
    assert_eq!(receiver.values(), ["5"]);
}

pub async fn a_wrong_secret_is_no_refusal_of_the_push(ground: Ground) {
    let (world, receiver) = start(ground).await;
    let push = world.planned("5").await;
    let secret = Secret::new("whsec_d3JvbmctYnV0LWxvbmctZW5vdWdoLXNlY3JldA==");
    let wrong = world.other_server(|config| config.sink.secret = secret);
    wrong.submitter.pass().await.unwrap();
    let waiting = world.check(push.number, PushState::Observed, Class::Unknown).await;
    assert!(waiting.detail.unwrap().contains("401"));
    world.pass_hours(1);
    world.push().await;
    assert_eq!(receiver.values(), ["5"]);
}
