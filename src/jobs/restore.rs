//! Restores: recognised when a server starts, and the store's mark moved while it runs.
//!
//! Invariant: whether the store was restored is decided before anything is sent, and written down
//! before the mark moves on. A crash in between leaves the store as it was found; the next start
//! recognises it again, which costs readings and nothing else.
//!
//! Tests put a copy of the store's files back, or make a database from a template, and call
//! [`recognise`] as a starting server does; or they call `record_restore`.

use super::{Context, Job};
use crate::clock::Clock;
use crate::rules::restore::{Cause, judge_identity, judge_start, lag_after};
use crate::store;
use crate::store::epoch::{Epoch, Epochs};
use std::sync::Arc;
use std::time::Duration;

/// Finds out whether the store was restored since it was last in use, and begins an epoch if so.
pub async fn recognise(store: &dyn Epochs, clock: &Clock) -> store::Result<Option<Epoch>> {
    let (life, now) = (store.read_life().await?, clock.now());
    let found = match judge_start(&life, now) {
        Some(cause) => Some(begin_epoch(store, clock, &cause).await?),
        None => None,
    };
    store.record_alive(now).await?;
    Ok(found)
}

pub struct RestoreJob {
    store: Arc<dyn Epochs>,
    clock: Clock,
}

impl RestoreJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, .. } = context.clone();
        Self { store, clock }
    }
}

impl Job for RestoreJob {
    const NAME: &'static str = "restore";
    /// Often enough to distinguish a stop of ten minutes from one of a minute.
    const PAUSE: Duration = Duration::from_secs(60);
    type Done = ();
    type Error = store::Error;

    /// Moves the mark on. A database that is put back or taken over by a standby while servers run
    /// is recognised here.
    async fn pass(&self) -> store::Result<()> {
        if let Some(cause) = judge_identity(&self.store.read_life().await?) {
            begin_epoch(&*self.store, &self.clock, &cause).await?;
        }
        self.store.record_alive(self.clock.now()).await
    }
}

async fn begin_epoch(store: &dyn Epochs, clock: &Clock, cause: &Cause) -> store::Result<Epoch> {
    let epoch = store.record_restore(cause, clock.now()).await?;
    let (reason, from) = (&cause.reason, lag_after(cause.suspected).after(epoch.restored_at));
    tracing::warn!(
        epoch = epoch.number,
        reason,
        "the store may have been restored from a backup ({reason}): pushes of windows that began \
         before {} are sent only after the provider's total was compared, from {from} on",
        epoch.restored_at
    );
    Ok(epoch)
}
