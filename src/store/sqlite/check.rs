//! The check: every total recomputed from the events and compared with what is stored; every event
//! found again by its key and in its tenant's range; no key twice.
//!
//! It reads only the database file, so it can run beside a server, in another process, or on a
//! copy. Folded events never change, so they are read in slices, each in a short read transaction
//! that does not hold the write-ahead log; the last transaction reads what came meanwhile and
//! compares. Memory holds the totals, never the events.
//!
//! Repair makes totals again from the events and nothing else; it is refused unless every event
//! is there and agrees with its key.

mod duplicates;
mod scan;

use super::declarations::load_catalog;
use super::fold::{FoldState, read_state};
use super::recovery::{Unfolded, load_unfolded};
use super::rollups::{decode_rollup, write_rollup};
use super::segment::{ClosedSegment, overflow};
use super::session::SqliteSession;
use super::{corrupt, counters, sql_error};
use crate::rules::chain::ChainReport;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::rollup::{Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::sql::{Failure, verify_passes};
use crate::store::{CheckReport, Error, Progress, Result};
use duplicates::count_duplicates;
use rusqlite::{Connection, Row, params};
use scan::Scan;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Compares what is stored with what the events say.
pub fn check(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    examine(connection, fingerprinter, progress).map(|examined| examined.report)
}

/// A total that is not what its events add up to.
struct WrongTotal {
    key: RollupKey,
    /// What it should be; None if there are no events.
    right: Option<Rollup>,
}

struct Examined {
    report: CheckReport,
    wrong: Vec<WrongTotal>,
    /// Whether an event is missing, stored twice, or contradicts its key or range.
    events_damaged: bool,
}

fn examine(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<Examined> {
    let mut scan = Scan::new(connection, fingerprinter);
    while scan.read_slice()? {
        progress(scan.events);
    }
    connection.execute_batch("BEGIN")?;
    let fold = read_state(connection)?;
    let catalog = load_catalog(connection)?;
    let unfolded = load_unfolded(connection, fold, &catalog, fingerprinter)?;
    scan.read_rest(&catalog, &fold, unfolded.closed.as_ref())?;
    let Scan { mut report, mut rollups, mut accepted, .. } = scan;
    let mut events_damaged = !report.findings.is_empty();
    let segments = unfolded.closed.iter().map(|closed| &closed.segment);
    for segment in segments.chain(std::iter::once(&unfolded.open)) {
        report.events += u64::try_from(segment.len()).expect("a length fits 64 bits");
        for entry in segment.entries() {
            *accepted.entry(entry.tenant).or_default() += 1;
        }
    }
    progress(report.events);
    if let Some(closed) = &unfolded.closed {
        for (key, delta) in rollups_done(closed, fold) {
            fold_into(&mut rollups, key.clone(), delta)?;
        }
    }
    report.rollups = count_totals(&rollups, &unfolded, fold);
    let wrong = compare_rollups(connection, &catalog, rollups, &mut report)?;
    compare_counters(connection, &unfolded, fold, &accepted, &mut report)?;
    connection.execute_batch("ROLLBACK")?;
    let twice = count_duplicates(connection, &unfolded, fold)?;
    report.audit = verify_chain(connection)?;
    if let Some(broken) = report.audit.broken.clone() {
        report.add(|| format!("the chain of nightly passes is broken: {broken}"));
    }
    if twice > 0 {
        report.add(|| format!("{twice} events are stored twice"));
        events_damaged = true;
    }
    Ok(Examined { report, wrong, events_damaged })
}

/// Follows the chain of nightly passes, in one read transaction.
pub fn verify_chain(connection: &Connection) -> Result<ChainReport> {
    connection.execute_batch("BEGIN")?;
    let report = verify_passes(&SqliteSession::on(connection));
    connection.execute_batch("ROLLBACK")?;
    report.map_err(Failure::into_error)
}

/// Totals of the segment being folded that are in their table.
fn rollups_done(closed: &ClosedSegment, fold: FoldState) -> &[(RollupKey, Rollup)] {
    let left = closed.rollups_left(fold.steps_done).len();
    &closed.rollups[..closed.rollups.len() - left]
}

/// Different totals, in the table or still to be folded.
fn count_totals(table: &HashMap<RollupKey, Rollup>, unfolded: &Unfolded, fold: FoldState) -> u64 {
    let left = unfolded.closed.iter().flat_map(|closed| closed.rollups_left(fold.steps_done));
    let open = unfolded.open.all_rollups().map(|(key, _)| key);
    let more: HashSet<RollupKey> = left
        .map(|(key, _)| key.clone())
        .chain(open)
        .filter(|key| !table.contains_key(key))
        .collect();
    u64::try_from(table.len() + more.len()).expect("a length fits 64 bits")
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

fn compare_rollups(
    connection: &Connection,
    catalog: &Catalog,
    mut expected: HashMap<RollupKey, Rollup>,
    report: &mut CheckReport,
) -> Result<Vec<WrongTotal>> {
    let describe = |key: &RollupKey| describe(connection, catalog, key);
    let mut select = connection.prepare(
        "-- compare_rollups
         SELECT count, total, latest_at, latest_id, tenant_no, meter_no, bucket_start, grp
         FROM rollups",
    )?;
    let mut rows = select.query([])?;
    let (mut wrong, mut uniques) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let (key, stored, values) = read_total(connection, catalog, row)?;
        uniques += values;
        let right = expected.remove(&key);
        match (&right, &stored) {
            (Some(right), Ok(stored)) if right == stored => continue,
            (None, _) => report.add(|| format!("{}: a total and no events", describe(&key))),
            (Some(right), Ok(stored)) => report
                .add(|| format!("{}: events say {right:?}, stored is {stored:?}", describe(&key))),
            (Some(right), Err(_)) => report.add(|| {
                format!("{}: the total cannot be read, events say {right:?}", describe(&key))
            }),
        }
        wrong.push(WrongTotal { key, right });
    }
    let stored: u64 = connection.query_row(
        "-- compare_rollups\nSELECT count(*) FROM rollup_uniques",
        [],
        |row| row.get(0),
    )?;
    if stored != uniques {
        report.add(|| "unique values are stored that belong to no total".into());
    }
    for (key, right) in expected {
        report.add(|| format!("{}: events and no total", describe(&key)));
        wrong.push(WrongTotal { key, right: Some(right) });
    }
    Ok(wrong)
}

/// The key of a row, its total unless it cannot be read, and how many unique values it has.
fn read_total(
    connection: &Connection,
    catalog: &Catalog,
    row: &Row<'_>,
) -> Result<(RollupKey, Result<Rollup>, u64)> {
    let group: String = row.get(7)?;
    let key = RollupKey {
        tenant: TenantNo(row.get(4)?),
        meter: MeterNo(row.get(5)?),
        bucket_start: Timestamp::from_micros(row.get(6)?),
        group: Group::from_stored(&group),
    };
    let Some(meter) = catalog.get(key.meter) else {
        return Ok((key, Err(corrupt("meters row of a rollups row")), 0));
    };
    let aggregation = meter.spec.aggregation;
    let values = match aggregation {
        Aggregation::Unique => read_values(connection, &key)?,
        Aggregation::Sum
        | Aggregation::Count
        | Aggregation::Min
        | Aggregation::Max
        | Aggregation::Latest => BTreeSet::new(),
    };
    let count = u64::try_from(values.len()).expect("a length fits 64 bits");
    let total = decode_rollup(row, aggregation, values);
    Ok((key, total, count))
}

fn read_values(connection: &Connection, key: &RollupKey) -> Result<BTreeSet<Box<str>>> {
    let mut select = connection.prepare_cached(
        "-- read_values
         SELECT value FROM rollup_uniques
         WHERE tenant_no = ? AND meter_no = ? AND bucket_start = ? AND grp = ?",
    )?;
    let RollupKey { tenant, meter, bucket_start, group } = key;
    select
        .query_map(params![tenant.0, meter.0, bucket_start.micros(), group.as_text()], |row| {
            row.get::<_, String>(0).map(Box::from)
        })
        .and_then(Iterator::collect)
        .map_err(sql_error)
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

fn describe(connection: &Connection, catalog: &Catalog, key: &RollupKey) -> String {
    let RollupKey { tenant, meter, bucket_start, group } = key;
    let tenant = tenant_name(connection, *tenant);
    let meter = catalog
        .get(*meter)
        .map_or_else(|| format!("number {}", meter.0), |meter| meter.slug.to_string());
    format!("tenant {tenant}, meter {meter}, bucket {bucket_start}, group {:?}", group.as_text())
}

fn tenant_name(connection: &Connection, tenant: TenantNo) -> String {
    let name = connection.query_row(
        "-- tenant_name\nSELECT tenant FROM tenants WHERE tenant_no = ?",
        [tenant.0],
        |row| row.get(0),
    );
    name.unwrap_or_else(|_| format!("number {}", tenant.0))
}

/// Makes every wrong total again from its events, in one transaction, on a store that nobody else
/// has open. The report lists what was wrong. Nothing is written if an event is in doubt.
pub fn repair(
    connection: &Connection,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let Examined { report, wrong, events_damaged } = examine(connection, fingerprinter, progress)?;
    if events_damaged {
        let first = report.findings.first().map_or("", String::as_str);
        let what = format!(
            "events are damaged as well, so totals cannot be made from them; run check without \
             --repair for all findings, and restore a backup; the first is: {first}"
        );
        return Err(Error::Corrupt { what });
    }
    let transaction = connection.unchecked_transaction()?;
    for WrongTotal { key, right } in &wrong {
        let RollupKey { tenant, meter, bucket_start, group } = key;
        for table in ["rollups", "rollup_uniques"] {
            let sql = format!(
                "-- repair\nDELETE FROM {table}
                 WHERE tenant_no = ? AND meter_no = ? AND bucket_start = ? AND grp = ?"
            );
            let row = params![tenant.0, meter.0, bucket_start.micros(), group.as_text()];
            transaction.execute(&sql, row)?;
        }
        if let Some(right) = right {
            write_rollup(&transaction, key, right, right)?;
        }
    }
    transaction.execute(
        "-- repair
         DELETE FROM rollup_uniques WHERE NOT EXISTS (
             SELECT 1 FROM rollups WHERE rollups.tenant_no = rollup_uniques.tenant_no
                 AND rollups.meter_no = rollup_uniques.meter_no
                 AND rollups.bucket_start = rollup_uniques.bucket_start
                 AND rollups.grp = rollup_uniques.grp)",
        [],
    )?;
    transaction.commit()?;
    Ok(report)
}
