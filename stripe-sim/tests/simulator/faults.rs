//! Accidents by rule and by seed, seen from the state machine.

use super::{NOON, World, seconds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use stripe_sim::{
    FaultKind, FaultPlan, FaultRule, Options, ReceivedState, SimRequest, Simulator, Transport,
};

#[test]
fn what_is_executed_and_what_arrives() {
    let check = |kind: FaultKind, transport: Transport, status: u16, counted: &str| {
        let mut world = World::new();
        world.simulator.set_faults(FaultPlan::of_rules(vec![FaultRule::new(kind)]));
        let response = world.send("a", "5", NOON);
        assert_eq!((response.transport, response.status), (transport, status), "{kind:?}");
        let cut = [Transport::Closed, Transport::Silent, Transport::Half].contains(&transport);
        assert_eq!(response.arrives(), !cut, "{kind:?}");
        assert_eq!(world.exact(NOON), counted, "{kind:?}");
        assert_eq!(world.simulator.faults_injected(), &BTreeMap::from([(kind, 1)]));
        assert_eq!(world.send("b", "1", NOON).transport, Transport::Whole, "only once");
    };
    check(FaultKind::LostBefore, Transport::Closed, 0, "0");
    check(FaultKind::HangBefore, Transport::Silent, 0, "0");
    check(FaultKind::LostAfter, Transport::Closed, 200, "5");
    check(FaultKind::HangAfter, Transport::Silent, 200, "5");
    check(FaultKind::ResetMidBody, Transport::Half, 200, "5");
    check(FaultKind::SlowBytes, Transport::Trickle, 200, "5");
    check(FaultKind::Delayed, Transport::Delayed, 200, "5");
    check(FaultKind::Garbage200, Transport::Whole, 200, "5");
    check(FaultKind::Error500Executed, Transport::Whole, 500, "5");
    check(FaultKind::Error500NotExecuted, Transport::Whole, 500, "0");
    check(FaultKind::Error503, Transport::Whole, 503, "0");
    check(FaultKind::AsyncRejection, Transport::Whole, 200, "0");
}

#[test]
fn a_dropped_event_is_reported() {
    let mut world = World::new();
    let mut plan = FaultPlan::of_rules(vec![FaultRule::new(FaultKind::AsyncRejection)]);
    plan.rejection_code = "meter_event_invalid_value".to_owned();
    world.simulator.set_faults(plan);
    world.advance(3);
    assert_eq!(world.send("a", "5", NOON).status, 200);
    assert_eq!(world.simulator.events_received()[0].state, ReceivedState::Dropped);
    assert_eq!(world.send("a", "5", NOON).status, 400, "its identifier was received");
    let types = "types[]=v1.billing.meter.error_report_triggered";
    let list = world.get(&format!("/v2/core/events?{types}")).json();
    let event = &list["data"][0];
    assert_eq!(event["related_object"]["id"], world.meter.as_str());
    assert_eq!(event["data"]["validation_start"], "2026-11-15T12:00:00Z");
    assert_eq!(event["data"]["validation_end"], "2026-11-15T12:00:10Z");
    let error = &event["data"]["reason"]["error_types"][0];
    assert_eq!(error["code"], "meter_event_invalid_value");
    assert_eq!(error["sample_errors"][0]["request"]["identifier"], "a");
    let one = world.get(&format!("/v2/core/events/{}", event["id"].as_str().unwrap()));
    assert_eq!(one.json()["data"], event["data"]);
}

#[test]
fn rules_match_what_they_say() {
    let mut world = World::new();
    let other = super::id(&world.post("/v1/customers", &[]));
    let mut rule = FaultRule::new(FaultKind::Error503).on_path("meter_events").times(2);
    rule.customer = Some(world.customer.clone());
    rule.event_name = Some("calls".to_owned());
    rule.nth = 2;
    world.simulator.set_faults(FaultPlan::of_rules(vec![rule]));
    let mut statuses = Vec::new();
    for number in 0..4 {
        let status = world.send(&format!("id-{number}"), "1", NOON).status;
        statuses.push(status);
        let free = world.post(
            "/v1/billing/meter_events",
            &[
                ("event_name", "calls"),
                ("payload[stripe_customer_id]", &other),
                ("payload[value]", "1"),
            ],
        );
        assert_eq!(free.status, 200);
        assert_eq!(world.get("/v1/customers").status, 200);
    }
    assert_eq!(statuses, [200, 503, 503, 200]);
}

#[test]
fn a_seed_decides_by_call_and_not_by_order() {
    let run = |turned: bool| {
        let mut world = World::new();
        let mut plan = FaultPlan::seeded(42, 50, &FaultKind::ALL);
        plan.paths = vec!["meter_events".to_owned()];
        world.simulator.set_faults(plan);
        let mut order: Vec<u32> = (0..200).collect();
        if turned {
            order.reverse();
        }
        let mut seen = BTreeMap::new();
        for number in order {
            let identifier = format!("id-{number}");
            for attempt in 0..3 {
                let request = world.event(&identifier, "1", NOON);
                let key = format!("{identifier}-{attempt}");
                let response = world.simulator.handle(&request.with_key(&key));
                seen.insert(key, (response.status, format!("{:?}", response.transport)));
            }
        }
        (seen, world.exact(NOON), world.simulator.faults_injected().clone())
    };
    let (forwards, backwards) = (run(false), run(true));
    assert_eq!(forwards, backwards);
    assert!(forwards.2.len() > 10, "many kinds were met: {:?}", forwards.2);
}

#[test]
fn inspection() {
    let mut simulator = Simulator::new(seconds(NOON), Options::default());
    let post = |simulator: &mut Simulator, path: &str, body: Value| {
        simulator.handle(&SimRequest::json(path, &body))
    };
    let moved = post(&mut simulator, "/_sim/clock", json!({ "now": "2026-11-16T00:00:00Z" }));
    assert_eq!(moved.json()["clock"], "2026-11-16T00:00:00Z");
    let moved = post(&mut simulator, "/_sim/clock", json!({ "advance_seconds": 60 }));
    assert_eq!(moved.json()["clock"], "2026-11-16T00:01:00Z");
    assert_eq!(post(&mut simulator, "/_sim/clock", json!({ "now": "tomorrow" })).status, 400);
    let plan = json!({ "rules": [{ "kind": "error_503", "path": "/v1/customers" }] });
    assert_eq!(post(&mut simulator, "/_sim/faults", plan).status, 200);
    assert_eq!(post(&mut simulator, "/_sim/faults", json!({ "rule": [] })).status, 400);
    assert_eq!(simulator.handle(&SimRequest::form("/v1/customers", &[])).status, 503);
    assert_eq!(simulator.handle(&SimRequest::form("/v1/customers", &[])).status, 200);

    let mut world = World::new();
    world.send("a", "0.1", NOON + 5);
    world.send("b", "0.2", NOON + 5);
    let state = world.get("/_sim/state").json();
    let expected = json!([{
        "customer": world.customer, "event_name": "calls", "hour": "2026-11-15T12:00:00Z",
        "total": "0.3",
    }]);
    assert_eq!(state["totals"], expected);
    assert_eq!(state["events"]["accepted"], 2);
    assert_eq!(state["customers"], json!([world.customer]));
    assert_eq!(state["calls"]["POST /v1/billing/meter_events"], 2);
    post(&mut world.simulator, "/_sim/reset", json!({}));
    assert_eq!(world.get("/_sim/state").json()["customers"], json!([]));
}
