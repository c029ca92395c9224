//! Keys, and what they allow.

use super::Timestamp;
use crate::rules::named::named_enum;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "gateway", "scopes": ["ingest"]}))]
pub struct KeySpec {
    /// For people; without control characters.
    #[schema(min_length = 1, max_length = 100, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub name: String,
    #[schema(min_items = 1, max_items = 4)]
    pub scopes: Vec<Scope>,
    /// Binds the key to one tenant: it reaches nothing of another. Such a key cannot have the
    /// scope admin.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub tenant: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct KeyAnswer {
    pub id: String,
    pub name: String,
    #[schema(value_type = Vec<Scope>)]
    pub scopes: Vec<String>,
    pub tenant: Option<String>,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// A key that was just made.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewKeyAnswer {
    /// The key itself: shown this once, and not kept.
    pub token: String,
    #[serde(flatten)]
    pub key: KeyAnswer,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    pub keys: Vec<KeyAnswer>,
}

named_enum! {
    /// What a key allows.
    #[derive(ToSchema)]
    pub enum Scope {
        /// Send events.
        Ingest = "ingest",
        /// Read usage, events, inboxes, meters and counters.
        Read = "read",
        /// Retry and discard pushes, resume sagas, start passes, accept findings; includes read.
        Operate = "operate",
        /// Everything, with meters, tenants and keys.
        Admin = "admin",
    }
}

impl Scope {
    pub fn includes(self, needed: Self) -> bool {
        match self {
            Self::Ingest => needed == Self::Ingest,
            Self::Read => needed == Self::Read,
            Self::Operate => matches!(needed, Self::Operate | Self::Read),
            Self::Admin => true,
        }
    }
}
