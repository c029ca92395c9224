//! What needs no server: the disk alone, the append floor and the usual SQLite table.

use crate::load::{Driver, Run, percentiles_ms};
use crate::process::own_usage;
use crate::workload::{Fact, Workload};
use anyhow::{Result, ensure};
use counterfoil::rules::timestamp::MICROS_PER_HOUR;
use rusqlite::Connection;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// p50 and p99 in milliseconds of a 4 KiB append with fdatasync.
pub fn sync_latency(folder: &Path, times: usize) -> Result<(f64, f64)> {
    let mut file = File::create(folder.join("sync"))?;
    let mut latencies = Vec::with_capacity(times);
    for _ in 0..times {
        let started = Instant::now();
        file.write_all(&[7u8; 4096])?;
        file.sync_data()?;
        latencies.push(started.elapsed().as_micros() as u32);
    }
    Ok(percentiles_ms(&mut latencies))
}

/// The client alone: CPU microseconds and bytes of JSON for each event that it makes.
pub fn client_cost(driver: &Driver, workload: Workload, events: usize) -> (f64, f64) {
    let mut stream = driver.streams(workload).remove(0);
    let (mut body, mut bytes) = (Vec::new(), 0);
    let started = Instant::now();
    for _ in 0..events / workload.batch {
        stream.write_body(&mut body);
        bytes += body.len();
    }
    (started.elapsed().as_secs_f64() * 1e6 / events as f64, bytes as f64 / events as f64)
}

/// Runs of one thread that only count the time spent in `commit`.
fn timed(
    name: &str,
    workload: Workload,
    lasting: Duration,
    mut prepare_and_commit: impl FnMut() -> Result<Duration>,
) -> Result<Run> {
    let before = own_usage();
    let started = Instant::now();
    let (mut latencies, mut seconds, mut events) = (Vec::new(), 0.0, 0);
    while started.elapsed() < lasting {
        let spent = prepare_and_commit()?;
        seconds += spent.as_secs_f64();
        latencies.push(spent.as_micros() as u32);
        events += workload.batch as u64;
    }
    let mut run = Run::new(name, workload, events, seconds);
    run.server = own_usage().since(before);
    (run.p50_ms, run.p99_ms) = percentiles_ms(&mut latencies);
    Ok(run)
}

/// One write and one fdatasync for each batch of encoded events; keys and sums only in memory.
pub fn append_floor(
    driver: &Driver,
    name: &str,
    workload: Workload,
    folder: &Path,
    lasting: Duration,
) -> Result<Run> {
    let mut stream = driver.streams(workload).remove(0);
    let mut file = File::create(folder.join("append"))?;
    let mut keys: HashMap<u128, u64> = HashMap::new();
    let mut sums: HashMap<(u32, u8, i64), i128> = HashMap::new();
    let mut offset = 0;
    let run = timed(name, workload, lasting, || {
        let mut encoded = Vec::new();
        let facts: Vec<(Fact, usize)> = (0..workload.batch)
            .map(|_| {
                let (_, fact) = stream.next_fact();
                fact.write_encoded(&mut encoded);
                (fact, encoded.len())
            })
            .collect();
        let started = Instant::now();
        let mut batch = Vec::with_capacity(encoded.len());
        let mut start = 0;
        for (fact, end) in facts {
            if keys.insert(fact.id(), offset + start as u64).is_none() {
                let hour = fact.occurred_at / MICROS_PER_HOUR;
                let sum = sums.entry((fact.tenant, fact.meter, hour)).or_default();
                *sum += i128::from(fact.micro_units);
                batch.extend_from_slice(&encoded[start..end]);
            }
            start = end;
        }
        offset += batch.len() as u64;
        file.write_all(&batch)?;
        file.sync_data()?;
        Ok(started.elapsed())
    })?;
    let sum: i128 = sums.values().sum();
    ensure!(sum == stream.truth.sum_of_all, "the append floor lost count");
    ensure!(keys.len() as u64 == stream.truth.counts.accepted, "the append floor lost keys");
    Ok(run)
}

/// What most teams build first: a unique key and a total, one transaction for each event.
pub fn sqlite_baseline(
    driver: &Driver,
    name: &str,
    workload: Workload,
    folder: &Path,
    lasting: Duration,
) -> Result<Run> {
    let mut stream = driver.streams(workload).remove(0);
    let mut connection = Connection::open(folder.join("baseline.db"))?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE events (tenant TEXT NOT NULL, id TEXT NOT NULL, meter TEXT NOT NULL,
             quantity INTEGER NOT NULL, occurred_at INTEGER NOT NULL, properties TEXT NOT NULL,
             PRIMARY KEY (tenant, id));
         CREATE TABLE rollups (tenant TEXT NOT NULL, meter TEXT NOT NULL, hour INTEGER NOT NULL,
             total INTEGER NOT NULL, PRIMARY KEY (tenant, meter, hour));",
    )?;
    let mut inserted = 0;
    let run = timed(name, workload, lasting, || {
        let (_, fact) = stream.next_fact();
        let started = Instant::now();
        inserted += insert_alone(&mut connection, &fact)?;
        Ok(started.elapsed())
    })?;
    let total: i64 = connection.query_row("SELECT sum(total) FROM rollups", [], |r| r.get(0))?;
    ensure!(inserted == stream.truth.counts.accepted, "the SQLite baseline lost count");
    ensure!(i128::from(total) == stream.truth.sum_of_all, "the SQLite baseline lost a sum");
    Ok(run)
}

fn insert_alone(connection: &mut Connection, fact: &Fact) -> Result<u64> {
    let (tenant, meter) = (fact.tenant_name(), fact.meter_slug());
    let mut properties = Vec::with_capacity(128);
    fact.write_properties(&mut properties);
    let properties = String::from_utf8(properties)?;
    let units = i64::try_from(fact.micro_units)?;
    let hour = fact.occurred_at / MICROS_PER_HOUR;
    let transaction = connection.transaction()?;
    let inserted = transaction
        .prepare_cached("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)")?
        .execute((&tenant, fact.id_text(), &meter, units, fact.occurred_at, properties))?;
    if inserted == 1 {
        transaction
            .prepare_cached(
                "INSERT INTO rollups VALUES (?, ?, ?, ?)
                 ON CONFLICT (tenant, meter, hour) DO UPDATE SET total = total + excluded.total",
            )?
            .execute((&tenant, &meter, hour, units))?;
    }
    transaction.commit()?;
    Ok(inserted as u64)
}
