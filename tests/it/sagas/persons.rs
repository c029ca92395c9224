//! What a person has to do with sagas: those that are stuck are shown and go on when they are
//! resumed, and what was undone starts anew; and runners that work at the same time.

use super::check::{check_end, check_finish};
use super::script::Script;
use super::stories::{Cancel, Change, Create, Story};
use super::world::{Ground, World, prices_of};
use counterfoil::jobs::Job;
use counterfoil::rules::alert::AlertKind;
use counterfoil::rules::saga::{Mark, SagaState};
use counterfoil::store::Query;
use counterfoil::store::alert::AlertFilter;
use counterfoil::store::saga::Resumed;
use std::sync::Arc;
use stripe_sim::{FaultKind, FaultRule};

/// An obstacle on the way there, and accidents of the provider on the way back.
fn obstructed(story: &dyn Story) -> Arc<Script> {
    let script = Script::default();
    script.obstruct(Some(story.obstacle()));
    Arc::new(script)
}

pub async fn failed_undo_needs_a_person(ground: Ground) {
    let world = World::on(ground).await;
    let story = Create { with_customer: false };
    let case = story.begin(&world).await;
    let fails = FaultRule::new(FaultKind::Error503).on_call("DELETE /v1/subscriptions/:id");
    world.stripe.faults(vec![fails.times(1_000)]);
    let state = world.drive(&case.saga, &obstructed(&story)).await;
    assert_eq!(state, SagaState::NeedsAttention);
    let (saga, log) = world.saga(&case.saga).await;
    let failed = log.iter().filter(|line| line.mark == Mark::UndoFailed).count();
    assert_eq!(failed, 12, "{log:#?}");
    assert!(saga.detail.is_some());
    assert_eq!(world.changes(&case.tenant).await, ["saga.needs_attention"]);
    world.jobs.alerter.pass().await.unwrap();
    assert_eq!(open_alerts(&world).await, [case.saga.as_str()]);
    // Nothing moves by itself.
    world.clock.advance(3_600_000_000);
    assert_eq!(world.runner(&Arc::default()).pass().await.unwrap(), 0);
    world.stripe.faults(Vec::new());
    let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
    assert!(matches!(&resumed, Resumed::Done(saga) if saga.state == SagaState::Compensating));
    check_finish(&world, &story, &case, SagaState::Compensated).await;
    world.clock.advance(3_600_000_000);
    world.jobs.alerter.pass().await.unwrap();
    assert_eq!(open_alerts(&world).await, Vec::<String>::new());
}

/// A new start would charge again: it has to wait until the money of the first life is given back.
pub async fn saga_is_not_restarted_before_the_refund(ground: Ground) {
    let world = World::on(ground).await;
    let story = Create { with_customer: true };
    let case = story.begin(&world).await;
    let fails = FaultRule::new(FaultKind::Error503).on_call("POST /v1/credit_notes");
    world.stripe.faults(vec![fails.times(1_000)]);
    let state = world.drive(&case.saga, &obstructed(&story)).await;
    assert_eq!(state, SagaState::NeedsAttention);
    assert_eq!(world.kept(case.customer_id()), 500);
    let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
    assert!(matches!(&resumed, Resumed::Done(saga) if saga.generation == 1), "{resumed:?}");
    world.stripe.faults(Vec::new());
    check_finish(&world, &story, &case, SagaState::Compensated).await;
    let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
    assert!(matches!(&resumed, Resumed::Done(saga) if saga.generation == 2), "{resumed:?}");
    check_finish(&world, &story, &case, SagaState::Completed).await;
}

/// A cancellation of which nobody knows whether it happened can neither be undone nor left.
pub async fn unknown_outcome_needs_a_person(ground: Ground) {
    let world = World::on(ground).await;
    let story = Cancel { at_once: true };
    let case = story.begin(&world).await;
    let fails = FaultRule::new(FaultKind::Error503).on_call("DELETE /v1/subscriptions/:id");
    world.stripe.faults(vec![fails.times(1_000)]);
    assert_eq!(world.finish(&case.saga).await, SagaState::NeedsAttention);
    world.stripe.faults(Vec::new());
    let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
    assert!(matches!(&resumed, Resumed::Done(saga) if saga.state == SagaState::Running));
    check_finish(&world, &story, &case, SagaState::Completed).await;
    assert_eq!(world.changes(&case.tenant).await, ["saga.needs_attention", "saga.completed"]);
}

/// The prices that were set are set back at the subscription of the former customer, or an operator
/// is asked; they are never called undone because the tenant has another customer now.
pub async fn undo_needs_the_customer_of_the_change(ground: Ground) {
    let world = World::on(ground).await;
    let case = Change.begin(&world).await;
    let script = obstructed(&Change);
    while prices_of(&case.subscription_now(&world)) != world.prices[1..2] {
        world.runner(&script).pass().await.unwrap();
        world.jobs.submitter.pass().await.unwrap();
        world.wait_for(&case.saga).await;
    }
    let other = world.stripe.customer();
    world.map(&case.tenant, &other).await;
    assert_eq!(world.drive(&case.saga, &script).await, SagaState::NeedsAttention);
    world.map(&case.tenant, case.customer_id()).await;
    let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
    assert!(matches!(&resumed, Resumed::Done(saga) if saga.state == SagaState::Compensating));
    let state = world.drive(&case.saga, &script).await;
    assert_eq!(state, SagaState::Compensated);
    check_end(&world, &Change, &case, state).await;
}

async fn open_alerts(world: &World) -> Vec<String> {
    let kind = Some(AlertKind::SagaNeedsAttention);
    let query = Query::first(AlertFilter { open: Some(true), kind }, 10);
    let found = world.store.list_alerts(query).await.unwrap();
    found.into_iter().map(|alert| alert.subject).collect()
}

/// The provider keeps answers for a day: none of the first life may be met in the second.
pub async fn undone_saga_can_be_restarted(ground: Ground) {
    let world = World::on(ground).await;
    for with_customer in [false, true] {
        let story = Create { with_customer };
        let case = story.begin(&world).await;
        let state = world.drive(&case.saga, &obstructed(&story)).await;
        assert_eq!(state, SagaState::Compensated);
        check_end(&world, &story, &case, state).await;
        let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
        assert!(matches!(&resumed, Resumed::Done(saga) if saga.generation == 2), "{resumed:?}");
        let again = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
        assert!(matches!(again, Resumed::Refused(_)), "{again:?}");
        check_finish(&world, &story, &case, SagaState::Completed).await;
        let made = world.made_customers(&case.tenant).len();
        assert_eq!(made, if with_customer { 0 } else { 2 }, "the first is abandoned");
        assert_eq!(world.changes(&case.tenant).await, ["saga.compensated", "saga.completed"]);
        let completed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
        assert!(matches!(completed, Resumed::Refused(_)), "{completed:?}");
    }
}

pub async fn concurrent_runners_do_each_step_once(ground: Ground) {
    let world = World::on(ground).await;
    for round in 0..10 {
        let story: &dyn Story = match round % 2 {
            0 => &Create { with_customer: false },
            _ => &Change,
        };
        let cases = [story.begin(&world).await, story.begin(&world).await];
        let quiet = Arc::default();
        let runners = [world.runner(&quiet), world.runner(&quiet), world.runner(&quiet)];
        let passes = runners.each_ref().map(|runner| runner.pass());
        let taken = futures_util::future::join_all(passes).await;
        let taken: usize = taken.into_iter().map(|taken| taken.unwrap()).sum();
        assert_eq!(taken, cases.len(), "each is claimed by one runner");
        for case in &cases {
            let state = world.finish(&case.saga).await;
            check_end(&world, story, case, state).await;
            assert_eq!(state, SagaState::Completed);
        }
    }
}
