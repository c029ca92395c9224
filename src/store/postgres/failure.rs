//! What a failed statement means: try the transaction again, get a new connection, or give up.
//!
//! Invariant: only failures after which the server has surely done nothing are tried again here;
//! a failed COMMIT is judged in `deliveries`, by what the database says.

use crate::store::Error;
pub use crate::store::sql::Failure;
use tokio_postgres::error::SqlState;

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        const IN_THE_WAY: [SqlState; 5] = [
            SqlState::UNIQUE_VIOLATION,
            // Citus reports what a worker refuses during a COPY without the worker's own code.
            SqlState::INTERNAL_ERROR,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        match error.code() {
            Some(code) if IN_THE_WAY.contains(code) => Self::Again(describe(&error)),
            Some(code) if lacks_partition(code, &error) => Self::Again(describe(&error)),
            Some(code) if ends_connection(code) => Self::Lost(describe(&error)),
            None if is_connection_fault(&error) => Self::Lost(describe(&error)),
            Some(_) | None => Self::Final(store_error(&error)),
        }
    }
}

/// A row for which there is no partition fails a check that has no name.
fn lacks_partition(code: &SqlState, error: &tokio_postgres::Error) -> bool {
    let unnamed = error.as_db_error().is_some_and(|answer| answer.constraint().is_none());
    *code == SqlState::CHECK_VIOLATION && unnamed
}

/// The error that the caller of a verb gets.
pub fn store_error(error: &tokio_postgres::Error) -> Error {
    let what = describe(error);
    match error.code() {
        Some(code) if is_damage(code) => Error::Corrupt { what },
        Some(code) if ends_connection(code) || is_passing(code) => Error::Unavailable { what },
        None if is_connection_fault(error) => Error::Unavailable { what },
        Some(_) | None => Error::Internal { what },
    }
}

/// For reads; statements of transactions fail with a `Failure`.
impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        if error.code() == Some(&SqlState::QUERY_CANCELED) {
            return Self::Overdue { what: describe(&error) };
        }
        store_error(&error)
    }
}

impl From<deadpool_postgres::PoolError> for Error {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => unreachable(&error),
            deadpool_postgres::PoolError::Timeout(_)
            | deadpool_postgres::PoolError::Closed
            | deadpool_postgres::PoolError::NoRuntimeSpecified
            | deadpool_postgres::PoolError::PostCreateHook(_) => {
                Self::Unavailable { what: format!("no connection for a query: {error}") }
            }
        }
    }
}

/// A connection that cannot be made is never a fault of this program: the server may be starting,
/// its password may be changed; nothing happened.
pub fn unreachable(error: &tokio_postgres::Error) -> Error {
    Error::Unavailable { what: format!("cannot connect: {}", describe(error)) }
}

/// The server's words, which the client's own text leaves out.
pub fn describe(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(answer), _) => format!("{} (SQLSTATE {})", answer.message(), answer.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// Class 08 and the server's own shutdowns.
fn ends_connection(code: &SqlState) -> bool {
    code.code().starts_with("08")
        || [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ]
        .contains(code)
}

/// A statement timeout, full disk or memory, a standby that does not take writes (yet), another
/// transaction in the way.
fn is_passing(code: &SqlState) -> bool {
    let class = &code.code()[..2];
    ["53", "57", "58", "40", "55"].contains(&class) || *code == SqlState::READ_ONLY_SQL_TRANSACTION
}

fn is_damage(code: &SqlState) -> bool {
    [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(code)
}

fn is_connection_fault(error: &tokio_postgres::Error) -> bool {
    use std::error::Error as _;
    error.is_closed() || error.source().is_some_and(|source| source.is::<std::io::Error>())
}
