//! The life of a saga in the store: how it is begun, claimed and resumed.
//!
//! Invariant: a tenant has one open saga at most, and one saga under each key. Every claim and
//! resuming a saga raises its fence, so that whatever an earlier claimant still writes is
//! refused. A log agrees with its saga: generations only grow, a step acts after its intent is
//! written, and a saga that has turned back acts no more in that generation.

use super::{LogLine, Mark, Resumption, Saga, SagaKind, SagaState, TRIES_MAX, judge_resume};
use crate::rules::fault::{Fault, must};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSaga {
    /// See `rules::saga::saga_id`.
    pub id: String,
    pub kind: SagaKind,
    pub tenant: TenantId,
    pub key: OnceKey,
    /// As JSON.
    pub params: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    Created(Saga),
    /// It was begun before, under this key.
    Repeated(Saga),
    /// Another one was begun under the key; nothing was written.
    KeyTaken(Saga),
    /// This one of the tenant's is open; nothing was written.
    Busy(Saga),
}

/// A saga with its fence and its whole log, oldest first. Only the claimant of the fence advances
/// it, until its lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedSaga {
    pub saga: Saga,
    pub fence: u64,
    pub log: Vec<LogLine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    Done(Saga),
    Refused(&'static str),
    /// Another saga of the tenant is open.
    Busy(Saga),
    NotFound,
}

/// What resuming writes: the saga as it is then, without a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumedSaga {
    pub saga: Saga,
    /// The fence that was read, and the one that takes its place.
    pub fence_before: u64,
    pub fence: u64,
    pub line: LogLine,
}

/// Plans the beginning of a saga: `standing` is the one under its key, `open` the tenant's open
/// one. The plan is the saga to write, whose number the store gives it.
pub fn plan_begin(
    new: &NewSaga,
    standing: Option<Saga>,
    open: Option<Saga>,
    at: Timestamp,
) -> Result<Plan<Saga, Begun>, Fault> {
    let NewSaga { id, kind, tenant, key, params } = new;
    if let Some(standing) = standing {
        check_saga(&standing)?;
        must!(
            standing.tenant == *tenant && standing.key == *key,
            "a saga is found under its tenant and key",
            "tenant={tenant} key={key} saga={}",
            standing.id
        );
        must!(
            standing.id == *id,
            "a saga's id follows from its tenant and key",
            "tenant={tenant} key={key} saga={} asked={id}",
            standing.id
        );
        let same = standing.kind == *kind && standing.params == *params;
        return Ok(Plan::Answer(match same {
            true => Begun::Repeated(standing),
            false => Begun::KeyTaken(standing),
        }));
    }
    if let Some(open) = open {
        check_open(&open, tenant)?;
        return Ok(Plan::Answer(Begun::Busy(open)));
    }
    Ok(Plan::Write(Saga {
        number: 0,
        id: id.clone(),
        kind: *kind,
        tenant: tenant.clone(),
        key: key.clone(),
        params: params.clone(),
        state: SagaState::Running,
        generation: 1,
        tries: 0,
        due_at: at,
        detail: None,
        created_at: at,
        state_at: at,
    }))
}

/// Answers the beginning of a saga that was written under this number.
pub fn answer_begun(number: u64, written: Saga) -> Result<Begun, Fault> {
    must!(number > 0, "a saga has a number", "saga={}", written.id);
    Ok(Begun::Created(Saga { number, ..written }))
}

/// Plans how a saga is resumed: `other` is another open one of its tenant.
pub fn plan_resume(
    found: ClaimedSaga,
    other: Option<Saga>,
    at: Timestamp,
) -> Result<Plan<ResumedSaga, Resumed>, Fault> {
    check_saga(&found.saga)?;
    check_log(&found.saga, &found.log)?;
    let ClaimedSaga { saga, fence: fence_before, log } = found;
    let (state, generation) = match judge_resume(&saga, &log) {
        Resumption::Refused(why) => return Ok(Plan::Answer(Resumed::Refused(why))),
        Resumption::GoOn(state) => (state, saga.generation),
        Resumption::StartAnew => (SagaState::Running, saga.generation.saturating_add(1)),
    };
    if let Some(other) = other {
        check_open(&other, &saga.tenant)?;
        must!(other.number != saga.number, "another saga has another number", "saga={}", saga.id);
        return Ok(Plan::Answer(Resumed::Busy(other)));
    }
    // The lease ends, and an earlier claimant may still be at work: the fence refuses its writes.
    let fence = fence_before.saturating_add(1);
    must!(fence > fence_before, "resuming raises the fence", "saga={} fence={fence}", saga.id);
    must!(
        generation > saga.generation || saga.state == SagaState::NeedsAttention,
        "a saga that was undone starts anew in a later generation",
        "saga={} generation={generation}",
        saga.id
    );
    must!(state.is_moving(), "a resumed saga moves", "saga={} state={}", saga.id, state.name());
    let (name, mark) = ("saga".to_owned(), Mark::Resumed);
    let line = LogLine { generation, step: 0, name, mark, result: None, detail: None, at };
    let (tries, due_at, detail, state_at) = (0, at, None, at);
    let saga = Saga { state, generation, tries, due_at, detail, state_at, ..saga };
    Ok(Plan::Write(ResumedSaga { saga, fence_before, fence, line }))
}

/// The facts that must hold of a saga that was just claimed.
pub fn check_claim(claimed: &ClaimedSaga) -> Result<(), Fault> {
    let ClaimedSaga { saga, fence, log } = claimed;
    must!(*fence > 0, "a claim raises the fence", "saga={} fence={fence}", saga.id);
    must!(
        saga.state.is_moving(),
        "only a saga that moves is claimed",
        "saga={} state={}",
        saga.id,
        saga.state.name()
    );
    check_saga(saga)?;
    check_log(saga, log)
}

/// The facts that must hold of a saga that was read.
fn check_saga(saga: &Saga) -> Result<(), Fault> {
    let Saga { id, generation, tries, created_at, .. } = saga;
    must!(saga.number > 0, "a stored saga has a number", "saga={id}");
    must!(*generation > 0, "generations begin at one", "saga={id}");
    must!(
        *tries <= TRIES_MAX,
        "a saga is tried a bounded number of times",
        "saga={id} tries={tries}"
    );
    must!(!id.is_empty(), "a saga has an id", "saga_no={} created_at={created_at}", saga.number);
    Ok(())
}

fn check_open(open: &Saga, tenant: &TenantId) -> Result<(), Fault> {
    must!(
        open.state.is_open(),
        "the saga that keeps another from beginning is open",
        "saga={} state={}",
        open.id,
        open.state.name()
    );
    must!(
        open.tenant == *tenant,
        "a saga keeps only its own tenant's others from beginning",
        "saga={} tenant={tenant}",
        open.id
    );
    Ok(())
}

/// The facts that must hold of a saga's log.
fn check_log(saga: &Saga, log: &[LogLine]) -> Result<(), Fault> {
    let id = &saga.id;
    let mut generation = 1;
    let mut turned_back = false;
    let mut begun: BTreeSet<u32> = BTreeSet::new();
    for line in log {
        must!(
            line.generation >= generation,
            "the generations of a log only grow",
            "saga={id} generation={} after={generation}",
            line.generation
        );
        if line.generation > generation {
            generation = line.generation;
            turned_back = false;
            begun.clear();
        }
        let acts = matches!(line.mark, Mark::Intent | Mark::Done | Mark::Failed | Mark::Stale);
        must!(
            !(acts && turned_back),
            "a saga that has turned back acts no more",
            "saga={id} step={} mark={}",
            line.step,
            line.mark.name()
        );
        match line.mark {
            Mark::Intent => {
                begun.insert(line.step);
            }
            Mark::TurnedBack => turned_back = true,
            Mark::Done | Mark::Failed | Mark::Stale | Mark::Refused => must!(
                begun.contains(&line.step),
                "a step acts after its intent is written",
                "saga={id} step={} mark={}",
                line.step,
                line.mark.name()
            ),
            Mark::UndoIntent | Mark::Undone | Mark::UndoFailed => must!(
                turned_back,
                "only a saga that has turned back undoes",
                "saga={id} step={} mark={}",
                line.step,
                line.mark.name()
            ),
            Mark::Resumed => {}
        }
        must!(
            line.result.is_none() || line.mark == Mark::Done,
            "only a step that is done leaves a result",
            "saga={id} step={} mark={}",
            line.step,
            line.mark.name()
        );
    }
    must!(
        generation <= saga.generation,
        "no line of a log is of a generation to come",
        "saga={id} generation={} line={generation}",
        saga.generation
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::samples::fact;

    fn saga(state: SagaState, generation: u32) -> Saga {
        Saga {
            number: 5,
            id: "saga_1".to_owned(),
            kind: SagaKind::ChangePlan,
            tenant: TenantId::parse("acme").expect("valid"),
            key: OnceKey::parse("k").expect("valid"),
            params: "{}".to_owned(),
            state,
            generation,
            tries: 3,
            due_at: Timestamp::from_micros(1),
            detail: Some("HTTP 500".to_owned()),
            created_at: Timestamp::from_micros(1),
            state_at: Timestamp::from_micros(1),
        }
    }

    fn new() -> NewSaga {
        let Saga { id, kind, tenant, key, params, .. } = saga(SagaState::Running, 1);
        NewSaga { id, kind, tenant, key, params }
    }

    fn line(generation: u32, step: u32, mark: Mark) -> LogLine {
        let at = Timestamp::from_micros(1);
        LogLine { generation, step, name: String::new(), mark, result: None, detail: None, at }
    }

    const NOW: Timestamp = Timestamp::from_micros(9);

    #[test]
    fn a_saga_is_begun_once_and_alone() {
        let standing = saga(SagaState::Completed, 1);
        let plan = |new: &NewSaga, standing: Option<&Saga>, open: Option<&Saga>| {
            plan_begin(new, standing.cloned(), open.cloned(), NOW)
        };
        let Ok(Plan::Write(written)) = plan(&new(), None, None) else { panic!("none stored") };
        assert_eq!((written.state, written.generation, written.tries), (SagaState::Running, 1, 0));
        assert_eq!((written.due_at, written.created_at, written.state_at), (NOW, NOW, NOW));
        let Ok(Begun::Created(begun)) = answer_begun(8, written.clone()) else {
            panic!("numbered")
        };
        assert_eq!(begun, Saga { number: 8, ..written.clone() });
        assert_eq!(fact(answer_begun(0, written)), "a saga has a number");
        let repeated = plan(&new(), Some(&standing), None);
        assert_eq!(repeated, Ok(Plan::Answer(Begun::Repeated(standing.clone()))));
        let other = NewSaga { params: "[]".to_owned(), ..new() };
        let taken = plan(&other, Some(&standing), None);
        assert_eq!(taken, Ok(Plan::Answer(Begun::KeyTaken(standing))));
        let open = saga(SagaState::NeedsAttention, 1);
        assert_eq!(plan(&new(), None, Some(&open)), Ok(Plan::Answer(Begun::Busy(open))));
    }

    #[test]
    fn sagas_that_contradict_themselves_stop_a_beginning() {
        let check = |change: fn(&mut Saga), expected: &str| {
            let mut standing = saga(SagaState::Completed, 1);
            change(&mut standing);
            assert_eq!(fact(plan_begin(&new(), Some(standing), None, NOW)), expected);
        };
        check(|saga| saga.number = 0, "a stored saga has a number");
        check(|saga| saga.generation = 0, "generations begin at one");
        check(|saga| saga.tries = 13, "a saga is tried a bounded number of times");
        check(|saga| saga.id.clear(), "a saga has an id");
        check(|saga| saga.id.push('x'), "a saga's id follows from its tenant and key");
        let key = |saga: &mut Saga| saga.key = OnceKey::parse("other").expect("valid");
        check(key, "a saga is found under its tenant and key");
        let check = |change: fn(&mut Saga), expected: &str| {
            let mut open = saga(SagaState::Running, 1);
            change(&mut open);
            assert_eq!(fact(plan_begin(&new(), None, Some(open), NOW)), expected);
        };
        let ended = "the saga that keeps another from beginning is open";
        check(|saga| saga.state = SagaState::Completed, ended);
        let tenant = |saga: &mut Saga| saga.tenant = TenantId::parse("umbrella").expect("valid");
        check(tenant, "a saga keeps only its own tenant's others from beginning");
    }

    #[test]
    fn resuming_raises_the_fence() {
        let check = |state, log: Vec<LogLine>, expected: (SagaState, u32)| {
            let found = ClaimedSaga { saga: saga(state, 2), fence: 4, log };
            let plan = plan_resume(found, None, NOW).expect("sound");
            let Plan::Write(resumed) = plan else { panic!("{plan:?}") };
            let ResumedSaga { saga, fence_before, fence, line } = resumed;
            assert_eq!((fence_before, fence), (4, 5));
            assert_eq!((saga.state, saga.generation), expected);
            assert_eq!((saga.tries, saga.detail, saga.due_at, saga.state_at), (0, None, NOW, NOW));
            assert_eq!((line.mark, line.generation, line.at), (Mark::Resumed, expected.1, NOW));
        };
        check(SagaState::NeedsAttention, Vec::new(), (SagaState::Running, 2));
        let back = vec![line(2, 0, Mark::Intent), line(2, 0, Mark::TurnedBack)];
        check(SagaState::NeedsAttention, back.clone(), (SagaState::Compensating, 2));
        check(SagaState::Compensated, back, (SagaState::Running, 3));
        let found = |state| ClaimedSaga { saga: saga(state, 2), fence: 4, log: Vec::new() };
        for state in [SagaState::Running, SagaState::Compensating, SagaState::Completed] {
            let plan = plan_resume(found(state), None, NOW).expect("sound");
            assert!(matches!(plan, Plan::Answer(Resumed::Refused(_))), "{plan:?}");
        }
        let other = Saga { number: 6, ..saga(SagaState::Running, 1) };
        let busy = plan_resume(found(SagaState::Compensated), Some(other.clone()), NOW);
        assert_eq!(busy, Ok(Plan::Answer(Resumed::Busy(other.clone()))));
        let itself = Saga { number: 5, ..other };
        let plan = plan_resume(found(SagaState::Compensated), Some(itself), NOW);
        assert_eq!(fact(plan), "another saga has another number");
        let last = ClaimedSaga { fence: u64::MAX, ..found(SagaState::Compensated) };
        assert_eq!(fact(plan_resume(last, None, NOW)), "resuming raises the fence");
        let mut ageless = found(SagaState::Compensated);
        ageless.saga.generation = u32::MAX;
        let expected = "a saga that was undone starts anew in a later generation";
        assert_eq!(fact(plan_resume(ageless, None, NOW)), expected);
    }

    #[test]
    fn logs_that_contradict_their_saga_stop_it() {
        let check = |log: Vec<LogLine>, expected: Option<&str>| {
            let claimed = ClaimedSaga { saga: saga(SagaState::Running, 2), fence: 1, log };
            assert_eq!(check_claim(&claimed).err().map(|fault| fault.fact), expected);
        };
        let sound = [
            line(1, 0, Mark::Intent),
            line(1, 0, Mark::Failed),
            line(1, 0, Mark::TurnedBack),
            line(1, 0, Mark::UndoIntent),
            line(1, 0, Mark::Undone),
            line(2, 0, Mark::Resumed),
            line(2, 0, Mark::Intent),
        ];
        check(sound.to_vec(), None);
        let grown = "the generations of a log only grow";
        check(vec![line(2, 0, Mark::Intent), line(1, 0, Mark::Intent)], Some(grown));
        let future = "no line of a log is of a generation to come";
        check(vec![line(3, 0, Mark::Intent)], Some(future));
        let acts = "a saga that has turned back acts no more";
        check(vec![line(2, 0, Mark::TurnedBack), line(2, 0, Mark::Intent)], Some(acts));
        let intent = "a step acts after its intent is written";
        check(vec![line(2, 0, Mark::Intent), line(2, 1, Mark::Done)], Some(intent));
        let undo = "only a saga that has turned back undoes";
        check(vec![line(2, 0, Mark::Intent), line(2, 0, Mark::Undone)], Some(undo));
        let result = LogLine { result: Some("{}".to_owned()), ..line(2, 0, Mark::Intent) };
        check(vec![result], Some("only a step that is done leaves a result"));
        let claimed = |state, fence| ClaimedSaga { saga: saga(state, 2), fence, log: Vec::new() };
        let unclaimed = check_claim(&claimed(SagaState::Running, 0));
        assert_eq!(fact(unclaimed), "a claim raises the fence");
        let still = check_claim(&claimed(SagaState::Completed, 1));
        assert_eq!(fact(still), "only a saga that moves is claimed");
    }
}
