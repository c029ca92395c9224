//! Pushes that the provider took and refused afterwards.
//!
//! Invariant: only a push that the provider may have taken once and no summary has shown becomes
//! dead here (`rules::delivery::judge_report`); one that somebody is sending just now is left to
//! that sender, and one with several attempts to the summary. Each change adds to the push's
//! history. A crash leaves all of a report done, or nothing; asking again changes nothing
//! that was done.

use super::push_rows::{Change, PushRow, change_push, fetch_known};
use super::sql_error;
use super::writer::Writer;
use crate::faults::planted;
use crate::rules::delivery::{Class, PushState, Reported, judge_report};
use crate::rules::ids::MeterNo;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{TransitionLine, log_transition};
use crate::store::webhook::{Rejection, RejectionReport};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;

pub fn reject_pushes(
    writer: &mut Writer,
    rejection: &Rejection,
    at: Timestamp,
) -> Result<RejectionReport> {
    let (report, lines) = writer.write(|connection| {
        let (mut report, mut lines) = (RejectionReport::default(), Vec::new());
        let mut seen = BTreeSet::new();
        for (key, said) in &rejection.samples {
            let Some(number) = find_by_key(connection, key)? else { continue };
            if !seen.insert(number) {
                continue;
            }
            let row = fetch_known(connection, number)?;
            match judge(&row, at) {
                Reported::Refused => {
                    lines.push(reject(connection, &row, said, at)?);
                    report.rejected += 1;
                }
                Reported::Look => {
                    lines.push(recheck(connection, &row, said, at)?);
                    report.rechecked += 1;
                }
                Reported::Busy => report.busy += 1,
                Reported::LeftAlone => {}
            }
        }
        if let Some((meter, taken_in)) = rejection.recheck {
            for number in list_taken(connection, meter, taken_in, at)? {
                let row = fetch_known(connection, number)?;
                lines.push(recheck(connection, &row, OTHERS_REFUSED, at)?);
                report.rechecked += 1;
            }
        }
        Ok((report, lines))
    })?;
    lines.iter().for_each(log_transition);
    Ok(report)
}

/// What the history says of a push that is only looked for earlier.
const OTHERS_REFUSED: &str = "the provider refused others of its meter that it had taken";

fn judge(row: &PushRow, at: Timestamp) -> Reported {
    let leased = row.leased_until.is_some_and(|until| until > at);
    let attempts = match planted("bug.report_proves_refusal") {
        true => row.push.attempts.min(1),
        false => row.push.attempts,
    };
    judge_report(row.push.state, attempts, leased)
}

fn find_by_key(connection: &Connection, key: &str) -> Result<Option<u64>> {
    connection
        .prepare_cached("-- find_by_key\nSELECT push_no FROM pushes WHERE key = ?")
        .and_then(|mut select| select.query_row([key], |row| row.get(0)).optional())
        .map_err(sql_error)
}

fn reject(
    connection: &Connection,
    row: &PushRow,
    said: &str,
    at: Timestamp,
) -> Result<TransitionLine> {
    let change = Change {
        state: PushState::Dead,
        class: Class::Refused,
        detail: Some(said.to_owned()),
        due_at: row.push.due_at,
        request_keys: row.request_keys,
    };
    change_push(connection, row, &change, (Class::Refused, None, Some(said)), at)
}

/// Submitted pushes of the meter that were taken then and are to be looked for only later.
fn list_taken(
    connection: &Connection,
    meter: MeterNo,
    taken_in: Window,
    at: Timestamp,
) -> Result<Vec<u64>> {
    connection
        .prepare_cached(
            "-- list_taken
             SELECT push_no FROM pushes
             WHERE state = 'submitted' AND due_at > ? AND meter_no = ?
                 AND state_at >= ? AND state_at < ?
             ORDER BY push_no",
        )
        .and_then(|mut select| {
            let (start, end) = (taken_in.start.micros(), taken_in.end.micros());
            let asked = params![at.micros(), meter.0, start, end];
            select.query_map(asked, |row| row.get(0))?.collect()
        })
        .map_err(sql_error)
}

/// Has a push looked for; it stays in its state for the same reason. A submitted one is due at
/// once; one whose outcome is unknown goes on as it would have.
fn recheck(
    connection: &Connection,
    row: &PushRow,
    said: &str,
    at: Timestamp,
) -> Result<TransitionLine> {
    let submitted = row.push.state == PushState::Submitted;
    let change = Change {
        state: row.push.state,
        class: row.push.class,
        detail: row.push.detail.clone(),
        due_at: if submitted { at } else { row.push.due_at },
        request_keys: row.request_keys,
    };
    change_push(connection, row, &change, (Class::Unknown, None, Some(said)), at)
}
