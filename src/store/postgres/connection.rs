//! Connections: how they are made, set up and bounded in time.
//!
//! Invariant: every connection of this store commits synchronously and has a statement timeout. A
//! database that waits for more than its own disk (remote_write, remote_apply) keeps doing so.
//! A connection that failed in the middle of a transaction is dropped; the server then rolls back.

use super::failure::unreachable;
use crate::config::PostgresConfig;
use crate::store::{Error, Result};
use deadpool_postgres::{
    ClientWrapper, Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod,
};
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Makes connections to one database.
#[derive(Clone)]
pub struct Connector {
    target: tokio_postgres::Config,
    /// With it, connections are encrypted and the server's certificate is checked.
    tls: Option<MakeRustlsConnect>,
    timeout: Duration,
    query_timeout: Duration,
}

impl Connector {
    pub fn parse(url: &str, config: &PostgresConfig) -> Result<Self> {
        // The cause is not repeated: it may quote the password.
        let mut target: tokio_postgres::Config = url.parse().map_err(|_| Error::Unavailable {
            what: "the store's address is not a valid postgres:// connection string".into(),
        })?;
        let timeout = Duration::from_millis(config.timeout_ms);
        if target.get_application_name().is_none() {
            target.application_name("counterfoil");
        }
        // A peer that vanished without a word is noticed after the same time.
        target.connect_timeout(timeout).tcp_user_timeout(timeout).keepalives_idle(timeout);
        let encrypted = target.get_ssl_mode() == SslMode::Require;
        let tls = if encrypted { Some(require_tls()?) } else { None };
        let query_timeout = Duration::from_millis(config.query_timeout_ms);
        Ok(Self { target, tls, timeout, query_timeout })
    }

    /// A connection outside the pool.
    pub async fn open(&self) -> Result<ClientWrapper> {
        let making = Connect::connect(self, &self.target);
        let (client, task) = self.within(making).await?.map_err(|error| unreachable(&error))?;
        Ok(ClientWrapper::new(client, task))
    }

    /// Connections for queries of requests, which have a time limit of their own.
    pub fn query_pool(&self, connections: usize) -> Result<Pool> {
        Self { timeout: self.query_timeout, ..self.clone() }.pool(connections)
    }

    pub fn pool(&self, connections: usize) -> Result<Pool> {
        let settings = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(self.target.clone(), self.clone(), settings);
        Pool::builder(manager)
            .max_size(connections)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(Some(self.timeout))
            .create_timeout(Some(self.timeout))
            .build()
            .map_err(|error| Error::Internal { what: error.to_string() })
    }

    /// Bounds work on a connection. The server's own timeout comes first; this one is for a server
    /// that does not answer at all.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let patience = self.timeout.saturating_mul(2);
        tokio::time::timeout(patience, work)
            .await
            .map_err(|_| Error::Unavailable { what: "the server does not answer".into() })
    }
}

type Connecting<'a> = Pin<
    Box<dyn Future<Output = std::result::Result<Connected, tokio_postgres::Error>> + Send + 'a>,
>;
type Connected = (Client, JoinHandle<()>);

impl Connect for Connector {
    fn connect(&self, target: &tokio_postgres::Config) -> Connecting<'_> {
        let target = target.clone();
        Box::pin(async move {
            let (client, task) = match self.tls.clone() {
                Some(tls) => {
                    let (client, connection) = target.connect(tls).await?;
                    (client, drive(connection))
                }
                None => {
                    let (client, connection) = target.connect(NoTls).await?;
                    (client, drive(connection))
                }
            };
            client.batch_execute(&session_settings(self.timeout)).await?;
            Ok((client, task))
        })
    }
}

/// Runs the connection until it ends; whoever waits for an answer on it is told why it ended.
fn drive<F>(connection: F) -> JoinHandle<()>
where
    F: Future<Output = std::result::Result<(), tokio_postgres::Error>> + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to PostgreSQL ended");
        }
    })
}

fn session_settings(timeout: Duration) -> String {
    let timeout_ms = timeout.as_millis();
    format!(
        "-- session_settings
         SELECT set_config('synchronous_commit', 'on', false)
             WHERE current_setting('synchronous_commit') IN ('off', 'local');
         SET TimeZone = 'UTC';
         SET default_transaction_isolation = 'read committed';
         SET statement_timeout = {timeout_ms};
         SET idle_in_transaction_session_timeout = {timeout_ms}"
    )
}

fn require_tls() -> Result<MakeRustlsConnect> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Internal { what: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// A read-only transaction that sees one moment, on a connection of the pool. Unless it is ended,
/// the connection does not go back to the pool: a transaction left open would be the next user's.
pub struct Snapshot(Option<Object>);

impl Snapshot {
    pub async fn begin(client: Object) -> Result<Self> {
        let snapshot = Self(Some(client));
        snapshot.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        Ok(snapshot)
    }

    pub async fn end(mut self) -> Result<()> {
        self.batch_execute("COMMIT").await?;
        drop(self.0.take());
        Ok(())
    }
}

impl Deref for Snapshot {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        self.0.as_ref().expect("taken out only when it ends")
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn synchronous_commit_is_only_raised() {
        let Ok(server) = std::env::var("COUNTERFOIL_TEST_POSTGRES") else {
            println!("skipped: COUNTERFOIL_TEST_POSTGRES is not set");
            return;
        };
        let config = PostgresConfig {
            writers: 1,
            readers: 1,
            request_writers: 1,
            job_connections: 1,
            timeout_ms: 20_000,
            query_timeout_ms: 20_000,
        };
        for (set, expected) in [
            ("off", "on"),
            ("local", "on"),
            ("on", "on"),
            ("remote_write", "remote_write"),
            ("remote_apply", "remote_apply"),
        ] {
            let mut connector = Connector::parse(&server, &config).unwrap();
            connector.target.options(format!("-c synchronous_commit={set}"));
            let client = connector.open().await.unwrap();
            let row = client.query_one("SHOW synchronous_commit", &[]).await.unwrap();
            assert_eq!(row.get::<_, String>(0), expected, "set to {set}");
        }
    }
}
