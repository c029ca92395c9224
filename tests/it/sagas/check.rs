//! The check that every saga passes: each of its calls fails before and after its effect, is made
//! twice, is the last of a runner, or outlasts its runner's lease; on the way there and on the way
//! back. Whatever happens, it ends completed or compensated, without a person.

use super::script::{Accident, Script};
use super::stories::{Case, Story};
use super::world::{Ground, World};
use counterfoil::rules::saga::{Mark, SagaState};
use std::sync::Arc;

const ACCIDENTS: [Accident; 7] = [
    Accident::FailBefore,
    Accident::FailAfter,
    Accident::KillBefore,
    Accident::KillAfter,
    Accident::StallBefore,
    Accident::StallAfter,
    Accident::Twice,
];

/// One accident at each call on the way there; none of them turns the saga back. Each kind of
/// accident has a world of its own: what a case costs grows with the cases before it.
pub async fn check_there(ground: Ground, story: &dyn Story) {
    for accident in ACCIDENTS {
        let world = World::on(ground.another().await).await;
        let mut number = 1;
        while run(&world, story, Script::new(number, accident), SagaState::Completed).await {
            number += 1;
        }
        assert!(number > 8, "{accident:?}: there are more calls than {number}");
        world.close().await;
    }
}

/// One accident at each call on the way back.
pub async fn check_back(ground: Ground, story: &dyn Story) {
    let world = World::on(ground.another().await).await;
    let straight = Script::default();
    straight.obstruct(Some(story.obstacle()));
    let straight = Arc::new(straight);
    let case = story.begin(&world).await;
    end(&world, story, &case, &straight, SagaState::Compensated).await;
    let calls = straight.calls();
    let turned = calls.iter().rposition(|call| *call == story.obstacle().0).unwrap();
    world.close().await;
    for accident in ACCIDENTS {
        let world = World::on(ground.another().await).await;
        // A runner may also have come to a standstill before another one turned back.
        let stalls = matches!(accident, Accident::StallBefore | Accident::StallAfter);
        let mut number = if stalls { 1 } else { turned + 2 };
        loop {
            let script = Script::new(number, accident);
            script.obstruct(Some(story.obstacle()));
            if !run(&world, story, script, SagaState::Compensated).await {
                break;
            }
            number += 1;
        }
        assert!(number > turned + 4, "{accident:?}: there are calls after {turned}");
        world.close().await;
    }
}

/// The provider refuses one call for good: everything is undone, or nothing was refused.
pub async fn check_refusals(ground: Ground, story: &dyn Story) {
    let world = World::on(ground).await;
    let mut compensated = 0;
    for number in 1.. {
        let case = story.begin(&world).await;
        let script = Arc::new(Script::new(number, Accident::Refuse));
        let state = world.drive(&case.saga, &script).await;
        check_end(&world, story, &case, state).await;
        compensated += usize::from(state == SagaState::Compensated);
        if !script.struck() {
            break;
        }
    }
    assert!(compensated > 0, "no call was refused");
}

/// Whether there was a call with the script's number.
async fn run(world: &World, story: &dyn Story, script: Script, expected: SagaState) -> bool {
    let script = Arc::new(script);
    let case = story.begin(world).await;
    end(world, story, &case, &script, expected).await;
    script.struck()
}

async fn end(
    world: &World,
    story: &dyn Story,
    case: &Case,
    script: &Arc<Script>,
    expected: SagaState,
) {
    let state = world.drive(&case.saga, script).await;
    if state != expected {
        let (saga, log) = world.saga(&case.saga).await;
        panic!("{:?} at {:?}\n{saga:#?}\n{log:#?}", script.planned(), script.calls());
    }
    println!("{:?}", script.planned());
    check_end(world, story, case, state).await;
}

/// Lets the saga end without accidents of the script, and checks that it ended so.
pub async fn check_finish(world: &World, story: &dyn Story, case: &Case, expected: SagaState) {
    assert_eq!(world.finish(&case.saga).await, expected);
    check_end(world, story, case, expected).await;
}

/// What must hold of a saga that has ended, and of its log.
pub async fn check_end(world: &World, story: &dyn Story, case: &Case, state: SagaState) {
    let (saga, log) = world.saga(&case.saga).await;
    let own = || log.iter().filter(|line| line.generation == saga.generation);
    let count = |mark: Mark| own().filter(|line| line.mark == mark).count();
    let last_change = world.changes(&case.tenant).await.pop();
    match state {
        SagaState::Completed => {
            assert_eq!(count(Mark::TurnedBack) + count(Mark::UndoIntent), 0, "{log:#?}");
            assert_eq!(last_change.as_deref(), Some("saga.completed"));
            story.check_completed(world, case).await;
        }
        SagaState::Compensated => {
            assert_eq!(count(Mark::TurnedBack), 1, "{log:#?}");
            assert_eq!(last_change.as_deref(), Some("saga.compensated"));
            story.check_compensated(world, case).await;
        }
        SagaState::Running | SagaState::Compensating | SagaState::NeedsAttention => {
            panic!("it ended {state:?}: {log:#?}")
        }
    }
    // A step acts after its intent, and is done and undone once.
    for (place, line) in log.iter().enumerate() {
        let intent = match line.mark {
            Mark::Done | Mark::Failed | Mark::Stale | Mark::Refused => Mark::Intent,
            Mark::Undone | Mark::UndoFailed => Mark::UndoIntent,
            Mark::Intent | Mark::TurnedBack | Mark::UndoIntent | Mark::Resumed => continue,
        };
        let same = |other: &&counterfoil::rules::saga::LogLine| {
            (other.generation, other.step) == (line.generation, line.step)
        };
        let before = log[..place].iter().rev().find(same).map(|other| other.mark);
        assert_eq!(before, Some(intent), "{log:#?}");
        let again = log[place + 1..].iter().filter(same).any(|other| other.mark == line.mark);
        assert!(!again || !matches!(line.mark, Mark::Done | Mark::Undone), "{log:#?}");
    }
}
