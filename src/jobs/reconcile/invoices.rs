//! Invoices that are fixed, compared with what was counted.
//!
//! Invariant: an invoice is compared by quantity and by money before tax, once it is fixed; tax may
//! come when it likes. What lies on each side of a period's border is compared by when it was used.
//! What cannot be compared yet is compared by a later pass. A crash leaves findings as they were.

use super::halves::too_large;
use super::objects::{INVOICES_REACH, observe};
use super::{HOURLY, PassError, ReconcileJob, Running, list_open_findings};
use crate::jobs::mirror::list_all;
use crate::rules::attribution::Divided;
use crate::rules::drift::{Reason, Verdict, WindowPush};
use crate::rules::finding::{Finding, FindingKind, Observation};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::invoice::{Invoice, Mismatch, Side, judge_invoice, judge_side};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::mirror::{ObjectKind, Snapshot};
use crate::rules::pass::PassKind;
use crate::rules::push::CutState;
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::submission::{Class, PushState};
use crate::rules::window::Window;
use crate::store;
use crate::store::webhook::Mirror;
use std::collections::{BTreeMap, BTreeSet};

/// An hourly pass looks at those that were read lately.
const INVOICES_LATELY: Span = Span::from_hours(3);
/// States in which an invoice's lines are fixed.
const FIXED: [&str; 3] = ["open", "paid", "uncollectible"];

impl ReconcileJob {
    pub(super) async fn compare_invoices(&self, running: &mut Running) -> Result<(), PassError> {
        let now = self.clock.now();
        let hourly = running.pass.order.kind == PassKind::Hourly;
        // While the provider cannot be read, only invoices read since the last pass count.
        let missing = running.readings.are_missing() || running.readings.lists_missed;
        let recent = if missing { HOURLY } else { INVOICES_LATELY };
        let open = list_open_findings(&*self.store, Some(FindingKind::Invoice)).await?;
        let catalog = self.store.load_catalog().await?;
        let mut judged: BTreeSet<String> = BTreeSet::new();
        let mut observations = Vec::new();
        for status in FIXED {
            for mirror in list_all(&*self.store, ObjectKind::Invoice, Some(status)).await? {
                let Mirror { name, snapshot: Snapshot::Invoice(invoice), read_at, .. } = mirror
                else {
                    continue;
                };
                let known = open.iter().any(|finding| finding.seen.subject == name.id);
                let lately = read_at >= recent.before(now);
                let due = known || (invoice.created_at >= INVOICES_REACH.before(now) && !hourly);
                if (due && !missing) || lately {
                    self.keep_lease(running).await?;
                    let compared = self.judge_invoice(&name.id, &invoice, &catalog).await?;
                    for (tenant, meter, period) in compared.agreed {
                        if running.pass.order.apply {
                            self.close(&tenant, meter, period).await?;
                        }
                    }
                    observations.extend(compared.observation);
                    judged.insert(name.id);
                }
            }
        }
        // An invoice that is fixed no more, or gone, has nothing to compare with.
        let judged: Vec<Finding> = open
            .into_iter()
            .filter(|finding| judged.contains(&finding.seen.subject) || !(hourly || missing))
            .collect();
        self.follow(running, &judged, observations).await
    }

    async fn judge_invoice(
        &self,
        id: &str,
        invoice: &Invoice,
        catalog: &Catalog,
    ) -> store::Result<JudgedInvoice> {
        // Other invoices hold no usage of a whole period.
        if invoice.reason.as_deref() != Some("subscription_cycle") {
            return Ok(JudgedInvoice::default());
        }
        let Some(tenant) = self.store.find_customer(&invoice.customer).await? else {
            return Ok(JudgedInvoice::default());
        };
        let (mut agreed, mut misplaced) = (Vec::new(), Vec::new());
        let mut sums: BTreeMap<(String, i64), Quantity> = BTreeMap::new();
        for line in &invoice.lines {
            let Some(event_name) = &line.event_name else { continue };
            let whose = (&tenant.id, &invoice.customer);
            let key = (event_name.clone(), line.period.start.micros());
            if sums.contains_key(&key) {
                continue;
            }
            let sum = self.sum_pushed(whose, event_name, line.period, catalog).await?;
            if let Some(PushedSum { sum, meter, confirmed, misplaced: own }) = sum {
                sums.insert(key, sum);
                misplaced.extend(own);
                agreed.extend(confirmed.then(|| (tenant.id.clone(), meter, line.period)));
            }
        }
        let pushed = |event_name: &str, period: Window| {
            sums.get(&(event_name.to_owned(), period.start.micros())).copied()
        };
        let mut mismatches = judge_invoice(invoice, pushed);
        mismatches.extend(misplaced);
        if mismatches.is_empty() {
            return Ok(JudgedInvoice { observation: None, agreed });
        }
        let billed = invoice.lines.iter().filter(|line| line.event_name.is_some());
        let billed =
            billed.map(|line| line.quantity).try_fold(Quantity::ZERO, Quantity::checked_add);
        let counted = sums.values().copied().try_fold(Quantity::ZERO, Quantity::checked_add);
        let texts: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
        let verdict = if billed > counted { Verdict::Bypass } else { Verdict::Undecidable };
        let observation = Observation {
            kind: FindingKind::Invoice,
            ledger: counted.unwrap_or_default(),
            provider: billed.unwrap_or_default(),
            ..observe(id, Some(tenant.id), (verdict, Reason::Amount), texts.join("; "))
        };
        Ok(JudgedInvoice { observation: Some(observation), agreed: Vec::new() })
    }

    /// What was handed to billing for a period, by the moments that pushes are stamped with: those
    /// decide on which invoice they are. What was sent for another customer of the tenant is on
    /// that one's. None if the meter is not ours.
    async fn sum_pushed(
        &self,
        (tenant, customer): (&TenantId, &CustomerId),
        event_name: &str,
        period: Window,
        catalog: &Catalog,
    ) -> store::Result<Option<PushedSum>> {
        let Some((number, meter)) = catalog.find_billed(event_name) else { return Ok(None) };
        let Some(billing) = meter.spec.billing.as_ref() else { return Ok(None) };
        // What was used before the meter was billed here, another program reported.
        if billing.start() > period.start {
            return Ok(None);
        }
        let first = billing.window_around(period.start, meter.spec.bucket);
        let range = Window { start: first.start, end: period.end };
        let pushes = self.store.read_window_pushes(tenant, number, range).await?;
        let counts = |push: &&WindowPush| {
            push.shadow == self.shadow
                && push.state != PushState::Replaced
                // What a person wrote off is not expected on an invoice.
                && push.state != PushState::Discarded
                && period.contains(push.stamped_at)
                && push.customer.as_ref().is_none_or(|sent_for| sent_for == customer)
        };
        let counting: Vec<&WindowPush> = pushes.iter().filter(counts).collect();
        let confirmed = counting.iter().any(|push| push.state == PushState::Confirmed);
        let Some(sum) = add_up(counting.iter().copied()) else { return Ok(None) };
        let mut misplaced = Vec::new();
        for border in [period.start, period.end] {
            let window = billing.window_around(border, meter.spec.bucket);
            if window.start == border {
                continue;
            }
            // The side is decided by the stamp, whatever came of the push.
            let planned = |push: &&WindowPush| {
                let kept = push.state != PushState::Replaced || push.class == Class::NotSent;
                push.window == window
                    && push.shadow == self.shadow
                    && kept
                    && period.contains(push.stamped_at)
            };
            let Some(pushed) = add_up(pushes.iter().filter(planned)) else { continue };
            let place = (tenant, number, meter.as_ref(), window);
            misplaced.extend(self.judge_side(place, period, pushed).await?);
        }
        Ok(Some(PushedSum { sum, meter: number, confirmed, misplaced }))
    }

    /// Compares what a window that holds a period's border has in the period, by when it was used,
    /// with what was pushed of it into the period; none if they agree, or if the window is yet to
    /// be cut as it is now.
    async fn judge_side(
        &self,
        (tenant, number, meter, window): (&TenantId, MeterNo, &Meter, Window),
        period: Window,
        pushed: Quantity,
    ) -> store::Result<Option<Mismatch>> {
        let cuts = self.store.read_cuts(tenant, number, Window::moment(window.start)).await?;
        let Some((_, cut)) = cuts.into_iter().next() else { return Ok(None) };
        let borders = [period.start, period.end];
        let usage = self.store.divide_usage(tenant, number, window, &borders, self.outside).await?;
        let Some(usage) = usage.filter(|usage| is_cut(usage, &cut)) else { return Ok(None) };
        let side = Side { window, period, pushed, scale: meter.billing_scale() };
        judge_side(meter.slug.as_str(), &usage, cut.covered, side).ok_or_else(too_large)
    }
}

/// What was handed to billing for a line of an invoice.
struct PushedSum {
    sum: Quantity,
    meter: MeterNo,
    /// Whether some of it is confirmed and not reconciled.
    confirmed: bool,
    /// What was pushed into the period and used in another, or the other way round.
    misplaced: Vec<Mismatch>,
}

/// None if that is too large.
fn add_up<'p>(pushes: impl Iterator<Item = &'p WindowPush>) -> Option<Quantity> {
    pushes.map(|push| push.quantity).try_fold(Quantity::ZERO, Quantity::checked_add)
}

/// Whether the last cut of a window knew what it holds now.
fn is_cut(usage: &Divided, cut: &CutState) -> bool {
    let Divided { count, billable, trial, outside, .. } = *usage;
    (count, billable, trial, outside) == (cut.count, cut.total, cut.trial, cut.outside)
        && !cut.shadow
}

#[derive(Default)]
struct JudgedInvoice {
    observation: Option<Observation>,
    /// Lines that agree and have confirmed pushes.
    agreed: Vec<(TenantId, MeterNo, Window)>,
}
