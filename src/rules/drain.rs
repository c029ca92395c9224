//! When the last cut of a subscription or plan is made, and when its usage has surely been
//! counted.
//!
//! The provider bills at a cancellation or a change of prices what it has aggregated by then, and
//! usage that it aggregates later is on no invoice. So before either goes out, events that are
//! still on their way are waited for, the windows before the boundary are cut and sent, and the
//! provider's summary must show them.
//!
//! Invariant: usage that was sent is never said to be counted unless the summary's total of its
//! window is exactly what was sent. A change of prices that cannot be reached in time is given
//! up; a cancellation waits for as long as it takes.

use super::span::Span;
use super::timestamp::Timestamp;

/// The shortest wait for events that were used before the boundary.
const GRACE_MIN: Span = Span::from_minutes(5);
/// Of the 25 minutes that a change has, the rest is for sending and counting.
const CHANGE_GRACE_MAX: Span = Span::from_minutes(15);
/// Windows after the boundary are stamped half an hour after it at the earliest. Prices that
/// change later than that would leave them charged by the old ones.
pub const CHANGED_WITHIN: Span = Span::from_minutes(25);

/// The shortest and longest pause between two readings of the provider's totals.
const COUNT_PAUSES: (Span, Span) = (Span::from_seconds(15), Span::from_minutes(10));

/// What follows the last cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Cancellation,
    Change,
}

/// How far a drain has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Whether every window before the boundary is cut.
    pub cut: bool,
    /// Pushes that the provider has not taken yet.
    pub unsent: u64,
    /// Pushes that it took and its summary does not show.
    pub uncounted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    Done,
    NotYet,
    /// It will not be done in time; what was to follow must not happen.
    TooLate,
}

impl Ending {
    /// When the last cut is made: `settle_after` is the longest of the meters that are billed.
    pub fn cut_at(self, boundary: Timestamp, settle_after: Span) -> Timestamp {
        let grace = settle_after.max(GRACE_MIN);
        match self {
            Self::Cancellation => grace.after(boundary),
            Self::Change => grace.min(CHANGE_GRACE_MAX).after(boundary),
        }
    }

    /// Whether there is still time for what follows.
    pub fn is_in_time(self, boundary: Timestamp, now: Timestamp) -> bool {
        match self {
            Self::Cancellation => true,
            Self::Change => now < CHANGED_WITHIN.after(boundary),
        }
    }

    /// When to read the provider's totals again. A cancellation may wait for hours, so it asks
    /// less and less often; a change has minutes.
    pub fn count_again(self, cut_at: Timestamp, now: Timestamp) -> Timestamp {
        let (shortest, longest) = (COUNT_PAUSES.0.micros(), COUNT_PAUSES.1.micros());
        let waited = now.micros().saturating_sub(cut_at.micros());
        now.saturating_add_micros(match self {
            Self::Cancellation => (waited / 8).clamp(shortest, longest),
            Self::Change => shortest,
        })
    }

    pub fn judge(self, progress: Progress, boundary: Timestamp, now: Timestamp) -> Drained {
        let Progress { cut, unsent, uncounted } = progress;
        if !self.is_in_time(boundary, now) {
            Drained::TooLate
        } else if cut && unsent == 0 && uncounted == 0 {
            Drained::Done
        } else {
            Drained::NotYet
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(&format!("2026-11-15T{text}:00Z")).expect("valid")
    }

    #[test]
    fn last_cut_waits_for_late_events() {
        let check = |ending: Ending, settle: &str, expected: &str| {
            let settle = Span::parse(settle).expect("valid");
            assert_eq!(ending.cut_at(at("13:00"), settle), at(expected), "{ending:?} {settle:?}");
        };
        check(Ending::Cancellation, "0s", "13:05");
        check(Ending::Cancellation, "1h", "14:00");
        check(Ending::Cancellation, "4h", "17:00");
        check(Ending::Change, "0s", "13:05");
        check(Ending::Change, "10m", "13:10");
        check(Ending::Change, "1h", "13:15");
    }

    #[test]
    fn totals_are_read_less_and_less_often() {
        let check = |ending: Ending, now: &str, expected_seconds: i64| {
            let again = ending.count_again(at("13:00"), at(now)).micros() - at(now).micros();
            assert_eq!(again, expected_seconds * 1_000_000, "{ending:?} at {now}");
        };
        check(Ending::Cancellation, "13:00", 15);
        check(Ending::Cancellation, "13:40", 300);
        check(Ending::Cancellation, "23:00", 600);
        check(Ending::Change, "13:20", 15);
    }

    #[test]
    fn drained_means_cut_sent_and_counted_in_time() {
        let (cancel, change) = (Ending::Cancellation, Ending::Change);
        let check = |ending: Ending, parts: (bool, u64, u64), now: &str, expected: Drained| {
            let (cut, unsent, uncounted) = parts;
            let progress = Progress { cut, unsent, uncounted };
            assert_eq!(ending.judge(progress, at("13:00"), at(now)), expected, "{progress:?}");
        };
        for ending in [cancel, change] {
            check(ending, (true, 0, 0), "13:16", Drained::Done);
            check(ending, (false, 0, 0), "13:16", Drained::NotYet);
            check(ending, (true, 1, 0), "13:16", Drained::NotYet);
            check(ending, (true, 0, 1), "13:16", Drained::NotYet);
        }
        check(change, (true, 0, 0), "13:25", Drained::TooLate);
        check(change, (true, 0, 1), "13:25", Drained::TooLate);
        check(cancel, (true, 0, 1), "23:00", Drained::NotYet);
        check(cancel, (true, 0, 0), "23:00", Drained::Done);
    }
}
