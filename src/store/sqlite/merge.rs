//! Merging: eight adjacent runs of one level become one run of the next, on a thread of its own.
//!
//! A merge is: the new run's key file, made durable; its totals, written in pieces under a number
//! that no row of `runs` names yet; then one transaction in which the new run takes the place of
//! the old ones; then memory; then the old files and blocks are deleted. Runs never change, so each
//! block is read afresh and no long read transaction holds the log.
//!
//! What a crash leaves: before that one transaction, a file and blocks that no run names; after it,
//! those of the old runs. Both are deleted at the next start. Every total is in exactly the runs
//! that the table names, at every commit.
//!
//! A merge that fails fails nothing else: runs stay as they are, and reads look at more of them. If
//! stored data cannot be read, merging stops until the next start.

use super::Shared;
use super::run_file::merge_files;
use super::runs::{Run, RunRow, delete_file, insert_run, next_merge, path_of, read_runs};
use super::statements::Statements;
use super::total_blocks::{
    BlockBuilder, NewBlock, RecordReader, TotalPart, TotalRecord, delete_blocks, insert_blocks,
};
use super::writer::StopOnPanic;
use crate::faults::crash_point;
use crate::rules::rollup::RollupKey;
use crate::store::throttle::Throttle;
use crate::store::{Error, Result};
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the merger sleeps while nobody wakes it.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// Blocks that one transaction writes or deletes, so that folding does not wait for a whole merge.
const PIECE_BLOCKS: usize = 64;

/// The thread that merges.
pub struct Merger {
    pub shared: Arc<Shared>,
    /// To ledger.db alone.
    pub connection: Connection,
    pub directory: PathBuf,
    /// The first number that was given since the store was opened.
    pub first_run_no: i64,
    pub warnings: Throttle,
}

impl Merger {
    /// Works until the store is closed, or until stored data cannot be read.
    pub fn run(mut self) {
        let _guard = StopOnPanic;
        let mut swept = false;
        while !self.shared.closed.load(Ordering::Acquire) {
            match self.work(&mut swept) {
                Ok(()) => {}
                Err(error @ Error::Corrupt { .. }) => {
                    tracing::error!(%error, "runs are not merged any more; reads get slower");
                    return self.shared.note_fold_stopped(&error);
                }
                Err(error) => {
                    if let Some(left_out) = self.warnings.admit() {
                        tracing::warn!(%error, left_out, "could not merge runs; trying again");
                    }
                }
            }
            std::thread::park_timeout(IDLE_WAIT);
        }
    }

    fn work(&mut self, swept: &mut bool) -> Result<()> {
        if !*swept {
            self.sweep()?;
            *swept = true;
        }
        while self.merge_next()? {}
        Ok(())
    }

    /// Deletes totals that are no run's, which a crash left.
    pub fn sweep(&mut self) -> Result<()> {
        let runs = read_runs(&self.connection)?;
        let mut after = i64::MIN;
        loop {
            let next: Option<i64> = self.connection.read_one(
                "-- sweep\nSELECT min(run_no) FROM total_blocks WHERE run_no > ?",
                [after],
                |row| Ok(row.get(0)?),
            )?;
            let Some(run_no) = next else { return Ok(()) };
            // A later one is the folder's, which may have come after the runs were read.
            if run_no < self.first_run_no && !runs.iter().any(|run| run.run_no == run_no) {
                self.delete_totals(run_no)?;
            }
            after = run_no;
        }
    }

    /// Merges the runs that are due. Returns whether there were any.
    pub fn merge_next(&mut self) -> Result<bool> {
        let runs = Arc::clone(&self.shared.read_memory().runs);
        let rows: Vec<RunRow> = runs.iter().map(|run| run.row.clone()).collect();
        let Some(places) = next_merge(&rows) else { return Ok(false) };
        let (sources, rows) = (&runs[places.clone()], &rows[places]);
        let mut merged = self.merged_row(rows);
        let files: Vec<_> = sources.iter().map(|run| &run.file).collect();
        let file = match merge_files(&files, &path_of(&self.directory, merged.run_no)) {
            Err(error @ Error::Corrupt { .. }) => {
                let healed = self.shared.heal_runs(&self.connection, &self.directory)?;
                return if healed { Ok(true) } else { Err(error) };
            }
            merged => merged?,
        };
        merged.checksum = file.checksum();
        crash_point("sqlite.between_merged_keys_and_totals");
        let written = self.merge_totals(rows, merged.run_no);
        if let Err(error) = written.and_then(|()| self.swap(rows, &merged)) {
            // Or each try would leave its own part behind.
            self.delete_run(merged.run_no)?;
            return Err(error);
        }
        self.shared.write_memory().take_merge(Run { row: merged, file });
        rows.iter().try_for_each(|row| self.delete_run(row.run_no))?;
        Ok(true)
    }

    /// Deletes the file and the totals of a run, unless the table names it.
    fn delete_run(&mut self, run_no: i64) -> Result<()> {
        if delete_file(&self.connection, &self.directory, run_no)? {
            self.delete_totals(run_no)?;
        }
        Ok(())
    }

    /// The row of the merged run; its checksum follows from its file.
    fn merged_row(&self, rows: &[RunRow]) -> RunRow {
        let first = rows.iter().map(|row| row.buckets.0).min();
        let last = rows.iter().map(|row| row.buckets.1).max();
        let (start, end) = (rows.first().map(|row| row.events.start), rows.last());
        RunRow {
            run_no: self.shared.next_run_no.fetch_add(1, Ordering::Relaxed),
            level: rows.iter().map(|row| row.level).max().unwrap_or(0) + 1,
            events: start.unwrap_or(0)..end.map_or(0, |row| row.events.end),
            buckets: first.zip(last).expect("a merge has runs"),
            checksum: 0,
        }
    }

    /// The new run takes the place of the old ones.
    fn swap(&mut self, old: &[RunRow], merged: &RunRow) -> Result<()> {
        self.transact(|connection| {
            for row in old {
                connection.run("-- swap\nDELETE FROM runs WHERE run_no = ?", [row.run_no])?;
            }
            insert_run(connection, merged)?;
            crash_point("sqlite.before_merge_commit");
            Ok(())
        })?;
        crash_point("sqlite.after_merge_commit");
        Ok(())
    }

    fn merge_totals(&self, runs: &[RunRow], run_no: i64) -> Result<()> {
        let open = |run: &RunRow| Source::open(&self.connection, run.run_no);
        let mut sources: Vec<Source<'_>> = runs.iter().map(open).collect::<Result<_>>()?;
        let mut builder = BlockBuilder::default();
        while let Some(record) = next_record(&mut sources)? {
            builder.push_record(&record);
            if builder.full_blocks() == PIECE_BLOCKS {
                self.write_piece(run_no, &builder.take_full())?;
            }
        }
        self.write_piece(run_no, &builder.finish())
    }

    fn write_piece(&self, run_no: i64, blocks: &[NewBlock]) -> Result<()> {
        self.transact(|connection| insert_blocks(connection, run_no, blocks))?;
        std::thread::yield_now();
        Ok(())
    }

    /// Deletes the totals of a run that is not in use, a few at a time.
    fn delete_totals(&self, run_no: i64) -> Result<()> {
        while self.transact(|connection| delete_blocks(connection, run_no, PIECE_BLOCKS))? > 0 {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn transact<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let outcome = work(&self.connection).and_then(|value| {
            self.connection.execute_batch("COMMIT")?;
            Ok(value)
        });
        if outcome.is_err() && !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        outcome
    }
}

/// A run that is being merged, and its next record.
struct Source<'c> {
    reader: RecordReader<'c>,
    next: Option<TotalRecord>,
}

impl<'c> Source<'c> {
    fn open(connection: &'c Connection, run_no: i64) -> Result<Self> {
        let mut source = Self { reader: RecordReader::all(connection, run_no), next: None };
        source.take()?;
        Ok(source)
    }

    fn place(&self) -> Option<(&RollupKey, Option<&str>)> {
        self.next.as_ref().map(TotalRecord::place)
    }

    /// Takes the next record and reads the one after it.
    fn take(&mut self) -> Result<Option<TotalRecord>> {
        let after = self.reader.next()?;
        Ok(std::mem::replace(&mut self.next, after))
    }
}

/// The next record of all sources together, those of one place added up.
fn next_record(sources: &mut [Source<'_>]) -> Result<Option<TotalRecord>> {
    let waiting = sources.iter_mut().filter(|source| source.next.is_some());
    let least = waiting.min_by(|a, b| a.place().cmp(&b.place()));
    let Some(least) = least else { return Ok(None) };
    let Some(mut sum) = least.take()? else { return Ok(None) };
    for source in sources {
        if source.place() == Some(sum.place()) {
            let same = source.take()?;
            same.map_or(Ok(()), |same| add(&mut sum, &same))?;
        }
    }
    Ok(Some(sum))
}

/// Adds the record of the same place in another run.
fn add(sum: &mut TotalRecord, record: &TotalRecord) -> Result<()> {
    match (&mut sum.part, &record.part) {
        (TotalPart::Total(sum), TotalPart::Total(total)) => sum.fold(total).map_err(|error| {
            Error::Corrupt { what: format!("total_blocks: {error} ({:?})", record.key) }
        }),
        // One value twice is that value.
        (TotalPart::Value(_) | TotalPart::Total(_), _) => Ok(()),
    }
}
