//! What the store knows in memory: tenants, meters and the unfolded segments. The key index is
//! beside it under a lock of its own (`Shared`), since queries for totals do not need it.
//!
//! Invariant: memory holds exactly what the committed database holds, one commit behind at most:
//! the writer commits first and changes memory after, and only the writer changes it. If a commit
//! fails, memory was not touched. Nothing here is durable; all of it is rebuilt at open.

use super::segment::{ClosedSegment, FoldPlan, Segment};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::store::{Error, Result};
use hashbrown::HashMap;
use std::sync::Arc;

pub struct Memory {
    pub tenants: Tenants,
    pub catalog: Arc<Catalog>,
    pub open: Segment,
    /// Full, and not folded before its plan is made.
    pub sealed: Option<Arc<Segment>>,
    pub folding: Option<Arc<ClosedSegment>>,
}

/// The dictionary of tenants.
#[derive(Default)]
pub struct Tenants {
    by_name: HashMap<TenantId, TenantNo>,
    by_number: HashMap<TenantNo, TenantId>,
    last: u32,
}

impl Memory {
    /// Whether the open segment has anything and the one before it is folded.
    pub fn may_seal(&self) -> bool {
        self.sealed.is_none() && self.folding.is_none() && !self.open.is_empty()
    }

    /// Ends the open segment and begins the next one; returns the ended one, to be planned.
    pub fn seal_open_segment(&mut self) -> Arc<Segment> {
        assert!(self.may_seal(), "one segment is folded at a time");
        let next = Segment::new(self.open.number + 1);
        let sealed = Arc::new(std::mem::replace(&mut self.open, next));
        self.sealed = Some(Arc::clone(&sealed));
        sealed
    }

    /// From now on the sealed segment is folded, by its plan.
    pub fn close_sealed_segment(&mut self, plan: FoldPlan) {
        let sealed = self.sealed.take().expect("the plan is of the sealed segment");
        let sealed = Arc::into_inner(sealed).expect("readers hold it under the lock only");
        self.folding = Some(Arc::new(sealed.close(plan)));
    }

    /// The segments of which nothing is in tables, oldest first.
    pub fn unplanned(&self) -> impl Iterator<Item = &Segment> {
        self.sealed.as_deref().into_iter().chain([&self.open])
    }

    fn unfolded(&self) -> impl Iterator<Item = &Segment> {
        self.folding.iter().map(|closed| &closed.segment).chain(self.unplanned())
    }

    /// The number of the oldest segment that is not completely in tables.
    pub fn first_unfolded(&self) -> u32 {
        self.unfolded().next().map_or(self.open.number, |segment| segment.number)
    }

    /// Events that are not completely in tables.
    pub fn unfolded_events(&self) -> usize {
        self.unfolded().map(Segment::len).sum()
    }

    /// The newest journal row among the unfolded segments.
    pub fn newest_unfolded(&self) -> Option<i64> {
        self.unfolded().filter(|segment| !segment.is_empty()).last().map(|last| last.last_seq)
    }

    /// The segment an unfolded event is in.
    pub fn segment(&self, number: u32) -> Result<&Segment> {
        self.unfolded()
            .find(|segment| segment.number == number)
            .ok_or_else(|| Error::Corrupt { what: format!("segment {number} is not in memory") })
    }
}

impl Tenants {
    pub fn insert(&mut self, number: TenantNo, tenant: TenantId) {
        self.last = self.last.max(number.0);
        self.by_number.insert(number, tenant.clone());
        self.by_name.insert(tenant, number);
    }

    pub fn find(&self, tenant: &TenantId) -> Option<TenantNo> {
        self.by_name.get(tenant).copied()
    }

    pub fn name(&self, number: TenantNo) -> Result<&TenantId> {
        self.by_number.get(&number).ok_or_else(|| Error::Corrupt {
            what: format!("tenant number {} does not exist", number.0),
        })
    }

    /// The number after the last one; 0 means no tenant.
    pub fn next(&self) -> u32 {
        self.last + 1
    }
}
