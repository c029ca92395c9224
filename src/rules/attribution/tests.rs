//! Attribution, by tables: how moments are billed, how windows are divided and stamped, and what a
//! timeline that is learnt later changes; and by a property, that no usage is lost or doubled.

use super::*;
use crate::rules::ids::CustomerId;
use crate::rules::samples::{minute, quantity};
use crate::rules::subscription::{Origin, Subscription};
use crate::rules::timestamp::MICROS_PER_HOUR;
use proptest::prelude::*;

fn id(id: &str) -> SubscriptionId {
    SubscriptionId::parse(id).expect("valid")
}

fn window(start: i64, end: i64) -> Window {
    Window { start: minute(start), end: minute(end) }
}

const HOUR: Window =
    Window { start: Timestamp::from_micros(0), end: Timestamp::from_micros(MICROS_PER_HOUR) };

/// A state of a subscription, from some minute on.
fn entry(name: &str, from: i64, change: impl FnOnce(&mut Subscription)) -> TimelineEntry {
    let mut state = Subscription {
        customer: CustomerId::parse("cus_1").expect("valid"),
        status: "active".into(),
        prices: vec!["price_1".into()],
        period: None,
        trial: None,
        cancel_at_period_end: false,
        ended_at: None,
    };
    change(&mut state);
    let origin = if state.ended_at.is_some() { Origin::Ended } else { Origin::Created };
    TimelineEntry { subscription: id(name), at: minute(from), origin, version: 0, state }
}

fn plain(name: &str, from: i64) -> TimelineEntry {
    entry(name, from, |_| {})
}

pub fn trial(name: &str, from: i64, until: i64) -> TimelineEntry {
    entry(name, from, |state| state.trial = Some(window(from, until)))
}

pub fn ended(name: &str, at: i64) -> TimelineEntry {
    entry(name, at, |state| state.ended_at = Some(minute(at)))
}

fn of(timeline: &[TimelineEntry]) -> Attribution {
    Attribution::new(&[], timeline)
}

/// The charges of a window: where each begins and where it is stamped, in minutes and seconds.
fn charges(attribution: &Attribution, window: Window) -> Vec<(String, String)> {
    let clock = |at: Timestamp| at.to_string()[11..19].to_owned();
    let charges = attribution.divide(window, false).charges;
    charges.iter().map(|one| (clock(one.stamps.start), clock(one.stamped_at))).collect()
}

#[test]
fn usage_is_billed_by_what_was_in_force_when_it_happened() {
    let both = [plain("sub_1", 10), trial("sub_2", 20, 40), ended("sub_2", 50), ended("sub_1", 55)];
    let one = [trial("sub_1", 10, 40), ended("sub_1", 50)];
    let check = |timeline: &[TimelineEntry], at: i64, own: Option<&str>, expected| {
        let (treatment, subscription) = of(timeline).treat(minute(at), own);
        let found = (treatment, subscription.as_deref());
        assert_eq!(found, expected, "minute {at}, own {own:?}");
    };
    let (charged, in_trial, outside) = (Treatment::Charged, Treatment::Trial, Treatment::Outside);
    check(&[], 30, None, (outside, None));
    check(&one, 9, None, (outside, None));
    check(&one, 10, None, (in_trial, Some("sub_1")));
    check(&one, 39, None, (in_trial, Some("sub_1")));
    check(&one, 40, None, (charged, Some("sub_1")));
    check(&one, 50, None, (outside, None));
    // A customer that pays for one of its subscriptions pays for its usage.
    check(&both, 30, None, (charged, Some("sub_1")));
    check(&both, 45, None, (charged, Some("sub_2")));
    check(&both, 52, None, (charged, Some("sub_1")));
    // What the producer says wins, also where it names a subscription that nobody knows.
    check(&both, 30, Some("sub_2"), (in_trial, Some("sub_2")));
    check(&both, 45, Some("sub_1"), (charged, Some("sub_1")));
    check(&[], 30, Some("mine"), (charged, Some("mine")));
}

#[test]
fn a_window_is_divided_where_the_provider_charges_otherwise() {
    let check = |timeline: &[TimelineEntry], expected: &[(&str, &str)]| {
        let own = |(start, stamp): &(&str, &str)| ((*start).to_owned(), (*stamp).to_owned());
        let expected: Vec<_> = expected.iter().map(own).collect();
        assert_eq!(charges(&of(timeline), HOUR), expected, "{timeline:?}");
    };
    check(&[], &[("00:00:00", "00:30:00")]);
    check(&[plain("sub_1", -60)], &[("00:00:00", "00:30:00")]);
    // A subscription begins or ends inside.
    check(&[plain("sub_1", 40)], &[("00:00:00", "00:20:00"), ("00:40:00", "00:50:00")]);
    let ends = [plain("sub_1", -60), ended("sub_1", 20)];
    check(&ends, &[("00:00:00", "00:10:00"), ("00:20:00", "00:40:00")]);
    // A trial ends, then a period, then the prices change.
    check(&[trial("sub_1", -60, 30)], &[("00:00:00", "00:15:00"), ("00:30:00", "00:45:00")]);
    let period = entry("sub_1", -60, |state| state.period = Some(window(-60, 15)));
    check(&[period], &[("00:00:00", "00:07:30"), ("00:15:00", "00:37:30")]);
    let dearer = entry("sub_1", 45, |state| state.prices = vec!["price_2".into()]);
    check(&[plain("sub_1", -60), dearer], &[("00:00:00", "00:22:30"), ("00:45:00", "00:52:30")]);
    // At the edges of the window nothing is divided.
    check(&[plain("sub_1", 0), ended("sub_1", 60)], &[("00:00:00", "00:30:00")]);
}

#[test]
fn a_part_without_room_for_a_stamp_belongs_to_its_neighbour() {
    let micros = |name: &str, micros: i64| TimelineEntry {
        at: Timestamp::from_micros(micros),
        ..plain(name, 0)
    };
    // Half a second after the start there is no whole second before; one before the end none after.
    for at in [500_000, 1_000_000, MICROS_PER_HOUR - 1_000_000] {
        let layout = of(&[micros("sub_1", at)]).divide(HOUR, false);
        assert_eq!(layout.charges.len(), 1, "{at}");
        assert!(layout.needs_events(), "usage outside is still set apart");
    }
    assert_eq!(of(&[micros("sub_1", 2_000_000)]).divide(HOUR, false).charges.len(), 2);
}

#[test]
fn a_window_that_is_billed_by_one_total_is_one_charge() {
    let attribution = of(&[trial("sub_1", -60, 30)]);
    let layout = attribution.divide(HOUR, true);
    assert_eq!((layout.stretches.len(), layout.charges.len()), (2, 1));
    // Stamped where it is charged, after the trial.
    assert_eq!(layout.charges[0].stamps, HOUR);
    assert_eq!(layout.charges[0].stamped_at, minute(30).saturating_add_micros(1_000_000));
    assert!(layout.needs_events());
}

#[test]
fn a_charge_is_closed_an_hour_after_its_period_ends() {
    let period = |from: i64, until: i64| {
        entry("sub_1", from, |state| state.period = Some(window(from, until)))
    };
    let check = |timeline: &[TimelineEntry], expected: &[Option<i64>]| {
        let closed = of(timeline).divide(HOUR, false).charges;
        let closed: Vec<_> = closed.iter().map(|charge| charge.closed_at).collect();
        let expected: Vec<_> = expected.iter().map(|at| at.map(minute)).collect();
        assert_eq!(closed, expected, "{timeline:?}");
    };
    check(&[plain("sub_1", -60)], &[None]);
    check(&[period(-60, 20)], &[Some(80), None]);
    check(&[period(-60, 20), period(20, 500)], &[Some(80), Some(560)]);
    // Usage of a trial is on no invoice, so there is nothing to bill twice.
    let in_trial = entry("sub_1", -60, |state| {
        (state.trial, state.period) = (Some(window(-60, 20)), Some(window(-60, 20)));
    });
    check(&[in_trial], &[None, None]);
}

#[test]
fn only_windows_in_which_something_changes_need_their_events() {
    let check = |timeline: &[TimelineEntry], expected: bool| {
        assert_eq!(of(timeline).divide(HOUR, false).needs_events(), expected, "{timeline:?}");
    };
    check(&[], false);
    check(&[plain("sub_1", -60)], false);
    check(&[trial("sub_1", -60, 90)], false);
    check(&[plain("sub_1", 0)], false);
    check(&[plain("sub_1", 60)], false);
    check(&[plain("sub_1", 1)], true);
}

#[test]
fn usage_outside_is_pushed_or_held() {
    let layout = of(&[trial("sub_1", 10, 20), ended("sub_1", 50)]).divide(HOUR, false);
    // Before, in the trial, charged, after.
    let used = ["1", "20", "300", "4000"];
    let usage: Vec<_> =
        used.iter().map(|text| StampedUsage::from([(None, quantity(text))])).collect();
    let check = |outside: Outside, billable: &str, held: &str, by_charge: &[&str]| {
        let divided = layout.attribute(&usage, 4, outside).expect("sound");
        assert_eq!(divided.count, 4);
        assert_eq!(divided.billable, quantity(billable));
        assert_eq!((divided.trial, divided.outside), (quantity("20"), quantity(held)));
        let found = divided.charges.iter().map(|charge| charge.billable.to_string());
        assert_eq!(found.collect::<Vec<_>>(), by_charge);
    };
    check(Outside::Push, "4301", "0", &["1", "0", "300", "4000"]);
    check(Outside::Hold, "300", "4001", &["0", "0", "300", "0"]);
    let unknown = layout.attribute(&usage[..1], 4, Outside::Push).expect_err("stretches miss");
    assert_eq!(unknown.fact, "the usage of each stretch is known");
}

#[test]
fn a_timeline_that_is_learnt_later_names_the_time_that_it_divides_otherwise() {
    let within = window(-1_000, 1_000);
    let check = |before: &[TimelineEntry], after: &[TimelineEntry], expected: Option<Window>| {
        let found = of(after).differs_from(&of(before), within);
        assert_eq!(found, expected, "{before:?} {after:?}");
    };
    let began = plain("sub_1", 10);
    let again = TimelineEntry { version: 7, origin: Origin::Read, ..plain("sub_1", 90) };
    check(&[], std::slice::from_ref(&began), Some(window(10, 1_000)));
    check(std::slice::from_ref(&began), std::slice::from_ref(&began), None);
    // It is read again, and nothing has changed.
    check(std::slice::from_ref(&began), &[began.clone(), again], None);
    let end = [began.clone(), ended("sub_1", 200)];
    check(std::slice::from_ref(&began), &end, Some(window(200, 1_000)));
    let (short, long) = ([trial("sub_1", 10, 40)], [trial("sub_1", 10, 70)]);
    check(&short, &long, Some(window(40, 1_000)));
    // What lies before the time that is asked about is no difference.
    check(&[], &[plain("sub_1", -5_000), ended("sub_1", -4_000)], None);
}

#[test]
fn sums_of_stretches_add_up_wherever_they_were_made() {
    let layout = of(&[plain("sub_1", 20)]).divide(HOUR, false);
    let event = |at: i64, text: &str, trial: bool| SummedEvent {
        occurred_at: minute(at),
        quantity: quantity(text),
        subscription: None,
        trial,
    };
    let (mut sums, mut other) = (StretchSums::new(&layout), StretchSums::new(&layout));
    for (at, text, trial) in [(0, "1", false), (19, "20", false), (20, "300", false)] {
        sums.add(&layout, event(at, text, trial)).expect("fits");
    }
    other.add(&layout, event(59, "4000", false)).expect("fits");
    other.add(&layout, event(5, "50000", true)).expect("fits");
    sums.merge(other).expect("fits");
    let expected = ["21", "4300"].map(|text| StampedUsage::from([(None, quantity(text))]));
    assert_eq!((sums.count, sums.by_stretch), (5, expected.to_vec()));
}

/// A life of a subscription: when it began, how long its trial and itself lasted, and when a period
/// ended.
type Life = (i64, i64, i64, i64);

fn lives(lives: &[Life]) -> Vec<TimelineEntry> {
    let mut timeline = Vec::new();
    for (place, (began, in_trial, lasted, period)) in lives.iter().enumerate() {
        let name = format!("sub_{place}");
        let life = |state: &mut Subscription| {
            state.trial = (*in_trial > 0).then(|| window(*began, began + in_trial));
            state.period = Some(window(*began, began + period));
        };
        timeline.push(entry(&name, *began, life));
        timeline.push(ended(&name, began + lasted));
    }
    timeline
}

proptest! {
    /// Whatever lies in a window: its parts fill it, each stamp lies strictly inside its part, and
    /// all usage is in exactly one of a charge, a trial, outside.
    #[test]
    fn no_usage_is_lost_or_doubled(
        some in proptest::collection::vec((-90..90i64, 0..90i64, 1..200i64, 1..90i64), 0..4),
        events in proptest::collection::vec((0..3_600i64, 1..1_000i64), 0..20),
        hold in any::<bool>(),
        one_charge in any::<bool>(),
    ) {
        let attribution = of(&lives(&some));
        let layout = attribution.divide(HOUR, one_charge);
        let filled = |parts: Vec<Window>| {
            parts[0].start == HOUR.start
                && parts[parts.len() - 1].end == HOUR.end
                && parts.windows(2).all(|pair| pair[0].end == pair[1].start)
        };
        prop_assert!(filled(layout.stretches.iter().map(|one| one.during).collect()));
        prop_assert!(filled(layout.charges.iter().map(|one| one.stamps).collect()));
        for charge in &layout.charges {
            let Window { start, end } = charge.stamps;
            prop_assert!(start < charge.stamped_at && charge.stamped_at < end);
        }
        let mut sums = StretchSums::new(&layout);
        let mut expected = BTreeMap::new();
        for (second, units) in &events {
            let occurred_at = Timestamp::from_micros(second * MICROS_PER_SECOND);
            let quantity = Quantity::from_units(i128::from(*units));
            let event = SummedEvent { occurred_at, quantity, subscription: None, trial: false };
            sums.add(&layout, event).expect("fits");
            let treatment = attribution.treat(occurred_at, None).0;
            *expected.entry(format!("{treatment:?}")).or_insert(0i128) += i128::from(*units);
        }
        let outside = if hold { Outside::Hold } else { Outside::Push };
        let divided = layout.attribute(&sums.by_stretch, sums.count, outside).expect("sound");
        let of_kind = |kind: &str| expected.get(kind).copied().unwrap_or(0);
        let (charged, apart) = (of_kind("Charged"), of_kind("Outside"));
        let billed = if hold { charged } else { charged + apart };
        prop_assert_eq!(divided.billable.units(), billed);
        prop_assert_eq!(divided.trial.units(), of_kind("Trial"));
        prop_assert_eq!(divided.outside.units(), if hold { apart } else { 0 });
        let charges = divided.charges.iter().map(|charge| charge.billable.units());
        prop_assert_eq!(charges.sum::<i128>(), billed);
    }

    /// Where two timelines do not differ, they bill every moment alike.
    #[test]
    fn what_does_not_differ_is_billed_alike(
        before in proptest::collection::vec((-90..90i64, 0..90i64, 1..200i64, 1..90i64), 0..3),
        after in proptest::collection::vec((-90..90i64, 0..90i64, 1..200i64, 1..90i64), 0..3),
        at in -3_600..3_600i64,
    ) {
        let (before, after) = (of(&lives(&before)), of(&lives(&after)));
        let within = window(-60, 60);
        let at = Timestamp::from_micros(at * MICROS_PER_SECOND);
        let differing = after.differs_from(&before, within);
        if differing.is_none_or(|range| !range.contains(at)) {
            prop_assert_eq!(before.treat(at, None), after.treat(at, None));
        }
    }
}
