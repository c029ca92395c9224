//! Dunning: publishes the stages of unpaid invoices, each once per billing cycle.
//!
//! Invariant: the stage follows from the invoice as it was read last (`rules::dunning`), so the
//! order of webhooks plays no part; each stage of an invoice is one change with one key, no matter
//! which server writes it and however often. A crash leaves a change written or not; the next look
//! writes it.

use super::mirror::list_all;
use super::{Context, Job, sure_time};
use crate::clock::Clock;
use crate::rules::dunning::{Stage, judge_end, judge_stage};
use crate::rules::invoice::Invoice;
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::store::list::PAGE;
use crate::store::outbox::{FeedChange, Message, Outbox};
use crate::store::webhook::Mirrors;
use crate::store::{self, Query, Tenants};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct DunningJob {
    mirrors: Arc<dyn Mirrors>,
    outbox: Arc<dyn Outbox>,
    tenants: Arc<dyn Tenants>,
    clock: Clock,
    announced: Mutex<Announced>,
}

/// Invoices with published stages, from the feed itself. Forgotten in a crash, and read
/// anew.
#[derive(Default, Clone)]
struct Announced {
    /// The last change that was looked at.
    after: Option<u64>,
    /// Invoices in dunning whose end was not published.
    open: BTreeSet<String>,
}

impl Job for DunningJob {
    const NAME: &'static str = "dunning";
    const PAUSE: Duration = Duration::from_secs(30);
    type Done = usize;
    type Error = store::Error;

    /// Publishes the stages that are due; returns how many changes that wrote.
    async fn pass(&self) -> store::Result<usize> {
        let Some(now) = sure_time(&self.clock, "dunning") else { return Ok(0) };
        let mut changes = Vec::new();
        for mirror in list_all(&*self.mirrors, ObjectKind::Invoice, Some("open")).await? {
            if let Snapshot::Invoice(invoice) = mirror.snapshot {
                let stage = judge_stage(&invoice, now);
                changes.extend(self.tell(&mirror.name.id, &invoice, stage).await?);
            }
        }
        // Those that are not open any more have an end only if they had a beginning.
        for id in self.read_announced().await? {
            let name = ObjectName { kind: ObjectKind::Invoice, id };
            let Some(mirror) = self.mirrors.find_mirror(&name).await? else { continue };
            if let Snapshot::Invoice(invoice) = mirror.snapshot {
                changes.extend(self.tell(&name.id, &invoice, judge_end(&invoice)).await?);
            }
        }
        if changes.is_empty() {
            return Ok(0);
        }
        self.outbox.publish_changes(changes, now).await
    }
}

impl DunningJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, .. } = context.clone();
        let (mirrors, outbox) = (store.clone(), store.clone());
        Self { mirrors, outbox, tenants: store, clock, announced: Mutex::default() }
    }

    /// Invoices in dunning, as far as others know.
    async fn read_announced(&self) -> store::Result<BTreeSet<String>> {
        let mut announced = self.announced.lock().expect("no holder panics").clone();
        loop {
            let query = Query { filter: None, after: announced.after, limit: PAGE };
            let page = self.outbox.list_changes(query).await?;
            for change in &page {
                announced.after = Some(change.number);
                announced.read(change);
            }
            if page.len() < PAGE {
                break;
            }
        }
        let open = announced.open.clone();
        *self.announced.lock().expect("no holder panics") = announced;
        Ok(open)
    }

    async fn tell(
        &self,
        id: &str,
        invoice: &Invoice,
        stage: Option<Stage>,
    ) -> store::Result<Option<FeedChange>> {
        let Some(stage) = stage else { return Ok(None) };
        let tenant = self.tenants.find_customer(&invoice.customer).await?.map(|tenant| tenant.id);
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
        Ok(Some(FeedChange { key, kind: stage.change_kind(), tenant, payload }))
    }
}

impl Announced {
    fn read(&mut self, change: &Message) {
        let payload: serde_json::Value = serde_json::from_str(&change.payload).unwrap_or_default();
        let stage = Stage::ALL.into_iter().find(|stage| stage.change_kind() == change.kind);
        let (Some(stage), Some(invoice)) = (stage, payload["invoice"].as_str()) else { return };
        if stage.is_end() {
            self.open.remove(invoice);
        } else {
            self.open.insert(invoice.to_owned());
        }
    }
}
