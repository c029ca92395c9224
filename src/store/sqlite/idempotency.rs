//! Keys of requests, and how one ends with its effect.
//!
//! The table and its statements are those of the crate `counterfoil_idempotency`; here they run on
//! the writer's connection.
//!
//! Invariant: a key ends in the transaction of its effect, or neither happens. What is answered is
//! made of the outcome on the writer's thread; a fault in making it rolls back and does not stop
//! the writer. A crash before the commit leaves a claim whose lease ends.

use super::{SqliteStore, Writer};
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Completing, Ended, RequestKeys, completion_error, millis};
use crate::store::{self, Error};
use async_trait::async_trait;
use counterfoil_idempotency::{Claim, Claimed, Fingerprint, Scope, StoreError, sqlite};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Ends a request's key in the transaction of its effect, on the writer's thread.
pub struct Finish<T> {
    completing: Option<Completing<T>>,
    at: Timestamp,
}

impl<T> Finish<T> {
    /// To be called last in the transaction, with what became of it; on an error the caller rolls
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

    async fn write_key<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // Each of these is one statement that writes, so what failed has written nothing.
        let written = self.write(move |writer| writer.write(|connection| Ok(work(connection))));
        written.await?
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

    async fn forget_key(&self, claim: &Claim, at: Timestamp) -> Result<(), StoreError> {
        let claim = claim.clone();
        self.write_key(move |c| sqlite::forget(c, &claim, millis(at))).await
    }

    async fn sweep_keys(&self, limit: u32, at: Timestamp) -> Result<u32, StoreError> {
        self.write_key(move |c| sqlite::sweep(c, limit, millis(at))).await
    }
}
