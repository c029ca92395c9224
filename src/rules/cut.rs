//! How a window is cut: what of it is new, what credits cover of that, what is pushed
//! and what is carried.
//!
//! A store reads a [`Subject`] and what the window holds, has the cut planned here, and writes the
//! [`WindowCut`] as it is. Meters billed by event are cut event by event, each on top of those
//! before it; an event whose quantity is carried gets no push, and is named in `carried`.
//!
//! Invariant: over the windows of a tenant and meter, the sum of what was planned plus the
//! remainder is the sum of the exact totals less what credits cover. `CutState::count` is the
//! number of events that were looked at: all that the window holds, or fewer while some are left,
//! so that equal counts always mean that nothing is left. Nothing is written here, so a crash
//! leaves nothing.

use super::attribution::{Attribution, ChargedUsage, Divided, Outside, Treatment};
use super::billing::{Billing, Granularity, Mode};
use super::credit::DrawOrder;
use super::credit::covering::CoverOrder;
use super::event::Event;
use super::fault::{Fault, must};
use super::ids::{EventId, MeterNo, TenantId, TenantNo};
use super::meter::{Aggregation, Meter};
use super::push::{
    CutPlan, CutState, NewPush, Place, PlannedPush, Precision, Pushed, Standing, exact,
    plan_charges, plan_cut, plan_following,
};
use super::quantity::Quantity;
use super::submission::{Class, PushState};
use super::timestamp::Timestamp;
use super::window::Window;
use std::collections::{BTreeMap, BTreeSet};

/// How windows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutTerms {
    pub at: Timestamp,
    /// Whether windows that are cut for the first time are only compared, never billed.
    pub shadow: bool,
    /// Significant digits the provider can hold.
    pub digits_max: u32,
    /// Most events of one window that become pushes in one call, for meters billed by event.
    pub events_max: usize,
    /// Which credits are drawn on first.
    pub draw_order: DrawOrder,
    /// What is done with usage in no subscription.
    pub outside: Outside,
}

/// A window that is being cut, with what is stored of it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub tenant_no: TenantNo,
    pub tenant: &'a TenantId,
    pub meter_no: MeterNo,
    pub meter: &'a Meter,
    pub billing: &'a Billing,
    pub window: Window,
    /// Where it stood at its last cut; [`CutState::new`] before the first.
    pub state: &'a CutState,
    /// What is carried for the tenant and meter, of windows that are shadow as this one.
    pub remainder: Quantity,
    /// Under which subscriptions and trials the tenant's usage falls.
    pub attribution: &'a Attribution,
    pub prior: &'a PriorPushes,
    /// Where a push of the tenant begins.
    pub begins: PushState,
}

/// A push of a window, as far as a cut checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision {
    pub revision: u32,
    pub mode: Mode,
    pub quantity: Quantity,
    pub value: Quantity,
    pub state: PushState,
    pub class: Class,
    pub attempts: u32,
    pub stamped_at: Timestamp,
    pub created_at: Timestamp,
}

/// The pushes of a window, as far as a cut reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PriorPushes {
    /// All of them, in the order of their revisions.
    All(Vec<Revision>),
    /// The last revision alone: a window that is billed by event has as many pushes as events. 0 if
    /// there is none.
    Last(u32),
}

impl PriorPushes {
    /// The last revision and, where all pushes are known, what they planned.
    fn add_up(&self, mode: Mode) -> Result<(u32, Option<Quantity>), Fault> {
        let pushes = match self {
            Self::All(pushes) => pushes,
            Self::Last(revision) => return Ok((*revision, None)),
        };
        let (mut revision, mut planned, mut unresolved) = (0, Quantity::ZERO, 0u32);
        for push in pushes {
            let number = push.revision;
            must!(
                number > revision,
                "revisions of a window ascend",
                "revision={number} before={revision}"
            );
            must!(
                push.mode == mode,
                "pushes of a window have the mode of their meter",
                "revision={number} mode={}",
                push.mode.name()
            );
            revision = number;
            unresolved += u32::from(push.state == PushState::Observed && push.attempts > 0);
            planned = match mode {
                Mode::Absolute => push.value,
                Mode::Delta if is_planned(push) => exact(planned.checked_add(push.quantity))?,
                Mode::Delta => planned,
            };
        }
        must!(
            unresolved <= 1,
            "at most one push of a window is unresolved",
            "unresolved={unresolved}"
        );
        Ok((revision, Some(planned)))
    }
}

impl PriorPushes {
    /// What the pushes said of each of these parts of the window, by their stamps; none where not
    /// all pushes are known.
    fn attribute(
        &self,
        charges: &[ChargedUsage],
        now: Timestamp,
    ) -> Result<Option<Vec<Pushed>>, Fault> {
        let Self::All(pushes) = self else { return Ok(None) };
        let mut sums = vec![Pushed::default(); charges.len()];
        for push in pushes.iter().filter(|push| is_planned(push)) {
            let place = charges.partition_point(|one| one.stamps.start <= push.stamped_at);
            let place = place.saturating_sub(1);
            let (sum, closed_at) = (&mut sums[place], charges[place].closed_at);
            sum.all = exact(sum.all.checked_add(push.quantity))?;
            if closed_at.is_some_and(|at| push.created_at < at && at <= now) {
                sum.invoiced = exact(sum.invoiced.checked_add(push.quantity))?;
            }
        }
        Ok(Some(sums))
    }
}

/// Whether a push is part of what was planned for its window. One that surely never counted hands
/// its quantity on to the push that takes its place; one that was too old to be sent has no other.
fn is_planned(push: &Revision) -> bool {
    push.state != PushState::Replaced || push.class == Class::NotSent
}

/// An event of a meter billed by event, which was not cut yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenEvent {
    pub id: EventId,
    pub occurred_at: Timestamp,
    pub quantity: Quantity,
    pub subscription: Option<String>,
    pub trial: bool,
}

impl From<Event> for OpenEvent {
    fn from(event: Event) -> Self {
        Self {
            id: event.id,
            occurred_at: event.occurred_at,
            quantity: event.quantity,
            subscription: event.subscription.map(|name| name.as_str().to_owned()),
            trial: event.trial,
        }
    }
}

/// Events of a window that are to be cut now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenEvents {
    /// How many events the window had when they were listed, trials included.
    pub seen: u64,
    /// Oldest first.
    pub due: Vec<OpenEvent>,
    /// Whether some are left for a later call.
    pub unfinished: bool,
}

/// What a cut writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowCut {
    pub state: CutState,
    pub remainder: Quantity,
    pub pushes: Vec<NewPush>,
    /// Events that were cut without a push.
    pub carried: Vec<EventId>,
}

/// Checks that a meter can be billed: the totals of windows are added up.
pub fn check_billable(meter: &Meter) -> Result<(), Fault> {
    must!(
        matches!(meter.spec.aggregation, Aggregation::Sum | Aggregation::Count),
        "only sums and counts are billed",
        "aggregation={:?}",
        meter.spec.aggregation
    );
    Ok(())
}

/// Whether credits cover usage of a window: what is only compared or gets no push draws on nothing.
pub fn draws_credits(state: &CutState, terms: CutTerms) -> bool {
    !state.shadow && !terms.shadow
}

/// Whether a window that comes to `billable` gives credits back, so that what it drew is needed.
pub fn window_gives_back(state: &CutState, billable: Quantity) -> bool {
    state.covered > Quantity::ZERO && billable < state.covered
}

/// Whether a window may give credits back as these events are added to it.
pub fn events_give_back(state: &CutState, events: &OpenEvents) -> bool {
    // What is covered may exceed the total while a shadow window shrinks.
    let shrinks = state.total < state.covered
        || events.due.iter().any(|event| event.quantity < Quantity::ZERO);
    state.covered > Quantity::ZERO && shrinks
}

/// Cuts a window by its charges; none if nothing changes. `cover` says how much of the window
/// credits cover once they were asked.
pub fn plan_window<E: From<Fault>>(
    subject: &Subject<'_>,
    divided: &Divided,
    terms: CutTerms,
    mut cover: impl FnMut(&CoverOrder) -> Result<Quantity, E>,
) -> Result<Option<WindowCut>, E> {
    let Subject { state, window, .. } = *subject;
    let named = |fault: Fault| fault.of(&subject.place());
    subject.check().map_err(named)?;
    subject.check_usage(divided).map_err(named)?;
    let covered = subject.cover(state, (divided.billable, window), terms, &mut cover)?;
    let (plan, planned) = subject.plan_charges(divided, covered, terms).map_err(named)?;
    let mut cut = WindowCut::of(&plan);
    for (place, planned) in planned {
        let charge = &divided.charges[place];
        let stamped_at = charge.stamp_by(terms.at);
        let push = subject.push(planned, stamped_at, charge.subscriptions_json(), None);
        cut.pushes.push(subject.check_push(push, terms).map_err(named)?);
    }
    let unchanged = cut.state == *state && cut.remainder == subject.remainder;
    Ok((!unchanged).then_some(cut))
}

/// Cuts events of a window one by one; none if nothing changes.
pub fn plan_events<E: From<Fault>>(
    subject: &Subject<'_>,
    events: OpenEvents,
    terms: CutTerms,
    mut cover: impl FnMut(&CoverOrder) -> Result<Quantity, E>,
) -> Result<Option<WindowCut>, E> {
    let named = |fault: Fault| fault.of(&subject.place());
    subject.check().map_err(named)?;
    subject.check_events(&events, terms).map_err(named)?;
    let OpenEvents { seen, due, unfinished } = events;
    let before = CutPlan { state: subject.state.clone(), remainder: subject.remainder, push: None };
    let mut cut = WindowCut::of(&before);
    // While events are left, fewer are counted than the window has, so that it has changed. Trials
    // are counted with the last of them; another call may have been further.
    let added = u64::try_from(due.len()).unwrap_or(u64::MAX);
    let count = match unfinished {
        true => subject.state.count.saturating_add(added),
        false => subject.state.count.max(seen),
    };
    cut.state.count = count;
    for event in due {
        let quantity = subject.billed_quantity(&event);
        let own = event.subscription.as_deref();
        let (treatment, subscription) = subject.attribution.treat(event.occurred_at, own);
        let aside = match (treatment, terms.outside) {
            (Treatment::Trial, _) => Some(&mut cut.state.trial),
            (Treatment::Outside, Outside::Hold) => Some(&mut cut.state.outside),
            (Treatment::Charged, _) | (Treatment::Outside, Outside::Push) => None,
        };
        if let Some(sum) = aside {
            *sum = exact(sum.checked_add(quantity)).map_err(named)?;
            cut.carried.push(event.id);
            continue;
        }
        let billable = exact(cut.state.total.checked_add(quantity)).map_err(named)?;
        let during = Window::moment(event.occurred_at);
        let covered = subject.cover(&cut.state, (billable, during), terms, &mut cover)?;
        let standing = Standing { count, billable, covered };
        let plan = subject.plan(&cut.state, cut.remainder, standing, terms).map_err(named)?;
        (cut.state, cut.remainder) = (plan.state, plan.remainder);
        let Some(planned) = plan.push else {
            cut.carried.push(event.id);
            continue;
        };
        let stamped_at = subject.attribution.stamp_event(subject.window, event.occurred_at);
        let by_subscription = BTreeMap::from([(subscription, quantity)]);
        let stamps = Window::moment(event.occurred_at);
        let (closed_at, billable) = (None, quantity);
        let own = ChargedUsage { stamps, stamped_at, closed_at, billable, by_subscription };
        let push = subject.push(planned, stamped_at, own.subscriptions_json(), Some(event.id));
        cut.pushes.push(subject.check_push(push, terms).map_err(named)?);
    }
    let unchanged = cut.state == before.state && cut.remainder == before.remainder;
    Ok((!unchanged).then_some(cut))
}

impl WindowCut {
    fn of(plan: &CutPlan) -> Self {
        let CutPlan { state, remainder, .. } = plan;
        let (pushes, carried) = (Vec::new(), Vec::new());
        Self { state: state.clone(), remainder: *remainder, pushes, carried }
    }
}

impl Subject<'_> {
    fn place(&self) -> Place<'_> {
        Place { tenant: self.tenant, meter: self.meter.slug.as_str(), window: self.window }
    }

    /// Checks what was read of the window before anything is planned.
    fn check(&self) -> Result<(), Fault> {
        let Self { window, state, prior, meter, .. } = *self;
        check_billable(meter)?;
        must!(
            self.billing.window_around(window.start, meter.spec.bucket) == window,
            "a window that is cut is one that its meter is billed by",
            "granularity={:?}",
            self.billing.granularity
        );
        let (revision, planned) = prior.add_up(self.billing.mode)?;
        must!(
            revision == state.revision,
            "a window's revision is that of its last push",
            "window_revision={} push_revision={revision}",
            state.revision
        );
        let planned = planned.unwrap_or(state.planned);
        must!(
            planned == state.planned,
            "what was planned for a window is the sum of its pushes",
            "planned={} pushes={planned}",
            state.planned
        );
        must!(
            matches!(self.begins, PushState::Observed | PushState::Waiting),
            "a push begins as observed or waiting",
            "state={}",
            self.begins.name()
        );
        Ok(())
    }

    /// Checks the usage of a window that is cut by its charges.
    fn check_usage(&self, divided: &Divided) -> Result<(), Fault> {
        let Self { state, meter, .. } = *self;
        let Divided { count, billable, ref charges, .. } = *divided;
        must!(
            self.billing.granularity != Granularity::Event || count == state.count,
            "events that are billed one by one are cut before their window",
            "count={count} count_before={}",
            state.count
        );
        must!(
            count >= state.count,
            "a window never loses events",
            "count={count} count_before={}",
            state.count
        );
        must!(!charges.is_empty(), "a window has a charge", "count={count}");
        let sum = charges.iter().try_fold(Quantity::ZERO, |a, b| a.checked_add(b.billable));
        must!(
            sum == Some(billable),
            "the charges of a window make its total",
            "billable={billable} charges={}",
            charges.len()
        );
        for charge in charges {
            let by_subscription = charge.by_subscription.values();
            let sum = by_subscription.copied().try_fold(Quantity::ZERO, Quantity::checked_add);
            must!(
                sum == Some(charge.billable),
                "the totals of subscriptions make the total of their charge",
                "billable={} subscriptions={}",
                charge.billable,
                charge.by_subscription.len()
            );
            self.check_sign(charge.billable)?;
        }
        must!(
            meter.spec.aggregation != Aggregation::Count
                || Quantity::from_count(count).is_some_and(|most| billable <= most),
            "a count is not above the number of its events",
            "count={count} billable={billable}"
        );
        Ok(())
    }

    /// Checks the events of a window that is cut by event.
    fn check_events(&self, events: &OpenEvents, terms: CutTerms) -> Result<(), Fault> {
        must!(
            self.billing.granularity == Granularity::Event,
            "only a meter billed by event is cut by event",
            "granularity={:?}",
            self.billing.granularity
        );
        must!(
            events.due.len() <= terms.events_max,
            "a call cuts no more events than its terms allow",
            "events={} events_max={}",
            events.due.len(),
            terms.events_max
        );
        let mut seen = BTreeSet::new();
        for event in &events.due {
            let OpenEvent { id, occurred_at, trial, quantity, .. } = event;
            must!(seen.insert(id), "an event is cut once", "event={id}");
            must!(!*trial, "usage of a trial is never billed", "event={id}");
            must!(
                self.window.contains(*occurred_at),
                "an event is cut with the window that it occurred in",
                "event={id} occurred_at={occurred_at}"
            );
            self.check_sign(*quantity)?;
        }
        let ordered = events.due.is_sorted_by_key(|event| event.occurred_at);
        must!(ordered, "events are cut from the oldest on", "events={}", events.due.len());
        Ok(())
    }

    fn check_sign(&self, quantity: Quantity) -> Result<(), Fault> {
        must!(
            self.meter.spec.signed || quantity >= Quantity::ZERO,
            "usage of a meter without a sign is not negative",
            "quantity={quantity}"
        );
        Ok(())
    }

    /// What one event adds to a billed total.
    fn billed_quantity(&self, event: &OpenEvent) -> Quantity {
        match self.meter.spec.aggregation == Aggregation::Count {
            true => Quantity::ONE,
            false => event.quantity,
        }
    }

    /// Asks credits to cover what the window has grown by since `state`, where they may.
    fn cover<E: From<Fault>>(
        &self,
        state: &CutState,
        (billable, during): (Quantity, Window),
        terms: CutTerms,
        cover: &mut impl FnMut(&CoverOrder) -> Result<Quantity, E>,
    ) -> Result<Quantity, E> {
        if !draws_credits(state, terms) {
            return Ok(state.covered);
        }
        let covered = cover(&CoverOrder {
            meter: self.meter_no,
            scale: self.meter.usage_scale(),
            during,
            before: state.total,
            now: billable,
            covered: state.covered,
        })?;
        must!(
            covered <= billable.max(Quantity::ZERO),
            "credits cover no more than was used",
            "{} covered={covered} billable={billable}",
            self.place()
        );
        Ok(covered)
    }

    fn plan(
        &self,
        state: &CutState,
        remainder: Quantity,
        standing: Standing,
        terms: CutTerms,
    ) -> Result<CutPlan, Fault> {
        if state.shadow != terms.shadow {
            return plan_following(state, remainder, standing);
        }
        plan_cut(state, remainder, standing, self.billing.mode, self.precision(terms))
    }

    fn precision(&self, terms: CutTerms) -> Precision {
        Precision { scale: self.meter.billing_scale(), digits_max: terms.digits_max }
    }

    /// Plans the pushes of a window's charges; where the provider takes one total of the window,
    /// or none now, of the window as a whole.
    fn plan_charges(
        &self,
        divided: &Divided,
        covered: Quantity,
        terms: CutTerms,
    ) -> Result<(CutPlan, Vec<(usize, PlannedPush)>), Fault> {
        let Self { state, remainder, .. } = *self;
        let attributed = self.prior.attribute(&divided.charges, terms.at)?;
        let whole = state.shadow != terms.shadow || self.billing.mode == Mode::Absolute;
        if let (Some(attributed), false) = (attributed, whole) {
            let holds = (divided, covered);
            return plan_charges(state, remainder, holds, &attributed, self.precision(terms));
        }
        let Divided { count, billable, trial, outside, .. } = *divided;
        let state = CutState { trial, outside, ..state.clone() };
        let standing = Standing { count, billable, covered };
        let mut plan = self.plan(&state, remainder, standing, terms)?;
        let push = plan.push.take();
        Ok((plan, push.into_iter().map(|push| (divided.charges.len() - 1, push)).collect()))
    }

    fn push(
        &self,
        planned: PlannedPush,
        stamped_at: Timestamp,
        subscriptions: String,
        event: Option<EventId>,
    ) -> NewPush {
        NewPush {
            tenant_no: self.tenant_no,
            tenant: self.tenant.clone(),
            meter: self.meter_no,
            slug: self.meter.slug.as_str().to_owned(),
            window: self.window,
            shadow: self.state.shadow,
            mode: self.billing.mode,
            planned,
            stamped_at,
            subscriptions,
            event,
            detail: None,
            customer: None,
            state: self.begins,
            class: Class::Cut,
        }
    }

    /// Checks a planned push before it is written.
    fn check_push(&self, push: NewPush, terms: CutTerms) -> Result<NewPush, Fault> {
        let (window, stamped_at) = (push.window, push.stamped_at);
        must!(
            push.shadow == terms.shadow,
            "a shadow window gets shadow pushes and no other",
            "shadow={} terms={}",
            push.shadow,
            terms.shadow
        );
        must!(
            window.start < stamped_at && stamped_at < window.end,
            "a push is stamped strictly inside its window",
            "stamped_at={stamped_at}"
        );
        Ok(push)
    }
}

#[cfg(test)]
mod tests;
