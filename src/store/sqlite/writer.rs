//! The writer: one thread that owns the one connection which writes.
//!
//! A commit is: judge the batch against memory and tables; one transaction with the journal row,
//! new tenants, inbox rows and a few fold steps; COMMIT, which syncs the disk; then memory, then
//! the answer.
//!
//! What a crash leaves: before COMMIT returns, nothing or all of the transaction, and nobody was
//! answered, so the sender tries again and gets accepted or duplicate, whichever is true. After
//! it, all of it. If COMMIT fails, memory was not touched and the batch never happened. If the disk
//! cannot sync, nobody knows what it holds: the process stops and recovers at the next start.
//!
//! Folding never fails a commit: if it cannot go on, the same batch is written again without it.
//! Where stored data cannot be read, folding stops until the next start, and the journal grows up
//! to a bound. Where a write failed, such as on a full disk, it waits for a checkpoint.

use super::day_groups::insert_groups;
use super::fold::{FoldState, Folded, delete_folded_journal, fold_steps};
use super::inbox::{record_conflict, record_quarantine};
use super::judge::{JudgedBatch, judge_batch};
use super::keys::Location;
use super::planner::PendingPlan;
use super::record::write_journal;
use super::segment::{CommitParts, NewEntry};
use super::statements::Statements;
use super::{Shared, declarations, sql_error};
use crate::config::SqliteConfig;
use crate::faults::{crash_point, planted};
use crate::rules::ids::TenantId;
use crate::rules::meter::Meter;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Verdict;
use crate::store::groups::KnownGroups;
use crate::store::sql::{declare_meter, put_tenant};
use crate::store::throttle::Throttle;
use crate::store::{Declaration, DeliveryBatch, Error, Result, TenantFields, TenantPut};
use rusqlite::{Connection, params};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the writer waits for work before it folds on its own.
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Fold steps of a commit beyond its share, so that folding also ends on duplicates alone.
const FOLD_STEPS_MIN: usize = 16;
/// Most fold steps of a commit for each event it accepts; a segment has two or three in all.
const FOLD_STEPS_PER_EVENT_MAX: usize = 4;
/// Fold steps of one commit while there is nothing else to do.
const FOLD_STEPS_IDLE: usize = 4096;

/// Segments' worth of events that the journal takes while folding is stopped.
const JOURNAL_SEGMENTS_MAX: usize = 16;

/// Work for the writer.
pub enum Job {
    Record {
        batch: DeliveryBatch,
        reply: oneshot::Sender<Result<Vec<Verdict>>>,
    },
    /// Any other write; it answers by itself.
    Write(Box<dyn FnOnce(&mut Writer) + Send>),
    Stop,
}

pub struct Writer {
    pub shared: Arc<Shared>,
    pub connection: Connection,
    pub settings: SqliteConfig,
    pub fold: FoldState,
    pub next_seq: i64,
    /// Whether folded journal rows are still to be deleted.
    pub journal_garbage: bool,
    pub open_since: Option<Instant>,
    /// Of the sealed segment.
    pub plan: Option<PendingPlan>,
    /// Stored data cannot be read, so nothing is folded until the next start.
    pub fold_stopped: bool,
    pub fold_warnings: Throttle,
    pub known_groups: KnownGroups,
}

impl Writer {
    /// Works until it is stopped or every caller is gone.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        let _guard = StopOnPanic;
        loop {
            match jobs.recv_timeout(IDLE_WAIT) {
                Ok(Job::Record { batch, reply }) => self.answer(batch, reply),
                Ok(Job::Write(write)) => write(&mut self),
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.work_while_idle(),
            }
        }
    }

    fn answer(&mut self, batch: DeliveryBatch, reply: oneshot::Sender<Result<Vec<Verdict>>>) {
        if planted("bug.ack_before_commit") {
            let received_at = batch.acceptance.now;
            if let Ok(judged) = self.judge(batch) {
                let _ = reply.send(Ok(judged.verdicts.clone()));
                std::thread::sleep(Duration::from_millis(20));
                let _ = self.commit(judged, received_at);
            }
            return;
        }
        // A waiter that went away does not undo what was counted.
        let _ = reply.send(self.record(batch));
    }

    pub fn record(&mut self, batch: DeliveryBatch) -> Result<Vec<Verdict>> {
        let received_at = batch.acceptance.now;
        let judged = self.judge(batch)?;
        if planted("bug.claim_before_write") {
            let mut index = self.shared.write_keys();
            for (hash, location) in self.locate(&judged.entries) {
                index.insert(hash, location);
            }
        }
        self.commit(judged, received_at)
    }

    fn judge(&mut self, batch: DeliveryBatch) -> Result<JudgedBatch> {
        let Self { shared, connection, known_groups, .. } = self;
        let keys = shared.read_keys();
        let memory = shared.read_memory();
        judge_batch(&keys, &memory, connection, &shared.fingerprinter, known_groups, batch)
    }

    fn commit(&mut self, judged: JudgedBatch, received_at: Timestamp) -> Result<Vec<Verdict>> {
        if judged.verdicts.is_empty() && judged.counters.is_empty() {
            return Ok(Vec::new());
        }
        self.refuse_if_journal_is_full()?;
        let seq = self.next_seq;
        let body = write_journal(&judged.counters, judged.entries.len(), &judged.events);
        let steps = self.fold_steps_for(judged.entries.len());
        let shared = Arc::clone(&self.shared);
        let (catalog, keys) = (Arc::clone(&shared.read_memory().catalog), &shared.fingerprinter);
        let folded = self.write_and_fold(steps, |connection| {
            for (number, tenant) in &judged.new_tenants {
                declarations::insert_tenant(connection, *number, tenant, received_at)?;
            }
            connection.run(
                "-- commit\nINSERT INTO journal (seq, received_at, body) VALUES (?, ?, ?)",
                params![seq, received_at.micros(), body],
            )?;
            insert_groups(connection, &judged.new_groups)?;
            for conflict in &judged.conflicts {
                record_conflict(connection, &catalog, keys, conflict, received_at)?;
            }
            for quarantined in &judged.quarantined {
                record_quarantine(connection, &catalog, keys, quarantined, received_at)?;
            }
            Ok(())
        })?;
        self.next_seq += 1;
        self.open_since.get_or_insert_with(Instant::now);
        let JudgedBatch { verdicts, events, entries, contributions, counters, new_groups, .. } =
            judged;
        self.known_groups.take_over(new_groups);
        let events = events.into_boxed_slice();
        let keys = self.locate(&entries);
        let parts = CommitParts { seq, received_at, events, entries, contributions, counters };
        // Both at once: a trace that finds the journal row in memory must find the key as well.
        let mut index = self.shared.write_keys();
        let mut memory = self.shared.write_memory();
        for (number, tenant) in judged.new_tenants {
            memory.tenants.insert(number, tenant);
        }
        let appended = memory.open.append(parts);
        drop(memory);
        if appended.is_err() || planted("sqlite.append_fails") {
            // The commit is durable and memory is not what it says: nothing may be judged by it.
            crate::store::stop_process("a commit could not be taken over in memory; start again");
        }
        for (hash, location) in keys {
            index.insert(hash, location);
        }
        drop(index);
        self.take_over(folded);
        self.close_segment_if_due();
        self.checkpoint_if_due();
        Ok(verdicts)
    }

    /// Where the open segment will hold these events.
    fn locate(&self, entries: &[NewEntry]) -> Vec<(u64, Location)> {
        let memory = self.shared.read_memory();
        let (segment, first) = (memory.open.number, memory.open.len());
        let location = |place: usize| {
            let place = u32::try_from(place).expect("a segment has fewer than 2^32 events");
            Location::Unfolded { segment, place }
        };
        entries.iter().zip(first..).map(|(entry, place)| (entry.hash, location(place))).collect()
    }

    /// Runs `write` in one transaction, with some folding. If folding cannot go on, `write` runs
    /// again in a transaction of its own.
    fn write_and_fold(
        &mut self,
        steps: usize,
        write: impl Fn(&Connection) -> Result<()>,
    ) -> Result<Option<Folded>> {
        if self.may_fold() {
            let mut folding = false;
            let outcome = self.transact(|writer| {
                write(&writer.connection)?;
                folding = true;
                let folded = writer.fold_some(steps)?;
                folding = false;
                Ok(folded)
            });
            match outcome {
                Ok(folded) => return Ok(folded),
                Err(error @ Error::Unavailable { .. }) => self.note_failed_fold(&error),
                Err(error) if folding => self.note_failed_fold(&error),
                Err(error) => return Err(error),
            }
        }
        let written = self.transact(|writer| write(&writer.connection)).map(|()| None);
        if let Err(Error::Unavailable { .. }) = &written {
            self.shared.fold_paused.store(true, Ordering::Release);
        }
        written
    }

    /// Whether there is something to fold, and nothing against it.
    fn may_fold(&self) -> bool {
        let work = self.journal_garbage || self.shared.read_memory().folding.is_some();
        work && !self.fold_stopped && !self.shared.fold_paused.load(Ordering::Acquire)
    }

    fn note_failed_fold(&mut self, error: &Error) {
        if let Error::Unavailable { .. } = error {
            self.shared.fold_paused.store(true, Ordering::Release);
            if let Some(left_out) = self.fold_warnings.admit() {
                tracing::warn!(%error, left_out, "could not fold; trying again after a checkpoint");
            }
            return;
        }
        self.fold_stopped = true;
        *self.shared.fold_stopped.lock().expect("no holder panics") = Some(error.to_string());
        tracing::error!(
            %error,
            "events are not folded any more; they count and stay in the journal, up to {} of them; \
             see fold_stopped in docs/operating.md",
            self.journal_events_max()
        );
    }

    /// Most events of the open segment while folding is stopped.
    fn journal_events_max(&self) -> usize {
        self.settings.segment_events.saturating_mul(JOURNAL_SEGMENTS_MAX)
    }

    fn refuse_if_journal_is_full(&self) -> Result<()> {
        if !self.fold_stopped || self.shared.read_memory().open.len() < self.journal_events_max() {
            return Ok(());
        }
        let what = "folding is stopped and the journal is full; see fold_stopped in \
                    docs/operating.md";
        Err(Error::Unavailable { what: what.into() })
    }

    /// Folds a part of the closed segment inside the current transaction.
    fn fold_some(&self, steps: usize) -> Result<Option<Folded>> {
        if self.journal_garbage {
            delete_folded_journal(&self.connection, self.fold.folded_seq)?;
        }
        let (folding, catalog) = {
            let memory = self.shared.read_memory();
            (memory.folding.clone(), Arc::clone(&memory.catalog))
        };
        let Some(closed) = folding else { return Ok(None) };
        fold_steps(&self.connection, &closed, &catalog, self.fold, steps).map(Some)
    }

    /// Takes over in memory what a fold made durable.
    fn take_over(&mut self, folded: Option<Folded>) {
        let Some(Folded { state, moved, finished }) = folded else { return };
        let mut keys = self.shared.write_keys();
        for (hash, from, to) in moved {
            keys.relocate(hash, from, to);
        }
        drop(keys);
        if finished {
            self.shared.write_memory().folding = None;
            self.journal_garbage = true;
        }
        self.fold = state;
    }

    fn close_segment_if_due(&mut self) {
        let age_max = Duration::from_millis(self.settings.segment_age_max_ms);
        let old = self.open_since.is_some_and(|since| since.elapsed() >= age_max);
        let full = self.shared.read_memory().open.len() >= self.settings.segment_events;
        if full || old {
            self.seal_segment();
        }
        self.begin_fold_if_planned();
    }

    /// Ends the open segment, unless it is empty or the one before it is not folded yet.
    fn seal_segment(&mut self) {
        if !self.shared.read_memory().may_seal() {
            return;
        }
        let sealed = self.shared.write_memory().seal_open_segment();
        self.open_since = None;
        self.plan = Some(PendingPlan::start(sealed));
    }

    fn begin_fold_if_planned(&mut self) {
        if let Some(plan) = self.plan.as_ref().and_then(PendingPlan::poll) {
            self.plan = None;
            self.shared.write_memory().close_sealed_segment(plan);
        }
    }

    /// Fold steps that go with a commit of so many events: spread evenly, so that the segment is
    /// folded when the next one is full, and no commit waits for more than a few times its own.
    fn fold_steps_for(&self, accepted: usize) -> usize {
        let memory = self.shared.read_memory();
        let Some(closed) = &memory.folding else { return 0 };
        let left = closed.cost_left(self.fold.steps_done);
        let room = self.settings.segment_events.saturating_sub(memory.open.len()).max(1);
        let even = left.saturating_mul(accepted).div_ceil(room);
        even.min(accepted * FOLD_STEPS_PER_EVENT_MAX) + FOLD_STEPS_MIN
    }

    pub fn work_while_idle(&mut self) {
        self.close_segment_if_due();
        self.checkpoint_if_due();
        while self.may_fold() {
            let folded = self.transact(|writer| {
                // Delete more than a busy commit does: there is time now.
                for _ in 0..64 {
                    if !delete_folded_journal(&writer.connection, writer.fold.folded_seq)? {
                        return writer.fold_some(FOLD_STEPS_IDLE).map(|folded| (folded, true));
                    }
                }
                writer.fold_some(FOLD_STEPS_IDLE).map(|folded| (folded, false))
            });
            let (folded, journal_clean) = match folded {
                Ok(folded) => folded,
                Err(error) => return self.note_failed_fold(&error),
            };
            self.journal_garbage = !journal_clean;
            self.take_over(folded);
            self.checkpoint_if_due();
            if self.shared.jobs_waiting.load(Ordering::Relaxed) > 0 {
                return;
            }
        }
    }

    /// Folds all that was recorded, so that the journal holds nothing that is not in tables.
    pub fn fold_all(&mut self) -> Result<()> {
        loop {
            self.seal_segment();
            if let Some(pending) = self.plan.take() {
                self.shared.write_memory().close_sealed_segment(pending.wait());
            }
            if self.shared.read_memory().folding.is_none() {
                return Ok(());
            }
            let folded = self.transact(|writer| writer.fold_some(FOLD_STEPS_IDLE))?;
            self.take_over(folded);
        }
    }

    /// Ends the checkpoint that the checkpointer has nearly done: only what was written meanwhile
    /// is left, and then the log can start from its beginning.
    fn checkpoint_if_due(&self) {
        if self.shared.checkpoint_due.swap(false, Ordering::AcqRel)
            && let Err(error) = super::checkpoint::finish(&self.shared, &self.connection)
            && let Some(left_out) = self.fold_warnings.admit()
        {
            tracing::warn!(%error, left_out, "could not checkpoint; trying again later");
        }
    }

    /// Runs `work` in one transaction, durable when this returns Ok.
    fn transact<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.transact_at(&EVENTS, work)
    }

    pub fn transact_at<T>(
        &mut self,
        points: &CommitPoints,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.execute("BEGIN IMMEDIATE")?;
        let outcome = work(self).and_then(|value| {
            crash_point(points.before);
            if planted(points.fails) {
                return Err(Error::Unavailable { what: "planted".into() });
            }
            self.execute("COMMIT")?;
            crash_point(points.after);
            Ok(value)
        });
        if outcome.is_err() && !self.connection.is_autocommit() {
            self.execute("ROLLBACK")?;
        }
        outcome
    }

    fn execute(&self, sql: &str) -> Result<()> {
        let executed = self.connection.prepare_cached(sql).and_then(|mut s| s.execute([]));
        executed.map(|_| ()).map_err(sql_error)
    }

    pub fn declare_meter(&mut self, meter: &Meter, at: Timestamp) -> Result<Declaration<Meter>> {
        let outcome = self.write_session(&EVENTS, |session| declare_meter(session, meter, at))?;
        let catalog = declarations::load_catalog(&self.connection)?;
        self.shared.write_memory().catalog = Arc::new(catalog);
        Ok(outcome)
    }

    pub fn put_tenant(
        &mut self,
        tenant: &TenantId,
        fields: &TenantFields,
        at: Timestamp,
    ) -> Result<TenantPut> {
        self.write_session(&EVENTS, |session| put_tenant(session, tenant, fields, at))
    }

    /// A write of tables that memory holds no copy of.
    pub fn write<T>(&mut self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.transact_at(&TABLES, |writer| work(&writer.connection))
    }
}

/// Where tests make a commit crash or fail; jobs commit at any moment, and must not be taken for
/// events.
pub struct CommitPoints {
    before: &'static str,
    after: &'static str,
    fails: &'static str,
}

const EVENTS: CommitPoints = CommitPoints {
    before: "sqlite.before_commit",
    after: "sqlite.after_commit",
    fails: "sqlite.commit_fails",
};

pub const TABLES: CommitPoints = CommitPoints {
    before: "sqlite.before_table_commit",
    after: "sqlite.after_table_commit",
    fails: "sqlite.table_commit_fails",
};

/// A writer that panicked has memory that may be wrong: stop, and rebuild it at the next start.
struct StopOnPanic;

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::store::stop_process("the writer met a fault of this program");
        }
    }
}
