//! The check: every total recomputed from the events and compared with what is stored; every event
//! found again by its key and in its tenant's range; no key twice.
//!
//! It reads only the files of the store, so it can run beside a server, in another process, or on a
//! copy. Folded segments never change, so they are read one by one, each in a short read
//! transaction that does not hold the write-ahead log; the last transaction reads what came
//! meanwhile and compares. Memory holds the totals, never the events.
//!
//! Repair makes totals again from the events and nothing else; it is refused unless every event
//! is there and can be read.

mod keys;
mod scan;

use super::counters;
use super::declarations::load_catalog;
use super::fold::read_state;
use super::recovery::{Unfolded, check_journal, load_unfolded};
use super::rollups::{aggregation_of, decode_rollup, insert_total, value_of};
use super::runs::{RunRow, read_runs};
use super::segment::overflow;
use super::session::SqliteSession;
use super::statements::Statements;
use crate::rules::chain::ChainReport;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::sql::{Failure, verify_passes};
use crate::store::{CheckReport, Error, Progress, Result};
use keys::{begin_with_runs, compare_keys};
use rusqlite::{Connection, Row, params};
use scan::Scan;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Compares what is stored with what the events say; the connection has both databases.
pub fn check(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    examine(connection, directory, fingerprinter, progress).map(|examined| examined.report)
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
    /// Whether an event is missing, stored twice, cannot be read or is outside its range.
    events_damaged: bool,
}

fn examine(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<Examined> {
    let mut scan = Scan::new(connection, fingerprinter);
    while scan.read_segment()? {
        progress(scan.report.events);
    }
    let files = begin_with_runs(connection, directory)?;
    let fold = read_state(connection)?;
    check_journal(connection, fold)?;
    let catalog = load_catalog(connection)?;
    let unfolded = load_unfolded(connection, fold, &catalog, fingerprinter)?;
    scan.read_rest(&catalog, &fold)?;
    let Scan { mut report, rollups, mut accepted, marks, .. } = scan;
    let mut events_damaged = !report.findings.is_empty();
    report.events += u64::try_from(unfolded.open.len()).expect("a length fits 64 bits");
    for entry in unfolded.open.entries() {
        *accepted.entry(entry.tenant).or_default() += 1;
    }
    progress(report.events);
    report.rollups = count_totals(&rollups, &unfolded);
    let wrong = compare_rollups(connection, &catalog, rollups, &mut report)?;
    compare_counters(connection, &unfolded, &accepted, &mut report)?;
    connection.execute_batch("ROLLBACK")?;
    let twice = compare_keys(connection, files, &unfolded, &marks, &mut report)?;
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

/// Different totals, in the table or still to be folded.
fn count_totals(table: &HashMap<RollupKey, Rollup>, unfolded: &Unfolded) -> u64 {
    let open = unfolded.open.all_rollups().map(|(key, _)| key);
    let more: HashSet<RollupKey> = open.filter(|key| !table.contains_key(key)).collect();
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
    let mut wrong = Vec::new();
    for (key, stored) in read_totals(connection, catalog)? {
        let right = expected.remove(&key);
        match (&right, &stored) {
            (Some(right), Some(stored)) if right == stored => continue,
            (None, _) => report.add(|| format!("{}: a total and no events", describe(&key))),
            (Some(right), Some(stored)) => report
                .add(|| format!("{}: events say {right:?}, stored is {stored:?}", describe(&key))),
            (Some(right), None) => report.add(|| {
                format!("{}: the total cannot be read, events say {right:?}", describe(&key))
            }),
        }
        wrong.push(WrongTotal { key, right });
    }
    for (key, right) in expected {
        report.add(|| format!("{}: events and no total", describe(&key)));
        wrong.push(WrongTotal { key, right: Some(right) });
    }
    Ok(wrong)
}

/// The totals of all runs, added up; None where a part cannot be read.
fn read_totals(
    connection: &Connection,
    catalog: &Catalog,
) -> Result<HashMap<RollupKey, Option<Rollup>>> {
    let mut totals: HashMap<RollupKey, Option<Rollup>> = HashMap::new();
    let mut select = connection.prepare(
        "-- read_totals
         SELECT count, total, latest_at, latest_id, tenant_no, meter_no, bucket_start, grp, value
         FROM rollups WHERE run_no = ?",
    )?;
    for run in read_runs(connection)? {
        let mut rows = select.query([run.run_no])?;
        while let Some(row) = rows.next()? {
            let (key, part) = read_part(catalog, row)?;
            let part = part.ok();
            match totals.get_mut(&key) {
                None => drop(totals.insert(key, part)),
                Some(total) => {
                    let sum = total.take().zip(part);
                    *total = sum.and_then(|(sum, part)| add_up(sum, &part));
                }
            }
        }
    }
    Ok(totals)
}

fn add_up(mut sum: Rollup, part: &Rollup) -> Option<Rollup> {
    sum.fold(part).ok()?;
    Some(sum)
}

/// The key of a row, and what the row adds to the total unless it cannot be read.
fn read_part(catalog: &Catalog, row: &Row<'_>) -> Result<(RollupKey, Result<Rollup>)> {
    let group: String = row.get(7)?;
    let key = RollupKey {
        tenant: TenantNo(row.get(4)?),
        meter: MeterNo(row.get(5)?),
        bucket_start: Timestamp::from_micros(row.get(6)?),
        group: Group::from_stored(&group),
    };
    let read = || -> Result<Rollup> {
        let Some(value) = value_of(row, 8)? else {
            return decode_rollup(row, aggregation_of(key.meter, catalog)?);
        };
        let value = Accumulator::Unique([value.into()].into());
        Ok(Rollup { count: row.get(0)?, value })
    };
    let part = read();
    Ok((key, part))
}

fn compare_counters(
    connection: &Connection,
    unfolded: &Unfolded,
    expected: &HashMap<TenantNo, u64>,
    report: &mut CheckReport,
) -> Result<()> {
    let always =
        Window { start: Timestamp::from_micros(i64::MIN), end: Timestamp::from_micros(i64::MAX) };
    let mut accepted: HashMap<TenantNo, u64> = HashMap::new();
    let table = counters::read_table(connection, always)?;
    let open = unfolded.open.counters().iter().map(|(key, tally)| (*key, *tally));
    for ((tenant, _), tally) in table.into_iter().chain(open) {
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
    ledger: &Connection,
    (directory, fingerprinter): (&Path, &Fingerprinter),
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let Examined { report, wrong, events_damaged } =
        examine(connection, directory, fingerprinter, progress)?;
    if events_damaged {
        let first = report.findings.first().map_or("", String::as_str);
        let what = format!(
            "events are damaged as well, so totals cannot be made from them; run check without \
             --repair for all findings, and restore a backup; the first is: {first}"
        );
        return Err(Error::Corrupt { what });
    }
    let transaction = ledger.unchecked_transaction()?;
    let runs = read_runs(&transaction)?;
    for total in &wrong {
        rewrite_total(&transaction, &runs, total)?;
    }
    transaction.commit()?;
    Ok(report)
}

/// Deletes a total from all runs and writes the right one to the first of them.
fn rewrite_total(ledger: &Connection, runs: &[RunRow], total: &WrongTotal) -> Result<()> {
    let WrongTotal { key, right } = total;
    let RollupKey { tenant, meter, bucket_start, group } = key;
    let bucket = bucket_start.micros();
    for run in runs {
        ledger.run(
            "-- rewrite_total
             DELETE FROM rollups WHERE run_no = ? AND tenant_no = ? AND meter_no = ?
                 AND bucket_start = ? AND grp = ?",
            params![run.run_no, tenant.0, meter.0, bucket, group.as_text()],
        )?;
    }
    let (Some(right), Some(first)) = (right, runs.first()) else { return Ok(()) };
    insert_total(ledger, first.run_no, key, right)?;
    ledger.run(
        "-- rewrite_total
         UPDATE runs SET first_bucket = min(first_bucket, ?2), last_bucket = max(last_bucket, ?2)
         WHERE run_no = ?1",
        params![first.run_no, bucket],
    )?;
    Ok(())
}
