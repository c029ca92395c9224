//! Credits: grants, and every change of them.
//!
//! Invariant: a grant's row, the change that explains it and the entry between the tenant's credit
//! accounts are written in one transaction; draws and what is given back in that of the cut
//! (`record_cuts`). What a grant has left is never negative: by rule, by the row's own constraint
//! and by the floor of the pool's account. A crash leaves a change whole or not at all.

pub use crate::rules::grant::{Issued, VoidGrant, Voided};

use super::Result;
use super::faulty::verbs;
use super::idempotency::Completing;
use crate::rules::credit::{CreditChange, Grant, GrantTerms};
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;

/// Asks for changes, newest first.
#[derive(Debug, Clone)]
pub struct ChangeQuery {
    pub tenant: TenantId,
    pub grant: Option<u64>,
    /// The number of the last change of the page before.
    pub before: Option<u64>,
    pub limit: usize,
}

/// Which grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantFilter {
    /// With anything left.
    Live,
    All,
}

verbs! {
    pub trait Credits: Send + Sync {
        /// Issues a grant; the tenant is created if it is not known. Terms are checked before.
        /// Writes the change `credits.issued` (see `store::outbox`).
        async fn issue_grant(
            &self,
            terms: GrantTerms,
            at: Timestamp,
            completing: Option<&Completing<Issued>>,
        ) -> Result<Issued>;
        /// Voids what `rules::grant::plan_void` allows. Writes the change
        /// `credits.voided`.
        async fn void_grant(
            &self,
            order: VoidGrant,
            at: Timestamp,
            completing: Option<&Completing<Voided>>,
        ) -> Result<Voided>;
        /// Takes away what is left of grants that expired by `expired_by`, at most `limit` of them,
        /// each with the change `credits.expired`; returns how many.
        async fn expire_grants(
            &self,
            expired_by: Timestamp,
            at: Timestamp,
            limit: usize,
        ) -> Result<usize>;
        /// In the order of their numbers; at most `limit` after the number `after`.
        async fn list_grants(
            &self,
            tenant: &TenantId,
            filter: GrantFilter,
            after: u64,
            limit: usize,
        ) -> Result<Vec<Grant>>;
        async fn list_credit_changes(&self, query: ChangeQuery) -> Result<Vec<CreditChange>>;
    }
}
