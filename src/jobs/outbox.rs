//! The outbox: sends messages about changes and notices of alerts until their receivers have taken
//! them.
//!
//! Each queue has a job of its own, so that nobody who is to be paged waits for the receiver of
//! changes. Notices go out side by side, and also while the time is in doubt; changes one after the
//! other, so that they arrive in their order unless one has to wait.
//!
//! Invariant: a message is leased before it is sent and settled after; its id and number are the
//! same at every try, so that a receiver can tell repeats. One that nobody takes for three days is
//! given up, which the log and the metrics show; a change stays in `GET /v1/changes`. A crash
//! leaves a message leased, and it is sent again.

use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::destinations::{ChangeWebhook, Destination, Notice, OutgoingChange, Sending};
use crate::faults::crash_point;
use crate::rules::alert::{Alert, NoticeEvent};
use crate::rules::span::Span;
use crate::rules::submission::Backoff;
use crate::rules::timestamp::Timestamp;
use crate::store;
use crate::store::outbox::{ClaimedMessage, Message, Outbox, Queue, SendOutcome};
use futures_util::StreamExt;
use futures_util::stream;
use std::sync::Arc;
use std::time::Duration;

/// Messages of one claim.
const CLAIM_MAX: usize = 16;
/// Longer than a notice takes until its timeout.
const NOTICE_LEASE: Span = Span::from_minutes(2);
/// Longer than all changes of a claim take, one after the other, until their timeouts.
const CHANGE_LEASE: Span = Span::from_minutes(5);
const BACKOFF: Backoff = Backoff { base_ms: 2_000, max_ms: 3_600_000 };
const GIVEN_UP_AFTER: Span = Span::from_hours(72);

pub struct OutboxJob {
    store: Arc<dyn Outbox>,
    clock: Clock,
    receivers: Receivers,
    jitter_seed: u64,
}

/// Who takes the messages of a queue.
pub enum Receivers {
    Alerts(Vec<Arc<dyn Destination>>),
    Changes(ChangeWebhook),
}

impl Job for OutboxJob {
    const NAME: &'static str = "outbox";
    const PAUSE: Duration = Duration::from_millis(500);
    type Done = usize;
    type Error = store::Error;

    /// Sends what is due; returns how many messages that was.
    async fn pass(&self) -> store::Result<usize> {
        let (queue, lease, at_once) = match &self.receivers {
            Receivers::Alerts(_) => (Queue::Alerts, NOTICE_LEASE, CLAIM_MAX),
            Receivers::Changes(_) => (Queue::Changes, CHANGE_LEASE, 1),
        };
        let now = match queue {
            Queue::Alerts => Some(self.clock.now()),
            Queue::Changes => sure_time(&self.clock, "changes"),
        };
        let Some(now) = now else { return Ok(0) };
        let claimed = self.store.claim_messages(queue, now, lease.after(now), CLAIM_MAX).await?;
        let count = claimed.len();
        let mut sent = stream::iter(claimed)
            .map(|claimed| async move { (self.send(&claimed).await, claimed) })
            .buffer_unordered(at_once);
        while let Some((outcome, claimed)) = sent.next().await {
            crash_point("outbox.before_settle");
            let ClaimedMessage { message: Message { number, id, destination, .. }, fence, .. } =
                claimed;
            let result = match &outcome {
                SendOutcome::Sent => "sent",
                SendOutcome::Later { .. } => "later",
                SendOutcome::GivenUp { detail } => {
                    tracing::warn!(id, destination, detail, "message {id} was given up: {detail}");
                    "given_up"
                }
            };
            if queue == Queue::Alerts {
                metrics::counter!(
                    "counterfoil_notices_total", "destination" => destination, "result" => result
                )
                .increment(1);
            }
            self.store.settle_message(number, fence, outcome, self.clock.now()).await?;
        }
        Ok(count)
    }
}

impl OutboxJob {
    pub fn new(context: &Context, receivers: Receivers) -> Self {
        let Context { store, clock, jitter_seed, .. } = context.clone();
        Self { store, clock, receivers, jitter_seed }
    }

    async fn send(&self, claimed: &ClaimedMessage) -> SendOutcome {
        let ClaimedMessage { message, attempts, .. } = claimed;
        let now = self.clock.now();
        let sending = match &self.receivers {
            Receivers::Alerts(destinations) => send_notice(destinations, message, now).await,
            Receivers::Changes(webhook) => {
                let Message { id, kind, payload, at, .. } = message;
                webhook.tell(&OutgoingChange { id, kind, payload, at: *at, now }).await
            }
        };
        let detail = match sending {
            Sending::Sent => return SendOutcome::Sent,
            Sending::Refused { detail } => return SendOutcome::GivenUp { detail },
            Sending::Later { detail } => detail,
        };
        if GIVEN_UP_AFTER.after(message.at) <= now {
            return SendOutcome::GivenUp { detail };
        }
        let random = self.jitter_seed.wrapping_mul(message.number.wrapping_add(1));
        let pause = BACKOFF.pause_micros(attempts + 1, random);
        SendOutcome::Later { until: now.saturating_add_micros(pause), detail }
    }
}

async fn send_notice(
    destinations: &[Arc<dyn Destination>],
    message: &Message,
    at: Timestamp,
) -> Sending {
    let refused = |detail: &str| Sending::Refused { detail: detail.into() };
    let Some(destination) = destinations.iter().find(|one| one.name() == message.destination)
    else {
        return refused("its destination is not set up any more");
    };
    let alert = serde_json::from_str::<Alert>(&message.payload).ok();
    let (Some(alert), Some(event)) = (alert, NoticeEvent::from_name(&message.kind)) else {
        return refused("its row holds no alert");
    };
    destination.send(&Notice { alert: &alert, event, number: message.number, at }).await
}
