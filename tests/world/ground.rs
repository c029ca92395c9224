//! Where the store of a test lives: a directory, or a database of a PostgreSQL server.
//!
//! Tests that run on every store take a [`Ground`] and never ask which one it is, except to change
//! rows behind the store's back.

use super::database::{Database, workers};
use super::plant::{plant_in_database, plant_in_directory};
use super::scratch::scratch;
use counterfoil::config::{PostgresConfig, SqliteConfig};
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::{Error, Result, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

pub enum Ground {
    Directory(tempfile::TempDir),
    Database(Database),
}

/// Small segments, so that tests of a hundred events fold several times.
const SQLITE: SqliteConfig = SqliteConfig {
    segment_events: 40,
    segment_age_max_ms: 3_600_000,
    readers: 2,
    query_timeout_ms: 30_000,
};

pub const POSTGRES: PostgresConfig = PostgresConfig {
    writers: 2,
    readers: 2,
    request_writers: 4,
    job_connections: 2,
    timeout_ms: 20_000,
    query_timeout_ms: 30_000,
};

impl Ground {
    pub fn sqlite() -> Self {
        Self::Directory(scratch())
    }

    /// None, with a printed line, if there is no PostgreSQL to test on.
    pub async fn postgres() -> Option<Self> {
        let template = TEMPLATE.get_or_init(create_template).await.as_ref()?;
        let (_, name) = template.rsplit_once('/').unwrap();
        let from = format!(" TEMPLATE {name}");
        Some(Self::Database(Database::create_beside(template, name, &from).await))
    }

    /// Opens the store; with event keys of so few bits that they collide, if a number is given.
    pub async fn open(&self, colliding_bits: Option<u32>) -> Arc<dyn Store> {
        match (self, colliding_bits) {
            (Self::Directory(_), None) => {
                open_unlocked(|| SqliteStore::open(&self.data(), &SQLITE)).await
            }
            (Self::Directory(_), Some(bits)) => {
                open_unlocked(|| SqliteStore::open_colliding(&self.data(), &SQLITE, bits)).await
            }
            (Self::Database(url), bits) => {
                PostgresStore::open_with_fingerprinter_bits(url, &POSTGRES, bits).await.unwrap()
            }
        }
    }

    /// The directory of the embedded store. It is inside another one: the store writes beside it.
    pub fn data(&self) -> PathBuf {
        match self {
            Self::Directory(directory) => directory.path().join("data"),
            Self::Database(url) => panic!("{} is no directory", &**url),
        }
    }

    /// Changes rows behind the store's back; the statements must suit both stores.
    pub async fn plant(&self, sql: &str) {
        match self {
            Self::Directory(_) => plant_in_directory(&self.data(), sql),
            Self::Database(url) => plant_in_database(url, sql).await,
        }
    }
}

/// A migrated database that those of the tests are copies of: copying one takes less time than
/// migrating one.
static TEMPLATE: OnceCell<Option<Database>> = OnceCell::const_new();

async fn create_template() -> Option<Database> {
    let url = Database::create("tests").await?;
    if !workers().is_empty() {
        PostgresStore::distribute(&url, &POSTGRES).await.unwrap();
    }
    PostgresStore::open(&url, &POSTGRES).await.unwrap().close().await;
    url.seal().await;
    Some(url)
}

/// Opens a directory that was closed a moment ago. A child that another test of this process starts
/// inherits the lock of the directory and keeps it until it executes its program.
async fn open_unlocked(open: impl Fn() -> Result<Arc<SqliteStore>>) -> Arc<dyn Store> {
    for _ in 0..100 {
        match open() {
            Err(Error::Unavailable { what }) if what.contains("in use") => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("the directory stays in use");
}
