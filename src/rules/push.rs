//! Pushes: what is sent to the billing provider about a window, and under which key.
//!
//! A cut compares a window's exact total with what was planned for it before and plans one push
//! for the difference. What the provider cannot hold (decimals beyond the billing scale, more than
//! its digits) is not lost: it is the remainder of the tenant and meter, and goes into a later
//! push.
//!
//! Invariant: over the windows of a tenant and meter, the sum of all planned quantities plus the
//! remainder equals the sum of the exact totals at their last cuts, less what credits cover of
//! them. A push, once planned, never changes; whatever changes its window afterwards plans another
//! one with the next revision.

mod rows;

pub use rows::{NewPush, Place, Push, StoredPush, Transition};

use super::attribution::{ChargedUsage, Divided};
use super::billing::Mode;
use super::digest::{digest_fields, hex};
use super::fault::{Fault, must};
use super::quantity::{Quantity, SCALE};
use super::rollup::{FoldError, Rollup};
use super::timestamp::{MICROS_PER_SECOND, Timestamp};
use super::usage::UsageRow;
use super::window::Window;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Subscriptions that a push names.
const SUBSCRIPTIONS_MAX: usize = 100;
/// The name under which a push holds the sum of all further subscriptions.
const OTHER_SUBSCRIPTIONS: &str = "(others)";

/// Usage by the subscription that its producer named.
pub type StampedUsage = BTreeMap<Option<String>, Quantity>;

/// What a window holds at the moment of a cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowUsage {
    /// Every event of the window: when it changes, the window has changed.
    pub count: u64,
    /// The exact total of all but what its producer called a trial.
    pub billable: Quantity,
    /// The same by its stamps.
    pub by_stamps: StampedUsage,
}

impl WindowUsage {
    /// Measures a window; `rows` are its totals, and theirs only.
    pub fn measure(rows: &[UsageRow]) -> Result<Self, FoldError> {
        let mut count = 0u64;
        let mut totals: BTreeMap<Option<String>, Rollup> = BTreeMap::new();
        for row in rows {
            count = count.checked_add(row.rollup.count).ok_or(FoldError)?;
            let parts = row.group.parts().ok_or(FoldError)?;
            if parts.trial {
                continue;
            }
            match totals.get_mut(&parts.subscription) {
                Some(total) => total.fold(&row.rollup)?,
                None => drop(totals.insert(parts.subscription, row.rollup.clone())),
            }
        }
        let mut billable = Quantity::ZERO;
        let mut by_stamps = StampedUsage::new();
        for (subscription, total) in totals {
            let value = total.answer()?;
            billable = billable.checked_add(value).ok_or(FoldError)?;
            by_stamps.insert(subscription, value);
        }
        Ok(Self { count, billable, by_stamps })
    }
}

impl ChargedUsage {
    /// The totals by subscription as JSON, in the order of subscriptions; usage under none has
    /// the empty name. Senders choose the names, so at most `SUBSCRIPTIONS_MAX` are named, those
    /// with the largest totals; the others are one total under `OTHER_SUBSCRIPTIONS`.
    pub fn subscriptions_json(&self) -> String {
        let mut totals: Vec<(&str, Quantity)> = self
            .by_subscription
            .iter()
            .map(|(name, total)| (name.as_deref().unwrap_or(""), *total))
            .collect();
        totals.sort_by_key(|(name, total)| (Reverse(total.units().unsigned_abs()), *name));
        let others = totals.split_off(totals.len().min(SUBSCRIPTIONS_MAX));
        let mut named: BTreeMap<&str, String> =
            totals.iter().map(|(name, total)| (*name, total.to_string())).collect();
        if !others.is_empty() {
            let mut others = others.iter().map(|(_, total)| *total);
            let sum = others.try_fold(Quantity::ZERO, Quantity::checked_add);
            let sum = sum.map_or_else(String::new, |sum| sum.to_string());
            named.insert(OTHER_SUBSCRIPTIONS, sum);
        }
        serde_json::to_string(&named).expect("texts are valid JSON")
    }
}

/// The state of a window after its last cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutState {
    /// Events it had.
    pub count: u64,
    /// The exact billable total it had.
    pub total: Quantity,
    /// How much of that credits cover: it is not billed.
    pub covered: Quantity,
    /// The sum of what was planned for it, in the provider's decimals.
    pub planned: Quantity,
    /// The number of its last push; 0 before the first.
    pub revision: u32,
    /// Whether it is only compared and never billed; decided by its first cut.
    pub shadow: bool,
    /// What of it was used in a trial by the timeline; no part of the total.
    pub trial: Quantity,
    /// What of it is held because no subscription was in force; no part of the total.
    pub outside: Quantity,
}

impl CutState {
    pub fn new(shadow: bool) -> Self {
        let zero = Quantity::ZERO;
        Self {
            count: 0,
            total: zero,
            covered: zero,
            planned: zero,
            revision: 0,
            shadow,
            trial: zero,
            outside: zero,
        }
    }

    /// Moves on to what the window holds now; by how much what is billed of it has grown.
    fn move_to(&mut self, standing: Standing) -> Result<Quantity, Fault> {
        let Standing { count, billable, covered } = standing;
        must!(
            self.revision > 0 || self.planned == Quantity::ZERO,
            "a window without pushes has nothing planned",
            "planned={}",
            self.planned
        );
        must!(
            self.covered >= Quantity::ZERO && covered >= Quantity::ZERO,
            "credits cover no negative usage",
            "covered_before={} covered={covered}",
            self.covered
        );
        let net = exact(billable.checked_sub(covered))?;
        let before = exact(self.total.checked_sub(self.covered))?;
        (self.count, self.total, self.covered) = (count, billable, covered);
        exact(net.checked_sub(before))
    }

    /// The push of this state's revision, which reports `quantity`.
    fn tell(&self, quantity: Quantity, mode: Mode) -> PlannedPush {
        let value = match mode {
            Mode::Delta => quantity,
            Mode::Absolute => self.planned,
        };
        PlannedPush { revision: self.revision, quantity, value }
    }

    /// The number of the window's next push.
    fn next_revision(&self) -> Result<u32, Fault> {
        let fault = || Fault { fact: "a window has a next revision", ids: String::new() };
        self.revision.checked_add(1).ok_or_else(fault)
    }
}

/// What of a window's usage is billed, as far as its last cut knows; `used` is all but what its
/// producer called a trial. None if that is too large.
pub fn billed_of(cut: Option<&CutState>, used: Quantity) -> Option<Quantity> {
    match cut {
        Some(cut) => used.checked_sub(cut.trial)?.checked_sub(cut.outside),
        None => Some(used),
    }
}

/// The result of exact arithmetic: what cannot be held exactly is a fault and never rounded.
pub(super) fn exact(result: Option<Quantity>) -> Result<Quantity, Fault> {
    let fault = || Fault { fact: "a total can be held exactly", ids: String::new() };
    result.ok_or_else(fault)
}

/// What the provider can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Decimal places.
    pub scale: u32,
    /// Significant digits.
    pub digits_max: u32,
}

/// A push that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPush {
    pub revision: u32,
    /// By how much the window's planned total changes.
    pub quantity: Quantity,
    /// What is sent: the quantity, or the window's planned total.
    pub value: Quantity,
}

/// What a cut changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutPlan {
    pub state: CutState,
    pub remainder: Quantity,
    pub push: Option<PlannedPush>,
}

/// What a window holds now, as a cut plans with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Events.
    pub count: u64,
    /// The exact total of what is billed.
    pub billable: Quantity,
    /// How much of it credits cover now.
    pub covered: Quantity,
}

/// Plans the cut of a window that now holds this.
pub fn plan_cut(
    state: &CutState,
    remainder: Quantity,
    standing: Standing,
    mode: Mode,
    precision: Precision,
) -> Result<CutPlan, Fault> {
    let before = state;
    let mut state = state.clone();
    let grown = state.move_to(standing)?;
    let due = exact(remainder.checked_add(grown))?;
    let reach = match mode {
        Mode::Delta => due,
        // Here it is the new total that must fit.
        Mode::Absolute => exact(state.planned.checked_add(due))?,
    };
    let scale = precision.fitting(reach);
    let fitting = round_down(reach, scale);
    let quantity = match mode {
        Mode::Delta => fitting,
        Mode::Absolute => exact(fitting.checked_sub(state.planned))?,
    };
    let left = exact(due.checked_sub(quantity))?;
    if quantity != Quantity::ZERO {
        state.planned = exact(state.planned.checked_add(quantity))?;
        state.revision = state.next_revision()?;
    }
    let push = (quantity != Quantity::ZERO).then(|| state.tell(quantity, mode));
    let plan = CutPlan { state, remainder: left, push };
    plan.check(before, (remainder, grown), scale)?;
    Ok(plan)
}

/// A push of one charge of a window, by the charge's place.
pub type ChargePush = (usize, PlannedPush);

/// What earlier pushes said of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pushed {
    pub all: Quantity,
    /// What of it is on an invoice that is fixed: nothing takes it off that any more.
    pub invoiced: Quantity,
}

/// Plans the cut of a window by its charges: each is pushed what it has and its earlier pushes do
/// not say. Credits cover the oldest charges first. The last charge with usage takes what is left,
/// so that digits which the provider cannot hold are carried, and what was invoiced of a charge
/// beyond what it has is not billed once more.
pub fn plan_charges(
    state: &CutState,
    remainder: Quantity,
    (divided, covered): (&Divided, Quantity),
    pushed: &[Pushed],
    precision: Precision,
) -> Result<(CutPlan, Vec<ChargePush>), Fault> {
    let before = state;
    let mut state = CutState { trial: divided.trial, outside: divided.outside, ..state.clone() };
    let Divided { count, billable, ref charges, .. } = *divided;
    let grown = state.move_to(Standing { count, billable, covered })?;
    let main = charges.iter().rposition(|one| one.billable != Quantity::ZERO);
    let main = main.unwrap_or(charges.len().saturating_sub(1));
    let mut left = exact(remainder.checked_add(grown))?;
    let mut due = vec![Quantity::ZERO; charges.len()];
    for (place, net) in divided.less(covered)?.into_iter().enumerate() {
        if place != main {
            let Pushed { all, invoiced } = pushed[place];
            let fitting = round_down(net, precision.fitting(net)).max(invoiced);
            due[place] = exact(fitting.checked_sub(all))?;
            left = exact(left.checked_sub(due[place]))?;
        }
    }
    let scale = precision.fitting(left);
    due[main] = round_down(left, scale);
    let left = exact(left.checked_sub(due[main]))?;
    let mut pushes = Vec::new();
    for (place, quantity) in due.into_iter().enumerate() {
        if quantity != Quantity::ZERO {
            state.planned = exact(state.planned.checked_add(quantity))?;
            state.revision = state.next_revision()?;
            pushes.push((place, state.tell(quantity, Mode::Delta)));
        }
    }
    let plan = CutPlan { state, remainder: left, push: None };
    plan.check_charges(before, (remainder, grown), scale, &pushes)?;
    Ok((plan, pushes))
}

impl CutPlan {
    /// Checks what is planned of a window's charges, before anything of it is written.
    fn check_charges(
        &self,
        before: &CutState,
        (carried, grown): (Quantity, Quantity),
        scale: u32,
        pushes: &[ChargePush],
    ) -> Result<(), Fault> {
        let quantities = pushes.iter().map(|(_, push)| push.quantity);
        let sum = quantities.into_iter().try_fold(Quantity::ZERO, Quantity::checked_add);
        let sum = exact(sum)?;
        must!(
            sum.checked_add(self.remainder) == carried.checked_add(grown),
            "a cut neither makes nor loses usage",
            "carried={carried} grown={grown} pushed={sum} remainder={}",
            self.remainder
        );
        must!(
            Quantity::ZERO <= self.remainder && self.remainder.units() < unit_of(scale),
            "a remainder is less than the provider's smallest unit",
            "remainder={} scale={scale}",
            self.remainder
        );
        must!(
            before.planned.checked_add(sum) == Some(self.state.planned),
            "a window's planned total is what its pushes tell",
            "planned={} pushed={sum} planned_after={}",
            before.planned,
            self.state.planned
        );
        let revisions = (before.revision..).skip(1).zip(pushes);
        for (expected, (_, push)) in revisions {
            must!(
                push.revision == expected,
                "a push has a later revision than every one before",
                "revision={} expected={expected}",
                push.revision
            );
        }
        Ok(())
    }

    /// Checks a planned cut against what it started from, before anything of it is written.
    fn check(
        &self,
        before: &CutState,
        (carried, grown): (Quantity, Quantity),
        scale: u32,
    ) -> Result<(), Fault> {
        let (remainder, zero) = (self.remainder, Quantity::ZERO);
        let quantity = self.push.as_ref().map_or(zero, |push| push.quantity);
        must!(
            quantity.checked_add(remainder) == carried.checked_add(grown),
            "a cut neither makes nor loses usage",
            "carried={carried} grown={grown} quantity={quantity} remainder={remainder}"
        );
        must!(
            zero <= remainder && remainder.units() < unit_of(scale),
            "a remainder is less than the provider's smallest unit",
            "remainder={remainder} scale={scale}"
        );
        must!(
            before.planned.checked_add(quantity) == Some(self.state.planned),
            "a window's planned total is what its pushes tell",
            "planned={} quantity={quantity} planned_after={}",
            before.planned,
            self.state.planned
        );
        let Some(push) = &self.push else { return Ok(()) };
        must!(
            push.revision == self.state.revision && push.revision > before.revision,
            "a push has a later revision than every one before",
            "revision={} revision_before={}",
            push.revision,
            before.revision
        );
        must!(
            push.value.units().rem_euclid(unit_of(scale)) == 0,
            "a push has no more decimals than the provider holds",
            "value={} scale={scale}",
            push.value
        );
        Ok(())
    }
}

/// Follows a window that gets no push now, because its first cut decided otherwise about shadow:
/// what it has grown by waits in the remainder, so that the invariant holds here too.
pub fn plan_following(
    state: &CutState,
    remainder: Quantity,
    standing: Standing,
) -> Result<CutPlan, Fault> {
    let mut state = state.clone();
    let grown = state.move_to(standing)?;
    let remainder = exact(remainder.checked_add(grown))?;
    Ok(CutPlan { state, remainder, push: None })
}

/// Plans the push that takes the place of one that surely never counted.
pub fn plan_replacement(
    state: &CutState,
    quantity: Quantity,
    mode: Mode,
) -> Result<(CutState, PlannedPush), Fault> {
    let state = CutState { revision: state.next_revision()?, ..state.clone() };
    let push = state.tell(quantity, mode);
    Ok((state, push))
}

/// What the provider lost of a window, and the push that sends it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reissue {
    /// The window's state after both.
    pub state: CutState,
    /// Takes away what the provider said that it has and does not show; it is never sent.
    pub lost: PlannedPush,
    pub again: PlannedPush,
}

/// Plans the reissue of a window of which the provider said that it has `settled` and shows
/// `provider`, which is less. The two revisions cancel out, so what was planned stays as it is.
pub fn plan_reissue(
    state: &CutState,
    (settled, provider): (Quantity, Quantity),
    mode: Mode,
) -> Result<Reissue, Fault> {
    let gone = exact(provider.checked_sub(settled))?;
    let lacking = exact(settled.checked_sub(provider))?;
    must!(
        lacking > Quantity::ZERO,
        "only what the provider lacks is sent again",
        "settled={settled} provider={provider}"
    );
    let revision = state.next_revision()?;
    let value = match mode {
        Mode::Delta => gone,
        Mode::Absolute => provider,
    };
    let lost = PlannedPush { revision, quantity: gone, value };
    let state = CutState { revision, ..state.clone() };
    let state = CutState { revision: state.next_revision()?, ..state };
    let again = state.tell(lacking, mode);
    must!(
        lost.quantity.checked_add(again.quantity) == Some(Quantity::ZERO),
        "a reissue neither makes nor loses usage",
        "lost={} again={}",
        lost.quantity,
        again.quantity
    );
    Ok(Reissue { state, lost, again })
}

/// What a restored store had forgotten of a window, and the push of what is still to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// The window's state after both.
    pub state: CutState,
    /// What the provider holds already; it is never sent.
    pub adopted: PlannedPush,
    /// None if nothing is left.
    pub rest: Option<PlannedPush>,
}

/// Plans the revisions that take the place of all unsent pushes of a window: what the provider
/// holds of them, which makes its total `total`, and the rest. The two add up to what was planned.
pub fn plan_adoption(
    state: &CutState,
    (adopted, rest): (Quantity, Quantity),
    total: Quantity,
    mode: Mode,
) -> Result<Adoption, Fault> {
    let revision = state.next_revision()?;
    let value = match mode {
        Mode::Delta => adopted,
        Mode::Absolute => total,
    };
    let mut state = CutState { revision, ..state.clone() };
    let adopted = PlannedPush { revision, quantity: adopted, value };
    if rest == Quantity::ZERO {
        return Ok(Adoption { state, adopted, rest: None });
    }
    state.revision = state.next_revision()?;
    let rest = state.tell(rest, mode);
    Ok(Adoption { state, adopted, rest: Some(rest) })
}

impl Precision {
    /// The decimal places that leave `quantity` within the digits.
    fn fitting(self, quantity: Quantity) -> u32 {
        let whole = quantity.units().unsigned_abs() / Quantity::ONE.units().unsigned_abs();
        let whole_digits = whole.checked_ilog10().map_or(1, |power| power + 1);
        self.scale.min(self.digits_max.saturating_sub(whole_digits)).min(SCALE)
    }
}

/// The largest multiple of 10^-scale that is not above `quantity`; so a remainder is never
/// negative and always below one unit.
fn round_down(quantity: Quantity, scale: u32) -> Quantity {
    let unit = unit_of(scale);
    Quantity::from_units(quantity.units().div_euclid(unit) * unit)
}

/// 10^-scale, in units.
fn unit_of(scale: u32) -> i128 {
    10i128.pow(SCALE - scale.min(SCALE))
}

/// The moment a push is stamped with: strictly inside its window, on a whole second, so that it
/// falls into that window whichever border the provider counts in.
pub fn stamp_inside(window: Window, at: Timestamp) -> Timestamp {
    let first = window.start.saturating_add_micros(MICROS_PER_SECOND);
    let last = window.end.saturating_add_micros(-MICROS_PER_SECOND);
    let whole = at.micros().div_euclid(MICROS_PER_SECOND) * MICROS_PER_SECOND;
    Timestamp::from_micros(whole).max(first).min(last)
}

/// What a push's key is made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    pub tenant: &'a str,
    pub meter: &'a str,
    pub window_start: Timestamp,
    pub revision: u32,
    pub value: Quantity,
}

/// The name under which the provider knows a push: ASCII, 44 characters, never used for anything
/// else. It is derived, so that a push has one name however often it is written; the store's own
/// secret, which differs from epoch to epoch ([`secret_of_epoch`]), keeps two stores on one account
/// apart, and a store from what it forgot by a restore; the value is part of it, so that a
/// key the provider knows already proves the value it knows.
pub fn push_key(secret: &[u8; 32], parts: KeyParts<'_>) -> String {
    let digest = digest_fields([
        b"counterfoil push v1".as_slice(),
        secret,
        parts.tenant.as_bytes(),
        parts.meter.as_bytes(),
        &parts.window_start.micros().to_be_bytes(),
        &parts.revision.to_be_bytes(),
        parts.value.to_string().as_bytes(),
    ]);
    format!("{}{}", rows::KEY_PREFIX, hex(&digest[..20]))
}

/// The secret under which keys are made in an epoch. After a restore the same window, revision and
/// value can mean another push than the forgotten one, which the provider may know by its key.
pub fn secret_of_epoch(secret: &[u8; 32], epoch: u32) -> [u8; 32] {
    if epoch == 0 {
        return *secret;
    }
    let purpose = b"counterfoil epoch v1".as_slice();
    digest_fields([purpose, secret, &epoch.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::samples::quantity;
    use proptest::prelude::*;

    const WIDE: Precision = Precision { scale: 6, digits_max: 15 };
    const WHOLE: Precision = Precision { scale: 0, digits_max: 15 };

    fn standing(count: u64, billable: Quantity) -> Standing {
        Standing { count, billable, covered: Quantity::ZERO }
    }

    #[test]
    fn a_push_names_a_hundred_subscriptions_and_sums_the_others() {
        let (start, end) = (Timestamp::from_micros(0), Timestamp::from_micros(1));
        let mut usage = ChargedUsage {
            stamps: Window { start, end },
            stamped_at: start,
            closed_at: None,
            billable: Quantity::ZERO,
            by_subscription: BTreeMap::new(),
        };
        for n in 0..150 {
            usage.by_subscription.insert(Some(format!("s{n}")), Quantity::from_units(n));
        }
        usage.by_subscription.insert(None, Quantity::from_units(-1000));
        let named: BTreeMap<String, String> =
            serde_json::from_str(&usage.subscriptions_json()).expect("valid");
        assert_eq!(named.len(), 101);
        let of = |name: &str| named.get(name).map(|total| quantity(total).units());
        assert_eq!(
            (of(""), of("s149"), of("s51"), of("s50")),
            (Some(-1000), Some(149), Some(51), None)
        );
        assert_eq!(of(OTHER_SUBSCRIPTIONS), Some((0..51).sum()));
    }

    #[test]
    fn what_credits_cover_is_not_billed() {
        let state = CutState::new(false);
        let holds = |count, billable: &str, covered: &str| Standing {
            count,
            billable: quantity(billable),
            covered: quantity(covered),
        };
        let plan = |state: &CutState, standing| {
            plan_cut(state, Quantity::ZERO, standing, Mode::Delta, WIDE).expect("fits")
        };
        let first = plan(&state, holds(1, "10", "10"));
        assert_eq!(first.push, None);
        let second = plan(&first.state, holds(2, "15", "12"));
        assert_eq!(second.push.map(|push| push.value), Some(quantity("3")));
        // Given back: what is billed shrinks by what was used less and not covered.
        let third = plan(&second.state, holds(3, "11", "11"));
        assert_eq!(third.push.map(|push| push.value), Some(quantity("-3")));
    }

    /// Cuts windows one after the other and returns what was sent, and the remainder.
    fn cut_all(
        mode: Mode,
        precision: Precision,
        totals: &[(usize, &str)],
    ) -> (Vec<String>, String) {
        let mut states = vec![CutState::new(false); 10];
        let (mut remainder, mut sent) = (Quantity::ZERO, Vec::new());
        for (count, (window, total)) in totals.iter().enumerate() {
            let usage = standing(u64::try_from(count).expect("small"), quantity(total));
            let plan = plan_cut(&states[*window], remainder, usage, mode, precision).expect("fits");
            states[*window] = plan.state;
            remainder = plan.remainder;
            sent.extend(plan.push.map(|push| format!("{}:{}", push.revision, push.value)));
        }
        (sent, remainder.to_string())
    }

    #[test]
    fn a_late_event_makes_a_revision() {
        let totals = [(0, "10"), (0, "10"), (0, "12.5"), (1, "3"), (0, "12")];
        let (sent, remainder) = cut_all(Mode::Delta, WIDE, &totals);
        assert_eq!((sent, remainder.as_str()), (owned(&["1:10", "2:2.5", "1:3", "3:-0.5"]), "0"));
        let (sent, _) = cut_all(Mode::Absolute, WIDE, &totals);
        assert_eq!(sent, owned(&["1:10", "2:12.5", "1:3", "3:12"]));
    }

    #[test]
    fn a_followed_window_leaves_its_growth_to_the_next_push() {
        let state = CutState { count: 1, total: quantity("3"), ..CutState::new(true) };
        let followed =
            plan_following(&state, quantity("0.5"), standing(2, quantity("5"))).expect("fits");
        assert_eq!((followed.state.count, followed.state.total), (2, quantity("5")));
        assert_eq!((followed.remainder, followed.push), (quantity("2.5"), None));
        assert_eq!((followed.state.planned, followed.state.revision), (Quantity::ZERO, 0));
    }

    #[test]
    fn a_reissue_cancels_out() {
        let planned = quantity("12.5");
        let state = CutState { planned, revision: 3, ..CutState::new(false) };
        let check = |mode: Mode, settled: &str, expected: [&str; 2]| {
            let halves = (quantity(settled), quantity("4"));
            let plan = plan_reissue(&state, halves, mode).expect("fits");
            assert_eq!(plan.state, CutState { revision: 5, ..state.clone() });
            let [lost, again] = [&plan.lost, &plan.again]
                .map(|push| format!("{}:{}:{}", push.revision, push.quantity, push.value));
            assert_eq!([lost.as_str(), again.as_str()], expected);
        };
        check(Mode::Delta, "12.5", ["4:-8.5:-8.5", "5:8.5:8.5"]);
        check(Mode::Delta, "10", ["4:-6:-6", "5:6:6"]);
        // A total is sent whole: it supersedes dead pushes of the window.
        check(Mode::Absolute, "12.5", ["4:-8.5:4", "5:8.5:12.5"]);
        check(Mode::Absolute, "10", ["4:-6:4", "5:6:12.5"]);
    }

    #[test]
    fn an_adoption_makes_what_was_planned() {
        let state = CutState { planned: quantity("12"), revision: 3, ..CutState::new(false) };
        let check = |mode: Mode, rest: &str, expected: [&str; 2]| {
            let parts = (quantity("10"), quantity(rest));
            let plan = plan_adoption(&state, parts, quantity("10"), mode).expect("fits");
            assert_eq!(plan.state.planned, state.planned);
            let text =
                |push: &PlannedPush| format!("{}:{}:{}", push.revision, push.quantity, push.value);
            let rest = plan.rest.as_ref().map(text).unwrap_or_default();
            assert_eq!([text(&plan.adopted), rest], expected);
        };
        check(Mode::Delta, "2", ["4:10:10", "5:2:2"]);
        check(Mode::Absolute, "2", ["4:10:10", "5:2:12"]);
        check(Mode::Delta, "0", ["4:10:10", ""]);
    }

    #[test]
    fn an_epoch_has_keys_of_its_own() {
        assert_eq!(secret_of_epoch(&[7; 32], 0), [7; 32]);
        assert_ne!(secret_of_epoch(&[7; 32], 1), [7; 32]);
        assert_ne!(secret_of_epoch(&[7; 32], 1), secret_of_epoch(&[7; 32], 2));
    }

    #[test]
    fn small_amounts_are_carried_until_they_make_a_unit() {
        let totals: Vec<(usize, &str)> = (0..8).map(|window| (window, "0.4")).collect();
        let (sent, remainder) = cut_all(Mode::Delta, WHOLE, &totals);
        assert_eq!((sent, remainder.as_str()), (owned(&["1:1", "1:1", "1:1"]), "0.2"));
    }

    #[test]
    fn decimals_beyond_fifteen_digits_are_carried() {
        let totals = [(0, "12345678901.123456"), (1, "0.000044")];
        let (sent, remainder) = cut_all(Mode::Delta, WIDE, &totals);
        assert_eq!((sent, remainder.as_str()), (owned(&["1:12345678901.1234", "1:0.0001"]), "0"));
    }

    #[test]
    fn stamps_lie_inside() {
        let at = |text: &str| Timestamp::parse(text).expect("valid");
        let window = Window { start: at("2026-11-01T10:00:00Z"), end: at("2026-11-01T11:00:00Z") };
        let check = |given: &str, expected: &str| {
            assert_eq!(stamp_inside(window, at(given)).to_string(), expected);
        };
        check("2026-11-01T10:00:00Z", "2026-11-01T10:00:01Z");
        check("2026-11-01T10:30:05.7Z", "2026-11-01T10:30:05Z");
        check("2026-11-01T10:59:59.9Z", "2026-11-01T10:59:59Z");
        check("2026-11-01T12:00:00Z", "2026-11-01T10:59:59Z");
    }

    #[test]
    fn keys_differ_in_every_part() {
        let parts = KeyParts {
            tenant: "a",
            meter: "bc",
            window_start: Timestamp::from_micros(0),
            revision: 1,
            value: Quantity::ONE,
        };
        let key = push_key(&[0; 32], parts);
        assert_eq!(key.len(), 44);
        let others = [
            push_key(&[1; 32], parts),
            push_key(&[0; 32], KeyParts { tenant: "ab", meter: "c", ..parts }),
            push_key(&[0; 32], KeyParts { window_start: Timestamp::from_micros(1), ..parts }),
            push_key(&[0; 32], KeyParts { revision: 2, ..parts }),
            push_key(&[0; 32], KeyParts { value: Quantity::ZERO, ..parts }),
        ];
        assert!(others.iter().all(|other| *other != key));
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_made_or_lost(
            cuts in proptest::collection::vec((0usize..4, -9_000_000_000i64..9_000_000_000), 1..60),
            scale in 0u32..8, digits_max in 4u32..16, absolute in any::<bool>(),
        ) {
            let mode = if absolute { Mode::Absolute } else { Mode::Delta };
            let precision = Precision { scale, digits_max };
            let mut states = vec![CutState::new(false); 4];
            let mut totals = [Quantity::ZERO; 4];
            let mut remainder = Quantity::ZERO;
            for (window, micro_units) in cuts {
                let total = Quantity::from_units(i128::from(micro_units) * 1_000_000);
                let (state, now) = (&states[window], standing(1, total));
                let plan = plan_cut(state, remainder, now, mode, precision).expect("fits");
                remainder = plan.remainder;
                states[window] = plan.state;
                if let Some(push) = plan.push {
                    totals[window] = match mode {
                        Mode::Delta => totals[window].checked_add(push.value).expect("fits"),
                        Mode::Absolute => push.value,
                    };
                }
                let exact: i128 = states.iter().map(|s| s.total.units()).sum();
                let sent: i128 = totals.iter().map(|q| q.units()).sum();
                prop_assert_eq!(sent + remainder.units(), exact);
                prop_assert!(remainder >= Quantity::ZERO);
            }
        }
    }
}
