//! A slice of the ledger: its events, its totals and its counters, read in one short snapshot and
//! handed to the comparison.
//!
//! Invariant: a fold is one transaction, so a snapshot of the ledger has for each event what the
//! event adds to totals and counters, or nothing of it. Events that are in the journal only are
//! compared once they are folded. A row that cannot be read ends the slice with an error; nothing
//! is passed over.

use super::plan::next_pair;
use super::tenant_name;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::self_check::{Comparison, Slice, SliceReport};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::sqlite::corrupt;
use crate::store::sqlite::counter_blocks::visit_tenant_counters;
use crate::store::sqlite::declarations::load_catalog;
use crate::store::sqlite::event_blocks::EventBlock;
use crate::store::sqlite::event_ranges::{self, EventRange};
use crate::store::sqlite::runs::{RunRow, read_runs};
use crate::store::sqlite::segment::overflow;
use crate::store::sqlite::statements::Statements;
use crate::store::sqlite::total_blocks::{RecordReader, TotalPart, TotalRecord};
use crate::store::{Error, Result, StoredEvent};
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::ops::Range;

/// Segments whose events of one tenant are counted in one snapshot.
const COUNTED_SEGMENTS: usize = 64;

/// Compares a slice; `rows_max` bounds what is held in memory.
pub fn check_slice(connection: &Connection, slice: Slice, rows_max: usize) -> Result<SliceReport> {
    // Of one tenant with very many events the counters need another look at all of them. Folded
    // segments never change, so most are counted before the snapshot that compares.
    let counted = match slice.counters && !slice.is_whole() {
        true => Some(HourCounts::read(connection, slice.first)?),
        false => None,
    };
    connection.execute_batch("BEGIN")?;
    let report = compare(connection, slice, counted, rows_max);
    connection.execute_batch("ROLLBACK")?;
    report
}

fn compare(
    connection: &Connection,
    slice: Slice,
    mut counted: Option<HourCounts>,
    rows_max: usize,
) -> Result<SliceReport> {
    if let Some(counted) = &mut counted {
        while counted.read_more(connection)? {}
    }
    let (catalog, runs) = (load_catalog(connection)?, read_runs(connection)?);
    let mut comparison = Comparison::new(rows_max);
    let mut rows = counted.as_ref().map_or(0, |counted| counted.events);
    let events = loop {
        let mut read = 0;
        visit_events(connection, slice, &mut |number, tenant, stored| {
            let StoredEvent { event, received_at } = stored;
            read += 1;
            if slice.is_whole() {
                comparison.add_received(tenant, received_at, 1).map_err(|_| overflow())?;
            }
            if slice.meter.is_some_and(|meter| meter != event.meter) {
                return Ok(());
            }
            let meter = catalog.get(event.meter).ok_or_else(|| Error::Corrupt {
                what: format!("event number {number} belongs to no meter"),
            })?;
            comparison.add_event(tenant, &event, meter).map_err(|_| overflow())
        })?;
        rows += read + add_totals(connection, &runs, slice, &mut comparison)?;
        if slice.counters {
            rows += add_counters(connection, slice, counted.as_ref(), &mut comparison)?;
        }
        if !comparison.next_pass() {
            break read;
        }
    };
    let name = |tenant: TenantNo| Some(tenant_name(connection, tenant));
    Ok(SliceReport { events, rows, ..SliceReport::of(comparison.finish(), &catalog, name) })
}

/// Calls `visit` with each event of the slice; one that is missing or cannot be read is an error.
pub fn visit_events(
    connection: &Connection,
    slice: Slice,
    visit: &mut dyn FnMut(u64, TenantNo, StoredEvent) -> Result<()>,
) -> Result<()> {
    if !slice.has_totals() {
        return Ok(());
    }
    let Window { start, end } = slice.times;
    let segments: Vec<u32> = connection.read_all(
        "-- visit_events
         SELECT segment_no FROM segments WHERE last_at >= ? AND first_at < ? ORDER BY segment_no",
        params![start.micros(), end.micros()],
        |row| Ok(row.get(0)?),
    )?;
    let nobody = TenantId::parse("-").expect("a valid tenant id");
    for segment_no in segments {
        let numbers = find_numbers(connection, segment_no, slice)?;
        visit_blocks(connection, numbers, &mut |block, number| {
            let (view, received_at) = block.view(number)?;
            let tenant = view.tenant;
            if !(slice.first..=slice.last).contains(&tenant) {
                return Err(corrupt("event_ranges: an event of another tenant, so it"));
            }
            if !slice.times.contains(view.occurred_at) {
                return Ok(());
            }
            let event = view.to_event(nobody.clone())?;
            visit(number, tenant, StoredEvent { event, received_at })
        })?;
    }
    Ok(())
}

/// Where the events of a slice lie in a segment; some around them may be of other times.
fn find_numbers(connection: &Connection, segment_no: u32, slice: Slice) -> Result<Range<u64>> {
    let blocks = connection.read_all(
        "-- find_numbers
         SELECT first_tenant, body FROM event_ranges
         WHERE segment_no = ?1 AND first_tenant <= ?3 AND first_tenant >= coalesce(
             (SELECT max(first_tenant) FROM event_ranges
              WHERE segment_no = ?1 AND first_tenant <= ?2), 0)
         ORDER BY first_tenant",
        params![segment_no, slice.first.0, slice.last.0],
        |row| event_ranges::decode(row.get(0)?, row.get_ref(1)?.as_blob().unwrap_or_default()),
    )?;
    let own = |range: &&EventRange| (slice.first..=slice.last).contains(&range.tenant);
    let mut ranges = blocks.iter().flatten().filter(own);
    let Some(first) = ranges.next() else { return Ok(0..0) };
    let last = ranges.next_back();
    if slice.first < slice.last || last.is_some() {
        return Ok(first.numbers.start..last.unwrap_or(first).numbers.end);
    }
    let Window { start, end } = slice.times;
    Ok(first.around(start).start..first.around(end).end)
}

/// Goes through the events with these numbers.
fn visit_blocks(
    connection: &Connection,
    numbers: Range<u64>,
    visit: &mut dyn FnMut(&EventBlock, u64) -> Result<()>,
) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- visit_blocks
         SELECT first_no, body FROM event_blocks
         WHERE first_no >= coalesce(
                 (SELECT max(first_no) FROM event_blocks WHERE first_no <= ?1), ?1)
             AND first_no < ?2
         ORDER BY first_no",
    )?;
    let mut rows = select.query(params![numbers.start, numbers.end])?;
    let mut next = numbers.start;
    let missing = |first: u64, last: u64| Error::Corrupt {
        what: format!("events {first} to {last} are missing"),
    };
    while let Some(row) = rows.next()? {
        let first_no: u64 = row.get(0)?;
        let body = row.get_ref(1)?.as_blob().unwrap_or_default();
        let block = EventBlock::decode(first_no, body).map_err(|_| Error::Corrupt {
            what: format!("the events from {first_no} on cannot be read"),
        })?;
        let within = block.numbers();
        if within.start > next {
            return Err(missing(next, within.start - 1));
        }
        for number in next..within.end.min(numbers.end) {
            visit(&block, number)?;
        }
        next = next.max(within.end);
    }
    if next < numbers.end { Err(missing(next, numbers.end - 1)) } else { Ok(()) }
}

/// Adds the totals of all runs. Returns how many records there were.
fn add_totals(
    connection: &Connection,
    runs: &[RunRow],
    slice: Slice,
    comparison: &mut Comparison,
) -> Result<u64> {
    if !slice.has_totals() {
        return Ok(0);
    }
    let mut records = 0;
    let mut take = |TotalRecord { key, part }: TotalRecord| -> Result<()> {
        records += 1;
        let added = match part {
            TotalPart::Total(total) => comparison.add_stored(key, total),
            TotalPart::Value(value) => comparison.add_stored_value(key, value),
        };
        added.map_err(|_| overflow())
    };
    if slice.is_whole() {
        for run in runs {
            let start = |tenant| (tenant, MeterNo(0), Timestamp::from_micros(i64::MIN));
            let end = start(TenantNo(slice.last.0.saturating_add(1)));
            let start = start(slice.first);
            let mut reader = RecordReader::seek_before(connection, run.run_no, start, end)?;
            while let Some(record) = reader.next()?.filter(|one| one.key.tenant <= slice.last) {
                take(record)?;
            }
        }
        return Ok(records);
    }
    // Of one tenant, or of some whose times are bounded: meter by meter.
    let mut place = match (slice.meter, slice.first.0.checked_sub(1)) {
        (Some(meter), _) => {
            visit_pair(connection, runs, (slice.first, meter), slice.times, &mut take)?;
            return Ok(records);
        }
        (None, Some(before)) => (TenantNo(before), MeterNo(u16::MAX)),
        (None, None) => (TenantNo(0), MeterNo(0)),
    };
    while let Some(pair) = next_pair(connection, runs, place)?.filter(|(t, _)| *t <= slice.last) {
        visit_pair(connection, runs, pair, slice.times, &mut take)?;
        place = pair;
    }
    Ok(records)
}

fn visit_pair(
    connection: &Connection,
    runs: &[RunRow],
    (tenant, meter): (TenantNo, MeterNo),
    times: Window,
    take: &mut dyn FnMut(TotalRecord) -> Result<()>,
) -> Result<()> {
    let place = (tenant, meter, times);
    crate::store::sqlite::rollups::visit_records(connection, runs, place, take)
}

/// Adds the counters, and of one tenant the counts of its events. Returns how many rows there were.
fn add_counters(
    connection: &Connection,
    slice: Slice,
    counted: Option<&HourCounts>,
    comparison: &mut Comparison,
) -> Result<u64> {
    let mut rows = 0;
    if let Some(HourCounts { tenant, hours, .. }) = counted {
        for (hour, events) in hours {
            comparison.add_received(*tenant, *hour, *events).map_err(|_| overflow())?;
        }
    }
    visit_tenant_counters(connection, slice.first..=slice.last, |(tenant, hour), tally| {
        rows += 1;
        comparison.add_counter(tenant, hour, tally.accepted).map_err(|_| overflow())
    })?;
    Ok(rows)
}

/// How many events of one tenant were received in each hour: as many rows as it has hours.
struct HourCounts {
    tenant: TenantNo,
    hours: BTreeMap<Timestamp, u64>,
    events: u64,
    /// The last segment that was counted.
    segment_no: u32,
}

impl HourCounts {
    /// Counts what there is, in short snapshots.
    fn read(connection: &Connection, tenant: TenantNo) -> Result<Self> {
        let mut counts = Self { tenant, hours: BTreeMap::new(), events: 0, segment_no: 0 };
        loop {
            connection.execute_batch("BEGIN")?;
            let more = counts.read_more(connection);
            connection.execute_batch("ROLLBACK")?;
            if !more? {
                return Ok(counts);
            }
        }
    }

    /// Counts some more segments. Returns whether there may be others.
    fn read_more(&mut self, connection: &Connection) -> Result<bool> {
        let segments: Vec<u32> = connection.read_all(
            "-- read_more
             SELECT segment_no FROM segments WHERE segment_no > ? ORDER BY segment_no LIMIT ?",
            params![self.segment_no, COUNTED_SEGMENTS],
            |row| Ok(row.get(0)?),
        )?;
        for segment_no in &segments {
            let slice = Slice::of_tenants(self.tenant, self.tenant);
            let numbers = find_numbers(connection, *segment_no, slice)?;
            visit_blocks(connection, numbers, &mut |block, number| {
                let (_, received_at) = block.view(number)?;
                self.events += 1;
                *self.hours.entry(super::super::segment::hour_of(received_at)).or_default() += 1;
                Ok(())
            })?;
            self.segment_no = *segment_no;
        }
        Ok(segments.len() == COUNTED_SEGMENTS)
    }
}
