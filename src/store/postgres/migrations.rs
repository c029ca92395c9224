//! The schema and the store's secrets: made once, by the first server.
//!
//! Each migration commits together with its row in `schema_migrations`, under a lock that keeps
//! two servers that start at once apart; a crash leaves it applied or not.

use super::scalars::{SqlTimestamp, column, corrupt};
use crate::rules::timestamp::Timestamp;
use crate::store::migrate::{self, Applied, Migration, judge_migrations};
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;

const MIGRATIONS: [Migration; 10] = [
    Migration {
        number: 1,
        name: "ledger",
        sql: include_str!("../../../migrations/postgres/0001_ledger.sql"),
    },
    Migration {
        number: 2,
        name: "outbound",
        sql: include_str!("../../../migrations/postgres/0002_outbound.sql"),
    },
    Migration {
        number: 3,
        name: "inbound",
        sql: include_str!("../../../migrations/postgres/0003_inbound.sql"),
    },
    Migration {
        number: 4,
        name: "money",
        sql: include_str!("../../../migrations/postgres/0004_money.sql"),
    },
    Migration {
        number: 5,
        name: "idempotency",
        sql: include_str!("../../../migrations/postgres/0005_idempotency.sql"),
    },
    Migration {
        number: 6,
        name: "accidents",
        sql: include_str!("../../../migrations/postgres/0006_accidents.sql"),
    },
    Migration {
        number: 7,
        name: "safety",
        sql: include_str!("../../../migrations/postgres/0007_safety.sql"),
    },
    Migration {
        number: 8,
        name: "recuts",
        sql: include_str!("../../../migrations/postgres/0008_recuts.sql"),
    },
    Migration {
        number: 9,
        name: "decisions",
        sql: include_str!("../../../migrations/postgres/0009_decisions.sql"),
    },
    Migration {
        number: 10,
        name: "corrections",
        sql: include_str!("../../../migrations/postgres/0010_corrections.sql"),
    },
];

/// Any number, as long as every version of this program takes the same one.
const MIGRATION_LOCK: i64 = 0x636f_756e_7465_7266;

/// Applies what is missing, or refuses a schema this program does not know.
pub async fn migrate(client: &mut ClientWrapper) -> Result<()> {
    // The lock belongs to the session, so that it also covers the creation of the first table.
    client.execute("-- migrate\nSELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
    migrate_locked(client).await?;
    // After a failure the connection is dropped, and its lock with it.
    client.execute("-- migrate\nSELECT pg_advisory_unlock($1)", &[&MIGRATION_LOCK]).await?;
    Ok(())
}

async fn migrate_locked(client: &mut ClientWrapper) -> Result<()> {
    let sql = "-- migrate_locked
        CREATE TABLE IF NOT EXISTS schema_migrations (
            -- of the file in migrations/postgres
            number bigint NOT NULL PRIMARY KEY,
            -- of the file, without its number
            name text NOT NULL,
            -- SHA-256 of the file, in hex
            checksum text NOT NULL,
            -- when it was applied, by the database's clock
            applied_at timestamptz NOT NULL
        )";
    // A migration takes as long as it takes; this connection is used for nothing else.
    let patience = "SET statement_timeout = 0; SET client_min_messages = warning";
    client.batch_execute(patience).await?;
    client.batch_execute(sql).await?;
    for migration in judge_migrations(&MIGRATIONS, &applied(client).await?)? {
        let transaction = client.transaction().await?;
        transaction.batch_execute(migration.sql).await?;
        let sql = "-- migrate_locked
            INSERT INTO schema_migrations (number, name, checksum, applied_at)
            VALUES ($1, $2, $3, clock_timestamp())";
        let checksum = migration.checksum();
        transaction.execute(sql, &[&migration.number, &migration.name, &checksum]).await?;
        transaction.commit().await?;
        tracing::info!(number = migration.number, name = migration.name, "migrated the schema");
    }
    Ok(())
}

async fn applied(client: &ClientWrapper) -> Result<Vec<Applied>> {
    let sql = "-- applied
        SELECT number, checksum FROM schema_migrations ORDER BY number";
    let mut applied = Vec::new();
    for row in client.query(sql, &[]).await? {
        applied.push(Applied { number: column(&row, 0)?, checksum: column(&row, 1)? });
    }
    Ok(applied)
}

/// Refuses a schema that is not exactly this version's; for commands that only read.
pub async fn require_current(client: &ClientWrapper) -> Result<()> {
    let sql = "-- require_current
        SELECT to_regclass('schema_migrations') IS NOT NULL";
    let migrated: bool = column(&client.query_one(sql, &[]).await?, 0)?;
    let applied = if migrated { applied(client).await? } else { Vec::new() };
    migrate::require_current(&MIGRATIONS, &applied)
}

/// The store's secret of that name; the first server to ask makes it.
pub async fn secret<const BYTES: usize>(client: &ClientWrapper, name: &str) -> Result<[u8; BYTES]> {
    let mut fresh = [0; BYTES];
    getrandom::fill(&mut fresh).map_err(|error| Error::Internal { what: error.to_string() })?;
    let sql = "-- secret
        INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    client.execute(sql, &[&name, &fresh.as_slice()]).await?;
    read_secret(client, name).await
}

/// The store's secret of that name, which must exist.
pub async fn read_secret<const BYTES: usize>(
    client: &ClientWrapper,
    name: &str,
) -> Result<[u8; BYTES]> {
    let sql = "-- read_secret
        SELECT value FROM secrets WHERE name = $1";
    let row = client.query_one(sql, &[&name]).await?;
    let value: Vec<u8> = column(&row, 0)?;
    value.try_into().map_err(|_| corrupt(format!("secrets.name='{name}' has a wrong length")))
}

/// The latest moment any server has committed a batch at.
pub async fn high_water(client: &ClientWrapper) -> Result<Timestamp> {
    let sql = "-- high_water
        SELECT max(committed_at) FROM ingest_commits";
    let row = client.query_one(sql, &[]).await?;
    let latest: Option<SqlTimestamp> = column(&row, 0)?;
    Ok(latest.map_or_else(Timestamp::default, |stamp| stamp.0))
}

/// Refuses a database that cannot hold every text, and speaks up if the server may lose what it
/// has acknowledged.
pub async fn check_server(client: &ClientWrapper) -> Result<()> {
    let sql = "-- check_server
        SELECT name, setting FROM pg_settings
        WHERE name IN ('fsync', 'full_page_writes', 'server_encoding')";
    for row in client.query(sql, &[]).await? {
        let (name, setting): (String, String) = (column(&row, 0)?, column(&row, 1)?);
        match (name.as_str(), setting.as_str()) {
            ("server_encoding", "UTF8") => {}
            ("server_encoding", encoding) => {
                return Err(Error::Unavailable {
                    what: format!("the database's encoding is {encoding}; it must be UTF8"),
                });
            }
            (name, "off") => {
                tracing::warn!(
                    setting = name,
                    "the database runs with {name} off: a crash of its machine loses events"
                );
            }
            (_, _) => {}
        }
    }
    Ok(())
}
