//! Lists of events in both styles, what they say of changes, and webhooks that are lost, out of
//! order, or many.

use super::{DAY, NOON, World, id};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use stripe_sim::{FaultKind, FaultPlan, SimRequest};

fn ids(list: &Value) -> Vec<String> {
    let rows = list["data"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// A world in which five customers were made, one every ten seconds from ten seconds after noon.
fn five_customers() -> (World, Vec<String>) {
    let mut world = World::new();
    let mut customers = Vec::new();
    for _ in 0..5 {
        world.advance(10);
        customers.push(id(&world.post("/v1/customers", &[])));
    }
    (world, customers)
}

#[test]
fn snapshots_by_time_and_type() {
    let (mut world, customers) = five_customers();
    let mut check = |query: &str, expected: &[usize]| {
        let list = world.get(&format!("/v1/events?{query}")).json();
        let rows = list["data"].as_array().unwrap();
        let found: Vec<&Value> = rows.iter().map(|event| &event["data"]["object"]["id"]).collect();
        let expected: Vec<&String> = expected.iter().map(|place| &customers[*place]).collect();
        assert_eq!(found, expected, "{query}");
    };
    let at = |number: i64| NOON + 10 * number;
    check(&format!("created[gte]={}", at(4)), &[4, 3]);
    check(&format!("created[gt]={}", at(4)), &[4]);
    check(&format!("created[gte]={}&created[lt]={}", at(2), at(4)), &[2, 1]);
    check(&format!("created[gt]={}&created[gte]={}", at(3), at(1)), &[4, 3]);
    check(&format!("created[gt]={NOON}&created[lte]={}", at(1)), &[0]);
    check(&format!("created={}", at(3)), &[2]);
    let types = "types[]=customer.created&types[]=customer.deleted";
    check(&format!("{types}&created[gt]={NOON}&limit=2"), &[4, 3]);
    check(&format!("types[0]=customer.*&created[gte]={}", at(5)), &[4]);
    check(&format!("types[]=invoice.paid&created[gt]={NOON}"), &[]);
}

#[test]
fn snapshots_page_after_page_while_others_come() {
    let (mut world, _) = five_customers();
    let all = ids(&world.get(&format!("/v1/events?created[gt]={NOON}&limit=100")).json());
    let mut found = Vec::new();
    loop {
        let after =
            found.last().map_or(String::new(), |id: &String| format!("&starting_after={id}"));
        let list = world.get(&format!("/v1/events?created[gt]={NOON}&limit=2{after}")).json();
        found.extend(ids(&list));
        world.post("/v1/customers", &[]);
        if list["has_more"] == false {
            break;
        }
    }
    assert_eq!(found, all);
}

#[test]
fn thin_events_by_time_keep_their_filters() {
    let (mut world, customers) = five_customers();
    let gone = SimRequest::new("DELETE", &format!("/v1/customers/{}", customers[0]));
    world.simulator.handle(&gone);
    let mut target = "/v2/core/events?limit=2&types=v1.customer.created&types=v1.invoice.paid\
                      &created[gte]=2026-11-15T12:00:20Z&created[lt]=2026-11-15T13%3A00%3A50%2B01:00"
        .to_owned();
    let mut found = Vec::new();
    let mut pages = 0;
    loop {
        let list = world.get(&target).json();
        for event in list["data"].as_array().unwrap_or_else(|| panic!("{list}")) {
            assert_eq!(event["type"], "v1.customer.created");
            found.push(event["related_object"]["id"].as_str().unwrap().to_owned());
        }
        pages += 1;
        world.post("/v1/customers", &[]);
        match list["next_page_url"].as_str() {
            Some(next) => target = next.to_owned(),
            None => break,
        }
    }
    let expected: Vec<String> = customers[1..4].iter().rev().cloned().collect();
    assert_eq!((pages, found), (2, expected));
    let of_one = world.get(&format!("/v2/core/events?object_id={}", customers[0])).json();
    assert_eq!(of_one["data"][0]["type"], "v1.customer.deleted");
    assert_eq!(world.get("/v2/core/events?created[gte]=1794744000").status, 400);
    assert_eq!(world.get("/v2/core/events?created[after]=2026-11-15T12:00:20Z").status, 400);
}

#[test]
fn every_update_says_what_was_there_before() {
    let mut world = World::new();
    let (customer, meter) = (world.customer.clone(), world.meter.clone());
    let grant = [
        ("customer", customer.as_str()),
        ("amount[type]", "monetary"),
        ("amount[monetary][currency]", "usd"),
        ("amount[monetary][value]", "100"),
        ("applicability_config[scope][price_type]", "metered"),
    ];
    let grant = id(&world.post("/v1/billing/credit_grants", &grant));
    world.advance(60);
    let expires = (NOON + DAY).to_string();
    let cases = [
        (format!("/v1/customers/{customer}"), ("name", "Ada"), json!({ "name": null })),
        (
            format!("/v1/billing/meters/{meter}"),
            ("display_name", "Calls"),
            json!({ "display_name": "calls", "updated": NOON }),
        ),
        (
            format!("/v1/billing/credit_grants/{grant}"),
            ("expires_at", expires.as_str()),
            json!({ "expires_at": null, "updated": NOON }),
        ),
        (
            format!("/v1/billing/credit_grants/{grant}/expire"),
            ("expand[]", "customer"),
            json!({ "expires_at": NOON + DAY }),
        ),
    ];
    for (path, field, expected) in cases {
        assert_eq!(world.post(&path, &[field]).status, 200, "{path}");
        let event = world.get("/v1/events?limit=1").json()["data"][0].clone();
        assert!(event["type"].as_str().unwrap().ends_with(".updated"), "{event}");
        assert_eq!(event["data"]["previous_attributes"], expected, "{path}");
    }
    let made = world.get("/v1/events?type=billing.credit_grant.created").json();
    assert_eq!(made["data"][0]["data"]["object"]["id"], grant.as_str());
}

fn listen(world: &mut World) {
    let fields = [("url", "http://127.0.0.1:9/hook"), ("enabled_events[]", "customer.created")];
    assert_eq!(world.post("/v1/webhook_endpoints", &fields).status, 200);
}

/// The customers that due webhooks tell of; all are answered with 200.
fn deliver(world: &mut World) -> Vec<String> {
    let due = world.simulator.due_webhooks();
    let customers = due.iter().map(|webhook| {
        let event: Value = serde_json::from_str(&webhook.body).unwrap();
        event["data"]["object"]["id"].as_str().unwrap().to_owned()
    });
    let customers = customers.collect();
    for webhook in due {
        world.simulator.webhook_answered(webhook.delivery, Some(200));
    }
    customers
}

#[test]
fn lost_for_ever() {
    let run = || {
        let mut world = World::new();
        listen(&mut world);
        world.simulator.set_faults(FaultPlan::seeded(3, 300, &[FaultKind::WebhookLost]));
        let made: BTreeSet<String> =
            (0..100).map(|_| id(&world.post("/v1/customers", &[]))).collect();
        let mut arrived = BTreeSet::new();
        for _ in 0..5 {
            arrived.extend(deliver(&mut world));
            world.advance(DAY);
        }
        let lost = world.simulator.faults_injected()[&FaultKind::WebhookLost];
        assert!((15..45).contains(&lost), "{lost}");
        assert_eq!(made.len() - arrived.len(), usize::try_from(lost).unwrap());
        let list = world.get("/v1/events?type=customer.created&limit=100").json();
        assert_eq!(ids(&list).len(), 100, "all of them are listed");
        let missed = "type=customer.created&limit=100&delivery_success=false";
        let missed = ids(&world.get(&format!("/v1/events?{missed}")).json());
        assert_eq!(missed.len(), usize::try_from(lost).unwrap());
        assert_eq!(world.simulator.webhooks_outstanding(), 0);
        arrived
    };
    assert_eq!(run(), run(), "a seed loses the same");
}

#[test]
fn out_of_order() {
    let run = |seed: u64, shuffled: bool| {
        let mut world = World::new();
        listen(&mut world);
        let plan = FaultPlan { seed, webhooks_shuffled: shuffled, ..FaultPlan::default() };
        world.simulator.set_faults(plan);
        let made: Vec<String> = (0..20).map(|_| id(&world.post("/v1/customers", &[]))).collect();
        let arrived = deliver(&mut world);
        assert_eq!(arrived.iter().collect::<BTreeSet<_>>(), made.iter().collect());
        (made == arrived, arrived)
    };
    assert!(run(1, false).0, "in order unless told otherwise");
    assert!(!run(1, true).0);
    assert_eq!(run(1, true), run(1, true));
    assert_ne!(run(1, true), run(2, true));
}

#[test]
fn tens_of_thousands() {
    let mut world = World::new();
    listen(&mut world);
    for _ in 0..20_000 {
        world.post("/v1/customers", &[]);
    }
    let mut arrived = 0;
    while world.simulator.webhooks_outstanding() > 0 {
        let due = world.simulator.due_webhooks_max(10);
        assert!(due.len() <= 10);
        assert_eq!(world.simulator.due_webhooks_max(10), [], "ten are under way");
        for webhook in due {
            arrived += 1;
            world.simulator.webhook_answered(webhook.delivery, Some(200));
        }
    }
    assert_eq!(arrived, 20_000);
    let missed = world.get("/v1/events?delivery_success=false").json();
    assert_eq!(missed["data"], json!([]));
    let first = world.get("/v1/events?limit=1").json()["data"][0]["id"].clone();
    assert_eq!(world.get(&format!("/v1/events/{}", first.as_str().unwrap())).status, 200);
}
