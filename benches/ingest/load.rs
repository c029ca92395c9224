//! Drives events at a server over HTTP and compares what it answers with the truth.
//!
//! Invariant: a run that differs from the truth by one event or one unit is an error, whatever it
//! measured.

use crate::client::Connection;
use crate::process::{
    Server, Usage, database_usage, own_usage, resident_bytes, server_usage, settle,
};
use crate::workload::{
    Counts, METERS, Meter, SAMPLES, Seed, Stream, Truth, Workload, Zipf, meter_slug, sample,
    tenant_name,
};
use anyhow::{Context, Result, bail, ensure};
use counterfoil::rules::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const KEY: &str = "bench-admin-key-0123456789abcdef0123456789";

#[derive(Debug, Clone, Copy)]
pub enum Until {
    Elapsed(Duration),
    /// Divided evenly among the connections.
    Events(u64),
}

impl Server {
    /// Seconds from exec until /readyz says so.
    pub fn wait_until_ready(&self) -> Result<f64> {
        while self.started.elapsed() < Duration::from_secs(600) {
            let mut connection = Connection::open(&self.url, KEY)?;
            if connection.exchange("GET", "/readyz", "").is_ok() {
                return Ok(self.started.elapsed().as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the server was not ready within ten minutes")
    }

    pub fn target(&self, postmasters: &[u32], expect: Expect) -> Target {
        let postmasters = postmasters.to_vec();
        Target { url: self.url.clone(), pid: self.pid(), postmasters, expect }
    }
}

/// What one contender did in one run.
#[derive(Debug, Clone)]
pub struct Run {
    pub name: String,
    pub workload: Workload,
    pub events: u64,
    pub seconds: f64,
    /// How long the processes went on working after the last answer; their use includes it.
    pub settle_seconds: f64,
    pub server: Usage,
    pub database: Usage,
    pub client: Usage,
    pub resident_bytes: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl Run {
    pub fn new(name: &str, workload: Workload, events: u64, seconds: f64) -> Self {
        Self {
            name: name.to_owned(),
            workload,
            events,
            seconds,
            settle_seconds: 0.0,
            server: Usage::default(),
            database: Usage::default(),
            client: Usage::default(),
            resident_bytes: 0,
            p50_ms: 0.0,
            p99_ms: 0.0,
        }
    }

    pub fn rate(&self) -> f64 {
        self.events as f64 / self.seconds
    }

    /// Of server and database, for an event.
    pub fn cpu_micros(&self) -> f64 {
        self.per_event((self.server.cpu_seconds + self.database.cpu_seconds) * 1e6)
    }

    pub fn per_event(&self, amount: f64) -> f64 {
        amount / self.events.max(1) as f64
    }
}

/// What the answers must add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The truth of the streams.
    Truth,
    /// A floor accepts everything and keeps nothing.
    Answers,
    /// Every event was accepted before.
    Known,
}

/// A server that takes events.
#[derive(Debug, Clone)]
pub struct Target {
    pub url: String,
    pub pid: u32,
    /// Of PostgreSQL, whose use is counted with that of its children.
    pub postmasters: Vec<u32>,
    pub expect: Expect,
}

struct Worked {
    streams: Vec<Stream>,
    reported: Counts,
    latencies: Vec<u32>,
}

pub struct Driver {
    zipf: Arc<Zipf>,
    next_run: AtomicU64,
    /// Totals are asked for around this moment.
    started: i64,
}

impl Driver {
    pub fn new() -> Self {
        let started = crate::workload::now();
        Self { zipf: Zipf::new(), next_run: AtomicU64::new(1), started }
    }

    /// The number of a run that no other run of this program has, nor any below `at_least`.
    pub fn next_run(&self, at_least: u64) -> u64 {
        self.next_run.fetch_max(at_least, Ordering::Relaxed);
        self.next_run.fetch_add(1, Ordering::Relaxed)
    }

    /// Streams that share no id with any other stream of this program.
    pub fn streams(&self, workload: Workload) -> Vec<Stream> {
        self.streams_of(workload, self.next_run(0), None)
    }

    /// The streams of a run; `at` makes their events happen around one moment.
    pub fn streams_of(&self, workload: Workload, run: u64, at: Option<i64>) -> Vec<Stream> {
        let stream = |number| Stream::new(&self.zipf, workload, Seed { run, number }, at);
        (0..workload.connections).map(stream).collect()
    }

    /// New events until the end; their truth is added to `truth`.
    pub fn run(
        &self,
        name: &str,
        target: &Target,
        workload: Workload,
        until: Until,
        truth: &mut Truth,
    ) -> Result<Run> {
        let (run, streams) = drive(name, target, self.streams(workload), workload, until)?;
        streams.iter().for_each(|stream| truth.merge(&stream.truth));
        Ok(run)
    }

    /// Number and total in 10^-6 of the pairs that are compared.
    pub fn read_samples(&self, url: &str) -> Result<Vec<(Option<u64>, i128)>> {
        let mut connection = Connection::open(url, KEY)?;
        let border =
            |micros: i64| Timestamp::from_micros(micros / MICROS_PER_HOUR * MICROS_PER_HOUR);
        let from = border(self.started - 2 * MICROS_PER_DAY);
        let to = border(self.started + MICROS_PER_DAY);
        let mut read = |place| {
            let (tenant, meter) = sample(place);
            let (name, slug) = (tenant_name(tenant), meter_slug(meter));
            let path = format!("/v1/usage?tenant={name}&meter={slug}&from={from}&to={to}");
            let answer: serde_json::Value =
                serde_json::from_str(connection.exchange("GET", &path, "")?)?;
            let total = answer["total"].as_str().and_then(micro_units).context("no total")?;
            Ok((answer["count"].as_u64(), total))
        };
        (0..SAMPLES).map(&mut read).collect()
    }

    /// Compares totals with the truth of everything that was sent to an empty store.
    pub fn check_totals(&self, url: &str, meter: Meter, truth: &Truth) -> Result<()> {
        self.check_added(url, meter, truth, &[(Some(0), 0); SAMPLES])
    }

    /// Compares totals with those before and the truth of what was sent since.
    pub fn check_added(
        &self,
        url: &str,
        meter: Meter,
        truth: &Truth,
        before: &[(Option<u64>, i128)],
    ) -> Result<()> {
        let now = self.read_samples(url)?;
        for (place, (count, total)) in now.into_iter().enumerate() {
            let must = &truth.samples[place];
            let counted = count.zip(before[place].0).map(|(now, before)| now - before);
            let added = total - before[place].1;
            ensure!(
                added == must.total(meter) && counted.is_none_or(|count| count == must.count),
                "{:?}: the server added {added} in {counted:?} events, the truth is {must:?}",
                sample(place),
            );
        }
        Ok(())
    }
}

/// Runs a load to its end and until the server has settled; gives the streams back.
pub fn drive(
    name: &str,
    target: &Target,
    streams: Vec<Stream>,
    workload: Workload,
    until: Until,
) -> Result<(Run, Vec<Stream>)> {
    let stop = AtomicBool::new(false);
    let (quota, lasting) = match until {
        Until::Elapsed(lasting) => (u64::MAX, Some(lasting)),
        Until::Events(events) => (events.div_ceil(workload.connections as u64), None),
    };
    let known = streams.iter().map(|stream| stream.truth.counts.total()).sum::<u64>();
    let usage = || (server_usage(target.pid), database_usage(&target.postmasters));
    let ((server, database), client) = (usage(), own_usage());
    let started = Instant::now();
    let worked = std::thread::scope(|scope| -> Result<Vec<Worked>> {
        let work = |streams| {
            let stop = &stop;
            scope.spawn(move || work(&target.url, streams, workload.batch, quota, stop))
        };
        let workers: Vec<_> = shared_out(streams).into_iter().map(work).collect();
        if let Some(lasting) = lasting {
            std::thread::sleep(lasting);
            stop.store(true, Ordering::Relaxed);
        }
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let client = own_usage().since(client);
    let (mut latencies, mut reported, mut expected) =
        (Vec::new(), Counts::default(), Counts::default());
    let mut streams = Vec::new();
    for worked in worked {
        latencies.extend(worked.latencies);
        reported.merge(worked.reported);
        worked.streams.iter().for_each(|stream| expected.merge(stream.truth.counts));
        streams.extend(worked.streams);
    }
    let sent = expected.total() - known;
    let right = match target.expect {
        Expect::Truth => reported == expected,
        Expect::Answers => reported.total() == sent && reported.others == 0,
        Expect::Known => reported.duplicates == sent && reported.total() == sent,
    };
    ensure!(right, "{name}: the server counted {reported:?}, the truth is {expected:?}");
    let mut run = Run::new(name, workload, sent, seconds);
    run.settle_seconds = settle(|| usage().0.plus(usage().1));
    (run.server, run.database) = (usage().0.since(server), usage().1.since(database));
    run.client = client;
    run.resident_bytes = resident_bytes(target.pid);
    (run.p50_ms, run.p99_ms) = percentiles_ms(&mut latencies);
    Ok((run, streams))
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
    events: u64,
}

impl Lane {
    fn open(url: &str, stream: Stream, batch: usize) -> Result<Self> {
        let connection = Connection::open(url, KEY)?;
        let body = Vec::with_capacity(batch * 384);
        Ok(Self { connection, stream, body, sent: None, events: 0 })
    }

    fn send(&mut self) -> Result<()> {
        self.stream.write_body(&mut self.body);
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
    quota: u64,
    stop: &AtomicBool,
) -> Result<Worked> {
    let open = |stream| Lane::open(url, stream, batch);
    let mut lanes = streams.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    let mut latencies = Vec::with_capacity(1 << 16);
    let mut reported = Counts::default();
    loop {
        let mut under_way = false;
        for lane in &mut lanes {
            if let Some(sent) = lane.sent.take() {
                let (counts, latency) = lane.receive(sent)?;
                latencies.push(latency.as_micros() as u32);
                reported.merge(counts);
            }
            if !stop.load(Ordering::Relaxed) && lane.events < quota {
                lane.send()?;
                lane.events += batch as u64;
                under_way = true;
            }
        }
        if !under_way {
            break;
        }
    }
    let streams = lanes.into_iter().map(|lane| lane.stream).collect();
    Ok(Worked { streams, reported, latencies })
}

/// A contender without HTTP: a thread for each stream, each with a connection of its own. The time
/// includes making the events, as it does over HTTP.
pub fn drive_threads<C>(
    name: &str,
    workload: Workload,
    streams: Vec<Stream>,
    lasting: Duration,
    open: impl Fn() -> Result<C> + Sync,
    send: impl Fn(&mut C, &mut Stream) -> Result<()> + Sync,
) -> Result<(Run, Truth)> {
    let client = own_usage();
    let started = Instant::now();
    let work = |mut stream: Stream| -> Result<(Stream, Vec<u32>)> {
        let (mut connection, mut latencies) = (open()?, Vec::new());
        while started.elapsed() < lasting {
            let sent = Instant::now();
            send(&mut connection, &mut stream)?;
            latencies.push(sent.elapsed().as_micros() as u32);
        }
        Ok((stream, latencies))
    };
    let worked = std::thread::scope(|scope| -> Result<Vec<_>> {
        let start = |stream| scope.spawn(|| work(stream));
        let workers: Vec<_> = streams.into_iter().map(start).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let (mut truth, mut latencies) = (Truth::default(), Vec::new());
    for (stream, spent) in worked {
        truth.merge(&stream.truth);
        latencies.extend(spent);
    }
    let mut run = Run::new(name, workload, truth.counts.total(), seconds);
    run.client = own_usage().since(client);
    (run.p50_ms, run.p99_ms) = percentiles_ms(&mut latencies);
    Ok((run, truth))
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

pub fn declare_meters(url: &str, meter: Meter) -> Result<()> {
    let mut connection = Connection::open(url, KEY)?;
    for number in 0..METERS {
        let path = format!("/v1/meters/{}", meter_slug(number));
        connection.exchange("PUT", &path, meter.declaration())?;
    }
    Ok(())
}

/// A decimal text in units of 10^-6.
fn micro_units(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    format!("{whole}{fraction:0<6}").parse().ok()
}
