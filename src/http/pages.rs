//! Health, metrics, and the description of this interface for programs and people.
//!
//! Invariant: what needs no key says nothing about tenants. `/healthz` asks nobody, so that a
//! store that is down does not get the process restarted.

use super::App;
use super::auth::{Caller, Scope};
use super::problem::Problem;
use super::telemetry;
use crate::api::health::Health;
use crate::rules::base64;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::HeaderValue;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use sha2::{Digest, Sha256};
use std::sync::{Arc, LazyLock};

const DOCS: &str = include_str!("docs.html");

/// Is the process alive?
#[utoipa::path(
    get, path = "/healthz", tag = "operation", security(()),
    responses((status = 200, description = "It is", body = Health))
)]
pub async fn healthz() -> axum::Json<Health> {
    axum::Json(Health { status: "ok".to_owned() })
}

/// Can requests be answered?
#[utoipa::path(
    get, path = "/readyz", tag = "operation", security(()),
    responses(
        (status = 200, description = "The store answers", body = Health),
        (status = 503, description = "The store does not answer now"),
    )
)]
pub async fn readyz(State(app): State<Arc<App>>) -> Result<axum::Json<Health>, Problem> {
    app.store.ping().await?;
    Ok(axum::Json(Health { status: "ok".to_owned() }))
}

/// Metrics
///
/// In the text format of Prometheus. For keys that are bound to no tenant.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses(
        (status = 200, description = "The metrics", body = String, content_type = "text/plain")
    )
)]
pub async fn get_metrics(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Problem> {
    caller.require_unbound(Scope::Read)?;
    telemetry::refresh(&app.ingest);
    Ok(text("text/plain; version=0.0.4; charset=utf-8", app.metrics.render()))
}

/// This description
#[utoipa::path(
    get, path = "/openapi.json", tag = "operation", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub async fn get_openapi(State(app): State<Arc<App>>) -> Response {
    text("application/json", app.openapi.clone())
}

/// This description, for people
#[utoipa::path(
    get, path = "/docs", tag = "operation", security(()),
    responses((status = 200, description = "A page", body = String, content_type = "text/html"))
)]
pub async fn get_docs() -> Response {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(docs_policy);
    let mut page = text("text/html; charset=utf-8", DOCS);
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    page
}

/// The page may run its own script and style, named by their hashes, and talk to this server.
fn docs_policy() -> HeaderValue {
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source_of("<script>", "</script>"),
        source_of("<style>", "</style>"),
    );
    HeaderValue::from_str(&policy).expect("the policy is ASCII")
}

/// The hash of the text between two tags, as a policy names it.
fn source_of(start: &str, end: &str) -> String {
    let (_, after) = DOCS.split_once(start).expect("the page has the tag");
    let (inside, _) = after.split_once(end).expect("the page closes the tag");
    format!("sha256-{}", base64::encode(&Sha256::digest(inside)))
}

pub async fn root() -> Response {
    Redirect::temporary("/docs").into_response()
}

fn text(kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
