//! Pushes as they are looked at: by page, one with its history, by window, by tenant, and counted.
//!
//! Invariant: nothing is written here, so a crash leaves nothing and every call may be repeated.
//! What takes several statements and must be of one moment is read in a snapshot.

use super::connection::Snapshot;
use super::epochs::{LAST_EPOCH, parse_epoch};
use super::numeric::SqlQuantity;
use super::push_rows::{read_class, read_customer, read_pushes, read_state};
use super::scalars::{
    SqlTimestamp, column, damaged, instant, meter_number, read_count, read_meter_no, read_ordinal,
    write_count, write_limit,
};
use super::statements::Statements;
use super::waiting::sum_unmapped;
use crate::rules::billing::Mode;
use crate::rules::drift::WindowPush;
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::push::{
    Push, PushAges, PushCounts, PushQuery, PushTrace, SettledRevision, SubmittedWindow, Transition,
};
use deadpool_postgres::{ClientWrapper, Object};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

pub async fn list_pushes(client: &ClientWrapper, query: &PushQuery) -> Result<Vec<Push>> {
    // Not kept prepared: planned for what is asked, each question can use its own index.
    let sql = "-- list_pushes
        SELECT push_no FROM pushes
        WHERE ($1::text IS NULL OR tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1))
            AND ($2::int2 IS NULL OR meter_no = $2)
            AND ($3::text IS NULL OR state = $3)
            AND ($4::text IS NULL OR class = $4)
            AND ($5::timestamptz IS NULL OR window_start >= $5)
            AND ($6::timestamptz IS NULL OR window_start < $6)
            AND ($7::int8 IS NULL OR push_no < $7)
        ORDER BY push_no DESC LIMIT $8";
    let before = query.before.and_then(|number| write_count(number).ok());
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &query.tenant.as_ref().map(TenantId::as_str),
        &query.meter.map(meter_number),
        &query.state.map(PushState::name),
        &query.class.map(Class::name),
        &query.range.map(|range| SqlTimestamp(range.start)),
        &query.range.map(|range| SqlTimestamp(range.end)),
        &before,
        &write_limit(query.limit),
    ];
    let rows = client.query(sql, &parameters).await?;
    let numbers: Vec<i64> = rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?;
    let found = read_pushes(client, &numbers).await?;
    Ok(found.into_iter().rev().map(|found| found.push).collect())
}

pub async fn trace_push(client: Object, number: u64) -> Result<Option<PushTrace>> {
    let Ok(number) = write_count(number) else { return Ok(None) };
    let snapshot = Snapshot::begin(client).await?;
    let found = read_pushes(&snapshot, &[number]).await?.pop();
    let sql = "-- trace_push
        SELECT at, state, class, attempt, request_id, detail FROM push_transitions
        WHERE push_no = $1 ORDER BY transition_no";
    let rows = snapshot.read_all(sql, &[&number]).await?;
    snapshot.end().await?;
    let transitions = rows.iter().map(transition).collect::<Result<_>>()?;
    Ok(found.map(|found| PushTrace { push: found.push, transitions }))
}

fn transition(row: &Row) -> Result<Transition> {
    Ok(Transition {
        at: instant(row, 0)?,
        state: read_state(row, 1)?,
        class: read_class(row, 2)?,
        attempt: read_ordinal(column(row, 3)?)?,
        request_id: column(row, 4)?,
        detail: column(row, 5)?,
    })
}

/// A tenant whose customer was changed in between has pushes of one window under two customers;
/// each has a summary of its own, and so is a window of its own here.
pub async fn list_submitted_windows(
    client: &ClientWrapper,
    now: Timestamp,
    shadow: bool,
    limit: usize,
) -> Result<Vec<SubmittedWindow>> {
    let sql = "-- list_submitted_windows
        WITH due AS (
            SELECT p.tenant_no, p.meter_no, p.window_start, t.tenant,
                COALESCE(p.customer, t.customer) AS customer,
                min(p.due_at) AS due_at, min(p.push_no) AS push_no
            FROM pushes p JOIN tenants t ON t.tenant_no = p.tenant_no
            WHERE p.state = 'submitted' AND p.due_at <= $1 AND p.shadow = $3
                AND NOT EXISTS (
                    SELECT FROM pushes begun
                    WHERE begun.tenant_no = p.tenant_no AND begun.meter_no = p.meter_no
                        AND begun.window_start = p.window_start
                        AND begun.state = 'observed' AND begun.attempts > 0
                )
            GROUP BY 1, 2, 3, 4, 5
            ORDER BY min(p.due_at), min(p.push_no)
            LIMIT $2
        )
        SELECT due.push_no, due.tenant, due.customer, due.meter_no, due.window_start,
            p.window_end, p.mode, p.push_no, p.quantity, p.value, p.state, p.state_at
        FROM due JOIN pushes p ON p.tenant_no = due.tenant_no AND p.meter_no = due.meter_no
            AND p.window_start = due.window_start
        WHERE p.state IN ('submitted', 'confirmed', 'reconciled')
            AND COALESCE(p.customer, due.customer) = due.customer
        ORDER BY due.due_at, due.push_no, p.revision";
    let rows = client.read_all(sql, &[&SqlTimestamp(now), &write_limit(limit), &shadow]).await?;
    submitted_windows(&rows)
}

/// Rows of the settled pushes of windows, those of one window together, by revision.
fn submitted_windows(rows: &[Row]) -> Result<Vec<SubmittedWindow>> {
    let mut windows: Vec<SubmittedWindow> = Vec::new();
    let mut open: Option<i64> = None;
    for row in rows {
        let number: i64 = column(row, 0)?;
        if open != Some(number) {
            windows.push(submitted_window(row)?);
            open = Some(number);
        }
        if let Some(window) = windows.last_mut() {
            window.add_settled(settled_revision(row)?)?;
        }
    }
    Ok(windows)
}

/// The window that a row of [`submitted_windows`] belongs to, without its pushes.
fn submitted_window(row: &Row) -> Result<SubmittedWindow> {
    let (tenant, customer): (String, String) = (column(row, 1)?, column(row, 2)?);
    let mode: String = column(row, 6)?;
    Ok(SubmittedWindow {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        customer: CustomerId::parse(&customer)
            .map_err(|_| damaged("tenants.customer", &customer))?,
        meter: read_meter_no(column(row, 3)?)?,
        window: Window { start: instant(row, 4)?, end: instant(row, 5)? },
        mode: Mode::from_name(&mode).ok_or_else(|| damaged("pushes.mode", &mode))?,
        expected: Quantity::ZERO,
        pushes: Vec::new(),
        submitted_at: Timestamp::from_micros(i64::MIN),
    })
}

/// A settled revision of the window that a row of [`submitted_windows`] belongs to.
fn settled_revision(row: &Row) -> Result<SettledRevision> {
    let (SqlQuantity(quantity), SqlQuantity(value)) = (column(row, 8)?, column(row, 9)?);
    Ok(SettledRevision {
        number: read_count(column(row, 7)?)?,
        quantity,
        value,
        state: read_state(row, 10)?,
        state_at: instant(row, 11)?,
    })
}

pub async fn count_pushes(client: Object, ages: PushAges) -> Result<PushCounts> {
    let snapshot = Snapshot::begin(client).await?;
    let epoch = snapshot.query_opt(LAST_EPOCH, &[]).await?;
    let epoch = epoch.map(|row| parse_epoch(&row)).transpose()?;
    let comparing = epoch.is_some_and(|epoch| epoch.is_comparing(ages.observed_before));
    let sql = "-- count_pushes
        SELECT count(*), count(*) FILTER (
            WHERE created_at < $1 AND NOT ($2 AND looked_at IS NOT NULL)
        ) FROM pushes
        WHERE state = 'observed' AND NOT shadow";
    let before = SqlTimestamp(ages.observed_before);
    let observed = snapshot.query_one(sql, &[&before, &comparing]).await?;
    let sql = "-- count_pushes
        SELECT count(*), count(*) FILTER (WHERE state_at < $1) FROM pushes
        WHERE state = 'submitted' AND NOT shadow";
    let submitted = snapshot.query_one(sql, &[&SqlTimestamp(ages.submitted_before)]).await?;
    let sql = "-- count_pushes
        SELECT meter_no, count(*), sum(quantity) FROM pushes
        WHERE state = 'dead' AND NOT shadow
        GROUP BY meter_no ORDER BY meter_no";
    let rows = snapshot.query(sql, &[]).await?;
    let (without_customer, unsent) = sum_unmapped(&snapshot).await?;
    snapshot.end().await?;
    let number = |row: &Row, place: usize| read_count(column(row, place)?);
    let (mut dead, mut unbilled) = (0, Vec::with_capacity(rows.len()));
    for row in &rows {
        dead += number(row, 1)?;
        let SqlQuantity(sum) = column(row, 2)?;
        unbilled.push((read_meter_no(column(row, 0)?)?, sum));
    }
    Ok(PushCounts {
        observed: number(&observed, 0)?,
        observed_long: number(&observed, 1)?,
        without_customer,
        unsent,
        submitted: number(&submitted, 0)?,
        submitted_long: number(&submitted, 1)?,
        dead,
        unbilled,
    })
}

/// Pushes of windows that start in `range`, in the order of window and revision.
pub async fn read_window_pushes(
    client: &ClientWrapper,
    tenant: &TenantId,
    meter: MeterNo,
    range: Window,
) -> Result<Vec<WindowPush>> {
    let sql = "-- read_window_pushes
        SELECT push_no, window_start, window_end, revision, shadow, mode, quantity, value,
            stamped_at, state, class, attempts, state_at, customer
        FROM pushes
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND window_start >= $3 AND window_start < $4
        ORDER BY window_start, revision";
    let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
    let rows =
        client.read_all(sql, &[&tenant.as_str(), &meter_number(meter), &start, &end]).await?;
    rows.iter().map(window_push).collect()
}

fn window_push(row: &Row) -> Result<WindowPush> {
    let mode: String = column(row, 5)?;
    let (SqlQuantity(quantity), SqlQuantity(value)) = (column(row, 6)?, column(row, 7)?);
    Ok(WindowPush {
        number: read_count(column(row, 0)?)?,
        window: Window { start: instant(row, 1)?, end: instant(row, 2)? },
        revision: read_ordinal(column(row, 3)?)?,
        shadow: column(row, 4)?,
        mode: Mode::from_name(&mode).ok_or_else(|| damaged("pushes.mode", &mode))?,
        quantity,
        value,
        stamped_at: instant(row, 8)?,
        state: read_state(row, 9)?,
        class: read_class(row, 10)?,
        customer: read_customer(row, 13)?,
        attempts: read_ordinal(column(row, 11)?)?,
        state_at: instant(row, 12)?,
    })
}
