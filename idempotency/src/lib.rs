//! A tower layer that makes mutating HTTP calls exactly once in effect.
//!
//! A client that got no answer cannot know whether its call took effect. With a header
//! `Idempotency-Key` it may simply send it again: the layer sees to it that the handler's effect
//! happens once, and that every retry gets the answer of the first call, byte for byte, marked with
//! `Idempotency-Replayed: true`.
//!
//! Invariant: a call with a key reaches its handler only under a claim that a [`Store`] granted. A
//! crash leaves a claim, and the next caller goes on from its recovery point once the lease is
//! over.
//!
//! # What a caller sees
//!
//! | the key | the answer |
//! |---|---|
//! | is new | the handler's |
//! | has ended | the same as then, with `Idempotency-Replayed: true` |
//! | is at work elsewhere | 409 `idempotency_key_in_use` with `Retry-After` |
//! | was used for another method, path or body | 422 `idempotency_key_reused` |
//! | is missing | 400 `idempotency_key_missing` |
//! | is not 1 to 255 visible ASCII characters | 400 `idempotency_key_malformed` |
//! | cannot be looked up | 503 `idempotency_unavailable` |
//! | has a record that cannot be read | 503 `idempotency_record_unreadable` |
//!
//! Keys belong to a tenant and a route; the same key elsewhere is another key. **The tenant must
//! come from authentication.** If a request could name it, anybody could read anybody's answers.
//! JSON bodies are compared by what they say: the order of names and the spaces do not matter.
//! Everything else, and JSON of more than 64 KiB, is compared byte for byte.
//!
//! # Which answers are final
//!
//! | answer of the handler | what becomes of the key |
//! |---|---|
//! | 2xx, 3xx | completed; kept for 24 hours |
//! | 4xx | failed; kept for an hour |
//! | 408, 425, 429, 5xx, a panic | released: nothing was done, and the next call starts at once |
//! | the same after a recovery point | released, never forgotten: the next call goes on there |
//! | any, marked with [`NothingBegan`] | forgotten: another request may come under the key |
//! | a stream, or more than the limit | the effect is on record, and its answer is not |
//!
//! In the last case the caller, and every retry, gets a 500
//! `idempotency_streaming_unsupported`: running the handler again would have the effect twice.
//!
//! The times are those of [`Settings::default`]. A record is forgotten by [`Store::sweep`], which
//! the application calls now and then, and by nothing else (but see [`RedisStore`]): keep answers
//! for longer than your clients retry, and for longer than a provider behind you knows its keys.
//!
//! # What a handler has to do
//!
//! *An effect in the same SQL database as the keys*: commit it together with the end of the claim.
//! Then there is no moment at which one is there without the other, and nothing else to think of.
//! The functions in [`sqlite`] and [`postgres`] work inside the application's own transaction, and
//! [`Attempt::ended`] tells the layer that it is done.
//!
//! *An effect elsewhere*, such as a charge at a provider: pass a key on that the provider knows
//! ([`key()`] makes one), and note with [`Attempt::reach`] what has been done. If the process dies
//! between the effect and the note, the next attempt asks the provider again, under the same key.
//!
//! *Anything else* is not exactly once, whatever a layer does: if the process dies after an effect
//! that left no trace, nobody can know.
//!
//! A handler that runs for longer than its lease keeps it, since the layer renews it; one that
//! stops (a machine that sleeps, a store that is away) may lose its claim to another. From then on
//! its writes are [`StoreError::Fenced`], and it must stop.
//!
//! # An application
//!
//! Orders and keys are in one SQLite file, and an order is made once for each key.
//!
#![cfg_attr(feature = "sqlite", doc = "```")]
#![cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
//! use axum::body::Body;
//! use axum::extract::{MatchedPath, Request, State};
//! use axum::http::{StatusCode, request::Parts};
//! use axum::middleware::{Next, from_fn};
//! use axum::response::{IntoResponse, Response};
//! use axum::{Extension, Router, routing::post};
//! use counterfoil_idempotency::{
//!     Answer, Attempt, Claim, Clock, Ending, IdempotencyLayer, Identity, Settings, SqliteStore,
//!     sqlite,
//! };
//! use rusqlite::{Connection, TransactionBehavior};
//! use std::error::Error;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//! use tower::ServiceExt;
//!
//! type Orders = Arc<Mutex<Connection>>;
//!
//! /// Whom authentication has found.
//! #[derive(Clone)]
//! struct Tenant(String);
//!
//! async fn authenticate(mut request: Request, next: Next) -> Response {
//!     // A real one looks at a token.
//!     request.extensions_mut().insert(Tenant("acme".to_owned()));
//!     next.run(request).await
//! }
//!
//! fn identify(parts: &Parts) -> Option<Identity> {
//!     let Tenant(tenant) = parts.extensions.get::<Tenant>()?.clone();
//!     let path = parts.extensions.get::<MatchedPath>()?.as_str();
//!     Some(Identity { tenant, route: format!("{} {path}", parts.method) })
//! }
//!
//! /// The order and the end of its claim: both or none.
//! fn make_order(
//!     orders: &Orders,
//!     claim: &Claim,
//!     what: &str,
//!     answer: &Answer,
//! ) -> Result<(), Box<dyn Error>> {
//!     let mut connection = orders.lock().expect("nobody panicked");
//!     let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     transaction.execute("INSERT INTO orders (what) VALUES (?1)", [what])?;
//!     let (keep, now) = (Duration::from_secs(24 * 3600), Clock::system().now());
//!     sqlite::end(&transaction, claim, answer, Ending::Completed, keep, now)?;
//!     Ok(transaction.commit()?)
//! }
//!
//! async fn create_order(
//!     State(orders): State<Orders>,
//!     Extension(attempt): Extension<Attempt>,
//!     what: String,
//! ) -> Response {
//!     let answer = Answer { status: 201, headers: vec![], body: format!("made: {what}").into() };
//!     match make_order(&orders, attempt.claim(), &what, &answer) {
//!         Ok(()) => Attempt::ended(answer),
//!         // Nothing was done: the layer releases the key, and the client may try again.
//!         Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
//!     }
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let folder = tempfile::tempdir()?;
//!     let file = folder.path().join("shop.db");
//!     let store = SqliteStore::open(&file, Clock::system())?;
//!     let orders = Connection::open(&file)?;
//!     orders.execute_batch("CREATE TABLE orders (what TEXT NOT NULL)")?;
//!     let orders = Arc::new(Mutex::new(orders));
//!     let app = Router::new()
//!         .route("/orders", post(create_order))
//!         .with_state(Arc::clone(&orders))
//!         .layer(IdempotencyLayer::new(Arc::new(store), Settings::default(), identify))
//!         // What is added later runs earlier: the layer has to know the tenant.
//!         .layer(from_fn(authenticate));
//!
//!     for retry in [false, true] {
//!         let request = Request::post("/orders")
//!             .header("idempotency-key", "order-42")
//!             .body(Body::from("tea"))?;
//!         let response = app.clone().oneshot(request).await?;
//!         assert_eq!(response.status(), StatusCode::CREATED);
//!         assert_eq!(response.headers().contains_key("idempotency-replayed"), retry);
//!     }
//!     let count = "SELECT count(*) FROM orders";
//!     let made: i64 = orders.lock().unwrap().query_row(count, [], |row| row.get(0))?;
//!     assert_eq!(made, 1);
//!     Ok(())
//! }
//! ```
//!
//! # Stores
//!
//! | feature | store | promise |
//! |---|---|---|
//! | `sqlite` | [`SqliteStore`] | survives a power cut; effect and end in one transaction |
//! | `postgres` | [`PostgresStore`] | the same, for any number of servers |
//! | `redis` | [`RedisStore`] | a gate before an effect that has a unique key of its own |
//!
//! Without features there is the layer alone, for a [`Store`] of your own.
//!
//! # What needs a person
//!
//! A claim whose owner died after a recovery point waits for its client to retry; its outcome is
//! never guessed. Look for such records, and settle them:
//!
//! ```sql
//! SELECT tenant, route, key, recovery_point, created_at FROM idempotency_keys
//! WHERE recovery_point IS NOT NULL AND state IN ('claimed', 'released');
//! ```

// Without its feature a store has no page to link to.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "redis")),
    allow(rustdoc::broken_intra_doc_links)
)]

mod canonical;
mod clock;
mod digest;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod judge;
pub mod key;
mod layer;
#[cfg(feature = "postgres")]
pub mod postgres;
mod problem;
mod record;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;

pub use clock::{Clock, SweepTime};
pub use key::{Key, key};
pub use layer::{
    Attempt, Idempotency, IdempotencyLayer, Identity, KeyPolicy, NothingBegan, Settings,
};
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use problem::{Code, Problem};
pub use record::{Answer, Claim, Claimed, Ending, Fingerprint, Millis, Scope, StoreError};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::Store;
