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
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// How long a verb waits for a connection, and then for the server. Somebody is waiting for the
/// answer, and a lease may be running out.
const WAIT_MAX: Duration = Duration::from_secs(5);

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
        let client = timeout(WAIT_MAX, self.pool.get()).await.map_err(|_| waited_in_vain())?;
        client.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

/// What a verb has brought. A connection on which nothing came back does not go back to the pool,
/// where the next verb would wait on it too.
fn finish<T>(
    client: Object,
    done: Result<Result<T, StoreError>, Elapsed>,
) -> Result<T, StoreError> {
    done.unwrap_or_else(|_| {
        drop(Object::take(client));
        Err(waited_in_vain())
    })
}

fn waited_in_vain() -> StoreError {
    StoreError::Unavailable(format!("PostgreSQL did not answer within {WAIT_MAX:?}"))
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
        let now = self.clock.now();
        let claimed = super::claim(&**client, scope, fingerprint, lease, now);
        let done = timeout(WAIT_MAX, claimed).await;
        finish(client, done)
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let client = self.client().await?;
        let done = timeout(WAIT_MAX, super::renew(&**client, claim, lease, self.clock.now())).await;
        finish(client, done)
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        let client = self.client().await?;
        let done = timeout(WAIT_MAX, super::reach(&**client, claim, point)).await;
        finish(client, done)
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        let client = self.client().await?;
        let ended = super::end(&**client, claim, answer, ending, keep, self.clock.now());
        let done = timeout(WAIT_MAX, ended).await;
        finish(client, done)
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        let client = self.client().await?;
        let done = timeout(WAIT_MAX, super::release(&**client, claim, self.clock.now())).await;
        finish(client, done)
    }

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        let client = self.client().await?;
        let done = timeout(WAIT_MAX, super::forget(&**client, claim, self.clock.now())).await;
        finish(client, done)
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        let now = self.sweep_time.at(self.clock.now(), self.clock.passed());
        let client = self.client().await?;
        let done = timeout(WAIT_MAX, super::sweep(&**client, limit, now)).await;
        finish(client, done)
    }
}
