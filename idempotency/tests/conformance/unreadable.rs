//! Records that somebody spoiled. Whatever is wrong with them, the handler is not run.

use crate::app::{App, Call};
use crate::place::{Address, DAY, LEASE, Place, answer, owned, request, scope};
use axum::http::StatusCode;
use counterfoil_idempotency::{Ending, Settings, Store, StoreError};

/// Statements for SQLite and for PostgreSQL that spoil every record.
const SPOILS: [&str; 9] = [
    "UPDATE idempotency_keys SET state = 'done'",
    "UPDATE idempotency_keys SET state = ''",
    "UPDATE idempotency_keys SET headers = '{'",
    "UPDATE idempotency_keys SET headers = '[[\"a b\", \"c\"]]'",
    "UPDATE idempotency_keys SET headers = '[[\"a\", \"\u{1F4A5}\"]]'",
    "UPDATE idempotency_keys SET status = 70000",
    "UPDATE idempotency_keys SET body = NULL",
    "UPDATE idempotency_keys SET fence = 0",
    "UPDATE idempotency_keys SET state = 'claimed'",
];
const SPOILS_SQLITE: [&str; 2] =
    ["UPDATE idempotency_keys SET fingerprint = x'00'", "UPDATE idempotency_keys SET owner = x''"];
const SPOILS_POSTGRES: [&str; 2] = [
    "UPDATE idempotency_keys SET fingerprint = '\\x00'",
    "UPDATE idempotency_keys SET owner = '\\x'",
];

pub async fn a_record_that_is_not_understood_is_never_run(place: Place) {
    let store = place.store().await;
    match &place.address {
        Address::Sqlite(path) => {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.pragma_update(None, "ignore_check_constraints", true).unwrap();
            for spoil in SPOILS.iter().chain(&SPOILS_SQLITE) {
                end_one(store.as_ref()).await;
                connection.execute_batch(spoil).unwrap();
                refuses_to_run(&place, spoil).await;
                connection.execute_batch("DELETE FROM idempotency_keys").unwrap();
            }
        }
        Address::Postgres(_) => {
            place.execute(&without_checks()).await;
            for spoil in SPOILS.iter().chain(&SPOILS_POSTGRES) {
                end_one(store.as_ref()).await;
                place.execute(spoil).await;
                refuses_to_run(&place, spoil).await;
                place.execute("DELETE FROM idempotency_keys").await;
            }
        }
        Address::Redis(server) => {
            let client = redis::Client::open(server.url()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            for spoil in ["SET", "LPUSH", "APPEND", "SETRANGE"] {
                end_one(store.as_ref()).await;
                let names: Vec<String> =
                    redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
                let mut command = redis::cmd(spoil);
                command.arg(&names[0]);
                match spoil {
                    "SETRANGE" => command.arg(0).arg("cfi2"),
                    "LPUSH" => {
                        let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
                        command.arg("x")
                    }
                    _ => command.arg("x"),
                };
                let _: redis::Value = command.query_async(&mut connection).await.unwrap();
                refuses_to_run(&place, spoil).await;
                let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
            }
        }
    }
}

async fn end_one(store: &dyn Store) {
    let claim = owned(store.claim(&scope("acme", "k-1"), &request(1), LEASE).await.unwrap());
    store.end(&claim, &answer(200, "done"), Ending::Completed, DAY).await.unwrap();
}

async fn refuses_to_run(place: &Place, spoil: &str) {
    let store = place.store().await;
    let claimed = store.claim(&scope("acme", "k-1"), &request(1), LEASE).await;
    assert!(matches!(claimed, Err(StoreError::Unreadable(_))), "{claimed:?} after {spoil}");
    let app = App::charging(store, Settings::default());
    let reply = app.call(Call::new("acme", "k-1", "{}")).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "after {spoil}");
    assert_eq!(reply.code(), "idempotency_record_unreadable");
    assert_eq!(app.provider.charges(), 0, "after {spoil}");
}

/// Drops the table's checks, which keep us ourselves from writing such records.
fn without_checks() -> String {
    "DO $$ DECLARE name text; BEGIN
         FOR name IN SELECT conname FROM pg_constraint
             WHERE conrelid = 'idempotency_keys'::regclass AND contype = 'c'
         LOOP EXECUTE format('ALTER TABLE idempotency_keys DROP CONSTRAINT %I', name); END LOOP;
     END $$"
        .to_owned()
}
