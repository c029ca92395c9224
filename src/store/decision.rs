//! The inboxes, and what a person decides about what is in them.
//!
//! Invariant: a record is decided once and keeps its decision. An admission and the count of its
//! event are one transaction, so that a crash leaves both or neither.

use super::faulty::verbs;
use super::list::Query;
use super::{DeliveryBatch, Result};
use crate::rules::decision::{ConflictRuling, ConflictState, Decision, InboxKey, QuarantineState};
use crate::rules::event::Event;
use crate::rules::ids::{EventId, TenantId};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::{Acceptance, Quarantine};
use crate::rules::window::Window;

/// Another payload under a key that was already counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflictRecord {
    pub number: u64,
    pub tenant: TenantId,
    pub id: EventId,
    /// The payload that was counted, as JSON.
    pub standing: String,
    /// The payload that was not, as JSON.
    pub arriving: String,
    pub first_received_at: Timestamp,
    pub last_received_at: Timestamp,
    pub deliveries: u64,
    pub state: ConflictState,
    /// None while it is undecided.
    pub decision: Option<Decision>,
}

/// An event that was kept and not counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineRecord {
    pub number: u64,
    pub tenant: TenantId,
    pub id: EventId,
    pub payload: String,
    pub reason: Quarantine,
    pub first_received_at: Timestamp,
    pub last_received_at: Timestamp,
    pub deliveries: u64,
    pub state: QuarantineState,
    /// None while it is undecided.
    pub decision: Option<Decision>,
}

/// Which records of an inbox are listed; all of them, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InboxFilter {
    pub tenant: Option<TenantId>,
    pub id: Option<EventId>,
    /// When a payload came first.
    pub received: Option<Window>,
    pub decided: Option<bool>,
}

impl InboxFilter {
    /// The records of this tenant, if one is given.
    pub fn of(tenant: Option<TenantId>) -> Self {
        Self { tenant, ..Self::default() }
    }
}

/// Which quarantined events are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuarantineFilter {
    pub of: InboxFilter,
    pub reason: Option<Quarantine>,
}

/// Asks for a page of the conflicts, oldest first.
pub type ConflictQuery = Query<InboxFilter>;
/// Asks for a page of the quarantine, oldest first.
pub type QuarantineQuery = Query<QuarantineFilter>;

/// Events of one tenant that a person admits, each with the number of its record.
#[derive(Debug, Clone)]
pub struct AdmissionBatch {
    pub tenant: TenantId,
    /// The number of an event's record, in the order of the events.
    pub numbers: Vec<u64>,
    pub events: Vec<Event>,
    /// Its time is when the events are counted.
    pub decision: Decision,
    /// As for deliveries.
    pub groups_per_day: usize,
}

impl AdmissionBatch {
    /// The events as they are judged: by the rules of deliveries, at any time.
    pub(super) fn deliveries(&self) -> DeliveryBatch {
        DeliveryBatch {
            events: self.events.clone(),
            refused: Vec::new(),
            acceptance: Acceptance::of_admissions(self.decision.at),
            strict_tenants: false,
            groups_per_day: self.groups_per_day,
        }
    }
}

verbs! {
    /// Decisions about quarantined events and conflicts.
    pub trait Decisions: Send + Sync {
        async fn find_quarantined(&self, number: u64) -> Result<Option<QuarantineRecord>>;
        async fn find_conflict(&self, number: u64) -> Result<Option<ConflictRecord>>;
        /// Discards those of the records that are undecided; returns how many.
        async fn discard_quarantined(
            &self,
            records: Vec<InboxKey>,
            decision: Decision,
        ) -> Result<u64>;
        /// Decides those of the conflicts that are undecided; returns how many.
        async fn decide_conflicts(
            &self,
            records: Vec<InboxKey>,
            ruling: ConflictRuling,
            decision: Decision,
        ) -> Result<u64>;
    }
}
