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

mod client;
mod embedded;
mod growth;
mod load;
mod parse_floor;
mod plan;
mod postgres;
mod process;
mod report;
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
    let mut settings = plan::Settings { quick: false, json: None, postgres, no_growth: false };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--quick" => settings.quick = true,
            "--no-growth" => settings.no_growth = true,
            "--json" => settings.json = Some(value()?.into()),
            "--child" => match value()?.as_str() {
                "parse-floor" => return parse_floor::serve(),
                other => bail!("there is no child {other}"),
            },
            "--store-only" => return plan::store_only(value()?.parse()?, 10),
            "--shape" => return plan::one_shape(&settings, &value()?),
            // Cargo adds it to every bench.
            "--bench" => {}
            other => bail!("cannot do {other}; there are --quick, --no-growth, --json FILE"),
        }
    }
    plan::run(&settings)
}
