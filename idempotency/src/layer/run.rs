//! One call under its key: claim, handler, end.
//!
//! Invariant: the answer goes out after the claim has ended. Of an answer that tells of an effect,
//! either the end is on record, or the answer says that it is unknown. A crash before the end
//! leaves a claim with its recovery point, and the next caller goes on from there.

use super::attempt::{Attempt, EndedByHandler, NothingBegan, respond};
use super::{IdempotencyLayer, Settings};
use crate::problem::{Code, Problem};
use crate::record::{Answer, Claim, Claimed, Ending, Fingerprint, Scope, StoreError};
use crate::store::Store;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tower::Service;

/// On answers that were given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Pauses between tries to record an end. What is behind it has happened, so a store that was away
/// for a moment is worth waiting for.
const END_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(1)];

/// Most calls end long before their lease, so `Retry-After` is shorter.
const RETRY_AFTER_MAX: u64 = 5;

pub(super) async fn run<S, B, R>(
    layer: IdempotencyLayer,
    inner: S,
    scope: Scope,
    fingerprint: Fingerprint,
    request: Request<B>,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes> + From<Bytes>,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match layer.store.claim(&scope, &fingerprint, layer.settings.lease).await {
        Ok(Claimed::Owned(claim)) => run_claimed(layer, inner, claim, request).await,
        Ok(Claimed::Ended(answer)) => {
            let mut response = respond(answer);
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            Ok(response)
        }
        Ok(Claimed::Busy { retry_after }) => Ok(layer.refuse(key_in_use(retry_after))),
        Ok(Claimed::Mismatch) => Ok(layer.refuse(key_reused())),
        Err(error) => {
            tracing::error!("could not claim an idempotency key: {error}");
            Ok(layer.refuse(not_claimed(&error)))
        }
    }
}

async fn run_claimed<S, B, R>(
    layer: IdempotencyLayer,
    mut inner: S,
    claim: Claim,
    mut request: Request<B>,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes> + From<Bytes>,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let heartbeat = Heartbeat::start(&layer, &claim);
    request.extensions_mut().insert(Attempt::new(Arc::clone(&layer.store), claim.clone()));
    let handler = AssertUnwindSafe(async move { inner.call(request).await });
    let outcome = handler.catch_unwind().await;
    let settled = match outcome {
        Ok(Ok(response)) => Ok(settle(&layer, &claim, response).await),
        Ok(Err(error)) => {
            release(&layer, &claim).await;
            Err(error)
        }
        Err(_panic) => {
            // The panic's own message went to standard error as it happened.
            tracing::error!("a handler panicked under an idempotency key");
            release(&layer, &claim).await;
            Ok(layer.refuse(handler_panicked()))
        }
    };
    drop(heartbeat);
    settled
}

/// Ends the claim by what the handler said.
async fn settle<R>(layer: &IdempotencyLayer, claim: &Claim, response: Response<R>) -> Response<R>
where
    R: Body<Data = Bytes> + From<Bytes>,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    if response.extensions().get::<EndedByHandler>().is_some() {
        return response;
    }
    if response.extensions().get::<NothingBegan>().is_some() {
        forget(layer, claim).await;
        return response;
    }
    let Some(ending) = ending_of(response.status()) else {
        release(layer, claim).await;
        return response;
    };
    let status = response.status();
    let (answer, response) = match take(response, &layer.settings).await {
        Ok(taken) => taken,
        Err(why) => {
            tracing::error!("an answer under an idempotency key cannot be kept: {why}");
            let response = (layer.render)(not_kept(status, why, ending));
            (answer_of(&response, &layer.settings), response)
        }
    };
    match end(layer, claim, &answer, ending).await {
        Ok(()) => response.map(R::from),
        Err(error) => {
            tracing::error!("could not record the end of a call under its key: {error}");
            layer.refuse(not_ended(&error))
        }
    }
}

/// None if the answer is not final: the same request may do better later.
fn ending_of(status: StatusCode) -> Option<Ending> {
    match status.as_u16() {
        408 | 425 | 429 => None,
        200..400 => Some(Ending::Completed),
        400..500 => Some(Ending::Failed),
        _ => None,
    }
}

/// The answer to keep, and the response with its body read.
async fn take<R>(
    response: Response<R>,
    settings: &Settings,
) -> Result<(Answer, Response<Bytes>), &'static str>
where
    R: Body<Data = Bytes>,
    R::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let bytes_max = settings.answer_bytes_max;
    let (parts, body) = response.into_parts();
    let size = body.size_hint().exact().ok_or("it is a stream")?;
    if is_event_stream(&parts.headers) {
        return Err("it is a stream of events");
    }
    if usize::try_from(size).map_or(true, |size| size > bytes_max) {
        return Err("it is too large");
    }
    let read = Limited::new(body, bytes_max).collect().await.map_err(|_| "it broke off")?;
    let response = Response::from_parts(parts, read.to_bytes());
    Ok((answer_of(&response, settings), response))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_ascii_lowercase());
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

fn answer_of(response: &Response<Bytes>, settings: &Settings) -> Answer {
    let kept = |(name, value): (&HeaderName, &HeaderValue)| {
        let keep = settings.kept_headers.contains(name);
        keep.then(|| (name.as_str().to_owned(), value.as_bytes().to_vec()))
    };
    Answer {
        status: response.status().as_u16(),
        headers: response.headers().iter().filter_map(kept).collect(),
        body: response.body().clone(),
    }
}

async fn end(
    layer: &IdempotencyLayer,
    claim: &Claim,
    answer: &Answer,
    ending: Ending,
) -> Result<(), StoreError> {
    let keep = match ending {
        Ending::Completed => layer.settings.keep_completed,
        Ending::Failed => layer.settings.keep_failed,
    };
    for pause in END_PAUSES {
        match layer.store.end(claim, answer, ending, keep).await {
            Err(StoreError::Unavailable(why)) => {
                tracing::warn!("could not record the end of a call yet: {why}");
                tokio::time::sleep(pause).await;
            }
            ended @ (Ok(()) | Err(StoreError::Unreadable(_) | StoreError::Fenced)) => return ended,
        }
    }
    layer.store.end(claim, answer, ending, keep).await
}

/// Lets the next caller start at once. If that fails, the next one waits for the lease.
async fn release(layer: &IdempotencyLayer, claim: &Claim) {
    if let Err(error) = layer.store.release(claim).await {
        tracing::warn!("could not release an idempotency key: {error}");
    }
}

/// The same for a request that never began. If that fails, the key stays with this request.
async fn forget(layer: &IdempotencyLayer, claim: &Claim) {
    if let Err(error) = layer.store.forget(claim).await {
        tracing::warn!("could not forget an idempotency key: {error}");
    }
}

/// Renews a lease until it is dropped.
struct Heartbeat(JoinHandle<()>);

impl Heartbeat {
    fn start(layer: &IdempotencyLayer, claim: &Claim) -> Self {
        let (store, lease) = (Arc::clone(&layer.store), layer.settings.lease);
        Self(tokio::spawn(beat(store, claim.clone(), lease)))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat(store: Arc<dyn Store>, claim: Claim, lease: Duration) {
    loop {
        tokio::time::sleep(lease / 3).await;
        match store.renew(&claim, lease).await {
            Ok(()) => {}
            // The end will be refused and say so.
            Err(StoreError::Fenced) => return,
            Err(error @ (StoreError::Unavailable(_) | StoreError::Unreadable(_))) => {
                tracing::warn!("could not renew the lease of an idempotency key: {error}");
            }
        }
    }
}

fn key_in_use(left: Duration) -> Problem {
    let detail = "a request with this key is at work; try again later with the same key";
    let seconds = left.as_secs().clamp(1, RETRY_AFTER_MAX);
    Problem { code: Code::KeyInUse, detail: detail.into(), retry_after: Some(seconds) }
}

fn key_reused() -> Problem {
    let detail = "this key was used for a request with another method, path or body; send that \
                  request again as it was, or this one with a new key";
    Problem { code: Code::KeyReused, detail: detail.into(), retry_after: None }
}

fn not_claimed(error: &StoreError) -> Problem {
    match error {
        StoreError::Unavailable(_) | StoreError::Fenced => {
            let detail = "nothing was done; try again with the same key";
            Problem { code: Code::Unavailable, detail: detail.into(), retry_after: Some(1) }
        }
        StoreError::Unreadable(_) => {
            let detail = "what is on record for this key cannot be read, so nothing was done; an \
                          operator has to look at it";
            Problem { code: Code::RecordUnreadable, detail: detail.into(), retry_after: None }
        }
    }
}

fn not_ended(error: &StoreError) -> Problem {
    match error {
        StoreError::Unavailable(_) | StoreError::Unreadable(_) => {
            let detail = "the request was carried out, but that could not be recorded; try again \
                          with the same key to learn the outcome";
            let retry_after = Some(RETRY_AFTER_MAX);
            Problem { code: Code::Unavailable, detail: detail.into(), retry_after }
        }
        StoreError::Fenced => {
            let detail = "another request with this key has taken over from this one; try again \
                          with the same key to get its answer";
            Problem { code: Code::KeyInUse, detail: detail.into(), retry_after: Some(1) }
        }
    }
}

fn not_kept(status: StatusCode, why: &str, ending: Ending) -> Problem {
    let done = match ending {
        Ending::Completed => "carried out",
        Ending::Failed => "refused for good",
    };
    let detail = format!(
        "the request was {done}, with status {}, but its answer cannot be given again: {why}. Do \
         not send it with a new key; read the result where it is kept",
        status.as_u16()
    );
    Problem { code: Code::StreamingUnsupported, detail, retry_after: None }
}

pub(super) fn handler_panicked() -> Problem {
    let detail = "the server failed; try again with the same key";
    Problem { code: Code::HandlerPanicked, detail: detail.into(), retry_after: None }
}
