//! Every operation of the description with every kind of key: allowed or refused as the table of
//! access (`src/http/access.rs`) says, which the description repeats for each operation.

use crate::world::{Answer, Ground, Server, default_config};
use axum::body::Body;
use http::{Method, Request};
use serde_json::Value;

/// The tenant that every request names.
const TENANT: &str = "acme";
const SCOPES: [&str; 4] = ["ingest", "read", "operate", "admin"];

/// A kind of key, and a key of that kind.
struct Key {
    name: String,
    token: Option<String>,
    /// None if the key is not valid.
    scope: Option<&'static str>,
    tenant: Option<&'static str>,
}

/// What the table says of an operation.
struct Operation {
    method: Method,
    path: String,
    scope: Option<String>,
    reach: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Allowed,
    Refused(u16, &'static str),
    /// A batch or a single event of another tenant is refused by its verdict.
    NamesAnother,
}

async fn keys(server: &Server) -> Vec<Key> {
    let invalid = |name: &str, token| Key { name: name.into(), token, scope: None, tenant: None };
    let mut keys = vec![
        invalid("none", None),
        invalid("wrong", Some(format!("cf_{}", "0".repeat(64)))),
        invalid("revoked", Some(revoked(server).await)),
    ];
    for scope in SCOPES {
        for tenant in [None, Some(TENANT), Some("rival")] {
            // An admin is bound to no tenant.
            if scope == "admin" && tenant.is_some() {
                continue;
            }
            let token = Some(server.key(scope, tenant).await);
            let name = format!("{scope} of {}", tenant.unwrap_or("all"));
            keys.push(Key { name, token, scope: Some(scope), tenant });
        }
    }
    keys
}

async fn revoked(server: &Server) -> String {
    let spec = r#"{"name":"revoked","scopes":["read"]}"#;
    let made = server.call(Method::POST, "/v1/keys", &server.admin, spec).await.json();
    let path = format!("/v1/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(server.call(Method::DELETE, &path, &server.admin, "").await.status, 204);
    made["token"].as_str().unwrap().to_owned()
}

/// Whether a key of the first scope may do what needs the second.
fn includes(scope: &str, needed: &str) -> bool {
    scope == needed || scope == "admin" || (scope == "operate" && needed == "read")
}

fn expected(key: &Key, operation: &Operation, address: &str) -> Expected {
    let Some(needed) = &operation.scope else { return Expected::Allowed };
    let Some(scope) = key.scope else { return Expected::Refused(401, "unauthenticated") };
    if !includes(scope, needed) {
        return Expected::Refused(403, "scope_missing");
    }
    let another = key.tenant.is_some_and(|tenant| tenant != TENANT);
    match operation.reach.as_str() {
        "all" | "own_by_id" => Expected::Allowed,
        // Without a tenant in the query the answer is about the key's own.
        "tenant_in_query" if !address.contains("tenant=") => Expected::Allowed,
        "unbound" if key.tenant.is_some() => Expected::Refused(403, "tenant_forbidden"),
        "unbound" => Expected::Allowed,
        "tenant_in_path" | "tenant_in_query" if another => {
            Expected::Refused(403, "tenant_forbidden")
        }
        "tenant_in_body" if another => Expected::NamesAnother,
        "tenant_in_path" | "tenant_in_query" | "tenant_in_body" => Expected::Allowed,
        unknown => panic!("{unknown} is not a reach"),
    }
}

fn operations(document: &Value) -> Vec<(Operation, Value)> {
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let text = |name: &str| described[name].as_str().map(str::to_owned);
            let open = described["security"] == serde_json::json!([]);
            assert_eq!(open, text("x-scope").is_none(), "{method} {path} has its row");
            let operation = Operation {
                method: method.to_ascii_uppercase().parse().unwrap(),
                path: path.clone(),
                scope: text("x-scope"),
                reach: text("x-tenant").unwrap_or_default(),
            };
            operations.push((operation, described.clone()));
        }
    }
    operations
}

/// The path with its names filled in, and the query with the tenant and all that is required.
fn address(operation: &Operation, described: &Value) -> String {
    let mut path = operation.path.clone();
    let mut query = Vec::new();
    for parameter in described["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        let value = match name {
            "tenant" => TENANT,
            "meter" | "slug" => "calls",
            "at" => "2026-11-15T12:00:00Z",
            "kind" => "quota",
            "period" => "month",
            "from" => "2026-11-14",
            "to" => "2026-11-15",
            "push" | "pass" | "finding" | "webhook" | "saga" | "grant" | "number" => "1",
            _ => "x",
        };
        match parameter["in"].as_str().unwrap() {
            "path" => path = path.replace(&format!("{{{name}}}"), value),
            "query" if name == "tenant" || parameter["required"] == true => {
                query.push(format!("{name}={value}"));
            }
            _ => {}
        }
    }
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// A body that names the tenant where the operation reads it from there.
fn body(operation: &Operation) -> &'static str {
    match (&operation.method, operation.path.as_str()) {
        (&Method::POST, "/v1/events") => {
            r#"{"tenant":"acme","id":"e","meter":"calls","quantity":"1",
                "occurred_at":"2026-11-15T12:00:00Z"}"#
        }
        (&Method::PUT, "/v1/thresholds") => {
            r#"{"tenant":"acme","meter":"calls","kind":"quota","period":"month","limit":"5"}"#
        }
        (&Method::POST, "/v1/quarantine/decide") => {
            r#"{"ruling":"admit","filter":{"tenant":"acme"},"reason":"r","author":"a"}"#
        }
        (&Method::POST, "/v1/conflicts/decide") => {
            r#"{"ruling":"dismiss","filter":{"tenant":"acme"},"reason":"r","author":"a"}"#
        }
        _ => "{}",
    }
}

async fn call(server: &Server, key: &Key, operation: &Operation, address: &str) -> Answer {
    let mut request = Request::builder()
        .method(operation.method.clone())
        .uri(address)
        .header("content-type", "application/json")
        .header("idempotency-key", format!("{} {address}", key.name).replace(' ', "-"));
    if let Some(token) = &key.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = if operation.method == Method::GET { "" } else { body(operation) };
    server.send(request.body(Body::from(body)).unwrap()).await
}

pub async fn every_operation_takes_the_keys_that_the_table_names(ground: Ground) {
    let mut config = default_config();
    // Each invalid key is tried with every operation.
    config.limits.unknown_keys_per_second = 0;
    let server = Server::start_with(ground, &config).await;
    let keys = keys(&server).await;
    let document = server.get("/openapi.json").await.json();
    let operations = operations(&document);
    assert!(operations.len() > 60);
    for (operation, described) in &operations {
        let address = address(operation, described);
        for key in &keys {
            let answer = call(&server, key, operation, &address).await;
            let name = format!("{} {address} with the key {}", operation.method, key.name);
            let code = serde_json::from_str::<Value>(&answer.body).unwrap_or_default();
            let code = code["code"].as_str().unwrap_or_default();
            match expected(key, operation, &address) {
                // Who is let in may still be told that something is missing or wrong.
                Expected::Allowed => {
                    assert!(!matches!(answer.status, 401 | 403), "{name}: {}", answer.show());
                }
                Expected::Refused(status, wanted) => {
                    assert_eq!((answer.status, code), (status, wanted), "{name}");
                }
                Expected::NamesAnother => assert_eq!(code, "tenant_forbidden", "{name}"),
            }
        }
    }
}
