//! Merging: eight adjacent runs of one level become one run of the next, on a thread of its own.
//!
//! A merge is: the new run's key file, made durable; its totals, written in pieces under a number
//! that no row of `runs` names yet; then one transaction in which the new run takes the place of
//! the old ones; then memory; then the old files and rows are deleted. Runs never change, so each
//! piece is read afresh and no long read transaction holds the log.
//!
//! What a crash leaves: before that one transaction, a file and rows that no run names; after it,
//! those of the old runs. Both are deleted at the next start. Every total is in exactly the runs
//! that the table names, at every commit.
//!
//! A merge that fails fails nothing else: runs stay as they are, and reads look at more of them.

use super::rollups::aggregation_of;
use super::run_file::merge_files;
use super::runs::{Run, RunRow, insert_run, next_merge, path_of, read_runs};
use super::segment::overflow;
use super::statements::Statements;
use super::writer::StopOnPanic;
use super::{Shared, corrupt, damaged};
use crate::faults::crash_point;
use crate::rules::ids::MeterNo;
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::quantity::Quantity;
use crate::store::throttle::Throttle;
use crate::store::{Error, Result};
use rusqlite::{Connection, Row, params};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the merger sleeps while nobody wakes it.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// Rows of each run that one piece reads.
const PIECE_ROWS: usize = 2_048;
/// Rows of an old run that one transaction deletes.
const DELETED_ROWS: usize = 8_192;

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
    /// Works until the store is closed.
    pub fn run(mut self) {
        let _guard = StopOnPanic;
        let mut swept = false;
        while !self.shared.closed.load(Ordering::Acquire) {
            if let Err(error) = self.work(&mut swept) {
                self.note_failure(&error);
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

    fn note_failure(&self, error: &Error) {
        if let Error::Corrupt { .. } = error {
            self.shared.note_fold_stopped(error);
        }
        if let Some(left_out) = self.warnings.admit() {
            tracing::warn!(%error, left_out, "could not merge runs; trying again");
        }
    }

    /// Deletes totals that are no run's, which a crash left.
    pub fn sweep(&mut self) -> Result<()> {
        let runs = read_runs(&self.connection)?;
        let mut after = i64::MIN;
        loop {
            let next: Option<i64> = self.connection.read_one(
                "-- sweep\nSELECT min(run_no) FROM rollups WHERE run_no > ?",
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
        let (runs, catalog) = {
            let memory = self.shared.read_memory();
            (Arc::clone(&memory.runs), Arc::clone(&memory.catalog))
        };
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
        let written = self.merge_totals(rows, merged.run_no, &catalog);
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
        if read_runs(&self.connection)?.iter().any(|run| run.run_no == run_no) {
            return Ok(());
        }
        // A file that stays is deleted at the next start.
        let _ = std::fs::remove_file(path_of(&self.directory, run_no));
        self.delete_totals(run_no)
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

    fn merge_totals(&mut self, runs: &[RunRow], run_no: i64, catalog: &Catalog) -> Result<()> {
        let mut after = TotalKey::before_all();
        loop {
            let piece = read_piece(&self.connection, runs, &after, catalog)?;
            let Some((last, _)) = piece.last() else { return Ok(()) };
            after = last.clone();
            self.transact(|connection| {
                piece.iter().try_for_each(|(key, row)| insert_row(connection, run_no, key, row))
            })?;
            std::thread::yield_now();
        }
    }

    /// Deletes the totals of a run that is not in use, a few at a time.
    fn delete_totals(&mut self, run_no: i64) -> Result<()> {
        loop {
            let end = self.connection.read_optional(
                "-- delete_totals
                 SELECT tenant_no, meter_no, bucket_start, grp, value, 0, NULL, NULL, NULL
                 FROM rollups WHERE run_no = ?
                 ORDER BY tenant_no, meter_no, bucket_start, grp, value LIMIT 1 OFFSET ?",
                params![run_no, DELETED_ROWS],
                decode_row,
            )?;
            let Some((TotalKey { tenant, meter, bucket, group, value }, _)) = end else {
                let sql = "-- delete_totals\nDELETE FROM rollups WHERE run_no = ?";
                return self.transact(|connection| connection.run(sql, [run_no]).map(drop));
            };
            self.transact(|connection| {
                connection.run(
                    "-- delete_totals
                     DELETE FROM rollups WHERE run_no = ?
                         AND (tenant_no, meter_no, bucket_start, grp, value) < (?, ?, ?, ?, ?)",
                    params![run_no, tenant, meter, bucket, group, value],
                )
            })?;
            std::thread::yield_now();
        }
    }

    fn transact<T>(&mut self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
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

/// The key of a row of `rollups` within its run, in the table's order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TotalKey {
    tenant: i64,
    meter: u16,
    bucket: i64,
    group: String,
    value: String,
}

impl TotalKey {
    fn before_all() -> Self {
        Self { tenant: -1, meter: 0, bucket: 0, group: String::new(), value: String::new() }
    }
}

/// The rest of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TotalRow {
    count: u64,
    total: Option<String>,
    latest: Option<(i64, String)>,
}

/// The next totals of all runs together, those of one key added up. Ends where a run may have more
/// rows than were read of it.
fn read_piece(
    connection: &Connection,
    runs: &[RunRow],
    after: &TotalKey,
    catalog: &Catalog,
) -> Result<Vec<(TotalKey, TotalRow)>> {
    let mut rows: Vec<(TotalKey, TotalRow)> = Vec::new();
    let mut end: Option<TotalKey> = None;
    for run in runs {
        let read = read_rows(connection, run.run_no, after)?;
        if read.len() == PIECE_ROWS {
            let last = read.last().map(|(key, _)| key.clone());
            end = end.into_iter().chain(last).min();
        }
        rows.extend(read);
    }
    // The rows of each run are sorted, which a stable sort makes use of.
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(end) = end {
        rows.truncate(rows.partition_point(|(key, _)| *key <= end));
    }
    let mut piece: Vec<(TotalKey, TotalRow)> = Vec::with_capacity(rows.len());
    for (key, row) in rows {
        match piece.last_mut().filter(|(last, _)| *last == key) {
            None => piece.push((key, row)),
            Some((_, total)) => {
                let aggregation = aggregation_of(MeterNo(key.meter), catalog)?;
                total.add(row, aggregation).map_err(|error| name_row(error, &key))?;
            }
        }
    }
    Ok(piece)
}

fn read_rows(
    connection: &Connection,
    run_no: i64,
    after: &TotalKey,
) -> Result<Vec<(TotalKey, TotalRow)>> {
    let TotalKey { tenant, meter, bucket, group, value } = after;
    connection.read_all(
        "-- read_rows
         SELECT tenant_no, meter_no, bucket_start, grp, value, count, total, latest_at, latest_id
         FROM rollups
         WHERE run_no = ? AND (tenant_no, meter_no, bucket_start, grp, value) > (?, ?, ?, ?, ?)
         ORDER BY tenant_no, meter_no, bucket_start, grp, value LIMIT ?",
        params![run_no, tenant, meter, bucket, group, value, PIECE_ROWS],
        decode_row,
    )
}

fn decode_row(row: &Row<'_>) -> Result<(TotalKey, TotalRow)> {
    let key = TotalKey {
        tenant: row.get(0)?,
        meter: row.get(1)?,
        bucket: row.get(2)?,
        group: row.get(3)?,
        value: row.get(4)?,
    };
    let latest: (Option<i64>, Option<String>) = (row.get(7)?, row.get(8)?);
    let (count, total) = (row.get(5)?, row.get(6)?);
    Ok((key, TotalRow { count, total, latest: latest.0.zip(latest.1) }))
}

fn insert_row(connection: &Connection, run_no: i64, key: &TotalKey, row: &TotalRow) -> Result<()> {
    let TotalKey { tenant, meter, bucket, group, value } = key;
    let (at, id) = row.latest.as_ref().map(|(at, id)| (*at, id.as_str())).unzip();
    connection.run(
        "-- insert_row
         INSERT INTO rollups (run_no, tenant_no, meter_no, bucket_start, grp, value, count, total,
                              latest_at, latest_id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![run_no, tenant, meter, bucket, group, value, row.count, row.total, at, id],
    )?;
    Ok(())
}

impl TotalRow {
    /// Adds the row of the same key in another run.
    fn add(&mut self, other: Self, aggregation: Aggregation) -> Result<()> {
        self.count = self.count.checked_add(other.count).ok_or_else(overflow)?;
        let read = |text: &Option<String>| -> Result<Quantity> {
            let text = text.as_deref().ok_or_else(|| corrupt("rollups.total"))?;
            Quantity::parse_stored(text).ok_or_else(|| damaged("rollups.total", text))
        };
        match aggregation {
            Aggregation::Count | Aggregation::Unique => {}
            Aggregation::Sum => {
                let sum = read(&self.total)?.checked_add(read(&other.total)?);
                self.total = Some(sum.ok_or_else(overflow)?.to_string());
            }
            Aggregation::Min => {
                let least = read(&self.total)?.min(read(&other.total)?);
                self.total = Some(least.to_string());
            }
            Aggregation::Max => {
                let most = read(&self.total)?.max(read(&other.total)?);
                self.total = Some(most.to_string());
            }
            Aggregation::Latest => {
                read(&self.total)?;
                read(&other.total)?;
                if self.latest.is_none() || other.latest.is_none() {
                    return Err(corrupt("rollups.latest_at"));
                }
                if other.latest > self.latest {
                    (self.total, self.latest) = (other.total, other.latest);
                }
            }
        }
        Ok(())
    }
}

/// Says which row is damaged.
fn name_row(error: Error, key: &TotalKey) -> Error {
    match error {
        Error::Corrupt { what } => {
            let TotalKey { tenant, meter, bucket, group, .. } = key;
            let row = format!("tenant_no {tenant}, meter_no {meter}, {bucket}, {group:?}");
            Error::Corrupt { what: format!("{what} (rollups: {row})") }
        }
        error @ (Error::Unavailable { .. }
        | Error::Overdue { .. }
        | Error::TooLarge { .. }
        | Error::Unknown { .. }
        | Error::Internal { .. }) => error,
    }
}
