//! Both halves of windows, as they are stored: what was counted and pushed, and the provider's
//! totals that the running pass has read.

use super::snapshot::Readings;
use super::unbilled::{LeftOut, left_out};
use super::{ReconcileJob, Work};
use crate::faults::planted;
use crate::rules::customer::customer_of_window;
use crate::rules::drift::{Halves, PushSums, Summary, WindowPush};
use crate::rules::ids::CustomerId;
use crate::rules::push::{CutState, WindowUsage, billed_of};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::usage::UsageRow;
use crate::rules::window::Window;
use crate::store;
use crate::store::reconciliation::Pair;
use std::collections::BTreeMap;

/// Both halves of a window or a day, as far as one customer is concerned.
pub struct Part {
    pub customer: CustomerId,
    /// Whether it is the customer that the window, or the first window of the day, belongs to.
    pub own: bool,
    pub halves: Halves,
}

/// What is known of a window.
#[derive(Default)]
struct Side {
    usage: Vec<UsageRow>,
    cut: Option<CutState>,
    pushes: Vec<WindowPush>,
    summaries: BTreeMap<CustomerId, Summary>,
}

/// Usage of windows that is not compared, with the cause.
type NotCompared = Vec<(Timestamp, LeftOut, Quantity)>;

impl ReconcileJob {
    /// Both halves of every window of the range that has anything on our side, or a total of this
    /// length, by customer; and the usage of windows that are not compared.
    pub(super) async fn load_parts(
        &self,
        readings: &Readings,
        work: &Work,
        range: Window,
        length: Option<i64>,
    ) -> store::Result<(Vec<Part>, NotCompared)> {
        let sides = self.load_sides(work, range, length).await?;
        let billing = work.billing();
        let (mut parts, mut aside) = (Vec::with_capacity(sides.len()), Vec::new());
        for (start, Side { usage, cut, pushes, summaries }) in sides {
            let window = billing.window_around(start, work.meter.spec.bucket);
            let usage = WindowUsage::measure(&usage).map_err(|_| too_large())?;
            if let Some(cause) = left_out(billing, start, cut.as_ref(), self.shadow) {
                aside.push((start, cause, usage.billable));
                continue;
            }
            let billed = billed_of(cut.as_ref(), usage.billable).ok_or_else(too_large)?;
            if let Some(cut) = &cut {
                aside.push((start, LeftOut::Trial, cut.trial));
                aside.push((start, LeftOut::Outside, cut.outside));
            }
            let owner = customer_of_window(&pushes).unwrap_or(&work.pair.customer);
            for customer in work.customers() {
                let (own, today) = (customer == owner, *customer == work.pair.customer);
                // What was not sent yet goes to the customer that the window belongs to.
                let of_it: Vec<WindowPush> = pushes
                    .iter()
                    .filter(|push| push.customer.as_ref().unwrap_or(owner) == customer)
                    .cloned()
                    .collect();
                if of_it.is_empty() && !own && !today {
                    continue;
                }
                let sums = PushSums::of_window(&of_it).ok_or_else(too_large)?;
                let stored = summaries.get(customer).copied();
                let summary = readings.of_this_pass(work, customer, stored);
                let (counted, cut) = match own {
                    true => ((billed, usage.count), cut.as_ref()),
                    false => ((Quantity::ZERO, 0), None),
                };
                let halves = Halves::new(window, counted, cut, sums, summary);
                parts.push(Part { customer: customer.clone(), own, halves });
            }
        }
        Ok((parts, aside))
    }

    /// What is known of each window of the range, on both sides.
    async fn load_sides(
        &self,
        work: &Work,
        range: Window,
        length: Option<i64>,
    ) -> store::Result<BTreeMap<Timestamp, Side>> {
        let Pair { tenant, meter, customer: today } = &work.pair;
        let billing = work.billing();
        let mut sides: BTreeMap<Timestamp, Side> = BTreeMap::new();
        for row in self.store.read_usage(tenant, *meter, range, usize::MAX).await? {
            let window = billing.window_around(row.bucket_start, work.meter.spec.bucket);
            sides.entry(window.start).or_default().usage.push(row);
        }
        for (start, cut) in self.store.read_cuts(tenant, *meter, range).await? {
            sides.entry(start).or_default().cut = Some(cut);
        }
        for mut push in self.store.read_window_pushes(tenant, *meter, range).await? {
            if planted("bug.customer_of_today") {
                push.customer = Some(today.clone());
            }
            if push.shadow == self.shadow {
                sides.entry(push.window.start).or_default().pushes.push(push);
            }
        }
        if let Some(length) = length {
            for customer in work.customers() {
                let whose = (tenant, customer);
                for read in self.store.read_summaries(whose, *meter, range, length).await? {
                    let side = sides.entry(read.window.start).or_default();
                    side.summaries.insert(customer.clone(), read);
                }
            }
        }
        // Not compared: what was billed before this server went into shadow mode, and what went to
        // another account.
        let live = |cut: &CutState| self.shadow && !cut.shadow;
        let elsewhere = |start: &Timestamp| billing.start() <= *start && *start < work.start();
        sides.retain(|start, side| !side.cut.as_ref().is_some_and(live) && !elsewhere(start));
        Ok(sides)
    }
}

pub fn too_large() -> store::Error {
    store::Error::Corrupt { what: "totals of a tenant cannot be added up".into() }
}
