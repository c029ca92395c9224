//! Segments: the events that were committed to the journal and are not folded into tables yet.
//!
//! One segment is open and takes what each commit accepts. Those before it are sealed: they change
//! no more and wait to be folded. All are in memory only and are rebuilt from the journal when the
//! store opens.
//!
//! Invariant: an event of a segment is found by its key in the segment itself, until the run that
//! holds the key is in its place (`memory`).

use super::record::{CounterEntry, EventView};
use super::totals::Totals;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, MeterNo, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Group, Rollup, RollupKey};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::store::{Error, Result};
use hashbrown::{HashMap, HashTable};

/// One event of a segment: where its bytes are, and what is looked at often.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub hash: u64,
    pub occurred_at: Timestamp,
    pub tenant: TenantNo,
    chunk: u32,
    offset: u32,
    /// One more than the place of the tenant's entry before; 0 if this is its first.
    before: u32,
}

impl Entry {
    fn start(&self) -> usize {
        usize::try_from(self.offset).expect("an offset fits memory")
    }
}

/// The events of one commit, one after the other in the order of their entries.
struct Chunk {
    received_at: Timestamp,
    events: Vec<u8>,
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
    pub events: Vec<u8>,
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
    /// Places of entries by the hash of their key.
    keys: HashTable<u32>,
    /// One more than the place of each tenant's newest entry.
    newest: HashMap<TenantNo, u32>,
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
            keys: HashTable::new(),
            newest: HashMap::new(),
            rollups: HashMap::new(),
            counters: HashMap::new(),
        }
    }

    /// The segment after this one; it will probably have as many events.
    pub fn next(&self) -> Self {
        let mut next = Self::new(self.number + 1);
        next.entries.reserve(self.entries.len());
        next.keys = HashTable::with_capacity(self.entries.len());
        next
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

    /// The entries of one tenant, the last that came first.
    pub fn entries_of(&self, tenant: TenantNo) -> impl Iterator<Item = &Entry> {
        let entry = |after: u32| after.checked_sub(1).map(|place| self.entry(place));
        let newest = self.newest.get(&tenant).copied().unwrap_or(0);
        std::iter::successors(entry(newest), move |one| entry(one.before))
    }

    /// The places of events whose key has this hash. A hash finds candidates and decides nothing:
    /// the caller compares the exact key.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        let same = move |place: &&u32| self.entry(**place).hash == hash;
        self.keys.iter_hash(hash).filter(same).copied()
    }

    /// The event of an entry, and when it was received.
    pub fn view(&self, entry: &Entry) -> Result<(EventView<'_>, Timestamp)> {
        let chunk = self.chunk_of(entry);
        Ok((EventView::read(&chunk.events, entry.start())?, chunk.received_at))
    }

    /// The bytes of the event at a place, and when it was received. The events of a chunk follow
    /// each other, so the next entry tells where this one's ends: nothing is read to find out.
    pub fn record(&self, place: u32) -> (&[u8], Timestamp) {
        let place = usize::try_from(place).expect("a place fits memory");
        let entry = &self.entries[place];
        let chunk = self.chunk_of(entry);
        let next = self.entries.get(place + 1).filter(|next| next.chunk == entry.chunk);
        let end = next.map_or(chunk.events.len(), Entry::start);
        (&chunk.events[entry.start()..end], chunk.received_at)
    }

    fn chunk_of(&self, entry: &Entry) -> &Chunk {
        &self.chunks[usize::try_from(entry.chunk).expect("a chunk fits memory")]
    }

    /// Takes what a commit accepted; the commit is durable already.
    pub fn append(&mut self, parts: CommitParts) -> Result<()> {
        assert!(parts.seq > self.last_seq, "journal rows are appended in order");
        let chunk = u32::try_from(self.chunks.len()).expect("fewer chunks than events");
        let hour = hour_of(parts.received_at);
        for entry in parts.entries {
            let NewEntry { hash, occurred_at, tenant, offset } = entry;
            let place = u32::try_from(self.entries.len()).expect("fewer than 2^32 events");
            let before = self.newest.insert(tenant, place + 1).unwrap_or(0);
            self.entries.push(Entry { hash, occurred_at, tenant, chunk, offset, before });
            let Self { keys, entries, .. } = self;
            let hash_of = |place: &u32| entries[usize::try_from(*place).expect("memory")].hash;
            keys.insert_unique(hash, place, hash_of);
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

    /// The order in which the segment's parts are folded.
    pub fn plan_fold(&self) -> FoldPlan<'_> {
        let mut rollups: Vec<_> = self.all_rollups().collect();
        rollups.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut counters: Vec<_> = self.counters.iter().map(|(k, tally)| (*k, *tally)).collect();
        counters.sort_unstable_by_key(|((tenant, hour), _)| (*hour, *tenant));
        let moment = |(place, entry): (u32, &Entry)| (entry.tenant, entry.occurred_at, place);
        let mut moments: Vec<_> = (0..).zip(&self.entries).map(moment).collect();
        moments.sort_unstable();
        let mut order: Vec<u32> = moments.iter().map(|(_, _, place)| *place).collect();
        let mut rest = order.as_mut_slice();
        for same in moments.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (places, after) = rest.split_at_mut(same.len());
            self.sort_by_id(places);
            rest = after;
        }
        FoldPlan { order, rollups, counters }
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
}

/// A segment's parts in the order in which they are folded.
pub struct FoldPlan<'s> {
    /// Places by arrival, in the order of tenant, occurred_at, id.
    pub order: Vec<u32>,
    /// By key.
    pub rollups: Vec<(RollupKey, &'s Rollup)>,
    /// By hour and tenant.
    pub counters: Vec<(CounterKey, Tally)>,
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

/// The hash of an event key in segments and runs: 64 bits of its fingerprint are enough, since the
/// exact key is compared on every hit.
pub fn key_hash(fingerprinter: &Fingerprinter, tenant: TenantNo, id: &EventId) -> u64 {
    let fingerprint = fingerprinter.event_key(tenant, id);
    u64::try_from(fingerprint & u128::from(u64::MAX)).expect("64 bits")
}

pub fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR)
}

pub fn overflow() -> Error {
    Error::Corrupt { what: "a total outgrew what can be held exactly".into() }
}
