//! Child processes under test, and what the kernel says of them in /proc.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The kernel counts CPU time for user space in hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// A server that is killed when it is dropped.
pub struct Server {
    child: Child,
    pub url: String,
    /// When it was executed.
    pub started: Instant,
}

/// Where the product keeps what it counts.
#[derive(Debug, Clone, Copy)]
pub enum Store<'s> {
    /// A folder.
    Embedded(&'s Path),
    /// A database, by its URL.
    Postgres(&'s str),
    /// The same on the coordinator of a cluster.
    Citus(&'s str),
}

impl Server {
    /// Starts a program whose first line of output is a JSON object with its `url`.
    pub fn start(command: &mut Command) -> Result<Self> {
        let started = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let stdout = child.stdout.take().context("the output is piped")?;
        let mut server = Self { child, url: String::new(), started };
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        while server.url.is_empty() {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                bail!("the server ended before it was ready: {}", server.child.wait()?);
            }
            let object: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(url) = object.get("url").and_then(|url| url.as_str()) {
                server.url = url.to_owned();
            }
        }
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Ok(server)
    }

    /// The product's own server.
    pub fn start_product(store: Store<'_>, key: &str) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
        command.env("COUNTERFOIL_ADMIN_KEY", key).env("COUNTERFOIL_LOG_LEVEL", "error");
        // What the server can do is measured, not what it allows one key.
        for limit in ["EVENT_REQUESTS", "REQUESTS", "ADDRESS"] {
            command.env(format!("COUNTERFOIL_LIMITS_{limit}_PER_SECOND"), "0");
        }
        match store {
            Store::Embedded(folder) => command.arg("--data").arg(folder),
            Store::Postgres(url) => command.args(["--store", url]),
            Store::Citus(url) => {
                command.args(["--store", url]).env("COUNTERFOIL_STORE_LAYOUT", "citus")
            }
        };
        Self::start(command.stderr(Stdio::inherit()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// CPU time, and bytes that went to and came from the disk, up to now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub written_bytes: u64,
    pub read_bytes: u64,
}

impl Usage {
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            written_bytes: self.written_bytes + other.written_bytes,
            read_bytes: self.read_bytes + other.read_bytes,
        }
    }
}

pub fn server_usage(pid: u32) -> Usage {
    usage_of(&pid.to_string(), false)
}

/// Of PostgreSQL postmasters with their children, the ended ones too.
pub fn database_usage(postmasters: &[u32]) -> Usage {
    let with_children = |postmaster: &u32| {
        let own = usage_of(&postmaster.to_string(), true);
        children_of(*postmaster).iter().fold(own, |sum, pid| sum.plus(usage_of(pid, false)))
    };
    postmasters.iter().map(with_children).fold(Usage::default(), Usage::plus)
}

/// Of the children of this process that have ended, and of theirs.
pub fn ended_children_cpu_seconds() -> f64 {
    let fields = stat_fields("self");
    let ticks = |place: usize| fields.get(place).and_then(|f| f.parse().ok()).unwrap_or(0u64);
    (ticks(13) + ticks(14)) as f64 / TICKS_PER_SECOND
}

/// Waits until next to nothing is used, so that work which was put off is counted with the run
/// that caused it. Returns how long that work took, in seconds.
pub fn settle(usage: impl Fn() -> Usage) -> f64 {
    const LOOK: Duration = Duration::from_millis(500);
    const SETTLED_WITHIN: Duration = Duration::from_secs(60);
    let started = Instant::now();
    let mut before = usage();
    while started.elapsed() < SETTLED_WITHIN {
        std::thread::sleep(LOOK);
        let after = usage();
        let used = after.since(before);
        if used.cpu_seconds < 0.03 && used.written_bytes < 1 << 20 {
            break;
        }
        before = after;
    }
    started.elapsed().saturating_sub(LOOK).as_secs_f64()
}

pub fn own_usage() -> Usage {
    usage_of("self", false)
}

fn usage_of(pid: &str, with_ended_children: bool) -> Usage {
    let fields = stat_fields(pid);
    let ticks = |place: usize| fields.get(place).and_then(|f| f.parse().ok()).unwrap_or(0u64);
    let mut sum = ticks(11) + ticks(12);
    if with_ended_children {
        sum += ticks(13) + ticks(14);
    }
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let bytes = |name: &str| {
        let number = io.lines().find_map(|line| line.strip_prefix(name));
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    Usage {
        cpu_seconds: sum as f64 / TICKS_PER_SECOND,
        written_bytes: bytes("write_bytes: "),
        read_bytes: bytes("read_bytes: "),
    }
}

/// The fields of /proc/PID/stat after the program's name, which may hold anything.
fn stat_fields(pid: &str) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().map(str::to_owned).collect()
}

pub fn parent_of(pid: u32) -> Option<u32> {
    stat_fields(&pid.to_string()).get(1)?.parse().ok()
}

fn children_of(parent: u32) -> Vec<String> {
    let parent = parent.to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|pid| stat_fields(pid).get(1) == Some(&parent)).collect()
}

pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Every file in a folder and in the folders in it.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_in(&entry.path())),
            _ => files.push(entry.path()),
        }
    }
    files
}

pub fn folder_bytes(folder: &Path) -> u64 {
    files_in(folder).iter().filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
}

/// Drops the pages of a folder's files from the page cache, which needs no privilege: `dd` with
/// this flag and no blocks to copy only advises the kernel.
pub fn drop_page_cache(folder: &Path) -> Result<()> {
    for file in files_in(folder) {
        let mut input = OsString::from("if=");
        input.push(&file);
        // Dirty pages stay, so they are written first.
        std::fs::File::open(&file)?.sync_all()?;
        let mut dd = Command::new("dd");
        dd.arg(input).args(["iflag=nocache", "count=0", "status=none"]);
        ensure!(dd.status().context("running dd")?.success(), "dd failed on {}", file.display());
    }
    Ok(())
}

/// A program by a variable of the environment or in the path.
pub fn find_program(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    named.into_iter().chain(in_path).find(|program| program.is_file())
}

pub fn machine() -> serde_json::Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    serde_json::json!({
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_at_start": read("/proc/loadavg").trim(),
    })
}
