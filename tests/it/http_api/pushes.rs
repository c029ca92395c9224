//! Billing as the interface shows it: pushes, what needs an operator, latencies, customers, terms.

use crate::world::{Answer, Ground, NOW, Server, default_config, each, event};
use async_trait::async_trait;
use counterfoil::jobs::Job;
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::watch::WatchJob;
use counterfoil::provider::{Answer as Said, Limits, Provider, PushFacts, Request};
use counterfoil::provider::{TotalsQuery, Unreadable};
use counterfoil::rules::ids::CustomerId;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::span::Span;
use counterfoil::rules::submission::{Horizons, Resend, SubmitOutcome};
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use counterfoil::rules::window::Window;
use http::Method;
use serde_json::{Value, json};
use std::sync::Arc;

const METER: &str = r#"{"aggregation":"sum","billing":{"from":"2026-11-01T00:00:00Z"}}"#;

/// A provider that goes by the value: 1.5 is refused, 7 never answered, the rest taken.
pub struct Scripted {
    /// The total of a customer's window; without it, totals never come.
    pub totals: Option<fn(&CustomerId, &Window) -> &'static str>,
}

impl Scripted {
    /// Its totals fit nothing.
    pub const UNFIT: Self = Self { totals: Some(|_, _| "99") };
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn limits(&self) -> Limits {
        let horizons = Horizons {
            resend: Some(Span::from_hours(22)),
            decide: Span::from_hours(26),
            stamp_age_max: Some(Span::from_hours(34 * 24)),
        };
        Limits { horizons, digits_max: 15, shows_totals: true, sends: true }
    }
    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8> {
        facts.value.to_string().into_bytes()
    }
    async fn send_push(&self, request: &Request) -> Said {
        let message = "no such customer".to_owned();
        let outcome = match &*request.body {
            b"1.5" => SubmitOutcome::Refused { message },
            b"7" => SubmitOutcome::Unknown { message, resend: Resend::No, retry_after: None },
            _ => SubmitOutcome::Accepted,
        };
        Said { outcome, request_id: Some("req_1".into()) }
    }
    async fn read_totals(&self, query: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable> {
        let Some(totals) = self.totals else { return std::future::pending().await };
        let total =
            |window: &Window| Quantity::parse_stored(totals(query.customer, window)).unwrap();
        Ok(query.windows.iter().map(total).collect())
    }
}

async fn cut_and_send(server: &Server) {
    let context = server.context(|config| {
        config.ingest.accept_horizon_hours = 24 * 30;
        // The clock stands still, and so does the pace.
        config.push.rate_per_second = 1_000;
    });
    CutJob::new(&context, 15).pass().await.unwrap();
    let provider: Arc<dyn Provider> = Arc::new(Scripted::UNFIT);
    PushJob::new(&context, &provider).pass().await.unwrap();
}

async fn customer(server: &Server, tenant: &str) {
    let body = format!(r#"{{"customer":"cus_{tenant}"}}"#);
    assert_eq!(server.put(&format!("/v1/tenants/{tenant}"), &body).await.status, 200);
}

/// Six pushes: of acme one that was refused, one taken, one undecidable and one taken of another
/// meter; of globex one taken; of nobody, who is no customer, one that waits.
async fn billed(ground: Ground) -> Server {
    billed_towards(ground, None).await
}

/// The same, with the provider that comparisons ask.
async fn billed_towards(ground: Ground, compared: Option<Arc<dyn Provider>>) -> Server {
    let server = Server::start_towards(ground, compared, &default_config()).await;
    for meter in ["calls", "bytes"] {
        assert_eq!(server.put(&format!("/v1/meters/{meter}"), METER).await.status, 201);
    }
    customer(&server, "acme").await;
    customer(&server, "globex").await;
    for (tenant, quantity, at) in [
        ("acme", "1.5", "2026-11-15T08:30:00Z"),
        ("acme", "2", "2026-11-15T09:30:00Z"),
        ("acme", "7", "2026-11-15T10:30:00Z"),
        ("globex", "3", "2026-11-15T08:30:00Z"),
        ("nobody", "4", "2026-11-15T08:30:00Z"),
    ] {
        assert_eq!(server.post(&event(tenant, at, quantity, at)).await.status, 200);
    }
    let bytes = event("acme", "b", "5", "2026-11-15T09:30:00Z").replace("calls", "bytes");
    assert_eq!(server.post(&bytes).await.status, 200);
    cut_and_send(&server).await;
    server.clock.advance(26 * MICROS_PER_HOUR);
    cut_and_send(&server).await;
    server
}

/// The id of the push of that quantity.
async fn find(server: &Server, quantity: &str) -> u64 {
    let all = server.get("/v1/pushes").await.rows("pushes");
    let push = all.iter().find(|push| push["quantity"] == quantity);
    push.unwrap_or_else(|| panic!("{all:?}"))["id"].as_u64().unwrap()
}

pub async fn pushes_are_listed_by_every_filter(ground: Ground) {
    let server = billed(ground).await;
    for (query, expected) in [
        ("", vec!["1.5", "2", "3", "4", "5", "7"]),
        ("tenant=acme", vec!["1.5", "2", "5", "7"]),
        ("tenant=none", vec![]),
        ("meter=bytes", vec!["5"]),
        ("state=dead", vec!["1.5", "7"]),
        ("state=waiting", vec!["4"]),
        ("class=undecidable", vec!["7"]),
        ("class=accepted", vec!["2", "3", "5"]),
        ("from=2026-11-15T09:00:00Z&to=2026-11-15T10:00:00Z", vec!["2", "5"]),
        ("from=2026-11-15&to=2026-11-16&tenant=globex&state=submitted&meter=calls", vec!["3"]),
        ("from=2026-11-16&to=2026-11-17", vec![]),
        ("before=1", vec![]),
    ] {
        let found = server.get(&format!("/v1/pushes?{query}")).await.rows("pushes");
        let mut quantities = each(&found, "quantity");
        quantities.sort_unstable();
        assert_eq!(quantities, expected, "{query}");
    }
    for (query, status, code) in [
        ("meter=none", 404, "unknown_meter"),
        ("state=lost", 400, "invalid_query"),
        ("class=nonsense", 400, "invalid_query"),
        ("from=2026-11-15", 400, "invalid_range"),
        ("to=2026-11-15", 400, "invalid_range"),
        ("from=then&to=now", 400, "invalid_range"),
        ("limit=0", 400, "invalid_limit"),
        ("limit=1001", 400, "invalid_limit"),
        ("before=-1", 400, "invalid_query"),
        ("tenant=", 400, "invalid_tenant"),
        ("tenent=acme", 400, "invalid_query"),
    ] {
        server.get(&format!("/v1/pushes?{query}")).await.problem(status, code);
    }
}

pub async fn pushes_come_page_by_page_newest_first(ground: Ground) {
    let server = billed(ground).await;
    let mut seen: Vec<u64> = Vec::new();
    let mut path = "/v1/pushes?limit=2".to_owned();
    loop {
        let page = server.get(&path).await;
        seen.extend(page.rows("pushes").iter().map(|push| push["id"].as_u64().unwrap()));
        let Some(before) = page.json()["next_before"].as_u64() else { break };
        path = format!("/v1/pushes?limit=2&before={before}");
    }
    assert_eq!(seen.len(), 6);
    assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
    let all = server.get("/v1/pushes?limit=6").await;
    assert_eq!(all.json()["next_before"], Value::Null);
}

pub async fn a_push_is_shown_with_all_that_happened_to_it(ground: Ground) {
    let server = billed(ground).await;
    let id = find(&server, "7").await;
    let push = server.get(&format!("/v1/pushes/{id}")).await.json();
    let history = push["transitions"].as_array().unwrap();
    let history: Vec<Value> =
        history.iter().map(|row| json!([row["class"], row["state"], row["attempt"]])).collect();
    let expected = json!([
        ["cut", "observed", 0],
        ["attempt", "observed", 1],
        ["unknown", "observed", 1],
        ["undecidable", "dead", 1],
    ]);
    assert_eq!(json!(history), expected);
    assert_eq!(push["transitions"][2]["request_id"], "req_1");
    assert_eq!(push["transitions"][2]["detail"], "no such customer");
    for (field, expected) in [
        ("tenant", "acme"),
        ("customer", "cus_acme"),
        ("meter", "calls"),
        ("window_start", "2026-11-15T10:00:00Z"),
        ("window_end", "2026-11-15T11:00:00Z"),
        ("stamped_at", "2026-11-15T10:30:00Z"),
        ("first_attempt_at", NOW),
        ("mode", "delta"),
        ("value", "7"),
        ("unbilled", "7"),
    ] {
        assert_eq!(push[field], expected, "{field}");
    }
    assert_eq!((&push["revision"], &push["attempts"]), (&1.into(), &1.into()));
    assert_eq!(push["subscriptions"], serde_json::json!({"": "7"}));
    assert!(push["detail"].as_str().unwrap().contains("total of the window is 99"));
    for unknown in ["99999", "18446744073709551615"] {
        server.get(&format!("/v1/pushes/{unknown}")).await.problem(404, "unknown_push");
    }
    server.get("/v1/pushes/x").await.problem(400, "invalid_path");
}

pub async fn a_dead_push_is_retried_only_if_that_cannot_bill_twice(ground: Ground) {
    let server = billed(ground).await;
    let retry = async |id: u64| server.post_to(&format!("/v1/pushes/{id}/retry"), "").await;
    let refused = find(&server, "1.5").await;
    let done = retry(refused).await.json();
    let next = done["replacement"].as_u64().unwrap();
    assert_eq!(done["id"], refused);
    let push = server.get(&format!("/v1/pushes/{next}")).await.json();
    assert_eq!((&push["revision"], &push["quantity"]), (&2.into(), &"1.5".into()));
    for (quantity, expected) in
        [("7", "sending it again could bill twice"), ("2", "only a dead push can be retried")]
    {
        let refused = retry(find(&server, quantity).await).await;
        refused.problem_saying(409, "push_not_retried", expected);
    }
    retry(refused).await.problem(409, "push_not_retried");
    retry(99_999).await.problem(404, "unknown_push");
}

pub async fn a_dead_push_is_written_off_with_a_reason(ground: Ground) {
    let server = billed(ground).await;
    let discard =
        async |id: u64, body: &str| server.post_to(&format!("/v1/pushes/{id}/discard"), body).await;
    let dead = find(&server, "7").await;
    for (body, code) in [
        (r#"{"reason":" "}"#, "invalid_reason"),
        (r#"{"reason":"a\nb"}"#, "invalid_reason"),
        ("{}", "invalid_body"),
        (r#"{"reason":"x","why":"y"}"#, "invalid_body"),
    ] {
        discard(dead, body).await.problem(422, code);
    }
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(501));
    discard(dead, &long).await.problem(422, "invalid_reason");
    let because = r#"{"reason":"credited by hand"}"#;
    let live = discard(find(&server, "2").await, because).await;
    live.problem(409, "push_not_discarded");
    assert_eq!(discard(dead, because).await.status, 200);
    discard(dead, because).await.problem(409, "push_not_discarded");
    let push = server.get(&format!("/v1/pushes/{dead}")).await.json();
    assert_eq!((&push["state"], &push["unbilled"]), (&"discarded".into(), &Value::Null));
    let of_state = async |state: &str| {
        let list = server.get(&format!("/v1/pushes?state={state}")).await;
        list.rows("pushes").iter().filter(|push| push["id"] == dead).count()
    };
    assert_eq!((of_state("dead").await, of_state("discarded").await), (0, 1));
    let detail = push["detail"].as_str().unwrap();
    assert!(detail.starts_with("credited by hand (by "), "who did it is kept: {detail}");
    discard(99_999, because).await.problem(404, "unknown_push");
}

pub async fn scopes_and_bound_keys(ground: Ground) {
    let server = billed(ground).await;
    let (dead, of_globex) = (find(&server, "1.5").await, find(&server, "3").await);
    let read = server.key("read", None).await;
    let ingest = server.key("ingest", None).await;
    let (retry, discard) =
        (format!("/v1/pushes/{dead}/retry"), format!("/v1/pushes/{dead}/discard"));
    let reason = r#"{"reason":"x"}"#;
    for path in ["/v1/pushes", &format!("/v1/pushes/{dead}"), "/v1/health/billing", "/v1/latency"] {
        assert_eq!(server.get_as(&read, path).await.status, 200, "{path}");
        server.get_as(&ingest, path).await.problem(403, "scope_missing");
    }
    server.call(Method::POST, &retry, &read, "").await.problem(403, "scope_missing");
    server.call(Method::POST, &discard, &read, reason).await.problem(403, "scope_missing");
    let globex = server.key("operate", Some("globex")).await;
    assert_eq!(server.get_as(&globex, "/v1/pushes").await.rows("pushes").len(), 1);
    for path in ["/v1/pushes?tenant=acme", "/v1/health/billing"] {
        server.get_as(&globex, path).await.problem(403, "tenant_forbidden");
    }
    // A push of another tenant looks like one that does not exist.
    let absent = server.get_as(&globex, "/v1/pushes/99999").await.body;
    let other = server.get_as(&globex, &format!("/v1/pushes/{dead}")).await;
    other.problem(404, "unknown_push");
    assert_eq!(other.body, absent);
    server.get_as(&globex, &format!("/v1/pushes/{of_globex}")).await.ok(200);
    // What a tenant owes is not for its own key to write off or to send again.
    let bound = server.key("operate", Some("acme")).await;
    for (path, body) in [(&retry, ""), (&discard, reason)] {
        let answer = server.call(Method::POST, path, &bound, body).await;
        answer.problem(403, "tenant_forbidden");
    }
    assert!(!server.get(&format!("/v1/pushes/{dead}")).await.json()["unbilled"].is_null());
    let operate = server.key("operate", None).await;
    assert_eq!(server.call(Method::POST, &retry, &operate, "").await.status, 200);
}

pub async fn health_and_metrics_show_what_is_unbilled_until_it_is_written_off(ground: Ground) {
    let server = billed(ground).await;
    let health = server.get("/v1/health/billing").await;
    insta::assert_snapshot!(health.show(), @r#"200 {"version":"0.1.0","provider":null,"shadow":"off","unbilled":{"calls":{"total":"12.5","dead":"8.5","no_customer":"4","too_old":null,"quarantined":null,"shadow":null,"before_from":null,"held":null,"outside":null}},"quarantined_more":false,"observed":0,"observed_long":0,"without_customer":1,"without_customer_usage":{"calls":{"tenants":1,"pushes":1,"quantity":"4"}},"unsent_usage":{},"submitted":3,"submitted_long":3,"dead":2,"unbilled_quantity":{"calls":"8.5"},"drifting_tenants":0,"findings_open":0,"alerts_open":0,"webhooks_waiting":0,"pages":{"open":0,"day":0,"week":0,"week_before":0},"last_pass":{"hourly":null,"hourly_incomplete":false,"nightly":null,"nightly_incomplete":false},"self_check":{"mismatches":0,"not_done":null,"complete_since":null,"last_walk":null,"walk_started":null,"walk_events":0,"last_sample":null}}"#);
    let watcher = WatchJob::new(&server.context(|_| {}));
    let unbilled = [
        r#"counterfoil_unbilled_quantity{meter="calls"} 8.5"#,
        r#"counterfoil_pushes{state="dead"} 2"#,
        r#"counterfoil_pushes{state="observed"} 0"#,
        r#"counterfoil_pushes{state="without_customer"} 1"#,
        r#"counterfoil_pushes{state="submitted"} 3"#,
    ];
    check_gauges(&server, &watcher, &unbilled).await;
    for quantity in ["7", "1.5"] {
        let path = format!("/v1/pushes/{}/discard", find(&server, quantity).await);
        server.post_to(&path, r#"{"reason":"x"}"#).await.ok(200);
    }
    let health = server.get("/v1/health/billing").await.json();
    assert_eq!((&health["dead"], &health["unbilled_quantity"]), (&0.into(), &json!({})));
    // An alert ends when its cause does.
    let cleared = [r#"counterfoil_unbilled_quantity{meter="calls"} 0"#];
    check_gauges(&server, &watcher, &cleared).await;
}

/// Gauges belong to the process, and other tests set them too: one reading must be this server's.
async fn check_gauges(server: &Server, watcher: &WatchJob, lines: &[&str]) {
    let mut shown = String::new();
    for _ in 0..100 {
        watcher.pass().await.unwrap();
        shown = server.get("/metrics").await.body;
        if lines.iter().all(|line| shown.contains(line)) {
            return;
        }
    }
    panic!("{lines:?} in\n{shown}");
}

pub async fn latencies_say_whether_windows_wait_long_enough(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    let spec = r#"{"aggregation":"sum","settle_after":"0s","late_until":"10m"}"#;
    assert_eq!(server.put("/v1/meters/calls", spec).await.status, 201);
    let started = serde_json::json!({"since": NOW, "latencies": []});
    assert_eq!(server.get("/v1/latency").await.json(), started);
    for minute in 0..20 {
        let at = format!("2026-11-15T11:{:02}:00Z", 40 + minute);
        server.post(&event("acme", &format!("e{minute}"), "1", &at)).await;
    }
    server.post(&event("globex", "e", "1", NOW)).await;
    let one = |answer: Answer| answer.json()["latencies"][0].clone();
    let acme = one(server.get("/v1/latency?tenant=acme").await);
    let millis = |name: &str| acme[name].as_u64().unwrap();
    assert_eq!((acme["meter"].as_str(), millis("samples")), (Some("calls"), 20));
    for (name, exact) in [("p50_ms", 600_000), ("p95_ms", 1_140_000), ("p99_ms", 1_200_000)] {
        assert!((exact..=exact + exact / 8).contains(&millis(name)), "{name}: {acme}");
    }
    let warning = acme["warning"].as_str().unwrap();
    assert!(warning.contains("late_until is 10m"), "{warning}");
    let recommended = acme["recommended_late_until"].as_str().unwrap();
    assert!(warning.contains(&format!("at least {recommended}")), "{warning}");
    let globex = one(server.get("/v1/latency?tenant=globex").await);
    assert_eq!((&globex["samples"], globex.get("warning")), (&1.into(), None));
    assert_eq!(one(server.get("/v1/latency").await)["samples"], 21);
    // Twice the slowest is enough.
    let spec = spec.replace("10m", recommended);
    assert_eq!(server.put("/v1/meters/calls", &spec).await.status, 200);
    assert_eq!(one(server.get("/v1/latency?tenant=acme").await).get("warning"), None);
    let bound = server.key("read", Some("globex")).await;
    assert_eq!(one(server.get_as(&bound, "/v1/latency").await)["samples"], 1);
    let other = server.get_as(&bound, "/v1/latency?tenant=acme").await;
    other.problem(403, "tenant_forbidden");
}

pub async fn a_customer_is_one_tenant(ground: Ground) {
    let server = Server::start(ground).await;
    let first = server.put("/v1/tenants/acme", r#"{"name":"Acme","customer":"cus_1"}"#).await;
    assert_eq!(first.json()["customer"], "cus_1");
    let taken = server.put("/v1/tenants/globex", r#"{"customer":"cus_1"}"#).await;
    taken.problem_saying(409, "customer_taken", "tenant acme is this customer");
    server.get("/v1/tenants/globex").await.problem(404, "unknown_tenant");
    // Left out, it stays; given, it changes, and is free for another.
    assert_eq!(server.put("/v1/tenants/acme", "{}").await.json()["customer"], "cus_1");
    assert_eq!(server.put("/v1/tenants/acme", r#"{"customer":"cus_1"}"#).await.status, 200);
    assert_eq!(server.put("/v1/tenants/acme", r#"{"customer":"cus_2"}"#).await.status, 200);
    assert_eq!(server.put("/v1/tenants/globex", r#"{"customer":"cus_1"}"#).await.status, 200);
    for customer in ["", "a\\nb", &"x".repeat(256)] {
        let body = format!(r#"{{"customer":"{customer}"}}"#);
        let answer = server.put("/v1/tenants/x", &body).await;
        assert!([400, 422].contains(&answer.status), "{}", answer.show());
    }
}

pub async fn billing_is_added_once_and_never_changes(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    let put = async |spec: &str| server.put("/v1/meters/calls", spec).await;
    assert_eq!(put(r#"{"aggregation":"sum"}"#).await.status, 201);
    let added = put(r#"{"aggregation":"sum","billing":{"event_name":"api","scale":2}}"#).await;
    assert_eq!(added.status, 200);
    // The answer says what stands, also what was not asked for.
    let stands = serde_json::json!({
        "event_name": "api", "mode": "delta", "granularity": "window", "scale": 2, "from": NOW,
    });
    assert_eq!(added.json()["billing"], stands);
    for billing in [
        r#"{"event_name":"other","scale":2}"#,
        r#"{"event_name":"api","scale":3}"#,
        r#"{"event_name":"api"}"#,
        r#"{"event_name":"api","scale":2,"mode":"absolute"}"#,
        r#"{"event_name":"api","scale":2,"granularity":"day"}"#,
        r#"{"event_name":"api","scale":2,"from":"2026-11-01T00:00:00Z"}"#,
    ] {
        let spec = format!(r#"{{"aggregation":"sum","billing":{billing}}}"#);
        let problem = put(&spec).await.problem(409, "meter_differs");
        assert_eq!(problem["existing"]["billing"], stands, "{billing}");
    }
    server.clock.advance(MICROS_PER_HOUR);
    for spec in [
        r#"{"aggregation":"sum","billing":{"event_name":"api","scale":2}}"#,
        r#"{"aggregation":"sum","settle_after":"2h","late_until":"9h","cut_every":"1m"}"#,
    ] {
        let answer = put(spec).await;
        assert_eq!((answer.status, &answer.json()["billing"]), (200, &stands), "{spec}");
    }
    assert_eq!(server.get("/v1/meters/calls").await.json()["late_until"], "9h");
}

pub async fn billing_that_cannot_be_exact_is_refused(ground: Ground) {
    let server = Server::start_empty(ground, &default_config()).await;
    for (spec, expected) in [
        (
            r#"{"aggregation":"unique","unique_property":"user","billing":{}}"#,
            "only sum and count meters can be billed",
        ),
        (r#"{"aggregation":"max","billing":{}}"#, "only sum and count"),
        (
            r#"{"aggregation":"sum","billing":{"mode":"absolute","granularity":"event"}}"#,
            "absolute totals are of windows or days",
        ),
        (
            r#"{"aggregation":"sum","scale":3,"billing":{"scale":4}}"#,
            "at most the meter's scale, 3",
        ),
        (r#"{"aggregation":"sum","billing":{"event_name":""}}"#, "event_name"),
    ] {
        let answer = server.put("/v1/meters/m", spec).await;
        answer.problem_saying(422, "invalid_billing", expected);
    }
    for spec in [
        r#"{"aggregation":"sum","billing":{"from":"yesterday"}}"#,
        r#"{"aggregation":"sum","billing":{"mode":"sometimes"}}"#,
        r#"{"aggregation":"sum","billing":{"scael":1}}"#,
        r#"{"aggregation":"sum","settle_after":"2h","late_until":"1h"}"#,
        r#"{"aggregation":"sum","settle_after":"soon"}"#,
        r#"{"aggregation":"sum","cut_every":"0s"}"#,
    ] {
        assert_eq!(server.put("/v1/meters/m", spec).await.status, 422, "{spec}");
    }
    server.get("/v1/meters/m").await.problem(404, "unknown_meter");
}

pub async fn without_a_store_there_is_no_answer(ground: Ground) {
    let server = billed(ground).await;
    // The key is known by now; only the store is gone.
    server.faults.set_down(true);
    for (method, path, body) in [
        (Method::GET, "/v1/pushes", ""),
        (Method::GET, "/v1/pushes/1", ""),
        (Method::POST, "/v1/pushes/1/retry", ""),
        (Method::POST, "/v1/pushes/1/discard", r#"{"reason":"x"}"#),
        (Method::GET, "/v1/health/billing", ""),
        (Method::GET, "/v1/latency", ""),
        (Method::PUT, "/v1/tenants/acme", r#"{"customer":"cus_9"}"#),
    ] {
        let answer = server.call(method, path, &server.admin, body).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert!(!answer.body.contains("secret detail"), "{}", answer.body);
    }
    server.faults.set_down(false);
    assert_eq!(server.get("/v1/pushes/1").await.status, 200);
}

pub async fn windows_are_open_then_settling_then_final(ground: Ground) {
    let server = Server::start(ground).await;
    let path = "/v1/usage?tenant=acme&meter=calls&from=2026-11-15T07:00:00Z\
                &to=2026-11-15T13:00:00Z&window=hour";
    server.post(&event("acme", "e", "1", "2026-11-15T07:30:00Z")).await;
    let states = async || each(&server.get(path).await.rows("windows"), "state");
    // At noon; settle_after is an hour and late_until four.
    assert_eq!(states().await, ["final", "settling", "settling", "settling", "open", "open"]);
    server.clock.advance(MICROS_PER_HOUR);
    assert_eq!(states().await, ["final", "final", "settling", "settling", "settling", "open"]);
}

pub async fn a_comparison_names_every_customer_and_who_wrote_off(ground: Ground) {
    // The provider holds 2 of the window at nine, for the customer it was sent for.
    let kept = Scripted {
        totals: Some(|customer, window| {
            let at_nine = window.start.to_string() == "2026-11-15T09:00:00Z";
            if customer.as_str() == "cus_acme" && at_nine { "2" } else { "0" }
        }),
    };
    let server = billed_towards(ground, Some(Arc::new(kept))).await;
    let dead = find(&server, "1.5").await;
    let path = format!("/v1/pushes/{dead}/discard");
    server.post_to(&path, r#"{"reason":"a gift"}"#).await.ok(200);
    assert_eq!(server.put("/v1/tenants/acme", r#"{"customer":"cus_new"}"#).await.status, 200);
    let path = "/v1/comparison?tenant=acme&meter=calls&from=2026-11-15&to=2026-11-16";
    let compared = server.get(path).await.json();
    let customers = serde_json::json!(["cus_new", "cus_acme"]);
    assert_eq!((&compared["customer"], &compared["customers"]), (&customers[0], &customers));
    let windows = compared["windows"].as_array().unwrap();
    let verdicts: Vec<&Value> = windows.iter().map(|window| &window["verdict"]).collect();
    assert_eq!(verdicts, ["written_off", "equal", "differs"], "{compared}");
    assert_eq!((&windows[0]["written_off"], &windows[1]["provider"]), (&"1.5".into(), &"2".into()));
    let note = windows[0]["note"].as_str().unwrap();
    assert!(note.starts_with(&format!("push {dead}: a gift (by ")), "{note}");
    assert_eq!(windows[1]["note"], Value::Null);
}

pub async fn a_comparison_needs_something_to_compare_with(ground: Ground) {
    let server = billed(ground).await;
    for (query, status, code) in [
        ("tenant=acme&meter=calls", 409, "nothing_to_compare"),
        ("tenant=acme&meter=none", 404, "unknown_meter"),
        ("meter=calls", 400, "invalid_query"),
    ] {
        server.get(&format!("/v1/comparison?{query}")).await.problem(status, code);
    }
    let bound = server.key("read", Some("globex")).await;
    let answer = server.get_as(&bound, "/v1/comparison?tenant=acme&meter=calls").await;
    answer.problem(403, "tenant_forbidden");
}
