//! Sagas: operations that change things at the provider and here in several steps, and end either
//! with all of them done or with all of them undone.
//!
//! A saga is a list of steps. Its log is durable: the intent of each step is written before the
//! step acts, its result after; undoing a step is logged likewise. What happens next is a function
//! of the log alone, so the holder of the lease continues where the one before was cut off.
//!
//! Invariant: a step acts only after its intent is written, and only after all steps before it are
//! done. Once a saga has turned back it never acts again in that generation; it undoes, last step
//! first, every step that was begun, also one whose outcome is unknown. A saga with a step done
//! that cannot be undone never turns back. Keys hold the generation and the round, so that no
//! request meets an answer the provider keeps of a life that was undone.

pub mod lifecycle;

use super::digest::{digest_fields, hex};
use super::ids::{OnceKey, TenantId};
use super::named::named_enum;
use super::span::Span;
use super::timestamp::Timestamp;

/// Tries of one step or of undoing it, before the saga turns back or needs an operator.
pub const TRIES_MAX: u32 = 12;
/// For how long a call that was not answered may still take effect.
const LATE_CALL: Span = Span::from_minutes(10);
/// Pause before the second try; each further one doubles it.
const PAUSE_FIRST_SECONDS: u32 = 1;
const PAUSE_SECONDS_MAX: u32 = 300;

named_enum! {
    pub enum SagaKind {
        CreateSubscription = "create_subscription",
        ChangePlan = "change_plan",
        CancelSubscription = "cancel_subscription",
    }
}

named_enum! {
    pub enum SagaState {
        Running = "running",
        /// It has turned back and undoes its steps.
        Compensating = "compensating",
        Completed = "completed",
        /// Everything it did is undone.
        Compensated = "compensated",
        /// It can neither go on nor back by itself.
        NeedsAttention = "needs_attention",
    }
}

impl SagaState {
    /// Whether something is still to be done; a tenant has one such saga at most.
    pub fn is_open(self) -> bool {
        match self {
            Self::Running | Self::Compensating | Self::NeedsAttention => true,
            Self::Completed | Self::Compensated => false,
        }
    }

    /// Whether a runner takes it up by itself.
    pub fn is_moving(self) -> bool {
        match self {
            Self::Running | Self::Compensating => true,
            Self::Completed | Self::Compensated | Self::NeedsAttention => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saga {
    /// Order of creation.
    pub number: u64,
    /// Its name in the API and at the provider.
    pub id: String,
    pub kind: SagaKind,
    pub tenant: TenantId,
    /// Under which it was begun once.
    pub key: OnceKey,
    /// What it was asked for, as JSON.
    pub params: String,
    pub state: SagaState,
    /// Grows with each new start after everything was undone.
    pub generation: u32,
    /// Tries of what it is at that have failed in a row.
    pub tries: u32,
    /// When it goes on.
    pub due_at: Timestamp,
    /// What it waits for, or what went wrong last.
    pub detail: Option<String>,
    pub created_at: Timestamp,
    /// When it came into its state.
    pub state_at: Timestamp,
}

named_enum! {
    /// What a line of the log says about its step.
    pub enum Mark {
        /// It is about to act.
        Intent = "intent",
        Done = "done",
        /// It failed and may not have happened; it is tried again under the same key.
        Failed = "failed",
        /// The provider keeps a failure under its key and nothing came of it: the next try has a
        /// new key.
        Stale = "stale",
        /// It surely did not happen and never will.
        Refused = "refused",
        /// The saga goes no further than this step and undoes everything.
        TurnedBack = "turned_back",
        /// It is about to be undone.
        UndoIntent = "undo_intent",
        Undone = "undone",
        UndoFailed = "undo_failed",
        /// A person had it taken up again.
        Resumed = "resumed",
    }
}

/// One line of a saga's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub generation: u32,
    /// The place of the step in the saga.
    pub step: u32,
    /// Its name.
    pub name: String,
    pub mark: Mark,
    /// What the step left for those after it, as JSON.
    pub result: Option<String>,
    /// What went wrong.
    pub detail: Option<String>,
    pub at: Timestamp,
}

/// A step as far as the order of things depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    pub name: &'static str,
    pub undoable: bool,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    Act(usize),
    Undo(usize),
    Complete,
    /// Everything is undone.
    Compensated,
}

/// The state of each step in the current generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    Untouched,
    /// It was begun and its outcome is not known.
    Begun,
    Done,
    Refused,
    Undone,
}

/// What a saga does next, from its log.
pub fn next_move(steps: &[StepShape], generation: u32, log: &[LogLine]) -> Move {
    let states = step_states(steps, generation, log);
    if !has_turned_back(generation, log) {
        let next = states.iter().position(|state| *state != StepState::Done);
        return next.map_or(Move::Complete, Move::Act);
    }
    let touched = |state: &StepState| match state {
        StepState::Begun | StepState::Done => true,
        StepState::Untouched | StepState::Refused | StepState::Undone => false,
    };
    states.iter().rposition(touched).map_or(Move::Compensated, Move::Undo)
}

fn step_states(steps: &[StepShape], generation: u32, log: &[LogLine]) -> Vec<StepState> {
    let mut states = vec![StepState::Untouched; steps.len()];
    for line in log.iter().filter(|line| line.generation == generation) {
        let place = usize::try_from(line.step).ok();
        let Some(state) = place.and_then(|place| states.get_mut(place)) else { continue };
        *state = match line.mark {
            Mark::Intent | Mark::Failed | Mark::Stale => StepState::Begun,
            Mark::Done => StepState::Done,
            Mark::Refused => StepState::Refused,
            Mark::Undone => StepState::Undone,
            Mark::TurnedBack | Mark::UndoIntent | Mark::UndoFailed | Mark::Resumed => *state,
        };
    }
    states
}

fn has_turned_back(generation: u32, log: &[LogLine]) -> bool {
    let mut lines = log.iter().filter(|line| line.generation == generation);
    lines.any(|line| line.mark == Mark::TurnedBack)
}

/// Why a saga turned back in this generation, if it did.
pub fn why_turned_back(log: &[LogLine], generation: u32) -> Option<&str> {
    let turned = |line: &&LogLine| line.generation == generation && line.mark == Mark::TurnedBack;
    log.iter().find(turned).and_then(|line| line.detail.as_deref())
}

/// Whether everything done so far can be undone.
pub fn can_turn_back(steps: &[StepShape], generation: u32, log: &[LogLine]) -> bool {
    let states = step_states(steps, generation, log);
    // A step that was begun and cannot be undone may have happened.
    !steps.iter().zip(states).any(|(step, state)| match state {
        StepState::Done | StepState::Begun => !step.undoable,
        StepState::Untouched | StepState::Refused | StepState::Undone => false,
    })
}

/// The result that a step left in this generation.
pub fn result_of<'l>(log: &'l [LogLine], generation: u32, name: &str) -> Option<&'l str> {
    let done = |line: &&LogLine| {
        line.generation == generation && line.name == name && line.mark == Mark::Done
    };
    log.iter().rev().find(done).and_then(|line| line.result.as_deref())
}

/// Until when a try of a step that has no result may still take effect at the provider; none if
/// the step was never tried or its result is known.
pub fn unsettled_until(log: &[LogLine], generation: u32, name: &str) -> Option<Timestamp> {
    let own = log.iter().rev().filter(|line| line.generation == generation && line.name == name);
    for line in own {
        match line.mark {
            Mark::Intent | Mark::Failed | Mark::Stale => return Some(LATE_CALL.after(line.at)),
            Mark::Done | Mark::Refused => return None,
            Mark::TurnedBack
            | Mark::UndoIntent
            | Mark::Undone
            | Mark::UndoFailed
            | Mark::Resumed => {}
        }
    }
    None
}

/// Whether a step of this generation may have reached the provider before.
pub fn was_begun(log: &[LogLine], generation: u32, step: usize) -> bool {
    log.iter().any(|line| {
        line.generation == generation
            && usize::try_from(line.step) == Ok(step)
            && line.mark == Mark::Intent
    })
}

/// What came of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It happened, or had happened before; with what the steps after it need, as JSON.
    Done(String),
    /// Nothing is wrong; it is looked at again then.
    Later(Timestamp, String),
    /// It failed or nobody knows; trying again under the same key is safe.
    Retry(String),
    /// The provider keeps a failure under the key; a look showed that nothing came of it.
    Stale(String),
    /// It did not happen and will not.
    Refused(String),
    /// It is not tried any more, and an earlier try may have happened or may still happen: the saga
    /// turns back and undoes it.
    GivenUp(String),
}

/// What the runner writes after a try: lines of the log in order, and the saga's new standing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Marks with result and detail, all of the step that was tried.
    pub lines: Vec<(Mark, Option<String>, Option<String>)>,
    pub state: SagaState,
    pub tries: u32,
    pub due_at: Timestamp,
    pub detail: Option<String>,
}

/// A try, as it is judged.
#[derive(Debug, Clone, Copy)]
pub struct Tried<'a> {
    pub steps: &'a [StepShape],
    pub log: &'a [LogLine],
    pub generation: u32,
    /// Tries before this one.
    pub tries: u32,
    pub now: Timestamp,
}

/// Judges what came of acting.
pub fn judge_act(tried: Tried<'_>, outcome: Outcome) -> Verdict {
    let going = |lines, due_at, tries, detail| Verdict {
        lines,
        state: SagaState::Running,
        tries,
        due_at,
        detail,
    };
    match outcome {
        Outcome::Done(result) => going(vec![(Mark::Done, Some(result), None)], tried.now, 0, None),
        // Waiting is not failing: tries stay as they are, and nothing is logged.
        Outcome::Later(at, detail) => going(Vec::new(), at, tried.tries, Some(detail)),
        Outcome::Retry(detail) => fail_act(tried, Mark::Failed, detail),
        Outcome::Stale(detail) => fail_act(tried, Mark::Stale, detail),
        Outcome::Refused(detail) => {
            let refused = (Mark::Refused, None, Some(detail.clone()));
            // The step itself surely did not happen.
            let back = can_turn_back(tried.steps, tried.generation, &without_last(tried));
            turn(tried, vec![refused], detail, back)
        }
        Outcome::GivenUp(detail) => {
            let failed = (Mark::Failed, None, Some(detail.clone()));
            let back = can_turn_back(tried.steps, tried.generation, tried.log);
            turn(tried, vec![failed], detail, back)
        }
    }
}

/// The log without what was written of the step that is being tried.
fn without_last(tried: Tried<'_>) -> Vec<LogLine> {
    let last = tried.log.iter().rev().find(|line| line.generation == tried.generation);
    let step = last.map(|line| line.step);
    let others = tried.log.iter().filter(|line| Some(line.step) != step);
    others.cloned().collect()
}

fn fail_act(tried: Tried<'_>, mark: Mark, detail: String) -> Verdict {
    let tries = tried.tries + 1;
    let line = (mark, None, Some(detail.clone()));
    if tries >= TRIES_MAX {
        let back = can_turn_back(tried.steps, tried.generation, tried.log);
        return turn(tried, vec![line], detail, back);
    }
    let due_at = pause(tries).after(tried.now);
    let (lines, state) = (vec![line], SagaState::Running);
    Verdict { lines, state, tries, due_at, detail: Some(detail) }
}

/// Turns the saga back if that is possible; else a person must look.
fn turn(
    tried: Tried<'_>,
    mut lines: Vec<(Mark, Option<String>, Option<String>)>,
    detail: String,
    back: bool,
) -> Verdict {
    let state = if back {
        lines.push((Mark::TurnedBack, None, Some(detail.clone())));
        SagaState::Compensating
    } else {
        SagaState::NeedsAttention
    };
    Verdict { lines, state, tries: 0, due_at: tried.now, detail: Some(detail) }
}

/// Judges what came of undoing.
pub fn judge_undo(tried: Tried<'_>, outcome: Outcome) -> Verdict {
    let detail = match outcome {
        Outcome::Done(_) => {
            let (lines, state) = (vec![(Mark::Undone, None, None)], SagaState::Compensating);
            return Verdict { lines, state, tries: 0, due_at: tried.now, detail: None };
        }
        Outcome::Later(due_at, detail) => {
            let (state, tries) = (SagaState::Compensating, tried.tries);
            return Verdict { lines: Vec::new(), state, tries, due_at, detail: Some(detail) };
        }
        Outcome::Retry(detail)
        | Outcome::Stale(detail)
        | Outcome::Refused(detail)
        | Outcome::GivenUp(detail) => detail,
    };
    let tries = tried.tries + 1;
    let state = match tries >= TRIES_MAX {
        true => SagaState::NeedsAttention,
        false => SagaState::Compensating,
    };
    let lines = vec![(Mark::UndoFailed, None, Some(detail.clone()))];
    Verdict { lines, state, tries, due_at: pause(tries).after(tried.now), detail: Some(detail) }
}

fn pause(tries: u32) -> Span {
    let doubled = PAUSE_FIRST_SECONDS.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX);
    Span::from_seconds(doubled.min(PAUSE_SECONDS_MAX))
}

/// What a person's wish to take it up again makes of a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Resumption {
    /// It goes on where it stopped.
    GoOn(SagaState),
    /// It starts anew in the next generation.
    StartAnew,
    Refused(&'static str),
}

fn judge_resume(saga: &Saga, log: &[LogLine]) -> Resumption {
    match saga.state {
        SagaState::NeedsAttention if has_turned_back(saga.generation, log) => {
            Resumption::GoOn(SagaState::Compensating)
        }
        SagaState::NeedsAttention => Resumption::GoOn(SagaState::Running),
        SagaState::Compensated => Resumption::StartAnew,
        SagaState::Running | SagaState::Compensating => Resumption::Refused("it is still running"),
        SagaState::Completed => Resumption::Refused("it is completed"),
    }
}

/// Which way a request of a saga goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Act,
    Undo,
}

/// The key of a step's request at the provider: the same for each try, another one after the
/// provider kept a failure under it, and another one in each generation.
pub fn step_key(saga: &Saga, log: &[LogLine], step: usize, direction: Direction) -> String {
    let place = u32::try_from(step).unwrap_or(u32::MAX);
    // Undoing sets things to what they were, so a new key at each try does no harm, and no failure
    // that the provider keeps is met twice.
    let renewed = match direction {
        Direction::Act => Mark::Stale,
        Direction::Undo => Mark::UndoFailed,
    };
    let stale = |line: &&LogLine| {
        line.generation == saga.generation && line.step == place && line.mark == renewed
    };
    let round = u64::try_from(log.iter().filter(stale).count()).unwrap_or(u64::MAX);
    let direction = match direction {
        Direction::Act => b"act".as_slice(),
        Direction::Undo => b"undo",
    };
    let digest = digest_fields([
        b"counterfoil saga v1".as_slice(),
        saga.id.as_bytes(),
        &saga.generation.to_be_bytes(),
        &place.to_be_bytes(),
        &round.to_be_bytes(),
        direction,
    ]);
    format!("cfs1-{}", hex(&digest[..20]))
}

/// The name of a saga: derived from its key, so that beginning it twice names one saga.
pub fn saga_id(secret: &[u8; 32], tenant: &TenantId, key: &OnceKey) -> String {
    let digest = digest_fields([
        b"counterfoil saga id v1".as_slice(),
        secret,
        tenant.as_str().as_bytes(),
        key.as_str().as_bytes(),
    ]);
    format!("saga_{}", hex(&digest[..12]))
}

#[cfg(test)]
mod tests;
