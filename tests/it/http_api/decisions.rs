//! Deciding about quarantined events and conflicts over HTTP: one by one and in bulk, once, and
//! only about what is one's own.

use crate::world::{Answer, Ground, NOW, Server, each, event};
use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

const OLD: &str = "2026-09-15T10:30:00Z";
const WHY: &str = r#"{"reason":"the outage","author":"zoe"}"#;

/// Two old events of acme and one of rival are quarantined; acme has a conflict.
async fn kept(ground: Ground) -> Server {
    let server = Server::start(ground).await;
    for (tenant, id, quantity, at) in [
        ("acme", "a", "5", OLD),
        ("acme", "b", "7", OLD),
        ("rival", "r", "100", OLD),
        ("acme", "c", "1", NOW),
        ("acme", "c", "2", NOW),
    ] {
        server.post(&event(tenant, id, quantity, at)).await;
    }
    server
}

/// The number of an event's record.
async fn number(server: &Server, list: &str, id: &str) -> u64 {
    let path = format!("/v1/{list}?id={id}");
    let name = if list == "quarantine" { "quarantined" } else { list };
    server.get(&path).await.rows(name)[0]["number"].as_u64().unwrap()
}

async fn total(server: &Server, tenant: &str) -> Value {
    let range = "from=2026-09-01&to=2026-12-01";
    let path = format!("/v1/usage?tenant={tenant}&meter=calls&{range}");
    server.get(&path).await.json()["total"].clone()
}

async fn decide(server: &Server, path: &str, body: &str) -> Answer {
    server.post_to(path, body).await
}

pub async fn an_event_is_admitted_and_shown(ground: Ground) {
    let server = kept(ground).await;
    let path = format!("/v1/quarantine/{}", number(&server, "quarantine", "a").await);
    let before = server.get(&path).await.ok(200);
    assert_eq!((&before["state"], &before["decision"]), (&json!("undecided"), &Value::Null));
    assert_eq!(total(&server, "acme").await, "1");
    let admitted = decide(&server, &format!("{path}/admit"), WHY).await.ok(200);
    assert_eq!(admitted["state"], "admitted");
    let decision = json!({"reason": "the outage", "author": "zoe", "decided_at": NOW});
    assert_eq!(admitted["decision"], decision);
    assert_eq!(total(&server, "acme").await, "6");
    assert_eq!(server.get(&path).await.ok(200), admitted);
    let trace = server.get("/v1/events/acme/a").await.ok(200);
    let summary = trace["summary"].as_str().unwrap();
    assert!(summary.ends_with(&format!("decided by zoe at {NOW}: admitted")), "{summary}");
    assert_eq!(trace["quarantined"][0], admitted);
    let counters = server.get("/v1/counters").await.rows("counters");
    let acme = counters.iter().find(|row| row["tenant"] == "acme").unwrap();
    let counts = |name: &str| acme[name].as_u64().unwrap();
    assert_eq!((counts("received"), counts("accepted"), counts("admitted")), (4, 1, 1));
    assert_eq!((counts("quarantined"), counts("conflicts")), (2, 1));
    let again = server.post(&event("acme", "a", "5", OLD)).await;
    assert_eq!(again.json()["duplicates"], 1);
}

pub async fn a_record_is_decided_once(ground: Ground) {
    let server = kept(ground).await;
    let path = format!("/v1/quarantine/{}", number(&server, "quarantine", "a").await);
    let first = decide(&server, &format!("{path}/discard"), WHY).await.ok(200);
    assert_eq!(first["state"], "discarded");
    server.clock.advance(60_000_000);
    let other = r#"{"reason":"second thoughts","author":"max"}"#;
    let again = decide(&server, &format!("{path}/discard"), other).await.ok(200);
    assert_eq!(again, first, "it is answered as it was decided");
    let refused = decide(&server, &format!("{path}/admit"), other).await;
    let problem = refused.problem(409, "already_decided");
    assert_eq!((&problem["state"], &problem["author"]), (&json!("discarded"), &json!("zoe")));
    assert_eq!((&problem["reason"], &problem["decided_at"]), (&json!("the outage"), &json!(NOW)));
    assert!(problem["detail"].as_str().unwrap().contains(NOW), "{problem}");
    assert_eq!(total(&server, "acme").await, "1");
    // A key replays the answer.
    let path = format!("/v1/quarantine/{}/admit", number(&server, "quarantine", "b").await);
    let keyed = || {
        let request = Request::builder().method(Method::POST).uri(&path);
        let request = request.header("authorization", format!("Bearer {}", server.admin));
        let request = request.header("content-type", "application/json");
        request.header("idempotency-key", "k1").body(Body::from(WHY)).unwrap()
    };
    let first = server.send(keyed()).await;
    let replayed = server.send(keyed()).await;
    assert_eq!((first.status, &first.body), (200, &replayed.body));
    assert_eq!(replayed.headers["idempotency-replayed"], "true");
    assert_eq!(total(&server, "acme").await, "8");
}

pub async fn what_cannot_be_admitted_says_why(ground: Ground) {
    let server = kept(ground).await;
    server.post(&event("acme", "ahead", "1", "2026-11-15T13:00:00Z")).await;
    let ahead = number(&server, "quarantine", "ahead").await;
    let path = format!("/v1/quarantine/{ahead}/admit");
    decide(&server, &path, WHY).await.problem(409, "still_ahead");
    server.clock.advance(56 * 60_000_000);
    assert_eq!(decide(&server, &path, WHY).await.ok(200)["state"], "admitted");
    // Counted meanwhile, with the same payload and with another one.
    server.clock.advance(4 * 60_000_000);
    for id in ["same", "other"] {
        server.post(&event("acme", id, "1", "2026-11-15T14:00:00Z")).await;
    }
    server.clock.advance(60 * 60_000_000);
    server.post(&event("acme", "same", "1", "2026-11-15T14:00:00Z")).await;
    server.post(&event("acme", "other", "3", "2026-11-15T14:00:00Z")).await;
    for (id, state) in [("same", "duplicate"), ("other", "conflict")] {
        let path = format!("/v1/quarantine/{}/admit", number(&server, "quarantine", id).await);
        assert_eq!(decide(&server, &path, WHY).await.ok(200)["state"], state);
    }
    assert_eq!(server.get("/v1/conflicts?id=other").await.rows("conflicts").len(), 0);
    assert_eq!(total(&server, "acme").await, "6");
    let path = format!("/v1/quarantine/{}/admit", number(&server, "quarantine", "a").await);
    for (body, status, code) in [
        ("{}", 422, "invalid_body"),
        (r#"{"reason":"r"}"#, 422, "invalid_body"),
        (r#"{"reason":" ","author":"zoe"}"#, 422, "invalid_reason"),
        (r#"{"reason":"r","author":""}"#, 422, "invalid_author"),
        (r#"{"reason":"r","author":"a\nb"}"#, 422, "invalid_author"),
        (r#"{"reason":"r","author":"a","force":true}"#, 422, "invalid_body"),
    ] {
        decide(&server, &path, body).await.problem(status, code);
    }
    let nothing = decide(&server, "/v1/quarantine/999/admit", WHY).await;
    nothing.problem(404, "unknown_quarantined");
    server.get("/v1/quarantine/999").await.problem(404, "unknown_quarantined");
}

fn bulk(ruling: &str, filter: Value, more: Value) -> String {
    let mut body = json!({
        "ruling": ruling, "filter": filter, "reason": "the outage", "author": "zoe",
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

pub async fn many_are_decided_by_a_filter(ground: Ground) {
    let server = kept(ground).await;
    server.post(&event("acme", "ahead", "1", "2026-11-15T13:00:00Z")).await;
    let path = "/v1/quarantine/decide";
    let dry = json!({"dry_run": true});
    let said = decide(&server, path, &bulk("admit", json!({}), dry.clone())).await.ok(200);
    assert_eq!((&said["selected"], &said["admitted"]), (&json!(4), &json!(0)));
    let totals = json!([
        {"tenant": "acme", "meter": "calls", "events": 3, "quantity": "13"},
        {"tenant": "rival", "meter": "calls", "events": 1, "quantity": "100"},
    ]);
    assert_eq!(said["totals"], totals);
    assert_eq!(total(&server, "rival").await, "0", "nothing is decided");
    let filter = json!({"tenant": "acme", "reason": "too_old"});
    let said = decide(&server, path, &bulk("admit", filter, json!({"limit": 1}))).await.ok(200);
    assert_eq!((&said["selected"], &said["admitted"]), (&json!(1), &json!(1)));
    let after = said["next_after"].as_u64().unwrap();
    assert_eq!(total(&server, "acme").await, "6");
    let rest = bulk("admit", json!({"tenant": "acme"}), json!({"after": after}));
    let said = decide(&server, path, &rest).await.ok(200);
    assert_eq!((&said["selected"], &said["admitted"]), (&json!(2), &json!(1)));
    assert_eq!(said["left"][0]["code"], "still_ahead");
    assert_eq!(said["next_after"], Value::Null);
    assert_eq!(total(&server, "acme").await, "13");
    let said = decide(&server, path, &bulk("discard", json!({}), json!({}))).await.ok(200);
    assert_eq!((&said["selected"], &said["discarded"]), (&json!(2), &json!(2)));
    let none = bulk("discard", json!({}), json!({}));
    assert_eq!(decide(&server, path, &none).await.ok(200)["selected"], 0);
    let open = server.get("/v1/quarantine?decided=false").await;
    assert_eq!(open.rows("quarantined").len(), 0);
    let closed = server.get("/v1/quarantine?decided=true").await.rows("quarantined");
    assert_eq!(each(&closed, "state"), ["admitted", "admitted", "discarded", "discarded"]);
    for (body, status, code) in [
        (r#"{"ruling":"admit","reason":"r","author":"a"}"#.to_owned(), 422, "invalid_body"),
        (bulk("forget", json!({}), json!({})), 422, "invalid_body"),
        (bulk("admit", json!({"tenants": "acme"}), json!({})), 422, "invalid_body"),
        (bulk("admit", json!({"reason": "old"}), json!({})), 400, "invalid_reason"),
        (bulk("admit", json!({}), json!({"limit": 501})), 400, "invalid_limit"),
        (bulk("admit", json!({}), json!({"reason": ""})), 422, "invalid_reason"),
    ] {
        decide(&server, path, &body).await.problem(status, code);
    }
}

pub async fn conflicts_are_kept_or_dismissed(ground: Ground) {
    let server = kept(ground).await;
    server.post(&event("acme", "c", "3", NOW)).await;
    let records = server.get("/v1/conflicts").await.rows("conflicts");
    let numbers: Vec<u64> = records.iter().map(|row| row["number"].as_u64().unwrap()).collect();
    let path = format!("/v1/conflicts/{}", numbers[0]);
    let kept = decide(&server, &format!("{path}/keep-standing"), WHY).await.ok(200);
    assert_eq!(
        (&kept["state"], &kept["decision"]["author"]),
        (&json!("standing_kept"), &json!("zoe"))
    );
    assert_eq!(decide(&server, &format!("{path}/keep-standing"), WHY).await.ok(200), kept);
    let refused = decide(&server, &format!("{path}/dismiss"), WHY).await;
    assert_eq!(refused.problem(409, "already_decided")["state"], "standing_kept");
    assert_eq!(server.get(&path).await.ok(200), kept);
    let body = bulk("dismiss", json!({"tenant": "acme", "id": "c"}), json!({"dry_run": true}));
    let said = decide(&server, "/v1/conflicts/decide", &body).await.ok(200);
    let totals = json!([
        {"tenant": "acme", "meter": "calls", "conflicts": 1, "counted": "1", "received": "3"},
    ]);
    assert_eq!(
        (&said["selected"], &said["decided"], &said["totals"]),
        (&json!(1), &json!(0), &totals)
    );
    let body = bulk("dismiss", json!({}), json!({}));
    assert_eq!(decide(&server, "/v1/conflicts/decide", &body).await.ok(200)["decided"], 1);
    let states = server.get("/v1/conflicts").await.rows("conflicts");
    assert_eq!(each(&states, "state"), ["standing_kept", "dismissed"]);
    assert_eq!(total(&server, "acme").await, "1");
    let trace = server.get("/v1/events/acme/c").await.ok(200);
    assert!(trace["summary"].as_str().unwrap().ends_with("not counted, 0 of them undecided"));
    let nothing = decide(&server, "/v1/conflicts/999/dismiss", WHY).await;
    nothing.problem(404, "unknown_conflict");
    server.get("/v1/conflicts/999").await.problem(404, "unknown_conflict");
}

/// A key of a tenant sees and decides what is its own, and reading is not deciding.
pub async fn who_may_decide(ground: Ground) {
    let server = kept(ground).await;
    let (own, foreign) =
        (number(&server, "quarantine", "r").await, number(&server, "quarantine", "a").await);
    let conflict = number(&server, "conflicts", "c").await;
    let (bound, reader) =
        (server.key("operate", Some("rival")).await, server.key("read", Some("rival")).await);
    let post =
        async |key: &str, path: &str, body: &str| server.call(Method::POST, path, key, body).await;
    let foreign = format!("/v1/quarantine/{foreign}");
    server.get_as(&bound, &foreign).await.problem(404, "unknown_quarantined");
    post(&bound, &format!("{foreign}/admit"), WHY).await.problem(404, "unknown_quarantined");
    let conflict = format!("/v1/conflicts/{conflict}");
    server.get_as(&bound, &conflict).await.problem(404, "unknown_conflict");
    post(&bound, &format!("{conflict}/dismiss"), WHY).await.problem(404, "unknown_conflict");
    let of_acme = bulk("discard", json!({"tenant": "acme"}), json!({}));
    let refused = post(&bound, "/v1/quarantine/decide", &of_acme).await;
    refused.problem(403, "tenant_forbidden");
    let own = format!("/v1/quarantine/{own}/admit");
    post(&reader, &own, WHY).await.problem(403, "scope_missing");
    let all = bulk("admit", json!({}), json!({"dry_run": true}));
    post(&reader, "/v1/quarantine/decide", &all).await.problem(403, "scope_missing");
    let said = post(&bound, "/v1/quarantine/decide", &all).await.ok(200);
    assert_eq!((&said["selected"], &said["totals"][0]["tenant"]), (&json!(1), &json!("rival")));
    let dismissed = bulk("dismiss", json!({}), json!({}));
    assert_eq!(post(&bound, "/v1/conflicts/decide", &dismissed).await.ok(200)["decided"], 0);
    assert_eq!(post(&bound, &own, WHY).await.ok(200)["state"], "admitted");
    assert_eq!(
        (total(&server, "rival").await, total(&server, "acme").await),
        ("100".into(), "1".into())
    );
}
