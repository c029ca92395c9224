//! The verbs of the self-check: reading slices, and keeping what was found.
//!
//! Invariant: how far a walk is, and which windows do not agree, change together, in the
//! transaction of one slice. A crash leaves the slice unchecked, and the next holder of the lease
//! checks it again. A mismatch is removed only by a slice that has its window, was read whole and
//! found it to agree.

use super::Result;
use super::faulty::verbs;
use super::push::Lease;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::self_check::{Mismatch, Place, SelfCheck, Slice, SliceReport};
use crate::rules::timestamp::Timestamp;

/// Mismatches that are kept; of further ones only the walk's number is.
pub const MISMATCHES_MAX: usize = 1_000;

/// A tenant and meter with totals, and the starts of the first and the last bucket that have any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalsPair {
    pub tenant: TenantNo,
    pub meter: MeterNo,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// A mismatch as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMismatch {
    pub number: u64,
    pub mismatch: Mismatch,
    pub found_at: Timestamp,
}

verbs! {
    /// The ledger in slices. Each is read in short snapshots; nothing is written.
    pub trait Slices: Send + Sync {
        /// The slices from a place on, in their order and without a gap, at most `limit`. The last
        /// one ends where the next call begins; nothing follows the slice that has no place after
        /// it.
        async fn plan_slices(&self, from: Place, limit: usize) -> Result<Vec<Slice>>;
        /// Compares the stored totals and counters of a slice with its events. At most `rows_max`
        /// rows are held at once; a slice with more is read several times. A row that cannot be
        /// read is [`Error::Corrupt`](super::Error::Corrupt), and nothing is known of the slice.
        async fn check_slice(&self, slice: Slice, rows_max: usize) -> Result<SliceReport>;
        /// Tenants and meters with totals after one, in order.
        async fn list_pairs(
            &self,
            after: (TenantNo, MeterNo),
            limit: usize,
        ) -> Result<Vec<TotalsPair>>;
        /// Tenants after one of which events were counted in an hour since `since`, in order.
        async fn list_active(
            &self,
            since: Timestamp,
            after: TenantNo,
            limit: usize,
        ) -> Result<Vec<TenantNo>>;
    }
}

verbs! {
    /// What the self-check knows.
    pub trait SelfChecks: Send + Sync {
        async fn read_self_check(&self) -> Result<SelfCheck>;
        /// Writes what is known by now and, of each slice that was compared, its mismatches in the
        /// place of those that were kept of it, in one transaction. Returns false if the lease
        /// was lost; then nothing was written.
        async fn record_self_check(
            &self,
            lease: &Lease,
            check: SelfCheck,
            compared: Vec<(Slice, Vec<Mismatch>)>,
            at: Timestamp,
        ) -> Result<bool>;
        /// Windows that do not agree, those that were found first come first.
        async fn list_mismatches(&self, limit: usize) -> Result<Vec<KeptMismatch>>;
        async fn count_mismatches(&self) -> Result<u64>;
        async fn name_tenant(&self, number: TenantNo) -> Result<Option<TenantId>>;
        /// The highest number of a tenant; 0 if there is none.
        async fn last_tenant(&self) -> Result<TenantNo>;
    }
}
