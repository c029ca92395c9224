//! Sagas against a provider that has accidents by seed: answers lost before and after the effect,
//! failures kept under their key, limits, conflicts and silence.

use super::check::check_end;
use super::script::Script;
use super::stories::{Cancel, Change, Create, Story};
use super::world::{Ground, World};
use counterfoil::rules::saga::SagaState;
use counterfoil::store::saga::Resumed;
use std::sync::Arc;
use stripe_sim::{FaultKind, FaultPlan};

const KINDS: [FaultKind; 12] = [
    FaultKind::LostBefore,
    FaultKind::LostAfter,
    FaultKind::ResetMidBody,
    FaultKind::Error500Executed,
    FaultKind::Error500NotExecuted,
    FaultKind::Error502,
    FaultKind::Error503,
    FaultKind::Error504,
    FaultKind::Garbage200,
    FaultKind::RateLimited429,
    FaultKind::LockTimeout429,
    FaultKind::Conflict409,
];
/// Calls in a thousand that meet each of them: three in ten meet one. A step of five calls may use
/// up its twelve tries then, and a person has it go on when the provider is well again.
const PER_MILLE: u64 = 25;
/// Enough that nearly every kind is met.
const SEEDS: u64 = 60;
/// Silence costs a real second, so there is little of it.
const SILENT_PER_MILLE: u64 = 4;

pub async fn sagas_complete_despite_seeded_provider_faults(ground: Ground) {
    check_seeds(ground, SagaState::Completed).await;
}

pub async fn sagas_are_undone_despite_seeded_provider_faults(ground: Ground) {
    check_seeds(ground, SagaState::Compensated).await;
}

async fn check_seeds(ground: Ground, expected: SagaState) {
    let world = World::on(ground).await;
    let stories: [&dyn Story; 5] = [
        &Create { with_customer: false },
        &Create { with_customer: true },
        &Change,
        &Cancel { at_once: true },
        &Cancel { at_once: false },
    ];
    let mut as_expected = 0;
    for (seed, story) in (0..SEEDS).zip(stories.into_iter().cycle()) {
        let case = story.begin(&world).await;
        let back = expected == SagaState::Compensated;
        let mut plan = FaultPlan::seeded(seed, PER_MILLE, &KINDS);
        let silence = [FaultKind::HangBefore, FaultKind::HangAfter];
        plan.per_mille.extend(silence.map(|kind| (kind, SILENT_PER_MILLE)));
        plan.paths = ["customers", "subscriptions", "invoices", "credit_notes"]
            .map(|path| format!("/v1/{path}"))
            .to_vec();
        world.stripe.lock().set_faults(plan);
        let script = Arc::new(Script::default());
        script.obstruct(back.then(|| story.obstacle()));
        let mut state = world.drive(&case.saga, &script).await;
        world.stripe.faults(Vec::new());
        println!("seed {seed}: {state:?}");
        if state == SagaState::NeedsAttention {
            let resumed = world.store.resume_saga(&case.saga, world.clock.now()).await.unwrap();
            assert!(matches!(resumed, Resumed::Done(_)), "{resumed:?}");
            state = world.finish(&case.saga).await;
        }
        check_end(&world, story, &case, state).await;
        as_expected += u64::from(state == expected);
    }
    let injected = world.stripe.lock().faults_injected().clone();
    println!("{as_expected} of {SEEDS} {expected:?}; {injected:?}");
    let kinds = KINDS.iter().filter(|kind| injected.contains_key(kind)).count();
    assert!(kinds >= KINDS.len() - 2, "{injected:?}");
    // On the way there twelve failures in a row turn some back, which is rare.
    assert!(as_expected * 10 >= SEEDS * 9, "{as_expected} of {SEEDS}");
}
