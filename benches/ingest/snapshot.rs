//! PostgreSQL while somebody holds a snapshot open, as `pg_dump` and analysts do: versions of rows
//! that every batch changes cannot be removed meanwhile.

use crate::bench::Bench;
use crate::load::{Expect, KEY, Run, Until, declare_meters};
use crate::postgres::{Postgres, Session};
use crate::process::{Server, Store};
use crate::workload::{Truth, USUAL};
use anyhow::Result;

const HOLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";

/// The rate after 1.5 million events under one snapshot, against the rate without.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let Some(postgres) = bench.postgres.take() else {
        bench.report.missing("postgres", "not found: COUNTERFOIL_TEST_POSTGRES is not set");
        return Ok(());
    };
    let held = run(bench, &postgres, "snapshot held", Some(HOLD))?;
    let free = run(bench, &postgres, "no snapshot", None)?;
    bench.report.ratio("snapshot held / no snapshot", held.rate() / free.rate(), Some(0.9));
    bench.report.push(held);
    bench.report.push(free);
    bench.postgres = Some(postgres);
    Ok(())
}

fn run(bench: &Bench, postgres: &Postgres, name: &str, hold: Option<&str>) -> Result<Run> {
    let events = if bench.settings.quick { 300_000 } else { 1_500_000 };
    let url = postgres.fresh_database("bench_snapshot")?;
    let server = Server::start_product(Store::Postgres(&url), KEY)?;
    let target = server.target(&postgres.postmasters, Expect::Truth);
    declare_meters(&server.url, USUAL.meter)?;
    let holder = Session::open(&url)?;
    hold.map(|hold| holder.execute(hold)).transpose()?;
    let mut truth = Truth::default();
    let until = Until::Events(events);
    bench.driver.run("fill", &target, USUAL, until, &mut truth)?;
    let until = Until::Elapsed(bench.lasting(6));
    let run = bench.driver.run(name, &target, USUAL, until, &mut truth)?;
    bench.driver.check_totals(&server.url, USUAL.meter, &truth)?;
    drop(server);
    postgres.drop_database("bench_snapshot")?;
    Ok(run)
}
