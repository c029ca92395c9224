//! Events and their webhooks, seen from the state machine.

use super::{DAY, HOUR, NOON, World, id};
use serde_json::{Value, json};
use stripe_sim::{FaultKind, FaultPlan, FaultRule, SimRequest, sign};

fn register(world: &mut World) -> String {
    let fields = [("url", "http://127.0.0.1:9/hook"), ("enabled_events[]", "customer.created")];
    let endpoint = world.post("/v1/webhook_endpoints", &fields).json();
    endpoint["secret"].as_str().unwrap().to_owned()
}

#[test]
fn a_webhook_is_signed_and_tried_again() {
    let mut world = World::new();
    let secret = register(&mut world);
    let customer = id(&world.post("/v1/customers", &[]));
    let due = world.simulator.due_webhooks();
    assert_eq!(due.len(), 1);
    assert_eq!(world.simulator.due_webhooks(), [], "it is under way");
    assert_eq!(due[0].signature, sign(&secret, NOON, &due[0].body));
    let event: Value = serde_json::from_str(&due[0].body).unwrap();
    assert_eq!(event["data"]["object"]["id"], customer.as_str());

    let pending = |world: &mut World| {
        let list = world.get("/v1/events?type=customer.created&delivery_success=false").json();
        list["data"].as_array().unwrap().len()
    };
    // A redirect is a failure, and so is no answer.
    let mut pauses = Vec::new();
    let mut delivery = due[0].delivery;
    for status in [Some(302), None, Some(500)] {
        world.simulator.webhook_answered(delivery, status);
        let mut waited = 0;
        let next = loop {
            world.advance(60);
            waited += 60;
            if let Some(next) = world.simulator.due_webhooks().pop() {
                break next;
            }
        };
        assert_ne!(next.signature, due[0].signature, "signed anew");
        assert_eq!(next.body, due[0].body);
        delivery = next.delivery;
        pauses.push(waited);
    }
    assert_eq!(pauses, [60, 240, 960]);
    assert_eq!(pending(&mut world), 1);
    world.simulator.webhook_answered(delivery, Some(204));
    assert_eq!(pending(&mut world), 0);
    world.advance(DAY);
    assert_eq!(world.simulator.due_webhooks(), []);
}

#[test]
fn it_gives_up_after_three_days() {
    let mut world = World::new();
    register(&mut world);
    world.post("/v1/customers", &[]);
    let mut attempts = 0;
    for _ in 0..(5 * 24) {
        for webhook in world.simulator.due_webhooks() {
            attempts += 1;
            world.simulator.webhook_answered(webhook.delivery, Some(500));
        }
        world.advance(HOUR);
    }
    assert!((8..16).contains(&attempts), "{attempts}");
}

#[test]
fn thin_webhooks_carry_no_data() {
    let mut world = World::new();
    let body = json!({
        "name": "thin", "type": "webhook_endpoint", "event_payload": "thin",
        "enabled_events": ["v1.billing.meter.error_report_triggered"],
        "webhook_endpoint": { "url": "http://127.0.0.1:9/hook" },
        "include": ["webhook_endpoint.signing_secret"],
    });
    let made = world.simulator.handle(&SimRequest::json("/v2/core/event_destinations", &body));
    let secret = made.json()["webhook_endpoint"]["signing_secret"].as_str().unwrap().to_owned();
    let rule = FaultRule::new(FaultKind::AsyncRejection).on_path("meter_events");
    world.simulator.set_faults(FaultPlan::of_rules(vec![rule]));
    world.send("a", "1", NOON);
    let due = world.simulator.due_webhooks();
    assert_eq!(due[0].signature, sign(&secret, NOON, &due[0].body));
    let thin: Value = serde_json::from_str(&due[0].body).unwrap();
    assert_eq!(thin["object"], "v2.core.event");
    assert!(thin.get("data").is_none());
    let fetched = world.get(&format!("/v2/core/events/{}", thin["id"].as_str().unwrap())).json();
    assert_eq!(fetched["data"]["reason"]["error_count"], 1);
    world.advance(30 * DAY + 1);
    let path = format!("/v2/core/events/{}", thin["id"].as_str().unwrap());
    assert_eq!(world.get(&path).status, 404, "gone after 30 days");
}

#[test]
fn duplicated_and_overtaken() {
    let count = |kind: FaultKind, later: i64| {
        let mut world = World::new();
        register(&mut world);
        world.simulator.set_faults(FaultPlan::seeded(1, 1_000, &[kind]));
        world.post("/v1/customers", &[]);
        let at_once = world.simulator.due_webhooks().len();
        world.advance(later);
        (at_once, world.simulator.due_webhooks().len())
    };
    assert_eq!(count(FaultKind::WebhookDuplicated, 120), (2, 0));
    assert_eq!(count(FaultKind::WebhookDelayed, 120), (0, 1));
}

#[test]
fn twins_name_each_other() {
    let mut world = World::new();
    let snapshot = world.get("/v1/events?type=billing.meter.created").json()["data"][0].clone();
    let thin = world.get("/v2/core/events?types[]=v1.billing.meter.created").json();
    assert_eq!(thin["data"][0]["snapshot_event"], snapshot["id"]);
    assert_eq!(
        thin["data"][0]["related_object"]["url"],
        format!("/v1/billing/meters/{}", world.meter)
    );
    let of_object = world.get(&format!("/v2/core/events?object_id={}", world.customer)).json();
    assert_eq!(of_object["data"][0]["type"], "v1.customer.created");
    let none = world.get(&format!("/v1/events?created[gt]={NOON}")).json();
    assert_eq!(none["data"], json!([]));
}
