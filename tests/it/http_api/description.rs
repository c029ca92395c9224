//! The OpenAPI description lists every route and tells what the server does.

use crate::world::{Ground, Server};
use serde_json::Value;

/// Each operation with the statuses it is answered with; every failure is a problem.
async fn describe_operations(ground: Ground) -> Vec<String> {
    let document = describe(ground).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let statuses: Vec<_> = operation["responses"].as_object().unwrap().keys().collect();
            let statuses: Vec<_> = statuses.iter().map(|status| status.as_str()).collect();
            operations.push(format!("{method} {path}: {}", statuses.join(" ")));
            for (status, response) in operation["responses"].as_object().unwrap() {
                let problem = response["content"]["application/problem+json"].is_object();
                assert_eq!(problem, status.as_str() >= "400", "{method} {path} {status}");
            }
        }
    }
    operations.sort();
    operations
}

pub async fn every_reading_route_is_described_with_its_failures(ground: Ground) {
    let mut operations = describe_operations(ground).await;
    operations.retain(|operation| operation.starts_with("get "));
    insta::assert_snapshot!(operations.join("\n"), @r"
    get /docs: 200
    get /healthz: 200
    get /metrics: 200 401 403 429 500 503
    get /openapi.json: 200
    get /readyz: 200 503
    get /v1/alerts: 200 400 401 403 429 500 503
    get /v1/changes: 200 400 401 403 429 500 503
    get /v1/comparison: 200 400 401 403 404 409 422 429 500 503
    get /v1/conflicts/{number}: 200 400 401 403 404 429 500 503
    get /v1/conflicts: 200 400 401 403 429 500 503
    get /v1/counters: 200 400 401 403 429 500 503
    get /v1/coupons: 200 400 401 403 429 500 503
    get /v1/events/{tenant}/{id}: 200 400 401 403 404 429 500 503
    get /v1/events: 200 400 401 403 404 429 500 503
    get /v1/findings: 200 400 401 403 429 500 503
    get /v1/health/billing: 200 401 403 429 500 503
    get /v1/keys: 200 401 403 429 500 503
    get /v1/latency: 200 400 401 403 429 500 503
    get /v1/meters/{slug}: 200 400 401 403 404 429 500 503
    get /v1/meters: 200 401 403 429 500 503
    get /v1/passes/{pass}/rows: 200 400 401 403 404 429 500 503
    get /v1/passes/{pass}: 200 400 401 403 404 429 500 503
    get /v1/passes: 200 400 401 403 429 500 503
    get /v1/pushes/{push}: 200 400 401 403 404 429 500 503
    get /v1/pushes: 200 400 401 403 404 429 500 503
    get /v1/quarantine/{number}: 200 400 401 403 404 429 500 503
    get /v1/quarantine: 200 400 401 403 429 500 503
    get /v1/sagas/{saga}: 200 400 401 403 404 429 500 503
    get /v1/sagas: 200 400 401 403 429 500 503
    get /v1/tax/rates: 200 400 401 403 429 500 503
    get /v1/tenants/{id}: 200 400 401 403 404 429 500 503
    get /v1/tenants/{tenant}/accounts/{account}/statement: 200 400 401 403 404 429 500 503
    get /v1/tenants/{tenant}/accounts/{account}: 200 400 401 403 404 429 500 503
    get /v1/tenants/{tenant}/accounts: 200 400 401 403 429 500 503
    get /v1/tenants/{tenant}/credits/changes: 200 400 401 403 429 500 503
    get /v1/tenants/{tenant}/credits: 200 400 401 403 422 429 500 503
    get /v1/tenants/{tenant}/entitlements/{meter}: 200 400 401 403 404 422 429 500 503
    get /v1/tenants/{tenant}/entries/{key}: 200 400 401 403 404 429 500 503
    get /v1/tenants/{tenant}/grants: 200 400 401 403 429 500 503
    get /v1/tenants/{tenant}/quotes/{key}: 200 400 401 403 404 429 500 503
    get /v1/tenants/{tenant}/subscriptions: 200 400 401 403 429 500 503
    get /v1/tenants: 200 400 401 403 429 500 503
    get /v1/thresholds: 200 400 401 403 429 500 503
    get /v1/timeline: 200 400 401 403 429 500 503
    get /v1/usage/totals: 200 400 401 403 422 429 500 503
    get /v1/usage: 200 400 401 403 404 422 429 500 503
    get /v1/webhooks/{webhook}: 200 400 401 403 404 429 500 503
    get /v1/webhooks: 200 400 401 403 429 500 503
    ");
}

pub async fn every_changing_route_is_described_with_its_failures(ground: Ground) {
    let mut operations = describe_operations(ground).await;
    operations.retain(|operation| !operation.starts_with("get "));
    insta::assert_snapshot!(operations.join("\n"), @r"
    delete /v1/keys/{id}: 204 400 401 403 404 409 422 429 500 503
    delete /v1/thresholds: 204 400 401 403 404 409 422 429 500 503
    post /v1/conflicts/decide: 200 400 401 403 408 409 413 415 422 429 500 503
    post /v1/conflicts/{number}/dismiss: 200 400 401 403 404 408 409 413 415 422 429 500 503
    post /v1/conflicts/{number}/keep-standing: 200 400 401 403 404 408 409 413 415 422 429 500 503
    post /v1/events: 200 202 400 401 403 408 409 413 415 422 429 500 503
    post /v1/findings/{finding}/accept: 200 400 401 403 404 409 422 429 500 503
    post /v1/keys: 201 400 401 403 408 413 415 422 429 500 503
    post /v1/passes: 202 400 401 403 408 409 413 415 422 429 500 503
    post /v1/pushes/{push}/discard: 200 400 401 403 404 408 409 413 415 422 429 500 503
    post /v1/pushes/{push}/retry: 200 400 401 403 404 409 422 429 500 503
    post /v1/quarantine/decide: 200 400 401 403 408 409 413 415 422 429 500 503
    post /v1/quarantine/{number}/admit: 200 400 401 403 404 408 409 413 415 422 429 500 503
    post /v1/quarantine/{number}/discard: 200 400 401 403 404 408 409 413 415 422 429 500 503
    post /v1/sagas/{saga}/resume: 200 400 401 403 404 409 422 429 500 503
    post /v1/tenants/{tenant}/entries: 201 400 401 403 408 409 413 415 422 429 500 503
    post /v1/tenants/{tenant}/grants/{grant}/void: 200 400 401 403 404 408 409 413 415 422 429 500 503
    post /v1/tenants/{tenant}/grants: 201 400 401 403 408 409 413 415 422 429 500 503
    post /v1/tenants/{tenant}/quotes: 200 400 401 403 408 409 413 415 422 429 500 503
    post /v1/tenants/{tenant}/subscriptions/{subscription}/cancel: 202 400 401 403 408 409 413 415 422 429 500 503
    post /v1/tenants/{tenant}/subscriptions/{subscription}/plan: 202 400 401 403 408 409 413 415 422 429 500 503
    post /v1/tenants/{tenant}/subscriptions: 202 400 401 403 408 409 413 415 422 429 500 503
    post /v1/webhooks/{webhook}/replay: 200 400 401 403 404 409 422 429 500 503
    post /webhooks/stripe: 200 400 408 413 415 500 503
    put /v1/coupons/{code}: 200 400 401 403 408 409 413 415 422 429 500 503
    put /v1/meters/{slug}: 200 201 400 401 403 408 409 413 415 422 429 500 503
    put /v1/tax/rates: 200 400 401 403 408 409 413 415 422 429 500 503
    put /v1/tenants/{id}: 200 400 401 403 408 409 413 415 422 429 500 503
    put /v1/tenants/{tenant}/accounts/{account}: 200 400 401 403 408 409 413 415 422 429 500 503
    put /v1/thresholds: 200 400 401 403 404 408 409 413 415 422 429 500 503
    ");
}

async fn describe(ground: Ground) -> Value {
    Server::start(ground).await.get("/openapi.json").await.json()
}

/// Checks every value of a document, however deep.
fn check_all(value: &Value, check: &impl Fn(&Value)) {
    check(value);
    match value {
        Value::Object(members) => members.values().for_each(|member| check_all(member, check)),
        Value::Array(items) => items.iter().for_each(|item| check_all(item, check)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

pub async fn references_lead_somewhere(ground: Ground) {
    let document = describe(ground).await;
    check_all(&document, &|value: &Value| {
        if let Some(reference) = value["$ref"].as_str() {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    });
}

/// A schema that allows no further members can never be one of several that must all hold.
pub async fn no_schema_contradicts_itself(ground: Ground) {
    let document = describe(ground).await;
    check_all(&document, &|value: &Value| {
        for part in value["allOf"].as_array().into_iter().flatten() {
            let pointer = part["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
            let part = pointer.map_or(part, |pointer| document.pointer(pointer).unwrap());
            assert_ne!(part["additionalProperties"], false, "{part}");
            assert_eq!(part["type"], "object", "{part}");
        }
    });
}

pub async fn the_page_needs_nothing_from_elsewhere(ground: Ground) {
    let server = Server::start(ground).await;
    let page = server.get("/docs").await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    for outside in ["http://", "https://", "src=", "@import", "innerHTML"] {
        assert!(!page.body.contains(outside), "{outside}");
    }
}

/// Generators of clients name a method after each operation, and refuse two of one name.
pub async fn operation_ids_are_unique(ground: Ground) {
    let document = describe(ground).await;
    let methods = document["paths"].as_object().unwrap().values();
    let mut ids: Vec<&str> = methods
        .flat_map(|methods| methods.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    let all = ids.clone();
    ids.dedup();
    assert_eq!(ids, all);
}

pub async fn every_metric_has_a_help_text(ground: Ground) {
    let server = Server::start(ground).await;
    server.post(&crate::world::event("acme", "e1", "1", crate::world::NOW)).await;
    let text = server.get("/metrics").await.body;
    let described = |kind: &str| -> Vec<&str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
        lines.map(|line| line.split(' ').next().unwrap()).collect()
    };
    let help = described("# HELP ");
    for name in described("# TYPE ") {
        assert!(help.contains(&name), "{name} has no HELP");
    }
    for name in [
        "counterfoil_build_info",
        "counterfoil_ingest_queue_events",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        assert!(help.contains(&name), "{name} is missing:\n{text}");
    }
}

/// What is recorded anywhere has its row in the table of help texts.
#[test]
fn every_recorded_metric_has_a_row() {
    let table = std::fs::read_to_string("src/http/telemetry.rs").unwrap();
    let mut folders = vec![std::path::PathBuf::from("src")];
    let mut names = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            for macro_name in ["counter!(", "gauge!(", "histogram!("] {
                for (place, _) in source.match_indices(&format!("metrics::{macro_name}")) {
                    let name = source[place..].split('"').nth(1).unwrap();
                    assert!(table.contains(&format!("\"{name}\"")), "{name} of {path:?}");
                    names += 1;
                }
            }
        }
    }
    assert!(names > 20, "{names} metrics were found");
}

pub async fn request_ids_are_in_the_answer_and_in_the_problem(ground: Ground) {
    let server = Server::start(ground).await;
    let ask = async |id: &str| {
        let request = http::Request::get("/v1/nothing").header("x-request-id", id);
        server.send(request.body(axum::body::Body::empty()).unwrap()).await
    };
    let answer = ask("from-the-proxy:1").await;
    assert_eq!(answer.headers["x-request-id"], "from-the-proxy:1");
    assert_eq!(answer.json()["request_id"], "from-the-proxy:1");
    let made = ask("not a usable id").await;
    let id = made.headers["x-request-id"].to_str().unwrap().to_owned();
    assert!(!id.contains(' '));
    assert_eq!(made.json()["request_id"], id);
}

/// Stripe's SDK for Node takes an answer without `error` for a success.
pub async fn clients_of_stripe_see_an_error(ground: Ground) {
    let server = Server::start(ground).await;
    let answer = server.call(http::Method::POST, "/v1/billing/meter_events", "sk_test_1", "").await;
    let problem = answer.problem(404, "unknown_route");
    assert_eq!(problem["error"]["type"], "invalid_request_error");
}
