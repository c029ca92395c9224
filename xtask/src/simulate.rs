//! `cargo xtask simulate`: the seeded simulation of `tests/simulation`, on either store.

use crate::debian::{self, Need};
use crate::postgres::{FOR_SIMULATION, ScratchPostgres};
use crate::{cargo, run_to_end};
use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;

/// Passes its arguments on; `--help` of the simulation explains them.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let on_postgres = arguments.iter().any(|argument| argument == "postgres");
    let mut command = command(arguments)?;
    if !on_postgres {
        return run_to_end(&mut command);
    }
    debian::install_missing(&[Need::Postgres])?;
    let postgres = ScratchPostgres::start(&FOR_SIMULATION)?;
    run_to_end(postgres.offer_to(&mut command))
}

fn command(arguments: &[OsString]) -> Result<Command> {
    let mut command = cargo()?;
    command.args(["test", "--quiet", "--features", "failpoints", "--test", "simulation", "--"]);
    // Without a word of its own the simulation takes itself for a plain test.
    let plain = arguments.is_empty().then(|| ["--seeds", "500"].map(OsString::from));
    command.args(plain.into_iter().flatten()).args(arguments);
    Ok(command)
}
