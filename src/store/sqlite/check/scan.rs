//! Reads the folded events segment by segment, and compares each with its tenant's range.

use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::EventId;
use crate::rules::meter::Catalog;
use crate::store::sqlite::declarations::load_catalog;
use crate::store::sqlite::event_blocks::EventBlock;
use crate::store::sqlite::event_ranges::{self, EventRange};
use crate::store::sqlite::fold::FoldState;
use crate::store::sqlite::record::EventView;
use crate::store::sqlite::run_file::KeyRecord;
use crate::store::sqlite::segment::key_hash;
use crate::store::sqlite::statements::Statements;
use crate::store::{CheckReport, Result};
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::ops::Range;

pub struct Scan<'s> {
    connection: &'s Connection,
    fingerprinter: &'s Fingerprinter,
    /// The last segment that was read.
    segment_no: u32,
    /// The number of the next event to read.
    next_no: u64,
    pub report: CheckReport,
    pub marks: KeyMarks,
}

/// The sum of the marks of all keys before the event with this number, where a segment ends.
pub type KeyMarks = BTreeMap<u64, u64>;

impl<'s> Scan<'s> {
    pub fn new(connection: &'s Connection, fingerprinter: &'s Fingerprinter) -> Self {
        Self {
            connection,
            fingerprinter,
            segment_no: 0,
            next_no: 1,
            report: CheckReport::default(),
            marks: KeyMarks::from([(1, 0)]),
        }
    }

    /// Reads the next segment in a transaction of its own. Returns whether there was one.
    pub fn read_segment(&mut self) -> Result<bool> {
        self.connection.execute_batch("BEGIN")?;
        let catalog = load_catalog(self.connection)?;
        let read = self.read_next(&catalog);
        self.connection.execute_batch("ROLLBACK")?;
        read
    }

    /// Reads what is left, in the caller's transaction.
    pub fn read_rest(&mut self, catalog: &Catalog, fold: &FoldState) -> Result<()> {
        while self.read_next(catalog)? {}
        self.report_missing(fold.next_event_no);
        let beyond: u64 = self.connection.read_one(
            "-- read_rest
             SELECT count(*) FROM event_blocks WHERE first_no >= ?1 OR first_no < 1",
            [fold.next_event_no],
            |row| Ok(row.get(0)?),
        )?;
        if beyond > 0 {
            self.report.add(|| format!("{beyond} blocks have events that were never numbered"));
        }
        if self.segment_no + 1 != fold.segment_no {
            let (last, next) = (self.segment_no, fold.segment_no);
            self.report.add(|| format!("segment {last} is the last, and the next is {next}"));
        }
        Ok(())
    }

    fn read_next(&mut self, catalog: &Catalog) -> Result<bool> {
        let found = self.connection.read_optional(
            "-- read_next
             SELECT segment_no, first_no, end_no, first_at, last_at FROM segments
             WHERE segment_no > ? ORDER BY segment_no LIMIT 1",
            [self.segment_no],
            |row| {
                let numbers: Range<u64> = row.get(1)?..row.get(2)?;
                let times: (Option<i64>, Option<i64>) = (row.get(3)?, row.get(4)?);
                Ok((row.get::<_, u32>(0)?, numbers, times))
            },
        )?;
        let Some((segment_no, numbers, times)) = found else { return Ok(false) };
        self.report_missing(numbers.start);
        self.segment_no = segment_no;
        let ranges = self.read_events(numbers.clone(), catalog)?;
        let first_at = ranges.iter().map(|range| range.first_at.micros()).min();
        let last_at = ranges.iter().map(|range| range.last_at.micros()).max();
        if self.read_ranges().ok().as_ref() != Some(&ranges) || times != (first_at, last_at) {
            self.report.add(|| format!("the event ranges of segment {segment_no} are wrong"));
        }
        Ok(true)
    }

    /// Reads the events of a segment; returns the ranges that they make.
    fn read_events(&mut self, numbers: Range<u64>, catalog: &Catalog) -> Result<Vec<EventRange>> {
        let connection = self.connection;
        let mut sum = self.marks.last_key_value().map_or(0, |(_, sum)| *sum);
        let mut ranges = Vec::new();
        let mut select = connection.prepare_cached(
            "-- read_events
             SELECT first_no, body FROM event_blocks WHERE first_no >= ? AND first_no < ?
             ORDER BY first_no",
        )?;
        let mut rows = select.query(params![numbers.start, numbers.end])?;
        while let Some(row) = rows.next()? {
            let first_no: u64 = row.get(0)?;
            self.report_missing(first_no);
            let body = row.get_ref(1)?.as_blob().unwrap_or_default();
            let Ok(block) = EventBlock::decode(first_no, body) else {
                self.next_no = first_no + 1;
                self.report.add(|| format!("the events from {first_no} on cannot be read"));
                continue;
            };
            for number in block.numbers() {
                self.next_no = number + 1;
                let mark = self.meet(&block, number, catalog, &mut ranges)?;
                sum = sum.wrapping_add(mark);
            }
        }
        self.report_missing(numbers.end);
        self.next_no = numbers.end;
        self.marks.insert(numbers.end, sum);
        Ok(ranges)
    }

    /// Looks at one event; returns the mark of its key.
    fn meet(
        &mut self,
        block: &EventBlock,
        number: u64,
        catalog: &Catalog,
        ranges: &mut Vec<EventRange>,
    ) -> Result<u64> {
        let view = block.view(number).ok().map(|(view, _)| view);
        let known = view.and_then(|EventView { tenant, meter, occurred_at, id, .. }| {
            Some((tenant, meter, occurred_at, EventId::parse(id).ok()?))
        });
        let Some((tenant, meter, occurred_at, id)) = known else {
            self.report.add(|| format!("event number {number} cannot be read"));
            return Ok(0);
        };
        self.report.events += 1;
        event_ranges::extend(ranges, number, tenant, occurred_at);
        if catalog.get(meter).is_none() {
            self.report.add(|| format!("event number {number} belongs to no meter"));
        }
        let hash = key_hash(self.fingerprinter, tenant, &id);
        Ok(KeyRecord::new(hash, 0).mark(number))
    }

    /// The stored ranges of the segment.
    fn read_ranges(&self) -> Result<Vec<EventRange>> {
        let blocks = self.connection.read_all(
            "-- read_ranges
             SELECT first_tenant, body FROM event_ranges WHERE segment_no = ?
             ORDER BY first_tenant",
            [self.segment_no],
            |row| {
                let body = row.get_ref(1)?;
                event_ranges::decode(row.get(0)?, body.as_blob().unwrap_or_default())
            },
        )?;
        Ok(blocks.into_iter().flatten().collect())
    }

    /// Events between the last one read and `number` are not there.
    fn report_missing(&mut self, number: u64) {
        let (first, last) = (self.next_no, number.saturating_sub(1));
        if first <= last {
            self.report.add(|| format!("events {first} to {last} are missing"));
        }
    }
}
