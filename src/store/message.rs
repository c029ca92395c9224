//! The outbox of changes: what others are told, written in the transaction of what it tells.
//!
//! Invariant: a message is written once under its key and never changes. It is delivered at least
//! once, in the order of numbers as far as one destination takes them, and its id is the same each
//! time, so that the receiver can tell repeats. A crash leaves it waiting, or leased until its
//! lease ends; then it is sent again.

pub use crate::rules::message::NewMessage;

use super::Result;
use super::alert::NoticeOutcome;
use super::faulty::verbs;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Order of creation.
    pub number: u64,
    pub id: String,
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

verbs! {
    pub trait Messages: Send + Sync {
        /// Writes messages that tell of nothing else that is written; those whose key stands are
        /// left out. Returns how many were written.
        async fn record_messages(&self, messages: Vec<NewMessage>, at: Timestamp) -> Result<usize>;
        /// Oldest first, after the number `after`.
        async fn list_messages(
            &self,
            tenant: Option<&TenantId>,
            after: u64,
            limit: usize,
        ) -> Result<Vec<Message>>;
        /// Leases waiting messages that are due, oldest first, and those whose lease ended by
        /// `now`. Each claim is an attempt.
        async fn claim_messages(
            &self,
            now: Timestamp,
            lease_until: Timestamp,
            limit: usize,
        ) -> Result<Vec<ClaimedMessage>>;
        /// Settles a claimed message; false if its fence is not current.
        async fn settle_message(
            &self,
            number: u64,
            fence: u64,
            outcome: NoticeOutcome,
            at: Timestamp,
        ) -> Result<bool>;
        /// Removes settled messages, and waiting ones too, that were written before then, at most
        /// `limit`; returns how many. Those of dunning stay: an invoice may be owed for longer than
        /// messages are kept, and only they say what was told of it.
        async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize>;
    }
}
