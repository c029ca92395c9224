//! An effect and the end of its claim in one transaction of the application's own: both are there,
//! or none is.

use crate::place::{Address, DAY, LEASE, Place, START, answer, busy, owned, pool, request, scope};
use counterfoil_idempotency::{Claim, Claimed, Ending, StoreError, postgres, sqlite};
use rusqlite::{Connection, TransactionBehavior};
use std::time::{Duration, Instant};

pub const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS effects (name TEXT NOT NULL)";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Commit,
    Rollback,
}

/// Has the effect and ends the claim, in one transaction.
pub fn complete_sqlite(
    connection: &mut Connection,
    claim: &Claim,
    finish: Finish,
) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute("INSERT INTO effects VALUES (?1)", [&claim.scope.key]).unwrap();
    let ending = Ending::Completed;
    sqlite::end(&transaction, claim, &answer(201, "made"), ending, DAY, START)?;
    match finish {
        Finish::Commit => transaction.commit().unwrap(),
        Finish::Rollback => transaction.rollback().unwrap(),
    }
    Ok(())
}

pub async fn complete_postgres(
    client: &mut tokio_postgres::Client,
    claim: &Claim,
    finish: Finish,
) -> Result<(), StoreError> {
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO effects VALUES ($1)", &[&claim.scope.key]).await.unwrap();
    let ending = Ending::Completed;
    postgres::end(&transaction, claim, &answer(201, "made"), ending, DAY, START).await?;
    match finish {
        Finish::Commit => transaction.commit().await.unwrap(),
        Finish::Rollback => transaction.rollback().await.unwrap(),
    }
    Ok(())
}

#[test]
fn sqlite_keeps_effect_and_end_together() {
    let place = Place::sqlite();
    let Address::Sqlite(path) = &place.address else { panic!("it is SQLite") };
    let mut connection = Connection::open(path).unwrap();
    connection.execute_batch(sqlite::SCHEMA).unwrap();
    connection.execute_batch(sqlite::SCHEMA).unwrap();
    connection.execute_batch(EFFECTS).unwrap();
    let effects = |connection: &Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap()
    };
    let key = scope("acme", "k-1");
    let take = |connection: &Connection, now| {
        sqlite::claim(connection, &key, &request(1), LEASE, now).unwrap()
    };
    let first = owned(take(&connection, START));
    complete_sqlite(&mut connection, &first, Finish::Rollback).unwrap();
    assert_eq!(effects(&connection), 0);
    assert_eq!(busy(take(&connection, START)), LEASE, "its end was rolled back too");
    let second = owned(take(&connection, START.after(LEASE)));
    // The first wakes up: its end is refused, and with it the effect.
    let late = complete_sqlite(&mut connection, &first, Finish::Commit);
    assert_eq!((late, effects(&connection)), (Err(StoreError::Fenced), 0));
    complete_sqlite(&mut connection, &second, Finish::Commit).unwrap();
    assert_eq!(effects(&connection), 1);
    // Its commit is run again, as after a lost answer.
    let twice = complete_sqlite(&mut connection, &second, Finish::Commit);
    assert_eq!((twice, effects(&connection)), (Err(StoreError::Fenced), 1));
    assert_eq!(take(&connection, START), Claimed::Ended(answer(201, "made")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_effect_and_end_together() {
    let Some(place) = Place::postgres().await else { return };
    let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
    place.execute(postgres::SCHEMA).await;
    place.execute(EFFECTS).await;
    let (pool, key) = (pool(url), scope("acme", "k-1"));
    let mut client = pool.get().await.unwrap();
    let other = pool.get().await.unwrap();
    let effects = async || -> i64 {
        other.query_one("SELECT count(*) FROM effects", &[]).await.unwrap().get(0)
    };
    let take = async |now| postgres::claim(&**other, &key, &request(1), LEASE, now).await.unwrap();
    let first = owned(take(START).await);
    complete_postgres(&mut client, &first, Finish::Rollback).await.unwrap();
    assert_eq!(effects().await, 0);
    assert_eq!(busy(take(START).await), LEASE, "its end was rolled back too");
    let second = owned(take(START.after(LEASE)).await);
    // The first wakes up: its end is refused, and with it the effect.
    let late = complete_postgres(&mut client, &first, Finish::Commit).await;
    assert_eq!((late, effects().await), (Err(StoreError::Fenced), 0));
    complete_postgres(&mut client, &second, Finish::Commit).await.unwrap();
    assert_eq!(effects().await, 1);
    // Its commit is run again, as after a lost answer.
    let twice = complete_postgres(&mut client, &second, Finish::Commit).await;
    assert_eq!((twice, effects().await), (Err(StoreError::Fenced), 1));
    assert_eq!(take(START).await, Claimed::Ended(answer(201, "made")));
}

/// A claim inside a transaction does not spoil it, whatever it finds; and a second caller waits
/// for its end and is told the truth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_claims_inside_a_transaction() {
    let Some(place) = Place::postgres().await else { return };
    let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
    let (pool, key) = (pool(url), scope("acme", "k-1"));
    let mut client = pool.get().await.unwrap();
    for (finish, fence_after) in [(Finish::Rollback, 1), (Finish::Commit, 2)] {
        let transaction = client.transaction().await.unwrap();
        let inner = &*transaction;
        owned(postgres::claim(inner, &key, &request(1), LEASE, START).await.unwrap());
        busy(postgres::claim(inner, &key, &request(1), LEASE, START).await.unwrap());
        let other = postgres::claim(inner, &key, &request(2), LEASE, START).await.unwrap();
        assert_eq!(other, Claimed::Mismatch);
        inner.execute("SELECT 1", &[]).await.unwrap();
        let (waiting, waited_for) = (pool.get().await.unwrap(), key.clone());
        let now = START.after(LEASE + Duration::from_millis(1));
        let waiter = tokio::spawn(async move {
            postgres::claim(&**waiting, &waited_for, &request(1), LEASE, now).await.unwrap()
        });
        until_somebody_waits(&pool.get().await.unwrap()).await;
        match finish {
            Finish::Commit => transaction.commit().await.unwrap(),
            Finish::Rollback => transaction.rollback().await.unwrap(),
        }
        assert_eq!(owned(waiter.await.unwrap()).fence, fence_after);
        place.execute("DELETE FROM idempotency_keys").await;
    }
}

/// An owner renews its lease as another takes it for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_notices_a_renewal_that_races_a_claim() {
    let Some(place) = Place::postgres().await else { return };
    let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
    let (pool, key, now) = (pool(url), scope("acme", "k-1"), START.after(LEASE));
    let mut client = pool.get().await.unwrap();
    let first = postgres::claim(&**client, &key, &request(1), LEASE, START).await.unwrap();
    // The heir has read the record, and its write waits: only then is the lease renewed.
    let transaction = client.transaction().await.unwrap();
    transaction.execute("SELECT 1 FROM idempotency_keys FOR SHARE", &[]).await.unwrap();
    let other = pool.get().await.unwrap();
    let heir = tokio::spawn(async move {
        postgres::claim(&**other, &key, &request(1), LEASE, now).await.unwrap()
    });
    until_somebody_waits(&pool.get().await.unwrap()).await;
    postgres::renew(&*transaction, &owned(first), LEASE, now).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(busy(heir.await.unwrap()), LEASE);
}

/// A record that may be forgotten is claimed as a sweep has chosen it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_does_not_sweep_what_is_being_claimed() {
    let Some(place) = Place::postgres().await else { return };
    let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
    let (pool, key, now) = (pool(url), scope("acme", "k-1"), START.after(DAY));
    let mut client = pool.get().await.unwrap();
    let first = postgres::claim(&**client, &key, &request(1), LEASE, START).await.unwrap();
    postgres::release(&**client, &owned(first), START).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    owned(postgres::claim(&*transaction, &key, &request(1), LEASE, now).await.unwrap());
    let other = pool.get().await.unwrap();
    let sweeper = tokio::spawn(async move { postgres::sweep(&**other, 10, now).await.unwrap() });
    // It passes the record by; one that does not would wait for it.
    let watching = pool.get().await.unwrap();
    while !sweeper.is_finished() && waiting(&watching).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    transaction.commit().await.unwrap();
    assert_eq!(sweeper.await.unwrap(), 0);
    let again = postgres::claim(&**client, &key, &request(1), LEASE, now).await.unwrap();
    assert_eq!(busy(again), LEASE);
}

/// Until a statement in this database waits for another's lock.
async fn until_somebody_waits(client: &tokio_postgres::Client) {
    let began = Instant::now();
    while waiting(client).await == 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody waited");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn waiting(client: &tokio_postgres::Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}
