//! Drives events at a server over HTTP and compares what it answers with the truth.
//!
//! Invariant: a run that differs from the truth by one event or one unit is an error, whatever it
//! measured.

use crate::client::Connection;
use crate::process::{Usage, Watched, own_usage};
use crate::workload::{Counts, METERS, Stream, TENANTS, Truth, Zipf, meter_slug, tenant_name};
use anyhow::{Context, Result, bail, ensure};
use counterfoil::rules::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, Timestamp};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const KEY: &str = "bench-admin-key-0123456789abcdef0123456789";

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub batch: usize,
    pub connections: usize,
    pub repeats_percent: u64,
}

#[derive(Debug, Clone, Copy)]
pub enum Until {
    Elapsed(Duration),
    Events(u64),
}

/// What one contender did in one run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    pub name: String,
    pub batch: usize,
    pub connections: usize,
    pub repeats_percent: u64,
    pub events: u64,
    pub seconds: f64,
    pub server: Usage,
    pub client: Usage,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl Run {
    pub fn rate(&self) -> f64 {
        self.events as f64 / self.seconds
    }

    pub fn micros_per_event(&self, usage: Usage) -> f64 {
        usage.cpu_seconds * 1e6 / self.events.max(1) as f64
    }
}

/// Where a load goes and how the answers are judged.
pub struct Target<'a> {
    pub url: &'a str,
    pub watched: Watched,
    /// A floor accepts everything and keeps nothing.
    pub keeps_events: bool,
}

/// Called with the events answered so far, about every two-hundredth of a run.
pub type OnProgress<'a> = &'a (dyn Fn(u64, Duration) + Sync);

struct Progress<'a> {
    started: Instant,
    offered: AtomicU64,
    answered: AtomicU64,
    step: u64,
    tell: Mutex<OnProgress<'a>>,
}

impl Progress<'_> {
    fn note(&self, size: u64) {
        let before = self.answered.fetch_add(size, Ordering::Relaxed);
        if before / self.step != (before + size) / self.step {
            let tell = self.tell.lock().expect("no panic");
            tell(before + size, self.started.elapsed());
        }
    }
}

struct Worked {
    truth: Truth,
    reported: Counts,
    latencies: Vec<u32>,
}

pub struct Driver {
    pub zipf: Arc<Zipf>,
    next_seed: AtomicU64,
}

impl Driver {
    pub fn new() -> Self {
        Self { zipf: Zipf::new(), next_seed: AtomicU64::new(1) }
    }

    /// Streams that share no id with any other stream of this program.
    pub fn streams(&self, shape: Shape) -> Vec<Stream> {
        let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
        let stream = |number| {
            Stream::new(&self.zipf, seed, number, shape.connections, shape.repeats_percent)
        };
        (0..shape.connections).map(stream).collect()
    }

    /// Runs a load to its end; the truth of it is added to `truth`.
    pub fn run(
        &self,
        name: &str,
        target: &Target<'_>,
        shape: Shape,
        until: Until,
        truth: &mut Truth,
        tell: OnProgress<'_>,
    ) -> Result<Run> {
        let stop = AtomicBool::new(false);
        let events_max = match until {
            Until::Elapsed(_) => u64::MAX,
            Until::Events(events) => events,
        };
        let (server, client) = (target.watched.usage(), own_usage());
        let progress = Progress {
            started: Instant::now(),
            offered: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            step: (events_max / 200).max(1),
            tell: Mutex::new(tell),
        };
        let worked = std::thread::scope(|scope| -> Result<Vec<Worked>> {
            let work = |streams| {
                let (stop, progress) = (&stop, &progress);
                scope.spawn(move || {
                    work(target.url, streams, shape.batch, events_max, stop, progress)
                })
            };
            let workers: Vec<_> = shared_out(self.streams(shape)).into_iter().map(work).collect();
            if let Until::Elapsed(duration) = until {
                std::thread::sleep(duration);
                stop.store(true, Ordering::Relaxed);
            }
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        })?;
        let mut run = Run {
            name: name.to_owned(),
            batch: shape.batch,
            connections: shape.connections,
            repeats_percent: shape.repeats_percent,
            events: progress.answered.load(Ordering::Relaxed),
            seconds: progress.started.elapsed().as_secs_f64(),
            server: target.watched.usage().since(server),
            client: own_usage().since(client),
            ..Run::default()
        };
        let mut latencies = Vec::new();
        let mut reported = Counts::default();
        let mut expected = Truth::new();
        for worked in worked {
            latencies.extend(worked.latencies);
            reported.merge(worked.reported);
            expected.merge(&worked.truth);
        }
        (run.p50_ms, run.p99_ms) = percentiles_ms(&mut latencies);
        if target.keeps_events {
            let must = expected.counts;
            ensure!(
                reported == must,
                "{name}: the server counted {reported:?}, the truth is {must:?}"
            );
        } else {
            ensure!(
                reported.total() == expected.counts.total() && reported.others == 0,
                "{name}: {reported:?}"
            );
        }
        truth.merge(&expected);
        Ok(run)
    }
}

/// A thread for each connection, or if they are many, few threads with many connections each, so
/// that switching threads does not take the cores from the server.
fn shared_out(streams: Vec<Stream>) -> Vec<Vec<Stream>> {
    let threads = if streams.len() > 16 { 4 } else { streams.len() };
    let mut shares: Vec<Vec<Stream>> = (0..threads).map(|_| Vec::new()).collect();
    for (place, stream) in streams.into_iter().enumerate() {
        shares[place % threads].push(stream);
    }
    shares
}

/// One connection and what it sends.
struct Lane {
    connection: Connection,
    stream: Stream,
    body: Vec<u8>,
    sent: Option<Instant>,
}

impl Lane {
    fn open(url: &str, stream: Stream, batch: usize) -> Result<Self> {
        let connection = Connection::open(url, KEY)?;
        Ok(Self { connection, stream, body: Vec::with_capacity(batch * 384), sent: None })
    }

    fn send(&mut self, batch: usize) -> Result<()> {
        self.stream.write_body(&mut self.body, batch);
        self.sent = Some(Instant::now());
        self.connection.send_events(&self.body)
    }

    /// A full queue is an honest answer: the client comes back, and the wait is in the latency.
    fn receive(&mut self, sent: Instant) -> Result<(Counts, Duration)> {
        for _ in 0..10_000 {
            let (status, counts) = self.connection.receive_counts()?;
            match status {
                200 | 409 => return Ok((counts, sent.elapsed())),
                503 => std::thread::sleep(Duration::from_millis(2)),
                _ => bail!("events were answered with status {status}"),
            }
            self.connection.send_events(&self.body)?;
        }
        bail!("the server had no room for 20 seconds")
    }
}

/// One thread and its connections, served in turn: each has one request under way, and is sent the
/// next one when its answer is taken.
fn work(
    url: &str,
    streams: Vec<Stream>,
    batch: usize,
    events_max: u64,
    stop: &AtomicBool,
    progress: &Progress<'_>,
) -> Result<Worked> {
    let open = |stream| Lane::open(url, stream, batch);
    let mut lanes = streams.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut latencies = Vec::with_capacity(1 << 16);
    let mut reported = Counts::default();
    let size = batch as u64;
    loop {
        let mut under_way = false;
        for lane in &mut lanes {
            if let Some(sent) = lane.sent.take() {
                let (counts, latency) = lane.receive(sent)?;
                latencies.push(latency.as_micros() as u32);
                reported.merge(counts);
                progress.note(size);
            }
            let stopped = stop.load(Ordering::Relaxed);
            if !stopped && progress.offered.fetch_add(size, Ordering::Relaxed) < events_max {
                lane.send(batch)?;
                under_way = true;
            }
        }
        if !under_way {
            break;
        }
    }
    let mut truth = Truth::new();
    lanes.iter().for_each(|lane| truth.merge(&lane.stream.truth));
    Ok(Worked { truth, reported, latencies })
}

/// The 50th and 99th percentile in milliseconds, of microseconds.
pub fn percentiles_ms(micros: &mut [u32]) -> (f64, f64) {
    micros.sort_unstable();
    let at = |percent: usize| {
        let place = (micros.len() * percent / 100).min(micros.len().saturating_sub(1));
        micros.get(place).map_or(0.0, |value| f64::from(*value) / 1e3)
    };
    (at(50), at(99))
}

pub fn declare_meters(url: &str) -> Result<()> {
    let mut connection = Connection::open(url, KEY)?;
    for meter in 0..METERS {
        let path = format!("/v1/meters/{}", meter_slug(meter));
        connection.exchange("PUT", &path, r#"{"aggregation":"sum","scale":6}"#)?;
    }
    Ok(())
}

/// Compares totals of the server with the truth: the largest tenants and some small ones.
pub fn check_totals(url: &str, truth: &Truth) -> Result<()> {
    let mut connection = Connection::open(url, KEY)?;
    let hour = MICROS_PER_HOUR;
    let now = crate::workload::now();
    let from = Timestamp::from_micros((now - 2 * MICROS_PER_DAY) / hour * hour);
    let to = Timestamp::from_micros((now + 2 * hour) / hour * hour);
    for (place, tenant) in (0..20).chain((20..TENANTS).step_by(83)).enumerate() {
        let meter = place % METERS;
        let (name, slug) = (tenant_name(tenant), meter_slug(meter));
        let path = format!("/v1/usage?tenant={name}&meter={slug}&from={from}&to={to}");
        let answer: serde_json::Value =
            serde_json::from_str(connection.exchange("GET", &path, "")?)?;
        let total = answer["total"].as_str().and_then(micro_units).context("no total")?;
        let reported = (answer["count"].as_u64(), total);
        let (count, sum) = truth.sum_of(tenant, meter);
        let right = reported.1 == sum && reported.0.is_none_or(|reported| reported == count);
        ensure!(
            right,
            "{name} {slug}: the server has {reported:?}, the truth is {:?}",
            (count, sum)
        );
    }
    Ok(())
}

/// A decimal text in units of 10^-6.
fn micro_units(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{fraction:0<6}").parse().ok()
}
