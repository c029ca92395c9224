//! Sagas with their logs, the holds they put on pushes, and the subscription records they make.
//!
//! Invariant: a line of a log is written only under the saga's current fence, so of two runners
//! one is refused. A saga's standing and the lines that explain it change in one transaction,
//! with the change that tells of its end. A tenant has at most one open saga. A crash leaves a
//! saga with its last line; when its lease ends, another runner goes on from there.

pub use crate::rules::saga::lifecycle::{Begun, ClaimedSaga, NewSaga, Resumed};

use super::faulty::verbs;
use super::idempotency::Completing;
use super::outbox::FeedChange;
use super::push::SubmittedWindow;
use super::webhook::Mirror;
use super::{Query, Result};
use crate::faults::planted;
use crate::rules::access::{AccessChange, AccessState, judge_access};
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::mirror::Snapshot;
use crate::rules::saga::{LogLine, Saga, SagaState};
use crate::rules::subscription::Subscription;
use crate::rules::timestamp::Timestamp;

/// The state of a saga after a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SagaProgress {
    pub state: SagaState,
    pub tries: u32,
    pub due_at: Timestamp,
    pub detail: Option<String>,
    /// Until when the claimant goes on working on it; none gives it back.
    pub lease_until: Option<Timestamp>,
}

/// Sagas, newest first.
#[derive(Debug, Clone, Default)]
pub struct SagaFilter {
    pub tenant: Option<TenantId>,
    pub state: Option<SagaState>,
}

/// What a tenant has agreed to: a subscription, what it is charged by and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRecord {
    pub tenant: TenantId,
    pub subscription: SubscriptionId,
    /// The plan's name here.
    pub plan: String,
    /// The provider's prices.
    pub prices: Vec<String>,
    pub features: Vec<String>,
    /// Whether the features were opened by the saga.
    pub access: bool,
    /// Whether the provider's last reading of the subscription suspends them.
    pub suspended: bool,
    /// The saga that made it; each makes one at most.
    pub saga: String,
    pub began_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl SubscriptionRecord {
    /// Whether its features may be used at that moment.
    pub fn grants_access_at(&self, at: Timestamp) -> bool {
        self.access && !self.suspended && self.ended_at.is_none_or(|end| at < end)
    }

    /// What a reading of its subscription changes, and the change that tells of it, which is
    /// written once for each subscription record and reading; none if nothing changes.
    pub fn follow(&self, reading: &SubscriptionReading<'_>) -> Option<(AccessChange, FeedChange)> {
        if planted("bug.access_ignores_provider") {
            return None;
        }
        let SubscriptionReading { state, version, read_at } = reading;
        let now = AccessState { suspended: self.suspended, ended_at: self.ended_at };
        let change = judge_access(state, *read_at, now)?;
        let mut after = self.clone();
        match change {
            AccessChange::Suspend => after.suspended = true,
            AccessChange::Resume => after.suspended = false,
            AccessChange::End { at } => (after.suspended, after.ended_at) = (false, Some(at)),
        }
        let payload = serde_json::json!({
            "tenant": after.tenant.as_str(),
            "subscription": after.subscription.as_str(),
            "saga": after.saga,
            "plan": after.plan,
            "features": after.features,
            "status": state.status,
            "access": after.grants_access_at(*read_at),
            "ended_at": after.ended_at.map(|at| at.to_string()),
        });
        let published = FeedChange {
            key: format!("access:{}:{version}", self.saga),
            kind: change.change_kind(),
            tenant: Some(after.tenant),
            payload: payload.to_string(),
        };
        Some((change, published))
    }
}

/// A subscription as a mirror shows it.
#[derive(Debug, Clone, Copy)]
pub struct SubscriptionReading<'a> {
    pub state: &'a Subscription,
    pub version: u64,
    pub read_at: Timestamp,
}

impl<'a> SubscriptionReading<'a> {
    /// None if the mirror shows no subscription: what the provider does not know changes nothing.
    pub fn of_mirror(mirror: &'a Mirror) -> Option<Self> {
        let Snapshot::Subscription(state) = &mirror.snapshot else { return None };
        Some(Self { state, version: mirror.version, read_at: mirror.read_at })
    }
}

verbs! {
    pub trait Sagas: Send + Sync {
        /// Begins a saga in state running, generation 1, due at once; the tenant is created if it
        /// is not known.
        async fn begin_saga(
            &self,
            new: NewSaga,
            at: Timestamp,
            completing: Option<&Completing<Begun>>,
        ) -> Result<Begun>;
        /// Leases moving sagas that are due by `now` and not leased beyond it, those longest due
        /// first. Each claim raises the fence. On PostgreSQL rows that another is claiming are
        /// skipped.
        async fn claim_sagas(
            &self,
            now: Timestamp,
            lease_until: Timestamp,
            limit: usize,
        ) -> Result<Vec<ClaimedSaga>>;
        /// Appends lines and moves the saga, and writes the changes; false, and nothing is
        /// written, if the fence is not current.
        async fn record_saga(
            &self,
            claim: (u64, u64),
            lines: Vec<LogLine>,
            standing: SagaProgress,
            changes: Vec<FeedChange>,
            at: Timestamp,
        ) -> Result<bool>;
        async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>>;
        async fn list_sagas(&self, query: Query<SagaFilter>) -> Result<Vec<Saga>>;
        /// Takes up a saga again as `rules::saga::lifecycle::plan_resume` says, with a line
        /// `resumed`: state, tries 0, due at once, and the next generation if it starts anew. A
        /// lease on it ends, and the fence is raised.
        async fn resume_saga(&self, id: &str, at: Timestamp) -> Result<Resumed>;

        /// Holds back the pushes of the saga's tenant of windows that start at `from` or later:
        /// they are not claimed until the hold is released. One for each saga; writing it again
        /// changes nothing. False, and nothing is written, if the claim's fence is not current or
        /// the saga has ended.
        async fn put_hold(&self, claim: (u64, u64), from: Timestamp, at: Timestamp)
        -> Result<bool>;
        /// Whether there was one.
        async fn release_hold(&self, saga: &str) -> Result<bool>;
        /// The tenant's pushes of windows that start before then which the provider has not taken
        /// yet: what is to be sent before a plan changes. Shadow pushes are left out.
        async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64>;
        /// The tenant's windows that start before then with pushes that the provider took and that
        /// are not confirmed, at most `limit`, the oldest first. Shadow pushes are left out.
        async fn list_unconfirmed_before(
            &self,
            tenant: &TenantId,
            before: Timestamp,
            limit: usize,
        ) -> Result<Vec<SubmittedWindow>>;

        // A subscription record follows the readings of its subscription, as `rules::access` says:
        // in the transaction that writes a reading (`Mirrors::record_mirrors`), and in those below
        // that write or restore a subscription record, by what the mirror shows then. A change
        // tells of each change.

        /// Writes the subscription record of its saga, without access; an open subscription record
        /// of the same subscription ends at its `began_at` and loses its access. The same one
        /// written again changes nothing.
        async fn record_subscription(&self, record: SubscriptionRecord) -> Result<()>;
        /// Says from when on the provider charges by the subscription record that a saga made:
        /// usage that it holds for is never stamped before. Pushes that the saga's hold keeps back,
        /// and that nobody has tried to send, are stamped anew.
        async fn charge_from(&self, saga: &str, at: Timestamp) -> Result<()>;
        /// Opens or closes the features of the subscription record that a saga made.
        async fn set_access(&self, saga: &str, access: bool) -> Result<()>;
        /// Withdraws the subscription record that a saga made: it is gone, and the one that it
        /// ended is open again with its access. Nothing happens if there is none.
        async fn withdraw_subscription(&self, saga: &str) -> Result<()>;
        /// Ends the subscription record of a subscription at that moment, which may be ahead: its
        /// features may be used until then. One that ends earlier is left as it is.
        async fn end_subscription(&self, id: &SubscriptionId, at: Timestamp) -> Result<()>;
        /// The newest subscription record of a subscription.
        async fn find_subscription_record(
            &self,
            subscription: &SubscriptionId,
        ) -> Result<Option<SubscriptionRecord>>;
        /// A tenant's subscription records, newest first, at most `limit`.
        async fn list_subscription_records(
            &self,
            tenant: &TenantId,
            limit: usize,
        ) -> Result<Vec<SubscriptionRecord>>;
    }
}
