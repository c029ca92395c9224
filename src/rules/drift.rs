//! Drift: the difference between what was counted and what the provider shows, and what it means.
//!
//! Both halves of a window lie side by side: what was counted, what was handed to billing, what
//! happened to each push, and what the provider's summary shows. The verdict says whether they
//! match, whether to wait, whether something may safely be sent again, or whether a person must
//! look.
//!
//! Invariant: nothing is sent again unless it is proved that it did not count; where the provider
//! shows more than we sent, nothing is ever corrected by us. A difference counts only if the
//! provider said the same twice, and after everything that was sent had time to arrive.

mod verdict;

pub use verdict::{Reason, Verdict};

use super::billing::Mode;
use super::evidence::{Evidence, LAG, proves_loss, weigh_readings};
use super::ids::CustomerId;
use super::push::CutState;
use super::quantity::{Quantity, SCALE};
use super::span::Span;
use super::submission::{Class, DeadClass, PushState};
use super::timestamp::Timestamp;
use super::window::Window;

/// Readings of one value before a difference counts.
const READS_MIN: u32 = 2;
/// Significant digits up to which a double, rounded to the decimals that were sent, is exact.
const EXACT_DIGITS_MAX: u32 = 14;
/// Before everything.
const NEVER: Timestamp = Timestamp::from_micros(i64::MIN);

/// A push, as far as a comparison needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowPush {
    pub number: u64,
    pub window: Window,
    pub revision: u32,
    pub shadow: bool,
    pub mode: Mode,
    pub quantity: Quantity,
    pub value: Quantity,
    pub stamped_at: Timestamp,
    pub state: PushState,
    pub class: Class,
    /// The customer that it was sent for; none before its first attempt.
    pub customer: Option<CustomerId>,
    pub attempts: u32,
    pub state_at: Timestamp,
}

/// The provider's total of a window, as it was read last, of one customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    pub window: Window,
    pub value: Quantity,
    pub read_at: Timestamp,
    /// When it was read before that, with the same value; none after one reading of a value.
    pub read_before: Option<Timestamp>,
    /// When this value was first read.
    pub since: Timestamp,
    /// How often in a row.
    pub reads: u32,
}

/// The states of a window's pushes, summed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PushSums {
    /// The provider says that it has these.
    pub settled: Quantity,
    /// How many of those no summary has shown yet.
    pub unconfirmed: u64,
    /// How many of those a summary has shown and no pass has closed.
    pub confirmed: u64,
    /// Begun, outcome unknown.
    pub unresolved: Quantity,
    pub unresolved_count: u64,
    /// Never sent.
    pub unsent: Quantity,
    pub unsent_count: u64,
    /// Dead, and surely not counted.
    pub dropped: Quantity,
    pub dropped_pushes: Vec<u64>,
    /// Dead because the provider refused them.
    pub refused: Quantity,
    pub refused_count: u64,
    /// Dead, and nobody knows whether they counted.
    pub doubtful: Quantity,
    pub doubtful_count: u64,
    /// Written off by an operator.
    pub discarded: Quantity,
    /// Of those, what no later total that the provider has makes up for, and which pushes.
    pub written_off: Quantity,
    pub written_off_pushes: Vec<u64>,
    /// When the provider last took one.
    pub submitted_at: Option<Timestamp>,
    /// When one of those that it has came into its state last: readings from before tell nothing.
    pub settled_at: Option<Timestamp>,
    /// When one that it has, or that is dead, came into its state last.
    pub moved_at: Option<Timestamp>,
}

impl PushSums {
    /// Adds up the pushes of one window, oldest revision first; none if a sum is too large.
    pub fn of_window(pushes: &[WindowPush]) -> Option<Self> {
        let mut sums = Self::default();
        for push in pushes {
            let add = |sum: &mut Quantity| {
                *sum = sum.checked_add(push.quantity)?;
                Some(())
            };
            let ended = matches!(push.state, PushState::Dead | PushState::Discarded);
            if push.state.settled() || ended {
                sums.moved_at = sums.moved_at.max(Some(push.state_at));
            }
            match push.state {
                PushState::Submitted | PushState::Confirmed | PushState::Reconciled => {
                    match push.mode {
                        Mode::Delta => add(&mut sums.settled)?,
                        Mode::Absolute => {
                            sums.settled = push.value;
                            // A later total of the window holds what was written off before.
                            sums.written_off = Quantity::ZERO;
                            sums.written_off_pushes.clear();
                        }
                    }
                    sums.settled_at = sums.settled_at.max(Some(push.state_at));
                    sums.unconfirmed += u64::from(push.state == PushState::Submitted);
                    sums.confirmed += u64::from(push.state == PushState::Confirmed);
                    if push.state == PushState::Submitted {
                        sums.submitted_at = sums.submitted_at.max(Some(push.state_at));
                    }
                }
                PushState::Observed if push.attempts > 0 => {
                    add(&mut sums.unresolved)?;
                    sums.unresolved_count += 1;
                }
                PushState::Waiting | PushState::Observed => {
                    add(&mut sums.unsent)?;
                    sums.unsent_count += 1;
                }
                PushState::Dead => sums.add_dead(push)?,
                PushState::Discarded => {
                    add(&mut sums.discarded)?;
                    add(&mut sums.written_off)?;
                    sums.written_off_pushes.push(push.number);
                }
                PushState::Replaced => {}
            }
        }
        Some(sums)
    }

    /// Adds a push that ended without the provider having it, or nobody knows.
    fn add_dead(&mut self, push: &WindowPush) -> Option<()> {
        let add = |sum: &mut Quantity| {
            *sum = sum.checked_add(push.quantity)?;
            Some(())
        };
        match push.class.of_dead() {
            DeadClass::Absent => {
                add(&mut self.dropped)?;
                self.dropped_pushes.push(push.number);
            }
            DeadClass::Undecidable | DeadClass::Unreadable => {
                add(&mut self.doubtful)?;
                self.doubtful_count += 1;
            }
            DeadClass::Refused | DeadClass::TooOld | DeadClass::Other => {
                add(&mut self.refused)?;
                self.refused_count += 1;
            }
        }
        Some(())
    }

    fn add(&mut self, other: &Self) -> Option<()> {
        self.settled = self.settled.checked_add(other.settled)?;
        self.unresolved = self.unresolved.checked_add(other.unresolved)?;
        self.unsent = self.unsent.checked_add(other.unsent)?;
        self.dropped = self.dropped.checked_add(other.dropped)?;
        self.refused = self.refused.checked_add(other.refused)?;
        self.doubtful = self.doubtful.checked_add(other.doubtful)?;
        self.discarded = self.discarded.checked_add(other.discarded)?;
        self.written_off = self.written_off.checked_add(other.written_off)?;
        self.unconfirmed += other.unconfirmed;
        self.confirmed += other.confirmed;
        self.unresolved_count += other.unresolved_count;
        self.unsent_count += other.unsent_count;
        self.refused_count += other.refused_count;
        self.doubtful_count += other.doubtful_count;
        self.dropped_pushes.extend(&other.dropped_pushes);
        self.written_off_pushes.extend(&other.written_off_pushes);
        self.submitted_at = self.submitted_at.max(other.submitted_at);
        self.settled_at = self.settled_at.max(other.settled_at);
        self.moved_at = self.moved_at.max(other.moved_at);
        Some(())
    }
}

/// Both halves of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halves {
    pub window: Window,
    /// What was counted and is billed, exactly.
    pub counted: Quantity,
    /// What was handed to billing, in the provider's decimals.
    pub planned: Quantity,
    /// Whether it has grown since it was handed over last.
    pub uncut: bool,
    pub pushes: PushSums,
    pub summary: Option<Summary>,
}

impl Halves {
    /// `counted` is of `events` events now; `cut` is where the window stood at its last cut.
    pub fn new(
        window: Window,
        (counted, events): (Quantity, u64),
        cut: Option<&CutState>,
        pushes: PushSums,
        summary: Option<Summary>,
    ) -> Self {
        let planned = cut.map_or(Quantity::ZERO, |cut| cut.planned);
        let uncut = cut.map_or(events > 0, |cut| cut.count != events);
        Self { window, counted, planned, uncut, pushes, summary }
    }

    /// Several windows as one, with the summary of all of them; none if a sum is too large.
    pub fn together(window: Window, parts: &[Self], summary: Option<Summary>) -> Option<Self> {
        let mut all = Self {
            window,
            counted: Quantity::ZERO,
            planned: Quantity::ZERO,
            uncut: false,
            pushes: PushSums::default(),
            summary,
        };
        for part in parts {
            all.counted = all.counted.checked_add(part.counted)?;
            all.planned = all.planned.checked_add(part.planned)?;
            all.uncut |= part.uncut;
            all.pushes.add(&part.pushes)?;
        }
        Some(all)
    }

    /// What the provider shows; zero if it was not read, which `judge_drift` tells apart.
    pub fn provider(&self) -> Quantity {
        self.summary.map_or(Quantity::ZERO, |summary| summary.value)
    }

    /// What was handed to billing and not written off; none if that is too large.
    pub fn billed(&self) -> Option<Quantity> {
        self.planned.checked_sub(self.pushes.written_off)
    }

    /// By how much the provider is above what it said that it has; none if that is too large.
    pub fn delta(&self) -> Option<Quantity> {
        self.provider().checked_sub(self.pushes.settled)
    }

    /// Whether the readings prove that the provider lost what it shows less.
    pub fn is_loss_proved(&self) -> bool {
        proves_loss(self.summary.as_ref(), self.pushes.moved_at.unwrap_or(NEVER))
    }

    /// Whether there is nothing on either side.
    pub fn is_empty(&self) -> bool {
        let zero = Quantity::ZERO;
        !self.uncut
            && [self.counted, self.planned, self.provider()] == [zero; 3]
            && self.pushes == PushSums::default()
    }
}

/// Whether a finding is made of it: drift, and what may become drift. What only takes its usual
/// time is not.
pub fn is_followed(verdict: Verdict, reason: Reason) -> bool {
    verdict.is_drift() || matches!(reason, Reason::LongLag | Reason::ReadOnce)
}

/// By what a window is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub now: Timestamp,
    /// From so long after a submission on, the summary tells.
    pub decide: Span,
    /// The largest difference that is let pass.
    pub tolerance: Quantity,
}

/// What both halves of a window say.
pub fn judge_drift(halves: &Halves, terms: Terms) -> (Verdict, Reason) {
    let Halves { pushes, .. } = halves;
    let Some(summary) = halves.summary else { return (Verdict::Unread, Reason::Unread) };
    let Some(delta) = halves.delta() else { return (Verdict::Undecidable, Reason::Digits) };
    if delta == Quantity::ZERO {
        return judge_agreed(halves, terms);
    }
    let unresolved = pushes.unresolved_count > 0;
    let taken_at = pushes.submitted_at.unwrap_or(NEVER);
    let settled_at = pushes.settled_at.unwrap_or(NEVER);
    if unresolved || summary.read_at < settled_at {
        let reason = if unresolved { Reason::Unsent } else { Reason::Unread };
        return (Verdict::Waiting, reason);
    }
    let below = delta < Quantity::ZERO;
    // From then on confirmation tells, by two looks that are an hour apart.
    let decided_at = LAG.after(LAG.after(terms.decide.after(taken_at)));
    if below && pushes.unconfirmed > 0 && terms.now < decided_at {
        let long = terms.now >= LAG.after(taken_at);
        return (Verdict::Waiting, if long { Reason::LongLag } else { Reason::Lag });
    }
    // Readings from before the last push came through do not count. Where they showed the same, one
    // that is an hour younger than the push takes the place of the second.
    let proved = summary.since >= settled_at || summary.read_at >= LAG.after(settled_at);
    if summary.reads < READS_MIN || !proved {
        return (Verdict::Waiting, Reason::ReadOnce);
    }
    if Quantity::from_units(delta.units().saturating_abs()) <= terms.tolerance {
        return (Verdict::Tolerance, Reason::Matches);
    }
    if digits(summary.value) > EXACT_DIGITS_MAX || digits(pushes.settled) > EXACT_DIGITS_MAX {
        return (Verdict::Undecidable, Reason::Digits);
    }
    // What was given up and counts all the same would show as this very difference.
    let given_up = [pushes.doubtful, pushes.dropped, pushes.refused, pushes.discarded];
    if pushes.doubtful_count > 0 || given_up.contains(&delta) {
        (Verdict::Undecidable, Reason::Doubtful)
    } else if below {
        (Verdict::Replay, Reason::Lost)
    } else {
        (Verdict::Bypass, Reason::ProviderHigher)
    }
}

/// The provider shows what it said that it has; what else is there?
fn judge_agreed(halves: &Halves, terms: Terms) -> (Verdict, Reason) {
    let pushes = &halves.pushes;
    if !pushes.dropped_pushes.is_empty() {
        let after = pushes.moved_at.unwrap_or(NEVER);
        match weigh_readings(halves.summary.as_ref(), after) {
            Evidence::Unread | Evidence::ReadOnce => (Verdict::Waiting, Reason::Unread),
            Evidence::Proved => (Verdict::Replay, Reason::Dropped),
        }
    } else if pushes.refused_count > 0 {
        (Verdict::Replay, Reason::Refused)
    } else if pushes.unresolved_count + pushes.unsent_count > 0 {
        (Verdict::Waiting, Reason::Unsent)
    } else if halves.uncut && terms.now >= terms.decide.after(halves.window.end) {
        // A late event is cut before the next pass; what stays, nobody is going to hand over.
        (Verdict::Undecidable, Reason::Uncut)
    } else if halves.uncut {
        (Verdict::Waiting, Reason::Uncut)
    } else if !pushes.written_off_pushes.is_empty() {
        (Verdict::WrittenOff, Reason::Discarded)
    } else {
        (Verdict::Equal, Reason::Matches)
    }
}

/// Significant digits before and after the point.
fn digits(quantity: Quantity) -> u32 {
    let units = quantity.units().unsigned_abs();
    let one = 10u128.pow(SCALE);
    let whole = (units / one).checked_ilog10().map_or(0, |power| power + 1);
    let mut fraction = units % one;
    let mut places = if fraction == 0 { 0 } else { SCALE };
    while fraction != 0 && fraction.is_multiple_of(10) {
        fraction /= 10;
        places -= 1;
    }
    whole + places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::reissue::judge_reissue;
    use crate::rules::samples::{customer, hour as at, quantity};

    const HOUR: i64 = 3_600_000_000;

    fn window() -> Window {
        Window { start: at(0), end: at(1) }
    }

    fn push(quantity_text: &str, state: PushState, class: Class, attempts: u32) -> WindowPush {
        let quantity = quantity(quantity_text);
        WindowPush {
            number: 1,
            window: window(),
            revision: 1,
            shadow: false,
            mode: Mode::Delta,
            quantity,
            value: quantity,
            stamped_at: at(0),
            state,
            class,
            customer: (attempts > 0).then(|| customer("cus_a")),
            attempts,
            state_at: at(2),
        }
    }

    /// A window of which `planned` was counted and cut, read `reads` times at hour 40.
    fn halves(planned: &str, pushes: &[WindowPush], provider: &str, reads: u32) -> Halves {
        let planned = quantity(planned);
        let new = CutState::new(false);
        let cut = CutState { count: 1, total: planned, planned, revision: 1, ..new };
        let (value, read_at) = (quantity(provider), at(40));
        let read_before = (reads > 1).then(|| at(39));
        let since = read_before.unwrap_or(read_at);
        let summary = Summary { window: window(), value, read_at, read_before, since, reads };
        let sums = PushSums::of_window(pushes).expect("small");
        Halves::new(window(), (planned, 1), Some(&cut), sums, Some(summary))
    }

    fn judge(halves: &Halves, hour: i64) -> (Verdict, Reason) {
        let (now, decide) = (at(hour), Span::from_hours(26));
        judge_drift(halves, Terms { now, decide, tolerance: quantity("0.01") })
    }

    #[test]
    fn every_verdict() {
        use Class::{Absent, Accepted, Confirmed, Cut, Discarded, Refused, Undecidable, Unknown};
        use PushState::{Dead, Observed, Submitted};
        let confirmed = || push("5", PushState::Confirmed, Confirmed, 1);
        let check = |pushes: &[WindowPush], provider: &str, expected: (Verdict, Reason)| {
            let found = judge(&halves("5", pushes, provider, 2), 41);
            assert_eq!(found, expected, "{pushes:?} and {provider}");
        };
        check(&[confirmed()], "5", (Verdict::Equal, Reason::Matches));
        check(&[confirmed()], "5.01", (Verdict::Tolerance, Reason::Matches));
        check(&[confirmed()], "4.99", (Verdict::Tolerance, Reason::Matches));
        check(&[confirmed()], "5.02", (Verdict::Bypass, Reason::ProviderHigher));
        check(&[confirmed()], "3", (Verdict::Replay, Reason::Lost));
        check(&[push("5", Observed, Cut, 0)], "0", (Verdict::Waiting, Reason::Unsent));
        check(&[push("5", Observed, Unknown, 1)], "0", (Verdict::Waiting, Reason::Unsent));
        check(&[push("5", Observed, Unknown, 1)], "5", (Verdict::Waiting, Reason::Unsent));
        check(&[push("5", Submitted, Accepted, 1)], "5", (Verdict::Equal, Reason::Matches));
        check(&[push("5", Submitted, Accepted, 1)], "0", (Verdict::Replay, Reason::Lost));
        check(&[push("5", Dead, Absent, 1)], "0", (Verdict::Replay, Reason::Dropped));
        check(&[push("5", Dead, Refused, 1)], "0", (Verdict::Replay, Reason::Refused));
        check(&[push("5", Dead, Refused, 1)], "5", (Verdict::Undecidable, Reason::Doubtful));
        check(&[push("5", Dead, Undecidable, 1)], "3", (Verdict::Undecidable, Reason::Doubtful));
        check(
            &[push("5", PushState::Discarded, Discarded, 1)],
            "0",
            (Verdict::WrittenOff, Reason::Discarded),
        );
        check(
            &[push("5", PushState::Discarded, Discarded, 1)],
            "5",
            (Verdict::Undecidable, Reason::Doubtful),
        );
        let huge = [push("123456789012345", PushState::Confirmed, Confirmed, 1)];
        check(&huge, "5", (Verdict::Undecidable, Reason::Digits));
    }

    #[test]
    fn only_what_is_beyond_doubt_is_corrected() {
        use Class::{Confirmed, Cut, Discarded, Refused, Undecidable, Unknown};
        use PushState::{Dead, Observed};
        let confirmed = || push("5", PushState::Confirmed, Confirmed, 1);
        let check = |other: Option<WindowPush>, settled: &str, provider: &str, expected: bool| {
            let pushes: Vec<WindowPush> = [confirmed()].into_iter().chain(other).collect();
            let read = |reads| halves("5", &pushes, provider, reads).summary;
            let judge = |summary: Option<Summary>| {
                let both = (quantity(settled), quantity(provider));
                judge_reissue(&pushes, &customer("cus_a"), both, summary.as_ref())
            };
            for unproved in [None, read(1), halves("5", &pushes, "4", 2).summary] {
                assert!(judge(unproved).is_err(), "{unproved:?}");
            }
            let judged = judge(read(2));
            assert_eq!(judged.is_ok(), expected, "{pushes:?}, {settled} and {provider}");
        };
        check(None, "5", "3", true);
        check(None, "5", "-1", true);
        check(None, "5", "5", false);
        check(None, "5", "6", false);
        check(None, "4", "3", false);
        check(Some(push("1", Dead, Refused, 1)), "5", "3", true);
        check(Some(push("1", PushState::Discarded, Discarded, 1)), "5", "3", true);
        check(Some(push("1", Dead, Undecidable, 1)), "5", "3", false);
        check(Some(push("1", Observed, Cut, 0)), "5", "3", false);
        check(Some(push("1", Observed, Unknown, 1)), "5", "3", false);
    }

    #[test]
    fn lag_waits_until_the_summary_can_tell() {
        let submitted = [push("5", PushState::Submitted, Class::Accepted, 1)];
        let check = |hour: i64, expected: (Verdict, Reason)| {
            assert_eq!(judge(&halves("5", &submitted, "0", 2), hour), expected, "hour {hour}");
        };
        check(2, (Verdict::Waiting, Reason::Lag));
        check(3, (Verdict::Waiting, Reason::LongLag));
        check(29, (Verdict::Waiting, Reason::LongLag));
        check(30, (Verdict::Replay, Reason::Lost));
    }

    #[test]
    fn one_reading_is_none() {
        let confirmed = [push("5", PushState::Confirmed, Class::Confirmed, 1)];
        let judged = judge(&halves("5", &confirmed, "9", 1), 41);
        assert_eq!(judged, (Verdict::Waiting, Reason::ReadOnce));
        let mut unread = halves("5", &confirmed, "9", 1);
        unread.summary = None;
        assert_eq!(judge(&unread, 41), (Verdict::Unread, Reason::Unread));
    }

    #[test]
    fn readings_from_before_the_push_came_through_tell_nothing() {
        let confirmed = [push("5", PushState::Confirmed, Class::Confirmed, 1)];
        let check = |read_minutes: i64, since: i64, expected: (Verdict, Reason)| {
            let mut halves = halves("5", &confirmed, "0", 9);
            let read_at = Timestamp::from_micros(2 * HOUR + read_minutes * (HOUR / 60));
            halves.summary = halves.summary.map(|s| Summary { read_at, since: at(since), ..s });
            assert_eq!(judge(&halves, 41), expected, "{read_minutes} {since}");
        };
        check(-1, 0, (Verdict::Waiting, Reason::Unread));
        check(0, 0, (Verdict::Waiting, Reason::ReadOnce));
        check(59, 0, (Verdict::Waiting, Reason::ReadOnce));
        check(60, 0, (Verdict::Replay, Reason::Lost));
        check(5, 2, (Verdict::Replay, Reason::Lost));
    }

    #[test]
    fn what_was_dropped_waits_for_readings_after_its_death() {
        let dropped = [push("5", PushState::Dead, Class::Absent, 1)];
        let check = |before: i64, last: i64, expected: (Verdict, Reason)| {
            let mut halves = halves("5", &dropped, "0", 2);
            let (read_before, read_at) = (Some(at(before)), at(last));
            halves.summary = halves.summary.map(|s| Summary { read_before, read_at, ..s });
            assert_eq!(judge(&halves, 41), expected, "{before} {last}");
        };
        // It died at hour 2.
        check(0, 1, (Verdict::Waiting, Reason::Unread));
        check(1, 2, (Verdict::Waiting, Reason::Unread));
        check(2, 3, (Verdict::Waiting, Reason::Unread));
        check(1, 30, (Verdict::Waiting, Reason::Unread));
        check(3, 4, (Verdict::Replay, Reason::Dropped));
    }

    #[test]
    fn usage_on_one_side_only() {
        let nothing = Halves::new(window(), (Quantity::ZERO, 0), None, PushSums::default(), None);
        assert_eq!(judge(&nothing, 41), (Verdict::Unread, Reason::Unread));
        let mut bypassed = halves("0", &[], "3", 2);
        bypassed.uncut = false;
        assert_eq!(judge(&bypassed, 41), (Verdict::Bypass, Reason::ProviderHigher));
        let sums = PushSums::default();
        let fresh = Halves::new(window(), (Quantity::ONE, 1), None, sums, bypassed.summary);
        let fresh = Halves {
            summary: fresh.summary.map(|s| Summary { value: Quantity::ZERO, ..s }),
            ..fresh
        };
        assert_eq!(judge(&fresh, 26), (Verdict::Waiting, Reason::Uncut));
        assert_eq!(judge(&fresh, 27), (Verdict::Undecidable, Reason::Uncut));
    }

    #[test]
    fn digits_are_counted_on_both_sides_of_the_point() {
        for (text, expected) in [("0", 0), ("5", 1), ("120", 3), ("1.25", 3), ("0.001", 3)] {
            assert_eq!(digits(quantity(text)), expected, "{text}");
        }
    }
}
