//! Metrics of every request, and the headers of every response.
//!
//! Invariant: labels are bounded. A route is its pattern, never the path that was asked for, and
//! a method that HTTP does not define is counted as `other`.

use super::problem::Problem;
use super::request_id::{self, RequestId};
use crate::jobs::gauge;
use crate::jobs::ingest::Ingest;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{CACHE_CONTROL, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use http::{HeaderValue, Method, StatusCode};
use metrics::{Counter, Histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Borders of the histograms of durations, in seconds.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Every metric of the server with its HELP text; a metric without a row has none, which
/// `tests/it/http_api/description.rs` finds.
const HELP: &[(&str, &str)] = &[
    ("counterfoil_clock_in_doubt", "1 while the server's clocks disagree"),
    ("counterfoil_commit_seconds", "Duration of a commit of events"),
    ("counterfoil_connections_refused_total", "Connections refused, by reason"),
    ("counterfoil_cut_pushes_total", "Pushes created by cuts"),
    ("counterfoil_delivery_latency_seconds", "Time from occurred_at to receipt, by percentile"),
    ("counterfoil_drifting_tenants", "Tenants whose drift is unresolved after two passes"),
    ("counterfoil_events_total", "Events received, by verdict"),
    ("counterfoil_http_request_seconds", "Duration of a request, by route"),
    ("counterfoil_http_requests_total", "Requests answered, by route, method and status"),
    ("counterfoil_ingest_queue_full_total", "Requests deferred (503): the ingest queue was full"),
    ("counterfoil_jobs_held_total", "Job runs skipped because the clocks disagree"),
    ("counterfoil_mirror_readings_total", "Objects read from the provider"),
    ("counterfoil_notices_total", "Notices to destinations, by outcome"),
    ("counterfoil_pages", "Pages opened in the period"),
    ("counterfoil_pages_total", "Pages opened since the process started"),
    ("counterfoil_passes_total", "Reconciliation passes completed, by kind"),
    ("counterfoil_push_answers_total", "Provider answers to pushes, by class"),
    ("counterfoil_push_decisions_total", "Decisions on pushes whose outcome was unknown"),
    ("counterfoil_pushes", "Pushes by state; observed_long and submitted_long are subsets"),
    (
        "counterfoil_self_check_done",
        "1 if everything stored was compared with its events within two days",
    ),
    ("counterfoil_self_check_events_total", "Events compared with totals by the self-check"),
    ("counterfoil_self_check_failures_total", "Steps of the self-check that failed, by error"),
    (
        "counterfoil_self_check_last_walk_seconds",
        "Time since the last walk through everything ended",
    ),
    ("counterfoil_self_check_mismatches_open", "Windows that do not agree with their events"),
    ("counterfoil_self_check_mismatches_total", "Mismatches that the self-check met"),
    (
        "counterfoil_self_check_oldest_seconds",
        "Time since the last complete walk began: nothing is unchecked for longer",
    ),
    ("counterfoil_self_check_totals_total", "Totals compared with their events"),
    ("counterfoil_self_check_unchecked_total", "Parts that the self-check could not read"),
    ("counterfoil_sqlite_log_bytes", "Size of the SQLite write-ahead log"),
    ("counterfoil_summary_reads_total", "Totals read from the provider"),
    ("counterfoil_unbilled", "Counted usage that is on no invoice, by meter and cause"),
    ("counterfoil_unbilled_quantity", "Quantity of dead letters, by meter"),
    ("counterfoil_unmapped_quantity", "Quantity waiting for a customer, by meter"),
    ("counterfoil_unmapped_tenants", "Tenants with usage and without a customer"),
    ("counterfoil_webhooks_backfilled_total", "Missed webhooks found in the provider's list"),
    ("counterfoil_webhooks_refused_total", "Webhooks refused, by reason"),
    ("counterfoil_webhooks_total", "Webhooks received, new or repeated"),
    ("counterfoil_build_info", "Always 1; the version is a label"),
    ("counterfoil_ingest_queue_events", "Events queued for commit"),
    ("counterfoil_last_pass_timestamp_seconds", "End of the last pass, as Unix time, by kind"),
    ("process_cpu_seconds_total", "CPU time of the process, in whole seconds"),
    ("process_open_fds", "Open file descriptors"),
    ("process_resident_memory_bytes", "Resident memory"),
];

/// Names of counters end like this; those of histograms are listed in [`HISTOGRAMS`].
const COUNTER_SUFFIX: &str = "_total";
const HISTOGRAMS: [&str; 2] = ["counterfoil_commit_seconds", "counterfoil_http_request_seconds"];

fn describe_metrics() {
    for (name, help) in HELP.iter().copied() {
        if name.ends_with(COUNTER_SUFFIX) {
            metrics::describe_counter!(name, help);
        } else if HISTOGRAMS.contains(&name) {
            metrics::describe_histogram!(name, help);
        } else {
            metrics::describe_gauge!(name, help);
        }
    }
}

/// Updates the metrics that are computed on each scrape.
pub fn refresh(ingest: &Ingest) {
    let version = env!("CARGO_PKG_VERSION");
    metrics::gauge!("counterfoil_build_info", "version" => version).set(1.0);
    metrics::gauge!("counterfoil_ingest_queue_events").set(gauge(ingest.waiting()));
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        metrics::gauge!("process_open_fds").set(gauge(open.count()));
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/stat") {
        // The name of the process may hold anything; the numbers follow its closing parenthesis.
        let numbers = status.rsplit_once(')').map_or("", |(_, numbers)| numbers);
        let ticks = |place| numbers.split_whitespace().nth(place)?.parse::<u64>().ok();
        if let (Some(user), Some(system)) = (ticks(11), ticks(12)) {
            // Linux counts in hundredths of a second for every program.
            metrics::counter!("process_cpu_seconds_total").absolute((user + system) / 100);
        }
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        let bytes = kilobytes.map(|kilobytes: u64| kilobytes.saturating_mul(1024));
        metrics::gauge!("process_resident_memory_bytes").set(gauge(bytes.unwrap_or(0)));
    }
}

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
            Ok(handle) => {
                describe_metrics();
                handle
            }
            Err(error) => {
                tracing::warn!(%error, "another metrics recorder is installed; /metrics stays empty");
                builder().build_recorder().handle()
            }
        })
        .clone()
}

/// Counts and times a request, and adds security headers.
pub async fn observe(request: Request, next: Next) -> Response {
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let id = request_id::choose(request.headers());
    let (response, spent) = run(&id, next.run(request)).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    count(route, method, response.status(), spent);
    finish(&id, (method, route), response, spent)
}

/// The same for events, whose metrics are looked up once and not for each request.
pub async fn observe_events(id: RequestId, work: impl Future<Output = Response>) -> Response {
    static USUAL: OnceLock<(Histogram, Counter)> = OnceLock::new();
    let (method, route) = ("POST", "/v1/events");
    let (response, spent) = run(&id, work).await;
    if response.status() == StatusCode::OK {
        let (seconds, answered) = USUAL.get_or_init(|| metrics_of(route, method, StatusCode::OK));
        seconds.record(spent.as_secs_f64());
        answered.increment(1);
    } else {
        count(route, method, response.status(), spent);
    }
    finish(&id, (method, route), response, spent)
}

/// Runs the work of a request under its id. A panic must not take the other requests of its
/// connection with it.
async fn run(id: &RequestId, work: impl Future<Output = Response>) -> (Response, Duration) {
    let started = Instant::now();
    let work = AssertUnwindSafe(work).catch_unwind();
    let work = work.map(|done| done.unwrap_or_else(|_| Problem::panicked().into_response()));
    let response = request_id::scope(id.clone(), work).await;
    (response, started.elapsed())
}

fn metrics_of(route: &str, method: &'static str, status: StatusCode) -> (Histogram, Counter) {
    let seconds = metrics::histogram!(
        "counterfoil_http_request_seconds", "route" => route.to_owned()
    );
    let answered = metrics::counter!(
        "counterfoil_http_requests_total",
        "route" => route.to_owned(), "method" => method, "status" => status.as_str().to_owned()
    );
    (seconds, answered)
}

fn count(route: &str, method: &'static str, status: StatusCode, spent: Duration) {
    let (seconds, answered) = metrics_of(route, method, status);
    seconds.record(spent.as_secs_f64());
    answered.increment(1);
}

/// Logs the answer and adds the headers of every answer.
fn finish(
    id: &RequestId,
    (method, route): (&str, &str),
    mut response: Response,
    spent: Duration,
) -> Response {
    tracing::debug!(
        request_id = %id,
        method,
        route,
        status = response.status().as_str(),
        ms = spent.as_millis(),
        "answered"
    );
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, id.to_header());
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
