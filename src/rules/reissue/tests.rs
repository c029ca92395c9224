//! Reissues, by tables: what is planned, and what is refused where rows contradict each other.

use super::*;
use crate::rules::samples::{customer, quantity};
use crate::rules::settlement::tests::{at, stored_as};

fn confirmed() -> StoredPush {
    stored_as(PushState::Confirmed, Class::Confirmed)
}

fn window() -> CutState {
    let (five, new) = (quantity("5"), CutState::new(false));
    CutState { count: 4, total: five, planned: five, revision: 2, ..new }
}

fn order() -> ReissueOrder {
    let push = confirmed().push;
    ReissueOrder {
        tenant: push.tenant,
        meter: push.meter,
        window: push.window,
        customer: customer("cus_a"),
        settled: quantity("5"),
        provider: quantity("3"),
        pass: 12,
    }
}

/// Readings that prove that the provider shows 3.
fn summary() -> Summary {
    Summary {
        window: order().window,
        value: quantity("3"),
        read_at: at(400),
        read_before: Some(at(300)),
        since: at(300),
        reads: 2,
    }
}

#[test]
fn a_reissue_is_a_pair_that_cancels_out() {
    let plan = plan_reissuing(&order(), &window(), &[confirmed()], Some(&summary()));
    let Reissuing { state, pushes: [lost, again] } = plan.expect("sound").expect("allowed");
    assert_eq!((state.revision, state.planned), (4, quantity("5")));
    let show = |push: &NewPush| {
        let (revision, value) = (push.planned.revision, push.planned.value);
        format!("{revision} {value} {} {}", push.state.name(), push.class.name())
    };
    assert_eq!(show(&lost), "3 -2 reconciled lost");
    assert_eq!(show(&again), "4 2 observed reissue");
    assert_eq!(lost.customer.map(|id| id.to_string()).as_deref(), Some("cus_a"));
    assert_eq!((again.customer, again.detail.as_deref()), (None, Some("found by pass 12")));
    let refused = plan_reissuing(&order(), &window(), &[confirmed()], None);
    let why = "the provider's total is not what the window was judged by";
    assert_eq!(refused.expect("sound"), Err(why));
}

#[test]
fn rows_that_contradict_are_not_corrected() {
    let check = |change: fn(&mut CutState, &mut Vec<StoredPush>), expected: &str| {
        let (mut state, mut pushes) = (window(), vec![confirmed()]);
        change(&mut state, &mut pushes);
        let plan = plan_reissuing(&order(), &state, &pushes, Some(&summary()));
        let fault = plan.expect_err(expected);
        assert_eq!(fault.fact, expected);
        assert!(fault.ids.starts_with("tenant=acme "), "{fault}");
    };
    let fact = "a window that is corrected has the revision of its last push";
    check(|state, _| state.revision = 3, fact);
    check(|state, _| state.shadow = true, "all pushes of a window are shadow, or none is");
    let fact = "a reissue is planned with the pushes of its window";
    check(|_, pushes| pushes[0].push.window.end = at(90), fact);
    let add_earlier = |_: &mut CutState, pushes: &mut Vec<StoredPush>| {
        let mut dead = stored_as(PushState::Dead, Class::Refused);
        (dead.push.number, dead.push.revision) = (8, 1);
        pushes.push(dead);
    };
    check(add_earlier, "pushes of a window are read by revision");
    let use_up = |state: &mut CutState, pushes: &mut Vec<StoredPush>| {
        (state.revision, pushes[0].push.revision) = (u32::MAX, u32::MAX);
    };
    check(use_up, "a window has a next revision");
    let fact = "a push is stamped strictly inside its window";
    check(|_, pushes| pushes[0].push.stamped_at = at(61), fact);
}
