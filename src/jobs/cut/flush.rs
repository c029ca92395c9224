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

use super::{Billed, Cutter, Seek};
use crate::jobs::mirror::list_all;
use crate::rules::ids::TenantId;
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::span::Span;
use crate::rules::window::Window;
use crate::store;

/// How often drafts are looked for.
const EVERY: Span = Span::from_seconds(5);

impl Cutter {
    /// Cuts the windows of drafts; returns how many pushes that made.
    pub async fn flush(&self) -> store::Result<u64> {
        let now = self.clock.now();
        let flushed_at = *self.flushed_at.lock().expect("no holder panics");
        if flushed_at.is_some_and(|at| now < EVERY.after(at)) {
            return Ok(0);
        }
        *self.flushed_at.lock().expect("no holder panics") = Some(now);
        let mut orders = Vec::new();
        for (tenant, period) in self.drafts().await? {
            let catalog = self.store.load_catalog().await?;
            for meter in catalog.list() {
                let Some(billing) = meter.spec.billing.as_ref() else { continue };
                let Some((number, _)) = catalog.find(meter.slug.as_str()) else { continue };
                let billed = Billed { number, meter: meter.as_ref(), billing, mark: None };
                let inside = period.end.saturating_add_micros(-1);
                let last = billing.window_around(inside, meter.spec.bucket);
                let range = Window { start: period.start, end: last.end };
                let seek = Seek { range, now, closed_until: Some(period.end) };
                orders.extend(self.find_changed(&billed, &tenant, seek).await?);
            }
        }
        if orders.is_empty() {
            return Ok(0);
        }
        let Some(lease) = self.claim().await? else { return Ok(0) };
        let mut windows = 0;
        let pushes = self.record(&lease, orders, &mut windows).await?.unwrap_or(0);
        self.store.release_lease(&lease).await?;
        if pushes > 0 {
            tracing::info!(windows, pushes, "hurried {windows} windows of invoices in draft");
        }
        Ok(pushes)
    }

    /// Tenants with an invoice in draft, and its period.
    async fn drafts(&self) -> store::Result<Vec<(TenantId, Window)>> {
        let mut drafts = Vec::new();
        for mirror in list_all(&*self.store, ObjectKind::Invoice, Some("draft")).await? {
            let Snapshot::Invoice(invoice) = mirror.snapshot else { continue };
            let found = self.store.find_customer(&invoice.customer).await?;
            drafts.extend(found.map(|tenant| (tenant.id, invoice.period)));
        }
        Ok(drafts)
    }
}
