//! A fresh database for one test, where there is a PostgreSQL to test on; dropped with its value,
//! so that a whole run needs the disk of a few databases and not of a thousand.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// The variable with the URL of a server on which tests may create databases.
pub const SERVER: &str = "COUNTERFOIL_TEST_POSTGRES";

/// The URL of a database that exists as long as this value.
pub struct Database(String);

impl Database {
    /// Its name begins with the suite's. None, with a printed line, if there is no server, and a
    /// failure where one is required.
    pub async fn create(suite: &str) -> Option<Self> {
        Self::create_on(SERVER, suite).await
    }

    /// The same on the server that an environment variable names.
    pub async fn create_on(variable: &str, suite: &str) -> Option<Self> {
        let Ok(server) = std::env::var(variable) else {
            let required = std::env::var("COUNTERFOIL_TEST_REQUIRE_POSTGRES").is_ok();
            assert!(!required, "{variable} is not set");
            println!("skipped: {variable} is not set");
            return None;
        };
        let name = format!("{suite}_{}", std::process::id());
        Some(Self::create_beside(&server, &name, "").await)
    }

    /// Creates a database on the server of another one, `from` nothing or a template.
    pub async fn create_beside(url: &str, name: &str, from: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}_{}", NEXT.fetch_add(1, Ordering::SeqCst));
        let (server, _) = url.rsplit_once('/').unwrap();
        execute(server, &format!("CREATE DATABASE {name}{from}")).await.unwrap();
        Self(format!("{server}/{name}"))
    }
}

impl Deref for Database {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Drop for Database {
    /// On a thread of its own: the test's runtime may be about to end. Connections that the test
    /// has left open are ended too.
    fn drop(&mut self) {
        let (server, name) = self.0.rsplit_once('/').unwrap();
        let (server, sql) = (server.to_owned(), format!("DROP DATABASE {name} WITH (FORCE)"));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // The server is about to be removed with all its databases, so a failure costs disk
            // space for minutes.
            let _ = runtime.unwrap().block_on(execute(&server, &sql));
        });
    }
}

/// Runs a statement in the database that every server has.
async fn execute(server: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    let url = format!("{server}/postgres");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(sql).await
}
