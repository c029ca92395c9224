//! A fresh database for one test, where there is a PostgreSQL to test on.

use std::sync::atomic::{AtomicU32, Ordering};

/// The variable with the URL of a server on which tests may create databases.
pub const SERVER: &str = "COUNTERFOIL_TEST_POSTGRES";

/// Its URL; its name begins with the suite's. None, with a printed line, if there is no server, and
/// a failure where one is required.
pub async fn create_database(suite: &str) -> Option<String> {
    create_database_on(SERVER, suite).await
}

/// The same on the server that an environment variable names.
pub async fn create_database_on(variable: &str, suite: &str) -> Option<String> {
    let Ok(server) = std::env::var(variable) else {
        let required = std::env::var("COUNTERFOIL_TEST_REQUIRE_POSTGRES").is_ok();
        assert!(!required, "{variable} is not set");
        println!("skipped: {variable} is not set");
        return None;
    };
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    let name = format!("{suite}_{}_{number}", std::process::id());
    let (client, connection) =
        tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    let base = server.rsplit_once('/').unwrap().0;
    Some(format!("{base}/{name}"))
}
