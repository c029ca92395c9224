//! Where the walks over tenants are.
//!
//! Invariant: a walk that is gone on with has cut every tenant up to `after` at or after its
//! beginning. So when its end is reached, the mark may move as if all of it had been done then.
//! All of this is forgotten in a crash; the next walk begins anew, from the stored mark.

use super::failures::{Cause, Failures};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Meter;
use crate::rules::timestamp::Timestamp;
use crate::store;
use std::collections::BTreeMap;

/// A walk over the tenants of a meter, in the order of their ids.
pub struct Walk {
    pub began_at: Timestamp,
    /// All windows of the tenants up to this one are cut.
    pub after: Option<TenantId>,
    /// Tenants with windows that could not be cut, and why.
    pub failed: BTreeMap<TenantId, String>,
}

impl Walk {
    pub fn starting(now: Timestamp) -> Self {
        Self { began_at: now, after: None, failed: BTreeMap::new() }
    }

    pub fn fail(&mut self, tenant: &TenantId, error: &store::Error) {
        self.failed.insert(tenant.clone(), error.to_string());
    }
}

/// What this process remembers of its passes.
#[derive(Default)]
pub struct Memory {
    /// When the last walk over each meter that reached its end began.
    pub passed_at: BTreeMap<MeterNo, Timestamp>,
    /// When a walk over each meter was last begun or gone on with.
    pub tried_at: BTreeMap<MeterNo, Timestamp>,
    /// Walks that were broken off.
    pub walks: BTreeMap<MeterNo, Walk>,
    pub failures: Failures,
    /// Requests to cut windows again that failed, and when.
    pub failed_recuts: BTreeMap<u64, Timestamp>,
}

impl Memory {
    pub fn is_due(&self, number: MeterNo, meter: &Meter, now: Timestamp) -> bool {
        let passed_at = self.passed_at.get(&number);
        // A time that lies ahead is from before our clock was set back.
        passed_at.is_none_or(|at| *at > now || meter.spec.cut_every.after(*at) <= now)
    }

    pub fn end_walk(&mut self, meter: MeterNo, walk: Walk) {
        self.passed_at.insert(meter, walk.began_at);
        self.failures.replace(Cause::Walk, meter, walk.failed);
    }
}
