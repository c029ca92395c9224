//! What the statements of a transaction come to.

use crate::rules::fault::Fault;
use crate::store::Error;

/// The outcome of work inside a transaction.
pub type Done<T> = Result<T, Failure>;

/// Why a transaction ended without a commit.
#[derive(Debug)]
pub enum Failure {
    /// Another transaction was in the way; the same work will now see its result.
    Again(String),
    /// The connection broke; the server rolls back what it had.
    Lost(String),
    /// Trying again does not help.
    Final(Error),
}

impl Failure {
    /// The error for the caller when nothing is retried.
    pub fn into_error(self) -> Error {
        match self {
            Self::Again(what) | Self::Lost(what) => Error::Unavailable { what },
            Self::Final(error) => error,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.into_error()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Final(fault.into())
    }
}
