//! Keys of requests, and how one ends with its effect.
//!
//! The table and its statements are those of the crate `counterfoil_idempotency`; here they run on
//! the writer's connection.
//!
//! Invariant: a key ends in the transaction of its effect, or neither happens. What is answered is
//! made of the outcome, by whoever asked and not by the writer's thread: a fault in it must not
//! stop the writer. The writer waits for it inside the transaction, for a bounded time; a caller
//! that is gone by then leaves nothing. A crash before the commit leaves a claim whose lease ends.

use super::{SqliteStore, Writer};
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Completing, Ended, RequestKeys, completion_error, millis};
use crate::store::{self, Error};
use async_trait::async_trait;
use counterfoil_idempotency::{Claim, Claimed, Fingerprint, Scope, StoreError, sqlite};
use rusqlite::Connection;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the writer waits for an answer to be made, which is the writing of a short text.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Ends a request's key in the transaction of its effect, on the writer's thread.
pub struct Finish<T> {
    end: Option<KeyEnd<T>>,
    at: Timestamp,
}

struct KeyEnd<T> {
    claim: Claim,
    outcomes: oneshot::Sender<T>,
    answers: mpsc::Receiver<Ended>,
}

impl<T: Clone> Finish<T> {
    /// To be called last in the transaction, with what became of it; on an error the caller rolls
    /// it back.
    pub fn end(self, connection: &Connection, outcome: T) -> store::Result<T> {
        let Some(KeyEnd { claim, outcomes, answers }) = self.end else { return Ok(outcome) };
        let gone = || Error::Unavailable { what: "whoever asked for it is gone".into() };
        outcomes.send(outcome.clone()).map_err(|_| gone())?;
        let ended = answers.recv_timeout(ANSWER_WAIT).map_err(|_| gone())?;
        let Ended { answer, ending, keep } = ended;
        sqlite::end(connection, &claim, &answer, ending, keep, millis(self.at))
            .map_err(completion_error)?;
        Ok(outcome)
    }
}

impl SqliteStore {
    /// Runs `work`, whose transaction ends with [`Finish::end`], so that the request's key ends
    /// with it.
    pub(super) async fn write_ending<T: Clone + Send + 'static>(
        &self,
        completing: Option<&Completing<T>>,
        at: Timestamp,
        work: impl FnOnce(&mut Writer, Finish<T>) -> store::Result<T> + Send + 'static,
    ) -> store::Result<T> {
        let Some(completing) = completing else {
            return self.write(move |writer| work(writer, Finish { end: None, at })).await;
        };
        let (outcomes, outcome) = oneshot::channel();
        let (answer, answers) = mpsc::channel();
        let claim = completing.claim().clone();
        let finish = Finish { end: Some(KeyEnd { claim, outcomes, answers }), at };
        let written = self.write(move |writer| work(writer, finish));
        let answering = async move {
            // There is no outcome where the work failed before it.
            if let Ok(outcome) = outcome.await {
                // The writer has stopped waiting: it says so itself.
                let _ = answer.send(completing.render(&outcome));
            }
        };
        let (written, ()) = tokio::join!(written, answering);
        written
    }

    async fn write_key<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // Each of these is one statement that writes, so what failed has written nothing.
        let written = self.write(move |writer| writer.write(|connection| Ok(work(connection))));
        written.await.unwrap_or_else(|error| Err(key_error(error)))
    }
}

#[async_trait]
impl RequestKeys for SqliteStore {
    async fn claim_key(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
        at: Timestamp,
    ) -> Result<Claimed, StoreError> {
        let (scope, fingerprint) = (scope.clone(), *fingerprint);
        self.write_key(move |c| sqlite::claim(c, &scope, &fingerprint, lease, millis(at))).await
    }

    async fn renew_key(
        &self,
        claim: &Claim,
        lease: Duration,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let claim = claim.clone();
        self.write_key(move |c| sqlite::renew(c, &claim, lease, millis(at))).await
    }

    async fn reach_key(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        let (claim, point) = (claim.clone(), point.to_owned());
        self.write_key(move |c| sqlite::reach(c, &claim, &point)).await
    }

    async fn end_key(&self, claim: &Claim, ended: &Ended, at: Timestamp) -> Result<(), StoreError> {
        let (claim, Ended { answer, ending, keep }) = (claim.clone(), ended.clone());
        self.write_key(move |c| sqlite::end(c, &claim, &answer, ending, keep, millis(at))).await
    }

    async fn release_key(&self, claim: &Claim, at: Timestamp) -> Result<(), StoreError> {
        let claim = claim.clone();
        self.write_key(move |c| sqlite::release(c, &claim, millis(at))).await
    }

    async fn sweep_keys(&self, limit: u32, at: Timestamp) -> Result<u32, StoreError> {
        self.write_key(move |c| sqlite::sweep(c, limit, millis(at))).await
    }
}

fn key_error(error: Error) -> StoreError {
    match error {
        Error::Unavailable { what } | Error::Unknown { what } | Error::Internal { what } => {
            StoreError::Unavailable(what)
        }
        Error::Corrupt { what } => StoreError::Unreadable(what),
    }
}
