//! The orders that the parent gives to a worker process, one on each line, and the answers.

use serde::{Deserialize, Serialize};

/// How a worker process starts: its only argument, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    pub store: String,
    pub stripe: String,
    /// The true time, in microseconds.
    pub at: i64,
    /// By how much its machine's clock is ahead.
    pub ahead: i64,
    /// Its name as a holder of leases.
    pub holder: String,
    /// Readings of totals that passes may make in an hour; 0 for no limit.
    pub reads_per_hour: u32,
    /// Stops at this point after so many hits, and continues when the parent says so.
    pub stall: Option<(String, u64)>,
}

/// The line of a worker that has stopped at its point.
pub const STALLED: &str = "stalled";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// The true time, and by how much the machine's clock is ahead of it.
    Clock {
        at: i64,
        ahead: i64,
    },
    Meter {
        slug: String,
        spec: String,
    },
    Tenant {
        id: String,
        customer: Option<String>,
    },
    /// Answers with the places of the events that were not taken.
    Send {
        events: Vec<String>,
    },
    Cut,
    Push,
    Confirm,
    /// Runs the pass that is due, if any.
    Reconcile,
    /// A person retries every dead push that may be retried.
    Retry,
    /// The provider reports that it refused these pushes, by their keys.
    Report {
        keys: Vec<String>,
    },
    Open,
    /// Every push that is not replaced, for the parent to look at.
    Audit,
    /// Pushes that are not resolved, with their last transitions.
    Describe,
    Totals {
        tenants: Vec<String>,
        meters: Vec<String>,
        from: i64,
        to: i64,
    },
    /// Issues credits that cover every meter, one for one; answers with the grant's number.
    Grant {
        tenant: String,
        key: String,
        amount: String,
        effective_at: i64,
        expires_at: Option<i64>,
    },
    /// Voids all that may be taken; answers with the amount.
    VoidGrant {
        tenant: String,
        key: String,
        grant: u64,
    },
    /// A person declares that the store was restored from a copy.
    Restored,
    /// Ends grants that have expired.
    Expire,
    /// Answers with what is available, or with nothing if that cannot be said now.
    Balance {
        tenant: String,
        /// Whether a cut draws on the grants while the balance is read.
        during_cut: bool,
    },
    /// What credits have covered, by hour.
    Covered {
        tenants: Vec<String>,
    },
    /// Begins a saga; answers with its id, or with nothing if another saga of the tenant is open.
    Begin {
        tenant: String,
        key: String,
        saga: SagaParams,
    },
    /// Webhooks arrive.
    Hear {
        payloads: Vec<String>,
    },
    /// Looks for webhooks that were missed, if it is time.
    Backfill,
    /// Reads objects that webhooks were about, and cuts what an invoice in draft is to hold.
    Mirror,
    /// Moves sagas that are due.
    Sagas,
    /// Answers with the state of a saga and its log.
    SagaState {
        id: String,
    },
    /// A person resumes a saga that needs attention.
    Resume {
        id: String,
    },
    Exit,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum SagaParams {
    Create { prices: Vec<String> },
    Change { subscription: String, prices: Vec<String>, boundary: i64 },
    Cancel { subscription: String, boundary: i64 },
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Open {
    pub observed: u64,
    pub submitted: u64,
    pub dead: u64,
    /// Dead ones that no rule allows to retry.
    pub undecidable: u64,
}

impl Open {
    pub fn is_resolved(&self) -> bool {
        self.observed + self.submitted + self.dead == 0
    }
}

/// A push as an auditor sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Audited {
    pub number: u64,
    pub window: (String, u16, i64),
    pub key: String,
    pub value: String,
    /// Whether the provider is said to have it.
    pub settled: bool,
    /// Whether it was begun and its outcome is unknown.
    pub unresolved: bool,
    pub attempts: u32,
}

/// An amount of a tenant, a meter and an hour.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HourTotal {
    pub tenant: String,
    pub meter: String,
    pub hour: i64,
    pub amount: String,
}
