//! Admissions: quarantined events that a person has counted.
//!
//! They do not wait in the queue: there are few of them, and the store records one group of a
//! partition at a time. A crash leaves an event counted and its record decided, or neither.

use super::{Ingest, SubmitError};
use crate::rules::decision::{Decision, QuarantineState};
use crate::rules::event::{Event, Item, parse_event};
use crate::rules::meter::Catalog;
use crate::rules::refusal::Refusal;
use crate::rules::verdict::{FUTURE_MICROS_MAX, Verdict};
use crate::store::decision::{AdmissionBatch, QuarantineRecord};
use std::sync::atomic::Ordering;

/// Events that one transaction admits.
pub const ADMISSIONS_MAX: usize = 500;

/// The outcome for an event that was to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    Decided(QuarantineState),
    /// It cannot be counted now and stays undecided.
    Left(Refusal),
}

/// The event of a record, unless it cannot be read any more.
pub fn read_record(record: &QuarantineRecord, catalog: &Catalog) -> Result<Event, Refusal> {
    let unreadable = |error: serde_json::Error| {
        Refusal::new("unreadable_payload", format!("the stored payload cannot be read: {error}"))
    };
    let item: Item<'_> = serde_json::from_str(&record.payload).map_err(unreadable)?;
    parse_event(&item, catalog).map_err(|refused| refused.refusal)
}

impl Ingest {
    /// Counts events of one tenant that are undecided, at most [`ADMISSIONS_MAX`], each once and at
    /// its own time. The outcome of each, in order; none, and no effect, if one of them was decided
    /// meanwhile.
    pub async fn admit(
        &self,
        records: &[QuarantineRecord],
        catalog: &Catalog,
        decision: &Decision,
    ) -> Result<Option<Vec<Admitted>>, SubmitError> {
        let Some(first) = records.first() else { return Ok(Some(Vec::new())) };
        let (mut numbers, mut events) = (Vec::new(), Vec::new());
        let mut answers: Vec<Option<Refusal>> = Vec::with_capacity(records.len());
        for record in records {
            answers.push(match admissible(record, catalog, decision) {
                Ok(event) => {
                    numbers.push(record.number);
                    events.push(event);
                    None
                }
                Err(refusal) => Some(refusal),
            });
        }
        let (tenant, decision) = (first.tenant.clone(), decision.clone());
        let groups_per_day = self.settings.groups_per_day;
        let total = events.len();
        let batch = AdmissionBatch { tenant, numbers, events, decision, groups_per_day };
        let Some(verdicts) = self.record_admissions(batch).await? else { return Ok(None) };
        assert_eq!(verdicts.len(), total, "one verdict for each event");
        let mut verdicts = verdicts.iter();
        let answer = |refused: Option<Refusal>| match refused {
            Some(refusal) => Admitted::Left(refusal),
            None => became(verdicts.next().expect("one verdict for each event")),
        };
        Ok(Some(answers.into_iter().map(answer).collect()))
    }

    async fn record_admissions(
        &self,
        batch: AdmissionBatch,
    ) -> Result<Option<Vec<Verdict>>, SubmitError> {
        if batch.events.is_empty() {
            return Ok(Some(Vec::new()));
        }
        // A store is closed after all that was begun has ended.
        self.groups_running.fetch_add(1, Ordering::SeqCst);
        let recorded = match self.stopping.load(Ordering::SeqCst) {
            true => Err(SubmitError::Stopping),
            false => {
                let watched = self.watched.among(&batch.events);
                let partition = self.partition_of(&batch.tenant);
                let recorded = self.store.record_admissions(partition, batch).await;
                self.watched.mark(watched);
                recorded.map_err(SubmitError::from)
            }
        };
        self.groups_running.fetch_sub(1, Ordering::SeqCst);
        self.idle.notify_waiters();
        recorded
    }
}

/// The event of a record, if it can be counted now.
fn admissible(
    record: &QuarantineRecord,
    catalog: &Catalog,
    decision: &Decision,
) -> Result<Event, Refusal> {
    let event = read_record(record, catalog)?;
    // Windows are cut when they have closed, of tenants that received something by then.
    if event.occurred_at > decision.at.saturating_add_micros(FUTURE_MICROS_MAX) {
        let detail = format!("it lies ahead, at {}; admit it then", event.occurred_at);
        return Err(Refusal::new("still_ahead", detail));
    }
    Ok(event)
}

fn became(verdict: &Verdict) -> Admitted {
    match (QuarantineState::of_admission(verdict), verdict) {
        (Some(state), _) => Admitted::Decided(state),
        (None, Verdict::Rejected(refusal)) => Admitted::Left(refusal.clone()),
        (None, _) => Admitted::Left(Refusal::new(
            "too_many_groups",
            "the tenant's meter has as many groups on that day as ingest.groups_per_day allows; \
             raise it and admit the event then, or discard it",
        )),
    }
}
