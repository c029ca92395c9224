//! Rejections: pushes that the provider took and then refused, as its reports say.
//!
//! Invariant: pushes are locked first, in the order of their numbers, as in `settlements`. One that
//! somebody sends just now is left to its claimant, who may learn better.
//!
//! A crash leaves all of a call or nothing. A call that is repeated finds the pushes dead, and
//! those to be looked for due, and changes nothing.

use super::PostgresStore;
use super::push_rows::{Change, StoredPush, log_changes, read_pushes};
use super::scalars::{SqlTimestamp, column, meter_number};
use super::settlements::{Words, apply, turn};
use super::transaction::{Done, Transaction};
use crate::rules::delivery::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::webhook::{Rejection, RejectionReport};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the history says of a push that is only looked for earlier; the push stays as it is.
const RECHECKED: Words<'static> = Words {
    class: Class::Unknown,
    request_id: None,
    detail: Some("the provider refused others of its meter that it had taken"),
};

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
                others.push(found);
            }
            continue;
        };
        match judge(found, at) {
            Fate::Refused => {
                let detail = Some((*said).to_owned());
                refused.push((turn(found, (PushState::Dead, Class::Refused), detail), None));
                report.rejected += 1;
            }
            Fate::Busy => report.busy += 1,
            Fate::LeftAlone => {}
        }
    }
    let mut changes = apply(client, &refused, at).await?;
    let mut rechecked = Vec::with_capacity(others.len());
    for found in others {
        let push = &found.push;
        let mut same = turn(found, (push.state, push.class), push.detail.clone());
        same.due_at = at;
        rechecked.push((same, Some(RECHECKED)));
        report.rechecked += 1;
    }
    changes.extend(apply(client, &rechecked, at).await?);
    Ok((report, changes))
}

/// What a report means for a push that it names.
enum Fate {
    /// It was refused, and is dead now.
    Refused,
    /// It is being sent again just now.
    Busy,
    LeftAlone,
}

fn judge(found: &StoredPush, at: Timestamp) -> Fate {
    match found.push.state {
        PushState::Submitted => Fate::Refused,
        // Under this key it was never sent, so the provider means something else.
        PushState::Observed if found.push.attempts == 0 => Fate::LeftAlone,
        PushState::Observed if found.leased_until.is_some_and(|until| until > at) => Fate::Busy,
        PushState::Observed => Fate::Refused,
        PushState::Confirmed | PushState::Reconciled | PushState::Dead | PushState::Replaced => {
            Fate::LeftAlone
        }
    }
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
