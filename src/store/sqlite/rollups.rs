//! Totals in their blocks, and the exact answer from blocks and memory together.
//!
//! Invariant: an answer is the records of all runs (a snapshot of the ledger) + the segments that
//! the snapshot does not have. Memory is copied first and the snapshot taken after, so the snapshot
//! has all that has left memory; the segments that it has are left out by its own mark.

use super::fold::read_state;
use super::memory::Memory;
use super::runs::{RunRow, read_runs};
use super::segment::{Segment, overflow};
use super::total_blocks::{RecordReader, TotalPart, TotalRecord};
use super::totals::Totals;
use super::{Shared, corrupt};
use crate::heavy::give_way;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::WindowUsage;
use crate::rules::quantity::Quantity;
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::{Composition, Usage, UsageRow, UsageShape};
use crate::rules::window::Window;
use crate::store::{Error, Result};
use rusqlite::Connection;
use std::collections::BTreeMap;
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
    let Some((tenant, open)) = copied else { return Ok(Vec::new()) };
    let place = (tenant, meter, range);
    let mut rows: Vec<UsageRow> = snapshot.rows_unfolded(open.as_ref(), place).collect();
    rows.extend(read_rows(connection, &snapshot.runs, place, rows_max)?);
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
    let Some((tenant, open)) = copied else {
        return Ok(composition.finish()?);
    };
    let place = (tenant, meter, range);
    for (number, row) in snapshot.rows_unfolded(open.as_ref(), place).enumerate() {
        if number.is_multiple_of(ROWS_BETWEEN_PAUSES) {
            give_way();
        }
        composition.add(row)?;
    }
    visit_records(connection, &snapshot.runs, place, |TotalRecord { key, part }| {
        let RollupKey { bucket_start, group, .. } = key;
        match part {
            TotalPart::Total(rollup) => {
                composition.add(UsageRow { bucket_start, group, rollup })?
            }
            TotalPart::Value(value) => composition.add_value(bucket_start, &group, &value)?,
        }
        Ok(())
    })?;
    Ok(composition.finish()?)
}

/// The same on the writer's thread, which alone changes the open segment: so that is read as it is,
/// and the snapshot serves for several windows.
pub fn read_usage_writing(
    shared: &Shared,
    connection: &Connection,
    snapshot: &Snapshot,
    place: (TenantNo, MeterNo, Window),
) -> Result<Vec<UsageRow>> {
    let open = shared.read_memory().open.totals_of(place.0, place.1).cloned();
    let mut rows: Vec<UsageRow> = snapshot.rows_unfolded(open.as_ref(), place).collect();
    rows.extend(read_rows(connection, &snapshot.runs, place, usize::MAX)?);
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
    let (snapshot, mut unfolded) =
        shared.consistent_snapshot(connection, |memory| before(&memory.open))?;
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
            let rows = read_rows(connection, &snapshot.runs, place, usize::MAX)?;
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

/// The tenant's number, and what the open segment adds to its totals.
type CopiedTotals = (TenantNo, Option<Totals>);

fn copy_totals(memory: &Memory, tenant: &TenantId, meter: MeterNo) -> Option<CopiedTotals> {
    let tenant = memory.tenants.find(tenant)?;
    Some((tenant, memory.open.totals_of(tenant, meter).cloned()))
}

fn usage_row(bucket_start: Timestamp, group: &Group, rollup: &Rollup) -> UsageRow {
    UsageRow { bucket_start, group: group.clone(), rollup: rollup.clone() }
}

/// The rows of all runs: parts of totals, to be added up.
fn read_rows(
    connection: &Connection,
    runs: &[RunRow],
    place: (TenantNo, MeterNo, Window),
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let (mut rows, mut left): (Vec<UsageRow>, _) = (Vec::new(), rows_max);
    visit_records(connection, runs, place, |TotalRecord { key, part }| {
        left = left.checked_sub(1).ok_or_else(|| Error::TooLarge {
            what: format!("more than {rows_max} totals and values"),
        })?;
        match part {
            TotalPart::Total(rollup) => rows.push(usage_row(key.bucket_start, &key.group, &rollup)),
            TotalPart::Value(value) => add_value(rows.last_mut(), value)?,
        }
        Ok(())
    })?;
    Ok(rows)
}

/// The values of a total come after it.
fn add_value(total: Option<&mut UsageRow>, value: Box<str>) -> Result<()> {
    match total.map(|row| &mut row.rollup.value) {
        Some(Accumulator::Unique(values)) => {
            values.insert(value);
            Ok(())
        }
        Some(_) | None => Err(corrupt("the total of a unique value")),
    }
}

/// Goes through what all runs have of a tenant and meter, run by run.
pub fn visit_records(
    connection: &Connection,
    runs: &[RunRow],
    (tenant, meter, range): (TenantNo, MeterNo, Window),
    mut visit: impl FnMut(TotalRecord) -> Result<()>,
) -> Result<()> {
    let (start, end) = ((tenant, meter, range.start), (tenant, meter, range.end));
    for run in runs.iter().filter(|run| run.meets(range)) {
        let mut reader = RecordReader::seek_before(connection, run.run_no, start, end)?;
        while let Some(record) = reader.next()? {
            if (record.key.tenant, record.key.meter, record.key.bucket_start) >= end {
                break;
            }
            visit(record)?;
        }
    }
    Ok(())
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
