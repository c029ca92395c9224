//! One store filled from empty, as fast as it takes events; then what it weighs, how fast it comes
//! back after kill -9, how reads fare beside a full load, and how fast it knows its oldest events
//! again when they are only on disk.
//!
//! With `--data`, the store stays, and beside it how far it is filled: the next run goes on from
//! there. What was sent after the last note is not counted, and nothing depends on it.

use crate::bench::Bench;
use crate::client::Connection;
use crate::load::{Expect, KEY, Run, Target, Until, declare_meters, drive, percentiles_ms};
use crate::process::{
    Server, Store, drop_page_cache, folder_bytes, resident_bytes, server_usage, settle,
};
use crate::workload::{METERS, TENANTS, Truth, USUAL, Workload, meter_slug, now, tenant_name};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILL: Workload = Workload { batch: 5000, repeats_percent: 0, ..USUAL };
/// Every event of these was accepted before, so none is to be accepted again.
const REPLAY: Workload = Workload { repeats_percent: 0, ..USUAL };
const CHUNK: u64 = 5_000_000;
/// Where the rate is measured, as far as the store grows; the first is what it is compared with.
const MARKS: [u64; 3] = [1_000_000, 20_000_000, 100_000_000];
/// Keys that may be in memory for good reason: what older ones take is reported.
const NEWEST: u64 = 10_000_000;
const ROUNDS: u64 = 2;

/// A store that has grown, and its server.
pub struct Grown {
    server: Server,
    folder: PathBuf,
    state: State,
    /// Keys, and the memory of the server that took them.
    resident: Vec<(u64, u64)>,
    /// Removes the folder, unless it is to stay.
    _temporary: Option<TempDir>,
}

/// How far a store is filled.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct State {
    keys: u64,
    /// Runs below this number may have been sent.
    next_run: u64,
    /// The run that made the first keys, and the moment around which they happened.
    first_run: u64,
    first_at: i64,
}

impl Grown {
    /// In a folder that stays, or in one that does not.
    fn open(bench: &Bench, kept: Option<&Path>) -> Result<Self> {
        let temporary = tempfile::tempdir()?;
        let (root, temporary) = match kept {
            Some(folder) => (folder.to_owned(), None),
            None => (temporary.path().to_owned(), Some(temporary)),
        };
        let folder = root.join("store");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let state: State = match std::fs::read_to_string(state_path(&folder)) {
            Ok(text) => serde_json::from_str(&text)?,
            Err(_) => State::default(),
        };
        bench.driver.next_run(state.next_run);
        let server = Server::start_product(Store::Embedded(&folder), KEY)?;
        server.wait_until_ready()?;
        declare_meters(&server.url, FILL.meter)?;
        Ok(Self { server, folder, state, resident: Vec::new(), _temporary: temporary })
    }

    fn target(&self) -> Target {
        self.server.target(&[], Expect::Truth)
    }

    fn note(&self) -> Result<()> {
        let text = serde_json::to_string(&self.state)?;
        std::fs::write(state_path(&self.folder), text).context("noting how far the store is")
    }

    /// New keys until there are so many. The first chunk ends at the first mark.
    fn fill(&mut self, bench: &mut Bench, keys: u64) -> Result<()> {
        while self.state.keys < keys {
            let from = self.state.keys;
            let until = keys.min((from / CHUNK + 1) * CHUNK);
            let until = if from < MARKS[0] { until.min(MARKS[0]) } else { until };
            let run = bench.driver.next_run(0);
            self.state.next_run = run + 1;
            if from == 0 {
                (self.state.first_run, self.state.first_at) = (run, now());
            }
            self.note()?;
            let at = (from == 0).then_some(self.state.first_at);
            let streams = bench.driver.streams_of(FILL, run, at);
            let before = bench.driver.read_samples(&self.server.url)?;
            let name = format!("fill to {:.1} M", until as f64 / 1e6);
            let events = Until::Events(until - from);
            let (run, streams) = drive(&name, &self.target(), streams, FILL, events)?;
            let mut truth = Truth::default();
            streams.iter().for_each(|stream| truth.merge(&stream.truth));
            bench.driver.check_added(&self.server.url, FILL.meter, &truth, &before)?;
            self.state.keys += run.events;
            self.resident.push((self.state.keys, run.resident_bytes));
            self.note()?;
            bench.report.push(run);
        }
        Ok(())
    }

    /// A window of the usual load on the store as it is.
    fn window(&mut self, bench: &Bench, name: &str) -> Result<Run> {
        let (mut truth, until) = (Truth::default(), Until::Elapsed(bench.lasting(6)));
        let before = bench.driver.read_samples(&self.server.url)?;
        let run = bench.driver.run(name, &self.target(), USUAL, until, &mut truth)?;
        bench.driver.check_added(&self.server.url, USUAL.meter, &truth, &before)?;
        self.state.keys += truth.counts.accepted;
        self.state.next_run = bench.driver.next_run(0);
        self.note()?;
        Ok(run)
    }

    /// kill -9 and a new server; seconds until it is ready.
    fn restart(&mut self) -> Result<f64> {
        self.server.kill();
        self.server = Server::start_product(Store::Embedded(&self.folder), KEY)?;
        self.server.wait_until_ready()
    }
}

fn state_path(folder: &Path) -> PathBuf {
    folder.with_file_name("filled.json")
}

/// The grown store, with at least so many keys.
fn grown(bench: &mut Bench, keys: u64) -> Result<Grown> {
    let mut grown = match bench.grown.take() {
        Some(grown) => grown,
        None => Grown::open(bench, bench.settings.data.as_deref())?,
    };
    grown.fill(bench, keys)?;
    Ok(grown)
}

pub fn measure(bench: &mut Bench) -> Result<()> {
    let quick_or = |quick, full| if bench.settings.quick { quick } else { full };
    let keys = bench.settings.keys.unwrap_or(quick_or(2_000_000, 20_000_000));
    let mut marks: Vec<u64> = MARKS.into_iter().filter(|mark| *mark < keys).collect();
    marks.push(keys);
    let mut store = grown(bench, 0)?;
    for mark in marks {
        store.fill(bench, mark)?;
        if mark > MARKS[0] {
            compare_with_small(bench, &mut store, mark)?;
        }
    }
    let end = resident_bytes(store.server.pid());
    let at_newest = store.resident.iter().find(|(keys, _)| *keys >= NEWEST);
    if let Some((keys, resident)) = at_newest
        && store.state.keys > keys + NEWEST / 2
    {
        let added = (end.saturating_sub(*resident)) as f64 / (store.state.keys - keys) as f64;
        bench.report.figure("memory beyond the newest 10 M keys, B/key", added, Some(4.0));
    }
    let keys = store.state.keys as f64;
    bench.report.figure("memory in all, B/key", end as f64 / keys, None);
    let disk = folder_bytes(&store.folder) as f64 / keys;
    bench.report.figure("disk, B/event", disk, Some(150.0));
    let seconds = store.restart()?;
    bench.report.figure("start after kill -9, s", seconds, Some(5.0));
    let resident = resident_bytes(store.server.pid()) as f64;
    bench.report.figure("memory after the start, B/key", resident / keys, None);
    bench.grown = Some(store);
    Ok(())
}

/// The grown store and one at the first mark, alternately.
fn compare_with_small(bench: &mut Bench, store: &mut Grown, mark: u64) -> Result<()> {
    let name = format!("at {} M", mark / 1_000_000);
    let (mut large, mut small) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let run = store.window(bench, &name)?;
        large += run.rate();
        bench.report.push(run);
        let mut fresh = Grown::open(bench, None)?;
        fresh.fill(bench, MARKS[0])?;
        let run = fresh.window(bench, "at 1 M")?;
        small += run.rate();
        bench.report.push(run);
    }
    bench.report.ratio(&format!("{name} / at 1 M"), large / small, Some(0.85));
    Ok(())
}

/// Requests of a full load, and reads beside it: against the HTTP floor, and against the same reads
/// without load.
pub fn measure_latency(bench: &mut Bench) -> Result<()> {
    let mut store = grown(bench, MARKS[0])?;
    let (url, lasting) = (store.server.url.clone(), bench.lasting(6));
    let alone = read_for(&url, lasting);
    let before = commit_times(&url)?;
    let (load, beside) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_for(&url, lasting));
        let load = store.window(bench, "full load beside reads");
        (load, reader.join().expect("no panic"))
    });
    let (load, alone, beside) = (load?, alone?, beside?);
    let commits = p99_border_ms(&before, &commit_times(&url)?)?;
    let floor = bench.http_floor("HTTP floor", USUAL, lasting)?;
    let ratio = load.p99_ms / floor.p99_ms;
    bench.report.figure("request of 1,000, p99 full load / HTTP floor", ratio, None);
    bench.report.figure("request of 1,000 at full load, p99 ms", load.p99_ms, Some(30.0));
    bench.report.figure("commit at full load, p99 at most ms", commits, Some(30.0));
    let wanted = [5.0, 10.0];
    for ((alone, beside), wanted) in alone.iter().zip(&beside).zip(wanted) {
        let name = beside.name;
        bench.report.figure(&format!("{name} beside it, p99 ms"), beside.p99_ms, Some(wanted));
        bench.report.figure(&format!("{name} beside it, p50 ms"), beside.p50_ms, None);
        bench.report.figure(&format!("{name} alone, p99 ms"), alone.p99_ms, None);
        let ratio = beside.p99_ms / alone.p99_ms;
        bench.report.figure(&format!("{name}, p99 beside / alone"), ratio, None);
    }
    bench.report.push(load);
    bench.report.push(floor);
    bench.grown = Some(store);
    Ok(())
}

/// The borders of the server's histogram of commits, in seconds, each with how many took no longer.
fn commit_times(url: &str) -> Result<Vec<(f64, u64)>> {
    let mut connection = Connection::open(url, KEY)?;
    let metrics = connection.exchange("GET", "/metrics", "")?;
    let bucket = |line: &str| {
        let line = line.strip_prefix("counterfoil_commit_seconds_bucket{le=\"")?;
        let (border, count) = line.split_once("\"} ")?;
        Some((border.replace("+Inf", "inf").parse().ok()?, count.parse().ok()?))
    };
    Ok(metrics.lines().filter_map(bucket).collect())
}

/// The first border of which 99 in a hundred commits between two readings were within.
fn p99_border_ms(before: &[(f64, u64)], after: &[(f64, u64)]) -> Result<f64> {
    let commits_within = |place: usize| after[place].1 - before.get(place).map_or(0, |(_, n)| *n);
    let last = after.len().checked_sub(1).context("no histogram of commits in /metrics")?;
    let wanted = commits_within(last) as f64 * 0.99;
    let place = (0..last).find(|place| commits_within(*place) as f64 >= wanted).unwrap_or(last);
    Ok(after[place].0 * 1e3)
}

/// Old events once more, none of whose pages is in memory, against new ones.
pub fn measure_replay(bench: &mut Bench) -> Result<()> {
    let quick = bench.settings.quick;
    let mut store = grown(bench, if quick { 1_000_000 } else { NEWEST + 2_000_000 })?;
    let State { first_run, first_at, .. } = store.state;
    let mut streams = bench.driver.streams_of(REPLAY, first_run, Some(first_at));
    let events = if quick { 40_000 } else { 200_000 };
    let (mut cold, mut fresh, mut read) = (0.0, 0.0, 0.0);
    for _ in 0..ROUNDS {
        // The server's own cache goes with its process.
        store.restart()?;
        settle(|| server_usage(store.server.pid()));
        drop_page_cache(&store.folder)?;
        let target = store.server.target(&[], Expect::Known);
        let until = Until::Events(events);
        let run;
        (run, streams) = drive("old events, cold", &target, streams, REPLAY, until)?;
        read += run.per_event(run.server.read_bytes as f64) / ROUNDS as f64;
        cold += run.rate();
        bench.report.push(run);
        let run = store.window(bench, "new events")?;
        fresh += run.rate();
        bench.report.push(run);
    }
    bench.report.ratio("old events, cold / new events", cold / fresh, Some(0.5));
    bench.report.figure("read for an old event, B", read, None);
    bench.grown = Some(store);
    Ok(())
}

/// One kind of read.
struct Read {
    name: &'static str,
    p50_ms: f64,
    p99_ms: f64,
}

/// One reader that waits 5 ms after each answer: a month's usage by day, and a page of 100 events
/// of a random tenant, half of the pages from a random cursor.
fn read_for(url: &str, lasting: Duration) -> Result<Vec<Read>> {
    let started = Instant::now();
    let mut connection = Connection::open(url, KEY)?;
    let mut latencies = [(); 2].map(|()| Vec::new());
    let mut cursors: Vec<String> = Vec::new();
    let mut dice = 1u64;
    while started.elapsed() < lasting {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (dice >> 33) as usize;
        let (tenant, meter) = (tenant_name(pick % TENANTS), meter_slug(pick / 7 % METERS));
        let kind = pick / 11 % 2;
        let cursor = match cursors.len() {
            count if count > 0 && pick & 1 == 0 => format!("&cursor={}", cursors[pick / 3 % count]),
            _ => String::new(),
        };
        let path = match kind {
            0 => format!("/v1/usage?tenant={tenant}&meter={meter}&window=day"),
            _ => format!("/v1/events?tenant={tenant}&limit=100{cursor}"),
        };
        let sent = Instant::now();
        let answer = connection.exchange("GET", &path, "")?;
        latencies[kind].push(sent.elapsed().as_micros() as u32);
        if kind == 1 && cursors.len() < 1000 {
            let page: serde_json::Value = serde_json::from_str(answer)?;
            cursors.extend(page["next_cursor"].as_str().map(percent_encoded));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let reads = ["a month's usage", "a page of events"].into_iter().zip(&mut latencies);
    let read = |(name, latencies): (_, &mut Vec<u32>)| {
        let (p50_ms, p99_ms) = percentiles_ms(latencies);
        Read { name, p50_ms, p99_ms }
    };
    Ok(reads.map(read).collect())
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
