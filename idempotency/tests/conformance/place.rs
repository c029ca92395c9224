//! Where a test keeps its keys: a fresh SQLite file, PostgreSQL database or Redis server, with a
//! clock that the test moves.

use crate::database::Database;
use crate::redis_server::RedisServer;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Clock, Fingerprint, Millis, PostgresStore, RedisStore, Scope,
    SqliteStore, Store,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub const LEASE: Duration = Duration::from_secs(60);
pub const DAY: Duration = Duration::from_secs(24 * 3600);
pub const START: Millis = Millis(1_790_000_000_000);

pub struct Place {
    pub clock: Clock,
    pub address: Address,
    /// Removed with the place.
    _folder: Option<tempfile::TempDir>,
}

pub enum Address {
    Sqlite(PathBuf),
    Postgres(Database),
    Redis(RedisServer),
}

impl Place {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.db");
        Self { clock: Clock::by_hand(START), address: Address::Sqlite(path), _folder: Some(folder) }
    }

    pub async fn postgres() -> Option<Self> {
        let url = Database::create("idempotency").await?;
        let pool = pool(&url);
        PostgresStore::new(pool, Clock::by_hand(START)).create_table().await.unwrap();
        Some(Self { clock: Clock::by_hand(START), address: Address::Postgres(url), _folder: None })
    }

    pub fn redis() -> Option<Self> {
        let server = RedisServer::start("always")?;
        Some(Self { clock: Clock::by_hand(START), address: Address::Redis(server), _folder: None })
    }

    /// A store as another process would have it: a connection of its own, to the same keys.
    pub async fn store(&self) -> Arc<dyn Store> {
        self.store_by(self.clock.clone()).await
    }

    pub async fn store_by(&self, clock: Clock) -> Arc<dyn Store> {
        match &self.address {
            Address::Sqlite(path) => Arc::new(SqliteStore::open(path, clock).unwrap()),
            Address::Postgres(url) => Arc::new(PostgresStore::new(pool(url), clock)),
            Address::Redis(server) => {
                Arc::new(RedisStore::connect(&server.url(), clock).await.unwrap())
            }
        }
    }

    /// Redis forgets by itself, and by its own clock.
    pub fn sweeps(&self) -> bool {
        match self.address {
            Address::Sqlite(_) | Address::Postgres(_) => true,
            Address::Redis(_) => false,
        }
    }

    /// Runs statements on the tables of a SQL store.
    pub async fn execute(&self, sql: &str) {
        match &self.address {
            Address::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(Duration::from_secs(5)).unwrap();
                connection.execute_batch(sql).unwrap();
            }
            Address::Postgres(url) => {
                pool(url).get().await.unwrap().batch_execute(sql).await.unwrap();
            }
            Address::Redis(_) => panic!("Redis has no tables"),
        }
    }
}

pub fn pool(url: &str) -> deadpool_postgres::Pool {
    let config: tokio_postgres::Config = url.parse().unwrap();
    let connections = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    deadpool_postgres::Pool::builder(connections).max_size(4).build().unwrap()
}

pub fn scope(tenant: &str, key: &str) -> Scope {
    Scope { tenant: tenant.to_owned(), route: "POST /orders".to_owned(), key: key.to_owned() }
}

pub fn request(number: u8) -> Fingerprint {
    Fingerprint([number; 32])
}

pub fn answer(status: u16, body: &'static str) -> Answer {
    let kind = ("content-type".to_owned(), b"text/plain".to_vec());
    Answer { status, headers: vec![kind], body: body.into() }
}

/// The claim, where there must be one.
pub fn owned(claimed: Claimed) -> Claim {
    match claimed {
        Claimed::Owned(claim) => claim,
        other => panic!("the key should have been free: {other:?}"),
    }
}

/// For how long the key is busy, where it must be.
pub fn busy(claimed: Claimed) -> Duration {
    match claimed {
        Claimed::Busy { retry_after } => retry_after,
        other => panic!("the key should have been busy: {other:?}"),
    }
}
