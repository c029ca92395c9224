//! Pushes that the provider took and refused afterwards, as its reports say.
//!
//! Invariant: only a push that the provider may have taken once and no summary has shown becomes
//! dead here (`rules::rejection`); one that somebody is sending just now is left to that sender,
//! and one with several attempts to the summary. Pushes are locked in the order of their numbers.
//! Each change adds to the push's history.
//!
//! A crash leaves all of a report done, or nothing. A call that is repeated finds the pushes dead,
//! and those to be looked for due, and changes nothing.

use super::{Done, Row, Session, values};
use crate::rules::rejection::{Rejection, RejectionReport};
use crate::rules::timestamp::Timestamp;
use crate::store::push::{TransitionLine, plan_reported};

pub fn reject_pushes(
    session: &dyn Session,
    rejection: &Rejection,
    at: Timestamp,
) -> Done<(RejectionReport, Vec<TransitionLine>)> {
    let mut numbers: Vec<u64> = Vec::new();
    for key in rejection.first_samples().keys() {
        let sql = "-- find_by_key\nSELECT push_no FROM pushes WHERE key = $1";
        numbers.extend(session.read_optional(sql, values![key], Row::only::<u64>)?);
    }
    if let Some((meter, taken_in)) = rejection.recheck {
        let sql = "-- list_taken
            SELECT push_no FROM pushes
            WHERE state = 'submitted' AND meter_no = $1 AND state_at >= $2 AND state_at < $3";
        let asked = values![meter, taken_in.start, taken_in.end];
        numbers.extend(session.read_all(sql, asked, Row::only::<u64>)?);
    }
    let concerned = session.lock_pushes(&numbers)?;
    let (report, changes) = plan_reported(rejection, concerned, at)?;
    Ok((report, session.change_pushes(&changes, at)?))
}
