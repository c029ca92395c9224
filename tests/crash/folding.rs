//! Crashes while deltas are folded into totals on PostgreSQL, and bugs planted there, which the
//! same examination must find.

use super::load::{Failing, Load, declare_meters};
use super::server::{Launch, Place, Server};
use std::time::Duration;

/// Loads that are sent until a fold has met its crash.
const LOADS_MAX: usize = 200;

/// Sends until the server crashes at a fold; returns everything that is wrong afterwards.
async fn crash_at_fold(place: &Place, failpoints: &str, name: &str) -> Vec<String> {
    let launch = Launch { failpoints, ..Launch::default() };
    let mut server = Server::launch(place, &launch).unwrap();
    for number in 0..LOADS_MAX {
        let load = Load::new(&format!("{name}-{number}"), 1, 100);
        let known = load.none_acknowledged();
        let wrong = load.send(&server.url, 2, Failing::Stop, &known).await;
        assert!(wrong.is_empty(), "{wrong:#?}");
        if let Some(status) = server.ended_within(Duration::from_millis(100)).await {
            assert!(!status.success(), "it crashes at {failpoints}");
            return load.recover(place, &known).await;
        }
    }
    panic!("no fold met {failpoints}");
}

async fn prepared() -> Option<Place> {
    let place = Place::postgres().await?;
    let mut server = Server::start(&place);
    declare_meters(&server.url).await;
    server.kill();
    Some(place)
}

async fn crash_at(point: &str) {
    let Some(place) = prepared().await else { return };
    for folds in [0, 1, 3] {
        let failpoints = format!("{point}={folds}*off->return");
        let violations = crash_at_fold(&place, &failpoints, &format!("fold-{folds}")).await;
        assert!(violations.is_empty(), "{failpoints}: {violations:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_before_the_commit_of_a_fold() {
    crash_at("postgres.before_fold_commit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_after_the_commit_of_a_fold() {
    crash_at("postgres.after_fold_commit").await;
}

async fn is_found(bug: &str) {
    let Some(place) = prepared().await else { return };
    let failpoints = format!("{bug}=return;postgres.before_fold_commit=return");
    let violations = crash_at_fold(&place, &failpoints, "planted").await;
    assert!(!violations.is_empty(), "{bug} was not found");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_folding_a_delta_twice_is_found() {
    is_found("bug.delta_folded_twice").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_losing_a_delta_between_its_deletion_and_the_fold_is_found() {
    is_found("bug.delta_lost_between_fold_and_delete").await;
}
