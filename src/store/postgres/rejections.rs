//! Rejections: pushes that the provider took and then refused, as its reports say.
//!
//! Invariant: pushes are locked first, in the order of their numbers, as in `settlements`. One that
//! somebody sends just now is left to its claimant, and one with several attempts to the summary
//! (`rules::delivery::judge_report`).
//!
//! A crash leaves all of a call or nothing. A call that is repeated finds the pushes dead, and
//! those to be looked for due, and changes nothing.

use super::PostgresStore;
use super::push_rows::{Change, StoredPush, log_changes, read_pushes};
use super::scalars::{SqlTimestamp, column, meter_number};
use super::settlements::{Words, apply, turn};
use super::transaction::{Done, Transaction};
use crate::faults::planted;
use crate::rules::delivery::{Class, PushState, Reported, judge_report};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::webhook::{Rejection, RejectionReport};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the history says of a push that is only looked for earlier; the push stays as it is.
const OTHERS_REFUSED: &str = "the provider refused others of its meter that it had taken";

impl PostgresStore {
    pub(super) async fn reject(
        &self,
        rejection: &Rejection,
        at: Timestamp,
    ) -> Result<RejectionReport> {
        let work =
            move |client: Arc<Transaction>| async move { reject_all(&client, rejection, at).await };
        let (report, changes) = self.transact(work).await?;
        log_changes(changes);
        Ok(report)
    }
}

/// Everything but the COMMIT.
async fn reject_all(
    client: &ClientWrapper,
    rejection: &Rejection,
    at: Timestamp,
) -> Done<(RejectionReport, Vec<Change>)> {
    let mut samples: BTreeMap<&str, &str> = BTreeMap::new();
    for (key, said) in &rejection.samples {
        samples.entry(key).or_insert(said);
    }
    let numbers = lock_concerned(client, rejection, &samples).await?;
    let (mut report, mut refused, mut others) = (RejectionReport::default(), vec![], vec![]);
    let stored = read_pushes(client, &numbers).await?;
    for found in &stored {
        let Some(said) = samples.get(found.push.key.as_str()) else {
            if found.push.state == PushState::Submitted && found.push.due_at > at {
                others.push((found, OTHERS_REFUSED));
            }
            continue;
        };
        match judge(found, at) {
            Reported::Refused => {
                let detail = Some((*said).to_owned());
                refused.push((turn(found, (PushState::Dead, Class::Refused), detail), None));
                report.rejected += 1;
            }
            Reported::Look => others.push((found, *said)),
            Reported::Busy => report.busy += 1,
            Reported::LeftAlone => {}
        }
    }
    let mut changes = apply(client, &refused, at).await?;
    let mut rechecked = Vec::with_capacity(others.len());
    for (found, said) in others {
        let push = &found.push;
        let mut same = turn(found, (push.state, push.class), push.detail.clone());
        // One whose outcome is unknown goes on as it would have.
        if push.state == PushState::Submitted {
            same.due_at = at;
        }
        let words = Words { class: Class::Unknown, request_id: None, detail: Some(said) };
        rechecked.push((same, Some(words)));
        report.rechecked += 1;
    }
    changes.extend(apply(client, &rechecked, at).await?);
    Ok((report, changes))
}

fn judge(found: &StoredPush, at: Timestamp) -> Reported {
    let leased = found.leased_until.is_some_and(|until| until > at);
    let attempts = match planted("bug.report_proves_refusal") {
        true => found.push.attempts.min(1),
        false => found.push.attempts,
    };
    judge_report(found.push.state, attempts, leased)
}

/// Locks the pushes that are named, and the meter's others that were taken within the window.
async fn lock_concerned(
    client: &ClientWrapper,
    rejection: &Rejection,
    samples: &BTreeMap<&str, &str>,
) -> Done<Vec<i64>> {
    let sql = "-- lock_concerned
        SELECT push_no FROM pushes
        WHERE push_no IN (
            SELECT push_no FROM pushes WHERE key = ANY ($1)
            UNION ALL
            SELECT push_no FROM pushes
            WHERE state = 'submitted' AND meter_no = $2 AND state_at >= $3 AND state_at < $4
        )
        ORDER BY push_no FOR UPDATE";
    let keys: Vec<&str> = samples.keys().copied().collect();
    let meter = rejection.recheck.map(|(meter, _)| meter_number(meter));
    let start = rejection.recheck.map(|(_, window)| SqlTimestamp(window.start));
    let end = rejection.recheck.map(|(_, window)| SqlTimestamp(window.end));
    let rows = client.query(sql, &[&keys, &meter, &start, &end]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}
