//! `cargo xtask bench`: the benches, with the servers they compare against.

use crate::citus::Citus;
use crate::debian::{self, Need};
use crate::postgres::{FOR_BENCHES, FOR_CITUS_BENCHES, ScratchPostgres};
use crate::{cargo, run_to_end};
use anyhow::{Context, Result, bail};
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

/// Runs on a cluster instead of one server.
const CITUS: &str = "citus";
const INGEST: &[&str] = &["--package", "counterfoil", "--bench", "ingest"];

const BENCHES: [Bench; 7] = [
    Bench { name: "ingest", target: INGEST, arguments: &[], needs: &[Need::Postgres] },
    Bench {
        name: "peers",
        target: INGEST,
        arguments: &["--only", "peers"],
        needs: &[Need::Postgres, Need::Redis],
    },
    Bench {
        name: CITUS,
        target: INGEST,
        arguments: &["--only", "citus"],
        needs: &[Need::Postgres],
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
    let mut command = cargo()?;
    command.arg("bench").args(bench.target).arg("--").args(bench.arguments).args(rest);
    if bench.name == CITUS {
        let citus = Citus::find().context("nothing was measured on Citus")?;
        let cluster = citus.start(&FOR_CITUS_BENCHES)?;
        return run_to_end(cluster.offer_to(&mut command));
    }
    let postgres = ScratchPostgres::start(&FOR_BENCHES)?;
    run_to_end(postgres.offer_to(&mut command))
}
