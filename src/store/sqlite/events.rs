//! Events: one by its number or key, and a tenant's events by time.
//!
//! Invariant: the segment being folded and the open one are read from memory, older segments from
//! their table, so each event is seen exactly once whatever folding does meanwhile.

use super::keys::{Location, key_hash};
use super::memory::{Memory, Tenants};
use super::segment::{Entry, Segment};
use super::session::SqliteSession;
use super::statements::Statements;
use super::{Shared, corrupt, damaged};
use crate::rules::event::Event;
use crate::rules::ids::{EventId, MeterNo, SubscriptionId, TenantId, TenantNo};
use crate::rules::properties::Properties;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::Window;
use crate::store::sql::trace_inboxes;
use crate::store::{EventPage, EventQuery, EventTrace, Result, StoredEvent};
use rusqlite::{Connection, Row, params};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The folded event with this number.
pub fn fetch_event(connection: &Connection, tenants: &Tenants, number: u64) -> Result<StoredEvent> {
    let (tenant, event) = fetch_row(connection, number, decode_event)?;
    event.with_tenant(tenants.name(tenant)?.clone())
}

/// Everything known of one key, of one moment: a read transaction that holds exactly the journal
/// rows which memory held. The transaction stays open.
pub fn trace_event(
    shared: &Shared,
    connection: &Connection,
    tenant: &TenantId,
    id: &EventId,
) -> Result<EventTrace> {
    loop {
        let (found, newest) = find_in_memory(shared, tenant, id)?;
        connection.execute_batch("BEGIN")?;
        if newest_unfolded(connection)? == newest {
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
    /// One of the rows with these numbers, or none of them.
    Rows(TenantNo, Vec<u64>),
}

impl FoundEvent {
    fn resolve(
        self,
        connection: &Connection,
        tenant: &TenantId,
        id: &EventId,
    ) -> Result<Option<StoredEvent>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Unfolded(event) => Ok(Some(*event)),
            Self::Rows(tenant_no, numbers) => {
                for number in numbers {
                    let (found_tenant, event) = fetch_row(connection, number, decode_event)?;
                    if found_tenant == tenant_no && event.id == id.as_str() {
                        return event.with_tenant(tenant.clone()).map(Some);
                    }
                }
                Ok(None)
            }
        }
    }
}

/// Looks a key up, and tells the newest journal row that memory holds.
fn find_in_memory(
    shared: &Shared,
    tenant: &TenantId,
    id: &EventId,
) -> Result<(FoundEvent, Option<i64>)> {
    let keys = shared.read_keys();
    let memory = shared.read_memory();
    let newest = memory.newest_unfolded();
    let Some(tenant_no) = memory.tenants.find(tenant) else {
        return Ok((FoundEvent::Nothing, newest));
    };
    let hash = key_hash(&shared.fingerprinter, tenant_no, id);
    let mut numbers = Vec::new();
    for location in keys.candidates(hash) {
        match location {
            Location::Folded(number) => numbers.push(number),
            Location::Unfolded { segment, place } => {
                let segment = memory.segment(segment)?;
                let (view, received_at) = segment.view(segment.entry(place))?;
                if view.tenant == tenant_no && view.id == id.as_str() {
                    let event = view.to_event(tenant.clone())?;
                    let found = StoredEvent { event, received_at };
                    return Ok((FoundEvent::Unfolded(Box::new(found)), newest));
                }
            }
        }
    }
    Ok((FoundEvent::Rows(tenant_no, numbers), newest))
}

/// The newest journal row that is not folded.
fn newest_unfolded(connection: &Connection) -> Result<Option<i64>> {
    connection.read_one(
        "-- newest_unfolded
         SELECT max(seq) FROM journal WHERE seq > (SELECT folded_seq FROM fold_state)",
        [],
        |row| Ok(row.get(0)?),
    )
}

/// A page of a tenant's events, newest first. Events in memory are always looked at, of those in
/// the table at most `searched_max`.
pub fn list_events(
    shared: &Shared,
    connection: &Connection,
    query: &EventQuery,
) -> Result<EventPage> {
    let (snapshot, copied) = shared.consistent_snapshot(connection, |memory| {
        let tenant = memory.tenants.find(&query.filter.tenant)?;
        Some((tenant, list_unfolded(memory, tenant, query)))
    })?;
    let Some((tenant, unfolded)) = copied else {
        return Ok(EventPage::default());
    };
    let mut events = unfolded?;
    let folded_before = snapshot.folding.as_ref().map_or(u32::MAX, |c| c.segment.number);
    let place = (tenant, folded_before);
    let folded = list_folded(connection, place, query)?;
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

fn list_unfolded(
    memory: &Memory,
    tenant: TenantNo,
    query: &EventQuery,
) -> Result<Vec<StoredEvent>> {
    let mut page = Vec::new();
    for segment in memory.unplanned() {
        let entries = segment.entries().iter().filter(|entry| entry.tenant == tenant);
        page.extend(newest(segment, entries, query)?);
    }
    if let Some(closed) = &memory.folding {
        page.extend(newest(&closed.segment, closed.entries_of(tenant), query)?);
    }
    Ok(page)
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

/// A tenant's stretch of one folded segment, read from its newest event down.
struct EventStretch {
    first_no: u64,
    next_no: u64,
}

/// Merges the stretches of all segments, newest first. A stretch is opened only when its newest
/// event can be next, and its start is found by binary search, since it is sorted by time.
fn list_folded(
    connection: &Connection,
    place: (TenantNo, u32),
    query: &EventQuery,
) -> Result<EventPage> {
    let narrowed = narrow_to_totals(connection, place.0, query)?;
    let Some(query) = &narrowed else {
        return Ok(EventPage::default());
    };
    let mut ranges = read_ranges(connection, place, query)?;
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
            if let Some(next_no) = seek(connection, &range, query)? {
                let stretch = EventStretch { first_no: range.first_no, next_no };
                push_next(connection, &mut open, &stretch, stretches.len())?;
                stretches.push(stretch);
            }
        }
        let Some((at, id, place)) = open.pop() else { break };
        searched += 1;
        if searched >= query.filter.searched_max {
            page.searched_to =
                Some((at, EventId::parse(&id).map_err(|_| damaged("events.id", &id))?));
        }
        let stretch = &mut stretches[place];
        let (_, event) = fetch_row(connection, stretch.next_no, decode_event)?;
        if query.filter.range.is_some_and(|range| event.occurred_at < range.start) {
            continue;
        }
        if stretch.next_no > stretch.first_no {
            stretch.next_no -= 1;
            push_next(connection, &mut open, stretch, place)?;
        }
        if query.filter.meter.is_none_or(|meter| meter == event.meter) {
            page.events.push(event.with_tenant(query.filter.tenant.clone())?);
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
    tenant: TenantNo,
    query: &EventQuery,
) -> Result<Option<EventQuery>> {
    let Some(meter) = query.filter.meter else { return Ok(Some(query.clone())) };
    let mut select = connection.prepare_cached(
        "-- narrow_to_totals
         SELECT (SELECT min(bucket_start) FROM rollups WHERE tenant_no = ?1 AND meter_no = ?2),
                (SELECT max(bucket_start) FROM rollups WHERE tenant_no = ?1 AND meter_no = ?2)",
    )?;
    let (first, last): (Option<i64>, Option<i64>) =
        select.query_row(params![tenant.0, meter.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
    // No bucket is longer than a day.
    let end = Timestamp::from_micros(last).saturating_add_micros(MICROS_PER_DAY);
    let mut range = Window { start: Timestamp::from_micros(first), end };
    if let Some(asked) = query.filter.range {
        range = Window { start: range.start.max(asked.start), end: range.end.min(asked.end) };
    }
    let mut narrowed = query.clone();
    narrowed.filter.range = Some(range);
    Ok((range.start < range.end).then_some(narrowed))
}

fn push_next(
    connection: &Connection,
    open: &mut BinaryHeap<(Timestamp, String, usize)>,
    stretch: &EventStretch,
    place: usize,
) -> Result<()> {
    let (_, event) = fetch_row(connection, stretch.next_no, decode_event)?;
    open.push((event.occurred_at, event.id, place));
    Ok(())
}

struct EventRange {
    first_no: u64,
    last_no: u64,
    last_at: Timestamp,
}

fn read_ranges(
    connection: &Connection,
    (tenant, folded_before): (TenantNo, u32),
    query: &EventQuery,
) -> Result<Vec<EventRange>> {
    let start = query.filter.range.map_or(i64::MIN, |range| range.start.micros());
    let end = query.filter.range.map_or(i64::MAX, |range| range.end.micros());
    let before = query.after.as_ref().map_or(i64::MAX, |(at, _)| at.micros());
    let mut select = connection.prepare_cached(
        "-- read_ranges
         SELECT first_no, last_no, last_at FROM event_ranges
         WHERE tenant_no = ? AND segment_no < ? AND last_at >= ? AND first_at <= ?",
    )?;
    let rows = select.query_map(params![tenant.0, folded_before, start, end.min(before)], |row| {
        let last_at = Timestamp::from_micros(row.get(2)?);
        Ok(EventRange { first_no: row.get(0)?, last_no: row.get(1)?, last_at })
    });
    let mut ranges: Vec<EventRange> = rows.and_then(Iterator::collect)?;
    ranges.sort_by_key(|range| range.last_at);
    Ok(ranges)
}

/// The newest event of the range that the cursor and the end of the query's time admit.
fn seek(connection: &Connection, range: &EventRange, query: &EventQuery) -> Result<Option<u64>> {
    let too_new = |number: u64| -> Result<bool> {
        let (at, id) = fetch_row(connection, number, |row| {
            let id: String = row.get(4)?;
            Ok((Timestamp::from_micros(row.get(2)?), id))
        })?;
        let past_end = query.filter.range.is_some_and(|range| at >= range.end);
        let past_cursor = query
            .after
            .as_ref()
            .is_some_and(|(cursor_at, cursor)| (at, id.as_str()) >= (*cursor_at, cursor.as_str()));
        Ok(past_end || past_cursor)
    };
    // Events before `low` are admitted, those from `high` on are too new.
    let (mut low, mut high) = (range.first_no, range.last_no + 1);
    if !too_new(range.last_no)? {
        return Ok(Some(range.last_no));
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if too_new(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok(if low > range.first_no { Some(low - 1) } else { None })
}

/// A row of `events`, its tenant still a number.
pub struct EventRow {
    pub id: String,
    pub meter: MeterNo,
    pub occurred_at: Timestamp,
    pub received_at: Timestamp,
    pub quantity: Quantity,
    pub properties: Properties,
    pub subscription: Option<String>,
    pub trial: bool,
}

impl EventRow {
    pub fn with_tenant(self, tenant: TenantId) -> Result<StoredEvent> {
        let subscription = self.subscription.as_deref().map(SubscriptionId::parse).transpose();
        let event = Event {
            tenant,
            id: EventId::parse(&self.id).map_err(|_| damaged("events.id", &self.id))?,
            meter: self.meter,
            quantity: self.quantity,
            occurred_at: self.occurred_at,
            properties: self.properties,
            subscription: subscription.map_err(|_| corrupt("events.subscription"))?,
            trial: self.trial,
        };
        Ok(StoredEvent { event, received_at: self.received_at })
    }
}

fn fetch_row<T>(
    connection: &Connection,
    number: u64,
    decode: impl Fn(&Row<'_>) -> Result<T>,
) -> Result<T> {
    let mut select = connection.prepare_cached(
        "-- fetch_row
         SELECT tenant_no, meter_no, occurred_at, received_after, id, quantity, properties,
                subscription, trial
         FROM events WHERE event_no = ?",
    )?;
    let mut rows = select.query([number])?;
    let row = rows.next()?.ok_or_else(|| corrupt("events row"))?;
    decode(row)
}

/// Decodes a row with the columns of `fetch_row`.
pub fn decode_event(row: &Row<'_>) -> Result<(TenantNo, EventRow)> {
    let text = |column: usize| -> Result<&str> {
        let value = row.get_ref(column)?;
        value.as_str().map_err(|_| corrupt("a text of an events row"))
    };
    let occurred_at = Timestamp::from_micros(row.get(2)?);
    let event = EventRow {
        meter: MeterNo(row.get(1)?),
        occurred_at,
        received_at: occurred_at.saturating_add_micros(row.get(3)?),
        id: text(4)?.to_owned(),
        quantity: Quantity::parse_stored(text(5)?).ok_or_else(|| corrupt("an event's quantity"))?,
        properties: Properties::from_stored(text(6)?),
        subscription: row.get(7)?,
        trial: row.get(8)?,
    };
    Ok((TenantNo(row.get(0)?), event))
}
