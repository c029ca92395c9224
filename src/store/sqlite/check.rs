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
use super::runs::read_runs;
use super::segment::overflow;
use super::session::SqliteSession;
use super::statements::Statements;
use super::total_blocks::{BlockBuilder, RecordReader, TotalPart, TotalRecord, insert_blocks};
use crate::rules::chain::ChainReport;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Accumulator, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::sql::{Failure, verify_passes};
use crate::store::{CheckReport, Error, Progress, Result};
use keys::{begin_with_runs, compare_keys};
use rusqlite::{Connection, params};
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

struct Examined {
    report: CheckReport,
    /// What the folded events add up to.
    totals: HashMap<RollupKey, Rollup>,
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
    compare_totals(connection, &catalog, &rollups, &mut report)?;
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
    Ok(Examined { report, totals: rollups, events_damaged })
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

fn compare_totals(
    connection: &Connection,
    catalog: &Catalog,
    expected: &HashMap<RollupKey, Rollup>,
    report: &mut CheckReport,
) -> Result<()> {
    let describe = |key: &RollupKey| describe(connection, catalog, key);
    let stored = read_totals(connection, report)?;
    for (key, stored) in &stored {
        match expected.get(key) {
            Some(right) if right == stored => {}
            None => report.add(|| format!("{}: a total and no events", describe(key))),
            Some(right) => report
                .add(|| format!("{}: events say {right:?}, stored is {stored:?}", describe(key))),
        }
    }
    for key in expected.keys().filter(|key| !stored.contains_key(key)) {
        report.add(|| format!("{}: events and no total", describe(key)));
    }
    Ok(())
}

/// The totals of all runs, added up. Blocks that cannot be read are reported and left out.
fn read_totals(
    connection: &Connection,
    report: &mut CheckReport,
) -> Result<HashMap<RollupKey, Rollup>> {
    let mut totals: HashMap<RollupKey, Rollup> = HashMap::new();
    for run in read_runs(connection)? {
        let mut reader = RecordReader::all(connection, run.run_no);
        loop {
            match reader.next() {
                Ok(None) => break,
                Ok(Some(TotalRecord { key, part: TotalPart::Total(total) })) => {
                    fold_into(&mut totals, key, &total)?;
                }
                Ok(Some(TotalRecord { key, part: TotalPart::Value(value) })) => {
                    let value = Accumulator::Unique([value].into());
                    fold_into(&mut totals, key, &Rollup { count: 0, value })?;
                }
                Err(Error::Corrupt { what }) => {
                    report.add(|| what);
                    reader.skip_block();
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(totals)
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
    let folded = counters::read_folded(connection, always)?;
    let open = unfolded.open.counters().iter().map(|(key, tally)| (*key, *tally));
    for ((tenant, _), tally) in folded.into_iter().chain(open) {
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

/// Makes all totals again from the events if one is wrong, in one transaction, on a store that
/// nobody else has open. The report lists what was wrong. Nothing is written if an event is in
/// doubt.
pub fn repair(
    connection: &Connection,
    ledger: &Connection,
    (directory, fingerprinter): (&Path, &Fingerprinter),
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let Examined { report, totals, events_damaged } =
        examine(connection, directory, fingerprinter, progress)?;
    if events_damaged {
        let first = report.findings.first().map_or("", String::as_str);
        let what = format!(
            "events are damaged as well, so totals cannot be made from them; run check without \
             --repair for all findings, and restore a backup; the first is: {first}"
        );
        return Err(Error::Corrupt { what });
    }
    if !report.findings.is_empty() {
        let transaction = ledger.unchecked_transaction()?;
        rewrite_totals(&transaction, &totals)?;
        transaction.commit()?;
    }
    Ok(report)
}

/// Writes all totals to the first run, and none to the others.
fn rewrite_totals(ledger: &Connection, totals: &HashMap<RollupKey, Rollup>) -> Result<()> {
    ledger.run("-- rewrite_totals\nDELETE FROM total_blocks", [])?;
    let mut sorted: Vec<_> = totals.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    let buckets = || totals.keys().map(|key| key.bucket_start.micros());
    let bounds = buckets().min().zip(buckets().max());
    let runs = read_runs(ledger)?;
    let (Some((first, last)), Some(run)) = (bounds, runs.first()) else { return Ok(()) };
    let mut builder = BlockBuilder::default();
    for (key, total) in sorted {
        builder.push_total(key, total);
        insert_blocks(ledger, run.run_no, &builder.take_full())?;
    }
    insert_blocks(ledger, run.run_no, &builder.finish())?;
    ledger.run(
        "-- rewrite_totals\nUPDATE runs SET first_bucket = ?, last_bucket = ? WHERE run_no = ?",
        params![first, last, run.run_no],
    )?;
    Ok(())
}
