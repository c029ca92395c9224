//! Opening: rebuilding memory from what is durable.
//!
//! Event keys come from `key_blocks`, the unfolded segments from the journal. The same code runs
//! after a clean stop and after a crash; there is no other way to start. Every event has its key
//! afterwards, or the store does not open.

use super::counters::all_names;
use super::declarations::load_catalog;
use super::fold::{FoldState, read_state};
use super::key_blocks::load_keys;
use super::keys::{KeyIndex, Location, key_hash};
use super::memory::{Memory, Tenants};
use super::record::{EventView, read_journal};
use super::segment::{ClosedSegment, CommitParts, NewEntry, Segment, contribution_of};
use super::{corrupt, damaged};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::EventId;
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use rusqlite::Connection;
use std::sync::Arc;

/// Memory as the database says it is, and where the writer goes on.
pub struct Recovered {
    pub memory: Memory,
    pub keys: KeyIndex,
    pub fold: FoldState,
    pub next_seq: i64,
    pub journal_garbage: bool,
    pub high_water: Timestamp,
}

pub fn recover(connection: &Connection, fingerprinter: &Fingerprinter) -> Result<Recovered> {
    let fold = read_state(connection)?;
    let catalog = load_catalog(connection)?;
    let mut tenants = Tenants::default();
    for (number, tenant) in all_names(connection)? {
        tenants.insert(number, tenant);
    }
    let Unfolded { closed, open, last_seq, last_received_at } =
        load_unfolded(connection, fold, &catalog, fingerprinter)?;
    let mut keys = load_keys(connection, fingerprinter, fold.events_end(closed.as_ref()))?;
    if let Some(closed) = &closed {
        for place in closed.order.iter().skip(fold.steps_done) {
            let segment = closed.segment.number;
            let hash = closed.segment.entry(*place).hash;
            keys.insert(hash, Location::Unfolded { segment, place: *place });
        }
    }
    for (place, entry) in (0..).zip(open.entries()) {
        keys.insert(entry.hash, Location::Unfolded { segment: open.number, place });
    }
    let journal_garbage: bool = connection.query_row(
        "-- recover\nSELECT EXISTS (SELECT 1 FROM journal WHERE seq <= ?)",
        [fold.folded_seq],
        |row| row.get(0),
    )?;
    let (catalog, folding) = (Arc::new(catalog), closed.map(Arc::new));
    let memory = Memory { tenants, catalog, open, sealed: None, folding };
    let high_water = fold.high_water.max(last_received_at);
    Ok(Recovered { memory, keys, fold, next_seq: last_seq + 1, journal_garbage, high_water })
}

/// The segments that are in the journal only.
pub struct Unfolded {
    pub closed: Option<ClosedSegment>,
    pub open: Segment,
    pub last_seq: i64,
    pub last_received_at: Timestamp,
}

/// Rebuilds the segments that are not folded, or not completely.
pub fn load_unfolded(
    connection: &Connection,
    fold: FoldState,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> Result<Unfolded> {
    let mut closed = None;
    let mut open = Segment::new(fold.segment_no);
    let mut last_seq = fold.folded_seq;
    let mut last_received_at = Timestamp::from_micros(i64::MIN);
    let mut select = connection.prepare(
        "-- load_unfolded
         SELECT seq, received_at, body FROM journal WHERE seq > ? ORDER BY seq",
    )?;
    let mut rows = select.query([fold.folded_seq])?;
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        if seq != last_seq + 1 {
            return Err(corrupt("the journal: a row is missing"));
        }
        let received_at = Timestamp::from_micros(row.get(1)?);
        let body = row.get_ref(2)?;
        let body = body.as_blob().map_err(|_| corrupt("journal.body"))?;
        open.append(commit_parts(seq, received_at, body, catalog, fingerprinter)?)?;
        (last_seq, last_received_at) = (seq, last_received_at.max(received_at));
        if fold.closing_seq == Some(seq) {
            let ended = std::mem::replace(&mut open, Segment::new(fold.segment_no + 1));
            let plan = ended.plan_fold(fold.plan);
            closed = Some(ended.close(plan));
        }
    }
    if fold.closing_seq.is_some() && closed.is_none() {
        return Err(corrupt("the journal: rows of the segment being folded are missing"));
    }
    Ok(Unfolded { closed, open, last_seq, last_received_at })
}

fn commit_parts(
    seq: i64,
    received_at: Timestamp,
    body: &[u8],
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> Result<CommitParts> {
    let journal = read_journal(body)?;
    let mut entries = Vec::with_capacity(journal.event_count);
    let mut contributions = Vec::with_capacity(journal.event_count);
    let mut offset = 0;
    for _ in 0..journal.event_count {
        let view = EventView::read(&journal.events, offset)?;
        let id = EventId::parse(view.id).map_err(|_| damaged("events.id", view.id))?;
        entries.push(NewEntry {
            hash: key_hash(fingerprinter, view.tenant, &id),
            occurred_at: view.occurred_at,
            tenant: view.tenant,
            offset: u32::try_from(offset).map_err(|_| corrupt("journal.body"))?,
        });
        contributions.push(contribution_of(&view, catalog)?);
        offset = view.end;
    }
    let (events, counters) = (journal.events, journal.counters);
    Ok(CommitParts { seq, received_at, events, entries, contributions, counters })
}
