//! How many events a commit takes, by what the last ones cost.
//!
//! A sender waits for the whole of the commit before its own. Alone it would wait for one sync, so
//! a commit takes about as long as one sync does while small requests come, and their senders wait
//! a few times as long as they would alone, whatever the others send. Events differ in cost: one
//! that is counted takes microseconds, and one that goes into an inbox or is the first of its group
//! takes ten times as long. While nobody sends small requests, nobody minds a longer commit, and it
//! is the faster one for those who send large ones.
//!
//! Invariant: a group has room for at least one turn of a lane, and holds no more than the settings
//! allow.

use super::lanes::TURN_EVENTS;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a commit may take, in syncs: syncing then costs at most a tenth of the throughput.
const COMMIT_SYNCS: u32 = 10;
/// The same while small requests come: at most half.
const COMMIT_SYNCS_SHARED: u32 = 1;
/// A fast disk is no reason for tiny commits, and a slow one none for endless ones.
const COMMIT_TIME_MIN: Duration = Duration::from_millis(5);
const COMMIT_TIME_MIN_SHARED: Duration = Duration::from_millis(1);
const COMMIT_TIME_MAX: Duration = Duration::from_millis(20);
/// A request of so many events is a small one.
const SMALL_EVENTS_MAX: usize = 8;
/// After a small request more are expected for so long.
const SMALL_LASTS: Duration = Duration::from_secs(1);
/// Groups of at most so many events tell what a sync costs.
const SYNC_EVENTS_MAX: usize = 4;
/// Groups of at least so many tell what an event costs.
const MEASURED_EVENTS_MIN: usize = TURN_EVENTS / 2;

/// What commits cost, of late, in nanoseconds.
pub struct Pace {
    sync: AtomicU64,
    event: AtomicU64,
    began: Instant,
    /// Until when small requests are expected, in nanoseconds since it began.
    small_until: AtomicU64,
}

impl Pace {
    /// Events of the next group, at most `events_max`. Of a store with several writers each has its
    /// share of the events, so while nobody sends small requests a commit may take as many times as
    /// long: larger groups cost the database less.
    pub fn limit(&self, events_max: usize, writers: usize) -> usize {
        let sync = Duration::from_nanos(self.sync.load(Ordering::Relaxed));
        let shared = self.small_until.load(Ordering::Relaxed) > nanos(self.began.elapsed());
        let (syncs, time_min, times) = match shared {
            true => (COMMIT_SYNCS_SHARED, COMMIT_TIME_MIN_SHARED, 1),
            false => (COMMIT_SYNCS, COMMIT_TIME_MIN, u32::try_from(writers).unwrap_or(1)),
        };
        let time = sync.saturating_mul(syncs).clamp(time_min, COMMIT_TIME_MAX) * times;
        let event = u128::from(self.event.load(Ordering::Relaxed).max(1));
        let affordable = usize::try_from(time.as_nanos() / event).unwrap_or(usize::MAX);
        affordable.clamp(TURN_EVENTS.min(events_max), events_max)
    }

    /// Takes in that a request of so many events came.
    pub fn note_request(&self, events: usize) {
        if events <= SMALL_EVENTS_MAX {
            let until = nanos(self.began.elapsed() + SMALL_LASTS);
            self.small_until.store(until, Ordering::Relaxed);
        }
    }

    /// Takes in what a commit cost.
    pub fn record(&self, events: usize, spent: Duration) {
        if events <= SYNC_EVENTS_MAX {
            average(&self.sync, spent);
        } else if events >= MEASURED_EVENTS_MIN {
            let sync = Duration::from_nanos(self.sync.load(Ordering::Relaxed));
            let events = u32::try_from(events).unwrap_or(u32::MAX);
            average(&self.event, spent.saturating_sub(sync) / events);
        }
    }
}

impl Default for Pace {
    /// Before anything was measured: a disk of middling speed, and events that cost nothing.
    fn default() -> Self {
        Self {
            sync: AtomicU64::new(3_000_000),
            event: AtomicU64::new(0),
            began: Instant::now(),
            small_until: AtomicU64::new(0),
        }
    }
}

/// One partition has one worker, so nobody else writes in between.
fn average(cost: &AtomicU64, latest: Duration) {
    cost.store(cost.load(Ordering::Relaxed) / 2 + nanos(latest) / 2, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pace: &Pace, events: usize, spent: Duration) {
        (0..20).for_each(|_| pace.record(events, spent));
    }

    #[test]
    fn expensive_events_make_small_groups_and_cheap_ones_large_groups() {
        let pace = Pace::default();
        assert_eq!(pace.limit(10_000, 1), 10_000);
        record(&pace, 1_000, Duration::from_secs(5));
        assert_eq!((pace.limit(10_000, 1), pace.limit(10, 1)), (TURN_EVENTS, 10));
        record(&pace, 1, Duration::from_millis(4));
        record(&pace, 1_000, Duration::from_millis(9));
        assert!((3_900..=4_100).contains(&pace.limit(10_000, 1)), "{}", pace.limit(10_000, 1));
        assert!((7_800..=8_200).contains(&pace.limit(10_000, 2)), "{}", pace.limit(10_000, 2));
    }

    #[test]
    fn a_commit_takes_as_long_as_ten_syncs() {
        // A sync, and the events of a group that cost 5 µs each.
        for (sync_ms, expected) in [(0, 1_000), (1, 2_000), (2, 4_000), (4, 4_000), (50, 4_000)] {
            let (pace, sync) = (Pace::default(), Duration::from_millis(sync_ms));
            record(&pace, 1, sync);
            record(&pace, 1_000, sync + Duration::from_millis(5));
            let limit = pace.limit(10_000, 1);
            assert!((expected - 10..=expected + 10).contains(&limit), "{sync_ms} ms: {limit}");
        }
    }

    #[test]
    fn commits_are_shorter_while_small_requests_come() {
        let pace = Pace::default();
        record(&pace, 1, Duration::from_millis(1));
        record(&pace, 1_000, Duration::from_millis(6));
        pace.note_request(1_000);
        assert!((1_990..=2_010).contains(&pace.limit(10_000, 1)), "{}", pace.limit(10_000, 1));
        pace.note_request(1);
        assert!((190..=210).contains(&pace.limit(10_000, 4)), "{}", pace.limit(10_000, 4));
    }
}
