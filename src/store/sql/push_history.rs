//! Pushes as they are looked at: by page, one with its history, by window, and counted.
//!
//! Invariant: each answer is of one moment: it is one statement, or read in a snapshot. Nothing is
//! written here, so a crash leaves nothing.

use super::epochs::read_epoch;
use super::reconciliation::within_column;
use super::waiting::{list_unsent, sum_unmapped};
use super::{Done, Filter, Row, Session, SqlStore, values};
use crate::rules::drift::WindowPush;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::submission::PushState;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{
    Push, PushAges, PushCounts, PushFilter, PushHistory, PushTrace, SettledRevision,
    SubmittedWindow, Transition, UnsentUsage,
};
use crate::store::{Query, Result};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> PushHistory for S {
    async fn list_unsent_usage(&self, since: Timestamp, limit: usize) -> Result<Vec<UnsentUsage>> {
        self.in_reader(move |session| list_unsent(session, since, limit)).await
    }

    async fn list_submitted_windows(
        &self,
        now: Timestamp,
        shadow: bool,
        limit: usize,
    ) -> Result<Vec<SubmittedWindow>> {
        self.in_reader(move |session| list_submitted_windows(session, now, shadow, limit)).await
    }

    async fn list_pushes(&self, query: Query<PushFilter>) -> Result<Vec<Push>> {
        self.in_snapshot(move |session| list_pushes(session, &query)).await
    }

    async fn trace_push(&self, number: u64) -> Result<Option<PushTrace>> {
        self.in_snapshot(move |session| trace_push(session, number)).await
    }

    async fn count_pushes(&self, ages: PushAges) -> Result<PushCounts> {
        self.in_snapshot(move |session| count_pushes(session, ages)).await
    }

    async fn read_window_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<WindowPush>> {
        let tenant = tenant.clone();
        self.in_reader(move |session| read_window_pushes(session, &tenant, meter, range)).await
    }
}

/// A state is named in the text, since partial indexes are chosen before values are known.
fn list_pushes(session: &dyn Session, query: &Query<PushFilter>) -> Done<Vec<Push>> {
    let PushFilter { tenant, meter, state, class, range } = &query.filter;
    let hint = list_index(&query.filter);
    let hint = hint.map_or_else(String::new, |index| format!(" /*+ INDEXED BY {index} */"));
    let mut filter = Filter::new(&format!("-- list_pushes\nSELECT push_no FROM pushes{hint}"))
        .and_if("push_no < $", query.after.map(within_column))
        .and_if("tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)", tenant.as_ref())
        .and_if("meter_no = $", *meter)
        .and_if("class = $", *class)
        .and_if("window_start >= $", range.map(|range| range.start))
        .and_if("window_start < $", range.map(|range| range.end));
    if let Some(state) = state {
        filter = filter.and_always(&format!("state = '{}'", state.name()));
    }
    let (sql, values) = filter.order("push_no DESC", query.limit);
    let numbers: Vec<u64> = session.read_all(&sql, &values, Row::only)?;
    let found = session.read_pushes(&numbers)?;
    Ok(found.into_iter().rev().map(|found| found.push).collect())
}

/// The index that holds the fewest other rows; SQLite refuses a statement that cannot use it. None
/// where a walk down the pushes themselves finds a page soonest.
fn list_index(asked: &PushFilter) -> Option<&'static str> {
    let of_tenant = asked.tenant.is_some();
    match asked.state {
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

fn trace_push(session: &dyn Session, number: u64) -> Done<Option<PushTrace>> {
    let Some(found) = session.read_pushes(&[number])?.pop() else { return Ok(None) };
    let sql = "-- trace_push
        SELECT at, state, class, attempt, request_id, detail FROM push_transitions
        WHERE push_no = $1 ORDER BY transition_no";
    let transitions = session.read_all(sql, values![number], |row| {
        Ok(Transition {
            at: row.get("push_transitions.at")?,
            state: row.get("push_transitions.state")?,
            class: row.get("push_transitions.class")?,
            attempt: row.get("push_transitions.attempt")?,
            request_id: row.get("push_transitions.request_id")?,
            detail: row.get("push_transitions.detail")?,
        })
    })?;
    Ok(Some(PushTrace { push: found.push, transitions }))
}

/// A tenant whose customer was changed in between has pushes of one window under two customers;
/// each has a summary of its own, and so is a window of its own here. SQLite takes the tables of a
/// `CROSS JOIN` in the order in which they stand.
fn list_submitted_windows(
    session: &dyn Session,
    now: Timestamp,
    shadow: bool,
    limit: usize,
) -> Done<Vec<SubmittedWindow>> {
    let sql = "-- list_submitted_windows
        WITH due AS (
            SELECT p.tenant_no, p.meter_no, p.window_start, t.tenant,
                COALESCE(p.customer, t.customer) AS customer,
                min(p.due_at) AS due_at, min(p.push_no) AS first_no
            FROM pushes p JOIN tenants t ON t.tenant_no = p.tenant_no
            WHERE p.state = 'submitted' AND p.due_at <= $1 AND p.shadow = $2
                AND NOT EXISTS (
                    SELECT 1 FROM pushes begun
                    WHERE begun.tenant_no = p.tenant_no AND begun.meter_no = p.meter_no
                        AND begun.window_start = p.window_start
                        AND begun.state = 'observed' AND begun.attempts > 0
                )
            GROUP BY 1, 2, 3, 4, 5
            ORDER BY min(p.due_at), min(p.push_no)
            LIMIT $3
        )
        SELECT due.first_no, due.tenant, due.customer, due.meter_no, due.window_start,
            p.window_end, p.mode, p.push_no, p.quantity, p.value, p.state, p.state_at
        FROM due CROSS JOIN pushes p
        WHERE p.tenant_no = due.tenant_no AND p.meter_no = due.meter_no
            AND p.window_start = due.window_start
            AND p.state IN ('submitted', 'confirmed', 'reconciled')
            AND COALESCE(p.customer, due.customer) = due.customer
        ORDER BY due.due_at, due.first_no, p.revision";
    collect_windows(&session.rows(sql, values![now, shadow, limit])?)
}

/// Windows with their pushes. The rows of a window follow each other, under the number of its first
/// push.
pub fn collect_windows(rows: &[Row]) -> Done<Vec<SubmittedWindow>> {
    let (mut windows, mut open): (Vec<SubmittedWindow>, Option<u64>) = (Vec::new(), None);
    for row in rows {
        let first = Some(row.get("due.first_no")?);
        if open != first {
            windows.push(decode_submitted(row)?);
            open = first;
        }
        if let Some(window) = windows.last_mut() {
            window.add_settled(decode_settled(row)?)?;
        }
    }
    Ok(windows)
}

/// The window of a row, without its pushes.
fn decode_submitted(row: &Row) -> Result<SubmittedWindow> {
    Ok(SubmittedWindow {
        tenant: row.get("tenants.tenant")?,
        customer: row.get("pushes.customer")?,
        meter: row.get("pushes.meter_no")?,
        window: decode_window(row)?,
        mode: row.get("pushes.mode")?,
        expected: Quantity::ZERO,
        pushes: Vec::new(),
        submitted_at: Timestamp::from_micros(i64::MIN),
    })
}

pub fn decode_window(row: &Row) -> Result<Window> {
    Ok(Window { start: row.get("pushes.window_start")?, end: row.get("pushes.window_end")? })
}

fn decode_settled(row: &Row) -> Result<SettledRevision> {
    Ok(SettledRevision {
        number: row.get("pushes.push_no")?,
        quantity: row.get("pushes.quantity")?,
        value: row.get("pushes.value")?,
        state: row.get("pushes.state")?,
        state_at: row.get("pushes.state_at")?,
    })
}

fn count_pushes(session: &dyn Session, ages: PushAges) -> Done<PushCounts> {
    let comparing =
        read_epoch(session)?.is_some_and(|epoch| epoch.is_comparing(ages.observed_before));
    let sql = "-- count_pushes
        SELECT count(*) AS standing, count(*) FILTER (
            WHERE created_at < $1 AND NOT ($2 AND looked_at IS NOT NULL)
        ) AS long FROM pushes
        WHERE state = 'observed' AND NOT shadow";
    let read = |row: &Row| Ok((row.get("standing")?, row.get("long")?));
    let (observed, observed_long) =
        session.read_one(sql, values![ages.observed_before, comparing], read)?;
    let sql = "-- count_pushes
        SELECT count(*) AS standing, count(*) FILTER (WHERE state_at < $1) AS long FROM pushes
        WHERE state = 'submitted' AND NOT shadow";
    let (submitted, submitted_long) =
        session.read_one(sql, values![ages.submitted_before], read)?;
    let sql = "-- count_pushes
        SELECT meter_no AS number, 1 AS pushes, quantity FROM pushes
        WHERE state = 'dead' AND NOT shadow";
    let dead = session.sum_by_meter(sql)?;
    let (without_customer, unsent) = sum_unmapped(session)?;
    Ok(PushCounts {
        observed,
        observed_long,
        without_customer,
        unsent,
        submitted,
        submitted_long,
        dead: dead.values().map(|sum| sum.pushes).sum(),
        unbilled: dead.into_iter().map(|(meter, sum)| (meter, sum.quantity)).collect(),
    })
}

/// Pushes of windows that start in `range`, in the order of window and revision.
pub fn read_window_pushes(
    session: &dyn Session,
    tenant: &TenantId,
    meter: MeterNo,
    range: Window,
) -> Done<Vec<WindowPush>> {
    let sql = "-- read_window_pushes
        SELECT push_no, window_start, window_end, revision, shadow, mode, quantity, value,
            stamped_at, state, class, customer, attempts, state_at
        FROM pushes /*+ INDEXED BY pushes_by_window */
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND window_start >= $3 AND window_start < $4
        ORDER BY window_start, revision";
    session.read_all(sql, values![tenant, meter, range.start, range.end], decode_window_push)
}

fn decode_window_push(row: &Row) -> Result<WindowPush> {
    Ok(WindowPush {
        number: row.get("pushes.push_no")?,
        window: decode_window(row)?,
        revision: row.get("pushes.revision")?,
        shadow: row.get("pushes.shadow")?,
        mode: row.get("pushes.mode")?,
        quantity: row.get("pushes.quantity")?,
        value: row.get("pushes.value")?,
        stamped_at: row.get("pushes.stamped_at")?,
        state: row.get("pushes.state")?,
        class: row.get("pushes.class")?,
        customer: row.get("pushes.customer")?,
        attempts: row.get("pushes.attempts")?,
        state_at: row.get("pushes.state_at")?,
    })
}
