//! What Stripe's answers mean. Its documents and what was seen in the field agree on few of them,
//! so each rule here says what it rests on.
//!
//! Invariant: `Accepted` only for a 2xx whose body names our identifier; `AlreadyThere` only for
//! the refusal of a known identifier; `Refused` only for an answer that says the request itself is
//! wrong. Everything else is `Unknown`.

use crate::rules::delivery::{Delivery, Resend};
use crate::rules::span::Span;
use serde::Deserialize;

/// How long to leave Stripe alone when our key is not accepted: that is not the push's fault, and
/// a person must mend it.
const KEY_TROUBLE_PAUSE: Span = Span::from_seconds(60);
/// Longest pause that a Retry-After is followed for.
const RETRY_AFTER_MAX: u32 = 3_600;
/// How Stripe's refusal of an identifier it knows begins; it has no error code.
const KNOWN_IDENTIFIER: &str = "An event already exists with identifier";

/// The parts of an answer that matter.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    /// `Stripe-Should-Retry`.
    pub should_retry: Option<bool>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    pub request_id: Option<String>,
    pub body: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct MeterEvent {
    identifier: String,
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Debug, Default, Deserialize)]
pub struct ErrorDetail {
    #[serde(default, rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub code: Option<String>,
    #[serde(default)]
    pub message: String,
}

impl Reply {
    pub fn error(&self) -> Option<ErrorDetail> {
        serde_json::from_slice::<ErrorBody>(&self.body).ok().map(|body| body.error)
    }

    /// One line for people: status, and what Stripe says.
    pub fn describe(&self) -> String {
        match self.error() {
            Some(ErrorDetail { message, code: Some(code), .. }) => {
                format!("{} {code}: {message}", self.status)
            }
            Some(ErrorDetail { message, .. }) => format!("{}: {message}", self.status),
            None => format!("{}, with a body that is not Stripe's", self.status),
        }
    }
}

/// What an answer to a meter event means.
pub fn judge_reply(reply: &Reply, identifier: &str) -> Delivery {
    let retry_after = reply.retry_after.map(|s| Span::from_seconds(s.min(RETRY_AFTER_MAX)));
    let unknown =
        |resend, retry_after| Delivery::Unknown { message: reply.describe(), resend, retry_after };
    match (reply.status, reply.should_retry) {
        (200..=299, _) => {
            let event: Option<MeterEvent> = serde_json::from_slice(&reply.body).ok();
            if event.is_some_and(|event| event.identifier == identifier) {
                return Delivery::Accepted;
            }
            let message = format!("{} without our event in its body", reply.status);
            Delivery::Unknown { message, resend: Resend::Same, retry_after }
        }
        (401 | 403, _) => unknown(Resend::Same, retry_after.max(Some(KEY_TROUBLE_PAUSE))),
        // A stored 500 would be repeated under the same request key for a day; the identifier
        // counts once under any. A 500 that must not be retried is left to the summary.
        (500..=599, Some(false)) => unknown(Resend::No, retry_after),
        (500..=599, Some(true) | None) => unknown(Resend::FreshRequestKey, retry_after),
        (409 | 429, _) | (_, Some(true)) => unknown(Resend::Same, retry_after),
        (400..=499, Some(false) | None) => judge_refusal(reply, retry_after),
        (_, Some(false) | None) => unknown(Resend::Same, retry_after),
    }
}

fn judge_refusal(reply: &Reply, retry_after: Option<Span>) -> Delivery {
    let Some(error) = reply.error() else {
        // Not Stripe's own words: a proxy may have answered in its place.
        let message = reply.describe();
        return Delivery::Unknown { message, resend: Resend::Same, retry_after };
    };
    if error.message.starts_with(KNOWN_IDENTIFIER) {
        return Delivery::AlreadyThere;
    }
    if error.kind == "idempotency_error" {
        let (message, resend) = (reply.describe(), Resend::FreshRequestKey);
        return Delivery::Unknown { message, resend, retry_after };
    }
    Delivery::Refused { message: reply.describe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, should_retry: Option<bool>, body: &str, expected: &str) {
        let body = body.as_bytes().to_vec();
        let reply = Reply { status, should_retry, body, ..Reply::default() };
        let found = match judge_reply(&reply, "cf1-a") {
            Delivery::Accepted => "accepted",
            Delivery::AlreadyThere => "already there",
            Delivery::Refused { .. } => "refused",
            Delivery::Unknown { resend: Resend::Same, .. } => "again",
            Delivery::Unknown { resend: Resend::FreshRequestKey, .. } => "again, fresh key",
            Delivery::Unknown { resend: Resend::No, .. } => "wait",
        };
        assert_eq!(found, expected, "{status} {should_retry:?} {reply:?}");
    }

    fn error(kind: &str, message: &str) -> String {
        format!(r#"{{"error":{{"type":"{kind}","message":"{message}"}}}}"#)
    }

    #[test]
    fn every_kind_of_answer() {
        let refusal = error("invalid_request_error", "No such customer: 'cus_1'");
        let known =
            error("invalid_request_error", "An event already exists with identifier cf1-a.");
        check(200, None, r#"{"identifier":"cf1-a","object":"billing.meter_event"}"#, "accepted");
        check(200, None, r#"{"identifier":"other"}"#, "again");
        check(200, None, "<html>", "again");
        check(200, None, "", "again");
        check(400, Some(false), &known, "already there");
        check(400, None, &known, "already there");
        check(400, None, &refusal, "refused");
        check(404, Some(false), &refusal, "refused");
        check(400, Some(true), &refusal, "again");
        check(400, None, "blocked by a proxy", "again");
        check(400, None, &error("idempotency_error", "Keys for…"), "again, fresh key");
        check(401, None, &refusal, "again");
        check(403, Some(false), &refusal, "again");
        check(409, None, &error("idempotency_error", "in use"), "again");
        check(429, None, &error("invalid_request_error", "lock"), "again");
        check(500, None, &error("api_error", "oh"), "again, fresh key");
        check(500, Some(false), &error("api_error", "oh"), "wait");
        check(503, Some(true), "", "again, fresh key");
        check(302, None, "", "again");
    }

    #[test]
    fn pauses_are_followed_within_reason() {
        let pause = |status, retry_after| {
            let reply = Reply { status, retry_after, ..Reply::default() };
            match judge_reply(&reply, "") {
                Delivery::Unknown { retry_after, .. } => retry_after.map(|s| s.to_string()),
                Delivery::Accepted | Delivery::AlreadyThere | Delivery::Refused { .. } => None,
            }
        };
        assert_eq!(pause(429, Some(7)).as_deref(), Some("7s"));
        assert_eq!(pause(429, Some(1_000_000)).as_deref(), Some("1h"));
        assert_eq!(pause(503, None), None);
        assert_eq!(pause(401, None).as_deref(), Some("1m"));
    }
}
