//! Event ranges: where each tenant's events lie in a folded segment.
//!
//! A segment has its ranges in blocks of [`BLOCK_TENANTS`] tenants, in the order of their numbers.
//! A block is a checksum and of each tenant: the step from the tenant before, the number of its
//! events, the first and last `occurred_at`, and that of each [`FENCE_EVENTS`]th event between, so
//! that a moment is found without reading events. The times are near each other and take few bytes.
//!
//! Invariant: the ranges of a segment follow each other and cover its events exactly once.

use super::corrupt;
use super::record::{Reader, write_number, write_signed};
use super::segment::{FoldPlan, Segment};
use super::statements::Statements;
use crate::rules::ids::TenantNo;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use rusqlite::{Connection, params};
use std::ops::Range;

const BLOCK_TENANTS: usize = 256;
/// As many as an event block has, so that few blocks are read between two fences.
const FENCE_EVENTS: u64 = 64;
const CHECKSUM_BYTES: usize = 4;

/// A tenant's events in one segment, sorted by time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRange {
    pub tenant: TenantNo,
    pub numbers: Range<u64>,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// When the events happened that have [`FENCE_EVENTS`] events of the range, or twice as many,
    /// and so on, before them.
    fences: Vec<Timestamp>,
}

impl EventRange {
    /// Of events before the first of these numbers is certain that they happened before `at`, and
    /// of those from the second on that they happened after it.
    pub fn around(&self, at: Timestamp) -> Range<u64> {
        let Range { start, end } = self.numbers;
        if self.first_at > at {
            return start..start;
        }
        if self.last_at < at {
            return end..end;
        }
        let number_of = |fences: usize| {
            start + FENCE_EVENTS * u64::try_from(fences).expect("a length fits 64 bits")
        };
        let before = self.fences.partition_point(|fence| *fence < at);
        let until = self.fences.partition_point(|fence| *fence <= at);
        number_of(before)..number_of(until + 1).min(end)
    }

    /// Calls `visit` with moments in their order and how many events follow each, about: the exact
    /// time is known of each [`FENCE_EVENTS`]th.
    pub fn visit_fences(&self, mut visit: impl FnMut(Timestamp, u64)) {
        let mut left = self.numbers.end - self.numbers.start;
        for at in [self.first_at].iter().chain(&self.fences) {
            let count = left.min(FENCE_EVENTS);
            visit(*at, count);
            left -= count;
        }
    }
}

/// The ranges of a segment whose first event has the number `first_no`.
pub fn ranges_of(segment: &Segment, plan: &FoldPlan<'_>, first_no: u64) -> Vec<EventRange> {
    let mut ranges = Vec::new();
    for (number, place) in (first_no..).zip(&plan.order) {
        let entry = segment.entry(*place);
        extend(&mut ranges, number, entry.tenant, entry.occurred_at);
    }
    ranges
}

/// Adds the next event of a segment to its ranges.
pub fn extend(ranges: &mut Vec<EventRange>, number: u64, tenant: TenantNo, at: Timestamp) {
    match ranges.last_mut().filter(|range| range.tenant == tenant) {
        Some(range) => {
            if (number - range.numbers.start).is_multiple_of(FENCE_EVENTS) {
                range.fences.push(at);
            }
            range.numbers.end = number + 1;
            range.last_at = at;
        }
        None => {
            let numbers = number..number + 1;
            let fences = Vec::new();
            ranges.push(EventRange { tenant, numbers, first_at: at, last_at: at, fences });
        }
    }
}

/// Writes the ranges of a segment.
pub fn insert_ranges(
    connection: &Connection,
    segment_no: u32,
    ranges: &[EventRange],
) -> Result<()> {
    for block in ranges.chunks(BLOCK_TENANTS) {
        let first = &block[0];
        connection.run(
            "-- insert_ranges
             INSERT INTO event_ranges (segment_no, first_tenant, body) VALUES (?, ?, ?)",
            params![segment_no, first.tenant.0, encode(block)],
        )?;
    }
    Ok(())
}

fn encode(block: &[EventRange]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(block.len() * 12);
    bytes.extend_from_slice(&[0; CHECKSUM_BYTES]);
    let first = &block[0];
    write_number(&mut bytes, first.numbers.start.into());
    let (mut tenant, mut at) = (first.tenant.0, Timestamp::from_micros(0));
    for range in block {
        write_number(&mut bytes, (range.tenant.0 - tenant).into());
        write_number(&mut bytes, (range.numbers.end - range.numbers.start).into());
        write_step(&mut bytes, at, range.last_at);
        write_step(&mut bytes, range.last_at, range.first_at);
        let mut before = range.first_at;
        for fence in &range.fences {
            write_step(&mut bytes, before, *fence);
            before = *fence;
        }
        (tenant, at) = (range.tenant.0, range.last_at);
    }
    let checksum = crc32fast::hash(&bytes[CHECKSUM_BYTES..]);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn write_step(bytes: &mut Vec<u8>, from: Timestamp, to: Timestamp) {
    write_signed(bytes, i128::from(to.micros()) - i128::from(from.micros()));
}

fn read_step(reader: &mut Reader<'_>, from: i64) -> Option<i64> {
    i64::try_from(i128::from(from).checked_add(reader.signed()?)?).ok()
}

/// Goes through the ranges of a row of `event_ranges`.
struct RangeReader<'b> {
    reader: Reader<'b>,
    next_no: u64,
    tenant: u32,
    at: i64,
}

impl<'b> RangeReader<'b> {
    fn open(first_tenant: u32, body: &'b [u8]) -> Option<Self> {
        let (checksum, bytes) = body.split_first_chunk::<CHECKSUM_BYTES>()?;
        if crc32fast::hash(bytes) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let mut reader = Reader { bytes, at: 0 };
        let next_no = u64::try_from(reader.number()?).ok()?;
        Some(Self { reader, next_no, tenant: first_tenant, at: 0 })
    }

    fn is_at_end(&self) -> bool {
        self.reader.at == self.reader.bytes.len()
    }

    fn next(&mut self) -> Option<EventRange> {
        let reader = &mut self.reader;
        self.tenant = self.tenant.checked_add(u32::try_from(reader.number()?).ok()?)?;
        let count = u64::try_from(reader.number()?).ok().filter(|count| *count > 0)?;
        let numbers = self.next_no..self.next_no.checked_add(count)?;
        self.at = read_step(reader, self.at)?;
        let first_at = read_step(reader, self.at)?;
        let mut fences = Vec::new();
        let mut before = first_at;
        for _ in 0..(count - 1) / FENCE_EVENTS {
            before = read_step(reader, before)?;
            fences.push(Timestamp::from_micros(before));
        }
        self.next_no = numbers.end;
        Some(EventRange {
            tenant: TenantNo(self.tenant),
            numbers,
            first_at: Timestamp::from_micros(first_at),
            last_at: Timestamp::from_micros(self.at),
            fences,
        })
    }
}

/// Reads a row of `event_ranges`.
pub fn decode(first_tenant: u32, body: &[u8]) -> Result<Vec<EventRange>> {
    try_decode(first_tenant, body).ok_or_else(|| corrupt("event_ranges.body"))
}

fn try_decode(first_tenant: u32, body: &[u8]) -> Option<Vec<EventRange>> {
    let mut reader = RangeReader::open(first_tenant, body)?;
    let mut ranges = Vec::new();
    while !reader.is_at_end() {
        ranges.push(reader.next()?);
    }
    Some(ranges)
}

/// The range of one tenant in a row of `event_ranges`, if it has one there.
fn try_find(first_tenant: u32, body: &[u8], tenant: TenantNo) -> Option<Option<EventRange>> {
    let mut reader = RangeReader::open(first_tenant, body)?;
    while !reader.is_at_end() {
        let range = reader.next()?;
        if range.tenant >= tenant {
            return Some((range.tenant == tenant).then_some(range));
        }
    }
    Some(None)
}

/// The segments before `segment_end` that have events in `times`, each with the time of its newest
/// event.
pub fn read_segments(
    connection: &Connection,
    segment_end: u32,
    times: (Timestamp, Timestamp),
) -> Result<Vec<(Timestamp, u32)>> {
    connection.read_all(
        "-- read_segments
         SELECT last_at, segment_no FROM segments
         WHERE segment_no < ? AND last_at >= ? AND first_at <= ?",
        params![segment_end, times.0.micros(), times.1.micros()],
        |row| Ok((Timestamp::from_micros(row.get(0)?), row.get(1)?)),
    )
}

/// The range of a tenant in a segment, if it has events there.
pub fn read_range(
    connection: &Connection,
    segment_no: u32,
    tenant: TenantNo,
) -> Result<Option<EventRange>> {
    let found = connection.read_optional(
        "-- read_range
         SELECT first_tenant, body FROM event_ranges WHERE segment_no = ? AND first_tenant <= ?
         ORDER BY first_tenant DESC LIMIT 1",
        params![segment_no, tenant.0],
        |row| {
            let body = row.get_ref(1)?.as_blob().unwrap_or_default();
            let found = try_find(row.get(0)?, body, tenant);
            found.ok_or_else(|| corrupt("event_ranges.body"))
        },
    )?;
    Ok(found.flatten())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// The ranges of one segment: each tenant's times in order.
    fn ranges_of_times(first_no: u64, tenants: BTreeMap<u32, Vec<i64>>) -> Vec<EventRange> {
        let (mut ranges, mut next) = (Vec::new(), first_no);
        for (tenant, mut times) in tenants {
            times.sort_unstable();
            for at in times {
                extend(&mut ranges, next, TenantNo(tenant), Timestamp::from_micros(at));
                next += 1;
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn written_and_read_back(
            tenants in prop::collection::btree_map(
                1..u32::MAX, prop::collection::vec(any::<i64>(), 1..200), 1..9
            ),
            first_no in 1..1_000_000u64,
        ) {
            let ranges = ranges_of_times(first_no, tenants);
            let (first, bytes) = (ranges[0].tenant.0, encode(&ranges));
            prop_assert_eq!(&decode(first, &bytes).unwrap(), &ranges);
            for range in &ranges {
                let found = try_find(first, &bytes, range.tenant).unwrap();
                prop_assert_eq!(found.as_ref(), Some(range));
            }
            let last = ranges.last().unwrap().tenant.0;
            prop_assert_eq!(try_find(first, &bytes, TenantNo(last.saturating_add(1))), Some(
                ranges.last().filter(|range| range.tenant.0 == u32::MAX).cloned()
            ));
        }

        #[test]
        fn a_moment_lies_where_the_fences_say(
            times in prop::collection::vec(0..60i64, 1..400),
            at in -1..61i64,
            first_no in 1..9u64,
        ) {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let ranges = ranges_of_times(first_no, [(1, times)].into());
            let around = ranges[0].around(Timestamp::from_micros(at));
            for (number, time) in (first_no..).zip(sorted) {
                prop_assert!(number >= around.start || time < at, "{} at {}", number, time);
                prop_assert!(number < around.end || time > at, "{} at {}", number, time);
            }
        }

        #[test]
        fn damaged_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut body = crc32fast::hash(&bytes).to_le_bytes().to_vec();
            body.extend_from_slice(&bytes);
            let _ = decode(1, &body);
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let ranges = ranges_of_times(1, [(3, vec![5; 90]), (4, vec![6, 7])].into());
        let bytes = encode(&ranges);
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert!(decode(3, &changed).is_err(), "byte {place}");
        }
    }
}
