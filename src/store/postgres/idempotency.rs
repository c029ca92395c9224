//! Idempotency keys of requests: the crate's functions, on connections of this store.
//!
//! Invariant: a request that changes money ends its key in the transaction of its effect
//! (`Session::end_key`), as the last of its locks but for the commit itself, so there is never one
//! without the other. A crash leaves both or neither; a claim that was written and whose outcome
//! was lost ends by itself with its lease.

use super::PostgresStore;
use super::transaction::Transaction;
use crate::clock::Clock;
use crate::store::Error;
use crate::store::idempotency::millis;
use async_trait::async_trait;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError, postgres,
};
use deadpool_postgres::ClientWrapper;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// What the crate's functions come to.
type Kept<T> = Result<T, StoreError>;

/// The crate's functions, each in a transaction of its own.
pub struct RequestKeys {
    pub store: Arc<PostgresStore>,
    pub clock: Clock,
}

impl RequestKeys {
    async fn write<T, W, F>(&self, work: W) -> Kept<T>
    where
        T: Send,
        W: Fn(Arc<Transaction>, Millis) -> F + Send + Sync,
        F: Future<Output = Kept<T>> + Send,
    {
        let (work, now) = (&work, millis(self.clock.now()));
        let kept = self.store.transact(move |client: Arc<Transaction>| async move {
            match work(client, now).await {
                // The statement failed, and the transaction with it.
                Err(StoreError::Unavailable(what)) => Err(Error::Unavailable { what }.into()),
                // Nothing was written.
                answer @ (Ok(_) | Err(StoreError::Fenced | StoreError::Unreadable(_))) => {
                    Ok(answer)
                }
            }
        });
        kept.await?
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
        let work = move |client: Arc<Transaction>, now| async move {
            postgres::claim(connection(&client), scope, fingerprint, lease, now).await
        };
        self.write(work).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Kept<()> {
        let work = move |client: Arc<Transaction>, now| async move {
            postgres::renew(connection(&client), claim, lease, now).await
        };
        self.write(work).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Kept<()> {
        let work = move |client: Arc<Transaction>, _| async move {
            postgres::reach(connection(&client), claim, point).await
        };
        self.write(work).await
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Kept<()> {
        let work = move |client: Arc<Transaction>, now| async move {
            postgres::end(connection(&client), claim, answer, ending, keep, now).await
        };
        self.write(work).await
    }

    async fn release(&self, claim: &Claim) -> Kept<()> {
        let work = move |client: Arc<Transaction>, now| async move {
            postgres::release(connection(&client), claim, now).await
        };
        self.write(work).await
    }

    async fn forget(&self, claim: &Claim) -> Kept<()> {
        let work = move |client: Arc<Transaction>, now| async move {
            postgres::forget(connection(&client), claim, now).await
        };
        self.write(work).await
    }

    async fn sweep(&self, limit: u32) -> Kept<u32> {
        let work = move |client: Arc<Transaction>, now| async move {
            postgres::sweep(connection(&client), limit, now).await
        };
        self.write(work).await
    }
}

/// The connection as the crate takes it.
fn connection(client: &ClientWrapper) -> &Client {
    client
}
