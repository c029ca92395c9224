//! Requests that change something happen once under their `Idempotency-Key`: the layer of the crate
//! `counterfoil_idempotency` on the server's own store.
//!
//! Invariant: whose key it is comes from the API key, never from the request: its tenant, or
//! everyone for a key that is bound to none, and its scopes, so that a caller who may less neither
//! sees nor spoils what another did. Where money moves, a key is required and ends in the
//! transaction of its effect. A caller whose key does not allow the request is refused before
//! anything is read or claimed. A request that was refused before it began leaves its key unused.
//! `/v1/keys` is left out, since its answer holds a token, and tokens are never stored; and
//! `/v1/events`, since events are idempotent by their ids and answers of batches are large.

use super::App;
use super::auth::Caller;
use super::extract::read_json;
use super::problem::Problem;
use crate::rules::ids::OnceKey;
use crate::store::idempotency::{Completing, Ended};
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use counterfoil_idempotency::{
    Answer, Attempt, Ending, IdempotencyLayer, Identity, KeyPolicy, Settings,
};
use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

pub const HEADER: &str = "idempotency-key";
/// Routes whose answers are never kept.
const LEFT_OUT: [&str; 2] = ["/v1/keys", "/v1/events"];
/// Largest body of a request under a key: it is read whole before it is claimed.
const KEYED_BYTES_MAX: usize = 1024 * 1024;
/// Largest answer that is kept.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
const KEEP_COMPLETED: Duration = Duration::from_secs(24 * 3600);
const KEEP_FAILED: Duration = Duration::from_secs(3600);

/// The layer, for routes with this policy.
pub fn layer(app: &Arc<App>, policy: KeyPolicy) -> IdempotencyLayer {
    let keys = Arc::clone(&app.store).request_keys(app.clock.clone());
    let settings = Settings {
        policy,
        body_bytes_max: KEYED_BYTES_MAX,
        answer_bytes_max: ANSWER_BYTES_MAX,
        keep_completed: KEEP_COMPLETED,
        keep_failed: KEEP_FAILED,
        ..Settings::default()
    };
    IdempotencyLayer::new(keys, settings, identify)
}

/// Runs the handler. The body of a request under a key, which the layer needs whole, is read here,
/// within the limits of every body.
pub async fn run(app: &App, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let changes = !parts.method.is_safe();
    if !changes || !parts.headers.contains_key(HEADER) || is_left_out(&parts) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    match app.bodies.up_to(KEYED_BYTES_MAX).receive(&parts, body).await {
        // What it takes of the memory is given back when the request has been answered.
        Ok(body) => next.run(Request::from_parts(parts, Body::from(body.bytes.clone()))).await,
        Err(problem) => problem.into_response(),
    }
}

fn is_left_out(parts: &Parts) -> bool {
    let path = parts.extensions.get::<MatchedPath>();
    path.is_none_or(|path| LEFT_OUT.contains(&path.as_str()))
}

fn identify(parts: &Parts) -> Option<Identity> {
    let caller = parts.extensions.get::<Caller>()?;
    let path = parts.extensions.get::<MatchedPath>()?.as_str();
    let route = format!("{} {path}", parts.method);
    (!is_left_out(parts)).then(|| Identity { tenant: caller.principal(), route })
}

/// A request that runs under a key.
pub struct Once {
    attempt: Attempt,
    /// The key as the caller chose it.
    pub key: OnceKey,
}

impl Once {
    /// The request's key, and its body, which is read after the caller was found to be allowed to
    /// send it.
    pub async fn read<T: DeserializeOwned>(
        request: Request,
        app: &App,
    ) -> Result<(Self, T), Problem> {
        let attempt = request.extensions().get::<Attempt>().cloned();
        // The layer lets no request without a key come so far, but for those without a valid one.
        let attempt = attempt.ok_or_else(Problem::unidentified)?;
        let key = OnceKey::parse(&attempt.claim().scope.key)?;
        Ok((Self { attempt, key }, read_json(request, app).await?))
    }

    /// Ends the key in the transaction of an effect, with what `answer` makes of the outcome.
    pub fn completing<T: 'static, A: Serialize>(
        &self,
        answer: impl Fn(&T) -> Result<(StatusCode, A), Problem> + Send + Sync + 'static,
    ) -> Completing<T> {
        Completing::new(self.attempt.claim().clone(), move |outcome| ended(answer(outcome)))
    }

    /// The response of a request whose key has ended so.
    pub fn respond<T>(completing: &Completing<T>, outcome: &T) -> Response<Body> {
        Attempt::ended(completing.render(outcome).answer)
    }
}

fn ended<A: Serialize>(answered: Result<(StatusCode, A), Problem>) -> Ended {
    let (status, kind, body) = match answered {
        Ok((status, answer)) => {
            let body = serde_json::to_vec(&answer).expect("answers are plain JSON");
            (status, "application/json", body)
        }
        Err(problem) => {
            let (status, body) = problem.into_parts();
            (status, "application/problem+json", body.into_bytes())
        }
    };
    let (ending, keep) = match status.is_success() {
        true => (Ending::Completed, KEEP_COMPLETED),
        false => (Ending::Failed, KEEP_FAILED),
    };
    let headers = vec![("content-type".to_owned(), kind.as_bytes().to_vec())];
    let answer = Answer { status: status.as_u16(), headers, body: body.into() };
    Ended { answer, ending, keep }
}
