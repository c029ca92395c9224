//! Snapshots: reads the provider's totals within the budget of reads, and keeps them.
//!
//! Hourly passes leave half of the budget to nightly ones; a nightly pass rests when it is spent,
//! and goes on in the next hour. A pass that a person ordered is not held up.
//!
//! Invariant: one call asks for all windows of a customer and meter that lie close together. What
//! could not be read, or was not for want of budget, is remembered as missed: it is judged as
//! unread, whatever was read before, and has its turn at a later pass. A crash leaves what was
//! kept; the pass that goes on reads its chunk again.

use super::{PassError, ReconcileJob, Running, Work};
use crate::provider::TotalsQuery;
use crate::rules::drift::Summary;
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::pass::PassKind;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store;
use crate::store::reconciliation::SummaryReading;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::{BTreeSet, HashSet};

/// Calls at one time.
const CONCURRENCY_MAX: usize = 8;
/// Windows that one call spans where only some are asked for: as many as a page of the provider
/// has.
const SPANNED_MAX: i64 = 100;

/// Totals to be read in one call: of windows of one length, oldest first.
#[derive(Clone)]
pub struct Asked {
    pub work: Work,
    pub customer: CustomerId,
    pub windows: Vec<Window>,
}

/// What the running pass has read of the provider, and what it could not read.
#[derive(Default)]
pub struct Readings {
    /// Totals of the chunk that is compared: tenant and meter, customer, start and end.
    fresh: HashSet<(TenantId, MeterNo, CustomerId, Timestamp, Timestamp)>,
    /// Tenants and meters of which a total was not read.
    pub missed: BTreeSet<(TenantId, MeterNo)>,
    /// Whether any call for totals succeeded.
    pub succeeded: bool,
    /// Whether a list of objects could not be read.
    pub lists_missed: bool,
}

impl Readings {
    /// Forgets the totals of the chunk before.
    pub fn begin_chunk(&mut self) {
        self.fresh.clear();
    }

    /// Whether no call of the pass reached the provider.
    pub fn are_missing(&self) -> bool {
        !self.succeeded && !self.missed.is_empty()
    }

    pub fn has_read(&self, work: &Work, customer: &CustomerId, window: Window) -> bool {
        let (tenant, meter) = (work.pair.tenant.clone(), work.pair.meter);
        self.fresh.contains(&(tenant, meter, customer.clone(), window.start, window.end))
    }

    /// The stored total, if this pass has read it.
    pub fn of_this_pass(
        &self,
        work: &Work,
        customer: &CustomerId,
        summary: Option<Summary>,
    ) -> Option<Summary> {
        summary.filter(|summary| self.has_read(work, customer, summary.window))
    }

    fn take(
        &mut self,
        asked: &Asked,
        readings: Option<Vec<SummaryReading>>,
    ) -> Vec<SummaryReading> {
        let Asked { work, customer, windows } = asked;
        let Some(readings) = readings else {
            if !windows.iter().all(|window| self.has_read(work, customer, *window)) {
                self.missed.insert((work.pair.tenant.clone(), work.pair.meter));
            }
            return Vec::new();
        };
        self.succeeded = true;
        self.fresh.extend(readings.iter().map(|reading| {
            let SummaryReading { tenant, meter, customer, window, .. } = reading;
            (tenant.clone(), *meter, customer.clone(), window.start, window.end)
        }));
        readings
    }
}

impl ReconcileJob {
    /// Reads totals of the windows that each wants, and keeps them in one transaction.
    pub(super) async fn read_totals(
        &self,
        running: &mut Running,
        wanted: Vec<Asked>,
    ) -> Result<(), PassError> {
        let kind = running.pass.order.kind;
        let read_at = self.clock.now();
        let mut wanted = wanted.into_iter().filter(|asked| !asked.windows.is_empty());
        let (mut readings, mut reads) = (Vec::new(), 0);
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < CONCURRENCY_MAX
                && let Some(asked) = wanted.next()
            {
                if self.may_read(kind, read_at) {
                    *self.turn.lock().expect("no holder panics") = Some(asked.work.pair.clone());
                    calls.push(self.read_one(asked));
                } else {
                    running.readings.take(&asked, None);
                }
            }
            let Some((asked, read)) = calls.next().await else { break };
            readings.extend(running.readings.take(&asked, read));
            reads += 1;
            self.keep_lease(running).await?;
        }
        if !readings.is_empty() {
            self.store.record_summaries(readings, read_at).await?;
        }
        metrics::counter!("counterfoil_summary_reads_total").increment(reads);
        running.progress.reads += reads;
        Ok(())
    }

    pub(super) fn may_read(&self, kind: PassKind, now: Timestamp) -> bool {
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

    /// What is asked of the provider for windows of one length: all of them of the tenant's
    /// customer, and of a former one those that something was sent for.
    pub(super) async fn ask(&self, work: &Work, windows: &[Window]) -> store::Result<Vec<Asked>> {
        let asked = |customer: &CustomerId, windows: Vec<Window>| Asked {
            work: work.clone(),
            customer: customer.clone(),
            windows,
        };
        // What is sent nowhere cannot be compared with anything.
        if !self.provider.limits().sends {
            return Ok(Vec::new());
        }
        let mut all = vec![asked(&work.pair.customer, windows.to_vec())];
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return Ok(all) };
        if work.former.is_empty() {
            return Ok(all);
        }
        let span = Window { start: first.start, end: last.end };
        let (tenant, meter) = (&work.pair.tenant, work.pair.meter);
        let pushes = self.store.read_window_pushes(tenant, meter, span).await?;
        for customer in &work.former {
            let sent = |window: &&Window| {
                pushes.iter().any(|push| {
                    push.customer.as_ref() == Some(customer) && window.contains(push.window.start)
                })
            };
            all.push(asked(customer, windows.iter().filter(sent).copied().collect()));
        }
        Ok(all)
    }

    /// One call; no readings if it failed.
    async fn read_one(&self, asked: Asked) -> (Asked, Option<Vec<SummaryReading>>) {
        let Asked { work, customer, windows } = &asked;
        let query = TotalsQuery::new(customer, &work.meter, windows);
        let totals = match self.provider.read_totals(&query).await {
            Ok(totals) => totals,
            Err(error) => {
                let tenant = work.pair.tenant.as_str();
                tracing::debug!(%error, tenant, "could not read totals of {tenant}");
                return (asked, None);
            }
        };
        let reading = |(window, value): (&Window, _)| SummaryReading {
            tenant: work.pair.tenant.clone(),
            meter: work.pair.meter,
            customer: customer.clone(),
            window: *window,
            value,
        };
        let readings = windows.iter().zip(totals).map(reading).collect();
        (asked, Some(readings))
    }
}

/// Puts windows that lie close together into one call each; hours and days apart.
pub fn group_windows(mut windows: Vec<Window>) -> Vec<Vec<Window>> {
    windows.sort_by_key(|window| (window.micros(), window.start));
    let mut groups: Vec<Vec<Window>> = Vec::new();
    for window in windows {
        let fits = |group: &&mut Vec<Window>| {
            group.first().is_some_and(|first| {
                let spanned = window.end.micros() - first.start.micros();
                first.micros() == window.micros() && spanned <= SPANNED_MAX * window.micros()
            })
        };
        match groups.last_mut().filter(fits) {
            Some(group) => group.push(window),
            None => groups.push(vec![window]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::timestamp::MICROS_PER_HOUR;

    #[test]
    fn windows_that_lie_close_together_are_one_call() {
        let window = |start: i64, hours: i64| Window {
            start: Timestamp::from_micros(start * MICROS_PER_HOUR),
            end: Timestamp::from_micros((start + hours) * MICROS_PER_HOUR),
        };
        let check = |windows: &[(i64, i64)], expected: &[usize]| {
            let windows = windows.iter().map(|(start, hours)| window(*start, *hours)).collect();
            let groups = group_windows(windows);
            let found: Vec<usize> = groups.iter().map(Vec::len).collect();
            assert_eq!(found, expected, "{groups:?}");
        };
        check(&[], &[]);
        check(&[(5, 1)], &[1]);
        let two_days: Vec<(i64, i64)> = (0..48).map(|hour| (hour, 1)).collect();
        check(&two_days, &[48]);
        check(&[(99, 1), (0, 1), (100, 1)], &[2, 1]);
        check(&[(0, 1), (0, 24), (24, 24), (1, 1)], &[2, 2]);
    }
}
