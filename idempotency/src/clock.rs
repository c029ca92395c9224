//! The time, and when it may be trusted to forget.
//!
//! Invariant: [`SweepTime`] is never ahead of the true time because the machine's clock was set
//! forward while the process ran.

use crate::record::{Millis, whole_millis};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The machine's clock, or one that a test moves by hand.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System { started: Instant },
    ByHand(Arc<Mutex<Hands>>),
}

#[derive(Debug)]
struct Hands {
    wall: i64,
    passed: Duration,
}

impl Clock {
    pub fn system() -> Self {
        Self(Source::System { started: Instant::now() })
    }

    /// A clock that moves only when set.
    pub fn by_hand(start: Millis) -> Self {
        Self(Source::ByHand(Arc::new(Mutex::new(Hands { wall: start.0, passed: Duration::ZERO }))))
    }

    /// What the clock on the wall shows; it can be set forward and back.
    pub fn now(&self) -> Millis {
        match &self.0 {
            Source::System { .. } => wall_clock(),
            Source::ByHand(hands) => Millis(lock(hands).wall),
        }
    }

    /// How much time has really passed since the clock was made.
    pub fn passed(&self) -> Duration {
        match &self.0 {
            Source::System { started } => started.elapsed(),
            Source::ByHand(hands) => lock(hands).passed,
        }
    }

    /// Lets time pass, on a clock driven by hand.
    pub fn advance(&self, time: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_add(whole_millis(time));
        hands.passed = hands.passed.saturating_add(time);
    }

    /// Sets a clock driven by hand, forward or back, without any time passing.
    pub fn set(&self, wall: Millis) {
        self.hands().wall = wall.0;
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        match &self.0 {
            Source::System { .. } => panic!("only a clock driven by hand can be moved"),
            Source::ByHand(hands) => lock(hands),
        }
    }
}

/// The time by which records may be forgotten. Follows the clock on the wall, back at once, but
/// forward only as far as time has really passed. A clock that was set forward is believed after
/// [`SweepTime::DOUBTED`], since by then everything that was kept before has been kept for as long.
/// A clock that is wrong when the process starts cannot be distinguished from a right one.
#[derive(Debug)]
pub struct SweepTime(Mutex<Offsets>);

/// The clock on the wall minus the time that really passed, in milliseconds: constant, but when
/// somebody sets the clock.
#[derive(Debug)]
struct Offsets {
    trusted: i64,
    /// A later one, and since when it has been seen.
    doubted: Option<(i64, Duration)>,
}

impl SweepTime {
    /// For how long a clock that was set forward is not believed.
    pub const DOUBTED: Duration = Duration::from_secs(48 * 3600);
    /// Two looks at the clock may be this far apart and are still the same clock, which is
    /// corrected in small steps all the time.
    const TOLERANCE_MS: i64 = 60_000;

    /// Begins with what the clock shows now.
    pub fn starting(wall: Millis, passed: Duration) -> Self {
        let trusted = wall.0.saturating_sub(whole_millis(passed));
        Self(Mutex::new(Offsets { trusted, doubted: None }))
    }

    /// The time to sweep by, given both clocks.
    pub fn at(&self, wall: Millis, passed: Duration) -> Millis {
        let mut offsets = lock(&self.0);
        let offset = wall.0.saturating_sub(whole_millis(passed));
        if offset <= offsets.trusted.saturating_add(Self::TOLERANCE_MS) {
            *offsets = Offsets { trusted: offset, doubted: None };
        } else {
            match offsets.doubted {
                Some((seen, since))
                    if offset.abs_diff(seen) <= Self::TOLERANCE_MS.unsigned_abs() =>
                {
                    if passed.saturating_sub(since) >= Self::DOUBTED {
                        *offsets = Offsets { trusted: offset, doubted: None };
                    }
                }
                Some(_) | None => offsets.doubted = Some((offset, passed)),
            }
        }
        Millis(offsets.trusted.saturating_add(whole_millis(passed)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn wall_clock() -> Millis {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Millis(whole_millis(since_epoch.expect("the machine's clock is set after 1970")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Lets an hour pass before each look, with the clock set by so many hours at each, and
    /// compares by how many hours the time to sweep by is behind the clock.
    fn check(set_hours: &[i64], behind_hours: &[i64]) {
        let clock = Clock::by_hand(Millis(1_790_000_000_000));
        let time = SweepTime::starting(clock.now(), clock.passed());
        let behind: Vec<i64> = set_hours
            .iter()
            .map(|hours| {
                clock.advance(HOUR);
                clock.set(Millis(clock.now().0 + hours * 3_600_000));
                (clock.now().0 - time.at(clock.now(), clock.passed()).0) / 3_600_000
            })
            .collect();
        assert_eq!(behind, behind_hours, "for a clock set by {set_hours:?}");
    }

    #[test]
    fn a_clock_that_only_runs_is_followed() {
        check(&[0, 0, 0], &[0, 0, 0]);
    }

    #[test]
    fn back_is_followed_at_once_and_forward_is_not() {
        check(&[-5, 0, 5, 0], &[0, 0, 5, 5]);
        check(&[9, 0, -9, 0], &[9, 9, 0, 0]);
        check(&[9, 9, -20, 2], &[9, 18, 0, 2]);
    }

    #[test]
    fn a_clock_set_forward_is_believed_in_the_end() {
        let hours: Vec<i64> = [100].into_iter().chain([0; 50]).collect();
        let behind: Vec<i64> = [100; 48].into_iter().chain([0; 3]).collect();
        check(&hours, &behind);
    }

    #[test]
    fn small_corrections_are_followed() {
        let clock = Clock::by_hand(Millis(0));
        let time = SweepTime::starting(clock.now(), clock.passed());
        for _ in 0..100 {
            clock.advance(HOUR);
            clock.set(Millis(clock.now().0 + 900));
            assert_eq!(time.at(clock.now(), clock.passed()), clock.now());
        }
    }

    #[test]
    fn the_clock_of_the_machine_runs() {
        let clock = Clock::system();
        assert!(clock.now() > Millis(1_700_000_000_000));
        let passed = clock.passed();
        assert!(clock.passed() >= passed);
    }
}
