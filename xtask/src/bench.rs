//! `cargo xtask bench`: the benches, with the servers they compare against.

use crate::debian::{self, Need};
use crate::postgres::{FOR_BENCHES, ScratchPostgres};
use crate::{cargo, run_to_end};
use anyhow::{Result, bail};
use std::ffi::OsString;

/// What a name runs.
struct Bench {
    name: &'static str,
    /// For cargo: which bench of which package.
    target: &'static [&'static str],
    /// For the bench, before what the caller gives.
    arguments: &'static [&'static str],
    needs: &'static [Need],
}

const INGEST: &[&str] = &["--package", "counterfoil", "--bench", "ingest"];

const BENCHES: [Bench; 6] = [
    Bench { name: "ingest", target: INGEST, arguments: &[], needs: &[Need::Postgres] },
    Bench {
        name: "peers",
        target: INGEST,
        arguments: &["--only", "peers"],
        needs: &[Need::Postgres, Need::Redis],
    },
    Bench {
        name: "push",
        target: &["--package", "counterfoil", "--bench", "push"],
        arguments: &[],
        needs: &[Need::Postgres],
    },
    Bench {
        name: "reconcile",
        target: &["--package", "counterfoil", "--bench", "reconcile"],
        arguments: &[],
        needs: &[Need::Postgres],
    },
    Bench {
        name: "hostile",
        target: &["--package", "counterfoil", "--bench", "hostile"],
        arguments: &[],
        needs: &[Need::Postgres],
    },
    Bench {
        name: "idempotency",
        target: &[
            "--package",
            "counterfoil-idempotency",
            "--bench",
            "idempotency",
            "--all-features",
        ],
        arguments: &[],
        needs: &[Need::Postgres, Need::Redis],
    },
];

/// Runs one bench; everything after its name is passed on to it.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let names = BENCHES.map(|bench| bench.name).join(", ");
    let Some((name, rest)) = arguments.split_first() else { bail!("which bench? {names}") };
    let Some(bench) = BENCHES.into_iter().find(|bench| name == bench.name) else {
        bail!("there is no bench {}; there are {names}", name.to_string_lossy());
    };
    debian::install_missing(bench.needs)?;
    let postgres = ScratchPostgres::start(&FOR_BENCHES)?;
    let mut command = cargo()?;
    command.arg("bench").args(bench.target).arg("--").args(bench.arguments).args(rest);
    run_to_end(postgres.offer_to(&mut command))
}
