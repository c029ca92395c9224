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
    /// Ends the open segment; it will be folded from now on, by the plan that it gave.
    pub fn close_open_segment(&mut self, plan: FoldPlan) {
        assert!(self.folding.is_none(), "one segment is folded at a time");
        let next = Segment::new(self.open.number + 1);
        let closed = std::mem::replace(&mut self.open, next).close(plan);
        self.folding = Some(Arc::new(closed));
    }

    /// The newest journal row among the unfolded segments.
    pub fn newest_unfolded(&self) -> Option<i64> {
        let closed = self.folding.as_ref().map(|closed| closed.segment.last_seq);
        if self.open.is_empty() { closed } else { Some(self.open.last_seq) }
    }

    /// The segment an unfolded event is in.
    pub fn segment(&self, number: u32) -> Result<&Segment> {
        if number == self.open.number {
            return Ok(&self.open);
        }
        match &self.folding {
            Some(closed) if closed.segment.number == number => Ok(&closed.segment),
            _ => Err(Error::Corrupt { what: format!("segment {number} is not in memory") }),
        }
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
