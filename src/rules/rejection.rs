//! Reports of pushes that the provider took and then refused.
//!
//! Invariant: only a push that the provider may have taken once, and that no summary has shown,
//! becomes dead here. One that is being sent is left to its claimant, and one with several attempts
//! to the summary. Asking again changes nothing that was done.

use super::fault::{Fault, must};
use super::ids::MeterNo;
use super::push::StoredPush;
use super::settlement::{Change, plan_looking, plan_refused};
use super::submission::PushState;
use super::timestamp::Timestamp;
use super::window::Window;
use std::collections::{BTreeMap, BTreeSet};

/// What the history says of a push that is only looked for earlier; the push stays as it is.
const OTHERS_REFUSED: &str = "the provider refused others of its meter that it had taken";

/// Pushes that the provider took and then refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The keys that it named, each with what it said.
    pub samples: Vec<(String, String)>,
    /// The meter whose other submitted pushes, taken within the window, are to be looked for at
    /// once.
    pub recheck: Option<(MeterNo, Window)>,
}

impl Rejection {
    /// The keys that are named, each with what was said of it first.
    pub fn first_samples(&self) -> BTreeMap<&str, &str> {
        let mut samples: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, said) in &self.samples {
            samples.entry(key).or_insert(said);
        }
        samples
    }
}

/// Their outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RejectionReport {
    pub rejected: u64,
    /// Submitted pushes that were to be looked for later, and are now at once.
    pub rechecked: u64,
    /// Named ones that are being sent again just now; ask again later.
    pub busy: u64,
}

/// What a report says of a push that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// It was refused and did not count.
    Refused,
    /// An earlier attempt may have counted: the summary decides.
    Look,
    /// It is being sent at this moment; ask again.
    Busy,
    LeftAlone,
}

/// What a report means for a push that it names. A report names the push, not the attempt, so it
/// proves a refusal only if there was one attempt: an earlier one with an unknown outcome may have
/// counted before the cause of the refusal arose.
pub fn judge_report(state: PushState, attempts: u32, leased: bool) -> Reported {
    match state {
        // Under this key it was never sent, so the provider means something else.
        PushState::Observed if attempts == 0 => Reported::LeftAlone,
        PushState::Observed if leased => Reported::Busy,
        PushState::Observed | PushState::Submitted if attempts > 1 => Reported::Look,
        PushState::Observed | PushState::Submitted => Reported::Refused,
        PushState::Waiting
        | PushState::Confirmed
        | PushState::Reconciled
        | PushState::Dead
        | PushState::Discarded
        | PushState::Replaced => Reported::LeftAlone,
    }
}

/// Plans what a report changes. `concerned` are the pushes that it names, and the submitted ones of
/// the meter that were taken within its window; each once.
pub fn plan_rejection(
    rejection: &Rejection,
    concerned: &[StoredPush],
    at: Timestamp,
) -> Result<(RejectionReport, Vec<Change>), Fault> {
    let samples = rejection.first_samples();
    let (mut report, mut changes) = (RejectionReport::default(), Vec::new());
    let (mut others, mut numbers) = (Vec::new(), BTreeSet::new());
    for found in concerned {
        let push = &found.push;
        let number = push.number;
        must!(numbers.insert(number), "a report concerns a push once", "push={number}");
        let Some(said) = samples.get(push.key.as_str()) else {
            others.extend(plan_other(rejection, found, at)?);
            continue;
        };
        let leased = found.leased_until.is_some_and(|until| until > at);
        let attempts = push.attempts;
        match judge_report(push.state, attempts, leased) {
            Reported::Refused => {
                must!(
                    attempts <= 1,
                    "a report refuses no push of several attempts",
                    "tenant={} push={number} attempts={attempts}",
                    push.tenant
                );
                changes.push(plan_refused(found, said, at)?);
                report.rejected += 1;
            }
            Reported::Look => changes.push(plan_looking(found, said, at)?),
            Reported::Busy => report.busy += 1,
            Reported::LeftAlone => {}
        }
    }
    changes.extend(others);
    let changed = u64::try_from(changes.len()).unwrap_or(u64::MAX);
    report.rechecked = changed - report.rejected;
    Ok((report, changes))
}

/// A submitted push that the report does not name is looked for at once, unless it is due.
fn plan_other(
    rejection: &Rejection,
    found: &StoredPush,
    at: Timestamp,
) -> Result<Option<Change>, Fault> {
    let push = &found.push;
    // One that was settled while the store waited for its row has another state, and its moment.
    if push.state != PushState::Submitted || push.due_at <= at {
        return Ok(None);
    }
    must!(
        rejection.recheck.is_some_and(|(meter, taken_in)| {
            meter == push.meter && taken_in.contains(push.state_at)
        }),
        "a report concerns the pushes that it names and those taken with them",
        "tenant={} push={} state_at={}",
        push.tenant,
        push.number,
        push.state_at
    );
    plan_looking(found, OTHERS_REFUSED, at).map(Some)
}

#[cfg(test)]
mod tests;
