//! The change feed: what receivers get, written in the transaction of the change.
//!
//! Invariant: the id of a change depends on its key alone, so writing it twice writes it once.

use super::digest::{digest_fields, hex};
use super::ids::TenantId;
use super::named::named_enum;

/// The destination of changes: there is only one.
pub const CHANGES_DESTINATION: &str = "webhook";

named_enum! {
    /// What a change tells of. Each queue has its own sender, so that neither waits for the other.
    pub enum Queue {
        Alerts = "alerts",
        Changes = "changes",
    }
}

/// A change about a change that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedChange {
    /// What it tells of, such as `saga:saga_1:1:completed`: it is written once.
    pub key: String,
    /// Such as `saga.completed`.
    pub kind: &'static str,
    pub tenant: Option<TenantId>,
    /// A JSON object.
    pub payload: String,
}

impl FeedChange {
    /// Its name for receivers: derived, so that it is the same on every server that writes it.
    pub fn id(&self) -> String {
        let digest = digest_fields([b"counterfoil message v1".as_slice(), self.key.as_bytes()]);
        format!("msg_{}", hex(&digest[..12]))
    }
}
