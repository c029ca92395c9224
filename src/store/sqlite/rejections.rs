//! Pushes that the provider took and refused afterwards.
//!
//! Invariant: only a push that the provider may have taken and no summary has shown becomes dead
//! here; one that somebody is sending just now is left to that sender. Each change adds to the
//! push's history. A crash leaves all of a report done, or nothing; asking again changes nothing
//! that was done.

use super::push_rows::{Change, PushRow, change_push, fetch_known};
use super::sql_error;
use super::writer::Writer;
use crate::rules::delivery::{Class, PushState};
use crate::rules::ids::MeterNo;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{TransitionLine, log_transition};
use crate::store::webhook::{Rejection, RejectionReport};
use rusqlite::{Connection, OptionalExtension, params};

pub fn reject_pushes(
    writer: &mut Writer,
    rejection: &Rejection,
    at: Timestamp,
) -> Result<RejectionReport> {
    let (report, lines) = writer.write(|connection| {
        let (mut report, mut lines) = (RejectionReport::default(), Vec::new());
        for (key, said) in &rejection.samples {
            let Some(number) = find_by_key(connection, key)? else { continue };
            let row = fetch_known(connection, number)?;
            match judge(&row, at) {
                Fate::Rejected => {
                    lines.push(reject(connection, &row, said, at)?);
                    report.rejected += 1;
                }
                Fate::Busy => report.busy += 1,
                Fate::LeftAlone => {}
            }
        }
        if let Some((meter, taken_in)) = rejection.recheck {
            for number in list_taken(connection, meter, taken_in, at)? {
                lines.push(recheck(connection, &fetch_known(connection, number)?, at)?);
                report.rechecked += 1;
            }
        }
        Ok((report, lines))
    })?;
    lines.iter().for_each(log_transition);
    Ok(report)
}

enum Fate {
    Rejected,
    /// It is being sent again just now.
    Busy,
    LeftAlone,
}

fn judge(row: &PushRow, at: Timestamp) -> Fate {
    match row.push.state {
        PushState::Submitted => Fate::Rejected,
        // Under this key it was never sent, so the provider means something else.
        PushState::Observed if row.push.attempts == 0 => Fate::LeftAlone,
        PushState::Observed if row.leased_until.is_some_and(|until| until > at) => Fate::Busy,
        PushState::Observed => Fate::Rejected,
        PushState::Confirmed | PushState::Reconciled | PushState::Dead | PushState::Replaced => {
            Fate::LeftAlone
        }
    }
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

/// Makes a submitted push due; it stays submitted for the same reason.
fn recheck(connection: &Connection, row: &PushRow, at: Timestamp) -> Result<TransitionLine> {
    let change = Change {
        state: row.push.state,
        class: row.push.class,
        detail: row.push.detail.clone(),
        due_at: at,
        request_keys: row.request_keys,
    };
    let said = "the provider refused others of its meter that it had taken";
    change_push(connection, row, &change, (Class::Unknown, None, Some(said)), at)
}
