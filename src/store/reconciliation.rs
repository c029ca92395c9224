//! What reconciliation keeps: the provider's totals as they were read, passes with their rows, and
//! findings. What it does to pushes is in `push`.
//!
//! Invariant: a summary's count of readings grows only while its value stays. Rows of a pass are
//! written while it runs, and never after it is closed. Writes of passes and findings are refused
//! to those who have lost the lease.
//!
//! A crash leaves a pass running, with the rows of whole chunks: the next holder of the lease goes
//! on after them.

pub use crate::rules::reissue::ReissueOrder;

use super::faulty::verbs;
use super::push::{Lease, Ruling};
use super::{Error, Query, Result};
use crate::rules::chain::Chain;
use crate::rules::drift::Summary;
use crate::rules::finding::{Finding, FindingChange, FindingKind};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::pass::{Hash, Pass, PassKind, PassOrder, PassProgress, PassRow, PassState};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;

/// A total of the provider's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryReading {
    pub tenant: TenantId,
    pub meter: MeterNo,
    /// Whose total it is: a tenant may have had another customer before.
    pub customer: CustomerId,
    /// An hour or a day; the two are kept apart.
    pub window: Window,
    pub value: Quantity,
}

/// A tenant and a meter, with the customer that the provider knows the tenant by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub customer: CustomerId,
}

/// How a pass ended, or how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassUpdate {
    pub number: u64,
    pub state: PassState,
    pub progress: PassProgress,
    pub hash: Option<Hash>,
    pub detail: Option<String>,
}

/// Passes, newest first.
#[derive(Debug, Clone, Default)]
pub struct PassFilter {
    pub kind: Option<PassKind>,
    pub state: Option<PassState>,
}

/// Tenant, meter and start of the day of a row.
pub type PassRowCursor = (TenantId, MeterNo, Timestamp);

/// Findings, newest first.
#[derive(Debug, Clone, Default)]
pub struct FindingFilter {
    pub open: Option<bool>,
    pub kind: Option<FindingKind>,
    pub tenant: Option<TenantId>,
}

/// Follows one nightly pass, given what reading its rows gave. Rows that are stored and cannot be
/// read end the chain; any other failure says nothing about it. Returns whether the chain goes on.
pub fn follow_pass(chain: &mut Chain, pass: &Pass, rows: Result<Vec<PassRow>>) -> Result<bool> {
    match rows {
        Ok(rows) => chain.follow(pass, &rows),
        Err(Error::Corrupt { what }) => chain.end_unreadable(pass.number, &what),
        Err(
            error @ (Error::Unavailable { .. }
            | Error::Overdue { .. }
            | Error::TooLarge { .. }
            | Error::Unknown { .. }
            | Error::Internal { .. }),
        ) => return Err(error),
    }
    Ok(!chain.is_broken())
}

verbs! {
    pub trait Reconciliation: Send + Sync {
        /// Keeps totals of the provider. A value that is the same as before is read once more, if
        /// it was read at least a second ago, and else left as it is; another begins again at one.
        /// A reading that is older than the one before is left out.
        async fn record_summaries(
            &self,
            readings: Vec<SummaryReading>,
            read_at: Timestamp,
        ) -> Result<()>;
        /// Totals of the customer, of windows that start in `range` and are `length_micros` long.
        async fn read_summaries(
            &self,
            owner: (&TenantId, &CustomerId),
            meter: MeterNo,
            range: Window,
            length_micros: i64,
        ) -> Result<Vec<Summary>>;
        /// Tenants with a customer, and meters, that have pushes (shadow or not, as asked) which
        /// came into their state since then, are observed, submitted or dead, or that have an open
        /// finding of usage; each once.
        async fn list_restless_pairs(&self, since: Timestamp, shadow: bool) -> Result<Vec<Pair>>;
        /// Customers that tenants were mapped to before, in no particular order.
        async fn list_former_customers(&self) -> Result<Vec<(TenantId, CustomerId)>>;

        /// Orders a pass. Of nightly passes there is one for each range: its number if there is
        /// one.
        async fn create_pass(&self, order: PassOrder, at: Timestamp) -> Result<u64>;
        /// Writes the state of a pass; a closed or failed one gets its end. False if the lease was
        /// lost or the pass was closed before.
        async fn update_pass(
            &self,
            lease: &Lease,
            update: PassUpdate,
            at: Timestamp,
        ) -> Result<bool>;
        async fn list_passes(&self, query: Query<PassFilter>) -> Result<Vec<Pass>>;
        async fn find_pass(&self, number: u64) -> Result<Option<Pass>>;
        /// Writes rows of a running pass, over those of the same tenant, meter and day. False if
        /// the lease was lost or the pass is not running.
        async fn record_pass_rows(
            &self,
            lease: &Lease,
            pass: u64,
            rows: Vec<PassRow>,
        ) -> Result<bool>;
        /// Rows of the pass, in the order of tenant, meter and day.
        async fn list_pass_rows(&self, query: Query<u64, PassRowCursor>) -> Result<Vec<PassRow>>;

        async fn list_findings(&self, query: Query<FindingFilter>) -> Result<Vec<Finding>>;
        /// Opens, follows and clears findings, in one transaction; a finding of which one with the
        /// same kind, tenant, meter and subject is open is followed instead. False if the lease was
        /// lost.
        async fn record_findings(
            &self,
            lease: &Lease,
            pass: u64,
            changes: Vec<FindingChange>,
            at: Timestamp,
        ) -> Result<bool>;
        /// Accepts the subscription of a finding as it is, and clears the finding: no pass reports
        /// the subscription again. Refused as `Finding::refuse_acceptance` says.
        async fn accept_finding(&self, number: u64, at: Timestamp) -> Result<Ruling>;
        /// Whether a person has accepted this subscription.
        async fn is_accepted(&self, subscription: &str) -> Result<bool>;
        /// Tenants with an open finding of usage that was seen by two passes or more and is drift
        /// now.
        async fn count_drifting_tenants(&self) -> Result<u64>;
    }
}
