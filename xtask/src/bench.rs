//! `cargo xtask bench`: the benches, with the PostgreSQL they compare against.

use crate::debian::{self, Need};
use crate::postgres::{FOR_BENCHES, ScratchPostgres};
use crate::{cargo, run_to_end};
use anyhow::{Result, bail};
use std::ffi::OsString;

const BENCHES: [&str; 3] = ["ingest", "push", "reconcile"];

/// Runs one bench; everything after its name is passed on to it.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let names = BENCHES.join(", ");
    let Some((name, rest)) = arguments.split_first() else { bail!("which bench? {names}") };
    if !BENCHES.iter().any(|known| name == known) {
        bail!("there is no bench {}; there are {names}", name.to_string_lossy());
    }
    debian::install_missing(&[Need::Postgres])?;
    let postgres = ScratchPostgres::start(&FOR_BENCHES)?;
    let mut command = cargo()?;
    command.args(["bench", "--bench"]).arg(name).arg("--").args(rest);
    run_to_end(postgres.offer_to(&mut command))
}
