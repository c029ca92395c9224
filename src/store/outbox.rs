//! The outbox: what is sent to others, written in the transaction of what it tells of.
//!
//! Invariant: a message is written once under its id and never changes but in how it is delivered.
//! It is delivered at least once, in the order of numbers as far as one destination takes them, and
//! its id and number are the same each time, so that the receiver can tell repeats. One that was
//! sent or given up is never sent again. A crash leaves it waiting, or leased until its lease ends;
//! then it is sent again.

pub use crate::rules::change::{FeedChange, Queue};

use super::faulty::verbs;
use super::{Query, Result};
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Order of creation.
    pub number: u64,
    pub id: String,
    pub destination: String,
    pub kind: String,
    pub tenant: Option<TenantId>,
    pub payload: String,
    pub at: Timestamp,
}

/// A message that only the claimant sends, until its lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedMessage {
    pub message: Message,
    pub fence: u64,
    /// Attempts before this one.
    pub attempts: u32,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    Sent,
    Later {
        until: Timestamp,
        detail: String,
    },
    /// It is not tried again.
    GivenUp {
        detail: String,
    },
}

impl SendOutcome {
    /// The state it leaves, when it is tried again, and what went wrong.
    pub fn parts(&self) -> (&'static str, Option<Timestamp>, Option<&str>) {
        match self {
            Self::Sent => ("sent", None, None),
            Self::Later { until, detail } => ("waiting", Some(*until), Some(detail)),
            Self::GivenUp { detail } => ("given_up", None, Some(detail)),
        }
    }
}

verbs! {
    pub trait Outbox: Send + Sync {
        /// Writes changes that belong to no other write; those whose key exists are
        /// left out. Returns how many were written.
        async fn publish_changes(&self, messages: Vec<FeedChange>, at: Timestamp) -> Result<usize>;
        /// Messages about changes, a tenant's or all, oldest first.
        async fn list_changes(&self, query: Query<Option<TenantId>>) -> Result<Vec<Message>>;
        /// Leases waiting messages of a queue that are due, longest due first, and those whose
        /// lease ended by `now`. Each claim is an attempt: nobody knows how far a claimant came
        /// that was not heard of again.
        async fn claim_messages(
            &self,
            queue: Queue,
            now: Timestamp,
            lease_until: Timestamp,
            limit: usize,
        ) -> Result<Vec<ClaimedMessage>>;
        /// Settles a claimed message; false if its fence is not current.
        async fn settle_message(
            &self,
            number: u64,
            fence: u64,
            outcome: SendOutcome,
            at: Timestamp,
        ) -> Result<bool>;
        /// Removes settled messages, and waiting ones too, that were written before then, at most
        /// `limit`; returns how many. Those of dunning stay: an invoice may be owed for longer than
        /// messages are kept, and only they record its published stages.
        async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize>;
    }
}
