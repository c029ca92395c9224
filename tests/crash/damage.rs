//! Damage in the store's own files, as a bit flip or a hand at the tables leaves it: the server
//! finds it, never counts twice because of it, and stops no other tenant.

use super::load::{client, declare_meters, get};
use super::server::{KEY, Place, Server};
use rusqlite::Connection;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn open_database(place: &Place) -> Connection {
    let directory = directory_of(place);
    let connection = Connection::open(directory.join("counterfoil.db")).unwrap();
    let ledger = directory.join("ledger.db");
    connection.execute("ATTACH ? AS ledger", [ledger.to_str()]).unwrap();
    connection
}

fn directory_of(place: &Place) -> &Path {
    let Place::Directory(directory) = place else { panic!("an embedded store") };
    directory.path()
}

fn read_number(place: &Place, sql: &str) -> i64 {
    open_database(place).query_row(sql, [], |row| row.get(0)).unwrap()
}

fn change(place: &Place, sql: &str) -> usize {
    open_database(place).execute(sql, []).unwrap()
}

fn check(place: &Place, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_counterfoil"))
        .args(["check", "--store", &place.store()])
        .args(more)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn batch(tenant: &str, numbers: std::ops::Range<usize>) -> String {
    let at = jiff::Timestamp::now();
    let event = |number: usize| {
        format!(
            "{{\"tenant\":\"{tenant}\",\"id\":\"e{number}\",\"meter\":\"bulk\",\
             \"quantity\":\"1\",\"occurred_at\":\"{at}\"}}"
        )
    };
    numbers.map(event).collect::<Vec<_>>().join("\n")
}

/// The status and the answer.
async fn post(server: &Server, body: String) -> (u16, Value) {
    let sent = client()
        .post(format!("{}/v1/events?results=problems", server.url))
        .bearer_auth(KEY)
        .header("content-type", "application/x-ndjson")
        .body(body);
    let response = sent.send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
}

/// How many of the events counted now.
async fn accepted(server: &Server, body: String) -> u64 {
    let (status, answer) = post(server, body).await;
    assert_eq!(status, 200, "{answer}");
    answer["accepted"].as_u64().unwrap()
}

/// Waits for work that goes on beside requests.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A server with 10,000 events of one tenant, most of them folded; stopped by kill -9.
async fn fill(place: &Place) -> Vec<String> {
    let mut server = Server::start(place);
    declare_meters(&server.url).await;
    let batches: Vec<String> =
        (0..10).map(|number| batch("acme", number * 1_000..(number + 1) * 1_000)).collect();
    for batch in &batches {
        assert_eq!(accepted(&server, batch.clone()).await, 1_000);
    }
    let folded = "SELECT next_event_no FROM fold_state";
    eventually("events are folded", async || read_number(place, folded) > 9_000).await;
    server.kill();
    batches
}

/// Sends everything again after `damage`: nothing may count a second time.
async fn resend_after(damage: impl Fn(&Place) -> usize) {
    let place = Place::sqlite();
    let batches = fill(&place).await;
    let damaged = damage(&place);
    assert!(damaged > 0, "something was damaged");
    let found = check(&place, &[]);
    assert_eq!(found.status.code(), Some(4), "check finds it: {}", said(&found));
    let mut server = Server::start(&place);
    let mut twice = 0;
    for batch in batches {
        twice += accepted(&server, batch).await;
    }
    assert_eq!(twice, 0, "events counted twice");
    server.kill();
    assert_eq!(place.check(), Vec::<String>::new(), "what was damaged is whole again");
}

/// The run files of an embedded store, largest first. A merge that was killed leaves files that no
/// run names; damage to those is none.
fn run_files(place: &Place) -> Vec<PathBuf> {
    let connection = open_database(place);
    let mut select = connection.prepare("SELECT run_no FROM runs").unwrap();
    let numbers = select.query_map([], |row| row.get::<_, i64>(0)).unwrap();
    let keys = directory_of(place).join("keys");
    let path = |number: rusqlite::Result<i64>| keys.join(format!("{}.run", number.unwrap()));
    let mut files: Vec<PathBuf> = numbers.map(path).collect();
    files.sort_by_key(|path| std::cmp::Reverse(std::fs::metadata(path).unwrap().len()));
    files
}

/// Changes the bytes of the largest run file.
fn change_run(place: &Place, change: impl Fn(&mut Vec<u8>)) -> usize {
    let path = &run_files(place)[0];
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
    1
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_runs_are_made_again_from_the_events() {
    resend_after(|place| {
        let files = run_files(place);
        files.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        files.len()
    })
    .await;
    resend_after(|place| std::fs::remove_file(&run_files(place)[0]).map_or(0, |()| 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torn_runs_are_made_again_from_the_events() {
    resend_after(|place| change_run(place, |bytes| bytes.truncate(bytes.len() / 2))).await;
    resend_after(|place| change_run(place, |bytes| bytes.truncate(bytes.len() - 1))).await;
    resend_after(|place| change_run(place, Vec::clear)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_with_flipped_bits_are_made_again_from_the_events() {
    // In the records, in the filters, and in the footer.
    for part in [1, 7, 9] {
        resend_after(|place| {
            change_run(place, |bytes| {
                let at = bytes.len() * part / 10;
                bytes[at] ^= 16;
            })
        })
        .await;
    }
    resend_after(|place| change_run(place, |bytes| *bytes.last_mut().unwrap() ^= 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_wrong_ranges_and_missing_events() {
    for damage in [
        "UPDATE event_ranges SET body = substr(body, 1, length(body) - 1) WHERE segment_no = 2",
        "DELETE FROM event_ranges WHERE segment_no = 3",
        "DELETE FROM event_blocks WHERE first_no = 65",
        "UPDATE event_blocks SET body = substr(body, 1, length(body) - 1) WHERE first_no = 65",
    ] {
        let place = Place::sqlite();
        fill(&place).await;
        assert_eq!(change(&place, damage), 1);
        let found = check(&place, &[]);
        assert_eq!(found.status.code(), Some(4), "{damage}: {}", said(&found));
    }
}

/// A redelivery looks for the event at its key's fingerprint.
#[tokio::test(flavor = "multi_thread")]
async fn check_finds_an_event_that_lies_at_another_key() {
    let Some(place) = Place::postgres().await else { return };
    let mut server = Server::start(&place);
    declare_meters(&server.url).await;
    assert_eq!(accepted(&server, batch("acme", 0..100)).await, 100);
    server.kill();
    assert_eq!(place.check(), Vec::<String>::new());
    let (database, connection) =
        tokio_postgres::connect(&place.store(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let damage = "UPDATE event_claims SET key_hash = gen_random_uuid()
        WHERE event_no = (SELECT event_no FROM events WHERE id = 'e7')";
    assert_eq!(database.execute(damage, &[]).await.unwrap(), 1);
    let findings = place.check();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(findings[0].contains("event e7 of acme"), "{findings:#?}");
}

/// A command that "only reads" must not bring a schema up to date.
#[tokio::test(flavor = "multi_thread")]
async fn check_leaves_an_older_schema_as_it_is() {
    let Some(place) = Place::postgres().await else { return };
    let (database, connection) =
        tokio_postgres::connect(&place.store(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let refused = check(&place, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let count: i64 = database.query_one(tables, &[]).await.unwrap().get(0);
    assert_eq!(count, 0, "an empty database stays empty");
    drop(Server::start(&place));
    let newest = "DELETE FROM schema_migrations
        WHERE number = (SELECT max(number) FROM schema_migrations)";
    assert_eq!(database.execute(newest, &[]).await.unwrap(), 1);
    let applied = "SELECT count(*) FROM schema_migrations";
    let before: i64 = database.query_one(applied, &[]).await.unwrap().get(0);
    let refused = check(&place, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("older"), "{}", said(&refused));
    let after: i64 = database.query_one(applied, &[]).await.unwrap().get(0);
    assert_eq!(after, before, "nothing was migrated");
    let place = Place::sqlite();
    drop(Server::start(&place));
    assert_eq!(change(&place, newest), 1);
    let refused = check(&place, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let text = said(&refused);
    assert!(text.contains("older") && !text.contains("damaged"), "{text}");
}

/// The total of a tenant that is unreadable stays so; everything else goes on, and a person is
/// called.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_total_stops_no_other_tenant() {
    let place = Place::sqlite();
    fill(&place).await;
    assert!(change(&place, "UPDATE total_blocks SET body = zeroblob(length(body))") > 0);
    let mut server = Server::start(&place);
    for number in 0..20 {
        let range = number * 500..(number + 1) * 500;
        let body = batch("globex", range.clone())
            + "\n"
            + &batch("acme", 20_000 + range.start..20_000 + range.end);
        assert_eq!(accepted(&server, body).await, 1_000);
    }
    for number in 0..300 {
        let body = batch("globex", 50_000 + number..50_001 + number);
        assert_eq!(accepted(&server, body).await, 1);
    }
    let usage = format!("/v1/usage?tenant=globex&meter=bulk&{}", days());
    assert_eq!(get(&server, &usage).await["total"], "10300");
    eventually("a person is called", async || {
        let alerts = get(&server, "/v1/alerts?open=true").await;
        alerts["alerts"].as_array().unwrap().iter().any(|alert| alert["kind"] == "fold_stopped")
    })
    .await;
    let warnings = place.log_text().lines().filter(|line| line.contains("fold")).count();
    assert!(warnings < 10, "{warnings} lines about folding");
    server.kill();
    let found = check(&place, &[]);
    assert_eq!(found.status.code(), Some(4), "{}", said(&found));
    assert!(said(&found).contains("tenant acme, meter bulk"), "{}", said(&found));
    let repaired = check(&place, &["--repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{}", said(&repaired));
    assert!(said(&repaired).contains("repaired: tenant acme"), "{}", said(&repaired));
    let server = Server::start(&place);
    let usage = format!("/v1/usage?tenant=acme&meter=bulk&{}", days());
    assert_eq!(get(&server, &usage).await["total"], "20000");
    eventually("the alert is over and events are folded", async || {
        let open = get(&server, "/v1/alerts?open=true&kind=fold_stopped").await;
        let folded = read_number(&place, "SELECT next_event_no FROM fold_state");
        open["alerts"].as_array().unwrap().is_empty() && folded > 12_000
    })
    .await;
    assert_eq!(place.check(), Vec::<String>::new());
}

fn days() -> String {
    let day = |offset: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * offset);
        at.to_string()[..10].to_owned()
    };
    format!("from={}&to={}", day(-1), day(2))
}
