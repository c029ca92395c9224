//! Idempotency-Keys of both versions of the API.
//!
//! Invariant: version 1 keeps the first result of an execution, whatever it was, for 24 hours;
//! version 2 keeps successes for 30 days and executes failures again. A refusal from before the
//! execution is never kept. A crash leaves nothing.

use crate::request::{ApiError, SimResponse};
use crate::timestamp::{MICROS_PER_DAY, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

const KEY_CHARACTERS_MAX: usize = 255;
const V1_KEPT_MICROS: i64 = MICROS_PER_DAY;
const V2_KEPT_MICROS: i64 = 30 * MICROS_PER_DAY;

/// A key of one version of the API, with the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedCall {
    pub v2: bool,
    pub key: String,
    /// Method, path and parameters in one spelling.
    pub asked: String,
}

#[derive(Debug)]
struct Kept {
    asked: String,
    response: SimResponse,
    since: Timestamp,
}

/// What is known of a key.
pub enum Known {
    Nothing,
    /// The first response.
    Replay(SimResponse),
    Refused(ApiError),
}

#[derive(Debug, Default)]
pub struct Idempotency {
    kept: BTreeMap<(bool, String), Kept>,
    /// Keys of calls in progress.
    in_progress: BTreeSet<(bool, String)>,
}

impl Idempotency {
    pub fn look_up(&mut self, call: &KeyedCall, now: Timestamp) -> Known {
        if call.key.chars().count() > KEY_CHARACTERS_MAX {
            let message = "Idempotency-Key must be at most 255 characters";
            return Known::Refused(ApiError::new(400, "invalid_request_error", message));
        }
        let place = (call.v2, call.key.clone());
        if self.in_progress.contains(&place) {
            return Known::Refused(in_use(&call.key));
        }
        let kept_micros = if call.v2 { V2_KEPT_MICROS } else { V1_KEPT_MICROS };
        match self.kept.get(&place) {
            None => Known::Nothing,
            Some(kept) if kept.since.saturating_add_micros(kept_micros) <= now => {
                self.kept.remove(&place);
                Known::Nothing
            }
            Some(kept) if kept.asked != call.asked => Known::Refused(ApiError::new(
                400,
                "idempotency_error",
                format!(
                    "Keys for idempotent requests can only be used with the same parameters they \
                     were first used with. Try using a key other than '{}' if you meant to execute \
                     a different request.",
                    call.key
                ),
            )),
            Some(kept) => {
                let mut response = kept.response.clone();
                response.headers.push(("idempotent-replayed", "true".to_owned()));
                Known::Replay(response)
            }
        }
    }

    /// Keeps the result of an execution.
    pub fn keep(&mut self, call: &KeyedCall, response: &SimResponse, now: Timestamp) {
        if call.v2 && response.status >= 400 {
            return;
        }
        let kept = Kept { asked: call.asked.clone(), response: response.clone(), since: now };
        self.kept.insert((call.v2, call.key.clone()), kept);
    }

    pub fn begin(&mut self, call: &KeyedCall) {
        self.in_progress.insert((call.v2, call.key.clone()));
    }

    pub fn end(&mut self, call: &KeyedCall) {
        self.in_progress.remove(&(call.v2, call.key.clone()));
    }
}

pub fn in_use(key: &str) -> ApiError {
    let message = format!(
        "There is currently another in-progress request using this Idempotent Key (that probably \
         means you submitted twice, and the other request is still going through): {key}"
    );
    ApiError::new(409, "idempotency_error", message).with_code("idempotency_key_in_use")
}
