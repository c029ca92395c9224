//! Messages: tells the webhook of changes, until it has taken each.
//!
//! Invariant: a message is leased before it is sent and settled after; its id is the same at every
//! try. One that nobody takes for three days is given up, and stays in `GET /v1/changes`. A
//! crash leaves one leased, and it is sent again.

use super::notices::{Try, judge_sending};
use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::destinations::{Change, ChangeWebhook};
use crate::faults::crash_point;
use crate::rules::span::Span;
use crate::store;
use crate::store::alert::NoticeOutcome;
use crate::store::message::{ClaimedMessage, Messages};
use std::sync::Arc;
use std::time::Duration;

/// Sent one after the other, so that they arrive in their order unless one has to wait.
const CLAIM_MAX: usize = 16;
const LEASE_SPAN: Span = Span::from_minutes(5);

pub struct MessagesJob {
    store: Arc<dyn Messages>,
    clock: Clock,
    webhook: ChangeWebhook,
    jitter_seed: u64,
}

impl Job for MessagesJob {
    const NAME: &'static str = "changes";
    const PAUSE: Duration = Duration::from_millis(500);
    type Done = usize;
    type Error = store::Error;

    /// Sends what is due; returns how many messages that was.
    async fn pass(&self) -> store::Result<usize> {
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
}

impl MessagesJob {
    pub fn new(context: &Context, webhook: ChangeWebhook) -> Self {
        let Context { store, clock, jitter_seed, .. } = context.clone();
        Self { store, clock, webhook, jitter_seed }
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
