//! Everything unbilled: what was counted and reaches no invoice as things stand, by meter and
//! cause.
//!
//! Invariant: causes do not overlap, so the total is their sum. Usage that is on its way is no part
//! of it. What a person wrote off or discarded is no part of it either: that is decided.
//! Quarantined events are added up as far as `QUARANTINED_MAX`; whether there are more is said.

use crate::rules::event::{Item, parse_event};
use crate::rules::ids::MeterNo;
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::named::named_enum;
use crate::rules::quantity::Quantity;
use crate::store::decision::{InboxFilter, QuarantineFilter, QuarantineQuery};
use crate::store::list::PAGE;
use crate::store::push::{PushCounts, PushHistory, Pushes, UnbilledSums};
use crate::store::{self, Queries};
use std::collections::BTreeMap;

/// Quarantined events that are added up.
const QUARANTINED_MAX: usize = 20_000;
/// Pushes that a note names; it counts the others.
const NOTED_MAX: usize = 5;

named_enum! {
    /// Why usage is not billed.
    pub enum Cause {
        Dead = "dead",
        NoCustomer = "no_customer",
        /// It was too old to be sent when its tenant got a customer.
        TooOld = "too_old",
        Quarantined = "quarantined",
        Shadow = "shadow",
        BeforeFrom = "before_from",
        Held = "held",
        /// It was used in no subscription, and is held.
        Outside = "outside",
    }
}

/// What is not billed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unbilled {
    /// By meter and cause; nothing that is zero.
    pub by_meter: BTreeMap<MeterNo, BTreeMap<Cause, Quantity>>,
    /// Whether there are more quarantined events than were added up.
    pub quarantined_more: bool,
}

impl Unbilled {
    fn add(&mut self, meter: MeterNo, cause: Cause, quantity: Quantity) -> store::Result<()> {
        if quantity == Quantity::ZERO {
            return Ok(());
        }
        let sum = self.by_meter.entry(meter).or_default().entry(cause).or_default();
        *sum = sum.checked_add(quantity).ok_or_else(too_large)?;
        Ok(())
    }

    /// All causes of a meter together; none if that is too large.
    pub fn total(causes: &BTreeMap<Cause, Quantity>) -> Option<Quantity> {
        causes.values().try_fold(Quantity::ZERO, |sum, quantity| sum.checked_add(*quantity))
    }
}

/// The part of it that takes long to add up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slow {
    sums: UnbilledSums,
    quarantined: BTreeMap<MeterNo, Quantity>,
    quarantined_more: bool,
}

impl Slow {
    pub async fn read(
        store: &(impl Pushes + Queries + ?Sized),
        catalog: &Catalog,
    ) -> store::Result<Self> {
        let billed = catalog.billed().into_iter();
        let billed = billed
            .filter_map(|(number, meter)| Some((number, meter.spec.billing.as_ref()?.start())));
        let sums = store.sum_unbilled(billed.collect()).await?;
        let (quarantined, quarantined_more) = sum_quarantined(store, catalog).await?;
        Ok(Self { sums, quarantined, quarantined_more })
    }
}

impl Unbilled {
    pub fn of(counts: &PushCounts, slow: &Slow) -> store::Result<Self> {
        let mut all = Self { quarantined_more: slow.quarantined_more, ..Self::default() };
        for (meter, quantity) in &counts.unbilled {
            all.add(*meter, Cause::Dead, *quantity)?;
        }
        for (meter, sum) in &counts.without_customer {
            all.add(*meter, Cause::NoCustomer, sum.quantity)?;
        }
        for (meter, sum) in &counts.unsent {
            all.add(*meter, Cause::TooOld, sum.quantity)?;
        }
        let UnbilledSums { shadow, before_from, held, outside } = &slow.sums;
        let sums = [
            (Cause::Quarantined, &slow.quarantined),
            (Cause::Shadow, shadow),
            (Cause::BeforeFrom, before_from),
            (Cause::Held, held),
            (Cause::Outside, outside),
        ];
        for (cause, sums) in sums {
            for (meter, quantity) in sums {
                all.add(*meter, cause, *quantity)?;
            }
        }
        Ok(all)
    }
}

/// Events that were kept, are not counted and not decided about, of meters that are billed.
async fn sum_quarantined(
    store: &(impl Queries + ?Sized),
    catalog: &Catalog,
) -> store::Result<(BTreeMap<MeterNo, Quantity>, bool)> {
    let mut sums: BTreeMap<MeterNo, Quantity> = BTreeMap::new();
    let open = InboxFilter { decided: Some(false), ..InboxFilter::default() };
    let filter = QuarantineFilter { of: open, reason: None };
    let (mut query, mut read) = (QuarantineQuery::first(filter, PAGE), 0);
    loop {
        let page = store.list_quarantine(query.clone()).await?;
        let ended = page.len() < PAGE;
        read += page.len();
        for record in page {
            query.after = Some(record.number);
            // What no meter knows any more has no quantity.
            let Ok(item) = serde_json::from_str::<Item<'_>>(&record.payload) else { continue };
            let Ok(event) = parse_event(&item, catalog) else { continue };
            let Some(meter) = catalog.get(event.meter) else { continue };
            if meter.spec.billing.is_none() || event.trial {
                continue;
            }
            let quantity = match meter.spec.aggregation {
                Aggregation::Count => Quantity::ONE,
                Aggregation::Sum
                | Aggregation::Min
                | Aggregation::Max
                | Aggregation::Latest
                | Aggregation::Unique => event.quantity,
            };
            let sum = sums.entry(event.meter).or_default();
            *sum = sum.checked_add(quantity).ok_or_else(too_large)?;
        }
        if ended || read >= QUARANTINED_MAX {
            return Ok((sums, !ended));
        }
    }
}

/// Who wrote pushes off, and why; none if there are none.
pub async fn note_discards(
    store: &dyn PushHistory,
    pushes: &[u64],
) -> store::Result<Option<String>> {
    let mut parts = Vec::new();
    for number in pushes.iter().take(NOTED_MAX) {
        let trace = store.trace_push(*number).await?;
        let why = trace.and_then(|trace| trace.push.detail).unwrap_or_default();
        parts.push(format!("push {number}: {why}"));
    }
    let more = pushes.len().saturating_sub(NOTED_MAX);
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    Ok((!parts.is_empty()).then(|| parts.join("; ")))
}

fn too_large() -> store::Error {
    store::Error::Corrupt { what: "what is not billed cannot be added up".into() }
}
