//! Reissues and closings: what reconciliation does to pushes.

use crate::billed::{Billed, after, quantity, steps, told, window};
use crate::fixture::{Fixture, at_once, customer_id, tenant_id};
use counterfoil::rules::drift::PushSums;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::window::Window;
use counterfoil::store::push::{Push, Ruling};
use counterfoil::store::reconciliation::ReissueOrder;
use std::collections::HashSet;
use std::sync::Arc;

const REFUSED: (Class, Next) = (Class::Refused, Next::Dead);
const UNDECIDABLE: (Class, Next) = (Class::Undecidable, Next::Dead);
const CONFIRMED: (Class, Next) = (Class::Confirmed, Next::Confirmed);

/// Uses so much in an hour, and has the provider take and show it.
async fn confirmed(billed: &Billed, id: &str, meter: &str, used: &str, hour: i64) -> u64 {
    billed.planned("acme", id, meter, used, hour).await;
    let number = billed.send(billed.accepted(1), 1).await;
    assert!(billed.settle_number(number, None, CONFIRMED, 2).await);
    number
}

pub async fn order(billed: &Billed, meter: &str, hour: i64, halves: [&str; 2]) -> ReissueOrder {
    let [settled, provider] = halves.map(quantity);
    let (tenant, meter) = (tenant_id("acme"), billed.f.meter_no(meter).await);
    let (customer, window) = (customer_id("cus_acme"), window(hour));
    ReissueOrder { tenant, meter, window, customer, settled, provider, pass: 77 }
}

/// Corrects an hour, given what the provider said that it has and what it shows, which was read
/// twice.
async fn correct(billed: &Billed, meter: &str, hour: i64, halves: [&str; 2]) -> Ruling {
    let order = order(billed, meter, hour, halves).await;
    let pushes = billed.pushes().await;
    let of_it = |push: &&Push| (push.meter, push.window) == (order.meter, order.window);
    if let Some(push) = pushes.iter().find(of_it) {
        billed.read_twice(push, order.provider).await;
    }
    billed.f.store.record_reissue(order, after(billed.f.now, 5)).await.unwrap()
}

async fn corrected(billed: &Billed, meter: &str, hour: i64, halves: [&str; 2]) -> u64 {
    match correct(billed, meter, hour, halves).await {
        Ruling::Done(Some(number)) => number,
        ruling => panic!("{ruling:?}"),
    }
}

async fn sums(billed: &Billed, meter: &str, hour: i64) -> PushSums {
    let meter = billed.f.meter_no(meter).await;
    let pushes = billed.f.store.read_window_pushes(&tenant_id("acme"), meter, window(hour)).await;
    PushSums::of_window(&pushes.unwrap()).unwrap()
}

/// What the confirmer expects of the one window that it is to look at.
async fn expected(billed: &Billed) -> Quantity {
    let now = after(billed.f.now, 600);
    let windows = billed.f.store.list_submitted_windows(now, billed.terms.shadow, 9).await.unwrap();
    assert_eq!(windows.len(), 1, "{windows:?}");
    windows[0].expected
}

pub async fn what_is_lacking_is_sent_again(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    confirmed(&billed, "e1", "tokens", "10.5", 0).await;
    let before = billed.state("tokens", 0).await.unwrap();
    let again = corrected(&billed, "tokens", 0, ["10.5", "3"]).await;
    billed.f.restart().await;
    let rows = [(1, "10.5", "10.5"), (2, "-7.5", "-7.5"), (3, "7.5", "7.5")];
    assert_eq!(billed.told().await, told(&rows));
    let pushes = billed.pushes().await;
    let (first, lost, sent) = (&pushes[0], &pushes[1], &pushes[2]);
    assert_eq!(sent.number, again);
    assert_eq!((lost.state, lost.class), (PushState::Reconciled, Class::Lost));
    assert_eq!((sent.state, sent.class), (PushState::Observed, Class::Reissue));
    assert_eq!(sent.due_at, after(billed.f.now, 5));
    assert_eq!(pushes.iter().map(|push| &push.key).collect::<HashSet<_>>().len(), 3);
    for push in [lost, sent] {
        assert_eq!((push.stamped_at, push.window), (first.stamped_at, first.window));
        assert_eq!((push.shadow, push.mode), (first.shadow, first.mode));
        assert_eq!((push.attempts, push.first_attempt_at, &push.event), (0, None, &None));
        assert!(push.detail.as_ref().unwrap().contains("77"), "the pass is told");
        let trace = billed.trace(push.number).await;
        assert_eq!(steps(&trace), [(push.state, push.class, 0)]);
        assert_eq!(trace.transitions[0].at, after(billed.f.now, 5));
        assert_eq!(trace.transitions[0].detail, push.detail);
    }
    let after_it = billed.state("tokens", 0).await.unwrap();
    assert_eq!(after_it.revision, 3);
    let same = counterfoil::rules::push::CutState { revision: 3, ..before.clone() };
    assert_eq!(after_it, same, "what was planned stays");
    assert_eq!(sums(&billed, "tokens", 0).await.settled, quantity("3"), "as the provider shows");
}

pub async fn a_reissue_is_sent_and_confirmed(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    confirmed(&billed, "e1", "tokens", "10.5", 0).await;
    let again = corrected(&billed, "tokens", 0, ["10.5", "3"]).await;
    let claimed = billed.claim_one(6).await;
    assert_eq!((claimed.push.number, claimed.settled), (again, quantity("3")));
    assert_eq!((claimed.customer.as_str(), claimed.doubtful), ("cus_acme", false));
    billed.finish(&claimed, billed.accepted(6), 6).await;
    assert_eq!(expected(&billed).await, quantity("10.5"), "what it showed and what was sent");
    assert!(billed.settle_number(again, None, CONFIRMED, 30).await);
    assert_eq!(sums(&billed, "tokens", 0).await.settled, quantity("10.5"));
    // The next cut goes on after it, and only tells what is new.
    billed.planned("acme", "e2", "tokens", "1", 0).await;
    let last = billed.pushes().await.pop().unwrap();
    assert_eq!((last.revision, last.value), (4, quantity("1")));
    assert_eq!(billed.state("tokens", 0).await.unwrap().planned, quantity("11.5"));
}

pub async fn asked_twice_it_is_done_once(f: Fixture) {
    let billed = Arc::new(Billed::with_acme(f).await);
    confirmed(&billed, "e1", "tokens", "10", 0).await;
    let ask = |billed: Arc<Billed>, _| async move {
        matches!(correct(&billed, "tokens", 0, ["10", "3"]).await, Ruling::Done(Some(_)))
    };
    let done = at_once(&billed, 0..4, ask).await;
    assert_eq!(done.into_iter().filter(|done| *done).count(), 1);
    assert_eq!(billed.told().await.len(), 3);
    assert_eq!(billed.state("tokens", 0).await.unwrap().revision, 3);
}

pub async fn what_is_in_doubt_is_not_corrected(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    let refused = async |hour: i64, halves: [&str; 2], why: &str| {
        let (pushes, state) = (billed.pushes().await, billed.state("tokens", hour).await);
        let ruling = correct(&billed, "tokens", hour, halves).await;
        assert!(matches!(ruling, Ruling::Refused(_)), "{why}: {ruling:?}");
        assert_eq!(billed.pushes().await, pushes, "{why}");
        assert_eq!(billed.state("tokens", hour).await, state, "{why}");
    };
    confirmed(&billed, "e1", "tokens", "10", 0).await;
    refused(0, ["9", "3"], "the settled pushes make more").await;
    refused(0, ["11", "3"], "the settled pushes make less").await;
    refused(0, ["10", "10"], "nothing is lacking").await;
    refused(0, ["10", "12"], "the provider shows more").await;
    billed.planned("acme", "e2", "tokens", "1", 0).await;
    refused(0, ["10", "3"], "a push is observed").await;
    let claimed = billed.claim_one(3).await;
    assert!(billed.begin(&claimed, 3).await);
    refused(0, ["10", "3"], "a push is begun").await;
    assert!(billed.settle(&claimed, UNDECIDABLE, 3).await);
    refused(0, ["10", "3"], "a push is undecidable").await;
    let discard = billed.f.store.discard_push(claimed.push.number, "by hand", billed.f.now);
    assert_eq!(discard.await.unwrap(), Ruling::Done(None));
    corrected(&billed, "tokens", 0, ["10", "3"]).await;
    // Elsewhere there is nothing that could be corrected.
    assert_eq!(correct(&billed, "tokens", 9, ["10", "3"]).await, Ruling::NotFound);
    let order = order(&billed, "tokens", 0, ["10", "3"]).await;
    let order = ReissueOrder { tenant: tenant_id("nobody"), ..order };
    let ruling = billed.f.store.record_reissue(order, billed.f.now).await.unwrap();
    assert_eq!(ruling, Ruling::NotFound);
}

pub async fn a_loss_is_corrected_on_two_readings_after_the_last_push(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    let number = confirmed(&billed, "e1", "tokens", "10", 0).await;
    let order = order(&billed, "tokens", 0, ["10", "3"]).await;
    let ask = async |minute: Option<i64>, value: &str, allowed: bool| {
        billed.read(&billed.push(number).await, quantity(value), minute.as_slice()).await;
        let at = after(billed.f.now, 500);
        let ruling = billed.f.store.record_reissue(order.clone(), at).await.unwrap();
        assert_eq!(matches!(ruling, Ruling::Done(_)), allowed, "{minute:?} {value}: {ruling:?}");
    };
    ask(None, "3", false).await;
    ask(Some(1), "3", false).await;
    ask(Some(100), "3", false).await;
    ask(Some(170), "4", false).await;
    ask(Some(240), "3", false).await;
    ask(Some(250), "3", false).await;
    ask(Some(300), "3", true).await;
    ask(None, "3", false).await;
}

pub async fn what_another_customer_was_told_is_not_lost(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    confirmed(&billed, "e1", "tokens", "10", 0).await;
    confirmed(&billed, "e2", "tokens", "10", 1).await;
    billed.customer("acme", "cus_other").await;
    confirmed(&billed, "e3", "tokens", "5", 1).await;
    // The provider's totals of the new customer lack what the old one was told.
    for (hour, halves) in [(0, ["10", "0"]), (1, ["15", "5"])] {
        let order = order(&billed, "tokens", hour, halves).await;
        let elsewhere = customer_id("cus_other");
        let pushes = billed.pushes().await;
        let push = pushes.iter().find(|push| push.window == order.window).unwrap();
        let push = Push { customer: Some(elsewhere.clone()), ..push.clone() };
        billed.read_twice(&push, order.provider).await;
        let order = ReissueOrder { customer: elsewhere, ..order };
        let ruling = billed.f.store.record_reissue(order, billed.f.now).await.unwrap();
        assert!(matches!(ruling, Ruling::Refused(why) if why.contains("another customer")));
    }
    assert_eq!(billed.told().await.len(), 3);
    // What the old one lost is sent to the old one again.
    let again = corrected(&billed, "tokens", 1, ["15", "5"]).await;
    let claimed = billed.claim_one(6).await;
    assert_eq!((claimed.push.number, claimed.customer.as_str()), (again, "cus_acme"));
}

pub async fn submitted_and_dead_ones_are_taken_for_what_they_are(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    confirmed(&billed, "e1", "tokens", "4", 0).await;
    billed.planned("acme", "e2", "tokens", "6", 0).await;
    let submitted = billed.send(billed.accepted(3), 3).await;
    billed.planned("acme", "e3", "tokens", "100", 0).await;
    let dead = billed.send(REFUSED, 4).await;
    let again = corrected(&billed, "tokens", 0, ["10", "4"]).await;
    let last = billed.push(again).await;
    assert_eq!((last.revision, last.quantity, last.value), (5, quantity("6"), quantity("6")));
    assert_eq!(billed.push(submitted).await.state, PushState::Submitted);
    assert_eq!(billed.push(dead).await.state, PushState::Dead);
    assert_eq!(billed.send(billed.accepted(6), 6).await, again);
    assert_eq!(expected(&billed).await, quantity("10"));
    // What is dead is still retried as it was.
    let retried = billed.f.store.retry_push(dead, after(billed.f.now, 7)).await.unwrap();
    let Ruling::Done(Some(retried)) = retried else { panic!("{retried:?}") };
    assert_eq!(billed.push(retried).await.revision, 6);
}

pub async fn absolute_totals_are_told_whole(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    confirmed(&billed, "e1", "peak", "10", 0).await;
    let again = corrected(&billed, "peak", 0, ["10", "4"]).await;
    let rows = [(1, "10", "10"), (2, "-6", "4"), (3, "6", "10")];
    assert_eq!(billed.told().await, told(&rows));
    assert_eq!(sums(&billed, "peak", 0).await.settled, quantity("4"));
    assert_eq!(billed.send(billed.accepted(6), 6).await, again);
    assert_eq!(expected(&billed).await, quantity("10"));
    assert!(billed.settle_number(again, None, CONFIRMED, 7).await);
    // What is dead of the window is part of the total, and overtaken by it.
    billed.planned("acme", "e2", "peak", "2", 0).await;
    let dead = billed.send(REFUSED, 8).await;
    let again = corrected(&billed, "peak", 0, ["10", "4"]).await;
    assert_eq!(billed.push(again).await.value, quantity("12"));
    assert_eq!(billed.send(billed.accepted(9), 9).await, again);
    assert_eq!(expected(&billed).await, quantity("12"));
    assert_eq!(billed.push(dead).await.class, Class::Overtaken);
}

pub async fn shadow_and_single_events_are_corrected_alike(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.terms.shadow = true;
    billed.used("e1", "single", "2", 0).await;
    billed.used("e2", "single", "3", 0).await;
    assert_eq!(billed.cut("single", &[0]).await, 2);
    for minute in [1, 2] {
        let number = billed.send(billed.accepted(minute), minute).await;
        assert!(billed.settle_number(number, None, CONFIRMED, minute).await);
    }
    let again = billed.push(corrected(&billed, "single", 0, ["5", "1"]).await).await;
    assert_eq!((again.revision, again.value), (4, quantity("4")));
    assert!(again.shadow && again.event.is_none());
    assert_eq!(billed.send(billed.accepted(6), 6).await, again.number);
    assert_eq!(expected(&billed).await, quantity("5"));
    billed.used("e3", "single", "1", 0).await;
    assert_eq!(billed.cut("single", &[0]).await, 1, "only the new event is cut");
    assert_eq!(billed.pushes().await.pop().unwrap().revision, 5);
}

pub async fn confirmed_pushes_are_closed(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    let mut numbers = Vec::new();
    for hour in 0..3 {
        numbers.push(confirmed(&billed, &format!("e{hour}"), "tokens", "1", hour).await);
    }
    numbers.push(confirmed(&billed, "w", "whole", "1", 0).await);
    billed.planned("acme", "s", "tokens", "1", 0).await;
    let submitted = billed.send(billed.accepted(3), 3).await;
    let meter = billed.f.meter_no("tokens").await;
    let range = Window { start: window(0).start, end: window(2).start };
    let close = async |billed: &Billed, tenant: &str, minute: i64| {
        let at = after(billed.f.now, minute);
        billed.f.store.close_pushes(&tenant_id(tenant), meter, range, at).await.unwrap()
    };
    assert_eq!(close(&billed, "nobody", 5).await, 0);
    assert_eq!(close(&billed, "acme", 5).await, 2);
    billed.f.restart().await;
    assert_eq!(close(&billed, "acme", 6).await, 0, "they are closed");
    for number in &numbers[..2] {
        let trace = billed.trace(*number).await;
        let (state, class) = (PushState::Reconciled, Class::Reconciled);
        assert_eq!((trace.push.state, trace.push.class), (state, class));
        assert_eq!(trace.push.state_at, after(billed.f.now, 5));
        assert_eq!(steps(&trace).last(), Some(&(state, class, 1)));
    }
    for number in &numbers[2..] {
        assert_eq!(billed.push(*number).await.state, PushState::Confirmed);
    }
    assert_eq!(billed.push(submitted).await.state, PushState::Submitted);
    assert_eq!(sums(&billed, "tokens", 0).await.settled, quantity("2"), "they still count");
}
