//! Subscriptions as sagas make, change and end them.

use super::billing::{invoices, price, subscribe};
use super::{DAY, HOUR, NOON, World, id, refusal, told};
use serde_json::{Value, json};
use stripe_sim::{FaultKind, FaultPlan, FaultRule, SimRequest, SimResponse};

fn delete(world: &mut World, target: &str) -> SimResponse {
    world.simulator.handle(&SimRequest::new("DELETE", target))
}

/// Ids and prices of the items that a subscription shows.
fn items(subscription: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = subscription["items"]["data"].as_array().unwrap().iter();
    items.map(|item| (text(&item["id"]), text(&item["price"]["id"]))).collect()
}

#[test]
fn made_with_all_that_sagas_say() {
    let mut world = World::new();
    let (one, two) = (price(&mut world, "1"), price(&mut world, "2"));
    let customer = world.customer.clone();
    let fields = [
        ("customer", customer.as_str()),
        ("items[0][price]", &one),
        ("items[1][price]", &two),
        ("payment_behavior", "error_if_incomplete"),
        ("proration_behavior", "none"),
        ("metadata[app_saga]", "saga_1"),
    ];
    let made = world.post("/v1/subscriptions", &fields).json();
    assert_eq!(made["metadata"], json!({ "app_saga": "saga_1" }));
    assert_eq!(items(&made).iter().map(|item| &item.1).collect::<Vec<_>>(), [&one, &two]);
    assert_eq!((&made["status"], &made["items"]["has_more"]), (&json!("active"), &json!(false)));
    assert_eq!(told(&mut world, "customer.subscription.created")[0]["data"]["object"], made);
    assert_eq!(world.get("/_sim/subscriptions").json(), json!({ "data": [made] }));
    assert_eq!(world.simulator.subscriptions(), [made]);
}

#[test]
fn what_is_refused() {
    let mut world = World::new();
    let (one, customer) = (price(&mut world, "1"), world.customer.clone());
    let mut check = |fields: &[(&str, &str)], part: &str| {
        let mut fields = fields.to_vec();
        if !fields.iter().any(|(name, _)| *name == "customer") {
            fields.push(("customer", &customer));
        }
        let (status, _, _, message) = refusal(&world.post("/v1/subscriptions", &fields));
        assert_eq!(status, 400, "{fields:?}");
        assert!(message.contains(part), "{fields:?}: {message}");
    };
    check(&[], "items");
    check(&[("customer", "cus_none"), ("items[0][price]", &one)], "No such customer");
    check(&[("items[0][price]", "price_none")], "No such price");
    check(&[("items[0][price]", &one), ("items[1][price]", &one)], "same plan");
    check(&[("items[0][price]", &one), ("payment_behavior", "hope")], "payment_behavior");
    check(&[("items[0][price]", &one), ("proration_behavior", "some")], "proration_behavior");
    check(&[("items[0][price]", &one), ("metadata[a]", &"v".repeat(501))], "500 characters");
    assert!(world.simulator.subscriptions().is_empty());
}

#[test]
fn prices_change_and_others_keep_their_items() {
    let mut world = World::new();
    let prices: Vec<String> = (0..3).map(|_| price(&mut world, "1")).collect();
    let customer = world.customer.clone();
    let fields = [
        ("customer", customer.as_str()),
        ("items[0][price]", &prices[0]),
        ("items[1][price]", &prices[1]),
    ];
    let made = world.post("/v1/subscriptions", &fields).json();
    let before = items(&made);
    let path = format!("/v1/subscriptions/{}", made["id"].as_str().unwrap());
    let fields = [
        ("items[0][id]", before[0].0.as_str()),
        ("items[0][deleted]", "true"),
        ("items[1][price]", &prices[2]),
        ("metadata[app_saga]", "saga_2"),
    ];
    let changed = world.post(&path, &fields).json();
    let after = items(&changed);
    assert_eq!(after[0], before[1], "the item that stays is the same");
    assert_eq!((after.len(), &after[1].1), (2, &prices[2]));
    assert_ne!(after[1].0, before[0].0);
    let update = &told(&mut world, "customer.subscription.updated")[0]["data"];
    assert_eq!(update["object"], changed);
    assert_eq!(items(&update["previous_attributes"]), before);
    // A price that is there already cannot come again.
    let twice = world.post(&path, &[("items[0][price]", &prices[1])]);
    assert!(refusal(&twice).3.contains("same plan"));
    assert_eq!(world.get(&path).json(), changed);
}

#[test]
fn usage_at_a_price_that_goes_is_billed_unless_told_not_to() {
    for (proration, billed) in
        [(None, 1), (Some("create_prorations"), 1), (Some("always_invoice"), 1), (Some("none"), 0)]
    {
        let mut world = World::new();
        let subscription = subscribe(&mut world);
        let path = format!("/v1/subscriptions/{subscription}");
        let item = items(&world.get(&path).json())[0].0.clone();
        let new = price(&mut world, "2");
        world.send("a", "1000", NOON + 1);
        world.advance(DAY);
        let mut fields = vec![("items[0][id]", item.as_str()), ("items[0][price]", &new)];
        fields.extend(proration.map(|proration| ("proration_behavior", proration)));
        assert_eq!(world.post(&path, &fields).status, 200);
        assert_eq!(invoices(&mut world).len(), billed, "{proration:?}");
        world.advance(30 * DAY);
        let amounts: i64 =
            invoices(&mut world).iter().map(|invoice| invoice["total"].as_i64().unwrap()).sum();
        assert_eq!(amounts, if billed == 1 { 250 } else { 0 }, "{proration:?}");
    }
}

#[test]
fn more_items_than_it_shows() {
    let mut world = World::new();
    let prices: Vec<String> = (0..15).map(|_| price(&mut world, "1")).collect();
    let names: Vec<String> = (0..15).map(|place| format!("items[{place}][price]")).collect();
    let customer = world.customer.clone();
    let mut fields = vec![("customer", customer.as_str())];
    fields.extend(names.iter().map(String::as_str).zip(prices.iter().map(String::as_str)));
    let made = world.post("/v1/subscriptions", &fields).json();
    assert_eq!((items(&made).len(), &made["items"]["has_more"]), (10, &json!(true)));
    let id = made["id"].as_str().unwrap();
    let first = world.get(&format!("/v1/subscription_items?subscription={id}&limit=9")).json();
    assert_eq!(first["has_more"], true);
    let last = first["data"][8]["id"].as_str().unwrap();
    let rest = format!("/v1/subscription_items?subscription={id}&limit=9&starting_after={last}");
    let rest = world.get(&rest).json();
    assert_eq!(rest["has_more"], false);
    let both =
        [first["data"].as_array().unwrap().clone(), rest["data"].as_array().unwrap().clone()];
    let found: Vec<String> =
        both.concat().iter().map(|item| item["price"]["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(found, prices);
    assert_eq!(world.get("/v1/subscription_items").status, 400);
    assert_eq!(world.get("/v1/subscription_items?subscription=sub_none").status, 400);
}

#[test]
fn ended_now_with_a_last_invoice_or_without() {
    for (query, drafts) in
        [("", 0), ("?invoice_now=false", 0), ("?invoice_now=true&prorate=false", 1)]
    {
        let mut world = World::new();
        let subscription = subscribe(&mut world);
        let path = format!("/v1/subscriptions/{subscription}");
        world.send("a", "1000", NOON + 1);
        world.advance(DAY);
        let ended = delete(&mut world, &format!("{path}{query}")).json();
        assert_eq!(
            (&ended["status"], &ended["ended_at"]),
            (&json!("canceled"), &json!(NOON + DAY))
        );
        assert_eq!(told(&mut world, "customer.subscription.deleted")[0]["data"]["object"], ended);
        let made = invoices(&mut world);
        assert_eq!(made.len(), drafts, "{query}");
        if let [last] = made.as_slice() {
            assert_eq!(ended["latest_invoice"], last["id"]);
            assert_eq!(last["total"], 250);
            assert_eq!(last["period_end"], NOON + DAY);
            world.advance(HOUR);
            assert_eq!(invoices(&mut world)[0]["status"], "paid");
        }
        // It can be read and not ended again; nor is another period billed.
        let again = delete(&mut world, &format!("{path}?invoice_now=true"));
        assert_eq!((again.status, refusal(&again).2.as_deref()), (404, Some("resource_missing")));
        assert_eq!(world.get(&path).json()["status"], "canceled");
        world.advance(60 * DAY);
        assert_eq!(invoices(&mut world).len(), drafts, "{query}");
    }
    let mut world = World::new();
    let path = format!("/v1/subscriptions/{}", subscribe(&mut world));
    assert_eq!(delete(&mut world, &format!("{path}?now=true")).status, 400);
    assert_eq!(delete(&mut world, &format!("{path}?invoice_now=1")).status, 400);
    assert_eq!(world.get(&path).json()["status"], "active");
}

#[test]
fn one_that_has_ended_takes_metadata_alone() {
    let mut world = World::new();
    let path = format!("/v1/subscriptions/{}", subscribe(&mut world));
    let item = items(&world.get(&path).json())[0].0.clone();
    delete(&mut world, &path);
    for field in [
        ("cancel_at_period_end", "true"),
        ("items[0][id]", item.as_str()),
        ("proration_behavior", "none"),
    ] {
        let (status, _, _, message) = refusal(&world.post(&path, &[field]));
        assert_eq!(status, 400, "{field:?}");
        assert!(message.starts_with("A canceled subscription can only update"), "{message}");
    }
    let marked = world.post(&path, &[("metadata[note]", "x")]);
    assert_eq!((marked.status, &marked.json()["metadata"]), (200, &json!({ "note": "x" })));
    let cleared = world.post(&path, &[("metadata[note]", "")]);
    assert_eq!(cleared.json()["metadata"], json!({}));
}

#[test]
fn one_subscription_under_one_key() {
    for (kind, made) in [
        (FaultKind::LostAfter, 1),
        (FaultKind::LostBefore, 0),
        (FaultKind::Error500Executed, 1),
        (FaultKind::Error500NotExecuted, 0),
    ] {
        let mut world = World::new();
        let (price, customer) = (price(&mut world, "1"), world.customer.clone());
        let rule = FaultRule::new(kind).on_call("POST /v1/subscriptions");
        world.simulator.set_faults(FaultPlan::of_rules(vec![rule]));
        let fields = [("customer", customer.as_str()), ("items[0][price]", price.as_str())];
        let request = SimRequest::form("/v1/subscriptions", &fields).with_key("key");
        world.simulator.handle(&request);
        assert_eq!(world.simulator.subscriptions().len(), made, "{kind:?}");
        let again = world.simulator.handle(&request);
        if again.status == 500 {
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
            assert_eq!(world.simulator.subscriptions().len(), made, "{kind:?}");
        } else {
            assert_eq!(world.simulator.subscriptions()[0]["id"], id(&again).as_str());
            assert_eq!(world.simulator.subscriptions().len(), 1, "{kind:?}");
        }
    }
}

#[test]
fn a_delete_looks_at_no_key() {
    let mut world = World::new();
    let path = format!("/v1/subscriptions/{}", subscribe(&mut world));
    let rule = FaultRule::new(FaultKind::Error500Executed).on_call("DELETE /v1/subscriptions/:id");
    world.simulator.set_faults(FaultPlan::of_rules(vec![rule]));
    let request = SimRequest::new("DELETE", &path).with_key("key");
    assert_eq!(world.simulator.handle(&request).status, 500);
    assert_eq!(world.get(&path).json()["status"], "canceled");
    let again = world.simulator.handle(&request);
    assert_eq!((again.status, again.header("idempotent-replayed")), (404, None));
}
