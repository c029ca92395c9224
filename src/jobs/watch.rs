//! Watching: how pushes stand, as metrics, and a warning when something needs an operator.
//!
//! Invariant: a warning is logged when its number changes for the worse, not at every look, so that
//! a long outage does not bury the log.

use super::unbilled::{Cause, Slow, Unbilled};
use super::{Context, Job, gauge};
use crate::clock::Clock;
use crate::rules::ids::MeterNo;
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::store::push::{PushAges, PushCounts};
use crate::store::{self, Store};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often everything unbilled is added up, which takes longer than the rest.
const UNBILLED_EVERY: Span = Span::from_minutes(10);
/// A push that is observed for longer has met trouble.
pub const OBSERVED_LONG: Span = Span::from_minutes(5);
/// A push that is submitted for longer should have been confirmed.
pub const SUBMITTED_LONG: Span = Span::from_hours(1);

pub struct WatchJob {
    store: Arc<dyn Store>,
    clock: Clock,
    last: Mutex<PushCounts>,
    unbilled: Mutex<ShownFigures>,
}

/// What was last added up, and when.
#[derive(Default)]
struct ShownFigures {
    at: Option<Timestamp>,
    slow: Slow,
    unbilled: Unbilled,
}

impl Job for WatchJob {
    const NAME: &'static str = "watch";
    const PAUSE: Duration = Duration::from_secs(10);
    type Done = usize;
    type Error = store::Error;

    /// Reads the numbers, sets the metrics, and warns; returns how many warnings were given.
    async fn pass(&self) -> store::Result<usize> {
        let now = self.clock.now();
        let ages = PushAges {
            observed_before: OBSERVED_LONG.before(now),
            submitted_before: SUBMITTED_LONG.before(now),
        };
        let counts = self.store.count_pushes(ages).await?;
        let catalog = self.store.load_catalog().await?;
        for (name, count) in [
            ("observed", counts.observed),
            ("observed_long", counts.observed_long),
            ("without_customer", without_customer(&counts)),
            ("submitted", counts.submitted),
            ("submitted_long", counts.submitted_long),
            ("dead", counts.dead),
        ] {
            metrics::gauge!("counterfoil_pushes", "state" => name).set(gauge(count));
        }
        self.show_unbilled(&catalog, &counts, now).await?;
        let mut last = self.last.lock().expect("no holder panics");
        // A meter of which nothing is unbilled any more is not listed; its gauge must fall.
        let paid = last.unbilled.iter().map(|(meter, _)| (*meter, Quantity::ZERO));
        for (meter, quantity) in paid.chain(counts.unbilled.iter().copied()) {
            let slug = catalog.get(meter).map_or_else(String::new, |m| m.slug.to_string());
            metrics::gauge!("counterfoil_unbilled_quantity", "meter" => slug).set(gauge(quantity));
        }
        show_unmapped(&catalog, &last, &counts);
        let warnings = warn_of_change(&last, &counts);
        *last = counts;
        Ok(warnings)
    }
}

impl WatchJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, .. } = context.clone();
        Self { store, clock, last: Mutex::default(), unbilled: Mutex::default() }
    }

    /// Shows everything unbilled by meter and cause.
    async fn show_unbilled(
        &self,
        catalog: &Catalog,
        counts: &PushCounts,
        now: Timestamp,
    ) -> store::Result<()> {
        let at = self.unbilled.lock().expect("no holder panics").at;
        let due = at.is_none_or(|at| at > now || UNBILLED_EVERY.after(at) <= now);
        let read = if due { Some(Slow::read(&*self.store, catalog).await?) } else { None };
        let mut shown = self.unbilled.lock().expect("no holder panics");
        if let Some(slow) = read {
            (shown.at, shown.slow) = (Some(now), slow);
        }
        let unbilled = Unbilled::of(counts, &shown.slow)?;
        // What is billed by now is not listed; its gauge must fall.
        let meters = shown.unbilled.by_meter.keys().chain(unbilled.by_meter.keys());
        let meters: BTreeSet<MeterNo> = meters.copied().collect();
        for meter in meters {
            let slug = catalog.get(meter).map_or_else(String::new, |m| m.slug.to_string());
            for cause in Cause::ALL {
                let causes = unbilled.by_meter.get(&meter);
                let quantity = causes.and_then(|causes| causes.get(&cause)).copied();
                metrics::gauge!(
                    "counterfoil_unbilled", "meter" => slug.clone(), "cause" => cause.name()
                )
                .set(gauge(quantity.unwrap_or_default()));
            }
        }
        shown.unbilled = unbilled;
        Ok(())
    }
}

/// Pushes that wait for tenants without a customer.
fn without_customer(counts: &PushCounts) -> u64 {
    counts.without_customer.values().map(|sum| sum.pushes).sum()
}

/// Usage of tenants without a customer, and usage that was too old when there was one, by meter.
fn show_unmapped(catalog: &Catalog, last: &PushCounts, now: &PushCounts) {
    let kinds = [
        ("without_customer", &last.without_customer, &now.without_customer),
        ("unsent", &last.unsent, &now.unsent),
    ];
    for (state, last, now) in kinds {
        // A meter of which nothing is left is not listed; its gauges must fall.
        let meters: BTreeSet<MeterNo> = last.keys().chain(now.keys()).copied().collect();
        for meter in meters {
            let slug = catalog.get(meter).map_or_else(String::new, |m| m.slug.to_string());
            let sum = now.get(&meter).copied().unwrap_or_default();
            metrics::gauge!(
                "counterfoil_unmapped_tenants", "state" => state, "meter" => slug.clone()
            )
            .set(gauge(sum.tenants));
            metrics::gauge!("counterfoil_unmapped_quantity", "state" => state, "meter" => slug)
                .set(gauge(sum.quantity));
        }
    }
}

fn warn_of_change(last: &PushCounts, now: &PushCounts) -> usize {
    let PushCounts { dead, observed_long, .. } = *now;
    let unmapped = without_customer(now);
    let mut warnings = 0;
    if dead > last.dead {
        warnings += 1;
        tracing::warn!(dead, "{dead} pushes need an operator: counterfoil pushes --state dead");
    }
    if unmapped > 0 && last.without_customer.is_empty() {
        warnings += 1;
        tracing::warn!(
            without_customer = unmapped,
            "{unmapped} pushes wait for tenants without a customer: PUT /v1/tenants/{{id}} \
             with \"customer\""
        );
    }
    if observed_long > 0 && last.observed_long == 0 {
        warnings += 1;
        tracing::warn!(
            observed_long,
            "{observed_long} pushes are not taken by the provider for more than 5 minutes; they \
             are tried again"
        );
    }
    if observed_long == 0 && last.observed_long > 0 {
        tracing::info!("the provider takes pushes again; none is waiting for long");
    }
    warnings
}
