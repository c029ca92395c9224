//! Connections that only read: a bounded pool, each used by one query at a time on a thread that
//! may block.
//!
//! A query of users runs where its request is for a millisecond or so, which is enough for most.
//! One that needs more begins again on a thread of low priority, so that the queries of one tenant
//! do not keep the commits of others from a core.
//!
//! Bound: no query waits for a connection longer than the pool's limit, and none runs longer.
//! SQLite asks after every [`STEPS_BETWEEN_LOOKS`] steps of its virtual machine.

use super::{FILE_NAME, LEDGER_FILE_NAME, keep_plans};
use crate::heavy::{HeavyThreads, give_way};
use crate::store::{Error, Result};
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Few enough for a look at every tenth of a millisecond or so, and too many to be felt.
const STEPS_BETWEEN_LOOKS: i32 = 1_000;
/// The deadline is looked at once for each so many looks.
const LOOKS_BETWEEN_TIMES: u32 = 10;

pub struct Readers {
    directory: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
    connections_max: usize,
    time_max: Duration,
    heavy: OnceLock<HeavyThreads>,
}

impl Readers {
    pub fn new(directory: PathBuf, connections_max: usize, time_max: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max));
        let (idle, heavy) = (Mutex::new(Vec::new()), OnceLock::new());
        Self { directory, idle, permits, connections_max, time_max, heavy }
    }

    /// Runs a query and ends whatever transaction it opened.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.wait().await?;
        let readers = Arc::clone(self);
        let work = move || {
            let _permit = permit;
            readers.run(readers.time_max, query)
        };
        // On a busy machine each change of thread waits its turn; so the query runs where it is,
        // and the thread's other work moves instead.
        if may_block() {
            return tokio::task::block_in_place(work);
        }
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Error::Internal { what: error.to_string() })?
    }

    /// The same for a query of any size; `large` if it is known to take more than a millisecond.
    pub async fn read_any_size<T: Send + 'static>(
        self: &Arc<Self>,
        large: bool,
        query: impl Fn(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.wait().await?;
        if !large && may_block() {
            // It is late at the first look.
            let answer = tokio::task::block_in_place(|| self.run(Duration::ZERO, &query));
            if !matches!(answer, Err(Error::Overdue { .. })) {
                return answer;
            }
        }
        let heavy = self.heavy.get_or_init(|| HeavyThreads::start("query", self.connections_max));
        let readers = Arc::clone(self);
        let work = move || {
            let _permit = permit;
            readers.run(readers.time_max, query)
        };
        let panicked = |_| Error::Internal { what: "a query panicked".into() };
        heavy.run(work).await.map_err(panicked)?
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit> {
        let closed = |_| Error::Unavailable { what: "the store is closed".into() };
        let waiting = Arc::clone(&self.permits).acquire_owned();
        let permit = tokio::time::timeout(self.time_max, waiting).await;
        permit.map_err(|_| self.overdue("no connection for it was free"))?.map_err(closed)
    }

    fn run<T>(
        &self,
        time_max: Duration,
        query: impl FnOnce(&Connection) -> Result<T>,
    ) -> Result<T> {
        let mut connection = self.take()?;
        let deadline = Instant::now() + time_max;
        let late = move || Instant::now() >= deadline;
        let mut looks = 0;
        let look = move || {
            give_way();
            looks += 1;
            looks % LOOKS_BETWEEN_TIMES == 0 && late()
        };
        connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(look))?;
        let mut answer = query(&connection);
        connection.progress_handler(0, None::<fn() -> bool>)?;
        if matches!(&answer, Err(Error::Unavailable { .. })) && late() {
            answer = Err(self.overdue("it had not ended"));
        }
        let ended = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
        if ended {
            self.idle.lock().expect("no holder panics").push(connection);
        }
        answer
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
        open_read_only(&self.directory)
    }
}

/// Whether this thread's other work moves to another one while it blocks.
fn may_block() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// A connection to both databases of the store in `directory`, which cannot write.
pub fn open_read_only(directory: &Path) -> Result<Connection> {
    let connection = open_file(&directory.join(FILE_NAME))?;
    let ledger = directory.join(LEDGER_FILE_NAME);
    connection.execute("ATTACH ? AS ledger", [ledger.to_string_lossy()])?;
    connection.execute_batch("PRAGMA ledger.cache_size = -16384")?;
    Ok(connection)
}

/// A connection to ledger.db alone, which cannot write.
pub fn open_ledger(directory: &Path) -> Result<Connection> {
    open_file(&directory.join(LEDGER_FILE_NAME))
}

fn open_file(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    keep_plans(&connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA cache_size = -16384;")?;
    Ok(connection)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Counts to `steps` in SQL and tells the thread that ended it.
    fn count_to(steps: u32) -> impl Fn(&Connection) -> Result<String> + Send {
        move |connection| {
            let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
                       SELECT max(i) FROM n";
            let counted: u32 = connection.query_row(sql, [steps], |row| row.get(0))?;
            assert_eq!(counted, steps);
            Ok(std::thread::current().name().unwrap_or_default().to_owned())
        }
    }

    fn empty_database(time_max: Duration) -> (tempfile::TempDir, Arc<Readers>) {
        let folder = tempfile::tempdir().unwrap();
        for name in [FILE_NAME, LEDGER_FILE_NAME] {
            let database = Connection::open(folder.path().join(name)).unwrap();
            database.execute_batch("PRAGMA user_version = 1").unwrap();
        }
        let readers = Readers::new(folder.path().to_owned(), 1, time_max);
        (folder, Arc::new(readers))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_large_queries_run_with_low_priority() {
        let (_folder, readers) = empty_database(Duration::from_secs(60));
        let thread = readers.read_any_size(false, count_to(10)).await.unwrap();
        assert!(!thread.starts_with("query-"), "{thread}");
        for (known, steps) in [(true, 10), (false, 100_000)] {
            let thread = readers.read_any_size(known, count_to(steps)).await.unwrap();
            assert!(thread.starts_with("query-"), "{thread}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_large_query_still_has_its_deadline() {
        let (_folder, readers) = empty_database(Duration::ZERO);
        let answer = readers.read_any_size(false, count_to(100_000)).await;
        assert!(matches!(answer, Err(Error::Overdue { .. })), "{answer:?}");
    }
}
