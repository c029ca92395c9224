//! The transactions of all verbs but deliveries: begun, redone where another was in the way,
//! committed.
//!
//! Invariant: a connection goes back to the pool only when its transaction has ended. A transaction
//! is redone only while COMMIT was not sent; what a lost COMMIT did is unknown here, and each verb
//! says what its repetition does.
//!
//! A crash of this process or of the server leaves all of a transaction or nothing.

use super::PostgresStore;
use super::deliveries::pause;
use super::failure::{Failure, describe};
use crate::faults::crash_point;
pub use crate::store::sql::Done;
use crate::store::{Error, Result};
use deadpool_postgres::{ClientWrapper, Object, Pool};
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

/// How often a transaction is retried before the caller gets an error.
const TRIES_MAX: u32 = 20;

/// A transaction in progress. Unless it is committed or rolled back, its connection does not go
/// back to the pool: a transaction left open would be the next user's.
pub struct Transaction(Option<Object>);

impl Transaction {
    async fn begin(client: Object) -> Done<Self> {
        let transaction = Self(Some(client));
        transaction.batch_execute("BEGIN").await?;
        Ok(transaction)
    }

    /// Gives the connection back to the pool.
    fn end(mut self) {
        drop(self.0.take());
    }
}

impl Deref for Transaction {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        self.0.as_ref().expect("taken out only when it ends")
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

impl PostgresStore {
    /// Does `work` in one transaction, again from its start if another was in the way.
    pub(super) async fn transact<T, W, F>(&self, work: W) -> Result<T>
    where
        T: Send,
        W: Fn(Arc<Transaction>) -> F + Send + Sync,
        F: Future<Output = Done<T>> + Send,
    {
        self.transact_on(&self.outbound, work).await
    }

    /// As [`Self::transact`], on a connection of `pool`.
    pub(super) async fn transact_on<T, W, F>(&self, pool: &Pool, work: W) -> Result<T>
    where
        T: Send,
        W: Fn(Arc<Transaction>) -> F + Send + Sync,
        F: Future<Output = Done<T>> + Send,
    {
        let mut hindrance = String::new();
        for round in 0..TRIES_MAX {
            self.refuse_if_closed()?;
            if round > 0 {
                tokio::time::sleep(pause(round)?).await;
            }
            match self.try_once(pool, &work).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Again(what) | Failure::Lost(what)) => {
                    tracing::debug!(%what, round, "redoing a transaction");
                    hindrance = what;
                }
                Err(Failure::Final(error)) => return self.faults.note(Err(error)),
            }
        }
        Err(Error::Unavailable { what: format!("tried {TRIES_MAX} times, last: {hindrance}") })
    }

    async fn try_once<T, W, F>(&self, pool: &Pool, work: &W) -> Done<T>
    where
        W: Fn(Arc<Transaction>) -> F,
        F: Future<Output = Done<T>>,
    {
        let client = pool.get().await.map_err(Error::from)?;
        let transaction = Arc::new(self.connector.within(Transaction::begin(client)).await??);
        let worked = self.connector.within(work(Arc::clone(&transaction))).await?;
        let transaction = Arc::into_inner(transaction).ok_or_else(|| Error::Internal {
            what: "a transaction was kept beyond its end".into(),
        })?;
        match worked {
            Ok(answer) => {
                self.commit_transaction(transaction).await?;
                Ok(answer)
            }
            Err(failure @ Failure::Again(_)) => {
                // A connection on which even this fails is dropped.
                let rolled_back = transaction.batch_execute("ROLLBACK");
                if matches!(self.connector.within(rolled_back).await, Ok(Ok(()))) {
                    transaction.end();
                }
                Err(failure)
            }
            Err(failure @ (Failure::Lost(_) | Failure::Final(_))) => Err(failure),
        }
    }

    async fn commit_transaction(&self, transaction: Transaction) -> Done<()> {
        crash_point("postgres.before_table_commit");
        let lost = match self.connector.within(transaction.batch_execute("COMMIT")).await {
            Ok(Ok(())) => {
                crash_point("postgres.after_table_commit");
                transaction.end();
                return Ok(());
            }
            Ok(Err(error)) => describe(&error),
            Err(silence) => silence.to_string(),
        };
        let what = format!("the connection broke at the commit: {lost}");
        Err(Failure::Final(Error::Unknown { what }))
    }
}
