//! The writer: one thread that owns the one connection which writes to counterfoil.db.
//!
//! A commit is: judge the batch against memory and ledger; one transaction with the journal row,
//! new tenants and inbox rows; COMMIT, which syncs the disk; then memory, then the answer. Folding
//! goes on beside it, on a thread of its own (`fold`).
//!
//! What a crash leaves: before COMMIT returns, nothing or all of the transaction, and nobody was
//! answered, so the sender tries again and gets accepted or duplicate, whichever is true. After
//! it, all of it. If COMMIT fails, memory was not touched and the batch never happened. If the disk
//! cannot sync, nobody knows what it holds: the process stops and recovers at the next start.
//!
//! Bound: a commit waits while [`BACKLOG_SEGMENTS`] segments or more wait to be folded. While
//! folding fails, commits go on without it up to [`JOURNAL_SEGMENTS_MAX`], and are refused then.

use super::fold::{FoldJob, Folder};
use super::inbox::{record_conflict, record_quarantine};
use super::judge::{JudgedBatch, KnownKeys, judge_batch};
use super::record::write_journal;
use super::segment::CommitParts;
use super::session::SqliteSession;
use super::statements::Statements;
use super::{Shared, closed, declarations, sql_error};
use crate::config::SqliteConfig;
use crate::faults::{crash_point, planted};
use crate::rules::ids::TenantId;
use crate::rules::meter::Meter;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Verdict;
use crate::store::groups::KnownGroups;
use crate::store::sql::{Admissions, declare_meter, put_tenant};
use crate::store::throttle::Throttle;
use crate::store::{
    AdmissionBatch, Declaration, DeliveryBatch, Error, Result, TenantFields, TenantPut,
};
use rusqlite::{Connection, params};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the writer waits for work before it folds on its own.
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Segments that may wait to be folded before commits wait for the folder.
const BACKLOG_SEGMENTS: usize = 4;
/// How long a commit waits for the folder before it looks whether folding still goes on.
const BACKLOG_WAIT: Duration = Duration::from_millis(100);
/// Segments' worth of events that the journal takes while folding fails.
const JOURNAL_SEGMENTS_MAX: usize = 16;
/// Journal rows of folded segments that one commit deletes.
const DELETED_ROWS: i64 = 4;
/// The same while there is nothing else to do.
const DELETED_ROWS_IDLE: i64 = 256;

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
    /// To counterfoil.db.
    pub connection: Connection,
    /// Reads ledger.db.
    pub ledger: Connection,
    pub directory: PathBuf,
    pub settings: SqliteConfig,
    pub folder: Sender<FoldJob>,
    /// The oldest journal row that is there.
    pub first_seq: i64,
    pub open_since: Option<Instant>,
    pub warnings: Throttle,
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
                let _ = self.commit(judged, received_at, |_, _| Ok(()));
            }
            return;
        }
        // A waiter that went away does not undo what was counted.
        let _ = reply.send(self.record(batch));
    }

    pub fn record(&mut self, batch: DeliveryBatch) -> Result<Vec<Verdict>> {
        let received_at = batch.acceptance.now;
        let judged = self.judge(batch)?;
        self.commit(judged, received_at, |_, _| Ok(()))
    }

    /// Counts events that a person admits, in the commit that decides their records.
    pub fn admit(&mut self, batch: &AdmissionBatch) -> Result<Option<Vec<Verdict>>> {
        let admissions = Admissions::of(batch)?;
        let judged = self.judge(batch.deliveries())?;
        let mut decided_before = false;
        let decide = |connection: &Connection, verdicts: &[Verdict]| {
            let session = SqliteSession::on(connection);
            if admissions.record(&session, verdicts)?.is_none() {
                decided_before = true;
                return Err(Error::Unavailable { what: "a record was decided before".into() });
            }
            Ok(())
        };
        match self.commit(judged, batch.decision.at, decide) {
            Err(_) if decided_before => Ok(None),
            committed => committed.map(Some),
        }
    }

    fn judge(&mut self, batch: DeliveryBatch) -> Result<JudgedBatch> {
        let known = self.find_keys(&batch)?;
        let Self { shared, ledger, known_groups, .. } = self;
        let memory = shared.read_memory();
        judge_batch(known, &memory, ledger, &shared.fingerprinter, known_groups, &batch)
    }

    fn find_keys(&self, batch: &DeliveryBatch) -> Result<KnownKeys> {
        match KnownKeys::find(&self.shared, &self.ledger, batch) {
            Err(error @ Error::Corrupt { .. }) => {
                let healed = self.shared.heal_runs(&self.ledger, &self.directory)?;
                if healed { KnownKeys::find(&self.shared, &self.ledger, batch) } else { Err(error) }
            }
            found => found,
        }
    }

    /// Commits what was judged, and what `more` writes in the same transaction.
    fn commit(
        &mut self,
        judged: JudgedBatch,
        received_at: Timestamp,
        more: impl FnOnce(&Connection, &[Verdict]) -> Result<()>,
    ) -> Result<Vec<Verdict>> {
        if judged.verdicts.is_empty() && judged.counters.is_empty() {
            return Ok(Vec::new());
        }
        self.wait_for_folder()?;
        let seq = self.shared.read_memory().last_seq + 1;
        let body = write_journal(&judged.counters, judged.entries.len(), &judged.events);
        let shared = Arc::clone(&self.shared);
        let (catalog, keys) = (Arc::clone(&shared.read_memory().catalog), &shared.fingerprinter);
        let folded = self.folded_rows(DELETED_ROWS, seq);
        let write = |writer: &mut Self| {
            let connection = &writer.connection;
            for (number, tenant) in &judged.new_tenants {
                declarations::insert_tenant(connection, *number, tenant, received_at)?;
            }
            connection.run(
                "-- commit\nINSERT INTO journal (seq, received_at, body) VALUES (?, ?, ?)",
                params![seq, received_at.micros(), body],
            )?;
            delete_journal(connection, folded.clone())?;
            for conflict in &judged.conflicts {
                record_conflict(connection, &catalog, keys, conflict, received_at)?;
            }
            for quarantined in &judged.quarantined {
                record_quarantine(connection, &catalog, keys, quarantined, received_at)?;
            }
            more(connection, &judged.verdicts)
        };
        let outcome = self.transact(write);
        if planted("bug.claim_before_write") && outcome.is_err() {
            self.take_over(seq, received_at, judged);
            return outcome.map(|()| Vec::new());
        }
        outcome?;
        self.first_seq = folded.end;
        let verdicts = self.take_over(seq, received_at, judged);
        self.seal_if_due();
        self.checkpoint_if_due();
        Ok(verdicts)
    }

    /// Takes a durable commit over in memory.
    fn take_over(&mut self, seq: i64, received_at: Timestamp, judged: JudgedBatch) -> Vec<Verdict> {
        self.open_since.get_or_insert_with(Instant::now);
        let JudgedBatch { verdicts, events, entries, contributions, counters, new_groups, .. } =
            judged;
        self.known_groups.take_over(new_groups);
        let parts = CommitParts { seq, received_at, events, entries, contributions, counters };
        let mut memory = self.shared.write_memory();
        for (number, tenant) in judged.new_tenants {
            memory.tenants.insert(number, tenant);
        }
        let appended = memory.open.append(parts);
        memory.last_seq = seq;
        drop(memory);
        if appended.is_err() || planted("sqlite.append_fails") {
            // The commit is durable and memory is not what it says: nothing may be judged by it.
            crate::store::stop_process("a commit could not be taken over in memory; start again");
        }
        verdicts
    }

    /// Waits while too much is to be folded. Refuses where folding fails and the journal is full.
    fn wait_for_folder(&self) -> Result<()> {
        let backlog = &self.shared.backlog;
        let limit = self.settings.segment_events.saturating_mul(BACKLOG_SEGMENTS);
        loop {
            if backlog.events() < limit {
                return Ok(());
            }
            if self.shared.fold_paused.load(Ordering::Acquire) {
                let most = self.settings.segment_events.saturating_mul(JOURNAL_SEGMENTS_MAX);
                if backlog.events() < most {
                    return Ok(());
                }
                let what = "folding fails and the journal is full; see fold_stopped in \
                            docs/operating.md";
                return Err(Error::Unavailable { what: what.into() });
            }
            backlog.wait(limit, BACKLOG_WAIT);
        }
    }

    fn seal_if_due(&mut self) {
        let age_max = Duration::from_millis(self.settings.segment_age_max_ms);
        let old = self.open_since.is_some_and(|since| since.elapsed() >= age_max);
        let full = self.shared.read_memory().open.len() >= self.settings.segment_events;
        if full || old {
            self.seal_segment();
        }
    }

    /// Ends the open segment, unless it is empty, and has it folded.
    pub fn seal_segment(&mut self) {
        // Under one lock: the folder must not subtract before this adds.
        let mut memory = self.shared.write_memory();
        self.shared.backlog.add(memory.seal_open_segment());
        drop(memory);
        self.open_since = None;
        // A folder that is gone has stopped, and so has the store.
        let _ = self.folder.send(FoldJob::Fold);
    }

    pub fn work_while_idle(&mut self) {
        self.seal_if_due();
        self.checkpoint_if_due();
        loop {
            let folded = self.folded_rows(DELETED_ROWS_IDLE, self.shared.read_memory().last_seq);
            if folded.is_empty() {
                return;
            }
            let deleted =
                self.transact(|writer| delete_journal(&writer.connection, folded.clone()));
            match deleted {
                Ok(()) => self.first_seq = folded.end,
                Err(error) => return self.warn(&error, "could not delete folded journal rows"),
            }
            if self.shared.jobs_waiting.load(Ordering::Relaxed) > 0 {
                return;
            }
        }
    }

    fn warn(&self, error: &Error, what: &str) {
        if let Some(left_out) = self.warnings.admit() {
            tracing::warn!(%error, left_out, "{what}; trying again later");
        }
    }

    /// The oldest journal rows that are folded, at most `most` of them; never the newest row.
    fn folded_rows(&self, most: i64, newest: i64) -> Range<i64> {
        let end = (self.shared.folded_seq.load(Ordering::Acquire) + 1).min(newest);
        self.first_seq..end.min(self.first_seq + most).max(self.first_seq)
    }

    /// Folds all that was recorded, then has the folder do `work`.
    pub fn fold_all<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.seal_segment();
        let (reply, answer) = std::sync::mpsc::channel();
        let all = move |folder: &mut Folder| {
            let _ = reply.send(folder.fold_sealed().and_then(|()| work(folder)));
        };
        self.folder.send(FoldJob::Work(Box::new(all))).map_err(|_| closed())?;
        answer.recv().map_err(|_| closed())?
    }

    /// Ends the checkpoint that the checkpointer has nearly done: only what was written meanwhile
    /// is left, and then the log can start from its beginning.
    fn checkpoint_if_due(&self) {
        if self.shared.checkpoint_due.swap(false, Ordering::AcqRel)
            && let Err(error) = super::checkpoint::finish(&self.shared, &self.connection)
        {
            self.warn(&error, "could not checkpoint");
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

/// Deletes journal rows that are folded.
fn delete_journal(connection: &Connection, rows: Range<i64>) -> Result<()> {
    if !rows.is_empty() {
        connection.run(
            "-- delete_journal\nDELETE FROM journal WHERE seq >= ? AND seq < ?",
            params![rows.start, rows.end],
        )?;
    }
    Ok(())
}

/// A thread that panicked leaves memory that may be wrong: stop, and rebuild it at the next start.
pub struct StopOnPanic;

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::store::stop_process("the store met a fault of this program");
        }
    }
}
