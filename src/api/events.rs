//! Events: how they were judged, and all that is known of one.

use super::Timestamp;
use super::inboxes::{ConflictAnswer, QuarantineAnswer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// An event as it was counted.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct EventAnswer {
    /// The event in the form in which events are sent.
    #[schema(value_type = Object)]
    pub event: Box<RawValue>,
    pub received_at: Timestamp,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Newest first, by occurred_at and then by id.
    pub events: Vec<EventAnswer>,
    /// Give it as `cursor` for the next page; null at the end. With `meter` a page may hold fewer
    /// events than `limit`, or none, and still have a next one: one request looks at 50,000
    /// events at most.
    pub next_cursor: Option<String>,
}

/// Everything known of one event key.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct TraceAnswer {
    /// The verdict on the event, in a sentence.
    pub summary: String,
    pub counted: Option<EventAnswer>,
    /// Other payloads that came under this id; they were not counted.
    pub conflicts: Vec<ConflictAnswer>,
    pub quarantined: Vec<QuarantineAnswer>,
    /// Deliveries of further conflicting payloads. At most 100 payloads of an id are kept.
    pub conflicts_not_kept: u64,
    /// Deliveries of further quarantined payloads. At most 100 payloads of an id are kept.
    pub quarantined_not_kept: u64,
}

/// The verdict on each item. The counts add up to the items sent.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Verdicts {
    pub accepted: u64,
    pub duplicates: u64,
    pub conflicts: u64,
    pub quarantined: u64,
    pub rejected: u64,
    #[schema(inline)]
    pub results: Vec<ItemVerdict>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ItemVerdict {
    /// The item's place in the request, from 0
    pub index: usize,
    #[schema(required)]
    pub tenant: Option<String>,
    #[schema(required)]
    pub id: Option<String>,
    #[schema(inline)]
    pub outcome: Outcome,
    /// Why, for programs
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub code: Option<String>,
    /// Why, for people
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Accepted,
    Duplicate,
    Conflict,
    Quarantined,
    Rejected,
}
