//! Pushes: what the provider is sent, with every attempt.

use super::{Decimal, Timestamp};
use crate::rules::billing::Mode;
use crate::rules::push::Transition;
use crate::rules::submission::{Class, PushState};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;

/// One submission to the provider.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct PushAnswer {
    pub id: u64,
    pub tenant: String,
    /// The customer it was sent for; null before the first attempt.
    pub customer: Option<String>,
    pub meter: String,
    pub window_start: Timestamp,
    pub window_end: Timestamp,
    /// 1, 2, … within the window.
    pub revision: u32,
    #[schema(value_type = String)]
    pub mode: Mode,
    /// By how much it changes what the provider has of the window, as a decimal number.
    pub quantity: Decimal,
    /// The value that is sent; at Stripe, the meter event's value.
    pub value: Decimal,
    /// The provider's name of the push; at Stripe, the meter event's `identifier`.
    pub key: String,
    /// At Stripe, the meter event's `timestamp`.
    pub stamped_at: Timestamp,
    /// Exact billable totals by subscription at the cut: the 100 largest, and the sum of all others
    /// under `(others)`.
    #[serde(deserialize_with = "read_buffered")]
    #[schema(value_type = Object)]
    pub subscriptions: Box<RawValue>,
    /// The event it is of, for meters billed by event.
    pub event: Option<String>,
    /// Whether it is only compared and never billed.
    pub shadow: bool,
    pub state: PushState,
    pub class: Class,
    /// The last message of the provider, or an operator's reason.
    pub detail: Option<String>,
    /// The quantity, if it is dead.
    pub unbilled: Option<Decimal>,
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
    /// When something is due next.
    pub due_at: Timestamp,
    pub created_at: Timestamp,
    /// When it came into its state.
    pub state_at: Timestamp,
}

page!(PushList, pushes: PushAnswer ("Newest first."), next_before: u64);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct PushTraceAnswer {
    #[serde(flatten)]
    pub push: PushAnswer,
    /// Oldest first.
    pub transitions: Vec<Transition>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "credited by hand, invoice 1042"}))]
pub struct DiscardSpec {
    /// Reason; kept in the push's history.
    #[schema(min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub reason: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RulingAnswer {
    /// The push that was ruled on.
    pub id: u64,
    /// The push that took its place.
    pub replacement: Option<u64>,
}

/// Raw JSON is read from a text only, and what is part of a larger answer comes from a buffer.
fn read_buffered<'de, D: Deserializer<'de>>(from: D) -> Result<Box<RawValue>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    to_raw_value(&value).map_err(serde::de::Error::custom)
}
