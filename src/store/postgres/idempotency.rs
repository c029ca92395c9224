//! Idempotency keys of requests: the crate's functions, on connections of this store.
//!
//! Invariant: a request that changes money ends its key in the transaction of its effect
//! ([`end_request`]), as the last of its locks but for the commit itself, so there is never one
//! without the other. A crash leaves both or neither; a claim that was written and whose outcome
//! was lost ends by itself with its lease.

use super::PostgresStore;
use super::transaction::{Done, Transaction};
use crate::rules::timestamp::Timestamp;
use crate::store::Error;
use crate::store::idempotency::{Completing, Ended, RequestKeys, completion_error, millis};
use async_trait::async_trait;
use counterfoil_idempotency::{Claim, Claimed, Fingerprint, Scope, StoreError, postgres};
use deadpool_postgres::ClientWrapper;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// What the crate's functions come to.
type Kept<T> = Result<T, StoreError>;

#[async_trait]
impl RequestKeys for PostgresStore {
    async fn claim_key(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
        at: Timestamp,
    ) -> Kept<Claimed> {
        let work = move |client: Arc<Transaction>| async move {
            postgres::claim(connection(&client), scope, fingerprint, lease, millis(at)).await
        };
        self.keep(work).await
    }

    async fn renew_key(&self, claim: &Claim, lease: Duration, at: Timestamp) -> Kept<()> {
        let work = move |client: Arc<Transaction>| async move {
            postgres::renew(connection(&client), claim, lease, millis(at)).await
        };
        self.keep(work).await
    }

    async fn reach_key(&self, claim: &Claim, point: &str) -> Kept<()> {
        let work = move |client: Arc<Transaction>| async move {
            postgres::reach(connection(&client), claim, point).await
        };
        self.keep(work).await
    }

    async fn end_key(&self, claim: &Claim, ended: &Ended, at: Timestamp) -> Kept<()> {
        let work =
            move |client: Arc<Transaction>| async move { end(&client, claim, ended, at).await };
        self.keep(work).await
    }

    async fn release_key(&self, claim: &Claim, at: Timestamp) -> Kept<()> {
        let work = move |client: Arc<Transaction>| async move {
            postgres::release(connection(&client), claim, millis(at)).await
        };
        self.keep(work).await
    }

    async fn forget_key(&self, claim: &Claim, at: Timestamp) -> Kept<()> {
        let work = move |client: Arc<Transaction>| async move {
            postgres::forget(connection(&client), claim, millis(at)).await
        };
        self.keep(work).await
    }

    async fn sweep_keys(&self, limit: u32, at: Timestamp) -> Kept<u32> {
        let work = move |client: Arc<Transaction>| async move {
            postgres::sweep(connection(&client), limit, millis(at)).await
        };
        self.keep(work).await
    }
}

/// Ends the key of the request that the caller's transaction is the effect of, with the answer to
/// this outcome. If that fails the transaction must not be committed.
pub async fn end_request<T: Sync>(
    client: &ClientWrapper,
    completing: Option<&Completing<T>>,
    outcome: &T,
    at: Timestamp,
) -> Done<()> {
    let Some(completing) = completing else { return Ok(()) };
    let ended = completing.render(outcome);
    let done = end(client, completing.claim(), &ended, at).await;
    done.map_err(|error| completion_error(error).into())
}

async fn end(client: &ClientWrapper, claim: &Claim, ended: &Ended, at: Timestamp) -> Kept<()> {
    let Ended { answer, ending, keep } = ended;
    postgres::end(connection(client), claim, answer, *ending, *keep, millis(at)).await
}

/// The connection as the crate takes it.
fn connection(client: &ClientWrapper) -> &Client {
    client
}

impl PostgresStore {
    /// Does one of the crate's functions in a transaction of its own.
    async fn keep<T, W, F>(&self, work: W) -> Kept<T>
    where
        T: Send,
        W: Fn(Arc<Transaction>) -> F + Send + Sync,
        F: Future<Output = Kept<T>> + Send,
    {
        let work = &work;
        let kept = self.transact(move |client: Arc<Transaction>| async move {
            match work(client).await {
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
