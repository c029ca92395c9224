//! What the layer adds to a call: a bare handler, and the same under the layer on each store, in
//! one run. For new keys and for replays, one caller and sixteen, in process and over a loopback
//! connection; the median and the 99th percentile in microseconds.
//!
//! SQLite commits with synchronous=FULL, PostgreSQL with its own defaults, and both sync twice for
//! each new key: claim and end. Redis syncs once a second (`appendfsync everysec`) and so promises
//! less; its figures are no reason to trust it more.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../tests/conformance/redis_server.rs"]
#[expect(dead_code, reason = "the tests also kill it")]
mod redis_server;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use counterfoil_idempotency::{
    Clock, IdempotencyLayer, Identity, PostgresStore, RedisStore, Settings, SqliteStore, Store,
};
use http_body_util::BodyExt;
use redis_server::RedisServer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

/// Calls for each figure, shared by the callers.
const CALLS: usize = 480;
const CALLERS: [usize; 2] = [1, 16];
const BODY: &str = r#"{"customer":"cus_17","plan":"pro","quantity":3}"#;

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    println!("{CALLS} calls for each figure; microseconds");
    println!(
        "{:<12}{:<12}{:>8}{:>10}{:>10}{:>13}{:>13}",
        "store", "path", "callers", "new p50", "new p99", "replay p50", "replay p99"
    );
    measure("none", bare()).await;
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(&folder.path().join("keys.db"), Clock::system()).unwrap();
    measure("SQLite", layered(Arc::new(sqlite))).await;
    match std::env::var("COUNTERFOIL_TEST_POSTGRES") {
        Ok(url) => measure("PostgreSQL", layered(Arc::new(postgres(&url).await))).await,
        Err(_) => println!("PostgreSQL: left out, since COUNTERFOIL_TEST_POSTGRES is not set"),
    }
    if let Some(server) = RedisServer::start("everysec") {
        let store = RedisStore::connect(&server.url(), Clock::system()).await.unwrap();
        measure("Redis", layered(Arc::new(store))).await;
    }
}

async fn postgres(url: &str) -> PostgresStore {
    let config: tokio_postgres::Config = url.parse().unwrap();
    let connections = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(connections).max_size(16).build().unwrap();
    let store = PostgresStore::new(pool, Clock::system());
    store.create_table().await.unwrap();
    store
}

fn bare() -> Router {
    Router::new().route("/orders", post(|body: String| async move { (StatusCode::CREATED, body) }))
}

fn layered(store: Arc<dyn Store>) -> Router {
    let identify =
        |_: &_| Some(Identity { tenant: "acme".to_owned(), route: "POST /orders".to_owned() });
    bare().layer(IdempotencyLayer::new(store, Settings::default(), identify))
}

async fn measure(store: &str, router: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, router.clone()).into_future());
    for callers in CALLERS {
        for path in [Path::InProcess(router.clone()), Path::Loopback(address)] {
            let run = format!("{store}-{callers}-{}-{}", path.name(), std::process::id());
            let new = percentiles(run_calls(&path, callers, &run).await);
            let replay = percentiles(run_calls(&path, callers, &run).await);
            println!(
                "{store:<12}{:<12}{callers:>8}{:>10}{:>10}{:>13}{:>13}",
                path.name(),
                new.0,
                new.1,
                replay.0,
                replay.1
            );
        }
    }
}

/// How a call gets to the handler.
#[derive(Clone)]
enum Path {
    InProcess(Router),
    Loopback(SocketAddr),
}

impl Path {
    fn name(&self) -> &'static str {
        match self {
            Self::InProcess(_) => "in-process",
            Self::Loopback(_) => "loopback",
        }
    }
}

/// How long each call took. The keys depend on the run alone, so that a second run is of replays.
async fn run_calls(path: &Path, callers: usize, run: &str) -> Vec<Duration> {
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let (path, run) = (path.clone(), run.to_owned());
        tasks.spawn(async move {
            let keys = (0..CALLS / callers).map(|number| format!("{run}-{caller}-{number}"));
            match path {
                Path::InProcess(router) => call_in_process(&router, keys).await,
                Path::Loopback(address) => call_over_loopback(address, keys).await,
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn call_in_process(router: &Router, keys: impl Iterator<Item = String>) -> Vec<Duration> {
    let mut times = Vec::new();
    for key in keys {
        let request = Request::post("/orders")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Body::from(BODY))
            .unwrap();
        let began = Instant::now();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        response.into_body().collect().await.unwrap();
        times.push(began.elapsed());
    }
    times
}

/// On one connection that is kept open, as a client of any sense does.
async fn call_over_loopback(
    address: SocketAddr,
    keys: impl Iterator<Item = String>,
) -> Vec<Duration> {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.set_nodelay(true).unwrap();
    let mut times = Vec::new();
    for key in keys {
        let request = format!(
            "POST /orders HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
             idempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let began = Instant::now();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The handler answers with the body it was sent, which is the last of the answer.
        while !answer.ends_with(BODY.as_bytes()) {
            let read = connection.read_buf(&mut answer).await.unwrap();
            let good = read > 0 && answer.starts_with(b"HTTP/1.1 201 ");
            assert!(good, "{}", String::from_utf8_lossy(&answer));
        }
        times.push(began.elapsed());
    }
    times
}

/// The median and the 99th percentile, in microseconds.
fn percentiles(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    (at(50), at(99))
}
