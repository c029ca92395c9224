//! `cargo xtask test`: everything that CI checks, in the order in which it is cheapest to fail.

use crate::citus::{self, Citus, Extent};
use crate::debian::{self, Need};
use crate::postgres::{FOR_RESTARTS, FOR_TESTS, FOR_TLS, ScratchPostgres};
use crate::steps::Steps;
use crate::{
    INCREMENTAL, OPT_LEVEL, binaries, cargo, docs_page, fuzz, licences, run_to_end, schemathesis,
    simulate, stripe_sdk,
};
use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;

/// The steps that need a program that compiles.
const AFTER_BUILD: [&str; 10] = [
    "tests",
    citus::STEP,
    "tests of other packages",
    "documentation",
    "schemathesis",
    "documentation page",
    "stripe SDKs",
    fuzz::STEP,
    "simulation on SQLite",
    "simulation on PostgreSQL",
];
const IDEMPOTENCY: &str = "counterfoil-idempotency";
const STRIPE_SIM: &str = "stripe-sim";
/// Every package with every feature: the fail points of the server, and the stores of the
/// idempotency layer, whose tests need all of them.
const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];
/// Lives of the simulation in one run of CI; `cargo xtask simulate` lives more.
const SEEDS_SQLITE: &str = "60";
const SEEDS_POSTGRES: &str = "30";

/// Runs all of it, or only the tests whose names contain one of the filters.
pub fn run(filters: &[OsString]) -> Result<()> {
    if filters.is_empty() { run_all() } else { run_filtered(filters) }
}

fn run_filtered(filters: &[OsString]) -> Result<()> {
    debian::install_missing(&[Need::Postgres, Need::Redis, Need::Strace])?;
    let clusters = Clusters::start()?;
    let mut command = cargo()?;
    // For a few tests the compiler takes longest.
    command.env_remove(OPT_LEVEL).env_remove(INCREMENTAL);
    command.arg("test").args(EVERYTHING).arg("--").args(filters);
    run_to_end(clusters.offer_to(require_redis(&mut command)))
}

/// The databases of the server's tests.
struct Clusters {
    shared: ScratchPostgres,
    restarts: ScratchPostgres,
    tls: ScratchPostgres,
}

impl Clusters {
    fn start() -> Result<Self> {
        let [shared, restarts, tls] =
            [&FOR_TESTS, &FOR_RESTARTS, &FOR_TLS].map(ScratchPostgres::start);
        Ok(Self { shared: shared?, restarts: restarts?, tls: tls? })
    }

    fn offer_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let command = self.restarts.offer_restarts_to(self.shared.offer_to(command));
        self.tls.offer_tls_to(command)
    }
}

fn run_all() -> Result<()> {
    let mut steps = Steps::begin();
    let needs = [
        Need::Postgres,
        Need::Redis,
        Need::Strace,
        Need::PythonVenv,
        Need::Chromium,
        Need::Promtool,
    ];
    steps.step("packages", || debian::install_missing(&needs));
    steps.step("format", || run_cargo(&["fmt", "--all", "--check"]));
    steps.step("clippy", || {
        let mut command = cargo()?;
        command.arg("clippy").args(EVERYTHING).args(["--all-targets", "--", "-D", "warnings"]);
        run_to_end(&mut command)
    });
    steps.step("licences", licences::run);
    steps.step("features", check_features);
    let built = steps.step("build", || run_cargo(&["build", "--features", "failpoints"]));
    if built.is_none() {
        AFTER_BUILD.into_iter().for_each(|name| steps.skip(name));
        return steps.finish();
    }
    steps.step("tests", test);
    match Citus::find() {
        Ok(citus) => {
            steps.step(citus::STEP, || citus.test(Extent::Short));
        }
        Err(why) => steps.leave_out(citus::STEP, &format!("{why:#}")),
    }
    steps.step("tests of other packages", test_others);
    steps.step("documentation", || {
        let mut command = cargo()?;
        command.args(["doc", "--no-deps", "--all-features"]);
        command.args(["--package", "counterfoil", "--package", IDEMPOTENCY]);
        command.args(["--package", STRIPE_SIM]);
        run_to_end(command.env("RUSTDOCFLAGS", "-Dwarnings"))
    });
    steps.step("schemathesis", schemathesis::run);
    steps.step("documentation page", docs_page::run);
    steps.step("stripe SDKs", stripe_sdk::run);
    match fuzz::missing() {
        None => {
            steps.step(fuzz::STEP, fuzz::build);
        }
        Some(what) => steps.leave_out(fuzz::STEP, what),
    }
    steps.step("simulation on SQLite", || simulate::run(&seeds(SEEDS_SQLITE, "sqlite")));
    steps.step("simulation on PostgreSQL", || simulate::run(&seeds(SEEDS_POSTGRES, "postgres")));
    steps.finish()
}

fn test() -> Result<()> {
    let clusters = Clusters::start()?;
    let mut commands = binaries::build(&["--features", "failpoints"])?;
    for command in &mut commands {
        clusters.offer_to(command);
    }
    binaries::run(commands)
}

/// The other packages, by themselves: what their tests add to shared dependencies would have the
/// server compiled twice.
fn test_others() -> Result<()> {
    let postgres = ScratchPostgres::start(&FOR_TESTS)?;
    let mut command: Command = cargo()?;
    command.args(["test", "--package", IDEMPOTENCY, "--package", STRIPE_SIM]);
    command.args(["--package", "xtask"]);
    command.args(["--all-features", "--no-fail-fast"]);
    run_to_end(postgres.offer_to(require_redis(&mut command)))
}

/// Tells a command's tests that being without Redis is a failure; they start their own.
fn require_redis(command: &mut Command) -> &mut Command {
    command.env("COUNTERFOIL_TEST_REQUIRE_REDIS", "1")
}

/// The layer is for others too, who take one store or none.
fn check_features() -> Result<()> {
    for feature in ["default", "sqlite", "postgres", "redis"] {
        run_cargo(&["check", "--package", IDEMPOTENCY, "--features", feature])?;
    }
    Ok(())
}

fn seeds(number: &str, store: &str) -> Vec<OsString> {
    ["--seeds", number, "--store", store].map(OsString::from).to_vec()
}

fn run_cargo(arguments: &[&str]) -> Result<()> {
    run_to_end(cargo()?.args(arguments))
}
