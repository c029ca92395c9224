//! The hostile benchmark: one tenant, or a sender without a key, attacks while another tenant sends
//! single events. Each attack runs against a fresh server with default limits, on both stores.
//!
//! The victim is measured alone and then under attack in one run, so only the ratio matters. The
//! attacker is another process at the lowest priority, from another address, since it would have
//! cores of its own in earnest.
//!
//! Invariant: the exit code says whether every event of the victim was accepted and counted exactly
//! once, never how fast.

#![allow(
    clippy::unwrap_used,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "measurements are not money"
)]

mod attacks;
mod http1;
mod http2;
#[path = "../ingest/process.rs"]
#[allow(dead_code, reason = "the ingest benchmark watches more than this one")]
mod process;
mod run;
mod victim;

use anyhow::{Context, Result, bail};
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match begin().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn begin() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut settings = run::Settings::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--quick" => settings.seconds = 2,
            "--only" => settings.only = Some(value()?),
            "--json" => settings.json = Some(value()?.into()),
            "--child" => return attacks::attack_from_environment(&value()?).await,
            // Cargo adds it to every bench.
            "--bench" => {}
            other => bail!("cannot do {other}; there are --quick, --only ATTACK, --json FILE"),
        }
    }
    run::run(&settings).await
}
