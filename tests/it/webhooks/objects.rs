//! Objects: what is read of grants, customers, invoices and reports, and whose it is.

use super::world::{DAY, Dice, Ground, World, id_of};
use counterfoil::jobs::Job;
use counterfoil::rules::mirror::{ObjectKind, Snapshot};
use counterfoil::rules::quantity::Quantity;
use serde_json::{Value, json};
use stripe_sim::{FaultKind, FaultRule, SimRequest};

fn grant_fields(customer: &str) -> Vec<(&str, &str)> {
    vec![
        ("customer", customer),
        ("amount[type]", "monetary"),
        ("amount[monetary][currency]", "usd"),
        ("amount[monetary][value]", "500"),
        ("applicability_config[scope][price_type]", "metered"),
        ("category", "promotional"),
    ]
}

pub async fn credit_grants_are_mirrored_in_any_order(ground: Ground) {
    let world = World::on(ground).await;
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let mut answers = Vec::new();
    for (number, order) in orders.into_iter().enumerate() {
        let tenant = format!("tenant-{number}");
        let customer = world.tenant(&tenant).await;
        let grant = id_of(&world.stripe.ask("/v1/billing/credit_grants", &grant_fields(&customer)));
        let path = format!("/v1/billing/credit_grants/{grant}");
        world.pass_seconds(5);
        world.stripe.ask(&path, &[("expires_at", "1900000000")]);
        world.pass_seconds(5);
        world.stripe.ask(&format!("{path}/void"), &[]);
        let events = world.events_of(&grant);
        assert_eq!(events.len(), 3);
        for place in order {
            world.taken(&events[place]).await;
            if place % 2 == number % 2 {
                world.read_all().await;
            }
        }
        world.read_all().await;
        let Snapshot::CreditGrant(read) = world.snapshot(ObjectKind::CreditGrant, &grant).await
        else {
            panic!("no grant")
        };
        assert!(read.voided_at.is_some());
        let shown =
            world.get(&format!("/v1/timeline?tenant={tenant}")).await["credit_grants"].clone();
        answers.push(shown.to_string().replace(&grant, "GRANT"));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
    assert!(answers[0].contains(r#""status":"voided""#), "{}", answers[0]);
    // One that stands.
    let customer = world.tenant("standing").await;
    let grant = id_of(&world.stripe.ask("/v1/billing/credit_grants", &grant_fields(&customer)));
    world.taken(&world.events_of(&grant)[0]).await;
    world.read_all().await;
    let shown = world.get("/v1/timeline?tenant=standing").await["credit_grants"].clone();
    let expected = json!([{
        "id": grant, "category": "promotional", "currency": "usd", "amount": 500,
        "status": "granted", "expires_at": null,
    }]);
    assert_eq!(shown, expected);
}

pub async fn deleted_customer_is_mirrored(ground: Ground) {
    let world = World::on(ground).await;
    let customer = world.tenant("acme").await;
    let other = world.tenant("other").await;
    let price = world.price("calls", "2");
    let subscription = world.stripe.subscribe(&customer, &price);
    world.pass_seconds(60);
    world.stripe.answer(&SimRequest::new("DELETE", &format!("/v1/customers/{customer}")));
    let mut events = world.events();
    Dice::new(3).shuffle(&mut events);
    for event in events.iter().chain(&events) {
        world.taken(event).await;
    }
    world.read_all().await;
    let read = world.snapshot(ObjectKind::Customer, &customer).await;
    assert_eq!(read.status(), "deleted");
    assert!(world.mirror(ObjectKind::Customer, &other).await.is_none());
    assert_eq!(world.snapshot(ObjectKind::Subscription, &subscription).await.status(), "canceled");
    let deleted = events.iter().find(|event| event["type"] == "customer.deleted").unwrap();
    assert_eq!(world.webhook(deleted).await["status"], "applied", "it was as it told");
    for _ in 0..3 {
        world.jobs.alerter.pass().await.unwrap();
    }
    let alerts = world.alerts("customer_deleted").await;
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0]["subject"], customer.as_str());
    assert!(alerts[0]["summary"].as_str().unwrap().contains("acme"));
    // It ends when the tenant is somebody else.
    world.map("acme", &id_of(&world.stripe.ask("/v1/customers", &[]))).await;
    world.jobs.alerter.pass().await.unwrap();
    assert!(world.alerts("customer_deleted").await[0]["resolved_at"].is_string());
}

pub async fn every_line_of_a_long_invoice_is_mirrored(ground: Ground) {
    let world = World::on(ground).await;
    let customer = world.tenant("acme").await;
    let names: Vec<String> = (0..23).map(|number| format!("meter_{number:02}")).collect();
    let mut fields = vec![("customer".to_owned(), customer.clone())];
    for (number, name) in names.iter().enumerate() {
        fields.push((format!("items[{number}][price]"), world.price(name, "100")));
    }
    let fields: Vec<(&str, &str)> = fields.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    world.stripe.ask("/v1/subscriptions", &fields);
    world.pass_seconds(DAY);
    for (number, name) in names.iter().enumerate() {
        world.use_at_provider(&customer, name, &format!("{number}.000000000001"));
    }
    world.pass_seconds(31 * DAY);
    let events = world.events();
    let created = events.iter().find(|event| event["type"] == "invoice.created").unwrap();
    let shown = &created["data"]["object"]["lines"];
    assert_eq!((shown["data"].as_array().unwrap().len(), &shown["has_more"]), (10, &json!(true)));
    let invoice = id_of(&created["data"]["object"]);
    for event in world.events_of(&invoice) {
        world.taken(&event).await;
    }
    world.read_all().await;
    let Snapshot::Invoice(read) = world.snapshot(ObjectKind::Invoice, &invoice).await else {
        panic!("no invoice")
    };
    assert_eq!(read.lines.len(), 23);
    for (number, (line, name)) in read.lines.iter().zip(&names).enumerate() {
        assert_eq!(line.event_name.as_deref(), Some(name.as_str()));
        let expected = Quantity::parse_stored(&format!("{number}.000000000001")).unwrap();
        assert_eq!(line.quantity, expected, "what the whole number would cut off");
        assert_eq!(line.subtotal, i64::try_from(number).unwrap() * 100);
    }
    assert_eq!(read.subtotal, (0..23).sum::<i64>() * 100);
    let last = world.events_of(&invoice).pop().unwrap();
    assert_eq!(world.webhook(&last).await["status"], "applied");
    // A page that cannot be read is no short invoice.
    let before = world.snapshot(ObjectKind::Invoice, &invoice).await;
    let number = world.webhook(&last).await["id"].as_u64().unwrap();
    let rule = FaultRule::new(FaultKind::Error503).on_path("/lines").times(50);
    world.stripe.faults(vec![rule]);
    world.server.post_to(&format!("/v1/webhooks/{number}/replay"), "").await;
    world.jobs.mirror.pass().await.unwrap();
    assert_eq!(world.webhook(&last).await["status"], "waiting");
    assert_eq!(world.snapshot(ObjectKind::Invoice, &invoice).await, before);
}

/// Webhooks may come before anyone has said which tenant a customer is.
pub async fn tenant_mapped_later_gets_its_timeline(ground: Ground) {
    let world = World::on(ground).await;
    let customer = id_of(&world.stripe.ask("/v1/customers", &[]));
    let price = world.price("calls", "2");
    world.stripe.subscribe(&customer, &price);
    for event in world.events() {
        world.taken(&event).await;
    }
    world.read_all().await;
    let empty = world.get("/v1/timeline?tenant=acme").await;
    assert_eq!((&empty["stamps"], &empty["stretches"]), (&json!([]), &json!([])));
    world.map("acme", &customer).await;
    let known = world.get("/v1/timeline?tenant=acme").await;
    assert_eq!(known["stamps"][0]["prices"], json!([price]));
    let before = world.timeline("acme", "2026-11-15T11:59:59Z").await;
    assert_eq!(before["stamps"], json!([]), "nothing is said of the time before");
    world.map("acme", &id_of(&world.stripe.ask("/v1/customers", &[]))).await;
    assert_eq!(world.get("/v1/timeline?tenant=acme").await["stamps"], json!([]));
}

/// A report is thin: its data is fetched, and it is known by its own id.
pub async fn error_reports_are_mirrored(ground: Ground) {
    let world = World::on(ground).await;
    let customer = world.tenant("acme").await;
    world.price("calls", "2");
    let rule = FaultRule::new(FaultKind::AsyncRejection).on_path("meter_events");
    world.stripe.faults(vec![rule]);
    world.use_at_provider(&customer, "calls", "5");
    world.stripe.faults(Vec::new());
    let list = "/v2/core/events?types[0]=v1.billing.meter.error_report_triggered";
    let mut thin = world.stripe.get(list)["data"][0].clone();
    let id = id_of(&thin);
    assert!(thin["data"].is_object());
    thin.as_object_mut().unwrap().remove("data");
    assert!(!world.taken(&thin).await.1);
    assert!(world.taken(&thin).await.1);
    assert_eq!(world.read_all().await, 1);
    let Snapshot::ErrorReport(report) = world.snapshot(ObjectKind::ErrorReport, &id).await else {
        panic!("no report")
    };
    assert_eq!((report.event_name.as_deref(), report.error_count), (Some("calls"), 1));
    assert_eq!(world.webhook(&thin).await["status"], "applied");
    // One that was never delivered is found in its own list.
    world.stripe.faults(vec![FaultRule::new(FaultKind::AsyncRejection).on_path("meter_events")]);
    world.use_at_provider(&customer, "calls", "6");
    world.stripe.faults(Vec::new());
    world.pass_seconds(1_800);
    assert!(world.jobs.backfill.pass().await.unwrap() >= 1);
    world.read_all().await;
    let reports = world.mirrors(ObjectKind::ErrorReport).await;
    assert_eq!(reports.len(), 2);
    let told: Vec<Value> = world.webhooks().await;
    let own = told.iter().filter(|hook| hook["object_kind"] == "error_report").count();
    assert_eq!(own, 2);
}
