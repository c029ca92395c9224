//! What reconciliation does to pushes: it sends again what the provider lacks, and closes what is
//! equal.
//!
//! Invariant: a correction is a pair of revisions that cancel out, written with the window's new
//! revision in one transaction, and only if the window's pushes are still as they were judged; so
//! the sum of a window's pushes never changes here. A crash leaves the pair or nothing; asking
//! again after it is refused, because the window is no longer as it was judged.

use super::cuts::{read_cut, write_revision};
use super::push_rows::{
    Change, NewPush, Owner, PushRow, Standing, change_push, fetch_known, insert_standing,
};
use super::segment::overflow;
use super::summaries::find_summary;
use super::writer::Writer;
use super::{corrupt, sql_error, window_pushes};
use crate::rules::delivery::{Class, PushState};
use crate::rules::drift::judge_correction;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::push::{Correction, CutState, PlannedPush, plan_correction};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{Ruling, TransitionLine, log_transition};
use crate::store::reconciliation::CorrectionOrder;
use rusqlite::{Connection, params};
use std::sync::Arc;

pub fn record_correction(
    writer: &mut Writer,
    secret: [u8; 32],
    order: &CorrectionOrder,
    at: Timestamp,
) -> Result<Ruling> {
    let (tenant, catalog) = {
        let memory = writer.shared.read_memory();
        (memory.tenants.find(&order.tenant), Arc::clone(&memory.catalog))
    };
    let Some(tenant) = tenant else { return Ok(Ruling::NotFound) };
    let (ruling, lines) = writer.write(|connection| {
        let subject = match find_subject(connection, tenant, order)? {
            Ok(subject) => subject,
            Err(ruling) => return Ok((ruling, Vec::new())),
        };
        let halves = (order.settled, order.provider);
        let plan = plan_correction(&subject.state, halves, subject.last.push.mode);
        let plan = plan.map_err(|_| overflow())?;
        let place = (tenant, order.meter, order.window.start);
        write_revision(connection, place, &plan.state)?;
        let lines = insert_pair(connection, &catalog, &secret, (order, &subject, &plan), at)?;
        Ok((Ruling::Done(Some(lines[1].push)), lines))
    })?;
    lines.iter().for_each(log_transition);
    Ok(ruling)
}

/// A window that may be corrected.
struct Subject {
    state: CutState,
    /// Its push of the highest revision.
    last: PushRow,
}

/// Looks at the window as it is now; a ruling if it may not be corrected.
fn find_subject(
    connection: &Connection,
    tenant: TenantNo,
    order: &CorrectionOrder,
) -> Result<std::result::Result<Subject, Ruling>> {
    let Some(state) = read_cut(connection, tenant, order.meter, order.window.start)? else {
        return Ok(Err(Ruling::NotFound));
    };
    let owner = (tenant, order.meter);
    let start = order.window.start;
    let only = Window { start, end: start.saturating_add_micros(1) };
    let pushes = window_pushes::read_window_pushes(connection, owner, only)?;
    let summary = find_summary(connection, owner, &order.customer, order.window)?;
    let halves = (order.settled, order.provider);
    if let Err(refusal) = judge_correction(&pushes, &order.customer, halves, summary.as_ref()) {
        return Ok(Err(Ruling::Refused(refusal)));
    }
    let last = pushes.last().ok_or_else(|| corrupt("a window that was told"))?;
    let last = fetch_known(connection, last.number)?;
    Ok(Ok(Subject { state, last }))
}

/// Writes what was lost, then what is sent again; it is stamped like the window's last push.
fn insert_pair(
    connection: &Connection,
    catalog: &Catalog,
    secret: &[u8; 32],
    (order, subject, plan): (&CorrectionOrder, &Subject, &Correction),
    at: Timestamp,
) -> Result<Vec<TransitionLine>> {
    let last = &subject.last;
    let meter = catalog.get(order.meter).ok_or_else(|| corrupt("a push's meter"))?;
    let owner =
        Owner { tenant_no: last.tenant_no, tenant: &order.tenant, meter_no: order.meter, meter };
    let pass = format!("found by pass {}", order.pass);
    let insert = |plan: &PlannedPush, standing: Standing<'_>| {
        let push = NewPush {
            owner,
            window: last.push.window,
            plan: plan.clone(),
            shadow: subject.state.shadow,
            mode: last.push.mode,
            stamped_at: last.push.stamped_at,
            subscriptions: &last.push.subscriptions,
            event: None,
            detail: Some(&pass),
            at,
        };
        insert_standing(connection, secret, &push, standing)
    };
    let customer = Some(&order.customer);
    let lost = Standing { state: PushState::Reconciled, class: Class::Lost, customer };
    let again = Standing { state: PushState::Observed, class: Class::Correction, customer: None };
    Ok(vec![insert(&plan.lost, lost)?, insert(&plan.again, again)?])
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
    connection
        .prepare_cached(
            "-- list_confirmed
             SELECT push_no FROM pushes INDEXED BY pushes_by_window
             WHERE tenant_no = ? AND meter_no = ? AND window_start >= ? AND window_start < ?
                 AND state = 'confirmed'
             ORDER BY window_start, revision",
        )
        .and_then(|mut select| {
            let asked = params![tenant.0, meter.0, range.start.micros(), range.end.micros()];
            select.query_map(asked, |row| row.get(0))?.collect()
        })
        .map_err(sql_error)
}

fn close_push(connection: &Connection, number: u64, at: Timestamp) -> Result<TransitionLine> {
    let row = fetch_known(connection, number)?;
    let change = Change {
        state: PushState::Reconciled,
        class: Class::Reconciled,
        detail: row.push.detail.clone(),
        due_at: row.push.due_at,
        request_keys: row.request_keys,
    };
    change_push(connection, &row, &change, (Class::Reconciled, None, None), at)
}
