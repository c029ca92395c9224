//! Settings of a simulator.
//!
//! Invariant: a reset keeps them, as they are at that moment. A crash leaves nothing.

use crate::limits::RateLimit;
use crate::meter_events::CustomerCheck;

/// Stripe publishes no figure for the delay of its aggregation.
const SUMMARY_LAG_SECONDS: i64 = 30;
const ACCOUNT: &str = "acct_1CounterfoilSim0";

/// Settings of a [`Simulator`](crate::Simulator).
#[derive(Debug, Clone)]
pub struct Options {
    /// The only API key that is accepted. `None` accepts every key that begins with `sk_test_`.
    pub api_key: Option<String>,
    /// A limit on calls per second. `None` is no limit.
    pub rate: Option<RateLimit>,
    /// Seconds from the receipt of a meter event to its aggregation. Until then no summary and no
    /// invoice includes it. The default is 30.
    pub summary_lag_seconds: i64,
    /// When an unknown customer of a meter event is reported.
    pub customer_check: CustomerCheck,
    /// The duration of each call through the port, in milliseconds by the machine's clock.
    pub latency_ms: u64,
    /// The id of the account that every key belongs to.
    pub account: String,
    /// Ids are numbered from here, so that two simulators can be given different ids.
    pub ids_after: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            api_key: None,
            rate: None,
            summary_lag_seconds: SUMMARY_LAG_SECONDS,
            customer_check: CustomerCheck::default(),
            latency_ms: 0,
            account: ACCOUNT.to_owned(),
            ids_after: 0,
        }
    }
}
