//! A fresh database for one test, where there is a PostgreSQL to test on; dropped with its value,
//! so that a whole run needs the disk of a few databases and not of a thousand.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The variable with the URL of a server on which tests may create databases.
pub const SERVER: &str = "COUNTERFOIL_TEST_POSTGRES";
/// The variable with the URLs of the workers of a Citus cluster, whose coordinator is that server.
const WORKERS: &str = "COUNTERFOIL_TEST_CITUS_WORKERS";

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
        let workers = workers();
        for node in workers.iter().map(String::as_str).chain([server]) {
            execute(node, &format!("CREATE DATABASE {name}{from}")).await.unwrap();
        }
        if !workers.is_empty() && from.is_empty() {
            join_nodes(server, &workers, &name).await;
        }
        Self(format!("{server}/{name}"))
    }

    /// Ends what uses the database, so that others can be copies of it. On a Citus cluster the
    /// extension itself does.
    #[allow(dead_code, reason = "not every suite copies databases")]
    pub async fn seal(&self) {
        let (server, name) = self.0.rsplit_once('/').unwrap();
        let workers = workers();
        if workers.is_empty() {
            return;
        }
        for node in workers.iter().map(String::as_str).chain([server]) {
            execute(node, &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await.unwrap();
            let sql = format!(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                 WHERE datname = '{name}'"
            );
            execute(node, &sql).await.unwrap();
        }
    }
}

/// How often a worker is added to a cluster.
const NODE_TRIES_MAX: usize = 5;

/// The workers of the Citus cluster that is tested on; none on a plain PostgreSQL.
pub fn workers() -> Vec<String> {
    let urls = std::env::var(WORKERS).unwrap_or_default();
    let base = |url: &str| url.rsplit_once('/').unwrap().0.to_owned();
    urls.split(',').filter(|url| !url.is_empty()).map(base).collect()
}

/// Makes databases of one name on all nodes a cluster.
async fn join_nodes(coordinator: &str, workers: &[String], name: &str) {
    for node in workers.iter().map(String::as_str).chain([coordinator]) {
        execute_in(node, name, "CREATE EXTENSION citus").await.unwrap();
    }
    let port = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
    let sql = format!("SELECT citus_set_coordinator_host('127.0.0.1', {})", port(coordinator));
    execute_in(coordinator, name, &sql).await.unwrap();
    for worker in workers {
        let sql = format!("SELECT citus_add_node('127.0.0.1', {})", port(worker));
        let mut tries = 1;
        // On a busy machine the new database of a worker may not take a connection at once.
        while let Err(error) = execute_in(coordinator, name, &sql).await {
            assert!(tries < NODE_TRIES_MAX, "a worker could not be added: {error}");
            tries += 1;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
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
        let sql = format!("DROP DATABASE {name} WITH (FORCE)");
        let mut nodes = workers();
        nodes.insert(0, server.to_owned());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // The server is about to be removed with all its databases, so a failure costs disk
            // space for minutes.
            let runtime = runtime.unwrap();
            for node in nodes {
                let _ = runtime.block_on(execute(&node, &sql));
            }
        });
    }
}

/// Runs a statement in the database that every server has.
async fn execute(server: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    execute_in(server, "postgres", sql).await
}

async fn execute_in(server: &str, name: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    let url = format!("{server}/{name}");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(sql).await
}
