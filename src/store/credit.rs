//! Credits: grants, and every change of them.
//!
//! Invariant: a grant's row, the change that explains it and the entry between the tenant's credit
//! accounts are written in one transaction; draws and what is given back in that of the cut
//! (`record_cuts`). What a grant has left is never negative: by rule, by the row's own constraint
//! and by the floor of the pool's account. A crash leaves a change whole or not at all.

pub use crate::rules::grant::{Issued, VoidGrant, Voided};

use super::faulty::verbs;
use super::idempotency::Completing;
use super::{Query, Result};
use crate::rules::credit::{CreditChange, Grant, GrantTerms};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::timestamp::Timestamp;

/// A tenant's changes, or those of a grant, newest first.
#[derive(Debug, Clone)]
pub struct ChangeFilter {
    pub tenant: TenantId,
    pub grant: Option<u64>,
}

/// A tenant's grants, in the order of their numbers.
#[derive(Debug, Clone)]
pub struct GrantFilter {
    pub tenant: TenantId,
    /// Only those with anything left.
    pub live: bool,
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
        /// The grant that was issued under this key.
        async fn find_grant(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Grant>>;
        async fn list_grants(&self, query: Query<GrantFilter>) -> Result<Vec<Grant>>;
        async fn list_credit_changes(
            &self,
            query: Query<ChangeFilter>,
        ) -> Result<Vec<CreditChange>>;
    }
}
