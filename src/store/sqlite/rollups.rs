//! Totals in their table, and the exact answer from table and memory together.
//!
//! Invariant: an answer is table (a snapshot) + steps left of the segment being folded + the open
//! segment, all of one generation. Memory is copied first and the snapshot taken after, so the
//! snapshot holds all that memory holds; the number of steps done is read from the snapshot itself.
//! If the snapshot is of another segment than memory was, the read starts again.

use super::fold::read_state;
use super::memory::Memory;
use super::segment::{ClosedSegment, Segment, overflow};
use super::statements::Statements;
use super::totals::Totals;
use super::{Shared, corrupt, damaged};
use crate::heavy::give_way;
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::push::WindowUsage;
use crate::rules::quantity::Quantity;
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::{Composition, Usage, UsageRow, UsageShape};
use crate::rules::window::Window;
use crate::store::{Error, Result};
use rusqlite::{Connection, Row, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The totals of one tenant and meter, in a read transaction that stays open.
pub fn read_usage(
    shared: &Shared,
    connection: &Connection,
    (tenant, meter, range): (&TenantId, MeterNo, Window),
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let copy = |memory: &Memory| copy_totals(memory, tenant, meter);
    let (snapshot, copied) = shared.consistent_snapshot(connection, copy)?;
    let Some((tenant, open, catalog)) = copied else { return Ok(Vec::new()) };
    let place = (tenant, meter, range);
    let mut rows: Vec<UsageRow> = rows_open(&open, range).collect();
    rows.extend(rows_closed(connection, &snapshot, place, &catalog, rows_max)?);
    Ok(rows)
}

/// The same totals, composed as they are read.
pub fn compose_usage(
    shared: &Shared,
    connection: &Connection,
    (tenant, meter, range): (&TenantId, MeterNo, Window),
    shape: UsageShape,
) -> Result<Usage> {
    let copy = |memory: &Memory| copy_totals(memory, tenant, meter);
    let (snapshot, copied) = shared.consistent_snapshot(connection, copy)?;
    let mut composition = Composition::new(shape);
    let Some((tenant, open, catalog)) = copied else {
        return Ok(composition.finish()?);
    };
    let place = (tenant, meter, range);
    let left = snapshot.folding.iter();
    let left = left.flat_map(|closed| rows_left(closed, snapshot.steps_done, place));
    for (number, row) in rows_open(&open, range).chain(left).enumerate() {
        if number.is_multiple_of(ROWS_BETWEEN_PAUSES) {
            give_way();
        }
        composition.add(row)?;
    }
    let aggregation = aggregation_of(meter, &catalog)?;
    scan_rows(connection, place, |row, bucket_start, group| {
        let rollup = decode_rollup(row, aggregation, BTreeSet::new())?;
        Ok(composition.add(UsageRow { bucket_start, group, rollup })?)
    })?;
    if aggregation == Aggregation::Unique {
        scan_uniques(connection, place, |bucket_start, group, value| {
            Ok(composition.add_value(bucket_start, &Group::from_stored(group), value)?)
        })?;
    }
    Ok(composition.finish()?)
}

/// The same inside the writer's own transaction, on its thread: nobody else changes tables or
/// memory, so they agree without a snapshot. `steps_done` is the writer's.
pub fn read_usage_writing(
    shared: &Shared,
    connection: &Connection,
    steps_done: usize,
    (tenant, meter, range): (TenantNo, MeterNo, Window),
) -> Result<Vec<UsageRow>> {
    let memory = shared.read_memory();
    let open = totals_open(&memory, tenant, meter);
    let snapshot = Snapshot { folding: memory.folding.clone(), steps_done };
    let catalog = Arc::clone(&memory.catalog);
    drop(memory);
    let place = (tenant, meter, range);
    let mut rows: Vec<UsageRow> = rows_open(&open, range).collect();
    rows.extend(rows_closed(connection, &snapshot, place, &catalog, usize::MAX)?);
    Ok(rows)
}

/// What all tenants used of each meter before its moment, trials left out, in one snapshot. Tenant
/// by tenant, so that the totals before a moment are found by their key.
pub fn sum_before(
    shared: &Shared,
    connection: &Connection,
    meters: &[(MeterNo, Timestamp)],
) -> Result<BTreeMap<MeterNo, Quantity>> {
    let (snapshot, (open, catalog)) = shared.consistent_snapshot(connection, |memory| {
        let mut open: Vec<(MeterNo, UsageRow)> = Vec::new();
        for (key, rollup) in memory.unplanned().flat_map(Segment::all_rollups) {
            let RollupKey { meter, bucket_start, group, .. } = key;
            if meters.iter().any(|(one, from)| *one == meter && bucket_start < *from) {
                open.push((meter, UsageRow { bucket_start, group, rollup: rollup.clone() }));
            }
        }
        (open, Arc::clone(&memory.catalog))
    })?;
    let mut select = connection.prepare_cached("-- sum_before\nSELECT tenant_no FROM tenants")?;
    let tenants = select.query_map([], |row| Ok(TenantNo(row.get(0)?)))?;
    let tenants: Vec<TenantNo> = tenants.collect::<std::result::Result<_, _>>()?;
    let mut sums: BTreeMap<MeterNo, Quantity> = BTreeMap::new();
    let mut add = |meter: MeterNo, rows: &[UsageRow]| -> Result<()> {
        let usage = WindowUsage::measure(rows).map_err(|_| overflow())?.billable;
        let sum = sums.entry(meter).or_default();
        *sum = sum.checked_add(usage).ok_or_else(overflow)?;
        Ok(())
    };
    for (meter, row) in open {
        add(meter, &[row])?;
    }
    for tenant in tenants {
        for (meter, from) in meters {
            let range = Window { start: Timestamp::from_micros(0), end: *from };
            let place = (tenant, *meter, range);
            let rows = rows_closed(connection, &snapshot, place, &catalog, usize::MAX)?;
            add(*meter, &rows)?;
        }
    }
    sums.retain(|_, sum| *sum != Quantity::ZERO);
    Ok(sums)
}

const ROWS_BETWEEN_PAUSES: usize = 256;
/// Totals in memory with which a query takes about a millisecond.
const LARGE_TOTALS: usize = 2_000;

/// Whether memory alone makes a query for these totals a large one.
pub fn is_large(memory: &Memory, tenant: &TenantId, meter: MeterNo) -> bool {
    let Some(tenant) = memory.tenants.find(tenant) else { return false };
    let open = memory.unplanned().filter_map(|segment| segment.totals_of(tenant, meter));
    let closing = memory.folding.iter().map(|closed| closed.totals_of(tenant, meter).len());
    open.map(Totals::len).chain(closing).sum::<usize>() > LARGE_TOTALS
}

/// The tenant's number, what [`totals_open`] finds of it, and the meters.
fn copy_totals(
    memory: &Memory,
    tenant: &TenantId,
    meter: MeterNo,
) -> Option<(TenantNo, Vec<Totals>, Arc<Catalog>)> {
    let tenant = memory.tenants.find(tenant)?;
    Some((tenant, totals_open(memory, tenant, meter), Arc::clone(&memory.catalog)))
}

/// What the segments add of which nothing is in the table.
fn totals_open(memory: &Memory, tenant: TenantNo, meter: MeterNo) -> Vec<Totals> {
    memory.unplanned().filter_map(|segment| segment.totals_of(tenant, meter).cloned()).collect()
}

fn rows_open(open: &[Totals], range: Window) -> impl Iterator<Item = UsageRow> {
    let totals = open.iter().flat_map(move |totals| totals.within(range));
    totals.map(|((start, group), rollup)| usage_row(*start, group, rollup))
}

/// What is in the table, and what the segment being folded still adds to it.
fn rows_closed(
    connection: &Connection,
    snapshot: &Snapshot,
    place: (TenantNo, MeterNo, Window),
    catalog: &Catalog,
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let mut rows = Vec::new();
    if let Some(closed) = &snapshot.folding {
        rows.extend(rows_left(closed, snapshot.steps_done, place));
    }
    let aggregation = aggregation_of(place.1, catalog)?;
    rows.extend(read_rows(connection, place, aggregation, rows_max)?);
    Ok(rows)
}

fn rows_left(
    closed: &ClosedSegment,
    steps_done: usize,
    (tenant, meter, range): (TenantNo, MeterNo, Window),
) -> impl Iterator<Item = UsageRow> {
    let left = closed.rollups_left(steps_done);
    let start = left.partition_point(|(key, _)| {
        (key.tenant, key.meter, key.bucket_start) < (tenant, meter, range.start)
    });
    left[start..]
        .iter()
        .take_while(move |(key, _)| {
            (key.tenant, key.meter) == (tenant, meter) && key.bucket_start < range.end
        })
        .map(|(key, rollup)| usage_row(key.bucket_start, &key.group, rollup))
}

fn usage_row(bucket_start: Timestamp, group: &Group, rollup: &Rollup) -> UsageRow {
    UsageRow { bucket_start, group: group.clone(), rollup: rollup.clone() }
}

fn read_rows(
    connection: &Connection,
    place: (TenantNo, MeterNo, Window),
    aggregation: Aggregation,
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let mut left = rows_max;
    let mut count = || {
        left = left.checked_sub(1).ok_or_else(|| Error::TooLarge {
            what: format!("more than {rows_max} totals and values"),
        })?;
        Ok(())
    };
    let mut uniques: BTreeMap<(Timestamp, Group), BTreeSet<Box<str>>> = BTreeMap::new();
    if aggregation == Aggregation::Unique {
        scan_uniques(connection, place, |bucket_start, group, value| {
            let key = (bucket_start, Group::from_stored(group));
            uniques.entry(key).or_default().insert(value.into());
            count()
        })?;
    }
    let mut rows = Vec::new();
    scan_rows(connection, place, |row, bucket_start, group| {
        let values = uniques.remove(&(bucket_start, group.clone())).unwrap_or_default();
        let rollup = decode_rollup(row, aggregation, values)?;
        rows.push(UsageRow { bucket_start, group, rollup });
        count()
    })?;
    Ok(rows)
}

/// Goes through totals of the table; the first columns are as [`decode_rollup`] reads them.
fn scan_rows(
    connection: &Connection,
    (tenant, meter, range): (TenantNo, MeterNo, Window),
    mut visit: impl FnMut(&Row<'_>, Timestamp, Group) -> Result<()>,
) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- scan_rows
         SELECT count, total, latest_at, latest_id, bucket_start, grp FROM rollups
         WHERE tenant_no = ? AND meter_no = ? AND bucket_start >= ? AND bucket_start < ?",
    )?;
    let mut rows =
        select.query(params![tenant.0, meter.0, range.start.micros(), range.end.micros()])?;
    while let Some(row) = rows.next()? {
        let bucket_start = Timestamp::from_micros(row.get(4)?);
        let group = row.get_ref(5)?;
        let group = group.as_str().map_err(|_| corrupt("rollups.grp"))?;
        visit(row, bucket_start, Group::from_stored(group))?;
    }
    Ok(())
}

/// Goes through the values of a unique meter: their bucket, group and text.
fn scan_uniques(
    connection: &Connection,
    (tenant, meter, range): (TenantNo, MeterNo, Window),
    mut visit: impl FnMut(Timestamp, &str, &str) -> Result<()>,
) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- scan_uniques
         SELECT bucket_start, grp, value FROM rollup_uniques
         WHERE tenant_no = ? AND meter_no = ? AND bucket_start >= ? AND bucket_start < ?",
    )?;
    let mut rows =
        select.query(params![tenant.0, meter.0, range.start.micros(), range.end.micros()])?;
    while let Some(row) = rows.next()? {
        let text = |place| {
            let text = row.get_ref(place)?;
            text.as_str().map_err(|_| corrupt("rollup_uniques.value"))
        };
        let bucket_start = Timestamp::from_micros(row.get(0)?);
        visit(bucket_start, text(1)?, text(2)?)?;
    }
    Ok(())
}

/// The stored total of one key. A unique meter's values stay in their table: only its count is
/// needed to fold, since the values are added one by one.
pub fn read_rollup(
    connection: &Connection,
    key: &RollupKey,
    catalog: &Catalog,
) -> Result<Option<Rollup>> {
    let aggregation = aggregation_of(key.meter, catalog)?;
    let mut select = connection.prepare_cached(
        "-- read_rollup
         SELECT count, total, latest_at, latest_id FROM rollups
         WHERE tenant_no = ? AND meter_no = ? AND bucket_start = ? AND grp = ?",
    )?;
    let mut rows = select.query(params![
        key.tenant.0,
        key.meter.0,
        key.bucket_start.micros(),
        key.group.as_text()
    ])?;
    match rows.next()? {
        Some(row) => decode_rollup(row, aggregation, BTreeSet::new()).map(Some),
        None => Ok(None),
    }
}

/// Stores a total; `delta` names the unique values to add.
pub fn write_rollup(
    connection: &Connection,
    key: &RollupKey,
    total: &Rollup,
    delta: &Rollup,
) -> Result<()> {
    let (quantity, latest) = match &total.value {
        Accumulator::Sum(q) | Accumulator::Min(q) | Accumulator::Max(q) => (Some(*q), None),
        Accumulator::Latest { at, id, quantity } => (Some(*quantity), Some((at, id))),
        Accumulator::Count | Accumulator::Unique(_) => (None, None),
    };
    connection.run(
        "-- write_rollup
         INSERT INTO rollups (tenant_no, meter_no, bucket_start, grp, count, total, latest_at,
                              latest_id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET count = excluded.count, total = excluded.total,
             latest_at = excluded.latest_at, latest_id = excluded.latest_id",
        params![
            key.tenant.0,
            key.meter.0,
            key.bucket_start.micros(),
            key.group.as_text(),
            i64::try_from(total.count).expect("a count fits 63 bits"),
            quantity.map(|quantity| quantity.to_string()),
            latest.map(|(at, _)| at.micros()),
            latest.map(|(_, id)| id.as_str())
        ],
    )?;
    if let Accumulator::Unique(values) = &delta.value {
        for value in values {
            connection.run(
                "-- write_rollup
                 INSERT OR IGNORE INTO rollup_uniques VALUES (?, ?, ?, ?, ?)",
                params![
                    key.tenant.0,
                    key.meter.0,
                    key.bucket_start.micros(),
                    key.group.as_text(),
                    value
                ],
            )?;
        }
    }
    Ok(())
}

/// Reads a row whose first columns are count, total, latest_at, latest_id.
pub fn decode_rollup(
    row: &Row<'_>,
    aggregation: Aggregation,
    uniques: BTreeSet<Box<str>>,
) -> Result<Rollup> {
    let count: u64 = row.get(0)?;
    let quantity = || -> Result<Quantity> {
        let text = row.get_ref(1)?;
        let text = text.as_str().map_err(|_| corrupt("rollups.total"))?;
        Quantity::parse_stored(text).ok_or_else(|| damaged("rollups.total", text))
    };
    let value = match aggregation {
        Aggregation::Sum => Accumulator::Sum(quantity()?),
        Aggregation::Count => Accumulator::Count,
        Aggregation::Min => Accumulator::Min(quantity()?),
        Aggregation::Max => Accumulator::Max(quantity()?),
        Aggregation::Latest => {
            let id: String = row.get(3)?;
            Accumulator::Latest {
                at: Timestamp::from_micros(row.get(2)?),
                id: EventId::parse(&id).map_err(|_| damaged("rollups.latest_id", &id))?,
                quantity: quantity()?,
            }
        }
        Aggregation::Unique => Accumulator::Unique(uniques),
    };
    Ok(Rollup { count, value })
}

fn aggregation_of(meter: MeterNo, catalog: &Catalog) -> Result<Aggregation> {
    let meter = catalog.get(meter).ok_or_else(|| corrupt("meters row of a rollups row"))?;
    Ok(meter.spec.aggregation)
}

/// A read transaction of one moment, and the segment that was being folded then.
pub struct Snapshot {
    pub folding: Option<Arc<ClosedSegment>>,
    pub steps_done: usize,
}

impl Shared {
    /// Opens a read transaction that agrees with memory, and returns what `copy` took from memory
    /// at that moment. The caller's connection stays in the transaction.
    pub fn consistent_snapshot<T>(
        &self,
        connection: &Connection,
        copy: impl Fn(&Memory) -> T,
    ) -> Result<(Snapshot, T)> {
        loop {
            let (folding, segment_no, copied) = {
                let memory = self.read_memory();
                let folding = memory.folding.clone();
                (folding, memory.first_unfolded(), copy(&memory))
            };
            connection.execute_batch("BEGIN")?;
            let state = read_state(connection)?;
            let agrees = state.segment_no == segment_no
                && (folding.is_some() || state.closing_seq.is_none());
            if agrees {
                return Ok((Snapshot { folding, steps_done: state.steps_done }, copied));
            }
            // The writer has committed and not changed memory yet; it is about to.
            connection.execute_batch("ROLLBACK")?;
            std::thread::yield_now();
        }
    }
}
