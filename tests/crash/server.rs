//! The real binary as a child process, on a store that outlives it.

use crate::database::{Database, workers};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

pub const KEY: &str = "crash-test-admin-key";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Few, so that folding is in progress at most moments.
const SEGMENT_EVENTS: &str = "500";

/// Where the events are kept; removed at the end.
pub enum Place {
    Directory(tempfile::TempDir),
    Database { url: Database, log: tempfile::TempDir },
}

impl Place {
    pub fn sqlite() -> Self {
        Self::Directory(tempfile::tempdir().unwrap())
    }

    /// A fresh database; None, with a printed line, if there is no PostgreSQL to test on.
    pub async fn postgres() -> Option<Self> {
        let url = Database::create("crash").await?;
        Some(Self::Database { url, log: tempfile::tempdir().unwrap() })
    }

    /// The same on a server that is started again when it ends.
    pub async fn restarting_postgres() -> Option<Self> {
        let url = Database::create_on("COUNTERFOIL_TEST_POSTGRES_RESTARTS", "crash").await?;
        Some(Self::Database { url, log: tempfile::tempdir().unwrap() })
    }

    pub fn store(&self) -> String {
        match self {
            Self::Directory(directory) => format!("sqlite:{}", directory.path().display()),
            Self::Database { url, .. } => url.to_string(),
        }
    }

    fn log(&self) -> PathBuf {
        match self {
            Self::Directory(directory) => directory.path().join("server.log"),
            Self::Database { log, .. } => log.path().join("server.log"),
        }
    }

    /// What the servers here have said so far.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Runs `counterfoil check` and returns its findings.
    pub fn check(&self) -> Vec<String> {
        self.check_events().1
    }

    /// The same, with the number of events.
    pub fn check_events(&self) -> (u64, Vec<String>) {
        let output = Command::new(env!("CARGO_BIN_EXE_counterfoil"))
            .args(["check", "--json", "--store", &self.store()])
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        let findings = report["findings"].as_array().unwrap();
        let expected = if findings.is_empty() { 0 } else { 4 };
        assert_eq!(output.status.code(), Some(expected));
        let text = |finding: &serde_json::Value| format!("check: {}", finding.as_str().unwrap());
        (report["events"].as_u64().unwrap(), findings.iter().map(text).collect())
    }
}

/// Prints why a test does nothing, or fails if everything is to be tested.
pub fn refuse_if_required(why: &str) {
    assert!(std::env::var("COUNTERFOIL_TEST_REQUIRE_POSTGRES").is_err(), "{why}");
    println!("skipped: {why}");
}

/// What is out of the ordinary about a start.
#[derive(Default)]
pub struct Launch<'a> {
    /// In the notation of the `fail` crate.
    pub failpoints: &'a str,
    /// System calls that are made to fail, in the notation of strace.
    pub inject: Option<&'a str>,
    /// Instead of the place's own.
    pub store: Option<&'a str>,
    /// Further settings.
    pub settings: &'a [(&'a str, String)],
}

pub struct Server {
    child: Child,
    /// The server itself, which under strace is not our child.
    process: u32,
    pub url: String,
}

impl Server {
    pub fn start(place: &Place) -> Self {
        Self::launch(place, &Launch::default()).unwrap()
    }

    /// Starts a server and kills it some time later, as a rule before it is ready.
    pub fn kill_while_starting(place: &Place, launch: &Launch<'_>, after: Duration) {
        let mut child = Self::spawn(place, launch);
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn spawn(place: &Place, launch: &Launch<'_>) -> Child {
        let binary = env!("CARGO_BIN_EXE_counterfoil");
        let mut command = match launch.inject {
            None => Command::new(binary),
            Some(inject) => {
                let mut command = Command::new("strace");
                let quiet = ["-f", "-qqq", "-o", "/dev/null", "-e", "signal=none"];
                command.args(quiet).args(["-e", &format!("inject={inject}"), binary]);
                command
            }
        };
        let store = launch.store.map_or_else(|| place.store(), str::to_owned);
        let log = File::options().create(true).append(true).open(place.log()).unwrap();
        command
            .args(["serve", "--store", &store, "--listen", "127.0.0.1:0", "--log", "json"])
            .env("COUNTERFOIL_ADMIN_KEY", KEY)
            .env("COUNTERFOIL_SQLITE_SEGMENT_EVENTS", SEGMENT_EVENTS)
            .env("COUNTERFOIL_POSTGRES_WRITERS", "2")
            .env("COUNTERFOIL_STORE_LAYOUT", if workers().is_empty() { "plain" } else { "citus" })
            .env("FAILPOINTS", launch.failpoints)
            .envs(launch.settings.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Waits until the server is ready, or gives what it said when it ended.
    pub fn launch(place: &Place, launch: &Launch<'_>) -> Result<Self, String> {
        let said_before = place.log_text().len();
        let mut child = Self::spawn(place, launch);
        let output = child.stdout.take().unwrap();
        let (ready, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).unwrap();
            let _ = ready.send(line);
        });
        let line = answer.recv_timeout(READY_WITHIN).expect("the server is ready or ends in time");
        let process = match launch.inject {
            None => child.id(),
            Some(_) => first_child(child.id()).unwrap_or(child.id()),
        };
        match serde_json::from_str::<serde_json::Value>(&line) {
            Ok(ready) => {
                assert_eq!(ready["event"], "ready");
                Ok(Self { child, process, url: ready["url"].as_str().unwrap().to_owned() })
            }
            Err(_) => {
                let status = child.wait().unwrap();
                assert!(!status.success(), "a server that is not ready does not claim success");
                Err(place.log_text()[said_before..].to_owned())
            }
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        let _ = self.child.wait();
    }

    pub fn signal(&self, name: &str) {
        let _ = Command::new("kill").args([name, &self.process.to_string()]).output();
    }

    /// How it ended, once it has.
    pub async fn ended(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How it ended, if it does within the time.
    pub async fn ended_within(&mut self, wait: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(wait, self.ended()).await.ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

fn first_child(parent: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    children.ok()?.split_whitespace().next()?.parse().ok()
}
