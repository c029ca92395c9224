//! What is measured, in which order: contenders interleaved in rounds, then growth.

use crate::embedded::{append_floor, client_cost, sqlite_baseline, store_alone, sync_latency};
use crate::growth::{grow, kill_and_read};
use crate::load::{Driver, KEY, Shape, Target, Until, check_totals, declare_meters};
use crate::postgres::Postgres;
use crate::process::{Server, Watched, machine};
use crate::report::Report;
use crate::workload::Truth;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub const PARSE_FLOOR: &str = "floor: HTTP and parsing";
const APPEND_FLOOR: &str = "floor: append + fdatasync";
const COPY_FLOOR: &str = "floor: PostgreSQL binary COPY";
const SQLITE_BASELINE: &str = "baseline: SQLite, a transaction each";
const POSTGRES_BASELINE: &str = "baseline: PostgreSQL, a transaction each";
const EMBEDDED: &str = "embedded";
const POSTGRES: &str = "postgres";

/// Events sent before a run of the embedded store is timed: a little more than one segment, so that
/// folding takes its share of every run, short or long.
const EMBEDDED_PREFILL: u64 = 140_000;
const PREFILL_SHAPE: Shape = Shape { batch: 5000, connections: 2, repeats_percent: 5 };

pub struct Settings {
    pub quick: bool,
    pub json: Option<PathBuf>,
    pub postgres: Option<String>,
    /// Leaves out growth.
    pub no_growth: bool,
}

struct Bench {
    driver: Driver,
    report: Report,
    postgres: Option<Postgres>,
    /// How long one run of a round lasts.
    lasting: Duration,
    quick: bool,
}

pub fn run(settings: &Settings) -> Result<()> {
    let machine = machine();
    println!("machine: {machine}");
    let mut bench = Bench::new(settings)?;
    bench.measure_window()?;
    for round in 1..=2 {
        println!("round {round}");
        bench.round()?;
    }
    println!("other shapes");
    bench.other_shapes()?;
    bench.compare();
    if !settings.no_growth {
        println!("growth");
        bench.grow_embedded()?;
        bench.grow_postgres()?;
    }
    bench.report.print_runs();
    bench.report.print_targets();
    if let Some(path) = &settings.json {
        bench.report.write_json(path, machine)?;
    }
    println!("every count and every sampled total was right");
    Ok(())
}

/// One shape against the HTTP floor and both stores, for working on them.
pub fn one_shape(settings: &Settings, shape: &str) -> Result<()> {
    let (connections, batch) = shape.split_once('x').context("a shape is such as 8x1000")?;
    let (connections, batch) = (connections.parse()?, batch.parse()?);
    let shape = Shape { batch, connections, repeats_percent: 5 };
    let mut bench = Bench::new(settings)?;
    bench.parse_floor(shape)?;
    bench.embedded(shape, bench.lasting)?;
    bench.postgres(shape, bench.lasting)?;
    bench.report.print_runs();
    Ok(())
}

impl Bench {
    fn new(settings: &Settings) -> Result<Self> {
        let postgres = settings.postgres.as_deref().map(Postgres::connect).transpose()?;
        if postgres.is_none() {
            println!("PostgreSQL is left out: COUNTERFOIL_TEST_POSTGRES is not set");
        }
        let lasting = Duration::from_millis(if settings.quick { 700 } else { 6000 });
        let (driver, report) = (Driver::new(), Report::default());
        Ok(Self { driver, report, postgres, lasting, quick: settings.quick })
    }

    /// What the disk and the client cost in this window of time.
    fn measure_window(&mut self) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let (p50, p99) = sync_latency(folder.path(), if self.quick { 100 } else { 500 })?;
        self.report.note("fdatasync_4k_ms", json!({"p50": p50, "p99": p99}));
        let (micros, bytes) = client_cost(&self.driver, if self.quick { 100_000 } else { 500_000 });
        self.report.note("client_micros_to_make_an_event", json!(micros));
        self.report.note("json_bytes_per_event", json!(bytes));
        Ok(())
    }

    /// Every contender of a ratio, once.
    fn round(&mut self) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let append = append_floor(&self.driver, folder.path(), self.lasting)?;
        self.report.push(append);
        for (connections, batch) in [(1, 1000), (8, 1000), (64, 1), (128, 1)] {
            let shape = Shape { batch, connections, repeats_percent: 5 };
            self.parse_floor(shape)?;
            self.embedded(shape, self.lasting)?;
        }
        let baseline = sqlite_baseline(&self.driver, folder.path(), self.lasting)?;
        self.report.push(baseline);
        if let Some(postgres) = &self.postgres {
            self.report.push(postgres.copy_floor(&self.driver, self.lasting)?);
            self.report.push(postgres.baseline(&self.driver, self.lasting)?);
            for connections in [1, 8] {
                let shape = Shape { batch: 1000, connections, repeats_percent: 5 };
                self.postgres(shape, self.lasting)?;
            }
        }
        Ok(())
    }

    fn other_shapes(&mut self) -> Result<()> {
        let lasting = self.lasting / 2;
        for (connections, batch) in [(1, 1), (8, 1), (1, 100), (8, 100), (1, 5000), (8, 5000)] {
            self.embedded(Shape { batch, connections, repeats_percent: 5 }, lasting)?;
        }
        for (connections, batch) in [(64, 1), (8, 100), (1, 1000), (8, 1000), (8, 5000)] {
            self.embedded(Shape { batch, connections, repeats_percent: 50 }, lasting)?;
        }
        for batch in [1000, 5000] {
            let folder = tempfile::tempdir()?;
            let shape = Shape { batch, connections: 1, repeats_percent: 5 };
            self.report.push(store_alone(&self.driver, folder.path(), shape, lasting)?);
        }
        for connections in [1, 8] {
            let shape = Shape { batch: 5000, connections, repeats_percent: 5 };
            self.postgres(shape, lasting)?;
        }
        Ok(())
    }

    fn parse_floor(&mut self, shape: Shape) -> Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        let server = Server::start(command.args(["--child", "parse-floor"]))?;
        self.drive(PARSE_FLOOR, &server, None, shape, self.lasting)
    }

    fn embedded(&mut self, shape: Shape, lasting: Duration) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let server = Server::start_product(folder.path(), None, KEY)?;
        self.drive(EMBEDDED, &server, None, shape, lasting)
    }

    fn postgres(&mut self, shape: Shape, lasting: Duration) -> Result<()> {
        let Some(postgres) = &self.postgres else { return Ok(()) };
        let folder = tempfile::tempdir()?;
        let url = postgres.fresh_database("bench_product")?;
        let postmaster = postgres.watched.postmaster;
        let server = Server::start_product(folder.path(), Some(&url), KEY)?;
        self.drive(POSTGRES, &server, postmaster, shape, lasting)?;
        drop(server);
        self.postgres.as_ref().map_or(Ok(()), |postgres| postgres.drop_database("bench_product"))
    }

    fn drive(
        &mut self,
        name: &str,
        server: &Server,
        postmaster: Option<u32>,
        shape: Shape,
        lasting: Duration,
    ) -> Result<()> {
        let keeps_events = name != PARSE_FLOOR;
        let watched = Watched { pids: vec![server.pid()], postmaster };
        let target = Target { url: &server.url, watched, keeps_events };
        if keeps_events {
            declare_meters(&server.url)?;
        }
        let mut truth = Truth::new();
        if name == EMBEDDED {
            let (shape, until) = (PREFILL_SHAPE, Until::Events(EMBEDDED_PREFILL));
            self.driver.run("prefill", &target, shape, until, &mut truth, &|_, _| {})?;
        }
        let until = Until::Elapsed(lasting);
        let run = self.driver.run(name, &target, shape, until, &mut truth, &|_, _| {})?;
        if keeps_events {
            check_totals(&server.url, &truth)?;
        }
        self.report.push(run);
        Ok(())
    }

    fn compare(&mut self) {
        let report = &mut self.report;
        let ours = report.best(EMBEDDED, 1000, &[1, 8]);
        let single = report.best(EMBEDDED, 1, &[64, 128]);
        let postgres = report.best(POSTGRES, 1000, &[1, 8]);
        let append = report.rate(APPEND_FLOOR, 1000, 1);
        let parse = report.best(PARSE_FLOOR, 1000, &[1, 8]);
        let parse_single = report.best(PARSE_FLOOR, 1, &[64, 128]);
        let baseline = report.rate(SQLITE_BASELINE, 1, 1);
        let copy = report.rate(COPY_FLOOR, 1000, 1);
        let postgres_baseline = report.rate(POSTGRES_BASELINE, 1, 8);
        report.ratio("embedded_http_vs_append_floor", ours, append);
        report.ratio("embedded_http_vs_parse_floor", ours, parse);
        report.ratio("embedded_http_vs_baseline", ours, baseline);
        report.ratio("embedded_single_vs_parse_floor", single, parse_single);
        report.ratio("postgres_http_vs_copy_floor", postgres, copy);
        report.ratio("postgres_http_vs_baseline", postgres, postgres_baseline);
    }

    fn grow_embedded(&mut self) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let server = Server::start_product(folder.path(), None, KEY)?;
        let watched = Watched { pids: vec![server.pid()], postmaster: None };
        let events = if self.quick { 300_000 } else { 20_000_000 };
        let grown = grow(&self.driver, "embedded, growth", &server, &watched, events)?;
        self.report.push(grown.run);
        self.report.ratio("growth_embedded", Some(grown.last_rate), Some(grown.first_rate));
        self.report.figure("memory_bytes_per_key", grown.memory_bytes_per_key);
        let mut truth = grown.truth;
        let lasting = Duration::from_secs(if self.quick { 2 } else { 30 });
        let figures = kill_and_read(&self.driver, server, folder.path(), &mut truth, lasting)?;
        self.report.figure("disk_bytes_per_event", figures.disk_bytes_per_event);
        self.report.figure("restart_seconds", figures.restart_seconds);
        self.report.figure("commit_p99_ms", figures.commit_p99_ms);
        self.report.figure("usage_p99_ms", figures.reads[0].p99_ms.max(figures.reads[1].p99_ms));
        self.report.figure("list_p99_ms", figures.reads[2].p99_ms);
        self.report.push(figures.load);
        self.report.print_reads(&figures.reads);
        Ok(())
    }

    fn grow_postgres(&mut self) -> Result<()> {
        let Some(postgres) = &self.postgres else { return Ok(()) };
        let folder = tempfile::tempdir()?;
        let url = postgres.fresh_database("bench_growth")?;
        let server = Server::start_product(folder.path(), Some(&url), KEY)?;
        let postmaster = postgres.watched.postmaster;
        let watched = Watched { pids: vec![server.pid()], postmaster };
        let events = if self.quick { 300_000 } else { 10_000_000 };
        let grown = grow(&self.driver, "postgres, growth", &server, &watched, events)?;
        self.report.push(grown.run);
        self.report.ratio("growth_postgres", Some(grown.last_rate), Some(grown.first_rate));
        server.kill();
        postgres.drop_database("bench_growth")
    }
}

/// The store alone, for a profiler: no server, no other contender.
pub fn store_only(batch: usize, seconds: u64) -> Result<()> {
    let (driver, mut report) = (Driver::new(), Report::default());
    let folder = tempfile::tempdir()?;
    let shape = Shape { batch, connections: 1, repeats_percent: 5 };
    let run = store_alone(&driver, folder.path(), shape, Duration::from_secs(seconds))?;
    report.push(run);
    report.print_runs();
    Ok(())
}
