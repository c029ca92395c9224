//! Runs: which there are, how they are opened, and when they are merged.
//!
//! A run holds the keys (in a file, `run_file`) and the totals (`total_blocks`) of adjacent
//! segments. Folding makes a run of each segment; eight runs of one level become one of the next.
//!
//! Invariant: the runs follow each other without a gap and cover every folded event. A run is named
//! in the table `runs` only after its file is durable. A crash leaves files that no row names; they
//! are deleted at the next start. A file that is lost or damaged is made again from the events.

use super::event_blocks::EventBlock;
use super::run_file::{KeyRecord, RUN_EVENTS_MAX, RunFile, RunWriter, merge_files};
use super::segment::key_hash;
use super::statements::Statements;
use super::{corrupt, damaged};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::EventId;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::{Error, Result};
use rusqlite::{Connection, params};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const KEYS_DIRECTORY: &str = "keys";
/// Runs of one level that are merged into one of the next.
const MERGED_RUNS: usize = 8;
/// Events whose keys are sorted in memory when a file is made again.
const REBUILT_EVENTS: u64 = 1 << 20;

/// A row of `runs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub run_no: i64,
    pub level: u32,
    pub events: Range<u64>,
    /// The first and the last bucket of its totals.
    pub buckets: (Timestamp, Timestamp),
    /// Of its file.
    pub checksum: u32,
}

impl RunRow {
    /// Whether the run may have totals of buckets that start in the range.
    pub fn meets(&self, range: Window) -> bool {
        self.buckets.0 < range.end && self.buckets.1 >= range.start
    }
}

/// A run with its keys at hand.
pub struct Run {
    pub row: RunRow,
    pub file: RunFile,
}

impl Run {
    /// Opens the file of a run, and refuses one that is not its own.
    pub fn open(directory: &Path, row: RunRow) -> Result<Self> {
        let file = RunFile::open(&path_of(directory, row.run_no), row.events.clone())?;
        let file = own_file(directory, &row, file)?;
        Ok(Self { row, file })
    }
}

/// The file of a run, to be read from one end to the other; see [`RunFile::open_to_scan`].
pub fn open_to_scan(directory: &Path, row: &RunRow) -> Result<RunFile> {
    let file = RunFile::open_to_scan(&path_of(directory, row.run_no), row.events.clone())?;
    own_file(directory, row, file)
}

fn own_file(directory: &Path, row: &RunRow, file: RunFile) -> Result<RunFile> {
    if file.checksum() == row.checksum {
        return Ok(file);
    }
    let path = path_of(directory, row.run_no);
    let what = format!("the key run {} is of other events", path.display());
    Err(Error::Corrupt { what })
}

pub fn path_of(directory: &Path, run_no: i64) -> PathBuf {
    directory.join(KEYS_DIRECTORY).join(format!("{run_no}.run"))
}

/// Which runs are merged next, as places in the order of their events.
pub fn next_merge(runs: &[RunRow]) -> Option<Range<usize>> {
    let mut start = 0;
    for level in runs.chunk_by(|a, b| a.level == b.level) {
        let end = start + MERGED_RUNS;
        if level.len() >= MERGED_RUNS {
            let events = runs[start].events.start..runs[end - 1].events.end;
            if events.end - events.start <= RUN_EVENTS_MAX {
                return Some(start..end);
            }
        }
        start += level.len();
    }
    None
}

/// Every run, in the order of their events.
pub fn read_runs(connection: &Connection) -> Result<Vec<RunRow>> {
    connection.read_all(
        "-- read_runs
         SELECT run_no, level, first_no, end_no, first_bucket, last_bucket, checksum FROM runs
         ORDER BY first_no",
        [],
        |row| {
            let bucket =
                |place| -> Result<Timestamp> { Ok(Timestamp::from_micros(row.get(place)?)) };
            Ok(RunRow {
                run_no: row.get(0)?,
                level: row.get(1)?,
                events: row.get(2)?..row.get(3)?,
                buckets: (bucket(4)?, bucket(5)?),
                checksum: row.get(6)?,
            })
        },
    )
}

/// Deletes the file of a run, unless the table names the run. Returns whether it does not.
pub fn delete_file(connection: &Connection, directory: &Path, run_no: i64) -> Result<bool> {
    if read_runs(connection)?.iter().any(|run| run.run_no == run_no) {
        return Ok(false);
    }
    // A file that stays is deleted at the next start.
    let _ = std::fs::remove_file(path_of(directory, run_no));
    Ok(true)
}

pub fn insert_run(connection: &Connection, run: &RunRow) -> Result<()> {
    let RunRow { run_no, level, events, buckets, checksum } = run;
    connection.run(
        "-- insert_run
         INSERT INTO runs (run_no, level, first_no, end_no, first_bucket, last_bucket, checksum)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        params![
            run_no,
            level,
            events.start,
            events.end,
            buckets.0.micros(),
            buckets.1.micros(),
            checksum
        ],
    )?;
    Ok(())
}

/// The number after every run that has a row or totals.
pub fn next_run_no(connection: &Connection) -> Result<i64> {
    connection.read_one(
        "-- next_run_no
         SELECT 1 + max(coalesce((SELECT max(run_no) FROM runs), 0),
                        coalesce((SELECT max(run_no) FROM total_blocks), 0))",
        [],
        |row| Ok(row.get(0)?),
    )
}

/// Opens the runs of the events before `end`. Deletes files that are no run's, and makes those
/// again that are lost or damaged.
pub fn open_runs(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
    end: u64,
) -> Result<Vec<Arc<Run>>> {
    let rows = read_runs(connection)?;
    let mut next = 1;
    for row in &rows {
        if row.events.start != next || row.events.is_empty() {
            return Err(corrupt("the table runs: its runs do not follow each other, so it"));
        }
        next = row.events.end;
    }
    if next != end {
        return Err(corrupt("the table runs: keys of folded events have no run, so it"));
    }
    require_memory(RunFile::memory_bytes(end - 1), available_memory())?;
    delete_strays(directory, &rows)?;
    rows.into_iter().map(|row| open_run(connection, directory, fingerprinter, row)).collect()
}

fn open_run(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
    row: RunRow,
) -> Result<Arc<Run>> {
    match Run::open(directory, row.clone()) {
        Ok(run) => Ok(Arc::new(run)),
        Err(error @ Error::Corrupt { .. }) => {
            tracing::warn!(%error, "its keys are made again from the events");
            let path = path_of(directory, row.run_no);
            let file = rebuild(connection, &path, fingerprinter, row.events.clone())?;
            Ok(Arc::new(Run { row, file }))
        }
        Err(error) => Err(error),
    }
}

/// Reads all files, and makes those again that are damaged; none if all are sound.
pub fn heal_runs(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
    runs: &[Arc<Run>],
) -> Result<Option<Vec<Arc<Run>>>> {
    let (mut healed, mut all) = (false, Vec::new());
    for run in runs {
        let Err(error) = run.file.verify() else {
            all.push(Arc::clone(run));
            continue;
        };
        tracing::warn!(%error, "its keys are made again from the events");
        let (row, path) = (run.row.clone(), path_of(directory, run.row.run_no));
        let file = rebuild(connection, &path, fingerprinter, row.events.clone())?;
        all.push(Arc::new(Run { row, file }));
        healed = true;
    }
    Ok(healed.then_some(all))
}

fn delete_strays(directory: &Path, rows: &[RunRow]) -> Result<()> {
    let folder = directory.join(KEYS_DIRECTORY);
    let unavailable = |error: std::io::Error| Error::Unavailable {
        what: format!("cannot use the directory {}: {error}", folder.display()),
    };
    for entry in std::fs::read_dir(&folder).map_err(unavailable)? {
        let path = entry.map_err(unavailable)?.path();
        if !rows.iter().any(|row| path_of(directory, row.run_no) == path) {
            std::fs::remove_file(&path).map_err(unavailable)?;
        }
    }
    Ok(())
}

/// Makes the file of a run from its events: sorts a part at a time, then merges the parts.
fn rebuild(
    connection: &Connection,
    path: &Path,
    fingerprinter: &Fingerprinter,
    events: Range<u64>,
) -> Result<RunFile> {
    let (mut parts, mut start) = (Vec::new(), events.start);
    while start < events.end {
        let end = events.end.min(start + REBUILT_EVENTS);
        let records = hash_events(connection, fingerprinter, start..end)?;
        let part = path.with_extension(format!("part{}", parts.len()));
        let last = start == events.start && end == events.end;
        let mut writer = RunWriter::create(if last { path } else { &part }, start..end)?;
        records.into_iter().try_for_each(|record| writer.push(record))?;
        let file = writer.finish()?;
        if last {
            return Ok(file);
        }
        parts.push((file, part));
        start = end;
    }
    let files: Vec<&RunFile> = parts.iter().map(|(file, _)| file).collect();
    let merged = merge_files(&files, path)?;
    for (_, part) in &parts {
        // A part that stays is deleted at the next start.
        let _ = std::fs::remove_file(part);
    }
    Ok(merged)
}

/// The sorted keys of all events with these numbers; refused if one is not there.
fn hash_events(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    numbers: Range<u64>,
) -> Result<Vec<KeyRecord>> {
    let mut records = Vec::new();
    let mut number = numbers.start;
    while number < numbers.end {
        let missing = |_| Error::Corrupt {
            what: format!(
                "event number {number} and its key are missing: nobody can tell whether an event \
                 that comes again was counted; restore a backup"
            ),
        };
        let block = EventBlock::fetch(connection, number).map_err(missing)?;
        let end = block.numbers().end.min(numbers.end);
        for number in number..end {
            let (view, _) = block.view(number)?;
            let id = EventId::parse(view.id).map_err(|_| damaged("an event's id", view.id))?;
            let place = u32::try_from(number - numbers.start).expect("a part has a million");
            records.push(KeyRecord::new(key_hash(fingerprinter, view.tenant, &id), place));
        }
        number = end;
    }
    records.sort_unstable();
    Ok(records)
}

/// Refuses to start where the keys do not fit: the kernel would end the process later, and again
/// after each restart.
fn require_memory(needed: u64, available: Option<u64>) -> Result<()> {
    let Some(available) = available.filter(|available| needed > *available) else { return Ok(()) };
    let mebibytes = |bytes: u64| bytes / (1024 * 1024);
    Err(Error::Unavailable {
        what: format!(
            "the keys of this store need {} MiB of memory and {} MiB are available; give the \
             server more memory",
            mebibytes(needed),
            mebibytes(available)
        ),
    })
}

/// Bytes that this process may still take, if the system tells.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let read = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(name)).ok()?;
        text.trim().parse().ok()
    };
    let group = read("memory.max").zip(read("memory.current"));
    let group = group.map(|(most, taken)| most.saturating_sub(taken));
    Some(group.map_or(machine, |group| group.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(levels: &[u32]) -> Vec<RunRow> {
        let at = Timestamp::from_micros(0);
        let row = |(place, level): (u64, &u32)| RunRow {
            run_no: 1,
            level: *level,
            events: place..place + 1,
            buckets: (at, at),
            checksum: 0,
        };
        (1..).zip(levels).map(row).collect()
    }

    #[test]
    fn eight_runs_of_a_level_are_merged() {
        assert_eq!(next_merge(&runs(&[])), None);
        assert_eq!(next_merge(&runs(&[1, 0, 0, 0, 0, 0, 0, 0])), None);
        assert_eq!(next_merge(&runs(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0])), Some(1..9));
        assert_eq!(next_merge(&runs(&[1; 8])), Some(0..8));
    }

    #[test]
    fn runs_of_too_many_events_stay_apart() {
        let mut large = runs(&[3; 8]);
        large[7].events.end += RUN_EVENTS_MAX;
        assert_eq!(next_merge(&large), None);
    }

    #[test]
    fn a_start_without_enough_memory_is_refused() {
        assert!(require_memory(10, None).is_ok());
        assert!(require_memory(10, Some(10)).is_ok());
        let refused = require_memory(700 << 20, Some(600 << 20));
        let said = refused.expect_err("too little").to_string();
        assert!(said.contains("need 700 MiB") && said.contains("600 MiB"), "{said}");
        assert!(available_memory().is_some(), "Linux tells");
    }
}
