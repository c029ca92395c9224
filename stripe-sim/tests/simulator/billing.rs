//! Subscriptions, their invoices, and credit grants.

use super::{DAY, HOUR, NOON, World, id};
use serde_json::{Value, json};
use stripe_sim::SimRequest;

/// A monthly price of the world's meter, in cents.
pub fn price(world: &mut World, unit_amount: &str) -> String {
    let meter = world.meter.clone();
    let price = world.post(
        "/v1/prices",
        &[
            ("currency", "usd"),
            ("unit_amount_decimal", unit_amount),
            ("recurring[interval]", "month"),
            ("recurring[usage_type]", "metered"),
            ("recurring[meter]", &meter),
            ("product_data[name]", "Calls"),
        ],
    );
    id(&price)
}

/// A monthly subscription of the customer at 0.25 cents a call.
pub fn subscribe(world: &mut World) -> String {
    let price = price(world, "0.25");
    let customer = world.customer.clone();
    id(&world.post("/v1/subscriptions", &[("customer", &customer), ("items[0][price]", &price)]))
}

/// The latest first.
pub fn invoices(world: &mut World) -> Vec<Value> {
    world.get("/v1/invoices").json()["data"].as_array().unwrap().clone()
}

#[test]
fn a_cycle() {
    let mut world = World::new();
    let subscription = subscribe(&mut world);
    let period_end = NOON + 30 * DAY;
    let shown = world.get(&format!("/v1/subscriptions/{subscription}")).json();
    assert_eq!(shown["items"]["data"][0]["current_period_end"], period_end);
    world.send("a", "1000", NOON + 1);
    world.advance(30 * DAY - 1);
    assert!(invoices(&mut world).is_empty());
    world.advance(1);
    let draft = invoices(&mut world)[0].clone();
    assert_eq!((&draft["status"], &draft["subtotal"]), (&json!("draft"), &json!(250)));
    assert_eq!(draft["billing_reason"], "subscription_cycle");
    assert_eq!(draft["automatically_finalizes_at"], period_end + HOUR);
    assert_eq!(draft["lines"]["data"][0]["period"], json!({ "start": NOON, "end": period_end }));

    // Late usage of the ended period is included; usage of the new one is not.
    world.send("b", "2.5", period_end - 1);
    world.send("c", "4000", period_end + 1);
    world.advance(HOUR);
    let paid = invoices(&mut world)[0].clone();
    assert_eq!(paid["status"], "paid");
    assert_eq!(paid["lines"]["data"][0]["quantity_decimal"], "1002.5");
    assert_eq!(paid["lines"]["data"][0]["quantity"], 1002);
    assert_eq!(paid["subtotal"], 251, "250.625 cents");
    world.send("d", "8000", period_end - 1);
    assert_eq!(invoices(&mut world)[0], paid, "what comes later is on no invoice");
    world.advance(31 * DAY);
    let next = invoices(&mut world)[0].clone();
    assert_eq!(next["lines"]["data"][0]["quantity_decimal"], "4000");
    let told = world.get("/v1/events?types[]=invoice.created&types[]=invoice.finalized").json();
    let told: Vec<&Value> =
        told["data"].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    assert_eq!(told, ["invoice.finalized", "invoice.created"], "those of the last 30 days");
}

#[test]
fn months_end_where_they_end() {
    let mut world = World::new();
    // 2027-01-31T12:00:00Z
    world.simulator.set_clock(super::seconds(1_801_396_800));
    let subscription = subscribe(&mut world);
    let mut ends = Vec::new();
    for _ in 0..3 {
        let shown = world.get(&format!("/v1/subscriptions/{subscription}")).json();
        let end = shown["items"]["data"][0]["current_period_end"].as_i64().unwrap();
        ends.push(super::seconds(end).to_string());
        world.simulator.set_clock(super::seconds(end));
    }
    assert_eq!(ends, ["2027-02-28T12:00:00Z", "2027-03-31T12:00:00Z", "2027-04-30T12:00:00Z"]);
}

#[test]
fn a_negative_total_is_invoiced_as_zero() {
    let mut world = World::new();
    subscribe(&mut world);
    world.send("a", "-5", NOON + 1);
    world.advance(30 * DAY + HOUR);
    let invoice = invoices(&mut world)[0].clone();
    assert_eq!(invoice["lines"]["data"][0]["quantity_decimal"], "0");
}

#[test]
fn lists_of_subscriptions() {
    let mut world = World::new();
    let (first, second) = (subscribe(&mut world), subscribe(&mut world));
    let cancel = SimRequest::new("DELETE", &format!("/v1/subscriptions/{first}"));
    assert_eq!(world.simulator.handle(&cancel).json()["status"], "canceled");
    let ids = |world: &mut World, query: &str| -> Vec<String> {
        let list = world.get(&format!("/v1/subscriptions?{query}")).json();
        let rows = list["data"].as_array().unwrap().iter();
        rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&mut world, ""), [second.as_str()]);
    assert_eq!(ids(&mut world, "status=all"), [second.as_str(), first.as_str()]);
    assert_eq!(ids(&mut world, &format!("status=all&starting_after={second}")), [first.as_str()]);
    let path = format!("/v1/subscriptions/{second}");
    let updated = world.post(&path, &[("metadata[plan]", "x"), ("cancel_at_period_end", "true")]);
    assert_eq!(updated.json()["metadata"]["plan"], "x");
    world.advance(31 * DAY);
    assert_eq!(world.get(&path).json()["status"], "canceled");
}

#[test]
fn credit_pays_at_finalization() {
    let mut world = World::new();
    subscribe(&mut world);
    let customer = world.customer.clone();
    let grant = |world: &mut World, cents: &str, category: &str| {
        let fields = [
            ("customer", customer.as_str()),
            ("amount[type]", "monetary"),
            ("amount[monetary][currency]", "usd"),
            ("amount[monetary][value]", cents),
            ("applicability_config[scope][price_type]", "metered"),
            ("category", category),
        ];
        id(&world.post("/v1/billing/credit_grants", &fields))
    };
    let paid = grant(&mut world, "200", "paid");
    let promotional = grant(&mut world, "100", "promotional");
    let voided = grant(&mut world, "1000", "promotional");
    world.post(&format!("/v1/billing/credit_grants/{voided}/void"), &[]);
    world.send("a", "1000", NOON + 1);
    world.advance(30 * DAY + HOUR);
    let invoice = invoices(&mut world)[0].clone();
    assert_eq!((&invoice["subtotal"], &invoice["amount_due"]), (&json!(250), &json!(0)));
    let used: Vec<(Value, Value)> = invoice["total_pretax_credit_amounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|amount| (amount["credit_grant"].clone(), amount["amount"].clone()))
        .collect();
    assert_eq!(used, [(json!(promotional), json!(100)), (json!(paid), json!(150))]);
    let path = format!("/v1/billing/credit_grants/{paid}");
    assert_eq!(world.post(&format!("{path}/void"), &[]).status, 400, "it was used");
    assert!(world.post(&format!("{path}/expire"), &[]).json()["expires_at"].is_i64());
    assert_eq!(world.get("/v1/billing/credit_grants").json()["data"].as_array().unwrap().len(), 3);
}

#[test]
fn a_long_jump_is_many_small_steps() {
    let mut world = World::new();
    subscribe(&mut world);
    world.advance(95 * DAY);
    let statuses: Vec<Value> =
        invoices(&mut world).iter().map(|invoice| invoice["status"].clone()).collect();
    assert_eq!(statuses, ["paid", "paid", "paid"]);
    let told = world.get("/v1/events?types[]=invoice.created&types[]=invoice.finalized").json();
    let told: Vec<&Value> =
        told["data"].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    let pair = ["invoice.finalized", "invoice.created"];
    assert_eq!(told, [pair, pair, pair].concat(), "one after the other, the latest first");
}

#[test]
fn a_deleted_customer_has_no_subscription() {
    let mut world = World::new();
    let subscription = subscribe(&mut world);
    let path = format!("/v1/customers/{}", world.customer);
    world.simulator.handle(&SimRequest::new("DELETE", &path));
    let shown = world.get(&format!("/v1/subscriptions/{subscription}")).json();
    assert_eq!(shown["status"], "canceled");
    world.advance(60 * DAY);
    assert!(invoices(&mut world).is_empty());
}

#[test]
fn a_webhook_that_nobody_takes_delays_finalization() {
    let check = |taken: bool, hours: i64| {
        let mut world = World::new();
        subscribe(&mut world);
        let fields = [("url", "http://127.0.0.1:9/hook"), ("enabled_events[]", "invoice.created")];
        world.post("/v1/webhook_endpoints", &fields);
        world.advance(30 * DAY);
        for webhook in world.simulator.due_webhooks() {
            world.simulator.webhook_answered(webhook.delivery, taken.then_some(200));
        }
        world.advance(hours * HOUR - 1);
        assert_eq!(invoices(&mut world)[0]["status"], "draft", "{taken}");
        world.advance(1);
        assert_eq!(invoices(&mut world)[0]["status"], "paid", "{taken}");
    };
    check(true, 1);
    check(false, 72);
}

#[test]
fn a_graduated_price_makes_one_line_for_each_tier() {
    let lines = |used: &str| -> Vec<Value> {
        let mut world = World::new();
        let (meter, customer) = (world.meter.clone(), world.customer.clone());
        let price = world.post(
            "/v1/prices",
            &[
                ("currency", "usd"),
                ("billing_scheme", "tiered"),
                ("tiers_mode", "graduated"),
                ("tiers[0][up_to]", "1000"),
                ("tiers[0][unit_amount]", "0"),
                ("tiers[0][flat_amount]", "900"),
                ("tiers[1][up_to]", "inf"),
                ("tiers[1][unit_amount_decimal]", "3.6"),
                ("recurring[interval]", "month"),
                ("recurring[meter]", &meter),
                ("product_data[name]", "Calls"),
            ],
        );
        let shown = price.json();
        let facts = (&shown["billing_scheme"], &shown["unit_amount_decimal"]);
        assert_eq!(facts, (&json!("tiered"), &json!(null)));
        let item = id(&price);
        world.post("/v1/subscriptions", &[("customer", &customer), ("items[0][price]", &item)]);
        world.send("a", used, NOON + 1);
        world.advance(30 * DAY + HOUR);
        let invoice = invoices(&mut world).remove(0);
        let all = invoice["lines"]["data"].as_array().unwrap().iter();
        let sum: i64 = all.clone().map(|line| line["amount"].as_i64().unwrap()).sum();
        assert_eq!(invoice["subtotal"], sum);
        all.map(|line| {
            assert_eq!(line["pricing"]["price_details"]["price"], item);
            json!([line["quantity"], line["amount"], line["pricing"]["unit_amount_decimal"]])
        })
        .collect()
    };
    let (first, flat) = (json!([1000, 0, "0"]), json!([0, 900, null]));
    assert_eq!(lines("1031"), [first.clone(), flat.clone(), json!([31, 112, "4"])]);
    assert_eq!(lines("1000"), [first, flat.clone()]);
    assert_eq!(lines("0"), [json!([0, 0, "0"]), flat]);
}
