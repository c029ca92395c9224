//! Folding: a sealed segment becomes rows of the ledger, on a thread of its own, beside commits.
//!
//! A fold is: the run file with the segment's keys, made durable; then one transaction of ledger.db
//! with the event blocks, ranges, totals, counters, the run's row and the mark of progress; then
//! memory. Journal rows of the segment are garbage from then on, and the writer deletes them.
//!
//! What a crash leaves: before the transaction's COMMIT returns, nothing but a file that no run
//! names, and the segment is rebuilt from the journal and folded again. After it, all of it. The
//! mark is in the same transaction, so no event is folded twice.
//!
//! A fold that fails fails no commit: the segment stays in memory and in the journal. If a write
//! failed, such as on a full disk, the fold is tried again. If stored data cannot be read, folding
//! stops until the next start. Commits wait for a folder that falls behind ([`Backlog`]).

use super::counter_blocks::add_counters;
use super::event_blocks::BlockWriter;
use super::event_ranges::{insert_ranges, ranges_of};
use super::run_file::{KeyRecord, RunWriter};
use super::runs::{Run, RunRow, delete_file, insert_run, path_of};
use super::segment::{FoldPlan, Segment};
use super::statements::Statements;
use super::total_blocks::{BlockBuilder, insert_blocks};
use super::writer::StopOnPanic;
use super::{Shared, checkpoint};
use crate::faults::{crash_point, planted};
use crate::rules::rollup::Rollup;
use crate::rules::timestamp::Timestamp;
use crate::store::throttle::Throttle;
use crate::store::{Error, Result};
use rusqlite::{Connection, params};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long folding waits after a write failed.
const RETRY_WAIT: Duration = Duration::from_millis(250);
/// Events after which a fold tells that it goes on.
const PROGRESS_EVENTS: usize = 512;

/// The row of `fold_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldState {
    /// The first segment that is not folded.
    pub segment_no: u32,
    pub next_event_no: u64,
    pub folded_seq: i64,
    pub high_water: Timestamp,
}

/// Work for the folder.
pub enum FoldJob {
    /// A segment was sealed.
    Fold,
    /// Anything else that writes to the ledger; it answers by itself.
    Work(Box<dyn FnOnce(&mut Folder) + Send>),
}

/// The thread that folds.
pub struct Folder {
    pub shared: Arc<Shared>,
    /// To ledger.db alone.
    pub connection: Connection,
    pub directory: PathBuf,
    pub state: FoldState,
    pub stopped: bool,
    pub warnings: Throttle,
}

impl Folder {
    /// Works until the writer is gone.
    pub fn run(mut self, jobs: &Receiver<FoldJob>) {
        let _guard = StopOnPanic;
        loop {
            match jobs.recv_timeout(RETRY_WAIT) {
                Ok(FoldJob::Work(work)) => work(&mut self),
                Ok(FoldJob::Fold) | Err(RecvTimeoutError::Timeout) => self.fold_what_is_sealed(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Folds as long as there is something to fold and the store is open.
    fn fold_what_is_sealed(&mut self) {
        while !self.stopped && !self.shared.closed.load(Ordering::Acquire) {
            match self.fold_next() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.note_failure(&error),
            }
        }
    }

    /// Folds all that is sealed, or says why not.
    pub fn fold_sealed(&mut self) -> Result<()> {
        while self.fold_next()? {}
        Ok(())
    }

    /// Folds the oldest sealed segment. Returns whether there was one.
    pub fn fold_next(&mut self) -> Result<bool> {
        let Some(segment) = self.shared.read_memory().sealed.front().cloned() else {
            return Ok(false);
        };
        let mut done = 0;
        let folded = self.fold_segment(&segment, &mut done);
        if folded.is_err() {
            self.shared.backlog.add(done);
        } else {
            self.shared.backlog.subtract(segment.len() - done);
            self.shared.fold_paused.store(false, Ordering::Release);
        }
        folded?;
        checkpoint::look_after_fold(&self.connection)?;
        Ok(true)
    }

    fn fold_segment(&mut self, segment: &Segment, done: &mut usize) -> Result<()> {
        let plan = segment.plan_fold();
        let first_no = self.state.next_event_no;
        let count = u64::try_from(segment.len()).expect("a length fits 64 bits");
        let run = match count {
            0 => None,
            _ => Some(self.write_run(segment, &plan, first_no..first_no + count)?),
        };
        let state = FoldState {
            segment_no: segment.number + 1,
            next_event_no: first_no + count,
            folded_seq: segment.last_seq,
            high_water: self.state.high_water.max(segment.last_received_at),
        };
        let folded = self.transact(|folder| {
            folder.write_events(segment, &plan, first_no, done)?;
            folder.write_totals(&plan, run.as_ref().map(|run| &run.row))?;
            write_state(&folder.connection, &state)
        });
        if let (Err(error), Some(run)) = (&folded, &run) {
            // Or each try would leave its own file behind, until the disk is full.
            if let Err(also) = delete_file(&self.connection, &self.directory, run.row.run_no) {
                tracing::warn!(%error, %also, "a fold failed, and so did removing its key run");
            }
        }
        folded?;
        self.shared.write_memory().take_fold(run);
        self.shared.folded_seq.store(state.folded_seq, Ordering::Release);
        self.state = state;
        self.shared.wake_merger();
        Ok(())
    }

    /// Makes the segment's keys durable in a file of their own.
    fn write_run(&self, segment: &Segment, plan: &FoldPlan<'_>, events: Range<u64>) -> Result<Run> {
        let run_no = self.shared.next_run_no.fetch_add(1, Ordering::Relaxed);
        let record =
            |(place, arrival): (u32, &u32)| KeyRecord::new(segment.entry(*arrival).hash, place);
        let mut records: Vec<KeyRecord> = (0..).zip(&plan.order).map(record).collect();
        records.sort_unstable();
        let path = path_of(&self.directory, run_no);
        let mut writer = RunWriter::create(&path, events.clone())?;
        records.into_iter().try_for_each(|record| writer.push(record))?;
        let file = writer.finish()?;
        if planted("bug.run_visible_before_durable") {
            // As if its bytes and its name were not on the disk yet when the process ends.
            let _ = std::fs::remove_file(&path);
        }
        let buckets = || plan.rollups.iter().map(|(key, _)| key.bucket_start);
        let buckets = buckets().min().zip(buckets().max()).expect("events have totals");
        let row = RunRow { run_no, level: 0, events, buckets, checksum: file.checksum() };
        Ok(Run { row, file })
    }

    fn write_events(
        &self,
        segment: &Segment,
        plan: &FoldPlan<'_>,
        first_no: u64,
        done: &mut usize,
    ) -> Result<()> {
        let mut blocks = BlockWriter::new(&self.connection, first_no);
        for places in plan.order.chunks(PROGRESS_EVENTS) {
            for place in places {
                blocks.push(segment, *place)?;
            }
            *done += places.len();
            self.shared.backlog.subtract(places.len());
            // A low priority would be wrong: commits wait for the folder where it falls behind.
            std::thread::yield_now();
        }
        blocks.finish()?;
        let ranges = ranges_of(segment, plan, first_no);
        let end_no = ranges.last().map_or(first_no, |range| range.numbers.end);
        let first_at = ranges.iter().map(|range| range.first_at.micros()).min();
        let last_at = ranges.iter().map(|range| range.last_at.micros()).max();
        insert_ranges(&self.connection, segment.number, &ranges)?;
        self.connection.run(
            "-- write_events
             INSERT INTO segments (segment_no, first_no, end_no, first_at, last_at)
             VALUES (?, ?, ?, ?, ?)",
            params![segment.number, first_no, end_no, first_at, last_at],
        )?;
        Ok(())
    }

    fn write_totals(&self, plan: &FoldPlan<'_>, run: Option<&RunRow>) -> Result<()> {
        if let Some(run) = run {
            insert_run(&self.connection, run)?;
            let mut builder = BlockBuilder::default();
            if planted("bug.total_loses_an_event") {
                push_one_event_less(&mut builder, plan);
            } else {
                plan.rollups.iter().for_each(|(key, total)| builder.push_total(key, total));
            }
            insert_blocks(&self.connection, run.run_no, &builder.finish())?;
        }
        if planted("bug.rollup_outside_transaction") {
            self.connection.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
        }
        let mut counters = plan.counters.clone();
        if planted("bug.counter_off_by_one")
            && let Some((_, tally)) = counters.first_mut()
        {
            tally.accepted += 1;
        }
        add_counters(&self.connection, &counters)
    }

    /// Runs `work` in one transaction of the ledger, durable when this returns Ok.
    fn transact(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let outcome = work(self).and_then(|()| {
            crash_point("sqlite.before_fold_commit");
            if planted("sqlite.fold_fails") {
                return Err(Error::Unavailable { what: "planted".into() });
            }
            self.connection.execute_batch("COMMIT")?;
            crash_point("sqlite.after_fold_commit");
            Ok(())
        });
        if outcome.is_err() && !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        outcome
    }

    fn note_failure(&mut self, error: &Error) {
        self.shared.fold_paused.store(true, Ordering::Release);
        if let Error::Unavailable { .. } = error {
            if let Some(left_out) = self.warnings.admit() {
                tracing::warn!(%error, left_out, "could not fold; trying again");
            }
            return;
        }
        self.stopped = true;
        self.shared.note_fold_stopped(error);
        tracing::error!(
            %error,
            "events are not folded any more; they count and stay in the journal, up to a bound; \
             see fold_stopped in docs/operating.md"
        );
    }

    /// Lowers the latest moment that was recorded.
    pub fn lower_high_water(&mut self, now: Timestamp) -> Result<()> {
        let state = FoldState { high_water: now, ..self.state };
        self.transact(|folder| write_state(&folder.connection, &state))?;
        self.state = state;
        Ok(())
    }
}

/// A planted bug: the first total counts one event less than it has.
fn push_one_event_less(builder: &mut BlockBuilder, plan: &FoldPlan<'_>) {
    for (place, (key, total)) in plan.rollups.iter().enumerate() {
        let count = total.count.saturating_sub(u64::from(place == 0));
        builder.push_total(key, &Rollup { count, value: total.value.clone() });
    }
}

/// Events that are sealed and not folded, for commits that must wait for the folder. It counts
/// while a segment is being folded, so that nobody waits for a whole segment.
#[derive(Default)]
pub struct Backlog {
    events: Mutex<usize>,
    fewer: Condvar,
}

impl Backlog {
    pub fn add(&self, events: usize) {
        *self.events.lock().expect("no holder panics") += events;
    }

    fn subtract(&self, events: usize) {
        *self.events.lock().expect("no holder panics") -= events;
        self.fewer.notify_all();
    }

    pub fn events(&self) -> usize {
        *self.events.lock().expect("no holder panics")
    }

    /// Waits until there are fewer than `limit`, or for `time`.
    pub fn wait(&self, limit: usize, time: Duration) {
        let events = self.events.lock().expect("no holder panics");
        let waited = self.fewer.wait_timeout_while(events, time, |events| *events >= limit);
        drop(waited.expect("no holder panics"));
    }
}

pub fn read_state(connection: &Connection) -> Result<FoldState> {
    connection.read_one(
        "-- read_state
         SELECT segment_no, next_event_no, folded_seq, high_water FROM fold_state",
        [],
        |row| {
            Ok(FoldState {
                segment_no: row.get(0)?,
                next_event_no: row.get(1)?,
                folded_seq: row.get(2)?,
                high_water: Timestamp::from_micros(row.get(3)?),
            })
        },
    )
}

fn write_state(connection: &Connection, state: &FoldState) -> Result<()> {
    let FoldState { segment_no, next_event_no, folded_seq, high_water } = state;
    let changed = connection.run(
        "-- write_state
         UPDATE fold_state SET segment_no = ?, next_event_no = ?, folded_seq = ?, high_water = ?",
        params![segment_no, next_event_no, folded_seq, high_water.micros()],
    )?;
    if changed == 1 { Ok(()) } else { Err(Error::Corrupt { what: "fold_state has no row".into() }) }
}
