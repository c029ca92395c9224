//! Pushes that the provider took and refused afterwards.
//!
//! Invariant: only a push that the provider may have taken once and no summary has shown becomes
//! dead here (`rules::rejection`); one that somebody is sending just now is left to
//! that sender, and one with several attempts to the summary. Each change adds to the push's
//! history. A crash leaves all of a report done, or nothing; asking again changes nothing
//! that was done.

use super::push_rows::{change_push, fetch_known};
use super::statements::Statements;
use super::writer::Writer;
use crate::rules::ids::MeterNo;
use crate::rules::rejection::{Rejection, RejectionReport};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{TransitionLine, log_transition, plan_reported};
use rusqlite::{Connection, params};
use std::collections::BTreeSet;

pub fn reject_pushes(
    writer: &mut Writer,
    rejection: &Rejection,
    at: Timestamp,
) -> Result<RejectionReport> {
    let (report, lines) = writer.write(|connection| {
        let mut numbers = BTreeSet::new();
        for key in rejection.first_samples().keys() {
            numbers.extend(find_by_key(connection, key)?);
        }
        if let Some((meter, taken_in)) = rejection.recheck {
            numbers.extend(list_taken(connection, meter, taken_in)?);
        }
        let concerned = numbers.into_iter().map(|number| fetch_known(connection, number));
        let concerned = concerned.collect::<Result<_>>()?;
        let (report, changes) = plan_reported(rejection, concerned, at)?;
        let lines = changes.iter().map(|change| change_push(connection, change, at));
        Ok((report, lines.collect::<Result<Vec<TransitionLine>>>()?))
    })?;
    lines.iter().for_each(log_transition);
    Ok(report)
}

fn find_by_key(connection: &Connection, key: &str) -> Result<Option<u64>> {
    connection.read_optional(
        "-- find_by_key\nSELECT push_no FROM pushes WHERE key = ?",
        [key],
        |row| Ok(row.get(0)?),
    )
}

/// Submitted pushes of the meter that were taken then.
fn list_taken(connection: &Connection, meter: MeterNo, taken_in: Window) -> Result<Vec<u64>> {
    let (start, end) = (taken_in.start.micros(), taken_in.end.micros());
    let asked = params![meter.0, start, end];
    connection.read_all(
        "-- list_taken
         SELECT push_no FROM pushes
         WHERE state = 'submitted' AND meter_no = ? AND state_at >= ? AND state_at < ?
         ORDER BY push_no",
        asked,
        |row| Ok(row.get(0)?),
    )
}
