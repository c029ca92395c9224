//! The workload: events made from a seed, with the exact truth about what must become of them.
//!
//! Invariant: one stream belongs to one connection, which waits for each answer before it sends
//! again. A repeat therefore always comes after its first delivery, and the truth (verdicts and
//! sums) does not depend on how connections interleave. Streams never share an event id.

use counterfoil::rules::timestamp::{MICROS_PER_DAY, MICROS_PER_SECOND, Timestamp};
use std::collections::VecDeque;
use std::sync::Arc;

pub const METERS: usize = 10;
/// Tenants of the usual workload; those of a uniform one are never fewer.
pub const TENANTS: usize = 1_000;
/// Repeats are drawn from this many events before them, over all streams of a run.
pub const REPEAT_WINDOW: usize = 50_000;
/// Of 10,000 repeats this many carry another payload.
const CONFLICTS_PER_MYRIAD: u64 = 200;
const RECENT_MICROS: u64 = 120_000_000;
const MODELS: [&str; 4] = ["small-1", "large-2", "large-3", "embed-1"];
const REGIONS: [&str; 4] = ["eu-west-1", "eu-west-3", "us-east-1", "ap-east-1"];

/// What is sent, on how many connections, in which batches.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    pub connections: usize,
    pub batch: usize,
    pub repeats_percent: u64,
    pub tenants: Tenants,
    /// Events of any time of the last day; the others happened within two minutes.
    pub late_percent: u64,
    pub meter: Meter,
}

pub const USUAL: Workload = Workload {
    connections: 8,
    batch: 1000,
    repeats_percent: 5,
    tenants: Tenants::Zipf,
    late_percent: 5,
    meter: Meter::Sum,
};

/// How events are spread over tenants.
#[derive(Debug, Clone, Copy)]
pub enum Tenants {
    /// Over `TENANTS`, with s = 1.
    Zipf,
    /// Over this many.
    Uniform(u32),
}

/// What the meters count; the events are the same.
#[derive(Debug, Clone, Copy)]
pub enum Meter {
    Sum,
    /// Sums by model and region: 16 groups.
    Dimensions,
    /// Hosts: 256 values.
    Unique,
}

impl Meter {
    pub fn declaration(self) -> &'static str {
        match self {
            Self::Sum => r#"{"aggregation":"sum","scale":6}"#,
            Self::Dimensions => {
                r#"{"aggregation":"sum","scale":6,"dimensions":["model","region"]}"#
            }
            Self::Unique => r#"{"aggregation":"unique","unique_property":"host","scale":6}"#,
        }
    }
}

/// Tenants by a random number, Zipf with s = 1: one slot in this table for each 1/65,536.
pub struct Zipf(Vec<u16>);

impl Zipf {
    pub fn new() -> Arc<Self> {
        let harmonic: f64 = (1..=TENANTS).map(|rank| 1.0 / rank as f64).sum();
        let mut slots = Vec::with_capacity(1 << 16);
        let mut share = 0.0;
        for rank in 1..=TENANTS {
            share += 1.0 / (rank as f64 * harmonic);
            let until = ((share * 65_536.0).round() as usize).max(slots.len() + 1).min(1 << 16);
            slots.resize(until, rank as u16 - 1);
        }
        slots.resize(1 << 16, TENANTS as u16 - 1);
        Arc::new(Self(slots))
    }
}

/// What an event says; everything but the time follows from the seed.
#[derive(Debug, Clone, Copy)]
pub struct Fact {
    seed: u64,
    pub tenant: u32,
    pub meter: u8,
    /// In units of 10^-6.
    pub micro_units: u64,
    pub occurred_at: i64,
}

impl Fact {
    fn new(seed: u64, zipf: &Zipf, workload: Workload, now: i64) -> Self {
        let dice = mix(seed ^ 0x5151_5151);
        let ago = mix(seed ^ 0x7272_7272);
        let late = (ago >> 48) % 100 < workload.late_percent;
        let span = if late { MICROS_PER_DAY as u64 } else { RECENT_MICROS };
        let tenant = match workload.tenants {
            Tenants::Zipf => u32::from(zipf.0[(dice & 0xffff) as usize]),
            Tenants::Uniform(count) => (mix(seed ^ 0x3939_3939) % u64::from(count)) as u32,
        };
        Self {
            seed,
            tenant,
            meter: ((dice >> 16) % METERS as u64) as u8,
            micro_units: (dice >> 24) % 99_999_999 + 1,
            occurred_at: now - ((ago & 0xffff_ffff_ffff) % span) as i64,
        }
    }

    pub fn id(&self) -> u128 {
        u128::from(self.seed) << 64 | u128::from(mix(self.seed ^ 0x1d1d))
    }

    pub fn tenant_name(&self) -> String {
        tenant_name(self.tenant as usize)
    }

    pub fn meter_slug(&self) -> String {
        meter_slug(self.meter.into())
    }

    pub fn id_text(&self) -> String {
        format!("{:032x}", self.id())
    }

    /// One of 256.
    fn host(&self) -> u64 {
        mix(self.seed ^ 0xa0a0) & 0xff
    }

    /// About 115 bytes of JSON, its names in canonical order.
    pub fn write_properties(&self, text: &mut Vec<u8>) {
        let dice = mix(self.seed ^ 0xa0a0);
        text.extend_from_slice(b"{\"endpoint\":\"/v1/chat/completions\",\"host\":\"ip-10-0-");
        write_digits(text, self.host(), 3);
        text.extend_from_slice(b"\",\"model\":\"");
        text.extend_from_slice(MODELS[(dice >> 8 & 3) as usize].as_bytes());
        text.extend_from_slice(b"\",\"region\":\"");
        text.extend_from_slice(REGIONS[(dice >> 10 & 3) as usize].as_bytes());
        text.extend_from_slice(b"\",\"request\":\"");
        write_hex(text, dice >> 16, 12);
        text.extend_from_slice(b"\"}");
    }

    fn write_json(&self, text: &mut Vec<u8>, dates: &mut Dates) {
        text.extend_from_slice(b"{\"tenant\":\"tenant-");
        write_digits(text, self.tenant.into(), 6);
        text.extend_from_slice(b"\",\"id\":\"");
        write_hex(text, self.seed, 16);
        write_hex(text, mix(self.seed ^ 0x1d1d), 16);
        text.extend_from_slice(b"\",\"meter\":\"tokens.");
        write_digits(text, self.meter.into(), 2);
        text.extend_from_slice(b"\",\"quantity\":\"");
        write_digits(text, self.micro_units / 1_000_000, 1 + usize::from(self.is_tens()));
        text.push(b'.');
        write_digits(text, self.micro_units % 1_000_000, 6);
        text.extend_from_slice(b"\",\"occurred_at\":\"");
        dates.write(text, self.occurred_at);
        text.extend_from_slice(b"\",\"properties\":");
        self.write_properties(text);
        text.push(b'}');
    }

    fn is_tens(&self) -> bool {
        self.micro_units >= 10_000_000
    }

    /// The event without the names of its fields.
    pub fn write_encoded(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.tenant.to_le_bytes());
        bytes.push(self.meter);
        bytes.extend_from_slice(&self.occurred_at.to_le_bytes());
        bytes.extend_from_slice(&self.micro_units.to_le_bytes());
        write_hex(bytes, self.seed, 16);
        write_hex(bytes, mix(self.seed ^ 0x1d1d), 16);
        self.write_properties(bytes);
    }
}

pub fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant:06}")
}

pub fn meter_slug(meter: usize) -> String {
    format!("tokens.{meter:02}")
}

/// Verdicts in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub accepted: u64,
    pub duplicates: u64,
    pub conflicts: u64,
    /// Quarantined or rejected: never expected.
    pub others: u64,
}

impl Counts {
    pub fn merge(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.conflicts += other.conflicts;
        self.others += other.others;
    }

    pub fn total(self) -> u64 {
        self.accepted + self.duplicates + self.conflicts + self.others
    }
}

/// Pairs of tenant and meter whose totals are compared: the largest tenants and some small ones.
pub const SAMPLES: usize = 32;

pub fn sample(place: usize) -> (usize, usize) {
    let tenant = if place < 20 { place } else { 20 + (place - 20) * 83 };
    (tenant, place % METERS)
}

fn sample_place(fact: &Fact) -> Option<usize> {
    let tenant = fact.tenant as usize;
    let place = match tenant {
        0..20 => tenant,
        _ if (tenant - 20).is_multiple_of(83) => 20 + (tenant - 20) / 83,
        _ => return None,
    };
    (place < SAMPLES && place % METERS == usize::from(fact.meter)).then_some(place)
}

/// What a pair of tenant and meter must have counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    pub count: u64,
    /// In units of 10^-6.
    pub sum: i128,
    hosts: [u128; 2],
}

impl Sample {
    /// The meter's total in units of 10^-6.
    pub fn total(&self, meter: Meter) -> i128 {
        match meter {
            Meter::Sum | Meter::Dimensions => self.sum,
            Meter::Unique => {
                i128::from(self.hosts[0].count_ones() + self.hosts[1].count_ones()) * 1_000_000
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.hosts = [self.hosts[0] | other.hosts[0], self.hosts[1] | other.hosts[1]];
    }
}

/// What must have become of everything a stream has made.
#[derive(Clone, Default)]
pub struct Truth {
    pub counts: Counts,
    pub sum_of_all: i128,
    pub samples: [Sample; SAMPLES],
}

impl Truth {
    fn accept(&mut self, fact: &Fact) {
        self.counts.accepted += 1;
        self.sum_of_all += i128::from(fact.micro_units);
        if let Some(place) = sample_place(fact) {
            let mut added = Sample { count: 1, sum: fact.micro_units.into(), hosts: [0; 2] };
            added.hosts[(fact.host() / 128) as usize] = 1 << (fact.host() % 128);
            self.samples[place].merge(&added);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.counts.merge(other.counts);
        self.sum_of_all += other.sum_of_all;
        for (sample, add) in self.samples.iter_mut().zip(&other.samples) {
            sample.merge(add);
        }
    }
}

/// The kinds of what a stream makes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Fresh,
    Repeat,
    Conflict,
}

/// Which stream of which run: no two that are alike share an event.
#[derive(Debug, Clone, Copy)]
pub struct Seed {
    pub run: u64,
    pub number: usize,
}

/// The events of one connection.
pub struct Stream {
    zipf: Arc<Zipf>,
    workload: Workload,
    next: u64,
    dice: u64,
    recent: VecDeque<Fact>,
    window: usize,
    dates: Dates,
    now: i64,
    /// Events of one moment can be made again; otherwise each batch is of the present.
    at: Option<i64>,
    pub truth: Truth,
}

impl Stream {
    pub fn new(zipf: &Arc<Zipf>, workload: Workload, seed: Seed, at: Option<i64>) -> Self {
        let number = seed.number as u64;
        Self {
            zipf: Arc::clone(zipf),
            workload,
            next: (seed.run << 48) | (number << 36),
            dice: mix(seed.run ^ mix(number)),
            recent: VecDeque::new(),
            window: (REPEAT_WINDOW / workload.connections).max(100),
            dates: Dates::default(),
            now: now(),
            at,
            truth: Truth::default(),
        }
    }

    pub fn next_fact(&mut self) -> (Kind, Fact) {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let dice = mix(self.dice);
        if !self.recent.is_empty() && dice % 100 < self.workload.repeats_percent {
            let mut fact = self.recent[(dice >> 20) as usize % self.recent.len()];
            if (dice >> 50) % 10_000 >= CONFLICTS_PER_MYRIAD {
                self.truth.counts.duplicates += 1;
                return (Kind::Repeat, fact);
            }
            fact.micro_units += 1;
            self.truth.counts.conflicts += 1;
            return (Kind::Conflict, fact);
        }
        // `mix` is a bijection, so no two events share a seed.
        let fact = Fact::new(mix(self.next), &self.zipf, self.workload, self.now);
        self.next += 1;
        if self.recent.len() == self.window {
            self.recent.pop_front();
        }
        self.recent.push_back(fact);
        self.truth.accept(&fact);
        (Kind::Fresh, fact)
    }

    /// Writes the body of a request: an array of events, or one event alone.
    pub fn write_body(&mut self, body: &mut Vec<u8>) {
        let batch = self.workload.batch;
        self.now = self.at.unwrap_or_else(now);
        body.clear();
        if batch == 1 {
            let (_, fact) = self.next_fact();
            return fact.write_json(body, &mut self.dates);
        }
        for place in 0..batch {
            body.push(if place == 0 { b'[' } else { b',' });
            let (_, fact) = self.next_fact();
            fact.write_json(body, &mut self.dates);
        }
        body.push(b']');
    }
}

pub fn now() -> i64 {
    counterfoil::clock::Clock::system().now().micros()
}

/// Writes instants; a date is formatted once for each of the two days that occur.
#[derive(Default)]
struct Dates([(i64, [u8; 11]); 2]);

impl Dates {
    fn write(&mut self, text: &mut Vec<u8>, micros: i64) {
        let day = micros.div_euclid(MICROS_PER_DAY);
        let known = &mut self.0[(day & 1) as usize];
        if known.0 != day {
            let date = Timestamp::from_micros(day * MICROS_PER_DAY).to_string();
            *known = (day, date.as_bytes()[..11].try_into().expect("eleven bytes"));
        }
        text.extend_from_slice(&known.1);
        let micros = micros.rem_euclid(MICROS_PER_DAY) as u64;
        let seconds = micros / MICROS_PER_SECOND as u64;
        write_digits(text, seconds / 3600, 2);
        text.push(b':');
        write_digits(text, seconds / 60 % 60, 2);
        text.push(b':');
        write_digits(text, seconds % 60, 2);
        text.push(b'.');
        write_digits(text, micros % MICROS_PER_SECOND as u64, 6);
        text.push(b'Z');
    }
}

fn write_digits(text: &mut Vec<u8>, mut number: u64, digits: usize) {
    let start = text.len();
    text.resize(start + digits, b'0');
    for place in text[start..].iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn write_hex(text: &mut Vec<u8>, number: u64, digits: usize) {
    let start = text.len();
    text.resize(start + digits, b'0');
    for (place, digit) in text[start..].iter_mut().rev().zip(0..) {
        *place = b"0123456789abcdef"[(number >> (digit * 4) & 15) as usize];
    }
}

/// Spreads 64 bits over 64 bits, one to one.
fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    number = (number ^ (number >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
    number ^ (number >> 33)
}
