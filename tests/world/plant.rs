//! Plants contradictions: changes rows of a store behind its back, as a fault would leave them.

use std::path::Path;

/// Runs statements on an embedded store, which may be open.
pub fn plant_in_directory(directory: &Path, sql: &str) {
    let connection = rusqlite::Connection::open(directory.join("counterfoil.db")).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    connection.execute_batch(sql).unwrap();
}

/// Runs statements on a database.
pub async fn plant_in_database(url: &str, sql: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
}
