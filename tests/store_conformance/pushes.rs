//! Pushes: who may work on which, and what becomes of them.

use crate::billed::{Billed, after, quantity, steps, told};
use crate::fixture::{Fixture, at_once, customer_id};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::store::push::{
    AttemptIntent, ClaimedPush, Push, PushClaim, Right, Ruling, Settlement,
};
use std::collections::HashSet;
use std::sync::Arc;

const REFUSED: (Class, Next) = (Class::Refused, Next::Dead);
const UNDECIDABLE: (Class, Next) = (Class::Undecidable, Next::Dead);
const ABSENT: (Class, Next) = (Class::Absent, Next::Replaced);

pub async fn one_of_a_tenant_and_meter_is_in_flight(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.customer("umbrella", "cus_umbrella").await;
    for (tenant, meter, hour) in [
        ("acme", "tokens", 0),
        ("acme", "tokens", 1),
        ("acme", "whole", 0),
        ("umbrella", "tokens", 0),
        ("umbrella", "tokens", 1),
    ] {
        billed.planned(tenant, &format!("{meter}{hour}"), meter, "1", hour).await;
    }
    assert_eq!(billed.claim(-1).await, [], "nothing is due before it was planned");
    let numbers = |claimed: &[ClaimedPush]| {
        claimed.iter().map(|claimed| claimed.push.number).collect::<Vec<_>>()
    };
    let all: Vec<u64> = billed.pushes().await.iter().map(|push| push.number).collect();
    let now = billed.f.now;
    let claim = PushClaim { now, lease_until: after(now, 10), limit: 2, shadow: false };
    let first = billed.f.store.claim_pushes(claim).await.unwrap();
    assert_eq!(numbers(&first), [all[0], all[2]]);
    let second = billed.claim(0).await;
    assert_eq!(numbers(&second), [all[3]]);
    assert_eq!(billed.claim(0).await, []);
    assert_eq!(billed.observed("acme").await, 3);
    // What is settled makes room.
    assert!(billed.settle(&first[0], billed.accepted(1), 1).await);
    assert_eq!(numbers(&billed.claim(1).await), [all[1]]);
    assert_eq!(billed.observed("acme").await, 2);
}

pub async fn the_lowest_revision_goes_first(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    for n in 1..=3 {
        billed.planned("acme", &format!("e{n}"), "tokens", "1", 0).await;
    }
    billed.planned("acme", "other", "tokens", "1", 1).await;
    let claimed = billed.claim_one(1).await;
    assert_eq!(claimed.push.revision, 1);
    billed.finish(&claimed, billed.waiting(60), 1).await;
    // Only the other window can go on while one of this is not resolved.
    assert_eq!(billed.send(billed.accepted(2), 2).await, claimed.push.number + 3);
    assert_eq!(billed.claim(3).await, []);
    billed.f.restart().await;
    assert_eq!(billed.claim(59).await, []);
    assert_eq!(billed.send(billed.accepted(60), 60).await, claimed.push.number);
    assert_eq!(billed.send(REFUSED, 61).await, claimed.push.number + 1);
    assert_eq!(billed.send(billed.accepted(62), 62).await, claimed.push.number + 2);
    assert_eq!(billed.claim(63).await, []);
}

pub async fn without_a_customer_nothing_is_claimed(f: Fixture) {
    let billed = Billed::start(f).await;
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    billed.planned("acme", "e2", "tokens", "1", 1).await;
    assert_eq!(billed.claim(1).await, []);
    billed.customer("acme", "cus_1").await;
    let claimed = billed.claim_one(2).await;
    assert_eq!(claimed.customer.as_str(), "cus_1");
    assert_eq!((claimed.push.customer, claimed.request), (None, None));
}

pub async fn an_expired_lease_is_claimed_again(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    let old = billed.claim_one(0).await;
    assert!(billed.begin(&old, 1).await);
    assert_eq!(billed.claim(9).await, []);
    billed.f.restart().await;
    let new = billed.claim_one(10).await;
    assert_eq!((new.push.number, new.fence), (old.push.number, old.fence + 1));
    assert_eq!(new.push.state, PushState::Observed);
    assert!(!billed.begin(&old, 11).await);
    assert!(!billed.settle(&old, billed.accepted(11), 11).await);
    assert_eq!(billed.push(new.push.number).await.attempts, 1);
    billed.finish(&new, billed.accepted(11), 11).await;
    assert!(!billed.begin(&new, 12).await, "it is settled");
    let unknown = AttemptIntent { push: 9_999, fence: 1, customer: new.customer, request: vec![] };
    let begun = billed.f.store.begin_attempts(vec![unknown], billed.f.now).await.unwrap();
    assert_eq!(begun, Vec::<u64>::new());
}

pub async fn the_first_attempt_stays(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    let first = billed.claim_one(1).await;
    let fresh = Next::Wait { until: after(billed.f.now, 2), fresh_request_key: true };
    billed.finish(&first, (Class::Unknown, fresh), 1).await;
    billed.customer("acme", "cus_later").await;
    billed.f.restart().await;
    let second = billed.claim_one(2).await;
    assert_eq!(second.customer.as_str(), "cus_acme");
    assert_eq!(second.request.as_deref(), Some(&b"request at 1"[..]));
    assert_eq!((second.request_keys, second.push.attempts), (1, 1));
    assert_eq!(second.push.first_attempt_at, Some(after(billed.f.now, 1)));
    assert_eq!(second.push.key, first.push.key);
    let second = ClaimedPush { customer: customer_id("cus_later"), ..second };
    billed.finish(&second, billed.waiting(3), 2).await;
    let third = billed.claim_one(3).await;
    assert_eq!(third.customer.as_str(), "cus_acme");
    assert_eq!(third.push.customer.as_ref(), Some(&third.customer));
    assert_eq!(third.request.as_deref(), Some(&b"request at 1"[..]));
    assert_eq!((third.request_keys, third.push.attempts), (1, 2));
    assert_eq!(third.push.first_attempt_at, Some(after(billed.f.now, 1)));
}

pub async fn a_history_is_complete_and_in_order(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    let number = billed.send(billed.waiting(5), 1).await;
    let waiting = billed.push(number).await;
    assert_eq!((waiting.state, waiting.due_at), (PushState::Observed, after(billed.f.now, 5)));
    assert_eq!(waiting.detail.as_deref(), Some("said at 1"));
    assert_eq!(billed.send(billed.accepted(5), 5).await, number);
    let submitted = billed.push(number).await;
    assert_eq!((submitted.state, submitted.class), (PushState::Submitted, Class::Accepted));
    assert_eq!(submitted.due_at, after(billed.f.now, 20));
    assert_eq!(submitted.state_at, after(billed.f.now, 5));
    assert!(billed.settle_number(number, None, billed.waiting(30), 20).await);
    let submitted = billed.push(number).await;
    assert_eq!(submitted.state, PushState::Submitted);
    assert_eq!(submitted.due_at, after(billed.f.now, 30));
    assert_eq!(submitted.state_at, after(billed.f.now, 5));
    let confirmed = (Class::Confirmed, Next::Confirmed);
    assert!(billed.settle_number(number, None, confirmed, 30).await);
    billed.f.restart().await;
    let trace = billed.trace(number).await;
    use PushState::{Confirmed, Observed, Submitted};
    assert_eq!(
        steps(&trace),
        [
            (Observed, Class::Cut, 0),
            (Observed, Class::Attempt, 1),
            (Observed, Class::Unknown, 1),
            (Observed, Class::Attempt, 2),
            (Submitted, Class::Accepted, 2),
            (Submitted, Class::Unknown, 2),
            (Confirmed, Class::Confirmed, 2),
        ]
    );
    let at: Vec<_> = trace.transitions.iter().map(|row| row.at).collect();
    assert_eq!(at, [0, 1, 1, 5, 5, 20, 30].map(|minute| after(billed.f.now, minute)));
    let last = trace.transitions.last().unwrap();
    assert_eq!(last.request_id.as_deref(), Some("req_30"));
    assert_eq!(last.detail.as_deref(), Some("said at 30"));
    assert_eq!((trace.push.state, trace.push.class), (Confirmed, Class::Confirmed));
    assert_eq!(trace.push.state_at, after(billed.f.now, 30));
    assert_eq!(billed.f.store.trace_push(9_999).await.unwrap(), None);
}

pub async fn a_reading_settles_only_what_was_listed(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    for (id, meter, hour) in [("e1", "signed", 0), ("e2", "peak", 1)] {
        billed.planned("acme", id, meter, "5", hour).await;
        let number = billed.send(billed.accepted(1), 1).await;
        let settle = async |expected: &str, next: Next, minute: i64| {
            let settlement = Settlement {
                push: number,
                right: Right::Reading { expected: quantity(expected) },
                class: Class::Confirmed,
                next,
                request_id: None,
                detail: None,
            };
            let at = after(billed.f.now, minute);
            billed.f.store.settle_pushes(vec![settlement], at).await.unwrap() == 1
        };
        let wait = Next::Wait { until: after(billed.f.now, 30), fresh_request_key: false };
        assert!(!settle("4", Next::Confirmed, 2).await);
        assert!(!settle("4", Next::Dead, 2).await);
        assert!(settle("4", wait.clone(), 2).await, "a wait decides nothing");
        // A push of the window that is begun may be in the total that was read.
        billed.planned("acme", &format!("{id}-late"), meter, "2", hour).await;
        let claimed = billed.claim_one(3).await;
        assert!(billed.begin(&claimed, 3).await);
        assert!(!settle("5", Next::Dead, 4).await);
        assert!(billed.settle(&claimed, billed.accepted(4), 4).await);
        assert!(!settle("5", Next::Dead, 5).await, "7 is expected by now");
        assert_eq!(billed.push(number).await.state, PushState::Submitted);
        assert!(settle("7", Next::Confirmed, 5).await);
        assert_eq!(billed.push(number).await.state, PushState::Confirmed);
    }
}

pub async fn an_unreadable_push_is_looked_at_again(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let unread = |minute| (Class::Unknown, Next::Unread { until: after(billed.f.now, minute) });
    let (first, second) = (unread(5), unread(10));
    let number = billed.send(first, 1).await;
    let claimed = billed.claim_one(5).await;
    assert_eq!(claimed.unreadable_since, Some(after(billed.f.now, 1)));
    assert!(billed.settle(&claimed, second, 5).await);
    let claimed = billed.claim_one(10).await;
    assert_eq!(claimed.unreadable_since, Some(after(billed.f.now, 1)), "the first time stays");
    assert!(billed.settle(&claimed, (Class::Unreadable, Next::Dead), 10).await);
    billed.f.restart().await;
    // A later revision of the window goes out; its outcome is doubted if it is lost.
    billed.planned("acme", "e2", "tokens", "2", 0).await;
    let later = billed.claim_one(11).await;
    assert!(later.doubtful);
    assert!(billed.begin(&later, 11).await);
    let retry = async |billed: &Billed, minute| {
        billed.f.store.retry_push(number, after(billed.f.now, minute)).await.unwrap()
    };
    assert!(matches!(retry(&billed, 12).await, Ruling::Refused(_)), "another is unresolved");
    assert!(billed.settle(&later, billed.accepted(13), 13).await);
    assert_eq!(retry(&billed, 14).await, Ruling::Done(Some(number)));
    let claimed = billed.claim_one(14).await;
    assert_eq!((claimed.push.number, claimed.push.attempts), (number, 1));
    assert_eq!((claimed.push.class, claimed.unreadable_since), (Class::Retried, None));
    assert_eq!((claimed.settled, claimed.doubtful), (quantity("2"), false));
}

pub async fn a_settlement_counts_once(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "1", 0).await;
    let number = billed.pushes().await[0].number;
    assert!(!billed.settle_number(number, None, billed.accepted(1), 1).await, "not submitted");
    assert!(!billed.settle_number(number, Some(0), billed.accepted(1), 1).await, "not claimed");
    assert!(!billed.settle_number(9_999, None, billed.accepted(1), 1).await);
    let claimed = billed.claim_one(1).await;
    assert!(!billed.settle_number(number, None, billed.accepted(1), 1).await, "claimed");
    billed.finish(&claimed, billed.waiting(1), 1).await;
    assert!(!billed.settle(&claimed, billed.waiting(9), 2).await, "settled before");
    assert_eq!(billed.push(number).await.due_at, after(billed.f.now, 1));
    assert_eq!(billed.send(billed.accepted(3), 3).await, number);
    let confirmed = || (Class::Confirmed, Next::Confirmed);
    assert!(billed.settle_number(number, None, confirmed(), 4).await);
    assert!(!billed.settle_number(number, None, confirmed(), 5).await, "confirmed before");
    assert_eq!(billed.trace(number).await.transitions.len(), 6);
}

pub async fn the_next_revision_takes_the_place(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    billed.planned("acme", "e2", "tokens", "7", 0).await;
    let number = billed.send(ABSENT, 1).await;
    billed.f.restart().await;
    assert_eq!(billed.told().await, told(&[(1, "5", "5"), (2, "7", "7"), (3, "5", "5")]));
    let pushes = billed.pushes().await;
    let (old, new) = (&pushes[0], &pushes[2]);
    assert_eq!((old.number, old.state, old.class), (number, PushState::Replaced, Class::Absent));
    assert_ne!(old.key, new.key);
    assert_eq!((new.state, new.attempts), (PushState::Observed, 0));
    assert_eq!((new.customer.clone(), new.first_attempt_at), (None, None));
    assert_eq!((new.stamped_at, &new.subscriptions), (old.stamped_at, &old.subscriptions));
    assert_eq!(new.due_at, after(billed.f.now, 1));
    let state = billed.state("tokens", 0).await.unwrap();
    assert_eq!((state.revision, state.planned), (3, quantity("12")));
    assert_eq!(billed.send(billed.accepted(2), 2).await, pushes[1].number);
    assert_eq!(billed.send(billed.accepted(3), 3).await, new.number);
    billed.planned("acme", "e3", "tokens", "1", 0).await;
    assert_eq!(billed.pushes().await[3].revision, 4);
}

pub async fn absolute_totals_overtake_dead_ones(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    for (id, minute) in [("e1", 1), ("e2", 2)] {
        billed.planned("acme", id, "peak", "10", 0).await;
        billed.send(REFUSED, minute).await;
    }
    billed.planned("acme", "other", "peak", "1", 1).await;
    let other = billed.send(REFUSED, 3).await;
    billed.planned("acme", "e3", "peak", "2", 0).await;
    let last = billed.send(billed.accepted(4), 4).await;
    let pushes = billed.pushes().await;
    for dead in &pushes[..2] {
        assert_eq!((dead.state, dead.class), (PushState::Replaced, Class::Overtaken));
        let history = billed.trace(dead.number).await;
        assert_eq!(steps(&history).last(), Some(&(PushState::Replaced, Class::Overtaken, 1)));
    }
    assert_eq!(billed.push(other).await.state, PushState::Dead, "another window");
    assert_eq!(billed.push(last).await.value, quantity("22"));
    // Deltas overtake nothing.
    billed.planned("acme", "t1", "tokens", "1", 0).await;
    let dead = billed.send(REFUSED, 5).await;
    billed.planned("acme", "t2", "tokens", "1", 0).await;
    billed.send(billed.accepted(6), 6).await;
    assert_eq!(billed.push(dead).await.state, PushState::Dead);
}

pub async fn retries_and_refusals(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    let retry = async |billed: &Billed, number: u64| {
        billed.f.store.retry_push(number, after(billed.f.now, 9)).await.unwrap()
    };
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let number = billed.pushes().await[0].number;
    assert!(matches!(retry(&billed, number).await, Ruling::Refused(_)), "it is observed");
    assert_eq!(retry(&billed, 9_999).await, Ruling::NotFound);
    assert_eq!(billed.send(REFUSED, 1).await, number);
    billed.f.restart().await;
    let Ruling::Done(Some(new)) = retry(&billed, number).await else { panic!("it is refused") };
    assert!(matches!(retry(&billed, number).await, Ruling::Refused(_)), "it was retried");
    let old = billed.trace(number).await;
    assert_eq!((old.push.state, old.push.class), (PushState::Replaced, Class::Retried));
    assert_eq!(old.transitions.last().unwrap().class, Class::Retried);
    assert_eq!(billed.told().await, told(&[(1, "5", "5"), (2, "5", "5")]));
    let fresh = billed.push(new).await;
    assert_ne!(fresh.key, old.push.key);
    assert_eq!((fresh.state, fresh.due_at), (PushState::Observed, after(billed.f.now, 9)));
    assert_eq!(billed.send(UNDECIDABLE, 9).await, new);
    assert!(matches!(retry(&billed, new).await, Ruling::Refused(_)), "it may have counted");
    billed.planned("acme", "e9", "tokens", "1", 1).await;
    let absent = billed.send((Class::Absent, Next::Dead), 10).await;
    let dead = billed.push(absent).await;
    assert!(matches!(retry(&billed, absent).await, Ruling::Refused(_)), "nothing was read");
    billed.read(&dead, Quantity::ZERO, &[5, 9]).await;
    assert!(matches!(retry(&billed, absent).await, Ruling::Refused(_)), "read before it died");
    billed.read(&dead, Quantity::ZERO, &[200]).await;
    assert!(matches!(retry(&billed, absent).await, Ruling::Refused(_)), "read once since");
    billed.read(&dead, Quantity::ONE, &[300, 400]).await;
    assert!(matches!(retry(&billed, absent).await, Ruling::Refused(_)), "it shows");
    let other = Push { customer: Some(customer_id("cus_other")), ..dead.clone() };
    billed.read(&other, Quantity::ZERO, &[500, 600]).await;
    assert!(matches!(retry(&billed, absent).await, Ruling::Refused(_)), "of another customer");
    billed.read(&dead, Quantity::ZERO, &[700, 800]).await;
    billed.f.restart().await;
    assert!(matches!(retry(&billed, absent).await, Ruling::Done(Some(_))));
    let too_old = billed.send((Class::TooOld, Next::Dead), 11).await;
    assert!(matches!(retry(&billed, too_old).await, Ruling::Refused(_)), "it stays too old");
}

pub async fn discards_and_refusals(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    let discard = async |number: u64| {
        let at = after(billed.f.now, 9);
        billed.f.store.discard_push(number, "corrected by hand", at).await.unwrap()
    };
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    let number = billed.pushes().await[0].number;
    assert!(matches!(discard(number).await, Ruling::Refused(_)), "it is observed");
    assert_eq!(discard(9_999).await, Ruling::NotFound);
    billed.send(UNDECIDABLE, 1).await;
    assert_eq!(discard(number).await, Ruling::Done(None));
    assert!(matches!(discard(number).await, Ruling::Refused(_)), "it was discarded");
    let retried = billed.f.store.retry_push(number, billed.f.now).await.unwrap();
    assert!(matches!(retried, Ruling::Refused(_)));
    let trace = billed.trace(number).await;
    assert_eq!((trace.push.state, trace.push.class), (PushState::Discarded, Class::Discarded));
    assert_eq!(trace.push.detail.as_deref(), Some("corrected by hand"));
    assert_eq!(steps(&trace).last(), Some(&(PushState::Discarded, Class::Discarded, 1)));
    assert_eq!(trace.transitions.len(), 4);
}

pub async fn a_claim_tells_what_is_settled_and_doubtful(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    let check = async |id: &str, settled: &str, doubtful: bool, end: (Class, Next)| {
        billed.planned("acme", id, "tokens", "2.5", 0).await;
        let claimed = billed.claim_one(1).await;
        assert_eq!((claimed.settled, claimed.doubtful), (quantity(settled), doubtful), "{id}");
        billed.finish(&claimed, end, 1).await;
        claimed.push.number
    };
    check("e1", "0", false, billed.accepted(1)).await;
    let second = check("e2", "2.5", false, billed.accepted(1)).await;
    let refused = check("e3", "5", false, REFUSED).await;
    let confirmed = (Class::Confirmed, Next::Confirmed);
    assert!(billed.settle_number(second, None, confirmed, 2).await);
    let discard =
        async |number| billed.f.store.discard_push(number, "enough", billed.f.now).await.unwrap();
    assert_eq!(discard(refused).await, Ruling::Done(None));
    let unknown = check("e4", "5", false, UNDECIDABLE).await;
    check("e5", "5", true, billed.accepted(1)).await;
    assert_eq!(discard(unknown).await, Ruling::Done(None));
    check("e6", "7.5", true, billed.accepted(1)).await;
    billed.planned("acme", "e7", "tokens", "1", 1).await;
    let elsewhere = billed.claim_one(3).await;
    assert_eq!((elsewhere.settled, elsewhere.doubtful), (Quantity::ZERO, false));
}

pub async fn claimants_at_once_share_nothing(f: Fixture) {
    let billed = Arc::new(Billed::with_acme(f).await);
    for tenant in ["umbrella", "initech", "hooli"] {
        billed.customer(tenant, &format!("cus_{tenant}")).await;
        for hour in 0..6 {
            billed.planned(tenant, &format!("e{hour}"), "tokens", "1", hour).await;
        }
    }
    let send = |billed: Arc<Billed>, _| async move {
        let mut sent = Vec::new();
        for _ in 0..200 {
            for claimed in billed.claim(1).await {
                assert!(billed.begin(&claimed, 1).await);
                tokio::task::yield_now().await;
                assert!(billed.settle(&claimed, billed.accepted(1), 1).await);
                sent.push(claimed.push.number);
            }
            if billed.pushes().await.iter().all(|push| push.state.settled()) {
                break;
            }
        }
        sent
    };
    let sent = at_once(&billed, 0..3, send).await.concat();
    assert_eq!(sent.len(), 18);
    assert_eq!(sent.into_iter().collect::<HashSet<u64>>().len(), 18);
    assert!(billed.pushes().await.iter().all(|push| push.attempts == 1));
}
