//! Dunning: what is told about invoices that were not paid, once for each stage of each cycle.
//!
//! Invariant: the stage follows from the invoice as it was read last (`rules::dunning`), so the order
//! of webhooks plays no part; each stage of an invoice is one message with one key, whoever writes it
//! and however often. A crash leaves a message written or not; the next look writes it.

use super::mirror::list_all;
use super::{Stop, repeat};
use crate::clock::Clock;
use crate::rules::dunning::judge_stage;
use crate::rules::invoice::Invoice;
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::timestamp::Timestamp;
use crate::store::message::NewMessage;
use crate::store::{self, Store};
use std::sync::Arc;
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(30);
/// In which an invoice may be that was not paid.
const STATES: [&str; 3] = ["open", "uncollectible", "paid"];
/// Paid invoices are looked at for so long: one that recovered is told of soon after.
const RECENT: crate::rules::span::Span = crate::rules::span::Span::from_hours(45 * 24);

pub struct Dunner {
    store: Arc<dyn Store>,
    clock: Clock,
}

impl Dunner {
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, clock }
    }

    pub async fn run(self, stop: Stop) {
        repeat("dunning", PAUSE, stop, || async { self.pass().await.map(drop) }).await;
    }

    /// Tells what has not been told; returns how many messages that made.
    pub async fn pass(&self) -> store::Result<usize> {
        let now = self.clock.now();
        let mut messages = Vec::new();
        for state in STATES {
            for mirror in list_all(&*self.store, ObjectKind::Invoice, Some(state)).await? {
                let Snapshot::Invoice(invoice) = mirror.snapshot else { continue };
                if state == "paid" && RECENT.after(invoice.created_at) < now {
                    continue;
                }
                messages.extend(self.tell(&mirror.name.id, &invoice, now).await?);
            }
        }
        if messages.is_empty() {
            return Ok(0);
        }
        self.store.record_messages(messages, now).await
    }

    async fn tell(
        &self,
        id: &str,
        invoice: &Invoice,
        now: Timestamp,
    ) -> store::Result<Option<NewMessage>> {
        let Some(stage) = judge_stage(invoice, now) else { return Ok(None) };
        let tenant = self.store.find_customer(&invoice.customer).await?.map(|tenant| tenant.id);
        let payload = serde_json::json!({
            "invoice": id,
            "tenant": tenant.as_ref().map(|tenant| tenant.as_str()),
            "customer": invoice.customer.as_str(),
            "stage": stage.name(),
            "amount_due": invoice.amount_due,
            "currency": invoice.currency,
            "attempts": invoice.attempt_count,
            "next_attempt_at": invoice.next_attempt_at.map(|at| at.to_string()),
        });
        let key = format!("dunning:{id}:{}", stage.name());
        let payload = payload.to_string();
        Ok(Some(NewMessage { key, kind: stage.message(), tenant, payload }))
    }
}
