//! The store: verbs that are whole transactions. Two implementations, SQLite and PostgreSQL, pass
//! one conformance suite (`tests/store_conformance`). What has to be fast is native to each; the
//! other verbs are written once, in `sql`.
//!
//! Contract of every verb: when it returns `Ok`, its effect is durable (SQLite synchronous=FULL,
//! PostgreSQL synchronous_commit=on); when it returns an error other than [`Error::Unknown`],
//! nothing happened; a crash in the middle leaves all of it or nothing. A verb never does half.

pub mod account;
pub mod alert;
pub mod binding;
pub mod clock;
pub mod credit;
pub mod decision;
pub mod epoch;
mod fault_log;
pub mod faulty;
pub mod groups;
pub mod idempotency;
pub mod list;
pub mod migrate;
pub mod outbox;
pub mod postgres;
pub mod push;
pub mod quote;
pub mod reconciliation;
pub mod saga;
pub mod self_check;
mod sql;
pub mod sqlite;
pub mod throttle;
pub mod webhook;

use crate::clock::Clock;
use crate::rules::chain::ChainReport;
use crate::rules::event::Event;
use crate::rules::fault::Fault;
use crate::rules::ids::{CustomerId, EventId, MeterNo, MeterSlug, TenantId};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::self_check::SliceReport;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::{ComposeError, Usage, UsageRow, UsageShape};
use crate::rules::verdict::{Acceptance, Tally, Verdict};
use crate::rules::window::Window;
use account::Accounts;
use alert::Alerts;
use async_trait::async_trait;
use binding::Bindings;
use clock::Clocks;
use credit::Credits;
use decision::{
    AdmissionBatch, ConflictQuery, ConflictRecord, Decisions, QuarantineQuery, QuarantineRecord,
};
use epoch::Epochs;
use faulty::verbs;
pub use list::Query;
use outbox::Outbox;
use push::{Cuts, Leases, PushChanges, PushHistory, Pushes};
use quote::Quotes;
use reconciliation::Reconciliation;
use saga::Sagas;
use self_check::{SelfChecks, Slices};
use std::sync::Arc;
use webhook::{Mirrors, Webhooks};

/// Why a verb failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or cannot write now. No effect; safe to retry.
    #[error("the store is unavailable: {what}")]
    Unavailable { what: String },
    /// A read exceeded its time limit. No effect.
    #[error("a read exceeded its time limit: {what}")]
    Overdue { what: String },
    /// The answer would exceed its limits. No effect.
    #[error("the answer is too large: {what}")]
    TooLarge { what: String },
    /// The connection broke during COMMIT: the transaction was committed or it was not. Safe to
    /// retry: deliveries are counted once.
    #[error("the outcome is unknown: {what}")]
    Unknown { what: String },
    /// Stored data is invalid or contradicts itself. Never retried; needs an operator.
    #[error("corrupt row: {what}")]
    Corrupt { what: String },
    /// A bug in this program.
    #[error("internal fault: {what}")]
    Internal { what: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the error concerns single rows, so that a job may continue with others; otherwise
    /// the store cannot answer now.
    pub fn is_of_data(&self) -> bool {
        match self {
            Self::Corrupt { .. } | Self::Internal { .. } => true,
            Self::Unavailable { .. }
            | Self::Overdue { .. }
            | Self::TooLarge { .. }
            | Self::Unknown { .. } => false,
        }
    }
}

/// A stored value that its column cannot have. Long values are cut: the log identifies the row and
/// does not copy it.
fn damaged(column: &str, value: impl std::fmt::Display) -> Error {
    Error::Corrupt { what: format!("{column}='{value:.80}' is not valid") }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Internal { what: fault.to_string() }
    }
}

impl From<ComposeError> for Error {
    fn from(error: ComposeError) -> Self {
        match error {
            ComposeError::TooLarge => Self::TooLarge { what: error.to_string() },
            ComposeError::Fold(_) => Self::Corrupt { what: error.to_string() },
            ComposeError::Fault(fault) => fault.into(),
        }
    }
}

/// Events delivered together; each gets its own verdict.
#[derive(Debug, Clone)]
pub struct DeliveryBatch {
    /// Events of tenants that belong to one partition.
    pub events: Vec<Event>,
    /// Items that were refused before they became events: only counted.
    pub refused: Vec<(Option<TenantId>, u64)>,
    pub acceptance: Acceptance,
    /// Whether a tenant that was never declared is refused instead of created.
    pub strict_tenants: bool,
    /// Groups of a tenant's meter on a day; an event of a further one is quarantined.
    pub groups_per_day: usize,
}

/// An event as it was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    pub event: Event,
    pub received_at: Timestamp,
}

/// Payloads of one id that an inbox keeps. Of further ones only the number of deliveries is kept.
pub const INBOX_PAYLOADS_MAX: usize = 100;

/// Everything known of one event key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventTrace {
    pub counted: Option<StoredEvent>,
    pub conflicts: Vec<ConflictRecord>,
    pub quarantined: Vec<QuarantineRecord>,
    /// Deliveries of further conflicting payloads, which were not kept.
    pub conflicts_not_kept: u64,
    /// Deliveries of further payloads out of time, which were not kept.
    pub quarantined_not_kept: u64,
}

/// Events of one tenant, newest first: by occurred_at, then by id, both descending.
#[derive(Debug, Clone)]
pub struct EventFilter {
    pub tenant: TenantId,
    pub meter: Option<MeterNo>,
    pub range: Option<Window>,
    /// How many of the tenant's events are looked at for those of the meter.
    pub searched_max: usize,
}

/// A page of a tenant's events, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventPage {
    pub events: Vec<StoredEvent>,
    /// Where the search ended before the page was full: it has looked at as many events as one
    /// call may, and goes on before this one.
    pub searched_to: Option<EventCursor>,
}

/// Where a page of events ended.
pub type EventCursor = (Timestamp, EventId);
pub type EventQuery = Query<EventFilter, EventCursor>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub id: TenantId,
    pub name: Option<String>,
    /// The billing provider's name for it.
    pub customer: Option<CustomerId>,
    pub created_at: Timestamp,
}

/// Changes to a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantFields {
    /// None leaves the name as it is; an empty one removes it.
    pub name: Option<String>,
    /// None leaves the customer as it is.
    pub customer: Option<CustomerId>,
    /// Removes the customer, which is kept as a former one. Unsent pushes wait for the next
    /// customer.
    pub unmap: bool,
}

/// Its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantPut {
    Stored(Tenant),
    /// Another tenant is this customer; nothing was changed. Two tenants under one customer could
    /// not be distinguished in the provider's totals.
    CustomerTaken(TenantId),
}

/// The outcome of a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declaration<T> {
    Created,
    /// It was declared before and counts the same; the mutable fields were updated.
    Updated,
    /// Something else was declared under that name before; it is unchanged.
    Refused(T),
    /// Another meter is billed under this event name; the provider could not distinguish them.
    /// Nothing was changed.
    EventNameTaken(MeterSlug),
}

/// One API key; the token itself is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    /// HMAC-SHA256 of the token under the store's secret.
    pub digest: [u8; 32],
    /// Scope names; see `api::keys`.
    pub scopes: Vec<String>,
    pub tenant: Option<TenantId>,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// Conservation: events received from a tenant in an hour, by verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterRow {
    /// None: the tenant could not be read from what was refused.
    pub tenant: Option<TenantId>,
    pub hour: Timestamp,
    pub tally: Tally,
}

/// Counters: by hour, then in the order in which tenants were created.
#[derive(Debug, Clone)]
pub struct CounterFilter {
    /// Of hours that start in it.
    pub range: Window,
    /// Of this tenant only.
    pub tenant: Option<TenantId>,
}

/// The cursor is the hour and the tenant of a row.
pub type CounterQuery = Query<CounterFilter, (Timestamp, Option<TenantId>)>;

/// Result of comparing totals with events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    pub events: u64,
    pub rollups: u64,
    /// The chain of nightly passes.
    pub audit: ChainReport,
    /// One line for each contradiction, at most [`CHECK_FINDINGS_MAX`].
    pub findings: Vec<String>,
}

pub const CHECK_FINDINGS_MAX: usize = 100;
/// Totals, unique values and counters that a check holds at once: about 25 MB.
pub const CHECK_ROWS_MAX: usize = 65_536;

impl CheckReport {
    /// Adds a finding while there is room; its text is built only then.
    fn add(&mut self, finding: impl FnOnce() -> String) {
        if self.findings.len() < CHECK_FINDINGS_MAX {
            self.findings.push(finding());
        }
    }

    /// Takes what was found of a slice.
    fn add_slice(&mut self, slice: SliceReport) {
        self.rollups += slice.totals;
        for mismatch in &slice.mismatches {
            self.add(|| mismatch.to_string());
        }
        if slice.more > 0 {
            self.add(|| format!("{} more totals or counters of the same tenants", slice.more));
        }
    }
}

/// Health of a store that answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Why events are not folded into tables any more. They count, and stay in the journal.
    pub fold_stopped: Option<String>,
    /// Events that are in the journal only.
    pub unfolded_events: u64,
    /// The size of the write-ahead log.
    pub log_bytes: u64,
    /// Facts that did not hold since the store was opened, each with its ids.
    pub faults: Vec<String>,
}

/// How far a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckProgress {
    pub step: CheckStep,
    /// Events that this step has read, and about how many there are.
    pub events: u64,
    pub of: u64,
}

/// What a check does one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckStep {
    /// Whether every event is there, and found by its key.
    Keys,
    /// Whether totals and counters are what the events add up to.
    Totals,
}

/// Called now and then while a check goes on.
pub type Progress<'a> = &'a (dyn Fn(CheckProgress) + Send + Sync);

verbs! {
    /// Deliveries in, verdicts out.
    pub trait Deliveries: Send + Sync {
        /// Number of concurrent writers. A tenant's events always go to the same one, so two
        /// writers never update one total.
        fn partitions(&self) -> usize;

        /// Judges and records the batch in one transaction: event keys, events, totals, inboxes and
        /// counters. Returns one verdict for each event, in order. Durable on return. After
        /// [`Error::Unknown`] the same batch, sent again, is recognised.
        async fn record_deliveries(
            &self,
            partition: usize,
            batch: DeliveryBatch,
        ) -> Result<Vec<Verdict>>;

        /// Judges and records events that a person admits, as deliveries are but at any time of
        /// theirs; decides their records by the verdicts, and has the windows of those that were
        /// counted cut again: all in one transaction. What would be one group too many stays
        /// undecided. None, and no effect, if one of the records is no longer undecided. Durable on
        /// return. After [`Error::Unknown`] the records tell what happened.
        async fn record_admissions(
            &self,
            partition: usize,
            batch: AdmissionBatch,
        ) -> Result<Option<Vec<Verdict>>>;
    }
}

verbs! {
    /// Meters and tenants.
    pub trait Declarations: Send + Sync {
        /// Declares a meter, or updates the mutable fields of one that counts the same.
        async fn declare_meter(&self, meter: Meter, at: Timestamp) -> Result<Declaration<Meter>>;
        async fn load_catalog(&self) -> Result<Catalog>;
        /// Creates or changes a tenant.
        async fn put_tenant(
            &self,
            tenant: &TenantId,
            fields: TenantFields,
            at: Timestamp,
        ) -> Result<TenantPut>;
    }
}

verbs! {
    /// Tenants as they are looked at.
    pub trait Tenants: Send + Sync {
        async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>>;
        /// The tenant that is this customer.
        async fn find_customer(&self, customer: &CustomerId) -> Result<Option<Tenant>>;
        /// Tenants in the order of their ids.
        async fn list_tenants(&self, query: Query<(), TenantId>) -> Result<Vec<Tenant>>;
    }
}

verbs! {
    /// Totals, events and inboxes: each answer is a consistent snapshot that includes every event
    /// acknowledged before the call.
    pub trait Queries: Send + Sync {
        /// The totals of buckets that start in `range`, in no particular order; one key may come in
        /// several rows, which fold to its total. [`Error::TooLarge`] beyond `rows_max` totals and
        /// unique values.
        async fn read_usage(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            range: Window,
            rows_max: usize,
        ) -> Result<Vec<UsageRow>>;
        /// Composes the same totals while reading, so that they are never all in memory.
        /// The windows of `shape` cover `range`.
        async fn compose_usage(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            range: Window,
            shape: UsageShape,
        ) -> Result<Usage>;
        async fn list_events(&self, query: EventQuery) -> Result<EventPage>;
        async fn trace_event(&self, tenant: &TenantId, id: &EventId) -> Result<EventTrace>;
        async fn list_conflicts(&self, query: ConflictQuery) -> Result<Vec<ConflictRecord>>;
        async fn list_quarantine(&self, query: QuarantineQuery) -> Result<Vec<QuarantineRecord>>;
        /// Counters of hours that start in `range`, of all tenants, in no particular order.
        async fn read_counters(&self, range: Window) -> Result<Vec<CounterRow>>;
        async fn list_counters(&self, query: CounterQuery) -> Result<Vec<CounterRow>>;
        /// Recomputes every total from the events, and the counters, and compares.
        async fn check(&self, progress: Progress<'_>) -> Result<CheckReport>;
    }
}

verbs! {
    /// API keys.
    pub trait ApiKeys: Send + Sync {
        /// The secret for digests of tokens; created once, never changed.
        fn token_secret(&self) -> [u8; 32];
        async fn create_api_key(&self, key: ApiKey) -> Result<()>;
        async fn list_api_keys(&self) -> Result<Vec<ApiKey>>;
        /// Returns false if there is no such key, or it was revoked before.
        async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool>;
    }
}

/// All verbs, and the store's lifecycle.
#[async_trait]
pub trait Store:
    Deliveries
    + Declarations
    + Tenants
    + Queries
    + ApiKeys
    + Leases
    + Cuts
    + Pushes
    + PushChanges
    + PushHistory
    + Webhooks
    + Mirrors
    + Reconciliation
    + Alerts
    + Accounts
    + Credits
    + Sagas
    + Decisions
    + Quotes
    + Outbox
    + Clocks
    + Epochs
    + Bindings
    + Slices
    + SelfChecks
{
    /// The latest moment this store had recorded when it was opened.
    fn high_water(&self) -> Timestamp;
    /// Problems of a store that still answers.
    fn health(&self) -> Health {
        Health::default()
    }
    /// The same store for jobs, with connections of its own where requests could take all of them;
    /// none where they cannot. Only this store is closed, and the other with it.
    fn for_jobs(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }
    /// The idempotency keys of requests. Leases, and the times for which answers are kept, run by
    /// `clock`. A key that ends with its effect ends through the verb of the effect
    /// ([`idempotency::Completing`]).
    fn request_keys(self: Arc<Self>, clock: Clock) -> Arc<dyn counterfoil_idempotency::Store>;
    /// Whether the store can answer now.
    async fn ping(&self) -> Result<()>;
    /// Waits for work in progress and closes files. Later verbs are unavailable.
    async fn close(&self);
}

/// Ends the process where continuing would count wrongly; the next start recovers.
pub(crate) fn stop_process(why: &str) -> ! {
    tracing::error!("stopping: {why}");
    eprintln!("counterfoil: stopping: {why}");
    std::process::exit(74)
}
