//! What watches over billing, as the interface shows it: passes, findings, alerts, thresholds,
//! timelines and health.

use super::pushes::Scripted;
use crate::world::{Ground, Server, default_config, each};
use counterfoil::jobs::Job;
use counterfoil::jobs::self_check::SelfCheckJob;
use counterfoil::rules::alert::{AlertChange, AlertKind, Condition};
use counterfoil::rules::drift::{Reason, Verdict};
use counterfoil::rules::finding::{FindingChange, FindingKind, Observation};
use counterfoil::rules::ids::{MeterNo, TenantId};
use counterfoil::rules::pass::{PassRow, PassState};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::span::Span;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::push::Lease;
use counterfoil::store::reconciliation::PassUpdate;
use http::Method;
use serde_json::{Value, json};
use std::sync::Arc;

const RANGE: &str = r#"{"from":"2026-11-01","to":"2026-11-15"}"#;

/// A server that has a provider, a meter and two tenants.
async fn watched(ground: Ground) -> Server {
    let provider = Arc::new(Scripted::UNFIT);
    let server = Server::start_towards(ground, Some(provider), &default_config()).await;
    server.put("/v1/meters/calls", r#"{"aggregation":"sum"}"#).await.ok(201);
    for tenant in ["acme", "globex"] {
        assert_eq!(server.put(&format!("/v1/tenants/{tenant}"), "{}").await.status, 200);
    }
    server
}

/// Checks how many rows of a list these queries find.
async fn check_counts(server: &Server, name: &str, counts: &[(&str, usize)]) {
    for (query, count) in counts {
        let found = server.get(&format!("/v1/{name}?{query}")).await.rows(name);
        assert_eq!(found.len(), *count, "{query}");
    }
}

/// Checks that these queries are refused.
async fn check_refused(server: &Server, path: &str, queries: &[&str]) {
    for query in queries {
        let answer = server.get(&format!("/v1/{path}?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
}

async fn open_findings(server: &Server, lease: &Lease, seen: Vec<Observation>) {
    let opened = seen.into_iter().map(FindingChange::Open).collect();
    let now = server.clock.now();
    assert!(server.store.record_findings(lease, 1, opened, now).await.unwrap());
}

/// Orders a pass and brings it to this state.
async fn pass_in(server: &Server, lease: &Lease, state: PassState) -> u64 {
    let number = server.post_to("/v1/passes", RANGE).await.ok(202)["id"].as_u64().unwrap();
    let update =
        PassUpdate { number, state, progress: Default::default(), hash: None, detail: None };
    assert!(server.store.update_pass(lease, update, server.clock.now()).await.unwrap());
    number
}

fn open_alert(kind: AlertKind, subject: &str) -> AlertChange {
    AlertChange::Open(Condition {
        kind,
        subject: subject.into(),
        summary: "something is wrong".into(),
        command: "counterfoil webhooks list".into(),
    })
}

async fn lease(server: &Server) -> Lease {
    let now = server.clock.now();
    let until = Span::from_hours(1).after(now);
    server.store.claim_lease("reconcile", "test", now, until).await.unwrap().unwrap()
}

fn quantity(text: &str) -> Quantity {
    Quantity::parse_stored(text).unwrap()
}

fn instant(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub async fn a_pass_needs_a_provider_that_shows_totals(ground: Ground) {
    let server = Server::start(ground).await;
    server.post_to("/v1/passes", RANGE).await.problem(409, "nothing_to_compare");
    assert_eq!(server.get("/v1/passes").await.json()["passes"], json!([]));
}

pub async fn a_pass_is_ordered_and_shown(ground: Ground) {
    let server = watched(ground).await;
    let ordered = server.post_to("/v1/passes", RANGE).await;
    insta::assert_snapshot!(ordered.show(), @r#"202 {"id":1,"kind":"one_shot","from":"2026-11-01T00:00:00Z","to":"2026-11-15T00:00:00Z","tenant":null,"apply":false,"state":"waiting","created_at":"2026-11-15T12:00:00Z","ended_at":null,"pairs":0,"pairs_done":0,"pairs_unread":0,"windows":0,"reads":0,"verdicts":{},"replayed":0,"reissued":0,"hash":null,"detail":null}"#);
    let with_tenant = r#"{"from":"2026-11-01","to":"2026-11-02","tenant":"acme","apply":true}"#;
    let second = server.post_to("/v1/passes", with_tenant).await.ok(202);
    assert_eq!((&second["tenant"], &second["apply"]), (&json!("acme"), &json!(true)));
    let path = format!("/v1/passes/{}", second["id"]);
    assert_eq!(server.get(&path).await.json(), second);
    let listed = server.get("/v1/passes").await.json();
    assert_eq!(listed["passes"].as_array().unwrap().len(), 2);
    assert_eq!(listed["passes"][0], second, "newest first");
    let page = server.get("/v1/passes?limit=1").await.json();
    assert_eq!(page["next_before"], second["id"]);
    let rest = server.get(&format!("/v1/passes?limit=1&before={}", page["next_before"])).await;
    assert_eq!(rest.json()["passes"][0]["id"], ordered.json()["id"]);
    assert_eq!(rest.json()["next_before"], Value::Null);
    let counts = [("kind=one_shot", 2), ("kind=hourly", 0), ("state=waiting", 2)];
    check_counts(&server, "passes", &counts).await;
    for path in ["99", "99/rows", "18446744073709551615", "18446744073709551615/rows"] {
        server.get(&format!("/v1/passes/{path}")).await.problem(404, "unknown_pass");
    }
    server.get("/v1/passes/x").await.problem(400, "invalid_path");
}

pub async fn a_range_is_whole_days(ground: Ground) {
    let server = watched(ground).await;
    for (from, to, said) in [
        ("2026-11-15", "2026-11-01", "must be after from"),
        ("2026-11-01", "2026-11-01", "must be after from"),
        ("2026-07-01", "2026-11-01", "these are 123 days, and a pass compares at most 100"),
        ("2026-11-01T01:00:00Z", "2026-11-02", "give two dates"),
        ("2026-11-01T00:00:00+01:00", "2026-11-02", "give two dates"),
        ("0001-01-01", "9999-12-31", "the years 1 to 9999"),
    ] {
        let body = json!({"from": from, "to": to}).to_string();
        let answer = server.post_to("/v1/passes", &body).await;
        answer.problem_saying(422, "invalid_range", said);
    }
    for body in [
        r#"{"from":"yesterday","to":"2026-11-02"}"#,
        r#"{"from":"2026-02-30","to":"2026-03-02"}"#,
        r#"{"from":"","to":""}"#,
        r#"{"from":"2026-11-01","to":"2026-11-02","tenant":""}"#,
        r#"{"from":"2026-11-01","to":"2026-11-02","tenant":"a\u0000b"}"#,
    ] {
        server.post_to("/v1/passes", body).await.ok(422);
    }
    for body in ["", "{}", "[]", r#"{"from":"2026-11-01"}"#, &RANGE.replace('}', r#","x":1}"#)] {
        let answer = server.post_to("/v1/passes", body).await;
        assert!((400..=422).contains(&answer.status), "{body}: {}", answer.body);
    }
    let hundred = r#"{"from":"2026-08-07","to":"2026-11-15","apply":false}"#;
    server.post_to("/v1/passes", hundred).await.ok(202);
    assert_eq!(server.get("/v1/passes").await.rows("passes").len(), 1);
}

pub async fn rows_of_a_pass_are_paged(ground: Ground) {
    let server = watched(ground).await;
    let lease = lease(&server).await;
    let number = pass_in(&server, &lease, PassState::Running).await;
    let row = |tenant: &str, day: &str, next: &str| PassRow {
        tenant: TenantId::parse(tenant).unwrap(),
        meter: MeterNo(1),
        day: Window { start: instant(day), end: instant(next) },
        ledger: quantity("1.000000000001"),
        pushed: quantity("1"),
        provider: Some(quantity("3")),
        verdict: Verdict::Bypass,
        reason: Reason::ProviderHigher,
        windows: Vec::new(),
        marks: Default::default(),
        hash: Some([171; 32]),
    };
    let rows = vec![
        row("acme", "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"),
        row("acme", "2026-11-02T00:00:00Z", "2026-11-03T00:00:00Z"),
        row("globex", "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"),
    ];
    assert!(server.store.record_pass_rows(&lease, number, rows).await.unwrap());
    let all = server.get(&format!("/v1/passes/{number}/rows")).await.json();
    assert_eq!(all["rows"].as_array().unwrap().len(), 3);
    assert_eq!(all["next_after"], Value::Null);
    insta::assert_snapshot!(all["rows"][0].to_string(), @r#"{"advice":"something besides this server reports usage for the customer: another program with the account's key, a second server with another store, a negative usage that was lost, or an entry made by hand; find it, it is never corrected from here","delta":"2","from":"2026-11-01T00:00:00Z","hash":"abababababababababababababababababababababababababababababababab","ledger":"1.000000000001","meter":"calls","not_billed":null,"note":null,"outside":null,"provider":"3","pushed":"1","reason":"provider_higher","shadow":null,"tenant":"acme","to":"2026-11-02T00:00:00Z","trial":null,"verdict":"bypass","windows":[],"written_off":null}"#);
    let mut found = Vec::new();
    let mut path = format!("/v1/passes/{number}/rows?limit=1");
    loop {
        let page = server.get(&path).await.json();
        found.extend(page["rows"].as_array().unwrap().iter().cloned());
        let Some(after) = page["next_after"].as_str() else { break };
        path = format!("/v1/passes/{number}/rows?limit=1&after={}", after.replace('/', "%2F"));
    }
    assert_eq!(found, *all["rows"].as_array().unwrap());
    for after in ["x", "1", "1/2", "1/x/acme", "-1/2/acme", "1/2/", "99999999999/1/acme"] {
        let path = format!("/v1/passes/{number}/rows?after={}", after.replace('/', "%2F"));
        server.get(&path).await.problem(400, "invalid_cursor");
    }
    let far = format!("/v1/passes/{number}/rows?after=1%2F9223372036854775807%2Fzzz");
    assert_eq!(server.get(&far).await.json()["rows"], json!([]));
}

pub async fn findings_are_listed_and_filtered(ground: Ground) {
    let server = watched(ground).await;
    let lease = lease(&server).await;
    let seen = |tenant: &str, subject: &str| Observation {
        kind: FindingKind::Usage,
        tenant: Some(TenantId::parse(tenant).unwrap()),
        meter: Some(MeterNo(1)),
        subject: subject.into(),
        verdict: Verdict::Bypass,
        reason: Reason::ProviderHigher,
        ledger: quantity("1.5"),
        provider: quantity("3"),
        detail: "the provider shows more".into(),
    };
    let window = "2026-11-01T00:00:00Z/2026-11-01T01:00:00Z";
    let invoice = Observation { kind: FindingKind::Invoice, ..seen("globex", "in_1") };
    open_findings(&server, &lease, vec![seen("acme", window), invoice]).await;
    let all = server.get("/v1/findings").await.json();
    assert_eq!(all["findings"].as_array().unwrap().len(), 2);
    insta::assert_snapshot!(all["findings"][1].to_string(), @r#"{"advice":"something besides this server reports usage for the customer: another program with the account's key, a second server with another store, a negative usage that was lost, or an entry made by hand; find it, it is never corrected from here","cleared_at":null,"detail":"the provider shows more","id":1,"kind":"usage","ledger":"1.5","meter":"calls","opened_at":"2026-11-15T12:00:00Z","paged_at":null,"passes":1,"provider":"3","reason":"provider_higher","subject":"2026-11-01T00:00:00Z/2026-11-01T01:00:00Z","tenant":"acme","took_seconds":null,"verdict":"bypass"}"#);
    server.clock.advance(90_000_000);
    let number = all["findings"][1]["id"].as_u64().unwrap();
    let cleared = vec![FindingChange::Clear { number }];
    assert!(server.store.record_findings(&lease, 2, cleared, server.clock.now()).await.unwrap());
    let counts = [
        ("open=true", 1),
        ("open=false", 1),
        ("kind=invoice", 1),
        ("kind=subscription", 0),
        ("tenant=acme", 1),
        ("tenant=nobody", 0),
        ("tenant=acme&open=true", 0),
    ];
    check_counts(&server, "findings", &counts).await;
    let over = server.get("/v1/findings?open=false").await.json();
    assert_eq!(over["findings"][0]["took_seconds"], 90);
    let page = server.get("/v1/findings?limit=1").await.json();
    let rest = server.get(&format!("/v1/findings?before={}", page["next_before"])).await.json();
    assert_eq!(rest["findings"][0]["id"], number);
    let queries = ["open=perhaps", "kind=x", "tenant=", "tenant=%00", "limit=0", "x=1"];
    check_refused(&server, "findings", &queries).await;
}

pub async fn an_unknown_subscription_is_accepted(ground: Ground) {
    let server = watched(ground).await;
    let lease = lease(&server).await;
    let unknown = Observation {
        kind: FindingKind::Subscription,
        tenant: Some(TenantId::parse("acme").unwrap()),
        meter: None,
        subject: "sub_1".into(),
        verdict: Verdict::Bypass,
        reason: Reason::OneSided,
        ledger: Quantity::ZERO,
        provider: Quantity::ZERO,
        detail: "it has no subscription record".into(),
    };
    let invoice = Observation { kind: FindingKind::Invoice, ..unknown.clone() };
    open_findings(&server, &lease, vec![unknown, invoice]).await;
    let accept = async |id: &str| server.post_to(&format!("/v1/findings/{id}/accept"), "").await;
    assert_eq!(accept("1").await.ok(200), json!({ "id": 1 }));
    check_counts(&server, "findings", &[("open=true", 1)]).await;
    accept("1").await.problem(409, "finding_not_accepted");
    accept("2").await.problem(409, "finding_not_accepted");
    accept("3").await.problem(404, "unknown_finding");
    accept("18446744073709551615").await.problem(404, "unknown_finding");
}

pub async fn alerts_are_listed_and_filtered(ground: Ground) {
    let server = watched(ground).await;
    // One call each: the numbers within a call have no order.
    for (kind, subject) in [(AlertKind::WebhooksWaiting, ""), (AlertKind::PaymentFailed, "in_1")] {
        let change = vec![open_alert(kind, subject)];
        server.store.record_alerts(change, &[], server.clock.now()).await.unwrap();
    }
    let all = server.get("/v1/alerts").await;
    insta::assert_snapshot!(all.show(), @r#"200 {"alerts":[{"id":2,"kind":"payment_failed","severity":"notice","subject":"in_1","summary":"something is wrong","command":"counterfoil webhooks list","opened_at":"2026-11-15T12:00:00Z","resolved_at":null},{"id":1,"kind":"webhooks_waiting","severity":"page","subject":"","summary":"something is wrong","command":"counterfoil webhooks list","opened_at":"2026-11-15T12:00:00Z","resolved_at":null}],"next_before":null}"#);
    let number = all.json()["alerts"][0]["id"].as_u64().unwrap();
    let ended = vec![AlertChange::Resolve(number)];
    server.store.record_alerts(ended, &[], server.clock.now()).await.unwrap();
    let next = server.get("/v1/alerts?limit=1").await.json()["next_before"].clone();
    let counts = [
        ("open=true", 1),
        ("open=false", 1),
        ("kind=payment_failed", 1),
        ("kind=payment_failed&open=true", 0),
        ("kind=silence", 0),
        (&format!("before={next}"), 1),
    ];
    check_counts(&server, "alerts", &counts).await;
    let queries = ["open=x", "kind=x", "limit=1001", "before=x", "x=1"];
    check_refused(&server, "alerts", &queries).await;
}

fn threshold(tenant: &str, limit: &str) -> String {
    let body = json!({
        "tenant": tenant, "meter": "calls", "kind": "quota", "period": "month", "limit": limit,
    });
    body.to_string()
}

const OF_ACME: &str = "/v1/thresholds?tenant=acme&meter=calls&kind=quota&period=month";

pub async fn thresholds_are_set_listed_and_taken_away(ground: Ground) {
    let server = watched(ground).await;
    let set = server.put("/v1/thresholds", &threshold("acme", "10.50")).await;
    insta::assert_snapshot!(set.show(), @r#"200 {"tenant":"acme","meter":"calls","kind":"quota","period":"month","limit":"10.5","created_at":"2026-11-15T12:00:00Z"}"#);
    assert_eq!(server.put("/v1/thresholds", &threshold("globex", "5")).await.status, 200);
    let again = server.put("/v1/thresholds", &threshold("acme", "11")).await;
    assert_eq!(again.json()["limit"], "11");
    let day = threshold("acme", "3").replace("month", "day").replace("quota", "threshold");
    assert_eq!(server.put("/v1/thresholds", &day).await.status, 200);
    let counts = [("", 3), ("tenant=acme", 2), ("tenant=nobody", 0)];
    check_counts(&server, "thresholds", &counts).await;
    let delete = async |path: &str| server.call(Method::DELETE, path, &server.admin, "").await;
    assert_eq!(delete(OF_ACME).await.status, 204);
    delete(OF_ACME).await.problem(404, "unknown_threshold");
    delete(&OF_ACME.replace("calls", "none")).await.problem(404, "unknown_meter");
    for path in [
        "/v1/thresholds",
        "/v1/thresholds?tenant=acme",
        "/v1/thresholds?tenant=acme&meter=calls&kind=x&period=month",
        "/v1/thresholds?tenant=&meter=calls&kind=quota&period=month",
    ] {
        assert_eq!(delete(path).await.status, 400, "{path}");
    }
    check_counts(&server, "thresholds", &[("", 2)]).await;
}

pub async fn a_threshold_has_a_limit_that_can_be_reached(ground: Ground) {
    let server = watched(ground).await;
    let unreachable = ["", "0", "0.0", "-1", "x", "NaN", "inf", "\u{661}"];
    let misspelt = ["1e3", "1E3", "+1", " 1", "1 ", ".5", "5.", "1,5", "0x10", "1_000", "007"];
    let beyond = ["1000000000000000", "0.0000000000001"];
    for limit in unreachable.iter().chain(&misspelt).chain(&beyond) {
        let answer = server.put("/v1/thresholds", &threshold("acme", limit)).await;
        assert_eq!(answer.status, 422, "{limit:?}: {}", answer.body);
        answer.problem(422, "invalid_limit");
    }
    for limit in ["1", "0.000000000001", "999999999999999.999999999999", "1.50"] {
        server.put("/v1/thresholds", &threshold("acme", limit)).await.ok(200);
    }
    let number = threshold("acme", "1").replace(r#""limit":"1""#, r#""limit":1"#);
    let answer = server.put("/v1/thresholds", &number).await;
    assert!((400..=422).contains(&answer.status), "{}", answer.body);
    let unknown = threshold("acme", "1").replace("calls", "none");
    server.put("/v1/thresholds", &unknown).await.problem(404, "unknown_meter");
    for tenant in ["", "a\u{0}", &"a".repeat(129)] {
        server.put("/v1/thresholds", &threshold(tenant, "1")).await.ok(422);
    }
    for (from, to) in [("quota", "x"), ("month", "year"), ("\"limit\"", "\"limits\"")] {
        let answer = server.put("/v1/thresholds", &threshold("acme", "1").replace(from, to)).await;
        assert!((400..=422).contains(&answer.status), "{}", answer.body);
    }
    check_counts(&server, "thresholds", &[("", 1)]).await;
}

/// Every new endpoint, with a body that is good.
fn endpoints() -> Vec<(Method, &'static str, String)> {
    let get = |path| (Method::GET, path, String::new());
    vec![
        get("/v1/passes"),
        get("/v1/passes/1"),
        get("/v1/passes/1/rows"),
        get("/v1/findings"),
        get("/v1/alerts"),
        get("/v1/webhooks"),
        get("/v1/webhooks/1"),
        get("/v1/health/billing"),
        get("/v1/thresholds"),
        get("/v1/timeline?tenant=acme"),
        (Method::POST, "/v1/passes", RANGE.to_owned()),
        (Method::POST, "/v1/webhooks/1/replay", String::new()),
        (Method::POST, "/v1/findings/1/accept", String::new()),
        (Method::PUT, "/v1/thresholds", threshold("acme", "1")),
        (Method::DELETE, OF_ACME, String::new()),
    ]
}

pub async fn scopes_and_bound_keys(ground: Ground) {
    let server = watched(ground).await;
    let (read, operate) = (server.key("read", None).await, server.key("operate", None).await);
    let ingest = server.key("ingest", None).await;
    let bound = server.key("operate", Some("acme")).await;
    let bound_read = server.key("read", Some("acme")).await;
    let stranger = server.key("operate", Some("globex")).await;
    for (method, path, body) in endpoints() {
        let call = async |key: &str| server.call(method.clone(), path, key, &body).await;
        call("nonsense").await.problem(401, "unauthenticated");
        call(&ingest).await.problem(403, "scope_missing");
        if method != Method::GET {
            call(&read).await.problem(403, "scope_missing");
            call(&bound_read).await.problem(403, "scope_missing");
        }
        let own = path.contains("thresholds") || path.contains("timeline");
        let good = call(&bound).await;
        if own {
            assert!((200..300).contains(&good.status), "{method} {path}: {}", good.body);
            if path != "/v1/thresholds" || method != Method::GET {
                call(&stranger).await.problem(403, "tenant_forbidden");
            }
        } else {
            good.problem(403, "tenant_forbidden");
        }
        assert_ne!(call(&operate).await.status, 403, "{method} {path}");
    }
    // A bound key sees its own thresholds, whatever it asks for.
    for tenant in ["acme", "globex"] {
        server.put("/v1/thresholds", &threshold(tenant, "1")).await;
    }
    let own = server.get_as(&bound_read, "/v1/thresholds").await.rows("thresholds");
    assert_eq!(each(&own, "tenant"), ["acme"]);
    let other = server.get_as(&bound_read, "/v1/thresholds?tenant=globex").await;
    other.problem(403, "tenant_forbidden");
}

pub async fn a_store_that_is_down_is_503(ground: Ground) {
    let server = watched(ground).await;
    // Keys are remembered, so that what fails is the endpoint.
    server.get("/v1/passes").await;
    server.faults.set_down(true);
    for (method, path, body) in endpoints() {
        let answer = server.call(method.clone(), path, &server.admin, &body).await;
        assert_eq!(answer.status, 503, "{method} {path}: {}", answer.body);
        let problem = answer.problem(503, "store_unavailable");
        assert!(!problem.to_string().contains("secret detail"), "{method} {path}");
    }
    server.faults.set_down(false);
    for path in ["/v1/passes", "/v1/thresholds", "/v1/findings", "/v1/alerts"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    assert_eq!(server.get("/v1/passes").await.json()["passes"], json!([]), "nothing was ordered");
    assert_eq!(server.get("/v1/thresholds").await.json()["thresholds"], json!([]));
}

pub async fn a_timeline_of_nothing(ground: Ground) {
    let server = watched(ground).await;
    let answer = server.get("/v1/timeline?tenant=acme").await;
    insta::assert_snapshot!(answer.show(), @r#"200 {"tenant":"acme","at":"2026-11-15T12:00:00Z","stamps":[],"stretches":[],"invoices":[],"credit_grants":[]}"#);
    let day = server.get("/v1/timeline?tenant=acme&at=2026-11-01").await.json();
    assert_eq!(day["at"], "2026-11-01T00:00:00Z");
    assert_eq!(server.get("/v1/timeline?tenant=nobody").await.status, 200);
    let queries = ["", "tenant=", "tenant=%00", "tenant=acme&at=now", "tenant=acme&x=1"];
    check_refused(&server, "timeline", &queries).await;
}

pub async fn health_tells_of_passes_and_pages(ground: Ground) {
    let server = watched(ground).await;
    let before = server.get("/v1/health/billing").await.json();
    assert_eq!(before["pages"], json!({"open": 0, "day": 0, "week": 0, "week_before": 0}));
    let none = json!({
        "hourly": null, "hourly_incomplete": false, "nightly": null, "nightly_incomplete": false,
    });
    assert_eq!(before["last_pass"], none);
    let self_check = server.context(|_| {});
    let self_check = SelfCheckJob::new(&self_check);
    while self_check.pass().await.unwrap().slices > 0 {}
    let checked = server.get("/v1/health/billing").await.json()["self_check"].clone();
    assert_eq!((&checked["mismatches"], &checked["not_done"]), (&json!(0), &Value::Null));
    assert!(checked["last_walk"].is_string() && checked["last_sample"].is_string(), "{checked}");
    assert_eq!(checked["walk_started"], Value::Null, "no walk goes on");
    assert_eq!((&before["drifting_tenants"], &before["webhooks_waiting"]), (&json!(0), &json!(0)));
    let open = vec![open_alert(AlertKind::WebhooksWaiting, "")];
    server.store.record_alerts(open, &[], server.clock.now()).await.unwrap();
    let pages = server.get("/v1/health/billing").await.json()["pages"].clone();
    let paged = u64::from(pages["open"].as_u64() == Some(1));
    assert_eq!(pages["day"], paged);
    // An ordered pass is none of the two that run by themselves.
    let number = pass_in(&server, &lease(&server).await, PassState::Closed).await;
    let closed = server.get(&format!("/v1/passes/{number}")).await.json();
    assert_eq!(closed["state"], "closed");
    assert_eq!(server.get("/v1/health/billing").await.json()["last_pass"]["hourly"], Value::Null);
}
