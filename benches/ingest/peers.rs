//! Other programs that keep each key once, where they are installed: TigerBeetle and Redis.
//!
//! Invariant: a program that is not there is reported as missing, never as a rate of zero.

use crate::load::{Driver, Run, drive_threads};
use crate::process::{ended_children_cpu_seconds, find_program, server_usage, settle};
use crate::workload::{Stream, Workload};
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub fn tigerbeetle() -> Result<PathBuf, &'static str> {
    find_program("TIGERBEETLE", "tigerbeetle").ok_or(
        "not found: put the program of https://github.com/tigerbeetle/tigerbeetle/releases in the \
         path, or name it in TIGERBEETLE",
    )
}

pub fn redis() -> Result<PathBuf, &'static str> {
    find_program("REDIS_SERVER", "redis-server")
        .ok_or("not found: install Debian's redis-server, or name it in REDIS_SERVER")
}

const TIGERBEETLE_WITHIN: Duration = Duration::from_secs(300);

/// How a contender numbers its transfers.
#[derive(Debug, Clone, Copy)]
pub enum IdOrder {
    Sequential,
    Random,
}

/// TigerBeetle's own benchmark: transfers on one replica, no HTTP, no JSON, no repeats. Its CPU
/// time is that of replica and load together. None if it does not end.
pub fn run_tigerbeetle(
    program: &Path,
    name: &str,
    workload: Workload,
    order: IdOrder,
    transfers: u64,
) -> Result<Option<Run>> {
    let folder = tempfile::tempdir()?;
    let before = ended_children_cpu_seconds();
    // Releases differ in the name of the flag for the batch.
    let run = |flag| benchmark(program, folder.path(), workload, order, transfers, flag);
    let Some(newer) = run("count")? else { return Ok(None) };
    let is_known = newer.contains("load accepted");
    let Some(output) = (if is_known { Some(newer) } else { run("size")? }) else {
        return Ok(None);
    };
    let number = |start: &str| -> Option<f64> {
        let line = output.lines().find_map(|line| line.strip_prefix(start))?;
        let (_, value) = line.split_once('=')?;
        value.split_whitespace().next()?.parse().ok()
    };
    let rate = number("load accepted").with_context(|| format!("no rate in: {output}"))?;
    let mut run = Run::new(name, workload, transfers, transfers as f64 / rate);
    run.server.cpu_seconds = ended_children_cpu_seconds() - before;
    run.p50_ms = number("batch latency p50").unwrap_or(0.0);
    run.p99_ms = number("batch latency p99").unwrap_or(0.0);
    run.resident_bytes = number("rss").unwrap_or(0.0) as u64;
    Ok(Some(run))
}

fn benchmark(
    program: &Path,
    folder: &Path,
    workload: Workload,
    order: IdOrder,
    transfers: u64,
    batch_flag: &str,
) -> Result<Option<String>> {
    let order = match order {
        IdOrder::Sequential => "sequential",
        IdOrder::Random => "random",
    };
    let output = folder.join("output");
    let mut child = Command::new(program)
        .current_dir(folder)
        .arg("benchmark")
        .arg(format!("--transfer-count={transfers}"))
        .arg(format!("--transfer-batch-{batch_flag}={}", workload.batch))
        .arg(format!("--clients={}", workload.connections))
        .arg(format!("--id-order={order}"))
        .arg("--query-count=0")
        .stdin(Stdio::null())
        .stdout(File::create(&output)?)
        .stderr(Stdio::null())
        .spawn()
        .context("running tigerbeetle")?;
    // Once it was seen not to end; the other contenders shall not wait for it.
    let started = Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > TIGERBEETLE_WITHIN {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(Some(std::fs::read_to_string(output)?))
}

/// A Redis that syncs before it answers, in a folder of its own; killed when dropped.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start(program: &Path, folder: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()?;
        let redis = Self { child, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if started.elapsed() > Duration::from_secs(10) {
                bail!("redis-server did not start");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection and what it has been answered.
struct Pipeline {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

/// SET NX of the event under its id, a batch in one pipeline. A repeat is not compared.
pub fn run_redis(
    driver: &Driver,
    program: &Path,
    name: &str,
    workload: Workload,
    lasting: Duration,
) -> Result<Run> {
    let folder = tempfile::tempdir()?;
    let redis = Redis::start(program, folder.path())?;
    let before = server_usage(redis.child.id());
    let open = || {
        let stream = TcpStream::connect(("127.0.0.1", redis.port))?;
        stream.set_nodelay(true)?;
        Ok(Pipeline { stream: BufReader::new(stream), request: Vec::new() })
    };
    let send = |pipeline: &mut Pipeline, stream: &mut Stream| pipeline.set(stream, workload.batch);
    let streams = driver.streams(workload);
    let (mut run, truth) = drive_threads(name, workload, streams, lasting, open, send)?;
    run.settle_seconds = settle(|| server_usage(redis.child.id()));
    run.server = server_usage(redis.child.id()).since(before);
    run.resident_bytes = crate::process::resident_bytes(redis.child.id());
    let mut pipeline = open()?;
    pipeline.stream.get_mut().write_all(b"DBSIZE\r\n")?;
    let keys: u64 = pipeline.line()?.trim_start_matches(':').trim().parse()?;
    ensure!(keys == truth.counts.accepted, "Redis has {keys} keys");
    Ok(run)
}

impl Pipeline {
    fn set(&mut self, stream: &mut Stream, batch: usize) -> Result<()> {
        self.request.clear();
        let mut value = Vec::with_capacity(256);
        for _ in 0..batch {
            let (_, fact) = stream.next_fact();
            value.clear();
            fact.write_encoded(&mut value);
            let (id, length) = (fact.id_text(), value.len());
            write!(self.request, "*4\r\n$3\r\nSET\r\n$32\r\n{id}\r\n${length}\r\n")?;
            self.request.extend_from_slice(&value);
            self.request.extend_from_slice(b"\r\n$2\r\nNX\r\n");
        }
        self.stream.get_mut().write_all(&self.request)?;
        for _ in 0..batch {
            let line = self.line()?;
            ensure!(line == "+OK\r\n" || line == "$-1\r\n", "Redis answered {line}");
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line)
    }
}
