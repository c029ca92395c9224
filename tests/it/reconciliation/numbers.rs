//! The three numbers that must be zero, tolerance, and numbers that a double cannot hold.

use super::world::{EVENTS, Ground, World};
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::PassKind;
use counterfoil::rules::span::Span;
use counterfoil::store::push::PushAges;

/// Pushes observed for five minutes, submitted for an hour, and tenants that drift.
async fn numbers(world: &World) -> (u64, u64, u64) {
    let now = world.clock.now();
    let ages = PushAges {
        observed_before: Span::from_minutes(5).before(now),
        submitted_before: Span::from_hours(1).before(now),
    };
    let counts = world.store.count_pushes(ages).await.unwrap();
    let drifting = world.store.count_drifting_tenants().await.unwrap();
    (counts.observed_long, counts.submitted_long, drifting)
}

pub async fn the_three_numbers_return_to_zero(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.out_of_reach(EVENTS);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(3).await;
    assert_eq!(numbers(&world).await, (1, 0, 0));
    world.stripe.lock().set_summary_lag(4 * 3_600);
    world.stripe.faults(Vec::new());
    world.hours(3).await;
    assert_eq!(numbers(&world).await, (0, 1, 0));
    world.hours(4).await;
    assert_eq!(numbers(&world).await, (0, 0, 0));
    world.stripe.lock().set_summary_lag(0);
    let foreign = world.stripe.foreign(&customer, "calls", "1", "2026-11-15T11:40:00Z");
    world.hours(3).await;
    assert_eq!(numbers(&world).await, (0, 0, 1));
    world.stripe.lose(&foreign);
    world.hours(2).await;
    assert_eq!(numbers(&world).await, (0, 0, 0));
    let open: Vec<_> =
        world.alerts().await.into_iter().filter(|a| a.resolved_at.is_none()).collect();
    assert_eq!(open, []);
    assert_eq!(
        world.pages(),
        [AlertKind::PushesObservedLong, AlertKind::PushesSubmittedLong, AlertKind::DriftUnresolved]
    );
    assert_eq!(world.stripe.sum(&customer), "30");
}

pub async fn what_is_within_tolerance_is_no_finding(ground: Ground) {
    let world = World::with(ground, |config| config.reconcile.reissue = true).await;
    let spec = r#"{"aggregation":"sum","drift_tolerance":"0.5","billing":{"from":"2026-11-15T00:00:00Z"}}"#;
    world.meter("calls", spec).await;
    let customer = world.tenant("acme").await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(3).await;
    world.stripe.foreign(&customer, "calls", "0.5", "2026-11-15T11:40:00Z");
    world.hours(3).await;
    let pass = world.passes(PassKind::Hourly).await.pop().unwrap();
    assert_eq!(pass.progress.verdicts.get(&Verdict::Tolerance), Some(&1));
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    world.until("2026-11-16T06:00:00Z").await;
    let night = world.passes(PassKind::Nightly).await.pop().unwrap();
    let row = world.rows(night.number).await.remove(0);
    assert_eq!((row.verdict, row.delta().unwrap().to_string()), (Verdict::Tolerance, "0.5".into()));
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
    // One step further is drift.
    world.stripe.foreign(&customer, "calls", "0.000001", "2026-11-15T11:41:00Z");
    world.hours(3).await;
    world.check_finding(Verdict::Bypass, Reason::ProviderHigher, true).await;
    assert_eq!(world.stripe.sum(&customer), "30.500001");
}

pub async fn more_digits_than_a_double_holds(ground: Ground) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    // Fifteen digits: sent, and equal all the same.
    world.used("acme", "100000000.000001", "2026-11-15T11:10:00Z").await;
    world.used("acme", "7", "2026-11-15T12:00:00Z").await;
    world.hours(4).await;
    assert_eq!(world.findings().await, []);
    assert_eq!(world.stripe.sum(&customer), "100000007.000001");
    // It differs: nothing is decided by numbers that may not be exact, and nothing is sent.
    world.stripe.lose(&world.pushes().await[0].key);
    world.stripe.foreign(&customer, "calls", "100000000", "2026-11-15T11:40:00Z");
    world.hours(3).await;
    world.check_finding(Verdict::Undecidable, Reason::Digits, true).await;
    assert_eq!(world.stripe.sum(&customer), "100000007");
    assert_eq!(world.stripe.calls("POST /v1/billing/meter_events"), 2);
}
