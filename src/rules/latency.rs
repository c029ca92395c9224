//! Delivery latency: how long after its time of use an event is received.
//!
//! Counts by size, eight sizes for each doubling, so a percentile is at most an eighth too high and
//! never too low. Old counts fade by halves, so that the answer follows what producers do now.
//!
//! Invariant: memory is fixed, whatever is counted.

use super::span::Span;

/// Sizes for each doubling.
const STEPS: u64 = 8;
/// Doublings: 2^33 milliseconds are 99 days, longer than any event may wait.
const DOUBLINGS: u64 = 33;
const SIZES: usize = 34 * 8;
/// Counts are halved when there are so many.
const COUNT_MAX: u64 = 100_000;

#[derive(Debug, Clone)]
pub struct Latency {
    counts: Box<[u32; SIZES]>,
    total: u64,
}

/// Percentiles, in milliseconds, and how many events they rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percentiles {
    pub samples: u64,
    pub p50_ms: u64,
    pub p95_ms: u64,
    pub p99_ms: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: Box::new([0; SIZES]), total: 0 }
    }
}

impl Latency {
    /// Counts an event that came so long after its time; one from the future came at once.
    pub fn record(&mut self, micros: i64) {
        let millis = u64::try_from(micros.max(0)).unwrap_or(0) / 1_000;
        self.counts[size_of(millis)] += 1;
        self.total += 1;
        if self.total >= COUNT_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u64::from(*count)).sum();
        }
    }

    /// None before the first event.
    pub fn percentiles(&self) -> Option<Percentiles> {
        (self.total > 0).then(|| Percentiles {
            samples: self.total,
            p50_ms: self.percentile(50),
            p95_ms: self.percentile(95),
            p99_ms: self.percentile(99),
        })
    }

    fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.total * percent).div_ceil(100);
        let mut seen = 0;
        for (size, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return largest_of(size);
            }
        }
        largest_of(SIZES - 1)
    }
}

impl Percentiles {
    /// What `late_until` should at least be: twice what all but one in a hundred need, in whole
    /// minutes, or in whole hours where it is many.
    pub fn recommended_late_until(self) -> Span {
        let seconds = self.p99_ms.saturating_mul(2).div_ceil(1_000);
        let unit = if seconds > 3 * 3_600 { 3_600 } else { 60 };
        let seconds = seconds.div_ceil(unit).saturating_mul(unit);
        Span::from_seconds(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

/// Below eight milliseconds each has its size; above, eight for each doubling.
fn size_of(millis: u64) -> usize {
    let size = match millis.checked_ilog2() {
        Some(power) if power >= 3 => {
            let power = u64::from(power).min(DOUBLINGS);
            let millis = millis.min((1 << (DOUBLINGS + 1)) - 1);
            (power - 2) * STEPS + ((millis >> (power - 3)) & (STEPS - 1))
        }
        Some(_) | None => millis,
    };
    usize::try_from(size).map_or(SIZES - 1, |size| size.min(SIZES - 1))
}

/// The largest number of milliseconds of that size.
fn largest_of(size: usize) -> u64 {
    let size = u64::try_from(size).expect("few sizes");
    if size < STEPS {
        return size;
    }
    let (power, step) = (size / STEPS + 2, size % STEPS);
    ((STEPS + step + 1) << (power - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_of_a_known_crowd() {
        let mut latency = Latency::default();
        assert_eq!(latency.percentiles(), None);
        for second in 1..=100 {
            latency.record(second * 1_000_000);
        }
        let found = latency.percentiles().expect("there are events");
        let near = |found: u64, exact: u64| (exact..=exact + exact / 8).contains(&found);
        assert!(near(found.p50_ms, 50_000) && near(found.p95_ms, 95_000), "{found:?}");
        assert!(near(found.p99_ms, 99_000) && found.samples == 100, "{found:?}");
        assert!(found.recommended_late_until() >= Span::from_seconds(198));
    }

    #[test]
    fn old_counts_fade() {
        let mut latency = Latency::default();
        (0..100_000).for_each(|_| latency.record(1_000_000_000));
        (0..400_000).for_each(|_| latency.record(1_000));
        let found = latency.percentiles().expect("there are events");
        assert!(found.samples < COUNT_MAX && found.p95_ms <= 1, "{found:?}");
    }

    proptest! {
        #[test]
        fn a_size_holds_its_numbers(millis in 0u64..8_000_000_000) {
            let size = size_of(millis);
            prop_assert!(largest_of(size) >= millis);
            prop_assert!(largest_of(size) <= millis + millis / 8);
            prop_assert!(size == 0 || largest_of(size - 1) < millis);
        }

        #[test]
        fn anything_is_counted(micros in any::<i64>()) {
            let mut latency = Latency::default();
            latency.record(micros);
            prop_assert_eq!(latency.percentiles().map(|p| p.samples), Some(1));
        }
    }
}
