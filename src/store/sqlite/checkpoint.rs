//! The checkpointer: moves pages from the write-ahead log of counterfoil.db to the file, beside the
//! writer. The folder moves those of ledger.db itself, after each fold.
//!
//! SQLite would do it inside a commit and make that commit wait. Here a thread of its own does most
//! of it; since the log only starts from its beginning when all of it is moved, the writer then
//! moves the small rest that was written meanwhile. A crash leaves a log that SQLite replays.
//!
//! Bound: the log grows behind the oldest read transaction and nothing else. When no read holds it
//! any more, the writer cuts a log that has outgrown [`LOG_BYTES_KEPT`] back to nothing, and
//! SQLite's journal_size_limit cuts it at the next start from its beginning.

use super::{Shared, sql_error};
use crate::heavy::lower_priority;
use crate::store::Result;
use crate::store::throttle::Throttle;
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Pages in the log that are worth moving: 1 MiB. While the disk syncs what was moved, commits wait
/// for their own sync, and all senders with them.
const PAGES_WORTH_MOVING: i64 = 256;
/// Pages after which the log should start again: 64 MiB.
const PAGES_RESTART: i64 = 16_384;
/// A log that is larger than this is cut back: twice what steady work needs.
const LOG_BYTES_KEPT: u64 = 128 * 1024 * 1024;
/// The same of the ledger's log, in pages.
const LEDGER_PAGES_KEPT: i64 = 32_768;
/// How long a connection that writes waits for another's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Works until the store is closed; `logs` are the files of both logs, the ledger's second.
pub fn run(shared: &Arc<Shared>, connection: &Connection, logs: &[PathBuf; 2]) {
    // It copies for milliseconds at a time, and a commit must not wait for that.
    lower_priority();
    let warnings = Throttle::default();
    let size = metrics::gauge!("counterfoil_sqlite_log_bytes");
    while !shared.closed.load(Ordering::Acquire) {
        std::thread::park_timeout(LOOK_EVERY);
        let [bytes, ledger] =
            logs.each_ref().map(|log| std::fs::metadata(log).map_or(0, |file| file.len()));
        shared.log_bytes.store(bytes, Ordering::Relaxed);
        shared.ledger_log_bytes.store(ledger, Ordering::Relaxed);
        let bytes = bytes + ledger;
        size.set(bytes.to_string().parse::<f64>().unwrap_or(f64::NAN));
        if let Err(error) = look(shared, connection)
            && let Some(left_out) = warnings.admit()
        {
            tracing::warn!(%error, left_out, "could not checkpoint; trying again later");
        }
    }
}

/// Moves what is worth moving.
pub fn look(shared: &Shared, connection: &Connection) -> Result<()> {
    let (log, moved) = log_pages(connection, "NOOP")?;
    if log - moved >= PAGES_WORTH_MOVING {
        log_pages(connection, "PASSIVE")?;
        if log >= PAGES_RESTART {
            shared.checkpoint_due.store(true, Ordering::Release);
        }
    }
    if outgrown(shared) {
        shared.checkpoint_due.store(true, Ordering::Release);
    }
    Ok(())
}

/// Ends a checkpoint on the writer's connection: moves what can be moved without waiting for
/// anyone, and cuts an outgrown log unless a read transaction holds it.
pub fn finish(shared: &Shared, connection: &Connection) -> Result<()> {
    if !outgrown(shared) {
        return log_pages(connection, "PASSIVE").map(drop);
    }
    connection.busy_timeout(Duration::ZERO)?;
    let cut = log_pages(connection, "TRUNCATE");
    connection.busy_timeout(BUSY_TIMEOUT)?;
    cut.map(drop)
}

/// Moves what a fold has written to the ledger, on the folder's own thread, and cuts an outgrown
/// log unless a read transaction holds it.
pub fn look_after_fold(connection: &Connection) -> Result<()> {
    let (log, _) = log_pages(connection, "PASSIVE")?;
    if log > LEDGER_PAGES_KEPT {
        connection.busy_timeout(Duration::ZERO)?;
        let cut = log_pages(connection, "TRUNCATE");
        connection.busy_timeout(BUSY_TIMEOUT)?;
        cut?;
    }
    Ok(())
}

fn outgrown(shared: &Shared) -> bool {
    shared.log_bytes.load(Ordering::Relaxed) > LOG_BYTES_KEPT
}

/// Pages in the log, and how many of them are in the database file.
fn log_pages(connection: &Connection, mode: &str) -> Result<(i64, i64)> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    connection.query_row(&sql, [], |row| Ok((row.get(1)?, row.get(2)?))).map_err(sql_error)
}
