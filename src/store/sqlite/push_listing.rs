//! Pushes as they are looked at: by page, one with its history, by window, and counted.
//!
//! Invariant: each answer is of one moment, since it is read in one transaction. Nothing is
//! written here, so a crash leaves nothing.

use super::epochs::read_epoch;
use super::push_rows::{fetch_known, fetch_push, get, quantity_of, read_transitions};
use super::segment::overflow;
use super::statements::Statements;
use super::waiting::sum_unmapped;
use super::{corrupt, damaged, sql_error};
use crate::rules::billing::Mode;
use crate::rules::ids::{CustomerId, MeterNo, TenantId, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Push, PushAges, PushCounts, PushQuery, PushTrace, SubmittedWindow};
use rusqlite::{Connection, params};
use std::collections::BTreeMap;

/// Opens a read transaction; the reader that lent the connection ends it.
pub fn begin_snapshot(connection: &Connection) -> Result<()> {
    connection.execute_batch("BEGIN").map_err(sql_error)
}

pub fn list_pushes(connection: &Connection, query: &PushQuery) -> Result<Vec<Push>> {
    begin_snapshot(connection)?;
    let before = query.before.and_then(|number| i64::try_from(number).ok());
    let asked = params![
        query.tenant.as_ref().map(TenantId::as_str),
        query.meter.map(|meter| meter.0),
        query.class.map(Class::name),
        query.range.map(|range| range.start.micros()),
        query.range.map(|range| range.end.micros()),
        before.unwrap_or(i64::MAX),
        i64::try_from(query.limit).unwrap_or(i64::MAX)
    ];
    let numbers: Vec<u64> =
        connection.read_all(&list_statement(query), asked, |row| Ok(row.get(0)?))?;
    numbers.into_iter().map(|number| fetch_known(connection, number).map(|row| row.push)).collect()
}

/// The statement for what is asked, by the index that holds the fewest other rows; SQLite refuses
/// it if it cannot use that index. A state is named in the text, since partial indexes are chosen
/// before parameters are known.
fn list_statement(query: &PushQuery) -> String {
    let mut conditions = vec!["push_no < ?6".to_owned()];
    if let Some(state) = query.state {
        conditions.push(format!("state = '{}'", state.name()));
    }
    let given = [
        (query.tenant.is_some(), "tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = ?1)"),
        (query.meter.is_some(), "meter_no = ?2"),
        (query.class.is_some(), "class = ?3"),
        (query.range.is_some(), "window_start >= ?4 AND window_start < ?5"),
    ];
    let given = given.into_iter().filter(|(is_given, _)| *is_given);
    conditions.extend(given.map(|(_, condition)| condition.to_owned()));
    let hint = list_index(query).map_or_else(String::new, |name| format!(" INDEXED BY {name}"));
    format!(
        "-- list_pushes\nSELECT push_no FROM pushes{hint} WHERE {} ORDER BY push_no DESC LIMIT ?7",
        conditions.join(" AND ")
    )
}

/// None where a walk down the pushes themselves finds a page soonest.
fn list_index(query: &PushQuery) -> Option<&'static str> {
    let of_tenant = query.tenant.is_some();
    match query.state {
        Some(PushState::Waiting) => Some("pushes_waiting"),
        Some(PushState::Observed) if of_tenant => Some("pushes_observed"),
        Some(PushState::Dead) if of_tenant => Some("pushes_dead"),
        Some(PushState::Dead) => Some("pushes_dead_by_class"),
        Some(PushState::Discarded) => Some("pushes_discarded"),
        Some(PushState::Observed) => Some("pushes_due"),
        Some(PushState::Submitted) if !of_tenant => Some("pushes_submitted"),
        Some(
            PushState::Submitted
            | PushState::Confirmed
            | PushState::Reconciled
            | PushState::Replaced,
        )
        | None => of_tenant.then_some("pushes_by_tenant"),
    }
}

pub fn trace_push(connection: &Connection, number: u64) -> Result<Option<PushTrace>> {
    begin_snapshot(connection)?;
    let Some(row) = fetch_push(connection, number)? else { return Ok(None) };
    let transitions = read_transitions(connection, number)?;
    Ok(Some(PushTrace { push: row.push, transitions }))
}

/// A window of one customer. A tenant whose customer was changed in between has pushes of one
/// window under two customers, and each has a summary of its own.
pub struct DueWindow {
    pub tenant_no: TenantNo,
    pub meter: MeterNo,
    pub start: i64,
    pub customer: String,
}

pub fn list_submitted_windows(
    connection: &Connection,
    now: Timestamp,
    shadow: bool,
    limit: usize,
) -> Result<Vec<SubmittedWindow>> {
    begin_snapshot(connection)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let due: Vec<DueWindow> = connection.read_all(
        "-- list_submitted_windows
         SELECT pushes.tenant_no, meter_no, window_start,
                COALESCE(pushes.customer, tenants.customer, '') AS customer
         FROM pushes JOIN tenants ON tenants.tenant_no = pushes.tenant_no
         WHERE state = 'submitted' AND due_at <= ? AND shadow = ?
             AND NOT EXISTS (
                 SELECT 1 FROM pushes AS begun
                 WHERE begun.tenant_no = pushes.tenant_no AND begun.meter_no = pushes.meter_no
                     AND begun.window_start = pushes.window_start
                     AND begun.state = 'observed' AND begun.attempts > 0
             )
         GROUP BY 1, 2, 3, 4 ORDER BY MIN(due_at), MIN(push_no) LIMIT ?",
        params![now.micros(), shadow, limit],
        |row| {
            let (tenant_no, meter) = (TenantNo(row.get(0)?), MeterNo(row.get(1)?));
            Ok(DueWindow { tenant_no, meter, start: row.get(2)?, customer: row.get(3)? })
        },
    )?;
    due.iter().map(|window| describe_window(connection, window)).collect()
}

fn list_settled(connection: &Connection, due: &DueWindow) -> Result<Vec<Push>> {
    let window = params![due.tenant_no.0, due.meter.0, due.start, due.customer];
    let settled: Vec<u64> = connection.read_all(
        "-- list_settled
         SELECT push_no FROM pushes
         WHERE tenant_no = ?1 AND meter_no = ?2 AND window_start = ?3
             AND state IN ('submitted', 'confirmed', 'reconciled')
             AND COALESCE(customer, ?4) = ?4
         ORDER BY revision",
        window,
        |row| Ok(row.get(0)?),
    )?;
    let settled = settled.into_iter().map(|number| fetch_known(connection, number));
    settled.map(|row| Ok(row?.push)).collect()
}

/// What the settled pushes of a window make at the provider.
pub fn settled_total(connection: &Connection, due: &DueWindow, mode: Mode) -> Result<Quantity> {
    let settled = list_settled(connection, due)?;
    match mode {
        Mode::Delta => settled.iter().try_fold(Quantity::ZERO, |sum, push| {
            sum.checked_add(push.quantity).ok_or_else(overflow)
        }),
        Mode::Absolute => Ok(settled.last().map_or(Quantity::ZERO, |last| last.value)),
    }
}

/// A window with a settled push, and what its summary shows when everything has arrived.
pub fn describe_window(connection: &Connection, due: &DueWindow) -> Result<SubmittedWindow> {
    let settled = list_settled(connection, due)?;
    let last = settled.last().ok_or_else(|| corrupt("pushes rows of a submitted window"))?;
    let submitted = || settled.iter().filter(|push| push.state == PushState::Submitted);
    Ok(SubmittedWindow {
        tenant: last.tenant.clone(),
        customer: CustomerId::parse(&due.customer)
            .map_err(|_| damaged("pushes.customer", &due.customer))?,
        meter: due.meter,
        window: last.window,
        mode: last.mode,
        expected: settled_total(connection, due, last.mode)?,
        pushes: submitted().map(|push| (push.number, push.quantity)).collect(),
        submitted_at: submitted().map(|push| push.state_at).max().unwrap_or(last.state_at),
    })
}

pub fn count_pushes(connection: &Connection, ages: PushAges) -> Result<PushCounts> {
    begin_snapshot(connection)?;
    let epoch = read_epoch(connection)?;
    let comparing = epoch.is_some_and(|epoch| epoch.is_comparing(ages.observed_before));
    let mut counts = connection.read_one(
        "-- count_pushes
         SELECT COUNT(*), COUNT(*) FILTER (
             WHERE created_at < ? AND NOT (? AND looked_at IS NOT NULL)
         ) FROM pushes
         WHERE state = 'observed' AND NOT shadow",
        params![ages.observed_before.micros(), comparing],
        |row| {
            let (observed, observed_long) = (row.get(0)?, row.get(1)?);
            Ok(PushCounts { observed, observed_long, ..Default::default() })
        },
    )?;
    (counts.submitted, counts.submitted_long) = connection.read_one(
        "-- count_pushes
         SELECT COUNT(*), COUNT(*) FILTER (WHERE state_at < ?) FROM pushes
         WHERE state = 'submitted' AND NOT shadow",
        [ages.submitted_before.micros()],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    (counts.without_customer, counts.unsent) = sum_unmapped(connection)?;
    count_dead(connection, &mut counts)?;
    Ok(counts)
}

/// Adds the dead ones, and what they would have billed.
fn count_dead(connection: &Connection, counts: &mut PushCounts) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- count_dead
         SELECT meter_no, quantity FROM pushes
         WHERE state = 'dead' AND NOT shadow",
    )?;
    let mut rows = select.query([])?;
    let mut unbilled: BTreeMap<MeterNo, Quantity> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let sum = unbilled.entry(MeterNo(get(row, "meter_no")?)).or_default();
        *sum = sum.checked_add(quantity_of(row, "quantity")?).ok_or_else(overflow)?;
        counts.dead += 1;
    }
    counts.unbilled = unbilled.into_iter().collect();
    Ok(())
}
