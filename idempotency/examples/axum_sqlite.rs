//! An axum service with its idempotency keys in SQLite:
//! `cargo run -p counterfoil-idempotency --features sqlite --example axum_sqlite`.
//!
//! Orders and keys are in one file, so an order and the end of its key are committed together. The
//! example starts the service on a free port, sends one request three times over the network, as a
//! client does that got no answer, and ends.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, request::Parts};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, routing::post};
use counterfoil_idempotency::{
    Answer, Attempt, Claim, Clock, Ending, IdempotencyLayer, Identity, Settings, SqliteStore,
    sqlite,
};
use rusqlite::{Connection, TransactionBehavior};
use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Orders = Arc<Mutex<Connection>>;
type Failure = Box<dyn Error + Send + Sync>;

/// How long answers are kept; longer than clients send again.
const KEEP: Duration = Duration::from_secs(24 * 3600);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (app, orders) = build(&folder.path().join("shop.db"))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    for (key, body) in [("order-42", "tea"), ("order-42", "tea"), ("order-42", "coffee")] {
        let answer = send(address, key, body).await?;
        println!("{key} {body}:\n{answer}\n");
        let expected = if body == "tea" { "HTTP/1.1 201" } else { "HTTP/1.1 422" };
        if !answer.starts_with(expected) {
            return Err(format!("expected {expected}").into());
        }
    }
    let orders = orders.lock().expect("no handler panicked");
    let made: i64 = orders.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
    println!("orders made: {made}");
    if made == 1 { Ok(()) } else { Err("one key must make one order".into()) }
}

/// The application, and its connection to the orders.
fn build(file: &Path) -> Result<(Router, Orders), Failure> {
    let store = SqliteStore::open(file, Clock::system())?;
    let orders = Connection::open(file)?;
    orders.execute_batch("CREATE TABLE IF NOT EXISTS orders (what TEXT NOT NULL)")?;
    let orders = Arc::new(Mutex::new(orders));
    let app = Router::new()
        .route("/orders", post(create_order))
        .with_state(Arc::clone(&orders))
        .layer(IdempotencyLayer::new(Arc::new(store), Settings::default(), identify))
        // What is added later runs earlier: the layer has to know the tenant.
        .layer(from_fn(authenticate));
    Ok((app, orders))
}

/// Whom authentication has found.
#[derive(Clone)]
struct Tenant(String);

async fn authenticate(mut request: Request, next: Next) -> Response {
    // A real one looks at a token.
    request.extensions_mut().insert(Tenant("acme".to_owned()));
    next.run(request).await
}

/// Whose key it is. A request must not be able to name its tenant itself.
fn identify(parts: &Parts) -> Option<Identity> {
    let Tenant(tenant) = parts.extensions.get::<Tenant>()?.clone();
    let path = parts.extensions.get::<MatchedPath>()?.as_str();
    Some(Identity { tenant, route: format!("{} {path}", parts.method) })
}

async fn create_order(
    State(orders): State<Orders>,
    Extension(attempt): Extension<Attempt>,
    what: String,
) -> Response {
    let answer = Answer { status: 201, headers: vec![], body: format!("made: {what}").into() };
    match make_order(&orders, attempt.claim(), &what, &answer) {
        Ok(()) => Attempt::ended(answer),
        // Nothing was done: the layer releases the key, and the client may try again.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// The order and the end of its claim: both or none.
fn make_order(orders: &Orders, claim: &Claim, what: &str, answer: &Answer) -> Result<(), Failure> {
    let mut connection = orders.lock().expect("no handler panicked");
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("INSERT INTO orders (what) VALUES (?1)", [what])?;
    sqlite::end(&transaction, claim, answer, Ending::Completed, KEEP, Clock::system().now())?;
    Ok(transaction.commit()?)
}

/// Posts an order on a connection of its own; the whole answer as text.
async fn send(address: SocketAddr, key: &str, body: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /orders HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Idempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
