//! Webhooks of the provider, and the outcome of each.

use super::Timestamp;
use crate::rules::mirror::ObjectKind;
use crate::rules::webhook::{WebhookSource, WebhookStatus};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ReceivedAnswer {
    /// The webhook's number in the log.
    pub id: u64,
    /// Whether the same fact was received before.
    pub duplicate: bool,
}

/// One webhook, and its state.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct WebhookAnswer {
    pub id: u64,
    /// The id of Stripe's event.
    pub event_id: String,
    #[serde(rename = "type")]
    pub event_type: String,
    /// The kind of the object that changed; null if the event is only stored.
    pub object_kind: Option<ObjectKind>,
    pub object_id: Option<String>,
    pub source: WebhookSource,
    pub status: WebhookStatus,
    pub created_at: Timestamp,
    pub received_at: Timestamp,
    pub settled_at: Option<Timestamp>,
    /// How often it was delivered, its twins included.
    pub deliveries: u64,
    /// Why its object could not be read so far.
    pub detail: Option<String>,
}

page!(WebhookList, webhooks: WebhookAnswer ("Newest first."), next_before: u64);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct WebhookTrace {
    #[serde(flatten)]
    pub webhook: WebhookAnswer,
    /// As it came.
    #[schema(value_type = Object)]
    pub payload: Box<RawValue>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ReplayAnswer {
    /// The webhook whose object is read again.
    pub id: u64,
}
