//! The ingest benchmark: floors, baselines and the product in one run, so that only ratios matter.
//! See `benches/README.md`.
//!
//! Invariant: the exit code says whether every count and total was right, never how fast it was.

#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "measurements are not money"
)]

mod bench;
mod client;
mod floors;
mod growth;
mod http_floor;
mod load;
mod peers;
mod postgres;
mod process;
mod report;
mod rows;
mod snapshot;
mod workload;

use anyhow::{Context, Result, bail};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let postgres = std::env::var("COUNTERFOIL_TEST_POSTGRES").ok();
    let workers = std::env::var("COUNTERFOIL_TEST_CITUS_WORKERS").unwrap_or_default();
    let workers = workers.split_terminator(',').map(str::to_owned).collect();
    let mut settings = bench::Settings { postgres, workers, ..Default::default() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--quick" => settings.quick = true,
            "--only" => settings.only.push(value()?),
            "--keys" => settings.keys = Some(parse_keys(&value()?)?),
            "--data" => settings.data = Some(value()?.into()),
            "--json" => settings.json = Some(value()?.into()),
            "--child" => match value()?.as_str() {
                "http-floor" => return http_floor::serve(),
                other => bail!("there is no child {other}"),
            },
            // Cargo adds it to every bench.
            "--bench" => {}
            other => bail!(
                "cannot do {other}; there are --quick, --only ROW, --keys 100M, --data FOLDER, \
                 --json FILE"
            ),
        }
    }
    bench::run(settings)
}

/// A number, or a number of millions such as 100M.
fn parse_keys(text: &str) -> Result<u64> {
    let (digits, unit) = text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1_000_000));
    let number: u64 = digits.parse().with_context(|| format!("{text} is not a number of keys"))?;
    Ok(number * unit)
}
