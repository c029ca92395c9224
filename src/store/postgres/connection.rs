//! Connections: how they are made, set up and bounded in time.
//!
//! Invariant: every connection of this store commits synchronously and has a statement timeout. A
//! database that waits for more than its own disk (remote_write, remote_apply) keeps doing so.
//! A connection that failed in the middle of a transaction is dropped; the server then rolls back.

use super::failure::unreachable;
use super::tls::TlsChoice;
use crate::config::PostgresConfig;
use crate::store::{Error, Result};
use deadpool_postgres::{
    ClientWrapper, Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod,
};
use std::future::Future;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Makes connections to one database.
#[derive(Clone)]
pub struct Connector {
    target: tokio_postgres::Config,
    /// With it, TLS is offered.
    tls: Option<MakeRustlsConnect>,
    timeout: Duration,
    query_timeout: Duration,
    /// Whether the tables are distributed over a Citus cluster.
    pub distributed: bool,
}

impl Connector {
    pub fn parse(url: &str, config: &PostgresConfig) -> Result<Self> {
        let (url, choice) = TlsChoice::take_from(url)?;
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
        target.ssl_mode(choice.mode);
        if choice.is_weak() && target.get_hosts().iter().any(|host| !is_local(host)) {
            tracing::warn!(
                "the connection to PostgreSQL is not protected: anyone on the path can read \
                 the password and the data; add ?sslmode=verify-full to the store's address, see \
                 \"TLS to PostgreSQL\" in docs/operating.md"
            );
        }
        let tls = if choice.mode == SslMode::Disable {
            None
        } else {
            Some(MakeRustlsConnect::new(choice.client_config()?))
        };
        let query_timeout = Duration::from_millis(config.query_timeout_ms);
        Ok(Self { target, tls, timeout, query_timeout, distributed: false })
    }

    /// A connection outside the pool.
    pub async fn open(&self) -> Result<ClientWrapper> {
        match self.try_open().await {
            Ok(client) => Ok(client),
            Err(Refusal::ByServer(error) | Refusal::NoAnswer(error)) => Err(error),
        }
    }

    /// As [`Self::open`], and says whether trying again may help.
    pub async fn try_open(&self) -> std::result::Result<ClientWrapper, Refusal> {
        let making = Connect::connect(self, &self.target);
        match self.within(making).await {
            Ok(Ok((client, task))) => Ok(ClientWrapper::new(client, task)),
            Ok(Err(error)) if is_refusal(&error) => Err(Refusal::ByServer(unreachable(&error))),
            Ok(Err(error)) => Err(Refusal::NoAnswer(unreachable(&error))),
            Err(silence) => Err(Refusal::NoAnswer(silence)),
        }
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

/// Why there is no connection.
pub enum Refusal {
    /// The server answered: no such user, wrong password, no such database.
    ByServer(Error),
    NoAnswer(Error),
}

fn is_refusal(error: &tokio_postgres::Error) -> bool {
    let class = error.code().map(|code| &code.code()[..2]);
    class.is_some_and(|class| ["28", "3D"].contains(&class))
}

/// Whether nothing is sent over a network.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            let address: Option<IpAddr> = name.parse().ok();
            name == "localhost" || address.is_some_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
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
            if self.distributed {
                // One connection to each node: then all that a transaction reads there is of one
                // moment, and a few shards cost no more than one.
                let sql = "SET citus.max_adaptive_executor_pool_size = 1";
                client.batch_execute(sql).await?;
            }
            Ok((client, task))
        })
    }
}

/// Runs the connection until it ends; callers that wait for an answer get the reason.
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
        let config = config();
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

    /// What a client sends first, if the server answers that it has no TLS, and what it sends then.
    async fn talk_in_clear(parameters: &str) -> (u32, Option<u32>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const STARTUP: u32 = 0x0003_0000;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("postgres://u:hunter2@127.0.0.1:{port}/d{parameters}");
        let client = tokio::spawn(async move {
            let _ = Connector::parse(&url, &config()).unwrap().open().await;
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut code = async || {
            stream.read_u32().await.ok()?;
            let code = stream.read_u32().await.ok();
            if code != Some(STARTUP) {
                stream.write_all(b"N").await.ok()?;
            }
            code
        };
        let first = code().await.unwrap();
        let then = if first == STARTUP { None } else { code().await };
        drop(stream);
        client.await.unwrap();
        (first, then)
    }

    fn config() -> PostgresConfig {
        PostgresConfig {
            writers: 1,
            readers: 1,
            request_writers: 1,
            job_connections: 1,
            timeout_ms: 20_000,
            query_timeout_ms: 20_000,
        }
    }

    #[tokio::test]
    async fn tls_is_offered_unless_it_is_disabled() {
        const SSL_REQUEST: u32 = 80_877_103;
        const STARTUP: u32 = 0x0003_0000;
        assert_eq!(talk_in_clear("").await, (SSL_REQUEST, Some(STARTUP)));
        assert_eq!(talk_in_clear("?sslmode=prefer").await, (SSL_REQUEST, Some(STARTUP)));
        assert_eq!(talk_in_clear("?sslmode=require").await, (SSL_REQUEST, None));
        assert_eq!(talk_in_clear("?sslmode=verify-full").await, (SSL_REQUEST, None));
        assert_eq!(talk_in_clear("?sslmode=disable").await, (STARTUP, None));
    }

    #[test]
    fn loopback_and_sockets_are_local() {
        let local = |name: &str| is_local(&Host::Tcp(name.to_owned()));
        assert!(local("localhost") && local("127.0.0.1") && local("::1"));
        assert!(!local("db.example") && !local("10.0.0.1"));
        assert!(is_local(&Host::Unix("/run/postgresql".into())));
    }
}
