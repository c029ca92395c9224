//! Dunning: what is told about invoices that were not paid, once for each stage of each cycle.
//!
//! Invariant: the stage follows from the invoice as it was read last (`rules::dunning`), so the
//! order of webhooks plays no part; each stage of an invoice is one message with one key, whoever
//! writes it and however often. A crash leaves a message written or not; the next look writes it.

use super::mirror::list_all;
use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::rules::dunning::{Stage, judge_end, judge_stage};
use crate::rules::invoice::Invoice;
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::store::outbox::{Message, NewMessage};
use crate::store::{self, Store};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: usize = 1_000;

pub struct DunningJob {
    store: Arc<dyn Store>,
    clock: Clock,
    told: Mutex<Told>,
}

/// Whom something was told about, from the messages themselves. Forgotten in a crash, and read
/// anew.
#[derive(Default, Clone)]
struct Told {
    /// The last message that was looked at.
    after: u64,
    /// Invoices in dunning whose end was not told.
    open: BTreeSet<String>,
}

impl Job for DunningJob {
    const NAME: &'static str = "dunning";
    const PAUSE: Duration = Duration::from_secs(30);
    type Done = usize;
    type Error = store::Error;

    /// Tells what has not been told; returns how many messages that made.
    async fn pass(&self) -> store::Result<usize> {
        let Some(now) = sure_time(&self.clock, "dunning") else { return Ok(0) };
        let mut messages = Vec::new();
        for mirror in list_all(&*self.store, ObjectKind::Invoice, Some("open")).await? {
            if let Snapshot::Invoice(invoice) = mirror.snapshot {
                let stage = judge_stage(&invoice, now);
                messages.extend(self.tell(&mirror.name.id, &invoice, stage).await?);
            }
        }
        // Those that are not open any more have an end only if they had a beginning.
        for id in self.read_told().await? {
            let name = ObjectName { kind: ObjectKind::Invoice, id };
            let Some(mirror) = self.store.find_mirror(&name).await? else { continue };
            if let Snapshot::Invoice(invoice) = mirror.snapshot {
                messages.extend(self.tell(&name.id, &invoice, judge_end(&invoice)).await?);
            }
        }
        if messages.is_empty() {
            return Ok(0);
        }
        self.store.record_messages(messages, now).await
    }
}

impl DunningJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, .. } = context.clone();
        Self { store, clock, told: Mutex::default() }
    }

    /// Invoices in dunning, as far as others know.
    async fn read_told(&self) -> store::Result<BTreeSet<String>> {
        let mut told = self.told.lock().expect("no holder panics").clone();
        loop {
            let page = self.store.list_messages(None, told.after, PAGE).await?;
            for message in &page {
                told.after = message.number;
                told.read(message);
            }
            if page.len() < PAGE {
                break;
            }
        }
        let open = told.open.clone();
        *self.told.lock().expect("no holder panics") = told;
        Ok(open)
    }

    async fn tell(
        &self,
        id: &str,
        invoice: &Invoice,
        stage: Option<Stage>,
    ) -> store::Result<Option<NewMessage>> {
        let Some(stage) = stage else { return Ok(None) };
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

impl Told {
    fn read(&mut self, message: &Message) {
        let payload: serde_json::Value = serde_json::from_str(&message.payload).unwrap_or_default();
        let stage = Stage::ALL.into_iter().find(|stage| stage.message() == message.kind);
        let (Some(stage), Some(invoice)) = (stage, payload["invoice"].as_str()) else { return };
        if stage.is_end() {
            self.open.remove(invoice);
        } else {
            self.open.insert(invoice.to_owned());
        }
    }
}
