//! Sagas: takes up those that are due, and moves each step by step until it is completed, undone,
//! or has to wait.
//!
//! Invariant: nothing is done at the provider before its intent is in the log, and everything that
//! is written is written under the fence of the claim: a runner that was too slow is refused and
//! stops. What is next is decided by `rules::saga` from the log alone.
//!
//! A crash leaves the saga with its last line and a lease; when that ends, the next claimant does
//! the step again, which finds what was done.

mod cancel_subscription;
mod change_plan;
mod create_subscription;
mod drain;
mod prices;
mod step;

pub use cancel_subscription::CancelParams;
pub use change_plan::ChangeParams;
pub use create_subscription::CreateParams;
pub use drain::boundary_after;
pub use step::PlanTerms;

use super::cut::CutJob;
use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::faults::crash_point;
use crate::provider::{Provider, deadline};
use crate::rules::saga::lifecycle::check_claim;
use crate::rules::saga::{
    Direction, LogLine, Mark, Move, Outcome, Saga, SagaKind, SagaState, StepShape, Tried, Verdict,
    judge_act, judge_undo, next_move, step_key, was_begun, why_turned_back,
};
use crate::rules::timestamp::Timestamp;
use crate::store::outbox::FeedChange;
use crate::store::saga::{ClaimedSaga, SagaProgress};
use crate::store::{self, Store};
use std::sync::Arc;
use std::time::Duration;
use step::{Step, Turn};

/// Sagas of one claim; they are moved one after the other.
const CLAIM_MAX: usize = 8;

pub struct SagasJob {
    store: Arc<dyn Store>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    cutter: CutJob,
    lease_micros: i64,
}

/// A saga in the runner's hands.
struct RunningSaga {
    saga: Saga,
    fence: u64,
    /// Until when the lease holds, by the monotonic clock.
    held_until: Timestamp,
    log: Vec<LogLine>,
    steps: Vec<&'static dyn Step>,
    shapes: Vec<StepShape>,
}

impl Job for SagasJob {
    const NAME: &'static str = "sagas";
    const PAUSE: Duration = Duration::from_millis(500);
    type Done = usize;
    type Error = store::Error;

    /// Moves sagas that are due as far as they go; returns how many it took up.
    async fn pass(&self) -> store::Result<usize> {
        let Some(now) = sure_time(&self.clock, "sagas") else { return Ok(0) };
        let held_until = self.lease_from(self.clock.monotonic());
        let claimed = self.store.claim_sagas(now, self.lease_from(now), CLAIM_MAX).await?;
        let count = claimed.len();
        for claimed in claimed {
            let id = claimed.saga.id.clone();
            // The others of the claim are not to wait for one that fails.
            let moved = match check_claim(&claimed) {
                Ok(()) => self.advance(RunningSaga::new(claimed, held_until)).await,
                Err(fault) => Err(fault.into()),
            };
            if let Err(error) = moved {
                tracing::warn!(saga = id, %error, "saga {id}: the step failed and will be retried");
            }
        }
        Ok(count)
    }
}

impl SagasJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>) -> Self {
        let cutter = CutJob::new(context, provider.limits().digits_max);
        let Context { store, clock, config, .. } = context.clone();
        let lease_micros = i64::from(config.sagas.lease_ms) * 1_000;
        Self { store, provider: Arc::clone(provider), clock, cutter, lease_micros }
    }

    async fn advance(&self, mut running: RunningSaga) -> store::Result<()> {
        loop {
            // The lease ends, and the saga goes on once the clocks agree.
            if sure_time(&self.clock, "sagas").is_none() {
                return Ok(());
            }
            let going = match next_move(&running.shapes, running.saga.generation, &running.log) {
                Move::Act(step) => self.take(&mut running, step, Direction::Act).await?,
                Move::Undo(step) => self.take(&mut running, step, Direction::Undo).await?,
                Move::Complete => self.finish(&mut running, SagaState::Completed).await?,
                Move::Compensated => self.finish(&mut running, SagaState::Compensated).await?,
            };
            if !going {
                return Ok(());
            }
        }
    }

    /// Tries one step; whether to go on at once.
    async fn take(
        &self,
        running: &mut RunningSaga,
        step: usize,
        direction: Direction,
    ) -> store::Result<bool> {
        let again = was_begun(&running.log, running.saga.generation, step);
        let intent = match direction {
            Direction::Act => Mark::Intent,
            Direction::Undo => Mark::UndoIntent,
        };
        // A step that waits, or was cut off, has its intent in the log.
        let begun = running.last_mark(step) == Some(intent);
        // Sagas that were claimed together take turns: the lease of the last may be over by now.
        if !begun || self.clock.monotonic() >= running.held_until {
            let lines = if begun { Vec::new() } else { vec![(step, intent, None, None)] };
            let standing = running.standing(self.clock.now(), Some(self.lease_until()));
            if !self.write(running, lines, standing).await? {
                return Ok(false);
            }
        }
        crash_point("saga.after_intent");
        let outcome = self.try_step(running, step, direction, again).await;
        crash_point("saga.before_result");
        let tried = running.tried(self.clock.now());
        let verdict = match direction {
            Direction::Act => judge_act(tried, outcome),
            Direction::Undo => judge_undo(tried, outcome),
        };
        self.settle(running, step, verdict).await
    }

    async fn try_step(
        &self,
        running: &RunningSaga,
        step: usize,
        direction: Direction,
        again: bool,
    ) -> Outcome {
        let Some(operations) = self.provider.operations() else {
            return Outcome::Refused(
                "the provider that is set up has no subscriptions; sagas need Stripe".into(),
            );
        };
        let turn = Turn {
            store: &*self.store,
            provider: &*self.provider,
            operations,
            cutter: &self.cutter,
            now: self.clock.now(),
            saga: &running.saga,
            fence: running.fence,
            log: &running.log,
            key: step_key(&running.saga, &running.log, step, direction),
            again,
        };
        let action = running.steps[step];
        let work = async {
            let tried = match direction {
                Direction::Act => action.act(&turn).await,
                Direction::Undo => action.undo(&turn).await,
            };
            tried.unwrap_or_else(|outcome| outcome)
        };
        deadline::within(&self.clock, running.held_until, work).await
    }

    async fn settle(
        &self,
        running: &mut RunningSaga,
        step: usize,
        verdict: Verdict,
    ) -> store::Result<bool> {
        let now = self.clock.now();
        let Verdict { lines, state, tries, due_at, detail } = verdict;
        let going = state.is_moving() && due_at <= now;
        let lease_until = going.then(|| self.lease_until());
        let lines = lines.into_iter().map(|(mark, result, why)| (step, mark, result, why));
        let standing = SagaProgress { state, tries, due_at, detail, lease_until };
        Ok(self.write(running, lines.collect(), standing).await? && going)
    }

    async fn finish(&self, running: &mut RunningSaga, state: SagaState) -> store::Result<bool> {
        // What went wrong last may be an undoing that went well later: the reason is in the log.
        let detail = why_turned_back(&running.log, running.saga.generation).map(str::to_owned);
        let due_at = self.clock.now();
        let standing = SagaProgress { state, tries: 0, due_at, detail, lease_until: None };
        self.write(running, Vec::new(), standing).await?;
        Ok(false)
    }

    fn lease_until(&self) -> Timestamp {
        self.lease_from(self.clock.now())
    }

    fn lease_from(&self, now: Timestamp) -> Timestamp {
        now.saturating_add_micros(self.lease_micros)
    }

    /// Writes lines and standing, and takes them over; false if another has the saga.
    async fn write(
        &self,
        running: &mut RunningSaga,
        lines: Vec<(usize, Mark, Option<String>, Option<String>)>,
        standing: SagaProgress,
    ) -> store::Result<bool> {
        let (at, held_until) = (self.clock.now(), self.lease_from(self.clock.monotonic()));
        let lines: Vec<LogLine> =
            lines.into_iter().map(|line| running.log_line(line, at)).collect();
        let changes = running.changes(&standing, lines.len());
        let claim = (running.saga.number, running.fence);
        let (kept, standing_kept) = (lines.clone(), standing.clone());
        if !self.store.record_saga(claim, lines, standing, changes, at).await? {
            tracing::debug!(saga = running.saga.id, "another runner has the saga");
            return Ok(false);
        }
        running.log.extend(kept);
        if standing_kept.lease_until.is_some() {
            running.held_until = held_until;
        }
        running.take_over(standing_kept, at);
        Ok(true)
    }
}

impl RunningSaga {
    fn new(ClaimedSaga { saga, fence, log }: ClaimedSaga, held_until: Timestamp) -> Self {
        let steps = match saga.kind {
            SagaKind::CreateSubscription => create_subscription::steps(),
            SagaKind::ChangePlan => change_plan::steps(),
            SagaKind::CancelSubscription => cancel_subscription::steps(),
        };
        let shapes = steps.iter().map(|step| step.shape()).collect();
        Self { saga, fence, held_until, log, steps, shapes }
    }

    fn tried(&self, now: Timestamp) -> Tried<'_> {
        Tried {
            steps: &self.shapes,
            log: &self.log,
            generation: self.saga.generation,
            tries: self.saga.tries,
            now,
        }
    }

    fn standing(&self, now: Timestamp, lease_until: Option<Timestamp>) -> SagaProgress {
        let Saga { state, tries, ref detail, .. } = self.saga;
        SagaProgress { state, tries, due_at: now, detail: detail.clone(), lease_until }
    }

    fn last_mark(&self, step: usize) -> Option<Mark> {
        let own = |line: &&LogLine| {
            line.generation == self.saga.generation && usize::try_from(line.step) == Ok(step)
        };
        self.log.iter().rev().find(own).map(|line| line.mark)
    }

    fn log_line(
        &self,
        (step, mark, result, detail): (usize, Mark, Option<String>, Option<String>),
        at: Timestamp,
    ) -> LogLine {
        LogLine {
            generation: self.saga.generation,
            step: u32::try_from(step).expect("a saga has few steps"),
            name: self.shapes[step].name.to_owned(),
            mark,
            result,
            detail,
            at,
        }
    }

    fn take_over(&mut self, standing: SagaProgress, at: Timestamp) {
        let SagaProgress { state, tries, due_at, detail, .. } = standing;
        if state != self.saga.state {
            let (id, name) = (&self.saga.id, state.name());
            tracing::info!(saga = id, state = name, detail, "saga {id} is {name}");
            self.saga.state_at = at;
        }
        (self.saga.state, self.saga.tries) = (state, tries);
        (self.saga.due_at, self.saga.detail) = (due_at, detail);
    }

    /// The change that is published when the saga stops, once for each time it does.
    fn changes(&self, standing: &SagaProgress, new_lines: usize) -> Vec<FeedChange> {
        let kind = match standing.state {
            SagaState::Running | SagaState::Compensating => return Vec::new(),
            SagaState::Completed => "saga.completed",
            SagaState::Compensated => "saga.compensated",
            SagaState::NeedsAttention => "saga.needs_attention",
        };
        let Saga { id, kind: saga_kind, tenant, generation, .. } = &self.saga;
        let payload = serde_json::json!({
            "saga": id,
            "kind": saga_kind.name(),
            "tenant": tenant.as_str(),
            "state": standing.state.name(),
            "generation": generation,
            "detail": standing.detail,
        });
        let key = format!("{id}:{}:{}", self.log.len() + new_lines, standing.state.name());
        let tenant = Some(tenant.clone());
        vec![FeedChange { key, kind, tenant, payload: payload.to_string() }]
    }
}
