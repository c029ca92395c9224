//! What needs no server: the disk alone, the append floor, the usual SQLite table, and the
//! embedded store called in process.

use crate::load::{Driver, Run, Shape, percentiles_ms};
use crate::process::own_usage;
use crate::workload::{Fact, Kind, Stream};
use anyhow::{Context, Result, ensure};
use counterfoil::config;
use counterfoil::rules::event::{Event, Item, parse_event};
use counterfoil::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::store::sqlite::SqliteStore;
use counterfoil::store::{Declarations, Deliveries, DeliveryBatch, Store};
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

/// The client alone: CPU microseconds for each event that it makes.
pub fn client_cost(driver: &Driver, events: usize) -> (f64, f64) {
    let shape = Shape { batch: 1000, connections: 1, repeats_percent: 5 };
    let mut stream = driver.streams(shape).remove(0);
    let (mut body, mut bytes) = (Vec::new(), 0);
    let started = Instant::now();
    for _ in 0..events / 1000 {
        stream.write_body(&mut body, 1000);
        bytes += body.len();
    }
    (started.elapsed().as_secs_f64() * 1e6 / events as f64, bytes as f64 / events as f64)
}

/// Runs of one thread that only count the time spent in `commit`.
fn timed(
    name: &str,
    shape: Shape,
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
        events += shape.batch as u64;
    }
    let (p50_ms, p99_ms) = percentiles_ms(&mut latencies);
    Ok(Run {
        name: name.to_owned(),
        batch: shape.batch,
        connections: shape.connections,
        repeats_percent: shape.repeats_percent,
        events,
        seconds,
        server: own_usage().since(before),
        p50_ms,
        p99_ms,
        ..Run::default()
    })
}

/// One write and one fdatasync for each batch, with the keys and the sums in memory.
pub fn append_floor(driver: &Driver, folder: &Path, lasting: Duration) -> Result<Run> {
    let shape = Shape { batch: 1000, connections: 1, repeats_percent: 5 };
    let mut stream = driver.streams(shape).remove(0);
    let mut file = File::create(folder.join("append"))?;
    let mut keys: HashMap<u128, u64> = HashMap::new();
    let mut sums: HashMap<(u16, u8, i64), i128> = HashMap::new();
    let mut offset = 0;
    let run = timed("floor: append + fdatasync", shape, lasting, || {
        let mut encoded = Vec::new();
        let facts: Vec<(Fact, usize)> = (0..shape.batch)
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
    ensure!(sum == stream.truth.sum_of_all(), "the append floor lost count");
    ensure!(keys.len() as u64 == stream.truth.counts.accepted, "the append floor lost keys");
    Ok(run)
}

/// What most teams build first: a unique key and a total, one transaction for each event.
pub fn sqlite_baseline(driver: &Driver, folder: &Path, lasting: Duration) -> Result<Run> {
    let shape = Shape { batch: 1, connections: 1, repeats_percent: 5 };
    let mut stream = driver.streams(shape).remove(0);
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
    let run = timed("baseline: SQLite, a transaction each", shape, lasting, || {
        let (_, fact) = stream.next_fact();
        let started = Instant::now();
        inserted += insert_alone(&mut connection, &fact)?;
        Ok(started.elapsed())
    })?;
    let total: i64 = connection.query_row("SELECT sum(total) FROM rollups", [], |r| r.get(0))?;
    ensure!(inserted == stream.truth.counts.accepted, "the SQLite baseline lost count");
    ensure!(i128::from(total) == stream.truth.sum_of_all(), "the SQLite baseline lost a sum");
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

/// The embedded store called directly, one batch after the other: what is left without HTTP.
pub fn store_alone(driver: &Driver, folder: &Path, shape: Shape, lasting: Duration) -> Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let settings = config::load(None)?.sqlite;
    let store = SqliteStore::open(folder, &settings)?;
    let declared = crate::parse_floor::catalog();
    let now = Timestamp::from_micros(crate::workload::now());
    for meter in declared.list() {
        runtime.block_on(store.declare_meter(meter.as_ref().clone(), now))?;
    }
    let catalog = runtime.block_on(store.load_catalog())?;
    let mut stream = driver.streams(shape).remove(0);
    let (mut body, mut accepted) = (Vec::new(), 0);
    let run = timed("the embedded store, in process", shape, lasting, || {
        let events = parse_batch(&mut stream, &mut body, shape.batch, &catalog)?;
        let now = Timestamp::from_micros(crate::workload::now());
        let acceptance = Acceptance { now, horizon_micros: 168 * MICROS_PER_HOUR };
        let batch = DeliveryBatch {
            events,
            refused: Vec::new(),
            acceptance,
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        let started = Instant::now();
        let verdicts = runtime.block_on(store.record_deliveries(0, batch))?;
        let spent = started.elapsed();
        accepted += verdicts.iter().filter(|verdict| **verdict == Verdict::Accepted).count();
        Ok(spent)
    })?;
    runtime.block_on(store.close());
    ensure!(accepted as u64 == stream.truth.counts.accepted, "the store lost count");
    Ok(run)
}

fn parse_batch(
    stream: &mut Stream,
    body: &mut Vec<u8>,
    batch: usize,
    catalog: &counterfoil::rules::meter::Catalog,
) -> Result<Vec<Event>> {
    stream.write_body(body, batch);
    let items: Vec<Item<'_>> = match batch {
        1 => vec![serde_json::from_slice(body)?],
        _ => serde_json::from_slice(body)?,
    };
    let events = items.iter().map(|item| parse_event(item, catalog));
    events.collect::<Result<_, _>>().ok().context("an event of the workload was refused")
}

/// The next event that is not a repeat.
pub fn next_fresh(stream: &mut Stream) -> Fact {
    loop {
        if let (Kind::Fresh, fact) = stream.next_fact() {
            return fact;
        }
    }
}
