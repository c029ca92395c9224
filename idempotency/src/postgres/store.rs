//! A store with a pool of PostgreSQL connections.
//!
//! Invariant: a verb outside a transaction is one statement at a time, each committed by itself;
//! the server must have synchronous_commit on, which is its default, or a crash of the server may
//! forget claims. Commands that were cut off are [`StoreError::Unavailable`], done or not.

use crate::clock::{Clock, SweepTime};
use crate::record::{Answer, Claim, Claimed, Ending, Fingerprint, Scope, StoreError};
use crate::store::Store;
use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use std::sync::Arc;
use std::time::Duration;

/// Keys in PostgreSQL. For effects in the same database, use the functions of [`crate::postgres`]
/// in the transaction of the effect, on the application's own connection.
///
/// Leases are judged by the clocks of the application's servers. They may differ by much less than
/// a lease; where they differ by more, owners lose their claims early, and fences keep it safe.
#[derive(Clone)]
pub struct PostgresStore {
    pool: Pool,
    clock: Clock,
    sweep_time: Arc<SweepTime>,
}

impl PostgresStore {
    pub fn new(pool: Pool, clock: Clock) -> Self {
        let sweep_time = Arc::new(SweepTime::starting(clock.now(), clock.passed()));
        Self { pool, clock, sweep_time }
    }

    /// Makes the table if there is none. Applications with migrations of their own put
    /// [`crate::postgres::SCHEMA`] there instead.
    pub async fn create_table(&self) -> Result<(), StoreError> {
        // Two servers that start at once would both find no table, and one would fail.
        let sql = format!(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtext('idempotency_keys')); {} COMMIT;",
            super::SCHEMA
        );
        let client = self.client().await?;
        let made = client.batch_execute(&sql).await;
        if made.is_err() {
            // The connection goes back to the pool and must not be left in a failed transaction.
            let _ = client.batch_execute("ROLLBACK").await;
        }
        made.map_err(|error| super::unavailable(&error))
    }

    async fn client(&self) -> Result<Object, StoreError> {
        self.pool.get().await.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let client = self.client().await?;
        super::claim(&**client, scope, fingerprint, lease, self.clock.now()).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let client = self.client().await?;
        super::renew(&**client, claim, lease, self.clock.now()).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        let client = self.client().await?;
        super::reach(&**client, claim, point).await
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        let client = self.client().await?;
        super::end(&**client, claim, answer, ending, keep, self.clock.now()).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let client = self.client().await?;
        super::release(&**client, claim, self.clock.now()).await
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        let now = self.sweep_time.at(self.clock.now(), self.clock.passed());
        let client = self.client().await?;
        super::sweep(&**client, limit, now).await
    }
}
