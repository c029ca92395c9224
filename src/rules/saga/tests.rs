//! Every path through a log, and the keys.

use super::*;
use crate::rules::samples::{acme, key};

const STEPS: [StepShape; 3] = [
    StepShape { name: "one", undoable: true },
    StepShape { name: "two", undoable: true },
    StepShape { name: "three", undoable: true },
];

fn at(seconds: u32) -> Timestamp {
    Span::from_seconds(seconds).after(Timestamp::from_micros(0))
}

fn line(step: u32, mark: Mark) -> LogLine {
    let name = STEPS[usize::try_from(step).expect("small")].name.to_owned();
    LogLine { generation: 1, step, name, mark, result: None, detail: None, at: at(0) }
}

fn lines(marks: &[(u32, Mark)]) -> Vec<LogLine> {
    marks.iter().map(|(step, mark)| line(*step, *mark)).collect()
}

#[test]
fn what_is_next_follows_from_the_log() {
    use Mark::{Done, Failed, Intent, Refused, Stale, TurnedBack, UndoFailed, UndoIntent, Undone};
    let check = |marks: &[(u32, Mark)], expected: Move| {
        assert_eq!(next_move(&STEPS, 1, &lines(marks)), expected, "{marks:?}");
        // What an earlier generation did says nothing about this one.
        assert_eq!(next_move(&STEPS, 2, &lines(marks)), Move::Act(0));
    };
    check(&[], Move::Act(0));
    check(&[(0, Intent)], Move::Act(0));
    check(&[(0, Intent), (0, Failed)], Move::Act(0));
    check(&[(0, Intent), (0, Done)], Move::Act(1));
    check(&[(0, Done), (1, Intent), (1, Stale)], Move::Act(1));
    check(&[(0, Done), (1, Done), (2, Done)], Move::Complete);
    // A step whose outcome is unknown is undone too; one that was refused is not.
    check(&[(0, Done), (1, Intent), (1, Failed), (1, TurnedBack)], Move::Undo(1));
    check(&[(0, Done), (1, Refused), (1, TurnedBack)], Move::Undo(0));
    check(&[(0, Done), (1, TurnedBack), (0, UndoIntent), (0, UndoFailed)], Move::Undo(0));
    check(&[(0, Done), (1, TurnedBack), (0, UndoIntent), (0, Undone)], Move::Compensated);
    check(&[(0, Refused), (0, TurnedBack)], Move::Compensated);
}

#[test]
fn a_saga_turns_back_unless_a_step_is_permanent() {
    let mut steps = STEPS;
    steps[1].undoable = false;
    let check = |marks: &[(u32, Mark)], tries, outcome: Outcome, expected: SagaState| {
        let log = lines(marks);
        let tried = Tried { steps: &steps, log: &log, generation: 1, tries, now: at(100) };
        assert_eq!(judge_act(tried, outcome).state, expected, "{marks:?}");
    };
    let refused = || Outcome::Refused("no".into());
    let retry = || Outcome::Retry("timeout".into());
    check(&[(0, Mark::Intent)], 0, refused(), SagaState::Compensating);
    check(&[(0, Mark::Done), (1, Mark::Intent)], 0, refused(), SagaState::Compensating);
    // It may have happened and cannot be undone.
    let unknown = [(0, Mark::Done), (1, Mark::Intent)];
    check(&unknown, TRIES_MAX - 1, retry(), SagaState::NeedsAttention);
    check(&unknown, TRIES_MAX - 2, retry(), SagaState::Running);
    let done = [(0, Mark::Done), (1, Mark::Done), (2, Mark::Intent)];
    check(&done, 0, refused(), SagaState::NeedsAttention);
    check(&done, TRIES_MAX - 1, retry(), SagaState::NeedsAttention);
    check(&[(0, Mark::Intent)], TRIES_MAX - 1, retry(), SagaState::Compensating);
}

#[test]
fn waiting_is_not_failing_and_failing_waits_longer() {
    let log = lines(&[(0, Mark::Intent)]);
    let tried = |tries| Tried { steps: &STEPS, log: &log, generation: 1, tries, now: at(100) };
    let later = judge_act(tried(3), Outcome::Later(at(500), "pushes".into()));
    assert_eq!((later.tries, later.due_at, later.lines.len()), (3, at(500), 0));
    let due = |tries| judge_act(tried(tries), Outcome::Retry("no".into())).due_at;
    assert_eq!([due(0), due(1), due(2), due(10)], [at(101), at(102), at(104), at(400)]);
    let done = judge_act(tried(3), Outcome::Done("{}".into()));
    assert_eq!((done.tries, done.due_at, done.state), (0, at(100), SagaState::Running));
}

#[test]
fn undoing_that_fails_ends_with_a_person() {
    let log = lines(&[(0, Mark::Done), (1, Mark::TurnedBack), (0, Mark::UndoIntent)]);
    let check = |tries, outcome: Outcome, expected: SagaState| {
        let tried = Tried { steps: &STEPS, log: &log, generation: 1, tries, now: at(100) };
        assert_eq!(judge_undo(tried, outcome).state, expected);
    };
    check(0, Outcome::Retry("no".into()), SagaState::Compensating);
    check(TRIES_MAX - 1, Outcome::Refused("no".into()), SagaState::NeedsAttention);
    check(TRIES_MAX - 1, Outcome::Done("{}".into()), SagaState::Compensating);
}

fn saga(state: SagaState, generation: u32) -> Saga {
    Saga {
        number: 1,
        id: "saga_1".into(),
        kind: SagaKind::ChangePlan,
        tenant: acme(),
        key: key("k"),
        params: "{}".into(),
        state,
        generation,
        tries: 0,
        due_at: at(0),
        detail: None,
        created_at: at(0),
        state_at: at(0),
    }
}

#[test]
fn keys_never_meet_an_answer_of_another_life() {
    let first = saga(SagaState::Running, 1);
    let log = lines(&[(0, Mark::Intent), (0, Mark::Failed)]);
    let key = |saga: &Saga, log: &[LogLine], step, direction| step_key(saga, log, step, direction);
    let act = key(&first, &[], 0, Direction::Act);
    assert_eq!(act.len(), 45);
    // A try after a failure that may have happened is the same request.
    assert_eq!(act, key(&first, &log, 0, Direction::Act));
    let stale = lines(&[(0, Mark::Intent), (0, Mark::Stale)]);
    let others = [
        key(&first, &stale, 0, Direction::Act),
        key(&first, &[], 1, Direction::Act),
        key(&first, &[], 0, Direction::Undo),
        key(&saga(SagaState::Running, 2), &[], 0, Direction::Act),
    ];
    assert!(others.iter().all(|other| *other != act));
    assert_eq!(key(&first, &stale, 1, Direction::Act), others[1]);
}

#[test]
fn a_person_takes_it_up_where_it_stopped() {
    let forward = lines(&[(0, Mark::Done), (1, Mark::Failed)]);
    let back = lines(&[(0, Mark::Done), (1, Mark::TurnedBack), (0, Mark::UndoFailed)]);
    let stuck = saga(SagaState::NeedsAttention, 1);
    assert_eq!(judge_resume(&stuck, &forward), Resumption::GoOn(SagaState::Running));
    assert_eq!(judge_resume(&stuck, &back), Resumption::GoOn(SagaState::Compensating));
    let undone = saga(SagaState::Compensated, 1);
    assert_eq!(judge_resume(&undone, &back), Resumption::StartAnew);
    for state in [SagaState::Running, SagaState::Compensating, SagaState::Completed] {
        assert!(matches!(judge_resume(&saga(state, 1), &[]), Resumption::Refused(_)));
    }
}

#[test]
fn what_is_given_up_is_undone() {
    let log = lines(&[(0, Mark::Intent), (0, Mark::Failed), (0, Mark::Intent)]);
    let tried = Tried { steps: &STEPS, log: &log, generation: 1, tries: 1, now: at(100) };
    let verdict = judge_act(tried, Outcome::GivenUp("too late".into()));
    assert_eq!(verdict.state, SagaState::Compensating);
    let marks: Vec<Mark> = verdict.lines.iter().map(|line| line.0).collect();
    assert_eq!(marks, [Mark::Failed, Mark::TurnedBack]);
    let mut log = log;
    log.extend(marks.into_iter().map(|mark| line(0, mark)));
    assert_eq!(next_move(&STEPS, 1, &log), Move::Undo(0));
}

#[test]
fn a_call_without_an_answer_may_take_effect_later() {
    let check = |marks: &[(u32, Mark)], expected: Option<u32>| {
        let until = unsettled_until(&lines(marks), 1, "one");
        assert_eq!(until, expected.map(at), "{marks:?}");
    };
    check(&[], None);
    check(&[(1, Mark::Intent)], None);
    check(&[(0, Mark::Intent)], Some(600));
    check(&[(0, Mark::Intent), (0, Mark::Failed), (0, Mark::TurnedBack)], Some(600));
    check(&[(0, Mark::Intent), (0, Mark::Failed), (0, Mark::UndoIntent)], Some(600));
    check(&[(0, Mark::Intent), (0, Mark::Done)], None);
    check(&[(0, Mark::Intent), (0, Mark::Refused)], None);
}
