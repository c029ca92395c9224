//! Growth: one store filled from empty; then what it weighs, how fast it comes back after kill -9,
//! and how reads fare beside a full load.

use crate::client::Connection;
use crate::load::percentiles_ms;
use crate::load::{Driver, KEY, Run, Shape, Target, Until, check_totals, declare_meters};
use crate::process::{Server, Usage, Watched, folder_bytes, resident_bytes};
use crate::workload::{METERS, TENANTS, Truth, meter_slug, tenant_name};
use anyhow::{Context, Result};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first and the last part of the whole that are compared.
const PARTS: u64 = 20;

#[derive(Debug, Clone, Copy)]
struct Mark {
    events: u64,
    seconds: f64,
    resident_bytes: u64,
}

/// A store that has grown, still served.
pub struct Grown {
    pub run: Run,
    pub first_rate: f64,
    pub last_rate: f64,
    pub memory_bytes_per_key: f64,
    pub truth: Truth,
}

pub fn grow(
    driver: &Driver,
    name: &str,
    server: &Server,
    watched: &Watched,
    events: u64,
) -> Result<Grown> {
    declare_meters(&server.url)?;
    let marks = Mutex::new(vec![Mark { events: 0, seconds: 0.0, resident_bytes: 0 }]);
    let pid = server.pid();
    let note = |events: u64, elapsed: Duration| {
        let (seconds, resident_bytes) = (elapsed.as_secs_f64(), resident_bytes(pid));
        marks.lock().expect("no panic").push(Mark { events, seconds, resident_bytes });
    };
    let shape = Shape { batch: 5000, connections: 4, repeats_percent: 5 };
    let target = Target { url: &server.url, watched: watched.clone(), keeps_events: true };
    let mut truth = Truth::new();
    let run = driver.run(name, &target, shape, Until::Events(events), &mut truth, &note)?;
    wait_until_quiet(watched);
    check_totals(&server.url, &truth)?;
    let mut marks = marks.into_inner().expect("no panic");
    marks.sort_by_key(|mark| mark.events);
    let at = |wanted: u64| *marks.iter().find(|m| m.events >= wanted).unwrap_or(&marks[0]);
    let rate =
        |from: Mark, to: Mark| (to.events - from.events) as f64 / (to.seconds - from.seconds);
    let first = at(events / PARTS);
    let end = *marks.last().context("a run has marks")?;
    let keys = truth.counts.accepted as f64 * (1.0 - first.events as f64 / end.events as f64);
    let grown_bytes = resident_bytes(pid).saturating_sub(first.resident_bytes);
    Ok(Grown {
        run,
        first_rate: rate(marks[0], first),
        last_rate: rate(at(events - events / PARTS), end),
        memory_bytes_per_key: grown_bytes as f64 / keys,
        truth,
    })
}

/// Until the processes have used next to nothing for a second, so that folding is finished.
fn wait_until_quiet(watched: &Watched) {
    let started = Instant::now();
    let mut before = watched.usage();
    while started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_secs(1));
        let after = watched.usage();
        let Usage { cpu_seconds, written_bytes } = after.since(before);
        if cpu_seconds < 0.03 && written_bytes < 1 << 20 {
            return;
        }
        before = after;
    }
}

/// What the embedded store weighs and how it comes back.
pub struct Figures {
    pub disk_bytes_per_event: f64,
    pub restart_seconds: f64,
    pub commit_p99_ms: f64,
    pub reads: Vec<Read>,
    pub load: Run,
}

/// One kind of read beside a full load.
pub struct Read {
    pub name: &'static str,
    pub count: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

pub fn kill_and_read(
    driver: &Driver,
    server: Server,
    folder: &Path,
    truth: &mut Truth,
    lasting: Duration,
) -> Result<Figures> {
    let disk_bytes_per_event = folder_bytes(folder) as f64 / truth.counts.accepted as f64;
    server.kill();
    let server = Server::start_product(folder, None, KEY)?;
    let restart_seconds = server.ready_seconds;
    check_totals(&server.url, truth)?;
    let commits_before = commit_histogram(&server.url)?;
    let shape = Shape { batch: 1000, connections: 4, repeats_percent: 5 };
    let watched = Watched { pids: vec![server.pid()], postmaster: None };
    let target = Target { url: &server.url, watched, keeps_events: true };
    let stop = AtomicBool::new(false);
    let (load, reads) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_until(&server.url, &stop));
        let name = "embedded, full load beside reads";
        let load = driver.run(name, &target, shape, Until::Elapsed(lasting), truth, &|_, _| {});
        stop.store(true, Ordering::Relaxed);
        (load, reader.join().expect("no panic"))
    });
    let (load, reads) = (load?, reads?);
    let commits = commit_histogram(&server.url)?;
    let commit_p99_ms = histogram_p99(&commits_before, &commits).unwrap_or(load.p99_ms);
    check_totals(&server.url, truth)?;
    Ok(Figures { disk_bytes_per_event, restart_seconds, commit_p99_ms, reads, load })
}

fn read_until(url: &str, stop: &AtomicBool) -> Result<Vec<Read>> {
    let mut connection = Connection::open(url, KEY)?;
    let mut latencies = [(); 3].map(|()| Vec::new());
    let mut cursors: Vec<String> = Vec::new();
    let mut dice = 1u64;
    while !stop.load(Ordering::Relaxed) {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (dice >> 33) as usize;
        let (tenant, meter) = (tenant_name(pick % TENANTS), meter_slug(pick / 7 % METERS));
        let kind = pick / 11 % 3;
        let cursor = match cursors.len() {
            count if count > 0 && pick & 1 == 0 => format!("&cursor={}", cursors[pick / 3 % count]),
            _ => String::new(),
        };
        let path = match kind {
            0 => format!("/v1/usage?tenant={tenant}&meter={meter}&window=none"),
            1 => format!("/v1/usage?tenant={tenant}&meter={meter}&window=day"),
            _ => format!("/v1/events?tenant={tenant}&limit=100{cursor}"),
        };
        let sent = Instant::now();
        let answer = connection.exchange("GET", &path, "")?;
        latencies[kind].push(sent.elapsed().as_micros() as u32);
        if kind == 2 && cursors.len() < 1000 {
            let page: serde_json::Value = serde_json::from_str(answer)?;
            cursors.extend(page["next_cursor"].as_str().map(percent_encoded));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let names = ["usage, one total", "usage, by day", "events, a page of 100"];
    let reads = names.into_iter().zip(&mut latencies).map(|(name, latencies)| {
        let (p50_ms, p99_ms) = percentiles_ms(latencies);
        Read { name, count: latencies.len(), p50_ms, p99_ms }
    });
    Ok(reads.collect())
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Borders in seconds and cumulative counts.
type Histogram = Vec<(f64, f64)>;

fn commit_histogram(url: &str) -> Result<Histogram> {
    let mut connection = Connection::open(url, KEY)?;
    let text = connection.exchange("GET", "/metrics", "")?;
    let bucket = |line: &str| {
        let rest = line.strip_prefix("counterfoil_commit_seconds_bucket{")?;
        let (_, border) = rest.split_once("le=\"")?;
        let (border, rest) = border.split_once('"')?;
        let border = if border == "+Inf" { f64::INFINITY } else { border.parse().ok()? };
        Some((border, rest.rsplit(' ').next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(bucket).collect())
}

/// The 99th percentile of what came between, in milliseconds, linear within a bucket.
fn histogram_p99(before: &Histogram, after: &Histogram) -> Option<f64> {
    let earlier = |place: usize| before.get(place).map_or(0.0, |bucket| bucket.1);
    let grown: Histogram =
        after.iter().enumerate().map(|(place, b)| (b.0, b.1 - earlier(place))).collect();
    let wanted = grown.last()?.1 * 0.99;
    let place = grown.iter().position(|bucket| bucket.1 >= wanted)?;
    let (low, below) = if place == 0 { (0.0, 0.0) } else { grown[place - 1] };
    let (high, until) = grown[place];
    if !high.is_finite() || until <= below {
        return Some(low * 1e3);
    }
    Some((low + (high - low) * (wanted - below) / (until - below)) * 1e3)
}
