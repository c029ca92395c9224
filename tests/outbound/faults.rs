//! What befalls a call on its way: nothing of it loses usage or bills it twice.

use crate::world::{CALLS, World, lock};
use counterfoil::jobs::Job;
use counterfoil::rules::delivery::{Class, PushState};
use stripe_sim::{FaultKind, FaultPlan, FaultRule, Options};

const HOUR: &str = "2026-11-15T12:00:00Z";

/// One call meets the accident; the next one settles it, and the provider counts once.
async fn check(kind: FaultKind, settled: Class) {
    let world = World::with(Options::default(), |config| config.stripe.timeout_ms = 150).await;
    world.meter("calls", CALLS).await;
    let customer = world.tenant("acme").await;
    let push = world.planned("5").await;
    world.fault(kind, 1);
    world.push().await;
    let unknown = world.check(push.number, PushState::Observed, Class::Unknown).await;
    assert!(unknown.detail.is_some(), "{kind:?}: its history says what happened");
    world.pass_hours(2);
    assert_eq!(world.push().await, 1);
    let push = world.check(push.number, PushState::Submitted, settled).await;
    assert_eq!((push.attempts, push.detail), (2, None), "{kind:?}");
    assert_eq!(world.provider_total(&customer, HOUR), "5", "{kind:?}");
    assert_eq!(lock(&world.simulator()).accepted_events(), 1, "{kind:?}");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 1, "{kind:?}");
}

#[tokio::test]
async fn a_call_that_was_executed_and_never_answered() {
    check(FaultKind::HangAfter, Class::Accepted).await;
    check(FaultKind::LostAfter, Class::Accepted).await;
}

#[tokio::test]
async fn a_call_that_never_arrived() {
    check(FaultKind::HangBefore, Class::Accepted).await;
    check(FaultKind::LostBefore, Class::Accepted).await;
}

#[tokio::test]
async fn half_an_answer() {
    check(FaultKind::ResetMidBody, Class::Accepted).await;
}

#[tokio::test]
async fn a_success_that_is_no_answer_of_the_provider() {
    check(FaultKind::Garbage200, Class::Accepted).await;
}

#[tokio::test]
async fn answers_of_something_in_between() {
    check(FaultKind::Error502, Class::Accepted).await;
    check(FaultKind::Error503, Class::Accepted).await;
    check(FaultKind::Error504, Class::Accepted).await;
}

#[tokio::test]
async fn limits_locks_and_keys_in_use() {
    check(FaultKind::RateLimited429, Class::Accepted).await;
    check(FaultKind::LockTimeout429, Class::Accepted).await;
    check(FaultKind::Conflict409, Class::Accepted).await;
}

/// Each byte comes within the timeout, and the whole does not.
#[tokio::test]
async fn an_answer_that_trickles_is_given_up() {
    check(FaultKind::SlowBytes, Class::Accepted).await;
}

#[tokio::test]
async fn an_answer_that_trickles_fast_enough_is_taken() {
    let (world, customer) = World::usual().await;
    let push = world.planned("5").await;
    let rule = FaultRule::new(FaultKind::SlowBytes).on_path(crate::world::EVENTS);
    let plan = FaultPlan { slow_byte_ms: 0, ..FaultPlan::of_rules(vec![rule]) };
    lock(&world.simulator()).set_faults(plan);
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Accepted).await;
    assert_eq!(world.provider_total(&customer, HOUR), "5");
}

/// The provider refuses a second call for a customer and meter while one is under way.
#[tokio::test]
async fn never_two_calls_at_once_for_one_customer_and_meter() {
    let options = Options { latency_ms: 10, ..Options::default() };
    let world = World::with(options, |_| {}).await;
    world.meter("calls", CALLS).await;
    let customers = [world.tenant("acme").await, world.tenant("other").await];
    for _ in 0..6 {
        let now = world.clock.now().to_string();
        world.used("acme", "1", &now).await;
        world.used("other", "1", &now).await;
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
    assert_eq!(customers.map(|customer| world.provider_sum(&customer)), ["6", "6"]);
}

/// A refusal after an attempt with an unknown outcome is not believed: the first may have counted.
#[tokio::test]
async fn a_refusal_after_an_unknown_attempt_is_left_to_the_summary() {
    let (world, customer) = World::usual().await;
    let push = world.planned("5").await;
    world.fault(FaultKind::Error500Executed, 1);
    world.push().await;
    let path = format!("/v1/billing/meters/{}", world.ask_meter());
    world.ask(&format!("{path}/deactivate"), &[]);
    world.pass_hours(1);
    world.push().await;
    world.check(push.number, PushState::Observed, Class::Unknown).await;
    assert_eq!(world.posts(), 2);
    world.ask(&format!("{path}/reactivate"), &[]);
    world.pass_hours(26);
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Present).await;
    assert_eq!((world.posts(), world.provider_total(&customer, HOUR)), (2, "5".to_owned()));
}

/// More digits than a double holds are not sent; the rest is carried.
#[tokio::test]
async fn fifteen_digits_are_sent_and_the_rest_is_carried() {
    let (world, customer) = World::usual().await;
    let push = world.planned("123456789012.123456").await;
    assert_eq!(push.quantity.to_string(), "123456789012.123");
    world.push().await;
    world.check(push.number, PushState::Submitted, Class::Accepted).await;
    let second = world.planned("0.000544").await;
    assert_eq!(second.quantity.to_string(), "0.001");
    world.push().await;
    assert_eq!(world.provider_sum(&customer), "123456789012.124");
    world.pass_hours(1);
    assert_eq!(world.confirm().await, 2);
}
