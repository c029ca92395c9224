//! Plants contradictions: changes rows of a store behind its back, as a fault would leave them.

use std::path::Path;

/// A connection to both databases of an embedded store; each table is in one of them.
pub fn open_directory(directory: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(directory.join("counterfoil.db")).unwrap();
    let ledger = directory.join("ledger.db");
    connection.execute("ATTACH ? AS ledger", [ledger.to_str()]).unwrap();
    connection
}

/// Runs statements on an embedded store, which may be open.
pub fn plant_in_directory(directory: &Path, sql: &str) {
    let connection = open_directory(directory);
    connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    connection.execute_batch(sql).unwrap();
}

/// Runs statements on a database.
pub async fn plant_in_database(url: &str, sql: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
}
