//! Plans of grants: what they answer, and the faults of rows that contradict each other.

use super::ledger::{RecordedChange, WrittenChange, record_changes};
use super::*;
use crate::rules::account::{Entry, NewEntry, NewPosting, Posting};
use crate::rules::credit::covering::{CoverOrder, Draw};
use crate::rules::credit::{Covered, DrawOrder};
use crate::rules::ids::MeterNo;
use crate::rules::samples::{acme, fact, key, quantity, unit};
use crate::rules::window::Window;

const TENANT: TenantNo = TenantNo(1);
const METER: MeterNo = MeterNo(1);

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn terms() -> GrantTerms {
    GrantTerms {
        tenant: acme(),
        key: key("order-1"),
        pool: Pool::Granted,
        unit: unit("credits"),
        amount: quantity("10"),
        rates: BTreeMap::from([(METER, quantity("2"))]),
        priority: 50,
        effective_at: at(0),
        expires_at: Some(at(500)),
        memo: "welcome".to_owned(),
    }
}

fn grant(remaining: &str) -> Grant {
    Grant { number: 7, terms: terms(), remaining: quantity(remaining), created_at: at(0) }
}

fn window() -> Window {
    Window { start: at(100), end: at(200) }
}

/// A ledger that holds the grant, with this left of it.
fn holding(grant: Grant) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.hold(TENANT, grant).expect("a sound grant");
    ledger
}

fn order() -> VoidGrant {
    VoidGrant {
        tenant: acme(),
        grant: 7,
        key: key("void-1"),
        amount: None,
        reserved: Quantity::ZERO,
        memo: "not wanted".to_owned(),
    }
}

fn voided() -> CreditChange {
    CreditChange {
        number: 3,
        tenant: acme(),
        grant: 7,
        kind: ChangeKind::Voided,
        amount: quantity("4"),
        remaining: quantity("6"),
        covered: None,
        key: Some(key("void-1")),
        memo: "not wanted".to_owned(),
        at: at(9),
    }
}

fn change(kind: ChangeKind, amount: &str) -> NewChange {
    let (amount, memo) = (quantity(amount), String::new());
    NewChange { grant: 7, kind, amount, covered: None, key: None, memo }
}

fn drawn(kind: ChangeKind, used: &str, cost: &str) -> NewChange {
    let covered = Covered { meter: METER, window: window(), quantity: quantity(used) };
    NewChange { covered: Some(covered), ..change(kind, cost) }
}

#[test]
fn a_grant_is_issued_repeated_or_refused() {
    let answer = |plan: Result<Plan<GrantTerms, Issued>, Fault>| match plan.expect("no fault") {
        Plan::Answer(answer) => answer,
        Plan::Write(terms) => panic!("{terms:?}"),
    };
    assert_eq!(plan_issue(terms(), None, GRANTS_MAX - 1), Ok(Plan::Write(terms())));
    assert_eq!(answer(plan_issue(terms(), None, GRANTS_MAX)), Issued::TooMany);
    let standing = grant("0");
    let repeated = answer(plan_issue(terms(), Some(standing.clone()), GRANTS_MAX));
    assert_eq!(repeated, Issued::Repeated(standing.clone()));
    let other = GrantTerms { memo: "other".to_owned(), ..terms() };
    let taken = answer(plan_issue(other, Some(standing.clone()), 0));
    assert_eq!(taken, Issued::KeyTaken(standing.clone()));
    // A repeat that comes after the expiry has a moment which no new grant may have.
    let late = GrantTerms { effective_at: at(900), ..terms() };
    assert_eq!(answer(plan_issue(late, Some(standing.clone()), 0)), Issued::KeyTaken(standing));
}

#[test]
fn rows_that_contradict_a_grant_stop_its_issue() {
    let check = |change: fn(&mut Grant), expected: &str| {
        let mut standing = grant("10");
        change(&mut standing);
        assert_eq!(fact(plan_issue(terms(), Some(standing), 0)), expected);
    };
    check(|grant| grant.number = 0, "a grant has a number");
    check(|grant| grant.remaining = quantity("-1"), "what is left of a grant is not negative");
    let more = "no more is left of a grant than was issued";
    check(|grant| grant.remaining = quantity("10.000001"), more);
    let other = "a grant is found under its tenant and key";
    check(|grant| grant.terms.key = key("order-2"), other);
    let check = |change: fn(&mut GrantTerms), expected: &str| {
        let mut terms = terms();
        change(&mut terms);
        assert_eq!(fact(plan_issue(terms, None, 0)), expected);
    };
    check(|terms| terms.amount = Quantity::ZERO, "a grant is of something");
    check(|terms| terms.rates.clear(), "a grant pays for some meter");
    check(|terms| terms.rates = BTreeMap::from([(METER, Quantity::ZERO)]), "a rate is above zero");
    check(|terms| terms.priority = 101, "a grant's priority is within its bounds");
    check(|terms| terms.expires_at = Some(at(0)), "a grant expires after it takes effect");
}

#[test]
fn what_is_free_is_voided() {
    let check = |amount: Option<&str>, reserved: &str, expected: Result<&str, &str>| {
        let (amount, reserved) = (amount.map(quantity), quantity(reserved));
        let order = VoidGrant { amount, reserved, ..order() };
        let grant = grant("6");
        let plan = plan_void(&order, None, Some((&grant, Some(grant.remaining))));
        let expected = match expected {
            Ok(amount) => {
                let (key, memo) = (Some(order.key.clone()), order.memo.clone());
                let change = change(ChangeKind::Voided, amount);
                Plan::Write(NewChange { key, memo, ..change })
            }
            Err(free) => Plan::Answer(Voided::TooLittle(quantity(free))),
        };
        assert_eq!(plan, Ok(expected));
    };
    check(None, "0", Ok("6"));
    check(Some("6"), "0", Ok("6"));
    check(Some("6.000001"), "0", Err("6"));
    check(Some("2"), "4", Ok("2"));
    check(Some("2.5"), "4", Err("2"));
    check(None, "6", Err("0"));
    check(None, "9", Err("0"));
    // Nothing and less than nothing are no refunds.
    check(Some("0"), "0", Err("6"));
    check(Some("-1"), "0", Err("6"));
}

#[test]
fn a_key_answers_for_what_was_voided_under_it() {
    let check = |order: &VoidGrant, expected: Voided| {
        let plan = plan_void(order, Some(voided()), None);
        assert_eq!(plan, Ok(Plan::Answer(expected)));
    };
    check(&order(), Voided::Repeated(voided()));
    let same = VoidGrant { amount: Some(quantity("4")), ..order() };
    check(&same, Voided::Repeated(voided()));
    let others = [
        VoidGrant { amount: Some(quantity("5")), ..order() },
        VoidGrant { grant: 8, ..order() },
        VoidGrant { memo: String::new(), ..order() },
    ];
    for other in others {
        check(&other, Voided::KeyTaken(voided()));
    }
    let unknown = plan_void(&order(), None, None);
    assert_eq!(unknown, Ok(Plan::Answer(Voided::NotFound)));
}

#[test]
fn rows_that_contradict_stop_a_void() {
    let grant = grant("6");
    let found = Some((&grant, Some(grant.remaining)));
    let reserved = VoidGrant { reserved: quantity("-1"), ..order() };
    let expected = "what is reserved of a grant is not negative";
    assert_eq!(fact(plan_void(&reserved, None, found)), expected);
    let other = VoidGrant { grant: 8, ..order() };
    let expected = "a grant is found under its tenant and number";
    assert_eq!(fact(plan_void(&other, None, found)), expected);
    let expected = "what is left of a grant is what its last change left";
    for last in [None, Some(quantity("7"))] {
        assert_eq!(fact(plan_void(&order(), None, Some((&grant, last)))), expected);
    }
    let check = |change: fn(&mut CreditChange), expected: &str| {
        let mut standing = voided();
        change(&mut standing);
        assert_eq!(fact(plan_void(&order(), Some(standing), None)), expected);
    };
    check(|change| change.key = None, "a change is found under its tenant and key");
    check(|change| change.kind = ChangeKind::Drawn, "only refunds and voids have keys");
    check(|change| change.amount = Quantity::ZERO, "a refund is of something");
    check(|change| change.remaining = quantity("-1"), "a change leaves nothing negative");
}

#[test]
fn only_what_expired_is_ended_and_a_contradiction_keeps_no_other_back() {
    let check = |change: fn(&mut Grant), last: &str, by: i64, expected: &str| {
        let mut grant = grant("6");
        change(&mut grant);
        assert_eq!(fact(plan_expiry(&grant, Some(quantity(last)), at(by))), expected);
    };
    let early = "only a grant that has expired is ended";
    check(|_| (), "6", 499, early);
    check(|grant| grant.terms.expires_at = None, "6", 900, early);
    check(|grant| grant.remaining = Quantity::ZERO, "0", 500, "a grant is ended once");
    check(|_| (), "5", 500, "what is left of a grant is what its last change left");
    let ended = plan_expiry(&grant("6"), Some(quantity("6")), at(500)).expect("it expired");
    assert_eq!((ended.kind, ended.memo.as_str()), (ChangeKind::Expired, "expired"));

    let sound = Grant { number: 8, ..grant("6") };
    let (last, mut ledger) = (Some(quantity("6")), Ledger::default());
    let expired = vec![(TENANT, grant("6"), None), (TENANT, sound, last)];
    let faults = plan_expiries(&mut ledger, expired, at(500));
    assert_eq!(faults.len(), 1);
    let planned = ledger.take_planned();
    assert_eq!((planned.len(), planned[0].new.grant), (1, 8));
}

#[test]
fn changes_that_contradict_their_grant_are_not_planned() {
    let check = |grant: Grant, new: NewChange, expected: &str| {
        let mut ledger = holding(grant);
        assert_eq!(fact(ledger.plan(TENANT, new)), expected);
        assert_eq!(ledger.take_planned(), [], "nothing is written");
    };
    let unheld = NewChange { grant: 8, ..change(ChangeKind::Expired, "6") };
    check(grant("6"), unheld, "a change is of a grant that the transaction holds");
    let bounds = "a change leaves a grant between nothing and its amount";
    check(grant("6"), drawn(ChangeKind::Drawn, "4", "8"), bounds);
    check(grant("6"), drawn(ChangeKind::GivenBack, "3", "6"), bounds);
    check(grant("6"), drawn(ChangeKind::Drawn, "0", "0"), "a change is of something");
    let whole = "a grant is issued whole and once";
    check(grant("0"), change(ChangeKind::Issued, "9"), whole);
    check(grant("6"), change(ChangeKind::Issued, "4"), whole);
    check(grant("6"), change(ChangeKind::Expired, "5"), "an expired grant has nothing left");
    let refund = NewChange { key: Some(key("r")), ..change(ChangeKind::Refunded, "1") };
    check(grant("6"), refund.clone(), "only what was paid for is refunded");
    let mut bought = grant("6");
    bought.terms.pool = Pool::Purchased;
    let void = NewChange { kind: ChangeKind::Voided, ..refund };
    check(bought, void.clone(), "only what was given is voided");
    let keyless = NewChange { key: None, ..void.clone() };
    check(grant("6"), keyless, "a change that a caller asks for has a key");
    let covering = NewChange { covered: drawn(ChangeKind::Drawn, "1", "2").covered, ..void };
    check(grant("6"), covering, "only draws cover usage");
    check(grant("6"), change(ChangeKind::Drawn, "2"), "a draw says which usage it covers");
    let keyed = NewChange { key: Some(key("k")), ..drawn(ChangeKind::Drawn, "1", "2") };
    check(grant("6"), keyed, "a draw has no key");
    let rate = "credits move by usage times the grant's rate";
    check(grant("6"), drawn(ChangeKind::Drawn, "1", "3"), rate);
    let mut elsewhere = drawn(ChangeKind::Drawn, "1", "2");
    elsewhere.covered = elsewhere.covered.map(|one| Covered { meter: MeterNo(2), ..one });
    check(grant("6"), elsewhere, rate);
    let mut moment = drawn(ChangeKind::Drawn, "1", "2");
    let empty = Window { start: at(100), end: at(100) };
    moment.covered = moment.covered.map(|one| Covered { window: empty, ..one });
    check(grant("6"), moment, "a draw's window is not empty");
}

#[test]
fn a_ledger_holds_the_grants_of_a_tenant_once() {
    let mut ledger = holding(grant("6"));
    assert_eq!(fact(ledger.hold(TENANT, grant("6"))), "a transaction holds a grant once");
    let mut stranger = Grant { number: 8, ..grant("6") };
    stranger.terms.tenant = TenantId::parse("umbrella").expect("valid");
    assert_eq!(fact(ledger.hold(TENANT, stranger)), "grants held together are of one tenant");
}

#[test]
fn usage_outside_its_window_is_not_covered() {
    let during = Window { start: at(150), end: at(201) };
    let order = CoverOrder { during, ..covering("0", "1", "0") };
    let outcome = holding(grant("6")).cover(TENANT, window(), &order, &[], DrawOrder::default());
    assert_eq!(fact(outcome), "usage lies in its window");
}

/// The window's usage goes from one total to another, of which so much is covered.
fn covering(before: &str, now: &str, covered: &str) -> CoverOrder {
    let [before, now, covered] = [before, now, covered].map(quantity);
    CoverOrder { meter: METER, scale: 6, during: window(), before, now, covered }
}

/// Plans a draw and what gives it back, and records both.
fn recorded() -> Vec<RecordedChange> {
    let mut ledger = holding(grant("6"));
    ledger.plan(TENANT, drawn(ChangeKind::Drawn, "3", "6")).expect("it is there");
    ledger.plan(TENANT, drawn(ChangeKind::GivenBack, "1", "2")).expect("it was drawn");
    let written = [4, 5].map(|number| WrittenChange { number, grant: 7 });
    record_changes(ledger.take_planned(), &written, at(9)).expect("written in order")
}

#[test]
fn a_credit_change_is_recorded_and_published() {
    let [draw, back] = &recorded()[..] else { panic!("two were planned") };
    assert_eq!((draw.change.number, draw.change.remaining), (4, Quantity::ZERO));
    assert_eq!(draw.entry.key.as_str(), "credits.4");
    assert_eq!(draw.entry.memo, "grant 7: drawn");
    let names: Vec<&str> = draw.accounts.iter().map(|account| account.name.as_str()).collect();
    assert_eq!(names, ["credits.credits.granted", "credits.credits.spent"]);
    let published = draw.published.as_ref().expect("nothing is left");
    assert_eq!((published.key.as_str(), published.kind), ("credit:4", "credits.exhausted"));
    let payload = concat!(
        r#"{"amount":"6","at":"1970-01-01T00:00:00.000009Z","grant":7,"kind":"drawn","#,
        r#""remaining":"0","tenant":"acme","unit":"credits"}"#
    );
    assert_eq!(published.payload, payload);
    assert_eq!(back.published, None);
}

#[test]
fn rows_of_changes_that_contradict_the_plan_are_a_fault() {
    let check = |written: &[(u64, u64)], expected: &str| {
        let mut ledger = holding(grant("6"));
        for _ in 0..2 {
            ledger.plan(TENANT, drawn(ChangeKind::Drawn, "1", "2")).expect("it is there");
        }
        let row = |(number, grant): &(u64, u64)| WrittenChange { number: *number, grant: *grant };
        let written: Vec<WrittenChange> = written.iter().map(row).collect();
        assert_eq!(fact(record_changes(ledger.take_planned(), &written, at(9))), expected);
    };
    check(&[(4, 7)], "each change that is planned is written");
    check(&[(5, 7), (4, 7)], "changes are numbered in the order in which they were planned");
    check(&[(0, 7), (1, 7)], "a change has a number");
    check(&[(4, 7), (5, 8)], "a change's row is of its grant");
}

/// The entry of a change as it was written, with these balances after it.
fn entry_of(recorded: &RecordedChange, balances: [&str; 2]) -> Entry {
    let NewEntry { tenant, key, memo, postings } = recorded.entry.clone();
    let posting = |(new, balance): (NewPosting, &str)| Posting {
        account: new.account,
        unit: terms().unit,
        amount: new.amount,
        balance: quantity(balance),
        version: 2,
    };
    let postings = postings.into_iter().zip(balances).map(posting).collect();
    Entry { number: 1, tenant, key, memo, postings, at: at(9) }
}

#[test]
fn an_entry_that_contradicts_its_change_is_a_fault() {
    let check =
        |which: usize, balances: [&str; 2], change: fn(&mut Entry), expected: Option<&str>| {
            let recorded = &recorded()[which];
            let mut entry = entry_of(recorded, balances);
            change(&mut entry);
            assert_eq!(recorded.check_entry(&entry).err().map(|fault| fault.fact), expected);
        };
    check(0, ["0", "6"], |_| (), None);
    check(1, ["4", "2"], |_| (), None);
    let moved = "a change's entry moves what the change says";
    check(0, ["0", "6"], |entry| entry.memo.clear(), Some(moved));
    let other = |entry: &mut Entry| entry.postings[0].unit = unit("eur");
    check(0, ["0", "6"], other, Some("an account of credits is of its grants' unit"));
    let pool = "a pool holds at least what is left of each of its grants";
    check(1, ["4", "1"], |_| (), Some(pool));
    let took = "an account of credits holds at least what it just took";
    check(0, ["0", "5"], |_| (), Some(took));
    let spent = "no more is given back of a unit than was spent";
    check(1, ["-1", "2"], |_| (), Some(spent));
}

#[test]
fn issuing_never_finds_less_than_nothing_issued() {
    let mut ledger = Ledger::default();
    let issued = ledger.issue(TENANT, 7, terms(), at(0)).expect("new terms");
    assert_eq!(issued, grant("10"));
    let written = [WrittenChange { number: 4, grant: 7 }];
    let recorded = record_changes(ledger.take_planned(), &written, at(0)).expect("written");
    let check = |source: &str, expected: Option<&str>| {
        let entry = entry_of(&recorded[0], [source, "10"]);
        assert_eq!(recorded[0].check_entry(&entry).err().map(|fault| fault.fact), expected);
    };
    check("-10", None);
    check("-9", Some("what was issued of a unit is not negative"));
}

#[test]
fn a_history_that_contradicts_itself_is_a_fault() {
    let line = |number: u64, kind, amount: &str, remaining: &str| CreditChange {
        number,
        kind,
        amount: quantity(amount),
        remaining: quantity(remaining),
        ..voided()
    };
    let issued = line(1, ChangeKind::Issued, "10", "10");
    let drawn = line(2, ChangeKind::Drawn, "4", "6");
    let back = line(3, ChangeKind::GivenBack, "1", "7");
    let other = CreditChange { grant: 8, ..line(4, ChangeKind::Issued, "5", "5") };
    let check = |changes: &[&CreditChange], expected: Option<&str>| {
        let changes: Vec<CreditChange> = changes.iter().map(|change| (*change).clone()).collect();
        assert_eq!(check_history(&changes).err().map(|fault| fault.fact), expected);
    };
    check(&[&other, &back, &drawn, &issued], None);
    check(&[&drawn, &back], Some("changes are read newest first"));
    check(&[&back, &issued], Some("a change moves what the change before it left"));
    let nothing = line(5, ChangeKind::Expired, "0", "7");
    check(&[&nothing], Some("a change moves something"));
}

#[test]
fn draws_and_what_is_given_back_are_planned_on_each_other() {
    let mut ledger = holding(grant("6"));
    let mut cover = |order: CoverOrder, draws: &[(ChangeKind, Draw)]| {
        let plan = ledger.cover(TENANT, window(), &order, draws, DrawOrder::default());
        (plan.expect("sound"), ledger.grants(TENANT)[0].remaining)
    };
    let (grown, left) = cover(covering("0", "5", "0"), &[]);
    assert_eq!((grown.covered, left), (quantity("3"), Quantity::ZERO));
    let draws: Vec<(ChangeKind, Draw)> =
        grown.drawn.iter().map(|draw| (ChangeKind::Drawn, *draw)).collect();
    let (shrunk, left) = cover(covering("5", "1", "3"), &draws);
    assert_eq!((shrunk.covered, left), (quantity("1"), quantity("4")));
    assert_eq!(ledger.take_planned().len(), 2);
}
