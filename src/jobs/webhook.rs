//! Webhooks in: many requests' webhooks are written down together.
//!
//! A commit costs a sync of the disk, whether it holds one webhook or hundreds. So requests queue,
//! and whatever waits when the last commit ends goes into the next one.
//!
//! Invariant: a webhook is answered after the commit that holds it. The queue is bounded; when it
//! is full, or the store cannot write, the answer is an error and the provider retries. A crash
//! leaves webhooks stored, or unanswered and sent again.

use crate::faults::crash_point;
use crate::store;
use crate::store::webhook::{Receipted, WebhookReceipt, Webhooks};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc, oneshot};

/// Webhooks that wait at most.
const QUEUE_MAX: usize = 2_048;
/// Webhooks of one commit.
const BATCH_MAX: usize = 500;

type WaitingWebhook = (WebhookReceipt, oneshot::Sender<store::Result<Receipted>>);

/// Stores webhooks, and notifies the job that reads their objects.
pub struct WebhookInbox {
    queue: mpsc::Sender<WaitingWebhook>,
    /// Notified when an object is to be read.
    arrived: Arc<Notify>,
}

impl WebhookInbox {
    pub fn start(store: Arc<dyn Webhooks>) -> Arc<Self> {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let arrived = Arc::new(Notify::new());
        tokio::spawn(write_down(store, waiting, Arc::clone(&arrived)));
        Arc::new(Self { queue, arrived })
    }

    pub fn arrived(&self) -> Arc<Notify> {
        Arc::clone(&self.arrived)
    }

    /// Stores a webhook; durable on return.
    pub async fn submit(&self, receipt: WebhookReceipt) -> store::Result<Receipted> {
        let busy = || store::Error::Unavailable { what: "too many webhooks wait".into() };
        let (reply, answer) = oneshot::channel();
        self.queue.try_send((receipt, reply)).map_err(|_| busy())?;
        answer.await.map_err(|_| busy())?
    }
}

async fn write_down(
    store: Arc<dyn Webhooks>,
    mut waiting: mpsc::Receiver<WaitingWebhook>,
    arrived: Arc<Notify>,
) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (receipts, replies): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
        crash_point("webhook.before_commit");
        let recorded = store.record_webhooks(receipts).await;
        crash_point("webhook.after_commit");
        // A caller that has stopped waiting sends again and finds it known.
        match recorded {
            Ok(receipted) => {
                for (reply, one) in replies.into_iter().zip(receipted) {
                    let _ = reply.send(Ok(one));
                }
                arrived.notify_one();
            }
            Err(error) => {
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }
}
