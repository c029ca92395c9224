//! Limits: calls per second, and one meter event at a time for a customer and a meter.
//!
//! Invariant: a bucket never holds more than one second's worth of calls. A crash leaves nothing.

use crate::request::ApiError;
use crate::timestamp::{MICROS_PER_SECOND, Timestamp};
use std::collections::BTreeSet;
use std::time::Instant;

/// The clock that refills the rate limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateClock {
    /// The simulator's clock, for tests that move it.
    Simulator,
    /// The machine's clock, for load tests.
    Machine,
}

/// A limit on calls. A call beyond it gets the response 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Calls per second, and the largest burst.
    pub calls_per_second: i64,
    /// The clock that refills it.
    pub clock: RateClock,
}

#[derive(Debug)]
pub struct Limits {
    rate: Option<RateLimit>,
    started: Instant,
    /// Millionths of calls that are left, and the time of that count.
    bucket: Option<(i64, Timestamp)>,
    /// Customer and event name of the calls in progress.
    in_progress: BTreeSet<(String, String)>,
}

impl Limits {
    pub fn new(rate: Option<RateLimit>) -> Self {
        Self { rate, started: Instant::now(), bucket: None, in_progress: BTreeSet::new() }
    }

    /// Takes one call from the bucket.
    pub fn take(&mut self, simulated_now: Timestamp) -> Result<(), ApiError> {
        let Some(rate) = self.rate else { return Ok(()) };
        let now = match rate.clock {
            RateClock::Simulator => simulated_now,
            RateClock::Machine => {
                let micros = i64::try_from(self.started.elapsed().as_micros());
                Timestamp::from_micros(micros.unwrap_or(i64::MAX))
            }
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

    /// Marks a call of this customer and meter as in progress, unless there is one.
    pub fn begin(&mut self, pair: &(String, String)) -> Result<(), ApiError> {
        if !self.in_progress.insert(pair.clone()) {
            return Err(rate_limited("endpoint-concurrency"));
        }
        Ok(())
    }

    pub fn end(&mut self, pair: &(String, String)) {
        self.in_progress.remove(pair);
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
