//! Reads are few: what is not read is not judged.

use super::world::{Ground, SUMMARIES, World};
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::PassKind;

const POSTS: &str = "POST /v1/billing/meter_events";

pub async fn no_more_reads_than_an_hour_allows(ground: Ground) {
    let world = World::with(ground, |config| {
        config.reconcile.reads_per_hour = 3;
        config.reconcile.reissue = true;
    })
    .await;
    world.meter("calls", super::world::CALLS).await;
    let mut customers = Vec::new();
    for number in 0..8 {
        customers.push(world.tenant(&format!("t{number}")).await);
    }
    for hour in 0..10 {
        // Each hour everyone uses something, of the hour before.
        let moment = world.clock.now().saturating_add_micros(-600_000_000).to_string();
        let mut events = Vec::new();
        for number in 0..8 {
            let (tenant, id) = (format!("t{number}"), format!("h{hour}"));
            events.push(world.event(&tenant, &id, "10", &moment).await);
        }
        world.record(events).await;
        world.hours(1).await;
        let pass = world.passes(PassKind::Hourly).await.pop().unwrap();
        assert!(pass.progress.reads <= 3, "hour {hour}: {pass:?}");
    }
    let reads: u64 = world.passes(PassKind::Hourly).await.iter().map(|p| p.progress.reads).sum();
    // The nightly pass spends some of the budget, on totals and on the list of invoices.
    assert!((15..=33).contains(&reads), "{reads}");
    assert!(world.stripe.calls(SUMMARIES) > 0);
    world.rest(26).await;
    assert_eq!(world.findings().await, []);
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
    for customer in &customers {
        assert_eq!(world.stripe.sum(customer), "100");
    }
    assert_eq!(world.stripe.calls(POSTS), 80, "nothing is sent twice");
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}

pub async fn every_tenant_has_its_turn(ground: Ground) {
    let world = World::with(ground, |config| config.reconcile.reads_per_hour = 3).await;
    world.meter("calls", super::world::CALLS).await;
    let mut customers = Vec::new();
    for number in 0..8 {
        let tenant = format!("t{number}");
        customers.push(world.tenant(&tenant).await);
        world.used(&tenant, "10", "2026-11-15T11:10:00Z").await;
    }
    world.hours(3).await;
    // The last of them all is bypassed.
    world.stripe.foreign(&customers[7], "calls", "5", "2026-11-15T11:40:00Z");
    world.hours(12).await;
    assert_eq!(world.open_findings(FindingKind::Usage).await.len(), 1);
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
}
