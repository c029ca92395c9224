//! Snapshots: reads the provider's totals within the budget of reads, and keeps them.
//!
//! Hourly passes leave half of the budget to nightly ones; a nightly pass rests when it is spent,
//! and goes on in the next hour. A pass that a person ordered is not held up.
//!
//! Invariant: one call asks for all windows of a tenant and meter. What could not be read, or was
//! not for want of budget, is left as it was; it is then judged by what was read before, if
//! anything, and has its turn at a later pass. A crash leaves what was kept.

use super::{Reconciler, Work};
use crate::provider::TotalsQuery;
use crate::rules::pass::PassKind;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store;
use crate::store::reconciliation::SummaryReading;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

/// Calls at one time.
const CONCURRENCY_MAX: usize = 8;

impl Reconciler {
    /// Reads totals of the windows that each wants, and keeps them in one transaction; returns how
    /// many calls were made.
    pub(super) async fn read_totals(
        &self,
        kind: PassKind,
        wanted: Vec<(Work, Vec<Window>)>,
    ) -> store::Result<u64> {
        let read_at = self.clock.now();
        let mut wanted = wanted.into_iter().filter(|(_, windows)| !windows.is_empty());
        let (mut readings, mut reads) = (Vec::new(), 0);
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < CONCURRENCY_MAX
                && let Some((work, windows)) = wanted.next()
            {
                if self.may_read(kind, read_at) {
                    *self.turn.lock().expect("no holder panics") = Some(work.pair.clone());
                    calls.push(self.read_one(work, windows));
                }
            }
            let Some(read) = calls.next().await else { break };
            readings.extend(read);
            reads += 1;
        }
        if !readings.is_empty() {
            self.store.record_summaries(readings, read_at).await?;
        }
        metrics::counter!("counterfoil_summary_reads_total").increment(reads);
        Ok(reads)
    }

    fn may_read(&self, kind: PassKind, now: Timestamp) -> bool {
        let mut budget = self.budget.lock().expect("no holder panics");
        match kind {
            PassKind::Hourly => budget.spend(now, self.settings.reads_per_hour / 2),
            PassKind::Nightly => budget.spend(now, 0),
            // It is counted all the same.
            PassKind::OneShot => {
                budget.spend(now, 0);
                true
            }
        }
    }

    /// Whether a chunk of a nightly pass can be read in this hour.
    pub(super) fn can_go_on(&self, kind: PassKind, works: usize) -> bool {
        let mut budget = self.budget.lock().expect("no holder panics");
        let left = budget.left(self.clock.now());
        let needed = u32::try_from(works).unwrap_or(u32::MAX).min(self.settings.reads_per_hour);
        kind != PassKind::Nightly || left.is_none_or(|left| left >= needed)
    }

    async fn read_one(&self, work: Work, windows: Vec<Window>) -> Vec<SummaryReading> {
        let query = TotalsQuery {
            customer: &work.pair.customer,
            event_name: work.meter.event_name(),
            scale: work.meter.billing_scale(),
            windows: &windows,
        };
        match self.provider.read_totals(&query).await {
            Ok(totals) => windows
                .iter()
                .zip(totals)
                .map(|(window, value)| SummaryReading {
                    tenant: work.pair.tenant.clone(),
                    meter: work.pair.meter,
                    customer: work.pair.customer.clone(),
                    window: *window,
                    value,
                })
                .collect(),
            Err(error) => {
                let tenant = work.pair.tenant.as_str();
                tracing::debug!(%error, tenant, "could not read totals of {tenant}");
                Vec::new()
            }
        }
    }
}
