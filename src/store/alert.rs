//! Alerts, and the thresholds that raise some.
//!
//! Invariant: at most one alert of a kind and subject is open. An alert's opening and its end are
//! written together with one notice for each destination, which is a message in the outbox; a crash
//! leaves both or neither.

use super::faulty::verbs;
use super::{Query, Result};
use crate::rules::alert::{Alert, AlertChange, AlertKind};
pub use crate::rules::alert::{ThresholdKind, ThresholdPeriod};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;

/// Alerts, newest first.
#[derive(Debug, Clone, Default)]
pub struct AlertFilter {
    pub open: Option<bool>,
    pub kind: Option<AlertKind>,
}

/// How often someone was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCounts {
    pub open: u64,
    /// Opened in the last 24 hours.
    pub day: u64,
    /// Opened in the last seven days, and in the seven before.
    pub week: u64,
    pub week_before: u64,
}

/// When a tenant's usage is worth a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub kind: ThresholdKind,
    pub period: ThresholdPeriod,
    /// The usage of a period from which on it is.
    pub limit: Quantity,
    pub created_at: Timestamp,
}

/// What one threshold is set for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThresholdKey {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub kind: ThresholdKind,
    pub period: ThresholdPeriod,
}

verbs! {
    pub trait Alerts: Send + Sync {
        /// Opens and ends alerts, with a notice for each destination, in one transaction. One that
        /// is open already, or resolved already, is left alone. A notice of an opening that still
        /// waits when its alert ends is given up. If it was never claimed, no notice of that end is
        /// written for its destination; if it was, the destination may have accepted it, and is
        /// sent the end as soon as nobody sends the opening any more. A new text of an alert that
        /// is open is kept, without a notice. Returns how many alerts were opened and ended.
        async fn record_alerts(
            &self,
            changes: Vec<AlertChange>,
            destinations: &[&'static str],
            at: Timestamp,
        ) -> Result<usize>;
        async fn list_alerts(&self, query: Query<AlertFilter>) -> Result<Vec<Alert>>;
        async fn count_pages(&self, now: Timestamp) -> Result<PageCounts>;

        /// One threshold for each tenant, meter, kind and period; another limit takes its place.
        /// The tenant is created if it is not known.
        async fn put_threshold(&self, threshold: Threshold) -> Result<()>;
        async fn delete_threshold(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            kind: ThresholdKind,
            period: ThresholdPeriod,
        ) -> Result<bool>;
        /// A tenant's thresholds or all: in the order in which tenants were first heard of, then by
        /// meter, kind and period.
        async fn list_thresholds(
            &self,
            query: Query<Option<TenantId>, ThresholdKey>,
        ) -> Result<Vec<Threshold>>;
    }
}
