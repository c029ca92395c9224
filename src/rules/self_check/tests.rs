//! Slices, walks, samples and what is due, in tables and properties. Nothing is stored.

use super::*;
use crate::rules::meter::{Meter, MeterSpec};
use proptest::prelude::*;
use std::sync::Arc;

const HOUR: i64 = MICROS_PER_HOUR;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn catalog(buckets: &[&str]) -> Catalog {
    let mut catalog = Catalog::default();
    for (number, bucket) in (1..).zip(buckets) {
        let spec = format!(r#"{{"aggregation":"sum","bucket":"{bucket}"}}"#);
        let spec: MeterSpec = serde_json::from_str(&spec).expect("well-formed");
        let slug = crate::rules::ids::MeterSlug::parse(&format!("m{number}")).expect("valid");
        let meter = Meter::declare(slug, spec).expect("valid");
        catalog.insert(MeterNo(number), Arc::new(meter));
    }
    catalog
}

/// Follows slices from the start to the end: nothing between them, nothing twice.
fn follow(slices: &[Slice]) -> Result<(), TestCaseError> {
    let mut place = Some(Place::START);
    for slice in slices {
        prop_assert!(place.is_some(), "nothing follows the end");
        let first = Place { tenant: slice.first.0, at: slice.times.start.micros() };
        prop_assert_eq!(Some(first), place);
        prop_assert!(slice.is_whole() || slice.first == slice.last);
        place = slice.after();
    }
    prop_assert_eq!(place, None);
    Ok(())
}

proptest! {
    #[test]
    fn slices_cover_all_tenants_and_times_once(
        tenants in prop::collection::btree_map(0..500u32, 0..SLICE_EVENTS * 3, 0..60),
        hours in prop::collection::btree_map(0..100i64, 1..SLICE_EVENTS * 2, 0..40),
    ) {
        let mut cutter = TenantCutter::starting(TenantNo(0));
        let mut slices = Vec::new();
        for (tenant, events) in tenants {
            let (ended, alone) = cutter.push(TenantNo(tenant), events);
            slices.extend(ended);
            if alone {
                let hours = hours.iter().map(|(hour, count)| (at(hour * HOUR), *count));
                let times = cut_times(TenantNo(tenant), START, hours);
                prop_assert!(times.iter().rev().skip(1).all(|slice| !slice.counters));
                prop_assert!(times.last().is_some_and(|slice| slice.counters));
                slices.extend(times);
            }
        }
        slices.extend(cutter.finish());
        follow(&slices)?;
    }

    #[test]
    fn parts_of_a_slice_are_all_of_it(first in 0..40u32, more in 0..40u32, bad in 0..80u32) {
        let (catalog, last) = (catalog(&["1h", "1d"]), first + more);
        let mut parts = Parts::of(Slice::of_tenants(TenantNo(first), TenantNo(last)));
        let (mut read, mut unread) = (Vec::new(), Vec::new());
        while let Some(part) = parts.pop() {
            let meter = part.meter.is_none_or(|meter| meter == MeterNo(2));
            if (part.first.0..=part.last.0).contains(&bad) && meter {
                if !parts.split(part, &catalog, TenantNo(79)) {
                    unread.push(part);
                }
            } else if part.meter.is_none() {
                read.extend(part.first.0..=part.last.0);
            } else {
                prop_assert_eq!(part.first.0, bad);
            }
        }
        let all: Vec<u32> = (first..=last).filter(|tenant| *tenant != bad).collect();
        prop_assert_eq!(read, all);
        if (first..=last).contains(&bad) {
            prop_assert_eq!(unread.len(), 1, "one meter of one tenant");
            let shown = unread[0].describe(Some("acme"), &catalog);
            prop_assert_eq!(shown, "tenant acme, meter m2");
        }
    }
}

#[test]
fn borders_between_times_cut_no_bucket() {
    assert_eq!(border_grain(&catalog(&[])), HOUR);
    assert_eq!(border_grain(&catalog(&["1m", "1h"])), HOUR);
    assert_eq!(border_grain(&catalog(&["1m", "1d"])), MICROS_PER_DAY);
    assert_eq!(grain_start(at(MICROS_PER_DAY + 5), MICROS_PER_DAY), at(MICROS_PER_DAY));
    assert_eq!(grain_start(START, HOUR), START);
}

#[test]
fn a_slice_has_the_windows_that_it_compares() {
    let tenant = TenantNo(3);
    let hour = Window { start: at(0), end: at(HOUR) };
    let check = |slice: Slice, meter: Option<u16>, start: i64, expected: bool| {
        assert_eq!(slice.has_window(meter.map(MeterNo), at(start)), expected, "{slice:?}");
    };
    let whole = Slice::of_tenants(tenant, tenant);
    check(whole, Some(1), -HOUR, true);
    check(whole, None, HOUR, true);
    let sampled = Slice::of_window(tenant, MeterNo(1), hour);
    check(sampled, Some(1), 0, true);
    check(sampled, Some(1), HOUR, false);
    check(sampled, Some(2), 0, false);
    check(sampled, None, 0, false);
    check(Slice::of_times(tenant, hour), Some(2), 0, true);
    check(Slice::of_times(tenant, hour), None, 0, false);
    check(Slice::of_times(tenant, Window { start: at(0), end: END }), None, 0, true);
}

#[test]
fn a_walk_is_due_each_night_and_a_sample_each_hour() {
    let schedule = Schedule { walk_hour: 2 };
    let day = |day: i64, hour: i64| at(day * MICROS_PER_DAY + hour * HOUR);
    let mut check = SelfCheck::default();
    assert_eq!(schedule.due(&check, day(9, 1)), Due::Sample);
    check.sample.at = Some(day(9, 1));
    assert_eq!(schedule.due(&check, day(9, 1)), Due::BeginWalk, "the first walk is due at once");
    check.begin_walk(day(9, 1));
    assert_eq!(schedule.due(&check, day(9, 1)), Due::Walk);
    assert_eq!(schedule.due(&check, day(9, 2)), Due::Sample);
    check.sample.at = Some(day(9, 2));
    assert_eq!(schedule.due(&check, day(9, 2)), Due::Walk, "what was begun goes on");
    let walk = check.walk.as_mut().expect("begun");
    walk.pass(&Slice::of_tenants(TenantNo(0), TenantNo(TENANTS_END)), day(9, 2));
    check.end_walk();
    assert_eq!(schedule.due(&check, day(9, 2)), Due::BeginWalk, "it began before two o'clock");
    check.begin_walk(day(9, 2));
    let walk = check.walk.as_mut().expect("begun");
    walk.pass(&Slice::of_tenants(TenantNo(0), TenantNo(TENANTS_END)), day(9, 2));
    check.end_walk();
    check.sample.at = Some(day(10, 1));
    assert_eq!(schedule.due(&check, day(10, 1)), Due::Nothing);
    check.sample.at = Some(day(10, 2));
    assert_eq!(schedule.due(&check, day(10, 2)), Due::BeginWalk);
}

#[test]
fn what_was_not_checked_is_never_shown_as_checked() {
    let day = |day: i64| at(day * MICROS_PER_DAY);
    let mut check = SelfCheck { since: Some(day(1)), ..SelfCheck::default() };
    assert_eq!(check.not_done(day(2)), None, "it has just begun");
    assert!(check.not_done(day(3)).is_some(), "no walk was completed in two days");
    let all = Slice::of_tenants(TenantNo(0), TenantNo(TENANTS_END));
    check.begin_walk(day(3));
    let unread = Unchecked { part: "tenant acme".into(), why: "a torn page".into() };
    check.walk.as_mut().expect("begun").leave_out(unread.clone());
    assert!(check.not_done(day(3)).is_some_and(|why| why.contains("tenant acme: a torn page")));
    check.walk.as_mut().expect("begun").pass(&all, day(3));
    check.end_walk();
    assert_eq!(check.complete, None);
    check.begin_walk(day(4));
    check.walk.as_mut().expect("begun").pass(&all, day(4));
    check.end_walk();
    assert_eq!(check.not_done(day(5)), None);
    assert!(check.not_done(day(6)).is_some(), "the next nights did not end");
    check.sample.unchecked.push(unread);
    assert!(check.not_done(day(4)).is_some());
}

#[test]
fn a_sample_takes_the_newest_window_and_another() {
    let bounds = (at(0), at(4 * HOUR));
    for chance in 0..20 {
        let windows = choose_windows(Bucket::Hour, bounds, chance);
        assert_eq!(windows[0], Window { start: at(4 * HOUR), end: at(5 * HOUR) });
        assert!(windows[1].start < at(4 * HOUR) && windows[1].micros() == HOUR);
    }
    assert_eq!(choose_windows(Bucket::Hour, (at(0), at(0)), 7).len(), 1);
}

#[test]
fn differences_of_one_total_are_one_mismatch() {
    let mut comparison = Comparison::new(100);
    let key = crate::rules::rollup::RollupKey {
        tenant: TenantNo(1),
        meter: MeterNo(1),
        bucket_start: at(0),
        group: crate::rules::rollup::Group::default(),
    };
    for value in ["a", "b"] {
        comparison.add_stored_value(key.clone(), value.into()).expect("fits");
    }
    assert!(!comparison.next_pass());
    let report = SliceReport::of(comparison.finish(), &catalog(&["1h"]), |_| Some("acme".into()));
    let shown: Vec<String> = report.mismatches.iter().map(ToString::to_string).collect();
    let expected = "tenant acme, meter m1, window 1970-01-01T00:00:00Z to 1970-01-01T01:00:00Z: \
                    stored is the value \"a\", the value \"b\", the events add up to no value \
                    \"a\", no value \"b\"";
    assert_eq!(shown, [expected]);
}
