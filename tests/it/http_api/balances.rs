//! Balances that never promise more than is there: while a cut draws, before a refund, and after a
//! grant has expired.

use super::credits::{billing, cut, issue, usage};
use crate::world::{Answer, Ground, Server};
use counterfoil::jobs::Job;
use counterfoil::jobs::credits::CreditsJob;
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The accept horizon of [`billing`].
const HORIZON_HOURS: u32 = 24 * 30;

fn purchased(amount: &str) -> Value {
    json!({
        "pool": "purchased", "unit": "eur", "amount": amount, "rates": {"calls": "1"},
        "effective_at": "2026-11-10T00:00:00Z",
    })
}

/// Issues 10 that expire at eleven.
async fn issue_short(server: &Server) {
    let mut short = purchased("10");
    short["expires_at"] = "2026-11-15T11:00:00Z".into();
    issue(server, "acme", "short", &short).await;
}

async fn pool(server: &Server) -> Value {
    server.get("/v1/tenants/acme/credits").await.json()["pools"][0].clone()
}

async fn void_grant(server: &Server, grant: u64, key: &str, body: &str) -> Answer {
    server.once(&format!("/v1/tenants/acme/grants/{grant}/void"), key, body).await
}

async fn expire(server: &Server) -> usize {
    let context = server.context(|config| config.ingest.accept_horizon_hours = HORIZON_HOURS);
    CreditsJob::new(&context).pass().await.unwrap()
}

pub async fn balance_read_while_a_cut_draws_does_not_overstate(ground: Ground) {
    let server = Arc::new(billing(ground).await);
    issue(&server, "acme", "a", &purchased("100")).await;
    usage(&server, ("acme", "calls"), "80", "2026-11-15T09:30:00Z").await;
    // The balance has read the grants and nothing else when the cut draws on them.
    let gate = server.faults.grants_gate.write().await;
    let reading = tokio::spawn({
        let server = Arc::clone(&server);
        async move { pool(&server).await }
    });
    while server.faults.grants_read.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    cut(&server).await;
    drop(gate);
    assert_eq!(reading.await.unwrap()["available"], "20");
    assert_eq!(pool(&server).await["available"], "20");
}

pub async fn void_leaves_what_uncut_usage_will_draw(ground: Ground) {
    let server = billing(ground).await;
    let grant = issue(&server, "acme", "a", &purchased("100")).await;
    usage(&server, ("acme", "calls"), "80", "2026-11-15T11:59:00Z").await;
    let problem = void_grant(&server, grant, "t1", r#"{"amount":"21"}"#).await;
    let problem = problem.problem(422, "too_little_left");
    assert!(problem["detail"].as_str().unwrap().starts_with("only 20 can"), "{problem}");
    let rest = void_grant(&server, grant, "t2", "{}").await.json();
    assert_eq!((&rest["amount"], &rest["remaining"]), (&"20".into(), &"80".into()));
    void_grant(&server, grant, "t3", "{}").await.problem(422, "too_little_left");
    server.clock.advance(24 * MICROS_PER_HOUR);
    cut(&server).await;
    let pushes = server.get("/v1/pushes").await.json();
    assert_eq!(pushes["pushes"], json!([]), "credits cover all of it");
}

pub async fn expired_grant_covers_late_usage_within_the_accept_horizon(ground: Ground) {
    let server = billing(ground).await;
    issue_short(&server).await;
    server.clock.advance(6 * 24 * MICROS_PER_HOUR);
    cut(&server).await;
    assert_eq!(expire(&server).await, 0, "events from before its expiry are still accepted");
    usage(&server, ("acme", "calls"), "3", "2026-11-15T10:30:00Z").await;
    cut(&server).await;
    assert_eq!(pool(&server).await["remaining"], "7");
    assert_eq!(server.get("/v1/pushes").await.json()["pushes"], json!([]));
}

pub async fn expired_grant_is_kept_until_usage_from_before_is_cut(ground: Ground) {
    let server = billing(ground).await;
    issue_short(&server).await;
    usage(&server, ("acme", "calls"), "3", "2026-11-15T10:30:00Z").await;
    // No cut runs for two months, as while a server is down.
    let later = Timestamp::parse("2027-01-20T00:00:00Z").unwrap();
    server.clock.advance(later.micros() - server.clock.now().micros());
    assert_eq!(expire(&server).await, 0, "its usage was not cut");
    let balance = pool(&server).await;
    assert_eq!((&balance["pending"], &balance["available"]), (&"3".into(), &"0".into()));
    cut(&server).await;
    assert_eq!(pool(&server).await["remaining"], "7");
    assert_eq!((expire(&server).await, expire(&server).await), (1, 0));
}

pub async fn balance_of_usage_billed_by_event_assumes_the_dearest_draw(ground: Ground) {
    let server = billing(ground).await;
    let spec = json!({
        "aggregation": "sum",
        "billing": {"from": "2026-11-01T00:00:00Z", "granularity": "event"},
    });
    assert_eq!(server.put("/v1/meters/single", &spec.to_string()).await.status, 201);
    let grant = |pool: &str, rate: &str, effective_at: &str| {
        json!({
            "pool": pool, "unit": "eur", "amount": "100", "rates": {"single": rate},
            "effective_at": effective_at,
        })
    };
    // The granted pool comes first and is cheap; it does not cover the event, which came before.
    issue(&server, "acme", "a", &grant("granted", "0.1", "2026-11-15T09:30:00Z")).await;
    issue(&server, "acme", "b", &grant("purchased", "1", "2026-11-10T00:00:00Z")).await;
    usage(&server, ("acme", "single"), "40", "2026-11-15T09:10:00Z").await;
    let available = async || {
        let pools = server.get("/v1/tenants/acme/credits").await.json()["pools"].clone();
        let of = |place: usize| pools[place]["available"].as_str().unwrap().to_owned();
        (of(0), of(1))
    };
    assert_eq!(available().await, ("96".to_owned(), "60".to_owned()));
    cut(&server).await;
    assert_eq!(available().await, ("100".to_owned(), "60".to_owned()));
}
