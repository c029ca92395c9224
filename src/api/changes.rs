//! Changes, as the feed lists them and the webhook sends them.

use super::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct PublishedChange {
    pub number: u64,
    /// The same here and in every delivery.
    pub id: String,
    /// Such as `credits.issued` or `saga.completed`.
    pub kind: String,
    pub tenant: Option<String>,
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
    pub at: Timestamp,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ChangeFeed {
    /// Oldest first.
    pub changes: Vec<PublishedChange>,
    /// Give it as `after` to go on, now or later; null if there was nothing.
    pub last: Option<u64>,
}
