//! Opening: rebuilding memory from what is durable.
//!
//! The keys of folded events come from the filters of runs, the segments that are not folded from
//! the journal. The same code runs after a clean stop and after a crash; there is no other way to
//! start. Every event is found by its key afterwards, or the store does not open.

use super::counters::all_names;
use super::declarations::load_catalog;
use super::fold::{FoldState, read_state};
use super::memory::{Memory, Tenants};
use super::record::{EventView, read_journal};
use super::runs::open_runs;
use super::segment::{CommitParts, NewEntry, Segment, contribution_of, key_hash};
use super::statements::Statements;
use super::{corrupt, damaged};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::EventId;
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::store::{Error, Result};
use rusqlite::Connection;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// Memory as the databases say it is, and where the writer and the folder go on.
pub struct Recovered {
    pub memory: Memory,
    pub fold: FoldState,
    /// The oldest journal row that is there, or will be.
    pub first_seq: i64,
    pub high_water: Timestamp,
}

/// Recovers the store in `directory`; `connection` has both of its databases.
pub fn recover(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
) -> Result<Recovered> {
    let fold = read_state(connection)?;
    let catalog = load_catalog(connection)?;
    let mut tenants = Tenants::default();
    for (number, tenant) in all_names(connection)? {
        tenants.insert(number, tenant);
    }
    let first_seq = check_journal(connection, fold)?;
    let Unfolded { open, last_seq, last_received_at } =
        load_unfolded(connection, fold, &catalog, fingerprinter)?;
    let runs = open_runs(connection, directory, fingerprinter, fold.next_event_no)?.into();
    let (catalog, sealed) = (Arc::new(catalog), VecDeque::new());
    let memory = Memory { tenants, catalog, open, sealed, runs, last_seq };
    let high_water = fold.high_water.max(last_received_at);
    Ok(Recovered { memory, fold, first_seq, high_water })
}

/// Refuses a journal and a ledger that are not of one moment, as when one of the files was
/// restored without the other. Returns the oldest journal row.
pub fn check_journal(connection: &Connection, fold: FoldState) -> Result<i64> {
    let (first, last): (Option<i64>, Option<i64>) = connection.read_one(
        "-- check_journal\nSELECT min(seq), max(seq) FROM journal",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let refuse = |older: &str, newer: &str| Error::Corrupt {
        what: format!(
            "{older} is older than {newer}: events would be lost or counted twice; put the files \
             of one backup in place, all of them"
        ),
    };
    match (first, last) {
        (Some(first), _) if first > fold.folded_seq + 1 => {
            Err(refuse("ledger.db", "counterfoil.db"))
        }
        (_, Some(last)) if last < fold.folded_seq => Err(refuse("counterfoil.db", "ledger.db")),
        (None, _) if fold.folded_seq > 0 => Err(refuse("counterfoil.db", "ledger.db")),
        (first, _) => Ok(first.unwrap_or(1)),
    }
}

/// What is in the journal only.
pub struct Unfolded {
    pub open: Segment,
    pub last_seq: i64,
    pub last_received_at: Timestamp,
}

/// Rebuilds the open segment from the journal rows that are not folded.
pub fn load_unfolded(
    connection: &Connection,
    fold: FoldState,
    catalog: &Catalog,
    fingerprinter: &Fingerprinter,
) -> Result<Unfolded> {
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
            return Err(corrupt("the journal: a row is missing, so it"));
        }
        let received_at = Timestamp::from_micros(row.get(1)?);
        let body = row.get_ref(2)?;
        let body = body.as_blob().map_err(|_| corrupt("journal.body"))?;
        open.append(commit_parts(seq, received_at, body, catalog, fingerprinter)?)?;
        (last_seq, last_received_at) = (seq, last_received_at.max(received_at));
    }
    Ok(Unfolded { open, last_seq, last_received_at })
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
