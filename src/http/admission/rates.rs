//! How often a key or an address may ask: so many requests in a period, and some at once.
//!
//! Invariant: a holder that keeps to its rate is never refused. The state of a holder is one
//! moment, so memory is bounded by the holders of the last seconds; it is lost with the process,
//! which only lets a few requests more through.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Holders beyond which those that are at rest are forgotten.
const HOLDERS_KEPT: usize = 10_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// What a limit counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Second,
    Hour,
}

impl Period {
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "a second",
            Self::Hour => "an hour",
        }
    }

    fn nanos(self) -> u64 {
        match self {
            Self::Second => NANOS_PER_SECOND,
            Self::Hour => 3600 * NANOS_PER_SECOND,
        }
    }
}

/// One limit, for holders of one kind.
pub struct Rates<K> {
    /// None if there is no limit.
    pace: Option<RatePace>,
    began: Instant,
    /// For each holder, the moment at which it has its whole entitlement again.
    rested_at: Mutex<HashMap<K, u64>>,
}

#[derive(Clone, Copy)]
struct RatePace {
    limit: u64,
    period: Period,
    /// Nanoseconds that one request takes of the entitlement.
    interval: u64,
    /// Nanoseconds of the whole entitlement.
    burst: u64,
}

/// What is left of a holder's entitlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub limit: u64,
    pub remaining: u64,
    /// Until the whole entitlement is there again.
    pub whole_in: Duration,
}

/// The entitlement is used up for this long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    pub limit: u64,
    pub period: Period,
    pub wait: Duration,
}

impl<K: Eq + Hash> Rates<K> {
    /// So many in a period, and twice as many at once; 0 for no limit.
    pub fn new(limit: u64, period: Period, began: Instant) -> Self {
        let pace = (limit > 0).then(|| {
            let interval = (period.nanos() / limit).max(1);
            let burst = interval.saturating_mul(limit.saturating_mul(2));
            RatePace { limit, period, interval, burst }
        });
        Self { pace, began, rested_at: Mutex::default() }
    }

    /// Counts one request. None if there is no limit.
    pub fn take<Q>(&self, holder: &Q, now: Instant) -> Result<Option<Left>, Exceeded>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let Some(pace) = self.pace else { return Ok(None) };
        let passed = now.saturating_duration_since(self.began).as_nanos();
        let now = u64::try_from(passed).unwrap_or(u64::MAX);
        let mut rested_at = self.rested_at.lock().expect("no holder of it panics");
        if rested_at.len() >= HOLDERS_KEPT && !rested_at.contains_key(holder) {
            rested_at.retain(|_, at| *at > now);
        }
        let at = rested_at.get(holder).copied().unwrap_or(0).max(now);
        let next = at.saturating_add(pace.interval);
        let used = next - now;
        if used > pace.burst {
            let wait = Duration::from_nanos(used - pace.burst);
            return Err(Exceeded { limit: pace.limit, period: pace.period, wait });
        }
        match rested_at.get_mut(holder) {
            Some(at) => *at = next,
            None => drop(rested_at.insert(holder.to_owned(), next)),
        }
        let remaining = (pace.burst - used) / pace.interval;
        let whole_in = Duration::from_nanos(used);
        Ok(Some(Left { limit: pace.limit, remaining, whole_in }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_keeps_to_its_rate_is_never_refused() {
        let began = Instant::now();
        let rates = Rates::new(10, Period::Second, began);
        for request in 0..1_000 {
            let now = began + Duration::from_millis(100 * request);
            assert!(rates.take(&"acme", now).is_ok(), "{request}");
        }
    }

    #[test]
    fn a_burst_is_refused_until_its_time_has_passed() {
        let began = Instant::now();
        let rates = Rates::new(10, Period::Second, began);
        for remaining in (0..20).rev() {
            let left = rates.take(&"acme", began).unwrap().unwrap();
            assert_eq!((left.limit, left.remaining), (10, remaining));
        }
        let refused = rates.take(&"acme", began).unwrap_err();
        let (limit, period) = (10, Period::Second);
        assert_eq!(refused, Exceeded { limit, period, wait: Duration::from_millis(100) });
        assert!(rates.take(&"globex", began).is_ok(), "others have their own");
        let later = began + Duration::from_millis(100);
        assert_eq!(rates.take(&"acme", later).unwrap().unwrap().remaining, 0);
        assert!(rates.take(&"acme", later).is_err());
    }

    #[test]
    fn holders_at_rest_are_forgotten() {
        let began = Instant::now();
        let rates = Rates::new(10, Period::Second, began);
        for holder in 0..HOLDERS_KEPT {
            assert!(rates.take(&holder, began).is_ok());
        }
        let later = began + Duration::from_secs(10);
        assert!(rates.take(&HOLDERS_KEPT, later).is_ok());
        assert_eq!(rates.rested_at.lock().unwrap().len(), 1);
    }

    #[test]
    fn zero_is_no_limit() {
        let began = Instant::now();
        let rates = Rates::new(0, Period::Second, began);
        assert!((0..100_000).all(|_| rates.take(&(), began) == Ok(None)));
    }
}
