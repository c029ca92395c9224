//! The routes, and the OpenAPI 3.1 description that is made from them.
//!
//! Invariant: a route is registered and described by the same line, so neither can lack the other.
//! Limits in the description come from the constants that enforce them. What all operations have
//! in common (keys, problems, the body's limits) is added here, once for all of them.

use super::access::Reach;
use super::{
    App, access, accounts, alerts, billing, changes, counters, credits, decisions, events,
    idempotency, inboxes, keys, latency, meters, pages, passes, pushes, quotes, records, sagas,
    tenants, timeline, totals, usage, webhooks,
};
use crate::api::events::Verdicts;
use crate::config::ServerConfig;
use crate::rules::ids::{
    EVENT_ID_BYTES_MAX, METER_SLUG_BYTES_MAX, SUBSCRIPTION_BYTES_MAX, TENANT_BYTES_MAX,
};
use crate::rules::properties::{NAME_BYTES_MAX, PROPERTIES_MAX, TEXT_BYTES_MAX, VALUE_BYTES_MAX};
use http::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::PartialSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const DESCRIPTION: &str = "Counts usage events exactly once in effect and keeps exact totals.\n\n\
    Send `Authorization: Bearer` and a key with every request. Quantities are decimal numbers: \
    those of events are sent as JSON strings or numbers, all others (amounts, rates, limits) as \
    strings, and all are answered as strings. Instants are RFC 3339. Failures are \
    `application/problem+json` (RFC 9457) with a stable `code`. After 503, send the same request \
    again: nothing is ever counted twice.";

/// Text without control characters.
const PLAIN_TEXT: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";
const SLUG: &str = "^[a-z0-9][a-z0-9_.-]*$";

/// Every route but the one of `/`, which only leads to the description.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(events::post_events, records::list_events))
        .routes(routes!(records::trace_event))
        .routes(routes!(usage::get_usage))
        .routes(routes!(totals::list_totals))
        .routes(routes!(counters::list_counters))
        .routes(routes!(latency::list_latencies))
        .routes(routes!(inboxes::list_conflicts))
        .routes(routes!(inboxes::list_quarantine))
        .routes(routes!(inboxes::get_conflict))
        .routes(routes!(inboxes::get_quarantined))
        .routes(routes!(decisions::keep_standing))
        .routes(routes!(decisions::dismiss_conflict))
        .routes(routes!(decisions::decide_conflicts))
        .routes(routes!(decisions::admit_quarantined))
        .routes(routes!(decisions::discard_quarantined))
        .routes(routes!(decisions::decide_quarantined))
        .routes(routes!(meters::list_meters))
        .routes(routes!(meters::put_meter, meters::get_meter))
        .routes(routes!(tenants::list_tenants))
        .routes(routes!(tenants::put_tenant, tenants::get_tenant))
        .routes(routes!(pushes::list_pushes))
        .routes(routes!(pushes::get_push))
        .routes(routes!(pushes::retry_push))
        .routes(routes!(pushes::discard_push))
        .routes(routes!(billing::get_billing_health))
        .routes(routes!(billing::get_comparison))
        .routes(routes!(webhooks::receive_stripe))
        .routes(routes!(webhooks::list_webhooks))
        .routes(routes!(webhooks::get_webhook))
        .routes(routes!(webhooks::replay_webhook))
        .routes(routes!(timeline::get_timeline))
        .routes(routes!(passes::list_passes, passes::post_pass))
        .routes(routes!(passes::get_pass))
        .routes(routes!(passes::list_rows))
        .routes(routes!(passes::list_findings))
        .routes(routes!(passes::accept_finding))
        .routes(routes!(alerts::list_alerts))
        .routes(routes!(alerts::list_thresholds, alerts::put_threshold, alerts::delete_threshold))
        .routes(routes!(accounts::list_accounts))
        .routes(routes!(accounts::put_account, accounts::get_account))
        .routes(routes!(accounts::get_statement))
        .routes(routes!(accounts::get_entry))
        .routes(routes!(credits::get_credits))
        .routes(routes!(credits::list_credit_changes))
        .routes(routes!(credits::get_entitlement))
        .routes(routes!(sagas::list_sagas))
        .routes(routes!(sagas::get_saga))
        .routes(routes!(sagas::resume_saga))
        .routes(routes!(sagas::list_subscription_records))
        .routes(routes!(quotes::list_rates, quotes::put_rate))
        .routes(routes!(quotes::list_coupons))
        .routes(routes!(quotes::put_coupon))
        .routes(routes!(quotes::get_quote))
        .routes(routes!(changes::list_changes))
        .routes(routes!(keys::list_keys, keys::post_key))
        .routes(routes!(keys::delete_key))
        .routes(routes!(pages::healthz))
        .routes(routes!(pages::readyz))
        .routes(routes!(pages::get_metrics))
        .routes(routes!(pages::get_openapi))
        .routes(routes!(pages::get_docs))
}

/// Routes that move money or change subscriptions: a request needs an idempotency key.
pub fn money_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(accounts::post_entry))
        .routes(routes!(credits::post_grant, credits::list_grants))
        .routes(routes!(credits::void_grant))
        .routes(routes!(sagas::create_subscription))
        .routes(routes!(sagas::change_plan))
        .routes(routes!(sagas::cancel_subscription))
        .routes(routes!(quotes::post_quote))
}

/// The description as JSON text.
pub fn document(config: &ServerConfig) -> String {
    let money = money_routes().into_openapi();
    let required: Vec<String> = money.paths.paths.keys().cloned().collect();
    let mut document = serde_json::to_value(routes().into_openapi().merge_from(money))
        .expect("the description consists of texts, numbers and lists");
    document["info"] = json!({
        "title": "Counterfoil",
        "version": env!("CARGO_PKG_VERSION"),
        "description": DESCRIPTION,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    });
    document["servers"] = json!([{"url": "/"}]);
    document["security"] = json!([{"key": []}]);
    document["components"]["securitySchemes"] =
        json!({"key": {"type": "http", "scheme": "bearer", "description": "A key of /v1/keys"}});
    describe_shared_schemas(&mut document["components"]["schemas"]);
    describe_post_events(&mut document["paths"]["/v1/events"]["post"], config);
    let paths = document["paths"].as_object_mut().expect("there are paths");
    for (path, operations) in paths {
        let operations = operations.as_object_mut().expect("a path has operations");
        for (method, operation) in operations {
            describe_access(method, path, operation);
            describe_parameters(operation);
            if method != "get" {
                describe_key(operation, required.contains(path));
            }
            describe_problems(operation, config);
        }
    }
    document.to_string()
}

/// Says which keys may use an operation, for people and, as `x-scope` and `x-tenant`, for programs.
fn describe_access(method: &str, path: &str, operation: &mut Value) {
    let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes());
    let (scope, reach) = method
        .ok()
        .and_then(|method| access::find(&method, path))
        .expect("every operation has a row in the table of access");
    let Some(scope) = scope else { return };
    operation["x-scope"] = scope.name().into();
    operation["x-tenant"] = reach.name().into();
    let mut text = operation["description"].as_str().unwrap_or_default().trim().to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(&format!("Needs a key with the scope `{}`", scope.name()));
    text.push_str(if reach == Reach::Unbound { ", bound to no tenant." } else { "." });
    operation["description"] = text.into();
}

/// Adds the header under which a request happens once, but where it means nothing.
fn describe_key(operation: &mut Value, required: bool) {
    let open = operation.get("security").is_some();
    let left_out = ["post_key", "post_events"].iter().any(|id| operation["operationId"] == *id);
    if open || left_out {
        return;
    }
    let parameters = &mut operation["parameters"];
    if parameters.is_null() {
        *parameters = json!([]);
    }
    parameters.as_array_mut().expect("parameters are a list").push(json!({
        "name": idempotency::HEADER, "in": "header", "required": required,
        "description": "New for each operation and the same for each retry of it: a retry gets the \
            first answer again, with `Idempotency-Replayed: true`, and nothing is done twice.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    }));
    let responses = operation["responses"].as_object_mut().expect("an operation has responses");
    let mut add = |status: &str, description: &str| {
        responses.entry(status).or_insert_with(|| json!({"description": description}));
    };
    add("409", "A request with this idempotency key is at work");
    add("422", "The idempotency key was used for another request");
}

/// Adds what any request of this kind can be answered with, and gives every failure its body.
fn describe_problems(operation: &mut Value, config: &ServerConfig) {
    let open = operation.get("security").is_some();
    let has_body = operation.get("requestBody").is_some();
    let has_parameters = operation.get("parameters").is_some();
    if open {
        operation["security"] = json!([]);
    }
    let responses = operation["responses"].as_object_mut().expect("an operation has responses");
    let mut add = |status: &str, description: String| {
        responses.entry(status).or_insert_with(|| json!({"description": description}));
    };
    if !open {
        add("401", "No key, or one that is unknown or revoked".into());
        add("403", "The key lacks the scope, or is bound to another tenant".into());
        add("429", "More requests than the key or the address may send".into());
        add("500", "The server failed; its log says why".into());
        add("503", "The store cannot answer now; send the same request again".into());
    }
    if has_parameters || has_body {
        add("400", "The request cannot be understood; nothing was done".into());
    }
    if has_body {
        let bytes = config.body_bytes_max;
        add("408", "The body did not arrive in time".into());
        add("413", format!("More than {bytes} bytes, as sent or decompressed, or too many events"));
        add("415", "The type or the encoding of the body is not supported".into());
    }
    for (status, response) in responses.iter_mut() {
        if status.as_str() >= "400" {
            describe_problem(status, response);
        }
    }
}

fn describe_problem(status: &str, response: &mut Value) {
    if response.get("content").is_none() {
        response["content"] = json!({
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        });
    }
    match status {
        "429" | "503" => {
            response["headers"] = json!({"Retry-After": {
                "description": "Seconds after which to send the same request again",
                "schema": {"type": "string"}
            }});
        }
        "401" => {
            response["headers"] =
                json!({"WWW-Authenticate": {"required": true, "schema": {"type": "string"}}});
        }
        _ => {}
    }
}

/// Names have the limits of the names they are; borders of ranges are instants or dates.
fn describe_parameters(operation: &mut Value) {
    let path = operation["operationId"].as_str().unwrap_or_default().to_owned();
    let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) else {
        return;
    };
    for parameter in parameters {
        let in_path = parameter["in"] == "path";
        parameter["schema"] = match (parameter["name"].as_str(), path.as_str()) {
            (Some("from" | "to"), _) => json!({"anyOf": [
                {"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}
            ]}),
            (Some("tenant"), _) | (Some("id"), "put_tenant" | "get_tenant") => {
                text_schema(TENANT_BYTES_MAX)
            }
            (Some("meter"), _) if !in_path => slug_schema(),
            _ if !in_path => continue,
            (Some("slug"), _) => slug_schema(),
            (Some("id"), "trace_event") => text_schema(EVENT_ID_BYTES_MAX),
            _ => json!({"type": "string", "minLength": 1}),
        };
    }
}

/// Bounds are of bytes; for text beyond ASCII they are reached with fewer characters.
fn text_schema(bytes_max: usize) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": bytes_max, "pattern": PLAIN_TEXT})
}

fn slug_schema() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": METER_SLUG_BYTES_MAX, "pattern": SLUG})
}

/// `POST /v1/events` reads and writes its JSON by hand, and is described by hand.
fn describe_post_events(operation: &mut Value, config: &ServerConfig) {
    let event = json!({"$ref": "#/components/schemas/Event"});
    let cloud_event = json!({"$ref": "#/components/schemas/CloudEvent"});
    // An item that is not an event is rejected on its own, so an array may hold anything.
    let array = json!({"type": "array", "maxItems": config.batch_events_max, "items": {}});
    let lines = json!({"schema": {"type": "string"}, "example": lines_example()});
    operation["requestBody"] = json!({
        "required": true,
        "description": format!(
            "One event, an array, or one event on each line; at most {} events and {} bytes. \
             Content-Encoding may be gzip or zstd.",
            config.batch_events_max, config.body_bytes_max
        ),
        "content": {
            "application/json": {
                "schema": {"oneOf": [event, cloud_event, array]}, "example": event_example()
            },
            "application/x-ndjson": lines,
            "application/ndjson": lines,
            "application/jsonl": lines,
            "application/cloudevents+json": {"schema": cloud_event},
            "application/cloudevents-batch+json": {"schema": array},
        }
    });
    let verdicts = json!({"$ref": "#/components/schemas/Verdicts"});
    let responses = &mut operation["responses"];
    for status in ["200", "202"] {
        responses[status]["content"] = json!({"application/json": {"schema": verdicts}});
    }
    for status in ["409", "422"] {
        // Without verdicts where it is the idempotency key that is refused.
        let problem = json!({"$ref": "#/components/schemas/Problem"});
        responses[status]["content"] = json!({"application/problem+json": {
            "schema": {"anyOf": [{"allOf": [problem, verdicts]}, problem]}
        }});
    }
}

fn event_example() -> Value {
    json!({
        "tenant": "acme", "id": "req-8f1c", "meter": "api_calls", "quantity": "1.5",
        "occurred_at": "2026-11-15T12:30:00Z", "properties": {"region": "eu"}
    })
}

fn lines_example() -> String {
    format!("{0}\n{0}\n", event_example())
}

fn describe_shared_schemas(schemas: &mut Value) {
    let known = schemas.as_object_mut().expect("there are schemas");
    known.insert("Problem".into(), problem_schema());
    known.insert("Event".into(), event_schema());
    known.insert("CloudEvent".into(), cloud_event_schema());
    let verdicts = serde_json::to_value(Verdicts::schema()).expect("a schema is plain JSON");
    known.insert("Verdicts".into(), verdicts);
}

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "description": "RFC 9457. Programs look at `code`, people read `detail`.",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string", "examples": ["urn:counterfoil:problem:invalid_json"]},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "code": {"type": "string", "pattern": "^[a-z0-9_]+$"},
            "detail": {"type": "string", "description": "What to do"},
            "instance": {"type": "string"},
            "request_id": {"type": "string", "description": "As in the header X-Request-Id and in \
                the server's log"},
        }
    })
}

fn event_schema() -> Value {
    json!({
        "type": "object",
        "description": "One fact of usage. `id` is the producer's own and the same on every \
            retry; with `correlation_id` in its place, it is derived from tenant, meter, \
            occurred_at and correlation_id.",
        "required": ["tenant", "meter", "occurred_at"],
        "anyOf": [{"required": ["id"]}, {"required": ["correlation_id"]}],
        "additionalProperties": false,
        "properties": {
            "tenant": text_schema(TENANT_BYTES_MAX),
            "id": text_schema(EVENT_ID_BYTES_MAX),
            "correlation_id": text_schema(EVENT_ID_BYTES_MAX),
            "meter": slug_schema(),
            "quantity": {
                "description": "A decimal number within the meter's precision and scale, read \
                    from its text. May be left out for count and unique meters.",
                "oneOf": [
                    {"type": "string", "maxLength": 64,
                     "pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?$"},
                    {"type": "number"}
                ]
            },
            "occurred_at": {"type": "string", "format": "date-time"},
            "properties": properties_schema(),
            "subscription": {"oneOf": [text_schema(SUBSCRIPTION_BYTES_MAX), {"type": "null"}]},
            "trial": {"type": ["boolean", "null"], "default": false},
        },
        "examples": [event_example()]
    })
}

fn properties_schema() -> Value {
    json!({
        "type": ["object", "null"],
        "description": format!(
            "Flat; at most {TEXT_BYTES_MAX} bytes. A number that cannot be held exactly is \
             refused: send it as a string."
        ),
        "maxProperties": PROPERTIES_MAX,
        "propertyNames": {"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": PLAIN_TEXT},
        "additionalProperties": {
            "type": ["string", "number", "boolean", "null"],
            "maxLength": VALUE_BYTES_MAX, "pattern": r"^[^\x00]*$"
        }
    })
}

fn cloud_event_schema() -> Value {
    json!({
        "type": "object",
        "description": "CloudEvents 1.0: `subject` is the tenant, `type` the meter, `time` the \
            time of use; `data` holds `quantity` and the properties. `source` and `id` together \
            name the event. `subscription` and `trial` may be extension attributes.",
        "required": ["specversion", "id", "source", "type", "subject", "time"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": text_schema(EVENT_ID_BYTES_MAX),
            "source": text_schema(EVENT_ID_BYTES_MAX),
            "type": slug_schema(),
            "subject": text_schema(TENANT_BYTES_MAX),
            "time": {"type": "string", "format": "date-time"},
            "data": properties_schema(),
            "subscription": {"oneOf": [text_schema(SUBSCRIPTION_BYTES_MAX), {"type": "null"}]},
            "trial": {"type": ["boolean", "null"], "default": false},
        },
        "examples": [{
            "specversion": "1.0", "id": "8f1c", "source": "/gateway", "type": "api_calls",
            "subject": "acme", "time": "2026-11-15T12:30:00Z", "data": {"quantity": "1.5"}
        }]
    })
}
