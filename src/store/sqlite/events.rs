//! Events: one by its key, and a tenant's events by time.
//!
//! Invariant: segments are read from memory unless the snapshot of the ledger has them, so each
//! event is seen exactly once whatever folding does meanwhile.

use super::event_blocks::{EventBlock, EventReader};
use super::event_ranges::{EventRange, read_ranges};
use super::rollups::Snapshot;
use super::runs::Run;
use super::segment::{Entry, Segment, key_hash};
use super::session::SqliteSession;
use super::statements::Statements;
use super::total_blocks::find_bounds;
use super::{Shared, damaged};
use crate::rules::event::Event;
use crate::rules::ids::{EventId, TenantId, TenantNo};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::Window;
use crate::store::sql::trace_inboxes;
use crate::store::{EventPage, EventQuery, EventTrace, Result, StoredEvent};
use rusqlite::Connection;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
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
        let entries = segment.entries().iter().filter(|entry| entry.tenant == tenant);
        newest(segment, entries, query)
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

    fn rank(&self) -> Result<(Timestamp, String)> {
        let (view, _) = self.block.view(self.next_no)?;
        Ok((view.occurred_at, view.id.to_owned()))
    }
}

/// Merges the ranges of all segments, newest first. A range is opened only when its newest event
/// can be next, and its start is found by binary search, since it is sorted by time.
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
    let mut ranges = ranges_of_query(connection, (tenant, snapshot.segment_no), query)?;
    let mut open: BinaryHeap<(Timestamp, String, usize)> = BinaryHeap::new();
    let mut stretches: Vec<EventStretch> = Vec::new();
    let mut page = EventPage::default();
    let mut searched = 0;
    while page.events.len() < query.limit {
        // Ranges are sorted by their newest event, newest last.
        while let Some(range) = ranges.last() {
            let next = open.peek().map(|(at, _, _)| *at);
            if next.is_some_and(|next| range.last_at < next) {
                break;
            }
            let range = ranges.pop().expect("it was just looked at");
            if let Some(stretch) = seek(connection, &range, query)? {
                let (at, id) = stretch.rank()?;
                open.push((at, id, stretches.len()));
                stretches.push(stretch);
            }
        }
        let Some((at, id, place)) = open.pop() else { break };
        searched += 1;
        if searched >= query.filter.searched_max {
            page.searched_to =
                Some((at, EventId::parse(&id).map_err(|_| damaged("an event's id", &id))?));
        }
        let stretch = &mut stretches[place];
        let (view, received_at) = stretch.block.view(stretch.next_no)?;
        if query.filter.range.is_some_and(|range| view.occurred_at < range.start) {
            continue;
        }
        if query.filter.meter.is_none_or(|meter| meter == view.meter) {
            let event = view.to_event(query.filter.tenant.clone())?;
            page.events.push(StoredEvent { event, received_at });
        }
        if stretch.step(connection)? {
            let (at, id) = stretch.rank()?;
            open.push((at, id, place));
        }
        if page.searched_to.is_some() {
            break;
        }
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

/// The ranges that may have events of the query, the one with the newest event last.
fn ranges_of_query(
    connection: &Connection,
    (tenant, segment_end): (TenantNo, u32),
    query: &EventQuery,
) -> Result<Vec<EventRange>> {
    let always = (Timestamp::from_micros(i64::MIN), Timestamp::from_micros(i64::MAX));
    let (first, end) = query.filter.range.map_or(always, |range| (range.start, range.end));
    let before = query.after.as_ref().map_or(always.1, |(at, _)| *at);
    let mut ranges = read_ranges(connection, tenant, segment_end, (first, end.min(before)))?;
    ranges.sort_by_key(|range| range.last_at);
    Ok(ranges)
}

/// The range from the newest event that the cursor and the end of the query's time admit.
fn seek(
    connection: &Connection,
    range: &EventRange,
    query: &EventQuery,
) -> Result<Option<EventStretch>> {
    let mut reader = EventReader::new(connection);
    let mut too_new = |number: u64| -> Result<bool> {
        let (view, _) = reader.view(number)?;
        let past_end = query.filter.range.is_some_and(|range| view.occurred_at >= range.end);
        let past_cursor = query.after.as_ref().is_some_and(|(cursor_at, cursor)| {
            (view.occurred_at, view.id) >= (*cursor_at, cursor.as_str())
        });
        Ok(past_end || past_cursor)
    };
    // Events before `low` are admitted, those from `high` on are too new.
    let (first_no, end) = (range.numbers.start, range.numbers.end);
    let (mut low, mut high) = (first_no, end);
    if !too_new(end - 1)? {
        low = end;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if too_new(middle)? { high = middle } else { low = middle + 1 }
    }
    if low == first_no {
        return Ok(None);
    }
    let block = EventBlock::fetch(connection, low - 1)?;
    Ok(Some(EventStretch { first_no, next_no: low - 1, block }))
}
