//! The check: every total and counter recomputed from the events and compared with what is stored;
//! every event found again by its key and in its tenant's range; no key twice.
//!
//! It reads only the files of the store, so it can run beside a server, in another process, or on a
//! copy. First it looks for every event and its key, segment by segment; then it compares totals
//! and counters slice by slice (`slices`), as the self-check does. Each part is read in a short
//! transaction that does not hold the write-ahead log. Memory holds a bounded number of totals and
//! one segment's events at most, whatever the store holds.
//!
//! Repair makes totals again from the events and nothing else; it is refused unless every event
//! is there and can be read. It holds all totals in memory.

mod keys;
mod plan;
mod scan;
mod slices;

pub use plan::{list_active, list_pairs, plan_slices};
pub use slices::check_slice;

use super::declarations::load_catalog;
use super::fold::read_state;
use super::recovery::{Unfolded, check_journal, load_unfolded};
use super::runs::read_runs;
use super::segment::overflow;
use super::session::SqliteSession;
use super::statements::Statements;
use super::total_blocks::{BlockBuilder, RecordReader, insert_blocks};
use crate::rules::chain::ChainReport;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::TenantNo;
use crate::rules::rollup::{Rollup, RollupKey};
use crate::rules::self_check::{Parts, Place, Slice};
use crate::store::sql::{Failure, verify_passes};
use crate::store::{
    CHECK_ROWS_MAX, CheckProgress, CheckReport, CheckStep, Error, Progress, Result,
};
use keys::{begin_with_runs, compare_keys};
use rusqlite::{Connection, params};
use scan::Scan;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Slices that are planned at once.
const PLANNED_SLICES: usize = 256;

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
    /// Whether an event is missing, stored twice, cannot be read or is outside its range.
    events_damaged: bool,
}

fn examine(
    connection: &Connection,
    directory: &Path,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<Examined> {
    let of = read_state(connection)?.next_event_no - 1;
    let tell = |step, events: u64| progress(CheckProgress { step, events, of: of.max(events) });
    let mut scan = Scan::new(connection, fingerprinter);
    while scan.read_segment()? {
        tell(CheckStep::Keys, scan.report.events);
    }
    let files = begin_with_runs(connection, directory)?;
    let fold = read_state(connection)?;
    check_journal(connection, fold)?;
    let catalog = load_catalog(connection)?;
    let unfolded = load_unfolded(connection, fold, &catalog, fingerprinter)?;
    scan.read_rest(&catalog, &fold)?;
    let Scan { mut report, marks, .. } = scan;
    let mut events_damaged = !report.findings.is_empty();
    report.events += u64::try_from(unfolded.open.len()).expect("a length fits 64 bits");
    tell(CheckStep::Keys, report.events);
    report.rollups = count_new_totals(connection, &unfolded)?;
    connection.execute_batch("ROLLBACK")?;
    let twice = compare_keys(connection, files, &unfolded, &marks, &mut report)?;
    drop(unfolded);
    report.audit = verify_chain(connection)?;
    if let Some(broken) = report.audit.broken.clone() {
        report.add(|| format!("the chain of nightly passes is broken: {broken}"));
    }
    if twice > 0 {
        report.add(|| format!("{twice} events are stored twice"));
        events_damaged = true;
    }
    walk(connection, &mut report, &|events| tell(CheckStep::Totals, events))?;
    Ok(Examined { report, events_damaged })
}

/// Compares totals and counters, slice by slice.
fn walk(connection: &Connection, report: &mut CheckReport, tell: &dyn Fn(u64)) -> Result<()> {
    let (mut place, mut events) = (Some(Place::START), 0);
    while let Some(from) = place {
        for slice in plan_slices(connection, from, PLANNED_SLICES)? {
            place = slice.after();
            let mut parts = Parts::of(slice);
            while let Some(part) = parts.pop() {
                events += check_part(connection, part, &mut parts, report)?;
                tell(events);
            }
        }
    }
    Ok(())
}

/// Compares a part; one that cannot be read is divided, or reported. Returns how many events it
/// has.
fn check_part(
    connection: &Connection,
    part: Slice,
    parts: &mut Parts,
    report: &mut CheckReport,
) -> Result<u64> {
    match check_slice(connection, part, CHECK_ROWS_MAX) {
        Ok(slice) => {
            let events = slice.events;
            report.add_slice(slice);
            Ok(events)
        }
        Err(Error::Corrupt { what }) => {
            let catalog = load_catalog(connection)?;
            if !parts.split(part, &catalog, last_tenant(connection)?) {
                let name = tenant_name(connection, part.first);
                let part = part.describe(Some(&name), &catalog);
                report.add(|| format!("{part}: could not be checked: {what}"));
            }
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

/// Follows the chain of nightly passes, in one read transaction.
pub fn verify_chain(connection: &Connection) -> Result<ChainReport> {
    connection.execute_batch("BEGIN")?;
    let report = verify_passes(&SqliteSession::on(connection));
    connection.execute_batch("ROLLBACK")?;
    report.map_err(Failure::into_error)
}

/// How many totals are in the journal only.
fn count_new_totals(connection: &Connection, unfolded: &Unfolded) -> Result<u64> {
    let mut open: HashSet<RollupKey> = unfolded.open.all_rollups().map(|(key, _)| key).collect();
    for run in read_runs(connection)? {
        let mut reader = RecordReader::all(connection, run.run_no);
        while !open.is_empty() {
            match reader.next() {
                Ok(Some(record)) => drop(open.remove(&record.key)),
                Ok(None) => break,
                // The slice of its totals reports the block.
                Err(Error::Corrupt { .. }) => reader.skip_block(),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(u64::try_from(open.len()).expect("a length fits 64 bits"))
}

/// What the folded events add up to.
fn add_up(connection: &Connection) -> Result<HashMap<RollupKey, Rollup>> {
    let catalog = load_catalog(connection)?;
    let mut totals: HashMap<RollupKey, Rollup> = HashMap::new();
    let everything = Slice::of_tenants(TenantNo(0), TenantNo(u32::MAX));
    slices::visit_events(connection, everything, &mut |_, tenant, stored| {
        let event = stored.event;
        let Some(meter) = catalog.get(event.meter) else { return Err(super::corrupt("a meter")) };
        let (bucket_start, group, rollup) = Rollup::of_event(&event, meter);
        let key = RollupKey { tenant, meter: event.meter, bucket_start, group };
        match totals.get_mut(&key) {
            Some(total) => total.fold(&rollup).map_err(|_| overflow()),
            None => {
                totals.insert(key, rollup);
                Ok(())
            }
        }
    })?;
    Ok(totals)
}

fn last_tenant(connection: &Connection) -> Result<TenantNo> {
    let sql = "-- last_tenant\nSELECT coalesce(max(tenant_no), 0) FROM tenants";
    connection.read_one(sql, [], |row| Ok(TenantNo(row.get(0)?)))
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
    let Examined { report, events_damaged } =
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
        let totals = add_up(connection)?;
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
