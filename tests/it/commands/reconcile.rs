//! Reconciliation as a person meets it, against a server whose answers are written here: passes,
//! their tables and files, findings, alerts, webhooks and the state of billing.

use super::{KEY, check_refused, counterfoil, read};
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A server on a free port, and what it was asked.
struct Canned {
    url: String,
    asked: Asked,
    _runtime: tokio::runtime::Runtime,
}

type Asked = Arc<Mutex<Vec<String>>>;
type Parameters = Query<HashMap<String, String>>;

impl Canned {
    /// With these rows in pass 7, and these differences in the state of billing.
    fn start(rows: Value, health: Value) -> Self {
        let asked = Asked::default();
        let log = Arc::clone(&asked);
        let note = move |request: axum::extract::Request, next: axum::middleware::Next| {
            let line = format!("{} {}", request.method(), request.uri());
            log.lock().unwrap().push(line);
            next.run(request)
        };
        let router = Router::new()
            .route("/v1/passes", post(order_pass).get(list_passes))
            .route("/v1/passes/{id}", get(show_pass))
            .route("/v1/passes/{id}/rows", get(show_rows))
            .route("/v1/findings", get(findings))
            .route("/v1/alerts", get(alerts))
            .route(
                "/v1/webhooks",
                get(async || Json(json!({"webhooks": [webhook()], "next_before": 1}))),
            )
            .route("/v1/webhooks/{id}", get(show_webhook))
            .route("/v1/webhooks/{id}/replay", post(async || Json(json!({"id": 1}))))
            .route("/v1/health/billing", get(async move || Json(health)))
            .layer(axum::middleware::from_fn(note))
            .with_state(Arc::new(Mutex::new(Passes { rows, looks: 0, apply: false })));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { url, asked, _runtime: runtime }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = counterfoil(arguments);
        command.env("COUNTERFOIL_URL", &self.url).env("COUNTERFOIL_KEY", KEY);
        read(&command.output().unwrap())
    }

    /// Checks the exit code of a command, and that it showed these words.
    fn check(&self, arguments: &[&str], expected: i32, words: &str) {
        let (code, shown, _) = self.run(arguments);
        assert!(code == Some(expected) && shown.contains(words), "{arguments:?}: {shown}");
    }

    fn was_asked(&self, line: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == line)
    }
}

struct Passes {
    rows: Value,
    looks: u64,
    apply: bool,
}

type Stored = State<Arc<Mutex<Passes>>>;

/// The pass: it runs at the first look, and is closed at the second.
fn pass(passes: &Passes) -> Value {
    let count = |verdict: &str| {
        let rows = passes.rows.as_array().unwrap();
        rows.iter().filter(|row| row["verdict"] == verdict).count()
    };
    let unread = count("unread");
    let ended = if unread > 0 { "incomplete" } else { "closed" };
    let detail = (unread > 0).then_some("the provider's totals of 1 of 2 were not read");
    let state = if passes.looks < 2 { "running" } else { ended };
    json!({
        "id": 7, "kind": "one_shot", "from": "2026-11-01T00:00:00Z", "to": "2026-11-03T00:00:00Z",
        "tenant": null, "apply": passes.apply, "state": state,
        "created_at": "2026-11-16T02:00:00Z", "ended_at": "2026-11-16T02:01:00Z",
        "pairs": 2, "pairs_done": passes.looks.min(2), "windows": 48, "reads": 4,
        "verdicts": {
            "equal": 48 - count("replay") - count("waiting") - 24 * unread,
            "replay": count("replay"), "waiting": count("waiting"), "unread": 24 * unread,
        },
        "pairs_unread": unread,
        "replayed": u64::from(passes.apply), "reissued": 0, "hash": null, "detail": detail,
    })
}

async fn order_pass(State(passes): Stored, Json(order): Json<Value>) -> Json<Value> {
    assert_eq!((&order["from"], &order["to"]), (&json!("2026-11-01"), &json!("2026-11-03")));
    assert!(order["tenant"].is_null() || order["tenant"] == "acme");
    let mut passes = passes.lock().unwrap();
    (passes.looks, passes.apply) = (0, order["apply"].as_bool().unwrap());
    Json(pass(&passes))
}

async fn show_pass(State(passes): Stored) -> Json<Value> {
    let mut passes = passes.lock().unwrap();
    passes.looks += 1;
    Json(pass(&passes))
}

async fn list_passes(State(passes): Stored) -> Json<Value> {
    Json(json!({"passes": [pass(&passes.lock().unwrap())], "next_before": null}))
}

/// One row a page, so that the command has to turn pages.
async fn show_rows(State(passes): Stored, Query(query): Parameters) -> Json<Value> {
    let passes = passes.lock().unwrap();
    let rows = passes.rows.as_array().unwrap();
    let after: usize = query.get("after").map_or(0, |after| after.parse().unwrap());
    let next = (after + 1 < rows.len()).then(|| (after + 1).to_string());
    let page: Vec<&Value> = rows.iter().skip(after).take(1).collect();
    Json(json!({"rows": page, "next_after": next}))
}

async fn findings(Query(query): Parameters) -> Json<Value> {
    let mut findings = vec![json!({
        "id": 1, "kind": "usage", "tenant": "acme", "meter": "api_calls",
        "subject": "2026-11-01T00:00:00Z/2026-11-01T01:00:00Z", "verdict": "bypass",
        "reason": "provider_higher", "advice": "find the other program", "ledger": "5000",
        "provider": "9000", "detail": "", "opened_at": "2026-11-02T00:00:00Z", "passes": 3,
        "paged_at": "2026-11-02T01:00:00Z", "cleared_at": null, "took_seconds": null,
    })];
    if !query.contains_key("open") {
        let mut cleared = findings[0].clone();
        cleared["cleared_at"] = json!("2026-11-02T02:00:00Z");
        cleared["took_seconds"] = json!(7_260);
        findings.push(cleared);
    }
    Json(json!({"findings": findings, "next_before": null}))
}

async fn alerts(Query(query): Parameters) -> Json<Value> {
    let alert = json!({
        "id": 1, "kind": "dead_letters", "severity": "page", "subject": "",
        "summary": "3 pushes need an operator", "command": "counterfoil pushes list --state dead",
        "opened_at": "2026-11-02T00:00:00Z", "resolved_at": null,
    });
    let none = query.get("kind").is_some_and(|kind| kind != "dead_letters");
    Json(json!({"alerts": if none { vec![] } else { vec![alert] }, "next_before": null}))
}

fn webhook() -> Value {
    json!({
        "id": 1, "event_id": "evt_1", "type": "invoice.created", "object_kind": "invoice",
        "object_id": "in_1", "source": "delivered", "status": "applied",
        "created_at": "2026-11-02T00:00:00Z", "received_at": "2026-11-02T00:00:01Z",
        "settled_at": "2026-11-02T00:00:02Z", "deliveries": 2, "detail": null,
    })
}

async fn show_webhook(Path(id): Path<u64>) -> Json<Value> {
    assert_eq!(id, 1);
    let mut whole = webhook();
    whole["payload"] = json!({"id": "evt_1", "object": "event"});
    Json(whole)
}

fn row(tenant: &str, day: u32, provider: &str, verdict: &str) -> Value {
    let equal = verdict == "equal";
    let window = json!({
        "start": format!("2026-11-{day:02}T00:00:00Z"), "end": format!("2026-11-{day:02}T01:00:00Z"),
        "ledger": "1200.5", "pushed": "1200.5", "provider": provider, "verdict": verdict,
        "reason": "lost",
    });
    json!({
        "tenant": tenant, "meter": "api_calls", "from": format!("2026-11-{day:02}T00:00:00Z"),
        "to": format!("2026-11-{:02}T00:00:00Z", day + 1), "ledger": "1200.5", "pushed": "1200.5",
        "provider": provider, "delta": if equal { "0" } else { "-2.5" }, "verdict": verdict,
        "reason": if equal { "matches" } else { "lost" },
        "advice": if equal { "ledger and provider match" } else { "counterfoil reconcile --apply sends it" },
        "windows": if equal { vec![] } else { vec![window] }, "hash": "ab".repeat(32),
    })
}

fn healthy() -> Value {
    json!({
        "version": "0.1.0", "provider": "stripe", "shadow": "off", "unbilled": {},
        "quarantined_more": false, "observed": 1, "observed_long": 0, "without_customer": 0,
        "without_customer_usage": {}, "unsent_usage": {}, "submitted": 2,
        "submitted_long": 0, "dead": 0, "unbilled_quantity": {}, "drifting_tenants": 0,
        "findings_open": 0, "webhooks_waiting": 0, "alerts_open": 0,
        "pages": {"open": 0, "day": 0, "week": 1, "week_before": 4},
        "last_pass": {
            "hourly": "2026-11-16T03:00:00Z", "hourly_incomplete": false,
            "nightly": null, "nightly_incomplete": false,
        },
        "self_check": {
            "mismatches": 0, "not_done": null, "complete_since": "2026-11-16T02:00:00Z",
            "last_walk": "2026-11-16T02:10:00Z", "walk_started": null, "walk_events": 1200,
            "last_sample": "2026-11-16T03:00:00Z",
        },
    })
}

const RANGE: [&str; 5] = ["reconcile", "--from", "2026-11-01", "--to", "2026-11-03"];

#[test]
fn orders_that_cannot_be_meant_are_refused() {
    check_refused(&["reconcile", "--to", "2026-11-03"], 2, &["--from <DATE>"]);
    check_refused(&["reconcile", "--from", "2026-11-01"], 2, &["--to <DATE>"]);
    let both = [&RANGE[..], &["--apply", "--dry-run"]].concat();
    check_refused(&both, 2, &["'--apply' cannot be used with '--dry-run'"]);
    check_refused(&["reconcile", "--from", "soon", "--to", "2026-11-03"], 2, &["soon", "--from"]);
    let backwards = ["reconcile", "--from", "2026-11-03", "--to", "2026-11-03", "--key", "k"];
    check_refused(&backwards, 1, &["no longer included", "after 2026-11-03"]);
    check_refused(&["findings", "--open", "--all"], 2, &["cannot be used with"]);
    check_refused(&["alerts", "--open", "--all"], 2, &["cannot be used with"]);
    check_refused(&["webhooks", "--status", "lost"], 2, &["waiting, applied, stale, kept"]);
    check_refused(&["passes", "show"], 2, &["<ID>"]);
    check_refused(&["status"], 1, &["a key is needed"]);
}

#[test]
fn a_dry_run_shows_what_differs() {
    let rows = json!([row("acme", 1, "1198", "replay"), row("globex", 1, "1200.5", "equal")]);
    let server = Canned::start(rows, healthy());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (csv, html) = (path("rows.csv"), path("report.html"));
    let (code, shown, said) = server.run(&[&RANGE[..], &["--csv", &csv, "--html", &html]].concat());
    assert_eq!(code, Some(4), "{shown}{said}");
    assert_eq!(said, "pass 7 compares every tenant from 2026-11-01 until 2026-11-03 (dry run)\n");
    for part in ["acme", "1,200.5", "1,198", "-2.5", "replay", "lost (1 row): counterfoil"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("48 windows compared: 47 equal, 1 replay"), "{shown}");
    assert!(shown.contains("nothing was sent; --apply sends again"), "{shown}");
    assert!(!shown.contains("globex"), "{shown}");
    let sheet = std::fs::read_to_string(&csv).unwrap();
    assert!(sheet.lines().count() == 3 && sheet.contains("globex"), "{sheet}");
    let report = std::fs::read_to_string(&html).unwrap();
    assert!(report.starts_with("<!doctype html>") && report.contains("globex"));

    server.check(&["passes", "show", "7", "--all"], 4, "globex");
    let (code, text, _) = server.run(&["passes", "show", "7", "--json"]);
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &whole["pass"]["id"]), (Some(4), &7.into()));
    assert_eq!(whole["rows"][1]["tenant"], "globex");
    let (code, list, _) = server.run(&["passes", "--kind", "one_shot"]);
    assert!(code == Some(0) && list.contains("one_shot") && list.contains("dry run"), "{list}");
    assert!(server.was_asked("GET /v1/passes?kind=one_shot&limit=50"));
    let (code, _, said) = server.run(&["passes", "show", "7", "--html", "/no/such/place.html"]);
    assert!(code == Some(1) && said.contains("`counterfoil passes show 7`"), "{said}");
}

#[test]
fn what_is_equal_or_on_its_way_is_no_drift() {
    let equal = Canned::start(json!([row("acme", 1, "1200.5", "equal")]), healthy());
    let (code, shown, _) = equal.run(&RANGE);
    assert!(code == Some(0) && shown.contains("48 windows compared: 48 equal"), "{shown}");
    assert!(!shown.contains("what to do"), "{shown}");
    let waiting = Canned::start(json!([row("acme", 1, "1198", "waiting")]), healthy());
    let (code, shown, _) = waiting.run(&RANGE);
    assert!(code == Some(0) && shown.contains("1 waiting"), "{shown}");
}

#[test]
fn what_was_not_read_is_neither_equal_nor_a_success() {
    let mut unread = row("acme", 1, "0", "unread");
    unread["windows"] = json!([]);
    for field in ["provider", "delta", "hash"] {
        unread[field] = Value::Null;
    }
    (unread["reason"], unread["advice"]) = (json!("unread"), json!("the next pass reads it"));
    let server = Canned::start(json!([unread, row("globex", 1, "1200.5", "equal")]), healthy());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (csv, html) = (path("rows.csv"), path("report.html"));
    let (code, shown, said) = server.run(&[&RANGE[..], &["--csv", &csv, "--html", &html]].concat());
    assert_eq!(code, Some(1), "{shown}{said}");
    assert!(said.contains("pass 7 is incomplete: the provider's totals of 1 of 2"), "{said}");
    assert!(shown.contains("48 windows compared: 24 equal, 24 unread"), "{shown}");
    let line = shown.lines().find(|line| line.contains("acme")).unwrap();
    assert!(line.contains("unread") && line.trim_end().ends_with('-'), "{line}");
    let sheet = std::fs::read_to_string(&csv).unwrap();
    assert!(sheet.contains(",1200.5,1200.5,,,unread,unread,"), "{sheet}");
    let report = std::fs::read_to_string(&html).unwrap();
    assert!(report.contains("This pass is incomplete and proves nothing"), "{report}");
    server.check(&["passes"], 0, "incomplete");
}

#[test]
fn applying_says_what_was_done() {
    let mut row = row("acme", 1, "1198", "replay");
    row["windows"][0]["action"] = json!("sent again as push 12");
    let server = Canned::start(json!([row]), healthy());
    let (code, shown, said) = server.run(&[&RANGE[..], &["--apply", "--tenant", "acme"]].concat());
    assert_eq!(code, Some(4), "{shown}{said}");
    assert!(said.contains("(applied)"), "{said}");
    for part in [
        "acme api_calls 2026-11-01T00:00:00Z: sent again as push 12",
        "sent again: 1 push, 0 reissues",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains("dry run"), "{shown}");
}

#[test]
fn numbers_that_must_be_zero_decide() {
    let (code, shown, _) = Canned::start(json!([]), healthy()).run(&["status"]);
    assert_eq!((code, shown.matches('✓').count(), shown.matches('✗').count()), (Some(0), 7, 0));
    assert!(shown.contains("↓ 1, before 4") && shown.contains("never"), "{shown}");
    assert!(shown.starts_with("counterfoil 0.1.0, provider stripe, shadow off\n"), "{shown}");
    assert!(shown.contains("all usage of billed meters is billed"), "{shown}");
    let numbers =
        ["observed_long", "submitted_long", "drifting_tenants", "dead", "without_customer"];
    for number in numbers {
        let mut health = healthy();
        health[number] = json!(2);
        let server = Canned::start(json!([]), health.clone());
        let (code, shown, _) = server.run(&["status"]);
        assert_eq!((code, shown.matches('✗').count()), (Some(4), 1), "{number}: {shown}");
        let (code, text, _) = server.run(&["status", "--json"]);
        assert_eq!((code, serde_json::from_str(&text).ok()), (Some(4), Some(health)));
    }
    let mut health = healthy();
    health["pages"]["open"] = json!(1);
    assert_eq!(Canned::start(json!([]), health).run(&["status"]).0, Some(4));
    let mut health = healthy();
    health["shadow"] = json!("nowhere");
    health["unbilled"] =
        json!({"api_calls": {"total": "1234.5", "dead": null, "before_from": "1234.5"}});
    let (code, shown, _) = Canned::start(json!([]), health).run(&["status"]);
    assert!(code == Some(0) && shown.contains("SHADOW MODE: nothing is billed"), "{shown}");
    assert!(shown.contains("1,234.5") && shown.contains("before from"), "{shown}");
}

#[test]
fn findings_alerts_and_webhooks_are_listed() {
    let server = Canned::start(json!([]), healthy());
    let (code, shown, _) = server.run(&["findings", "--tenant", "acme"]);
    assert!(code == Some(0) && shown.contains("open, paged") && shown.contains("9,000"), "{shown}");
    assert!(shown.contains("provider_higher: find the other program"), "{shown}");
    assert!(server.was_asked("GET /v1/findings?open=true&tenant=acme&limit=50"));
    server.check(&["findings", "--all"], 0, "cleared after 2 h 1 min");
    assert!(server.was_asked("GET /v1/findings?limit=50"));
    server.check(&["alerts"], 0, "counterfoil pushes list --state dead");
    assert!(server.was_asked("GET /v1/alerts?open=true&limit=50"));
    let (_, shown, _) = server.run(&["alerts", "--kind", "silence"]);
    assert_eq!(shown, "no open alerts\n");
    for list in [&["webhooks"][..], &["webhooks", "list"], &["webhooks", "--type", "x"]] {
        let (code, shown, _) = server.run(list);
        assert!(code == Some(0) && shown.contains("evt_1"), "{shown}");
        assert!(shown.contains("there are more; --limit"), "{shown}");
    }
    assert!(server.was_asked("GET /v1/webhooks?type=x&limit=50"));
    let (_, shown, _) = server.run(&["webhooks", "show", "1"]);
    assert!(shown.contains("invoice.created about invoice in_1"), "{shown}");
    assert!(shown.contains("\"object\": \"event\"") && shown.contains("2 deliveries"), "{shown}");
    server.check(&["webhooks", "replay", "1"], 0, "counterfoil webhooks show 1");
    assert!(server.was_asked("POST /v1/webhooks/1/replay"));
}
