//! What the provider shows late, and what it took and never counted.

use super::world::{CALLS, Ground, SUMMARIES, World, at};
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::submission::{Class, PushState};
use std::collections::BTreeSet;

/// The first push is taken and dropped without a word, before any summary has shown it.
async fn drop_first(world: &World) {
    world.go_to("2026-11-15T13:00:00Z");
    world.send().await;
    world.stripe.lose(&world.pushes().await[0].key);
    world.work().await;
}

pub async fn lagging_summary_pages_nobody(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.stripe.lock().set_summary_lag(5 * 3_600);
    world.used("acme", "7", "2026-11-15T11:30:00Z").await;
    // Pushed at 13:00, to be seen at 18:00.
    world.until("2026-11-15T14:00:00Z").await;
    world.check_pushes(&[("7", PushState::Submitted, Class::Accepted)]).await;
    let finding = world.check_finding(Verdict::Waiting, Reason::LongLag, false).await;
    assert_eq!(finding.opened_at, at("2026-11-15T14:00:00Z"));
    world.until("2026-11-15T17:00:00Z").await;
    let finding = world.check_finding(Verdict::Waiting, Reason::LongLag, false).await;
    assert_eq!((finding.seen.ledger.to_string(), finding.passes), ("7".into(), 4));
    world.until("2026-11-15T19:00:00Z").await;
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    let cleared = world.findings().await.remove(0).cleared_at.unwrap();
    assert!(cleared <= at("2026-11-15T19:00:00Z"), "{cleared}");
    world.check_pushes(&[("7", PushState::Confirmed, Class::Confirmed)]).await;
    assert_eq!(world.stripe.sum(&customer), "7");
    // The one call is for a push that the summary does not show for more than an hour.
    assert_eq!(world.pages(), [AlertKind::PushesSubmittedLong]);
    world.check_opened_and_resolved(AlertKind::PushesSubmittedLong);
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
}

pub async fn dropped_push_is_sent_again(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "10", "2026-11-15T11:10:00Z").await;
    world.used("acme", "100", "2026-11-15T12:00:00Z").await;
    drop_first(&world).await;
    world.until("2026-11-16T14:00:00Z").await;
    assert_eq!(world.stripe.sum(&customer), "100");
    world.check_finding(Verdict::Waiting, Reason::LongLag, false).await;
    // 26 hours after it was taken the summary decides; the pass sends it again.
    world.hours(6).await;
    world
        .check_pushes(&[
            ("10", PushState::Replaced, Class::Retried),
            ("100", PushState::Reconciled, Class::Reconciled),
            ("10", PushState::Reconciled, Class::Reconciled),
        ])
        .await;
    assert_eq!(world.stripe.sum(&customer), "110");
    assert_eq!(world.stripe.total(&customer, "2026-11-15T11:00:00Z"), "10");
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    let pages = world.pages();
    assert!(!pages.contains(&AlertKind::DriftUnresolved), "{pages:?}");
    assert!(!pages.contains(&AlertKind::DeadLetters), "it heals itself: {pages:?}");
    // Nothing more is sent, whatever happens.
    let posts = world.stripe.calls("POST /v1/billing/meter_events");
    assert_eq!(posts, 3);
    world.rest(30).await;
    assert_eq!(world.stripe.calls("POST /v1/billing/meter_events"), posts);
    assert_eq!(world.stripe.sum(&customer), "110");
    assert_eq!(world.planned_sum().await, "110");
    assert!(world.stripe.calls(SUMMARIES) > 0);
}

pub async fn late_event_after_a_replay_is_billed_once(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "10", "2026-11-15T11:10:00Z").await;
    drop_first(&world).await;
    // A second revision goes out while the first is in doubt, and counts.
    world.used("acme", "1", "2026-11-15T11:20:00Z").await;
    world.hours(1).await;
    assert_eq!(world.stripe.sum(&customer), "1");
    world.until("2026-11-16T20:00:00Z").await;
    assert_eq!(world.stripe.sum(&customer), "11");
    world.used("acme", "1000", "2026-11-15T11:30:00Z").await;
    world.hours(3).await;
    assert_eq!(world.stripe.sum(&customer), "1011");
    assert_eq!(world.planned_sum().await, "1011");
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    assert_eq!(world.stripe.calls("POST /v1/billing/meter_events"), 4);
}

/// Both pushes look dropped after 26 hours, and then the provider's totals catch up. An hourly pass
/// reads one tenant only; the other must not be judged by what was read before.
pub async fn no_push_is_resent_on_a_reading_from_before_its_death(ground: Ground) {
    let world = World::with(ground, |config| config.reconcile.reads_per_hour = 1).await;
    world.meter("calls", CALLS).await;
    let mut customers = Vec::new();
    for tenant in ["t0", "t1"] {
        customers.push(world.tenant(tenant).await);
        world.used(tenant, "10", "2026-11-15T11:10:00Z").await;
    }
    // Taken at 13:00; dead at 16:00 on the next day; shown an hour and a half later.
    world.stripe.lock().set_summary_lag(28 * 3_600 + 1_800);
    world.until("2026-11-15T13:00:00Z").await;
    world.until("2026-11-16T16:00:00Z").await;
    let dead = ("10", PushState::Dead, Class::Absent);
    world.check_pushes(&[dead, dead]).await;
    world.hours(12).await;
    world.rest(30).await;
    for customer in &customers {
        assert_eq!(world.stripe.sum(customer), "10");
    }
    assert_eq!(world.stripe.calls("POST /v1/billing/meter_events"), 2, "nothing is sent again");
    // What shows all the same is for a person to look at.
    world.check_pushes(&[dead, dead]).await;
    let open = world.open_findings(FindingKind::Usage).await;
    let reasons: BTreeSet<Reason> = open.iter().map(|finding| finding.seen.reason).collect();
    // With one read an hour the days may have been read once only.
    let expected = BTreeSet::from([Reason::Doubtful, Reason::ReadOnce]);
    assert!(reasons.contains(&Reason::Doubtful) && reasons.is_subset(&expected), "{open:#?}");
}

/// The first reading after 26 hours is behind; the second shows the push.
pub async fn one_lagging_reading_decides_nothing(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    world.used("acme", "10", "2026-11-15T11:10:00Z").await;
    world.go_to("2026-11-15T13:00:00Z");
    world.send().await;
    world.out_of_reach(SUMMARIES);
    world.until("2026-11-16T14:00:00Z").await;
    world.stripe.faults(Vec::new());
    world.stripe.lock().set_summary_lag(27 * 3_600);
    world.hours(1).await;
    world.check_pushes(&[("10", PushState::Submitted, Class::Accepted)]).await;
    world.stripe.lock().set_summary_lag(0);
    world.hours(3).await;
    world.check_pushes(&[("10", PushState::Reconciled, Class::Reconciled)]).await;
    assert_eq!(world.stripe.sum(&customer), "10");
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}
