//! What every request passes before its handler: who sends it, how often, whether the key allows
//! it, how many of the sender's queries are at work, and for how long.
//!
//! Invariant: a key, a tenant or an address that asks for too much is refused or waits, and leaves
//! the others their part. Nothing of a body is read before the key was found to allow the request.
//! Answers that are not read yet are counted, and beyond their budget a request is answered 503.

mod rates;

use super::App;
use super::access;
use super::auth::Caller;
use super::body::budget::{Budget, Share};
use super::events;
use super::idempotency;
use super::problem::{Kind, Problem};
use crate::config::{LimitsConfig, ServerConfig};
use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use rates::{Exceeded, Left, Period, Rates};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Routes that need no key. They ask nobody who is calling.
const OPEN: [&str; 6] = ["/", "/healthz", "/readyz", "/openapi.json", "/docs", "/webhooks/stripe"];
/// Bytes of answers that are under way to their readers, and the part of one tenant or key.
const ANSWERS_BYTES_MAX: usize = 256 * 1024 * 1024;
const ANSWERS_HOLDER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Smaller answers are not counted.
const ANSWER_BYTES_COUNTED: usize = 1024;
/// Coupons that a key of one tenant may try in a second: codes are not to be guessed.
const COUPONS_PER_SECOND: u64 = 2;
/// Changes of thresholds by keys of one tenant in an hour: each may open or end an alert, which
/// goes to every destination.
const THRESHOLDS_PER_HOUR: u64 = 20;
/// Holders of queries beyond which those without any are forgotten.
const HOLDERS_KEPT: usize = 1_000;
/// Queries that take less leave room for others by themselves.
const REST_FROM: Duration = Duration::from_millis(5);
const REST_MAX: Duration = Duration::from_secs(1);

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Where a request comes from, in the extensions of those that came over a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// A person or a machine has a whole /64 of IPv6.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

/// What is known of who asks for how much.
pub struct Admission {
    deliveries: Rates<String>,
    requests: Rates<String>,
    addresses: Rates<IpAddr>,
    unknown_keys: Rates<IpAddr>,
    coupons: Rates<String>,
    thresholds: Rates<String>,
    queries: Mutex<HashMap<String, Arc<Semaphore>>>,
    queries_at_once: usize,
    /// For a request without a body, and for one with.
    query_time_max: Duration,
    change_time_max: Duration,
    answers: Arc<Budget>,
}

impl Admission {
    pub fn new(server: &ServerConfig, limits: &LimitsConfig) -> Self {
        let began = Instant::now();
        let query_time_max = Duration::from_millis(limits.request_timeout_ms);
        Self {
            deliveries: Rates::new(limits.event_requests_per_second, Period::Second, began),
            requests: Rates::new(limits.requests_per_second, Period::Second, began),
            addresses: Rates::new(limits.address_per_second, Period::Second, began),
            unknown_keys: Rates::new(limits.unknown_keys_per_second, Period::Second, began),
            coupons: Rates::new(COUPONS_PER_SECOND, Period::Second, began),
            thresholds: Rates::new(THRESHOLDS_PER_HOUR, Period::Hour, began),
            queries: Mutex::default(),
            queries_at_once: limits.queries_at_once.min(half_of_cores()),
            query_time_max,
            change_time_max: query_time_max + Duration::from_millis(server.body_timeout_ms),
            answers: Budget::new(ANSWERS_BYTES_MAX, ANSWERS_HOLDER_BYTES_MAX),
        }
    }

    /// Counts a try of a coupon by a key that may not list them.
    pub fn try_coupon(&self, caller: &Caller) -> Result<(), Problem> {
        count_bound(&self.coupons, caller, "quotes with a coupon of this tenant")
    }

    pub fn change_threshold(&self, caller: &Caller) -> Result<(), Problem> {
        count_bound(&self.thresholds, caller, "changes of thresholds of this tenant")
    }

    /// Waits until fewer queries of the holder are at work than may be.
    async fn query(&self, holder: &str) -> OwnedSemaphorePermit {
        let places = {
            let mut queries = self.queries.lock().expect("no holder of it panics");
            if queries.len() >= HOLDERS_KEPT && !queries.contains_key(holder) {
                queries.retain(|_, places| Arc::strong_count(places) > 1);
            }
            let places = queries
                .entry(holder.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(self.queries_at_once)));
            Arc::clone(places)
        };
        places.acquire_owned().await.expect("the semaphore is never closed")
    }
}

/// Queries keep a core busy each: those of one holder leave the others half of the machine.
fn half_of_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / 2).max(1)
}

/// Counts what a key that is bound to a tenant does; the operator's own keys are not limited.
fn count_bound(rates: &Rates<String>, caller: &Caller, what: &str) -> Result<(), Problem> {
    if caller.bound_to().is_none() {
        return Ok(());
    }
    let counted = rates.take(caller.holder().as_str(), Instant::now());
    counted.map(drop).map_err(|exceeded| exceed(exceeded, what))
}

/// Lets a request through to its handler, or refuses it.
pub async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    if is_ambiguous(&parts.headers) {
        return ambiguous().into_response();
    }
    let route = parts.extensions.get::<MatchedPath>().cloned();
    if route.is_none_or(|route| OPEN.contains(&route.as_str())) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let peer = parts.extensions.get::<Peer>().copied();
    let found = recognise(&app, peer, &parts.headers, &app.admission.requests).await;
    let (caller, left) = match found {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let response = match admit_known(&app, &caller, &mut parts).await {
        Ok(()) => run(&app, &caller, Request::from_parts(parts, body), next).await,
        Err(problem) => problem.into_response(),
    };
    finish(&app, &caller, left, response).await
}

/// The same for events, which come so often that they pass no layer of the router. They are
/// counted apart from other requests.
pub async fn admit_events<B>(app: &Arc<App>, peer: Option<Peer>, parts: &Parts, body: B) -> Response
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if is_ambiguous(&parts.headers) {
        return ambiguous().into_response();
    }
    let found = recognise(app, peer, &parts.headers, &app.admission.deliveries).await;
    let (caller, left) = match found {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let work = events::deliver(app, &caller, parts, body);
    let response = match tokio::time::timeout(app.admission.change_time_max, work).await {
        Ok(answer) => answer.into_response(),
        Err(_) => overdue().into_response(),
    };
    finish(app, &caller, left, response).await
}

/// Who sends a request, and how many more may follow by this rate; or the refusal.
async fn recognise(
    app: &App,
    peer: Option<Peer>,
    headers: &HeaderMap,
    rates: &Rates<String>,
) -> Result<(Caller, Option<Left>), Response> {
    if let Some(Peer(address)) = peer
        && let Err(exceeded) = app.admission.addresses.take(&address, Instant::now())
    {
        return Err(refuse(exceeded, "requests from this address"));
    }
    let caller = match Caller::find(headers, app).await {
        Ok(caller) => caller,
        Err(problem) => return Err(refuse_unknown(app, peer, problem)),
    };
    match rates.take(caller.key_id(), Instant::now()) {
        Ok(left) => Ok((caller, left)),
        Err(exceeded) => Err(refuse(exceeded, "requests with this key")),
    }
}

fn ambiguous() -> Problem {
    let detail = "send one Host, at most one Content-Length, and no Transfer-Encoding but chunked";
    Problem::new(Kind::Invalid, "ambiguous_request", detail)
}

fn overdue() -> Problem {
    let detail = "the request took longer than limits.request_timeout_ms allows; ask for less at \
                  once, or send the same request again";
    Problem::new(Kind::Unavailable, "request_timeout", detail)
}

/// Whether a proxy in front could have read another request than we did.
fn is_ambiguous(headers: &HeaderMap) -> bool {
    let several = |name| headers.get_all(name).iter().nth(1).is_some();
    let chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    several(HOST)
        || several(CONTENT_LENGTH)
        || several(TRANSFER_ENCODING)
        || headers.get(TRANSFER_ENCODING).is_some_and(|value| !chunked(value))
}

/// Checks that the key allows a request that changes something, and notes the caller for the layer
/// of idempotency keys and for the handler.
async fn admit_known(app: &Arc<App>, caller: &Caller, parts: &mut Parts) -> Result<(), Problem> {
    if !parts.method.is_safe() {
        access::check(caller, parts, app).await?;
    }
    parts.extensions.insert(caller.clone());
    Ok(())
}

/// Runs the handler within its time. A change that takes longer goes on or not; it may be sent
/// again, as after every 503.
async fn run(app: &Arc<App>, caller: &Caller, request: Request, next: Next) -> Response {
    let query = request.method().is_safe();
    let time_max = if query { app.admission.query_time_max } else { app.admission.change_time_max };
    let work = async {
        let place = if query { Some(app.admission.query(&caller.holder()).await) } else { None };
        let began = Instant::now();
        let response = idempotency::run(app, request, next).await;
        if place.is_some()
            && let Some(rest) = rest_after(began.elapsed(), app.ingest.waiting())
        {
            tokio::spawn(async move {
                tokio::time::sleep(rest).await;
                drop(place);
            });
        }
        response
    };
    let done = tokio::time::timeout(time_max, work).await;
    done.unwrap_or_else(|_| overdue().into_response())
}

/// How long the place of a query that took `spent` stays taken after it: while events wait for
/// their commit, as long again, so that one holder's queries keep a core busy half of the time.
fn rest_after(spent: Duration, events_waiting: usize) -> Option<Duration> {
    (spent >= REST_FROM && events_waiting > 0).then_some(spent.min(REST_MAX))
}

/// Callers without a valid key get what their handler would have said, and after too many of them
/// 429.
fn refuse_unknown(app: &App, peer: Option<Peer>, problem: Problem) -> Response {
    if let Some(Peer(address)) = peer
        && !problem.is_unavailable()
        && let Err(exceeded) = app.admission.unknown_keys.take(&address, Instant::now())
    {
        return refuse(exceeded, "requests without a valid key from this address");
    }
    problem.into_response()
}

fn exceed(exceeded: Exceeded, what: &str) -> Problem {
    let detail = format!(
        "more than {} {what} in {}; nothing of this request was done; send it again after the time \
         in Retry-After",
        exceeded.limit,
        exceeded.period.name()
    );
    let seconds = seconds(exceeded.wait);
    Problem::new(Kind::TooMany, "rate_limited", detail).retry_after(seconds)
}

fn refuse(exceeded: Exceeded, what: &str) -> Response {
    let mut response = exceed(exceeded, what).into_response();
    let Exceeded { limit, wait, .. } = exceeded;
    describe(&mut response, Some(Left { limit, remaining: 0, whole_in: wait }));
    response
}

fn describe(response: &mut Response, left: Option<Left>) {
    let Some(left) = left else { return };
    let headers = response.headers_mut();
    headers.insert(LIMIT, HeaderValue::from(left.limit));
    headers.insert(REMAINING, HeaderValue::from(left.remaining));
    headers.insert(RESET, HeaderValue::from(seconds(left.whole_in)));
}

/// Whole seconds, and at least one.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// What is done with every answer to a known caller.
async fn finish(app: &App, caller: &Caller, left: Option<Left>, response: Response) -> Response {
    let mut response = hold(app, caller, response).await;
    describe(&mut response, left);
    response
}

/// Counts an answer until all of it was handed to the connection.
async fn hold(app: &App, caller: &Caller, response: Response) -> Response {
    let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    let Some(size) = size.filter(|size| *size > ANSWER_BYTES_COUNTED) else { return response };
    let mut share = app.admission.answers.share(Some(&caller.holder()));
    if share.take(size).is_err() {
        let detail = "answers that were not read yet take as much memory as they may; read those \
                      first, then send the same request again";
        return Problem::new(Kind::Unavailable, "answers_full", detail).into_response();
    }
    let (parts, body) = response.into_parts();
    match body.collect().await {
        Ok(body) => {
            let counted = CountedRequest { bytes: body.to_bytes(), _share: share };
            Response::from_parts(parts, Body::from(Bytes::from_owner(counted)))
        }
        Err(_) => Problem::panicked().into_response(),
    }
}

/// Bytes that count against the budget of answers until the last piece of them is gone.
struct CountedRequest {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for CountedRequest {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let peer = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
    }

    #[test]
    fn queries_rest_only_after_long_ones_and_while_events_wait() {
        let (short, long) = (Duration::from_millis(4), Duration::from_millis(80));
        assert_eq!(rest_after(long, 1), Some(long));
        assert_eq!(rest_after(long, 0), None);
        assert_eq!(rest_after(short, 1), None);
        assert_eq!(rest_after(Duration::from_secs(60), 1), Some(REST_MAX));
    }

    #[test]
    fn waits_are_whole_seconds() {
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(2)), 2);
        assert_eq!(seconds(Duration::from_millis(2_001)), 3);
    }
}
