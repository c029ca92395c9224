//! Segments: the events that were committed to the journal and are not folded into tables yet.
//!
//! One segment is open and takes what each commit accepts. At most one more is sealed, which means
//! full and being planned, or closed, which means being folded. All are in memory only and are
//! rebuilt from the journal when the store opens.
//!
//! Invariant: a closed segment is a function of its journal rows alone: its order, its totals and
//! its counters come out the same after a restart, so folding can go on from the step where a
//! crash left it.

use super::record::{CounterEntry, EventView};
use super::totals::Totals;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::store::{Error, Result};
use hashbrown::HashMap;

/// One event of a segment: where its bytes are, and what is looked at often.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub hash: u64,
    pub occurred_at: Timestamp,
    pub tenant: TenantNo,
    chunk: u32,
    offset: u32,
}

/// The events of one commit.
struct Chunk {
    received_at: Timestamp,
    events: Box<[u8]>,
}

/// What one accepted event adds to a total.
pub struct Contribution {
    pub tenant: TenantNo,
    pub meter: MeterNo,
    pub bucket_start: Timestamp,
    pub group: Group,
    pub rollup: Rollup,
}

/// An accepted event, before it is in a segment: its hash and where it starts in the chunk.
pub struct NewEntry {
    pub hash: u64,
    pub occurred_at: Timestamp,
    pub tenant: TenantNo,
    pub offset: u32,
}

/// What one commit adds.
pub struct CommitParts {
    pub seq: i64,
    pub received_at: Timestamp,
    pub events: Box<[u8]>,
    pub entries: Vec<NewEntry>,
    pub contributions: Vec<Contribution>,
    pub counters: Vec<CounterEntry>,
}

pub type CounterKey = (TenantNo, Timestamp);

/// The segment that is being filled.
pub struct Segment {
    pub number: u32,
    /// The journal row it ends with so far.
    pub last_seq: i64,
    pub first_received_at: Option<Timestamp>,
    pub last_received_at: Timestamp,
    chunks: Vec<Chunk>,
    entries: Vec<Entry>,
    rollups: HashMap<(TenantNo, MeterNo), Totals>,
    counters: HashMap<CounterKey, Tally>,
}

impl Segment {
    pub fn new(number: u32) -> Self {
        Self {
            number,
            last_seq: 0,
            first_received_at: None,
            last_received_at: Timestamp::from_micros(i64::MIN),
            chunks: Vec::new(),
            entries: Vec::new(),
            rollups: HashMap::new(),
            counters: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.last_seq == 0
    }

    pub fn entry(&self, place: u32) -> &Entry {
        &self.entries[usize::try_from(place).expect("a place fits memory")]
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The event of an entry, and when it was received.
    pub fn view(&self, entry: &Entry) -> Result<(EventView<'_>, Timestamp)> {
        let chunk = &self.chunks[usize::try_from(entry.chunk).expect("a chunk fits memory")];
        let offset = usize::try_from(entry.offset).expect("an offset fits memory");
        Ok((EventView::read(&chunk.events, offset)?, chunk.received_at))
    }

    /// Takes what a commit accepted; the commit is durable already.
    pub fn append(&mut self, parts: CommitParts) -> Result<()> {
        assert!(parts.seq > self.last_seq, "journal rows are appended in order");
        let chunk = u32::try_from(self.chunks.len()).expect("fewer chunks than events");
        let hour = hour_of(parts.received_at);
        for entry in parts.entries {
            let NewEntry { hash, occurred_at, tenant, offset } = entry;
            self.entries.push(Entry { hash, occurred_at, tenant, chunk, offset });
        }
        for contribution in parts.contributions {
            self.counters.entry((contribution.tenant, hour)).or_default().accepted += 1;
            self.contribute(contribution)?;
        }
        for (tenant, tally) in &parts.counters {
            self.counters.entry((*tenant, hour)).or_default().merge(tally);
        }
        self.chunks.push(Chunk { received_at: parts.received_at, events: parts.events });
        self.last_seq = parts.seq;
        self.first_received_at.get_or_insert(parts.received_at);
        self.last_received_at = self.last_received_at.max(parts.received_at);
        Ok(())
    }

    fn contribute(&mut self, contribution: Contribution) -> Result<()> {
        let Contribution { tenant, meter, bucket_start, group, rollup } = contribution;
        let totals = self.rollups.entry((tenant, meter)).or_default();
        totals.add((bucket_start, group), rollup).map_err(|_| overflow())
    }

    /// The totals of one tenant and meter that this segment adds.
    pub fn totals_of(&self, tenant: TenantNo, meter: MeterNo) -> Option<&Totals> {
        self.rollups.get(&(tenant, meter))
    }

    /// Every total that this segment adds.
    pub fn all_rollups(&self) -> impl Iterator<Item = (RollupKey, &Rollup)> {
        self.rollups.iter().flat_map(|((tenant, meter), totals)| {
            totals.iter().map(|((bucket_start, group), rollup)| {
                let (tenant, meter, bucket_start) = (*tenant, *meter, *bucket_start);
                (RollupKey { tenant, meter, bucket_start, group: group.clone() }, rollup)
            })
        })
    }

    pub fn counters(&self) -> &HashMap<CounterKey, Tally> {
        &self.counters
    }

    /// The order in which the segment's parts will be folded.
    ///
    /// The steps follow from the segment and the number of the plan, so that a fold goes on after a
    /// crash where it was, also in a later version: in plan 1 each total is one step, in [`PLAN`]
    /// no step has more than [`STEP_VALUES_MAX`] unique values.
    pub fn plan_fold(&self, plan: u32) -> FoldPlan {
        let mut rollups: Vec<_> =
            self.all_rollups().map(|(key, rollup)| (key, rollup.clone())).collect();
        rollups.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if plan >= PLAN {
            rollups = rollups.into_iter().flat_map(split_values).collect();
        }
        let mut counters: Vec<_> = self.counters.iter().map(|(k, tally)| (*k, *tally)).collect();
        counters.sort_unstable_by_key(|(key, _)| *key);
        let mut order: Vec<u32> = (0..).take(self.entries.len()).collect();
        let moment = |place: &u32| {
            let entry = self.entry(*place);
            (entry.tenant, entry.occurred_at)
        };
        order.sort_unstable_by_key(moment);
        order.chunk_by_mut(|a, b| moment(a) == moment(b)).for_each(|same| self.sort_by_id(same));
        FoldPlan { plan, order, rollups, counters }
    }

    /// Many producers stamp whole seconds or hours, so there may be many events of one moment; each
    /// id is read once.
    fn sort_by_id(&self, places: &mut [u32]) {
        if places.len() == 1 {
            return;
        }
        let id = |place: u32| self.view(self.entry(place)).map(|(view, _)| view.id).ok();
        let mut by_id: Vec<_> = places.iter().map(|place| (id(*place), *place)).collect();
        by_id.sort_unstable();
        for (place, (_, sorted)) in places.iter_mut().zip(by_id) {
            *place = sorted;
        }
    }

    /// Begins the fold. The plan must be of this very segment, unchanged since.
    pub fn close(mut self, plan: FoldPlan) -> ClosedSegment {
        assert_eq!(plan.order.len(), self.entries.len(), "nothing came since the plan was made");
        self.rollups = HashMap::new();
        self.counters = HashMap::new();
        let FoldPlan { plan, order, rollups, counters } = plan;
        let mut rollup_costs_left: Vec<usize> = rollups
            .iter()
            .rev()
            .scan(0, |sum, (_, rollup)| {
                *sum += cost_of(rollup);
                Some(*sum)
            })
            .collect();
        rollup_costs_left.reverse();
        ClosedSegment { segment: self, plan, order, rollups, counters, rollup_costs_left }
    }
}

/// The plan of segments that are closed now.
pub const PLAN: u32 = 2;
/// Most unique values that one step adds.
const STEP_VALUES_MAX: usize = 16;

/// The pieces of a total, which add up to it. The first has the count of events.
fn split_values((key, rollup): (RollupKey, Rollup)) -> Vec<(RollupKey, Rollup)> {
    let Rollup { mut count, value } = rollup;
    let Accumulator::Unique(values) = value else {
        return vec![(key, Rollup { count, value })];
    };
    if values.len() <= STEP_VALUES_MAX {
        return vec![(key, Rollup { count, value: Accumulator::Unique(values) })];
    }
    let mut values = values.into_iter().peekable();
    let mut pieces = Vec::new();
    while values.peek().is_some() {
        let value = Accumulator::Unique(values.by_ref().take(STEP_VALUES_MAX).collect());
        pieces.push((key.clone(), Rollup { count: std::mem::take(&mut count), value }));
    }
    pieces
}

fn cost_of(rollup: &Rollup) -> usize {
    if let Accumulator::Unique(values) = &rollup.value { values.len().max(1) } else { 1 }
}

/// A segment's parts in the order in which they are folded.
pub struct FoldPlan {
    plan: u32,
    order: Vec<u32>,
    rollups: Vec<(RollupKey, Rollup)>,
    counters: Vec<(CounterKey, Tally)>,
}

/// A segment that is being folded. It changes no more; the database holds how far folding is.
pub struct ClosedSegment {
    pub segment: Segment,
    /// The number of its plan.
    pub plan: u32,
    /// Places by arrival, in the order of tenant, occurred_at, id.
    pub order: Vec<u32>,
    /// By key; a unique total may be in several pieces.
    pub rollups: Vec<(RollupKey, Rollup)>,
    pub counters: Vec<(CounterKey, Tally)>,
    /// What each piece and all after it cost.
    rollup_costs_left: Vec<usize>,
}

impl ClosedSegment {
    /// Steps in all: each event, each piece of a total, each counter.
    pub fn steps(&self) -> usize {
        self.order.len() + self.rollups.len() + self.counters.len()
    }

    /// The step before which `budget` is spent, or a little more. A step costs as much as it has
    /// unique values, and at least 1.
    pub fn step_after(&self, from: usize, budget: usize) -> usize {
        let (events, rollups) = (self.order.len(), self.rollups.len());
        let mut step = from.max((from + budget).min(events));
        let mut left = budget - (step - from);
        while left > 0 && (events..events + rollups).contains(&step) {
            left = left.saturating_sub(cost_of(&self.rollups[step - events].1));
            step += 1;
        }
        (step + left).min(self.steps())
    }

    /// What the steps after `steps_done` cost.
    pub fn cost_left(&self, steps_done: usize) -> usize {
        let before = self.order.len().saturating_sub(steps_done);
        let rollup = steps_done.saturating_sub(self.order.len());
        let rollups = self.rollup_costs_left.get(rollup).copied().unwrap_or(0);
        before + rollups + self.counters_left(steps_done).len()
    }

    /// The totals that are not in their table when `steps_done` steps are done.
    pub fn rollups_left(&self, steps_done: usize) -> &[(RollupKey, Rollup)] {
        let done = steps_done.saturating_sub(self.order.len()).min(self.rollups.len());
        &self.rollups[done..]
    }

    /// All totals of one tenant and meter, in pieces.
    pub fn totals_of(&self, tenant: TenantNo, meter: MeterNo) -> &[(RollupKey, Rollup)] {
        let owner = |(key, _): &(RollupKey, Rollup)| (key.tenant, key.meter);
        let start = self.rollups.partition_point(|total| owner(total) < (tenant, meter));
        let end = self.rollups.partition_point(|total| owner(total) <= (tenant, meter));
        &self.rollups[start..end]
    }

    pub fn counters_left(&self, steps_done: usize) -> &[(CounterKey, Tally)] {
        let before = self.order.len() + self.rollups.len();
        let done = steps_done.saturating_sub(before).min(self.counters.len());
        &self.counters[done..]
    }

    /// The entries of one tenant, oldest first.
    pub fn entries_of(&self, tenant: TenantNo) -> impl DoubleEndedIterator<Item = &Entry> {
        let key = |place: &u32| self.segment.entry(*place).tenant;
        let start = self.order.partition_point(|place| key(place) < tenant);
        let end = self.order.partition_point(|place| key(place) <= tenant);
        self.order[start..end].iter().map(|place| self.segment.entry(*place))
    }
}

/// What an event adds, for a segment that is rebuilt from the journal.
pub fn contribution_of(view: &EventView<'_>, catalog: &Catalog) -> Result<Contribution> {
    let meter = catalog.get(view.meter).ok_or_else(|| Error::Corrupt {
        what: format!("an event has meter number {}, which does not exist", view.meter.0),
    })?;
    // The tenant's name plays no part in what an event adds.
    let nobody = crate::rules::ids::TenantId::parse("-").expect("a valid tenant id");
    let event = view.to_event(nobody)?;
    let (bucket_start, group, rollup) = Rollup::of_event(&event, meter);
    Ok(Contribution { tenant: view.tenant, meter: view.meter, bucket_start, group, rollup })
}

pub fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR)
}

pub fn overflow() -> Error {
    Error::Corrupt { what: "a total outgrew what can be held exactly".into() }
}
