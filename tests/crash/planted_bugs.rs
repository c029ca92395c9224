//! The same examinations on a server with a bug planted in it: they must find it, or they would
//! find nothing.

use super::kills::{Plan, kill_rounds};
use super::load::{Failing, Load, declare_meters};
use super::named_points::fail_one_commit;
use super::server::{Launch, Place, Server};
use std::time::Duration;

/// Crashes a server that has a bug, at the commits or folds given, until a violation is found.
async fn find(place: &Place, bug: &str, point: &str, commits: std::ops::Range<usize>) -> bool {
    let mut server = Server::start(place);
    declare_meters(&server.url).await;
    server.kill();
    for number in commits {
        let failpoints = format!("{bug}=return;{point}={number}*off->return");
        let launch = Launch { failpoints: &failpoints, ..Launch::default() };
        let Ok(mut server) = Server::launch(place, &launch) else { return true };
        let load = Load::new(&format!("planted-{number}"), 6, 800);
        let known = load.none_acknowledged();
        load.send(&server.url, 2, Failing::Stop, &known).await;
        server.ended_within(Duration::from_secs(5)).await;
        server.kill();
        // A store so damaged that it does not open is a violation as well.
        if Server::launch(place, &Launch::default()).is_err() {
            return true;
        }
        if !load.recover(place, &known).await.is_empty() {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_acknowledging_before_the_commit_is_found() {
    assert!(find(&Place::sqlite(), "bug.ack_before_commit", "sqlite.before_commit", 3..8).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_folding_outside_the_transaction_is_found() {
    let (bug, point) = ("bug.rollup_outside_transaction", "sqlite.before_fold_commit");
    assert!(find(&Place::sqlite(), bug, point, 0..2).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_claiming_keys_before_the_write_is_found() {
    let violations = fail_one_commit(&Place::sqlite(), ";bug.claim_before_write=return").await;
    assert!(!violations.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_totals_outside_the_transaction_are_found() {
    if let Some(place) = Place::postgres().await {
        let (bug, point) = ("bug.rollup_outside_transaction", "postgres.after_commit");
        assert!(find(&place, bug, point, 2..6).await);
    }
}

/// The acknowledgement leaves 20 ms before the commit: a kill on hearing it finds the gap.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_acknowledging_before_the_commit_is_found() {
    let Some(place) = Place::postgres().await else { return };
    let mut server = Server::start(&place);
    declare_meters(&server.url).await;
    server.kill();
    for round in 0..10 {
        let launch = Launch { failpoints: "bug.ack_before_commit=return", ..Launch::default() };
        let mut server = Server::launch(&place, &launch).unwrap();
        let load = Load::new(&format!("early-{round}"), 1, 0);
        let known = load.none_acknowledged();
        load.send(&server.url, 1, Failing::Stop, &known).await;
        server.kill();
        if !load.recover(&place, &known).await.is_empty() {
            return;
        }
    }
    panic!("the planted bug was not found");
}

/// Kills a server with each of these faults until the model contradicts it.
async fn kill_until_found(place: impl AsyncFn() -> Option<Place>, faults: &[&'static str]) {
    for failpoints in faults {
        let Some(place) = place().await else { return };
        let plan = Plan { rounds: 60, servers: 1, restarts_database: false, failpoints };
        let wrong = kill_rounds(&place, &plan).await.err();
        println!(
            "{failpoints}: {:#?}",
            wrong.unwrap_or_else(|| panic!("{failpoints} is not found"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_find_planted_bugs_on_sqlite() {
    let faults = [
        "bug.ack_before_commit=return",
        "bug.rollup_outside_transaction=return",
        "bug.claim_before_write=return;sqlite.commit_fails=9*off->1*return->off",
    ];
    kill_until_found(async || Some(Place::sqlite()), &faults).await;
}

/// Events that come again while the server runs are judged by its memory.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keys_dropped_between_memory_and_run_are_found() {
    kill_until_found(async || Some(Place::sqlite()), &["bug.key_dropped_at_fold=return"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_a_run_that_is_visible_before_it_is_durable_is_found() {
    let place = Place::sqlite();
    let failpoints = "bug.run_visible_before_durable=return;sqlite.after_fold_commit=2*off->return";
    let launch = Launch { failpoints, ..Launch::default() };
    let mut server = Server::launch(&place, &launch).unwrap();
    declare_meters(&server.url).await;
    let load = Load::new("durable", 6, 4_000);
    load.send(&server.url, 1, Failing::Stop, &load.none_acknowledged()).await;
    assert!(server.ended_within(Duration::from_secs(10)).await.is_some());
    let findings = place.check();
    assert!(findings.iter().any(|finding| finding.contains("key run")), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_find_planted_bugs_on_postgres() {
    let faults = ["bug.ack_before_commit=return", "bug.rollup_outside_transaction=return"];
    kill_until_found(Place::postgres, &faults).await;
}

/// What is found above is the bug and not the commit that fails.
#[tokio::test(flavor = "multi_thread")]
async fn kills_find_nothing_where_only_a_commit_fails() {
    let failpoints = "sqlite.commit_fails=9*off->1*return->off";
    let plan = Plan { rounds: 6, servers: 1, restarts_database: false, failpoints };
    let wrong = kill_rounds(&Place::sqlite(), &plan).await.err();
    assert!(wrong.is_none(), "{wrong:#?}");
}
