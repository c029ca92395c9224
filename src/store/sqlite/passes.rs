//! Passes and their rows, and the one implementation of what reconciliation asks of the store.
//!
//! Invariant: a closed pass never changes, and neither do its rows: each write looks at the lease
//! and at the pass in its own transaction. Of nightly passes there is one for each range. A crash
//! leaves a pass running, with some of its rows; who takes it up writes them over.

use super::leases::holds_lease;
use super::push_rows::{get, moment, quantity_if_any, quantity_of};
use super::statements::Statements;
use super::{Shared, SqliteStore, corrections, corrupt, damaged, findings, summaries};
use super::{window_pushes, writer::Writer};
use crate::rules::drift::{Reason, Summary, Verdict, WindowPush};
use crate::rules::finding::{Finding, FindingChange};
use crate::rules::ids::{CustomerId, MeterNo, TenantId, TenantNo};
use crate::rules::pass::{Pass, PassKind, PassOrder, PassProgress, PassRow, PassState};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::{Lease, Ruling};
use crate::store::reconciliation::{
    CorrectionOrder, FindingQuery, Pair, PassQuery, PassRowQuery, PassUpdate, Reconciliation,
    SummaryReading,
};
use crate::store::{Error, Result};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use std::sync::Arc;

#[async_trait]
impl Reconciliation for SqliteStore {
    async fn record_summaries(
        &self,
        readings: Vec<SummaryReading>,
        read_at: Timestamp,
    ) -> Result<()> {
        self.write_sharing(move |shared, connection| {
            summaries::record_summaries(shared, connection, &readings, read_at)
        })
        .await
    }

    async fn read_summaries(
        &self,
        (tenant, customer): (&TenantId, &CustomerId),
        meter: MeterNo,
        range: Window,
        length_micros: i64,
    ) -> Result<Vec<Summary>> {
        let Some(tenant) = self.tenant_no(tenant) else { return Ok(Vec::new()) };
        let customer = customer.clone();
        self.read(move |_, c| {
            summaries::read_summaries(c, (tenant, meter), &customer, range, length_micros)
        })
        .await
    }

    async fn read_window_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
    ) -> Result<Vec<WindowPush>> {
        let Some(tenant) = self.tenant_no(tenant) else { return Ok(Vec::new()) };
        self.read(move |_, c| window_pushes::read_window_pushes(c, (tenant, meter), range)).await
    }

    async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>> {
        self.read(move |_, c| window_pushes::list_restless_pairs(c, since, shadow)).await
    }

    async fn list_former_customers(&self) -> Result<Vec<(TenantId, CustomerId)>> {
        self.read(move |_, c| window_pushes::list_former_customers(c)).await
    }

    async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64> {
        self.write(move |writer| writer.write(|c| create_pass(c, &order, at))).await
    }

    async fn update_pass(&self, lease: &Lease, update: PassUpdate, at: Timestamp) -> Result<bool> {
        let lease = lease.clone();
        self.write(move |writer| writer.write(|c| update_pass(c, &lease, &update, at))).await
    }

    async fn list_passes(&self, query: PassQuery) -> Result<Vec<Pass>> {
        self.read(move |_, connection| list_passes(connection, &query)).await
    }

    async fn find_pass(&self, number: u64) -> Result<Option<Pass>> {
        self.read(move |_, connection| find_pass(connection, number)).await
    }

    async fn record_pass_rows(&self, lease: &Lease, pass: u64, rows: Vec<PassRow>) -> Result<bool> {
        let lease = lease.clone();
        self.write_sharing(move |shared, connection| {
            if !holds_lease(connection, &lease)? || !is_running(connection, pass)? {
                return Ok(false);
            }
            for row in &rows {
                let tenant = shared.read_memory().tenants.find(&row.tenant);
                let tenant = tenant.ok_or_else(|| corrupt("tenants row of a pass_rows row"))?;
                write_pass_row(connection, (pass, tenant), row)?;
            }
            Ok(true)
        })
        .await
    }

    async fn list_pass_rows(&self, query: PassRowQuery) -> Result<Vec<PassRow>> {
        self.read(move |_, connection| list_pass_rows(connection, &query)).await
    }

    async fn list_findings(&self, query: FindingQuery) -> Result<Vec<Finding>> {
        self.read(move |_, connection| findings::list_findings(connection, &query)).await
    }

    async fn record_findings(
        &self,
        lease: &Lease,
        pass: u64,
        changes: Vec<FindingChange>,
        at: Timestamp,
    ) -> Result<bool> {
        let lease = lease.clone();
        self.write_sharing(move |shared, connection| {
            if !holds_lease(connection, &lease)? {
                return Ok(false);
            }
            let moment = findings::Moment { pass, at };
            let mut changes = changes.iter();
            changes.try_for_each(|change| findings::record(shared, connection, change, moment))?;
            Ok(true)
        })
        .await
    }

    async fn accept_finding(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        self.write(move |writer| writer.write(|c| findings::accept_finding(c, number, at))).await
    }

    async fn is_accepted(&self, subscription: &str) -> Result<bool> {
        let subscription = subscription.to_owned();
        self.read(move |_, connection| findings::is_accepted(connection, &subscription)).await
    }

    async fn count_drifting_tenants(&self) -> Result<u64> {
        self.read(|_, connection| findings::count_drifting_tenants(connection)).await
    }

    async fn record_correction(&self, order: CorrectionOrder, at: Timestamp) -> Result<Ruling> {
        let secret = self.push_secret;
        self.write(move |writer| corrections::record_correction(writer, secret, &order, at)).await
    }

    async fn close_pushes(
        &self,
        tenant: &TenantId,
        meter: MeterNo,
        range: Window,
        at: Timestamp,
    ) -> Result<u64> {
        let Some(tenant) = self.tenant_no(tenant) else { return Ok(0) };
        self.write(move |writer| corrections::close_pushes(writer, (tenant, meter), range, at))
            .await
    }
}

impl SqliteStore {
    fn tenant_no(&self, tenant: &TenantId) -> Option<TenantNo> {
        self.shared.read_memory().tenants.find(tenant)
    }

    /// A write in one transaction that looks things up in memory.
    async fn write_sharing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared, &Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.write(move |writer: &mut Writer| {
            let shared = Arc::clone(&writer.shared);
            writer.write(|connection| work(&shared, connection))
        })
        .await
    }
}

fn create_pass(connection: &Connection, order: &PassOrder, at: Timestamp) -> Result<u64> {
    let known = match order.kind {
        PassKind::Nightly => find_nightly(connection, order.range)?,
        PassKind::Hourly | PassKind::OneShot => None,
    };
    if let Some(number) = known {
        return Ok(number);
    }
    connection.run(
        "-- create_pass
         INSERT INTO passes (kind, range_start, range_end, tenant, apply, state, created_at,
                             progress)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            order.kind.name(),
            order.range.start.micros(),
            order.range.end.micros(),
            order.tenant.as_ref().map(TenantId::as_str),
            order.apply,
            PassState::Waiting.name(),
            at.micros(),
            progress_text(&PassProgress::default())
        ],
    )?;
    Ok(u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1"))
}

fn find_nightly(connection: &Connection, range: Window) -> Result<Option<u64>> {
    let range = params![range.start.micros(), range.end.micros()];
    connection.read_optional(
        "-- find_nightly
         SELECT pass_no FROM passes
         WHERE kind = 'nightly' AND range_start = ? AND range_end = ?",
        range,
        |row| Ok(row.get(0)?),
    )
}

fn progress_text(progress: &PassProgress) -> String {
    serde_json::to_string(progress).expect("numbers by verdict are valid JSON")
}

fn update_pass(
    connection: &Connection,
    lease: &Lease,
    update: &PassUpdate,
    at: Timestamp,
) -> Result<bool> {
    if !holds_lease(connection, lease)? {
        return Ok(false);
    }
    let ended_at = update.state.has_ended().then(|| at.micros());
    let changed = connection.run(
        "-- update_pass
         UPDATE passes SET state = ?, ended_at = ?, progress = ?, hash = ?, detail = ?
         WHERE pass_no = ? AND state <> 'closed'",
        params![
            update.state.name(),
            ended_at,
            progress_text(&update.progress),
            update.hash,
            update.detail,
            update.number
        ],
    )?;
    Ok(changed == 1)
}

pub fn list_passes(connection: &Connection, query: &PassQuery) -> Result<Vec<Pass>> {
    // Those that are not ended are few, and jobs ask for them all the time.
    let sql = match query.state {
        Some(PassState::Waiting | PassState::Running) => {
            "-- list_passes
             SELECT pass_no, kind, range_start, range_end, tenant, apply, state, created_at,
                    ended_at, progress, hash, detail
             FROM passes INDEXED BY passes_open
             WHERE (?1 IS NULL OR kind = ?1) AND state = ?2 AND state IN ('waiting', 'running')
                 AND pass_no < ?3
             ORDER BY pass_no DESC LIMIT ?4"
        }
        Some(PassState::Closed | PassState::Incomplete | PassState::Failed) | None => {
            "-- list_passes
             SELECT pass_no, kind, range_start, range_end, tenant, apply, state, created_at,
                    ended_at, progress, hash, detail
             FROM passes
             WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR state = ?2) AND pass_no < ?3
             ORDER BY pass_no DESC LIMIT ?4"
        }
    };
    let before = query.before.and_then(|number| i64::try_from(number).ok());
    let asked = params![
        query.kind.map(PassKind::name),
        query.state.map(PassState::name),
        before.unwrap_or(i64::MAX),
        i64::try_from(query.limit).unwrap_or(i64::MAX)
    ];
    connection.read_all(sql, asked, decode_pass)
}

fn find_pass(connection: &Connection, number: u64) -> Result<Option<Pass>> {
    connection.read_optional(
        "-- find_pass
         SELECT pass_no, kind, range_start, range_end, tenant, apply, state, created_at,
                ended_at, progress, hash, detail
         FROM passes WHERE pass_no = ?",
        [number],
        decode_pass,
    )
}

fn decode_pass(row: &Row<'_>) -> Result<Pass> {
    let (kind, state): (String, String) = (get(row, "kind")?, get(row, "state")?);
    let (tenant, progress): (Option<String>, String) = (get(row, "tenant")?, get(row, "progress")?);
    let tenant = tenant.as_deref().map(TenantId::parse).transpose();
    let range = Window { start: moment(row, "range_start")?, end: moment(row, "range_end")? };
    Ok(Pass {
        number: get(row, "pass_no")?,
        order: PassOrder {
            kind: PassKind::from_name(&kind).ok_or_else(|| damaged("passes.kind", &kind))?,
            range,
            tenant: tenant.map_err(|_| corrupt("passes.tenant"))?,
            apply: get(row, "apply")?,
        },
        state: PassState::from_name(&state).ok_or_else(|| damaged("passes.state", &state))?,
        created_at: moment(row, "created_at")?,
        ended_at: get::<Option<i64>>(row, "ended_at")?.map(Timestamp::from_micros),
        progress: serde_json::from_str(&progress)
            .map_err(|_| damaged("passes.progress", &progress))?,
        hash: get(row, "hash")?,
        detail: get(row, "detail")?,
    })
}

fn is_running(connection: &Connection, pass: u64) -> Result<bool> {
    connection.read_one(
        "-- is_running
         SELECT EXISTS (SELECT 1 FROM passes WHERE pass_no = ? AND state = 'running')",
        [pass],
        |row| Ok(row.get(0)?),
    )
}

fn write_pass_row(
    connection: &Connection,
    (pass, tenant): (u64, TenantNo),
    row: &PassRow,
) -> Result<()> {
    let windows = serde_json::to_string(&row.windows)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    connection.run(
        "-- write_pass_row
         INSERT INTO pass_rows (pass_no, tenant_no, meter_no, day_start, day_end, ledger,
                                pushed, provider, verdict, reason, windows, hash, marks)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET day_end = excluded.day_end, ledger = excluded.ledger,
             pushed = excluded.pushed, provider = excluded.provider,
             verdict = excluded.verdict, reason = excluded.reason,
             windows = excluded.windows, hash = excluded.hash, marks = excluded.marks",
        params![
            pass,
            tenant.0,
            row.meter.0,
            row.day.start.micros(),
            row.day.end.micros(),
            row.ledger.to_string(),
            row.pushed.to_string(),
            row.provider.map(|provider| provider.to_string()),
            row.verdict.name(),
            row.reason.name(),
            windows,
            row.hash,
            row.marks.text()
        ],
    )?;
    Ok(())
}

/// Tenants are gone through in the order of their names; so a page costs what it holds, and not
/// what the pass does.
pub fn list_pass_rows(connection: &Connection, query: &PassRowQuery) -> Result<Vec<PassRow>> {
    // No tenant has the empty name.
    let (tenant, meter, day) = match &query.after {
        Some((tenant, meter, day)) => (tenant.as_str(), meter.0, day.micros()),
        None => ("", 0, 0),
    };
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- list_pass_rows
         SELECT tenant, meter_no, day_start, day_end, ledger, pushed, provider, verdict,
                reason, windows, hash, marks
         FROM tenants CROSS JOIN pass_rows
         WHERE pass_no = ?1 AND pass_rows.tenant_no = tenants.tenant_no AND tenant >= ?2
             AND (tenant > ?2 OR (meter_no, day_start) > (?3, ?4))
         ORDER BY tenant, meter_no, day_start LIMIT ?5",
        params![query.pass, tenant, meter, day, limit],
        decode_pass_row,
    )
}

fn decode_pass_row(row: &Row<'_>) -> Result<PassRow> {
    let (tenant, windows): (String, String) = (get(row, "tenant")?, get(row, "windows")?);
    let (verdict, reason): (String, String) = (get(row, "verdict")?, get(row, "reason")?);
    let marks: Option<String> = get(row, "marks")?;
    let marks = marks.map(|text| serde_json::from_str(&text)).transpose();
    Ok(PassRow {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        meter: MeterNo(get(row, "meter_no")?),
        day: Window { start: moment(row, "day_start")?, end: moment(row, "day_end")? },
        ledger: quantity_of(row, "ledger")?,
        pushed: quantity_of(row, "pushed")?,
        provider: quantity_if_any(row, "provider")?,
        verdict: Verdict::from_name(&verdict)
            .ok_or_else(|| damaged("pass_rows.verdict", &verdict))?,
        reason: Reason::from_name(&reason).ok_or_else(|| damaged("pass_rows.reason", &reason))?,
        windows: serde_json::from_str(&windows)
            .map_err(|_| damaged("pass_rows.windows", &windows))?,
        marks: marks.map_err(|_| corrupt("pass_rows.marks"))?.unwrap_or_default(),
        hash: get(row, "hash")?,
    })
}
