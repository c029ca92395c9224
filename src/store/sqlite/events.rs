//! Events: one by its key, and a tenant's events by time.
//!
//! Invariant: segments are read from memory unless the snapshot of the ledger has them, so each
//! event is seen exactly once whatever folding does meanwhile.

use super::event_blocks::{EventBlock, EventReader};
use super::event_ranges::{EventRange, read_range, read_segments};
use super::record::EventView;
use super::rollups::Snapshot;
use super::runs::Run;
use super::segment::{Entry, Segment, key_hash, overflow};
use super::session::SqliteSession;
use super::statements::Statements;
use super::total_blocks::find_bounds;
use super::{Shared, corrupt, damaged};
use crate::rules::attribution::{Layout, StretchSums, SummedEvent};
use crate::rules::event::Event;
use crate::rules::ids::{EventId, TenantId, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::Window;
use crate::store::sql::trace_inboxes;
use crate::store::{EventPage, EventQuery, EventTrace, Result, StoredEvent};
use rusqlite::Connection;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

/// Everything known of one key, of one moment: a read transaction that holds exactly the journal
/// rows which memory held. The transaction stays open.
pub fn trace_event(
    shared: &Shared,
    connection: &Connection,
    tenant: &TenantId,
    id: &EventId,
) -> Result<EventTrace> {
    loop {
        let (found, last_seq) = find_in_memory(shared, tenant, id)?;
        connection.execute_batch("BEGIN")?;
        if read_last_seq(connection)? == last_seq {
            let kept = trace_inboxes(&SqliteSession::on(connection), tenant, id);
            let kept = kept?;
            return Ok(EventTrace { counted: found.resolve(connection, tenant, id)?, ..kept });
        }
        // A commit came between the two, or memory is about to take one over.
        connection.execute_batch("ROLLBACK")?;
        std::thread::yield_now();
    }
}

/// What memory says of a key.
enum FoundEvent {
    Nothing,
    Unfolded(Box<StoredEvent>),
    /// In one of the runs, or nowhere: tenant and hash of the key.
    InRuns(TenantNo, u64, Arc<[Arc<Run>]>),
}

impl FoundEvent {
    fn resolve(
        self,
        connection: &Connection,
        tenant: &TenantId,
        id: &EventId,
    ) -> Result<Option<StoredEvent>> {
        let (tenant_no, hash, runs) = match self {
            Self::Nothing => return Ok(None),
            Self::Unfolded(event) => return Ok(Some(*event)),
            Self::InRuns(tenant_no, hash, runs) => (tenant_no, hash, runs),
        };
        let (mut reader, mut numbers) = (EventReader::new(connection), Vec::new());
        for run in runs.iter().filter(|run| run.file.may_hold(hash)) {
            run.file.find(hash, &mut numbers)?;
        }
        for number in numbers {
            let found = reader.find_key(number, (tenant_no, tenant), id.as_str())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Looks a key up, and tells the newest journal row that memory holds.
fn find_in_memory(shared: &Shared, tenant: &TenantId, id: &EventId) -> Result<(FoundEvent, i64)> {
    let memory = shared.read_memory();
    let last_seq = memory.last_seq;
    let Some(tenant_no) = memory.tenants.find(tenant) else {
        return Ok((FoundEvent::Nothing, last_seq));
    };
    let hash = key_hash(&shared.fingerprinter, tenant_no, id);
    for segment in memory.unfolded() {
        for place in segment.candidates(hash) {
            let (view, received_at) = segment.view(segment.entry(place))?;
            if view.tenant == tenant_no && view.id == id.as_str() {
                let event = view.to_event(tenant.clone())?;
                let found = StoredEvent { event, received_at };
                return Ok((FoundEvent::Unfolded(Box::new(found)), last_seq));
            }
        }
    }
    Ok((FoundEvent::InRuns(tenant_no, hash, Arc::clone(&memory.runs)), last_seq))
}

/// The newest journal row; 0 if there was none yet.
fn read_last_seq(connection: &Connection) -> Result<i64> {
    let sql = "-- read_last_seq\nSELECT coalesce(max(seq), 0) FROM journal";
    connection.read_one(sql, [], |row| Ok(row.get(0)?))
}

/// A page of a tenant's events, newest first. Events in memory are always looked at, of those in
/// the ledger at most `searched_max`.
pub fn list_events(
    shared: &Shared,
    connection: &Connection,
    query: &EventQuery,
) -> Result<EventPage> {
    let of_tenant = |segment: &Segment, tenant: TenantNo| -> Result<Vec<StoredEvent>> {
        newest(segment, segment.entries_of(tenant), query)
    };
    let (snapshot, copied) = shared.consistent_snapshot(connection, |memory| {
        let tenant = memory.tenants.find(&query.filter.tenant)?;
        Some((tenant, of_tenant(&memory.open, tenant)))
    })?;
    let Some((tenant, open)) = copied else {
        return Ok(EventPage::default());
    };
    let mut events = open?;
    for segment in &snapshot.sealed {
        events.extend(of_tenant(segment, tenant)?);
    }
    let folded = list_folded(connection, &snapshot, tenant, query)?;
    events.extend(folded.events);
    events.sort_by(|a, b| rank(&b.event).cmp(&rank(&a.event)));
    if let Some((at, id)) = &folded.searched_to {
        // Older ones come after folded events that were not looked at.
        events.retain(|stored| rank(&stored.event) >= (*at, id.as_str()));
    }
    // A full page goes on after its last event, wherever the search ended.
    let searched_to = folded.searched_to.filter(|_| events.len() < query.limit);
    events.truncate(query.limit);
    Ok(EventPage { events, searched_to })
}

/// Adds up the events of a window of one meter by the stretches of its layout, as of one moment.
/// With `of_one` each event counts as one. The transaction stays open.
pub fn sum_stretches(
    shared: &Shared,
    connection: &Connection,
    query: &EventQuery,
    layout: &Layout,
    of_one: bool,
) -> Result<StretchSums> {
    let add = |sums: &mut StretchSums, view: &EventView<'_>| -> Result<()> {
        let of_meter = query.filter.meter == Some(view.meter);
        if of_meter && admits(query, view.occurred_at, view.id) {
            let EventView { occurred_at, subscription, trial, .. } = *view;
            let quantity = if of_one { Quantity::ONE } else { view.quantity };
            let event = SummedEvent { occurred_at, quantity, subscription, trial };
            sums.add(layout, event).map_err(|_| overflow())?;
        }
        Ok(())
    };
    let of_segment = |segment: &Segment, tenant: TenantNo| -> Result<StretchSums> {
        let mut sums = StretchSums::new(layout);
        for entry in segment.entries_of(tenant) {
            add(&mut sums, &segment.view(entry)?.0)?;
        }
        Ok(sums)
    };
    let (snapshot, copied) = shared.consistent_snapshot(connection, |memory| {
        let tenant = memory.tenants.find(&query.filter.tenant)?;
        Some((tenant, of_segment(&memory.open, tenant)))
    })?;
    let Some((tenant, open)) = copied else { return Ok(StretchSums::new(layout)) };
    let mut sums = open?;
    for segment in &snapshot.sealed {
        sums.merge(of_segment(segment, tenant)?).map_err(|_| overflow())?;
    }
    let Some(query) = narrow_to_totals(connection, &snapshot, tenant, query)? else {
        return Ok(sums);
    };
    let mut folded = FoldedEvents::of_query(connection, (tenant, snapshot.segment_no), &query)?;
    while let Some((_, _, place)) = folded.next()? {
        add(&mut sums, &folded.stretches[place].view()?.0)?;
        folded.step(place)?;
    }
    Ok(sums)
}

fn rank(event: &Event) -> (Timestamp, &str) {
    (event.occurred_at, event.id.as_str())
}

/// Whether the query's time and cursor admit an event.
fn admits(query: &EventQuery, occurred_at: Timestamp, id: &str) -> bool {
    let in_range = query.filter.range.is_none_or(|r| (r.start..r.end).contains(&occurred_at));
    let before = query.after.as_ref();
    in_range && before.is_none_or(|(at, cursor)| (occurred_at, id) < (*at, cursor.as_str()))
}

/// The newest admitted events of a segment: at most a page of them.
fn newest<'s>(
    segment: &'s Segment,
    entries: impl Iterator<Item = &'s Entry>,
    query: &EventQuery,
) -> Result<Vec<StoredEvent>> {
    // The oldest of the page so far is on top, ready to be replaced.
    let mut page: BinaryHeap<Reverse<(Timestamp, &str, usize)>> = BinaryHeap::new();
    let mut views = Vec::new();
    for entry in entries {
        let full = page.len() == query.limit;
        let oldest = page.peek().map(|Reverse((at, _, _))| *at);
        if full && oldest.is_some_and(|oldest| entry.occurred_at < oldest) {
            continue;
        }
        let (view, received_at) = segment.view(entry)?;
        let of_meter = query.filter.meter.is_none_or(|meter| meter == view.meter);
        if !of_meter || !admits(query, view.occurred_at, view.id) {
            continue;
        }
        page.push(Reverse((view.occurred_at, view.id, views.len())));
        views.push((view, received_at));
        if page.len() > query.limit {
            page.pop();
        }
    }
    page.into_iter()
        .map(|Reverse((_, _, place))| {
            let (view, received_at) = &views[place];
            let event = view.to_event(query.filter.tenant.clone())?;
            Ok(StoredEvent { event, received_at: *received_at })
        })
        .collect()
}

/// A tenant's range of one folded segment, read from its newest event down, with the block that
/// was read last.
struct EventStretch {
    tenant: TenantNo,
    first_no: u64,
    next_no: u64,
    block: EventBlock,
}

impl EventStretch {
    /// Goes to the event before. Returns whether there is one.
    fn step(&mut self, connection: &Connection) -> Result<bool> {
        if self.next_no == self.first_no {
            return Ok(false);
        }
        self.next_no -= 1;
        if !self.block.numbers().contains(&self.next_no) {
            self.block = EventBlock::fetch(connection, self.next_no)?;
        }
        Ok(true)
    }

    fn view(&self) -> Result<(EventView<'_>, Timestamp)> {
        let (view, received_at) = self.block.view(self.next_no)?;
        require_tenant(&view, self.tenant)?;
        Ok((view, received_at))
    }
}

/// A range that names another tenant's events is damaged.
fn require_tenant(view: &EventView<'_>, tenant: TenantNo) -> Result<()> {
    if view.tenant == tenant { Ok(()) } else { Err(corrupt("event_ranges.body")) }
}

/// A tenant's folded events that a query admits, newest first: the ranges of all segments, merged.
/// What is not read yet waits with the latest time that it may have, so that no segment is looked
/// into before its newest event can be next.
struct FoldedEvents<'q> {
    connection: &'q Connection,
    tenant: TenantNo,
    query: &'q EventQuery,
    /// No event that the query admits happened before this.
    first: Timestamp,
    waiting: BinaryHeap<(Timestamp, Source)>,
    ranges: Vec<EventRange>,
    stretches: Vec<EventStretch>,
}

/// Where a next event may come from. Of one time, what is not read yet goes first: its event may
/// have any id.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Stretch { id: String, place: usize },
    Range { place: usize },
    Segment { number: u32 },
}

impl<'q> FoldedEvents<'q> {
    fn of_query(
        connection: &'q Connection,
        (tenant, segment_end): (TenantNo, u32),
        query: &'q EventQuery,
    ) -> Result<Self> {
        let first = query.filter.range.map_or(Timestamp::from_micros(i64::MIN), |r| r.start);
        let latest = latest_of(query);
        let segments = read_segments(connection, segment_end, (first, latest))?;
        let waiting = segments
            .into_iter()
            .map(|(last_at, number)| (last_at.min(latest), Source::Segment { number }));
        let (waiting, ranges, stretches) = (waiting.collect(), Vec::new(), Vec::new());
        Ok(Self { connection, tenant, query, first, waiting, ranges, stretches })
    }

    /// The stretch whose event is next.
    fn next(&mut self) -> Result<Option<(Timestamp, String, usize)>> {
        while let Some((at, source)) = self.waiting.pop() {
            if at < self.first {
                break;
            }
            match source {
                Source::Stretch { id, place } => return Ok(Some((at, id, place))),
                Source::Range { place } => {
                    if let Some(stretch) = self.seek(place)? {
                        self.stretches.push(stretch);
                        self.wait_for(self.stretches.len() - 1)?;
                    }
                }
                Source::Segment { number } => {
                    if let Some(range) = read_range(self.connection, number, self.tenant)? {
                        let at = at.min(range.last_at);
                        self.ranges.push(range);
                        let place = self.ranges.len() - 1;
                        self.waiting.push((at, Source::Range { place }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Goes on to the event before, in a stretch whose event was taken.
    fn step(&mut self, place: usize) -> Result<()> {
        if self.stretches[place].step(self.connection)? { self.wait_for(place) } else { Ok(()) }
    }

    fn wait_for(&mut self, place: usize) -> Result<()> {
        let (view, _) = self.stretches[place].view()?;
        let (at, id) = (view.occurred_at, view.id.to_owned());
        self.waiting.push((at, Source::Stretch { id, place }));
        Ok(())
    }

    /// The range from the newest event that the cursor and the end of the query's time admit.
    fn seek(&self, place: usize) -> Result<Option<EventStretch>> {
        let (range, query, tenant) = (&self.ranges[place], self.query, self.tenant);
        let mut reader = EventReader::new(self.connection);
        let mut too_new = |number: u64| -> Result<bool> {
            let (view, _) = reader.view(number)?;
            require_tenant(&view, tenant)?;
            let past_end = query.filter.range.is_some_and(|range| view.occurred_at >= range.end);
            let past_cursor = query.after.as_ref().is_some_and(|(cursor_at, cursor)| {
                (view.occurred_at, view.id) >= (*cursor_at, cursor.as_str())
            });
            Ok(past_end || past_cursor)
        };
        // Events before `low` are admitted, those from `high` on are too new.
        let Range { start: mut low, end: mut high } = range.around(latest_of(query));
        while low < high {
            let middle = low + (high - low) / 2;
            if too_new(middle)? { high = middle } else { low = middle + 1 }
        }
        let first_no = range.numbers.start;
        if low == first_no {
            return Ok(None);
        }
        let block = reader.into_block(low - 1)?;
        Ok(Some(EventStretch { tenant, first_no, next_no: low - 1, block }))
    }
}

/// No event that a query admits happened after this.
fn latest_of(query: &EventQuery) -> Timestamp {
    let end = query.filter.range.map(|range| range.end);
    let before = query.after.as_ref().map(|(at, _)| *at);
    [end, before].into_iter().flatten().min().unwrap_or(Timestamp::from_micros(i64::MAX))
}

fn list_folded(
    connection: &Connection,
    snapshot: &Snapshot,
    tenant: TenantNo,
    query: &EventQuery,
) -> Result<EventPage> {
    let narrowed = narrow_to_totals(connection, snapshot, tenant, query)?;
    let Some(query) = &narrowed else {
        return Ok(EventPage::default());
    };
    let mut folded = FoldedEvents::of_query(connection, (tenant, snapshot.segment_no), query)?;
    let mut page = EventPage::default();
    let mut searched = 0;
    while page.events.len() < query.limit && page.searched_to.is_none() {
        let Some((at, id, place)) = folded.next()? else { break };
        searched += 1;
        if searched >= query.filter.searched_max {
            page.searched_to =
                Some((at, EventId::parse(&id).map_err(|_| damaged("an event's id", &id))?));
        }
        let (view, received_at) = folded.stretches[place].view()?;
        if query.filter.meter.is_none_or(|meter| meter == view.meter) {
            let event = view.to_event(query.filter.tenant.clone())?;
            page.events.push(StoredEvent { event, received_at });
        }
        folded.step(place)?;
    }
    Ok(page)
}

/// The query, its time narrowed to that of the meter's totals; none if the meter has none there.
/// Totals of folded segments are folded with them, so no event lies outside.
fn narrow_to_totals(
    connection: &Connection,
    snapshot: &Snapshot,
    tenant: TenantNo,
    query: &EventQuery,
) -> Result<Option<EventQuery>> {
    let Some(meter) = query.filter.meter else { return Ok(Some(query.clone())) };
    let mut bounds: Option<(Timestamp, Timestamp)> = None;
    for run in &snapshot.runs {
        if let Some((first, last)) = find_bounds(connection, run.run_no, (tenant, meter))? {
            let (least, most) = bounds.unwrap_or((first, last));
            bounds = Some((least.min(first), most.max(last)));
        }
    }
    let Some((first, last)) = bounds else { return Ok(None) };
    // No bucket is longer than a day.
    let mut range = Window { start: first, end: last.saturating_add_micros(MICROS_PER_DAY) };
    if let Some(asked) = query.filter.range {
        range = Window { start: range.start.max(asked.start), end: range.end.min(asked.end) };
    }
    let mut narrowed = query.clone();
    narrowed.filter.range = Some(range);
    Ok((range.start < range.end).then_some(narrowed))
}
