//! `cargo xtask test`: everything that CI checks, in the order in which it is cheapest to fail.

use crate::debian::{self, Need};
use crate::postgres::{FOR_TESTS, ScratchPostgres};
use crate::steps::Steps;
use crate::{cargo, run_to_end, schemathesis, simulate, stripe_sdk};
use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;

/// The steps that need a program that compiles.
const AFTER_BUILD: [&str; 6] = [
    "tests",
    "documentation",
    "schemathesis",
    "stripe SDKs",
    "simulation on SQLite",
    "simulation on PostgreSQL",
];
/// Lives of the simulation in one run of CI; `cargo xtask simulate` lives more.
const SEEDS_SQLITE: &str = "150";
const SEEDS_POSTGRES: &str = "60";

/// Runs all of it, or only the tests whose names contain one of the filters.
pub fn run(filters: &[OsString]) -> Result<()> {
    if filters.is_empty() { run_all() } else { run_filtered(filters) }
}

fn run_filtered(filters: &[OsString]) -> Result<()> {
    debian::install_missing(&[Need::Postgres, Need::Strace])?;
    let postgres = ScratchPostgres::start(&FOR_TESTS)?;
    let mut command = cargo()?;
    command.args(["test", "--features", "failpoints", "--"]).args(filters);
    run_to_end(postgres.offer_to(&mut command))
}

fn run_all() -> Result<()> {
    let mut steps = Steps::begin();
    let needs = [Need::Postgres, Need::Strace, Need::PythonVenv];
    steps.step("packages", || debian::install_missing(&needs));
    steps.step("format", || run_cargo(&["fmt", "--all", "--check"]));
    steps.step("clippy", || {
        run_cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "failpoints",
            "--",
            "-D",
            "warnings",
        ])
    });
    let built = steps.step("build", || run_cargo(&["build", "--features", "failpoints"]));
    if built.is_none() {
        AFTER_BUILD.into_iter().for_each(|name| steps.skip(name));
        return steps.finish();
    }
    steps.step("tests", test);
    steps.step("documentation", || {
        run_to_end(cargo()?.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-Dwarnings"))
    });
    steps.step("schemathesis", schemathesis::run);
    steps.step("stripe SDKs", stripe_sdk::run);
    steps.step("simulation on SQLite", || simulate::run(&seeds(SEEDS_SQLITE, "sqlite")));
    steps.step("simulation on PostgreSQL", || simulate::run(&seeds(SEEDS_POSTGRES, "postgres")));
    steps.finish()
}

fn test() -> Result<()> {
    let postgres = ScratchPostgres::start(&FOR_TESTS)?;
    let mut command: Command = cargo()?;
    // Without --no-fail-fast the first failing test binary would hide those after it.
    command.args(["test", "--workspace", "--features", "failpoints", "--no-fail-fast"]);
    run_to_end(postgres.offer_to(&mut command))
}

fn seeds(number: &str, store: &str) -> Vec<OsString> {
    ["--seeds", number, "--store", store].map(OsString::from).to_vec()
}

fn run_cargo(arguments: &[&str]) -> Result<()> {
    run_to_end(cargo()?.args(arguments))
}
