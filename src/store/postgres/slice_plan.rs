//! Which slices there are, and which tenants and meters have totals.
//!
//! Sizes come from the rollups. They only decide where a slice ends: whatever they say, slices
//! follow each other without a gap.

use super::connection::Snapshot;
use super::declarations::read_catalog;
use super::scalars::{
    SqlTimestamp, column, instant, meter_number, read_count, read_meter_no, read_tenant_no,
    tenant_number, write_limit,
};
use super::slices::begin;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::self_check::{Place, Slice, TenantCutter, border_grain, cut_times, grain_start};
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use crate::store::Result;
use crate::store::self_check::TotalsPair;
use deadpool_postgres::{ClientWrapper, Object};

/// Rollups that are read for one step of planning, in the order of their key.
const STEP_ROLLUPS: i64 = 200_000;

/// The slices from a place on, at most `limit`; none at the end.
pub async fn plan_slices(client: Object, from: Place, limit: usize) -> Result<Vec<Slice>> {
    let snapshot: Snapshot = begin(client).await?;
    let planned = plan(&snapshot, from, limit).await?;
    snapshot.end().await?;
    Ok(planned)
}

async fn plan(client: &ClientWrapper, from: Place, limit: usize) -> Result<Vec<Slice>> {
    let grain = border_grain(&read_catalog(client).await?);
    let (mut slices, mut first) = (Vec::new(), TenantNo(from.tenant));
    if from.at != i64::MIN {
        let at = grain_start(Timestamp::from_micros(from.at), grain);
        slices.extend(plan_times(client, first, at, grain).await?);
        first = TenantNo(first.0.saturating_add(1));
    }
    let mut cutter = TenantCutter::starting(first);
    let mut next = Some(first);
    while let Some(tenant) = next.filter(|_| slices.len() < limit) {
        let (counts, end) = count_tenants(client, tenant).await?;
        for (number, events) in counts {
            let (ended, alone) = cutter.push(number, events);
            slices.extend(ended);
            if alone {
                let start = Timestamp::from_micros(i64::MIN);
                slices.extend(plan_times(client, number, start, grain).await?);
            }
        }
        next = end;
    }
    if next.is_none() {
        slices.extend(cutter.finish());
    }
    slices.truncate(limit.max(1));
    Ok(slices)
}

/// Events of the tenants from one on, in ascending order, and the first tenant that was not counted
/// whole; none if all were. A tenant with more rollups than a step reads counts as too large.
async fn count_tenants(
    client: &ClientWrapper,
    first: TenantNo,
) -> Result<(Vec<(TenantNo, u64)>, Option<TenantNo>)> {
    let sql = "-- count_tenants
        SELECT tenant_no, sum(count)::int8, count(*) FROM (
            SELECT tenant_no, count FROM rollups WHERE tenant_no >= $1
            ORDER BY tenant_no LIMIT $2
        ) AS first_rows
        GROUP BY tenant_no ORDER BY tenant_no";
    let start = i32::try_from(first.0).unwrap_or(i32::MAX);
    let (mut counts, mut read) = (Vec::new(), 0);
    for row in client.query(sql, &[&start, &STEP_ROLLUPS]).await? {
        counts.push((read_tenant_no(column(&row, 0)?)?, read_count(column(&row, 1)?)?));
        read += column::<i64>(&row, 2)?;
    }
    if read < STEP_ROLLUPS {
        return Ok((counts, None));
    }
    let Some((last, _)) = counts.pop() else { return Ok((counts, None)) };
    if counts.is_empty() {
        return Ok((vec![(last, u64::MAX)], Some(TenantNo(last.0.saturating_add(1)))));
    }
    Ok((counts, Some(last)))
}

/// The slices of one tenant from a time on.
async fn plan_times(
    client: &ClientWrapper,
    tenant: TenantNo,
    from: Timestamp,
    grain: i64,
) -> Result<Vec<Slice>> {
    let sql = "-- plan_times
        SELECT to_timestamp(floor(extract(epoch FROM bucket_start) / $3::int8) * $3::int8) AS at,
            sum(count)::int8
        FROM rollups WHERE tenant_no = $1 AND bucket_start >= $2 GROUP BY at ORDER BY at";
    let seconds = grain / MICROS_PER_SECOND;
    let rows = client.query(sql, &[&tenant_number(tenant), &SqlTimestamp(from), &seconds]).await?;
    let mut events = Vec::new();
    for row in &rows {
        events.push((instant(row, 0)?, read_count(column(row, 1)?)?));
    }
    Ok(cut_times(tenant, from, events))
}

/// Tenants and meters with totals after one, in order: each is found by the index.
pub async fn list_pairs(
    client: &ClientWrapper,
    after: (TenantNo, MeterNo),
    limit: usize,
) -> Result<Vec<TotalsPair>> {
    let next = "-- list_pairs
        SELECT tenant_no, meter_no, bucket_start FROM rollups
        WHERE (tenant_no, meter_no) > ($1, $2)
        ORDER BY tenant_no, meter_no, bucket_start LIMIT 1";
    let last = "-- list_pairs
        SELECT bucket_start FROM rollups WHERE tenant_no = $1 AND meter_no = $2
        ORDER BY bucket_start DESC LIMIT 1";
    let (next, last) = (client.prepare_cached(next).await?, client.prepare_cached(last).await?);
    let (mut pairs, mut place) = (Vec::new(), after);
    while pairs.len() < limit {
        let (tenant, meter) = (tenant_number(place.0), meter_number(place.1));
        let Some(row) = client.query_opt(&next, &[&tenant, &meter]).await? else { break };
        let (tenant, meter): (i32, i16) = (column(&row, 0)?, column(&row, 1)?);
        place = (read_tenant_no(tenant)?, read_meter_no(meter)?);
        let first = instant(&row, 2)?;
        let newest = client.query_opt(&last, &[&tenant, &meter]).await?;
        let last = newest.map_or(Ok(first), |row| instant(&row, 0))?;
        pairs.push(TotalsPair { tenant: place.0, meter: place.1, first, last });
    }
    Ok(pairs)
}

/// Tenants after one that had events counted in an hour since `since`, in order.
pub async fn list_active(
    client: &ClientWrapper,
    since: Timestamp,
    after: TenantNo,
    limit: usize,
) -> Result<Vec<TenantNo>> {
    let sql = "-- list_active
        SELECT DISTINCT tenant_no FROM counters
        WHERE hour >= date_trunc('hour', $1::timestamptz, 'UTC') AND tenant_no > $2 AND accepted > 0
        ORDER BY tenant_no LIMIT $3";
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&SqlTimestamp(since), &tenant_number(after), &write_limit(limit)];
    let rows = client.query(sql, &values).await?;
    rows.iter().map(|row| read_tenant_no(column(row, 0)?)).collect()
}
