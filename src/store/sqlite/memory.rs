//! What the store knows in memory: tenants, meters, the segments that are not folded, and the runs
//! of those that are.
//!
//! Invariant: memory holds exactly what the committed databases hold, one commit behind at most:
//! the writer and the folder commit first and change memory after. Every counted event is in a
//! segment or its key is in a run, never in neither: a segment leaves memory in the moment in which
//! its run comes ([`Memory::take_fold`]). Nothing here is durable; all of it is rebuilt at open.

use super::runs::Run;
use super::segment::Segment;
use crate::faults::planted;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::meter::Catalog;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

pub struct Memory {
    pub tenants: Tenants,
    pub catalog: Arc<Catalog>,
    pub open: Segment,
    /// Full, and not folded yet; oldest first.
    pub sealed: VecDeque<Arc<Segment>>,
    /// In the order of their events.
    pub runs: Arc<[Arc<Run>]>,
    /// The newest journal row.
    pub last_seq: i64,
}

/// The dictionary of tenants.
#[derive(Default)]
pub struct Tenants {
    by_name: HashMap<TenantId, TenantNo>,
    last: u32,
}

impl Memory {
    /// Ends the open segment, unless it is empty, and begins the next one. Returns how many events
    /// are to be folded now.
    pub fn seal_open_segment(&mut self) -> usize {
        if self.open.is_empty() {
            return 0;
        }
        let next = self.open.next();
        let sealed = std::mem::replace(&mut self.open, next);
        let events = sealed.len();
        self.sealed.push_back(Arc::new(sealed));
        events
    }

    /// The oldest sealed segment is in tables, and its keys are in `run`; none if it had no events.
    pub fn take_fold(&mut self, run: Option<Run>) {
        self.sealed.pop_front().expect("the folded segment is the oldest");
        if !planted("bug.key_dropped_at_fold") {
            self.runs = self.runs.iter().cloned().chain(run.map(Arc::new)).collect();
        }
    }

    /// `merged` takes the place of the runs whose events it has.
    pub fn take_merge(&mut self, merged: Run) {
        let events = merged.row.events.clone();
        let others = self.runs.iter().filter(|run| !events.contains(&run.row.events.start));
        let mut runs: Vec<_> = others.cloned().chain([Arc::new(merged)]).collect();
        runs.sort_by_key(|run| run.row.events.start);
        self.runs = runs.into();
    }

    /// The files of these runs were made again.
    pub fn take_healed(&mut self, healed: &[Arc<Run>]) {
        let own = |run: &Arc<Run>| healed.iter().find(|one| one.row == run.row).cloned();
        self.runs =
            self.runs.iter().map(|run| own(run).unwrap_or_else(|| Arc::clone(run))).collect();
    }

    /// The segments that are not folded, oldest first.
    pub fn unfolded(&self) -> impl Iterator<Item = &Segment> {
        self.sealed.iter().map(Arc::as_ref).chain([&self.open])
    }

    pub fn unfolded_events(&self) -> usize {
        self.unfolded().map(Segment::len).sum()
    }
}

impl Tenants {
    pub fn insert(&mut self, number: TenantNo, tenant: TenantId) {
        self.last = self.last.max(number.0);
        self.by_name.insert(tenant, number);
    }

    pub fn find(&self, tenant: &TenantId) -> Option<TenantNo> {
        self.by_name.get(tenant).copied()
    }

    /// The number after the last one; 0 means no tenant.
    pub fn next(&self) -> u32 {
        self.last + 1
    }
}
