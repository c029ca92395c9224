//! Trials, changes of prices, statuses and lists of subscriptions.

use super::billing::{invoices, price, subscribe};
use super::{DAY, HOUR, NOON, World, id, told};
use serde_json::{Value, json};
use stripe_sim::{PaymentOutcome, SimRequest};

fn updates(world: &mut World) -> Vec<Value> {
    let told = told(world, "customer.subscription.updated");
    told.iter().map(|event| event["data"]["previous_attributes"].clone()).collect()
}

fn shown(world: &mut World, subscription: &str) -> Value {
    world.get(&format!("/v1/subscriptions/{subscription}")).json()
}

#[test]
fn a_trial_is_a_first_period_that_costs_nothing() {
    let end = (NOON + 14 * DAY).to_string();
    for (name, value) in [("trial_end", end.as_str()), ("trial_period_days", "14")] {
        let mut world = World::new();
        let price = price(&mut world, "0.25");
        let customer = world.customer.clone();
        let fields =
            [("customer", customer.as_str()), ("items[0][price]", price.as_str()), (name, value)];
        let made = world.post("/v1/subscriptions", &fields).json();
        assert_eq!(made["status"], "trialing", "{made}");
        assert_eq!(made["trial_start"], NOON);
        assert_eq!(made["trial_end"], NOON + 14 * DAY);
        assert_eq!(made["items"]["data"][0]["current_period_end"], NOON + 14 * DAY);
        world.send("in-trial", "1000", NOON + 1);
        world.advance(14 * DAY);
        let subscription = shown(&mut world, made["id"].as_str().unwrap());
        assert_eq!(subscription["status"], "active");
        assert_eq!(subscription["items"]["data"][0]["current_period_start"], NOON + 14 * DAY);
        let before = updates(&mut world);
        assert_eq!((before.len(), &before[0]["status"]), (1, &json!("trialing")));
        let old_item = &before[0]["items"]["data"][0];
        assert_eq!(old_item["current_period_end"], NOON + 14 * DAY);
        assert_eq!(subscription["latest_invoice"], invoices(&mut world)[0]["id"]);

        world.send("after-trial", "40", NOON + 14 * DAY);
        world.advance(HOUR);
        let free = invoices(&mut world)[0].clone();
        assert_eq!((&free["status"], &free["total"]), (&json!("paid"), &json!(0)));
        assert_eq!(free["attempt_count"], 0);
        assert_eq!(free["lines"]["data"][0]["quantity_decimal"], "0");
        world.advance(31 * DAY);
        let first = invoices(&mut world)[0].clone();
        assert_eq!(first["lines"]["data"][0]["quantity_decimal"], "40");
        assert_eq!(first["period_start"], NOON + 14 * DAY);
    }
}

#[test]
fn an_anchor_begins_with_a_short_period_that_is_billed() {
    let mut world = World::new();
    let price = price(&mut world, "1");
    let customer = world.customer.clone();
    let anchor = (NOON + HOUR).to_string();
    let fields = [
        ("customer", customer.as_str()),
        ("items[0][price]", price.as_str()),
        ("billing_cycle_anchor", anchor.as_str()),
    ];
    let made = world.post("/v1/subscriptions", &fields).json();
    assert_eq!(
        (&made["status"], &made["billing_cycle_anchor"]),
        (&json!("active"), &json!(NOON + HOUR))
    );
    let item = &made["items"]["data"][0];
    assert_eq!(item["current_period_start"], NOON);
    assert_eq!(item["current_period_end"], NOON + HOUR);
    world.advance(HOUR - 60);
    world.send("before", "3", NOON + HOUR - 1);
    world.send("after", "40", NOON + HOUR);
    world.advance(HOUR + 60);
    let first = invoices(&mut world)[0].clone();
    assert_eq!(first["lines"]["data"][0]["quantity_decimal"], "3");
    assert_eq!((&first["period_start"], &first["period_end"]), (&json!(NOON), &json!(NOON + HOUR)));
    let next = shown(&mut world, made["id"].as_str().unwrap());
    assert_eq!(next["items"]["data"][0]["current_period_start"], NOON + HOUR);
    world.advance(32 * DAY);
    assert_eq!(invoices(&mut world)[0]["lines"]["data"][0]["quantity_decimal"], "40");
}

#[test]
fn anchors_that_cannot_be() {
    let mut world = World::new();
    let price = price(&mut world, "1");
    let customer = world.customer.clone();
    let (past, far) = (NOON.to_string(), (NOON + 40 * DAY).to_string());
    let mut check = |fields: &[(&str, &str)]| {
        let own = [("customer", customer.as_str()), ("items[0][price]", price.as_str())];
        let refused = world.post("/v1/subscriptions", &[&own[..], fields].concat());
        assert_eq!(refused.status, 400, "{}", refused.json());
        assert_eq!(refused.json()["error"]["param"], "billing_cycle_anchor");
    };
    check(&[("billing_cycle_anchor", &past)]);
    check(&[("billing_cycle_anchor", &far)]);
    let soon = (NOON + HOUR).to_string();
    check(&[("billing_cycle_anchor", &soon), ("trial_period_days", "3")]);
}

#[test]
fn trials_that_cannot_be() {
    let mut world = World::new();
    let price = price(&mut world, "1");
    let customer = world.customer.clone();
    let past = NOON.to_string();
    for extra in [
        vec![("trial_end", past.as_str())],
        vec![("trial_period_days", "0")],
        vec![("trial_period_days", "1"), ("trial_end", "1999999999")],
    ] {
        let mut fields = vec![("customer", customer.as_str()), ("items[0][price]", &price)];
        fields.extend(extra);
        assert_eq!(world.post("/v1/subscriptions", &fields).status, 400, "{fields:?}");
    }
}

/// Subscribes, uses 100, changes to twice the price, uses 10; returns quantities and amounts of
/// all lines, the earliest first.
fn replace_price(mode: &str) -> Vec<(Value, Value, Value)> {
    let mut world = World::new();
    let (old, new) = (price(&mut world, "1"), price(&mut world, "2"));
    let customer = world.customer.clone();
    let fields =
        [("customer", customer.as_str()), ("items[0][price]", &old), ("billing_mode[type]", mode)];
    let made = world.post("/v1/subscriptions", &fields).json();
    let item = made["items"]["data"][0]["id"].as_str().unwrap().to_owned();
    world.send("a", "100", NOON + 1);
    world.advance(DAY);
    let path = format!("/v1/subscriptions/{}", made["id"].as_str().unwrap());
    let fields = [("items[0][id]", item.as_str()), ("items[0][price]", &new)];
    let changed = world.post(&path, &fields).json();
    assert_eq!(changed["items"]["data"][0]["price"]["id"], new.as_str());
    assert_eq!(changed["items"]["data"][0]["id"], item.as_str(), "the item stays");
    let before = updates(&mut world);
    assert_eq!(before[0]["items"]["data"][0]["price"]["id"], old.as_str());
    assert_eq!(before[0].get("status"), None, "what did not change is not said");
    world.send("b", "10", NOON + DAY + 1);
    world.advance(30 * DAY);
    let mut all = invoices(&mut world);
    all.reverse();
    let lines = all.iter().map(|invoice| &invoice["lines"]["data"][0]);
    lines
        .map(|line| {
            let price = &line["pricing"]["price_details"]["price"];
            assert!([old.as_str(), new.as_str()].contains(&price.as_str().unwrap()));
            (line["quantity_decimal"].clone(), line["amount"].clone(), line["period"].clone())
        })
        .collect()
}

#[test]
fn a_price_is_replaced() {
    let end = NOON + 30 * DAY;
    let new = (json!("10"), json!(20), json!({ "start": NOON + DAY, "end": end }));
    let old = (json!("100"), json!(100), json!({ "start": NOON, "end": NOON + DAY }));
    assert_eq!(replace_price("flexible"), [old, new.clone()], "old usage is billed at once");
    assert_eq!(replace_price("classic"), [new], "old usage is dropped");
}

#[test]
fn changes_of_items_that_cannot_be() {
    let mut world = World::new();
    let subscription = subscribe(&mut world);
    let path = format!("/v1/subscriptions/{subscription}");
    let item = shown(&mut world, &subscription)["items"]["data"][0]["id"].clone();
    let item = item.as_str().unwrap();
    let mut check = |fields: &[(&str, &str)]| {
        assert_eq!(world.post(&path, fields).status, 400, "{fields:?}");
    };
    check(&[("items[0][id]", "si_no"), ("items[0][price]", "price_no")]);
    check(&[("items[0][id]", item), ("items[0][price]", "price_no")]);
    check(&[("items[0][id]", item), ("items[0][deleted]", "true")]);
    check(&[("items[0][quantity]", "5")]);
    assert!(updates(&mut world).is_empty());
    world.post(&path, &[("cancel_at_period_end", "false")]);
    assert!(updates(&mut world).is_empty(), "nothing changed, nothing is told");
    world.post(&path, &[("metadata[plan]", "x")]);
    assert_eq!(updates(&mut world), [json!({ "metadata": { "plan": null } })]);
}

#[test]
fn a_failed_payment_makes_it_past_due_then_unpaid() {
    let mut world = World::new();
    let subscription = subscribe(&mut world);
    let customer = world.customer.clone();
    world.simulator.set_payments_of(&customer, PaymentOutcome::Fails);
    world.send("a", "1000", NOON + 1);
    world.advance(30 * DAY + HOUR);
    let mut seen = Vec::new();
    for (days, next) in [(0, Some(3)), (3, Some(5)), (5, Some(7)), (7, None)] {
        world.advance(days * DAY);
        let invoice = invoices(&mut world)[0].clone();
        assert_eq!((&invoice["status"], &invoice["attempted"]), (&json!("open"), &json!(true)));
        let status = shown(&mut world, &subscription)["status"].clone();
        seen.push((invoice["attempt_count"].as_i64().unwrap(), status));
        let planned = invoice["next_payment_attempt"].as_i64();
        let now = world.simulator.now().micros() / 1_000_000;
        assert_eq!(planned.map(|planned| (planned - now) / DAY), next);
    }
    assert_eq!(seen, [1, 2, 3, 4].map(|n| (n, json!(if n == 4 { "unpaid" } else { "past_due" }))));
    assert_eq!(told(&mut world, "invoice.payment_failed").len(), 4);
    let list = world.get("/v1/subscriptions?status=unpaid").json();
    assert_eq!(list["data"][0]["id"], subscription.as_str());

    world.simulator.set_payments_of(&customer, PaymentOutcome::Succeeds);
    let path = format!("/v1/invoices/{}", invoices(&mut world)[0]["id"].as_str().unwrap());
    assert_eq!(world.post(&format!("{path}/pay"), &[]).json()["status"], "paid");
    assert_eq!(shown(&mut world, &subscription)["status"], "active");
    let statuses: Vec<Value> =
        updates(&mut world).iter().map(|before| before["status"].clone()).collect();
    // The first is the new period, which changed no status.
    assert_eq!(statuses, [json!(null), json!("active"), json!("past_due"), json!("unpaid")]);
}

#[test]
fn an_unpaid_subscription_leaves_drafts() {
    let mut world = World::new();
    subscribe(&mut world);
    world.simulator.set_payments(PaymentOutcome::Fails);
    world.send("a", "1000", NOON + 1);
    world.advance(63 * DAY);
    let all = invoices(&mut world);
    let statuses: Vec<&Value> = all.iter().map(|invoice| &invoice["status"]).collect();
    assert_eq!(statuses, ["draft", "open"]);
    assert_eq!(all[0]["automatically_finalizes_at"], Value::Null);
}

#[test]
fn an_end_is_told() {
    let mut world = World::new();
    let subscription = subscribe(&mut world);
    let path = format!("/v1/subscriptions/{subscription}");
    world.post(&path, &[("cancel_at_period_end", "true")]);
    assert_eq!(updates(&mut world), [json!({ "cancel_at_period_end": false })]);
    world.advance(30 * DAY);
    let ended = told(&mut world, "customer.subscription.deleted");
    assert_eq!(ended[0]["data"]["object"]["status"], "canceled");
    assert_eq!(invoices(&mut world).len(), 1, "the last period has its invoice");
    world.advance(90 * DAY);
    assert_eq!(invoices(&mut world).len(), 1);
}

#[test]
fn lists_by_status_page_after_page() {
    let mut world = World::new();
    let price = price(&mut world, "1");
    let customer = world.customer.clone();
    for number in 0..250 {
        let mut fields = vec![("customer", customer.as_str()), ("items[0][price]", &price)];
        if number % 5 == 0 {
            fields.push(("trial_period_days", "7"));
        }
        let made = id(&world.post("/v1/subscriptions", &fields));
        if number % 2 == 1 {
            let path = format!("/v1/subscriptions/{made}");
            world.simulator.handle(&SimRequest::new("DELETE", &path));
        }
    }
    let mut check = |status: &str, expected: usize| {
        let mut ids = Vec::new();
        loop {
            let after =
                ids.last().map_or(String::new(), |id: &String| format!("&starting_after={id}"));
            let list =
                world.get(&format!("/v1/subscriptions?limit=20&status={status}{after}")).json();
            let rows = list["data"].as_array().unwrap();
            ids.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
            if list["has_more"] == false {
                break;
            }
        }
        let mut once = ids.clone();
        once.sort();
        once.dedup();
        assert_eq!((ids.len(), once.len()), (expected, expected), "{status}");
    };
    check("all", 250);
    check("canceled", 125);
    check("ended", 125);
    check("trialing", 25);
    check("active", 100);
    check("past_due", 0);
    check("unpaid", 0);
    check("paused", 0);
    check("incomplete", 0);
    check("", 125);
    assert_eq!(world.get("/v1/subscriptions?status=gone").status, 400);
}
