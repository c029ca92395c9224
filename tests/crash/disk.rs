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

/// Returns what the server said, if the fault stopped it.
async fn meet_fault(place: &Place, call: &str, error: &str, when: &str) -> Option<String> {
    let inject = format!("{call}:error={error}:when={when}");
    let load = Load::new(&format!("{call}-{error}-{}", when.replace('.', "")), 2, 250);
    let known = load.none_acknowledged();
    let said_before = place.log_text().len();
    let launch = Launch { inject: Some(&inject), ..Launch::default() };
    let stopped = match Server::launch(place, &launch) {
        Err(said) => Some(said),
        Ok(mut server) => {
            let patience = Duration::from_secs(3);
            let sending = load.send(&server.url, 2, Failing::Retry, &known);
            let _ = tokio::time::timeout(patience, sending).await;
            let ended = server.ended_within(Duration::from_millis(50)).await;
            server.kill();
            ended.map(|_| place.log_text()[said_before..].to_owned())
        }
    };
    let violations = load.recover(place, &known).await;
    assert!(violations.is_empty(), "{inject}: {violations:#?}");
    stopped
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_or_failing_writes_cost_nothing() {
    if !strace_is_here() {
        return;
    }
    let place = Place::sqlite();
    declare_meters(&Server::start(&place).url).await;
    for (error, when) in
        [("ENOSPC", "4"), ("ENOSPC", "9..12"), ("ENOSPC", "20"), ("EIO", "6"), ("EIO", "17..19")]
    {
        if let Some(said) = meet_fault(&place, "pwrite64", error, when).await {
            assert!(said.contains("counterfoil: "), "it says why: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_stops_the_server() {
    if !strace_is_here() {
        return;
    }
    let place = Place::sqlite();
    declare_meters(&Server::start(&place).url).await;
    let mut stops = 0;
    for when in ["1", "3", "6", "9"] {
        if let Some(said) = meet_fault(&place, "fdatasync,fsync", "EIO", when).await {
            assert!(said.contains("could not sync"), "it says why: {said}");
            stops += 1;
        }
    }
    assert!(stops >= 2, "the fault was met only {stops} times");
}
