//! Real processes under kill -9, on SQLite and PostgreSQL: this test program starts itself again,
//! as an owner that stops at a chosen moment, and kills it there.

use crate::place::{Address, DAY, LEASE, Place, answer, pool};
use crate::transactions::{EFFECTS, Finish, complete_postgres, complete_sqlite};
use counterfoil_idempotency::{
    Claim, Claimed, Clock, Ending, Millis, PostgresStore, Scope, SqliteStore, Store, postgres,
    sqlite,
};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const ADDRESS: &str = "IDEMPOTENCY_OWNER_ADDRESS";
const MOMENT: &str = "IDEMPOTENCY_OWNER_MOMENT";
/// What the owner prints when it is there.
const THERE: &str = "owner: there";

const MOMENTS: [&str; 5] =
    ["claimed", "renewed", "recovery point", "inside the transaction", "ended"];

/// Does nothing in a normal run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner() {
    let (Ok(address), Ok(moment)) = (std::env::var(ADDRESS), std::env::var(MOMENT)) else { return };
    if address.starts_with("postgres://") {
        own_postgres(&address, &moment).await;
    } else {
        own_sqlite(Path::new(&address), &moment).await;
    }
    panic!("the owner was to be killed at the moment {moment:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_owners_are_killed() {
    let place = Place::sqlite();
    let Address::Sqlite(path) = &place.address else { panic!("it is SQLite") };
    place.execute(sqlite::SCHEMA).await;
    place.execute(EFFECTS).await;
    for moment in MOMENTS {
        kill_owner(path.to_str().unwrap(), moment);
        let claimed = claim_after_the_lease(&place, moment).await;
        if let Some(claim) = owned_after(moment, claimed) {
            let mut connection = rusqlite::Connection::open(path).unwrap();
            complete_sqlite(&mut connection, &claim, Finish::Commit).unwrap();
        }
        let connection = rusqlite::Connection::open(path).unwrap();
        let effects: i64 = connection
            .query_row("SELECT count(*) FROM effects WHERE name = ?1", [moment], |row| row.get(0))
            .unwrap();
        assert_eq!(effects, 1, "{moment}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_owners_are_killed() {
    let Some(place) = Place::postgres().await else { return };
    let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
    place.execute(EFFECTS).await;
    let pool = pool(url);
    let mut client = pool.get().await.unwrap();
    for moment in MOMENTS {
        kill_owner(url, moment);
        let claimed = claim_after_the_lease(&place, moment).await;
        if let Some(claim) = owned_after(moment, claimed) {
            complete_postgres(&mut client, &claim, Finish::Commit).await.unwrap();
        }
        let sql = "SELECT count(*) FROM effects WHERE name = $1";
        let effects: i64 = client.query_one(sql, &[&moment]).await.unwrap().get(0);
        assert_eq!(effects, 1, "{moment}");
    }
}

/// Starts an owner, waits until it is there, and kills it.
fn kill_owner(address: &str, moment: &str) {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["processes::owner", "--exact", "--nocapture"])
        .env(ADDRESS, address)
        .env(MOMENT, moment)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let there = lines.map_while(Result::ok).any(|line| line.contains(THERE));
    assert!(there, "the owner did not come to the moment {moment:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
}

/// A second after the lease of the dead, by a clock that is that much ahead.
async fn claim_after_the_lease(place: &Place, moment: &str) -> Claimed {
    let now = Clock::system().now();
    let store = place.store_by(Clock::by_hand(now)).await;
    let early = store.claim(&scope(moment), &crate::place::request(1), LEASE).await.unwrap();
    if moment == "ended" {
        return early;
    }
    assert!(matches!(early, Claimed::Busy { .. }), "{moment}: {early:?}");
    let later = Clock::by_hand(now.after(LEASE + Duration::from_secs(1)));
    let store = place.store_by(later).await;
    store.claim(&scope(moment), &crate::place::request(1), LEASE).await.unwrap()
}

/// The heir's claim, or none if the owner had ended.
fn owned_after(moment: &str, claimed: Claimed) -> Option<Claim> {
    match claimed {
        Claimed::Owned(claim) => {
            assert_eq!(claim.fence, 2, "{moment}");
            let point = (moment == "recovery point").then_some("half");
            assert_eq!(claim.recovery_point.as_deref(), point, "{moment}");
            Some(claim)
        }
        Claimed::Ended(kept) => {
            assert_eq!((moment, kept), ("ended", answer(201, "made")));
            None
        }
        other => panic!("{moment}: {other:?}"),
    }
}

fn scope(moment: &str) -> Scope {
    crate::place::scope("acme", moment)
}

fn stop_here() -> ! {
    println!("{THERE}");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

async fn begin(store: &dyn Store, moment: &str) -> Claim {
    let claimed = store.claim(&scope(moment), &crate::place::request(1), LEASE).await.unwrap();
    let claim = crate::place::owned(claimed);
    match moment {
        "claimed" => stop_here(),
        "renewed" => {
            store.renew(&claim, LEASE).await.unwrap();
            stop_here()
        }
        "recovery point" => {
            store.reach(&claim, "half").await.unwrap();
            stop_here()
        }
        _ => claim,
    }
}

async fn own_sqlite(path: &Path, moment: &str) {
    let store = SqliteStore::open(path, Clock::system()).unwrap();
    let claim = begin(&store, moment).await;
    let mut connection = rusqlite::Connection::open(PathBuf::from(path)).unwrap();
    if moment == "ended" {
        complete_sqlite(&mut connection, &claim, Finish::Commit).unwrap();
        stop_here();
    }
    let transaction = connection.transaction().unwrap();
    transaction.execute("INSERT INTO effects VALUES (?1)", [&claim.scope.key]).unwrap();
    let (made, now) = (answer(201, "made"), Millis(0));
    sqlite::end(&transaction, &claim, &made, Ending::Completed, DAY, now).unwrap();
    stop_here();
}

async fn own_postgres(url: &str, moment: &str) {
    let store = PostgresStore::new(pool(url), Clock::system());
    let claim = begin(&store, moment).await;
    let mut client = pool(url).get().await.unwrap();
    if moment == "ended" {
        complete_postgres(&mut client, &claim, Finish::Commit).await.unwrap();
        stop_here();
    }
    let transaction = client.transaction().await.unwrap();
    let insert = "INSERT INTO effects VALUES ($1)";
    transaction.execute(insert, &[&claim.scope.key]).await.unwrap();
    let (made, now) = (answer(201, "made"), Millis(0));
    let inner = &*transaction;
    postgres::end(inner, &claim, &made, Ending::Completed, DAY, now).await.unwrap();
    stop_here();
}
