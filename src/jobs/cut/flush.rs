//! Flush: while an invoice is a draft, its tenant's windows of the period are cut at once.
//!
//! What is reported after the invoice is fixed is on no invoice, and that may be an hour after the
//! period's end; so these windows do not wait until they have settled. Late events still make
//! further revisions, as long as the draft stands.
//!
//! Invariant: only windows that are stamped within the invoiced period are hurried. The one that
//! holds the period's end is, if its stamp is before that end, and not before the window is over;
//! else it is on the next invoice and is cut in its own time. A crash leaves the draft's mirror,
//! and the next look begins anew.

use super::{Cutter, ORDERS_MAX};
use crate::jobs::mirror::list_all;
use crate::rules::ids::TenantId;
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store;
use std::collections::{BTreeMap, BTreeSet};

/// How often drafts are looked for.
const EVERY: Span = Span::from_seconds(5);
/// How often one tenant's windows are looked at while its draft stands: at the start of a month
/// everyone has one.
const AGAIN_AFTER: Span = Span::from_minutes(1);

/// When this process last looked, and for whom. Forgotten in a crash, and looked at anew.
#[derive(Default)]
pub struct Flushes {
    looked_at: Option<Timestamp>,
    by_tenant: BTreeMap<TenantId, Timestamp>,
}

impl Flushes {
    /// Whether it is time to look for drafts.
    fn begin(&mut self, now: Timestamp) -> bool {
        let due = self.looked_at.is_none_or(|at| EVERY.after(at) <= now);
        if due {
            self.looked_at = Some(now);
        }
        due
    }

    /// The drafts that are due; those that stand no more are forgotten.
    fn choose(&mut self, drafts: Vec<Draft>, now: Timestamp) -> Vec<Draft> {
        let owners: BTreeSet<&TenantId> = drafts.iter().map(|(tenant, _)| tenant).collect();
        self.by_tenant.retain(|tenant, _| owners.contains(tenant));
        let before = self.by_tenant.clone();
        let due =
            |(tenant, _): &Draft| before.get(tenant).is_none_or(|at| AGAIN_AFTER.after(*at) <= now);
        let due: Vec<Draft> = drafts.into_iter().filter(due).collect();
        self.by_tenant.extend(due.iter().map(|(tenant, _)| (tenant.clone(), now)));
        due
    }
}

/// A tenant with an invoice in draft, and its period.
type Draft = (TenantId, Window);

impl Cutter {
    /// Cuts the windows of drafts; returns how many pushes that made.
    pub async fn flush(&self) -> store::Result<u64> {
        let now = self.clock.now();
        if !self.flushes.lock().expect("no holder panics").begin(now) {
            return Ok(0);
        }
        let drafts = self.drafts().await?;
        let due = self.flushes.lock().expect("no holder panics").choose(drafts, now);
        let mut orders = Vec::new();
        for (tenant, period) in due {
            orders.extend(self.order_hurried(&tenant, period, now).await?);
        }
        if orders.is_empty() {
            return Ok(0);
        }
        let Some(lease) = self.claim().await? else { return Ok(0) };
        let (mut windows, mut pushes) = (0, 0);
        for batch in orders.chunks(ORDERS_MAX) {
            match self.record(&lease, batch.to_vec(), &mut windows).await? {
                Some(more) => pushes += more,
                None => return Ok(pushes),
            }
        }
        self.store.release_lease(&lease).await?;
        if pushes > 0 {
            tracing::info!(windows, pushes, "hurried {windows} windows of invoices in draft");
        }
        Ok(pushes)
    }

    /// Tenants with an invoice in draft, and its period.
    async fn drafts(&self) -> store::Result<Vec<Draft>> {
        let mut drafts = Vec::new();
        for mirror in list_all(&*self.store, ObjectKind::Invoice, Some("draft")).await? {
            let Snapshot::Invoice(invoice) = mirror.snapshot else { continue };
            let found = self.store.find_customer(&invoice.customer).await?;
            drafts.extend(found.map(|tenant| (tenant.id, invoice.period)));
        }
        Ok(drafts)
    }
}
