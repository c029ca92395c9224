//! Where a seed's ledger is kept: a directory, in memory where the machine has such a place, or a
//! database of its own.

use crate::scratch::scratch;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::runtime::Runtime;

/// The file of a worker's messages, and the name of a store's copy.
const LOG: &str = "worker.log";
const COPY: &str = "copy";

pub enum Place {
    Directory(tempfile::TempDir),
    Database { server: String, name: String, log: tempfile::TempDir },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

impl Place {
    pub fn new(kind: Kind, seed: u64, runtime: &Runtime) -> Self {
        match kind {
            // Syncing a thousand stores to a disk would take hours and prove nothing here: it is
            // processes that die, not the machine.
            Kind::Sqlite => Self::Directory(scratch()),
            Kind::Postgres => {
                let server = std::env::var("COUNTERFOIL_TEST_POSTGRES").unwrap();
                let name = format!("simulation_{}_{seed}", std::process::id());
                execute(runtime, &server, &format!("CREATE DATABASE {name}"));
                Self::Database { server, name, log: scratch() }
            }
        }
    }

    pub fn store(&self) -> String {
        match self {
            Self::Directory(directory) => format!("sqlite:{}", directory.path().display()),
            Self::Database { server, name, .. } => {
                format!("{}/{name}", server.rsplit_once('/').unwrap().0)
            }
        }
    }

    /// Crash points inside this store.
    pub fn crash_points(&self) -> [&'static str; 4] {
        match self {
            Self::Directory(_) => [
                "sqlite.before_commit",
                "sqlite.after_commit",
                "sqlite.before_table_commit",
                "sqlite.after_table_commit",
            ],
            Self::Database { .. } => [
                "postgres.before_commit",
                "postgres.after_commit",
                "postgres.before_table_commit",
                "postgres.after_table_commit",
            ],
        }
    }

    /// Makes a new ledger one that the seed alone decides: the keys of pushes depend on a secret
    /// of the store. Some planted bugs would be refused by the database itself: their guards go.
    pub fn prepare(&self, seed: u64, bug: Option<&str>, runtime: &Runtime) {
        let guard = match bug {
            Some("key_without_revision") => "DROP INDEX pushes_by_key",
            Some("two_unresolved") => "DROP INDEX pushes_unresolved",
            Some(_) | None => "",
        };
        let secret = format!("{seed:064x}");
        match self {
            Self::Directory(directory) => {
                let path = directory.path().join("counterfoil.db");
                let connection = rusqlite::Connection::open(path).unwrap();
                let sql = format!(
                    "UPDATE secrets SET value = x'{secret}' WHERE name = 'pushes'; {guard}"
                );
                connection.execute_batch(&sql).unwrap();
            }
            Self::Database { .. } => {
                let sql = format!(
                    "UPDATE secrets SET value = '\\x{secret}' WHERE name = 'pushes'; {guard}"
                );
                execute(runtime, &self.store(), &sql);
            }
        }
    }

    /// Whether two workers can have the store open at one time.
    pub fn takes_two(&self) -> bool {
        matches!(self, Self::Database { .. })
    }

    /// Copies the store while no worker runs.
    pub fn copy(&self, runtime: &Runtime) {
        match self {
            Self::Directory(directory) => {
                copy_files(directory.path(), &directory.path().join(COPY));
            }
            Self::Database { server, name, .. } => {
                let copy = format!("DROP DATABASE IF EXISTS {name}_{COPY}");
                execute(runtime, server, &copy);
                wait_until_alone(runtime, server, name);
                let copy = format!("CREATE DATABASE {name}_{COPY} TEMPLATE {name}");
                execute(runtime, server, &copy);
            }
        }
    }

    /// Puts the copy in the place of the store while no worker runs.
    pub fn restore(&self, runtime: &Runtime) {
        match self {
            Self::Directory(directory) => {
                for path in store_files(directory.path()) {
                    std::fs::remove_file(path).unwrap();
                }
                copy_files(&directory.path().join(COPY), directory.path());
            }
            Self::Database { server, name, .. } => {
                execute(runtime, server, &format!("DROP DATABASE {name} WITH (FORCE)"));
                execute(runtime, server, &format!("CREATE DATABASE {name} TEMPLATE {name}_{COPY}"));
            }
        }
    }

    pub fn log(&self) -> Stdio {
        let directory = self.log_directory();
        let log = File::options().create(true).append(true).open(directory.join(LOG));
        log.unwrap().into()
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log_directory().join(LOG)).unwrap_or_default()
    }

    fn log_directory(&self) -> &Path {
        match self {
            Self::Directory(directory) => directory.path(),
            Self::Database { log, .. } => log.path(),
        }
    }

    pub fn remove(self, runtime: &Runtime) {
        if let Self::Database { server, name, .. } = &self {
            execute(runtime, server, &format!("DROP DATABASE {name} WITH (FORCE)"));
            execute(runtime, server, &format!("DROP DATABASE IF EXISTS {name}_{COPY}"));
        }
    }
}

/// The files of a store in this directory; the log is none.
fn store_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file() && !path.ends_with(LOG)).collect()
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for path in store_files(to) {
        std::fs::remove_file(path).unwrap();
    }
    for path in store_files(from) {
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// The server ends the connections of a process that was killed a moment later.
fn wait_until_alone(runtime: &Runtime, server: &str, name: &str) {
    let terminate = format!(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
    );
    execute(runtime, server, &terminate);
}

fn execute(runtime: &Runtime, url: &str, sql: &str) {
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        let driver = tokio::spawn(connection);
        client.batch_execute(sql).await.unwrap();
        drop(client);
        let _ = driver.await;
    });
}
