//! Folding: turning a closed segment into ordinary rows, a few steps in each commit.
//!
//! Steps, in order: each event becomes a row of `events` (with its key in `key_blocks` and its
//! tenant's place in `event_ranges`), each total is added to `rollups`, each counter to `counters`.
//! The number of steps done is in `fold_state` and commits together with them. A total with
//! many unique values is several steps, and a step costs as much of a commit's budget as it has
//! values, so that no commit waits for a large one.
//!
//! Invariant: table plus steps left is the exact total at every commit. A crash leaves a number of
//! steps done; the closed segment is rebuilt equal from the journal and folding goes on from there.
//! Journal rows of a folded segment are only garbage, and are deleted a few at a time.

use super::key_blocks::insert_block;
use super::keys::Location;
use super::rollups::{read_rollup, write_rollup};
use super::segment::{ClosedSegment, overflow};
use super::statements::Statements;
use crate::faults::planted;
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Tally;
use crate::store::{Error, Result};
use rusqlite::{Connection, params};
use std::ops::Range;

/// Journal rows of folded segments that one commit deletes.
const DELETE_ROWS: i64 = 4;

/// The row of `fold_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldState {
    pub segment_no: u32,
    pub closing_seq: Option<i64>,
    pub steps_done: usize,
    pub next_event_no: u64,
    pub folded_seq: i64,
    pub high_water: Timestamp,
    /// How the segment being folded was planned; see `Segment::plan_fold`.
    pub plan: u32,
}

impl FoldState {
    /// The number after the last event that is in its table; `closed` is the segment being folded.
    pub fn events_end(&self, closed: Option<&ClosedSegment>) -> u64 {
        let folded = closed.map_or(0, |closed| self.steps_done.min(closed.order.len()));
        self.next_event_no + u64::try_from(folded).expect("a length fits 64 bits")
    }
}

/// What a fold changed, to be taken over in memory after the commit.
pub struct Folded {
    pub state: FoldState,
    /// Events that moved from memory to their table.
    pub moved: Vec<(u64, Location, Location)>,
    pub finished: bool,
}

/// Does steps inside the caller's transaction until they have cost `budget`.
pub fn fold_steps(
    connection: &Connection,
    closed: &ClosedSegment,
    catalog: &Catalog,
    state: FoldState,
    budget: usize,
) -> Result<Folded> {
    let from = state.steps_done;
    let to = closed.step_after(from, budget);
    let (events, rollups) = (closed.order.len(), closed.rollups.len());
    let moved = fold_events(connection, closed, state.next_event_no, part(from..to, 0, events))?;
    for (key, delta) in &closed.rollups[part(from..to, events, rollups)] {
        fold_rollup(connection, key, delta, catalog).map_err(|error| name_total(error, key))?;
    }
    let counters = part(from..to, events + rollups, closed.counters.len());
    for ((tenant, hour), tally) in &closed.counters[counters] {
        add_counter(connection, i64::from(tenant.0), *hour, tally)?;
    }
    if planted("bug.rollup_outside_transaction") {
        connection.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
    }
    finish(connection, closed, state, to, moved)
}

fn fold_rollup(
    connection: &Connection,
    key: &RollupKey,
    delta: &Rollup,
    catalog: &Catalog,
) -> Result<()> {
    let mut total = read_rollup(connection, key, catalog)?;
    match &mut total {
        Some(total) => total.fold(delta).map_err(|_| overflow())?,
        None => total = Some(delta.clone()),
    }
    write_rollup(connection, key, &total.expect("it was just set"), delta)
}

/// Says which row is damaged.
fn name_total(error: Error, key: &RollupKey) -> Error {
    match error {
        Error::Corrupt { what } => {
            let RollupKey { tenant, meter, bucket_start, group } = key;
            let (tenant, meter, group) = (tenant.0, meter.0, group.as_text());
            let row = format!("tenant_no {tenant}, meter_no {meter}, {bucket_start}, {group:?}");
            Error::Corrupt { what: format!("{what} (rollups: {row})") }
        }
        error @ (Error::Unavailable { .. }
        | Error::Overdue { .. }
        | Error::TooLarge { .. }
        | Error::Unknown { .. }
        | Error::Internal { .. }) => error,
    }
}

fn finish(
    connection: &Connection,
    closed: &ClosedSegment,
    state: FoldState,
    steps_done: usize,
    moved: Vec<(u64, Location, Location)>,
) -> Result<Folded> {
    let finished = steps_done == closed.steps();
    let segment = &closed.segment;
    let events = u64::try_from(closed.order.len()).expect("a length fits 64 bits");
    let state = if finished {
        FoldState {
            segment_no: state.segment_no + 1,
            closing_seq: None,
            steps_done: 0,
            next_event_no: state.next_event_no + events,
            folded_seq: segment.last_seq,
            high_water: state.high_water.max(segment.last_received_at),
            plan: closed.plan,
        }
    } else {
        FoldState { closing_seq: Some(segment.last_seq), steps_done, plan: closed.plan, ..state }
    };
    write_state(connection, &state)?;
    Ok(Folded { state, moved, finished })
}

/// The part of the steps `steps` that lies in a phase of `length` steps starting at `start`.
fn part(steps: Range<usize>, start: usize, length: usize) -> Range<usize> {
    let clamp = |step: usize| step.saturating_sub(start).min(length);
    clamp(steps.start)..clamp(steps.end)
}

fn fold_events(
    connection: &Connection,
    closed: &ClosedSegment,
    first_no: u64,
    places: Range<usize>,
) -> Result<Vec<(u64, Location, Location)>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let segment = &closed.segment;
    let number_of = |place: usize| first_no + u64::try_from(place).expect("a place fits 64 bits");
    let mut insert = connection.prepare_cached(
        "-- fold_events
         INSERT INTO events (event_no, tenant_no, meter_no, occurred_at, received_after, id,
                             quantity, properties, subscription, trial)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    let mut hashes = Vec::with_capacity(places.len() * 8);
    let mut moved = Vec::with_capacity(places.len());
    for place in places.clone() {
        let arrival = closed.order[place];
        let entry = segment.entry(arrival);
        let (view, received_at) = segment.view(entry)?;
        let number = number_of(place);
        let quantity = view.quantity.to_string();
        insert.execute(params![
            signed(number),
            view.tenant.0,
            view.meter.0,
            view.occurred_at.micros(),
            received_at.micros() - view.occurred_at.micros(),
            view.id,
            quantity,
            view.properties,
            view.subscription,
            view.trial
        ])?;
        hashes.extend_from_slice(&entry.hash.to_le_bytes());
        let from = Location::Unfolded { segment: segment.number, place: arrival };
        moved.push((entry.hash, from, Location::Folded(number)));
    }
    insert_block(connection, signed(number_of(places.start)), &hashes)?;
    fold_ranges(connection, closed, first_no, places)?;
    Ok(moved)
}

/// Writes the range of every tenant whose last event is among `places`.
fn fold_ranges(
    connection: &Connection,
    closed: &ClosedSegment,
    first_no: u64,
    places: Range<usize>,
) -> Result<()> {
    let entry = |place: usize| closed.segment.entry(closed.order[place]);
    let number_of = |place: usize| first_no + u64::try_from(place).expect("a place fits 64 bits");
    for last in places {
        let tenant = entry(last).tenant;
        let ends = last + 1 == closed.order.len() || entry(last + 1).tenant != tenant;
        if !ends {
            continue;
        }
        let first = closed.order.partition_point(|p| closed.segment.entry(*p).tenant < tenant);
        connection.run("-- fold_ranges
                 INSERT INTO event_ranges (tenant_no, segment_no, first_no, last_no, first_at, last_at)
                 VALUES (?, ?, ?, ?, ?, ?)", params![
                    tenant.0,
                    closed.segment.number,
                    signed(number_of(first)),
                    signed(number_of(last)),
                    entry(first).occurred_at.micros(),
                    entry(last).occurred_at.micros()
                ])?;
    }
    Ok(())
}

fn add_counter(connection: &Connection, tenant: i64, hour: Timestamp, tally: &Tally) -> Result<()> {
    let count = |number: u64| i64::try_from(number).expect("a count fits 63 bits");
    connection.run(
        "-- add_counter
         INSERT INTO counters (tenant_no, hour, accepted, duplicates, conflicts, quarantined,
                               rejected)
         VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (hour, tenant_no) DO UPDATE SET
             accepted = accepted + excluded.accepted,
             duplicates = duplicates + excluded.duplicates,
             conflicts = conflicts + excluded.conflicts,
             quarantined = quarantined + excluded.quarantined,
             rejected = rejected + excluded.rejected",
        params![
            tenant,
            hour.micros(),
            count(tally.accepted),
            count(tally.duplicates),
            count(tally.conflicts),
            count(tally.quarantined),
            count(tally.rejected)
        ],
    )?;
    Ok(())
}

/// Deletes a few journal rows that are folded. Returns whether there were any.
pub fn delete_folded_journal(connection: &Connection, folded_seq: i64) -> Result<bool> {
    let deleted = connection.run(
        "-- delete_folded_journal
         DELETE FROM journal WHERE seq IN
             (SELECT seq FROM journal WHERE seq <= ?1 ORDER BY seq LIMIT ?2)",
        params![folded_seq, DELETE_ROWS],
    )?;
    Ok(deleted > 0)
}

pub fn read_state(connection: &Connection) -> Result<FoldState> {
    connection.read_one(
        "-- read_state
         SELECT segment_no, closing_seq, steps_done, next_event_no, folded_seq, high_water, plan
         FROM fold_state",
        [],
        |row| {
            Ok(FoldState {
                segment_no: row.get(0)?,
                closing_seq: row.get(1)?,
                steps_done: row.get(2)?,
                next_event_no: row.get(3)?,
                folded_seq: row.get(4)?,
                high_water: Timestamp::from_micros(row.get(5)?),
                plan: row.get(6)?,
            })
        },
    )
}

pub fn write_state(connection: &Connection, state: &FoldState) -> Result<()> {
    let changed = connection.run(
        "-- write_state
         UPDATE fold_state SET segment_no = ?, closing_seq = ?, steps_done = ?,
             next_event_no = ?, folded_seq = ?, high_water = ?, plan = ?",
        params![
            state.segment_no,
            state.closing_seq,
            state.steps_done,
            signed(state.next_event_no),
            state.folded_seq,
            state.high_water.micros(),
            state.plan
        ],
    )?;
    if changed == 1 { Ok(()) } else { Err(Error::Corrupt { what: "fold_state has no row".into() }) }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("event numbers fit 63 bits")
}
