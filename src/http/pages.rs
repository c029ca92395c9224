//! Health, metrics, and the description of this interface for programs and people.
//!
//! Invariant: what needs no key says nothing about tenants. `/healthz` asks nobody, so that a
//! store that is down does not get the process restarted.

use super::App;
use super::auth::{Caller, Scope};
use super::problem::Problem;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::HeaderValue;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde::Serialize;
use std::sync::Arc;

const DOCS: &str = include_str!("docs.html");
/// The page brings its own script and style, and talks to this server only.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; \
     style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

#[derive(Serialize, utoipa::ToSchema)]
pub struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Is the process alive?
#[utoipa::path(
    get, path = "/healthz", tag = "operation", security(()),
    responses((status = 200, description = "It is", body = Health))
)]
pub async fn healthz() -> axum::Json<Health> {
    axum::Json(Health { status: "ok" })
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
    Ok(axum::Json(Health { status: "ok" }))
}

/// Metrics
///
/// In the text format of Prometheus. For keys that are bound to no tenant.
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain"))
)]
pub async fn get_metrics(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Problem> {
    caller.require_unbound(Scope::Read)?;
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
    let mut page = text("text/html; charset=utf-8", DOCS);
    let policy = HeaderValue::from_static(DOCS_POLICY);
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    page
}

pub async fn root() -> Response {
    Redirect::temporary("/docs").into_response()
}

fn text(kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
