//! What the provider bills against what was counted: pre-tax with pre-tax.

use super::world::{ABSOLUTE, Ground, SUMMARIES, World, quantity};
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::mirror::{ObjectKind, Snapshot};
use counterfoil::rules::submission::{Class, PushState};
use stripe_sim::PaymentOutcome;

/// A subscription of a day from noon on at half a cent a call, with 31 calls pushed and confirmed;
/// it is noon, and the invoice a draft.
async fn drafted(world: &World, customer: &str) -> String {
    let price = world.stripe.price("calls", "0.5", "day");
    world.stripe.subscribe(customer, &price);
    world.used("acme", "31", "2026-11-15T12:00:00Z").await;
    world.until("2026-11-16T12:00:00Z").await;
    world.stripe.invoices()[0]["id"].as_str().unwrap().to_owned()
}

pub async fn late_tax_is_no_discrepancy(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.stripe.lock().set_payments(PaymentOutcome::Fails);
    let id = drafted(&world, &customer).await;
    world.stripe.lock().add_tax(&id, "19".parse().unwrap()).unwrap();
    world.hours(2).await;
    let mirrored = |mirror: Snapshot| match mirror {
        Snapshot::Invoice(invoice) => (invoice.status, invoice.subtotal, invoice.tax),
        other => panic!("{other:?}"),
    };
    let seen =
        || async { mirrored(world.mirror(ObjectKind::Invoice, &id).await.unwrap().snapshot) };
    // 15.5 cents are 16, and 19 percent of them 3.
    assert_eq!(seen().await, ("open".into(), 16, 3));
    world.stripe.lock().add_tax(&id, "25".parse().unwrap()).unwrap();
    world.rest(20).await;
    assert_eq!(seen().await, ("open".into(), 16, 4));
    assert_eq!(world.findings().await, []);
    assert_eq!(world.pages(), []);
    assert_eq!(world.notices(AlertKind::PaymentFailed), [NoticeEvent::Opened]);
    world.stripe.lock().set_payments(PaymentOutcome::Succeeds);
    world.rest(60).await;
    assert_eq!(seen().await.0, "paid");
    let told = world.notices(AlertKind::PaymentFailed);
    assert_eq!(told[..2], [NoticeEvent::Opened, NoticeEvent::Resolved]);
    assert!(world.open_findings(FindingKind::Invoice).await.is_empty());
}

pub async fn invoice_with_foreign_usage_is_found(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let id = drafted(&world, &customer).await;
    world.stripe.foreign(&customer, "calls", "4", "2026-11-15T20:00:00Z");
    world.hours(1).await;
    let finding = world.only_finding(FindingKind::Invoice).await;
    let text = format!("line il_{id}_0 bills 35 of calls, and 31 were counted");
    assert_eq!(finding.seen.detail, text);
    assert_eq!((finding.seen.verdict, finding.seen.reason), (Verdict::Bypass, Reason::Amount));
    assert_eq!([finding.seen.ledger, finding.seen.provider], ["31", "35"].map(quantity));
    assert_eq!(world.alerted(AlertKind::InvoiceDrift).await, (0, 0));
    world.hours(1).await;
    assert_eq!(world.notices(AlertKind::InvoiceDrift), [NoticeEvent::Opened]);
    world.rest(24).await;
    assert_eq!(world.notices(AlertKind::InvoiceDrift), [NoticeEvent::Opened], "told once");
    assert_eq!(world.open_findings(FindingKind::Invoice).await.len(), 1);
}

pub async fn invoice_that_lacks_usage_is_found(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let id = drafted(&world, &customer).await;
    world.stripe.lose(&world.pushes().await[0].key);
    world.hours(2).await;
    let finding = world.only_finding(FindingKind::Invoice).await;
    let text = format!("line il_{id}_0 bills 0 of calls, and 31 were counted");
    assert_eq!(finding.seen.detail, text);
    assert_eq!(finding.seen.verdict, Verdict::Undecidable);
    assert_eq!(world.notices(AlertKind::InvoiceDrift), [NoticeEvent::Opened]);
    assert_eq!(world.stripe.sum(&customer), "0");
}

pub async fn usage_after_finalization_is_reported_unbilled(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let id = drafted(&world, &customer).await;
    world.hours(3).await;
    assert!(world.open_findings(FindingKind::Invoice).await.is_empty());
    world.used("acme", "9", "2026-11-15T20:00:00Z").await;
    // The invoice is compared again by night, long after it was read.
    world.until("2026-11-17T05:00:00Z").await;
    let finding = world.only_finding(FindingKind::Invoice).await;
    let text = format!("line il_{id}_0 bills 31 of calls, and 40 were counted");
    assert_eq!(finding.seen.detail, text);
    world.hours(1).await;
    assert_eq!(world.notices(AlertKind::InvoiceDrift), [NoticeEvent::Opened]);
    assert_eq!(world.stripe.sum(&customer), "40");
}

/// The day never agrees, since its total cannot be read any more; the line of the invoice does.
pub async fn matching_invoice_line_closes_its_pushes(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.stripe.subscribe(&customer, &world.stripe.price("calls", "0.5", "day"));
    world.used("acme", "31", "2026-11-15T12:00:00Z").await;
    world.until("2026-11-15T16:00:00Z").await;
    let foreign = world.stripe.foreign(&customer, "calls", "7", "2026-11-15T12:10:00Z");
    world.until("2026-11-16T12:00:00Z").await;
    world.check_pushes(&[("31", PushState::Confirmed, Class::Confirmed)]).await;
    world.stripe.lose(&foreign);
    world.out_of_reach(SUMMARIES);
    world.hours(3).await;
    world.check_pushes(&[("31", PushState::Reconciled, Class::Reconciled)]).await;
    assert!(world.open_findings(FindingKind::Invoice).await.is_empty());
}

/// Days that begin at 12:20, and usage of both sides of the border within an hour.
async fn straddled(world: &World, customer: &str) {
    world.go_to("2026-11-15T12:20:00Z");
    world.stripe.subscribe(customer, &world.stripe.price("calls", "0.5", "day"));
    world.work().await;
    world.hours(1).await;
    world.used("acme", "31", "2026-11-15T12:40:00Z").await;
    world.until("2026-11-16T12:20:00Z").await;
    world.go_to("2026-11-16T12:40:00Z");
    world.used("acme", "3", "2026-11-16T12:19:59.999999Z").await;
    world.used("acme", "40", "2026-11-16T12:20:00Z").await;
    world.work().await;
    world.until("2026-11-17T16:40:00Z").await;
}

fn billed(world: &World) -> Vec<String> {
    let quantity = |invoice: &serde_json::Value| {
        invoice["lines"]["data"][0]["quantity_decimal"].as_str().unwrap().to_owned()
    };
    world.stripe.invoices().iter().map(quantity).collect()
}

pub async fn each_side_of_a_border_is_on_its_invoice(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    straddled(&world, &customer).await;
    assert_eq!(billed(&world), ["34", "40"]);
    assert_eq!(world.findings().await, []);
    assert_eq!(world.pages(), []);
}

pub async fn usage_on_the_wrong_side_of_a_border_is_found(ground: Ground) {
    let world = World::on(ground).await;
    // The provider keeps one value for an hour, so the hour is not divided.
    world.meter("calls", ABSOLUTE).await;
    let customer = world.tenant("acme").await;
    straddled(&world, &customer).await;
    assert_eq!(billed(&world), ["31", "43"]);
    let texts: Vec<String> = world
        .open_findings(FindingKind::Invoice)
        .await
        .into_iter()
        .map(|f| f.seen.detail)
        .collect();
    let hour = "of calls in the window of 2026-11-16T12:00:00Z";
    assert_eq!(
        texts,
        [
            format!("{hour}, 3 were used within the period and 0 were pushed into it"),
            format!("{hour}, 40 were used within the period and 43 were pushed into it"),
        ]
    );
    assert!(!world.notices(AlertKind::InvoiceDrift).is_empty(), "somebody is called");
}

pub async fn lines_of_tiers_are_compared_together(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    // Ten calls for nine dollars, and 3.6 cents for each further one.
    let rate = [
        ("billing_scheme", "tiered"),
        ("tiers_mode", "graduated"),
        ("tiers[0][up_to]", "10"),
        ("tiers[0][flat_amount]", "900"),
        ("tiers[1][up_to]", "inf"),
        ("tiers[1][unit_amount_decimal]", "3.6"),
    ];
    let price = world.stripe.price_of("calls", "day", &rate);
    world.stripe.subscribe(&customer, &price);
    world.used("acme", "41", "2026-11-15T12:00:00Z").await;
    world.until("2026-11-16T14:00:00Z").await;
    let invoice = world.stripe.invoices().remove(0);
    let lines = invoice["lines"]["data"].as_array().unwrap();
    let shown = |line: &serde_json::Value| {
        (line["quantity"].as_i64().unwrap(), line["subtotal"].as_i64().unwrap())
    };
    assert_eq!(lines.iter().map(shown).collect::<Vec<_>>(), [(10, 0), (0, 900), (31, 112)]);
    world.hours(2).await;
    world.leap("2026-11-17T05:00:00Z").await;
    assert_eq!(world.findings().await, []);
    assert_eq!(world.pages(), []);
    // The sum is compared, not only one line.
    world.used("acme", "9", "2026-11-15T20:00:00Z").await;
    world.leap("2026-11-18T05:00:00Z").await;
    let finding = world.only_finding(FindingKind::Invoice).await;
    let id = invoice["id"].as_str().unwrap();
    let text =
        format!("lines il_{id}_0, il_{id}_1, il_{id}_2 bill 41 of calls, and 50 were counted");
    assert_eq!(finding.seen.detail, text);
}

pub async fn invoice_without_a_webhook_is_compared(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.keep_backfill(false);
    world.lose_webhooks(true);
    let id = drafted(&world, &customer).await;
    world.stripe.foreign(&customer, "calls", "4", "2026-11-15T20:00:00Z");
    world.until("2026-11-17T04:00:00Z").await;
    assert!(world.mirror(ObjectKind::Invoice, &id).await.is_none(), "nothing told of it");
    // The pass of the night lists it, and the next one compares what was read.
    world.leap("2026-11-17T05:00:00Z").await;
    world.hours(1).await;
    let finding = world.only_finding(FindingKind::Invoice).await;
    let text = format!("line il_{id}_0 bills 35 of calls, and 31 were counted");
    assert_eq!((finding.seen.subject, finding.seen.detail), (id.clone(), text));
    world.hours(1).await;
    assert_eq!(world.notices(AlertKind::InvoiceDrift), [NoticeEvent::Opened]);
    // What is listed as it is known is not read again.
    let version = world.mirror(ObjectKind::Invoice, &id).await.unwrap().version;
    world.leap("2026-11-18T05:00:00Z").await;
    world.hours(1).await;
    assert_eq!(world.mirror(ObjectKind::Invoice, &id).await.unwrap().version, version);
}
