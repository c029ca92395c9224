//! Totals in their table, and the exact answer from table and memory together.
//!
//! Invariant: an answer is the rows of all runs (a snapshot of the ledger) + the segments that the
//! snapshot does not have. Memory is copied first and the snapshot taken after, so the snapshot has
//! all that has left memory; the segments that it has are left out by its own mark.

use super::fold::read_state;
use super::memory::Memory;
use super::runs::{RunRow, read_runs};
use super::segment::{Segment, overflow};
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
    let mut rows: Vec<UsageRow> = snapshot.rows_unfolded(open.as_ref(), place).collect();
    rows.extend(read_rows(connection, &snapshot.runs, place, &catalog, rows_max)?);
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
    for (number, row) in snapshot.rows_unfolded(open.as_ref(), place).enumerate() {
        if number.is_multiple_of(ROWS_BETWEEN_PAUSES) {
            give_way();
        }
        composition.add(row)?;
    }
    let aggregation = aggregation_of(meter, &catalog)?;
    scan_rows(connection, &snapshot.runs, place, |row, bucket_start, group| {
        if let Some(value) = value_of(row, 6)? {
            return Ok(composition.add_value(bucket_start, &group, value)?);
        }
        let rollup = decode_rollup(row, aggregation)?;
        Ok(composition.add(UsageRow { bucket_start, group, rollup })?)
    })?;
    Ok(composition.finish()?)
}

/// The same on the writer's thread, which alone changes the open segment: so that is read as it is,
/// and the snapshot serves for several windows.
pub fn read_usage_writing(
    shared: &Shared,
    connection: &Connection,
    snapshot: &Snapshot,
    catalog: &Catalog,
    place: (TenantNo, MeterNo, Window),
) -> Result<Vec<UsageRow>> {
    let open = shared.read_memory().open.totals_of(place.0, place.1).cloned();
    let mut rows: Vec<UsageRow> = snapshot.rows_unfolded(open.as_ref(), place).collect();
    rows.extend(read_rows(connection, &snapshot.runs, place, catalog, usize::MAX)?);
    Ok(rows)
}

/// What all tenants used of each meter before its moment, trials left out, in one snapshot. Tenant
/// by tenant, so that the totals before a moment are found by their key.
pub fn sum_before(
    shared: &Shared,
    connection: &Connection,
    meters: &[(MeterNo, Timestamp)],
) -> Result<BTreeMap<MeterNo, Quantity>> {
    let before = |segment: &Segment| -> Vec<(MeterNo, UsageRow)> {
        let early = |key: &RollupKey| {
            meters.iter().any(|(meter, from)| *meter == key.meter && key.bucket_start < *from)
        };
        let rows = segment.all_rollups().filter(|(key, _)| early(key));
        rows.map(|(key, rollup)| (key.meter, usage_row(key.bucket_start, &key.group, rollup)))
            .collect()
    };
    let (snapshot, (mut unfolded, catalog)) = shared.consistent_snapshot(connection, |memory| {
        (before(&memory.open), Arc::clone(&memory.catalog))
    })?;
    unfolded.extend(snapshot.sealed.iter().flat_map(|segment| before(segment)));
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
    for (meter, row) in unfolded {
        add(meter, &[row])?;
    }
    for tenant in tenants {
        for (meter, from) in meters {
            let range = Window { start: Timestamp::from_micros(0), end: *from };
            let place = (tenant, *meter, range);
            let rows = read_rows(connection, &snapshot.runs, place, &catalog, usize::MAX)?;
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
    let totals = memory.unfolded().filter_map(|segment| segment.totals_of(tenant, meter));
    totals.map(Totals::len).sum::<usize>() > LARGE_TOTALS
}

/// The tenant's number, what the open segment adds to its totals, and the meters.
type CopiedTotals = (TenantNo, Option<Totals>, Arc<Catalog>);

fn copy_totals(memory: &Memory, tenant: &TenantId, meter: MeterNo) -> Option<CopiedTotals> {
    let tenant = memory.tenants.find(tenant)?;
    let open = memory.open.totals_of(tenant, meter).cloned();
    Some((tenant, open, Arc::clone(&memory.catalog)))
}

fn usage_row(bucket_start: Timestamp, group: &Group, rollup: &Rollup) -> UsageRow {
    UsageRow { bucket_start, group: group.clone(), rollup: rollup.clone() }
}

/// The rows of all runs: parts of totals, to be added up.
fn read_rows(
    connection: &Connection,
    runs: &[RunRow],
    place: (TenantNo, MeterNo, Window),
    catalog: &Catalog,
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let aggregation = aggregation_of(place.1, catalog)?;
    let (mut rows, mut left): (Vec<UsageRow>, _) = (Vec::new(), rows_max);
    scan_rows(connection, runs, place, |row, bucket_start, group| {
        left = left.checked_sub(1).ok_or_else(|| Error::TooLarge {
            what: format!("more than {rows_max} totals and values"),
        })?;
        let Some(value) = value_of(row, 6)? else {
            let rollup = decode_rollup(row, aggregation)?;
            rows.push(UsageRow { bucket_start, group, rollup });
            return Ok(());
        };
        add_value(rows.last_mut(), value)
    })?;
    Ok(rows)
}

/// The rows of values follow that of their total.
pub fn add_value(total: Option<&mut UsageRow>, value: &str) -> Result<()> {
    match total.map(|row| &mut row.rollup.value) {
        Some(Accumulator::Unique(values)) => {
            values.insert(value.into());
            Ok(())
        }
        Some(_) | None => Err(corrupt("the total of a unique value")),
    }
}

/// Goes through the rows of all runs; columns are as [`decode_rollup`] reads them, and the row's
/// value is column 6.
fn scan_rows(
    connection: &Connection,
    runs: &[RunRow],
    (tenant, meter, range): (TenantNo, MeterNo, Window),
    mut visit: impl FnMut(&Row<'_>, Timestamp, Group) -> Result<()>,
) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- scan_rows
         SELECT count, total, latest_at, latest_id, bucket_start, grp, value FROM rollups
         WHERE run_no = ? AND tenant_no = ? AND meter_no = ?
             AND bucket_start >= ? AND bucket_start < ?",
    )?;
    let (start, end) = (range.start.micros(), range.end.micros());
    for run in runs.iter().filter(|run| run.meets(range)) {
        let mut rows = select.query(params![run.run_no, tenant.0, meter.0, start, end])?;
        while let Some(row) = rows.next()? {
            let bucket_start = Timestamp::from_micros(row.get(4)?);
            let group = row.get_ref(5)?;
            let group = group.as_str().map_err(|_| corrupt("rollups.grp"))?;
            visit(row, bucket_start, Group::from_stored(group))?;
        }
    }
    Ok(())
}

/// The unique value of a row; none in the row of a total itself.
pub fn value_of<'r>(row: &'r Row<'_>, column: usize) -> Result<Option<&'r str>> {
    let text = row.get_ref(column)?;
    let text = text.as_str().map_err(|_| corrupt("rollups.value"))?;
    if text.is_empty() {
        return Ok(None);
    }
    text.strip_prefix('=').map(Some).ok_or_else(|| damaged("rollups.value", text))
}

/// Writes a total of a run, and its unique values.
pub fn insert_total(
    connection: &Connection,
    run_no: i64,
    key: &RollupKey,
    total: &Rollup,
) -> Result<()> {
    let (quantity, latest) = match &total.value {
        Accumulator::Sum(q) | Accumulator::Min(q) | Accumulator::Max(q) => (Some(*q), None),
        Accumulator::Latest { at, id, quantity } => (Some(*quantity), Some((at, id))),
        Accumulator::Count | Accumulator::Unique(_) => (None, None),
    };
    let (group, bucket) = (key.group.as_text(), key.bucket_start.micros());
    connection.run(
        "-- insert_total
         INSERT INTO rollups (run_no, tenant_no, meter_no, bucket_start, grp, value, count, total,
                              latest_at, latest_id)
         VALUES (?, ?, ?, ?, ?, '', ?, ?, ?, ?)",
        params![
            run_no,
            key.tenant.0,
            key.meter.0,
            bucket,
            group,
            i64::try_from(total.count).expect("a count fits 63 bits"),
            quantity.map(|quantity| quantity.to_string()),
            latest.map(|(at, _)| at.micros()),
            latest.map(|(_, id)| id.as_str())
        ],
    )?;
    let Accumulator::Unique(values) = &total.value else { return Ok(()) };
    for value in values {
        connection.run(
            "-- insert_total
             INSERT INTO rollups (run_no, tenant_no, meter_no, bucket_start, grp, value, count)
             VALUES (?, ?, ?, ?, ?, '=' || ?, 0)",
            params![run_no, key.tenant.0, key.meter.0, bucket, group, value],
        )?;
    }
    Ok(())
}

/// Reads the row of a total, whose first columns are count, total, latest_at, latest_id. The values
/// of a unique meter are in rows of their own.
pub fn decode_rollup(row: &Row<'_>, aggregation: Aggregation) -> Result<Rollup> {
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
        Aggregation::Unique => Accumulator::Unique(BTreeSet::new()),
    };
    Ok(Rollup { count, value })
}

pub fn aggregation_of(meter: MeterNo, catalog: &Catalog) -> Result<Aggregation> {
    let meter = catalog.get(meter).ok_or_else(|| corrupt("meters row of a rollups row"))?;
    Ok(meter.spec.aggregation)
}

/// A read transaction of the ledger, and the sealed segments that it does not have.
pub struct Snapshot {
    pub sealed: Vec<Arc<Segment>>,
    pub runs: Vec<RunRow>,
    /// The first segment that the ledger does not have.
    pub segment_no: u32,
}

impl Snapshot {
    /// The totals of the segments; `open` is what was copied of the open one.
    fn rows_unfolded<'s>(
        &'s self,
        open: Option<&'s Totals>,
        (tenant, meter, range): (TenantNo, MeterNo, Window),
    ) -> impl Iterator<Item = UsageRow> + 's {
        let sealed = self.sealed.iter().filter_map(move |one| one.totals_of(tenant, meter));
        let totals = sealed.chain(open).flat_map(move |totals| totals.within(range));
        totals.map(|((start, group), rollup)| usage_row(*start, group, rollup))
    }
}

impl Shared {
    /// Opens a read transaction that agrees with memory, and returns what `copy` took of the open
    /// segment before it. The caller's connection stays in the transaction.
    pub fn consistent_snapshot<T>(
        &self,
        connection: &Connection,
        copy: impl Fn(&Memory) -> T,
    ) -> Result<(Snapshot, T)> {
        loop {
            let (mut sealed, open_no, copied) = {
                let memory = self.read_memory();
                let sealed: Vec<_> = memory.sealed.iter().cloned().collect();
                (sealed, memory.open.number, copy(&memory))
            };
            connection.execute_batch("BEGIN")?;
            let segment_no = read_state(connection)?.segment_no;
            if segment_no <= open_no {
                sealed.retain(|segment| segment.number >= segment_no);
                let runs = read_runs(connection)?;
                return Ok((Snapshot { sealed, runs, segment_no }, copied));
            }
            // The segment that was open was filled and folded meanwhile.
            connection.execute_batch("ROLLBACK")?;
        }
    }
}
