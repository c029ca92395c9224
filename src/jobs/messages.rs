//! Messages: tells the webhook of changes, until it has taken each.
//!
//! Invariant: a message is leased before it is sent and settled after; its id is the same at every
//! try. One that nobody takes for three days is given up, and stays in `GET /v1/changes`. Messages
//! are removed after 30 days, but for those of dunning. A crash leaves one leased, and it is sent
//! again.

use super::notices::{Try, judge_sending};
use super::{Stop, repeat, sure_time};
use crate::clock::Clock;
use crate::destinations::{Change, ChangeWebhook};
use crate::faults::crash_point;
use crate::rules::span::Span;
use crate::store::alert::NoticeOutcome;
use crate::store::message::{ClaimedMessage, Messages};
use crate::store::{self, Store};
use std::sync::Arc;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(500);
/// Sent one after the other, so that they arrive in their order unless one has to wait.
const CLAIM_MAX: usize = 16;
const LEASE_SPAN: Span = Span::from_minutes(5);
const KEPT_FOR: Span = Span::from_hours(30 * 24);
const PRUNE_PAUSE: Duration = Duration::from_secs(600);
const PRUNE_MAX: usize = 1_000;

pub struct ChangeTeller {
    store: Arc<dyn Messages>,
    clock: Clock,
    webhook: ChangeWebhook,
    jitter_seed: u64,
}

impl ChangeTeller {
    pub fn new(
        store: Arc<dyn Messages>,
        clock: Clock,
        webhook: ChangeWebhook,
        jitter_seed: u64,
    ) -> Self {
        Self { store, clock, webhook, jitter_seed }
    }

    pub async fn run(self, stop: Stop) {
        repeat("changes", PAUSE, stop, || async { self.pass().await.map(drop) }).await;
    }

    /// Sends what is due; returns how many messages that was.
    pub async fn pass(&self) -> store::Result<usize> {
        let Some(now) = sure_time(&self.clock, "changes") else { return Ok(0) };
        let claimed = self.store.claim_messages(now, LEASE_SPAN.after(now), CLAIM_MAX).await?;
        let count = claimed.len();
        for claimed in claimed {
            let outcome = self.send(&claimed).await;
            crash_point("message.before_settle");
            if let NoticeOutcome::GivenUp { detail } = &outcome {
                let id = &claimed.message.id;
                tracing::warn!(id, detail, "message {id} was given up: {detail}");
            }
            let (number, fence) = (claimed.message.number, claimed.fence);
            self.store.settle_message(number, fence, outcome, self.clock.now()).await?;
        }
        Ok(count)
    }

    async fn send(&self, claimed: &ClaimedMessage) -> NoticeOutcome {
        let now = self.clock.now();
        let message = &claimed.message;
        let change = Change {
            id: &message.id,
            kind: &message.kind,
            payload: &message.payload,
            at: message.at,
            now,
        };
        let sending = self.webhook.tell(&change).await;
        let random = self.jitter_seed.wrapping_mul(message.number.wrapping_add(1));
        let (attempts, created_at) = (claimed.attempts, message.at);
        judge_sending(sending, Try { attempts, created_at, now, random })
    }
}

/// Removes messages and idempotency keys whose time is over.
pub struct Sweeper {
    messages: Arc<dyn Messages>,
    keys: Arc<dyn counterfoil_idempotency::Store>,
    clock: Clock,
}

impl Sweeper {
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        let keys = Arc::clone(&store).request_keys(clock.clone());
        Self { messages: store, keys, clock }
    }

    pub async fn run(self, stop: Stop) {
        repeat("sweep", PRUNE_PAUSE, stop, || async { self.pass().await.map(drop) }).await;
    }

    /// Removes what is due; returns how many messages and keys that was.
    pub async fn pass(&self) -> store::Result<(usize, usize)> {
        let (mut messages, mut keys) = (0, 0);
        // A clock that is ahead must not make keys forgotten while they are needed.
        let Some(now) = sure_time(&self.clock, "sweep") else { return Ok((messages, keys)) };
        loop {
            let some = self.messages.prune_messages(KEPT_FOR.before(now), PRUNE_MAX).await?;
            messages += some;
            if some < PRUNE_MAX {
                break;
            }
        }
        loop {
            let limit = u32::try_from(PRUNE_MAX).unwrap_or(u32::MAX);
            let swept = self.keys.sweep(limit).await;
            let some = swept.map_err(store::idempotency::completion_error)?;
            let some = usize::try_from(some).unwrap_or(usize::MAX);
            keys += some;
            if some < PRUNE_MAX {
                return Ok((messages, keys));
            }
        }
    }
}
