//! Plans: texts, histories and counts that every store must answer alike, and rows that contradict
//! each other, which refuse the operation that meets them and nothing else.

use crate::billed::{Billed, after, quantity, window};
use crate::fixture::{Fixture, event, tenant_id};
use crate::reissues::order;
use counterfoil::rules::submission::{Class, Next};
use counterfoil::store::push::{AttemptIntent, Push, PushRelease, Right, Ruling, Settlement};
use counterfoil::store::webhook::Rejection;
use counterfoil::store::{Error, Result};

const REFUSED: (Class, Next) = (Class::Refused, Next::Dead);
const ABSENT: (Class, Next) = (Class::Absent, Next::Replaced);
const CONFIRMED: (Class, Next) = (Class::Confirmed, Next::Confirmed);

async fn retry(billed: &Billed, number: u64, minute: i64) -> String {
    say(billed.f.store.retry_push(number, after(billed.f.now, minute)).await)
}

async fn discard(billed: &Billed, number: u64, minute: i64) -> String {
    say(billed.f.store.discard_push(number, "by hand", after(billed.f.now, minute)).await)
}

fn say(ruling: Result<Ruling>) -> String {
    match ruling.unwrap() {
        Ruling::Done(Some(number)) => format!("done: {number}"),
        Ruling::Done(None) => "done".into(),
        Ruling::Refused(why) => format!("refused: {why}"),
        Ruling::NotFound => "not found".into(),
    }
}

async fn reject(billed: &Billed, number: u64, minute: i64) -> String {
    let key = billed.push(number).await.key;
    let samples = vec![(key, "no such meter".to_owned())];
    let recheck = Some((billed.push(number).await.meter, window(24 * 365)));
    let rejection = Rejection { samples, recheck };
    let report = billed.f.store.reject_pushes(rejection, after(billed.f.now, minute)).await;
    let report = report.unwrap();
    format!("rejected {} rechecked {} busy {}", report.rejected, report.rechecked, report.busy)
}

/// Every push with its history, as text; `minute` counts from the fixture's now.
async fn histories(billed: &Billed) -> Vec<String> {
    let mut lines = Vec::new();
    for push in billed.pushes().await {
        let trace = billed.trace(push.number).await;
        let (number, state, class) = (push.number, push.state.name(), push.class.name());
        let (revision, told) = (push.revision, push.value);
        let said = push.detail.unwrap_or_default();
        lines.push(format!("{number} r{revision} tells {told}: {state} ({class}) {said}"));
        for row in trace.transitions {
            let minute = (row.at.micros() - billed.f.now.micros()) / 60_000_000;
            let (state, class, attempt) = (row.state.name(), row.class.name(), row.attempt);
            let said = row.detail.unwrap_or_default();
            let id = row.request_id.unwrap_or_default();
            lines.push(format!("  {minute} {state} ({class}) {attempt} {id} {said}"));
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// What the verbs of [`live`] answer.
const ANSWERS: &[&str] = &[
    "refused: only a dead push can be retried; this one is still being processed",
    "refused: only a dead push can be discarded; this one is still being processed",
    "done: 2",
    "rejected 1 rechecked 0 busy 0",
    "rejected 0 rechecked 0 busy 0",
    "done",
    "refused: an operator discarded it before, with a reason",
    "refused: an operator discarded it, with a reason",
    "refused: the provider's total is not what the window was judged by",
    "done: 6",
    "refused: something of the window was sent to the provider since it was judged",
];

/// What they leave.
const HISTORIES: &[&str] = &[
    "1 r1 tells 5: replaced (retried) said at 1",
    "  0 observed (cut) 0",
    "  1 observed (attempt) 1",
    "  1 dead (refused) 1 req_1 said at 1",
    "  2 replaced (retried) 1  said at 1",
    "2 r2 tells 5: discarded (discarded) by hand",
    "  2 observed (cut) 0  takes the place of push 1",
    "  3 observed (attempt) 1",
    "  3 submitted (accepted) 1 req_3 said at 3",
    "  4 dead (refused) 1  no such meter",
    "  6 discarded (discarded) 1  by hand",
    "3 r1 tells 7: replaced (absent) said at 10",
    "  0 observed (cut) 0",
    "  10 observed (attempt) 1",
    "  10 replaced (absent) 1 req_10 said at 10",
    "4 r2 tells 7: confirmed (confirmed) said at 12",
    "  10 observed (cut) 0  takes the place of push 3",
    "  11 observed (attempt) 1",
    "  11 submitted (accepted) 1 req_11 said at 11",
    "  12 confirmed (confirmed) 1 req_12 said at 12",
    "5 r3 tells -4: reconciled (lost) found by pass 77",
    "  20 reconciled (lost) 0  found by pass 77",
    "6 r4 tells 4: observed (reissue) found by pass 77",
    "  20 observed (reissue) 0  found by pass 77",
    "7 r1 tells 2: replaced (overtaken) overtaken by push 8",
    "  0 observed (cut) 0",
    "  30 observed (attempt) 1",
    "  30 dead (refused) 1 req_30 said at 30",
    "  45 replaced (overtaken) 1  overtaken by push 8",
    "8 r2 tells 5: submitted (accepted) said at 45",
    "  0 observed (cut) 0",
    "  45 observed (attempt) 1",
    "  45 submitted (accepted) 1 req_45 said at 45",
    "9 r1 tells 1: observed (cut) its tenant has a customer now",
    "  0 waiting (cut) 0",
    "  0 observed (cut) 0  its tenant has a customer now",
];

/// A life with every verb that changes pushes; returns what each has answered.
async fn live(billed: &Billed) -> Vec<String> {
    let mut said = Vec::new();
    // 1: refused, retried as 2, which a report refuses, and which is written off.
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    said.push(retry(billed, 1, 0).await);
    said.push(discard(billed, 1, 0).await);
    billed.send(REFUSED, 1).await;
    said.push(retry(billed, 1, 2).await);
    billed.send(billed.accepted(3), 3).await;
    said.push(reject(billed, 2, 4).await);
    said.push(reject(billed, 2, 5).await);
    said.push(discard(billed, 2, 6).await);
    said.push(discard(billed, 2, 6).await);
    said.push(retry(billed, 2, 6).await);
    // 3: absent, replaced by 4, which is confirmed, lost (5) and sent again (6).
    billed.planned("acme", "e2", "tokens", "7", 1).await;
    billed.send(ABSENT, 10).await;
    billed.send(billed.accepted(11), 11).await;
    assert!(billed.settle_number(4, None, CONFIRMED, 12).await);
    let lost = order(billed, "tokens", 1, ["7", "3"]).await;
    let correct =
        async || say(billed.f.store.record_reissue(lost.clone(), after(billed.f.now, 20)).await);
    said.push(correct().await);
    billed.read_twice(&billed.push(4).await, quantity("3")).await;
    said.push(correct().await);
    said.push(correct().await);
    // 7: a dead total, overtaken by 8.
    billed.planned("acme", "e3", "peak", "2", 2).await;
    let dead = billed.claim(30).await.into_iter().find(|one| one.push.number == 7).unwrap();
    billed.finish(&dead, REFUSED, 30).await;
    billed.planned("acme", "e4", "peak", "3", 2).await;
    let taken = billed.claim(45).await.into_iter().find(|one| one.push.number == 8).unwrap();
    billed.finish(&taken, billed.accepted(45), 45).await;
    // 9: waits for its tenant's customer.
    billed.planned("umbrella", "e5", "tokens", "1", 3).await;
    billed.customer("umbrella", "cus_umbrella").await;
    said
}

pub async fn histories_and_refusals_have_one_text(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    assert_eq!(live(&billed).await, ANSWERS);
    assert_eq!(histories(&billed).await, HISTORIES);
}

/// While events are left, a window's count is of those that were cut; trials count with the last.
pub async fn a_count_is_of_the_events_that_were_cut(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.terms.events_max = 2;
    let at = |second: i64| window(0).start.saturating_add_micros(second * 1_000_000).to_string();
    let click = |id: &str, second| event("acme", id, "clicks", "1", &at(second), "{}");
    let trial = click("trial", 5).replace(r#""properties""#, r#""trial":true,"properties""#);
    billed.f.deliver(&[click("a", 1), click("b", 2), click("c", 3), trial]).await;
    assert_eq!(billed.cut("clicks", &[0]).await, 2);
    assert_eq!(billed.state("clicks", 0).await.unwrap().count, 2, "one event is left");
    assert_eq!(billed.cut("clicks", &[0]).await, 1);
    assert_eq!(billed.state("clicks", 0).await.unwrap().count, 4, "with the trial");
    assert_eq!(billed.cut("clicks", &[0]).await, 0);
}

/// The refusal of a cut, as text.
async fn refused(billed: &Billed, meter: &str, hours: &[i64]) -> String {
    let orders = billed.orders("acme", meter, hours).await;
    let cut = billed.f.store.record_cuts(&billed.lease, orders, billed.terms).await;
    cut.unwrap_err().to_string()
}

/// A window whose rows contradict is refused with the fact and its ids; others are cut.
pub async fn a_contradicting_window_is_refused_alone(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    billed.planned("acme", "e2", "tokens", "7", 1).await;
    billed.used("e3", "tokens", "1", 0).await;
    billed.used("e4", "tokens", "1", 1).await;
    let place = "tenant=acme meter=tokens window=2026-11-12T00:00:00Z..2026-11-12T01:00:00Z";
    for (sql, fact, ids) in [
        (
            "UPDATE cuts SET planned = '6' WHERE total = '5'",
            "what was planned for a window is the sum of its pushes",
            "planned=6 pushes=5",
        ),
        (
            "UPDATE cuts SET planned = '5', revision = 2 WHERE total = '5'",
            "a window's revision is that of its last push",
            "window_revision=2 push_revision=1",
        ),
        (
            "UPDATE cuts SET revision = 1, count = 9 WHERE total = '5'",
            "a window never loses events",
            "count=2 count_before=9",
        ),
        (
            "UPDATE cuts SET count = 1 WHERE total = '5';
             UPDATE pushes SET mode = 'absolute' WHERE value = '5'",
            "pushes of a window have the mode of their meter",
            "revision=1 mode=absolute",
        ),
    ] {
        billed.f.plant(sql).await;
        let expected = format!("internal fault: {fact} ({place} {ids})");
        assert_eq!(refused(&billed, "tokens", &[0]).await, expected);
        // A call is one transaction.
        assert_eq!(refused(&billed, "tokens", &[0, 1]).await, expected);
        assert_eq!(billed.pushes().await.len(), 2, "nothing is written");
    }
    let faults = billed.f.store.health().faults;
    assert_eq!(faults.len(), 4, "each is kept once: {faults:?}");
    assert!(faults.iter().all(|fault| fault.contains(place)), "{faults:?}");
    assert_eq!(billed.cut("tokens", &[1]).await, 1, "the other window is cut");
    billed.f.plant("UPDATE pushes SET mode = 'delta'").await;
    assert_eq!(billed.cut("tokens", &[0]).await, 1, "what was fixed is cut");
    assert_eq!(billed.f.store.health().faults, faults, "they are shown until the store is closed");
    billed.f.restart().await;
    assert_eq!(billed.f.store.health().faults, Vec::<String>::new());
}

/// A push whose row contradicts itself is sent, settled, ruled on, reported, corrected and closed
/// by nothing; each verb names the same fact.
pub async fn a_contradicting_push_is_changed_by_nothing(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("umbrella", "e1", "tokens", "5", 0).await;
    billed.planned("acme", "e2", "tokens", "5", 0).await;
    let (claimed, now) = (billed.claim_one(1).await, after(billed.f.now, 2));
    let number = claimed.push.number;
    let plant = async |state: &str| {
        let leased = if state == "observed" { "leased_until" } else { "NULL" };
        let sql = format!(
            "UPDATE pushes SET stamped_at = window_end, state = '{state}', leased_until = {leased}"
        );
        billed.f.plant(&sql).await;
    };
    let check = |verb: &str, outcome: std::result::Result<(), Error>| {
        let said = outcome.expect_err(verb).to_string();
        let fact = "internal fault: a push is stamped strictly inside its window (tenant=";
        assert!(said.starts_with(fact), "{verb}: {said}");
    };
    let store = &billed.f.store;
    plant("observed").await;
    let intent = AttemptIntent {
        push: number,
        fence: claimed.fence,
        customer: claimed.customer.clone(),
        request: b"bytes".to_vec(),
    };
    check("begin", store.begin_attempts(vec![intent], now).await.map(drop));
    let settlement = Settlement {
        push: number,
        right: Right::Lease(claimed.fence),
        class: Class::TooOld,
        next: Next::Dead,
        request_id: None,
        detail: None,
    };
    check("settle", store.settle_pushes(vec![settlement], now).await.map(drop));
    plant("dead").await;
    check("discard", store.discard_push(number, "by hand", now).await.map(drop));
    plant("submitted").await;
    let samples = vec![(claimed.push.key.clone(), "no".to_owned())];
    let rejection = Rejection { samples, recheck: None };
    check("reject", store.reject_pushes(rejection, now).await.map(drop));
    plant("confirmed").await;
    let (tenant, meter) = (tenant_id("acme"), claimed.push.meter);
    check("close", store.close_pushes(&tenant, meter, window(0), now).await.map(drop));
    let lost = order(&billed, "tokens", 0, ["5", "3"]).await;
    let told = Push { customer: Some(claimed.customer.clone()), ..claimed.push.clone() };
    billed.read(&told, quantity("3"), &[200_000, 200_100]).await;
    check("correct", store.record_reissue(lost, now).await.map(drop));
    plant("waiting").await;
    billed.f.customer("umbrella", "cus_umbrella").await;
    let release = PushRelease { now, stamp_age_max: None, limit: 10 };
    check("release", store.release_pushes(release).await.map(drop));
    let kept = store.health().faults.len();
    assert_eq!(kept, 3, "a push, its window, and the push of another tenant, each once");
}
