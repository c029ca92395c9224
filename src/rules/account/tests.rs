//! Entries, what they refuse, and the faults of rows that contradict each other.

use super::*;
use crate::rules::samples::{acme, fact, key, quantity, unit};

fn name(text: &str) -> AccountName {
    AccountName::parse(text).expect("valid")
}

fn accounts() -> BTreeMap<AccountName, Account> {
    let account = |text: &str, unit_name: &str, floor, balance: &str| {
        let account = Account {
            tenant: acme(),
            name: name(text),
            unit: unit(unit_name),
            floor,
            balance: quantity(balance),
            version: 3,
            created_at: Timestamp::from_micros(0),
        };
        (account.name.clone(), account)
    };
    BTreeMap::from([
        account("wallet", "eur", Floor::Zero, "10"),
        account("sales", "eur", Floor::None, "-10"),
        account("points", "points", Floor::None, "0"),
    ])
}

fn posting(account: &str, amount: &str, expected_version: Option<u64>) -> NewPosting {
    NewPosting { account: name(account), amount: quantity(amount), expected_version }
}

fn entry(postings: &[(&str, &str)]) -> NewEntry {
    let postings = postings.iter().map(|(account, amount)| posting(account, amount, None));
    NewEntry { tenant: acme(), key: key("k"), memo: String::new(), postings: postings.collect() }
}

fn judge(postings: &[(&str, &str)]) -> Result<Vec<(String, u64)>, PostRefusal> {
    let judged = judge_entry(&accounts(), &entry(postings).postings)?;
    Ok(judged.into_iter().map(|p| (p.balance.to_string(), p.version)).collect())
}

#[test]
fn an_entry_moves_and_never_makes() {
    let moved = judge(&[("wallet", "-10"), ("sales", "10")]).expect("allowed");
    assert_eq!(moved, [("0".to_owned(), 4), ("0".to_owned(), 4)]);
    let sum = PostRefusal::Unbalanced(unit("eur"), quantity("0.01"));
    assert_eq!(judge(&[("wallet", "-9.99"), ("sales", "10")]), Err(sum));
    // Equal amounts of different units do not balance.
    let apart = judge(&[("wallet", "-1"), ("points", "1")]);
    assert!(matches!(apart, Err(PostRefusal::Unbalanced(..))));
}

#[test]
fn refusals_leave_the_reason() {
    let low = PostRefusal::BelowZero(name("wallet"), quantity("10"));
    assert_eq!(judge(&[("wallet", "-10.000001"), ("sales", "10.000001")]), Err(low));
    assert_eq!(judge(&[("wallet", "1")]), Err(PostRefusal::Postings));
    let twice = [("wallet", "1"), ("wallet", "-1")];
    assert_eq!(judge(&twice), Err(PostRefusal::Repeated(name("wallet"))));
    let nothing = [("wallet", "0"), ("sales", "0")];
    assert_eq!(judge(&nothing), Err(PostRefusal::Nothing(name("wallet"))));
    let unknown = [("walle", "1"), ("sales", "-1")];
    assert_eq!(judge(&unknown), Err(PostRefusal::Unknown(name("walle"))));
}

#[test]
fn a_version_that_moved_on_refuses() {
    let check = |version, expected: Result<(), PostRefusal>| {
        let postings = [posting("wallet", "-1", version), posting("sales", "1", None)];
        assert_eq!(judge_entry(&accounts(), &postings).map(drop), expected);
    };
    check(Some(3), Ok(()));
    check(Some(2), Err(PostRefusal::Moved(name("wallet"), 3)));
    check(None, Ok(()));
}

#[test]
fn accounts_that_contradict_themselves_take_no_entry() {
    let check = |change: fn(&mut Account), expected: &str| {
        let mut accounts = accounts();
        change(accounts.get_mut(&name("wallet")).expect("it is there"));
        let new = entry(&[("wallet", "1"), ("sales", "-1")]);
        assert_eq!(fact(plan_entry(&accounts, &new)), expected);
    };
    let floor = "a balance does not fall below its account's floor";
    check(|account| account.balance = quantity("-1"), floor);
    check(|account| account.version = 0, "an account that no entry has touched is empty");
    let tenant = "an entry moves between accounts of one tenant";
    check(|account| account.tenant = TenantId::parse("umbrella").expect("valid"), tenant);
}

#[test]
fn postings_that_contradict_their_accounts_are_not_written() {
    let new = entry(&[("wallet", "-4"), ("sales", "4")]);
    let Ok(Plan::Write(sound)) = plan_entry(&accounts(), &new) else { panic!("it is sound") };
    let check = |change: fn(&mut Vec<Posting>), expected: &str| {
        let mut postings = sound.clone();
        change(&mut postings);
        assert_eq!(fact(check_postings(&accounts(), &new, &postings)), expected);
    };
    check(|postings| postings.reverse(), "an entry is written as it was asked for");
    let balance = "a posting leaves the balance before it plus its amount";
    check(|postings| postings[0].balance = quantity("7"), balance);
    let version = "a posting raises its account's version by one";
    check(|postings| postings[1].version = 3, version);
    let other = |postings: &mut Vec<Posting>| postings[1].unit = unit("usd");
    check(other, "a posting is in its account's unit");
    let mut missing = accounts();
    missing.remove(&name("sales"));
    let expected = "a posting is to an account that was read";
    assert_eq!(fact(check_postings(&missing, &new, &sound)), expected);
    // Each of these passes every other fact.
    let over = entry(&[("wallet", "-11"), ("sales", "11")]);
    let mut postings = sound.clone();
    for (posting, (amount, balance)) in postings.iter_mut().zip([("-11", "-1"), ("11", "1")]) {
        (posting.amount, posting.balance) = (quantity(amount), quantity(balance));
    }
    let expected = "a posting leaves no balance below its account's floor";
    assert_eq!(fact(check_postings(&accounts(), &over, &postings)), expected);
}

#[test]
fn entries_that_contradict_themselves_answer_nothing() {
    let standing = |postings: &[(&str, &str, u64)]| {
        let posting = |(account, amount, version): &(&str, &str, u64)| Posting {
            account: name(account),
            unit: unit("eur"),
            amount: quantity(amount),
            balance: quantity(amount),
            version: *version,
        };
        let NewEntry { tenant, key, memo, .. } = entry(&[]);
        let postings = postings.iter().map(posting).collect();
        Entry { number: 1, tenant, key, memo, postings, at: Timestamp::from_micros(0) }
    };
    let new = entry(&[("wallet", "1"), ("sales", "-1")]);
    let sound = standing(&[("wallet", "1", 1), ("sales", "-1", 1)]);
    let repeated = answer_standing(sound.clone(), &new);
    assert_eq!(repeated, Ok(Posted::Repeated(sound.clone())));
    let other = NewEntry { memo: "other".to_owned(), ..new.clone() };
    assert_eq!(answer_standing(sound.clone(), &other), Ok(Posted::KeyTaken(sound)));
    let check = |postings: &[(&str, &str, u64)], expected: &str| {
        assert_eq!(fact(answer_standing(standing(postings), &new)), expected);
    };
    check(&[("wallet", "1", 1)], "an entry moves between accounts");
    let version = "a posting raises its account's version above zero";
    check(&[("wallet", "1", 1), ("sales", "-1", 0)], version);
    let sum = "the postings of an entry sum to zero in each unit";
    check(&[("wallet", "1", 1), ("sales", "-2", 1)], sum);
    check(&[("wallet", "0", 1), ("sales", "0", 1)], "a posting moves something");
    let twice = "an entry has one posting for each account";
    check(&[("wallet", "1", 1), ("wallet", "-1", 2)], twice);
    let stranger = NewEntry { key: key("other"), ..new.clone() };
    let own = standing(&[("wallet", "1", 1), ("sales", "-1", 1)]);
    let expected = "an entry is found under its tenant and key";
    assert_eq!(fact(answer_standing(own, &stranger)), expected);
    let nobody = answer_unknown_tenant(&new);
    assert_eq!(nobody, Ok(Posted::Refused(PostRefusal::Unknown(name("wallet")))));
}

#[test]
fn accounts_are_answered_as_they_stand() {
    let stored = accounts().remove(&name("wallet")).expect("it is there");
    let Account { tenant, name: of, unit, floor, .. } = stored.clone();
    let new = NewAccount { tenant, name: of, unit, floor };
    let empty = Account { balance: Quantity::ZERO, version: 0, ..stored.clone() };
    let put =
        |new: &NewAccount, account: &Account, created| answer_put(new, account.clone(), created);
    assert_eq!(put(&new, &empty, true), Ok(AccountPut::Created(empty.clone())));
    assert_eq!(put(&new, &stored, false), Ok(AccountPut::Unchanged(stored.clone())));
    let open = NewAccount { floor: Floor::None, ..new.clone() };
    assert_eq!(put(&open, &stored, false), Ok(AccountPut::Refused(stored.clone())));
    let created = "an account is created as it was asked for, and empty";
    assert_eq!(fact(put(&new, &stored, true)), created);
    let other = NewAccount { name: name("sales"), ..new };
    let found = "an account is found under its tenant and name";
    assert_eq!(fact(put(&other, &stored, false)), found);
}

#[test]
fn a_statement_that_contradicts_itself_is_a_fault() {
    let line = |version: u64, amount: &str, balance: &str| StatementLine {
        version,
        entry: version,
        key: key("k"),
        memo: String::new(),
        amount: quantity(amount),
        balance: quantity(balance),
        at: Timestamp::from_micros(0),
    };
    let check = |lines: &[StatementLine], expected: Option<&str>| {
        let outcome = check_statement(&name("wallet"), lines);
        assert_eq!(outcome.err().map(|fault| fault.fact), expected);
    };
    check(&[line(3, "-1", "4"), line(2, "2", "5"), line(1, "3", "3")], None);
    let gap = "lines of a statement are numbered without gaps";
    check(&[line(4, "-1", "4"), line(2, "2", "5")], Some(gap));
    let sum = "a line of a statement leaves the balance before it plus its amount";
    check(&[line(3, "-1", "5"), line(2, "2", "5")], Some(sum));
    check(&[line(1, "3", "4")], Some("an account begins with nothing"));
}
