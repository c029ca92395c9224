//! Answers of the layer's own, as RFC 9457 problems.
//!
//! Invariant: every answer that the layer makes up is one of these, and its `detail` says what the
//! caller can do. Codes never change their meaning.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

/// What the layer could not do, or would not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub code: Code,
    /// For a person: what is wrong with this call, and what to do.
    pub detail: String,
    /// Whole seconds after which it is worth trying again with the same key.
    pub retry_after: Option<u64>,
}

/// Kinds of problems, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The route needs a key, and none was sent.
    KeyMissing,
    /// The key is not 1 to 255 visible ASCII characters, or there are several.
    KeyMalformed,
    /// The key was used for another request.
    KeyReused,
    /// A request with the key is at work.
    KeyInUse,
    /// The store did not answer.
    Unavailable,
    /// The store has a record that cannot be understood.
    RecordUnreadable,
    /// The body is larger than the layer reads.
    RequestTooLarge,
    /// The body broke off.
    RequestUnreadable,
    /// The request was carried out, and its answer cannot be kept.
    StreamingUnsupported,
    /// The handler panicked.
    HandlerPanicked,
}

impl Code {
    /// Its name in the answer.
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyMissing => "idempotency_key_missing",
            Self::KeyMalformed => "idempotency_key_malformed",
            Self::KeyReused => "idempotency_key_reused",
            Self::KeyInUse => "idempotency_key_in_use",
            Self::Unavailable => "idempotency_unavailable",
            Self::RecordUnreadable => "idempotency_record_unreadable",
            Self::RequestTooLarge => "request_too_large",
            Self::RequestUnreadable => "request_unreadable",
            Self::StreamingUnsupported => "idempotency_streaming_unsupported",
            Self::HandlerPanicked => "internal_error",
        }
    }

    pub fn status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyMalformed | Self::RequestUnreadable => {
                StatusCode::BAD_REQUEST
            }
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::KeyInUse => StatusCode::CONFLICT,
            Self::Unavailable | Self::RecordUnreadable => StatusCode::SERVICE_UNAVAILABLE,
            Self::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::StreamingUnsupported | Self::HandlerPanicked => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The same for every problem of the kind.
    pub fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "An idempotency key is required",
            Self::KeyMalformed => "The idempotency key is malformed",
            Self::KeyReused => "The idempotency key was used for another request",
            Self::KeyInUse => "A request with the idempotency key is at work",
            Self::Unavailable => "Idempotency keys cannot be looked up",
            Self::RecordUnreadable => "The record of the idempotency key cannot be read",
            Self::RequestTooLarge => "The request is too large",
            Self::RequestUnreadable => "The request could not be read",
            Self::StreamingUnsupported => "The answer could not be kept",
            Self::HandlerPanicked => "The request failed",
        }
    }
}

impl Problem {
    /// As `application/problem+json`.
    pub fn render(self) -> Response<Bytes> {
        let body = json!({
            "type": format!("urn:counterfoil:problem:{}", self.code.name()),
            "title": self.code.title(),
            "status": self.code.status().as_u16(),
            "detail": self.detail,
            "code": self.code.name(),
        });
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = self.code.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
