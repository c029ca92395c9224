//! Usage that no client sent, usage that is lost, deleted customers, and keys in two spellings.

use super::{DAY, HOUR, NOON, World, id, refusal, seconds};
use serde_json::{Value, json};
use stripe_sim::{CustomerCheck, Decimal, ForeignUsage, ReceivedState, SimRequest, SimResponse};

fn tell(world: &mut World, path: &str, body: Value) -> SimResponse {
    world.simulator.handle(&SimRequest::json(path, &body))
}

#[test]
fn recorded_by_others_and_lost() {
    let mut world = World::new();
    let customer = world.customer.clone();
    world.send("ours", "5", NOON - 1);
    let body = json!({
        "customer": customer, "event_name": "calls", "value": "2.5", "timestamp": NOON - 2,
    });
    let recorded = tell(&mut world, "/_sim/meter_events", body).json();
    let foreign = recorded["identifier"].as_str().unwrap().to_owned();
    world.simulator.record_usage(ForeignUsage {
        customer: customer.clone(),
        event_name: "calls".to_owned(),
        value: Decimal::ONE,
        timestamp: seconds(NOON - 3),
        identifier: Some("named".to_owned()),
    });
    let mut check = |expected: f64, exact: &str| {
        let query = format!("start_time={}&end_time={NOON}", NOON - HOUR);
        let row = world.summaries(&query).json()["data"][0].clone();
        assert_eq!(row["aggregated_value"], expected);
        assert_eq!(world.exact(NOON - HOUR), exact);
    };
    check(8.5, "8.5");
    let lose = |world: &mut World, identifier: &str| {
        tell(world, "/_sim/meter_events/lose", json!({ "identifier": identifier })).status
    };
    assert_eq!(lose(&mut world, "ours"), 200);
    assert_eq!(lose(&mut world, "ours"), 400, "it is gone already");
    assert_eq!(lose(&mut world, "unknown"), 400);
    assert_eq!(world.exact(NOON - HOUR), "3.5");
    assert_eq!(world.simulator.events_received()[0].state, ReceivedState::Lost);
    assert_eq!(world.send("ours", "5", NOON - 1).status, 400, "its identifier stays taken");
    assert!(world.simulator.lose_usage(&foreign));
    assert!(world.simulator.lose_usage("named"));
    assert_eq!(world.exact(NOON - HOUR), "0");
    let state = world.get("/_sim/state").json();
    assert_eq!((&state["events"]["lost"], &state["events"]["accepted"]), (&json!(3), &json!(0)));
    let unknown = json!({ "customer": customer, "event_name": "no", "value": "1" });
    assert_eq!(tell(&mut world, "/_sim/meter_events", unknown).status, 400);
    let calls = world.simulator.calls().keys().filter(|path| path.contains("_sim")).count();
    assert_eq!(calls, 0, "nobody called");
}

#[test]
fn a_deleted_customer() {
    let mut world = World::new();
    let customer = world.customer.clone();
    let path = format!("/v1/customers/{customer}");
    world.simulator.handle(&SimRequest::new("DELETE", &path));
    let deleted = json!({ "id": customer, "object": "customer", "deleted": true });
    assert_eq!(world.get(&path).json(), deleted);
    let told = world.get("/v1/events?type=customer.deleted").json();
    assert_eq!(told["data"][0]["data"]["object"]["id"], customer.as_str());

    let (status, _, code, message) = refusal(&world.send("a", "1", NOON));
    assert_eq!((status, code.as_deref()), (400, Some("resource_missing")));
    assert!(message.contains("No such customer"), "{message}");
    let reports = "/v2/core/events?types=v1.billing.meter.error_report_triggered";
    assert_eq!(world.get(reports).json()["data"], json!([]));

    let set = tell(&mut world, "/_sim/customer_check", json!({ "asynchronous": true }));
    assert_eq!(set.status, 200);
    assert_eq!(world.send("a", "1", NOON).status, 200);
    assert_eq!(world.simulator.accepted_events(), 0);
    assert_eq!(world.simulator.events_received()[0].state, ReceivedState::Dropped);
    let report = world.get(reports).json()["data"][0].clone();
    assert_eq!(report["related_object"]["id"], world.meter.as_str());
    let error = &report["data"]["reason"]["error_types"][0];
    assert_eq!(error["code"], "meter_event_customer_not_found");
    assert_eq!(error["sample_errors"][0]["request"]["identifier"], "a");
    assert_eq!(world.send("b", "x", NOON).status, 400, "what else is wrong is said at once");

    world.simulator.set_customer_check(CustomerCheck::Synchronous);
    assert_eq!(world.send("c", "1", NOON).status, 400);
}

#[test]
fn keys_as_bearer_and_as_user_name() {
    let mut world = World::new();
    let mut check = |authorization: &str, status: u16| {
        let request = SimRequest::get("/v1/customers").with_header("authorization", authorization);
        assert_eq!(world.simulator.handle(&request).status, status, "{authorization}");
    };
    check("Bearer sk_test_x", 200);
    // sk_test_x: and sk_test_x, then sk_live_x: and what is none.
    check("Basic c2tfdGVzdF94Og==", 200);
    check("Basic c2tfdGVzdF94", 200);
    check("Basic c2tfbGl2ZV94Og==", 401);
    check("Basic ?", 401);
    check("sk_test_x", 401);
}

#[test]
fn two_thousand_customers_in_a_hundred_thousand_events() {
    let mut world = World::new();
    let customers: Vec<String> =
        (0..2_000).map(|_| id(&world.post("/v1/customers", &[]))).collect();
    for number in 0..100_000usize {
        let hours = i64::try_from(number / 2_000 % 48).unwrap();
        world.simulator.record_usage(ForeignUsage {
            customer: customers[number % 2_000].clone(),
            event_name: "calls".to_owned(),
            value: Decimal::ONE,
            timestamp: seconds(NOON - hours * HOUR - 1),
            identifier: None,
        });
    }
    let meter = world.meter.clone();
    let window = format!("start_time={}&end_time={NOON}", NOON - 2 * DAY);
    for customer in &customers {
        let target = format!(
            "/v1/billing/meters/{meter}/event_summaries?customer={customer}&{window}\
             &value_grouping_window=hour&limit=100"
        );
        let rows = world.get(&target).json()["data"].as_array().unwrap().len();
        assert_eq!(rows, 48, "{customer}");
    }
}
