//! The provider is higher: something bypasses the ledger.

use super::world::{CALLS, Ground, World, at};
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::PassKind;

const POSTS: &str = "POST /v1/billing/meter_events";

pub async fn foreign_usage_is_never_corrected(ground: Ground) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T15:00:00Z").await;
    let foreign = world.stripe.foreign(&customer, "calls", "2.5", "2026-11-15T11:40:00Z");
    world.hours(1).await;
    world.check_finding(Verdict::Waiting, Reason::ReadOnce, false).await;
    assert_eq!(world.pages(), []);
    world.hours(1).await;
    let finding = world.check_finding(Verdict::Bypass, Reason::ProviderHigher, true).await;
    assert_eq!(finding.seen.ledger.to_string(), "30");
    assert_eq!(finding.seen.provider.to_string(), "32.5");
    assert!(finding.seen.detail.contains("never corrected"), "{}", finding.seen.detail);
    let pass = world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", true).await;
    assert_eq!((pass.progress.reissued, pass.progress.replayed), (0, 0));
    world.rest(20).await;
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (1, "32.5".into()));
    let night = world.passes(PassKind::Nightly).await.pop().unwrap();
    let row = world.rows(night.number).await.remove(0);
    assert_eq!((row.verdict, row.delta().unwrap().to_string()), (Verdict::Bypass, "2.5".into()));
    // Whoever sent it takes it back.
    world.stripe.lose(&foreign);
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    world.check_opened_and_resolved(AlertKind::DriftUnresolved);
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (1, "30".into()));
}

pub async fn foreign_usage_of_an_unused_meter_is_found(ground: Ground) {
    let (world, _) = World::usual(ground).await;
    world.meter("storage", CALLS).await;
    let customer = world.tenant("quiet").await;
    world.hours(2).await;
    let foreign = world.stripe.foreign(&customer, "storage", "9", "2026-11-15T13:30:00Z");
    world.until("2026-11-16T04:00:00Z").await;
    assert_eq!(world.findings().await, [], "nothing of the pair has moved here");
    world.hours(1).await;
    // The night sees everyone.
    let night = world.passes(PassKind::Nightly).await.pop().unwrap();
    let rows = world.rows(night.number).await;
    assert_eq!(rows.len(), 4);
    let row = rows.iter().find(|row| row.provider == Some(super::world::quantity("9"))).unwrap();
    assert_eq!((row.tenant.as_str(), row.ledger.to_string()), ("quiet", "0".into()));
    world.only_finding(FindingKind::Usage).await;
    assert_eq!(world.pages(), []);
    world.hours(2).await;
    let finding = world.check_finding(Verdict::Bypass, Reason::ProviderHigher, true).await;
    assert_eq!(finding.seen.subject, "2026-11-15T13:00:00Z/2026-11-15T14:00:00Z");
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
    world.leap("2026-11-17T06:00:00Z").await;
    world.leap("2026-11-18T06:00:00Z").await;
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved], "one call for a tenant and meter");
    world.stripe.lose(&foreign);
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    world.check_opened_and_resolved(AlertKind::DriftUnresolved);
    assert_eq!(world.stripe.calls(POSTS), 0);
}

pub async fn foreign_usage_of_past_days_is_found(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(3).await;
    for day in 16..19 {
        world.leap(&format!("2026-11-{day}T06:00:00Z")).await;
    }
    world.leap("2026-11-19T00:00:00Z").await;
    assert_eq!(world.findings().await, []);
    let foreign = world.stripe.foreign(&customer, "calls", "4", "2026-11-15T11:40:00Z");
    world.hours(4).await;
    assert_eq!(world.findings().await, [], "further back than the hours look");
    world.until("2026-11-19T07:00:00Z").await;
    let finding = world.check_finding(Verdict::Bypass, Reason::ProviderHigher, true).await;
    assert_eq!(finding.seen.subject, "2026-11-15T00:00:00Z/2026-11-16T00:00:00Z");
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
    world.stripe.lose(&foreign);
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    let cleared = world.findings().await.pop().unwrap().cleared_at.unwrap();
    assert!(cleared > at("2026-11-19T07:00:00Z"));
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (1, "30".into()));
}
