//! Attribution: which subscription was in force for usage when it happened, whether that was a
//! trial, and on which side of a period's border it is billed.
//!
//! A producer's own stamp wins. For what it left out, the tenant's timeline at `occurred_at`
//! decides. A window is divided into stretches, in which nothing changes that decides about
//! billing, and into charges: parts of the window by where pushes are stamped. The provider bills
//! by stamps, so a push counts towards the charge that its stamp lies in.
//!
//! Invariant: the stretches of a window follow each other and fill it, and so do its charges. All
//! usage of a window is in exactly one of: a charge, a trial, outside of every subscription. Of
//! this only the sums of a cut are stored; a timeline that is learnt later divides the same usage
//! anew. Nothing is written here, so a crash leaves nothing.

use super::fault::{Fault, must};
use super::ids::SubscriptionId;
use super::named::named_enum;
use super::push::{StampedUsage, exact};
use super::quantity::Quantity;
use super::rollup::FoldError;
use super::span::Span;
use super::stamp::{Agreed, Term, clamp, find_terms, first_charged};
use super::subscription::{TimelineEntry, in_order};
use super::timestamp::{MICROS_PER_SECOND, Timestamp};
use super::window::Window;
use std::collections::{BTreeMap, BTreeSet};

/// An invoice stays a draft for so long at least; then it is fixed.
const DRAFT_SPAN: Span = Span::from_hours(1);

named_enum! {
    /// What is done with usage while no subscription is in force.
    #[derive(Default)]
    pub enum Outside {
        /// It is pushed like all other usage.
        #[default]
        Push = "push",
        /// It is held until a subscription is known to have been in force.
        Hold = "hold",
    }
}

/// What decides about the billing of a tenant's usage, over time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attribution {
    /// In the order in which they began.
    terms: Vec<Term>,
    trials: BTreeSet<(SubscriptionId, Window)>,
    /// Ends of billing periods and changes of prices.
    borders: BTreeSet<Timestamp>,
    period_ends: BTreeSet<Timestamp>,
}

/// A part of a window in which nothing changes that decides about billing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Usage that happened in it belongs to it.
    pub during: Window,
    /// The place of the charge that it is billed with.
    charge: usize,
    /// Subscriptions in force, the one that began last at the end.
    in_force: Vec<SubscriptionId>,
    in_trial: BTreeSet<SubscriptionId>,
}

/// A part of a window by where pushes are stamped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// A push that is stamped in it counts towards it.
    pub stamps: Window,
    /// Where its next push is stamped.
    pub stamped_at: Timestamp,
    /// What was pushed of it before then is on an invoice that is fixed; none where no period is
    /// known to end, or nothing of it is invoiced.
    pub closed_at: Option<Timestamp>,
}

/// The usage of a window by the stretch that it happened in; trials that their producer marked are
/// only counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StretchSums {
    /// Every event.
    pub count: u64,
    /// In the order of stretches.
    pub by_stretch: Vec<StampedUsage>,
}

/// An event, as far as it is added up.
#[derive(Debug, Clone, Copy)]
pub struct SummedEvent<'e> {
    pub occurred_at: Timestamp,
    /// What it adds to a billed total.
    pub quantity: Quantity,
    pub subscription: Option<&'e str>,
    pub trial: bool,
}

/// A window divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    stretches: Vec<Stretch>,
    charges: Vec<Charge>,
}

/// How usage is billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    Charged,
    Trial,
    Outside,
}

/// Billable usage of a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargedUsage {
    pub stamps: Window,
    pub stamped_at: Timestamp,
    pub closed_at: Option<Timestamp>,
    pub billable: Quantity,
    /// The same by the subscription that it was used under.
    pub by_subscription: BTreeMap<Option<String>, Quantity>,
}

/// The usage of a window, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divided {
    /// Every event of the window.
    pub count: u64,
    /// What all charges add up to.
    pub billable: Quantity,
    /// In the order of time; at least one.
    pub charges: Vec<ChargedUsage>,
    /// Used in a trial by the timeline, and never billed.
    pub trial: Quantity,
    /// Used in no subscription, and held.
    pub outside: Quantity,
}

impl Attribution {
    pub fn new(agreed: &[Agreed], timeline: &[TimelineEntry]) -> Self {
        let terms = find_terms(agreed, timeline);
        let entries = in_order(timeline);
        // The last state that names a trial knows when that trial ended.
        let mut trials: BTreeMap<(&SubscriptionId, Timestamp), Timestamp> = BTreeMap::new();
        let (mut borders, mut period_ends) = (BTreeSet::new(), BTreeSet::new());
        for (place, entry) in entries.iter().enumerate() {
            if let Some(trial) = entry.state.trial {
                trials.insert((&entry.subscription, trial.start), trial.end);
            }
            borders.extend(entry.state.period.iter().flat_map(|p| [p.start, p.end]));
            period_ends.extend(entry.state.period.iter().map(|period| period.end));
            let before = place.checked_sub(1).and_then(|before| entries.get(before));
            let before = before.filter(|before| before.subscription == entry.subscription);
            if before.is_some_and(|before| before.state.prices != entry.state.prices) {
                borders.insert(entry.at);
            }
        }
        let trials = trials.into_iter();
        let trials = trials.map(|((id, start), end)| (id.clone(), Window { start, end })).collect();
        Self { terms, trials, borders, period_ends }
    }

    /// The same, with further moments at which billing changes.
    pub fn with_borders(mut self, borders: &[Timestamp]) -> Self {
        self.borders.extend(borders);
        self
    }

    /// Divides a window. Where it is billed by one total, it is one charge.
    pub fn divide(&self, window: Window, one_charge: bool) -> Layout {
        let edges = self.edges(window);
        let ends = edges.iter().skip(1).copied().chain([window.end]);
        let whole = Charge { stamps: window, stamped_at: window.start, closed_at: None };
        let mut charges = vec![whole];
        let mut stretches: Vec<Stretch> = Vec::with_capacity(edges.len());
        for (start, end) in edges.iter().copied().zip(ends) {
            let during = Window { start, end };
            if !one_charge {
                split_charge(&mut charges, window, self.charged_from(start));
            }
            let charge = charges.len() - 1;
            let (in_force, in_trial) = (self.in_force(start), self.in_trial(start));
            stretches.push(Stretch { during, charge, in_force, in_trial });
        }
        let mut layout = Layout { stretches, charges };
        self.stamp_charges(&mut layout);
        layout
    }

    /// How usage of a moment is billed, and under which subscription; `own` is the one that its
    /// producer named.
    pub fn treat(&self, at: Timestamp, own: Option<&str>) -> (Treatment, Option<String>) {
        let moment = Stretch {
            during: Window::moment(at),
            charge: 0,
            in_force: self.in_force(at),
            in_trial: self.in_trial(at),
        };
        moment.treat(own)
    }

    /// Where an event's push is stamped.
    pub fn stamp_event(&self, window: Window, occurred_at: Timestamp) -> Timestamp {
        super::stamp::stamp_event(window, occurred_at, &self.terms)
    }

    /// The time in `within` for which another division follows from this than from `before`; none
    /// if there is no difference.
    pub fn differs_from(&self, before: &Self, within: Window) -> Option<Window> {
        let mut edges = self.edges(within);
        edges.extend(before.edges(within));
        let mut differing: Option<Window> = None;
        for at in edges {
            let own = |one: &Self| {
                let is_edge = one.all_edges().any(|edge| edge == at);
                (one.in_force(at), one.in_trial(at), one.charged_from(at), is_edge)
            };
            if own(self) == own(before) {
                continue;
            }
            let next = self.next_edge(at, within.end).min(before.next_edge(at, within.end));
            let start = differing.map_or(at, |one| one.start);
            differing = Some(Window { start, end: next });
        }
        differing
    }

    fn next_edge(&self, after: Timestamp, end: Timestamp) -> Timestamp {
        let rest = Window { start: after.saturating_add_micros(1), end };
        self.all_edges().filter(|edge| rest.contains(*edge)).min().unwrap_or(end)
    }

    fn all_edges(&self) -> impl Iterator<Item = Timestamp> {
        let terms = self.terms.iter().flat_map(|term| [Some(term.began_at), term.ended_at]);
        let trials = self.trials.iter().flat_map(|(_, trial)| [trial.start, trial.end]);
        terms.flatten().chain(trials).chain(self.borders.iter().copied())
    }

    /// The start of a window and every moment inside it at which something changes.
    fn edges(&self, window: Window) -> BTreeSet<Timestamp> {
        let inside = self.all_edges().filter(|edge| window.contains(*edge));
        inside.chain([window.start]).collect()
    }

    fn in_force(&self, at: Timestamp) -> Vec<SubscriptionId> {
        let terms = self.terms.iter().filter(|term| term.holds_at(at));
        terms.map(|term| term.subscription.clone()).collect()
    }

    fn in_trial(&self, at: Timestamp) -> BTreeSet<SubscriptionId> {
        let trials = self.trials.iter().filter(|(_, trial)| trial.contains(at));
        trials.map(|(id, _)| id.clone()).collect()
    }

    /// From when on the provider charges usage of a stretch that begins then.
    fn charged_from(&self, start: Timestamp) -> Timestamp {
        let begun = self.terms.iter().filter(|term| term.began_at == start);
        begun.map(|term| term.charged_from).fold(start, Timestamp::max)
    }

    /// Stamps each charge near its middle, inside its last stretch that is charged and inside the
    /// subscriptions that are in force there.
    fn stamp_charges(&self, layout: &mut Layout) {
        for (place, charge) in layout.charges.iter_mut().enumerate() {
            let Window { start, end } = charge.stamps;
            let own = layout.stretches.iter().filter(|one| one.charge == place);
            // What is charged comes first, then what is outside.
            let billed = own.rev().min_by_key(|one| match one.treat(None).0 {
                Treatment::Charged => 0,
                Treatment::Outside => 1,
                Treatment::Trial => 2,
            });
            let invoiced = billed.is_some_and(|one| one.treat(None).0 == Treatment::Charged);
            let period_end = self.period_ends.range(end..).next().filter(|_| invoiced);
            charge.closed_at = period_end.map(|end| DRAFT_SPAN.after(*end));
            let during = billed.map_or(charge.stamps, |one| one.during);
            let in_force = self.terms.iter().filter(|term| term.holds_at(during.start));
            let mut stamp = whole_second(clamp(charge.stamps.middle(), in_force));
            // The charge may begin after the stretch, and is where the stamp must be.
            for Window { start, end } in [during, Window { start, end }] {
                stamp = stamp.max(first_charged(start)).min(last_before(end));
            }
            charge.stamped_at = stamp;
        }
    }
}

/// Begins another charge where it has room for a stamp, and leaves some to the one before.
fn split_charge(charges: &mut Vec<Charge>, window: Window, from: Timestamp) {
    let last = charges.last_mut().expect("a window has a charge");
    let room = |stamps: Window| first_charged(stamps.start) <= last_before(stamps.end);
    let before = Window { start: last.stamps.start, end: from };
    let after = Window { start: from, end: window.end };
    if from > last.stamps.start && from < window.end && room(before) && room(after) {
        last.stamps = before;
        charges.push(Charge { stamps: after, stamped_at: after.start, closed_at: None });
    }
}

/// The last whole second that is surely before it.
fn last_before(end: Timestamp) -> Timestamp {
    whole_second(end.saturating_add_micros(-1))
}

fn whole_second(at: Timestamp) -> Timestamp {
    let second = at.micros().div_euclid(MICROS_PER_SECOND);
    Timestamp::from_micros(second * MICROS_PER_SECOND)
}

impl Stretch {
    /// How its usage is billed, and under which subscription; `own` is the one that its producer
    /// named.
    fn treat(&self, own: Option<&str>) -> (Treatment, Option<String>) {
        let is_trial = |id: &str| self.in_trial.iter().any(|trial| trial.as_str() == id);
        // A customer that pays for one of its subscriptions pays for its usage.
        let paid = self.in_force.iter().rev().find(|id| !is_trial(id.as_str()));
        let in_force = paid.or_else(|| self.in_force.last()).map(SubscriptionId::as_str);
        let subscription = own.or(in_force);
        let treatment = match subscription {
            None => Treatment::Outside,
            Some(id) if is_trial(id) => Treatment::Trial,
            Some(_) => Treatment::Charged,
        };
        (treatment, subscription.map(str::to_owned))
    }

    fn is_like(&self, other: &Self) -> bool {
        let own = |one: &Self| (one.charge, one.in_force.clone(), one.in_trial.clone());
        own(self) == own(other)
    }
}

impl Layout {
    /// Whether the total of the window does not tell how it is divided.
    pub fn needs_events(&self) -> bool {
        self.stretches.windows(2).any(|pair| !pair[0].is_like(&pair[1]))
    }

    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// The place of the stretch that a moment of the window lies in.
    pub fn place_of(&self, at: Timestamp) -> usize {
        self.stretches.partition_point(|stretch| stretch.during.start <= at).saturating_sub(1)
    }

    /// Divides usage; `usage` is of each stretch, or of the whole window where events are not
    /// needed.
    pub fn attribute(
        &self,
        usage: &[StampedUsage],
        count: u64,
        outside: Outside,
    ) -> Result<Divided, Fault> {
        must!(
            usage.len() == self.stretches.len() || (usage.len() == 1 && !self.needs_events()),
            "the usage of each stretch is known",
            "stretches={} parts={}",
            self.stretches.len(),
            usage.len()
        );
        let zero = Quantity::ZERO;
        let charge = |charge: &Charge| ChargedUsage {
            stamps: charge.stamps,
            stamped_at: charge.stamped_at,
            closed_at: charge.closed_at,
            billable: zero,
            by_subscription: BTreeMap::new(),
        };
        let charges = self.charges.iter().map(charge).collect();
        let mut divided = Divided { count, billable: zero, charges, trial: zero, outside: zero };
        for (stretch, usage) in self.stretches.iter().zip(usage) {
            for (own, quantity) in usage {
                divided.add(stretch, own.as_deref(), *quantity, outside)?;
            }
        }
        Ok(divided)
    }
}

impl StretchSums {
    pub fn new(layout: &Layout) -> Self {
        Self { count: 0, by_stretch: vec![StampedUsage::new(); layout.stretches.len()] }
    }

    /// Adds an event of the window that was divided so.
    pub fn add(&mut self, layout: &Layout, event: SummedEvent<'_>) -> Result<(), FoldError> {
        self.count = self.count.checked_add(1).ok_or(FoldError)?;
        if event.trial {
            return Ok(());
        }
        let own = event.subscription.map(str::to_owned);
        self.add_sum(layout.place_of(event.occurred_at), own, event.quantity)
    }

    /// Adds usage of a stretch, by its place, that has these stamps.
    pub fn add_sum(
        &mut self,
        place: usize,
        subscription: Option<String>,
        quantity: Quantity,
    ) -> Result<(), FoldError> {
        let usage = self.by_stretch.get_mut(place).ok_or(FoldError)?;
        let sum = usage.entry(subscription).or_default();
        *sum = sum.checked_add(quantity).ok_or(FoldError)?;
        Ok(())
    }

    /// Adds what was summed up elsewhere, of the same layout.
    pub fn merge(&mut self, other: Self) -> Result<(), FoldError> {
        self.count = self.count.checked_add(other.count).ok_or(FoldError)?;
        for (place, usage) in other.by_stretch.into_iter().enumerate() {
            for (subscription, quantity) in usage {
                self.add_sum(place, subscription, quantity)?;
            }
        }
        Ok(())
    }
}

impl ChargedUsage {
    /// Where a push of it is stamped that is cut at `now`: the provider takes no stamp that lies
    /// ahead, and a window may be cut while it is open.
    pub fn stamp_by(&self, now: Timestamp) -> Timestamp {
        self.stamped_at.min(whole_second(now)).max(first_charged(self.stamps.start))
    }
}

impl Divided {
    /// What of each charge is billed where credits cover so much of the window: the oldest first.
    pub fn less(&self, covered: Quantity) -> Result<Vec<Quantity>, Fault> {
        let mut left = covered;
        let mut net = Vec::with_capacity(self.charges.len());
        for charge in &self.charges {
            let paid = left.min(charge.billable.max(Quantity::ZERO));
            left = exact(left.checked_sub(paid))?;
            net.push(exact(charge.billable.checked_sub(paid))?);
        }
        Ok(net)
    }

    fn add(
        &mut self,
        stretch: &Stretch,
        own: Option<&str>,
        quantity: Quantity,
        outside: Outside,
    ) -> Result<(), Fault> {
        let (treatment, subscription) = stretch.treat(own);
        let sum = |sum: &mut Quantity| -> Result<(), Fault> {
            *sum = exact(sum.checked_add(quantity))?;
            Ok(())
        };
        match (treatment, outside) {
            (Treatment::Trial, _) => sum(&mut self.trial),
            (Treatment::Outside, Outside::Hold) => sum(&mut self.outside),
            (Treatment::Charged, _) | (Treatment::Outside, Outside::Push) => {
                let charge = &mut self.charges[stretch.charge];
                sum(&mut charge.billable)?;
                sum(charge.by_subscription.entry(subscription).or_default())?;
                sum(&mut self.billable)
            }
        }
    }
}

#[cfg(test)]
pub mod tests;
