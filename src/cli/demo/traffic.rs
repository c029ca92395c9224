//! The demo's traffic and its truth: what is sent, and what must be counted.
//!
//! Invariant: everything follows from the seed and the start time. The truth is kept with plain
//! integers of millionths, apart from the code that counts for real, so the two can disagree.
//! A duplicate or a conflict names an event that its own lane has sent before, and a lane sends in
//! order, so it is known which payload counts.

use crate::rules::billing::Mode;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::window::Bucket;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// Connections side by side; each has its own tenants.
pub const LANES: u64 = 4;
pub const TENANTS: u64 = 50;
/// How far back a lane repeats itself.
const HISTORY_EVENTS: usize = 4_000;
const BATCH_EVENTS_MAX: u64 = 1_000;
/// Batches of a lane even if there is little to send, so that accidents fall between them.
const BATCHES_MIN: u64 = 20;
/// Usage lies in whole hours that are over when the demo starts, so that each can be billed.
const HOURS: i64 = 48;
/// Fewer of what is billed: each hour of a tenant is a window, and each window a few pushes.
const BILLED_HOURS: i64 = 4;
/// Before all usage of any run: the terms of billing cannot change on a store that is used again.
const BILLED_FROM: &str = "2020-01-01T00:00:00Z";
const LATE_MICROS: i64 = 30 * 86_400 * 1_000_000;
const MILLIONTHS: i128 = 1_000_000;

pub struct DemoMeter {
    pub slug: &'static str,
    pub aggregation: &'static str,
    /// How it is billed, if it is.
    pub billed: Option<Mode>,
}

const fn meter(slug: &'static str, aggregation: &'static str, billed: Option<Mode>) -> DemoMeter {
    DemoMeter { slug, aggregation, billed }
}

/// The demo's meters: one for each way to aggregate, and of those that add up one billed each way.
pub const METERS: [DemoMeter; 6] = [
    meter("api_calls", "sum", Some(Mode::Delta)),
    meter("requests", "count", Some(Mode::Absolute)),
    meter("response_ms_min", "min", None),
    meter("storage_gb_max", "max", None),
    meter("seats_latest", "latest", None),
    meter("users_unique", "unique", None),
];

impl DemoMeter {
    /// Its definition as the server takes it.
    pub fn spec(&self) -> serde_json::Value {
        let mut spec = match self.aggregation {
            "unique" => serde_json::json!({"unique_property": "user"}),
            _ => serde_json::json!({"dimensions": ["region"]}),
        };
        spec["aggregation"] = self.aggregation.into();
        if let Some(mode) = self.billed {
            // Cut as early and as often as can be: whatever comes later makes a revision.
            spec["settle_after"] = "0s".into();
            spec["late_until"] = "0s".into();
            spec["cut_every"] = "1s".into();
            spec["billing"] = serde_json::json!({"mode": mode.name(), "from": BILLED_FROM});
        }
        spec
    }
}

/// What a delivery is meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Fresh,
    Duplicate,
    Restamped,
    Conflict,
    Late,
    Malformed,
}

/// What all deliveries of one run have in common.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub deliveries: u64,
    pub start: Timestamp,
    /// Set in front of tenants, so that runs on one database do not meet.
    pub prefix: String,
}

/// One event of usage before it is written.
struct Fact {
    tenant: u64,
    meter: usize,
    millionths: u64,
    occurred_at: Timestamp,
    user: u64,
    region: &'static str,
}

impl Plan {
    /// A number that depends on the seed, the delivery and what it is for.
    fn random(&self, number: u64, purpose: u64) -> u64 {
        // SplitMix64: every bit of the input moves about half of the output's.
        let mut z = self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (purpose << 56);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn kind(&self, number: u64) -> Kind {
        match self.random(number, 1) % 1_000 {
            0..50 => Kind::Duplicate,
            50..55 => Kind::Restamped,
            55..60 => Kind::Conflict,
            60..65 => Kind::Late,
            65..70 => Kind::Malformed,
            _ => Kind::Fresh,
        }
    }

    fn fact(&self, number: u64) -> Fact {
        let random = |purpose, below: u64| self.random(number, purpose) % below;
        let meter = usize::try_from(random(3, 6)).expect("less than six");
        // A handful of users, so that most values of the unique meter come again.
        let users = 5 + random(4, 40);
        let hours = if METERS[meter].billed.is_some() { BILLED_HOURS } else { HOURS };
        let span = (hours * MICROS_PER_HOUR).unsigned_abs();
        let back = i64::try_from(random(5, span)).expect("two days");
        Fact {
            tenant: random(2, TENANTS),
            meter,
            millionths: 1 + random(6, 5_000_000_000),
            occurred_at: Bucket::Hour.start_of(self.start).saturating_add_micros(-1 - back),
            user: random(7, users),
            region: ["eu-west", "us-east", "ap-south"][meter % 3],
        }
    }

    pub fn batch_events(&self) -> u64 {
        (self.deliveries / (LANES * BATCHES_MIN)).clamp(1, BATCH_EVENTS_MAX)
    }

    pub fn tenant_name(&self, tenant: u64) -> String {
        format!("{}tenant-{tenant:02}", self.prefix)
    }

    fn event_id(&self, number: u64) -> String {
        format!("demo-{}-{number:08}", self.seed)
    }
}

/// What must have been counted for one tenant and meter.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    pub count: u64,
    sum: i128,
    min: Option<i128>,
    max: Option<i128>,
    latest: Option<(Timestamp, String, i128)>,
    users: BTreeSet<u64>,
}

impl Truth {
    fn add(&mut self, fact: &Fact, id: &str) {
        let value = i128::from(fact.millionths);
        self.count += 1;
        self.sum += value;
        self.min = Some(self.min.map_or(value, |min| min.min(value)));
        self.max = Some(self.max.map_or(value, |max| max.max(value)));
        let mine = (fact.occurred_at, id.to_owned(), value);
        if self.latest.as_ref().is_none_or(|latest| mine > *latest) {
            self.latest = Some(mine);
        }
        self.users.insert(fact.user);
    }

    /// The value in millionths, if there is one.
    pub fn value(&self, aggregation: &str) -> Option<i128> {
        let whole = |count: u64| i128::from(count) * MILLIONTHS;
        match aggregation {
            "sum" => Some(self.sum),
            "count" => Some(whole(self.count)),
            "min" => self.min,
            "max" => self.max,
            "latest" => self.latest.as_ref().map(|(_, _, value)| *value),
            _ => Some(whole(u64::try_from(self.users.len()).expect("few users"))),
        }
    }
}

/// By tenant and place in [`METERS`].
pub type Truths = BTreeMap<(u64, usize), Truth>;

/// The truths of all lanes; no two have a tenant in common.
pub fn gather_truths(lanes: &[Lane]) -> Truths {
    lanes.iter().flat_map(|lane| lane.truths.clone()).collect()
}

/// One connection's part of the traffic.
pub struct Lane {
    plan: Plan,
    lane: u64,
    next: u64,
    history: VecDeque<u64>,
    pub truths: Truths,
    pub planned: BTreeMap<Kind, u64>,
}

impl Lane {
    pub fn new(plan: Plan, lane: u64) -> Self {
        let (history, truths, planned) = (VecDeque::new(), Truths::new(), BTreeMap::new());
        Self { plan, lane, next: 0, history, truths, planned }
    }

    /// Whether only the last tenth of all traffic is left.
    pub fn in_last_tenth(&self) -> bool {
        self.next.saturating_mul(10) >= self.plan.deliveries.saturating_mul(9)
    }

    /// The next batch of at most `events_max`, one event a line, and how many it holds.
    pub fn next_batch(&mut self, events_max: u64) -> Option<(String, u64)> {
        let (mut body, mut events) = (String::new(), 0);
        while events < events_max && self.next < self.plan.deliveries {
            let number = self.next;
            self.next += 1;
            let fact = self.plan.fact(number);
            if fact.tenant % LANES != self.lane {
                continue;
            }
            self.write_delivery(number, &fact, &mut body);
            body.push('\n');
            events += 1;
        }
        (events > 0).then_some((body, events))
    }

    fn write_delivery(&mut self, number: u64, fact: &Fact, body: &mut String) {
        let pick = self.plan.random(number, 8);
        let earlier = u64::try_from(self.history.len())
            .ok()
            .filter(|length| *length > 0)
            .and_then(|length| self.history.get(usize::try_from(pick % length).ok()?))
            .copied();
        let (kind, earlier) = match (self.plan.kind(number), earlier) {
            (Kind::Duplicate | Kind::Restamped | Kind::Conflict, None) => (Kind::Fresh, 0),
            (kind, earlier) => (kind, earlier.unwrap_or(0)),
        };
        *self.planned.entry(kind).or_default() += 1;
        let id = self.plan.event_id(number);
        match kind {
            Kind::Fresh => {
                self.write_event(body, &id, fact);
                self.remember(number, fact, &id);
            }
            Kind::Duplicate => {
                self.write_event(body, &self.plan.event_id(earlier), &self.plan.fact(earlier));
            }
            Kind::Restamped => {
                let mut again = self.plan.fact(earlier);
                again.occurred_at = again.occurred_at.saturating_add_micros(1_000_000);
                self.write_event(body, &self.plan.event_id(earlier), &again);
            }
            Kind::Conflict => {
                let mut other = self.plan.fact(earlier);
                other.millionths += 1_000_000;
                self.write_event(body, &self.plan.event_id(earlier), &other);
            }
            Kind::Late => {
                let occurred_at = fact.occurred_at.saturating_add_micros(-LATE_MICROS);
                self.write_event(body, &id, &Fact { occurred_at, ..*fact });
            }
            Kind::Malformed => write_malformed(body, pick),
        }
    }

    fn remember(&mut self, number: u64, fact: &Fact, id: &str) {
        self.truths.entry((fact.tenant, fact.meter)).or_default().add(fact, id);
        if self.history.len() == HISTORY_EVENTS {
            self.history.pop_front();
        }
        self.history.push_back(number);
    }

    fn write_event(&self, body: &mut String, id: &str, fact: &Fact) {
        let tenant = self.plan.tenant_name(fact.tenant);
        let meter = METERS[fact.meter].slug;
        let quantity = decimal(i128::from(fact.millionths));
        let Fact { occurred_at, user, region, .. } = fact;
        let _ = write!(
            body,
            "{{\"tenant\":\"{tenant}\",\"id\":\"{id}\",\"meter\":\"{meter}\",\
             \"quantity\":\"{quantity}\",\"occurred_at\":\"{occurred_at}\",\
             \"properties\":{{\"user\":\"user-{user}\",\"region\":\"{region}\"}}}}"
        );
    }
}

/// Cut off, of an unknown meter, without an id, or with a quantity that is no number.
fn write_malformed(body: &mut String, pick: u64) {
    let fields = match pick % 4 {
        0 => "\"id\":",
        1 => "\"id\":\"x\",\"meter\":\"no_such_meter\",\"quantity\":1}",
        2 => "\"meter\":\"api_calls\",\"quantity\":1}",
        _ => "\"id\":\"x\",\"meter\":\"api_calls\",\"quantity\":\"1,5\"}",
    };
    body.push_str("{\"tenant\":\"tenant-00\",\"occurred_at\":\"2026-01-01T00:00:00Z\",");
    body.push_str(fields);
}

/// Millionths as a decimal number without trailing zeros, as the server writes it.
pub fn decimal(millionths: i128) -> String {
    let (whole, fraction) = (millionths / MILLIONTHS, millionths % MILLIONTHS);
    if fraction == 0 {
        return whole.to_string();
    }
    format!("{whole}.{fraction:06}").trim_end_matches('0').to_owned()
}

/// What [`decimal`] wrote.
pub fn read_decimal(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction: i128 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    Some(whole.parse::<i128>().ok()? * MILLIONTHS + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        for (millionths, text) in [(0, "0"), (1_500_000, "1.5"), (1, "0.000001"), (7_000_000, "7")]
        {
            assert_eq!(decimal(millionths), text);
            assert_eq!(read_decimal(text), Some(millionths));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_traffic() {
        let start = Timestamp::from_micros(1_800_000_000_000_000);
        let plan = |seed| Plan { seed, deliveries: 2_000, start, prefix: String::new() };
        let all = |seed| -> (Vec<String>, u64) {
            let mut lanes: Vec<Lane> = (0..LANES).map(|n| Lane::new(plan(seed), n)).collect();
            let mut bodies = Vec::new();
            for lane in &mut lanes {
                while let Some((body, _)) = lane.next_batch(100) {
                    bodies.push(body);
                }
            }
            (bodies, lanes.iter().flat_map(|lane| lane.planned.values()).sum())
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1).0, all(2).0);
        assert_eq!(all(1).1, 2_000);
    }
}
