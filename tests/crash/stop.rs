//! SIGTERM under load: what was acknowledged is counted, and the exit code is 0.

use super::load::{Failing, Load, Stage, declare_meters};
use super::server::{Place, Server};
use std::time::Duration;

async fn stop_under_load(place: &Place) {
    let mut server = Server::start(place);
    declare_meters(&server.url).await;
    let load = Load::new("stop", 12, 6_000);
    let known = load.none_acknowledged();
    let url = server.url.clone();
    let sending = load.send(&url, 4, Failing::Stop, &known);
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.signal("-TERM");
        server.ended_within(Duration::from_secs(30)).await
    };
    let (wrong, ended) = tokio::join!(sending, stopping);
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(ended.expect("it ends").code(), Some(0), "{}", place.log_text());
    let again = Server::start(place);
    let violations = load.examine(&again.url, &known, Stage::AfterCrash).await;
    assert!(violations.is_empty(), "{violations:#?}");
    drop(again);
    let violations = load.recover(place, &known).await;
    assert!(violations.is_empty(), "{violations:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_stops_cleanly_under_load() {
    stop_under_load(&Place::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_stops_cleanly_under_load() {
    if let Some(place) = Place::postgres().await {
        stop_under_load(&place).await;
    }
}
