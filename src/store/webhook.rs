//! The inbound half of the store: webhooks, mirrors of the provider's objects, and timelines.
//!
//! Invariant: a webhook's row, its names, its entry in a timeline and its request for a reading are
//! written in one transaction; a webhook that is known under any of its names adds only to the
//! count of its deliveries, to its names, and to a timeline what its payload tells and a thin
//! twin's did not. A mirror's version only grows. What is read is written together with what it
//! means for the webhooks that asked for it.
//!
//! A crash leaves a webhook stored, with its object still to be read, or not stored at all, and
//! then the provider was not answered and sends it again.

pub use crate::rules::rejection::{Rejection, RejectionReport};

use super::faulty::verbs;
use super::push::Ruling;
use super::{Query, Result};
use crate::rules::ids::{CustomerId, TenantId};
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::subscription::TimelineEntry;
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::{WebhookFacts, WebhookSource, WebhookStatus};

/// A webhook that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookReceipt {
    pub facts: WebhookFacts,
    /// The bytes as they came.
    pub payload: Vec<u8>,
    pub source: WebhookSource,
    pub received_at: Timestamp,
}

/// Its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipted {
    /// The webhook's number, or that of an earlier one with the same fact.
    pub number: u64,
    /// Whether it was not known.
    pub fresh: bool,
}

/// A webhook as it is stored, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRecord {
    /// Order of arrival, and its name in the API.
    pub number: u64,
    pub event_id: String,
    pub event_type: String,
    pub object: Option<ObjectName>,
    pub source: WebhookSource,
    pub status: WebhookStatus,
    /// When the provider made the event.
    pub created_at: Timestamp,
    pub received_at: Timestamp,
    /// When its status was decided; none while it waits.
    pub settled_at: Option<Timestamp>,
    /// How often it was delivered, its twins included; 0 if it was only ever backfilled.
    pub deliveries: u64,
    /// Why its object could not be read so far.
    pub detail: Option<String>,
}

/// Webhooks, newest first.
#[derive(Debug, Clone, Default)]
pub struct WebhookFilter {
    pub status: Option<WebhookStatus>,
    pub event_type: Option<String>,
}

/// How webhooks stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WebhookCounts {
    pub waiting: u64,
    /// Since when the first of those waits: its arrival, or the replay that a person asked for.
    pub waiting_since: Option<Timestamp>,
}

/// Asks for objects that are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorClaim {
    pub now: Timestamp,
    /// A reading that was not written by then may be begun by another.
    pub lease_until: Timestamp,
    pub limit: usize,
}

/// An object that is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedMirror {
    pub name: ObjectName,
    /// The version that the reading will have.
    pub ticket: u64,
    /// Failed attempts so far.
    pub attempts: u32,
}

/// What was read, and for which ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorReading {
    pub name: ObjectName,
    pub ticket: u64,
    pub snapshot: Snapshot,
    /// When the reading was begun.
    pub read_at: Timestamp,
}

/// The outcome of a reading.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all readings are written")]
pub enum Mirrored {
    /// It was written; what the mirror showed before, if it was read before.
    Written(Option<Snapshot>),
    /// A reading with a higher version, or the same, is there; nothing was written.
    Stale,
}

/// A mirror as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    pub name: ObjectName,
    pub version: u64,
    pub snapshot: Snapshot,
    pub read_at: Timestamp,
}

/// Mirrors that were read, in the order of their ids.
#[derive(Debug, Clone)]
pub struct MirrorFilter {
    pub kind: ObjectKind,
    /// The word of `Snapshot::status`.
    pub status: Option<String>,
    pub customer: Option<CustomerId>,
}

verbs! {
    /// Webhooks and the provider's list of them.
    pub trait Webhooks: Send + Sync {
        /// Writes webhooks down, in one transaction; one answer for each, in order. A fresh one
        /// with an object is waiting and raises the object's wanted ticket by one; one without is
        /// kept. Two of one fact within the batch are one webhook. One that is known by its content
        /// alone raises the ticket, too.
        async fn record_webhooks(&self, receipts: Vec<WebhookReceipt>) -> Result<Vec<Receipted>>;
        async fn list_webhooks(&self, query: Query<WebhookFilter>) -> Result<Vec<WebhookRecord>>;
        /// A webhook and its payload.
        async fn find_webhook(&self, number: u64) -> Result<Option<(WebhookRecord, Vec<u8>)>>;
        /// Has a webhook's object read again: it waits, with a new ticket. One that waits already
        /// is left as it is and done; one that is only kept is refused.
        async fn replay_webhook(&self, number: u64, at: Timestamp) -> Result<Ruling>;
        async fn count_webhooks(&self) -> Result<WebhookCounts>;

        /// Where a job that reads a list has come to.
        async fn read_cursor(&self, name: &'static str) -> Result<Option<String>>;
        async fn record_cursor(&self, name: &'static str, value: &str) -> Result<()>;
    }
}

verbs! {
    /// Mirrors and timelines.
    pub trait Mirrors: Send + Sync {
        /// Has objects read, each with the next ticket of its object, which is returned. An object
        /// that was deferred stays so for every caller: the provider is not asked more often for
        /// that.
        async fn want_mirrors(&self, names: Vec<ObjectName>, at: Timestamp) -> Result<Vec<u64>>;
        /// Objects with a wanted ticket above their version, due, and not leased, those longest due
        /// first; they are leased.
        async fn claim_mirrors(&self, claim: MirrorClaim) -> Result<Vec<WantedMirror>>;
        /// Writes readings down, in one transaction; one answer for each. With a reading that is
        /// written: the lease ends; the object is due again only if a higher ticket is wanted;
        /// every waiting webhook of the object whose ticket is not above it is settled by
        /// `rules::webhook::judge_webhook`; a subscription's state is added to its timeline
        /// (`Origin::Read`): it decides where events of one second do not.
        async fn record_mirrors(
            &self,
            readings: Vec<MirrorReading>,
            at: Timestamp,
        ) -> Result<Vec<Mirrored>>;
        /// Ends the lease of an object that could not be read; it is due again then. The detail is
        /// kept with its waiting webhooks. Nothing is done if it was read for that ticket
        /// meanwhile.
        async fn put_off_mirror(
            &self,
            wanted: &WantedMirror,
            until: Timestamp,
            detail: &str,
        ) -> Result<()>;
        async fn find_mirror(&self, name: &ObjectName) -> Result<Option<Mirror>>;
        async fn list_mirrors(&self, query: Query<MirrorFilter, String>) -> Result<Vec<Mirror>>;
        /// All states of the subscriptions of the tenant's customer, in no particular order.
        async fn read_timeline(&self, tenant: &TenantId) -> Result<Vec<TimelineEntry>>;
    }
}
