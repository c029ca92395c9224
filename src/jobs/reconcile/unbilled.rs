//! Usage that is never billed as things stand: used before `billing.from`, counted in shadow mode,
//! written off, or of a tenant without a customer. Passes show it with its quantity, and call none
//! of it equal.
//!
//! Invariant: a row is made of what is stored here alone, so no total of the provider is in it. A
//! crash leaves some of the rows; the pass that goes on writes them over.

use super::compare::Compared;
use super::halves::too_large;
use super::ranges::days_of;
use super::{PassError, ReconcileJob, Running, Work};
use crate::rules::billing::Billing;
use crate::rules::drift::{Reason, Verdict};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Meter;
use crate::rules::pass::{Marks, PassKind, PassRow};
use crate::rules::push::{CutState, WindowUsage, billed_of};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows that are written together.
const ROWS_MAX: usize = 500;

/// Why usage is left out of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    BeforeFrom,
    Shadow,
    /// It was used in no subscription and is held; the rest of its window is compared.
    Outside,
    /// It was used in a trial; the rest of its window is compared.
    Trial,
}

/// The usage of a day that is left out of the comparison.
#[derive(Debug, Clone, Copy, Default)]
pub struct Aside {
    pub not_billed: Quantity,
    pub not_billed_windows: u64,
    pub shadow: Quantity,
    pub shadow_windows: u64,
    pub outside: Quantity,
    pub trial: Quantity,
}

impl Aside {
    pub fn add(&mut self, cause: LeftOut, usage: Quantity) -> store::Result<()> {
        if usage == Quantity::ZERO {
            return Ok(());
        }
        let sum = match cause {
            LeftOut::BeforeFrom => {
                self.not_billed_windows += 1;
                &mut self.not_billed
            }
            LeftOut::Shadow => {
                self.shadow_windows += 1;
                &mut self.shadow
            }
            LeftOut::Outside => &mut self.outside,
            LeftOut::Trial => &mut self.trial,
        };
        *sum = sum.checked_add(usage).ok_or_else(too_large)?;
        Ok(())
    }

    /// All of it that may still be billed or was to be: a trial is no part of it.
    pub fn sum(&self) -> store::Result<Quantity> {
        let sum = self.not_billed.checked_add(self.shadow);
        sum.and_then(|sum| sum.checked_add(self.outside)).ok_or_else(too_large)
    }

    pub fn marks(&self) -> Marks {
        let some = |quantity: Quantity| (quantity != Quantity::ZERO).then_some(quantity);
        Marks {
            not_billed: some(self.not_billed),
            shadow: some(self.shadow),
            outside: some(self.outside),
            trial: some(self.trial),
            ..Marks::default()
        }
    }

    /// What an otherwise equal day is: not equal, if anything of it is not billed.
    pub fn qualify(&self, verdict: (Verdict, Reason)) -> (Verdict, Reason) {
        if verdict.0 != Verdict::Equal {
            verdict
        } else if self.shadow_windows > 0 {
            (Verdict::Shadow, Reason::Shadow)
        } else if self.not_billed_windows > 0 {
            (Verdict::NotBilled, Reason::BeforeFrom)
        } else if self.outside != Quantity::ZERO {
            (Verdict::NotBilled, Reason::Outside)
        } else {
            verdict
        }
    }
}

/// A day of a tenant without a customer, or before billing began.
#[derive(Default)]
struct Day {
    aside: Aside,
    counted: Quantity,
    planned: Quantity,
    windows: u64,
}

/// Why a window is not compared; none if it is. `shadow`: whether this server is in shadow mode.
pub fn left_out(
    billing: &Billing,
    start: Timestamp,
    cut: Option<&CutState>,
    shadow: bool,
) -> Option<LeftOut> {
    if start < billing.start() {
        Some(LeftOut::BeforeFrom)
    } else if !shadow && cut.is_some_and(|cut| cut.shadow) {
        Some(LeftOut::Shadow)
    } else {
        None
    }
}

impl ReconcileJob {
    /// Rows of the pass's days that lie before the meter was billed, where something was used.
    pub(super) async fn add_days_before(
        &self,
        running: &Running,
        work: &Work,
        one: &mut Compared,
    ) -> store::Result<()> {
        let focus = running.pass.order.range;
        let billing = work.billing();
        let first = billing.window_around(billing.start(), work.meter.spec.bucket).start;
        let last = days_of(Window { start: first, end: first.saturating_add_micros(1) });
        let end = last.first().map_or(first, |day| day.start).min(focus.end);
        if end <= focus.start {
            return Ok(());
        }
        let range = Window { start: focus.start, end };
        let (tenant, meter) = (&work.pair.tenant, work.pair.meter);
        for (day, Day { aside, .. }) in self.sum_days(tenant, (meter, &work.meter), range).await? {
            one.add_aside(&aside);
            one.rows.push(PassRow {
                tenant: tenant.clone(),
                meter,
                day,
                ledger: aside.sum()?,
                pushed: Quantity::ZERO,
                provider: None,
                verdict: Verdict::NotBilled,
                reason: Reason::BeforeFrom,
                windows: Vec::new(),
                marks: aside.marks(),
                hash: None,
            });
        }
        Ok(())
    }

    /// Rows of tenants without a customer that have used something on the pass's days.
    pub(super) async fn compare_unmapped(&self, running: &mut Running) -> Result<(), PassError> {
        match running.pass.order.kind {
            PassKind::Hourly => return Ok(()),
            PassKind::Nightly | PassKind::OneShot => {}
        }
        let catalog = self.store.load_catalog().await?;
        let meters = catalog.billed();
        let (mut rows, mut windows) = (Vec::new(), 0);
        let tenants = self.tenants(running.pass.order.tenant.as_ref()).await?;
        for tenant in tenants.into_iter().filter(|tenant| tenant.customer.is_none()) {
            self.keep_lease(running).await?;
            for (number, meter) in &meters {
                let range = running.pass.order.range;
                let days = self.sum_days(&tenant.id, (*number, meter), range).await?;
                windows += days.values().map(|day| day.windows).sum::<u64>();
                for (day, sums) in days {
                    rows.push(unmapped_row(&tenant.id, *number, (day, sums))?);
                }
            }
            if rows.len() >= ROWS_MAX {
                self.record_rows(running, std::mem::take(&mut rows)).await?;
            }
        }
        self.record_rows(running, rows).await?;
        // Counted anew if the pass was cut off here before.
        let before = running.progress.verdicts.remove(&Verdict::Unmapped).unwrap_or(0);
        running.progress.windows = running.progress.windows.saturating_sub(before) + windows;
        if windows > 0 {
            running.progress.verdicts.insert(Verdict::Unmapped, windows);
        }
        Ok(())
    }

    /// Days of the range on which a tenant used a meter, with what of it would be billed.
    async fn sum_days(
        &self,
        tenant: &TenantId,
        (number, meter): (MeterNo, &Arc<Meter>),
        range: Window,
    ) -> store::Result<BTreeMap<Window, Day>> {
        let Some(billing) = &meter.spec.billing else { return Ok(BTreeMap::new()) };
        let mut windows: BTreeMap<Timestamp, Vec<UsageRow>> = BTreeMap::new();
        for row in self.store.read_usage(tenant, number, range, usize::MAX).await? {
            let window = billing.window_around(row.bucket_start, meter.spec.bucket);
            windows.entry(window.start).or_default().push(row);
        }
        if windows.is_empty() {
            return Ok(BTreeMap::new());
        }
        let cuts = self.store.read_cuts(tenant, number, range).await?;
        let cuts: BTreeMap<Timestamp, CutState> = cuts.into_iter().collect();
        let mut days: BTreeMap<Window, Day> = BTreeMap::new();
        for (start, rows) in windows {
            let usage = WindowUsage::measure(&rows).map_err(|_| too_large())?.billable;
            let at = Window { start, end: start.saturating_add_micros(1) };
            let Some(day) = days_of(at).pop() else { continue };
            let day = days.entry(day).or_default();
            let cut = cuts.get(&start);
            match left_out(billing, start, cut, self.shadow) {
                Some(cause) => day.aside.add(cause, usage)?,
                None => {
                    if let Some(CutState { trial, outside, .. }) = cut {
                        day.aside.add(LeftOut::Trial, *trial)?;
                        day.aside.add(LeftOut::Outside, *outside)?;
                    }
                    let planned = cut.map_or(Quantity::ZERO, |cut| cut.planned);
                    let billed = billed_of(cut, usage).ok_or_else(too_large)?;
                    day.counted = day.counted.checked_add(billed).ok_or_else(too_large)?;
                    day.planned = day.planned.checked_add(planned).ok_or_else(too_large)?;
                    day.windows += 1;
                }
            }
        }
        days.retain(|_, day| {
            let zero = Quantity::ZERO;
            let Aside { not_billed, shadow, outside, trial, .. } = day.aside;
            [day.counted, day.planned, not_billed, shadow, outside, trial] != [zero; 6]
        });
        Ok(days)
    }
}

fn unmapped_row(
    tenant: &TenantId,
    meter: MeterNo,
    (day, sums): (Window, Day),
) -> store::Result<PassRow> {
    let Day { aside, counted, planned, .. } = sums;
    let (verdict, reason) = match counted == Quantity::ZERO && planned == Quantity::ZERO {
        true => aside.qualify((Verdict::Equal, Reason::Matches)),
        false => (Verdict::Unmapped, Reason::NoCustomer),
    };
    Ok(PassRow {
        tenant: tenant.clone(),
        meter,
        day,
        ledger: counted.checked_add(aside.sum()?).ok_or_else(too_large)?,
        pushed: planned,
        provider: None,
        verdict,
        reason,
        windows: Vec::new(),
        marks: aside.marks(),
        hash: None,
    })
}
