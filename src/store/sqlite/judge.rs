//! Judging a batch: a verdict for every event, and all that the commit must write for them.
//!
//! First the keys are looked up: filters of runs say which events may have been counted, and only
//! those are read from the ledger, in the order of their numbers and without a lock. Then each
//! event is judged against what was found, the segments in memory, and the batch itself.
//!
//! Invariant: reads memory and tables and changes neither, so that a batch whose commit fails
//! leaves no trace. Runs and sealed segments are those of one moment, so that no key is missed
//! while its segment becomes a run. An event that comes twice in one batch is judged against its
//! first delivery.

use super::Shared;
use super::day_groups::load_day;
use super::event_blocks::EventReader;
use super::memory::Memory;
use super::record::{CounterEntry, write_event};
use super::runs::Run;
use super::segment::{Contribution, NewEntry, Segment, key_hash};
use crate::rules::batch::{
    BatchFigures, check_admissions, check_batch, judge_delivery, unknown_tenant,
};
use crate::rules::event::Event;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::rollup::{Group, Rollup};
use crate::rules::verdict::{Quarantine, Tally, Verdict};
use crate::store::groups::{GroupDay, GroupGate, KnownGroups, NewGroups};
use crate::store::{DeliveryBatch, Error, Result};
use hashbrown::{HashMap, HashTable};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys of a batch in one run from which on their blocks are read together: fewer are most likely
/// repeats of what was read lately.
const PREFETCHED_MIN: usize = 64;

/// What was found of a batch's keys.
pub struct KnownKeys {
    /// Tenant and hash of each event, unless its tenant is new.
    keys: Vec<Option<(TenantNo, u64)>>,
    /// Folded events with the very key, by the place of the event in the batch.
    folded: HashMap<usize, Event>,
    sealed: Vec<Arc<Segment>>,
}

impl KnownKeys {
    /// Looks the keys of a batch up; `ledger` is outside of any transaction.
    pub fn find(shared: &Shared, ledger: &Connection, batch: &DeliveryBatch) -> Result<Self> {
        let (tenants, sealed, runs) = {
            let memory = shared.read_memory();
            let tenant = |event: &Event| memory.tenants.find(&event.tenant);
            let tenants: Vec<Option<TenantNo>> = batch.events.iter().map(tenant).collect();
            (tenants, memory.sealed.iter().cloned().collect(), Arc::clone(&memory.runs))
        };
        let hash = |tenant, event: &Event| key_hash(&shared.fingerprinter, tenant, &event.id);
        let keys: Vec<Option<(TenantNo, u64)>> = batch
            .events
            .iter()
            .zip(tenants)
            .map(|(event, tenant)| tenant.map(|tenant| (tenant, hash(tenant, event))))
            .collect();
        let mut reader = EventReader::new(ledger);
        let mut folded = HashMap::new();
        for (number, place) in find_candidates(&runs, &keys)? {
            let event = &batch.events[place];
            let Some((tenant, _)) = keys[place] else { continue };
            let found = reader.find_key(number, (tenant, &event.tenant), event.id.as_str())?;
            folded.extend(found.map(|stored| (place, stored.event)));
        }
        Ok(Self { keys, folded, sealed })
    }
}

/// Events in runs that may have one of the keys, and the places of the keys; by event number, so
/// that each block is read once.
fn find_candidates(
    runs: &[Arc<Run>],
    keys: &[Option<(TenantNo, u64)>],
) -> Result<Vec<(u64, usize)>> {
    let (mut candidates, mut numbers, mut hits) = (Vec::new(), Vec::new(), Vec::new());
    let hash = |(place, key): (usize, &Option<(TenantNo, u64)>)| Some((place, (*key)?.1));
    let hashes: Vec<_> = keys.iter().enumerate().filter_map(hash).collect();
    for run in runs {
        run.file.select(&hashes, &mut hits);
        // A disk reads many blocks at once in little more time than one.
        if hits.len() >= PREFETCHED_MIN {
            hits.iter().for_each(|(_, hash)| run.file.prefetch(*hash));
        }
        for (place, hash) in hits.drain(..) {
            run.file.find(hash, &mut numbers)?;
            candidates.extend(numbers.drain(..).map(|number| (number, place)));
        }
    }
    candidates.sort_unstable();
    Ok(candidates)
}

/// A batch that was judged and is not written yet.
#[derive(Default)]
pub struct JudgedBatch {
    pub verdicts: Vec<Verdict>,
    /// Bytes of the accepted events.
    pub events: Vec<u8>,
    pub entries: Vec<NewEntry>,
    pub contributions: Vec<Contribution>,
    pub counters: Vec<CounterEntry>,
    pub new_tenants: Vec<(TenantNo, TenantId)>,
    pub conflicts: Vec<NewConflict>,
    pub quarantined: Vec<NewQuarantine>,
    pub new_groups: NewGroups,
}

pub struct NewConflict {
    pub tenant: TenantNo,
    pub standing: Event,
    pub arriving: Event,
}

pub struct NewQuarantine {
    pub tenant: TenantNo,
    pub event: Event,
    pub reason: Quarantine,
}

/// Judges every delivery of the batch.
pub fn judge_batch(
    known: KnownKeys,
    memory: &Memory,
    ledger: &Connection,
    fingerprinter: &Fingerprinter,
    known_groups: &mut KnownGroups,
    batch: &DeliveryBatch,
) -> Result<JudgedBatch> {
    let mut judge = Judge {
        known,
        memory,
        ledger,
        fingerprinter,
        groups: GroupGate::new(known_groups, batch.groups_per_day),
        new_tenants: HashMap::new(),
        in_batch: HashTable::with_capacity(batch.events.len()),
        tallies: BTreeMap::new(),
        judged: JudgedBatch::default(),
    };
    judge.judged.events.reserve(batch.events.len() * 192);
    judge.judged.verdicts.reserve(batch.events.len());
    judge.judged.contributions.reserve(batch.events.len());
    judge.judged.entries.reserve(batch.events.len());
    for place in 0..batch.events.len() {
        judge.judge_one(batch, place)?;
    }
    for (tenant, count) in &batch.refused {
        // A tenant that only ever sent refused items does not come to be by them.
        let known = tenant.as_ref().and_then(|tenant| judge.known_tenant(tenant));
        judge.tallies.entry(known.unwrap_or(TenantNo(0))).or_default().rejected += count;
    }
    let mut judged = judge.judged;
    judged.counters = judge.tallies.into_iter().collect();
    judged.new_groups = judge.groups.added;
    match batch.acceptance.is_of_admissions() {
        true => check_admissions(&judged.figures(batch))?,
        false => check_batch(&judged.figures(batch))?,
    }
    Ok(judged)
}

impl JudgedBatch {
    fn figures(&self, batch: &DeliveryBatch) -> BatchFigures {
        let mut tally = Tally::default();
        for (_, of_tenant) in &self.counters {
            tally.merge(of_tenant);
        }
        // The counters leave out what the events themselves tell.
        for verdict in self.verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted) {
            tally.add(verdict);
        }
        BatchFigures {
            delivered: batch.events.len(),
            refused: batch.refused.iter().map(|(_, count)| count).sum(),
            verdicts: self.verdicts.len(),
            accepted: self.entries.len(),
            conflicts: self.conflicts.len(),
            quarantined: self.quarantined.len(),
            tally,
        }
    }
}

struct Judge<'a> {
    known: KnownKeys,
    memory: &'a Memory,
    ledger: &'a Connection,
    fingerprinter: &'a Fingerprinter,
    groups: GroupGate<'a>,
    new_tenants: HashMap<TenantId, TenantNo>,
    /// Hash and place of the events this batch accepts.
    in_batch: HashTable<(u64, usize)>,
    /// Outcomes other than accepted, which the events themselves tell, and how many of those a
    /// person admitted.
    tallies: BTreeMap<TenantNo, Tally>,
    judged: JudgedBatch,
}

impl Judge<'_> {
    fn judge_one(&mut self, batch: &DeliveryBatch, place: usize) -> Result<()> {
        let event = &batch.events[place];
        let Some(tenant) = self.resolve_tenant(&event.tenant, batch.strict_tenants) else {
            let verdict = unknown_tenant();
            self.tallies.entry(TenantNo(0)).or_default().add(&verdict);
            self.judged.verdicts.push(verdict);
            return Ok(());
        };
        let hash = match self.known.keys[place] {
            Some((_, hash)) => hash,
            None => key_hash(self.fingerprinter, tenant, &event.id),
        };
        let earlier = self.in_batch.find(hash, |(_, earlier)| {
            let earlier = &batch.events[*earlier];
            earlier.id == event.id && earlier.tenant == event.tenant
        });
        let earlier = earlier.map(|(_, earlier)| &batch.events[*earlier]);
        let stored = match earlier {
            Some(_) => None,
            None => self.find_stored(tenant, hash, event, place)?,
        };
        let standing = earlier.or(stored.as_ref());
        let admit = || self.accept(tenant, hash, event, place);
        let verdict = judge_delivery(event, standing, batch.acceptance, admit)?;
        if batch.acceptance.is_of_admissions() {
            // It is kept already, and was counted as received.
            if verdict == Verdict::Accepted {
                self.tallies.entry(tenant).or_default().admitted += 1;
            }
            self.judged.verdicts.push(verdict);
            return Ok(());
        }
        match (&verdict, standing) {
            (Verdict::Conflict { .. }, Some(standing)) => {
                let (standing, arriving) = (standing.clone(), event.clone());
                self.judged.conflicts.push(NewConflict { tenant, standing, arriving });
            }
            (Verdict::Quarantined(reason), _) => {
                let (event, reason) = (event.clone(), *reason);
                self.judged.quarantined.push(NewQuarantine { tenant, event, reason });
            }
            (
                Verdict::Accepted
                | Verdict::Duplicate { .. }
                | Verdict::Conflict { .. }
                | Verdict::Rejected(_),
                _,
            ) => {}
        }
        if verdict != Verdict::Accepted {
            self.tallies.entry(tenant).or_default().add(&verdict);
        }
        self.judged.verdicts.push(verdict);
        Ok(())
    }

    /// Takes the event, unless its group is one too many.
    fn accept(&mut self, tenant: TenantNo, hash: u64, event: &Event, place: usize) -> Result<bool> {
        let meter = self.memory.catalog.get(event.meter).ok_or_else(|| Error::Internal {
            what: format!("an event names meter number {}, which is not declared", event.meter.0),
        })?;
        let (bucket_start, group, rollup) = Rollup::of_event(event, meter);
        let meter = event.meter;
        if !self.admit_group(GroupDay::of(tenant, meter, bucket_start), &group)? {
            return Ok(false);
        }
        let contribution = Contribution { tenant, meter, bucket_start, group, rollup };
        self.judged.contributions.push(contribution);
        let offset = u32::try_from(self.judged.events.len())
            .map_err(|_| Error::Internal { what: "a batch is larger than 4 GiB".into() })?;
        let occurred_at = event.occurred_at;
        self.judged.entries.push(NewEntry { hash, occurred_at, tenant, offset });
        write_event(&mut self.judged.events, tenant, event);
        self.in_batch.insert_unique(hash, (hash, place), |(hash, _)| *hash);
        Ok(true)
    }

    fn admit_group(&mut self, day: GroupDay, group: &Group) -> Result<bool> {
        if group.as_text().is_empty() {
            return Ok(true);
        }
        let group = self.fingerprinter.group(group);
        if self.groups.known.holds(day, group) {
            return Ok(true);
        }
        if !self.groups.known.has_loaded(&day) {
            let sealed = self.known.sealed.iter().map(Arc::as_ref);
            let segments = sealed.chain([&self.memory.open]);
            load_day(self.ledger, segments, day, self.fingerprinter, self.groups.known)?;
        }
        Ok(self.groups.admit(day, group))
    }

    /// The counted event with this very key, wherever it is.
    fn find_stored(
        &mut self,
        tenant: TenantNo,
        hash: u64,
        event: &Event,
        place: usize,
    ) -> Result<Option<Event>> {
        let sealed = self.known.sealed.iter().map(Arc::as_ref);
        for segment in std::iter::once(&self.memory.open).chain(sealed) {
            for place in segment.candidates(hash) {
                let (view, _) = segment.view(segment.entry(place))?;
                if view.tenant == tenant && view.id == event.id.as_str() {
                    return view.to_event(event.tenant.clone()).map(Some);
                }
            }
        }
        Ok(self.known.folded.remove(&place))
    }

    fn known_tenant(&self, tenant: &TenantId) -> Option<TenantNo> {
        let known = self.memory.tenants.find(tenant);
        known.or_else(|| self.new_tenants.get(tenant).copied())
    }

    fn resolve_tenant(&mut self, tenant: &TenantId, strict: bool) -> Option<TenantNo> {
        if let Some(number) = self.known_tenant(tenant) {
            return Some(number);
        }
        if strict {
            return None;
        }
        let created = u32::try_from(self.new_tenants.len()).expect("fewer tenants than events");
        let number = TenantNo(self.memory.tenants.next() + created);
        self.new_tenants.insert(tenant.clone(), number);
        self.judged.new_tenants.push((number, tenant.clone()));
        Some(number)
    }
}
