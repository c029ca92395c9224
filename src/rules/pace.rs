//! How often a provider may be asked: a token bucket for calls a second, with at most a tenth of a
//! second's worth at once, and a budget of calls an hour.
//!
//! Invariant: over any time, no more calls are let through than the rate allows plus one burst; in
//! an hour of the clock, no more than the budget.

use super::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};

#[derive(Debug, Clone)]
pub struct Pace {
    per_second: i64,
    /// Most tokens at once.
    full: i64,
    /// In millionths of a call, so that a microsecond's share is a whole number.
    tokens: i64,
    filled_at: Timestamp,
}

impl Pace {
    pub fn new(per_second: u32, now: Timestamp) -> Self {
        let full = i64::from(per_second.div_ceil(10)) * MICROS_PER_SECOND;
        let per_second = i64::from(per_second);
        Self { per_second, full, tokens: full, filled_at: now }
    }

    /// How many calls may be made now.
    pub fn available(&mut self, now: Timestamp) -> usize {
        let passed = (now.micros() - self.filled_at.micros()).clamp(0, MICROS_PER_SECOND);
        self.tokens = (self.tokens + passed * self.per_second).min(self.full);
        self.filled_at = self.filled_at.max(now);
        usize::try_from(self.tokens / MICROS_PER_SECOND).unwrap_or(0)
    }

    /// Counts calls that are being made.
    pub fn take(&mut self, calls: usize) {
        let calls = i64::try_from(calls).unwrap_or(i64::MAX / MICROS_PER_SECOND);
        self.tokens = self.tokens.saturating_sub(calls.saturating_mul(MICROS_PER_SECOND));
    }
}

/// Calls an hour.
#[derive(Debug, Clone)]
pub struct Budget {
    /// 0 for no limit.
    per_hour: u32,
    hour: i64,
    spent: u32,
}

impl Budget {
    pub fn new(per_hour: u32) -> Self {
        Self { per_hour, hour: 0, spent: 0 }
    }

    /// Calls that are left in this hour; none if there is no limit.
    pub fn left(&mut self, now: Timestamp) -> Option<u32> {
        let hour = now.micros().div_euclid(MICROS_PER_HOUR);
        if hour != self.hour {
            (self.hour, self.spent) = (hour, 0);
        }
        (self.per_hour > 0).then(|| self.per_hour.saturating_sub(self.spent))
    }

    /// Spends one call, if more than `kept` are left in this hour.
    pub fn spend(&mut self, now: Timestamp, kept: u32) -> bool {
        let spends = self.left(now).is_none_or(|left| left > kept);
        self.spent = self.spent.saturating_add(u32::from(spends));
        spends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_budget_in_an_hour() {
        let at = |hour: i64| Timestamp::from_micros(hour * MICROS_PER_HOUR);
        let mut budget = Budget::new(2);
        let spent: Vec<bool> = [5, 5, 5, 6, 6, 6].map(|hour| budget.spend(at(hour), 0)).into();
        assert_eq!(spent, [true, true, false, true, true, false]);
        assert!(budget.spend(at(7), 1) && !budget.spend(at(7), 1) && budget.spend(at(7), 0));
        assert_eq!(budget.left(at(7)), Some(0));
        let mut endless = Budget::new(0);
        assert!((0..1_000).all(|_| endless.spend(at(0), 5)));
    }

    #[test]
    fn no_more_than_the_rate() {
        let at = |millis: i64| Timestamp::from_micros(millis * 1_000);
        let mut pace = Pace::new(100, at(0));
        let mut calls = pace.available(at(0));
        assert_eq!(calls, 10);
        pace.take(calls);
        for millis in 1..=10_000 {
            let now = pace.available(at(millis));
            pace.take(now);
            calls += now;
        }
        assert_eq!(calls, 10 + 1_000);
        assert_eq!(pace.available(at(1_000_000)), 10);
        // A stopped clock gives nothing.
        pace.take(10);
        assert_eq!(pace.available(at(1_000_000)), 0);
    }
}
