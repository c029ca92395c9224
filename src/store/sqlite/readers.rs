//! Connections that only read: a bounded pool, each used by one query at a time on a thread that
//! may block.
//!
//! Bound: no query waits for a connection longer than the pool's limit, and none runs longer.
//! SQLite asks for the time after every [`STEPS_BETWEEN_LOOKS`] steps of its virtual machine.

use super::keep_plans;
use crate::store::{Error, Result};
use rusqlite::{Connection, OpenFlags};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Few enough for a look every few milliseconds, and too many to be felt.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

pub struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
    time_max: Duration,
}

impl Readers {
    pub fn new(path: PathBuf, connections_max: usize, time_max: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max));
        Self { path, idle: Mutex::new(Vec::new()), permits, time_max }
    }

    /// Runs a query and ends whatever transaction it opened.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let closed = || Error::Unavailable { what: "the store is closed".into() };
        let waiting = Arc::clone(&self.permits).acquire_owned();
        let permit = tokio::time::timeout(self.time_max, waiting)
            .await
            .map_err(|_| self.overdue("no connection for it was free"))?
            .map_err(|_| closed())?;
        let readers = Arc::clone(self);
        let work = move || {
            let _permit = permit;
            let mut connection = readers.take()?;
            let deadline = Instant::now() + readers.time_max;
            let late = move || Instant::now() >= deadline;
            connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(late))?;
            let mut answer = query(&connection);
            connection.progress_handler(0, None::<fn() -> bool>)?;
            if matches!(&answer, Err(Error::Unavailable { .. })) && late() {
                answer = Err(readers.overdue("it had not ended"));
            }
            let ended = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
            if ended {
                readers.idle.lock().expect("no holder panics").push(connection);
            }
            answer
        };
        // On a busy machine each change of thread waits its turn; so the query runs where it is,
        // and the thread's other work moves instead.
        if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
            return tokio::task::block_in_place(work);
        }
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Error::Internal { what: error.to_string() })?
    }

    /// Takes every connection's place.
    #[cfg(test)]
    pub async fn hold_all(&self) -> tokio::sync::OwnedSemaphorePermit {
        let places = u32::try_from(self.permits.available_permits()).expect("a few");
        let permits = Arc::clone(&self.permits);
        permits.acquire_many_owned(places).await.expect("open")
    }

    fn overdue(&self, why: &str) -> Error {
        Error::Overdue { what: format!("{why} after {} ms", self.time_max.as_millis()) }
    }

    pub fn close(&self) {
        self.permits.close();
        self.idle.lock().expect("no holder panics").clear();
    }

    fn take(&self) -> Result<Connection> {
        if let Some(connection) = self.idle.lock().expect("no holder panics").pop() {
            return Ok(connection);
        }
        open_read_only(&self.path)
    }
}

/// A connection that cannot write.
pub fn open_read_only(path: &std::path::Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    keep_plans(&connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA cache_size = -16384;")?;
    Ok(connection)
}
