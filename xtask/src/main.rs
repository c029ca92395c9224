//! The project's commands: `cargo xtask COMMAND`. There is no Makefile and no second task runner,
//! so that what a person runs and what CI runs is one thing.
//!
//! Everything a command starts is held by a keeper (see `keeper.rs`) and ends with the command,
//! whether that succeeds, fails, is interrupted or is killed.

#![allow(clippy::disallowed_methods, reason = "the ban keeps the server's environment in one file")]

mod bench;
mod binaries;
mod citus;
mod debian;
mod docs_page;
mod fuzz;
mod keeper;
mod licences;
mod postgres;
mod schemathesis;
mod simulate;
mod steps;
mod stripe_sdk;
mod suite;

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [FILTER...]   everything CI checks; with FILTER only the tests whose names contain one
  test citus         the suites of the PostgreSQL store on a Citus cluster, where there is Citus
  ci                 the same as test, under the name CI uses
  tidy               only the house rules: sizes, direction of modules, migration pairs
  licences           whether deny.toml allows every package that we depend on
  postgres           start a throw-away PostgreSQL, print its URL, wait for Ctrl-C
  schemathesis       call the HTTP API with generated requests, good and bad
  docs-page          try every operation of the page at /docs in a browser
  stripe-sdk         drive the Stripe simulator with Stripe's own SDKs
  simulate [--seeds N] [--from S] [--store sqlite|postgres] [--bug NAME] [--story NAME]
           | --list-bugs
                     live through N seeded lives with crashes and a failing provider
  bench ingest [--quick] [--only ROW] [--keys 100M] [--data FOLDER] [--json FILE]
                     measure ingest on both stores, against floors of the same run
  bench peers [--quick] [--json FILE]
                     measure ingest against TigerBeetle, Redis and PostgreSQL
  bench citus [--quick] [--json FILE]
                     measure ingest on a Citus cluster against its coordinator alone
  bench push         push 10,000 windows at Stripe's limits, on both stores
  bench reconcile    take webhooks and compare 100,580 windows, on both stores
  bench hostile [--only ATTACK] [--json FILE]
                     what one tenant notices while another attacks, on both stores
  bench idempotency  what the idempotency layer adds to a call, on each of its stores

Whatever a command needs and does not find, it installs with apt-get, or says what to install.
";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[OsString]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    match command.to_str() {
        Some("test") if rest == ["citus"] => citus::run(),
        Some("test") => suite::run(rest),
        Some("ci") if rest.is_empty() => suite::run(rest),
        Some("tidy") if rest.is_empty() => run_to_end(cargo()?.args(["test", "--test", "tidy"])),
        Some("licences") if rest.is_empty() => licences::run(),
        Some("postgres") if rest.is_empty() => postgres::serve_until_interrupted(),
        Some("schemathesis") if rest.is_empty() => schemathesis::run_alone(),
        Some("docs-page") if rest.is_empty() => docs_page::run_alone(),
        Some("stripe-sdk") if rest.is_empty() => stripe_sdk::run_alone(),
        Some("simulate") => simulate::run(rest),
        Some("bench") => bench::run(rest),
        Some(keeper::KEEP) => keeper::keep(rest),
        Some(keeper::KEEP_POSTGRES) => postgres::keep(rest),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(_) | None => bail!("cannot do {arguments:?}\n\n{USAGE}"),
    }
}

/// The root of the repository.
fn root() -> Result<PathBuf> {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(xtask.parent().context("the folder of xtask has no parent")?.to_path_buf())
}

const OPT_LEVEL: &str = "CARGO_PROFILE_DEV_OPT_LEVEL";
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// The cargo that runs us, at the root of the repository.
fn cargo() -> Result<Command> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root()?);
    // What cargo says of this package would make build scripts of others run again.
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| is_of_this_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    // The suites make millions of calls: unoptimised code takes four times the processor time,
    // which is more than the compiler takes to optimise a little. A build from nothing gains no
    // time from incremental compilation, which takes most of the disk.
    command.env(OPT_LEVEL, "1").env(INCREMENTAL, "0");
    Ok(command)
}

fn is_of_this_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_")
        || variable.starts_with("CARGO_MANIFEST_")
        || variable == "CARGO_BIN_NAME"
        || variable == "CARGO_CRATE_NAME"
}

/// Runs a command on our own terminal; anything but success is an error.
fn run_to_end(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("could not start {program}"))?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}

/// Whether a program can be started and says so with success; its output is dropped.
fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
