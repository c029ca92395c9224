//! Keys: missing, wrong, revoked, too narrow, bound to a tenant; and the store being down.

use crate::world::{Answer, Ground, NOW, Server, at, default_config, event};
use axum::body::Body;
use counterfoil::clock::Clock;
use counterfoil::http::auth::create_first_admin_key;
use counterfoil::store::Error;
use http::{Method, Request};

pub async fn a_key_is_needed_and_must_be_valid(ground: Ground) {
    let server = Server::start(ground).await;
    let plain = Request::get("/v1/meters").body(Body::empty()).unwrap();
    let answer = server.send(plain).await;
    answer.problem(401, "unauthenticated");
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    let wrong = format!("cf_{}", "0".repeat(64));
    let answer = server.get_as(&wrong, "/v1/meters").await;
    answer.problem(401, "unauthenticated");
    assert!(!answer.body.contains(&wrong));
    let basic = Request::get("/v1/meters")
        .header("authorization", format!("Basic {}", server.admin))
        .body(Body::empty());
    server.send(basic.unwrap()).await.problem(401, "unauthenticated");
    let twice = Request::get("/v1/meters")
        .header("authorization", format!("Bearer {}", server.admin))
        .header("authorization", format!("Bearer {wrong}"))
        .body(Body::empty());
    server.send(twice.unwrap()).await.problem(401, "unauthenticated");
    for open in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        let request = Request::get(open).body(Body::empty()).unwrap();
        assert_eq!(server.send(request).await.status, 200, "{open}");
    }
}

pub async fn a_revoked_key_is_refused_at_once(ground: Ground) {
    let server = Server::start(ground).await;
    let key = server.key("read", None).await;
    server.get_as(&key, "/v1/meters").await.ok(200);
    let keys = server.get("/v1/keys").await;
    assert!(!keys.body.contains(&key) && !keys.body.contains("digest"));
    let of_test = |answer: &Answer| {
        answer.rows("keys").into_iter().find(|key| key["name"] == "test").unwrap()
    };
    let id = of_test(&keys)["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/keys/{id}");
    assert_eq!(server.call(Method::DELETE, &path, &server.admin, "").await.status, 204);
    server.get_as(&key, "/v1/meters").await.problem(401, "unauthenticated");
    server.call(Method::DELETE, &path, &server.admin, "").await.problem(404, "unknown_key");
    assert!(of_test(&server.get("/v1/keys").await)["revoked_at"].is_string());
}

pub async fn each_scope_opens_its_own_doors(ground: Ground) {
    let server = Server::start(ground).await;
    let one = event("acme", "e1", "1", NOW);
    let doors: [(Method, &str, &str, &[&str]); 9] = [
        (Method::POST, "/v1/events", &one, &["ingest", "admin"]),
        (Method::GET, "/v1/usage?tenant=acme&meter=calls", "", &["read", "operate", "admin"]),
        (Method::GET, "/v1/events?tenant=acme", "", &["read", "operate", "admin"]),
        (Method::GET, "/v1/conflicts", "", &["read", "operate", "admin"]),
        (Method::GET, "/v1/counters", "", &["read", "operate", "admin"]),
        (Method::GET, "/metrics", "", &["read", "operate", "admin"]),
        (Method::PUT, "/v1/meters/m2", r#"{"aggregation":"count"}"#, &["admin"]),
        (Method::PUT, "/v1/tenants/acme", "{}", &["admin"]),
        (Method::GET, "/v1/keys", "", &["admin"]),
    ];
    for scope in ["ingest", "read", "operate", "admin"] {
        let key = server.key(scope, None).await;
        for (method, path, body, open_to) in &doors {
            let answer = server.call(method.clone(), path, &key, body).await;
            if open_to.contains(&scope) {
                assert!(answer.status < 300, "{scope} {path}: {}", answer.body);
            } else {
                answer.problem(403, "scope_missing");
            }
        }
    }
}

pub async fn a_bound_key_reaches_nothing_of_another_tenant(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&event("rival", "e1", "5", NOW)).await;
    // What is refused creates no tenant, and is counted under none then.
    assert_eq!(server.put("/v1/tenants/mine", "{}").await.status, 200);
    let read = server.key("operate", Some("mine")).await;
    // The answer must not tell a tenant that exists from one that does not.
    for tenant in ["rival", "nobody"] {
        for path in [
            format!("/v1/usage?tenant={tenant}&meter=calls"),
            format!("/v1/events?tenant={tenant}"),
            format!("/v1/events/{tenant}/e1"),
            format!("/v1/conflicts?tenant={tenant}"),
            format!("/v1/quarantine?tenant={tenant}"),
        ] {
            let answer = server.get_as(&read, &path).await;
            answer.problem(403, "tenant_forbidden");
            assert!(!answer.body.contains(tenant));
        }
    }
    server.get_as(&read, "/v1/meters").await.ok(200);
    server.get_as(&read, "/metrics").await.problem(403, "tenant_forbidden");
    let ingest = server.key("ingest", Some("mine")).await;
    let batch = format!("[{},{}]", event("mine", "e1", "1", NOW), event("rival", "e1", "5", NOW));
    let send = async |body: &str| server.call(Method::POST, "/v1/events", &ingest, body).await;
    let results = &send(&batch).await.json()["results"];
    assert_eq!(results[0]["outcome"], "accepted");
    assert_eq!(results[1]["code"], "tenant_forbidden");
    send(&event("rival", "e9", "5", NOW)).await.problem(422, "tenant_forbidden");
    // What was refused is counted under the key's own tenant and leaves no trace with the other.
    let rows = server.get("/v1/counters").await.rows("counters");
    let row = |tenant: &str| rows.iter().find(|row| row["tenant"] == tenant).unwrap();
    assert_eq!((&row("mine")["rejected"], &row("rival")["rejected"]), (&2.into(), &0.into()));
    let spec = r#"{"name":"x","scopes":["admin"],"tenant":"mine"}"#;
    server.post_to("/v1/keys", spec).await.problem(422, "invalid_key");
}

pub async fn keys_are_checked_when_they_are_made(ground: Ground) {
    let server = Server::start(ground).await;
    for (spec, status, code) in [
        (r#"{"name":"","scopes":["read"]}"#, 422, "invalid_key"),
        (r#"{"name":"x","scopes":[]}"#, 422, "invalid_key"),
        (r#"{"name":"x","scopes":["root"]}"#, 422, "invalid_body"),
        (r#"{"name":"x","scopes":["read"],"tenant":""}"#, 422, "invalid_tenant"),
        (r#"{"name":"x","scopes":["read"],"scope":1}"#, 422, "invalid_body"),
        (r#"{"name":"x""#, 400, "invalid_json"),
    ] {
        server.post_to("/v1/keys", spec).await.problem(status, code);
    }
}

pub async fn a_store_that_is_down_is_503_and_never_a_guess(ground: Ground) {
    let server = Server::start(ground).await;
    let key = server.key("read", None).await;
    server.faults.set_down(true);
    let ready = server.get("/readyz").await;
    ready.problem(503, "store_unavailable");
    assert!(!ready.body.contains("secret"));
    assert_eq!(server.get("/healthz").await.status, 200);
    let usage = server.get_as(&key, "/v1/usage?tenant=a&meter=calls").await;
    usage.problem(503, "store_unavailable");
    server.post(&event("acme", "e1", "1", NOW)).await.problem(503, "store_unavailable");
    server.faults.set_down(false);
    assert_eq!(server.post(&event("acme", "e1", "1", NOW)).await.status, 200);
    for (error, status, code) in [
        (Error::Unknown { what: "w".into() }, 503, "outcome_unknown"),
        (Error::Corrupt { what: "w".into() }, 500, "stored_data_damaged"),
        (Error::Internal { what: "w".into() }, 500, "internal_fault"),
    ] {
        *server.faults.deliveries.lock().unwrap() = Some(error);
        server.post(&event("acme", "e2", "1", NOW)).await.problem(status, code);
    }
}

pub async fn a_known_key_outlives_a_short_outage_and_an_unknown_one_is_not_judged(ground: Ground) {
    let server = Server::start(ground).await;
    let wrong = format!("cf_{}", "0".repeat(64));
    tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
    server.faults.set_down(true);
    // Let in on what the store said before; then the store itself is missing.
    let usage = server.get("/v1/usage?tenant=a&meter=calls").await;
    usage.problem(503, "store_unavailable");
    server.get("/v1/events?tenant=").await.problem(400, "invalid_tenant");
    server.get_as(&wrong, "/v1/events?tenant=").await.problem(503, "store_unavailable");
    server.faults.set_down(false);
    server.get_as(&wrong, "/v1/events?tenant=").await.problem(401, "unauthenticated");
}

pub async fn keys_that_were_never_read_are_503(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    server.faults.set_down(true);
    server.get("/v1/meters").await.problem(503, "store_unavailable");
    server.faults.set_down(false);
    assert_eq!(server.get("/v1/meters").await.status, 200);
}

pub async fn the_first_admin_key(ground: Ground) {
    let store = ground.open(None).await;
    let clock = Clock::by_hand(at(NOW));
    let make = async |given: Option<&str>| {
        create_first_admin_key(&*store, &clock, given.map(str::to_owned)).await
    };
    assert!(make(Some("too short")).await.is_err());
    assert!(make(Some("long enough but with spaces")).await.is_err());
    assert!(make(None).await.unwrap().is_some());
    assert!(make(None).await.unwrap().is_none(), "only the first is made");
    assert_eq!(make(Some("chosen-by-the-operator")).await.unwrap(), None);
    assert_eq!(make(Some("chosen-by-the-operator")).await.unwrap(), None);
    assert_eq!(store.list_api_keys().await.unwrap().len(), 2);
}

pub async fn another_admin_key_in_the_environment_ends_the_former_one(ground: Ground) {
    let store = ground.open(None).await;
    let clock = Clock::by_hand(at(NOW));
    let give = async |given: &str| {
        create_first_admin_key(&*store, &clock, Some(given.to_owned())).await.unwrap();
    };
    let live = async || {
        let keys = store.list_api_keys().await.unwrap();
        let live = keys.into_iter().filter(|key| key.revoked_at.is_none());
        let mut live: Vec<_> = live.map(|key| (key.name, key.digest)).collect();
        live.sort_unstable();
        live
    };
    create_first_admin_key(&*store, &clock, None).await.unwrap();
    let made = live().await;
    give("the-first-of-the-operator").await;
    let first = live().await;
    assert_eq!((first.len(), &first[1..]), (2, &made[..]));
    give("the-second-of-the-operator").await;
    let second = live().await;
    assert_eq!((second.len(), &second[1..]), (2, &made[..]), "keys of other names stay");
    assert_ne!(second[0], first[0], "the former one is revoked");
    give("the-second-of-the-operator").await;
    assert_eq!(live().await, second);
    // One that was revoked stays so, and leaves the one that works.
    give("the-first-of-the-operator").await;
    assert_eq!(live().await, second);
}
