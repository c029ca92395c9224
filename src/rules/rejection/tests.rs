//! Reports of refused pushes, by tables.

use super::*;
use crate::rules::settlement::tests::{at, stored, stored_as};
use crate::rules::submission::Class;

#[test]
fn a_report_proves_a_refusal_only_of_a_single_attempt() {
    use PushState::{Confirmed, Dead, Discarded, Observed, Reconciled, Replaced, Submitted};
    let check = |state, attempts, leased, expected| {
        assert_eq!(judge_report(state, attempts, leased), expected, "{state:?} {attempts}");
    };
    check(Observed, 0, false, Reported::LeftAlone);
    check(Observed, 0, true, Reported::LeftAlone);
    check(Observed, 1, true, Reported::Busy);
    check(Observed, 2, true, Reported::Busy);
    check(Observed, 1, false, Reported::Refused);
    check(Observed, 2, false, Reported::Look);
    check(Submitted, 1, false, Reported::Refused);
    check(Submitted, 2, false, Reported::Look);
    for state in [Confirmed, Dead, Discarded, Reconciled, Replaced] {
        check(state, 1, false, Reported::LeftAlone);
    }
}

/// A push that was taken, and is to be looked for later.
fn taken(number: u64, key: &str) -> StoredPush {
    let mut found = stored_as(PushState::Submitted, Class::Accepted);
    (found.push.number, found.push.state_at, found.push.due_at) = (number, at(62), at(120));
    found.push.key = format!("cf1-{key:0>40}");
    found
}

fn report(keys: &[&str]) -> Rejection {
    let named = |key: &&str| (format!("cf1-{key:0>40}"), format!("no {key}"));
    let recheck = Some((MeterNo(1), Window { start: at(60), end: at(70) }));
    Rejection { samples: keys.iter().map(named).collect(), recheck }
}

#[test]
fn a_report_changes_what_it_names_and_what_was_taken_with_it() {
    let mut twice = taken(2, "b");
    twice.push.attempts = 2;
    let mut busy = stored();
    (busy.push.number, busy.push.key) = (4, format!("cf1-{:0>40}", "d"));
    let mut due = taken(5, "e");
    due.push.due_at = at(64);
    // Settled after the store had found it, and before it had its row.
    let mut settled = stored_as(PushState::Confirmed, Class::Accepted);
    (settled.push.number, settled.push.state_at) = (6, at(80));
    settled.push.key = format!("cf1-{:0>40}", "f");
    let concerned = [taken(1, "a"), twice, taken(3, "c"), busy, due, settled];
    let (found, changes) =
        plan_rejection(&report(&["a", "b", "d", "a"]), &concerned, at(65)).expect("sound");
    assert_eq!(found, RejectionReport { rejected: 1, rechecked: 2, busy: 1 });
    let texts: Vec<String> = changes
        .iter()
        .map(|change| {
            let said = change.note.detail.as_deref().unwrap_or_default();
            format!("{} {} {}: {said}", change.push, change.state.name(), change.due_at)
        })
        .collect();
    let expected = [
        "1 dead 1970-01-01T02:00:00Z: no a",
        "2 submitted 1970-01-01T01:05:00Z: no b",
        "3 submitted 1970-01-01T01:05:00Z: the provider refused others of its meter that it had \
         taken",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn reports_of_rows_that_contradict_change_nothing() {
    let check = |concerned: &[StoredPush], expected: &str| {
        let fault = plan_rejection(&report(&["a"]), concerned, at(65)).expect_err(expected);
        assert_eq!(fault.fact, expected);
    };
    check(&[taken(1, "a"), taken(1, "a")], "a report concerns a push once");
    let mut other = taken(3, "c");
    other.push.meter = MeterNo(2);
    check(&[other], "a report concerns the pushes that it names and those taken with them");
    let mut leased = taken(1, "a");
    leased.leased_until = Some(at(60));
    check(&[leased], "only an observed push is leased");
}
