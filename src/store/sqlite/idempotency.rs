//! Keys of requests.
//!
//! The table and its statements are those of the crate `counterfoil_idempotency`; here they run on
//! the writer's connection.
//!
//! Invariant: a request that changes money ends its key in the transaction of its effect
//! (`Session::end_key`), or neither happens. A crash before the commit leaves a claim whose lease
//! ends.

use super::{SqliteStore, Writer};
use crate::clock::Clock;
use crate::store::idempotency::millis;
use async_trait::async_trait;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError, sqlite,
};
use rusqlite::Connection;
use std::sync::Arc;
use std::time::Duration;

/// What the crate's functions come to.
type Kept<T> = Result<T, StoreError>;

/// The crate's functions, each in a transaction of its own.
pub struct RequestKeys {
    pub store: Arc<SqliteStore>,
    pub clock: Clock,
}

impl RequestKeys {
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, Millis) -> Kept<T> + Send + 'static,
    ) -> Kept<T> {
        let now = millis(self.clock.now());
        // Each of these is one statement that writes, so what failed has written nothing.
        let work = move |writer: &mut Writer| writer.write(|connection| Ok(work(connection, now)));
        self.store.write(work).await?
    }
}

#[async_trait]
impl counterfoil_idempotency::Store for RequestKeys {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Kept<Claimed> {
        let (scope, fingerprint) = (scope.clone(), *fingerprint);
        self.write(move |c, now| sqlite::claim(c, &scope, &fingerprint, lease, now)).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Kept<()> {
        let claim = claim.clone();
        self.write(move |c, now| sqlite::renew(c, &claim, lease, now)).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Kept<()> {
        let (claim, point) = (claim.clone(), point.to_owned());
        self.write(move |c, _| sqlite::reach(c, &claim, &point)).await
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Kept<()> {
        let (claim, answer) = (claim.clone(), answer.clone());
        self.write(move |c, now| sqlite::end(c, &claim, &answer, ending, keep, now)).await
    }

    async fn release(&self, claim: &Claim) -> Kept<()> {
        let claim = claim.clone();
        self.write(move |c, now| sqlite::release(c, &claim, now)).await
    }

    async fn forget(&self, claim: &Claim) -> Kept<()> {
        let claim = claim.clone();
        self.write(move |c, now| sqlite::forget(c, &claim, now)).await
    }

    async fn sweep(&self, limit: u32) -> Kept<u32> {
        self.write(move |c, now| sqlite::sweep(c, limit, now)).await
    }
}
