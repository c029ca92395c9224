//! Problems: every answer that is not a success, as RFC 9457 `application/problem+json`.
//!
//! Invariant: this is the only place that knows status codes of failures, and the only place that
//! logs a failed request. A detail says what to do and never repeats a token or another tenant's
//! names. What may be sent again unchanged is 503 or 429 with Retry-After, and nothing else is.

use super::request_id;
use crate::heavy::Panicked;
use crate::jobs::ingest::SubmitError;
use crate::rules::refusal::Refusal;
use crate::rules::rollup::FoldError;
use crate::store;
use crate::store::push::Ruling;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::response::{IntoResponse, Response};
use counterfoil_idempotency::NothingBegan;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use std::borrow::Cow;

/// The kind of failure, as far as the client's next step depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be understood.
    Invalid,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    /// The request did not arrive in time.
    Timeout,
    /// The request contradicts what is stored.
    Conflict,
    TooLarge,
    UnsupportedType,
    /// The request was understood and refused.
    Refused,
    /// The caller has sent too many requests.
    TooMany,
    Internal,
    /// Nothing was counted, or it is unknown; sending again is safe.
    Unavailable,
}

impl Kind {
    /// The status and the title; and whether the request was refused for what it says or for who
    /// sends it. What was refused for what is stored (not found, a conflict) is an answer like any
    /// other, and so is a refusal that a store wrote down with its effect.
    fn facts(self) -> (StatusCode, &'static str, bool) {
        match self {
            Self::Invalid => (StatusCode::BAD_REQUEST, "Invalid request", true),
            Self::Unauthenticated => {
                (StatusCode::UNAUTHORIZED, "A valid API key is required", true)
            }
            Self::Forbidden => (StatusCode::FORBIDDEN, "The API key does not permit this", true),
            Self::NotFound => (StatusCode::NOT_FOUND, "Not found", false),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", false),
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "Request timeout", false),
            Self::Conflict => (StatusCode::CONFLICT, "Conflict with an existing resource", false),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Request too large", true),
            Self::UnsupportedType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", true)
            }
            Self::Refused => (StatusCode::UNPROCESSABLE_ENTITY, "The request was refused", true),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "Too many requests", false),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "Internal server error", false),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "Service unavailable", false),
        }
    }

    pub fn status(self) -> StatusCode {
        self.facts().0
    }
}

/// An answer that is not a success.
#[derive(Debug)]
pub struct Problem {
    kind: Kind,
    code: &'static str,
    detail: Cow<'static, str>,
    /// Extension members as JSON text, without the braces.
    members: String,
    /// For people who operate the server; logged, never sent.
    cause: Option<String>,
    /// Seconds after which to send the request again, where that helps.
    retry_after: u64,
}

/// The members every problem has.
#[derive(serde::Serialize)]
struct Standard<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: &'a str,
}

impl From<Panicked> for Problem {
    fn from(_: Panicked) -> Self {
        Self::panicked()
    }
}

impl Problem {
    pub fn new(kind: Kind, code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        Self { kind, code, detail, members: String::new(), cause: None, retry_after: 1 }
    }

    /// An input that was refused by a rule after it had been understood.
    pub fn refused(refusal: Refusal) -> Self {
        Self::new(Kind::Refused, refusal.code, refusal.detail)
    }

    /// What a person's ruling did; the problem of this code if it was refused, and `unknown` if
    /// there is nothing to rule on.
    pub fn unless_ruled(
        ruling: Ruling,
        code: &'static str,
        unknown: impl FnOnce() -> Self,
    ) -> Result<Option<u64>, Self> {
        match ruling {
            Ruling::Done(replacement) => Ok(replacement),
            Ruling::Refused(why) => Err(Self::new(Kind::Conflict, code, why)),
            Ruling::NotFound => Err(unknown()),
        }
    }

    /// Adds extension members: JSON text of an object without its braces.
    pub fn with_members(mut self, members: String) -> Self {
        self.members = members;
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = seconds;
        self
    }

    /// A contradiction found in what the store returned.
    pub fn corrupt(what: impl Into<String>) -> Self {
        store::Error::Corrupt { what: what.into() }.into()
    }

    /// A request whose handler panicked. Its effect is unknown.
    pub fn panicked() -> Self {
        store::Error::Internal { what: "a handler panicked".into() }.into()
    }

    /// A request that needs an idempotency key and has no authenticated caller.
    pub fn unidentified() -> Self {
        Self::new(
            Kind::Unauthenticated,
            "unauthenticated",
            "this request needs a valid API key; see /docs",
        )
    }

    /// Nothing was quoted.
    pub fn tax_engine_unavailable(cause: String) -> Self {
        Self::unavailable(
            "tax_engine_unavailable",
            "the tax engine returned no quote; nothing was stored; retry the same request",
            cause,
        )
    }

    /// Whether the same request may succeed later.
    pub fn is_unavailable(&self) -> bool {
        self.kind == Kind::Unavailable
    }

    pub fn is_too_large(&self) -> bool {
        self.kind == Kind::TooLarge
    }

    /// The status and the body, for an answer that is kept.
    pub fn into_parts(self) -> (StatusCode, String) {
        (self.kind.status(), self.body())
    }

    fn unavailable(code: &'static str, detail: &'static str, cause: String) -> Self {
        Self { cause: Some(cause), ..Self::new(Kind::Unavailable, code, detail) }
    }

    fn internal(code: &'static str, detail: &'static str, cause: String) -> Self {
        Self { cause: Some(cause), ..Self::new(Kind::Internal, code, detail) }
    }

    fn body(&self) -> String {
        let (status, title, _) = self.kind.facts();
        let standard = Standard {
            kind: format!("urn:counterfoil:problem:{}", self.code),
            title,
            status: status.as_u16(),
            code: self.code,
            detail: &self.detail,
        };
        let mut body = serde_json::to_string(&standard).expect("texts and a number serialise");
        if !self.members.is_empty() {
            body.pop();
            body.push(',');
            body.push_str(&self.members);
            body.push('}');
        }
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, _, before_it_began) = self.kind.facts();
        let request_id = request_id::current().map(|id| id.to_string());
        match (&self.cause, self.kind) {
            (Some(cause), Kind::Internal) => {
                tracing::error!(
                    code = self.code,
                    cause,
                    request_id = request_id.as_deref(),
                    "request failed: {cause}"
                );
            }
            (Some(cause), _) => {
                tracing::warn!(
                    code = self.code,
                    cause,
                    request_id = request_id.as_deref(),
                    "request deferred (503)"
                );
            }
            (None, _) => {
                let request_id = request_id.as_deref();
                tracing::debug!(code = self.code, %status, request_id, "request refused");
            }
        }
        let mut body = self.body();
        if let Some(id) = &request_id {
            body.pop();
            // Ids have nothing that JSON escapes.
            body.push_str(&format!(",\"request_id\":\"{id}\"}}"));
        }
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if matches!(self.kind, Kind::Unavailable | Kind::TooMany) {
            headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after));
        }
        if self.kind == Kind::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if before_it_began {
            response.extensions_mut().insert(NothingBegan);
        }
        response
    }
}

/// Refusals of what a query asks for; see [`Problem::refused`] for what a body says.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(Kind::Invalid, refusal.code, refusal.detail)
    }
}

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Self {
        let cause = error.to_string();
        match error {
            store::Error::Unavailable { .. } => Self::unavailable(
                "store_unavailable",
                "the store is unavailable; the request had no effect; retry it",
                cause,
            ),
            store::Error::Overdue { .. } => Self::unavailable(
                "query_too_slow",
                "the query exceeded the server's time limit; narrow it: a shorter range, one meter, \
                 fewer groups",
                cause,
            ),
            store::Error::TooLarge { .. } => Self::new(
                Kind::Refused,
                "answer_too_large",
                "the answer would exceed the server's limit; use a shorter range or fewer \
                 dimensions in group_by, or raise limits.query_rows_max",
            ),
            store::Error::Unknown { .. } => Self::unavailable(
                "outcome_unknown",
                "the store did not confirm whether the request was committed; retry the same \
                 request, which is safe: nothing is counted twice",
                cause,
            ),
            store::Error::Corrupt { .. } => Self::internal(
                "stored_data_damaged",
                "stored data is corrupt; the server's log has the details",
                cause,
            ),
            store::Error::Internal { .. } => Self::internal(
                "internal_fault",
                "internal fault; the server's log has the details",
                cause,
            ),
        }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        let cause = error.to_string();
        match error {
            SubmitError::QueueFull => Self::unavailable(
                "queue_full",
                "the ingest queue is full; nothing of this request was counted; retry it after the \
                 time in Retry-After",
                cause,
            ),
            SubmitError::Stopping => Self::unavailable(
                "stopping",
                "the server is shutting down; retry the same request, which is safe: nothing is \
                 counted twice",
                cause,
            ),
            SubmitError::ClockInDoubt => Self::unavailable(
                "clock_in_doubt",
                "the server's clocks disagree, and the event is inside the accept horizon by one \
                 of them only; nothing of it was counted or kept; retry the same request until \
                 it is answered; counterfoil alerts shows the reason to the operator",
                cause,
            ),
            SubmitError::Store(error) => error.into(),
        }
    }
}

impl From<FoldError> for Problem {
    fn from(error: FoldError) -> Self {
        Self::corrupt(error.to_string())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        let text = rejection.body_text();
        let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
        Self::new(
            Kind::Invalid,
            "invalid_query",
            format!("invalid query string: {text}; see /docs"),
        )
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::new(
            Kind::Invalid,
            "invalid_path",
            format!("{}; write names in the path percent-encoded UTF-8", rejection.body_text()),
        )
    }
}

/// Answers paths without a route.
pub async fn not_found(uri: http::Uri) -> Problem {
    let detail = match uri.path().strip_suffix('/') {
        Some(_) => "no such path; no path ends with a slash; /docs lists them all",
        None => "no such path; /docs lists them all",
    };
    let problem = Problem::new(Kind::NotFound, "unknown_route", detail);
    if !uri.path().starts_with("/v1/billing/") {
        return problem;
    }
    // A client of Stripe that is pointed here takes an answer for a success unless it has this.
    let message = "this is Counterfoil, not Stripe; usage is sent to POST /v1/events";
    problem.with_members(format!(
        "\"error\":{{\"type\":\"invalid_request_error\",\"message\":\"{message}\"}}"
    ))
}

/// A path that exists, asked with a method that does not. The router adds the Allow header.
pub async fn method_not_allowed() -> Problem {
    let detail = "this path does not support this method; the Allow header lists those it supports";
    Problem::new(Kind::MethodNotAllowed, "method_not_allowed", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: store::Error, status: u16, retry: bool) {
        let secret = error.to_string();
        let problem = Problem::from(error);
        assert!(!problem.body().contains(&secret), "a cause stays in the log");
        let response = problem.into_response();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers().contains_key(RETRY_AFTER), retry);
    }

    #[test]
    fn store_errors() {
        let what = || "disk /secret/path".to_owned();
        check(store::Error::Unavailable { what: what() }, 503, true);
        check(store::Error::Overdue { what: what() }, 503, true);
        check(store::Error::TooLarge { what: what() }, 422, false);
        check(store::Error::Unknown { what: what() }, 503, true);
        check(store::Error::Corrupt { what: what() }, 500, false);
        check(store::Error::Internal { what: what() }, 500, false);
    }

    #[test]
    fn members_are_appended() {
        let problem = Problem::new(Kind::Conflict, "a_code", "a \"detail\"")
            .with_members("\"accepted\":0".to_owned());
        let value: serde_json::Value = serde_json::from_str(&problem.body()).expect("valid JSON");
        assert_eq!(value["accepted"], 0);
        assert_eq!(value["type"], "urn:counterfoil:problem:a_code");
        assert_eq!(value["detail"], "a \"detail\"");
    }
}
