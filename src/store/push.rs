//! The outbound half of the store: leases, cuts, pushes and their history, as verbs that are whole
//! transactions.
//!
//! Invariant: a push's row is durable before anyone can claim it; its customer and request bytes
//! are durable before the first byte leaves (`begin_attempts`), and never change afterwards. At
//! most one push of a window has been begun and not resolved; at most one of a tenant and meter is
//! leased. Both are unique indexes besides being rules. Every change of a push adds a row to its
//! history in the same transaction.
//!
//! A crash leaves a push where its last transaction put it: planned and never sent, or begun with
//! an unknown outcome, which its expired lease makes due again under the same key and bytes.

pub use crate::rules::cut::CutTerms;
pub use crate::rules::push::{Push, Transition};
pub use crate::rules::settlement::{AttemptIntent, Right, Settlement};

use super::epoch::Uncompared;
use super::faulty::verbs;
use super::{Error, Query, Result};
use crate::faults::planted;
use crate::rules::attribution::{Divided, Outside};
use crate::rules::billing::Mode;
use crate::rules::drift::{Summary, WindowPush};
use crate::rules::evidence::judge_resend;
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::push::{CutState, KeyParts, NewPush, StoredPush, push_key};
use crate::rules::quantity::Quantity;
use crate::rules::reissue::ReissueOrder;
use crate::rules::rejection::{Rejection, RejectionReport, plan_rejection};
use crate::rules::settlement::Change;
use crate::rules::span::Span;
use crate::rules::submission::{Class, PushState, Retry, judge_retry};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use std::collections::BTreeMap;

/// The right to run a job that runs once at a time, by its fence: it grows with each holder, and
/// what an earlier holder writes is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub name: &'static str,
    pub fence: u64,
}

/// One window that is to be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutOrder {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub window: Window,
    /// Whether it is cut also if no event came since its last cut.
    pub recut: bool,
}

/// A request to cut a tenant's windows again, of all meters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recut {
    pub number: u64,
    pub tenant: TenantId,
    /// Windows that overlap it.
    pub range: Window,
    /// Whether windows that are open are cut too.
    pub expedited: bool,
}

/// What a call of `record_cuts` did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CutReport {
    /// Pushes that were written.
    pub pushes: u64,
    /// Orders of which events are left beyond `events_max`; order them again.
    pub unfinished: Vec<CutOrder>,
    /// Whether the lease was lost; then nothing was written.
    pub lease_lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushTrace {
    pub push: Push,
    /// Oldest first.
    pub transitions: Vec<Transition>,
}

/// Asks to claim pushes that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushClaim {
    pub now: Timestamp,
    /// A claim that was not settled by then can be taken by another.
    pub lease_until: Timestamp,
    pub limit: usize,
    /// Only pushes that are shadow, or only those that are not.
    pub shadow: bool,
}

/// A push that only the claimant works on, until its lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedPush {
    pub push: Push,
    pub fence: u64,
    /// The customer to send it for: the one it was sent for before, else the one that the window
    /// belongs to (`rules::customer::customer_of_window`), else the tenant's own.
    pub customer: CustomerId,
    /// The bytes it was sent with before.
    pub request: Option<Vec<u8>>,
    /// How often the provider's stored answer had to be got round by a fresh request key.
    pub request_keys: u32,
    /// The sum of the quantities of the window's settled pushes.
    pub settled: Quantity,
    /// Whether the window holds a push whose outcome is unknown: dead as undecidable or unreadable,
    /// or discarded after that.
    pub doubtful: bool,
    /// Since when its summary could not be read; none if it was not asked or could be.
    pub unreadable_since: Option<Timestamp>,
    /// Set if nothing of it may be sent before its window was compared with the provider's total.
    pub uncompared: Option<Uncompared>,
}

/// A window with submitted pushes that are due to be looked for in the provider's summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmittedWindow {
    pub tenant: TenantId,
    pub customer: CustomerId,
    pub meter: MeterNo,
    pub window: Window,
    pub mode: Mode,
    /// What the summary shows when all has arrived: the sum of the settled quantities in delta
    /// mode, the value of the last settled revision in absolute mode.
    pub expected: Quantity,
    /// The submitted, unconfirmed ones: number and quantity.
    pub pushes: Vec<(u64, Quantity)>,
    /// When the last of those was taken.
    pub submitted_at: Timestamp,
}

/// A push of a window that the provider took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledRevision {
    pub number: u64,
    pub quantity: Quantity,
    pub value: Quantity,
    pub state: PushState,
    pub state_at: Timestamp,
}

impl SubmittedWindow {
    /// Adds the next settled revision.
    pub fn add_settled(&mut self, revision: SettledRevision) -> Result<()> {
        let SettledRevision { number, quantity, value, state, state_at } = revision;
        self.expected = match self.mode {
            Mode::Delta => self.expected.checked_add(quantity).ok_or_else(|| Error::Internal {
                what: "the pushes of a window add up to more than can be held".into(),
            })?,
            Mode::Absolute => value,
        };
        if state == PushState::Submitted {
            self.pushes.push((number, quantity));
            self.submitted_at = self.submitted_at.max(state_at);
        }
        Ok(())
    }
}

/// Pushes, newest first.
#[derive(Debug, Clone, Default)]
pub struct PushFilter {
    pub tenant: Option<TenantId>,
    pub meter: Option<MeterNo>,
    pub state: Option<PushState>,
    pub class: Option<Class>,
    /// Windows that start in it.
    pub range: Option<Window>,
}

/// A decision of an operator, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// It was done; for a retry, the number of the push that took its place.
    Done(Option<u64>),
    /// Why it may not be done.
    Refused(&'static str),
    NotFound,
}

/// Asks to release pushes that waited for their tenant's customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushRelease {
    pub now: Timestamp,
    /// What is stamped further back is not taken by the provider; none: everything is.
    pub stamp_age_max: Option<Span>,
    /// Most pushes that one call releases.
    pub limit: usize,
}

/// A meter's usage of tenants without a customer, or usage that was too old when there was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnmappedSum {
    pub tenants: u64,
    pub pushes: u64,
    pub quantity: Quantity,
}

/// A tenant's usage of a meter that was too old to be sent when the tenant got a customer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsentUsage {
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub pushes: u64,
    pub quantity: Quantity,
}

/// How pushes stand, without shadow pushes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PushCounts {
    pub observed: u64,
    /// Observed, and created before `PushAges::observed_before`. Those that only wait for the
    /// readings after a restore are left out.
    pub observed_long: u64,
    /// Pushes of tenants without a customer, by meter: they wait until one is given.
    pub without_customer: BTreeMap<MeterNo, UnmappedSum>,
    /// Pushes that were too old to be sent when their tenant got a customer, by meter.
    pub unsent: BTreeMap<MeterNo, UnmappedSum>,
    pub submitted: u64,
    /// Submitted before `PushAges::submitted_before` and still not confirmed.
    pub submitted_long: u64,
    /// Dead: each needs an operator.
    pub dead: u64,
    /// The quantities of those, by meter.
    pub unbilled: Vec<(MeterNo, Quantity)>,
}

/// Usage that was counted and reaches no invoice as things stand, by meter; beside what
/// [`PushCounts`] says of dead letters and of tenants without a customer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnbilledSums {
    /// Counted in shadow mode.
    pub shadow: BTreeMap<MeterNo, Quantity>,
    /// Used before the meter is billed.
    pub before_from: BTreeMap<MeterNo, Quantity>,
    /// Pushes that a saga holds back.
    pub held: BTreeMap<MeterNo, Quantity>,
    /// Used in no subscription, and held.
    pub outside: BTreeMap<MeterNo, Quantity>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushAges {
    pub observed_before: Timestamp,
    pub submitted_before: Timestamp,
}

verbs! {
    /// Leases on jobs.
    pub trait Leases: Send + Sync {
        /// Takes the lease if it is free, has ended, or is the holder's own. The holder's own is
        /// prolonged and keeps its fence, also if it had ended and nobody else has taken it since.
        /// None while another holds it.
        async fn claim_lease(
            &self,
            name: &'static str,
            holder: &str,
            now: Timestamp,
            until: Timestamp,
        ) -> Result<Option<Lease>>;
        /// Gives it back, if it is still this one.
        async fn release_lease(&self, lease: &Lease) -> Result<()>;
    }
}

verbs! {
    /// Windows handed to billing.
    pub trait Cuts: Send + Sync {
        /// The last cuts of a tenant's windows that start in `range`, in no particular order.
        async fn read_cuts(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            range: Window,
        ) -> Result<Vec<(Timestamp, CutState)>>;

        /// Cuts windows in one transaction: reads each window's exact total (for meters billed by
        /// event: its events without a push, trials left out), covers what it can from the tenant's
        /// credits by `rules::credit` (never for shadow windows, nor where no push is planned
        /// because shadow differs), plans what is left by `rules::push`, and writes the changes of
        /// credits, the push, the window's state and the tenant's remainder. A window that has not
        /// changed since its last cut, whose meter is not billed, or that was first cut under the
        /// other value of `shadow` gets no push; in the last case its state is kept up to date all
        /// the same. Cutting the same windows again changes nothing.
        async fn record_cuts(
            &self,
            lease: &Lease,
            orders: Vec<CutOrder>,
            terms: CutTerms,
        ) -> Result<CutReport>;

        /// The moment before which all that was received is cut, for each meter.
        async fn read_cut_marks(&self) -> Result<Vec<(MeterNo, Timestamp)>>;
        /// Moves a meter's mark; false if the lease was lost.
        async fn record_cut_mark(
            &self,
            lease: &Lease,
            meter: MeterNo,
            mark: Timestamp,
        ) -> Result<bool>;

        /// What the events of a window make of it, divided by its tenant's timeline and by
        /// `borders`; none if the tenant is not known or the meter is not billed.
        async fn divide_usage(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            window: Window,
            borders: &[Timestamp],
            outside: Outside,
        ) -> Result<Option<Divided>>;

        /// Requests that a tenant's windows that overlap `range` be cut again; nothing happens for
        /// a tenant that is not known.
        async fn request_recut(&self, tenant: &TenantId, range: Window, at: Timestamp)
        -> Result<()>;
        /// The oldest requests that were not finished.
        async fn list_recuts(&self, limit: usize) -> Result<Vec<Recut>>;
        /// Removes a request whose windows are cut; false if the lease was lost.
        async fn finish_recut(&self, lease: &Lease, number: u64) -> Result<bool>;
    }
}

verbs! {
    /// Pushes on their way to the provider, and rulings on those that did not get there.
    pub trait Pushes: Send + Sync {
        /// Leases due pushes, in the order of `due_at`, then number: observed, due by `now`, the
        /// lowest observed revision of their window, of a tenant with a customer, at most one for
        /// each tenant and meter, none of a tenant and meter that has one leased, and none that a
        /// hold keeps back (`store::saga`). Leases that ended before `now` are taken off first. On
        /// PostgreSQL rows that another server is claiming are skipped, not waited for.
        async fn claim_pushes(&self, claim: PushClaim) -> Result<Vec<ClaimedPush>>;

        /// Writes attempts down before they are made: attempts, the first attempt's time, customer
        /// and bytes. Returns the numbers of those that may be made; the others' leases were lost.
        async fn begin_attempts(
            &self,
            intents: Vec<AttemptIntent>,
            at: Timestamp,
        ) -> Result<Vec<u64>>;

        /// Settles claimed or submitted pushes. One whose right ([`Right`]) does not hold any more
        /// is left alone; all are judged by the state before the call. `Next::Replaced` writes the
        /// push that takes its place; `Next::Compared` does what `rules::restore::judge_comparison`
        /// says of the window as it is now; a submitted absolute push replaces dead ones of lower
        /// revisions of its window (class overtaken). Returns how many were settled.
        async fn settle_pushes(&self, settlements: Vec<Settlement>, at: Timestamp)
        -> Result<usize>;

        /// Tries a dead push again as `rules::evidence::judge_resend` says, by the window's pushes
        /// and its customer's total as they are stored then: as a new revision, or by asking its
        /// summary again, which is refused while another push of the window is unresolved.
        async fn retry_push(&self, number: u64, at: Timestamp) -> Result<Ruling>;
        /// Writes a dead push off.
        async fn discard_push(&self, number: u64, reason: &str, at: Timestamp) -> Result<Ruling>;

        /// Adds up what is not billed: of each meter that is given, with when billing of it begins.
        /// Trials are left out. Reads every total before that moment: not for a hot path.
        async fn sum_unbilled(&self, meters: Vec<(MeterNo, Timestamp)>) -> Result<UnbilledSums>;
    }
}

verbs! {
    /// Changes of pushes that no claimant makes.
    pub trait PushChanges: Send + Sync {
        /// Releases pushes of a tenant that waited until it had a customer, in the order of their
        /// numbers, by `rules::waiting::judge_waiting`. Returns how many were changed; zero when
        /// nothing is left to be released.
        async fn release_pushes(&self, release: PushRelease) -> Result<usize>;

        /// Makes dead (class refused) the named pushes that are submitted, or observed, begun and
        /// not leased; makes those to be looked for due now, unless they are (class unknown in
        /// their history). Others are left alone, so asking again changes nothing.
        async fn reject_pushes(
            &self,
            rejection: Rejection,
            at: Timestamp,
        ) -> Result<RejectionReport>;

        /// Writes, in one transaction, what the provider lost as a reconciled push of class lost
        /// with the negative difference (in absolute mode its value is what the provider shows),
        /// and a push of class reissue that sends it again: the next two revisions of the
        /// window, so that the sum of its pushes stays; done with the number of the latter.
        /// Refused, with nothing written, if `rules::reissue::judge_reissue` does not allow
        /// it by the pushes and the total that are stored then, or if the window belongs to
        /// another customer than the order's, or a settled push of it was sent for one
        /// (`rules::customer::customer_of_window`).
        async fn record_reissue(&self, order: ReissueOrder, at: Timestamp) -> Result<Ruling>;

        /// Confirmed pushes of windows that start in `range` become reconciled; how many.
        async fn close_pushes(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            range: Window,
            at: Timestamp,
        ) -> Result<u64>;
    }
}

verbs! {
    /// Pushes as they are looked at.
    pub trait PushHistory: Send + Sync {
        /// Usage that was too old to be sent, of tenants that got their customer since then, newest
        /// first.
        async fn list_unsent_usage(
            &self,
            since: Timestamp,
            limit: usize,
        ) -> Result<Vec<UnsentUsage>>;

        /// Windows with submitted, unconfirmed pushes of which one is due by `now`, at most
        /// `limit`, those longest due first; windows with a push that was begun and not resolved
        /// are left out. Only windows that are shadow, or only those that are not.
        async fn list_submitted_windows(
            &self,
            now: Timestamp,
            shadow: bool,
            limit: usize,
        ) -> Result<Vec<SubmittedWindow>>;

        async fn list_pushes(&self, query: Query<PushFilter>) -> Result<Vec<Push>>;
        async fn trace_push(&self, number: u64) -> Result<Option<PushTrace>>;
        async fn count_pushes(&self, ages: PushAges) -> Result<PushCounts>;

        /// Pushes of windows that start in `range`, in the order of window and revision.
        async fn read_window_pushes(
            &self,
            tenant: &TenantId,
            meter: MeterNo,
            range: Window,
        ) -> Result<Vec<WindowPush>>;
    }
}

/// A change of a push that was committed, as it is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionLine {
    pub push: u64,
    pub tenant: TenantId,
    pub key: String,
    pub state: PushState,
    pub class: Class,
    pub attempt: u32,
    pub request_id: Option<String>,
    pub detail: Option<String>,
}

impl TransitionLine {
    /// The row that a push's history gets with a change.
    pub fn of_change(change: &Change) -> Self {
        Self {
            push: change.push,
            tenant: change.tenant.clone(),
            key: change.key.clone(),
            state: change.state,
            class: change.note.class,
            attempt: change.attempt,
            request_id: change.note.request_id.clone(),
            detail: change.note.detail.clone(),
        }
    }

    /// The first row of a push's history.
    pub fn of_new(number: u64, key: String, new: &NewPush) -> Self {
        Self {
            push: number,
            tenant: new.tenant.clone(),
            key,
            state: new.state,
            class: new.class,
            attempt: 0,
            request_id: None,
            detail: new.detail.clone(),
        }
    }
}

/// The key of a push that is to be written; `secret` is that of the epoch.
pub(super) fn key_of(secret: &[u8; 32], new: &NewPush) -> String {
    let (revision, value) = match planted("bug.key_without_revision") {
        true => (1, Quantity::ZERO),
        false => (new.planned.revision, new.planned.value),
    };
    let (tenant, meter) = (new.tenant.as_str(), new.slug.as_str());
    let window_start = new.window.start;
    push_key(secret, KeyParts { tenant, meter, window_start, revision, value })
}

/// Whether and how a push may be sent again, by all pushes of its window and the total of the
/// customer that it was sent for, as they are stored now.
pub(super) fn may_resend(
    push: &Push,
    pushes: &[WindowPush],
    summary: Option<&Summary>,
) -> std::result::Result<Retry, &'static str> {
    if planted("bug.resend_on_stale_reading") {
        return judge_retry(push.state, push.class);
    }
    judge_resend(&WindowPush::from(push), pushes, summary)
}

/// Plans what a report of refused pushes changes, as [`plan_rejection`] does.
pub(super) fn plan_reported(
    rejection: &Rejection,
    mut concerned: Vec<StoredPush>,
    at: Timestamp,
) -> Result<(RejectionReport, Vec<Change>)> {
    if planted("bug.report_proves_refusal") {
        concerned.iter_mut().for_each(|found| found.push.attempts = found.push.attempts.min(1));
    }
    Ok(plan_rejection(rejection, &concerned, at)?)
}

/// Logs a change of a push, after its commit: a line never tells what did not happen.
pub fn log_transition(line: &TransitionLine) {
    let TransitionLine { push, tenant, key, state, class, attempt, request_id, .. } = line;
    let (state_name, class_name) = (state.name(), class.name());
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                push,
                tenant = tenant.as_str(),
                key,
                state = state_name,
                class = class_name,
                attempt,
                request_id,
                "push {push} of tenant {tenant}: {state_name} ({class_name})"
            )
        };
    }
    // At the usual level there is one line for each push that goes well, and one for each that
    // needs an operator.
    match state {
        PushState::Submitted | PushState::Discarded => log!(info),
        PushState::Dead => log!(warn),
        PushState::Observed
        | PushState::Waiting
        | PushState::Confirmed
        | PushState::Reconciled
        | PushState::Replaced => log!(debug),
    }
}
