//! Applies the embedded migrations; see `store::migrate` for the rules.

use super::sql_error;
use crate::store::Result;
use crate::store::migrate::{self, Applied, Migration, judge_migrations};
use rusqlite::{Connection, params};

const MIGRATIONS: [Migration; 10] = [
    Migration {
        number: 1,
        name: "ledger",
        sql: include_str!("../../../migrations/sqlite/0001_ledger.sql"),
    },
    Migration {
        number: 2,
        name: "outbound",
        sql: include_str!("../../../migrations/sqlite/0002_outbound.sql"),
    },
    Migration {
        number: 3,
        name: "inbound",
        sql: include_str!("../../../migrations/sqlite/0003_inbound.sql"),
    },
    Migration {
        number: 4,
        name: "money",
        sql: include_str!("../../../migrations/sqlite/0004_money.sql"),
    },
    Migration {
        number: 5,
        name: "idempotency",
        sql: include_str!("../../../migrations/sqlite/0005_idempotency.sql"),
    },
    Migration {
        number: 6,
        name: "accidents",
        sql: include_str!("../../../migrations/sqlite/0006_accidents.sql"),
    },
    Migration {
        number: 7,
        name: "safety",
        sql: include_str!("../../../migrations/sqlite/0007_safety.sql"),
    },
    Migration {
        number: 8,
        name: "recuts",
        sql: include_str!("../../../migrations/sqlite/0008_recuts.sql"),
    },
    Migration {
        number: 9,
        name: "decisions",
        sql: include_str!("../../../migrations/sqlite/0009_decisions.sql"),
    },
    Migration {
        number: 10,
        name: "corrections",
        sql: include_str!("../../../migrations/sqlite/0010_corrections.sql"),
    },
];

/// Of ledger.db.
const LEDGER_MIGRATIONS: [Migration; 1] = [Migration {
    number: 1,
    name: "ledger",
    sql: include_str!("../../../migrations/ledger/0001_ledger.sql"),
}];

/// Brings the schema of counterfoil.db up to date, or refuses a schema that is not known.
pub fn migrate(connection: &mut Connection) -> Result<()> {
    apply(connection, &MIGRATIONS)
}

/// The same for ledger.db.
pub fn migrate_ledger(connection: &mut Connection) -> Result<()> {
    apply(connection, &LEDGER_MIGRATIONS)
}

fn apply(connection: &mut Connection, migrations: &[Migration]) -> Result<()> {
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (
                 number INTEGER NOT NULL PRIMARY KEY,
                 name TEXT NOT NULL,
                 checksum TEXT NOT NULL
             ) STRICT",
    )?;
    for migration in judge_migrations(migrations, &applied(connection, "main")?)? {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration.sql)?;
        transaction.execute(
            "INSERT INTO schema_migrations (number, name, checksum) VALUES (?, ?, ?)",
            params![migration.number, migration.name, migration.checksum()],
        )?;
        transaction.commit()?;
    }
    Ok(())
}

/// Refuses a store whose schema is not exactly this version's; for commands that only read. The
/// connection has both databases.
pub fn require_current(connection: &Connection) -> Result<()> {
    migrate::require_current(&MIGRATIONS, &applied(connection, "main")?)?;
    migrate::require_current(&LEDGER_MIGRATIONS, &applied(connection, "ledger")?)
}

fn applied(connection: &Connection, database: &str) -> Result<Vec<Applied>> {
    let migrated: bool = connection.query_row(
        &format!(
            "SELECT EXISTS (SELECT 1 FROM {database}.sqlite_schema WHERE name = 'schema_migrations')"
        ),
        [],
        |row| row.get(0),
    )?;
    if !migrated {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT number, checksum FROM {database}.schema_migrations ORDER BY number");
    connection
        .prepare(&sql)
        .and_then(|mut select| {
            select
                .query_map([], |row| Ok(Applied { number: row.get(0)?, checksum: row.get(1)? }))?
                .collect()
        })
        .map_err(sql_error)
}
