//! Log lines about a failure that repeats many times a second, thinned out: the first one at once,
//! later ones every ten seconds with the number of those left out.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);

/// Decides which of the repeated lines are logged.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    logged_at: Option<Instant>,
    left_out: u64,
}

impl Throttle {
    /// Whether to log now: the number of lines left out since the last one that was logged.
    pub fn admit(&self) -> Option<u64> {
        let mut state = self.0.lock().expect("no holder panics");
        if state.logged_at.is_some_and(|at| at.elapsed() < EVERY) {
            state.left_out += 1;
            return None;
        }
        state.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_logged_and_repetitions_are_counted() {
        let throttle = Throttle::default();
        assert_eq!(throttle.admit(), Some(0));
        assert_eq!((throttle.admit(), throttle.admit()), (None, None));
        throttle.0.lock().expect("nobody panics").logged_at = None;
        assert_eq!(throttle.admit(), Some(2));
    }
}
