//! Keys of requests, and how one ends with its effect.
//!
//! The table and its statements are those of the crate `counterfoil_idempotency`; here they run on
//! the writer's connection.
//!
//! Invariant: a key ends in the transaction of its effect, or neither happens. What is answered is
//! made of the outcome on the writer's thread; a fault in making it rolls back and does not stop
//! the writer. A crash before the commit leaves a claim whose lease ends.

use super::{SqliteStore, Writer};
use crate::clock::Clock;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Completing, Ended, completion_error, millis};
use crate::store::{self, Error};
use async_trait::async_trait;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError, sqlite,
};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What the crate's functions come to.
type Kept<T> = Result<T, StoreError>;

/// Ends a request's key in the transaction of its effect, on the writer's thread.
pub struct Finish<T> {
    completing: Option<Completing<T>>,
    at: Timestamp,
}

impl<T> Finish<T> {
    /// To be called last in the transaction, with the outcome; on an error the caller rolls
    /// it back.
    pub fn end(self, connection: &Connection, outcome: T) -> store::Result<T> {
        let Some(completing) = self.completing else { return Ok(outcome) };
        let rendered = catch_unwind(AssertUnwindSafe(|| completing.render(&outcome)));
        let Ended { answer, ending, keep } = rendered
            .map_err(|_| Error::Internal { what: "the answer could not be made".into() })?;
        let (claim, at) = (completing.claim(), millis(self.at));
        sqlite::end(connection, claim, &answer, ending, keep, at).map_err(completion_error)?;
        Ok(outcome)
    }
}

impl SqliteStore {
    /// Runs `work`, whose transaction ends with [`Finish::end`], so that the request's key ends
    /// with it.
    pub(super) async fn write_ending<T: Send + 'static>(
        &self,
        completing: Option<&Completing<T>>,
        at: Timestamp,
        work: impl FnOnce(&mut Writer, Finish<T>) -> store::Result<T> + Send + 'static,
    ) -> store::Result<T> {
        let finish = Finish { completing: completing.cloned(), at };
        self.write(move |writer| work(writer, finish)).await
    }
}

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
