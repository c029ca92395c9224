//! The demo's server: this program again, as a child that can be killed.
//!
//! Invariant: the child and its directory do not outlive the demo.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a server may take to recover and to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the demo keeps its data; removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn create() -> anyhow::Result<Self> {
        let number = getrandom::u64().context("no random number for the directory's name")?;
        let path = std::env::temp_dir().join(format!("counterfoil-demo-{number:016x}"));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The ready line of `serve --log json`.
#[derive(Deserialize)]
struct Ready {
    url: String,
    listen: String,
}

/// How to start the server, again and again on the same store.
pub struct Launch {
    pub store: String,
    pub key: String,
    pub log: PathBuf,
    /// Where Stripe is played.
    pub stripe_url: String,
}

/// Settings for a Stripe next door that fails every now and then: quick to give up, to try again
/// and to look. A lease is at least twice the longest timeout.
const OUTBOUND: [(&str, &str); 11] = [
    ("COUNTERFOIL_PROVIDER_KIND", "stripe"),
    ("COUNTERFOIL_PROVIDER_SHADOW", "off"),
    ("COUNTERFOIL_STRIPE_API_KEY", "sk_test_demo"),
    ("COUNTERFOIL_STRIPE_TIMEOUT_MS", "500"),
    ("COUNTERFOIL_SINK_TIMEOUT_MS", "500"),
    ("COUNTERFOIL_PUSH_LEASE_MS", "2000"),
    ("COUNTERFOIL_PUSH_RATE_PER_SECOND", "1000"),
    ("COUNTERFOIL_PUSH_BACKOFF_BASE_MS", "100"),
    ("COUNTERFOIL_PUSH_BACKOFF_MAX_MS", "500"),
    ("COUNTERFOIL_PUSH_LOOK_AFTER", "1s"),
    ("COUNTERFOIL_PUSH_POLL_MS", "50"),
];

pub struct Server {
    child: Child,
    pub url: String,
    listen: String,
}

impl Server {
    /// Starts a server and waits until it is ready. Without an address it takes a free port.
    pub fn start(launch: &Launch, listen: Option<&str>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let log = File::options().create(true).append(true).open(&launch.log);
        let log = log.with_context(|| format!("cannot write {}", launch.log.display()))?;
        let mut child = Command::new(program)
            .args(["serve", "--store", &launch.store, "--log", "json"])
            .args(["--listen", listen.unwrap_or("127.0.0.1:0")])
            .env("COUNTERFOIL_ADMIN_KEY", &launch.key)
            .env("COUNTERFOIL_STRIPE_API_BASE", &launch.stripe_url)
            .envs(OUTBOUND)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start the server")?;
        let output = child.stdout.take().context("the server has no output")?;
        let (ready, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(output).read_line(&mut line);
            let _ = ready.send(read.map(|_| line));
        });
        let line = answer.recv_timeout(READY_TIMEOUT);
        let ready = line.ok().and_then(Result::ok).and_then(|l| serde_json::from_str(&l).ok());
        let Some(Ready { url, listen }) = ready else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server did not start: {}", last_line(&launch.log));
        };
        Ok(Self { child, url, listen })
    }

    /// Ends it as a power cut would: no signal handler runs, nothing is flushed.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it and starts another on the same store, on the same port if that is free.
    pub fn restart(&mut self, launch: &Launch) -> anyhow::Result<()> {
        self.kill();
        let again = Self::start(launch, Some(&self.listen)).or_else(|_| Self::start(launch, None));
        *self = again?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
