//! Runs rows: contenders alternate in rounds, each on an empty store, and means are compared.

use crate::floors::{append_floor, client_cost, sqlite_baseline, sync_latency};
use crate::growth::Grown;
use crate::load::{Driver, Expect, KEY, Run, Until, declare_meters};
use crate::peers;
use crate::postgres::Postgres;
use crate::process::{Server, Store, machine};
use crate::report::Report;
use crate::rows::{BY_NAME, Contender, INGEST, Kind, Measure, Row};
use crate::workload::{Truth, USUAL, Workload};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Events sent before a run of the product is timed: a little more than one segment of the embedded
/// store, so that folding takes its share of every run, short or long.
const PREFILL_EVENTS: u64 = 140_000;
const PREFILL: Workload = Workload { connections: 2, batch: 5000, ..USUAL };

#[derive(Default)]
pub struct Settings {
    pub quick: bool,
    pub json: Option<PathBuf>,
    /// Empty for all rows of `ingest`.
    pub only: Vec<String>,
    /// How far the store grows.
    pub keys: Option<u64>,
    /// Where the grown store is kept for the next run; otherwise it is removed.
    pub data: Option<PathBuf>,
    pub postgres: Option<String>,
    /// The workers of a Citus cluster that this PostgreSQL coordinates.
    pub workers: Vec<String>,
}

pub struct Bench {
    pub driver: Driver,
    pub report: Report,
    pub postgres: Option<Postgres>,
    pub settings: Settings,
    /// The store that the last rows share.
    pub grown: Option<Grown>,
}

pub fn run(settings: Settings) -> Result<()> {
    let all = || INGEST.iter().chain(BY_NAME);
    let names: Vec<&str> = all().map(|row| row.name).collect();
    for name in &settings.only {
        ensure!(names.contains(&name.as_str()), "there is no row {name}; there are {names:?}");
    }
    let machine = machine();
    println!("machine: {machine}");
    let postgres = settings.postgres.as_deref();
    let postgres = postgres.map(|url| Postgres::connect(url, &settings.workers)).transpose()?;
    let (driver, report) = (Driver::new(), Report::default());
    let mut bench = Bench { driver, report, postgres, settings, grown: None };
    bench.measure_window()?;
    let only = bench.settings.only.clone();
    let by_name = all().filter(|row| only.iter().any(|name| name == row.name));
    let rows: Vec<&Row> = if only.is_empty() { INGEST.iter().collect() } else { by_name.collect() };
    for row in rows {
        println!("{}", row.name);
        bench.report.row = row.name;
        match row.measure {
            Measure::Rates { seconds, contenders } => bench.compare(seconds, contenders)?,
            Measure::Other(measure) => measure(&mut bench)?,
        }
    }
    bench.report.print();
    if let Some(path) = &bench.settings.json {
        bench.report.write_json(path, machine)?;
    }
    println!("every count and every sampled total was right");
    Ok(())
}

impl Bench {
    pub fn lasting(&self, seconds: u64) -> Duration {
        if self.settings.quick { Duration::from_millis(700) } else { Duration::from_secs(seconds) }
    }

    /// What the disk and the client cost in this window of time.
    fn measure_window(&mut self) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let (p50, p99) = sync_latency(folder.path(), 200)?;
        self.report.note("fdatasync_4k_ms", json!({"p50": p50, "p99": p99}));
        let (micros, bytes) = client_cost(&self.driver, USUAL, 100_000);
        self.report.note("client_micros_to_make_an_event", json!(micros));
        self.report.note("json_bytes_per_event", json!(bytes));
        Ok(())
    }

    fn compare(&mut self, seconds: u64, contenders: &[Contender]) -> Result<()> {
        const ROUNDS: usize = 2;
        let mut runs = vec![Vec::new(); contenders.len()];
        for _ in 0..ROUNDS {
            for (contender, runs) in contenders.iter().zip(&mut runs) {
                if let Some(run) = self.measure(contender, self.lasting(seconds))? {
                    runs.push(run.clone());
                    self.report.push(run);
                }
            }
        }
        let (first, others) = contenders.split_first().expect("a row has contenders");
        for (other, theirs) in others.iter().zip(&runs[1..]) {
            if runs[0].is_empty() || theirs.is_empty() {
                continue;
            }
            let name = format!("{} / {}", first.name, other.name);
            let ratio = |of: fn(&Run) -> f64| mean(&runs[0], of) / mean(theirs, of);
            self.report.ratio(&name, ratio(Run::rate), other.wanted);
            self.report.figure(&format!("{name}, CPU for an event"), ratio(Run::cpu_micros), None);
        }
        Ok(())
    }

    /// One run; none if the contender is not here.
    fn measure(&mut self, contender: &Contender, lasting: Duration) -> Result<Option<Run>> {
        let Contender { name, kind, workload, .. } = *contender;
        let transfers = if self.settings.quick { 400_000 } else { 4_000_000 };
        let folder = tempfile::tempdir()?;
        let (driver, path) = (&self.driver, folder.path());
        let missing = match kind {
            Kind::Embedded => {
                // Beside its data the server keeps a file of the epoch.
                let server = Server::start_product(Store::Embedded(&path.join("data")), KEY)?;
                return self.drive(contender, &server, &[], lasting).map(Some);
            }
            Kind::HttpFloor => return self.http_floor(name, workload, lasting).map(Some),
            Kind::AppendFloor => {
                return append_floor(driver, name, workload, path, lasting).map(Some);
            }
            Kind::SqliteBaseline => {
                return sqlite_baseline(driver, name, workload, path, lasting).map(Some);
            }
            Kind::TigerBeetle(order) => match peers::tigerbeetle() {
                Ok(program) => {
                    let run = peers::run_tigerbeetle(&program, name, workload, order, transfers)?;
                    if run.is_some() {
                        return Ok(run);
                    }
                    "did not end within five minutes"
                }
                Err(missing) => missing,
            },
            Kind::Redis => match peers::redis() {
                Ok(program) => {
                    let run = peers::run_redis(driver, &program, name, workload, lasting);
                    return run.map(Some);
                }
                Err(missing) => missing,
            },
            Kind::Citus | Kind::Postgres | Kind::CopyFloor | Kind::PostgresBaseline => {
                if let Some(run) = self.measure_postgres(contender, lasting)? {
                    return Ok(Some(run));
                }
                if matches!(kind, Kind::Citus) {
                    "not found: use `cargo xtask bench citus`"
                } else {
                    "not found: COUNTERFOIL_TEST_POSTGRES is not set"
                }
            }
        };
        self.report.missing(name, missing);
        Ok(None)
    }

    pub fn http_floor(&self, name: &str, workload: Workload, lasting: Duration) -> Result<Run> {
        let mut command = Command::new(std::env::current_exe()?);
        let server = Server::start(command.args(["--child", "http-floor"]))?;
        let (target, until) = (server.target(&[], Expect::Answers), Until::Elapsed(lasting));
        self.driver.run(name, &target, workload, until, &mut Truth::default())
    }

    fn measure_postgres(&self, contender: &Contender, lasting: Duration) -> Result<Option<Run>> {
        let Some(postgres) = &self.postgres else { return Ok(None) };
        let Contender { name, kind, workload, .. } = *contender;
        if matches!(kind, Kind::CopyFloor) {
            return postgres.copy_floor(&self.driver, name, workload, lasting).map(Some);
        }
        if matches!(kind, Kind::PostgresBaseline) {
            return postgres.baseline(&self.driver, name, workload, lasting).map(Some);
        }
        let url;
        let store = if matches!(kind, Kind::Citus) {
            let Some(cluster) = postgres.fresh_cluster("bench_product")? else { return Ok(None) };
            url = cluster;
            Store::Citus(&url)
        } else {
            url = postgres.fresh_database("bench_product")?;
            Store::Postgres(&url)
        };
        let server = Server::start_product(store, KEY)?;
        let run = self.drive(contender, &server, &postgres.postmasters, lasting)?;
        drop(server);
        postgres.drop_database("bench_product")?;
        Ok(Some(run))
    }

    /// The product on an empty store.
    fn drive(
        &self,
        contender: &Contender,
        server: &Server,
        postmasters: &[u32],
        lasting: Duration,
    ) -> Result<Run> {
        let Contender { name, workload, .. } = *contender;
        let target = server.target(postmasters, Expect::Truth);
        declare_meters(&server.url, workload.meter)?;
        let mut truth = Truth::default();
        let Workload { tenants, late_percent, meter, .. } = workload;
        let prefill = Workload { tenants, late_percent, meter, ..PREFILL };
        let until = Until::Events(PREFILL_EVENTS);
        self.driver.run("prefill", &target, prefill, until, &mut truth)?;
        let until = Until::Elapsed(lasting);
        let run = self.driver.run(name, &target, workload, until, &mut truth)?;
        self.driver.check_totals(&server.url, workload.meter, &truth)?;
        Ok(run)
    }
}

fn mean(runs: &[Run], of: fn(&Run) -> f64) -> f64 {
    runs.iter().map(of).sum::<f64>() / runs.len() as f64
}
