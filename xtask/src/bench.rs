//! `cargo xtask bench`: the benches, with the servers they compare against.

use crate::debian::{self, Need};
use crate::postgres::{FOR_BENCHES, ScratchPostgres};
use crate::{cargo, run_to_end};
use anyhow::{Result, bail};
use std::ffi::OsString;

/// Each bench, and the package it is of.
const BENCHES: [(&str, &str); 5] = [
    ("ingest", "counterfoil"),
    ("push", "counterfoil"),
    ("reconcile", "counterfoil"),
    ("hostile", "counterfoil"),
    ("idempotency", "counterfoil-idempotency"),
];

/// Runs one bench; everything after its name is passed on to it.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let names = BENCHES.map(|(name, _)| name).join(", ");
    let Some((name, rest)) = arguments.split_first() else { bail!("which bench? {names}") };
    let Some((name, package)) = BENCHES.into_iter().find(|(known, _)| name == known) else {
        bail!("there is no bench {}; there are {names}", name.to_string_lossy());
    };
    let mut command = cargo()?;
    command.args(["bench", "--package", package, "--bench", name]);
    if name == "idempotency" {
        debian::install_missing(&[Need::Postgres, Need::Redis])?;
        command.arg("--all-features");
    } else {
        debian::install_missing(&[Need::Postgres])?;
    }
    let postgres = ScratchPostgres::start(&FOR_BENCHES)?;
    command.arg("--").args(rest);
    run_to_end(postgres.offer_to(&mut command))
}
