//! How many events a commit takes, by what the last ones cost.
//!
//! A sender waits for the whole of the commit before its own, so a commit is to end within
//! [`COMMIT_TARGET`]. Events differ in cost: one that is counted takes microseconds, and one that
//! goes into an inbox or is the first of its group takes ten times as long.
//!
//! Invariant: a group has room for at least one turn of a lane, and holds no more than the settings
//! allow.

use super::lanes::TURN_EVENTS;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const COMMIT_TARGET: Duration = Duration::from_millis(15);
/// Smaller groups tell what a sync costs, and not an event.
const MEASURED_EVENTS_MIN: usize = TURN_EVENTS / 2;

/// What an event costs, of late, in nanoseconds.
#[derive(Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// Events of the next group.
    pub fn limit(&self, events_max: usize) -> usize {
        let cost = u128::from(self.0.load(Ordering::Relaxed).max(1));
        let affordable = usize::try_from(COMMIT_TARGET.as_nanos() / cost).unwrap_or(usize::MAX);
        affordable.clamp(TURN_EVENTS.min(events_max), events_max)
    }

    /// Takes in what a commit cost.
    pub fn record(&self, events: usize, spent: Duration) {
        if events < MEASURED_EVENTS_MIN {
            return;
        }
        let Ok(events) = u128::try_from(events) else { return };
        let cost = u64::try_from(spent.as_nanos() / events).unwrap_or(u64::MAX);
        // One partition has one worker, so nobody else writes in between.
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before / 2 + cost / 2, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expensive_events_make_small_groups_and_cheap_ones_large_groups() {
        let pace = Pace::default();
        assert_eq!(pace.limit(10_000), 10_000);
        for _ in 0..20 {
            pace.record(1_000, Duration::from_millis(500));
        }
        assert_eq!((pace.limit(10_000), pace.limit(100)), (TURN_EVENTS, 100));
        for _ in 0..20 {
            pace.record(1_000, Duration::from_millis(5));
        }
        assert!((2_500..=3_500).contains(&pace.limit(10_000)), "{}", pace.limit(10_000));
        // A sync for one event says nothing about events.
        pace.record(1, Duration::from_secs(1));
        assert!(pace.limit(10_000) >= 2_500);
    }
}
