//! Event ranges: where each tenant's events lie in a folded segment.
//!
//! A segment has its ranges in blocks of [`BLOCK_TENANTS`] tenants, in the order of their numbers.
//! Of each tenant: the step from the tenant before, the number of its events, and the first and
//! last `occurred_at`, which are near each other and so take few bytes.
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

/// A tenant's events in one segment, sorted by time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRange {
    pub tenant: TenantNo,
    pub numbers: Range<u64>,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
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
            range.numbers.end = number + 1;
            range.last_at = at;
        }
        None => {
            let numbers = number..number + 1;
            ranges.push(EventRange { tenant, numbers, first_at: at, last_at: at });
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
    let first = &block[0];
    write_number(&mut bytes, first.numbers.start.into());
    let (mut tenant, mut at) = (first.tenant.0, Timestamp::from_micros(0));
    for range in block {
        write_number(&mut bytes, (range.tenant.0 - tenant).into());
        write_number(&mut bytes, (range.numbers.end - range.numbers.start).into());
        write_signed(&mut bytes, i128::from(range.last_at.micros()) - i128::from(at.micros()));
        let span = i128::from(range.last_at.micros()) - i128::from(range.first_at.micros());
        write_signed(&mut bytes, span);
        (tenant, at) = (range.tenant.0, range.last_at);
    }
    bytes
}

/// Reads a row of `event_ranges`.
pub fn decode(first_tenant: u32, bytes: &[u8]) -> Result<Vec<EventRange>> {
    try_decode(first_tenant, bytes).ok_or_else(|| corrupt("event_ranges.body"))
}

fn try_decode(first_tenant: u32, bytes: &[u8]) -> Option<Vec<EventRange>> {
    let mut reader = Reader { bytes, at: 0 };
    let mut next_no = u64::try_from(reader.number()?).ok()?;
    let (mut tenant, mut at, mut ranges) = (first_tenant, 0i64, Vec::new());
    while reader.at < bytes.len() {
        tenant = tenant.checked_add(u32::try_from(reader.number()?).ok()?)?;
        let end = next_no.checked_add(u64::try_from(reader.number()?).ok()?)?;
        at = at.checked_add(i64::try_from(reader.signed()?).ok()?)?;
        let first_at = at.checked_sub(i64::try_from(reader.signed()?).ok()?)?;
        ranges.push(EventRange {
            tenant: TenantNo(tenant),
            numbers: next_no..end,
            first_at: Timestamp::from_micros(first_at),
            last_at: Timestamp::from_micros(at),
        });
        next_no = end;
    }
    Some(ranges)
}

/// The ranges of one tenant in segments before `segment_end` that have events in `times`.
pub fn read_ranges(
    connection: &Connection,
    tenant: TenantNo,
    segment_end: u32,
    times: (Timestamp, Timestamp),
) -> Result<Vec<EventRange>> {
    let (first, last) = (times.0.micros(), times.1.micros());
    let mut select = connection.prepare_cached(
        "-- read_ranges
         SELECT r.first_tenant, r.body FROM segments s
         JOIN event_ranges r ON r.segment_no = s.segment_no AND r.first_tenant = (
             SELECT max(first_tenant) FROM event_ranges
             WHERE segment_no = s.segment_no AND first_tenant <= ?1)
         WHERE s.segment_no < ?2 AND s.last_at >= ?3 AND s.first_at <= ?4",
    )?;
    let mut rows = select.query(params![tenant.0, segment_end, first, last])?;
    let mut ranges = Vec::new();
    while let Some(row) = rows.next()? {
        let bytes = row.get_ref(1)?;
        let bytes = bytes.as_blob().map_err(|_| corrupt("event_ranges.body"))?;
        let found = decode(row.get(0)?, bytes)?.into_iter().find(|range| range.tenant == tenant);
        let inside = |range: &EventRange| range.last_at >= times.0 && range.first_at <= times.1;
        ranges.extend(found.filter(inside));
    }
    Ok(ranges)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_and_read_back(
            tenants in prop::collection::btree_map(
                1..u32::MAX, (1..9u64, any::<i32>(), 0..99i64), 1..40
            ),
            first_no in 1..1_000_000u64,
        ) {
            let mut next = first_no;
            let ranges: Vec<EventRange> = tenants.into_iter().map(|(tenant, (count, at, span))| {
                let numbers = next..next + count;
                next += count;
                let last_at = Timestamp::from_micros(i64::from(at));
                let first_at = Timestamp::from_micros(i64::from(at) - span);
                EventRange { tenant: TenantNo(tenant), numbers, first_at, last_at }
            }).collect();
            prop_assert_eq!(decode(ranges[0].tenant.0, &encode(&ranges)).unwrap(), ranges);
        }

        #[test]
        fn damaged_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(1, &bytes);
        }
    }
}
