//! Webhooks: what the provider tells us unasked.
//!
//! Invariant: a webhook is known by its event's id, and by every other name of the same fact: the
//! id of its twin in the other style, and its type, object and content. One that is known under any
//! of its names changes nothing but its count of deliveries; by its content alone, it also has its
//! object read again.

use super::invoice::Invoice;
use super::mirror::{ObjectName, Snapshot};
use super::named::named_enum;
use super::subscription::TimelineEntry;
use super::timestamp::Timestamp;

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

named_enum! {
    /// The state of a webhook.
    pub enum WebhookStatus {
        /// Its object is still to be read.
        Waiting = "waiting",
        /// Its object was read and matches the webhook.
        Applied = "applied",
        /// Superseded: the object that was read differs from the webhook, and wins.
        Stale = "stale",
        /// It is of a type that has no effect; it is only kept.
        Kept = "kept",
    }
}

named_enum! {
    /// How a webhook came.
    pub enum WebhookSource {
        /// The provider sent it.
        Delivered = "delivered",
        /// It had been missed and was found in the provider's list of events.
        Backfilled = "backfilled",
    }
}

/// What a reading of its object makes of a webhook; `shown` is what its payload showed.
pub fn judge_webhook(shown: Option<&Snapshot>, read: &Snapshot) -> WebhookStatus {
    let same = match (shown, read) {
        // A payload holds only the first lines of an invoice, and not what they meter.
        (Some(Snapshot::Invoice(shown)), Snapshot::Invoice(read)) => {
            *shown == Invoice { lines: Vec::new(), ..read.clone() }
        }
        (Some(shown), read) => shown == read,
        (None, _) => true,
    };
    if same { WebhookStatus::Applied } else { WebhookStatus::Stale }
}
