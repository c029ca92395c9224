//! A customer that was deleted at the provider, and a tenant that becomes another customer.

use super::world::{ABSOLUTE, CALLS, Ground, SUMMARIES, World};
use counterfoil::rules::alert::{AlertKind, NoticeEvent};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::FindingKind;
use counterfoil::rules::pass::PassKind;
use counterfoil::rules::submission::{Class, PushState};
use stripe_sim::{CustomerCheck, SimRequest};

const POSTS: &str = "POST /v1/billing/meter_events";

pub async fn a_deleted_customer_is_a_page_and_its_usage_is_shown(ground: Ground) {
    check(ground, CustomerCheck::Synchronous).await;
}

pub async fn customer_deletion_reported_late_is_found(ground: Ground) {
    check(ground, CustomerCheck::Asynchronous).await;
}

async fn check(ground: Ground, told: CustomerCheck) {
    let (world, customer) = World::usual_with(ground, |c| c.reconcile.reissue = true).await;
    world.stripe.lock().set_customer_check(told);
    world.used("acme", "30", "2026-11-15T11:10:00Z").await;
    world.hours(3).await;
    world.stripe.answer(&SimRequest::new("DELETE", &format!("/v1/customers/{customer}")));
    world.used("acme", "400", "2026-11-15T14:10:00Z").await;
    world.hours(1).await;
    assert_eq!(world.notices(AlertKind::CustomerDeleted), [NoticeEvent::Opened]);
    // Usage goes on; none of it vanishes.
    world.used("acme", "5000", "2026-11-15T15:10:00Z").await;
    world.hours(2).await;
    world
        .check_pushes(&[
            ("30", PushState::Confirmed, Class::Confirmed),
            ("400", PushState::Dead, Class::Refused),
            ("5000", PushState::Dead, Class::Refused),
        ])
        .await;
    let alerts = world.alerts().await;
    let unbilled = alerts.iter().filter(|alert| alert.kind == AlertKind::Unbilled);
    assert_eq!(unbilled.count(), 1);
    assert!(world.pages().contains(&AlertKind::DeadLetters));
    assert_eq!(world.stripe.sum(&customer), "30");
    // The tenant becomes another customer, and what is dead is sent for that one.
    let next = world.tenant("acme").await;
    for push in world.pushes().await.iter().filter(|push| push.state == PushState::Dead) {
        world.store.retry_push(push.number, world.clock.now()).await.unwrap();
    }
    world.hours(6).await;
    assert_eq!(world.stripe.sum(&next), "5400", "and not what the first has paid for");
    assert_eq!(world.stripe.sum(&customer), "30");
    assert_eq!((world.planned_sum().await, world.stripe.calls(POSTS)), ("5430".into(), 5));
    world.check_opened_and_resolved(AlertKind::CustomerDeleted);
    assert_eq!(world.alerted(AlertKind::DeadLetters).await.1, 0);
}

pub async fn a_window_stays_with_the_customer_it_was_sent_to(ground: Ground) {
    check_change(ground, CALLS).await;
}

pub async fn an_absolute_window_stays_with_the_customer_it_was_sent_to(ground: Ground) {
    check_change(ground, ABSOLUTE).await;
}

/// 10 are sent for one customer; the tenant is mapped to another, and 2 more come for the window.
async fn check_change(ground: Ground, meter: &str) {
    let world = World::with(ground, |c| c.reconcile.reissue = true).await;
    world.meter("calls", meter).await;
    let first = world.tenant("acme").await;
    world.used("acme", "10", "2026-11-15T11:10:00Z").await;
    world.until("2026-11-15T14:00:00Z").await;
    assert_eq!(world.stripe.sum(&first), "10");
    let second = world.tenant("acme").await;
    world.used("acme", "2", "2026-11-15T11:20:00Z").await;
    world.used("acme", "500", "2026-11-15T13:30:00Z").await;
    world.until("2026-11-15T18:00:00Z").await;
    assert_eq!(world.stripe.sum(&first), "12", "the window keeps its customer");
    assert_eq!(world.stripe.sum(&second), "500", "windows that were not sent go to the new one");
    // The days and the windows of both are compared, each with its own total.
    world.rest(60).await;
    assert_eq!(world.findings().await, []);
    assert_eq!(world.alerted(AlertKind::DriftUnresolved).await, (0, 0));
    assert_eq!((world.planned_sum().await, world.stripe.calls(POSTS)), ("512".into(), 3));
    let pass = world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", false).await;
    let row = world.rows(pass.number).await.remove(0);
    assert_eq!((row.verdict, row.reason), (Verdict::Equal, Reason::Matches));
    assert_eq!(
        (row.pushed.to_string(), row.provider.unwrap().to_string()),
        ("512".into(), "512".into())
    );
    // What the old customer lost is found there, and sent there again.
    let lost = world.pushes().await.into_iter().find(|push| push.quantity.to_string() == "2");
    world.stripe.lose(&lost.unwrap().key);
    world.one_shot("2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", true).await;
    world.hours(6).await;
    assert_eq!((world.stripe.sum(&first), world.stripe.sum(&second)), ("12".into(), "500".into()));
    assert_eq!(world.stripe.calls(POSTS), 4);
}

/// Old findings of one customer and meter are read together, and end when the totals agree.
pub async fn findings_of_a_former_customer_are_cleared(ground: Ground) {
    let (world, first) = World::usual(ground).await;
    for hour in 0..12 {
        world.used("acme", "10", &format!("2026-11-15T{hour:02}:10:00Z")).await;
    }
    world.until("2026-11-15T16:00:00Z").await;
    let foreign: Vec<String> = (0..12)
        .map(|hour| {
            world.stripe.foreign(&first, "calls", "5", &format!("2026-11-15T{hour:02}:40:00Z"))
        })
        .collect();
    world.hours(3).await;
    assert_eq!(world.open_findings(FindingKind::Usage).await.len(), 12);
    world.tenant("acme").await;
    world.rest(72).await;
    assert!(world.open_findings(FindingKind::Usage).await.len() >= 12, "nothing has changed");
    let before = world.passes(PassKind::Hourly).await.len();
    world.hours(1).await;
    let passes = world.passes(PassKind::Hourly).await;
    assert_eq!(passes.len(), before + 1);
    assert!(passes[before].progress.reads <= 6, "{:?}", passes[before]);
    assert!(world.stripe.calls(SUMMARIES) > 0);
    for identifier in foreign {
        world.stripe.lose(&identifier);
    }
    world.hours(3).await;
    assert_eq!(world.open_findings(FindingKind::Usage).await, []);
    assert_eq!(
        world.notices(AlertKind::DriftUnresolved),
        [NoticeEvent::Opened, NoticeEvent::Resolved]
    );
}
