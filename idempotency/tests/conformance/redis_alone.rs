//! What is true of Redis only: it expires by itself, it may be restarted, and it may forget.

use crate::app::{App, Call};
use crate::place::{Address, DAY, LEASE, Place, answer, owned, request, scope};
use crate::redis_server::RedisServer;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use counterfoil_idempotency::{Clock, Ending, RedisStore, Settings, StoreError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn server(place: &Place) -> &RedisServer {
    let Address::Redis(server) = &place.address else { panic!("it is Redis") };
    server
}

async fn connect(place: &Place) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(server(place).url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// How long the only record has to live; negative if for ever.
async fn time_to_live(connection: &mut redis::aio::MultiplexedConnection) -> i64 {
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query_async(connection).await.unwrap();
    assert_eq!(names.len(), 1);
    redis::cmd("PTTL").arg(&names[0]).query_async(connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_may_be_forgotten_has_an_expiry() {
    let Some(place) = Place::redis() else { return };
    let (store, mut connection) = (place.store().await, connect(&place).await);
    let key = scope("acme", "k-1");
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!(time_to_live(&mut connection).await, -1);
    store.renew(&claim, LEASE).await.unwrap();
    assert_eq!(time_to_live(&mut connection).await, -1);
    // Nothing was done: it may go. Until somebody claims it again.
    store.release(&claim).await.unwrap();
    assert!((3_590_000..=3_600_000).contains(&time_to_live(&mut connection).await));
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!(time_to_live(&mut connection).await, -1);
    store.reach(&claim, "half").await.unwrap();
    store.release(&claim).await.unwrap();
    assert_eq!(time_to_live(&mut connection).await, -1, "what was begun is never forgotten");
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    store.end(&claim, &answer(200, "done"), Ending::Completed, DAY).await.unwrap();
    assert!((86_390_000..=86_400_000).contains(&time_to_live(&mut connection).await));
}

/// Killed while the handler runs, and started again from its disk before the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_may_be_killed_between_claim_and_end() {
    let Some(place) = Place::redis() else { return };
    let place = Arc::new(place);
    let killer = Arc::clone(&place);
    let app = App::new(place.store().await, Settings::default(), move |attempt, _| {
        let place = Arc::clone(&killer);
        async move {
            let fence = attempt.unwrap().claim().fence;
            if fence == 1 {
                server(&place).kill();
            }
            format!("fence {fence}").into_response()
        }
    });
    let call = Call::new("acme", "k-1", "{}");
    let reply = app.call(call.clone()).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.code(), "idempotency_unavailable");
    let reply = app.call(call.clone()).await;
    assert_eq!(reply.code(), "idempotency_unavailable", "nothing runs without its store");
    server(&place).start_again();
    let app_after = |store| {
        App::new(store, Settings::default(), |attempt: Option<_>, _| async move {
            let attempt: counterfoil_idempotency::Attempt = attempt.unwrap();
            format!("fence {}", attempt.claim().fence).into_response()
        })
    };
    let app = app_after(place.store().await);
    let reply = app.call(call.clone()).await;
    assert_eq!(reply.code(), "idempotency_key_in_use", "the claim was on its disk");
    place.clock.advance(LEASE);
    let reply = app.call(call.clone()).await;
    assert_eq!((reply.status, reply.body.as_ref()), (StatusCode::OK, b"fence 2".as_slice()));
    assert!(app.call(call).await.replayed());
}

/// Redis forgets everything, before and after the end. The effect is in SQL under a key of its own,
/// so that the second run finds the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_forgets_the_effect_still_happens_once() {
    let Some(place) = Place::redis() else { return };
    let place = Arc::new(place);
    let database = rusqlite::Connection::open_in_memory().unwrap();
    let table = "CREATE TABLE orders (effect_key TEXT PRIMARY KEY, fence INTEGER NOT NULL) STRICT";
    database.execute_batch(table).unwrap();
    let database = Arc::new(Mutex::new(database));
    let (orders, forgetful) = (Arc::clone(&database), Arc::clone(&place));
    let handler = move |attempt: Option<counterfoil_idempotency::Attempt>, _| {
        let (orders, place) = (Arc::clone(&orders), Arc::clone(&forgetful));
        async move {
            let claim = attempt.unwrap().claim().clone();
            let effect_key = format!("{}/{}", claim.scope.tenant, claim.scope.key);
            let insert = "INSERT INTO orders VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            let new = orders
                .lock()
                .unwrap()
                .execute(insert, rusqlite::params![effect_key, claim.fence])
                .unwrap();
            if new == 1 && claim.scope.key == "before-the-end" {
                server(&place).kill();
                server(&place).start_empty();
            }
            (StatusCode::CREATED, effect_key).into_response()
        }
    };
    let app = App::new(place.store().await, Settings::default(), handler);
    let call = Call::new("acme", "after-the-end", "{}");
    let first = app.call(call.clone()).await;
    server(&place).kill();
    server(&place).start_empty();
    let second = call_until_answered(&app, call).await;
    assert_eq!((first.status, second.replayed()), (StatusCode::CREATED, false), "it ran again");
    assert_eq!(first.body, second.body);
    let call = Call::new("acme", "before-the-end", "{}");
    let third = call_until_answered(&app, call).await;
    assert_eq!(third.status, StatusCode::CREATED);
    let count = "SELECT count(*) FROM orders";
    let orders: i64 = database.lock().unwrap().query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(orders, 2, "one for each key");
}

/// As a client does: again while the server says that it knows nothing for sure.
async fn call_until_answered(app: &App, call: Call) -> crate::app::Reply {
    for _ in 0..200 {
        let reply = app.call(call.clone()).await;
        if !matches!(reply.status.as_u16(), 409 | 503) {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it was never answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_is_refused() {
    let Some(place) = Place::redis() else { return };
    let mut connection = connect(&place).await;
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory-policy").arg("allkeys-lru");
    let () = set.query_async(&mut connection).await.unwrap();
    let refused = RedisStore::connect(&server(&place).url(), Clock::system()).await;
    let Err(StoreError::Unavailable(why)) = refused else { panic!("it was taken") };
    assert!(why.contains("noeviction"), "{why}");
}
