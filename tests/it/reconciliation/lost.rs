//! The ledger is higher: the provider lost what it had counted.

use super::world::{ABSOLUTE, Ground, SUMMARIES, World, quantity};
use counterfoil::jobs::Job;
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::PassKind;
use counterfoil::rules::submission::{Class, PushState};
use stripe_sim::{FaultKind, FaultRule};

const POSTS: &str = "POST /v1/billing/meter_events";

/// Two windows are pushed and confirmed; then the provider loses the first.
async fn losing(world: &World) {
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.used("acme", "500", "2026-11-15T12:00:00Z").await;
    world.until("2026-11-15T16:00:00Z").await;
    let pushes = world.pushes().await;
    assert!(pushes.iter().all(|push| push.state == PushState::Confirmed), "{pushes:?}");
    world.stripe.lose(&pushes[0].key);
}

pub async fn lost_usage_pages_and_is_not_sent_again(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    losing(&world).await;
    world.hours(1).await;
    world.check_finding(Verdict::Waiting, Reason::ReadOnce, false).await;
    assert_eq!(world.pages(), []);
    world.hours(1).await;
    let finding = world.check_finding(Verdict::Replay, Reason::Lost, true).await;
    assert_eq!([finding.seen.ledger, finding.seen.provider], ["30", "0"].map(quantity));
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved]);
    world.rest(24).await;
    assert_eq!(world.pages(), [AlertKind::DriftUnresolved], "told once");
    assert_eq!(world.stripe.calls(POSTS), 2, "and nothing is sent");
    assert_eq!(world.stripe.sum(&customer), "500");
    // The night's row shows it, with the window.
    let night = world.passes(PassKind::Nightly).await.pop().unwrap();
    let row = world.rows(night.number).await.remove(0);
    assert_eq!((row.verdict, row.reason), (Verdict::Replay, Reason::Lost));
    assert_eq!(row.delta().unwrap().to_string(), "-30");
    assert_eq!(row.windows.len(), 1);
    // A dry run shows it and sends nothing.
    let pass = world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", false).await;
    assert_eq!((pass.progress.reissued, pass.progress.replayed), (0, 0));
    world.hours(1).await;
    assert_eq!(world.stripe.calls(POSTS), 2);
}

pub async fn lost_usage_is_corrected_once_where_configured(ground: Ground) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    losing(&world).await;
    world.hours(2).await;
    // The pass that was sure has sent the difference.
    assert_eq!(world.stripe.sum(&customer), "530");
    world.hours(2).await;
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    let confirmed = |quantity| (quantity, PushState::Confirmed, Class::Confirmed);
    let lost = ("-30", PushState::Reconciled, Class::Lost);
    world.check_pushes(&[confirmed("30"), confirmed("500"), lost, confirmed("30")]).await;
    assert_eq!(world.planned_sum().await, "530");
    let passes = world.passes(PassKind::Hourly).await;
    assert_eq!(passes.iter().map(|pass| pass.progress.reissued).sum::<u64>(), 1);
    world.rest(40).await;
    assert_eq!((world.stripe.calls(POSTS), world.stripe.sum(&customer)), (3, "530".into()));
    assert!(!world.pages().contains(&AlertKind::DeadLetters));
    // A late event makes the right revision.
    world.used("acme", "4000", "2026-11-15T11:59:00Z").await;
    world.hours(3).await;
    assert_eq!(world.stripe.sum(&customer), "4530");
    assert_eq!(world.stripe.total(&customer, "2026-11-15T11:00:00Z"), "4030");
    assert_eq!((world.planned_sum().await, world.stripe.calls(POSTS)), ("4530".into(), 4));
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}

pub async fn lost_usage_is_corrected_on_demand(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    losing(&world).await;
    world.hours(3).await;
    assert_eq!(world.notices(AlertKind::DriftUnresolved), [NoticeEvent::Opened]);
    let correct = async || {
        let pass = world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", true).await;
        pass.progress.reissued
    };
    assert_eq!(correct().await, 1);
    // Ordered again before it went out, and after.
    world.pass_seconds(2);
    assert_eq!(correct().await, 0);
    world.send().await;
    world.pass_seconds(2);
    assert_eq!(correct().await, 0);
    assert_eq!(world.stripe.sum(&customer), "530");
    world.hours(3).await;
    assert_eq!((world.stripe.calls(POSTS), world.planned_sum().await), (3, "530".into()));
    world.check_opened_and_resolved(AlertKind::DriftUnresolved);
    // It is lost a second time, and sent a second time.
    let reissue = world.pushes().await.pop().unwrap();
    world.stripe.lose(&reissue.key);
    world.hours(3).await;
    correct().await;
    world.hours(2).await;
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("530".into(), 4));
    assert_eq!(world.planned_sum().await, "530");
}

pub async fn lost_absolute_total_is_sent_again(ground: Ground) {
    let world = World::with(ground, |c| c.reconcile.reissue = true).await;
    world.meter("calls", ABSOLUTE).await;
    let customer = world.tenant("acme").await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T14:00:00Z").await;
    world.used("acme", "5", "2026-11-15T11:20:00Z").await;
    world.until("2026-11-15T16:00:00Z").await;
    assert_eq!(world.stripe.sum(&customer), "35");
    // The second total is lost: the first shows again.
    let pushes = world.pushes().await;
    world.stripe.lose(&pushes[1].key);
    assert_eq!(world.stripe.sum(&customer), "30");
    world.hours(4).await;
    assert_eq!(world.stripe.sum(&customer), "35");
    assert_eq!((world.planned_sum().await, world.stripe.calls(POSTS)), ("35".into(), 3));
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    world.used("acme", "100", "2026-11-15T11:30:00Z").await;
    world.rest(26).await;
    assert_eq!(world.stripe.sum(&customer), "135");
    assert_eq!((world.planned_sum().await, world.stripe.calls(POSTS)), ("135".into(), 4));
    assert_eq!(world.alerted(AlertKind::DeadLetters).await, (0, 0));
}

pub async fn partial_loss_and_a_late_event_are_told_apart(ground: Ground) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T14:00:00Z").await;
    world.used("acme", "5", "2026-11-15T11:20:00Z").await;
    world.until("2026-11-15T16:00:00Z").await;
    let pushes = world.pushes().await;
    world.stripe.lose(&pushes[1].key);
    world.hours(1).await;
    // While it is not sure yet, another late event arrives and is on its way at the next pass.
    world.used("acme", "400", "2026-11-15T11:30:00Z").await;
    world.hours(6).await;
    // What is unconfirmed may be what is missing: nothing is sent until the summary can tell.
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("430".into(), 3));
    world.rest(24).await;
    assert_eq!((world.planned_sum().await, world.stripe.calls(POSTS)), ("435".into(), 4));
    world.hours(6).await;
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("435".into(), 4));
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
}

/// Where losses are corrected: two windows, of 1 and of 20, whose pushes are taken and confirmed.
async fn two_confirmed(ground: Ground) -> (World, String) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    // Something of the tenant moves, so its empty windows are read hour after hour.
    world.used("acme", "1", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T15:00:00Z").await;
    world.used("acme", "20", "2026-11-15T14:30:00Z").await;
    world.go_to("2026-11-15T16:00:00Z");
    world.send().await;
    world.pass_seconds(20 * 60);
    world.jobs.confirmer.pass().await.unwrap();
    let confirmed = |quantity| (quantity, PushState::Confirmed, Class::Confirmed);
    world.check_pushes(&["1", "20"].map(confirmed)).await;
    (world, customer)
}

pub async fn stale_reading_corrects_nothing(ground: Ground) {
    let (world, customer) = two_confirmed(ground).await;
    world.out_of_reach(SUMMARIES);
    world.work().await;
    world.hours(3).await;
    assert_eq!(world.stripe.sum(&customer), "21", "nothing is sent twice");
    assert_eq!(world.findings().await, []);
    world.stripe.faults(Vec::new());
    world.hours(2).await;
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("21".into(), 2));
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
}

pub async fn one_lagging_summary_corrects_nothing(ground: Ground) {
    let (world, customer) = two_confirmed(ground).await;
    // The next reading shows what two readings before the push had shown.
    let behind = FaultRule::new(FaultKind::SummaryLag).on_path(SUMMARIES).times(1);
    world.stripe.faults(vec![behind]);
    world.work().await;
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("21".into(), 2));
    world.hours(5).await;
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("21".into(), 2));
    assert!(world.open_findings(FindingKind::Usage).await.is_empty());
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
    // What is really lost is still found and sent.
    world.stripe.lose(&world.pushes().await[1].key);
    world.hours(5).await;
    assert_eq!((world.stripe.sum(&customer), world.stripe.calls(POSTS)), ("21".into(), 3));
}
