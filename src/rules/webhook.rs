//! Webhooks: what the provider tells us unasked.
//!
//! Invariant: a webhook is known by its event's id, and by every other name of the same fact: the
//! id of its twin in the other style, and its type, object and content. One that is known under any
//! of its names changes nothing but its count of deliveries; by its content alone, it also has its
//! object read again.

use super::invoice::Invoice;
use super::mirror::{ObjectName, Snapshot};
use super::subscription::TimelineEntry;
use super::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// How a name begins that is made of type, object and content.
pub const CONTENT_PREFIX: &str = "fact-";

/// Whether the name is made of content. A state that comes back within a second has the same one:
/// an event that is known by it alone adds nothing to the log, but its object is to be read again.
pub fn is_of_content(name: &str) -> bool {
    name.starts_with(CONTENT_PREFIX)
}

/// What a webhook says, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookFacts {
    pub event_id: String,
    pub event_type: String,
    pub created_at: Timestamp,
    /// Every name of the fact, the event's id first.
    pub names: Vec<String>,
    /// The object that has changed; none for what is only kept.
    pub object: Option<ObjectName>,
    /// What the object was when the event was made, if the payload tells it.
    pub snapshot: Option<Snapshot>,
    /// What it adds to a timeline.
    pub timeline: Option<TimelineEntry>,
}

/// What became of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookStatus {
    /// Its object is still to be read.
    Waiting,
    /// Its object was read, and is as the webhook told.
    Applied,
    /// Its object was read, and is not (any more) as the webhook told; what was read stands.
    Stale,
    /// It is of a type that has no effect; it is only kept.
    Kept,
}

impl WebhookStatus {
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Applied, Self::Stale, Self::Kept];

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Applied => "applied",
            Self::Stale => "stale",
            Self::Kept => "kept",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// How a webhook came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookSource {
    /// The provider sent it.
    Delivered,
    /// It had been missed and was found in the provider's list of events.
    Backfilled,
}

impl WebhookSource {
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Backfilled => "backfilled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Delivered, Self::Backfilled].into_iter().find(|source| source.name() == name)
    }
}

/// What a reading of its object makes of a webhook; `told` is what its payload showed.
pub fn judge_webhook(told: Option<&Snapshot>, read: &Snapshot) -> WebhookStatus {
    let same = match (told, read) {
        // A payload holds only the first lines of an invoice, and not what they meter.
        (Some(Snapshot::Invoice(told)), Snapshot::Invoice(read)) => {
            *told == Invoice { lines: Vec::new(), ..read.clone() }
        }
        (Some(told), read) => told == read,
        (None, _) => true,
    };
    if same { WebhookStatus::Applied } else { WebhookStatus::Stale }
}
