//! What is stored of a slice, compared with what its events add up to.
//!
//! Both sides come in any order and in any number of parts. A row is a total, one value that a
//! unique meter has seen, or a counter.
//!
//! Invariant: at most `rows_max` rows are held at once, whatever a slice holds. When there would be
//! more, the comparison keeps half of them, by a hash of what they belong to, and asks for another
//! pass over the same slice for the other half ([`Comparison::next_pass`]). Each row is judged in
//! exactly one pass, with both of its sides.

use crate::rules::event::Event;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::Meter;
use crate::rules::rollup::{Accumulator, FoldError, Rollup, RollupKey};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// Differences of a slice that are shown one by one; of further ones only the number.
pub const DIFFERENCES_MAX: usize = 100;

/// What a row belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKey {
    /// What a tenant sent in an hour of receipt, and was counted.
    Counter(TenantNo, Timestamp),
    Total(RollupKey),
    /// A value of a unique meter's total.
    Value(RollupKey, Box<str>),
}

impl RowKey {
    pub fn tenant(&self) -> TenantNo {
        match self {
            Self::Counter(tenant, _) => *tenant,
            Self::Total(key) | Self::Value(key, _) => key.tenant,
        }
    }

    /// None for a counter, which is of all meters.
    pub fn meter(&self) -> Option<MeterNo> {
        match self {
            Self::Counter(..) => None,
            Self::Total(key) | Self::Value(key, _) => Some(key.meter),
        }
    }

    /// The start of its window.
    pub fn start(&self) -> Timestamp {
        match self {
            Self::Counter(_, hour) => *hour,
            Self::Total(key) | Self::Value(key, _) => key.bucket_start,
        }
    }

    pub fn group(&self) -> &str {
        match self {
            Self::Counter(..) => "",
            Self::Total(key) | Self::Value(key, _) => key.group.as_text(),
        }
    }
}

/// Both sides of a row; none where a side does not have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Sides {
    stored: Option<Rollup>,
    events: Option<Rollup>,
}

/// A row whose sides are not equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub row: RowKey,
    pub stored: Option<Rollup>,
    pub events: Option<Rollup>,
}

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compared {
    /// Totals that were judged.
    pub totals: u64,
    pub counters: u64,
    /// In the order of their rows, at most [`DIFFERENCES_MAX`].
    pub differences: Vec<Difference>,
    /// How many more there are.
    pub more: u64,
    /// Passes over the slice.
    pub passes: u64,
    /// The most rows that were held at once.
    pub rows_held: usize,
}

/// The rows whose hash ends with these bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    bits: u32,
    ending: u64,
}

impl Part {
    const ALL: Self = Self { bits: 0, ending: 0 };
    /// Rows that agree in so many bits are one row.
    const BITS_MAX: u32 = 62;

    fn holds(self, hash: u64) -> bool {
        hash & ((1 << self.bits) - 1) == self.ending
    }

    fn halves(self) -> (Self, Self) {
        let bits = self.bits + 1;
        (Self { bits, ..self }, Self { bits, ending: self.ending | 1 << self.bits })
    }
}

/// A slice that is being compared.
pub struct Comparison {
    rows_max: usize,
    rows: HashMap<RowKey, Sides>,
    part: Part,
    /// What further passes are for.
    later: Vec<Part>,
    compared: Compared,
}

#[derive(Clone, Copy)]
enum Side {
    Stored,
    Events,
}

impl Comparison {
    pub fn new(rows_max: usize) -> Self {
        Self {
            rows_max: rows_max.max(1),
            rows: HashMap::new(),
            part: Part::ALL,
            later: Vec::new(),
            compared: Compared::default(),
        }
    }

    /// Adds what one event adds to its total.
    pub fn add_event(
        &mut self,
        tenant: TenantNo,
        event: &Event,
        meter: &Meter,
    ) -> Result<(), FoldError> {
        let (bucket_start, group, rollup) = Rollup::of_event(event, meter);
        let key = RollupKey { tenant, meter: event.meter, bucket_start, group };
        self.add_total(Side::Events, key, rollup)
    }

    /// Adds a stored total, or a part of one.
    pub fn add_stored(&mut self, key: RollupKey, rollup: Rollup) -> Result<(), FoldError> {
        self.add_total(Side::Stored, key, rollup)
    }

    /// Adds a stored value of a unique meter's total.
    pub fn add_stored_value(&mut self, key: RollupKey, value: Box<str>) -> Result<(), FoldError> {
        self.add(Side::Stored, RowKey::Value(key, value), counted(0))
    }

    /// Adds events that were received from a tenant at a moment.
    pub fn add_received(
        &mut self,
        tenant: TenantNo,
        at: Timestamp,
        events: u64,
    ) -> Result<(), FoldError> {
        let hour = at.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR;
        let row = RowKey::Counter(tenant, Timestamp::from_micros(hour));
        self.add(Side::Events, row, counted(events))
    }

    /// Adds a stored counter of accepted events, or a part of one.
    pub fn add_counter(
        &mut self,
        tenant: TenantNo,
        hour: Timestamp,
        accepted: u64,
    ) -> Result<(), FoldError> {
        // An hour in which nothing was counted has no event that could say so.
        if accepted == 0 {
            return Ok(());
        }
        self.add(Side::Stored, RowKey::Counter(tenant, hour), counted(accepted))
    }

    fn add_total(&mut self, side: Side, key: RollupKey, rollup: Rollup) -> Result<(), FoldError> {
        let Rollup { count, mut value } = rollup;
        if let Accumulator::Unique(values) = &mut value {
            for value in std::mem::take(values) {
                self.add(side, RowKey::Value(key.clone(), value), counted(0))?;
            }
        }
        self.add(side, RowKey::Total(key), Rollup { count, value })
    }

    fn add(&mut self, side: Side, row: RowKey, rollup: Rollup) -> Result<(), FoldError> {
        if self.part.bits > 0 && !self.part.holds(hash_of(&row)) {
            return Ok(());
        }
        let sides = self.rows.entry(row).or_default();
        let sum = match side {
            Side::Stored => &mut sides.stored,
            Side::Events => &mut sides.events,
        };
        match sum {
            Some(sum) => sum.fold(&rollup)?,
            None => *sum = Some(rollup),
        }
        while self.rows.len() > self.rows_max && self.part.bits < Part::BITS_MAX {
            let (now, later) = self.part.halves();
            self.rows.retain(|row, _| now.holds(hash_of(row)));
            self.later.push(later);
            self.part = now;
        }
        self.compared.rows_held = self.compared.rows_held.max(self.rows.len());
        Ok(())
    }

    /// Judges the rows of this pass. Returns whether the slice must be read again from its start.
    pub fn next_pass(&mut self) -> bool {
        self.compared.passes += 1;
        for (row, Sides { stored, events }) in self.rows.drain() {
            match &row {
                RowKey::Counter(..) => self.compared.counters += 1,
                RowKey::Total(_) => self.compared.totals += 1,
                RowKey::Value(..) => {}
            }
            if stored != events {
                self.compared.differences.push(Difference { row, stored, events });
                // Kept small on the way: a slice may differ everywhere.
                if self.compared.differences.len() > 2 * DIFFERENCES_MAX {
                    shorten(&mut self.compared);
                }
            }
        }
        match self.later.pop() {
            Some(part) => {
                self.part = part;
                true
            }
            None => false,
        }
    }

    pub fn finish(self) -> Compared {
        let mut compared = self.compared;
        shorten(&mut compared);
        compared
    }
}

fn shorten(compared: &mut Compared) {
    compared.differences.sort_unstable_by(|a, b| a.row.cmp(&b.row));
    let beyond = compared.differences.len().saturating_sub(DIFFERENCES_MAX);
    compared.differences.truncate(DIFFERENCES_MAX);
    compared.more += u64::try_from(beyond).expect("a length fits 64 bits");
}

fn counted(count: u64) -> Rollup {
    Rollup { count, value: Accumulator::Count }
}

/// The same in every pass.
fn hash_of(row: &RowKey) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(row)
}

impl Difference {
    /// What is stored, and what the events add up to, in words.
    pub fn sides(&self) -> (String, String) {
        let say = |side: &Option<Rollup>| match (side, &self.row) {
            (None, RowKey::Value(_, value)) => format!("no value {value:?}"),
            (None, RowKey::Counter(..) | RowKey::Total(_)) => "nothing".to_owned(),
            (Some(_), RowKey::Value(_, value)) => format!("the value {value:?}"),
            (Some(rollup), RowKey::Counter(..)) => format!("{} accepted", rollup.count),
            (Some(rollup), RowKey::Total(_)) => say_total(rollup),
        };
        (say(&self.stored), say(&self.events))
    }
}

fn say_total(rollup: &Rollup) -> String {
    let events = if rollup.count == 1 { "event" } else { "events" };
    match &rollup.value {
        Accumulator::Sum(quantity) | Accumulator::Min(quantity) | Accumulator::Max(quantity) => {
            format!("{quantity} of {} {events}", rollup.count)
        }
        Accumulator::Latest { at, id, quantity } => {
            format!("{quantity} of {} {events}, the latest {} at {at}", rollup.count, id.as_str())
        }
        Accumulator::Count | Accumulator::Unique(_) => format!("{} {events}", rollup.count),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rules::quantity::Quantity;
    use crate::rules::rollup::Group;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(tenant: u32, bucket: i64) -> RollupKey {
        RollupKey {
            tenant: TenantNo(tenant),
            meter: MeterNo(1),
            bucket_start: Timestamp::from_micros(bucket),
            group: Group::default(),
        }
    }

    fn sum(count: u64, units: i128) -> Rollup {
        Rollup { count, value: Accumulator::Sum(Quantity::from_units(units)) }
    }

    fn unique(values: &[u8]) -> Rollup {
        let count = u64::try_from(values.len()).unwrap();
        let values = values.iter().map(|value| value.to_string().into_boxed_str()).collect();
        Rollup { count, value: Accumulator::Unique(values) }
    }

    /// Compares parts in as many passes as it takes.
    fn compare(
        rows_max: usize,
        events: &[(RollupKey, Rollup)],
        stored: &[(RollupKey, Rollup)],
    ) -> Compared {
        let mut comparison = Comparison::new(rows_max);
        loop {
            for (key, rollup) in events {
                comparison.add_total(Side::Events, key.clone(), rollup.clone()).unwrap();
            }
            for (key, rollup) in stored {
                comparison.add_stored(key.clone(), rollup.clone()).unwrap();
            }
            if !comparison.next_pass() {
                return comparison.finish();
            }
        }
    }

    proptest! {
        #[test]
        fn passes_find_what_one_pass_finds_and_hold_no_more_than_they_may(
            events in prop::collection::vec((0..4u32, 0..20i64, 1..4u64, -9..9i128), 0..200),
            stored in prop::collection::vec((0..4u32, 0..20i64, 1..4u64, -9..9i128), 0..60),
            seen in prop::collection::vec(any::<u8>(), 0..60),
            kept in prop::collection::vec(any::<u8>(), 0..60),
            rows_max in 1..40usize,
        ) {
            let rows = |side: Vec<(u32, i64, u64, i128)>, values: &[u8]| {
                let totals = side.into_iter().map(|(t, b, n, units)| (key(t, b), sum(n, units)));
                let values = (9, values);
                let unique = (key(values.0, 0), unique(values.1));
                totals.chain([unique]).collect::<Vec<_>>()
            };
            let (events, stored) = (rows(events, &seen), rows(stored, &kept));
            let whole = compare(usize::MAX, &events, &stored);
            let parts = compare(rows_max, &events, &stored);
            prop_assert!(parts.rows_held <= rows_max, "{} of {}", parts.rows_held, rows_max);
            prop_assert_eq!(whole.passes, 1);
            let shown = |one: &Compared| {
                let listed = u64::try_from(one.differences.len()).unwrap();
                (one.totals, listed + one.more)
            };
            prop_assert_eq!(shown(&parts), shown(&whole));
            if whole.more == 0 {
                prop_assert_eq!(&parts.differences, &whole.differences);
            }
            // A model: both sides added up by key.
            let add_up = |rows: &[(RollupKey, Rollup)]| {
                let mut sums: BTreeMap<RollupKey, Rollup> = BTreeMap::new();
                for (key, rollup) in rows {
                    match sums.get_mut(key) {
                        Some(sum) => sum.fold(rollup).unwrap(),
                        None => drop(sums.insert(key.clone(), rollup.clone())),
                    }
                }
                sums
            };
            let equal = add_up(&events) == add_up(&stored);
            prop_assert_eq!(whole.differences.is_empty(), equal);
        }
    }

    #[test]
    fn a_lost_event_and_a_counter_that_is_off_by_one_have_both_sides() {
        let mut comparison = Comparison::new(10);
        let tenant = TenantNo(7);
        comparison.add_total(Side::Events, key(7, 0), sum(3, 3)).unwrap();
        comparison.add_stored(key(7, 0), sum(2, 2)).unwrap();
        let hour = Timestamp::from_micros(MICROS_PER_HOUR);
        comparison.add_received(tenant, hour.saturating_add_micros(5), 3).unwrap();
        comparison.add_counter(tenant, hour, 4).unwrap();
        comparison.add_counter(tenant, Timestamp::from_micros(0), 0).unwrap();
        assert!(!comparison.next_pass());
        let compared = comparison.finish();
        let shown: Vec<_> = compared.differences.iter().map(Difference::sides).collect();
        let pair = |stored: &str, events: &str| (stored.to_owned(), events.to_owned());
        let expected = [
            pair("4 accepted", "3 accepted"),
            pair("0.000000000002 of 2 events", "0.000000000003 of 3 events"),
        ];
        assert_eq!(shown, expected);
        assert_eq!((compared.totals, compared.counters), (1, 1));
    }

    #[test]
    fn differences_are_bounded_and_counted() {
        let stored: Vec<_> = (0..1_000).map(|bucket| (key(1, bucket), sum(1, 1))).collect();
        let compared = compare(16, &[], &stored);
        assert_eq!((compared.differences.len(), compared.more), (DIFFERENCES_MAX, 900));
        assert_eq!(compared.differences[0].sides().1, "nothing");
    }
}
