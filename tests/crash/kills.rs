//! kill -9 at random moments under load, again and again on the same store.

use super::load::{Failing, Load, declare_meters, random_millis};
use super::server::{Place, Server};

async fn kill_rounds(place: &Place, rounds: usize) {
    let mut server = Server::start(place);
    declare_meters(&server.url).await;
    let mut loads = Vec::new();
    for round in 0..rounds {
        let load = Load::new(&format!("round-{round}"), 12, 900);
        let known = load.none_acknowledged();
        let (url, kill_after) = (server.url.clone(), random_millis(250));
        let killing = async {
            tokio::time::sleep(kill_after).await;
            server.kill();
        };
        let (wrong, ()) = tokio::join!(load.send(&url, 4, Failing::Stop, &known), killing);
        assert!(wrong.is_empty(), "{wrong:#?}");
        let violations = load.recover(place, &known).await;
        assert!(violations.is_empty(), "round {round}, after {kill_after:?}: {violations:#?}");
        loads.push((load, known));
        server = Server::start(place);
    }
    for (load, known) in &loads {
        let violations = load.examine(&server.url, known, super::load::Stage::Complete).await;
        assert!(violations.is_empty(), "at the end: {violations:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_exact_after_kills() {
    kill_rounds(&Place::sqlite(), 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_exact_after_kills() {
    if let Some(place) = Place::postgres().await {
        kill_rounds(&place, 4).await;
    }
}
