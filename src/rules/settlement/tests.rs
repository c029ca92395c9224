//! Settlements and rulings, by tables: what is planned, and what is refused where rows contradict.

use super::*;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::push::{KeyParts, push_key};
use crate::rules::samples::{acme, customer, fact, quantity};
use crate::rules::window::Window;

pub fn at(minute: i64) -> Timestamp {
    Timestamp::from_micros(minute * 60_000_000)
}

/// Push 7: the second revision of an hour, begun once and leased under fence 3.
pub fn stored() -> StoredPush {
    let window = Window { start: at(0), end: at(60) };
    let value = quantity("5");
    let parts =
        KeyParts { tenant: "acme", meter: "calls", window_start: at(0), revision: 2, value };
    StoredPush {
        push: Push {
            number: 7,
            tenant: acme(),
            meter: MeterNo(1),
            window,
            revision: 2,
            shadow: false,
            mode: Mode::Delta,
            quantity: value,
            value,
            key: push_key(&[0; 32], parts),
            stamped_at: at(30),
            subscriptions: r#"{"":"5"}"#.into(),
            event: None,
            state: PushState::Observed,
            class: Class::Attempt,
            detail: Some("said before".into()),
            customer: Some(customer("cus_a")),
            attempts: 1,
            first_attempt_at: Some(at(61)),
            due_at: at(61),
            created_at: at(60),
            state_at: at(60),
        },
        tenant_no: TenantNo(1),
        slug: "calls".into(),
        tenant_customer: Some(customer("cus_a")),
        fence: 3,
        leased_until: Some(at(70)),
        request: Some(b"bytes".to_vec()),
        request_keys: 0,
        unreadable_since: None,
        looked: None,
    }
}

/// The same, come into another state.
pub fn stored_as(state: PushState, class: Class) -> StoredPush {
    let mut found = stored();
    (found.push.state, found.push.class, found.leased_until) = (state, class, None);
    found
}

fn window() -> CutState {
    let new = CutState::new(false);
    CutState { count: 4, total: quantity("9"), planned: quantity("9"), revision: 2, ..new }
}

fn settlement(class: Class, next: Next) -> Settlement {
    let (request_id, detail) = (Some("req_1".into()), Some("said now".into()));
    Settlement { push: 7, right: Right::Lease(3), class, next, request_id, detail }
}

#[test]
fn every_settlement_changes_its_push_and_adds_to_its_history() {
    let check = |class, next: Next, expected: (PushState, Class, &str, i64), then: Then| {
        let settled = plan_settlement(&stored(), &settlement(class, next.clone()), at(65));
        let Settled { change, then: follows } = settled.expect("sound");
        let detail = change.detail.as_deref().unwrap_or_default();
        let found = (change.state, change.class, detail, change.due_at.micros() / 60_000_000);
        assert_eq!((found, follows), (expected, then), "{next:?}");
        let note =
            Note { class, request_id: Some("req_1".into()), detail: Some("said now".into()) };
        assert_eq!(change.note, note);
        let moved = if change.state == PushState::Observed { at(60) } else { at(65) };
        assert_eq!((change.state_at, change.attempt, change.push), (moved, 1, 7));
    };
    use Class::{Absent, Accepted, Confirmed, Refused, Unknown};
    use PushState::{Dead, Observed, Replaced, Submitted};
    let (until, look_at, said) = (at(90), at(80), "said now");
    let wait = Next::Wait { until, fresh_request_key: false };
    check(Unknown, wait, (Observed, Unknown, said, 90), Then::Nothing);
    check(Unknown, Next::Unread { until }, (Observed, Unknown, said, 90), Then::Nothing);
    let looked = Next::Looked { total: quantity("1"), until };
    check(Unknown, looked, (Observed, Unknown, said, 90), Then::Nothing);
    let submitted = Next::Submitted { look_at };
    check(Accepted, submitted, (Submitted, Accepted, said, 80), Then::Nothing);
    let confirmed = (PushState::Confirmed, Confirmed, said, 61);
    check(Confirmed, Next::Confirmed, confirmed, Then::Nothing);
    check(Refused, Next::Dead, (Dead, Refused, said, 61), Then::Nothing);
    check(Absent, Next::Replaced, (Replaced, Absent, said, 61), Then::Replace);
}

#[test]
fn a_wait_keeps_what_a_submitted_push_says() {
    let found = stored_as(PushState::Submitted, Class::Accepted);
    let next = Next::Wait { until: at(90), fresh_request_key: true };
    let given = Settlement { detail: None, ..settlement(Class::Unknown, next) };
    let change = plan_settlement(&found, &given, at(65)).expect("sound").change;
    assert_eq!((change.state, change.class), (PushState::Submitted, Class::Accepted));
    assert_eq!((change.detail.as_deref(), change.request_keys), (Some("said before"), 1));
    assert_eq!(change.note.class, Class::Unknown);
}

#[test]
fn what_could_not_be_read_is_kept_until_it_could() {
    let check = |before: Option<i64>, given: &Settlement, after: Option<i64>| {
        let found = StoredPush { unreadable_since: before.map(at), ..stored() };
        let change = plan_settlement(&found, given, at(65)).expect("sound").change;
        assert_eq!(change.unreadable_since, after.map(at));
    };
    let unread = settlement(Class::Unknown, Next::Unread { until: at(90) });
    check(None, &unread, Some(65));
    check(Some(50), &unread, Some(50));
    let taken = settlement(Class::Accepted, Next::Submitted { look_at: at(80) });
    check(Some(50), &taken, None);
}

#[test]
fn a_settlement_is_current_under_its_lease_or_its_reading() {
    let (settled, wait) = (Next::Confirmed, Next::Wait { until: at(9), fresh_request_key: false });
    let expected = quantity("9");
    let check = |found: &StoredPush, right, next: &Next, now: Option<Quantity>, current: bool| {
        let given = Settlement { right, ..settlement(Class::Confirmed, next.clone()) };
        assert_eq!(is_current(found, &given, now), current, "{right:?} {next:?} {now:?}");
    };
    check(&stored(), Right::Lease(3), &settled, None, true);
    check(&stored(), Right::Lease(2), &settled, None, false);
    let free = StoredPush { leased_until: None, ..stored() };
    check(&free, Right::Lease(3), &settled, None, false);
    let reading = Right::Reading { expected };
    let submitted = stored_as(PushState::Submitted, Class::Accepted);
    check(&submitted, reading, &settled, Some(expected), true);
    check(&submitted, reading, &settled, Some(quantity("8")), false);
    check(&submitted, reading, &settled, None, false);
    check(&submitted, reading, &wait, None, true);
    check(&stored(), reading, &wait, None, false);
}

#[test]
fn a_replacement_hands_the_quantity_on() {
    let Replacing { state, push } =
        plan_replacing(&stored(), &window(), PushState::Observed).expect("sound");
    assert_eq!((state.revision, state.planned), (3, quantity("9")));
    assert_eq!((push.planned.revision, push.planned.quantity), (3, quantity("5")));
    assert_eq!(push.detail.as_deref(), Some("takes the place of push 7"));
    assert_eq!((push.state, push.customer), (PushState::Observed, None));
}

#[test]
fn rulings_say_why_they_are_refused() {
    let dead = stored_as(PushState::Dead, Class::Unreadable);
    let own = WindowPush::from(&dead.push);
    let begun = WindowPush { number: 8, ..WindowPush::from(&stored().push) };
    let check = |may, pushes: &[WindowPush], expected: &str| {
        let ruled = plan_retry(&dead, may, pushes, at(99)).expect("sound");
        let found = match &ruled {
            Ruled::Refused(why) => (*why).to_owned(),
            Ruled::Replaced(change) => format!("replaced {}", change.class.name()),
            Ruled::Changed(change) => format!("{} at {}", change.state.name(), change.due_at),
        };
        assert_eq!(found, expected);
    };
    check(Err("no"), &[], "no");
    check(Ok(Retry::Replace), &[], "replaced retried");
    check(Ok(Retry::Look), &[own], "observed at 1970-01-01T01:39:00Z");
    let unresolved = "another push of its window is unresolved; retry this one when that is over";
    check(Ok(Retry::Look), &[begun], unresolved);
    let written_off = plan_discard(&dead, "small", at(99)).expect("sound");
    let Ruled::Changed(change) = written_off else { panic!("it is discarded") };
    assert_eq!((change.state, change.detail.as_deref()), (PushState::Discarded, Some("small")));
    assert!(matches!(plan_discard(&stored(), "small", at(99)), Ok(Ruled::Refused(_))));
}

#[test]
fn a_push_moves_only_along_the_arrows_of_its_life() {
    use PushState::{
        Confirmed, Dead, Discarded, Observed, Reconciled, Replaced, Submitted, Waiting,
    };
    let arrows: [(PushState, &[PushState]); 8] = [
        (Waiting, &[Waiting, Observed, Replaced]),
        (Observed, &[Waiting, Observed, Submitted, Confirmed, Dead, Replaced]),
        (Submitted, &[Submitted, Confirmed, Dead]),
        (Confirmed, &[Reconciled]),
        (Reconciled, &[]),
        (Dead, &[Observed, Discarded, Replaced]),
        (Discarded, &[Replaced]),
        (Replaced, &[]),
    ];
    for (from, reached) in arrows {
        for to in PushState::ALL {
            assert_eq!(is_legal(from, to), reached.contains(&to), "{from:?} to {to:?}");
        }
    }
    for state in PushState::ALL {
        assert!(Class::ALL.into_iter().any(|class| is_reason_for(state, class)), "{state:?}");
    }
}

#[test]
fn rows_that_contradict_are_settled_by_nothing() {
    let check_given = |change: fn(&mut StoredPush), given: Settlement, expected: &str| {
        let mut found = stored();
        change(&mut found);
        let fault = plan_settlement(&found, &given, at(65)).expect_err(expected);
        assert_eq!(fault.fact, expected);
        assert!(fault.ids.contains("tenant=acme push=7"), "{fault}");
    };
    let submitted = Next::Submitted { look_at: at(80) };
    let check = |change: fn(&mut StoredPush), expected: &str| {
        check_given(change, settlement(Class::Accepted, submitted.clone()), expected);
    };
    check(|found| found.push.window.end = at(0), "a push's window ends after its start");
    check(|found| found.push.stamped_at = at(60), "a push is stamped strictly inside its window");
    check(|found| found.push.revision = 0, "revisions begin at 1");
    check(|found| found.push.value = Quantity::ONE, "a delta push sends its quantity");
    check(|found| found.push.key = "cf2-".into(), "a push has a key of this store's form");
    let first = "a push has the time of its first attempt if it has attempts";
    check(|found| found.push.first_attempt_at = None, first);
    check(|found| found.request = None, "an attempt is stored with its customer and its bytes");
    check(|found| found.push.state = PushState::Submitted, "only an observed push is leased");
    let confirmed = |found: &mut StoredPush| {
        (found.push.state, found.leased_until) = (PushState::Confirmed, None);
    };
    check(confirmed, "a push moves along the arrows of its life");
    let waiting = |found: &mut StoredPush| {
        (found.push.state, found.leased_until) = (PushState::Waiting, None);
    };
    let wait = Next::Wait { until: at(90), fresh_request_key: false };
    let unsent = "a push that waits for a customer was never sent";
    check_given(waiting, settlement(Class::Cut, wait), unsent);
    let reason = "a push is in its state for a reason of that state";
    check_given(|_| {}, settlement(Class::Refused, submitted.clone()), reason);
    let lacked = "only a push that the provider's total lacks is replaced by a settlement";
    check_given(|_| {}, settlement(Class::Refused, Next::Replaced), lacked);
}

#[test]
fn windows_that_contradict_replace_and_overtake_nothing() {
    let replace = |state: CutState| fact(plan_replacing(&stored(), &state, PushState::Observed));
    let below = CutState { revision: 1, ..window() };
    assert_eq!(replace(below), "a window's revision is not below that of its pushes");
    let shadow = CutState { shadow: true, ..window() };
    assert_eq!(replace(shadow), "a push is shadow exactly if its window is");
    let last = CutState { revision: u32::MAX, ..window() };
    assert_eq!(replace(last), "a window has a next revision");

    let dead = || {
        let mut dead = stored_as(PushState::Dead, Class::Refused);
        (dead.push.number, dead.push.revision, dead.push.mode) = (6, 1, Mode::Absolute);
        dead
    };
    let mut taken = stored().push;
    taken.mode = Mode::Absolute;
    let overtaken = plan_overtaking(&dead(), &taken, at(65)).expect("sound");
    assert_eq!(overtaken.detail.as_deref(), Some("overtaken by push 7"));
    let check = |change: fn(&mut Push), expected: &str| {
        let mut dead = dead();
        change(&mut dead.push);
        assert_eq!(fact(plan_overtaking(&dead, &taken, at(65))), expected);
    };
    check(|push| push.meter = MeterNo(2), "a push is overtaken within its window");
    check(|push| push.revision = 2, "a push is overtaken by a later revision");
    check(|push| push.mode = Mode::Delta, "only totals overtake each other");
    check(|push| push.state = PushState::Confirmed, "a push moves along the arrows of its life");
}

#[test]
fn an_attempt_needs_its_lease_and_a_sound_row() {
    let plan = |found: &StoredPush, fence, minute| {
        let (customer, request) = (customer("cus_a"), b"other bytes".to_vec());
        let intent = AttemptIntent { push: 7, fence, customer, request };
        plan_attempt(found, &intent, at(minute))
    };
    assert_eq!(plan(&stored(), 3, 65), Ok(true));
    assert_eq!(plan(&stored(), 2, 65), Ok(false));
    assert_eq!(plan(&stored(), 3, 70), Ok(false), "it has ended");
    let unsent = fact(plan(&StoredPush { request: None, ..stored() }, 3, 65));
    assert_eq!(unsent, "an attempt is stored with its customer and its bytes");
    let mut worn = stored();
    worn.push.attempts = u32::MAX;
    assert_eq!(fact(plan(&worn, 3, 65)), "a push has a next attempt");
}

#[test]
fn only_what_waits_is_released() {
    let mut waits = stored_as(PushState::Waiting, Class::Cut);
    (waits.push.attempts, waits.push.first_attempt_at) = (0, None);
    (waits.push.customer, waits.request) = (None, None);
    let check = |age: Option<Span>, expected: (PushState, Class, &str)| {
        let change = plan_release(&waits, age, at(99)).expect("sound");
        let detail = change.detail.as_deref().unwrap_or_default();
        assert_eq!((change.state, change.class, detail), expected);
    };
    check(None, (PushState::Observed, Class::Cut, "its tenant has a customer now"));
    let old = "too old to be sent when its tenant got a customer";
    check(Some(Span::from_minutes(5)), (PushState::Replaced, Class::NotSent, old));
    let released = fact(plan_release(&stored(), None, at(99)));
    assert_eq!(released, "only a push that waits is released");
    let submitted = stored_as(PushState::Submitted, Class::Accepted);
    let withheld = fact(plan_withholding(&submitted, at(99)));
    assert_eq!(withheld, "a push moves along the arrows of its life");
    let dead = stored_as(PushState::Dead, Class::Refused);
    assert_eq!(fact(plan_closing(&dead, at(99))), "a push moves along the arrows of its life");
}

#[test]
fn a_comparison_adopts_what_the_provider_holds() {
    let open = stored();
    let mut settled = stored_as(PushState::Confirmed, Class::Confirmed);
    (settled.push.number, settled.push.revision) = (6, 1);
    (settled.push.quantity, settled.push.value) = (quantity("4"), quantity("4"));
    let pushes = [settled, open.clone()];
    let (state, whose) = (window(), customer("cus_a"));
    let compare = |pushes: &[StoredPush], state: &CutState, total: &str| {
        let restored_at = Some(at(62));
        let compared =
            ComparedWindow { pushes, customer: &whose, doubtful: false, restored_at, state };
        let given = settlement(Class::Unknown, Next::Confirmed);
        plan_comparison(&open, compared, &given, (quantity(total), at(80)), at(65))
    };
    let Ok(Followed::Adopt(adopting)) = compare(&pushes, &state, "7") else {
        panic!("3 of 5 are at the provider")
    };
    let show = |push: &NewPush| {
        format!("{}:{}:{}", push.planned.revision, push.planned.quantity, push.state.name())
    };
    let texts: Vec<String> = adopting.pushes.iter().map(show).collect();
    assert_eq!(texts, ["3:3:confirmed", "4:2:observed"]);
    assert_eq!((adopting.state.revision, adopting.changes.len()), (4, 1));
    let said = "compared after a restore: the provider's total of the window is 7; the store knows \
                of 4, and of 9 with what is to be sent";
    assert_eq!(adopting.changes[0].detail.as_deref(), Some(said));
    assert!(matches!(compare(&pushes, &state, "9"), Ok(Followed::Settle(_))));
    assert!(matches!(compare(&pushes, &state, "4"), Ok(Followed::Settle(_))));
    let below = CutState { revision: 1, ..state.clone() };
    let refused = fact(compare(&pushes, &below, "7"));
    assert_eq!(refused, "a window's revision is not below that of its pushes");
    assert_eq!(fact(compare(&pushes[..1], &state, "7")), "a push that is compared is open");
}
