//! What is measured of every request, and the headers every answer has.
//!
//! Invariant: labels are bounded. A route is its pattern, never the path that was asked for, and
//! a method that HTTP does not define is counted as `other`.

use super::problem::Problem;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{CACHE_CONTROL, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use http::{HeaderValue, Method};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::time::Instant;

/// Borders of the histograms of durations, in seconds.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Installs the process's recorder of metrics, once.
pub fn install_recorder() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    let builder = || {
        PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
            .expect("there is at least one border")
    };
    HANDLE
        .get_or_init(|| match builder().install_recorder() {
            Ok(handle) => handle,
            Err(error) => {
                tracing::warn!(%error, "metrics are recorded elsewhere; /metrics stays empty");
                builder().build_recorder().handle()
            }
        })
        .clone()
}

/// Counts and times a request, and adds the headers that keep browsers from guessing.
pub async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    // A panic must not take the other requests of its connection with it.
    let run = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = run.unwrap_or_else(|_| Problem::panicked().into_response());
    let route = route.as_ref().map_or("none", MatchedPath::as_str).to_owned();
    let status = response.status().as_str().to_owned();
    metrics::histogram!("counterfoil_http_request_seconds", "route" => route.clone())
        .record(started.elapsed().as_secs_f64());
    metrics::counter!(
        "counterfoil_http_requests_total",
        "route" => route, "method" => method, "status" => status
    )
    .increment(1);
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn method_name(method: &Method) -> &'static str {
    let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    known.into_iter().find(|name| *name == method.as_str()).unwrap_or("other")
}
