//! Passes: comparisons of both halves, and the rows that stay of each.
//!
//! Invariant: a writer of a pass holds the lease until the commit, and then the pass's own
//! row; so rows are added only while it runs, and a closed pass never changes. Of nightly passes
//! there is one for each range, by a unique index.
//!
//! A crash leaves all of a call or nothing, and a pass running, which the next holder of the lease
//! begins anew. Calls that are repeated because their outcome was lost write the same again, but
//! for a pass that is ordered: unless it is nightly, it is ordered twice.

use super::PostgresStore;
use super::declarations::Creation;
use super::leases::hold_lease;
use super::numeric::SqlQuantity;
use super::push_rows::each;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, instant_if_any, meter_number, read_count,
    read_meter_no, tenant_number, write_count, write_limit,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::pass::{
    DriftWindow, Hash, Pass, PassKind, PassOrder, PassProgress, PassRow, PassState,
};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::Lease;
use crate::store::reconciliation::{PassQuery, PassRowQuery, PassUpdate};
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Tenant, meter and start of the day.
type RowKey = (i32, MeterNo, Timestamp);

impl PostgresStore {
    pub(super) async fn order_pass(&self, order: &PassOrder, at: Timestamp) -> Result<u64> {
        let work = move |client: Arc<Transaction>| async move {
            // Looked for first: an attempt to write it again would use up a number.
            match find_nightly(&client, order).await? {
                Some(number) => Ok(number),
                None => insert_pass(&client, order, at).await,
            }
        };
        self.transact(work).await
    }

    pub(super) async fn change_pass(
        &self,
        lease: &Lease,
        update: &PassUpdate,
        at: Timestamp,
    ) -> Result<bool> {
        let work = move |client: Arc<Transaction>| async move {
            if !hold_lease(&client, lease).await? {
                return Ok(false);
            }
            write_update(&client, update, at).await
        };
        self.transact(work).await
    }

    pub(super) async fn add_rows(
        &self,
        lease: &Lease,
        pass: u64,
        rows: &[PassRow],
    ) -> Result<bool> {
        self.number_tenants(rows.iter().map(|row| &row.tenant), Creation::Never).await?;
        let mut sorted: BTreeMap<RowKey, &PassRow> = BTreeMap::new();
        for row in rows {
            let number = self.tenant_no(&row.tenant).ok_or_else(|| Error::Internal {
                what: format!("a pass has a row of tenant {}, who is not known", row.tenant),
            })?;
            sorted.insert((tenant_number(number), row.meter, row.day.start), row);
        }
        let sorted = &sorted;
        let work = move |client: Arc<Transaction>| async move {
            if !hold_lease(&client, lease).await? {
                return Ok(false);
            }
            write_rows(&client, pass, sorted).await
        };
        self.transact(work).await
    }
}

async fn find_nightly(client: &ClientWrapper, order: &PassOrder) -> Done<Option<u64>> {
    match order.kind {
        PassKind::Nightly => {}
        PassKind::Hourly | PassKind::OneShot => return Ok(None),
    }
    let sql = "-- find_nightly
        SELECT pass_no FROM passes
        WHERE kind = 'nightly' AND range_start = $1 AND range_end = $2";
    let (start, end) = (SqlTimestamp(order.range.start), SqlTimestamp(order.range.end));
    let found = client.query_opt(sql, &[&start, &end]).await?;
    Ok(found.map(|row| read_count(column(&row, 0)?)).transpose()?)
}

/// Another server that orders the same nightly pass at once fails this, and finds it then.
async fn insert_pass(client: &ClientWrapper, order: &PassOrder, at: Timestamp) -> Done<u64> {
    let sql = "-- insert_pass
        INSERT INTO passes
            (kind, range_start, range_end, tenant, apply, state, created_at, progress)
        VALUES ($1, $2, $3, $4, $5, 'waiting', $6, $7)
        RETURNING pass_no";
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &order.kind.name(),
        &SqlTimestamp(order.range.start),
        &SqlTimestamp(order.range.end),
        &order.tenant.as_ref().map(TenantId::as_str),
        &order.apply,
        &SqlTimestamp(at),
        &progress_text(&PassProgress::default()),
    ];
    let row = client.query_one(sql, &parameters).await?;
    Ok(read_count(column(&row, 0)?)?)
}

async fn write_update(client: &ClientWrapper, update: &PassUpdate, at: Timestamp) -> Done<bool> {
    // A number that no column can hold names no pass.
    let Ok(number) = write_count(update.number) else { return Ok(false) };
    let ended_at = update.state.has_ended().then_some(SqlTimestamp(at));
    let sql = "-- write_update
        UPDATE passes SET state = $2, progress = $3, hash = $4, detail = $5, ended_at = $6
        WHERE pass_no = $1 AND state <> 'closed'";
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &number,
        &update.state.name(),
        &progress_text(&update.progress),
        &update.hash.as_ref().map(<[u8; 32]>::as_slice),
        &update.detail,
        &ended_at,
    ];
    Ok(client.execute(sql, &parameters).await? == 1)
}

/// Writes rows over those of the same tenant, meter and day.
async fn write_rows(
    client: &ClientWrapper,
    pass: u64,
    sorted: &BTreeMap<RowKey, &PassRow>,
) -> Done<bool> {
    let Ok(pass) = write_count(pass) else { return Ok(false) };
    let sql = "-- write_rows
        SELECT FROM passes WHERE pass_no = $1 AND state = 'running' FOR UPDATE";
    if client.read_all(sql, &[&pass]).await?.is_empty() {
        return Ok(false);
    }
    let sql = "-- write_rows
        INSERT INTO pass_rows (pass_no, tenant_no, meter_no, day_start, day_end, ledger, pushed,
            provider, verdict, reason, windows, hash, marks)
        SELECT $1, given.* FROM unnest($2::int4[], $3::int2[], $4::timestamptz[],
            $5::timestamptz[], $6::numeric[], $7::numeric[], $8::numeric[], $9::text[],
            $10::text[], $11::text[], $12::bytea[], $13::text[]) AS given
        ON CONFLICT (pass_no, tenant_no, meter_no, day_start) DO UPDATE SET
            day_end = excluded.day_end, ledger = excluded.ledger, pushed = excluded.pushed,
            provider = excluded.provider, verdict = excluded.verdict, reason = excluded.reason,
            windows = excluded.windows, hash = excluded.hash, marks = excluded.marks";
    let tenants: Vec<i32> = sorted.keys().map(|(tenant_no, _, _)| *tenant_no).collect();
    let rows: Vec<&PassRow> = sorted.values().copied().collect();
    let parameters: [&(dyn ToSql + Sync); 13] = [
        &pass,
        &tenants,
        &each(&rows, |row| meter_number(row.meter)),
        &each(&rows, |row| SqlTimestamp(row.day.start)),
        &each(&rows, |row| SqlTimestamp(row.day.end)),
        &each(&rows, |row| SqlQuantity(row.ledger)),
        &each(&rows, |row| SqlQuantity(row.pushed)),
        &each(&rows, |row| row.provider.map(SqlQuantity)),
        &each(&rows, |row| row.verdict.name()),
        &each(&rows, |row| row.reason.name()),
        &each(&rows, |row| windows_text(&row.windows)),
        &each(&rows, |row| row.hash.as_ref().map(<[u8; 32]>::as_slice)),
        &each(&rows, |row| row.marks.text()),
    ];
    client.run(sql, &parameters).await?;
    Ok(true)
}

pub async fn list_passes(client: &ClientWrapper, query: &PassQuery) -> Result<Vec<Pass>> {
    // Not kept prepared: planned for what is asked, each question can use its own index.
    let sql = "-- list_passes
        SELECT pass_no, kind, range_start, range_end, tenant, apply, state, created_at, ended_at,
            progress, hash, detail
        FROM passes
        WHERE ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR state = $2)
            AND ($3::int8 IS NULL OR pass_no < $3)
        ORDER BY pass_no DESC LIMIT $4";
    let before = query.before.and_then(|number| write_count(number).ok());
    let parameters: [&(dyn ToSql + Sync); 4] = [
        &query.kind.map(PassKind::name),
        &query.state.map(PassState::name),
        &before,
        &write_limit(query.limit),
    ];
    client.query(sql, &parameters).await?.iter().map(read_pass).collect()
}

pub async fn find_pass(client: &ClientWrapper, number: u64) -> Result<Option<Pass>> {
    let Ok(number) = write_count(number) else { return Ok(None) };
    let sql = "-- find_pass
        SELECT pass_no, kind, range_start, range_end, tenant, apply, state, created_at, ended_at,
            progress, hash, detail
        FROM passes WHERE pass_no = $1";
    client.read_optional(sql, &[&number]).await?.as_ref().map(read_pass).transpose()
}

pub async fn list_pass_rows(client: &ClientWrapper, query: &PassRowQuery) -> Result<Vec<PassRow>> {
    let Ok(pass) = write_count(query.pass) else { return Ok(Vec::new()) };
    let sql = "-- list_pass_rows
        SELECT t.tenant, r.meter_no, r.day_start, r.day_end, r.ledger, r.pushed, r.provider,
            r.verdict, r.reason, r.windows, r.hash, r.marks
        FROM pass_rows r JOIN tenants t ON t.tenant_no = r.tenant_no
        WHERE r.pass_no = $1 AND t.tenant >= $2
            AND (t.tenant > $2 OR r.meter_no > $3 OR (r.meter_no = $3 AND r.day_start > $4))
        ORDER BY t.tenant, r.meter_no, r.day_start
        LIMIT $5";
    let after = query.after.as_ref();
    // Every tenant comes after the empty text.
    let parameters: [&(dyn ToSql + Sync); 5] = [
        &pass,
        &after.map_or("", |(tenant, _, _)| tenant.as_str()),
        &after.map(|(_, meter, _)| meter_number(*meter)),
        &after.map(|(_, _, day)| SqlTimestamp(*day)),
        &write_limit(query.limit),
    ];
    client.read_all(sql, &parameters).await?.iter().map(read_row).collect()
}

fn read_pass(row: &Row) -> Result<Pass> {
    let (kind, state): (String, String) = (column(row, 1)?, column(row, 6)?);
    let (tenant, hash): (Option<String>, Option<Vec<u8>>) = (column(row, 4)?, column(row, 10)?);
    let progress: String = column(row, 9)?;
    let order = PassOrder {
        kind: PassKind::from_name(&kind).ok_or_else(|| damaged("passes.kind", &kind))?,
        range: Window { start: instant(row, 2)?, end: instant(row, 3)? },
        tenant: tenant
            .map(|id| TenantId::parse(&id).map_err(|_| damaged("tenants.tenant", &id)))
            .transpose()?,
        apply: column(row, 5)?,
    };
    Ok(Pass {
        number: read_count(column(row, 0)?)?,
        order,
        state: PassState::from_name(&state).ok_or_else(|| damaged("passes.state", &state))?,
        created_at: instant(row, 7)?,
        ended_at: instant_if_any(row, 8)?,
        progress: serde_json::from_str(&progress)
            .map_err(|_| damaged("passes.progress", &progress))?,
        hash: hash.map(read_hash).transpose()?,
        detail: column(row, 11)?,
    })
}

fn read_row(row: &Row) -> Result<PassRow> {
    let (tenant, windows): (String, String) = (column(row, 0)?, column(row, 9)?);
    let SqlQuantity(ledger) = column(row, 4)?;
    let SqlQuantity(pushed) = column(row, 5)?;
    let provider: Option<SqlQuantity> = column(row, 6)?;
    let (hash, marks): (Option<Vec<u8>>, Option<String>) = (column(row, 10)?, column(row, 11)?);
    let marks = marks.map(|text| serde_json::from_str(&text)).transpose();
    Ok(PassRow {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        meter: read_meter_no(column(row, 1)?)?,
        day: Window { start: instant(row, 2)?, end: instant(row, 3)? },
        ledger,
        pushed,
        provider: provider.map(|SqlQuantity(provider)| provider),
        verdict: read_verdict(row, 7)?,
        reason: read_reason(row, 8)?,
        windows: serde_json::from_str(&windows)
            .map_err(|_| damaged("pass_rows.windows", &windows))?,
        marks: marks.map_err(|_| corrupt("pass_rows.marks is not valid"))?.unwrap_or_default(),
        hash: hash.map(read_hash).transpose()?,
    })
}

pub fn read_verdict(row: &Row, place: usize) -> Result<Verdict> {
    let name: String = column(row, place)?;
    Verdict::from_name(&name).ok_or_else(|| damaged("pass_rows.verdict", &name))
}

pub fn read_reason(row: &Row, place: usize) -> Result<Reason> {
    let name: String = column(row, place)?;
    Reason::from_name(&name).ok_or_else(|| damaged("pass_rows.reason", &name))
}

fn read_hash(bytes: Vec<u8>) -> Result<Hash> {
    bytes.try_into().map_err(|_| corrupt("passes or pass_rows.hash is not 32 bytes long"))
}

fn progress_text(progress: &PassProgress) -> String {
    serde_json::to_string(progress).expect("progress is valid JSON")
}

fn windows_text(windows: &[DriftWindow]) -> String {
    serde_json::to_string(windows).expect("windows are valid JSON")
}
