//! Cuts, by tables: what is planned, and what is refused where rows contradict each other.

use super::*;
use crate::rules::ids::MeterSlug;
use crate::rules::meter::MeterSpec;
use crate::rules::samples::{acme, quantity};
use crate::rules::timestamp::MICROS_PER_HOUR;
use std::slice::from_ref;

fn meter(spec: &str) -> Meter {
    let spec: MeterSpec = serde_json::from_str(spec).expect("valid");
    Meter { slug: MeterSlug::parse("calls").expect("valid"), spec }
}

const WINDOW: Window =
    Window { start: Timestamp::from_micros(0), end: Timestamp::from_micros(MICROS_PER_HOUR) };

const TERMS: CutTerms = CutTerms {
    at: Timestamp::from_micros(2 * MICROS_PER_HOUR),
    shadow: false,
    digits_max: 15,
    events_max: 3,
    draw_order: DrawOrder::GrantedFirst,
    outside: Outside::Push,
};

const BY_WINDOW: &str = r#"{"aggregation":"sum","billing":{"scale":0}}"#;
const BY_EVENT: &str = r#"{"aggregation":"sum","billing":{"granularity":"event","scale":0}}"#;

/// A window that was cut once, with one push of 5, and half a unit carried.
struct Ground {
    tenant: TenantId,
    meter: Meter,
    state: CutState,
    prior: PriorPushes,
    remainder: Quantity,
    window: Window,
    begins: PushState,
    terms: CutTerms,
    attribution: Attribution,
}

impl Ground {
    fn new(spec: &str) -> Self {
        let (five, half) = (quantity("5"), quantity("0.5"));
        let new = CutState::new(false);
        Self {
            tenant: acme(),
            meter: meter(spec),
            state: CutState { count: 2, total: quantity("5.5"), planned: five, revision: 1, ..new },
            prior: PriorPushes::All(vec![revision(1, "5")]),
            remainder: half,
            window: WINDOW,
            begins: PushState::Observed,
            terms: TERMS,
            attribution: Attribution::default(),
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            tenant_no: TenantNo(1),
            tenant: &self.tenant,
            meter_no: MeterNo(1),
            meter: &self.meter,
            billing: self.meter.spec.billing.as_ref().expect("billed"),
            window: self.window,
            state: &self.state,
            remainder: self.remainder,
            attribution: &self.attribution,
            prior: &self.prior,
            begins: self.begins,
        }
    }

    fn cut(&self, divided: &Divided, covered: &str) -> Result<Option<WindowCut>, Fault> {
        let covered = quantity(covered);
        plan_window(&self.subject(), divided, self.terms, |_: &CoverOrder| Ok(covered))
    }

    fn cut_events(&self, events: OpenEvents) -> Result<Option<WindowCut>, Fault> {
        plan_events(&self.subject(), events, self.terms, |asked: &CoverOrder| Ok(asked.covered))
    }
}

fn revision(revision: u32, value: &str) -> Revision {
    Revision {
        revision,
        mode: Mode::Delta,
        quantity: quantity(value),
        value: quantity(value),
        state: PushState::Confirmed,
        class: Class::Confirmed,
        attempts: 1,
        stamped_at: WINDOW.middle(),
        created_at: WINDOW.end,
    }
}

/// A window that is one charge.
fn used(count: u64, billable: &str) -> Divided {
    parts(count, &[(WINDOW, billable)])
}

/// A window of several charges.
fn parts(count: u64, charges: &[(Window, &str)]) -> Divided {
    let charge = |(stamps, billable): &(Window, &str)| ChargedUsage {
        stamps: *stamps,
        stamped_at: stamps.middle(),
        closed_at: None,
        billable: quantity(billable),
        by_subscription: BTreeMap::from([(None, quantity(billable))]),
    };
    let charges: Vec<ChargedUsage> = charges.iter().map(charge).collect();
    let mut billable = charges.iter().map(|charge| charge.billable);
    let billable = billable.try_fold(Quantity::ZERO, Quantity::checked_add).expect("fits");
    let zero = Quantity::ZERO;
    Divided { count, billable, charges, trial: zero, outside: zero }
}

fn event(id: &str, second: i64, amount: &str) -> OpenEvent {
    OpenEvent {
        id: EventId::parse(id).expect("valid"),
        occurred_at: Timestamp::from_micros(second * 1_000_000),
        quantity: quantity(amount),
        subscription: None,
        trial: false,
    }
}

fn open(seen: u64, unfinished: bool, due: Vec<OpenEvent>) -> OpenEvents {
    OpenEvents { seen, due, unfinished }
}

#[test]
fn a_window_is_cut_on_top_of_what_was_pushed() {
    let ground = Ground::new(BY_WINDOW);
    assert_eq!(ground.cut(&used(2, "5.5"), "0").expect("sound"), None, "it has not changed");
    let cut = ground.cut(&used(3, "8.75"), "0").expect("sound").expect("it has changed");
    assert_eq!((cut.state.count, cut.state.planned), (3, quantity("8")));
    assert_eq!(cut.remainder, quantity("0.75"));
    let [push] = cut.pushes.as_slice() else { panic!("one push") };
    assert_eq!((push.planned.revision, push.planned.value), (2, quantity("3")));
    assert_eq!((push.state, push.class, push.shadow), (PushState::Observed, Class::Cut, false));
    assert_eq!(push.subscriptions, r#"{"":"8.75"}"#);
    let covered = ground.cut(&used(3, "8.75"), "3").expect("sound").expect("it has changed");
    assert_eq!((covered.pushes, covered.state.covered), (Vec::new(), quantity("3")));
}

#[test]
fn a_window_that_waits_for_the_other_mode_is_only_followed() {
    let mut ground = Ground::new(BY_WINDOW);
    ground.terms.shadow = true;
    let refuse = |_: &CoverOrder| -> Result<Quantity, Fault> { panic!("nothing is covered") };
    let cut = plan_window(&ground.subject(), &used(3, "8.75"), ground.terms, refuse);
    let cut = cut.expect("sound").expect("it has changed");
    assert_eq!((cut.pushes, cut.remainder), (Vec::new(), quantity("3.75")));
    assert!(!cut.state.shadow, "the first cut has decided");
}

#[test]
fn events_are_counted_as_they_are_cut() {
    let ground = Ground { prior: PriorPushes::Last(1), ..Ground::new(BY_EVENT) };
    let check = |events: OpenEvents, expected: (u64, &[&str], &[&str])| {
        let cut = ground.cut_events(events.clone()).expect("sound").expect("it changes");
        let values = cut.pushes.iter().map(|push| push.planned.value.to_string());
        let carried: Vec<&str> = cut.carried.iter().map(EventId::as_str).collect();
        let found = (cut.state.count, values.collect::<Vec<_>>(), carried);
        let (count, values, carried) = expected;
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        assert_eq!(found, (count, values, carried.to_vec()), "{events:?}");
    };
    let due = vec![event("a", 1, "0.2"), event("b", 2, "0.4")];
    // The window has 9 events, of which some are trials: they count with the last event.
    check(open(9, true, due.clone()), (4, &["1"], &["a"]));
    check(open(9, false, due), (9, &["1"], &["a"]));
    check(open(9, false, Vec::new()), (9, &[], &[]));
    // Another call was further than this one's reader.
    let fewer = ground.cut_events(open(1, false, Vec::new())).expect("sound");
    assert_eq!(fewer, None);
}

/// The first and the second half of the window.
const HALVES: [Window; 2] = [
    Window { end: Timestamp::from_micros(MICROS_PER_HOUR / 2), ..WINDOW },
    Window { start: Timestamp::from_micros(MICROS_PER_HOUR / 2), ..WINDOW },
];

#[test]
fn each_part_of_a_window_is_pushed_what_its_pushes_do_not_say() {
    let check = |prior: &[(u32, &str, Window)], now: [&str; 2], expected: &[(&str, i64)]| {
        let revisions = prior.iter().map(|(number, value, stamps)| Revision {
            stamped_at: stamps.middle(),
            ..revision(*number, value)
        });
        let ground = Ground {
            prior: PriorPushes::All(revisions.collect()),
            remainder: Quantity::ZERO,
            ..Ground::new(BY_WINDOW)
        };
        let mut ground = ground;
        ground.state.total = quantity("5");
        let last = prior.last().map_or(0, |(number, ..)| *number);
        ground.state.revision = last;
        let divided = parts(3, &[(HALVES[0], now[0]), (HALVES[1], now[1])]);
        let cut = ground.cut(&divided, "0").expect("sound").expect("it has changed");
        let pushes = cut.pushes.iter();
        let pushes = pushes.map(|p| (p.planned.value.to_string(), p.stamped_at.micros()));
        let own = |(value, at): &(&str, i64)| ((*value).to_owned(), at * 60_000_000);
        let expected: Vec<_> = expected.iter().map(own).collect();
        assert_eq!(pushes.collect::<Vec<_>>(), expected, "{prior:?} {now:?}");
        let sum = quantity(now[0]).checked_add(quantity(now[1])).expect("fits");
        assert_eq!(cut.state.planned.checked_add(cut.remainder), Some(sum));
        let revisions: Vec<u32> = cut.pushes.iter().map(|p| p.planned.revision).collect();
        let next = u32::try_from(cut.pushes.len()).expect("few");
        assert_eq!(revisions, (last + 1..=last + next).collect::<Vec<_>>());
    };
    // Pushed as a whole before the border was known: less here, more there.
    check(&[(1, "5", HALVES[0])], ["3", "2"], &[("-2", 15), ("2", 45)]);
    check(&[(1, "5", HALVES[0])], ["5", "2"], &[("2", 45)]);
    check(&[(1, "3", HALVES[0]), (2, "2", HALVES[1])], ["4", "2"], &[("1", 15)]);
    check(&[(1, "3", HALVES[0]), (2, "2", HALVES[1])], ["0", "9"], &[("-3", 15), ("7", 45)]);
    // Digits that the provider does not hold are carried by the last part with usage.
    check(&[(1, "5", HALVES[0])], ["5.5", "2.75"], &[("3", 45)]);
}

#[test]
fn what_was_invoiced_is_not_billed_again_on_the_other_side() {
    let hour = |number: i64| Timestamp::from_micros(number * MICROS_PER_HOUR);
    let check = |created: i64, now: [&str; 2], covered: &str, expected: &[(&str, i64)]| {
        let mut ground = Ground::new(BY_WINDOW);
        let first = Revision { stamped_at: HALVES[0].middle(), ..revision(1, "10") };
        let first = Revision { created_at: hour(created), ..first };
        ground.prior = PriorPushes::All(vec![first]);
        ground.state.total = quantity("10");
        (ground.state.planned, ground.remainder) = (quantity("10"), Quantity::ZERO);
        ground.terms.at = hour(9);
        let mut divided = parts(3, &[(HALVES[0], now[0]), (HALVES[1], now[1])]);
        divided.charges[0].closed_at = Some(hour(5));
        let cut = ground.cut(&divided, covered).expect("sound").expect("it has changed");
        let pushes = cut.pushes.iter();
        let pushes = pushes.map(|p| (p.planned.value.to_string(), p.stamped_at.micros()));
        let own = |(value, at): &(&str, i64)| ((*value).to_owned(), at * 60_000_000);
        assert_eq!(pushes.collect::<Vec<_>>(), expected.iter().map(own).collect::<Vec<_>>());
    };
    // Ten were invoiced on the first side: only what is more than that is billed.
    check(2, ["7", "4"], "0", &[("1", 45)]);
    check(2, ["12", "4"], "0", &[("2", 15), ("4", 45)]);
    // They came after the invoice was fixed, so they are on none.
    check(6, ["7", "4"], "0", &[("-3", 15), ("4", 45)]);
    // Credits that came later cover what is not invoiced.
    check(2, ["10", "2"], "1", &[("1", 45)]);
}

#[test]
fn a_window_that_is_open_is_stamped_before_the_cut() {
    let check = |minutes: i64, expected_seconds: &[i64]| {
        let mut ground = Ground::new(BY_WINDOW);
        ground.prior = PriorPushes::All(Vec::new());
        (ground.state, ground.remainder) = (CutState::new(false), Quantity::ZERO);
        ground.terms.at = Timestamp::from_micros(minutes * 60_000_000 + 500_000);
        let divided = parts(3, &[(HALVES[0], "4"), (HALVES[1], "6")]);
        let cut = ground.cut(&divided, "0").expect("sound").expect("it has changed");
        let stamps = cut.pushes.iter().map(|push| push.stamped_at.micros() / 1_000_000);
        assert_eq!(stamps.collect::<Vec<_>>(), expected_seconds, "cut at minute {minutes}");
    };
    check(120, &[900, 2_700]);
    check(40, &[900, 2_400]);
    // The clock of the producer is ahead: the part that it uses has only begun.
    check(29, &[900, 1_801]);
    check(10, &[600, 1_801]);
}

#[test]
fn credits_cover_the_oldest_part_first() {
    let ground = Ground { remainder: Quantity::ZERO, ..Ground::new(BY_WINDOW) };
    let mut ground = ground;
    (ground.state, ground.prior) = (CutState::new(false), PriorPushes::All(Vec::new()));
    let divided = parts(3, &[(HALVES[0], "4"), (HALVES[1], "6")]);
    let check = |covered: &str, expected: &[(&str, i64)]| {
        let cut = ground.cut(&divided, covered).expect("sound").expect("it has changed");
        let pushes = cut.pushes.iter();
        let pushes = pushes.map(|p| (p.planned.value.to_string(), p.stamped_at.micros()));
        let own = |(value, at): &(&str, i64)| ((*value).to_owned(), at * 60_000_000);
        assert_eq!(pushes.collect::<Vec<_>>(), expected.iter().map(own).collect::<Vec<_>>());
    };
    check("0", &[("4", 15), ("6", 45)]);
    check("3", &[("1", 15), ("6", 45)]);
    check("7", &[("3", 45)]);
    check("10", &[]);
}

#[test]
fn events_of_a_trial_and_those_held_are_set_aside() {
    use crate::rules::attribution::tests::{ended, trial};
    let life = [trial("sub_1", 10, 20), ended("sub_1", 50)];
    let due = [("a", 300, "1"), ("b", 900, "20"), ("c", 1_500, "300"), ("d", 3_300, "4000")];
    let due: Vec<OpenEvent> = due.iter().map(|(id, at, n)| event(id, *at, n)).collect();
    let check = |outside: Outside, values: &[&str], carried: &[&str], held: &str| {
        let mut ground = Ground { prior: PriorPushes::Last(0), ..Ground::new(BY_EVENT) };
        (ground.state, ground.remainder) = (CutState::new(false), Quantity::ZERO);
        ground.attribution = Attribution::new(&[], &life);
        (ground.terms.outside, ground.terms.events_max) = (outside, 9);
        let cut = ground.cut_events(open(4, false, due.clone())).expect("sound").expect("changes");
        let found = cut.pushes.iter().map(|push| push.planned.value.to_string());
        assert_eq!(found.collect::<Vec<_>>(), values);
        assert_eq!(cut.carried.iter().map(EventId::as_str).collect::<Vec<_>>(), carried);
        assert_eq!((cut.state.trial, cut.state.outside), (quantity("20"), quantity(held)));
    };
    check(Outside::Push, &["1", "300", "4000"], &["b"], "0");
    check(Outside::Hold, &["300"], &["a", "b", "d"], "4001");
}

/// Changes rows of a sound window so that they contradict, and checks the fact that is named.
fn refused(change: impl FnOnce(&mut Ground), divided: Divided, covered: &str, fact: &str) {
    let mut ground = Ground::new(BY_WINDOW);
    change(&mut ground);
    let fault = ground.cut(&divided, covered).expect_err(fact);
    assert_eq!(fault.fact, fact);
    let whose = "tenant=acme meter=calls window=1970-01-01T00:00:00Z..";
    assert!(fault.ids.starts_with(whose), "{fault}");
}

fn more() -> Divided {
    used(3, "8")
}

#[test]
fn totals_that_contradict_are_refused_with_the_fact_and_its_ids() {
    refused(|_| {}, used(1, "8"), "0", "a window never loses events");
    refused(|_| {}, used(3, "-1"), "0", "usage of a meter without a sign is not negative");
    refused(|_| {}, more(), "9", "credits cover no more than was used");
    refused(|_| {}, more(), "-1", "credits cover no negative usage");
    let mut apart = more();
    apart.charges[0].by_subscription.clear();
    let fact = "the totals of subscriptions make the total of their charge";
    refused(|_| {}, apart, "0", fact);
    let apart = Divided { billable: quantity("9"), ..more() };
    refused(|_| {}, apart, "0", "the charges of a window make its total");
    let none = Divided { billable: Quantity::ZERO, charges: Vec::new(), ..more() };
    refused(|_| {}, none, "0", "a window has a charge");
    let fact = "a window that is cut is one that its meter is billed by";
    refused(|ground| ground.window.end = Timestamp::from_micros(60_000_000), more(), "0", fact);
    let fact = "events that are billed one by one are cut before their window";
    refused(|ground| ground.meter = meter(BY_EVENT), more(), "0", fact);
    let fact = "only sums and counts are billed";
    refused(|ground| ground.meter.spec.aggregation = Aggregation::Max, more(), "0", fact);
    let fact = "a count is not above the number of its events";
    refused(|ground| ground.meter.spec.aggregation = Aggregation::Count, more(), "0", fact);
    let fact = "a total can be held exactly";
    refused(|ground| ground.remainder = Quantity::from_units(i128::MAX), more(), "0", fact);
}

#[test]
fn pushes_that_contradict_their_window_are_refused() {
    let begun = |n, q| Revision { state: PushState::Observed, ..revision(n, q) };
    let absolute = Revision { mode: Mode::Absolute, ..revision(1, "5") };
    for (prior, fact) in [
        (vec![], "a window's revision is that of its last push"),
        (vec![revision(1, "4")], "what was planned for a window is the sum of its pushes"),
        (vec![revision(1, "2"), revision(1, "3")], "revisions of a window ascend"),
        (vec![absolute], "pushes of a window have the mode of their meter"),
        (vec![begun(1, "2"), begun(2, "3")], "at most one push of a window is unresolved"),
    ] {
        refused(|ground| ground.prior = PriorPushes::All(prior), more(), "0", fact);
    }
    let fact = "a push begins as observed or waiting";
    refused(|ground| ground.begins = PushState::Submitted, more(), "0", fact);
    for (last, fact) in [
        (0, "a window without pushes has nothing planned"),
        (u32::MAX, "a window has a next revision"),
    ] {
        let change = |ground: &mut Ground| {
            (ground.state.revision, ground.prior) = (last, PriorPushes::Last(last));
        };
        refused(change, more(), "0", fact);
    }
}

#[test]
fn pushes_that_never_counted_are_no_part_of_what_was_planned() {
    let replaced = |class| Revision { state: PushState::Replaced, class, ..revision(2, "7") };
    let check = |class: Class, planned: &str| {
        let prior = PriorPushes::All(vec![revision(1, "5"), replaced(class)]);
        let (last, sum) = prior.add_up(Mode::Delta).expect("sound");
        assert_eq!((last, sum), (2, Some(quantity(planned))), "{class:?}");
    };
    check(Class::Retried, "5");
    check(Class::Absent, "5");
    check(Class::Adopted, "5");
    check(Class::NotSent, "12");
}

#[test]
fn events_that_contradict_are_refused() {
    let check = |change: fn(&mut Ground), due: &[OpenEvent], fact: &str| {
        let mut ground = Ground { prior: PriorPushes::Last(1), ..Ground::new(BY_EVENT) };
        change(&mut ground);
        let fault = ground.cut_events(open(9, false, due.to_vec())).expect_err(fact);
        assert_eq!(fault.fact, fact);
    };
    let one = event("a", 1, "1");
    check(|_| {}, &[one.clone(), one.clone()], "an event is cut once");
    let trial = OpenEvent { trial: true, ..one.clone() };
    check(|_| {}, &[trial], "usage of a trial is never billed");
    let fact = "an event is cut with the window that it occurred in";
    check(|_| {}, &[event("a", 3_600, "1")], fact);
    let fact = "events are cut from the oldest on";
    check(|_| {}, &[event("a", 2, "1"), event("b", 1, "1")], fact);
    let fact = "a call cuts no more events than its terms allow";
    check(|_| {}, &["a", "b", "c", "d"].map(|id| event(id, 1, "1")), fact);
    let fact = "usage of a meter without a sign is not negative";
    check(|_| {}, &[event("a", 1, "-1")], fact);
    let fact = "only a meter billed by event is cut by event";
    check(|ground| ground.meter = meter(BY_WINDOW), from_ref(&one), fact);
    let fact = "only sums and counts are billed";
    check(|ground| ground.meter.spec.aggregation = Aggregation::Latest, from_ref(&one), fact);
    let fact = "a window's revision is that of its last push";
    check(|ground| ground.prior = PriorPushes::Last(2), &[one], fact);
}
