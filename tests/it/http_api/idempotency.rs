//! Requests under a key: done once, answered again, and never by or for anybody else.

use super::transport::{count_refused, held, short_bodies};
use crate::world::{Answer, Ground, NOW, Server, default_config, event};
use axum::body::Body;
use counterfoil::jobs::Job;
use counterfoil::jobs::sweep::SweepJob;
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use futures_util::stream;
use http::{Method, Request};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub const TWO_HOURS: i64 = 2 * MICROS_PER_HOUR;
const ENTRIES: &str = "/v1/tenants/acme/entries";
const ENTRY: &str = r#"{"memo":"m","postings":[{"account":"wallet","amount":"25.00"},{"account":"payments","amount":"-25"}]}"#;

const QUOTES: &str = "/v1/tenants/acme/quotes";
const QUOTE: &str = r#"{"currency":"eur","jurisdiction":"de","prices":"exclusive","lines":[{"id":"x","amount":"1"}]}"#;

impl Server {
    /// A request under a key, by whoever has the token.
    pub async fn once_as(
        &self,
        token: &str,
        (method, path): (Method, &str),
        key: &str,
        body: &str,
    ) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// A POST of the admin's under a key.
    pub async fn once(&self, path: &str, key: &str, body: &str) -> Answer {
        self.once_as(&self.admin, (Method::POST, path), key, body).await
    }

    /// Has all keys forgotten whose time is over; returns how many that were.
    pub async fn sweep(&self) -> usize {
        SweepJob::new(&self.context(|_| {})).pass().await.unwrap().1
    }

    /// The same a day and an hour later, when the time of every key is over.
    pub async fn forget_keys(&self) -> usize {
        self.clock.advance(25 * MICROS_PER_HOUR);
        self.sweep().await
    }
}

/// The same answer, from a key that was forgotten in between.
#[track_caller]
pub fn check_same(first: &Answer, again: &Answer) {
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert!(!again.headers.contains_key("idempotency-replayed"), "{}", again.show());
}

/// A problem of the layer's own, which may or may not be worth trying again.
#[track_caller]
pub fn check_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    let problem = answer.json();
    assert_eq!((&problem["status"], &problem["code"]), (&status.into(), &code.into()));
    assert_eq!(problem["type"], format!("urn:counterfoil:problem:{code}"));
}

#[track_caller]
pub fn check_replay(first: &Answer, again: &Answer) {
    assert_eq!(again.headers["idempotency-replayed"], "true", "{}", again.show());
    assert!(!first.headers.contains_key("idempotency-replayed"));
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.headers.get("content-type"), first.headers.get("content-type"));
}

/// A server with the accounts `wallet`, which may not fall below 0, and `payments`, of acme.
pub async fn with_accounts(ground: Ground) -> Server {
    let server = Server::start(ground).await;
    for (name, floor) in [("wallet", "zero"), ("payments", "none")] {
        let body = json!({"unit": "eur", "floor": floor}).to_string();
        let path = format!("/v1/tenants/acme/accounts/{name}");
        assert_eq!(server.put(&path, &body).await.status, 200);
    }
    server
}

async fn wallet(server: &Server) -> (String, u64) {
    let account = server.get("/v1/tenants/acme/accounts/wallet").await.json();
    (account["balance"].as_str().unwrap().to_owned(), account["version"].as_u64().unwrap())
}

async fn count(server: &Server, what: &str) -> u64 {
    let sql = format!("SELECT CAST(COUNT(*) AS text) FROM {what}");
    server.ground.read(&sql).await.parse().unwrap()
}

pub async fn where_money_moves_a_key_is_required(ground: Ground) {
    let server = with_accounts(ground).await;
    let paths = [
        ENTRIES,
        "/v1/tenants/acme/grants",
        "/v1/tenants/acme/grants/1/void",
        "/v1/tenants/acme/quotes",
        "/v1/tenants/acme/subscriptions",
        "/v1/tenants/acme/subscriptions/sub_1/plan",
        "/v1/tenants/acme/subscriptions/sub_1/cancel",
    ];
    for path in paths {
        let answer = server.call(Method::POST, path, &server.admin, ENTRY).await;
        check_problem(&answer, 400, "idempotency_key_missing");
        let long = "x".repeat(256);
        for key in ["", "two words", "caf\u{e9}", &long] {
            let answer = server.once(path, key, ENTRY).await;
            check_problem(&answer, 400, "idempotency_key_malformed");
        }
        let twice = Request::post(path)
            .header("authorization", format!("Bearer {}", server.admin))
            .header("idempotency-key", "a")
            .header("idempotency-key", "b");
        let answer = server.send(twice.body(Body::from(ENTRY)).unwrap()).await;
        check_problem(&answer, 400, "idempotency_key_malformed");
        // Whoever may not call at all is told that first.
        let anyone = Request::post(path).header("idempotency-key", "a");
        let answer = server.send(anyone.body(Body::from(ENTRY)).unwrap()).await;
        answer.problem(401, "unauthenticated");
    }
    assert_eq!(wallet(&server).await, ("0".into(), 0));
    assert_eq!(count(&server, "idempotency_keys").await, 0);
    let longest = "~".repeat(255);
    assert_eq!(server.once(ENTRIES, &longest, ENTRY).await.status, 201);
}

pub async fn elsewhere_a_key_is_welcome(ground: Ground) {
    let server = with_accounts(ground).await;
    let put = async |path: &str, key: &str, body: &str| {
        server.once_as(&server.admin, (Method::PUT, path), key, body).await
    };
    let first = put("/v1/meters/pages", "m1", r#"{"aggregation":"sum"}"#).await;
    first.ok(201);
    // Done again it would be 200; said again it is what it was.
    check_replay(&first, &put("/v1/meters/pages", "m1", r#"{ "aggregation" : "sum" }"#).await);
    let plain = server.put("/v1/meters/pages", r#"{"aggregation":"sum"}"#).await;
    assert_eq!(plain.status, 200);
    let other = put("/v1/meters/pages", "m1", r#"{"aggregation":"count"}"#).await;
    check_problem(&other, 422, "idempotency_key_reused");
    let other = put("/v1/meters/words", "m1", r#"{"aggregation":"sum"}"#).await;
    check_problem(&other, 422, "idempotency_key_reused");
    server.get("/v1/meters/words").await.problem(404, "unknown_meter");
    check_problem(&put("/v1/meters/x", "a b", "{}").await, 400, "idempotency_key_malformed");
    // A key belongs to its route: the same word elsewhere is another key.
    assert_eq!(put("/v1/tenants/acme", "m1", "{}").await.status, 200);

    let quota = r#"{"tenant":"acme","meter":"calls","kind":"quota","period":"day","limit":"5"}"#;
    assert_eq!(server.put("/v1/thresholds", quota).await.status, 200);
    let path = "/v1/thresholds?tenant=acme&meter=calls&kind=quota&period=day";
    let delete =
        async |key: &str| server.once_as(&server.admin, (Method::DELETE, path), key, "").await;
    let first = delete("d1").await;
    assert_eq!((first.status, first.body.as_str()), (204, ""));
    check_replay(&first, &delete("d1").await);
    assert_eq!(delete("d2").await.status, 404, "it is gone");
}

pub async fn a_retry_gets_the_first_answer_byte_for_byte(ground: Ground) {
    let server = with_accounts(ground).await;
    let first = server.once(ENTRIES, "k1", ENTRY).await;
    insta::assert_snapshot!(first.show(), @r#"201 {"number":1,"key":"k1","memo":"m","postings":[{"account":"wallet","unit":"eur","amount":"25","balance":"25","version":1},{"account":"payments","unit":"eur","amount":"-25","balance":"-25","version":1}],"at":"2026-11-15T12:00:00Z"}"#);
    server.clock.advance(MICROS_PER_HOUR);
    for body in [ENTRY, &ENTRY.replace(',', " ,\n ")] {
        check_replay(&first, &server.once(ENTRIES, "k1", body).await);
    }
    assert_eq!(wallet(&server).await, ("25".into(), 1));
    // A number written otherwise, another path, other text: another request.
    for (path, body) in [
        (ENTRIES, ENTRY.replace("25.00", "25")),
        (ENTRIES, ENTRY.replace("\"m\"", "\"n\"")),
        ("/v1/tenants/globex/entries", ENTRY.to_owned()),
    ] {
        check_problem(&server.once(path, "k1", &body).await, 422, "idempotency_key_reused");
    }
    assert_eq!(wallet(&server).await, ("25".into(), 1));
    // Refusals are final too, for their time: creating the account later changes nothing.
    let body = ENTRY.replace("payments", "refunds");
    let refused = server.once(ENTRIES, "k2", &body).await;
    refused.problem(422, "unknown_account");
    server.put("/v1/tenants/acme/accounts/refunds", r#"{"unit":"eur"}"#).await;
    check_replay(&refused, &server.once(ENTRIES, "k2", &body).await);
    server.clock.advance(TWO_HOURS);
    assert_eq!(server.sweep().await, 1, "the refusal's time is over, the entry's is not");
    assert_eq!(server.once(ENTRIES, "k2", &body).await.status, 201);
    check_replay(&first, &server.once(ENTRIES, "k1", ENTRY).await);
}

pub async fn others_neither_see_nor_spoil_it(ground: Ground) {
    let server = with_accounts(ground).await;
    let (operate, read) = (server.key("operate", None).await, server.key("read", None).await);
    let bound = server.key("operate", Some("acme")).await;
    let post =
        async |token: &str| server.once_as(token, (Method::POST, ENTRIES), "k1", ENTRY).await;
    // Those who may not do it leave nothing under the key for those who may.
    post(&read).await.problem(403, "scope_missing");
    post(&bound).await.problem(403, "tenant_forbidden");
    let first = post(&operate).await;
    assert_eq!(first.status, 201);
    // Afterwards they do not get to see it either.
    post(&read).await.problem(403, "scope_missing");
    post(&bound).await.problem(403, "tenant_forbidden");
    // Another API key of the same rights goes on where the first has stopped.
    let exchanged = server.key("operate", None).await;
    check_replay(&first, &post(&exchanged).await);
    // One of other rights has keys of its own, and finds the entry by its key all the same.
    check_same(&first, &post(&server.admin).await);
    assert_eq!(wallet(&server).await, ("25".into(), 1));

    // Tenants that are bound: the same key, the same route, nothing in common.
    declare_rate(&server).await;
    let globex = server.key("operate", Some("globex")).await;
    let ask = async |token: &str, tenant: &str| {
        let path = format!("/v1/tenants/{tenant}/quotes");
        server.once_as(token, (Method::POST, &path), "q1", QUOTE).await
    };
    assert_eq!(ask(&bound, "acme").await.status, 200);
    let of_globex = ask(&globex, "globex").await;
    assert_eq!(of_globex.status, 200);
    assert!(!of_globex.headers.contains_key("idempotency-replayed"));
    ask(&globex, "acme").await.problem(403, "tenant_forbidden");
    let second = server.key("operate", Some("globex")).await;
    check_replay(&of_globex, &ask(&second, "globex").await);
}

/// Quotes need a rate of their place.
async fn declare_rate(server: &Server) {
    let rate =
        r#"{"jurisdiction":"de","name":"vat","percent":"19","valid_from":"2021-01-01T00:00:00Z"}"#;
    assert_eq!(server.put("/v1/tax/rates", rate).await.status, 200);
}

pub async fn a_refusal_for_another_tenant_is_no_answer_of_the_tenants_own(ground: Ground) {
    let server = Server::start(ground).await;
    declare_rate(&server).await;
    let globex = server.key("operate", Some("globex")).await;
    let ask = async |tenant: &str| {
        let path = format!("/v1/tenants/{tenant}/quotes");
        server.once_as(&globex, (Method::POST, &path), "q1", QUOTE).await
    };
    ask("acme").await.problem(403, "tenant_forbidden");
    server.get("/v1/tenants/acme/quotes/q1").await.problem(404, "unknown_quote");
    assert_eq!(ask("globex").await.status, 200, "a refused caller leaves the key unused");
}

pub async fn without_the_store_nothing_is_done(ground: Ground) {
    let server = with_accounts(ground).await;
    let routes = [
        (Method::POST, ENTRIES, ENTRY),
        (Method::PUT, "/v1/meters/pages", r#"{"aggregation":"sum"}"#),
        (Method::DELETE, "/v1/keys/key_1", ""),
    ];
    server.faults.set_down(true);
    for (method, path, body) in routes {
        let answer = server.once_as(&server.admin, (method, path), "k1", body).await;
        check_problem(&answer, 503, "idempotency_unavailable");
        assert!(answer.headers.contains_key("retry-after"));
        assert!(!answer.body.contains("secret detail"), "{}", answer.body);
    }
    server.faults.set_down(false);
    assert_eq!(wallet(&server).await, ("0".into(), 0));
    assert_eq!(count(&server, "idempotency_keys").await, 0);
    server.get("/v1/meters/pages").await.problem(404, "unknown_meter");
    assert_eq!(server.once(ENTRIES, "k1", ENTRY).await.status, 201);
}

/// Who is calling is asked before the key is claimed and again by the handler. If the first cannot
/// be told, the request must not run without its key.
pub async fn a_caller_who_is_recognised_too_late_is_put_off(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    let put = async || {
        let route = (Method::PUT, "/v1/meters/pages");
        server.once_as(&server.admin, route, "m1", r#"{"aggregation":"sum"}"#).await
    };
    server.faults.api_key_failures.store(1, Ordering::SeqCst);
    put().await.problem(503, "store_unavailable");
    server.get("/v1/meters/pages").await.problem(404, "unknown_meter");
    let first = put().await;
    assert_eq!(first.status, 201);
    check_replay(&first, &put().await);
}

pub async fn bodies_have_their_limits_under_a_key_too(ground: Ground) {
    let server = Server::start_with(ground, &short_bodies(300)).await;
    let put = async |body: Body| {
        let request = Request::put("/v1/meters/pages")
            .header("authorization", format!("Bearer {}", server.admin))
            .header("content-type", "application/json")
            .header("idempotency-key", "k1");
        server.send(request.body(body).unwrap()).await
    };
    let silent = stream::pending::<Result<Vec<u8>, std::io::Error>>();
    put(Body::from_stream(silent)).await.problem(408, "body_timeout");
    put(Body::from(" ".repeat(1001))).await.problem(413, "body_too_large");
    let chunks = stream::iter((0..5).map(|_| Ok::<_, std::io::Error>(vec![b' '; 300])));
    put(Body::from_stream(chunks)).await.problem(413, "body_too_large");
    let broken = stream::iter([Err::<Vec<u8>, _>(std::io::Error::other("gone"))]);
    put(Body::from_stream(broken)).await.problem(400, "body_broken");
    assert_eq!(count(&server, "idempotency_keys").await, 0, "none of it came so far");
    // And all of them together.
    let answers = futures_util::future::join_all((0..20).map(|_| put(held(900)))).await;
    let refused = count_refused(&answers, "bodies_full");
    assert!((1..=4).contains(&refused), "{refused}");
    let done = put(Body::from(r#"{"aggregation":"sum"}"#)).await;
    assert_eq!(done.status, 201, "all given back: {}", done.body);
}

pub async fn a_body_under_a_key_has_at_most_a_mebibyte(ground: Ground) {
    let server = Server::start(ground).await;
    let large = format!("{{{}}}", " ".repeat(1024 * 1024));
    let answer = server.once(ENTRIES, "k1", &large).await;
    answer.problem(413, "body_too_large");
    assert_eq!(count(&server, "idempotency_keys").await, 0);
}

/// Events are idempotent by their ids; the answer of a batch has a line for each item, and keeping
/// it would let any ingest key fill the disk.
pub async fn answers_about_events_are_never_kept(ground: Ground) {
    let server = Server::start(ground).await;
    let ingest = server.key("ingest", Some("acme")).await;
    let zeros = format!("[0{}]", ",0".repeat(9_999));
    for _ in 0..2 {
        let route = (Method::POST, "/v1/events");
        let answer = server.once_as(&ingest, route, "b1", &zeros).await;
        assert_eq!((answer.status, &answer.json()["rejected"]), (200, &10_000.into()));
        assert!(!answer.headers.contains_key("idempotency-replayed"));
    }
    assert_eq!(count(&server, "idempotency_keys").await, 0);
    // The header means nothing here: what was sent before is a duplicate, and the rest is counted.
    let batch = format!("[{}]", event("acme", "e1", "1", NOW));
    let more = format!("[{},{}]", event("acme", "e1", "1", NOW), event("acme", "e2", "10", NOW));
    for (body, accepted, duplicates) in [(&batch, 1, 0), (&more, 1, 1), (&more, 0, 2)] {
        let verdicts = server.once("/v1/events", "b2", body).await.json();
        assert_eq!(verdicts["accepted"], accepted);
        assert_eq!(verdicts["duplicates"], duplicates);
    }
    assert_eq!(server.get("/v1/usage?tenant=acme&meter=calls").await.json()["total"], "11");
    assert_eq!(count(&server, "idempotency_keys").await, 0);
}

/// Every operation that changes something, by keys that may not call it.
pub async fn callers_without_the_right_are_refused_before_anything_is_claimed(ground: Ground) {
    let server = Server::start(ground).await;
    let document = server.get("/openapi.json").await.json();
    let (read, bound) = (server.key("read", None).await, server.key("read", Some("acme")).await);
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if method == "get" || operation["security"] == json!([]) {
                continue;
            }
            let method: Method = method.to_uppercase().parse().unwrap();
            let names = ["{push}", "{webhook}", "{grant}", "{finding}"];
            let path = names.iter().fold(path.clone(), |path, name| path.replace(name, "1"));
            let path = path.replace(['{', '}'], "");
            for token in [&read, &bound] {
                // A body that is never read: nothing of it may be waited for.
                let silent = stream::pending::<Result<Vec<u8>, std::io::Error>>();
                let request = Request::builder()
                    .method(method.clone())
                    .uri(&path)
                    .header("authorization", format!("Bearer {token}"))
                    .header("idempotency-key", "k1");
                let request = request.body(Body::from_stream(silent)).unwrap();
                let answer = server.send(request).await;
                assert_eq!(answer.status, 403, "{method} {path}: {}", answer.body);
            }
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
    assert_eq!(count(&server, "idempotency_keys").await, 0);
}

/// A typing error does not use up a key that was derived from the operation.
pub async fn a_request_refused_by_validation_leaves_its_key_unused(ground: Ground) {
    let server = with_accounts(ground).await;
    declare_rate(&server).await;
    let (pages, sum) = ("/v1/meters/pages", r#"{"aggregation":"sum"}"#);
    for (method, path, wrong, right) in [
        (Method::POST, ENTRIES, "{", ENTRY),
        (Method::POST, ENTRIES, r#"{"memo":"m"}"#, ENTRY),
        (Method::POST, QUOTES, r#"{"currency":"eur"}"#, QUOTE),
        (Method::POST, QUOTES, &QUOTE.replace("\"1\"", "\"one\""), QUOTE),
        (Method::PUT, pages, r#"{"aggregation":"s"}"#, sum),
    ] {
        let key = format!("k-{}", path.len() + wrong.len());
        let once = async |body: &str| {
            server.once_as(&server.admin, (method.clone(), path), &key, body).await
        };
        let refused = once(wrong).await;
        assert!([400, 422].contains(&refused.status), "{path}: {}", refused.body);
        let done = once(right).await;
        assert!([200, 201].contains(&done.status), "{path}: {}", done.body);
        check_replay(&done, &once(right).await);
        check_problem(&once(wrong).await, 422, "idempotency_key_reused");
    }
    let route = (Method::PUT, "/v1/coupons/spring");
    let coupon = r#"{"discount":{"percent":"10"}}"#;
    server.once_as(&server.admin, route, "cp", coupon).await.ok(422);
    assert_eq!(count(&server, "idempotency_keys WHERE key = 'cp'").await, 0);
}

pub async fn a_token_is_never_stored(ground: Ground) {
    let server = Server::start(ground).await;
    let body = r#"{"name":"x","scopes":["read"]}"#;
    let (one, two) =
        (server.once("/v1/keys", "k1", body).await, server.once("/v1/keys", "k1", body).await);
    assert_eq!((one.status, two.status), (201, 201));
    let token = |answer: &Answer| answer.json()["token"].as_str().unwrap().to_owned();
    assert_ne!(token(&one), token(&two), "a second call makes a second key");
    assert_eq!(count(&server, "idempotency_keys").await, 0);
    // A key is revoked under a key like any other request.
    let path = format!("/v1/keys/{}", one.json()["id"].as_str().unwrap());
    let revoke = async || server.once_as(&server.admin, (Method::DELETE, &path), "k1", "").await;
    let first = revoke().await;
    assert_eq!(first.status, 204);
    check_replay(&first, &revoke().await);
    // Nothing of a token is anywhere in the database, nor in its log.
    for entry in std::fs::read_dir(server.ground.data()).unwrap() {
        let Ok(bytes) = std::fs::read(entry.unwrap().path()) else { continue };
        for token in [token(&one), token(&two), server.admin.clone()] {
            let secret = token.strip_prefix("cf_").unwrap().as_bytes();
            assert!(!bytes.windows(secret.len()).any(|window| window == secret));
        }
    }
}

pub async fn a_hundred_at_once_are_one(ground: Ground) {
    let server = Arc::new(with_accounts(ground).await);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let server = Arc::clone(&server);
        calls.spawn(async move { server.once(ENTRIES, "k1", ENTRY).await });
    }
    let mut bodies = BTreeSet::new();
    let mut first = 0;
    for answer in calls.join_all().await {
        match answer.status {
            201 => {
                first += usize::from(!answer.headers.contains_key("idempotency-replayed"));
                bodies.insert(answer.body);
            }
            _ => {
                check_problem(&answer, 409, "idempotency_key_in_use");
                let seconds = answer.headers["retry-after"].to_str().unwrap();
                assert!((1..=5).contains(&seconds.parse::<u64>().unwrap()));
            }
        }
    }
    assert_eq!((first, bodies.len()), (1, 1), "one was done, and all were told the same");
    assert_eq!(wallet(&server).await, ("25".into(), 1));
    assert_eq!(count(&server, "entries").await, 1);
}

pub async fn what_happened_once_stays_so_after_its_key_is_forgotten(ground: Ground) {
    let server = with_accounts(ground).await;
    let first = server.once(ENTRIES, "k1", ENTRY).await;
    server.clock.advance(24 * MICROS_PER_HOUR - 1_000);
    assert_eq!(server.sweep().await, 0, "a day is not over yet");
    check_replay(&first, &server.once(ENTRIES, "k1", ENTRY).await);
    server.clock.advance(2_000);
    assert_eq!(server.sweep().await, 1);
    assert_eq!(count(&server, "idempotency_keys").await, 0);
    let again = server.once(ENTRIES, "k1", ENTRY).await;
    check_same(&first, &again);
    check_replay(&again, &server.once(ENTRIES, "k1", ENTRY).await);
    assert_eq!(wallet(&server).await, ("25".into(), 1));
    assert_eq!(server.forget_keys().await, 1);
    let other = ENTRY.replace("25", "26");
    server.once(ENTRIES, "k1", &other).await.problem(409, "key_taken");
    assert_eq!(wallet(&server).await, ("25".into(), 1));
    let entry = server.get("/v1/tenants/acme/entries/k1").await;
    assert_eq!((entry.status, &entry.body), (200, &first.body));
}

/// The end of the key fails inside the transaction, after the effect; or the effect does.
pub async fn the_effect_and_its_answer_are_both_there_or_neither(ground: Ground) {
    let server = with_accounts(ground).await;
    declare_rate(&server).await;
    let grants = "/v1/tenants/acme/grants";
    let grant = r#"{"pool":"granted","unit":"eur","amount":"5","rates":{"calls":"1"}}"#;
    let requests = [(ENTRIES, ENTRY, 201), (grants, grant, 201), (QUOTES, QUOTE, 200)];
    let kept = async || {
        let tables = ["entries", "grants", "quotes", "outbox", "credit_changes"];
        let ended = count(&server, "idempotency_keys WHERE status IS NOT NULL").await;
        (server.ground.rows(&tables).await, ended, wallet(&server).await)
    };
    let nothing = kept().await;
    for (write, condition, failing) in [
        ("BEFORE UPDATE ON idempotency_keys", "NEW.status IS NOT NULL", &requests[..]),
        ("BEFORE INSERT ON postings", "true", &requests[..1]),
        ("BEFORE INSERT ON credit_changes", "true", &requests[1..2]),
        ("BEFORE INSERT ON quotes", "true", &requests[2..]),
    ] {
        server.ground.break_writes(write, condition).await;
        for (path, body, _) in failing {
            let answer = server.once(path, "k1", body).await;
            assert!(answer.status >= 500, "{write} {path}: {}", answer.show());
            assert!(!answer.body.contains("broken"), "{}", answer.body);
        }
        assert_eq!(kept().await, nothing, "{write}");
        server.ground.repair_writes().await;
    }
    // The same requests, under the same keys: nothing was spoilt.
    for (path, body, status) in requests {
        let first = server.once(path, "k1", body).await;
        assert_eq!(first.status, status, "{path}: {}", first.body);
        check_replay(&first, &server.once(path, "k1", body).await);
    }
    // One entry was posted, and one written by the grant.
    assert_eq!((count(&server, "entries").await, count(&server, "grants").await), (2, 1));
    assert_eq!(wallet(&server).await, ("25".into(), 1));
}

pub async fn a_record_that_cannot_be_read_is_never_taken_for_none(ground: Ground) {
    let server = with_accounts(ground).await;
    assert_eq!(server.once(ENTRIES, "k1", ENTRY).await.status, 201);
    server.ground.plant("UPDATE idempotency_keys SET headers = 'spoilt'").await;
    let answer = server.once(ENTRIES, "k1", ENTRY).await;
    check_problem(&answer, 503, "idempotency_record_unreadable");
    assert!(!answer.headers.contains_key("retry-after"), "trying again does not help");
    assert_eq!(wallet(&server).await, ("25".into(), 1));
    assert_eq!(server.once(ENTRIES, "k2", ENTRY).await.status, 201, "other keys are no worse off");
}

pub async fn the_description_says_which_keys_are_needed(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    let document = server.get("/openapi.json").await.json();
    let mut required = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let key: Vec<&Value> =
                parameters.iter().filter(|one| one["name"] == "idempotency-key").collect();
            let without = method == "get" || path == "/webhooks/stripe";
            let left_out = ["/v1/keys", "/v1/events"].contains(&path.as_str());
            let without = without || (method == "post" && left_out);
            assert_eq!(key.len(), usize::from(!without), "{method} {path}");
            if key.iter().any(|key| key["required"] == true) {
                required.push(format!("{method} {path}"));
            }
        }
    }
    required.sort();
    insta::assert_snapshot!(required.join("\n"), @r"
    post /v1/tenants/{tenant}/entries
    post /v1/tenants/{tenant}/grants
    post /v1/tenants/{tenant}/grants/{grant}/void
    post /v1/tenants/{tenant}/quotes
    post /v1/tenants/{tenant}/subscriptions
    post /v1/tenants/{tenant}/subscriptions/{subscription}/cancel
    post /v1/tenants/{tenant}/subscriptions/{subscription}/plan
    ");
}
