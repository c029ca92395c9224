//! The checkpointer: moves pages from the write-ahead log to the database file, beside the writer.
//!
//! SQLite would do it inside a commit and make that commit wait. Here a thread of its own does most
//! of it; since the log only starts from its beginning when all of it is moved, the writer then
//! moves the small rest that was written meanwhile. A crash leaves a log that SQLite replays.

use super::{Shared, sql_error};
use crate::store::Result;
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pages in the log that are worth moving: 16 MiB.
const PAGES_WORTH_MOVING: i64 = 4096;
/// Pages after which the log should start again: 64 MiB.
const PAGES_RESTART: i64 = 16_384;

/// Works until the store is closed.
pub fn run(shared: &Arc<Shared>, connection: &Connection) {
    while !shared.closed.load(Ordering::Acquire) {
        std::thread::park_timeout(LOOK_EVERY);
        match log_pages(connection, "NOOP") {
            Ok((log, moved)) if log - moved >= PAGES_WORTH_MOVING => {
                checkpoint(connection);
                if log >= PAGES_RESTART {
                    shared.checkpoint_due.store(true, Ordering::Release);
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not look at the write-ahead log"),
        }
    }
}

/// Moves what can be moved without waiting for anyone.
pub fn checkpoint(connection: &Connection) {
    if let Err(error) = log_pages(connection, "PASSIVE") {
        tracing::warn!(%error, "could not checkpoint; trying again later");
    }
}

/// Pages in the log, and how many of them are in the database file.
fn log_pages(connection: &Connection, mode: &str) -> Result<(i64, i64)> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    connection.query_row(&sql, [], |row| Ok((row.get(1)?, row.get(2)?))).map_err(sql_error)
}
