//! What the threads of the embedded store share: memory, marks of progress, and requests to each
//! other.
//!
//! Invariant: the writer changes the open segment, the folder and the merger change the runs, and
//! each commits before it changes memory. Nothing here is durable.

use super::fold::Backlog;
use super::memory::Memory;
use super::runs;
use crate::rules::fingerprint::Fingerprinter;
use crate::store::fault_log::FaultLog;
use crate::store::{Error, Result};
use rusqlite::Connection;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::Thread;

pub struct Shared {
    pub memory: RwLock<Memory>,
    pub fingerprinter: Fingerprinter,
    pub checkpoint_due: AtomicBool,
    pub closed: AtomicBool,
    pub jobs_waiting: AtomicUsize,
    pub backlog: Backlog,
    /// Journal rows up to this one are folded, durably.
    pub folded_seq: AtomicI64,
    /// The number of the next run.
    pub next_run_no: AtomicI64,
    pub merger: OnceLock<Thread>,
    /// Held while damaged runs are made again.
    pub healing: Mutex<()>,
    /// Set while folding fails.
    pub fold_paused: AtomicBool,
    /// Why folding or merging has stopped until the next start.
    pub fold_stopped: Mutex<Option<String>>,
    pub log_bytes: AtomicU64,
    pub ledger_log_bytes: AtomicU64,
    pub faults: FaultLog,
}

/// Somebody who waits for the writer, which then ends its idle work.
pub struct Waiting<'s>(&'s AtomicUsize);

impl<'s> Waiting<'s> {
    pub fn new(shared: &'s Shared) -> Self {
        shared.jobs_waiting.fetch_add(1, Ordering::Relaxed);
        Self(&shared.jobs_waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Of a store that was just recovered.
    pub fn new(
        memory: Memory,
        fingerprinter: Fingerprinter,
        folded_seq: i64,
        next_run_no: i64,
    ) -> Self {
        Self {
            memory: RwLock::new(memory),
            fingerprinter,
            checkpoint_due: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            jobs_waiting: AtomicUsize::new(0),
            backlog: Backlog::default(),
            folded_seq: AtomicI64::new(folded_seq),
            next_run_no: AtomicI64::new(next_run_no),
            merger: OnceLock::new(),
            healing: Mutex::new(()),
            fold_paused: AtomicBool::new(false),
            fold_stopped: Mutex::new(None),
            log_bytes: AtomicU64::new(0),
            ledger_log_bytes: AtomicU64::new(0),
            faults: FaultLog::default(),
        }
    }

    pub fn read_memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().expect("the process stops if the writer panics")
    }

    pub fn write_memory(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().expect("the process stops if the writer panics")
    }

    pub fn wake_merger(&self) {
        if let Some(merger) = self.merger.get() {
            merger.unpark();
        }
    }

    pub fn note_fold_stopped(&self, error: &Error) {
        let mut stopped = self.fold_stopped.lock().expect("no holder panics");
        stopped.get_or_insert_with(|| error.to_string());
    }

    /// Makes damaged runs again, from events that `connection` reads. Returns whether there were
    /// any.
    pub fn heal_runs(&self, connection: &Connection, directory: &Path) -> Result<bool> {
        let _guard = self.healing.lock().expect("the process stops if a holder panics");
        let runs = Arc::clone(&self.read_memory().runs);
        let healed = runs::heal_runs(connection, directory, &self.fingerprinter, &runs)?;
        let any = healed.is_some();
        if let Some(healed) = healed {
            self.write_memory().take_healed(&healed);
        }
        Ok(any)
    }
}
