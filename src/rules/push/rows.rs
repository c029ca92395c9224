//! Pushes as stores hold them, and as plans write them.
//!
//! Invariant: a plan is plain data. A store reads a [`StoredPush`], has it planned by the rules,
//! and writes the [`NewPush`]es and [`Change`](crate::rules::settlement::Change)s of the plan as
//! they are. The key, quantity, value, stamp and window of a push never change once it is written.

use super::{CutState, PlannedPush};
use crate::rules::billing::Mode;
use crate::rules::drift::WindowPush;
use crate::rules::fault::{Fault, must};
use crate::rules::ids::{CustomerId, EventId, MeterNo, TenantId, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::restore::Reading;
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A push as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// Order of creation, and its name in the API.
    pub number: u64,
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub window: Window,
    pub revision: u32,
    pub shadow: bool,
    pub mode: Mode,
    /// By how much it changes what the provider has of the window.
    pub quantity: Quantity,
    /// What is sent.
    pub value: Quantity,
    /// Its name at the provider.
    pub key: String,
    /// The moment it is stamped with, strictly inside the window.
    pub stamped_at: Timestamp,
    /// Exact billable totals by subscription at the cut, as JSON.
    pub subscriptions: String,
    /// The event it is of, for meters billed by event.
    pub event: Option<EventId>,
    pub state: PushState,
    /// Why it is in that state.
    pub class: Class,
    /// What the provider or a person said last.
    pub detail: Option<String>,
    /// The customer it was sent for; fixed by the first attempt.
    pub customer: Option<CustomerId>,
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
    /// When something is due next.
    pub due_at: Timestamp,
    pub created_at: Timestamp,
    /// When it came into its state.
    pub state_at: Timestamp,
}

impl From<&Push> for WindowPush {
    fn from(push: &Push) -> Self {
        Self {
            number: push.number,
            window: push.window,
            revision: push.revision,
            shadow: push.shadow,
            mode: push.mode,
            quantity: push.quantity,
            value: push.value,
            stamped_at: push.stamped_at,
            state: push.state,
            class: push.class,
            customer: push.customer.clone(),
            attempts: push.attempts,
            state_at: push.state_at,
        }
    }
}

/// A push with what only stores and plans need to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPush {
    pub push: Push,
    pub tenant_no: TenantNo,
    /// The meter's name, which is part of keys.
    pub slug: String,
    /// The tenant's customer of today.
    pub tenant_customer: Option<CustomerId>,
    pub fence: u64,
    pub leased_until: Option<Timestamp>,
    /// The bytes it was sent with first.
    pub request: Option<Vec<u8>>,
    pub request_keys: u32,
    /// Since when the provider's summary could not be read for it.
    pub unreadable_since: Option<Timestamp>,
    /// The provider's total of its window as it was last read after a restore.
    pub looked: Option<Reading>,
}

impl StoredPush {
    /// Checks a row after it was read and before anything is planned with it.
    pub fn check(&self) -> Result<(), Fault> {
        let push = &self.push;
        let Push { number, window, revision, value, quantity, key, stamped_at, .. } = push;
        let (tenant, state) = (&push.tenant, push.state.name());
        must!(
            window.start < window.end,
            "a push's window ends after its start",
            "tenant={tenant} push={number} window={}..{}",
            window.start,
            window.end
        );
        must!(
            window.start < *stamped_at && *stamped_at < window.end,
            "a push is stamped strictly inside its window",
            "tenant={tenant} push={number} stamped_at={stamped_at} window={}..{}",
            window.start,
            window.end
        );
        must!(*revision >= 1, "revisions begin at 1", "tenant={tenant} push={number}");
        must!(
            push.mode == Mode::Absolute || value == quantity,
            "a delta push sends its quantity",
            "tenant={tenant} push={number} quantity={quantity} value={value}"
        );
        must!(
            key.len() == KEY_BYTES && key.starts_with(KEY_PREFIX),
            "a push has a key of this store's form",
            "tenant={tenant} push={number} key={key}"
        );
        must!(
            (push.attempts > 0) == push.first_attempt_at.is_some(),
            "a push has the time of its first attempt if it has attempts",
            "tenant={tenant} push={number} attempts={}",
            push.attempts
        );
        must!(
            push.attempts == 0 || (push.customer.is_some() && self.request.is_some()),
            "an attempt is stored with its customer and its bytes",
            "tenant={tenant} push={number} attempts={}",
            push.attempts
        );
        must!(
            self.leased_until.is_none() || push.state == PushState::Observed,
            "only an observed push is leased",
            "tenant={tenant} push={number} state={state}"
        );
        must!(
            push.state != PushState::Waiting || push.attempts == 0,
            "a push that waits for a customer was never sent",
            "tenant={tenant} push={number} attempts={}",
            push.attempts
        );
        Ok(())
    }

    /// Checks that the window's state is one that the push can lie in.
    pub fn check_window(&self, state: &CutState) -> Result<(), Fault> {
        let Push { number, tenant, revision, shadow, .. } = &self.push;
        must!(
            *revision <= state.revision,
            "a window's revision is not below that of its pushes",
            "tenant={tenant} push={number} revision={revision} window_revision={}",
            state.revision
        );
        must!(
            *shadow == state.shadow,
            "a push is shadow exactly if its window is",
            "tenant={tenant} push={number} push_shadow={shadow} window_shadow={}",
            state.shadow
        );
        Ok(())
    }
}

/// What keys of pushes begin with, and their length ([`super::push_key`]).
pub(super) const KEY_PREFIX: &str = "cf1-";
const KEY_BYTES: usize = 44;

/// A push that is to be written: by a cut, in place of another, or as a reissue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPush {
    pub tenant_no: TenantNo,
    pub tenant: TenantId,
    pub meter: MeterNo,
    pub slug: String,
    pub window: Window,
    pub shadow: bool,
    pub mode: Mode,
    pub planned: PlannedPush,
    pub stamped_at: Timestamp,
    pub subscriptions: String,
    pub event: Option<EventId>,
    pub detail: Option<String>,
    /// None for what is still to be sent: the first attempt fixes it.
    pub customer: Option<CustomerId>,
    pub state: PushState,
    pub class: Class,
}

impl NewPush {
    /// A push of the same window as another, due at once: it lies where that one does.
    pub fn beside(other: &StoredPush, planned: PlannedPush) -> Self {
        let push = &other.push;
        Self {
            tenant_no: other.tenant_no,
            tenant: push.tenant.clone(),
            meter: push.meter,
            slug: other.slug.clone(),
            window: push.window,
            shadow: push.shadow,
            mode: push.mode,
            planned,
            stamped_at: push.stamped_at,
            subscriptions: push.subscriptions.clone(),
            event: None,
            detail: None,
            customer: None,
            state: PushState::Observed,
            class: Class::Cut,
        }
    }
}

/// One thing that happened to a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = TransitionAnswer)]
pub struct Transition {
    pub at: Timestamp,
    /// The state after it.
    pub state: PushState,
    pub class: Class,
    /// The attempt it belongs to; 0 before the first.
    pub attempt: u32,
    /// The provider's name for the request.
    pub request_id: Option<String>,
    pub detail: Option<String>,
}

/// Names a tenant's window of a meter in faults.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub tenant: &'a TenantId,
    pub meter: &'a str,
    pub window: Window,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, meter, window } = self;
        write!(out, "tenant={tenant} meter={meter} window={}..{}", window.start, window.end)
    }
}
