//! A store with a SQLite connection of its own.
//!
//! Invariant: a verb is one IMMEDIATE transaction, committed with synchronous=FULL, so that what
//! was claimed or ended survives a power cut. A crash leaves whole verbs only.

use super::failed;
use crate::clock::{Clock, SweepTime};
use crate::record::{Answer, Claim, Claimed, Ending, Fingerprint, Scope, StoreError};
use crate::store::Store;
use async_trait::async_trait;
use rusqlite::{Connection, TransactionBehavior};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a write waits for another process's.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys in a SQLite file. For effects in the same file, use the functions of [`crate::sqlite`] in
/// the transaction of the effect, on the application's own connection.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    connection: Arc<Mutex<Connection>>,
    clock: Clock,
    sweep_time: Arc<SweepTime>,
}

impl SqliteStore {
    /// Opens a file, makes it if there is none, and makes the table if there is none.
    pub fn open(path: &Path, clock: Clock) -> Result<Self, StoreError> {
        let connection = Connection::open(path).and_then(|connection| {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(super::SCHEMA)?;
            Ok(connection)
        });
        let connection = connection.map_err(|error| failed(&error))?;
        let sweep_time = Arc::new(SweepTime::starting(clock.now(), clock.passed()));
        Ok(Self { connection: Arc::new(Mutex::new(connection)), clock, sweep_time })
    }

    /// Runs one verb in a transaction, on a thread that may wait for the disk.
    async fn write<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let connection = Arc::clone(&self.connection);
        let work = move || {
            // A verb that panicked has left no open transaction: dropping it rolls it back.
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(|error| failed(&error))?;
            let made = verb(&transaction)?;
            transaction.commit().map_err(|error| failed(&error))?;
            Ok(made)
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let (scope, fingerprint, clock) = (scope.clone(), *fingerprint, self.clock.clone());
        // The time is read under the lock: a claim that waited must not judge leases by the time
        // at which it began to wait.
        self.write(move |open| super::claim(open, &scope, &fingerprint, lease, clock.now())).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let (claim, clock) = (claim.clone(), self.clock.clone());
        self.write(move |open| super::renew(open, &claim, lease, clock.now())).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        let (claim, point) = (claim.clone(), point.to_owned());
        self.write(move |open| super::reach(open, &claim, &point)).await
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        let (claim, answer, clock) = (claim.clone(), answer.clone(), self.clock.clone());
        self.write(move |open| super::end(open, &claim, &answer, ending, keep, clock.now())).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let (claim, clock) = (claim.clone(), self.clock.clone());
        self.write(move |open| super::release(open, &claim, clock.now())).await
    }

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        let (claim, clock) = (claim.clone(), self.clock.clone());
        self.write(move |open| super::forget(open, &claim, clock.now())).await
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        let now = self.sweep_time.at(self.clock.now(), self.clock.passed());
        self.write(move |open| super::sweep(open, limit, now)).await
    }
}
