//! Meters, customers and their lists; keys and unknown paths.

use super::{World, id, refusal};
use serde_json::{Value, json};
use stripe_sim::{Options, SimRequest};

#[test]
fn a_meter() {
    let mut world = World::new();
    let meter = world.meter.clone();
    let path = format!("/v1/billing/meters/{meter}");
    let shown = world.get(&path).json();
    assert!(meter.starts_with("mtr_test_"));
    assert_eq!(shown["status"], "active");
    assert_eq!(shown["customer_mapping"]["event_payload_key"], "stripe_customer_id");
    assert_eq!(shown["value_settings"]["event_payload_key"], "value");
    assert_eq!(shown["event_time_window"], Value::Null);
    assert_eq!(world.post(&path, &[("display_name", "Calls")]).json()["display_name"], "Calls");
    assert_eq!(world.post(&path, &[("event_name", "other")]).status, 400);
    let again = world.post(
        "/v1/billing/meters",
        &[("display_name", "x"), ("event_name", "calls"), ("default_aggregation[formula]", "sum")],
    );
    assert_eq!(again.status, 400, "an event name belongs to one meter");
    assert_eq!(world.post(&format!("{path}/deactivate"), &[]).json()["status"], "inactive");
    assert_eq!(world.post(&format!("{path}/deactivate"), &[]).status, 400);
    let list = world.get("/v1/billing/meters?status=inactive").json();
    assert_eq!(list["data"][0]["id"], meter.as_str());
    assert_eq!(world.get("/v1/billing/meters?status=active").json()["data"], json!([]));
    assert_eq!(world.get("/v1/billing/meters/mtr_test_no").status, 404);
}

#[test]
fn other_payload_keys() {
    let mut world = World::new();
    let customer = world.customer.clone();
    let meter = world.post(
        "/v1/billing/meters",
        &[
            ("display_name", "x"),
            ("event_name", "bytes"),
            ("default_aggregation[formula]", "sum"),
            ("customer_mapping[event_payload_key]", "who"),
            ("customer_mapping[type]", "by_id"),
            ("value_settings[event_payload_key]", "much"),
        ],
    );
    assert_eq!(meter.status, 200, "{}", meter.json());
    let event = world.post(
        "/v1/billing/meter_events",
        &[("event_name", "bytes"), ("payload[who]", &customer), ("payload[much]", "3")],
    );
    assert_eq!(event.status, 200, "{}", event.json());
}

#[test]
fn customers_and_pages() {
    let mut world = World::new();
    for number in 0..11 {
        let email = format!("{number}@example.com");
        world.post("/v1/customers", &[("email", &email), ("metadata[tenant]", "acme")]);
    }
    let mut seen = Vec::new();
    let mut target = "/v1/customers?limit=5".to_owned();
    loop {
        let page = world.get(&target).json();
        let rows = page["data"].as_array().unwrap().clone();
        seen.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        if page["has_more"] == false {
            break;
        }
        target = format!("/v1/customers?limit=5&starting_after={}", seen.last().unwrap());
    }
    assert_eq!(seen.len(), 12);
    assert!(seen.is_sorted_by(|a, b| a > b), "the latest first, each once");
    let before = world.get(&format!("/v1/customers?limit=2&ending_before={}", seen[5])).json();
    assert_eq!(before["data"][0]["id"], seen[3].as_str());
    assert_eq!(before["has_more"], true);
    assert_eq!(world.get("/v1/customers").json()["data"].as_array().unwrap().len(), 10);
    for bad in ["limit=0", "limit=101", "limit=x", "starting_after=cus_no", "page=2"] {
        assert_eq!(world.get(&format!("/v1/customers?{bad}")).status, 400, "{bad}");
    }
    let one = world.get("/v1/customers?email=3@example.com").json();
    assert_eq!(one["data"][0]["metadata"]["tenant"], "acme");
    let path = format!("/v1/customers/{}", one["data"][0]["id"].as_str().unwrap());
    world.simulator.handle(&SimRequest::new("DELETE", &path));
    assert_eq!(world.get(&path).json()["deleted"], true);
}

#[test]
fn keys_and_paths() {
    let mut world = World::with(Options { api_key: None, ..Options::default() });
    let mut check = |authorization: &str, expected: u16| {
        let request = SimRequest::get("/v1/customers").with_header("authorization", authorization);
        let response = world.simulator.handle(&request);
        assert_eq!(response.status, expected, "{authorization}");
        assert!(response.header("request-id").is_some());
    };
    check("Bearer sk_test_anything", 200);
    check("Bearer sk_live_anything", 401);
    check("", 401);
    let (status, kind, _, message) = refusal(&world.get("/v1/nothing"));
    assert_eq!((status, kind.as_str()), (404, "invalid_request_error"));
    assert!(message.contains("Unrecognized request URL (GET: /v1/nothing)"));
    let version = SimRequest::get("/v1/customers").with_header("stripe-version", "2026-01-01.x");
    assert_eq!(world.simulator.handle(&version).header("stripe-version"), Some("2026-01-01.x"));
}

#[test]
fn only_the_key_it_was_told() {
    let options = Options { api_key: Some("sk_test_simulator".to_owned()), ..Options::default() };
    let mut world = World::with(options);
    let other = SimRequest::get("/v1/customers").with_header("authorization", "Bearer sk_test_x");
    assert_eq!(world.simulator.handle(&other).status, 401);
}

#[test]
fn the_same_calls_give_the_same_ids() {
    let run = || {
        let mut world = World::new();
        id(&world.post("/v1/customers", &[]))
    };
    assert_eq!(run(), run());
}
