//! Pushes as they are looked at: pages, counts, and windows that wait for the provider's summary.

use crate::billed::{Billed, after, quantity, window};
use crate::fixture::{Fixture, customer_id, tenant_id};
use counterfoil::rules::billing::Mode;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::window::Window;
use counterfoil::store::Query;
use counterfoil::store::push::{
    PushAges, PushCounts, PushFilter, Ruling, SubmittedWindow, UnmappedSum,
};

const REFUSED: (Class, Next) = (Class::Refused, Next::Dead);

pub async fn pages_and_filters(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    for hour in 0..4 {
        billed.planned("acme", &format!("t{hour}"), "tokens", "1", hour).await;
        billed.planned("umbrella", &format!("t{hour}"), "tokens", "1", hour).await;
        billed.planned("acme", &format!("w{hour}"), "whole", "1", hour).await;
    }
    let all: Vec<u64> = billed.pushes().await.iter().map(|push| push.number).collect();
    let claimed = billed.claim(1).await;
    assert!(billed.settle(&claimed[0], REFUSED, 1).await);
    assert!(billed.settle(&claimed[1], billed.accepted(1), 1).await);
    billed.f.restart().await;
    let check = async |query: Query<PushFilter>, places: &[usize]| {
        let found = billed.f.store.list_pushes(query).await.unwrap();
        let numbers: Vec<u64> = found.iter().map(|push| push.number).collect();
        assert_eq!(numbers, places.iter().map(|place| all[*place]).collect::<Vec<_>>());
    };
    let (any, of) = (PushFilter::default, |filter| Query::first(filter, 100));
    check(of(any()), &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]).await;
    check(Query { limit: 3, ..of(any()) }, &[11, 10, 9]).await;
    check(Query { after: Some(all[9]), limit: 3, ..of(any()) }, &[8, 7, 6]).await;
    check(Query { after: Some(all[0]), ..of(any()) }, &[]).await;
    check(of(PushFilter { tenant: Some(tenant_id("umbrella")), ..any() }), &[10, 7, 4, 1]).await;
    check(of(PushFilter { tenant: Some(tenant_id("nobody")), ..any() }), &[]).await;
    let whole = billed.f.meter_no("whole").await;
    check(of(PushFilter { meter: Some(whole), ..any() }), &[11, 8, 5, 2]).await;
    check(of(PushFilter { state: Some(PushState::Dead), ..any() }), &[0]).await;
    check(of(PushFilter { state: Some(PushState::Submitted), ..any() }), &[2]).await;
    check(of(PushFilter { class: Some(Class::Refused), ..any() }), &[0]).await;
    let range = Some(Window { start: window(1).start, end: window(3).start });
    check(of(PushFilter { range, ..any() }), &[8, 7, 6, 5, 4, 3]).await;
    let tenant = Some(tenant_id("acme"));
    let few = of(PushFilter { tenant, range, meter: Some(whole), ..any() });
    check(Query { after: Some(all[8]), ..few }, &[5]).await;
}

pub async fn counts_and_unbilled_sums(f: Fixture) {
    let mut billed = Billed::start(f).await;
    let ages = |observed: i64, submitted: i64| PushAges {
        observed_before: after(billed.f.now, observed),
        submitted_before: after(billed.f.now, submitted),
    };
    let (old, young) = (ages(5, 5), ages(0, 0));
    let empty = billed.f.store.count_pushes(old).await.unwrap();
    assert_eq!(empty, PushCounts::default());
    billed.customer("acme", "cus_acme").await;
    for hour in 0..3 {
        billed.planned("acme", &format!("t{hour}"), "tokens", "1.5", hour).await;
        billed.send(REFUSED, 1).await;
    }
    billed.planned("acme", "w0", "whole", "3", 0).await;
    let discarded = billed.send(REFUSED, 1).await;
    billed.f.store.discard_push(discarded, "small", billed.f.now).await.unwrap();
    billed.planned("acme", "w1", "whole", "4", 1).await;
    billed.send(REFUSED, 1).await;
    billed.planned("acme", "t4", "tokens", "1", 4).await;
    billed.send(billed.accepted(4), 4).await;
    billed.planned("acme", "t5", "tokens", "1", 5).await;
    billed.planned("umbrella", "t5", "tokens", "1", 5).await;
    billed.terms.shadow = true;
    billed.planned("umbrella", "s", "tokens", "1", 6).await;
    billed.f.restart().await;
    let (tokens, whole) = (billed.f.meter_no("tokens").await, billed.f.meter_no("whole").await);
    let mut unbilled = vec![(tokens, quantity("4.5")), (whole, quantity("4"))];
    unbilled.sort();
    let waiting = UnmappedSum { tenants: 1, pushes: 1, quantity: quantity("1") };
    let mut expected = PushCounts {
        observed: 1,
        observed_long: 1,
        without_customer: [(tokens, waiting)].into_iter().collect(),
        unsent: Default::default(),
        submitted: 1,
        submitted_long: 1,
        dead: 4,
        unbilled,
    };
    let counts = async |ages| {
        let mut counts = billed.f.store.count_pushes(ages).await.unwrap();
        counts.unbilled.sort();
        counts
    };
    assert_eq!(counts(old).await, expected);
    (expected.observed_long, expected.submitted_long) = (0, 0);
    assert_eq!(counts(young).await, expected);
}

pub async fn discarded_pushes_are_no_longer_among_the_dead(f: Fixture) {
    let mut billed = Billed::start(f).await;
    for tenant in ["acme", "umbrella"] {
        billed.customer(tenant, &format!("cus_{tenant}")).await;
    }
    let mut numbers = Vec::new();
    for (tenant, hour) in [("acme", 0), ("umbrella", 1), ("acme", 2)] {
        billed.planned(tenant, &format!("t{hour}"), "tokens", "1.5", hour).await;
        numbers.push(billed.send(REFUSED, 1).await);
    }
    for number in &numbers[..2] {
        let ruled = billed.f.store.discard_push(*number, "small", billed.f.now).await.unwrap();
        assert_eq!(ruled, Ruling::Done(None));
    }
    billed.f.restart().await;
    let check = async |filter: PushFilter, expected: &[u64]| {
        let query = Query::first(filter.clone(), 10);
        let found = billed.f.store.list_pushes(query).await.unwrap();
        let found: Vec<u64> = found.iter().map(|push| push.number).collect();
        assert_eq!(found, expected, "{filter:?}");
    };
    let in_state = |state| PushFilter { state: Some(state), ..PushFilter::default() };
    check(in_state(PushState::Dead), &numbers[2..]).await;
    check(in_state(PushState::Discarded), &[numbers[1], numbers[0]]).await;
    let tenant = Some(tenant_id("umbrella"));
    check(PushFilter { tenant: tenant.clone(), ..in_state(PushState::Dead) }, &[]).await;
    check(PushFilter { tenant, ..in_state(PushState::Discarded) }, &numbers[1..2]).await;
    let ages = PushAges { observed_before: billed.f.now, submitted_before: billed.f.now };
    assert_eq!(billed.f.store.count_pushes(ages).await.unwrap().dead, 1);
}

async fn due(billed: &Billed, minute: i64, limit: usize) -> Vec<SubmittedWindow> {
    let now = after(billed.f.now, minute);
    billed.f.store.list_submitted_windows(now, billed.terms.shadow, limit).await.unwrap()
}

pub async fn submitted_windows_come_up_when_due(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    let mut numbers = Vec::new();
    for (id, meter, hour, minute) in [
        ("e1", "tokens", 0, 1),
        ("e2", "tokens", 0, 2),
        ("e3", "tokens", 1, 3),
        ("e4", "peak", 0, 4),
        ("e5", "peak", 0, 5),
    ] {
        billed.planned("acme", id, meter, "1.5", hour).await;
        numbers.push(billed.send(billed.accepted(minute), minute).await);
    }
    billed.f.restart().await;
    assert_eq!(due(&billed, 15, 10).await, []);
    let first = due(&billed, 16, 10).await;
    let expected = SubmittedWindow {
        tenant: tenant_id("acme"),
        customer: customer_id("cus_acme"),
        meter: billed.f.meter_no("tokens").await,
        window: window(0),
        mode: Mode::Delta,
        expected: quantity("3"),
        pushes: vec![(numbers[0], quantity("1.5")), (numbers[1], quantity("1.5"))],
        submitted_at: after(billed.f.now, 2),
    };
    assert_eq!(first, [expected]);
    let all = due(&billed, 60, 10).await;
    let found: Vec<_> = all.iter().map(|found| (found.mode, found.window)).collect();
    let (delta, absolute) = (Mode::Delta, Mode::Absolute);
    assert_eq!(found, [(delta, window(0)), (delta, window(1)), (absolute, window(0))]);
    assert_eq!(all[2].expected, quantity("3"), "the last total stands");
    assert_eq!(due(&billed, 60, 2).await, all[..2]);
    // A confirmed one stays part of what is expected; a dead one does not.
    let confirmed = (Class::Confirmed, Next::Confirmed);
    assert!(billed.settle_number(numbers[0], None, confirmed, 61).await);
    let left = due(&billed, 62, 1).await.remove(0);
    assert_eq!((left.expected, left.pushes.len()), (quantity("3"), 1));
    assert!(billed.settle_number(numbers[1], None, (Class::Absent, Next::Dead), 63).await);
    billed.planned("acme", "e6", "tokens", "4", 0).await;
    let last = billed.send(billed.accepted(64), 64).await;
    let left = due(&billed, 90, 10).await;
    let left = left.iter().find(|found| found.pushes.contains(&(last, quantity("4")))).unwrap();
    assert_eq!(left.expected, quantity("5.5"));
}

pub async fn windows_with_a_begun_push_are_left_out(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.terms.shadow = true;
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    billed.send(billed.accepted(1), 1).await;
    billed.planned("acme", "e2", "tokens", "1", 0).await;
    assert_eq!(due(&billed, 20, 10).await.len(), 1, "planned and not begun");
    let claimed = billed.claim_one(20).await;
    assert_eq!(due(&billed, 20, 10).await.len(), 1);
    assert!(billed.begin(&claimed, 20).await);
    assert_eq!(due(&billed, 20, 10).await, []);
    assert!(billed.settle(&claimed, billed.waiting(40), 20).await);
    assert_eq!(due(&billed, 20, 10).await, []);
    assert_eq!(billed.send(billed.accepted(40), 40).await, claimed.push.number);
    assert_eq!(due(&billed, 40, 10).await.len(), 1);
}

pub async fn a_window_keeps_the_customer_that_may_have_it(f: Fixture) {
    let billed = Billed::start(f).await;
    let ends = [
        (billed.accepted(1), "cus_1", "1"),
        ((Class::Undecidable, Next::Dead), "cus_1", "0"),
        ((Class::Absent, Next::Dead), "cus_1", "0"),
        ((Class::Refused, Next::Dead), "cus_2", "0"),
    ];
    billed.customer("acme", "cus_1").await;
    for (hour, (end, ..)) in (0..).zip(&ends) {
        billed.planned("acme", &format!("a{hour}"), "tokens", "1", hour).await;
        billed.send(end.clone(), 1).await;
    }
    billed.customer("acme", "cus_2").await;
    for (hour, (end, customer, settled)) in (0..).zip(ends) {
        billed.planned("acme", &format!("b{hour}"), "tokens", "1", hour).await;
        let minute = 100 + 10 * hour;
        let claimed = billed.claim_one(minute).await;
        assert_eq!(claimed.push.window, window(hour), "{end:?}");
        assert_eq!(claimed.customer.as_str(), customer, "{end:?}");
        assert_eq!(claimed.settled, quantity(settled), "{end:?}");
        billed.finish(&claimed, billed.accepted(minute), minute).await;
    }
    let meter = billed.f.meter_no("tokens").await;
    let pushes = billed.f.store.read_window_pushes(&tenant_id("acme"), meter, window(0)).await;
    let customers: Vec<_> = pushes.unwrap().into_iter().map(|push| push.customer).collect();
    assert_eq!(customers, [Some(customer_id("cus_1")), Some(customer_id("cus_1"))]);
    let former = async || billed.f.store.list_former_customers().await.unwrap();
    assert_eq!(former().await, [(tenant_id("acme"), customer_id("cus_1"))]);
    billed.customer("acme", "cus_1").await;
    assert_eq!(former().await, [(tenant_id("acme"), customer_id("cus_2"))]);
}
