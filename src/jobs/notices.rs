//! Notices: tells destinations of alerts, until they have taken it.
//!
//! Invariant: a notice is leased before it is sent and settled after; its number is the same at
//! every try, so a destination that was told twice can tell. One that nobody takes for three days
//! is given up. A crash leaves it leased, and it is sent again.

use super::{Context, Job};
use crate::clock::Clock;
use crate::destinations::{Destination, Notice, Sending};
use crate::faults::crash_point;
use crate::rules::delivery::Backoff;
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::store;
use crate::store::alert::{Alerts, ClaimedNotice, NoticeOutcome};
use futures_util::StreamExt;
use futures_util::stream;
use std::sync::Arc;
use std::time::Duration;

/// Notices sent at one time, and of one claim.
const CLAIM_MAX: usize = 16;
const LEASE_SPAN: Span = Span::from_minutes(2);
const BACKOFF: Backoff = Backoff { base_ms: 2_000, max_ms: 3_600_000 };
const GIVEN_UP_AFTER: Span = Span::from_hours(72);

pub struct NoticesJob {
    store: Arc<dyn Alerts>,
    clock: Clock,
    destinations: Vec<Arc<dyn Destination>>,
    jitter_seed: u64,
}

impl Job for NoticesJob {
    const NAME: &'static str = "notices";
    const PAUSE: Duration = Duration::from_millis(500);
    type Done = usize;
    type Error = store::Error;

    /// Sends what is due; returns how many notices that was.
    async fn pass(&self) -> store::Result<usize> {
        let now = self.clock.now();
        let claimed = self.store.claim_notices(now, LEASE_SPAN.after(now), CLAIM_MAX).await?;
        let count = claimed.len();
        let mut sent = stream::iter(claimed)
            .map(|notice| async move { (self.send(&notice).await, notice) })
            .buffer_unordered(CLAIM_MAX);
        while let Some((outcome, notice)) = sent.next().await {
            crash_point("notice.before_settle");
            let ClaimedNotice { number, fence, destination, .. } = notice;
            let result = match &outcome {
                NoticeOutcome::Sent => "sent",
                NoticeOutcome::Later { .. } => "later",
                NoticeOutcome::GivenUp { detail } => {
                    tracing::warn!(number, destination, detail, "a notice was given up");
                    "given_up"
                }
            };
            metrics::counter!(
                "counterfoil_notices_total", "destination" => destination, "result" => result
            )
            .increment(1);
            self.store.settle_notice(number, fence, outcome, self.clock.now()).await?;
        }
        Ok(count)
    }
}

impl NoticesJob {
    pub fn new(context: &Context, destinations: Vec<Arc<dyn Destination>>) -> Self {
        let Context { store, clock, jitter_seed, .. } = context.clone();
        Self { store, clock, destinations, jitter_seed }
    }

    async fn send(&self, claimed: &ClaimedNotice) -> NoticeOutcome {
        let known = |destination: &&Arc<dyn Destination>| destination.name() == claimed.destination;
        let Some(destination) = self.destinations.iter().find(known) else {
            return NoticeOutcome::GivenUp {
                detail: "its destination is not set up any more".into(),
            };
        };
        let now = self.clock.now();
        let ClaimedNotice { number, event, ref alert, attempts, created_at, .. } = *claimed;
        let sending = destination.send(&Notice { alert, event, number, at: now }).await;
        let random = self.jitter_seed.wrapping_mul(number.wrapping_add(1));
        judge_sending(sending, Try { attempts, created_at, now, random })
    }
}

/// A try to tell somebody something.
#[derive(Debug, Clone, Copy)]
pub struct Try {
    /// Tries before this one.
    pub attempts: u32,
    /// When what is told was written.
    pub created_at: Timestamp,
    pub now: Timestamp,
    pub random: u64,
}

/// What becomes of what was told: it is tried again later and later, for three days.
pub fn judge_sending(sending: Sending, tried: Try) -> NoticeOutcome {
    let detail = match sending {
        Sending::Sent => return NoticeOutcome::Sent,
        Sending::Refused { detail } => return NoticeOutcome::GivenUp { detail },
        Sending::Later { detail } => detail,
    };
    if GIVEN_UP_AFTER.after(tried.created_at) <= tried.now {
        return NoticeOutcome::GivenUp { detail };
    }
    let pause = BACKOFF.pause_micros(tried.attempts + 1, tried.random);
    NoticeOutcome::Later { until: tried.now.saturating_add_micros(pause), detail }
}
