//! What is measured: each row compares one contender with others of the same run, alternately.

use crate::bench::Bench;
use crate::growth;
use crate::peers::IdOrder;
use crate::snapshot;
use crate::workload::{Meter, Tenants, USUAL, Workload};
use anyhow::Result;

/// One row of the report.
pub struct Row {
    pub name: &'static str,
    pub measure: Measure,
}

pub enum Measure {
    /// The rate of the first against the rates of the others.
    Rates {
        seconds: u64,
        contenders: &'static [Contender],
    },
    Other(fn(&mut Bench) -> Result<()>),
}

pub struct Contender {
    pub name: &'static str,
    pub kind: Kind,
    pub workload: Workload,
    /// What the first of the row should reach against this one, at least.
    pub wanted: Option<f64>,
}

/// Who is measured.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Embedded,
    Postgres,
    Citus,
    HttpFloor,
    AppendFloor,
    SqliteBaseline,
    CopyFloor,
    PostgresBaseline,
    TigerBeetle(IdOrder),
    Redis,
}

/// The rows of `ingest`.
pub const INGEST: &[Row] = &[
    rates("batches", 6, BATCHES),
    rates("single-64", 6, SINGLE_64),
    rates("single-128", 6, SINGLE_128),
    rates("tenants", 20, TENANTS),
    rates("dimensions", 6, DIMENSIONS),
    rates("unique", 6, UNIQUE),
    rates("postgres", 6, POSTGRES),
    Row { name: "snapshot", measure: Measure::Other(snapshot::measure) },
    Row { name: "growth", measure: Measure::Other(growth::measure) },
    Row { name: "latency", measure: Measure::Other(growth::measure_latency) },
    Row { name: "replay", measure: Measure::Other(growth::measure_replay) },
];

/// The rows that are run only by name.
pub const BY_NAME: &[Row] = &[rates("peers", 6, PEERS), rates("citus", 6, CITUS)];

const BATCHES: &[Contender] = &[
    first("embedded", Kind::Embedded, USUAL),
    against("append floor", Kind::AppendFloor, ALONE, Some(0.4)),
    against("HTTP floor", Kind::HttpFloor, USUAL, Some(0.1)),
    against("SQLite, a transaction each", Kind::SqliteBaseline, alone(1), Some(30.0)),
    against("TigerBeetle, ordered ids", ORDERED, alone(8189), Some(1.2)),
    against("TigerBeetle, random ids", RANDOM, alone(8189), Some(4.0)),
    against("embedded, batches of 5,000", Kind::Embedded, on(8, 5000), None),
    against("embedded, half repeats", Kind::Embedded, HALF_REPEATS, None),
];

const SINGLE_64: &[Contender] = &[
    first("embedded", Kind::Embedded, on(64, 1)),
    against("HTTP floor", Kind::HttpFloor, on(64, 1), Some(0.5)),
];

const SINGLE_128: &[Contender] = &[
    first("embedded", Kind::Embedded, on(128, 1)),
    against("HTTP floor", Kind::HttpFloor, on(128, 1), Some(0.5)),
];

const TENANTS: &[Contender] = &[
    first(
        "200,000 tenants, 30 % late",
        Kind::Embedded,
        Workload { tenants: Tenants::Uniform(200_000), late_percent: 30, ..USUAL },
    ),
    against("1,000 tenants", Kind::Embedded, USUAL, Some(0.7)),
];

const DIMENSIONS: &[Contender] = &[
    first("two dimensions", Kind::Embedded, Workload { meter: Meter::Dimensions, ..USUAL }),
    against("plain sum", Kind::Embedded, USUAL, Some(0.85)),
];

const UNIQUE: &[Contender] = &[
    first("unique", Kind::Embedded, Workload { meter: Meter::Unique, ..USUAL }),
    against("plain sum", Kind::Embedded, USUAL, Some(0.8)),
];

const POSTGRES: &[Contender] = &[
    first("postgres", Kind::Postgres, USUAL),
    against("COPY", Kind::CopyFloor, USUAL, Some(0.9)),
    against("PostgreSQL, a transaction each", Kind::PostgresBaseline, on(8, 1), Some(8.0)),
    against("postgres, batches of 5,000", Kind::Postgres, on(8, 5000), None),
];

const PEERS: &[Contender] = &[
    first("embedded", Kind::Embedded, USUAL),
    against("TigerBeetle, ordered ids in 8,189", ORDERED, alone(8189), None),
    against("TigerBeetle, ordered ids in 1,000", ORDERED, USUAL, None),
    against("TigerBeetle, random ids in 8,189", RANDOM, alone(8189), Some(1.0)),
    against("TigerBeetle, random ids in 1,000", RANDOM, USUAL, Some(1.0)),
    against("Redis SET NX, synced, pipelined", Kind::Redis, USUAL, Some(1.0)),
    against("PostgreSQL COPY", Kind::CopyFloor, USUAL, Some(1.0)),
];

const CITUS: &[Contender] = &[
    first("citus", Kind::Citus, USUAL),
    against("postgres", Kind::Postgres, USUAL, None),
    against("citus, batches of 5,000", Kind::Citus, on(8, 5000), None),
];

const ORDERED: Kind = Kind::TigerBeetle(IdOrder::Sequential);
const RANDOM: Kind = Kind::TigerBeetle(IdOrder::Random);
const ALONE: Workload = on(1, 1000);
const HALF_REPEATS: Workload = Workload { repeats_percent: 50, ..USUAL };

const fn on(connections: usize, batch: usize) -> Workload {
    Workload { connections, batch, ..USUAL }
}

const fn alone(batch: usize) -> Workload {
    on(1, batch)
}

const fn rates(name: &'static str, seconds: u64, contenders: &'static [Contender]) -> Row {
    Row { name, measure: Measure::Rates { seconds, contenders } }
}

const fn first(name: &'static str, kind: Kind, workload: Workload) -> Contender {
    Contender { name, kind, workload, wanted: None }
}

const fn against(
    name: &'static str,
    kind: Kind,
    workload: Workload,
    wanted: Option<f64>,
) -> Contender {
    Contender { name, kind, workload, wanted }
}
