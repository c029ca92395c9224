//! Limits: calls in a second, and one call at a time for a customer and a meter.
//!
//! Invariant: a bucket never holds more than one second's worth of calls. A crash leaves nothing.

use super::request::ApiError;
use crate::clock::Clock;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use std::collections::BTreeSet;

/// Which clock fills the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateClock {
    /// The simulator's, for tests that move it.
    Simulator,
    /// The machine's, for load.
    Machine,
}

/// How many calls are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    pub calls_per_second: i64,
    pub clock: RateClock,
}

#[derive(Debug)]
pub struct Limits {
    rate: Option<RateLimit>,
    machine: Clock,
    /// Millionths of calls that may still be made, and when that was true.
    bucket: Option<(i64, Timestamp)>,
    /// Customer and event name of the calls under way.
    under_way: BTreeSet<(String, String)>,
}

impl Limits {
    pub fn new(rate: Option<RateLimit>) -> Self {
        Self { rate, machine: Clock::system(), bucket: None, under_way: BTreeSet::new() }
    }

    /// Takes one call from the bucket.
    pub fn take(&mut self, simulated_now: Timestamp) -> Result<(), ApiError> {
        let Some(rate) = self.rate else { return Ok(()) };
        let now = match rate.clock {
            RateClock::Simulator => simulated_now,
            RateClock::Machine => self.machine.now(),
        };
        let full = rate.calls_per_second.saturating_mul(MICROS_PER_SECOND);
        let (left, since) = self.bucket.unwrap_or((full, now));
        let passed = now.micros().saturating_sub(since.micros()).max(0);
        let left = passed.saturating_mul(rate.calls_per_second).saturating_add(left).min(full);
        if left < MICROS_PER_SECOND {
            self.bucket = Some((left, now));
            return Err(rate_limited("endpoint-rate"));
        }
        self.bucket = Some((left - MICROS_PER_SECOND, now));
        Ok(())
    }

    /// Marks a call of this customer and meter as under way, unless there is one.
    pub fn begin(&mut self, pair: &(String, String)) -> Result<(), ApiError> {
        if !self.under_way.insert(pair.clone()) {
            return Err(rate_limited("endpoint-concurrency"));
        }
        Ok(())
    }

    pub fn end(&mut self, pair: &(String, String)) {
        self.under_way.remove(pair);
    }
}

pub fn rate_limited(reason: &str) -> ApiError {
    let message = "Request rate limit exceeded. You can learn more about rate limits here \
                   https://stripe.com/docs/rate-limits.";
    ApiError::new(429, "invalid_request_error", message)
        .with_code("rate_limit")
        .with_header("stripe-rate-limited-reason", reason)
}

pub fn lock_timeout() -> ApiError {
    let message = "This object cannot be accessed right now because another API request or Stripe \
                   process is currently accessing it.";
    ApiError::new(429, "invalid_request_error", message).with_code("lock_timeout")
}
