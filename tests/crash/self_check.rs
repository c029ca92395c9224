//! The self-check of a real server: it finds bugs that are planted where totals and counters are
//! folded, and a process that ends in the middle of a walk leaves a walk that goes on.

use super::load::{client, declare_meters, get};
use super::server::{KEY, Launch, Place, Server};
use std::time::{Duration, Instant};

/// Sends a thousand events of each of three tenants.
async fn send(server: &Server) {
    let at = jiff::Timestamp::now();
    for tenant in ["acme", "globex", "initech"] {
        let event = |number: usize| {
            format!(
                "{{\"tenant\":\"{tenant}\",\"id\":\"e{number}\",\"meter\":\"bulk\",\
                 \"quantity\":\"1\",\"occurred_at\":\"{at}\"}}"
            )
        };
        let sent = client()
            .post(format!("{}/v1/events?results=problems", server.url))
            .bearer_auth(KEY)
            .header("content-type", "application/x-ndjson")
            .body((0..1_000).map(event).collect::<Vec<_>>().join("\n"));
        assert!(sent.send().await.unwrap().status().is_success());
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(90), "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs a statement that suits both stores, or reads one number.
async fn run(place: &Place, sql: &str) -> i64 {
    match place {
        Place::Directory(directory) => {
            let path = directory.path().join("counterfoil.db");
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.busy_timeout(Duration::from_secs(10)).unwrap();
            let ledger = directory.path().join("ledger.db");
            connection.execute("ATTACH ? AS ledger", [ledger.to_str()]).unwrap();
            if sql.starts_with("SELECT") {
                return connection.query_row(sql, [], |row| row.get(0)).unwrap();
            }
            i64::try_from(connection.execute(sql, []).unwrap()).unwrap()
        }
        Place::Database { .. } => {
            let (client, connection) =
                tokio_postgres::connect(&place.store(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            if sql.starts_with("SELECT") {
                return client.query_one(sql, &[]).await.unwrap().get(0);
            }
            i64::try_from(client.execute(sql, &[]).await.unwrap()).unwrap()
        }
    }
}

/// How many events are in tables.
fn folded(place: &Place) -> &'static str {
    match place {
        Place::Directory(_) => "SELECT next_event_no - 1 FROM fold_state",
        Place::Database { .. } => "SELECT COALESCE(sum(count), 0)::int8 FROM rollups",
    }
}

/// A server that was killed has the lease for a quarter of an hour.
async fn end_lease(place: &Place) {
    run(place, "DELETE FROM leases WHERE name = 'self_check'").await;
}

/// A server that folds with a bug, and after it one without: the second one's self-check pages.
async fn is_found(place: Place, bug: &str, subject: &str) {
    let failpoints = format!("{bug}=return");
    let launch = Launch { failpoints: &failpoints, ..Launch::default() };
    let mut server = Server::launch(&place, &launch).unwrap();
    declare_meters(&server.url).await;
    send(&server).await;
    eventually("events are folded", async || run(&place, folded(&place)).await > 2_400).await;
    server.kill();
    // Another night.
    run(&place, "DELETE FROM self_checks").await;
    end_lease(&place).await;
    let mut server = Server::start(&place);
    eventually(&format!("{bug} is found"), async || {
        let open = get(&server, "/v1/alerts?open=true&kind=self_check_mismatch").await;
        let alerts = open["alerts"].as_array().unwrap();
        alerts.iter().any(|alert| alert["subject"].as_str().unwrap().contains(subject))
    })
    .await;
    server.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_total_that_loses_an_event_is_found_on_sqlite() {
    is_found(Place::sqlite(), "bug.total_loses_an_event", "/bulk/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_total_that_loses_an_event_is_found_on_postgres() {
    let Some(place) = Place::postgres().await else { return };
    is_found(place, "bug.total_loses_an_event", "/bulk/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_off_by_one_is_found_on_sqlite() {
    is_found(Place::sqlite(), "bug.counter_off_by_one", "/accepted/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_off_by_one_is_found_on_postgres() {
    let Some(place) = Place::postgres().await else { return };
    is_found(place, "bug.counter_off_by_one", "/accepted/").await;
}

/// Ends the process at a named point of a step, then looks at what the next one makes of it.
async fn goes_on_after(place: Place, point: &str) {
    let mut server = Server::start(&place);
    declare_meters(&server.url).await;
    send(&server).await;
    eventually("events are folded", async || run(&place, folded(&place)).await > 2_400).await;
    server.kill();
    run(&place, "DELETE FROM self_checks").await;
    end_lease(&place).await;
    // The second step: the first one's progress is stored.
    let failpoints = format!("{point}=1*off->return");
    let launch = Launch { failpoints: &failpoints, ..Launch::default() };
    if let Ok(mut server) = Server::launch(&place, &launch) {
        let ended = server.ended_within(Duration::from_secs(60)).await;
        assert!(ended.is_some_and(|status| !status.success()), "it ends at {point}");
    }
    end_lease(&place).await;
    let server = Server::start(&place);
    eventually("a walk is completed", async || {
        let health = get(&server, "/v1/health/billing").await;
        health["self_check"]["last_walk"].is_string()
    })
    .await;
    let check = get(&server, "/v1/health/billing").await["self_check"].clone();
    assert_eq!((check["mismatches"].as_u64(), check["not_done"].is_null()), (Some(0), true));
    assert!(check["walk_events"].as_u64().unwrap() > 2_400, "{check}");
    assert_eq!(place.check(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_in_a_step_leaves_a_walk_that_goes_on_sqlite() {
    goes_on_after(Place::sqlite(), "self_check.before_commit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_in_a_step_leaves_a_walk_that_goes_on_postgres() {
    let Some(place) = Place::postgres().await else { return };
    goes_on_after(place, "self_check.before_commit").await;
}
