//! A throw-away PostgreSQL: its own cluster in a temporary folder, on a Unix socket there and on a
//! free port of 127.0.0.1, gone with everything in it when the command ends.
//!
//! Invariant: but for simulations, it is durable the way a production server is (fsync and
//! synchronous_commit on), so that a test of durability tests something. PostgreSQL refuses to run
//! as root, so for root it runs as the user `postgres`, who owns the folder.

use crate::debian::{self, Need, user_is_root};
use crate::keeper::{self, KEEP_POSTGRES, Kept, Waited, becomes_true};
use crate::{root, succeeds};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Long enough for initdb on a slow disk with busy neighbours.
const READY_WITHIN: Duration = Duration::from_secs(120);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// For tests: many small databases side by side. Text sorts by a language's rules and not by
/// bytes, as it does on most servers, so that a query which relies on byte order fails here first.
pub const FOR_TESTS: Profile = Profile {
    name: "tests",
    initdb: &["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"],
    settings: &[&["max_connections=400", "shared_buffers=128MB"]],
    restarts: false,
};

/// For tests of TLS: with the certificate of the tests, which is for `localhost`.
pub const FOR_TLS: Profile = Profile {
    name: "tls",
    initdb: &["--locale=C.UTF-8"],
    settings: &[&["ssl=on"]],
    restarts: false,
};

/// For tests that end the server: it is then started again, as a supervisor would. No other test
/// shares it.
pub const FOR_RESTARTS: Profile = Profile { name: "restarts", restarts: true, ..FOR_TESTS };

/// What a server with TLS looks for in its data, and where it comes from.
const TLS_FILES: [(&str, &str); 2] = [("server.crt", "one.pem"), ("server.key", "one.key")];

/// For simulations: thousands of short lives of our own processes, on a server that does not die.
pub const FOR_SIMULATION: Profile = Profile {
    name: "simulation",
    initdb: &["--locale=C.UTF-8"],
    settings: &[&["max_connections=200", "fsync=off", "full_page_writes=off"]],
    restarts: false,
};

/// For measuring: the settings under which the figures in the design papers were taken.
pub const FOR_BENCHES: Profile = Profile {
    name: "benches",
    initdb: &["--locale=C.UTF-8"],
    settings: &[MEASURED, &["max_connections=200", "shared_buffers=2GB"]],
    restarts: false,
};

const MEASURED: &[&str] = &["max_wal_size=8GB", "checkpoint_timeout=15min", "wal_compression=lz4"];

/// For tests on Citus: a node of a cluster. Tests that end nodes run after all others.
pub const FOR_CITUS: Profile = Profile {
    name: "citus",
    initdb: FOR_TESTS.initdb,
    settings: &[CITUS_NODE, &["shared_buffers=64MB"]],
    restarts: true,
};

/// For measuring on Citus: a node of a cluster that shares its machine with the others.
pub const FOR_CITUS_BENCHES: Profile = Profile {
    name: "citus-benches",
    initdb: FOR_BENCHES.initdb,
    settings: &[CITUS_NODE, MEASURED, &["shared_buffers=700MB"]],
    restarts: false,
};

const CITUS_NODE: &[&str] = &[
    "shared_preload_libraries=citus",
    // Citus would make a certificate that our client refuses.
    "ssl=off",
    "citus.node_conninfo=sslmode=prefer",
    "max_connections=300",
    "max_prepared_transactions=300",
    // Citus has a worker for each database, which recovers prepared transactions and ends
    // deadlocks between nodes.
    "max_worker_processes=200",
];

/// The server's programs, where they are not the installed ones.
pub struct Programs {
    pub folder: PathBuf,
    /// A library that the server loads before all others.
    pub preload: PathBuf,
}

/// By which a keeper learns of [`Programs::folder`].
const PROGRAMS: &str = "COUNTERFOIL_XTASK_POSTGRES_PROGRAMS";
/// By which the dynamic linker learns of [`Programs::preload`].
const PRELOAD: &str = "LD_PRELOAD";

/// A profile's own settings come after these.
const SETTINGS_ALWAYS: [&str; 3] =
    ["fsync=on", "synchronous_commit=on", "listen_addresses=127.0.0.1"];

/// How a cluster is made and set.
pub struct Profile {
    /// By which a keeper, a process of its own, finds it.
    name: &'static str,
    initdb: &'static [&'static str],
    settings: &'static [&'static [&'static str]],
    /// Whether a server that has ended is started again.
    restarts: bool,
}

impl Profile {
    fn settings(&self) -> impl Iterator<Item = &'static str> {
        self.settings.iter().copied().flatten().copied()
    }
}

const RESTARTS_VARIABLE: &str = "COUNTERFOIL_TEST_POSTGRES_RESTARTS";

/// A running cluster; dropping it stops the server and removes its folder.
pub struct ScratchPostgres {
    kept: Kept,
    pub url: String,
}

impl ScratchPostgres {
    pub fn start(profile: &Profile) -> Result<Self> {
        Self::start_from(profile, None)
    }

    /// As [`Self::start`], with these programs.
    pub fn start_from(profile: &Profile, programs: Option<&Programs>) -> Result<Self> {
        let kept = Kept::start(KEEP_POSTGRES, [profile.name], |command| {
            if let Some(Programs { folder, preload }) = programs {
                command.env(PROGRAMS, folder).env(PRELOAD, preload);
            }
        })?;
        let url = kept.line_within(READY_WITHIN).context("PostgreSQL did not start")?;
        println!("PostgreSQL at {url}");
        Ok(Self { kept, url })
    }

    /// Tells a command's tests where the server is, and that being without it is a failure.
    pub fn offer_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("COUNTERFOIL_TEST_POSTGRES", &self.url);
        command.env("COUNTERFOIL_TEST_REQUIRE_POSTGRES", "1")
    }

    /// The same for the tests that end the server.
    pub fn offer_restarts_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env(RESTARTS_VARIABLE, &self.url)
    }

    /// The same for the tests of TLS.
    pub fn offer_tls_to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("COUNTERFOIL_TEST_POSTGRES_TLS", &self.url)
    }
}

/// `cargo xtask postgres`.
pub fn serve_until_interrupted() -> Result<()> {
    debian::install_missing(&[Need::Postgres])?;
    let mut postgres = ScratchPostgres::start(&FOR_TESTS)?;
    let restarts = ScratchPostgres::start(&FOR_RESTARTS)?;
    println!("for tests: export COUNTERFOIL_TEST_POSTGRES={}", postgres.url);
    println!("for tests that end the server: export {RESTARTS_VARIABLE}={}", restarts.url);
    println!("Ctrl-C stops it and removes everything in it");
    postgres.kept.wait()?;
    bail!("PostgreSQL stopped by itself")
}

/// One of the server's programs: Debian keeps them out of the path, newest version last.
pub fn program(name: &str) -> Result<PathBuf> {
    if let Some(programs) = std::env::var_os(PROGRAMS) {
        return Ok(PathBuf::from(programs).join(name));
    }
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin").join(name)))
        })
        .filter(|(_, path)| path.exists())
        .collect();
    versions.sort();
    if let Some((_, path)) = versions.pop() {
        return Ok(path);
    }
    if succeeds(Command::new(name).arg("--version")) {
        return Ok(PathBuf::from(name));
    }
    bail!("PostgreSQL's {name} is neither in /usr/lib/postgresql nor in the path")
}

/// What the keeper does: makes the cluster, prints its URL, and ends both when the time comes.
pub fn keep(arguments: &[OsString]) -> Result<()> {
    let name = arguments.first().map(OsString::as_os_str);
    let profile = [
        FOR_TESTS,
        FOR_RESTARTS,
        FOR_TLS,
        FOR_SIMULATION,
        FOR_BENCHES,
        FOR_CITUS,
        FOR_CITUS_BENCHES,
    ]
    .into_iter()
    .find(|profile| name == Some(OsStr::new(profile.name)))
    .context("the keeper was asked for a profile that it does not know")?;
    let cluster = Cluster::create(&profile)?;
    let (mut server, port) = cluster.start(&profile)?;
    println!("postgres://postgres@127.0.0.1:{port}/postgres");
    let gone = keeper::command_is_gone();
    let waited = loop {
        let waited = keeper::wait_for_either(&mut server, &gone);
        if !profile.restarts || !matches!(waited, Ok(Waited::ProgramEnded)) {
            break waited;
        }
        server = cluster.spawn(&profile, port)?;
    };
    cluster.stop(&mut server);
    waited.map(drop)
}

/// Whether the server, with these programs, loads a library at its start.
pub fn try_preloading(library: &str, programs: Option<&Programs>) -> Result<()> {
    let cluster = Cluster::create(&FOR_TESTS)?;
    let mut command = match programs {
        Some(Programs { folder, preload }) => {
            let mut command = Command::new(folder.join("postgres"));
            command.env(PRELOAD, preload);
            command
        }
        None => Command::new(program("postgres")?),
    };
    cluster.give_to_owner(&mut command);
    // This value is known only after libraries are loaded.
    command.arg("-D").arg(cluster.data()).args(["-C", "shared_memory_size"]);
    command.arg("-c").arg(format!("shared_preload_libraries={library}"));
    let output = command.output().context("could not run postgres")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The folder of a cluster, removed when dropped, and who runs the server.
struct Cluster {
    folder: PathBuf,
    owner: Option<Owner>,
}

#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("xtask: could not remove {}: {error}", self.folder.display());
        }
    }
}

impl Cluster {
    fn create(profile: &Profile) -> Result<Self> {
        let owner = if user_is_root() { Some(postgres_user()?) } else { None };
        let name = format!("counterfoil-postgres-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("could not make {}", folder.display()))?;
        let cluster = Self { folder, owner };
        if let Some(Owner { uid, gid }) = owner {
            chown(&cluster.folder, Some(uid), Some(gid)).context("could not give it away")?;
        }
        let output = cluster
            .command("initdb")?
            .args(["-A", "trust", "-N", "-U", "postgres", "-E", "UTF8", "-D"])
            .arg(cluster.data())
            .args(profile.initdb)
            .output()
            .context("could not run initdb")?;
        if !output.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&output.stderr));
        }
        if profile.settings().any(|setting| setting == "ssl=on") {
            cluster.install_certificate()?;
        }
        Ok(cluster)
    }

    /// PostgreSQL refuses a key that others may read.
    fn install_certificate(&self) -> Result<()> {
        let certificates = root()?.join("tests/tls");
        for (name, source) in TLS_FILES {
            let place = self.data().join(name);
            fs::copy(certificates.join(source), &place)
                .with_context(|| format!("could not copy {source}"))?;
            fs::set_permissions(&place, fs::Permissions::from_mode(0o600))?;
            if let Some(Owner { uid, gid }) = self.owner {
                chown(&place, Some(uid), Some(gid)).context("could not give it away")?;
            }
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// One of PostgreSQL's programs, as the cluster's owner and in a folder the owner may enter.
    fn command(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(program(name)?);
        self.give_to_owner(&mut command);
        Ok(command)
    }

    fn give_to_owner(&self, command: &mut Command) {
        command.current_dir(&self.folder).stdin(Stdio::null());
        if let Some(Owner { uid, gid }) = self.owner {
            command.uid(uid).gid(gid);
        }
    }

    /// Starts the server on a free port. Another program may take the port between our look and
    /// the server's bind, hence more than one try.
    fn start(&self, profile: &Profile) -> Result<(Child, u16)> {
        const TRIES: u32 = 3;
        for _ in 0..TRIES {
            let port = free_port()?;
            let mut server = self.spawn(profile, port)?;
            let mut ended = false;
            let ready = becomes_true(READY_WITHIN, || {
                ended = server.try_wait().is_ok_and(|status| status.is_some());
                ended || self.is_ready(port)
            });
            if ready && !ended {
                return Ok((server, port));
            }
            self.stop(&mut server);
        }
        bail!("the server did not start; its log ends:\n{}", last_lines(&self.log(), 20))
    }

    fn spawn(&self, profile: &Profile, port: u16) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.context("could not open the server's log")?;
        let mut command = self.command("postgres")?;
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.folder);
        command.arg("-p").arg(port.to_string());
        for setting in SETTINGS_ALWAYS.into_iter().chain(profile.settings()) {
            command.arg("-c").arg(setting);
        }
        command.stdout(log.try_clone().context("could not share the log")?).stderr(log);
        command.spawn().context("could not start postgres")
    }

    fn is_ready(&self, port: u16) -> bool {
        let port = port.to_string();
        let ask = |mut command: Command| {
            succeeds(command.args(["-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &port]))
        };
        self.command("pg_isready").is_ok_and(ask)
    }

    /// Ends the server at once; its data is about to be removed, so there is nothing to save.
    fn stop(&self, server: &mut Child) {
        let asked = self.command("pg_ctl").is_ok_and(|mut command| {
            succeeds(command.args(["stop", "-m", "immediate", "-D"]).arg(self.data()))
        });
        let ended =
            asked && becomes_true(STOPPED_WITHIN, || server.try_wait().is_ok_and(|s| s.is_some()));
        if !ended {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("could not bind a port")?;
    Ok(listener.local_addr().context("could not read the port")?.port())
}

fn postgres_user() -> Result<Owner> {
    let text = fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
    find_user(&text, "postgres").context("there is no user `postgres` to run the server as")
}

/// A user's numbers in a passwd file: name, password, uid, gid, and fields not needed here.
fn find_user(passwd: &str, name: &str) -> Option<Owner> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Owner { uid, gid })
    })
}

fn last_lines(path: &Path, count: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n\
                      postgres2:x:7:8::/:/bin/sh\n\
                      postgres:x:101:103:,,,:/var/lib/postgresql:/bin/bash\n";
        let found = find_user(passwd, "postgres").map(|owner| (owner.uid, owner.gid));
        assert_eq!(found, Some((101, 103)));
        assert!(find_user(passwd, "nobody").is_none());
        assert!(find_user("postgres:x:none", "postgres").is_none());
    }
}
