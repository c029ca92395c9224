//! Exactly once in effect, for HTTP calls that change something.

mod canonical;
mod clock;
mod digest;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod judge;
mod key;
mod layer;
#[cfg(feature = "postgres")]
pub mod postgres;
mod problem;
mod record;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;

pub use clock::{Clock, SweepTime};
pub use key::{Key, key};
pub use layer::{Attempt, Idempotency, IdempotencyLayer, Identity, KeyPolicy, Settings};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use problem::{Code, Problem};
pub use record::{Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::Store;
