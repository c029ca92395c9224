//! Key blocks: the hashes of all folded events, by which a duplicate is found.
//!
//! Invariant: sound blocks cover every folded event exactly once. Blocks hold nothing that the
//! events do not say, so what is missing or damaged when the store opens is made again from them;
//! a store whose events are missing as well is refused. A crash while blocks are made again leaves
//! a gap, which the next start finds.

use super::keys::{KeyIndex, Location, key_hash};
use super::statements::Statements;
use super::{corrupt, damaged};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, TenantNo};
use crate::store::{Error, Result};
use rusqlite::{Connection, Row, params};
use std::ops::Range;

/// Keys of a block that is made again.
const KEYS_REBUILT: u64 = 65_536;

/// One row of `key_blocks`.
pub struct KeyBlock {
    pub first_no: i64,
    /// None if the row is damaged.
    keys: Option<(Range<u64>, Vec<u64>)>,
}

impl KeyBlock {
    /// Reads the columns first_no, hashes, checksum.
    pub fn read(row: &Row<'_>) -> Result<Self> {
        let first_no: i64 = row.get(0)?;
        let bytes = row.get_ref(1)?;
        let bytes = bytes.as_blob().map_err(|_| corrupt("key_blocks.hashes"))?;
        let stored: Option<i64> = row.get(2)?;
        let (hashes, odd) = bytes.as_chunks();
        let whole = odd.is_empty() && stored.is_none_or(|sum| sum == checksum(first_no, bytes));
        let start = u64::try_from(first_no).ok().filter(|_| whole && !hashes.is_empty());
        let keys = start.map(|start| {
            let count = u64::try_from(hashes.len()).expect("a length fits 64 bits");
            (start..start + count, hashes.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
        });
        Ok(Self { first_no, keys })
    }

    /// The numbers of its events and their hashes, unless the row is damaged.
    pub fn keys(&self) -> Option<(Range<u64>, &[u64])> {
        self.keys.as_ref().map(|(numbers, hashes)| (numbers.clone(), hashes.as_slice()))
    }
}

/// Writes the hashes of the events from `first_no` on.
pub fn insert_block(connection: &Connection, first_no: i64, hashes: &[u8]) -> Result<()> {
    connection.run(
        "-- insert_block
         INSERT INTO key_blocks (first_no, hashes, checksum) VALUES (?, ?, ?)",
        params![first_no, hashes, checksum(first_no, hashes)],
    )?;
    Ok(())
}

/// The sum of the hashes and of their place: any flipped bit changes it.
fn checksum(first_no: i64, hashes: &[u8]) -> i64 {
    let hashes = hashes.as_chunks().0.iter().map(|hash| i64::from_le_bytes(*hash));
    hashes.fold(first_no, i64::wrapping_add)
}

/// Loads the keys of the events before `end` and makes again what is not sound.
pub fn load_keys(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    end: u64,
) -> Result<KeyIndex> {
    let count = usize::try_from(end.saturating_sub(1)).map_err(|_| corrupt("fold_state"))?;
    let mut keys = KeyIndex::with_capacity(count);
    let (damaged, gaps) = load_sound_blocks(connection, end, &mut keys)?;
    if damaged.is_empty() && gaps.is_empty() {
        return Ok(keys);
    }
    let missing: u64 = gaps.iter().map(|gap| gap.end - gap.start).sum();
    tracing::warn!(
        damaged = damaged.len(),
        missing,
        "key blocks are damaged or missing; the keys of {missing} events are made again from the \
         events"
    );
    for first_no in damaged {
        connection
            .execute("-- load_keys\nDELETE FROM key_blocks WHERE first_no = ?", [first_no])?;
    }
    for gap in gaps {
        rebuild(connection, fingerprinter, gap, &mut keys)?;
    }
    Ok(keys)
}

/// Puts sound blocks into `keys`; returns the rows that are damaged, and the numbers of the events
/// that no sound block covers.
fn load_sound_blocks(
    connection: &Connection,
    end: u64,
    keys: &mut KeyIndex,
) -> Result<(Vec<i64>, Vec<Range<u64>>)> {
    let mut select = connection.prepare(
        "-- load_sound_blocks
         SELECT first_no, hashes, checksum FROM key_blocks ORDER BY first_no",
    )?;
    let mut rows = select.query([])?;
    let (mut damaged, mut gaps, mut next) = (Vec::new(), Vec::new(), 1);
    while let Some(row) = rows.next()? {
        let block = KeyBlock::read(row)?;
        match block.keys() {
            Some((numbers, hashes)) if numbers.start >= next && numbers.end <= end => {
                if numbers.start > next {
                    gaps.push(next..numbers.start);
                }
                next = numbers.end;
                for (number, hash) in numbers.zip(hashes) {
                    keys.insert(*hash, Location::Folded(number));
                }
            }
            Some(_) | None => damaged.push(block.first_no),
        }
    }
    if next < end {
        gaps.push(next..end);
    }
    Ok((damaged, gaps))
}

fn rebuild(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    gap: Range<u64>,
    keys: &mut KeyIndex,
) -> Result<()> {
    let mut start = gap.start;
    while start < gap.end {
        let end = gap.end.min(start + KEYS_REBUILT);
        let hashes = hash_events(connection, fingerprinter, start..end)?;
        let bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let first_no = i64::try_from(start).map_err(|_| corrupt("events.event_no"))?;
        insert_block(connection, first_no, &bytes)?;
        for (number, hash) in (start..end).zip(hashes) {
            keys.insert(hash, Location::Folded(number));
        }
        start = end;
    }
    Ok(())
}

/// The hashes of all events with these numbers; refused if one is not there.
fn hash_events(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    numbers: Range<u64>,
) -> Result<Vec<u64>> {
    let mut select = connection.prepare_cached(
        "-- hash_events
         SELECT event_no, tenant_no, id FROM events
         WHERE event_no >= ? AND event_no < ? ORDER BY event_no",
    )?;
    let mut rows = select.query(params![numbers.start, numbers.end])?;
    let mut hashes = Vec::new();
    for number in numbers {
        let missing = || Error::Corrupt {
            what: format!(
                "event number {number} and its key are missing: nobody can tell whether an event \
                 that comes again was counted; restore a backup"
            ),
        };
        let row = rows.next()?.ok_or_else(missing)?;
        let found: u64 = row.get(0)?;
        if found != number {
            return Err(missing());
        }
        let tenant = TenantNo(row.get(1)?);
        let id: String = row.get(2)?;
        let id = EventId::parse(&id).map_err(|_| damaged("events.id", &id))?;
        hashes.push(key_hash(fingerprinter, tenant, &id));
    }
    Ok(hashes)
}
