//! An invoice is about to be fixed: what was used must be on it, or somebody is called in time.

use super::world::{EVENTS, Ground, World, at};
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::submission::PushState;

/// A subscription of a day from noon on, with usage from its first to its last hour.
async fn subscribed(world: &World, customer: &str) {
    let price = world.stripe.price("calls", "1", "day");
    world.stripe.subscribe(customer, &price);
    world.used("acme", "1", "2026-11-15T12:00:00Z").await;
    world.until("2026-11-16T11:00:00Z").await;
    world.go_to("2026-11-16T11:59:00Z");
    world.used("acme", "20", "2026-11-16T10:30:00Z").await;
    world.used("acme", "300", "2026-11-16T11:59:00Z").await;
}

pub async fn draft_invoice_flushes_its_windows(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    subscribed(&world, &customer).await;
    world.go_to("2026-11-16T12:00:00Z");
    world.work().await;
    // Still a draft; a late event of the period, and one of the next.
    world.go_to("2026-11-16T12:40:00Z");
    world.used("acme", "4000", "2026-11-16T11:58:00Z").await;
    world.used("acme", "50000", "2026-11-16T12:10:00Z").await;
    world.work().await;
    assert_eq!(world.stripe.sum(&customer), "4321");
    world.go_to("2026-11-16T13:00:00Z");
    world.work().await;
    let invoice = world.stripe.invoices().remove(0);
    assert_eq!(invoice["status"], "paid");
    assert_eq!(invoice["lines"]["data"][0]["quantity_decimal"], "4321");
    assert_eq!(invoice["subtotal"], 4321);
    world.hours(5).await;
    assert_eq!(world.stripe.sum(&customer), "54321");
    assert_eq!(world.pages(), []);
    assert_eq!(world.findings().await, []);
}

pub async fn open_pushes_page_before_finalization(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    subscribed(&world, &customer).await;
    world.out_of_reach(EVENTS);
    world.go_to("2026-11-16T12:00:00Z");
    world.work().await;
    assert_eq!(world.alerted(AlertKind::FinalizationNear).await, (0, 0));
    world.go_to("2026-11-16T12:31:00Z");
    world.work().await;
    assert_eq!(world.notices(AlertKind::FinalizationNear), [NoticeEvent::Opened]);
    let alerts = world.alerts().await;
    let near = alerts.iter().find(|alert| alert.kind == AlertKind::FinalizationNear).unwrap();
    assert!(near.summary.contains("2026-11-16T13:00:00Z, and 2 pushes"), "{}", near.summary);
    world.stripe.faults(Vec::new());
    world.go_to("2026-11-16T12:45:00Z");
    world.work().await;
    world.pass_seconds(60);
    world.work().await;
    world.check_opened_and_resolved(AlertKind::FinalizationNear);
    world.go_to("2026-11-16T13:00:00Z");
    world.work().await;
    let invoice = world.stripe.invoices().remove(0);
    assert_eq!(invoice["lines"]["data"][0]["quantity_decimal"], "321");
    world.hours(3).await;
    assert!(world.open_findings(FindingKind::Invoice).await.is_empty());
}

pub async fn period_ending_within_the_hour_is_invoiced_whole(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.go_to("2026-11-15T12:40:00Z");
    let price = world.stripe.price("calls", "1", "day");
    world.stripe.subscribe(&customer, &price);
    world.go_to("2026-11-15T13:00:00Z");
    world.until("2026-11-16T12:00:00Z").await;
    // The window in which the period ends: what it used is stamped with its middle, 12:30.
    world.go_to("2026-11-16T12:20:00Z");
    world.used("acme", "7", "2026-11-16T12:10:00Z").await;
    world.go_to("2026-11-16T12:40:00Z");
    world.work().await;
    assert_eq!(world.stripe.invoices()[0]["status"], "draft");
    world.go_to("2026-11-16T13:00:00Z");
    world.work().await;
    world.go_to("2026-11-16T13:39:00Z");
    world.used("acme", "10", "2026-11-16T12:15:00Z").await;
    world.work().await;
    world.go_to("2026-11-16T13:40:00Z");
    world.work().await;
    let invoice = world.stripe.invoices().remove(0);
    assert_eq!(invoice["status"], "paid");
    assert_eq!(invoice["lines"]["data"][0]["quantity_decimal"], "17", "else it is on no invoice");
    world.hours(4).await;
    assert_eq!(world.stripe.sum(&customer), "17");
    assert!(world.open_findings(FindingKind::Invoice).await.is_empty());
    let pushes = world.pushes().await;
    assert!(pushes.iter().all(|push| push.state == PushState::Reconciled), "{pushes:?}");
    assert!(pushes.iter().all(|push| push.stamped_at < at("2026-11-16T12:40:00Z")));
}
