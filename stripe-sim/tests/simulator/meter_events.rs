//! Meter events of both versions, the stream, and their cancellation.

use super::{DAY, HOUR, NOON, World, refusal};
use serde_json::{Value, json};
use stripe_sim::{ReceivedState, SimRequest};

#[test]
fn an_event_is_counted() {
    let mut world = World::new();
    let response = world.send("id-1", "12.5", NOON - 10);
    let expected = json!({
        "object": "billing.meter_event", "created": NOON, "event_name": "calls",
        "identifier": "id-1", "livemode": false, "timestamp": NOON - 10,
        "payload": { "stripe_customer_id": world.customer, "value": "12.5" },
    });
    assert_eq!((response.status, response.json()), (200, expected));
    assert!(response.header("request-id").unwrap().starts_with("req_"));
    assert!(response.header("stripe-version").is_some());
    assert_eq!(world.exact(NOON - HOUR), "12.5");
    let received = &world.simulator.events_received()[0];
    assert_eq!((received.identifier.as_str(), received.timestamp), ("id-1", NOON - 10));
    assert_eq!(world.simulator.accepted_events(), 1);
}

#[test]
fn values() {
    let check = |value: &str, expected: Result<&str, &str>| {
        let mut world = World::new();
        let response = world.send("id", value, NOON);
        match expected {
            Ok(total) => assert_eq!((response.status, world.exact(NOON).as_str()), (200, total)),
            Err(part) => {
                let (status, kind, _, message) = refusal(&response);
                assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{value}");
                assert!(message.contains(part), "{value}: {message}");
                assert_eq!(world.simulator.accepted_events(), 0);
            }
        }
    };
    check("0", Ok("0"));
    check("-3.25", Ok("-3.25"));
    check("999999999999999", Ok("999999999999999"));
    check("0.000123456789", Ok("0.000123456789"));
    check("1.50000000000000000", Ok("1.5"));
    check("1234567890.123456", Err("15 significant digits"));
    check("1000000000000000", Err("15 significant digits"));
    check("1e3", Err("plain decimal"));
    check("abc", Err("plain decimal"));
    check("", Err("no value"));
}

#[test]
fn timestamps() {
    let check = |offset: i64, expected: Result<(), (&str, &str)>| {
        let mut world = World::new();
        let response = world.send("id", "1", NOON + offset);
        match expected {
            Ok(()) => assert_eq!(response.status, 200, "{offset}"),
            Err((code, part)) => {
                let (status, _, found, message) = refusal(&response);
                assert_eq!((status, found.as_deref()), (400, Some(code)), "{offset}");
                assert!(message.contains(part), "{message}");
            }
        }
    };
    check(-35 * DAY, Ok(()));
    check(300, Ok(()));
    let oldest = (NOON - 35 * DAY).to_string();
    check(-35 * DAY - 1, Err(("timestamp_too_far_in_past", "35 calendar days")));
    check(-35 * DAY - 1, Err(("timestamp_too_far_in_past", &oldest)));
    check(301, Err(("timestamp_in_future", "5 minutes")));
}

#[test]
fn refusals() {
    let mut world = World::new();
    let customer = world.customer.clone();
    let long = "x".repeat(101);
    let mut check = |fields: &[(&str, &str)], code: Option<&str>, part: &str| {
        let mut all = vec![
            ("event_name", "calls"),
            ("payload[stripe_customer_id]", customer.as_str()),
            ("payload[value]", "1"),
        ];
        for (name, value) in fields {
            all.retain(|(known, _)| known != name);
            all.push((name, value));
        }
        let (status, kind, found, message) = refusal(&world.post("/v1/billing/meter_events", &all));
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{fields:?}");
        assert_eq!(found.as_deref(), code, "{fields:?}");
        assert!(message.contains(part), "{message}");
    };
    check(&[("subscription", "sub_1")], Some("parameter_unknown"), "unknown parameter");
    check(&[("event_name", "")], Some("parameter_missing"), "event_name");
    check(&[("event_name", &long)], None, "at most 100");
    check(&[("identifier", &long)], None, "at most 100");
    check(&[("timestamp", "1700000000.5")], Some("parameter_invalid_integer"), "timestamp");
    check(&[("payload[value][nested]", "1")], None, "Invalid string");
    check(&[("event_name", "unknown")], None, "No active meter");
    check(
        &[("payload[stripe_customer_id]", "cus_no")],
        Some("resource_missing"),
        "No such customer",
    );
    assert_eq!(world.simulator.accepted_events(), 0);
}

#[test]
fn an_identifier_is_known_for_24_hours() {
    let mut world = World::new();
    assert_eq!(world.send("same", "5", NOON).status, 200);
    world.advance(DAY - 1);
    // Another value changes nothing: the identifier alone counts.
    let response = world.send("same", "7", NOON);
    let (status, kind, code, message) = refusal(&response);
    assert_eq!((status, kind.as_str(), code), (400, "invalid_request_error", None));
    assert!(message.starts_with("An event already exists with identifier"), "{message}");
    assert_eq!(response.header("stripe-should-retry"), Some("false"));
    assert_eq!(world.exact(NOON), "5");
    world.advance(1);
    assert_eq!(world.send("same", "5", NOON).status, 200);
    assert_eq!(world.exact(NOON), "10", "after 24 hours the same identifier counts again");
}

#[test]
fn an_inactive_meter_and_a_deleted_customer_take_nothing() {
    let mut world = World::new();
    let (meter, customer) = (world.meter.clone(), world.customer.clone());
    world.post(&format!("/v1/billing/meters/{meter}/deactivate"), &[]);
    let (status, _, code, _) = refusal(&world.send("a", "1", NOON));
    assert_eq!((status, code.as_deref()), (400, Some("archived_meter")));
    world.post(&format!("/v1/billing/meters/{meter}/reactivate"), &[]);
    assert_eq!(world.send("a", "1", NOON).status, 200);
    world.simulator.handle(&SimRequest::new("DELETE", &format!("/v1/customers/{customer}")));
    let (status, _, code, _) = refusal(&world.send("b", "1", NOON));
    assert_eq!((status, code.as_deref()), (400, Some("resource_missing")));
}

fn v2_event(world: &World, identifier: &str, value: &str) -> Value {
    json!({
        "event_name": "calls", "identifier": identifier, "timestamp": "2026-11-15T11:59:59Z",
        "payload": { "stripe_customer_id": world.customer, "value": value },
    })
}

#[test]
fn version_2() {
    let mut world = World::new();
    let request = SimRequest::json("/v2/billing/meter_events", &v2_event(&world, "a", "2"));
    let response = world.simulator.handle(&request);
    assert_eq!(response.json()["object"], "v2.billing.meter_event");
    assert_eq!(response.json()["timestamp"], "2026-11-15T11:59:59Z");
    let (status, _, _, message) = refusal(&world.simulator.handle(&request));
    assert_eq!(status, 400);
    assert!(message.starts_with("An event already exists"), "{message}");
    // One set of identifiers for both versions.
    assert_eq!(world.send("a", "2", NOON).status, 400);
    assert_eq!(world.exact(NOON - HOUR), "2");
}

#[test]
fn the_stream() {
    let mut world = World::new();
    let session = SimRequest::json("/v2/billing/meter_event_session", &json!({}));
    let session = world.simulator.handle(&session).json();
    assert_eq!(session["expires_at"], "2026-11-15T12:15:00Z");
    let token = session["authentication_token"].as_str().unwrap().to_owned();
    let stream = |events: Value, token: &str| {
        SimRequest::json("/v2/billing/meter_event_stream", &json!({ "events": events }))
            .with_header("authorization", &format!("Bearer {token}"))
    };
    let mut unknown = v2_event(&world, "c", "1");
    unknown["event_name"] = "unknown".into();
    let events = json!([
        v2_event(&world, "a", "1"),
        v2_event(&world, "a", "1"),
        v2_event(&world, "b", "1e5"),
        unknown,
    ]);
    let response = world.simulator.handle(&stream(events, &token));
    assert_eq!((response.status, response.json()), (200, json!({})));
    assert_eq!(world.exact(NOON - HOUR), "1");
    let reports = world.get("/v2/core/events?limit=2").json();
    let types: Vec<&Value> =
        reports["data"].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    let expected = ["v1.billing.meter.error_report_triggered", "v1.billing.meter.no_meter_found"];
    assert_eq!(types, expected);
    let reason = &reports["data"][0]["data"]["reason"];
    assert_eq!(reason["error_types"][0]["code"], "meter_event_invalid_value");
    assert_eq!(reason["error_types"][0]["sample_errors"][0]["request"]["identifier"], "b");

    let many: Vec<Value> = (0..101).map(|n| v2_event(&world, &format!("m{n}"), "1")).collect();
    assert_eq!(world.simulator.handle(&stream(many.into(), &token)).status, 400);
    assert_eq!(world.simulator.handle(&stream(json!([]), "token_no")).status, 401);
    world.advance(15 * 60);
    let late = stream(json!([v2_event(&world, "z", "1")]), &token);
    let (status, kind, _, _) = refusal(&world.simulator.handle(&late));
    assert_eq!((status, kind.as_str()), (400, "temporary_session_expired"));
}

#[test]
fn cancelling() {
    let mut world = World::new();
    world.send("a", "5", NOON);
    world.send("b", "7", NOON);
    let cancel = |world: &mut World, identifier: &str| {
        world.post(
            "/v1/billing/meter_event_adjustments",
            &[("event_name", "calls"), ("type", "cancel"), ("cancel[identifier]", identifier)],
        )
    };
    let response = cancel(&mut world, "a");
    assert_eq!((response.status, &response.json()["status"]), (200, &json!("pending")));
    assert_eq!(world.exact(NOON), "7");
    assert_eq!(world.simulator.events_received()[0].state, ReceivedState::Cancelled);
    assert_eq!(cancel(&mut world, "unknown").status, 400);
    world.advance(DAY);
    let (status, _, _, message) = refusal(&cancel(&mut world, "b"));
    assert_eq!(status, 400);
    assert!(message.contains("more than 24 hours ago"), "{message}");

    world.send("c", "1", NOON);
    let body = json!({
        "event_name": "calls", "type": "cancel", "cancel": { "identifier": "c" },
    });
    let request = SimRequest::json("/v2/billing/meter_event_adjustments", &body);
    assert_eq!(
        world.simulator.handle(&request).json()["object"],
        "v2.billing.meter_event_adjustment"
    );
    assert_eq!(world.exact(NOON), "7");
}
