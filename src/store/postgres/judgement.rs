//! Judging a batch: deliveries grouped by event key, each judged against what is stored under it.
//!
//! Invariant: a delivery is judged against the payload that is counted: the stored event or, if
//! there is none, the first of the batch that was accepted, in order of arrival. Nothing here
//! touches the database, so a transaction that has to be redone is simply judged again.

use crate::rules::batch::{BatchFigures, judge_delivery, unknown_tenant};
use crate::rules::event::Event;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::{Catalog, Meter};
use crate::rules::rollup::Group;
use crate::rules::verdict::{Quarantine, Tally, Verdict};
use crate::store::groups::{GroupDay, GroupGate};
use crate::store::{DeliveryBatch, Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// A batch whose tenants are known, in the order of its event keys.
pub struct SortedBatch<'b> {
    pub batch: &'b DeliveryBatch,
    /// The tenant of each event; none where the tenant is not declared and must be.
    tenants: Vec<Option<TenantNo>>,
    /// Places of the events, in the order of the groups.
    order: Vec<usize>,
    pub groups: Vec<KeyGroup>,
}

/// The deliveries of one event key.
#[derive(Debug, Clone)]
pub struct KeyGroup {
    pub tenant: TenantNo,
    /// The key's own fingerprint; after a collision the event lies at a later one.
    pub home: u128,
    order: Range<usize>,
}

impl<'b> SortedBatch<'b> {
    pub fn new(
        batch: &'b DeliveryBatch,
        tenants: Vec<Option<TenantNo>>,
        fingerprinter: &Fingerprinter,
    ) -> Self {
        let mut keyed: Vec<(TenantNo, u128, usize)> = Vec::with_capacity(batch.events.len());
        for (place, (event, tenant)) in batch.events.iter().zip(&tenants).enumerate() {
            if let Some(tenant) = *tenant {
                keyed.push((tenant, fingerprinter.event_key(tenant, &event.id), place));
            }
        }
        let id = |place: usize| &batch.events[place].id;
        keyed.sort_unstable_by(|a, b| (a.0, a.1, id(a.2), a.2).cmp(&(b.0, b.1, id(b.2), b.2)));
        let mut groups: Vec<KeyGroup> = Vec::with_capacity(keyed.len());
        for (at, (tenant, home, place)) in keyed.iter().enumerate() {
            match groups.last_mut() {
                Some(group)
                    if group.tenant == *tenant && id(keyed[group.order.start].2) == id(*place) =>
                {
                    group.order.end = at + 1;
                }
                Some(_) | None => {
                    groups.push(KeyGroup { tenant: *tenant, home: *home, order: at..at + 1 });
                }
            }
        }
        let order = keyed.into_iter().map(|(_, _, place)| place).collect();
        Self { batch, tenants, order, groups }
    }

    /// The deliveries of a group in order of arrival, with their places in the batch.
    fn deliveries(&self, group: &KeyGroup) -> impl Iterator<Item = (usize, &'b Event)> {
        let batch = self.batch;
        self.order[group.order.clone()].iter().map(move |place| (*place, &batch.events[*place]))
    }

    /// The events whose tenant is known.
    pub fn events(&self) -> impl Iterator<Item = (TenantNo, &'b Event)> {
        let events = self.tenants.iter().zip(&self.batch.events);
        events.filter_map(|(tenant, event)| tenant.map(|tenant| (tenant, event)))
    }

    pub fn first(&self, group: &KeyGroup) -> &'b Event {
        &self.batch.events[self.order[group.order.start]]
    }

    /// Whether one of the group will be counted if nothing is stored under its key.
    pub fn has_acceptable(&self, group: &KeyGroup) -> bool {
        let acceptance = self.batch.acceptance;
        self.deliveries(group).any(|(_, event)| acceptance.admits(event.occurred_at).is_ok())
    }
}

/// Admits the groups of a batch; their days are loaded.
pub struct Gate<'k> {
    pub groups: GroupGate<'k>,
    pub fingerprinter: &'k Fingerprinter,
}

impl Gate<'_> {
    fn admits(&mut self, tenant: TenantNo, event: &Event, catalog: &Catalog) -> Result<bool> {
        let meter = meter_of(catalog, event.meter)?;
        let group = Group::of_event(event, meter);
        if group.as_text().is_empty() {
            return Ok(true);
        }
        let start = meter.spec.bucket.start_of(event.occurred_at);
        let day = GroupDay::of(tenant, event.meter, start);
        Ok(self.groups.admit(day, self.fingerprinter.group(&group)))
    }
}

/// An event to be counted, and the fingerprint it will lie at.
#[derive(Debug)]
pub struct Accepted<'b> {
    pub tenant: TenantNo,
    pub slot: u128,
    pub event: &'b Event,
}

/// A payload that goes to the conflicts.
#[derive(Debug)]
pub struct Conflicting<'b> {
    pub tenant: TenantNo,
    /// As JSON.
    pub standing: String,
    pub arriving: &'b Event,
}

/// A payload that goes to the quarantine.
#[derive(Debug)]
pub struct Quarantined<'b> {
    pub tenant: TenantNo,
    pub event: &'b Event,
    pub reason: Quarantine,
}

/// What becomes of a batch.
pub struct Judgement<'b> {
    verdicts: Vec<Option<Verdict>>,
    pub accepted: Vec<Accepted<'b>>,
    pub conflicts: Vec<Conflicting<'b>>,
    pub quarantined: Vec<Quarantined<'b>>,
}

impl<'b> Judgement<'b> {
    /// Starts with the deliveries that need no look at the store: those of undeclared tenants.
    pub fn new(sorted: &SortedBatch<'b>) -> Self {
        let refused = |tenant: &Option<TenantNo>| match tenant {
            Some(_) => None,
            None => Some(unknown_tenant()),
        };
        Self {
            verdicts: sorted.tenants.iter().map(refused).collect(),
            accepted: Vec::with_capacity(sorted.groups.len()),
            conflicts: Vec::new(),
            quarantined: Vec::new(),
        }
    }

    /// Judges the deliveries of one key; `slot` is where its event lies or would lie. Returns
    /// whether an event is to be counted there.
    pub fn judge_group(
        &mut self,
        sorted: &SortedBatch<'b>,
        group: &KeyGroup,
        (slot, stored): (u128, Option<&Event>),
        catalog: &Catalog,
        gate: &mut Gate<'_>,
    ) -> Result<bool> {
        let tenant = group.tenant;
        let mut winner: Option<&Event> = stored;
        let mut counted = false;
        for (place, event) in sorted.deliveries(group) {
            let admit = || gate.admits(tenant, event, catalog);
            let verdict = judge_delivery(event, winner, sorted.batch.acceptance, admit)?;
            let admission = sorted.batch.acceptance.is_of_admissions();
            match (&verdict, winner) {
                (Verdict::Accepted, _) => {
                    counted = true;
                    winner = Some(event);
                    self.accepted.push(Accepted { tenant, slot, event });
                }
                // It is kept already.
                (Verdict::Conflict { .. } | Verdict::Quarantined(_), _) if admission => {}
                (Verdict::Conflict { .. }, Some(standing)) => {
                    let slug = &meter_of(catalog, standing.meter)?.slug;
                    let standing = standing.to_json(slug);
                    self.conflicts.push(Conflicting { tenant, standing, arriving: event });
                }
                (Verdict::Quarantined(reason), _) => {
                    self.quarantined.push(Quarantined { tenant, event, reason: *reason });
                }
                (
                    Verdict::Duplicate { .. } | Verdict::Rejected(_) | Verdict::Conflict { .. },
                    _,
                ) => {}
            }
            self.verdicts[place] = Some(verdict);
        }
        Ok(counted)
    }

    /// Puts what is to be inserted into the order of the primary key, which every writer keeps.
    pub fn sort(&mut self) {
        self.accepted.sort_unstable_by_key(|accepted| (accepted.tenant, accepted.slot));
    }

    /// How the deliveries of each tenant ended; under none those whose tenant is unknown.
    pub fn tallies(&self, sorted: &SortedBatch<'b>) -> BTreeMap<Option<TenantNo>, Tally> {
        let mut tallies: BTreeMap<Option<TenantNo>, Tally> = BTreeMap::new();
        let admissions = sorted.batch.acceptance.is_of_admissions();
        for (tenant, verdict) in sorted.tenants.iter().zip(self.verdicts.iter().flatten()) {
            if !admissions {
                tallies.entry(*tenant).or_default().add(verdict);
            } else if *verdict == Verdict::Accepted {
                tallies.entry(*tenant).or_default().add_admission();
            }
        }
        tallies
    }

    /// The figures of the batch; `tallies` are those of its tenants and of what was refused.
    pub fn figures(
        &self,
        batch: &DeliveryBatch,
        tallies: &BTreeMap<Option<TenantNo>, Tally>,
    ) -> BatchFigures {
        let mut tally = Tally::default();
        for of_tenant in tallies.values() {
            tally.merge(of_tenant);
        }
        BatchFigures {
            delivered: batch.events.len(),
            refused: batch.refused.iter().map(|(_, count)| count).sum(),
            verdicts: self.verdicts.iter().flatten().count(),
            accepted: self.accepted.len(),
            conflicts: self.conflicts.len(),
            quarantined: self.quarantined.len(),
            tally,
        }
    }

    /// As [`Self::into_verdicts`], while the judgement is still needed.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let judged = |verdict: &Option<Verdict>| verdict.clone().expect("every group was judged");
        self.verdicts.iter().map(judged).collect()
    }

    /// One verdict for each event, in order.
    pub fn into_verdicts(self) -> Vec<Verdict> {
        let judged = |verdict: Option<Verdict>| verdict.expect("every group was judged");
        self.verdicts.into_iter().map(judged).collect()
    }
}

/// A meter that must be there: events only name declared meters.
pub fn meter_of(catalog: &Catalog, number: MeterNo) -> Result<&Meter> {
    let meter = catalog.get(number).map(std::convert::AsRef::as_ref);
    meter.ok_or_else(|| Error::Internal { what: format!("there is no meter {}", number.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{EventId, MeterSlug, TenantId};
    use crate::rules::properties::Properties;
    use crate::rules::quantity::Quantity;
    use crate::rules::timestamp::Timestamp;
    use crate::rules::verdict::Acceptance;
    use crate::store::groups::KnownGroups;
    use std::sync::Arc;

    const METER: MeterNo = MeterNo(1);

    fn event(tenant: &str, id: &str, units: i128, micros: i64) -> Event {
        Event {
            tenant: TenantId::parse(tenant).expect("valid"),
            id: EventId::parse(id).expect("valid"),
            meter: METER,
            quantity: Quantity::from_units(units),
            occurred_at: Timestamp::from_micros(micros),
            properties: Properties::default(),
            subscription: None,
            trial: false,
        }
    }

    fn batch(events: Vec<Event>) -> DeliveryBatch {
        let acceptance = Acceptance { now: Timestamp::from_micros(1_000), horizon_micros: 100 };
        DeliveryBatch {
            events,
            refused: Vec::new(),
            acceptance,
            strict_tenants: false,
            groups_per_day: 100_000,
        }
    }

    fn catalog() -> Catalog {
        let spec = serde_json::from_str(r#"{"aggregation":"sum"}"#).expect("valid");
        let slug = MeterSlug::parse("calls").expect("valid");
        let mut catalog = Catalog::default();
        catalog.insert(METER, Arc::new(Meter::declare(slug, spec).expect("valid")));
        catalog
    }

    /// Judges a batch of one tenant on its own, with at most one stored event.
    fn check(events: Vec<Event>, stored: Option<&Event>, expected: &[Verdict], counted: &[i128]) {
        let batch = batch(events);
        let fingerprinter = Fingerprinter::new([7; 16]);
        let tenants = vec![Some(TenantNo(1)); batch.events.len()];
        let sorted = SortedBatch::new(&batch, tenants, &fingerprinter);
        let mut judgement = Judgement::new(&sorted);
        let mut known = KnownGroups::default();
        let groups = GroupGate::new(&mut known, 1);
        let mut gate = Gate { groups, fingerprinter: &fingerprinter };
        for group in &sorted.groups {
            let standing = stored.filter(|stored| stored.id == sorted.first(group).id);
            let found = (group.home, standing);
            judgement
                .judge_group(&sorted, group, found, &catalog(), &mut gate)
                .expect("the meter is known");
        }
        let units = |accepted: &Accepted<'_>| accepted.event.quantity.units();
        assert_eq!(judgement.accepted.iter().map(units).collect::<Vec<_>>(), counted);
        assert_eq!(judgement.into_verdicts(), expected);
    }

    #[test]
    fn repeats_are_judged_against_what_is_counted() {
        let conflict = || Verdict::Conflict { differing: vec!["quantity"] };
        let duplicate = |restamped| Verdict::Duplicate { restamped };
        let deliveries = || vec![event("t", "a", 1, 1_000), event("t", "a", 2, 1_000)];
        check(deliveries(), None, &[Verdict::Accepted, conflict()], &[1]);
        let stored = event("t", "a", 2, 1_000);
        check(deliveries(), Some(&stored), &[conflict(), duplicate(false)], &[]);
        let stored = event("t", "a", 1, 7);
        let expected =
            [duplicate(true), Verdict::Conflict { differing: vec!["quantity", "occurred_at"] }];
        check(deliveries(), Some(&stored), &expected, &[]);
    }

    #[test]
    fn what_is_quarantined_does_not_stand() {
        let deliveries = vec![event("t", "a", 1, 1), event("t", "a", 2, 1_000)];
        let expected = [Verdict::Quarantined(Quarantine::TooOld), Verdict::Accepted];
        check(deliveries, None, &expected, &[2]);
    }

    #[test]
    fn undeclared_tenants_are_rejected_and_tallied_under_none() {
        let batch = batch(vec![event("t", "a", 1, 1_000), event("u", "a", 1, 1_000)]);
        let fingerprinter = Fingerprinter::new([7; 16]);
        let sorted = SortedBatch::new(&batch, vec![Some(TenantNo(1)), None], &fingerprinter);
        let mut judgement = Judgement::new(&sorted);
        let group = &sorted.groups[0];
        assert!(sorted.groups.len() == 1 && sorted.has_acceptable(group));
        let mut known = KnownGroups::default();
        let groups = GroupGate::new(&mut known, 1);
        let mut gate = Gate { groups, fingerprinter: &fingerprinter };
        let found = (group.home, None);
        judgement.judge_group(&sorted, group, found, &catalog(), &mut gate).expect("known");
        let tallies = judgement.tallies(&sorted);
        assert_eq!((tallies[&None].rejected, tallies[&Some(TenantNo(1))].accepted), (1, 1));
        assert!(matches!(
            &judgement.into_verdicts()[1],
            Verdict::Rejected(refusal) if refusal.code == "unknown_tenant"
        ));
    }

    #[test]
    fn keys_that_collide_stay_apart() {
        let ids: Vec<String> = (0..20).map(|number| format!("e{number}")).collect();
        let twice = ids.iter().chain(&ids).map(|id| event("t", id, 1, 1_000)).collect();
        let batch = batch(twice);
        let fingerprinter = Fingerprinter::colliding([7; 16], 1);
        let sorted = SortedBatch::new(&batch, vec![Some(TenantNo(1)); 40], &fingerprinter);
        assert_eq!(sorted.groups.len(), 20);
        for group in &sorted.groups {
            let places: Vec<usize> = sorted.deliveries(group).map(|(place, _)| place).collect();
            assert_eq!(places[1], places[0] + 20);
        }
    }
}
