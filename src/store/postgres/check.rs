//! The check: every total and counter recomputed from the events, by the same rules, and every
//! event found again by its key. It reads only; memory holds a bounded number of totals, never the
//! events.
//!
//! It is done slice by slice (`slices`), as the self-check does, each in a snapshot of its own that
//! ends soon, so that the database need not keep what others delete and change meanwhile. The
//! slices cover all numbers and all times, so nothing lies beside them.

use super::connection::Connector;
use super::declarations::read_catalog;
use super::scalars::{column, damaged, read_count};
use super::session::read_snapshot;
use super::slice_plan::plan_slices;
use super::slices::{KeyCheck, begin, check_slice};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::self_check::{Parts, Place, Slice};
use crate::store::sql::verify_passes;
use crate::store::{
    CHECK_ROWS_MAX, CheckProgress, CheckReport, CheckStep, Error, Progress, Result,
};
use deadpool_postgres::{ClientWrapper, Pool};

/// Slices that are planned at once.
const PLANNED_SLICES: usize = 256;

/// Compares totals and counters with the events, and looks for the events by their keys.
pub async fn check(
    pool: &Pool,
    connector: &Connector,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let of = count_events(&*pool.get().await?).await?;
    let mut place = Some(Place::START);
    while let Some(from) = place {
        for slice in plan_slices(pool.get().await?, from, PLANNED_SLICES).await? {
            place = slice.after();
            let mut parts = Parts::of(slice);
            while let Some(part) = parts.pop() {
                check_part(pool, fingerprinter, part, &mut parts, &mut report).await?;
                let events = report.events;
                let step = CheckStep::Totals;
                progress(CheckProgress { step, events, of: of.max(events) });
            }
            compare_keys(pool, slice, &mut report).await?;
        }
    }
    report.audit = read_snapshot(begin(pool.get().await?).await?, connector, verify_passes).await?;
    if let Some(broken) = report.audit.broken.clone() {
        report.add(|| format!("the chain of nightly passes is broken: {broken}"));
    }
    Ok(report)
}

/// Compares a part; one that cannot be read is divided, or reported.
async fn check_part(
    pool: &Pool,
    fingerprinter: &Fingerprinter,
    part: Slice,
    parts: &mut Parts,
    report: &mut CheckReport,
) -> Result<()> {
    let mut keys = KeyCheck { fingerprinter, report };
    let client = pool.get().await?;
    match check_slice(client, part, CHECK_ROWS_MAX, Some(&mut keys)).await {
        Ok(slice) => {
            report.events += slice.events;
            report.add_slice(slice);
            Ok(())
        }
        Err(Error::Corrupt { what }) => {
            let client = pool.get().await?;
            let catalog = read_catalog(&client).await?;
            if !parts.split(part, &catalog, last_tenant(&client).await?) {
                let name = find_name(&client, part.first).await?;
                let name = name.as_ref().map(TenantId::as_str);
                let part = part.describe(name, &catalog);
                report.add(|| format!("{part}: could not be checked: {what}"));
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// How many events there are, about: what the counters say.
async fn count_events(client: &ClientWrapper) -> Result<u64> {
    let sql = "-- count_events\nSELECT COALESCE(sum(accepted), 0)::int8 FROM counters";
    read_count(column(&client.query_one(sql, &[]).await?, 0)?)
}

async fn last_tenant(client: &ClientWrapper) -> Result<TenantNo> {
    let sql = "-- last_tenant\nSELECT COALESCE(max(tenant_no), 0) FROM tenants";
    let number: i32 = column(&client.query_one(sql, &[]).await?, 0)?;
    Ok(TenantNo(u32::try_from(number).map_err(|_| damaged("tenants.tenant_no", number))?))
}

async fn find_name(client: &ClientWrapper, number: TenantNo) -> Result<Option<TenantId>> {
    let sql = "-- find_name\nSELECT tenant FROM tenants WHERE tenant_no = $1";
    let number = i32::try_from(number.0).unwrap_or(i32::MAX);
    let Some(row) = client.query_opt(sql, &[&number]).await? else { return Ok(None) };
    let name: String = column(&row, 0)?;
    TenantId::parse(&name).map(Some).map_err(|_| damaged("tenants.tenant", &name))
}

/// Each tenant has as many keys as it has events. A tenant with several slices is compared with
/// the last of them.
async fn compare_keys(pool: &Pool, slice: Slice, report: &mut CheckReport) -> Result<()> {
    if !slice.counters {
        return Ok(());
    }
    let sql = "-- compare_keys
        SELECT tenant_no, sum(claims)::int8, sum(events)::int8 FROM (
            SELECT tenant_no, count(*) AS claims, 0 AS events FROM event_claims
            WHERE tenant_no BETWEEN $1 AND $2 GROUP BY tenant_no
            UNION ALL
            SELECT tenant_no, 0, count(*) FROM events
            WHERE tenant_no BETWEEN $1 AND $2 GROUP BY tenant_no
        ) AS parts
        GROUP BY tenant_no HAVING sum(claims) <> sum(events) ORDER BY tenant_no";
    let number = |tenant: TenantNo| i32::try_from(tenant.0).unwrap_or(i32::MAX);
    let first = if slice.first.0 == 0 { i32::MIN } else { number(slice.first) };
    let snapshot = begin(pool.get().await?).await?;
    for row in snapshot.query(sql, &[&first, &number(slice.last)]).await? {
        let tenant: i32 = column(&row, 0)?;
        let (claims, events) = (read_count(column(&row, 1)?)?, read_count(column(&row, 2)?)?);
        report.add(|| format!("tenant number {tenant} has {events} events and {claims} keys"));
    }
    snapshot.end().await
}
