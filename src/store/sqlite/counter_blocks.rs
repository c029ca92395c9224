//! Counter blocks: the counters of an hour, those of up to [`BLOCK_TENANTS`] tenants to a row.
//!
//! A body is a checksum and, of each tenant that has a counter, the step from the tenant before and
//! its five counts. Where events were admitted, the step has [`ADMITTED`] added, and how many they
//! were is a sixth count.
//!
//! Invariant: a block holds the tenants with its number of times [`BLOCK_TENANTS`] and those after
//! it, in ascending order. Folding alone changes it, in the fold's transaction. A body that does
//! not agree with its checksum is damage and stops the reader.

use super::corrupt;
use super::record::{Reader, write_number};
use super::segment::CounterKey;
use super::statements::Statements;
use crate::rules::ids::TenantNo;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Tally;
use crate::store::Result;
use rusqlite::{Connection, Row, params};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Few enough that a block is a part of a page.
const BLOCK_TENANTS: u32 = 64;
/// More than any step within a block.
const ADMITTED: u32 = BLOCK_TENANTS;

type Counters = BTreeMap<u32, Tally>;

/// Adds counters, which are in the order of hour and tenant.
pub fn add_counters(connection: &Connection, counters: &[(CounterKey, Tally)]) -> Result<()> {
    let block_of = |((tenant, hour), _): &(CounterKey, Tally)| (*hour, tenant.0 / BLOCK_TENANTS);
    for added in counters.chunk_by(|a, b| block_of(a) == block_of(b)) {
        let (hour, block_no) = block_of(&added[0]);
        let stored = connection.read_optional(
            "-- add_counters\nSELECT body FROM counter_blocks WHERE hour = ? AND block_no = ?",
            params![hour.micros(), block_no],
            |row| decode_body(block_no, row, 0),
        )?;
        let mut sums = stored.unwrap_or_default();
        for ((tenant, _), tally) in added {
            sums.entry(tenant.0).or_default().merge(tally);
        }
        connection.run(
            "-- add_counters
             INSERT INTO counter_blocks (hour, block_no, body) VALUES (?, ?, ?)
             ON CONFLICT (hour, block_no) DO UPDATE SET body = excluded.body",
            params![hour.micros(), block_no, encode(block_no, &sums)],
        )?;
    }
    Ok(())
}

/// The counters of one tenant in an hour.
pub fn find_counter(
    connection: &Connection,
    (tenant, hour): CounterKey,
) -> Result<Option<(CounterKey, Tally)>> {
    let block_no = tenant.0 / BLOCK_TENANTS;
    let block = connection.read_optional(
        "-- find_counter\nSELECT body FROM counter_blocks WHERE hour = ? AND block_no = ?",
        params![hour.micros(), block_no],
        |row| decode_body(block_no, row, 0),
    )?;
    let tally = block.and_then(|block| block.get(&tenant.0).copied());
    Ok(tally.map(|tally| ((tenant, hour), tally)))
}

/// Goes through the counters of hours before `end`, from an hour and tenant on, in their order,
/// until `visit` says that it has enough.
pub fn visit_counters(
    connection: &Connection,
    (hour, tenant): (Timestamp, TenantNo),
    end: Timestamp,
    mut visit: impl FnMut(CounterKey, Tally) -> bool,
) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- visit_counters
         SELECT hour, block_no, body FROM counter_blocks
         WHERE (hour, block_no) >= (?, ?) AND hour < ? ORDER BY hour, block_no",
    )?;
    let values = params![hour.micros(), tenant.0 / BLOCK_TENANTS, end.micros()];
    let mut rows = select.query(values)?;
    while let Some(row) = rows.next()? {
        let at = Timestamp::from_micros(row.get(0)?);
        for (number, tally) in decode_body(row.get(1)?, row, 2)? {
            let before = (at, number) < (hour, tenant.0);
            if !before && !visit((TenantNo(number), at), tally) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Goes through the counters of these tenants, hour by hour.
pub fn visit_tenant_counters(
    connection: &Connection,
    tenants: RangeInclusive<TenantNo>,
    mut visit: impl FnMut(CounterKey, Tally) -> Result<()>,
) -> Result<()> {
    let mut select = connection.prepare_cached(
        "-- visit_tenant_counters
         SELECT hour, block_no, body FROM counter_blocks WHERE block_no BETWEEN ? AND ?
         ORDER BY hour, block_no",
    )?;
    let blocks = [tenants.start(), tenants.end()].map(|tenant| tenant.0 / BLOCK_TENANTS);
    let mut rows = select.query(blocks)?;
    while let Some(row) = rows.next()? {
        let hour = Timestamp::from_micros(row.get(0)?);
        for (number, tally) in decode_body(row.get(1)?, row, 2)? {
            if tenants.contains(&TenantNo(number)) {
                visit((TenantNo(number), hour), tally)?;
            }
        }
    }
    Ok(())
}

fn encode(block_no: u32, counters: &Counters) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    let mut before = block_no * BLOCK_TENANTS;
    for (tenant, tally) in counters {
        let Tally { accepted, admitted, duplicates, conflicts, quarantined, rejected } = tally;
        let mark = if *admitted > 0 { ADMITTED } else { 0 };
        write_number(&mut bytes, (tenant - before + mark).into());
        before = *tenant;
        for count in [accepted, duplicates, conflicts, quarantined, rejected] {
            write_number(&mut bytes, (*count).into());
        }
        if *admitted > 0 {
            write_number(&mut bytes, (*admitted).into());
        }
    }
    let checksum = crc32fast::hash(&bytes[4..]).to_le_bytes();
    bytes[..4].copy_from_slice(&checksum);
    bytes
}

fn decode_body(block_no: u32, row: &Row<'_>, column: usize) -> Result<Counters> {
    let body = row.get_ref(column)?.as_blob().ok();
    let counters = body.and_then(|body| decode(block_no, body));
    counters.ok_or_else(|| corrupt("counter_blocks.body"))
}

fn decode(block_no: u32, body: &[u8]) -> Option<Counters> {
    let (checksum, bytes) = body.split_first_chunk()?;
    if crc32fast::hash(bytes) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut reader = Reader { bytes, at: 0 };
    let (mut tenant, mut counters) = (block_no.checked_mul(BLOCK_TENANTS)?, Counters::new());
    while reader.at < bytes.len() {
        let step = u32::try_from(reader.number()?).ok()?;
        let (step, admitted) = match step.checked_sub(ADMITTED) {
            Some(step) => (step, true),
            None => (step, false),
        };
        tenant = tenant.checked_add(step)?;
        let mut count = || u64::try_from(reader.number()?).ok();
        let tally = Tally {
            accepted: count()?,
            duplicates: count()?,
            conflicts: count()?,
            quarantined: count()?,
            rejected: count()?,
            admitted: if admitted { count()? } else { 0 },
        };
        counters.insert(tenant, tally);
    }
    Some(counters)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Model = BTreeMap<(i64, u32), u64>;

    fn key(hour: i64, tenant: u32) -> CounterKey {
        (TenantNo(tenant), Timestamp::from_micros(hour))
    }

    /// Tenants with odd numbers have none.
    fn admitted_of(tenant: u32, rejected: u64) -> u64 {
        if tenant.is_multiple_of(2) { rejected } else { 0 }
    }

    fn visited(connection: &Connection, from: (i64, u32), end: i64, limit: usize) -> Model {
        let mut found = Model::new();
        let start = (Timestamp::from_micros(from.0), TenantNo(from.1));
        visit_counters(connection, start, Timestamp::from_micros(end), |(tenant, hour), tally| {
            assert_eq!(tally.admitted, admitted_of(tenant.0, tally.rejected));
            found.insert((hour.micros(), tenant.0), tally.rejected);
            found.len() < limit
        })
        .unwrap();
        found
    }

    proptest! {
        #[test]
        fn counters_equal_those_of_a_sorted_map(
            added in prop::collection::vec(
                prop::collection::btree_map((0..3i64, 0..300u32), 1..1_000u64, 1..60), 0..6
            ),
            (from, end, limit) in ((0..3i64, 0..300u32), 0..4i64, 1..200usize),
        ) {
            let connection = Connection::open_in_memory().unwrap();
            let schema = include_str!("../../../migrations/ledger/0001_ledger.sql");
            connection.execute_batch(schema).unwrap();
            let mut model = Model::new();
            for batch in added {
                let tally = |tenant: u32, rejected: u64| {
                    let admitted = admitted_of(tenant, rejected);
                    Tally { rejected, admitted, ..Tally::default() }
                };
                let batch: Vec<_> =
                    batch.iter().map(|((h, t), count)| (key(*h, *t), tally(*t, *count))).collect();
                add_counters(&connection, &batch).unwrap();
                for ((tenant, hour), tally) in batch {
                    *model.entry((hour.micros(), tenant.0)).or_default() += tally.rejected;
                }
            }
            prop_assert_eq!(&visited(&connection, (0, 0), 9, 9_999), &model);
            let found = find_counter(&connection, key(from.0, from.1)).unwrap();
            let wanted = model.get(&from).copied();
            prop_assert_eq!(found.map(|(_, tally)| tally.rejected), wanted);
            let page = model.into_iter().filter(|(at, _)| *at >= from && at.0 < end).take(limit);
            prop_assert_eq!(visited(&connection, from, end, limit), page.collect::<Model>());
        }

        #[test]
        fn damaged_bytes_never_panic(records in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut body = crc32fast::hash(&records).to_le_bytes().to_vec();
            body.extend_from_slice(&records);
            let _ = decode(u32::MAX / BLOCK_TENANTS, &body);
        }
    }
}
