//! Idempotency keys of requests, kept beside what the requests do, and how one ends with its
//! effect.
//!
//! Invariant: a request that changes money ends its key in the transaction of its effect, so there
//! is never one without the other. The table and the rules are those of the crate
//! `counterfoil_idempotency`; each store runs its functions on connections of its own.

use super::Error;
use crate::rules::timestamp::Timestamp;
use counterfoil_idempotency::{Answer, Claim, Ending, Millis, StoreError};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How an effect of type `T` is answered.
type Render<T> = Arc<dyn Fn(&T) -> Ended + Send + Sync>;

/// Ends a request's key in the transaction of its effect. What is answered depends on what became
/// of it, so the answer is made of the outcome, before the commit.
pub struct Completing<T> {
    claim: Claim,
    render: Render<T>,
}

/// An answer, and for how long it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub answer: Answer,
    pub ending: Ending,
    pub keep: Duration,
}

impl<T> Completing<T> {
    pub fn new(claim: Claim, render: impl Fn(&T) -> Ended + Send + Sync + 'static) -> Self {
        Self { claim, render: Arc::new(render) }
    }

    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    pub fn render(&self, outcome: &T) -> Ended {
        (self.render)(outcome)
    }
}

impl<T> Clone for Completing<T> {
    fn clone(&self) -> Self {
        Self { claim: self.claim.clone(), render: Arc::clone(&self.render) }
    }
}

impl<T> fmt::Debug for Completing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completing({:?})", self.claim)
    }
}

/// The moment as the crate counts it.
pub fn millis(at: Timestamp) -> Millis {
    Millis(at.micros().div_euclid(1_000))
}

/// A key that could not be ended leaves no effect either.
pub fn completion_error(error: StoreError) -> Error {
    match error {
        StoreError::Unavailable(what) => Error::Unavailable { what },
        StoreError::Unreadable(what) => Error::Corrupt { what },
        // Another caller has taken the request over and does it.
        StoreError::Fenced => Error::Unavailable { what: error.to_string() },
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable { what }
            | Error::Overdue { what }
            | Error::TooLarge { what }
            | Error::Unknown { what }
            | Error::Internal { what } => Self::Unavailable(what),
            Error::Corrupt { what } => Self::Unreadable(what),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_the_crates_own() {
        let check = |migration: &str, schema: &str| assert!(migration.ends_with(schema));
        check(
            include_str!("../../migrations/sqlite/0005_idempotency.sql"),
            counterfoil_idempotency::sqlite::SCHEMA,
        );
        check(
            include_str!("../../migrations/postgres/0005_idempotency.sql"),
            counterfoil_idempotency::postgres::SCHEMA,
        );
    }
}
