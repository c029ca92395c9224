//! The self-check: which part of the ledger is compared next, and what is known of it so far.
//!
//! A **slice** is a range of tenants, and of one tenant with many events a range of times of use.
//! Slices follow each other without a gap and cover all numbers and all times, so nothing stored
//! lies beside them. A **walk** goes through all of them, a night's; a **sample** is a few windows
//! of an hour.
//!
//! Invariant: a walk is complete only if every slice of it was compared. What could not be read
//! is shown as not checked, for as long as no later walk has compared everything.

mod comparison;

pub use comparison::{Compared, Comparison, DIFFERENCES_MAX, Difference, RowKey};

use super::ids::{MeterNo, TenantNo};
use super::meter::Catalog;
use super::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, Timestamp};
use super::window::{Bucket, Window};
use serde::{Deserialize, Serialize};

/// Events of a slice, about: few enough that what they add to is held at once. Usage that shares a
/// bucket is never cut into several slices.
pub const SLICE_EVENTS: u64 = 50_000;
/// Parts that could not be checked and are kept by name; of further ones only the number.
pub const UNCHECKED_MAX: usize = 20;
/// Texts of several differences of one total are joined up to about this length.
const JOINED_BYTES_MAX: usize = 200;
/// The last number that a tenant may have.
const TENANTS_END: u32 = i32::MAX.unsigned_abs();
/// A number that no meter has: a slice of it has counters only.
const NO_METER: MeterNo = MeterNo(0);
const START: Timestamp = Timestamp::from_micros(i64::MIN);
const END: Timestamp = Timestamp::from_micros(i64::MAX);

/// Where a walk goes on: a tenant, and the first time of use that is not checked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    pub tenant: u32,
    /// In microseconds.
    pub at: i64,
}

impl Place {
    pub const START: Self = Self { tenant: 0, at: i64::MIN };
}

/// A part of the ledger that is compared in one snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub first: TenantNo,
    pub last: TenantNo,
    /// Times of use, in whole buckets.
    pub times: Window,
    /// Only of this meter; all without.
    pub meter: Option<MeterNo>,
    /// Whether the tenants' counters are compared too. They know no time of use.
    pub counters: bool,
}

impl Slice {
    /// Everything of these tenants.
    pub fn of_tenants(first: TenantNo, last: TenantNo) -> Self {
        Self { first, last, times: Window { start: START, end: END }, meter: None, counters: true }
    }

    /// A part of one tenant's usage. The last part has the counters.
    pub fn of_times(tenant: TenantNo, times: Window) -> Self {
        let counters = times.end == END;
        Self { first: tenant, last: tenant, times, meter: None, counters }
    }

    /// One window of a sample.
    pub fn of_window(tenant: TenantNo, meter: MeterNo, times: Window) -> Self {
        Self { first: tenant, last: tenant, times, meter: Some(meter), counters: false }
    }

    /// Whether totals are compared with it, and not counters alone.
    pub fn has_totals(&self) -> bool {
        self.meter != Some(NO_METER)
    }

    /// Whether it has all usage of its tenants.
    pub fn is_whole(&self) -> bool {
        self.meter.is_none() && self.times == Window { start: START, end: END }
    }

    /// The counters of one tenant alone.
    pub fn of_counters(tenant: TenantNo) -> Self {
        Self { meter: Some(NO_METER), ..Self::of_tenants(tenant, tenant) }
    }

    /// Whether a walk at this place goes on with it.
    pub fn starts_at(&self, place: Place) -> bool {
        (self.first.0, self.times.start.micros()) == (place.tenant, place.at)
    }

    /// Whether a window of its tenants belongs to it; without a meter it is of a counter.
    pub fn has_window(&self, meter: Option<MeterNo>, start: Timestamp) -> bool {
        match meter {
            None => self.counters,
            Some(meter) => self.times.contains(start) && self.meter.is_none_or(|own| own == meter),
        }
    }

    /// Where the walk goes on after it; none at the end.
    pub fn after(&self) -> Option<Place> {
        if self.times.end < END {
            return Some(Place { tenant: self.last.0, at: self.times.end.micros() });
        }
        (self.last.0 < TENANTS_END).then(|| Place { tenant: self.last.0 + 1, at: i64::MIN })
    }

    /// Smaller slices of the same, to find out which of them cannot be read: half of the tenants
    /// each, or of one tenant each meter and the counters. None if there are none smaller.
    fn parts(&self, catalog: &Catalog, tenant_last: TenantNo) -> Vec<Self> {
        let (first, last) = (self.first.0, self.last.0);
        if first > tenant_last.0 {
            return Vec::new();
        }
        if first < last {
            // No tenant has a number beyond the last one: those numbers are one part.
            let middle = match last > tenant_last.0 {
                true => tenant_last.0,
                false => first + (last - first) / 2,
            };
            let lower = Self { last: TenantNo(middle), ..*self };
            return vec![lower, Self { first: TenantNo(middle + 1), ..*self }];
        }
        if self.meter.is_some() {
            return Vec::new();
        }
        let mut meters = catalog.numbers();
        meters.sort_unstable();
        let of = |meter| Self { meter: Some(meter), counters: false, ..*self };
        let counters = Self { meter: Some(NO_METER), ..*self };
        meters.into_iter().map(of).chain(self.counters.then_some(counters)).collect()
    }

    /// In words, for what could not be checked; `name` gives the name of its first tenant.
    pub fn describe(&self, name: Option<&str>, catalog: &Catalog) -> String {
        let (first, last) = (self.first.0, self.last.0);
        let mut tenants = match name {
            _ if first < last => format!("tenants number {first} to {last}"),
            Some(name) => format!("tenant {name}"),
            None => format!("tenant number {first}"),
        };
        match self.meter.map(|meter| (meter, catalog.get(meter))) {
            None => {}
            Some((NO_METER, _)) => tenants.push_str(", counters"),
            Some((_, Some(meter))) => tenants.push_str(&format!(", meter {}", meter.slug.as_str())),
            Some((number, None)) => tenants.push_str(&format!(", meter number {}", number.0)),
        }
        let Window { start, end } = self.times;
        match (start == START, end == END) {
            (true, true) => tenants,
            (true, false) => format!("{tenants}, before {end}"),
            (false, true) => format!("{tenants}, from {start}"),
            (false, false) => format!("{tenants}, {start} to {end}"),
        }
    }
}

/// How often a slice is divided: what makes all of it unreadable is not sought in each of many
/// tenants.
const DIVISIONS_MAX: usize = 500;

/// A slice, and the parts of it that are left to compare after some of it could not be read.
#[derive(Debug, Clone)]
pub struct Parts {
    left: Vec<Slice>,
    divisions: usize,
}

impl Parts {
    pub fn of(slice: Slice) -> Self {
        Self { left: vec![slice], divisions: 0 }
    }

    pub fn pop(&mut self) -> Option<Slice> {
        self.left.pop()
    }

    /// Divides a part that could not be read; `tenant_last` is the highest number of a tenant.
    /// Returns false if it is not divided further.
    pub fn split(&mut self, part: Slice, catalog: &Catalog, tenant_last: TenantNo) -> bool {
        let parts = part.parts(catalog, tenant_last);
        let divided = !parts.is_empty() && self.divisions < DIVISIONS_MAX;
        if divided {
            self.divisions += 1;
            self.left.extend(parts.into_iter().rev());
        }
        divided
    }
}

/// The length that borders between slices of one tenant keep to: no meter's bucket is longer.
pub fn border_grain(catalog: &Catalog) -> i64 {
    let longest = catalog.list().iter().map(|meter| meter.spec.bucket.micros()).max();
    longest.unwrap_or(MICROS_PER_HOUR).max(MICROS_PER_HOUR)
}

/// The start of the grain that a moment lies in; the beginning of time stays what it is.
pub fn grain_start(at: Timestamp, grain: i64) -> Timestamp {
    if at == START { at } else { Timestamp::from_micros(at.micros().div_euclid(grain) * grain) }
}

/// Cuts tenants into slices, from one with the number of events of each, in ascending order.
/// Those that are too large for a slice are left to [`cut_times`].
#[derive(Debug)]
pub struct TenantCutter {
    first: u32,
    events: u64,
}

impl TenantCutter {
    pub fn starting(first: TenantNo) -> Self {
        Self { first: first.0, events: 0 }
    }

    /// The slice of tenants that end before this one, if it does not fit in. `alone` says that it
    /// does not fit into any slice.
    pub fn push(&mut self, tenant: TenantNo, events: u64) -> (Option<Slice>, bool) {
        let alone = events > SLICE_EVENTS;
        let full = alone || self.events.saturating_add(events) > SLICE_EVENTS;
        let ended = (full && self.first < tenant.0)
            .then(|| Slice::of_tenants(TenantNo(self.first), TenantNo(tenant.0 - 1)));
        if full {
            (self.first, self.events) = (tenant.0, 0);
        }
        if alone {
            self.first = tenant.0.saturating_add(1);
        } else {
            self.events += events;
        }
        (ended, alone)
    }

    /// Everything that is left.
    pub fn finish(self) -> Option<Slice> {
        let rest = Slice::of_tenants(TenantNo(self.first), TenantNo(TENANTS_END));
        (self.first <= TENANTS_END).then_some(rest)
    }

    /// Where the slice that is not ended begins.
    pub fn open(&self) -> Place {
        Place { tenant: self.first, at: i64::MIN }
    }
}

/// Cuts one tenant's usage into slices, from a time on; `events` is how many it has of each grain,
/// in ascending order.
pub fn cut_times(
    tenant: TenantNo,
    from: Timestamp,
    events: impl IntoIterator<Item = (Timestamp, u64)>,
) -> Vec<Slice> {
    let (mut slices, mut start, mut sum) = (Vec::new(), from, 0u64);
    for (at, count) in events.into_iter().filter(|(at, _)| *at >= from) {
        if sum > 0 && sum.saturating_add(count) > SLICE_EVENTS {
            slices.push(Slice::of_times(tenant, Window { start, end: at }));
            (start, sum) = (at, 0);
        }
        sum = sum.saturating_add(count);
    }
    slices.push(Slice::of_times(tenant, Window { start, end: END }));
    slices
}

/// What a store read and found of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceReport {
    pub events: u64,
    /// Everything that was read: events and stored rows, in all passes.
    pub rows: u64,
    pub totals: u64,
    pub counters: u64,
    pub mismatches: Vec<Mismatch>,
    /// Further ones, which are not listed.
    pub more: u64,
    /// The most rows that were held at once.
    pub rows_held: usize,
}

impl SliceReport {
    /// The differences with their names.
    pub fn of(
        compared: Compared,
        catalog: &Catalog,
        mut name: impl FnMut(TenantNo) -> Option<String>,
    ) -> Self {
        let Compared { totals, counters, differences, more, rows_held, .. } = compared;
        let mut mismatches: Vec<Mismatch> = Vec::new();
        for difference in &differences {
            let found = Mismatch::of(difference, catalog, name(difference.row.tenant()));
            // A total of a unique meter may differ in its number and in many values.
            match mismatches.iter_mut().find(|other| other.is_of(&found)) {
                Some(other) => other.join(found),
                None => mismatches.push(found),
            }
        }
        Self { totals, counters, mismatches, more, rows_held, ..Self::default() }
    }
}

/// A window whose stored total, or counter, is not what the events add up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    pub tenant_no: TenantNo,
    /// The tenant's id, or its number if it has none.
    pub tenant: String,
    /// None for a counter of accepted events.
    pub meter_no: Option<MeterNo>,
    /// The meter's slug; `accepted` for a counter.
    pub meter: String,
    /// The bucket, or the hour of receipt of a counter.
    pub window: Window,
    /// As totals are kept apart by; empty where there is nothing to keep apart.
    pub group: String,
    /// What is stored, and what the events add up to, in words.
    pub stored: String,
    pub events: String,
}

impl Mismatch {
    fn of(difference: &Difference, catalog: &Catalog, name: Option<String>) -> Self {
        let Difference { row, .. } = difference;
        let (tenant_no, meter_no, start) = (row.tenant(), row.meter(), row.start());
        let meter = meter_no.map(|number| (number, catalog.get(number)));
        let bucket = match &meter {
            None => MICROS_PER_HOUR,
            Some((_, meter)) => meter.map_or(Bucket::default(), |one| one.spec.bucket).micros(),
        };
        let meter = match meter {
            None => "accepted".to_owned(),
            Some((_, Some(meter))) => meter.slug.to_string(),
            Some((number, None)) => format!("number {}", number.0),
        };
        let (stored, events) = difference.sides();
        Self {
            tenant_no,
            tenant: name.unwrap_or_else(|| format!("number {}", tenant_no.0)),
            meter_no,
            meter,
            window: Window { start, end: start.saturating_add_micros(bucket) },
            group: row.group().to_owned(),
            stored,
            events,
        }
    }
}

impl Mismatch {
    /// Whether both are of one tenant, meter, window and group.
    pub fn is_of(&self, other: &Self) -> bool {
        let key = |one: &Self| (one.tenant_no, one.meter_no, one.window.start);
        key(self) == key(other) && self.group == other.group
    }

    fn join(&mut self, other: Self) {
        for (text, more) in [(&mut self.stored, other.stored), (&mut self.events, other.events)] {
            if text.len() < JOINED_BYTES_MAX {
                text.push_str(", ");
                text.push_str(&more);
            }
        }
    }
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tenant, meter, window, group, stored, events, meter_no, .. } = self;
        let Window { start, end } = window;
        match meter_no {
            None => write!(f, "tenant {tenant}, counter of {start} to {end}: ")?,
            Some(_) => write!(f, "tenant {tenant}, meter {meter}, window {start} to {end}: ")?,
        }
        if !group.is_empty() {
            write!(f, "group {group}: ")?;
        }
        write!(f, "stored is {stored}, the events add up to {events}")
    }
}

/// A part that could not be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unchecked {
    pub part: String,
    pub why: String,
}

/// A walk through everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walk {
    pub started_at: Timestamp,
    /// None while it goes on.
    pub ended_at: Option<Timestamp>,
    /// Where it goes on.
    pub next: Place,
    pub events: u64,
    pub totals: u64,
    pub mismatches: u64,
    /// Parts that could not be read, at most [`UNCHECKED_MAX`] by name.
    pub unchecked: Vec<Unchecked>,
    pub unchecked_parts: u64,
}

impl Walk {
    pub fn starting(at: Timestamp) -> Self {
        Self {
            started_at: at,
            ended_at: None,
            next: Place::START,
            events: 0,
            totals: 0,
            mismatches: 0,
            unchecked: Vec::new(),
            unchecked_parts: 0,
        }
    }

    /// Takes the result of a slice, or of a part of one.
    pub fn add(&mut self, report: &SliceReport) {
        self.events += report.events;
        self.totals += report.totals;
        let listed = u64::try_from(report.mismatches.len()).expect("a length fits 64 bits");
        self.mismatches += listed + report.more;
    }

    pub fn leave_out(&mut self, part: Unchecked) {
        self.unchecked_parts += 1;
        if self.unchecked.len() < UNCHECKED_MAX {
            self.unchecked.push(part);
        }
    }

    /// Goes on after a slice.
    pub fn pass(&mut self, slice: &Slice, now: Timestamp) {
        match slice.after() {
            Some(next) => self.next = next,
            None => self.ended_at = Some(now),
        }
    }

    /// Whether it compared everything.
    pub fn is_complete(&self) -> bool {
        self.ended_at.is_some() && self.unchecked_parts == 0
    }
}

/// What is known of the self-check, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SelfCheck {
    /// When the first server with a self-check looked at this store.
    pub since: Option<Timestamp>,
    /// The walk that goes on, or that ended last.
    pub walk: Option<Walk>,
    /// The last walk that compared everything.
    pub complete: Option<Walk>,
    pub sample: Sampled,
}

/// The samples.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sampled {
    /// When the last one ended.
    pub at: Option<Timestamp>,
    /// The tenant and meter that the next one begins after.
    pub last: (u32, u16),
    /// The active tenant that the next one begins after.
    pub active: u32,
    /// Windows of it that were compared.
    pub windows: u64,
    /// Of it, that could not be read.
    pub unchecked: Vec<Unchecked>,
}

/// When work is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The hour of the day in UTC in which a walk begins.
    pub walk_hour: u32,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Sample,
    BeginWalk,
    Walk,
    Nothing,
}

/// A store is walked through at least so often; a walk may take a day.
const OVERDUE_AFTER: i64 = 2 * MICROS_PER_DAY;

impl Schedule {
    /// The last moment at which a walk was to begin.
    fn last_begin(self, now: Timestamp) -> Timestamp {
        let hour = i64::from(self.walk_hour) * MICROS_PER_HOUR;
        let day = (now.micros() - hour).div_euclid(MICROS_PER_DAY);
        Timestamp::from_micros(day * MICROS_PER_DAY + hour)
    }

    /// A sample comes before the next slice of a walk: it is small. A walk that is not done when
    /// the next one should begin goes on; to begin again would leave its end unchecked for ever.
    pub fn due(self, check: &SelfCheck, now: Timestamp) -> Due {
        let hour = now.micros().div_euclid(MICROS_PER_HOUR);
        let sampled = |at: Timestamp| at.micros().div_euclid(MICROS_PER_HOUR) >= hour;
        if !check.sample.at.is_some_and(sampled) {
            return Due::Sample;
        }
        match &check.walk {
            None => Due::BeginWalk,
            Some(walk) if walk.ended_at.is_none() => Due::Walk,
            Some(walk) if walk.started_at < self.last_begin(now) => Due::BeginWalk,
            Some(_) => Due::Nothing,
        }
    }
}

impl SelfCheck {
    /// Why the store is not known to agree with its events; none if everything was compared
    /// lately. A mismatch is an alert of its own.
    pub fn not_done(&self, now: Timestamp) -> Option<String> {
        if let Some(walk) = &self.walk
            && let Some(first) = walk.unchecked.first()
        {
            let parts = walk.unchecked_parts;
            let (part, why) = (&first.part, &first.why);
            return Some(format!("{parts} parts could not be checked; the first: {part}: {why}"));
        }
        if let Some(first) = self.sample.unchecked.first() {
            let (part, why) = (&first.part, &first.why);
            return Some(format!("a window of the sample could not be checked: {part}: {why}"));
        }
        let begun = self.complete.as_ref().map(|walk| walk.started_at).or(self.since)?;
        if begun.saturating_add_micros(OVERDUE_AFTER) > now {
            return None;
        }
        let last = match &self.complete {
            Some(walk) => format!("since the walk that began at {}", walk.started_at),
            None => format!("since {begun}, when the self-check was begun"),
        };
        Some(format!("not everything has been checked {last}"))
    }

    /// Begins a walk.
    pub fn begin_walk(&mut self, now: Timestamp) {
        self.walk = Some(Walk::starting(now));
    }

    /// Keeps a walk that has ended and compared everything.
    pub fn end_walk(&mut self) {
        if let Some(walk) = self.walk.as_ref().filter(|walk| walk.is_complete()) {
            self.complete = Some(walk.clone());
        }
    }
}

/// Two windows of a tenant and meter for a sample: the newest, and one of the others by chance.
/// `first` and `last` are the starts of its first and last bucket.
pub fn choose_windows(
    bucket: Bucket,
    (first, last): (Timestamp, Timestamp),
    chance: u64,
) -> Vec<Window> {
    let window =
        |start: Timestamp| Window { start, end: start.saturating_add_micros(bucket.micros()) };
    let newest = window(bucket.start_of(last));
    let buckets = (last.micros().saturating_sub(first.micros())) / bucket.micros();
    let Some(buckets) = u64::try_from(buckets).ok().filter(|buckets| *buckets > 0) else {
        return vec![newest];
    };
    let place = i64::try_from(chance % buckets).expect("fewer than 2^63");
    let other = bucket.start_of(first).saturating_add_micros(place * bucket.micros());
    vec![newest, window(other)]
}

#[cfg(test)]
mod tests;
