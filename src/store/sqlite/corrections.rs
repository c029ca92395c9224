//! What reconciliation does to pushes: it sends again what the provider lacks, and closes what is
//! equal.
//!
//! Invariant: a correction is a pair of revisions that cancel out, written with the window's new
//! revision in one transaction, and only if the window's pushes are still as they were judged; so
//! the sum of a window's pushes never changes here. A crash leaves the pair or nothing; asking
//! again after it is refused, because the window is no longer as it was judged.

use super::cuts::{read_cut, write_revision};
use super::push_rows::{change_push, fetch_known, fetch_window, insert_push};
use super::session::SqliteSession;
use super::statements::Statements;
use super::writer::Writer;
use crate::rules::correction::{Correcting, CorrectionOrder, plan_correcting};
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::settlement::plan_closing;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{Ruling, TransitionLine, log_transition};
use crate::store::sql::find_summary;
use rusqlite::{Connection, params};

pub fn record_correction(
    writer: &mut Writer,
    secret: [u8; 32],
    order: &CorrectionOrder,
    at: Timestamp,
) -> Result<Ruling> {
    let tenant = writer.shared.read_memory().tenants.find(&order.tenant);
    let Some(tenant) = tenant else { return Ok(Ruling::NotFound) };
    let (ruling, lines) = writer.write(|connection| {
        let place = (tenant, order.meter, order.window.start);
        let Some(state) = read_cut(connection, place.0, place.1, place.2)? else {
            return Ok((Ruling::NotFound, Vec::new()));
        };
        let pushes = fetch_window(connection, place)?;
        let (session, whose) = (SqliteSession::on(connection), (&order.tenant, &order.customer));
        let summary = find_summary(&session, whose, order.meter, order.window)?;
        let Correcting { state, pushes: [lost, again] } =
            match plan_correcting(order, &state, &pushes, summary.as_ref())? {
                Ok(plan) => plan,
                Err(refusal) => return Ok((Ruling::Refused(refusal), Vec::new())),
            };
        write_revision(connection, place, &state)?;
        let lost = insert_push(connection, &secret, &lost, at)?;
        let again = insert_push(connection, &secret, &again, at)?;
        Ok((Ruling::Done(Some(again.push)), vec![lost, again]))
    })?;
    lines.iter().for_each(log_transition);
    Ok(ruling)
}

/// Closes confirmed pushes of windows that start in `range`.
pub fn close_pushes(
    writer: &mut Writer,
    (tenant, meter): (TenantNo, MeterNo),
    range: Window,
    at: Timestamp,
) -> Result<u64> {
    let lines = writer.write(|connection| {
        let confirmed = list_confirmed(connection, (tenant, meter), range)?;
        confirmed.into_iter().map(|number| close_push(connection, number, at)).collect()
    })?;
    let lines: Vec<TransitionLine> = lines;
    lines.iter().for_each(log_transition);
    Ok(u64::try_from(lines.len()).expect("a length fits 64 bits"))
}

fn list_confirmed(
    connection: &Connection,
    (tenant, meter): (TenantNo, MeterNo),
    range: Window,
) -> Result<Vec<u64>> {
    let asked = params![tenant.0, meter.0, range.start.micros(), range.end.micros()];
    connection.read_all(
        "-- list_confirmed
         SELECT push_no FROM pushes INDEXED BY pushes_by_window
         WHERE tenant_no = ? AND meter_no = ? AND window_start >= ? AND window_start < ?
             AND state = 'confirmed'
         ORDER BY window_start, revision",
        asked,
        |row| Ok(row.get(0)?),
    )
}

fn close_push(connection: &Connection, number: u64, at: Timestamp) -> Result<TransitionLine> {
    let found = fetch_known(connection, number)?;
    change_push(connection, &plan_closing(&found, at)?, at)
}
