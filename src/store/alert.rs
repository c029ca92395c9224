//! Alerts, the notices that tell of them, and the thresholds that raise some.
//!
//! Invariant: at most one alert of a kind and subject is open. An alert's opening and its end are
//! written together with one notice for each destination; a notice is sent until its destination
//! has taken it, refused it, or a newer state made it pointless.
//!
//! A crash leaves a notice waiting, or leased until its lease ends; then it is sent again under the
//! same number, by which destinations tell repeats.

use super::Result;
use super::faulty::verbs;
use crate::rules::alert::{Alert, AlertChange, AlertKind, NoticeEvent};
pub use crate::rules::alert::{ThresholdKind, ThresholdPeriod};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;

/// Asks for alerts, newest first.
#[derive(Debug, Clone, Default)]
pub struct AlertQuery {
    pub open: Option<bool>,
    pub kind: Option<AlertKind>,
    pub before: Option<u64>,
    pub limit: usize,
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

/// A notice that only the claimant sends, until its lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedNotice {
    pub number: u64,
    pub fence: u64,
    pub destination: String,
    pub event: NoticeEvent,
    pub alert: Alert,
    /// Attempts before this one.
    pub attempts: u32,
    pub created_at: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoticeOutcome {
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

impl NoticeOutcome {
    /// The state it leaves, when it is tried again, and what went wrong.
    pub fn parts(&self) -> (&'static str, Option<Timestamp>, Option<&str>) {
        match self {
            Self::Sent => ("sent", None, None),
            Self::Later { until, detail } => ("waiting", Some(*until), Some(detail)),
            Self::GivenUp { detail } => ("given_up", None, Some(detail)),
        }
    }
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

/// Asks for a page of thresholds: in the order in which tenants were first heard of, then by meter,
/// kind and period.
#[derive(Debug, Clone)]
pub struct ThresholdQuery {
    pub tenant: Option<TenantId>,
    /// The last one of the page before.
    pub after: Option<ThresholdKey>,
    pub limit: usize,
}

/// What one threshold is set for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThresholdKey {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub kind: ThresholdKind,
    pub period: ThresholdPeriod,
}

impl ThresholdQuery {
    /// All of them, or a tenant's.
    pub fn all(tenant: Option<TenantId>) -> Self {
        Self { tenant, after: None, limit: usize::MAX }
    }
}

verbs! {
    pub trait Alerts: Send + Sync {
        /// Opens and ends alerts, with a notice for each destination, in one transaction. One that
        /// is open already, or resolved already, is left alone. A notice of an opening that still
        /// waits when its alert ends is given up. If it was never claimed, no notice of that end is
        /// written for its destination; if it was, the destination may have taken it, and is told
        /// of the end as soon as nobody sends the opening any more. A new text of an alert that is
        /// open is kept, without a notice. Returns how many alerts were opened and ended.
        async fn record_alerts(
            &self,
            changes: Vec<AlertChange>,
            destinations: &[&'static str],
            at: Timestamp,
        ) -> Result<usize>;
        async fn list_alerts(&self, query: AlertQuery) -> Result<Vec<Alert>>;
        async fn count_pages(&self, now: Timestamp) -> Result<PageCounts>;

        /// Leases notices that are due, longest due first, and those whose lease ended by `now`.
        /// Each claim is an attempt: nobody knows how far a claimant came that was not heard of
        /// again.
        async fn claim_notices(
            &self,
            now: Timestamp,
            lease_until: Timestamp,
            limit: usize,
        ) -> Result<Vec<ClaimedNotice>>;
        /// Settles a claimed notice; false if its fence is not current.
        async fn settle_notice(
            &self,
            number: u64,
            fence: u64,
            outcome: NoticeOutcome,
            at: Timestamp,
        ) -> Result<bool>;

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
        async fn list_thresholds(&self, query: ThresholdQuery) -> Result<Vec<Threshold>>;
    }
}
