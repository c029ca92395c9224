//! What Stripe's answers mean. Its documents and what was seen in the field agree on few of them,
//! so each rule here says what it rests on.
//!
//! Invariant: `Accepted` only for a 2xx whose body names our identifier; `AlreadyThere` only for
//! the refusal of a known identifier; `Refused` only for an answer that says the request itself is
//! wrong. Everything else is `Unknown`. A failed call of a saga is `Kept` only if it is over, since
//! what is looked up then decides whether it is made again under another key.

use crate::provider::Called;
use crate::rules::span::Span;
use crate::rules::submission::{Resend, SubmitOutcome};
use serde::Deserialize;

/// How long to leave Stripe alone when our key is not accepted: that is not the push's fault, and
/// an operator must fix it.
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
    /// `Idempotent-Replayed`: the answer is an earlier one of the same key.
    pub replayed: bool,
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
pub fn judge_reply(reply: &Reply, identifier: &str) -> SubmitOutcome {
    let retry_after = reply.retry_after.map(|s| Span::from_seconds(s.min(RETRY_AFTER_MAX)));
    let unknown = |resend, retry_after| SubmitOutcome::Unknown {
        message: reply.describe(),
        resend,
        retry_after,
    };
    match (reply.status, reply.should_retry) {
        (200..=299, _) => {
            let event: Option<MeterEvent> = serde_json::from_slice(&reply.body).ok();
            if event.is_some_and(|event| event.identifier == identifier) {
                return SubmitOutcome::Accepted;
            }
            let message = format!("{} without our event in its body", reply.status);
            SubmitOutcome::Unknown { message, resend: Resend::Same, retry_after }
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

fn judge_refusal(reply: &Reply, retry_after: Option<Span>) -> SubmitOutcome {
    let Some(error) = reply.error() else {
        // Not Stripe's own words: a proxy may have answered in its place.
        let message = reply.describe();
        return SubmitOutcome::Unknown { message, resend: Resend::Same, retry_after };
    };
    if error.message.starts_with(KNOWN_IDENTIFIER) {
        return SubmitOutcome::AlreadyThere;
    }
    if error.kind == "idempotency_error" {
        let (message, resend) = (reply.describe(), Resend::FreshRequestKey);
        return SubmitOutcome::Unknown { message, resend, retry_after };
    }
    SubmitOutcome::Refused { message: reply.describe() }
}

/// What a failed answer to a call that changes something means for the call's key.
///
/// Stripe keeps the first result of whatever began to execute, a 500 as well, and repeats it under
/// the same key. What a limiter, a lock or the keys themselves turned away is not kept.
pub fn judge_failure<T>(reply: &Reply) -> Called<T> {
    let message = reply.describe();
    match (reply.status, reply.should_retry) {
        // What was repeated once will be repeated always.
        (409 | 429 | 500..=599, _) if reply.replayed => Called::Kept(message),
        // A refused key of the account is not the call's fault, and an operator must fix it.
        (401 | 403 | 409 | 429, _) | (_, Some(true)) => Called::Retry(message),
        (500..=599, Some(false)) => Called::Kept(message),
        // The endpoint's own words: it has ended, and its result is kept.
        (500 | 502, None) if reply.error().is_some() => Called::Kept(message),
        // Something before the endpoint spoke. The call may not have arrived, or be under way
        // still: a look now could miss what it does later, and another key would do it twice. The
        // same key is safe in each case; it executes, meets itself as a 409, or repeats the result.
        (500..=599, None) => Called::Retry(message),
        (400..=499, Some(false) | None) => match reply.error() {
            // A proxy may have answered in Stripe's place.
            None => Called::Retry(message),
            Some(error) if error.kind == "idempotency_error" => Called::Kept(message),
            Some(_) => Called::Refused(message),
        },
        (_, Some(false) | None) => Called::Retry(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, should_retry: Option<bool>, body: &str, expected: &str) {
        let body = body.as_bytes().to_vec();
        let reply = Reply { status, should_retry, body, ..Reply::default() };
        let found = match judge_reply(&reply, "cf1-a") {
            SubmitOutcome::Accepted => "accepted",
            SubmitOutcome::AlreadyThere => "already there",
            SubmitOutcome::Refused { .. } => "refused",
            SubmitOutcome::Unknown { resend: Resend::Same, .. } => "again",
            SubmitOutcome::Unknown { resend: Resend::FreshRequestKey, .. } => "again, fresh key",
            SubmitOutcome::Unknown { resend: Resend::No, .. } => "wait",
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
    fn every_kind_of_failure_of_a_call() {
        let check_reply = |reply: Reply, expected: &str| {
            let found = match judge_failure::<()>(&reply) {
                Called::Done(()) => "done",
                Called::Refused(_) => "refused",
                Called::Retry(_) => "same key",
                Called::Kept(_) => "kept",
            };
            assert_eq!(found, expected, "{reply:?}");
        };
        let check = |status: u16, should_retry: Option<bool>, body: &str, expected: &str| {
            let body = body.as_bytes().to_vec();
            check_reply(Reply { status, should_retry, body, ..Reply::default() }, expected);
        };
        let refusal = error("invalid_request_error", "No such price: 'price_1'");
        let failure = error("api_error", "An unknown error occurred.");
        let page = "<html>";
        check(400, None, &refusal, "refused");
        check(400, Some(false), &refusal, "refused");
        check(400, Some(true), &refusal, "same key");
        check(400, None, page, "same key");
        check(400, None, &error("idempotency_error", "Keys for…"), "kept");
        check(401, None, &refusal, "same key");
        check(402, None, &error("card_error", "Your card was declined."), "refused");
        check(403, Some(false), &refusal, "same key");
        check(404, None, &refusal, "refused");
        check(409, None, &error("idempotency_error", "in use"), "same key");
        check(409, Some(false), &error("idempotency_error", "in use"), "same key");
        check(429, None, &error("invalid_request_error", "lock"), "same key");
        check(500, None, &failure, "kept");
        check(500, Some(false), &failure, "kept");
        check(500, Some(true), &failure, "same key");
        check(500, None, page, "same key");
        check(502, None, &failure, "kept");
        check(502, None, page, "same key");
        check(503, None, &failure, "same key");
        check(503, None, page, "same key");
        check(504, None, page, "same key");
        check(504, Some(false), page, "kept");
        check(302, None, "", "same key");
        for (status, should_retry) in [(500, Some(true)), (503, None), (429, None), (409, None)] {
            let body = failure.clone().into_bytes();
            let reply = Reply { status, should_retry, replayed: true, body, ..Reply::default() };
            check_reply(reply, "kept");
        }
    }

    #[test]
    fn pauses_are_followed_within_reason() {
        let pause = |status, retry_after| {
            let reply = Reply { status, retry_after, ..Reply::default() };
            match judge_reply(&reply, "") {
                SubmitOutcome::Unknown { retry_after, .. } => retry_after.map(|s| s.to_string()),
                SubmitOutcome::Accepted
                | SubmitOutcome::AlreadyThere
                | SubmitOutcome::Refused { .. } => None,
            }
        };
        assert_eq!(pause(429, Some(7)).as_deref(), Some("7s"));
        assert_eq!(pause(429, Some(1_000_000)).as_deref(), Some("1h"));
        assert_eq!(pause(503, None), None);
        assert_eq!(pause(401, None).as_deref(), Some("1m"));
    }
}
