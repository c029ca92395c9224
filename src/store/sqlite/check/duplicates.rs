//! Looks for event keys that are stored twice, in as many passes over the key blocks as memory
//! wants: each pass takes one part of all hashes, sorts it, and compares the exact keys of equals.

use super::super::statements::Statements;
use crate::rules::ids::TenantNo;
use crate::store::Result;
use crate::store::sqlite::fold::FoldState;
use crate::store::sqlite::key_blocks::KeyBlock;
use crate::store::sqlite::recovery::Unfolded;
use crate::store::sqlite::segment::{Entry, Segment};
use rusqlite::{Connection, params};
use std::collections::HashSet;

/// Hashes of one pass: 256 MiB.
const PASS_KEYS: u64 = 16 * 1024 * 1024;
/// Key blocks that one read transaction covers.
const SLICE_BLOCKS: i64 = 64;
/// Marks a place in the list of unfolded events.
const UNFOLDED: u64 = 1 << 63;

/// How many events have a key that another event has.
pub fn count_duplicates(
    connection: &Connection,
    unfolded: &Unfolded,
    fold: FoldState,
) -> Result<u64> {
    let tail = unfolded_entries(unfolded, fold);
    let end = fold.events_end(unfolded.closed.as_ref());
    let passes = end.div_ceil(PASS_KEYS).max(1);
    let mut twice = 0;
    for pass in 0..passes {
        let mut hashes = read_hashes(connection, end, |hash| hash % passes == pass)?;
        hashes.extend(
            (UNFOLDED..)
                .zip(&tail)
                .map(|(place, (_, entry))| (entry.hash, place))
                .filter(|(hash, _)| hash % passes == pass),
        );
        hashes.sort_unstable();
        for equal in hashes.chunk_by(|a, b| a.0 == b.0).filter(|equal| equal.len() > 1) {
            twice += count_repeats(connection, &tail, equal)?;
        }
    }
    Ok(twice)
}

/// Events that have no row of `events` yet.
fn unfolded_entries(unfolded: &Unfolded, fold: FoldState) -> Vec<(&Segment, &Entry)> {
    let closed = unfolded.closed.iter().flat_map(|closed| {
        let places = closed.order.iter().skip(fold.steps_done);
        places.map(|place| (&closed.segment, closed.segment.entry(*place)))
    });
    closed.chain(unfolded.open.entries().iter().map(|entry| (&unfolded.open, entry))).collect()
}

fn read_hashes(
    connection: &Connection,
    end: u64,
    wanted: impl Fn(u64) -> bool,
) -> Result<Vec<(u64, u64)>> {
    let (mut hashes, mut after) = (Vec::new(), i64::MIN);
    loop {
        let mut select = connection.prepare_cached(
            "-- read_hashes
             SELECT first_no, hashes, checksum FROM key_blocks WHERE first_no > ?
             ORDER BY first_no LIMIT ?",
        )?;
        let mut rows = select.query(params![after, SLICE_BLOCKS])?;
        let before = after;
        while let Some(row) = rows.next()? {
            let block = KeyBlock::read(row)?;
            after = block.first_no;
            let Some((numbers, keys)) = block.keys() else { continue };
            let counted = numbers.zip(keys).filter(|(number, _)| *number < end);
            hashes.extend(
                counted.filter(|(_, hash)| wanted(**hash)).map(|(number, hash)| (*hash, number)),
            );
        }
        if after == before {
            return Ok(hashes);
        }
    }
}

/// How many of these events, whose hashes are equal, have a key that another of them has.
fn count_repeats(
    connection: &Connection,
    tail: &[(&Segment, &Entry)],
    equal: &[(u64, u64)],
) -> Result<u64> {
    let (mut keys, mut repeats) = (HashSet::new(), 0);
    for (_, place) in equal {
        if let Some(key) = read_key(connection, tail, *place)?
            && !keys.insert(key)
        {
            repeats += 1;
        }
    }
    Ok(repeats)
}

/// The exact key; None if the row is missing, which is a finding of its own.
fn read_key(
    connection: &Connection,
    tail: &[(&Segment, &Entry)],
    place: u64,
) -> Result<Option<(TenantNo, String)>> {
    if place & UNFOLDED != 0 {
        let place = usize::try_from(place & !UNFOLDED).expect("a place fits memory");
        let (segment, entry) = tail[place];
        let (view, _) = segment.view(entry)?;
        return Ok(Some((view.tenant, view.id.to_owned())));
    }
    let key = |row: &rusqlite::Row<'_>| Ok((TenantNo(row.get(0)?), row.get(1)?));
    connection.read_optional(
        "-- read_key\nSELECT tenant_no, id FROM events WHERE event_no = ?",
        [place],
        key,
    )
}
