//! `cargo xtask test citus`: the suites of the PostgreSQL store on a Citus cluster of a coordinator
//! and two workers, each a throw-away PostgreSQL of its own.
//!
//! Citus is taken where PostgreSQL has it installed, or from the archive beside the checkout: then
//! the server's files are copied and the archive is unpacked over the copy, so that nothing on the
//! machine changes. The archive was built with a later minor version than Debian has, so the three
//! functions that the older one lacks are compiled (`citus_shim.c`) and preloaded. Without Citus,
//! or where it does not load into this PostgreSQL, the step is reported as left out, not as passed.

use crate::postgres::{FOR_CITUS, Profile, Programs, ScratchPostgres, program, try_preloading};
use crate::{cargo, root, run_to_end};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the step in the table.
pub const STEP: &str = "tests on Citus";
const ARCHIVE: &str = "shared/engines/citus-13.2.2-pg15-bookworm-amd64.tar.gz";
const WORKERS: usize = 2;
/// The test that ends nodes of the cluster, and so runs alone.
const ENDS_NODES: &str = "three_servers_are_exact";

/// How much is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What concerns deliveries, totals and folding.
    Short,
    /// Every test of the PostgreSQL store in both suites.
    Whole,
}

impl Extent {
    /// Of the conformance suite and of the crash suite.
    fn filters(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::Short => [
                &["postgres::deliveries", "postgres::usage", "postgres::history", "two_servers"],
                &["folding", "postgres_is_exact"],
            ],
            Self::Whole => [&["postgres", "two_"], &["postgres"]],
        }
    }
}

/// A PostgreSQL that has Citus.
pub struct Citus {
    /// The server's programs, if they are not the installed ones.
    programs: Option<Programs>,
    /// The copy of the server, removed in the end.
    copy: Option<PathBuf>,
}

impl Drop for Citus {
    fn drop(&mut self) {
        if let Some(copy) = &self.copy {
            let _ = fs::remove_dir_all(copy);
        }
    }
}

impl Citus {
    /// Looks for it; the error says what is missing.
    pub fn find() -> Result<Self> {
        let server = program("postgres")?;
        let folder = server.parent().context("the server has no folder")?;
        let found = match folder.with_file_name("lib").join("citus.so").exists() {
            true => Self { programs: None, copy: None },
            false => Self::unpack(folder, &archive()?)?,
        };
        let programs = found.programs.as_ref();
        try_preloading("citus", programs).context("Citus does not load into this PostgreSQL")?;
        Ok(found)
    }

    fn unpack(programs: &Path, archive: &Path) -> Result<Self> {
        let version = programs.parent().context("the server has no version")?;
        let number = version.file_name().context("the server has no version")?;
        let name = format!("counterfoil-citus-{}", std::process::id());
        let copy = std::env::temp_dir().join(name);
        let programs = Programs {
            folder: copy.join("usr/lib/postgresql").join(number).join("bin"),
            preload: copy.join("citus_shim.so"),
        };
        let shim = programs.preload.clone();
        let found = Self { programs: Some(programs), copy: Some(copy.clone()) };
        for (from, to) in [
            (version.to_path_buf(), copy.join("usr/lib/postgresql")),
            (Path::new("/usr/share/postgresql").join(number), copy.join("usr/share/postgresql")),
        ] {
            fs::create_dir_all(&to).with_context(|| format!("could not make {}", to.display()))?;
            run_to_end(Command::new("cp").arg("-RL").arg(from).arg(to))?;
        }
        run_to_end(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&copy))?;
        let source = root()?.join("xtask/src/citus_shim.c");
        run_to_end(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(shim).arg(source))?;
        Ok(found)
    }

    /// Starts a coordinator and its workers.
    pub fn start(&self, profile: &Profile) -> Result<Cluster> {
        let start = || ScratchPostgres::start_from(profile, self.programs.as_ref());
        let workers = (0..WORKERS).map(|_| start()).collect::<Result<_>>()?;
        Ok(Cluster { coordinator: start()?, workers })
    }

    /// Tests on a cluster of three.
    pub fn test(&self, extent: Extent) -> Result<()> {
        let cluster = self.start(&FOR_CITUS)?;
        let [conformance, crash] = extent.filters();
        for (suite, filters) in
            [("store_conformance", conformance), ("crash", crash), ("crash", &[ENDS_NODES])]
        {
            let mut command = cargo()?;
            command.args(["test", "--features", "failpoints", "--test", suite, "--"]);
            command.args(filters).args(["--test-threads", "2"]);
            cluster.offer_to(&mut command);
            if filters == [ENDS_NODES] {
                cluster.coordinator.offer_restarts_to(&mut command);
            } else {
                command.args(["--skip", ENDS_NODES]);
            }
            run_to_end(&mut command)?;
        }
        Ok(())
    }
}

/// A running cluster.
pub struct Cluster {
    coordinator: ScratchPostgres,
    workers: Vec<ScratchPostgres>,
}

impl Cluster {
    /// Tells a command where the nodes are.
    pub fn offer_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let urls: Vec<&str> = self.workers.iter().map(|worker| worker.url.as_str()).collect();
        command.env("COUNTERFOIL_TEST_CITUS_WORKERS", urls.join(","));
        self.coordinator.offer_to(command)
    }
}

/// `cargo xtask test citus`.
pub fn run() -> Result<()> {
    let citus = Citus::find().context("nothing was tested on Citus")?;
    citus.test(Extent::Whole)
}

fn archive() -> Result<PathBuf> {
    let root = root()?;
    let beside = root.ancestors().skip(1).take(2).map(|folder| folder.join(ARCHIVE));
    match beside.into_iter().find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => bail!("PostgreSQL has no Citus, and there is no ../{ARCHIVE}"),
    }
}
