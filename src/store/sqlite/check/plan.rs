//! Which slices there are, and which tenants and meters have totals.
//!
//! Sizes come from event ranges. They only decide where a slice ends: whatever they say, slices
//! follow each other without a gap. So a block of ranges that cannot be read makes a slice too
//! large and nothing else; the slice itself is then shown as not checked.

use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::self_check::{Place, Slice, TenantCutter, border_grain, cut_times, grain_start};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::self_check::TotalsPair;
use crate::store::sqlite::counter_blocks::visit_counters;
use crate::store::sqlite::declarations::load_catalog;
use crate::store::sqlite::event_ranges::{EventRange, decode, read_range};
use crate::store::sqlite::runs::{RunRow, read_runs};
use crate::store::sqlite::segment::hour_of;
use crate::store::sqlite::statements::Statements;
use crate::store::sqlite::total_blocks::{RecordReader, find_bounds};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of ranges that are read of a segment for one step of planning.
const BLOCKS_OF_STEP: usize = 2;

/// The slices from a place on, at most about `limit`; none at the end.
pub fn plan_slices(connection: &Connection, from: Place, limit: usize) -> Result<Vec<Slice>> {
    connection.execute_batch("BEGIN")?;
    let planned = plan(connection, from, limit);
    connection.execute_batch("ROLLBACK")?;
    planned
}

fn plan(connection: &Connection, from: Place, limit: usize) -> Result<Vec<Slice>> {
    let segments = read_segment_numbers(connection)?;
    let grain = border_grain(&load_catalog(connection)?);
    let mut slices = Vec::new();
    let first = match Timestamp::from_micros(from.at) {
        at if at.micros() == i64::MIN => from.tenant,
        at => {
            let tenant = TenantNo(from.tenant);
            let from = grain_start(at, grain);
            slices.extend(plan_times(connection, &segments, tenant, (from, grain))?);
            from_next(tenant)
        }
    };
    let mut next = Some(TenantNo(first));
    let mut cutter = TenantCutter::starting(TenantNo(first));
    while let Some(tenant) = next.filter(|_| slices.len() < limit) {
        let (counts, end) = count_tenants(connection, &segments, tenant)?;
        for (number, events) in counts {
            let (ended, alone) = cutter.push(number, events);
            slices.extend(ended);
            if alone {
                let ever = (Timestamp::from_micros(i64::MIN), grain);
                slices.extend(plan_times(connection, &segments, number, ever)?);
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

fn from_next(tenant: TenantNo) -> u32 {
    tenant.0.saturating_add(1)
}

fn read_segment_numbers(connection: &Connection) -> Result<Vec<u32>> {
    let sql = "-- read_segment_numbers\nSELECT segment_no FROM segments ORDER BY segment_no";
    connection.read_all(sql, [], |row| Ok(row.get(0)?))
}

/// Events of the tenants from one on, in ascending order, and the first tenant that was not counted
/// whole; none if all were.
fn count_tenants(
    connection: &Connection,
    segments: &[u32],
    first: TenantNo,
) -> Result<(BTreeMap<TenantNo, u64>, Option<TenantNo>)> {
    let mut counts: BTreeMap<TenantNo, u64> = BTreeMap::new();
    let mut end: Option<TenantNo> = None;
    for segment_no in segments {
        let blocks = connection.read_all(
            "-- count_tenants
             SELECT first_tenant, body FROM event_ranges
             WHERE segment_no = ?1 AND first_tenant >= coalesce(
                 (SELECT max(first_tenant) FROM event_ranges
                  WHERE segment_no = ?1 AND first_tenant <= ?2), 0)
             ORDER BY first_tenant LIMIT ?3",
            params![segment_no, first.0, BLOCKS_OF_STEP + 1],
            |row| {
                let number: u32 = row.get(0)?;
                let body = row.get_ref(1)?.as_blob().unwrap_or_default();
                Ok((TenantNo(number), decode(number, body).unwrap_or_default()))
            },
        )?;
        for (place, (number, ranges)) in blocks.into_iter().enumerate() {
            if place == BLOCKS_OF_STEP {
                end = Some(end.map_or(number, |end| end.min(number)));
                break;
            }
            for EventRange { tenant, numbers, .. } in ranges {
                if tenant >= first {
                    *counts.entry(tenant).or_default() += numbers.end - numbers.start;
                }
            }
        }
    }
    if let Some(end) = end {
        counts.retain(|tenant, _| *tenant < end);
    }
    Ok((counts, end))
}

/// The slices of one tenant from a time on. Of events between two fences is only known that they
/// lie between.
fn plan_times(
    connection: &Connection,
    segments: &[u32],
    tenant: TenantNo,
    (from, grain): (Timestamp, i64),
) -> Result<Vec<Slice>> {
    let mut events: BTreeMap<Timestamp, u64> = BTreeMap::new();
    for segment_no in segments {
        let Ok(Some(range)) = read_range(connection, *segment_no, tenant) else { continue };
        range.visit_fences(|at, count| {
            *events.entry(grain_start(at, grain)).or_default() += count;
        });
    }
    Ok(cut_times(tenant, from, events))
}

/// Tenants and meters with totals after one, in order.
pub fn list_pairs(
    connection: &Connection,
    after: (TenantNo, MeterNo),
    limit: usize,
) -> Result<Vec<TotalsPair>> {
    let runs = read_runs(connection)?;
    let (mut pairs, mut place) = (Vec::new(), after);
    while pairs.len() < limit {
        let Some((tenant, meter)) = next_pair(connection, &runs, place)? else { break };
        let mut bounds: Option<(Timestamp, Timestamp)> = None;
        for run in &runs {
            let found = find_bounds(connection, run.run_no, (tenant, meter))?;
            bounds = match (bounds, found) {
                (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
                (one, other) => one.or(other),
            };
        }
        pairs.extend(bounds.map(|(first, last)| TotalsPair { tenant, meter, first, last }));
        place = (tenant, meter);
    }
    Ok(pairs)
}

/// The first tenant and meter with totals after one.
pub fn next_pair(
    connection: &Connection,
    runs: &[RunRow],
    (tenant, meter): (TenantNo, MeterNo),
) -> Result<Option<(TenantNo, MeterNo)>> {
    // The place behind everything of a pair is behind its last bucket.
    let start = (tenant, meter, Timestamp::from_micros(i64::MAX));
    let mut next = None;
    for run in runs {
        let found = RecordReader::seek(connection, run.run_no, start)?.next()?;
        let pair = found.map(|record| (record.key.tenant, record.key.meter));
        next = match (next, pair.filter(|pair| *pair > (tenant, meter))) {
            (Some(a), Some(b)) => Some(std::cmp::min(a, b)),
            (one, other) => one.or(other),
        };
    }
    Ok(next)
}

/// Tenants after one that had events counted in an hour since `since`, in order.
pub fn list_active(
    connection: &Connection,
    since: Timestamp,
    after: TenantNo,
    limit: usize,
) -> Result<Vec<TenantNo>> {
    let mut active = BTreeSet::new();
    let end = Timestamp::from_micros(i64::MAX);
    visit_counters(connection, (hour_of(since), TenantNo(0)), end, |(tenant, _), tally| {
        if tenant > after && tally.accepted > 0 {
            active.insert(tenant);
            if active.len() > limit {
                active.pop_last();
            }
        }
        true
    })?;
    Ok(active.into_iter().collect())
}
