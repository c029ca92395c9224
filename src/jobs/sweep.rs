//! Sweeping: removes messages and idempotency keys whose time is over.
//!
//! Invariant: messages are removed after 30 days, but for those of dunning; keys when their answers
//! need not be kept any more. A crash leaves the rest, and the next pass removes it.

use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::rules::span::Span;
use crate::store;
use crate::store::outbox::Outbox;
use std::sync::Arc;
use std::time::Duration;

const KEPT_FOR: Span = Span::from_hours(30 * 24);
const PRUNE_MAX: usize = 1_000;

pub struct SweepJob {
    outbox: Arc<dyn Outbox>,
    keys: Arc<dyn counterfoil_idempotency::Store>,
    clock: Clock,
}

impl SweepJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, .. } = context.clone();
        let keys = Arc::clone(&store).request_keys(clock.clone());
        Self { outbox: store, keys, clock }
    }
}

impl Job for SweepJob {
    const NAME: &'static str = "sweep";
    const PAUSE: Duration = Duration::from_secs(600);
    type Done = (usize, usize);
    type Error = store::Error;

    /// Removes what is due; returns how many messages and keys that was.
    async fn pass(&self) -> store::Result<(usize, usize)> {
        let (mut messages, mut keys) = (0, 0);
        // A clock that is ahead must not make keys forgotten while they are needed.
        let Some(now) = sure_time(&self.clock, "sweep") else { return Ok((messages, keys)) };
        loop {
            let some = self.outbox.prune_messages(KEPT_FOR.before(now), PRUNE_MAX).await?;
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
