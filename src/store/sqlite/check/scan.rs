//! Reads the folded events in the order of their numbers and compares each with its key and with
//! its tenant's range.

use super::super::statements::Statements;
use super::fold_into;
use super::tenant_name;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::store::sqlite::declarations::load_catalog;
use crate::store::sqlite::events::decode_event;
use crate::store::sqlite::fold::{FoldState, read_state};
use crate::store::sqlite::key_blocks::KeyBlock;
use crate::store::sqlite::keys::key_hash;
use crate::store::sqlite::segment::ClosedSegment;
use crate::store::{CHECK_FINDINGS_MAX, CheckReport, Result};
use rusqlite::{Connection, params};
use std::collections::HashMap;
use std::ops::Range;

/// Events that one read transaction covers.
const SLICE_EVENTS: u64 = 65_536;

pub struct Scan<'s> {
    connection: &'s Connection,
    fingerprinter: &'s Fingerprinter,
    /// The number of the next event to read.
    next_no: u64,
    ranges: Ranges,
    pub events: u64,
    pub report: CheckReport,
    /// What the events of folded segments add up to.
    pub rollups: HashMap<RollupKey, Rollup>,
    /// How many of them each tenant has.
    pub accepted: HashMap<TenantNo, u64>,
}

/// Where the walk through `event_ranges` is.
#[derive(Default)]
struct Ranges {
    segment_no: i64,
    current: Option<ScannedRange>,
    /// How many ranges were met.
    met: u64,
}

#[derive(Clone, Copy)]
struct ScannedRange {
    tenant: TenantNo,
    last_no: u64,
    last_at: Timestamp,
}

impl<'s> Scan<'s> {
    pub fn new(connection: &'s Connection, fingerprinter: &'s Fingerprinter) -> Self {
        Self {
            connection,
            fingerprinter,
            next_no: 1,
            ranges: Ranges::default(),
            events: 0,
            report: CheckReport::default(),
            rollups: HashMap::new(),
            accepted: HashMap::new(),
        }
    }

    /// Reads the next events of folded segments in a transaction of its own. Returns whether there
    /// may be more.
    pub fn read_slice(&mut self) -> Result<bool> {
        self.connection.execute_batch("BEGIN")?;
        let read = self.read_next();
        self.connection.execute_batch("ROLLBACK")?;
        read
    }

    fn read_next(&mut self) -> Result<bool> {
        let end = read_state(self.connection)?.next_event_no.min(self.next_no + SLICE_EVENTS);
        if self.next_no >= end {
            return Ok(false);
        }
        let catalog = load_catalog(self.connection)?;
        self.read_events(end, &catalog, true)?;
        Ok(true)
    }

    /// Reads what is left, in the caller's transaction: the rest of the folded segments, and the
    /// rows of the segment that is being folded, whose totals and ranges are not complete.
    pub fn read_rest(
        &mut self,
        catalog: &Catalog,
        fold: &FoldState,
        closed: Option<&ClosedSegment>,
    ) -> Result<()> {
        while self.next_no < fold.next_event_no {
            let end = fold.next_event_no.min(self.next_no + SLICE_EVENTS);
            self.read_events(end, catalog, true)?;
        }
        self.count_ranges(fold)?;
        let end = fold.events_end(closed);
        while self.next_no < end {
            self.read_events(end.min(self.next_no + SLICE_EVENTS), catalog, false)?;
        }
        self.report.events = self.events;
        let beyond: u64 = self.connection.query_row(
            "-- read_rest\nSELECT count(*) FROM events WHERE event_no >= ?1 OR event_no < 1",
            [end],
            |row| row.get(0),
        )?;
        if beyond > 0 {
            self.report.add(|| format!("{beyond} events have numbers that were never given"));
        }
        Ok(())
    }

    fn count_ranges(&mut self, fold: &FoldState) -> Result<()> {
        let stored: u64 = self.connection.query_row(
            "-- count_ranges\nSELECT count(*) FROM event_ranges WHERE segment_no < ?",
            [fold.segment_no],
            |row| row.get(0),
        )?;
        if stored != self.ranges.met {
            let met = self.ranges.met;
            self.report.add(|| format!("event_ranges has {stored} rows, the events have {met}"));
        }
        Ok(())
    }

    /// Reads the events from `next_no` to `end`; `complete` if their segments are folded.
    fn read_events(&mut self, end: u64, catalog: &Catalog, complete: bool) -> Result<()> {
        let numbers = self.next_no..end;
        let hashes = self.read_hashes(&numbers)?;
        let connection = self.connection;
        let mut select = connection.prepare_cached(
            "-- read_events
             SELECT tenant_no, meter_no, occurred_at, received_after, id, quantity, properties,
                    subscription, trial, event_no
             FROM events WHERE event_no >= ? AND event_no < ? ORDER BY event_no",
        )?;
        let mut rows = select.query(params![numbers.start, numbers.end])?;
        while let Some(row) = rows.next()? {
            let number: u64 = row.get(9)?;
            self.report_missing(number);
            self.next_no = number + 1;
            let tenant = TenantNo(row.get(0)?);
            let occurred_at = Timestamp::from_micros(row.get(2)?);
            if complete {
                self.meet_in_range(number, tenant, occurred_at)?;
            }
            let nobody = TenantId::parse("-").expect("a valid tenant id");
            let event = decode_event(row).and_then(|(_, event)| event.with_tenant(nobody));
            let Ok(event) = event.map(|stored| stored.event) else {
                self.report.add(|| format!("event number {number} cannot be read"));
                continue;
            };
            let place = usize::try_from(number - numbers.start).expect("within the slice");
            self.compare_key(number, tenant, &event.id, hashes[place]);
            if !complete {
                continue;
            }
            self.events += 1;
            *self.accepted.entry(tenant).or_default() += 1;
            let Some(meter) = catalog.get(event.meter) else {
                self.report.add(|| format!("event number {number} belongs to no meter"));
                continue;
            };
            let (bucket_start, group, rollup) = Rollup::of_event(&event, meter);
            let key = RollupKey { tenant, meter: event.meter, bucket_start, group };
            fold_into(&mut self.rollups, key, &rollup)?;
        }
        self.report_missing(end);
        self.next_no = end;
        Ok(())
    }

    /// Events between the last one read and `number` are not there.
    fn report_missing(&mut self, number: u64) {
        let (first, last) = (self.next_no, number.saturating_sub(1));
        if first <= last {
            self.report.add(|| format!("events {first} to {last} are missing"));
        }
    }

    fn compare_key(&mut self, number: u64, tenant: TenantNo, id: &EventId, stored: Option<u64>) {
        if stored == Some(key_hash(self.fingerprinter, tenant, id)) {
            return;
        }
        let name = || tenant_name(self.connection, tenant);
        self.report.add(|| {
            let name = name();
            match stored {
                Some(_) => format!("event {number} ({id} of {name}) has another event's key"),
                None => format!("event {number} ({id} of {name}) has no key in key_blocks"),
            }
        });
    }

    /// The hashes that key blocks give these events.
    fn read_hashes(&mut self, numbers: &Range<u64>) -> Result<Vec<Option<u64>>> {
        let length = usize::try_from(numbers.end - numbers.start).expect("a slice fits memory");
        let mut found = vec![None; length];
        let mut select = self.connection.prepare_cached(
            "-- read_hashes
             SELECT first_no, hashes, checksum FROM key_blocks
             WHERE first_no < ?2 AND first_no >= coalesce(
                 (SELECT max(first_no) FROM key_blocks WHERE first_no <= ?1), ?1)
             ORDER BY first_no",
        )?;
        let mut rows = select.query(params![numbers.start, numbers.end])?;
        while let Some(row) = rows.next()? {
            let block = KeyBlock::read(row)?;
            let Some((covered, hashes)) = block.keys() else {
                self.report.add(|| format!("the key block at {} is damaged", block.first_no));
                continue;
            };
            for (number, hash) in covered.zip(hashes) {
                if numbers.contains(&number) {
                    let place = usize::try_from(number - numbers.start).expect("in the slice");
                    found[place] = Some(*hash);
                }
            }
        }
        Ok(found)
    }

    /// Follows the ranges: each event lies in the range of its tenant, and nothing else does.
    fn meet_in_range(&mut self, number: u64, tenant: TenantNo, at: Timestamp) -> Result<()> {
        let current = self.ranges.current.filter(|range| number <= range.last_no);
        let range = match current {
            Some(range) => Some(range),
            None => self.next_range(number, tenant, at)?,
        };
        self.ranges.current = range;
        let Some(range) = range else { return Ok(()) };
        let ends_wrong = number == range.last_no && at != range.last_at;
        if range.tenant != tenant || at > range.last_at || ends_wrong {
            self.report.add(|| format!("event {number} does not belong to its range"));
        }
        Ok(())
    }

    /// The range that begins with this event: in the segment of the event before, or a later one.
    fn next_range(
        &mut self,
        number: u64,
        tenant: TenantNo,
        at: Timestamp,
    ) -> Result<Option<ScannedRange>> {
        if self.report.findings.len() >= CHECK_FINDINGS_MAX {
            return Ok(None);
        }
        let found = self.connection.read_optional(
            "-- next_range
             SELECT segment_no, last_no, first_at, last_at FROM event_ranges
             WHERE tenant_no = ?1 AND segment_no >= ?2 AND first_no = ?3
             ORDER BY segment_no LIMIT 1",
            params![tenant.0, self.ranges.segment_no, number],
            |row| {
                let (first_at, last_at): (i64, i64) = (row.get(2)?, row.get(3)?);
                let last_at = Timestamp::from_micros(last_at);
                let range = ScannedRange { tenant, last_no: row.get(1)?, last_at };
                Ok((row.get::<_, i64>(0)?, first_at, range))
            },
        )?;
        let Some((segment_no, first_at, range)) = found else {
            self.report.add(|| format!("no range in event_ranges begins with event {number}"));
            return Ok(None);
        };
        self.ranges.segment_no = segment_no;
        self.ranges.met += 1;
        if first_at != at.micros() || range.last_no < number {
            self.report.add(|| format!("the range of event {number} is wrong"));
        }
        Ok(Some(range))
    }
}
