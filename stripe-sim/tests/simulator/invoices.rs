//! Payment, voiding, tax and lines of invoices.

use super::billing::{invoices, price, subscribe};
use super::{DAY, HOUR, NOON, World, id, refusal};
use serde_json::{Value, json};
use stripe_sim::{PaymentOutcome, SimRequest};

/// A world whose customer owes 250 cents, with the path of the invoice, drafted or finalized.
fn owing(outcome: PaymentOutcome, seconds_after_draft: i64) -> (World, String) {
    let mut world = World::new();
    subscribe(&mut world);
    world.simulator.set_payments(outcome);
    world.send("a", "1000", NOON + 1);
    world.advance(30 * DAY + seconds_after_draft);
    let path = format!("/v1/invoices/{}", invoices(&mut world)[0]["id"].as_str().unwrap());
    (world, path)
}

/// Types of the events about invoices, the earliest first.
fn told(world: &mut World) -> Vec<String> {
    let list = world.get("/v1/events?limit=100&types[]=invoice.*").json();
    let kinds = list["data"].as_array().unwrap().iter().rev();
    kinds.map(|event| event["type"].as_str().unwrap().replace("invoice.", "")).collect()
}

fn tell(world: &mut World, path: &str, body: Value) -> Value {
    let response = world.simulator.handle(&SimRequest::json(path, &body));
    assert_eq!(response.status, 200, "{}", response.json());
    response.json()
}

#[test]
fn payments_at_finalization() {
    let check = |outcome: PaymentOutcome, expected: Value, events: &[&str]| {
        let (mut world, path) = owing(outcome, HOUR);
        let invoice = world.get(&path).json();
        let fields = [
            "status",
            "attempted",
            "attempt_count",
            "next_payment_attempt",
            "amount_due",
            "amount_paid",
            "amount_remaining",
        ];
        let found: Vec<&Value> = fields.iter().map(|name| &invoice[name]).collect();
        assert_eq!(json!(found), expected);
        assert_eq!(told(&mut world), events);
    };
    let paid = json!(["paid", true, 1, null, 250, 250, 0]);
    check(
        PaymentOutcome::Succeeds,
        paid,
        &["created", "updated", "finalized", "updated", "paid", "payment_succeeded"],
    );
    let next = NOON + 30 * DAY + HOUR + 3 * DAY;
    let failed = json!(["open", true, 1, next, 250, 0, 250]);
    check(
        PaymentOutcome::Fails,
        failed,
        &["created", "updated", "finalized", "updated", "payment_failed"],
    );
}

#[test]
fn nothing_to_pay_is_paid_without_an_attempt() {
    let mut world = World::new();
    subscribe(&mut world);
    world.simulator.set_payments(PaymentOutcome::Fails);
    world.advance(30 * DAY + HOUR);
    let invoice = invoices(&mut world)[0].clone();
    assert_eq!((&invoice["status"], &invoice["attempt_count"]), (&json!("paid"), &json!(0)));
    assert!(!told(&mut world).contains(&"payment_failed".to_owned()));
}

#[test]
fn a_retry_succeeds() {
    let (mut world, path) = owing(PaymentOutcome::Fails, HOUR);
    let customer = world.customer.clone();
    tell(&mut world, "/_sim/payments", json!({ "customer": customer, "fails": false }));
    world.advance(3 * DAY - 1);
    assert_eq!(world.get(&path).json()["status"], "open");
    world.advance(1);
    let invoice = world.get(&path).json();
    assert_eq!((&invoice["status"], &invoice["attempt_count"]), (&json!("paid"), &json!(2)));
    assert_eq!(invoice["status_transitions"]["paid_at"], NOON + 33 * DAY + HOUR);
    let list = world.get("/v1/events?type=invoice.updated").json();
    let before = &list["data"][0]["data"]["previous_attributes"];
    assert_eq!((&before["status"], &before["attempt_count"]), (&json!("open"), &json!(1)));
    assert_eq!(before.get("total"), None);
}

#[test]
fn paying_by_hand() {
    let (mut world, path) = owing(PaymentOutcome::Fails, HOUR);
    let pay = format!("{path}/pay");
    let (status, kind, code, _) = refusal(&world.post(&pay, &[]));
    assert_eq!(
        (status, kind.as_str(), code.as_deref()),
        (402, "card_error", Some("card_declined"))
    );
    assert_eq!(world.get(&path).json()["attempt_count"], 1, "a person's attempt is not counted");
    let paid = world.post(&pay, &[("paid_out_of_band", "true")]).json();
    assert_eq!(paid["status"], "paid");
    assert_eq!(world.post(&pay, &[]).status, 400, "it is paid");
    assert_eq!(world.post(&format!("{path}/void"), &[]).status, 400);
    assert_eq!(world.post("/v1/invoices/in_no/pay", &[]).status, 404);

    let (mut world, path) = owing(PaymentOutcome::Succeeds, 0);
    assert_eq!(world.get(&path).json()["status"], "draft");
    let paid = world.post(&format!("{path}/pay"), &[]).json();
    assert_eq!(paid["status"], "paid", "a draft is finalized first");
    world.advance(2 * HOUR);
    assert_eq!(world.get(&path).json(), paid, "and not again");

    let (mut world, path) = owing(PaymentOutcome::Succeeds, 0);
    let finalize = format!("{path}/finalize");
    let open = world.post(&finalize, &[("auto_advance", "false")]).json();
    assert_eq!((&open["status"], &open["attempted"]), (&json!("open"), &json!(false)));
    assert_eq!(open["auto_advance"], false);
    world.advance(30 * DAY);
    assert_eq!(world.get(&path).json(), open, "nobody collects it");
}

#[test]
fn void_and_uncollectible() {
    let check = |verb: &str, status: &str, moment: &str, event: &str| {
        let (mut world, path) = owing(PaymentOutcome::Fails, HOUR);
        let closed = world.post(&format!("{path}/{verb}"), &[]).json();
        assert_eq!(closed["status"], status);
        assert!(closed["status_transitions"][moment].is_i64(), "{closed}");
        assert_eq!(told(&mut world).last().unwrap(), event);
        let subscriptions = world.get("/v1/subscriptions").json();
        assert_eq!(subscriptions["data"][0]["status"], "active");
        let attempts = closed["attempt_count"].clone();
        world.advance(4 * DAY);
        assert_eq!(world.get(&path).json()["attempt_count"], attempts, "nobody tries any more");
        let listed = world.get(&format!("/v1/invoices?status={status}")).json();
        assert_eq!(listed["data"].as_array().unwrap().len(), 1);
        let draft = owing(PaymentOutcome::Fails, 0);
        let (mut world, path) = draft;
        assert_eq!(world.post(&format!("{path}/{verb}"), &[]).status, 400, "a draft");
    };
    check("void", "void", "voided_at", "voided");
    let moment = "marked_uncollectible_at";
    check("mark_uncollectible", "uncollectible", moment, "marked_uncollectible");
}

#[test]
fn voiding_gives_credit_back() {
    let mut world = World::new();
    subscribe(&mut world);
    let customer = world.customer.clone();
    let fields = [
        ("customer", customer.as_str()),
        ("amount[type]", "monetary"),
        ("amount[monetary][currency]", "usd"),
        ("amount[monetary][value]", "100"),
        ("applicability_config[scope][price_type]", "metered"),
    ];
    let grant = id(&world.post("/v1/billing/credit_grants", &fields));
    world.simulator.set_payments(PaymentOutcome::Fails);
    world.send("a", "1000", NOON + 1);
    world.advance(30 * DAY + HOUR);
    let invoice = invoices(&mut world)[0].clone();
    assert_eq!((&invoice["subtotal"], &invoice["amount_due"]), (&json!(250), &json!(150)));
    let used = &invoice["lines"]["data"][0]["pretax_credit_amounts"][0];
    assert_eq!((&used["amount"], &used["credit_grant"]), (&json!(100), &json!(grant)));
    let path = format!("/v1/billing/credit_grants/{grant}");
    assert_eq!(world.post(&format!("{path}/void"), &[]).status, 400, "it was used");
    world.post(&format!("/v1/invoices/{}/void", invoice["id"].as_str().unwrap()), &[]);
    assert_eq!(world.post(&format!("{path}/void"), &[]).status, 200, "nothing of it is used");
}

#[test]
fn tax_comes_late() {
    let fixed = ["subtotal", "subtotal_excluding_tax", "total_excluding_tax"];
    for seconds in [0, HOUR] {
        let (mut world, path) = owing(PaymentOutcome::Fails, seconds);
        let before = world.get(&path).json();
        let invoice = before["id"].clone();
        let rate = json!({ "invoice": invoice, "rate_percent": "19" });
        let taxed = tell(&mut world, "/_sim/tax", rate.clone());
        assert_eq!(world.get(&path).json(), taxed);
        for name in fixed {
            assert_eq!((&before[name], &taxed[name]), (&json!(250), &json!(250)), "{name}");
        }
        for name in ["total", "amount_due", "amount_remaining"] {
            assert_eq!(taxed[name], 298, "{name}: 47.5 is 48");
        }
        let tax = json!({
            "amount": 48, "taxable_amount": 250, "tax_behavior": "exclusive",
            "taxability_reason": "standard_rated", "type": "tax_rate_details",
            "tax_rate_details": { "tax_rate": "txr_19" },
        });
        assert_eq!(taxed["total_taxes"], json!([tax]));
        let line = &taxed["lines"]["data"][0];
        assert_eq!((&line["taxes"], &line["amount"]), (&json!([tax]), &json!(250)));
        let list = world.get("/v1/events?type=invoice.updated").json();
        let previous = &list["data"][0]["data"]["previous_attributes"];
        assert_eq!((&previous["total"], previous.get("subtotal")), (&json!(250), None));

        world.simulator.set_payments(PaymentOutcome::Succeeds);
        let paid = world.post(&format!("{path}/pay"), &[]).json();
        assert_eq!((&paid["total"], &paid["amount_paid"]), (&json!(298), &json!(298)));
        let refused = world.simulator.handle(&SimRequest::json("/_sim/tax", &rate));
        assert_eq!(refused.status, 400, "it is paid");
        let rate = "7".parse().unwrap();
        assert!(world.simulator.add_tax(invoice.as_str().unwrap(), rate).is_err());
    }
}

#[test]
fn ten_lines_and_the_rest() {
    let mut world = World::new();
    let customer = world.customer.clone();
    let mut fields = vec![("customer".to_owned(), customer)];
    for number in 0..12 {
        let price = price(&mut world, "1");
        fields.push((format!("items[{number}][price]"), price));
    }
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(world.post("/v1/subscriptions", &fields).status, 200);
    world.send("a", "5", NOON + 1);
    world.advance(30 * DAY);
    for status in ["draft", "paid"] {
        let invoice = invoices(&mut world)[0].clone();
        assert_eq!((&invoice["status"], &invoice["subtotal"]), (&json!(status), &json!(60)));
        assert_eq!(invoice["lines"]["data"].as_array().unwrap().len(), 10);
        assert_eq!(invoice["lines"]["has_more"], true);
        let url = invoice["lines"]["url"].as_str().unwrap();
        let last = invoice["lines"]["data"][9]["id"].as_str().unwrap();
        let rest = world.get(&format!("{url}?starting_after={last}")).json();
        assert_eq!(rest["data"].as_array().unwrap().len(), 2);
        assert_eq!(rest["has_more"], false);
        let all = world.get(&format!("{url}?limit=100")).json();
        for line in all["data"].as_array().unwrap() {
            let price = line["pricing"]["price_details"]["price"].as_str().unwrap();
            let price = world.get(&format!("/v1/prices/{price}")).json();
            assert_eq!(price["recurring"]["meter"], world.meter.as_str());
        }
        world.advance(HOUR);
    }
    let of_meter = format!("/v1/prices?limit=100&recurring[meter]={}", world.meter);
    assert_eq!(world.get(&of_meter).json()["data"].as_array().unwrap().len(), 12);
}

#[test]
fn thousands_of_periods_end_at_once() {
    let mut world = World::new();
    let price = price(&mut world, "1");
    let customer = world.customer.clone();
    for _ in 0..1_000 {
        let fields = [("customer", customer.as_str()), ("items[0][price]", &price)];
        world.post("/v1/subscriptions", &fields);
    }
    world.advance(30 * DAY + HOUR);
    let listed = world.get("/v1/invoices?status=paid&limit=100").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 100);
    assert_eq!(world.get("/v1/invoices?status=draft").json()["data"], json!([]));
}
