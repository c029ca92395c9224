//! The clock: the only place that reads the time.
//!
//! Invariant: `now` never goes back, neither within a process nor, once [`Clock::raise_floor`] was
//! given the store's high-water mark, across restarts. What is too old to accept today is thus too
//! old for ever, whatever happens to the machine's clock.

use crate::rules::timestamp::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// The machine's clock, or one a test moves by hand.
#[derive(Debug, Clone)]
pub struct Clock {
    floor: Arc<AtomicI64>,
    by_hand: bool,
    /// Both clocks of the machine at the start: the one that can be set, and the one that cannot.
    started_at: i64,
    started: Instant,
}

impl Clock {
    pub fn system() -> Self {
        Self::starting(i64::MIN, false)
    }

    /// A clock that stands still until it is moved.
    pub fn by_hand(start: Timestamp) -> Self {
        Self::starting(start.micros(), true)
    }

    fn starting(floor: i64, by_hand: bool) -> Self {
        let floor = Arc::new(AtomicI64::new(floor));
        Self { floor, by_hand, started_at: wall_clock_micros(), started: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        if self.by_hand {
            return Timestamp::from_micros(self.floor.load(Ordering::SeqCst));
        }
        let wall = wall_clock_micros();
        let before = self.floor.fetch_max(wall, Ordering::SeqCst);
        Timestamp::from_micros(wall.max(before))
    }

    /// Makes sure that `now` is never before `mark`. Returns by how much the machine's clock is
    /// behind, in microseconds, so that the caller can warn.
    pub fn raise_floor(&self, mark: Timestamp) -> i64 {
        self.floor.fetch_max(mark.micros(), Ordering::SeqCst);
        if self.by_hand { 0 } else { mark.micros().saturating_sub(wall_clock_micros()).max(0) }
    }

    /// By how many microseconds the machine's clock is ahead of where it would be, had it only run
    /// since the start of the process. It changes when somebody sets the clock.
    pub fn set_by_micros(&self) -> i64 {
        if self.by_hand {
            return 0;
        }
        let ran = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        wall_clock_micros().saturating_sub(self.started_at).saturating_sub(ran)
    }

    /// Moves a clock that is driven by hand.
    pub fn advance(&self, micros: i64) {
        assert!(self.by_hand, "only a clock driven by hand can be moved");
        assert!(micros >= 0, "the clock never goes back");
        self.floor.fetch_add(micros, Ordering::SeqCst);
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn wall_clock_micros() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = since_epoch.expect("the machine's clock is set after 1970").as_micros();
    i64::try_from(micros).expect("the machine's clock is set before the year 200000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back() {
        let clock = Clock::system();
        let ahead = clock.now().saturating_add_micros(3_600_000_000);
        assert!(clock.raise_floor(ahead) > 3_500_000_000);
        assert_eq!(clock.now(), ahead);
        assert_eq!(clock.clone().now(), ahead);
    }
}
