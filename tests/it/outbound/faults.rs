//! What befalls a call on its way: nothing of it loses usage or bills it twice.

use crate::world::{CALLS, Ground, World};
use counterfoil::jobs::Job;
use counterfoil::rules::submission::{Class, PushState};
use stripe_sim::{FaultKind, FaultPlan, FaultRule, Options};

const HOUR: &str = "2026-11-15T12:00:00Z";

/// One call meets the accident; the next one settles it, and the provider counts once.
async fn check(ground: Ground, kind: FaultKind, settled: Class) {
    let world = World::with(ground, |config| config.stripe.timeout_ms = 150).await;
    world.meter("calls", CALLS).await;
    let customer = world.tenant("acme").await;
    let push = world.planned("5").await;
    world.stripe.fault(kind, 1);
    world.push().await;
    let unknown = world.check(push.number, PushState::Observed, Class::Unknown).await;
    assert!(unknown.detail.is_some(), "{kind:?}: its history says what happened");
    world.pass_hours(2);
    assert_eq!(world.push().await, 1);
    let push = world.check(push.number, PushState::Submitted, settled).await;
    assert_eq!((push.attempts, push.detail), (2, None), "{kind:?}");
    assert_eq!(world.stripe.total(&customer, HOUR), "5", "{kind:?}");
    assert_eq!(world.stripe.lock().accepted_events(), 1, "{kind:?}");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 1, "{kind:?}");
}

pub async fn unanswered_executed_call_counts_once(ground: Ground) {
    check(ground.another().await, FaultKind::HangAfter, Class::Accepted).await;
    check(ground.another().await, FaultKind::LostAfter, Class::Accepted).await;
}

pub async fn unanswered_lost_call_counts_once(ground: Ground) {
    check(ground.another().await, FaultKind::HangBefore, Class::Accepted).await;
    check(ground.another().await, FaultKind::LostBefore, Class::Accepted).await;
}

pub async fn truncated_answer_counts_once(ground: Ground) {
    check(ground, FaultKind::ResetMidBody, Class::Accepted).await;
}

pub async fn unreadable_success_counts_once(ground: Ground) {
    check(ground, FaultKind::Garbage200, Class::Accepted).await;
}

pub async fn gateway_errors_count_once(ground: Ground) {
    check(ground.another().await, FaultKind::Error502, Class::Accepted).await;
    check(ground.another().await, FaultKind::Error503, Class::Accepted).await;
    check(ground.another().await, FaultKind::Error504, Class::Accepted).await;
}

pub async fn rate_limits_and_conflicts_count_once(ground: Ground) {
    check(ground.another().await, FaultKind::RateLimited429, Class::Accepted).await;
    check(ground.another().await, FaultKind::LockTimeout429, Class::Accepted).await;
    check(ground.another().await, FaultKind::Conflict409, Class::Accepted).await;
}

/// Each byte comes within the timeout, and the whole does not.
pub async fn an_answer_that_trickles_is_given_up(ground: Ground) {
    check(ground, FaultKind::SlowBytes, Class::Accepted).await;
}

pub async fn an_answer_that_trickles_fast_enough_is_taken(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    let rule = FaultRule::new(FaultKind::SlowBytes).on_path(crate::world::EVENTS);
    let plan = FaultPlan { slow_byte_ms: 0, ..FaultPlan::of_rules(vec![rule]) };
    world.stripe.lock().set_faults(plan);
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Accepted).await;
    assert_eq!(world.stripe.total(&customer, HOUR), "5");
}

/// The provider refuses a second call for a customer and meter while one is under way.
pub async fn never_two_calls_at_once_for_one_customer_and_meter(ground: Ground) {
    let options = Options { latency_ms: 10, ..Options::default() };
    let world = World::with_stripe(ground, options, |_| {}).await;
    world.meter("calls", CALLS).await;
    let customers = [world.tenant("acme").await, world.tenant("other").await];
    for _ in 0..6 {
        world.used("acme", "1", world.clock.now()).await;
        world.used("other", "1", world.clock.now()).await;
        world.pass_hours(1);
    }
    world.pass_hours(2);
    assert_eq!(world.cut().await.pushes, 12);
    // Two servers, each with many calls at one time.
    let other = world.other_server(|_| {});
    let (one, two) = tokio::join!(world.jobs.submitter.pass(), other.submitter.pass());
    one.unwrap();
    two.unwrap();
    for push in world.pushes().await {
        assert_eq!((push.state, push.attempts), (PushState::Submitted, 1), "{push:?}");
    }
    assert_eq!(world.posts(), 12);
    assert_eq!(customers.map(|customer| world.stripe.sum(&customer)), ["6", "6"]);
}

/// A refusal after an attempt with an unknown outcome is not believed: the first may have counted.
pub async fn a_refusal_after_an_unknown_attempt_is_left_to_the_summary(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("5").await;
    world.stripe.fault(FaultKind::Error500Executed, 1);
    world.push().await;
    let path = format!("/v1/billing/meters/{}", world.stripe.find_meter("calls").unwrap());
    world.stripe.ask(&format!("{path}/deactivate"), &[]);
    world.pass_hours(1);
    world.push().await;
    world.check(push.number, PushState::Observed, Class::Unknown).await;
    assert_eq!(world.posts(), 2);
    world.stripe.ask(&format!("{path}/reactivate"), &[]);
    world.pass_hours(26);
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Present).await;
    assert_eq!((world.posts(), world.stripe.total(&customer, HOUR)), (2, "5".to_owned()));
}

/// More digits than a double holds are not sent; the rest is carried.
pub async fn fifteen_digits_are_sent_and_the_rest_is_carried(ground: Ground) {
    let (world, customer) = World::usual(ground).await;
    let push = world.planned("123456789012.123456").await;
    assert_eq!(push.quantity.to_string(), "123456789012.123");
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Accepted).await;
    let second = world.planned("0.000544").await;
    assert_eq!(second.quantity.to_string(), "0.001");
    world.push().await;
    assert_eq!(world.stripe.sum(&customer), "123456789012.124");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 2);
}
