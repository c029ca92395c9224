//! Compares the run files with the events, and looks for keys that are stored twice: one walk
//! through all runs together, in the order of hashes, which compares the exact keys of equals.

use super::scan::KeyMarks;
use crate::rules::ids::TenantNo;
use crate::store::sqlite::event_blocks::EventReader;
use crate::store::sqlite::recovery::Unfolded;
use crate::store::sqlite::run_file::{RunFile, RunScan, short_hash};
use crate::store::sqlite::runs::{RunRow, open_to_scan, read_runs};
use crate::store::{CheckReport, Result};
use rusqlite::Connection;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::path::Path;

/// Marks a place in the list of unfolded events.
const UNFOLDED: u64 = 1 << 63;
/// How often a snapshot is taken again because a server has merged runs of it meanwhile.
const TRIES: usize = 10;

/// Begins a read transaction and opens the files of its runs, which are then at hand whatever a
/// server does; an error in place of a file that cannot be opened.
pub fn begin_with_runs(connection: &Connection, directory: &Path) -> Result<Vec<Result<RunFile>>> {
    let mut tries = 0;
    loop {
        connection.execute_batch("BEGIN")?;
        let runs = read_runs(connection)?;
        let open = |row: RunRow| open_to_scan(directory, &row);
        let files: Vec<Result<RunFile>> = runs.into_iter().map(open).collect();
        tries += 1;
        if tries == TRIES || files.iter().all(Result::is_ok) {
            return Ok(files);
        }
        connection.execute_batch("ROLLBACK")?;
    }
}

/// Reports runs that do not hold the keys of their events. Returns how many events have a key that
/// another event has.
pub fn compare_keys(
    connection: &Connection,
    opened: Vec<Result<RunFile>>,
    unfolded: &Unfolded,
    marks: &KeyMarks,
    report: &mut CheckReport,
) -> Result<u64> {
    let mut files = Vec::new();
    for opened in opened {
        match opened.and_then(|file| Ok((file.verify()?, file))) {
            Ok((sum, file)) => {
                let before = |number: u64| marks.get(&number);
                let sums = before(file.events().start).zip(before(file.events().end));
                if sums.map(|(start, end)| end.wrapping_sub(*start)) != Some(sum) {
                    let (first, end) = (file.events().start, file.events().end);
                    report.add(|| format!("the run of events {first} to {end} has other keys"));
                }
                files.push(file);
            }
            Err(error) => report.add(|| error.to_string()),
        }
    }
    count_duplicates(connection, &files, unfolded)
}

fn count_duplicates(
    connection: &Connection,
    files: &[RunFile],
    unfolded: &Unfolded,
) -> Result<u64> {
    let mut tail: Vec<(u64, u64)> = (UNFOLDED..)
        .zip(unfolded.open.entries())
        .map(|(place, entry)| (short_hash(entry.hash), place))
        .collect();
    tail.sort_unstable();
    let mut tail = tail.into_iter();
    let mut scans: Vec<RunScan<'_>> = files.iter().map(RunFile::scan).collect();
    let mut next: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    for (source, scan) in scans.iter_mut().enumerate() {
        next.extend(scan.next_key()?.map(|(hash, number)| Reverse((hash, number, source))));
    }
    next.extend(tail.next().map(|(hash, place)| Reverse((hash, place, files.len()))));
    let (mut equal, mut twice): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    while let Some(Reverse((hash, number, source))) = next.pop() {
        if equal.first().is_some_and(|(first, _)| *first != hash) {
            twice += count_repeats(connection, unfolded, &equal)?;
            equal.clear();
        }
        equal.push((hash, number));
        let following = match scans.get_mut(source) {
            Some(scan) => scan.next_key()?,
            None => tail.next(),
        };
        next.extend(following.map(|(hash, number)| Reverse((hash, number, source))));
    }
    Ok(twice + count_repeats(connection, unfolded, &equal)?)
}

/// How many of these events, whose hashes are equal, have a key that another of them has.
fn count_repeats(
    connection: &Connection,
    unfolded: &Unfolded,
    equal: &[(u64, u64)],
) -> Result<u64> {
    if equal.len() < 2 {
        return Ok(0);
    }
    let (mut keys, mut repeats) = (HashSet::new(), 0);
    let mut reader = EventReader::new(connection);
    for (_, place) in equal {
        if let Some(key) = read_key(&mut reader, unfolded, *place)?
            && !keys.insert(key)
        {
            repeats += 1;
        }
    }
    Ok(repeats)
}

/// The exact key; None if the event cannot be read, which is a finding of its own.
fn read_key(
    reader: &mut EventReader<'_>,
    unfolded: &Unfolded,
    place: u64,
) -> Result<Option<(TenantNo, String)>> {
    if place & UNFOLDED != 0 {
        let place = u32::try_from(place & !UNFOLDED).expect("fewer than 2^32 events");
        let (view, _) = unfolded.open.view(unfolded.open.entry(place))?;
        return Ok(Some((view.tenant, view.id.to_owned())));
    }
    Ok(reader.view(place).ok().map(|(view, _)| (view.tenant, view.id.to_owned())))
}
