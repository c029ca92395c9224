//! Crashes at named points: just before a commit, just after it, and a commit that fails.

use super::load::{Failing, Load, Stage, declare_meters};
use super::server::{Launch, Place, Server};
use std::time::Duration;

/// Crashes at the first commit of events and at later ones.
async fn crash_at(place: &Place, point: &str, name: &str) {
    crash_after(place, (point, &[0, 1, 2, 5, 9, 14, 20]), name, 800).await;
}

/// Crashes when the point was passed so often; each time under a load of its own.
async fn crash_after(place: &Place, at: (&str, &[usize]), name: &str, bulk_events: usize) {
    let (point, passed) = at;
    let mut server = Server::start(place);
    declare_meters(&server.url).await;
    server.kill();
    for commits in passed {
        let failpoints = format!("{point}={commits}*off->return");
        let mut server =
            Server::launch(place, &Launch { failpoints: &failpoints, ..Launch::default() })
                .unwrap();
        let load = Load::new(&format!("{name}-{commits}"), 6, bulk_events);
        let known = load.none_acknowledged();
        // Requests side by side share commits; a late crash needs one commit for each request.
        let connections = if *commits <= 5 { 3 } else { 1 };
        let wrong = load.send(&server.url, connections, Failing::Stop, &known).await;
        assert!(wrong.is_empty(), "{wrong:#?}");
        let ended = server.ended_within(Duration::from_secs(10)).await;
        assert!(ended.is_some_and(|status| !status.success()), "it crashes at {failpoints}");
        let violations = load.recover(place, &known).await;
        assert!(violations.is_empty(), "{failpoints}: {violations:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_before_commit() {
    crash_at(&Place::sqlite(), "sqlite.before_commit", "before").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_after_commit() {
    crash_at(&Place::sqlite(), "sqlite.after_commit", "after").await;
}

/// Folds go on beside commits: a crash leaves the segment in the journal or in the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_around_the_commit_of_a_fold() {
    for point in ["sqlite.before_fold_commit", "sqlite.after_fold_commit"] {
        crash_after(&Place::sqlite(), (point, &[0, 1, 4]), "fold", 4_000).await;
    }
}

/// A merge is done by its one commit; what is before or after it is garbage.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_around_the_steps_of_a_merge() {
    for point in [
        "sqlite.between_merged_keys_and_totals",
        "sqlite.before_merge_commit",
        "sqlite.after_merge_commit",
    ] {
        crash_after(&Place::sqlite(), (point, &[0]), "merge", 6_000).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_before_commit() {
    if let Some(place) = Place::postgres().await {
        crash_at(&place, "postgres.before_commit", "before").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_after_commit() {
    if let Some(place) = Place::postgres().await {
        crash_at(&place, "postgres.after_commit", "after").await;
    }
}

/// A commit that fails is answered 503 and leaves nothing behind: no event, and above all no key,
/// or the retry would be taken for a duplicate and be lost for ever.
pub async fn fail_one_commit(place: &Place, bug: &str) -> Vec<String> {
    let mut server = Server::start(place);
    declare_meters(&server.url).await;
    server.kill();
    let failpoints = format!("sqlite.commit_fails=1*return{bug}");
    let launch = Launch { failpoints: &failpoints, ..Launch::default() };
    let mut server = Server::launch(place, &launch).unwrap();
    let load = Load::new("commit-fails", 1, 0);
    let known = load.none_acknowledged();
    let mut violations = load.send(&server.url, 1, Failing::Stop, &known).await;
    if !load.examine(&server.url, &known, Stage::AfterCrash).await.is_empty() {
        violations.push("the failed commit left something".to_owned());
    }
    if load.examine(&server.url, &known, Stage::Complete).await.is_empty() {
        violations.push("the commit did not fail".to_owned());
    }
    violations.extend(load.send(&server.url, 1, Failing::Stop, &known).await);
    if server.ended_within(Duration::from_millis(200)).await.is_some() {
        violations.push("the server stopped at the retry".to_owned());
        return violations;
    }
    violations.extend(load.examine(&server.url, &known, Stage::Complete).await);
    violations
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_commit_is_retried_and_counted_once() {
    let violations = fail_one_commit(&Place::sqlite(), "").await;
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Going on would count by memory that is wrong, or let tenants wait for ever.
async fn stop_at(failpoint: &str) {
    let place = Place::sqlite();
    let mut server = Server::start(&place);
    declare_meters(&server.url).await;
    server.kill();
    let failpoints = format!("{failpoint}=1*return");
    let launch = Launch { failpoints: &failpoints, ..Launch::default() };
    let mut server = Server::launch(&place, &launch).unwrap();
    let load = Load::new("stops", 2, 100);
    let known = load.none_acknowledged();
    let url = server.url.clone();
    let ended = tokio::select! {
        _ = load.send(&url, 2, Failing::Retry, &known) => None,
        ended = server.ended_within(Duration::from_secs(20)) => ended,
    };
    assert_eq!(ended.and_then(|status| status.code()), Some(74), "{}", place.log_text());
    let violations = load.recover(&place, &known).await;
    assert!(violations.is_empty(), "{failpoint}: {violations:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_memory_cannot_take_over_stops_the_server() {
    stop_at("sqlite.append_fails").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_panics_stops_the_server() {
    stop_at("ingest.group_panics").await;
}
