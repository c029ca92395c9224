//! The check: every total recomputed from the events and compared with what is stored.
//!
//! Reads one snapshot of the database file and nothing else, so it can run beside a server, in
//! another process, or on a copy.

use super::declarations::load_catalog;
use super::events::decode_event;
use super::fold::{FoldState, read_state};
use super::recovery::{Unfolded, load_unfolded};
use super::rollups::decode_rollup;
use super::segment::{Contribution, Entry, Segment, contribution_of, overflow};
use super::{corrupt, counters, sql_error};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::rollup::{Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::{CheckReport, Progress, Result};
use rusqlite::Connection;
use std::collections::{BTreeSet, HashMap};

const PROGRESS_EVERY: u64 = 10_000;

pub fn check(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    connection.execute_batch("BEGIN").map_err(sql_error)?;
    let fold = read_state(connection)?;
    let catalog = load_catalog(connection)?;
    let unfolded = load_unfolded(connection, fold, &catalog, fingerprinter)?;
    let mut expected = Expected::default();
    scan_table(connection, fingerprinter, &catalog, &mut expected, progress)?;
    scan_unfolded(&unfolded, fold, fingerprinter, &catalog, &mut expected)?;
    progress(expected.events);
    let mut report = CheckReport { events: expected.events, ..CheckReport::default() };
    let stored = stored_rollups(connection, &unfolded, fold, &catalog)?;
    report.rollups = u64::try_from(stored.len()).expect("a length fits 64 bits");
    compare_rollups(&expected.rollups, &stored, &mut report);
    compare_counters(connection, &unfolded, fold, &expected.accepted, &mut report)?;
    let keys = expected.keys.len();
    expected.keys.sort_unstable();
    expected.keys.dedup();
    if expected.keys.len() != keys {
        report.add(|| format!("{} events are stored twice", keys - expected.keys.len()));
    }
    Ok(report)
}

/// What the events say the totals are.
#[derive(Default)]
struct Expected {
    events: u64,
    rollups: HashMap<RollupKey, Rollup>,
    accepted: HashMap<TenantNo, u64>,
    keys: Vec<u128>,
}

impl Expected {
    fn count(&mut self, key: u128, contribution: Contribution) -> Result<()> {
        self.events += 1;
        self.keys.push(key);
        *self.accepted.entry(contribution.tenant).or_default() += 1;
        let Contribution { tenant, meter, bucket_start, group, rollup } = contribution;
        fold_into(&mut self.rollups, RollupKey { tenant, meter, bucket_start, group }, &rollup)
    }
}

fn fold_into(
    rollups: &mut HashMap<RollupKey, Rollup>,
    key: RollupKey,
    rollup: &Rollup,
) -> Result<()> {
    match rollups.get_mut(&key) {
        Some(total) => total.fold(rollup).map_err(|_| overflow()),
        None => {
            rollups.insert(key, rollup.clone());
            Ok(())
        }
    }
}

fn scan_table(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    catalog: &Catalog,
    expected: &mut Expected,
    progress: Progress<'_>,
) -> Result<()> {
    let nobody = TenantId::parse("-").expect("a valid tenant id");
    let mut select = connection
        .prepare(
            "-- scan_table
             SELECT tenant_no, meter_no, occurred_at, received_after, id, quantity, properties,
                    subscription, trial
             FROM events ORDER BY event_no",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([]).map_err(sql_error)?;
    while let Some(row) = rows.next().map_err(sql_error)? {
        let (tenant, event) = decode_event(row)?;
        let event = event.with_tenant(nobody.clone())?.event;
        let meter = catalog.get(event.meter).ok_or_else(|| corrupt("an event's meter"))?;
        let (bucket_start, group, rollup) = Rollup::of_event(&event, meter);
        let meter = event.meter;
        let contribution = Contribution { tenant, meter, bucket_start, group, rollup };
        expected.count(fingerprinter.event_key(tenant, &event.id), contribution)?;
        if expected.events.is_multiple_of(PROGRESS_EVERY) {
            progress(expected.events);
        }
    }
    Ok(())
}

fn scan_unfolded(
    unfolded: &Unfolded,
    fold: FoldState,
    fingerprinter: &Fingerprinter,
    catalog: &Catalog,
    expected: &mut Expected,
) -> Result<()> {
    let mut count = |segment: &Segment, entry: &Entry| -> Result<()> {
        let (view, _) = segment.view(entry)?;
        let id = EventId::parse(view.id).map_err(|_| corrupt("an event's id"))?;
        let key = fingerprinter.event_key(view.tenant, &id);
        expected.count(key, contribution_of(&view, catalog)?)
    };
    if let Some(closed) = &unfolded.closed {
        for place in closed.order.iter().skip(fold.steps_done) {
            count(&closed.segment, closed.segment.entry(*place))?;
        }
    }
    unfolded.open.entries().iter().try_for_each(|entry| count(&unfolded.open, entry))
}

fn stored_rollups(
    connection: &Connection,
    unfolded: &Unfolded,
    fold: FoldState,
    catalog: &Catalog,
) -> Result<HashMap<RollupKey, Rollup>> {
    let mut stored = read_all_rollups(connection, catalog)?;
    if let Some(closed) = &unfolded.closed {
        for (key, rollup) in closed.rollups_left(fold.steps_done) {
            fold_into(&mut stored, key.clone(), rollup)?;
        }
    }
    for ((tenant, meter), (start, group), rollup) in unfolded.open.all_rollups() {
        let (tenant, meter, bucket_start) = (*tenant, *meter, *start);
        let key = RollupKey { tenant, meter, bucket_start, group: group.clone() };
        fold_into(&mut stored, key, rollup)?;
    }
    Ok(stored)
}

fn read_all_rollups(
    connection: &Connection,
    catalog: &Catalog,
) -> Result<HashMap<RollupKey, Rollup>> {
    let mut uniques = read_all_uniques(connection)?;
    let mut select = connection
        .prepare(
            "-- read_all_rollups
             SELECT count, total, latest_at, latest_id, tenant_no, meter_no, bucket_start, grp
             FROM rollups",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([]).map_err(sql_error)?;
    let mut stored = HashMap::new();
    while let Some(row) = rows.next().map_err(sql_error)? {
        let group: String = row.get(7).map_err(sql_error)?;
        let key = RollupKey {
            tenant: TenantNo(row.get(4).map_err(sql_error)?),
            meter: MeterNo(row.get(5).map_err(sql_error)?),
            bucket_start: Timestamp::from_micros(row.get(6).map_err(sql_error)?),
            group: Group::from_stored(&group),
        };
        let aggregation = catalog.get(key.meter).map(|meter| meter.spec.aggregation);
        let aggregation: Aggregation = aggregation.ok_or_else(|| corrupt("a total's meter"))?;
        let values = uniques.remove(&key).unwrap_or_default();
        let rollup = decode_rollup(row, aggregation, values)?;
        stored.insert(key, rollup);
    }
    Ok(stored)
}

fn read_all_uniques(connection: &Connection) -> Result<HashMap<RollupKey, BTreeSet<Box<str>>>> {
    let mut select = connection
        .prepare(
            "-- read_all_uniques
             SELECT tenant_no, meter_no, bucket_start, grp, value FROM rollup_uniques",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([]).map_err(sql_error)?;
    let mut uniques: HashMap<RollupKey, BTreeSet<Box<str>>> = HashMap::new();
    while let Some(row) = rows.next().map_err(sql_error)? {
        let (group, value): (String, String) =
            (row.get(3).map_err(sql_error)?, row.get(4).map_err(sql_error)?);
        let key = RollupKey {
            tenant: TenantNo(row.get(0).map_err(sql_error)?),
            meter: MeterNo(row.get(1).map_err(sql_error)?),
            bucket_start: Timestamp::from_micros(row.get(2).map_err(sql_error)?),
            group: Group::from_stored(&group),
        };
        uniques.entry(key).or_default().insert(value.into());
    }
    Ok(uniques)
}

fn compare_rollups(
    expected: &HashMap<RollupKey, Rollup>,
    stored: &HashMap<RollupKey, Rollup>,
    report: &mut CheckReport,
) {
    for (key, rollup) in expected {
        let found = stored.get(key);
        if found != Some(rollup) {
            report.add(|| format!("{}: events say {rollup:?}, stored is {found:?}", describe(key)));
        }
    }
    for key in stored.keys().filter(|key| !expected.contains_key(*key)) {
        report.add(|| format!("{}: a total is stored and there are no events", describe(key)));
    }
}

fn compare_counters(
    connection: &Connection,
    unfolded: &Unfolded,
    fold: FoldState,
    expected: &HashMap<TenantNo, u64>,
    report: &mut CheckReport,
) -> Result<()> {
    let always =
        Window { start: Timestamp::from_micros(i64::MIN), end: Timestamp::from_micros(i64::MAX) };
    let mut accepted: HashMap<TenantNo, u64> = HashMap::new();
    let table = counters::read_table(connection, always)?;
    let left = unfolded.closed.iter().flat_map(|c| c.counters_left(fold.steps_done)).copied();
    let open = unfolded.open.counters().iter().map(|(key, tally)| (*key, *tally));
    for ((tenant, _), tally) in table.into_iter().chain(left).chain(open) {
        *accepted.entry(tenant).or_default() += tally.accepted;
    }
    accepted.retain(|_, count| *count > 0);
    if accepted != *expected {
        report.add(|| "the counters of accepted events differ from the events".into());
    }
    Ok(())
}

fn describe(key: &RollupKey) -> String {
    let RollupKey { tenant, meter, bucket_start, group } = key;
    format!("tenant {} meter {} {bucket_start} {}", tenant.0, meter.0, group.as_text())
}
