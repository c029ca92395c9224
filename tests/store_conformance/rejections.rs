//! Pushes that the provider took and refused afterwards.

use crate::billed::{Billed, after, steps};
use crate::fixture::Fixture;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::window::Window;
use counterfoil::store::webhook::{Rejection, RejectionReport};

const NONE: RejectionReport = RejectionReport { rejected: 0, rechecked: 0, busy: 0 };

async fn reject(billed: &Billed, keys: &[&str], minute: i64) -> RejectionReport {
    let sample = |key: &&str| ((*key).to_owned(), format!("no meter for {key}"));
    let samples = keys.iter().map(sample).collect();
    let rejection = Rejection { samples, recheck: None };
    billed.f.store.reject_pushes(rejection, after(billed.f.now, minute)).await.unwrap()
}

pub async fn a_submitted_push_becomes_dead(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let number = billed.send(billed.accepted(1), 1).await;
    let key = billed.push(number).await.key;
    let expected = RejectionReport { rejected: 1, ..NONE };
    assert_eq!(reject(&billed, &[&key, "cf1-unknown", &key], 3).await, expected);
    billed.f.restart().await;
    let trace = billed.trace(number).await;
    assert_eq!((trace.push.state, trace.push.class), (PushState::Dead, Class::Refused));
    assert_eq!(trace.push.detail, Some(format!("no meter for {key}")));
    assert_eq!(trace.push.state_at, after(billed.f.now, 3));
    assert_eq!(steps(&trace).last(), Some(&(PushState::Dead, Class::Refused, 1)));
    let last = trace.transitions.last().unwrap();
    assert_eq!((last.at, &last.detail), (after(billed.f.now, 3), &trace.push.detail));
    assert_eq!(reject(&billed, &[&key], 4).await, NONE, "asking again changes nothing");
    assert_eq!(billed.trace(number).await, trace);
    assert_eq!(reject(&billed, &[], 4).await, NONE);
}

pub async fn one_that_is_being_sent_is_busy(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let push = billed.pushes().await.remove(0);
    assert_eq!(reject(&billed, &[&push.key], 0).await, NONE, "it was never sent");
    let claimed = billed.claim_one(1).await;
    assert_eq!(reject(&billed, &[&push.key], 1).await, NONE, "it was still not sent");
    assert!(billed.begin(&claimed, 1).await);
    let busy = RejectionReport { busy: 1, ..NONE };
    assert_eq!(reject(&billed, &[&push.key], 2).await, busy);
    assert_eq!(billed.push(push.number).await.state, PushState::Observed);
    assert!(billed.settle(&claimed, billed.waiting(20), 3).await);
    let rejected = RejectionReport { rejected: 1, ..NONE };
    assert_eq!(reject(&billed, &[&push.key], 4).await, rejected, "begun, and nobody sends it");
    assert_eq!(billed.push(push.number).await.state, PushState::Dead);
    assert_eq!(billed.claim(30).await, []);
}

pub async fn a_lease_that_ended_protects_nothing(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let claimed = billed.claim_one(1).await;
    assert!(billed.begin(&claimed, 1).await);
    let rejected = RejectionReport { rejected: 1, ..NONE };
    assert_eq!(reject(&billed, &[&claimed.push.key], 11).await, rejected);
    assert!(!billed.settle(&claimed, billed.accepted(12), 12).await, "its lease is gone");
    assert_eq!(billed.push(claimed.push.number).await.state, PushState::Dead);
}

pub async fn what_a_summary_has_shown_is_left_alone(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let number = billed.send(billed.accepted(1), 1).await;
    assert!(billed.settle_number(number, None, (Class::Confirmed, Next::Confirmed), 2).await);
    billed.planned("acme", "e2", "tokens", "5", 1).await;
    let undecidable = billed.send((Class::Undecidable, Next::Dead), 3).await;
    for number in [number, undecidable] {
        let trace = billed.trace(number).await;
        assert_eq!(reject(&billed, &[&trace.push.key], 4).await, NONE);
        assert_eq!(billed.trace(number).await, trace);
    }
}

pub async fn others_of_the_meter_are_looked_for_at_once(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    let mut numbers = Vec::new();
    // Taken at the minutes 1 to 4, each to be looked for a quarter of an hour later.
    for (id, meter, minute) in
        [("e1", "tokens", 1), ("e2", "tokens", 2), ("e3", "whole", 3), ("e4", "tokens", 4)]
    {
        billed.planned("acme", id, meter, "5", minute).await;
        numbers.push(billed.send(billed.accepted(minute), minute).await);
    }
    let key = billed.push(numbers[0]).await.key;
    let window = Window { start: after(billed.f.now, 1), end: after(billed.f.now, 4) };
    let rejection = Rejection {
        samples: vec![(key, "no meter".to_owned())],
        recheck: Some((billed.f.meter_no("tokens").await, window)),
    };
    let ask = async |billed: &Billed, minute: i64| {
        let at = after(billed.f.now, minute);
        billed.f.store.reject_pushes(rejection.clone(), at).await.unwrap()
    };
    assert_eq!(ask(&billed, 5).await, RejectionReport { rejected: 1, rechecked: 1, busy: 0 });
    billed.f.restart().await;
    let trace = billed.trace(numbers[1]).await;
    assert_eq!((trace.push.state, trace.push.class), (PushState::Submitted, Class::Accepted));
    assert_eq!(trace.push.due_at, after(billed.f.now, 5));
    assert_eq!(trace.push.state_at, after(billed.f.now, 2), "it was taken when it was");
    assert_eq!(steps(&trace).last(), Some(&(PushState::Submitted, Class::Unknown, 1)));
    let due = billed.f.store.list_submitted_windows(after(billed.f.now, 5), false, 9);
    let due = due.await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].pushes[0].0, numbers[1]);
    for (number, minute) in [(numbers[2], 18), (numbers[3], 19)] {
        assert_eq!(billed.push(number).await.due_at, after(billed.f.now, minute));
    }
    assert_eq!(ask(&billed, 6).await, NONE, "asking again changes nothing");
    assert_eq!(billed.trace(numbers[1]).await, trace);
}

/// The first attempt may have counted before the cause of the refusal arose.
pub async fn a_report_after_several_attempts_proves_nothing(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let number = billed.send(billed.waiting(2), 1).await;
    assert_eq!(billed.send(billed.waiting(9), 2).await, number);
    let key = billed.push(number).await.key;
    let looked = RejectionReport { rechecked: 1, ..NONE };
    assert_eq!(reject(&billed, &[&key, &key], 3).await, looked);
    let trace = billed.trace(number).await;
    assert_eq!((trace.push.state, trace.push.class), (PushState::Observed, Class::Unknown));
    assert_eq!(trace.push.due_at, after(billed.f.now, 9), "it goes on as it would have");
    assert_eq!(trace.transitions.last().unwrap().detail, Some(format!("no meter for {key}")));
    assert_eq!(billed.send(billed.accepted(9), 9).await, number);
    assert_eq!(reject(&billed, &[&key], 10).await, looked);
    let push = billed.push(number).await;
    assert_eq!((push.state, push.class), (PushState::Submitted, Class::Accepted));
    assert_eq!(push.due_at, after(billed.f.now, 10), "the summary is asked at once");
}
