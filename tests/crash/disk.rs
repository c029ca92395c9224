//! A disk that is full, cannot write or cannot sync, by way of strace's injected errors.
//!
//! A failed write is answered 503 and the server goes on, or it stops with a clear message; a
//! failed sync always stops it, since nobody knows what the disk holds. Started again on a good
//! disk, it is exact.

use super::load::{Failing, Load, declare_meters};
use super::server::{Launch, Place, Server, refuse_if_required};
use std::process::Command;
use std::time::Duration;

fn strace_is_here() -> bool {
    let found = Command::new("strace").arg("--version").output().is_ok();
    if !found {
        refuse_if_required("strace is not installed");
    }
    found
}

/// What became of a server whose disk failed.
#[derive(Debug, PartialEq, Eq)]
enum Met {
    /// With what it said.
    Stopped(String),
    /// Requests were put off, and then answered.
    WentOn,
    /// The fault came at a moment that hurt nobody, or never.
    Unnoticed,
}

async fn meet_fault(place: &Place, call: &str, error: &str, when: usize) -> Met {
    let inject = format!("{call}:error={error}:when={when}");
    let load = Load::new(&format!("{call}-{error}-{when}"), 2, 250);
    let known = load.none_acknowledged();
    let said_before = place.log_text().len();
    let launch = Launch { inject: Some(&inject), ..Launch::default() };
    let stopped = match Server::launch(place, &launch) {
        Err(_) => true,
        Ok(mut server) => {
            let url = server.url.clone();
            let stopped = tokio::select! {
                _ = load.send(&url, 2, Failing::Retry, &known) => false,
                ended = server.ended_within(Duration::from_secs(20)) => ended.is_some(),
            };
            server.kill();
            stopped
        }
    };
    let said = place.log_text()[said_before..].to_owned();
    let violations = load.recover(place, &known).await;
    assert!(violations.is_empty(), "{inject}: {violations:#?}");
    match stopped {
        true => Met::Stopped(said),
        false if said.contains("could not") => Met::WentOn,
        false => Met::Unnoticed,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_or_failing_writes_cost_nothing() {
    if !strace_is_here() {
        return;
    }
    let place = Place::sqlite();
    declare_meters(&Server::start(&place).url).await;
    let (mut went_on, mut stopped) = (0, 0);
    for (error, first) in [("ENOSPC", 2), ("EIO", 5)] {
        for when in (first..50).step_by(6) {
            match meet_fault(&place, "pwrite64", error, when).await {
                Met::Stopped(said) => {
                    assert!(said.contains("counterfoil: "), "it says why: {said}");
                    stopped += 1;
                }
                Met::WentOn => went_on += 1,
                Met::Unnoticed => {}
            }
        }
    }
    assert!(went_on >= 3, "requests were put off only {went_on} times, {stopped} stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_stops_the_server() {
    if !strace_is_here() {
        return;
    }
    let place = Place::sqlite();
    declare_meters(&Server::start(&place).url).await;
    let mut stops = 0;
    for when in [1, 2, 3, 5, 7, 9, 12] {
        match meet_fault(&place, "fdatasync,fsync", "EIO", when).await {
            Met::Stopped(said) => {
                assert!(said.contains("could not sync"), "it says why: {said}");
                stops += 1;
            }
            met @ (Met::WentOn | Met::Unnoticed) => assert_eq!(met, Met::Unnoticed),
        }
    }
    assert!(stops >= 4, "the fault was met only {stops} times");
}
