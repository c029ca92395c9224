//! The layer: who is calling with which key, and the guard around the handler.
//!
//! Invariant: a call with a key reaches the handler only under a claim. What cannot be looked up is
//! refused with 503, never let through. The handler runs in a task of its own, so that a caller who
//! hangs up does not cut it; a crash leaves a claim, whose lease runs out.

mod attempt;
mod run;

pub use attempt::{Attempt, NothingBegan};

use crate::problem::{Code, Problem};
use crate::record::{Fingerprint, Scope};
use crate::store::Store;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderName, Request, Response, header};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service};
use tracing::Instrument;

/// Fingerprints of bodies up to this size are made in place: that takes less time than moving them.
const IN_PLACE_BYTES_MAX: usize = 16 * 1024;

/// The longest key, in characters.
const KEY_CHARS_MAX: usize = 255;

/// Whose request it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// From authentication. A tenant that the request itself may name lets one caller read
    /// another's answers.
    pub tenant: String,
    /// The operation, such as the method and the route's pattern.
    pub route: String,
}

/// Whether a call may come without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPolicy {
    /// It is refused.
    Required,
    /// It is let through unguarded.
    Optional,
}

/// How the layer works; see [`Settings::default`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// The header that holds the key.
    pub header: HeaderName,
    pub policy: KeyPolicy,
    /// For how long an owner that says nothing is taken to be alive. It is renewed three times as
    /// often. A key whose owner died is free again after this time.
    pub lease: Duration,
    /// The largest body of a request.
    pub body_bytes_max: usize,
    /// The largest body of an answer that is kept.
    pub answer_bytes_max: usize,
    /// For how long an answer is kept that tells of an effect: longer than anybody retries.
    pub keep_completed: Duration,
    /// For how long a refusal is kept.
    pub keep_failed: Duration,
    /// Headers of an answer that are kept and given again.
    pub kept_headers: Vec<HeaderName>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            header: HeaderName::from_static("idempotency-key"),
            policy: KeyPolicy::Required,
            lease: Duration::from_secs(60),
            body_bytes_max: 1024 * 1024,
            answer_bytes_max: 1024 * 1024,
            keep_completed: Duration::from_secs(24 * 3600),
            keep_failed: Duration::from_secs(3600),
            kept_headers: vec![
                header::CONTENT_TYPE,
                header::CONTENT_LANGUAGE,
                header::CONTENT_LOCATION,
                header::ETAG,
                header::LAST_MODIFIED,
                header::LINK,
                header::LOCATION,
            ],
        }
    }
}

type Identify = dyn Fn(&Parts) -> Option<Identity> + Send + Sync;
type Render = dyn Fn(Problem) -> Response<Bytes> + Send + Sync;

/// What guards the handlers below it.
#[derive(Clone)]
pub struct IdempotencyLayer {
    store: Arc<dyn Store>,
    settings: Arc<Settings>,
    identify: Arc<Identify>,
    render: Arc<Render>,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// `identify` says whose request it is, from what authentication has put into its extensions.
    /// A request for which it says nothing is passed on untouched and unguarded: right for routes
    /// without an effect, and for callers whom the application refuses anyway.
    ///
    /// # Panics
    ///
    /// If the lease is zero, or longer than an answer is kept.
    pub fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        identify: impl Fn(&Parts) -> Option<Identity> + Send + Sync + 'static,
    ) -> Self {
        let kept = settings.keep_completed.min(settings.keep_failed);
        assert!(!settings.lease.is_zero(), "a lease of no time protects nothing");
        assert!(settings.lease <= kept, "an answer is to be kept for longer than a lease");
        let render = Arc::new(Problem::render);
        Self { store, settings: Arc::new(settings), identify: Arc::new(identify), render }
    }

    /// Renders problems in the application's own way.
    #[must_use]
    pub fn with_render(
        mut self,
        render: impl Fn(Problem) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.render = Arc::new(render);
        self
    }

    /// What is to become of a request.
    fn admit(&self, parts: &Parts) -> Admission {
        if parts.method.is_safe() {
            return Admission::Unguarded;
        }
        let Some(Identity { tenant, route }) = (self.identify)(parts) else {
            return Admission::Unguarded;
        };
        let mut values = parts.headers.get_all(&self.settings.header).iter();
        match (values.next(), values.next(), self.settings.policy) {
            (None, _, KeyPolicy::Optional) => Admission::Unguarded,
            (None, _, KeyPolicy::Required) => Admission::Refused(self.key_missing()),
            (Some(value), None, _) => match read_key(value.as_bytes()) {
                Some(key) => Admission::Guarded(Scope { tenant, route, key }),
                None => Admission::Refused(self.key_malformed()),
            },
            (Some(_), Some(_), _) => Admission::Refused(self.key_malformed()),
        }
    }

    fn key_missing(&self) -> Problem {
        let detail = format!(
            "send a header {} of 1 to {KEY_CHARS_MAX} visible ASCII characters, new for each \
             operation and the same for each retry of it",
            self.settings.header
        );
        Problem { code: Code::KeyMissing, detail, retry_after: None }
    }

    fn key_malformed(&self) -> Problem {
        let detail = format!(
            "send one header {} of 1 to {KEY_CHARS_MAX} visible ASCII characters, without spaces",
            self.settings.header
        );
        Problem { code: Code::KeyMalformed, detail, retry_after: None }
    }

    fn refuse<R: From<Bytes>>(&self, problem: Problem) -> Response<R> {
        (self.render)(problem).map(R::from)
    }
}

enum Admission {
    Unguarded,
    Guarded(Scope),
    Refused(Problem),
}

fn read_key(value: &[u8]) -> Option<String> {
    let fits = (1..=KEY_CHARS_MAX).contains(&value.len());
    let visible = value.iter().all(u8::is_ascii_graphic);
    (fits && visible).then(|| value.iter().copied().map(char::from).collect())
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency { inner, layer: self.clone() }
    }
}

/// A handler with its guard.
#[derive(Debug, Clone)]
pub struct Idempotency<S> {
    inner: S,
    layer: IdempotencyLayer,
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    R: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is used, and its clone waits to become so.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        match self.layer.admit(&parts) {
            Admission::Unguarded => Box::pin(inner.call(Request::from_parts(parts, body))),
            Admission::Refused(problem) => {
                let response = self.layer.refuse(problem);
                Box::pin(std::future::ready(Ok(response)))
            }
            Admission::Guarded(scope) => {
                Box::pin(guard(self.layer.clone(), inner, scope, parts, body))
            }
        }
    }
}

/// Reads the request and has it run. Up to the spawn a caller who hangs up ends it; nothing is
/// claimed before.
async fn guard<S, B, R>(
    layer: IdempotencyLayer,
    inner: S,
    scope: Scope,
    parts: Parts,
    body: B,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    R: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let body = match read_body(body, layer.settings.body_bytes_max).await {
        Ok(body) => body,
        Err(problem) => return Ok(layer.refuse(problem)),
    };
    let (parts, fingerprint) = match fingerprint(parts, body.clone()).await {
        Ok(made) => made,
        Err(problem) => return Ok(layer.refuse(problem)),
    };
    let request = Request::from_parts(parts, B::from(body));
    let work = run::run(layer.clone(), inner, scope, fingerprint, request);
    match tokio::spawn(work.in_current_span()).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::error!("a call under an idempotency key was cut off: {error}");
            Ok(layer.refuse(run::handler_panicked()))
        }
    }
}

/// The fingerprint of a request. Large bodies are read on a thread that may take its time.
async fn fingerprint(parts: Parts, body: Bytes) -> Result<(Parts, Fingerprint), Problem> {
    let small = body.len() <= IN_PLACE_BYTES_MAX;
    let make = move || {
        let made = Fingerprint::of(&parts, &body);
        (parts, made)
    };
    if small {
        return Ok(make());
    }
    tokio::task::spawn_blocking(make).await.map_err(|error| {
        tracing::error!("the fingerprint of a request could not be made: {error}");
        let detail = "nothing was done; try again with the same key";
        Problem { code: Code::Unavailable, detail: detail.into(), retry_after: Some(1) }
    })
}

async fn read_body<B>(body: B, bytes_max: usize) -> Result<Bytes, Problem>
where
    B: Body,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let read = Limited::new(body, bytes_max).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<LengthLimitError>() {
            let detail = format!("send at most {bytes_max} bytes under an idempotency key");
            Problem { code: Code::RequestTooLarge, detail, retry_after: None }
        } else {
            let detail =
                "the body broke off and nothing was done; send it again, with the same key";
            Problem { code: Code::RequestUnreadable, detail: detail.into(), retry_after: None }
        }
    })
}
