//! Idempotency-Keys of both versions, and what is kept under them.

use super::{DAY, NOON, World, refusal};
use serde_json::json;
use stripe_sim::{FaultKind, FaultPlan, FaultRule, Options, RateClock, RateLimit, SimRequest};

fn plan(world: &mut World, kind: FaultKind) {
    world.simulator.set_faults(FaultPlan::of_rules(vec![FaultRule::new(kind)]));
}

#[test]
fn a_success_is_replayed() {
    let mut world = World::new();
    let request = world.event("a", "5", NOON).with_key("key");
    let first = world.simulator.handle(&request);
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = world.simulator.handle(&request);
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_ne!(again.header("request-id"), first.header("request-id"));
    assert_eq!(world.simulator.accepted_events(), 1);
    world.advance(DAY);
    // Key and identifier are both forgotten by now, so the event counts twice.
    let late = world.simulator.handle(&request);
    assert_eq!((late.status, late.header("idempotent-replayed")), (200, None));
    assert_eq!(world.exact(NOON), "10");
}

#[test]
fn other_parameters_or_another_endpoint() {
    let mut world = World::new();
    let request = world.event("a", "5", NOON).with_key("key");
    world.simulator.handle(&request);
    for other in [
        world.event("a", "6", NOON).with_key("key"),
        SimRequest::form("/v1/customers", &[]).with_key("key"),
    ] {
        let (status, kind, _, message) = refusal(&world.simulator.handle(&other));
        assert_eq!((status, kind.as_str()), (400, "idempotency_error"));
        assert!(message.contains("same parameters"), "{message}");
    }
    // The order of parameters is none of the key's business.
    let mut turned = request.clone();
    let body = String::from_utf8(turned.body).unwrap();
    turned.body = body.split('&').rev().collect::<Vec<_>>().join("&").into_bytes();
    assert_eq!(world.simulator.handle(&turned).header("idempotent-replayed"), Some("true"));
    let long = world.event("z", "5", NOON).with_key(&"k".repeat(256));
    assert_eq!(world.simulator.handle(&long).status, 400);
}

#[test]
fn a_refusal_is_kept_once_execution_began() {
    let mut world = World::new();
    world.send("a", "5", NOON);
    let duplicate = world.event("a", "5", NOON).with_key("duplicate");
    for replayed in [None, Some("true")] {
        let response = world.simulator.handle(&duplicate);
        assert_eq!((response.status, response.header("idempotent-replayed")), (400, replayed));
        assert_eq!(response.header("stripe-should-retry"), Some("false"));
    }
    // A parameter that cannot be read is refused before anything is executed.
    let invalid = SimRequest::form("/v1/billing/meter_events", &[("event_name", "calls")])
        .with_key("invalid");
    for _ in 0..2 {
        let response = world.simulator.handle(&invalid);
        assert_eq!((response.status, response.header("idempotent-replayed")), (400, None));
    }
    let corrected = world.event("b", "1", NOON).with_key("invalid");
    assert_eq!(world.simulator.handle(&corrected).status, 200);
}

#[test]
fn a_500_is_kept_whether_executed_or_not() {
    for (kind, counted) in
        [(FaultKind::Error500Executed, "5"), (FaultKind::Error500NotExecuted, "0")]
    {
        let mut world = World::new();
        plan(&mut world, kind);
        let request = world.event("a", "5", NOON).with_key("key");
        assert_eq!(refusal(&world.simulator.handle(&request)).1, "api_error");
        let again = world.simulator.handle(&request);
        assert_eq!((again.status, again.header("idempotent-replayed")), (500, Some("true")));
        assert_eq!(world.exact(NOON), counted, "{kind:?}");
        // The identifier tells the two apart under another key.
        let fresh = world.event("a", "5", NOON).with_key("other");
        let expected = if counted == "5" { 400 } else { 200 };
        assert_eq!(world.simulator.handle(&fresh).status, expected, "{kind:?}");
        assert_eq!(world.exact(NOON), "5", "{kind:?}");
        assert_eq!(world.simulator.faults_injected()[&kind], 1);
    }
}

#[test]
fn limiters_stand_before_the_keys() {
    let rate = RateLimit { calls_per_second: 3, clock: RateClock::Simulator };
    let mut world = World::with(Options { rate: Some(rate), ..Options::default() });
    let request = world.event("a", "5", NOON).with_key("key");
    // Two calls went into setting up.
    assert_eq!(world.simulator.handle(&request).status, 200);
    let response = world.simulator.handle(&request);
    assert_eq!(response.status, 429);
    assert_eq!(response.header("stripe-rate-limited-reason"), Some("endpoint-rate"));
    world.advance(1);
    let replay = world.simulator.handle(&request);
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
}

#[test]
fn gateways_and_limits_keep_nothing() {
    for (kind, status) in [
        (FaultKind::Error502, 502),
        (FaultKind::Error503, 503),
        (FaultKind::Error504, 504),
        (FaultKind::RateLimited429, 429),
        (FaultKind::LockTimeout429, 429),
        (FaultKind::Conflict409, 409),
    ] {
        let mut world = World::new();
        plan(&mut world, kind);
        let request = world.event("a", "5", NOON).with_key("key");
        let response = world.simulator.handle(&request);
        assert_eq!(response.status, status, "{kind:?}");
        let code = refusal(&response).2;
        match kind.name() {
            "rate_limited_429" => {
                assert!(response.header("stripe-rate-limited-reason").is_some());
                assert_eq!(response.header("retry-after"), Some("1"));
            }
            "lock_timeout_429" => {
                assert_eq!(response.header("stripe-rate-limited-reason"), None);
                assert_eq!(code.as_deref(), Some("lock_timeout"));
            }
            "conflict_409" => assert_eq!(code.as_deref(), Some("idempotency_key_in_use")),
            _ => assert_eq!(response.json(), json!(null), "a gateway does not speak JSON"),
        }
        assert_eq!(world.simulator.accepted_events(), 0);
        assert_eq!(world.simulator.handle(&request).status, 200, "{kind:?}");
    }
}

#[test]
fn calls_under_way() {
    let mut world = World::new();
    let request = world.event("a", "5", NOON).with_key("key");
    let (first, ticket) = world.simulator.begin(&request);
    assert_eq!(first.status, 200);
    let (status, _, code, _) = refusal(&world.simulator.handle(&request));
    assert_eq!((status, code.as_deref()), (409, Some("idempotency_key_in_use")));
    // Another call of the same customer and meter has to wait; of another meter it does not.
    let other = world.event("b", "1", NOON).with_key("other");
    let response = world.simulator.handle(&other);
    assert_eq!(response.status, 429);
    assert_eq!(response.header("stripe-rate-limited-reason"), Some("endpoint-concurrency"));
    world.add_meter("bytes", "sum", None);
    let elsewhere = world.event_of("bytes", "c", "1", NOON);
    assert_eq!(world.simulator.handle(&elsewhere).status, 200);
    world.simulator.end(&ticket);
    assert_eq!(world.simulator.handle(&other).status, 200);
    let replay = world.simulator.handle(&request);
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
}

#[test]
fn version_2_executes_failures_again() {
    let mut world = World::new();
    let body = json!({
        "event_name": "calls", "identifier": "a",
        "payload": { "stripe_customer_id": world.customer, "value": "5" },
    });
    let request = SimRequest::json("/v2/billing/meter_events", &body).with_key("key");
    plan(&mut world, FaultKind::Error500NotExecuted);
    assert_eq!(world.simulator.handle(&request).status, 500);
    assert_eq!(world.simulator.handle(&request).status, 200, "executed again");
    assert_eq!(world.simulator.handle(&request).header("idempotent-replayed"), Some("true"));
    world.advance(30 * DAY - 1);
    assert_eq!(world.simulator.handle(&request).status, 200, "known for 30 days");
    assert_eq!(world.simulator.accepted_events(), 1);
    world.advance(1);
    assert_eq!(world.simulator.handle(&request).header("idempotent-replayed"), None);
    assert_eq!(world.simulator.accepted_events(), 2);
}
