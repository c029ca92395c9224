//! Accounts, entries, statements: each entry once, whole, in some order, never below a floor.

use crate::billed::{after, quantity};
use crate::fixture::{Fixture, at_once, in_pages, tenant_id};
use crate::history::Random;
use counterfoil::rules::account::{Account, Entry, Floor, NewEntry, NewPosting, PostRefusal};
use counterfoil::rules::ids::{AccountName, OnceKey, Unit};
use counterfoil::rules::quantity::Quantity;
use counterfoil::store::Query;
use counterfoil::store::account::{AccountPut, NewAccount, Posted, StatementLine};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub fn name(text: &str) -> AccountName {
    AccountName::parse(text).unwrap()
}

pub fn key(text: &str) -> OnceKey {
    OnceKey::parse(text).unwrap()
}

fn new_account(tenant: &str, account: &str, floor: Floor) -> NewAccount {
    let (tenant, unit) = (tenant_id(tenant), Unit::parse("eur").unwrap());
    NewAccount { tenant, name: name(account), unit, floor }
}

/// How many random histories: a few, or as many as COUNTERFOIL_HISTORIES says.
pub fn histories(f: &Fixture) -> u64 {
    let few = if f.store.partitions() == 1 { 40 } else { 10 };
    std::env::var("COUNTERFOIL_HISTORIES").map_or(few, |count| count.parse().unwrap())
}

/// Creates an account in euros, which must not stand yet.
async fn create(f: &Fixture, tenant: &str, account: &str, floor: Floor) {
    let put = f.store.put_account(new_account(tenant, account, floor), f.now).await.unwrap();
    assert!(matches!(put, AccountPut::Created(_)), "{put:?}");
}

/// A wallet that never falls below zero, and the bank that fills it.
pub async fn create_wallet(f: &Fixture, tenant: &str) {
    create(f, tenant, "wallet", Floor::Zero).await;
    create(f, tenant, "bank", Floor::None).await;
}

pub fn entry(tenant: &str, once: &str, postings: &[(&str, &str)]) -> NewEntry {
    let posting = |(account, amount): &(&str, &str)| NewPosting {
        account: name(account),
        amount: quantity(amount),
        expected_version: None,
    };
    NewEntry {
        tenant: tenant_id(tenant),
        key: key(once),
        memo: format!("about {once}"),
        postings: postings.iter().map(posting).collect(),
    }
}

async fn post(f: &Fixture, entry: NewEntry) -> Posted {
    f.store.post_entry(entry, f.now, None).await.unwrap()
}

fn recorded(posted: Posted) -> Entry {
    match posted {
        Posted::Recorded(entry) => entry,
        other => panic!("{other:?}"),
    }
}

pub async fn account(f: &Fixture, tenant: &str, account: &str) -> Option<Account> {
    f.store.find_account(&tenant_id(tenant), &name(account)).await.unwrap()
}

/// Balance and version.
async fn stands(f: &Fixture, tenant: &str, name: &str) -> (String, u64) {
    let found = account(f, tenant, name).await.unwrap();
    (found.balance.to_string(), found.version)
}

/// A statement, oldest line first, read in pages of seven.
async fn statement(f: &Fixture, tenant: &str, account: &str) -> Vec<StatementLine> {
    let read = async |last: Option<&StatementLine>| {
        let (filter, after) = ((tenant_id(tenant), name(account)), last.map(|line| line.version));
        let query = Query { filter, after, limit: 7 };
        f.store.read_statement(query).await.unwrap()
    };
    let mut lines = in_pages(7, read).await;
    lines.reverse();
    lines
}

/// Lines are numbered without gaps, each balance follows from the one before, and the last is the
/// account's.
async fn check_statement(f: &Fixture, tenant: &str, of: &str) {
    let lines = statement(f, tenant, of).await;
    let found = account(f, tenant, of).await.unwrap();
    let mut balance = 0i128;
    for (line, version) in lines.iter().zip(1u64..) {
        balance += line.amount.units();
        assert_eq!((line.version, line.balance.units()), (version, balance), "{of}");
        assert!(found.floor == Floor::None || balance >= 0, "{of} fell below zero");
    }
    let count = u64::try_from(lines.len()).unwrap();
    assert_eq!((found.version, found.balance.units()), (count, balance), "{of}");
}

pub async fn an_account_is_created_once(mut f: Fixture) {
    assert_eq!(account(&f, "fresh", "wallet").await, None);
    assert_eq!(f.store.find_tenant(&tenant_id("fresh")).await.unwrap(), None);
    create(&f, "fresh", "wallet", Floor::Zero).await;
    assert!(f.store.find_tenant(&tenant_id("fresh")).await.unwrap().is_some());
    f.restart().await;
    let standing = account(&f, "fresh", "wallet").await.unwrap();
    let expected = Account {
        tenant: tenant_id("fresh"),
        name: name("wallet"),
        unit: Unit::parse("eur").unwrap(),
        floor: Floor::Zero,
        balance: Quantity::ZERO,
        version: 0,
        created_at: f.now,
    };
    assert_eq!(standing, expected);
    let again = new_account("fresh", "wallet", Floor::Zero);
    let later = after(f.now, 5);
    let put = |new| f.store.put_account(new, later);
    assert_eq!(put(again.clone()).await.unwrap(), AccountPut::Unchanged(expected.clone()));
    let other_floor = NewAccount { floor: Floor::None, ..again.clone() };
    assert_eq!(put(other_floor).await.unwrap(), AccountPut::Refused(expected.clone()));
    let other_unit = NewAccount { unit: Unit::parse("usd").unwrap(), ..again };
    assert_eq!(put(other_unit).await.unwrap(), AccountPut::Refused(expected.clone()));
    assert_eq!(account(&f, "fresh", "wallet").await, Some(expected));
}

pub async fn accounts_are_listed_in_byte_order(f: Fixture) {
    let names = ["Zebra", "a b", "a-b", "ab", "b", "é"];
    for account in ["é", "b", "a-b", "Zebra", "ab", "a b"] {
        create(&f, "acme", account, Floor::None).await;
        create(&f, "umbrella", account, Floor::Zero).await;
    }
    let read = async |last: Option<&Account>| {
        let after = last.map(|account| account.name.clone());
        let query = Query { filter: tenant_id("acme"), after, limit: 4 };
        f.store.list_accounts(query).await.unwrap()
    };
    let listed = in_pages(4, read).await;
    let found: Vec<&str> = listed.iter().map(|account| account.name.as_str()).collect();
    assert_eq!(found, names);
    assert!(listed.iter().all(|account| account.tenant == tenant_id("acme")));
    let nobody = f.store.list_accounts(Query::first(tenant_id("nobody"), 10)).await.unwrap();
    assert_eq!(nobody, []);
}

pub async fn an_entry_is_written_once(mut f: Fixture) {
    create_wallet(&f, "acme").await;
    let new = entry("acme", "e1", &[("bank", "-12.5"), ("wallet", "12.5")]);
    let first = recorded(post(&f, new.clone()).await);
    assert_eq!((&first.key, first.memo.as_str(), first.at), (&new.key, "about e1", f.now));
    let lines: Vec<(&str, String, String, u64)> = first
        .postings
        .iter()
        .map(|p| (p.account.as_str(), p.amount.to_string(), p.balance.to_string(), p.version))
        .collect();
    let expected = [("bank", "-12.5", "-12.5", 1), ("wallet", "12.5", "12.5", 1)];
    assert_eq!(lines, expected.map(|(n, a, b, v)| (n, a.to_owned(), b.to_owned(), v)));
    f.restart().await;
    // The same again, with whatever versions its sender has seen meanwhile.
    let mut again = new.clone();
    again.postings[0].expected_version = Some(0);
    let repeated = f.store.post_entry(again, after(f.now, 9), None).await.unwrap();
    assert_eq!(repeated, Posted::Repeated(first.clone()));
    // Anything else under the key is refused, whether it could be posted or not.
    let others = [
        entry("acme", "e1", &[("bank", "-12"), ("wallet", "12")]),
        entry("acme", "e1", &[("wallet", "12.5"), ("bank", "-12.5")]),
        entry("acme", "e1", &[("nowhere", "12.5"), ("bank", "-12.5")]),
        NewEntry { memo: "other".to_owned(), ..new.clone() },
    ];
    for other in others {
        assert_eq!(post(&f, other).await, Posted::KeyTaken(first.clone()));
    }
    assert_eq!(f.store.find_entry(&tenant_id("acme"), &key("e1")).await.unwrap(), Some(first));
    assert_eq!(f.store.find_entry(&tenant_id("acme"), &key("e2")).await.unwrap(), None);
    assert_eq!(f.store.find_entry(&tenant_id("nobody"), &key("e1")).await.unwrap(), None);
    assert_eq!(stands(&f, "acme", "wallet").await, ("12.5".to_owned(), 1));
    check_statement(&f, "acme", "bank").await;
}

pub async fn refusals_write_nothing(f: Fixture) {
    create_wallet(&f, "acme").await;
    recorded(post(&f, entry("acme", "e1", &[("bank", "-10"), ("wallet", "10")])).await);
    let check = async |new: NewEntry, expected: PostRefusal| {
        let once = new.key.clone();
        assert_eq!(post(&f, new).await, Posted::Refused(expected));
        let tenant = tenant_id("acme");
        assert_eq!(f.store.find_entry(&tenant, &once).await.unwrap(), None);
    };
    let below = entry("acme", "e2", &[("wallet", "-10.000000000001"), ("bank", "10.000000000001")]);
    check(below, PostRefusal::BelowZero(name("wallet"), quantity("10"))).await;
    let unknown = entry("acme", "e2", &[("wallet", "-1"), ("sofa", "1")]);
    check(unknown, PostRefusal::Unknown(name("sofa"))).await;
    let sum = PostRefusal::Unbalanced(Unit::parse("eur").unwrap(), quantity("0.5"));
    check(entry("acme", "e2", &[("wallet", "-1"), ("bank", "1.5")]), sum).await;
    let mut moved = entry("acme", "e2", &[("wallet", "-1"), ("bank", "1")]);
    moved.postings[0].expected_version = Some(0);
    check(moved.clone(), PostRefusal::Moved(name("wallet"), 1)).await;
    let stranger = entry("nobody", "e2", &[("wallet", "-1"), ("bank", "1")]);
    check(stranger, PostRefusal::Unknown(name("wallet"))).await;
    assert_eq!(stands(&f, "acme", "wallet").await, ("10".to_owned(), 1));
    // A refused key is free, and a version that is right lets it pass.
    moved.postings[0].expected_version = Some(1);
    recorded(post(&f, moved).await);
    assert_eq!(stands(&f, "acme", "wallet").await, ("9".to_owned(), 2));
    check_statement(&f, "acme", "wallet").await;
}

pub async fn a_statement_is_read_in_pages(f: Fixture) {
    create_wallet(&f, "acme").await;
    for n in 0..17 {
        let new = entry("acme", &format!("e{n}"), &[("bank", "-1"), ("wallet", "1")]);
        f.store.post_entry(new, after(f.now, n), None).await.unwrap();
    }
    let lines = statement(&f, "acme", "wallet").await;
    assert_eq!(lines.len(), 17);
    let third = &lines[2];
    let found = f.store.find_entry(&tenant_id("acme"), &key("e2")).await.unwrap().unwrap();
    let expected = StatementLine {
        version: 3,
        entry: found.number,
        key: key("e2"),
        memo: "about e2".to_owned(),
        amount: quantity("1"),
        balance: quantity("3"),
        at: after(f.now, 2),
    };
    assert_eq!(third, &expected);
    check_statement(&f, "acme", "bank").await;
    assert_eq!(statement(&f, "acme", "sofa").await, []);
    assert_eq!(statement(&f, "nobody", "wallet").await, []);
}

pub async fn postings_at_once_lose_nothing(f: Fixture) {
    create_wallet(&f, "acme").await;
    let f = Arc::new(f);
    let post_one = |f: Arc<Fixture>, n| async move {
        let new = entry("acme", &format!("e{n}"), &[("bank", "-1"), ("wallet", "1")]);
        recorded(post(&f, new).await).postings[1].version
    };
    let versions: HashSet<u64> = at_once(&f, 0..50, post_one).await.into_iter().collect();
    assert_eq!(versions, (1..=50).collect());
    assert_eq!(stands(&f, "acme", "wallet").await, ("50".to_owned(), 50));
    assert_eq!(stands(&f, "acme", "bank").await, ("-50".to_owned(), 50));
    check_statement(&f, "acme", "wallet").await;
    check_statement(&f, "acme", "bank").await;
}

pub async fn takers_at_once_stop_at_the_floor(f: Fixture) {
    create_wallet(&f, "acme").await;
    recorded(post(&f, entry("acme", "fill", &[("bank", "-10"), ("wallet", "10")])).await);
    let f = Arc::new(f);
    let take_one = |f: Arc<Fixture>, n| async move {
        post(&f, entry("acme", &format!("e{n}"), &[("wallet", "-1"), ("bank", "1")])).await
    };
    let (mut taken, mut refused) = (0, 0);
    for posted in at_once(&f, 0..50, take_one).await {
        match posted {
            Posted::Recorded(_) => taken += 1,
            Posted::Refused(refusal) => {
                assert_eq!(refusal, PostRefusal::BelowZero(name("wallet"), Quantity::ZERO));
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((taken, refused), (10, 40));
    assert_eq!(stands(&f, "acme", "wallet").await, ("0".to_owned(), 11));
    check_statement(&f, "acme", "wallet").await;
}

pub async fn one_key_at_once_is_one_entry(f: Fixture) {
    create_wallet(&f, "acme").await;
    let f = Arc::new(f);
    // Two settlers of one top-up, many times over, each time with a third who says something else.
    for round in 0..10 {
        let top_up = |f: Arc<Fixture>, amount| async move {
            let taken = format!("-{amount}");
            let postings = [("bank", taken.as_str()), ("wallet", amount)];
            post(&f, entry("acme", &format!("top-up {round}"), &postings)).await
        };
        let outcomes = at_once(&f, ["5", "5", "7"], top_up).await;
        let once = key(&format!("top-up {round}"));
        let stored = f.store.find_entry(&tenant_id("acme"), &once).await.unwrap().unwrap();
        let written = |posted: &&Posted| matches!(posted, Posted::Recorded(_));
        assert_eq!(outcomes.iter().filter(written).count(), 1);
        for (outcome, amount) in outcomes.iter().zip(["5", "5", "7"]) {
            let same = stored.postings[1].amount == quantity(amount);
            match outcome {
                Posted::Recorded(entry) | Posted::Repeated(entry) => assert!(same, "{entry:?}"),
                Posted::KeyTaken(_) => assert!(!same),
                Posted::Refused(refusal) => panic!("{refusal:?}"),
            }
        }
    }
    let lines = statement(&f, "acme", "wallet").await;
    assert_eq!(lines.len(), 10);
    check_statement(&f, "acme", "wallet").await;
    check_statement(&f, "acme", "bank").await;
}

/// Transfers between four accounts from several tasks at once, each sent twice.
pub async fn transfers_at_once_equal_some_order(f: Fixture) {
    const ACCOUNTS: [&str; 4] = ["bank", "a", "b", "c"];
    create(&f, "acme", "bank", Floor::None).await;
    for account in &ACCOUNTS[1..] {
        create(&f, "acme", account, Floor::Zero).await;
    }
    let f = Arc::new(f);
    let transfer = |f: Arc<Fixture>, task: u64| async move {
        let mut random = Random(0x1234_5678_9abc_def1 + task * 7_919);
        let mut outcomes = Vec::new();
        for n in 0..25 {
            let from = random.below(4) as usize;
            let to = (from + 1 + random.below(3) as usize) % 4;
            let amount = 1 + random.below(6);
            let (taken, given) = (format!("-{amount}"), amount.to_string());
            let postings = [(ACCOUNTS[from], &*taken), (ACCOUNTS[to], &*given)];
            let new = entry("acme", &format!("t{task}-{n}"), &postings);
            let outcome = post(&f, new.clone()).await;
            if let Posted::Recorded(entry) = &outcome {
                assert_eq!(post(&f, new.clone()).await, Posted::Repeated(entry.clone()));
            }
            outcomes.push((new, outcome));
        }
        outcomes
    };
    let (mut entries, mut refusals) = (Vec::new(), Vec::new());
    for (new, outcome) in at_once(&f, 0..4, transfer).await.concat() {
        match outcome {
            Posted::Recorded(entry) => entries.push(entry),
            Posted::Refused(PostRefusal::BelowZero(account, balance)) => {
                refusals.push((new, account, balance));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(entries.len() > 20 && !refusals.is_empty());
    let histories = replay(entries);
    for (new, account, balance) in refusals {
        let posting = new.postings.iter().find(|posting| posting.account == account).unwrap();
        // It was refused for what the account really held at some moment.
        assert!(posting.amount.checked_add(balance).unwrap() < Quantity::ZERO);
        let held = histories.get(&account).is_some_and(|held| held.contains(&balance));
        assert!(held || balance == Quantity::ZERO, "{account} never held {balance}");
    }
    for account in ACCOUNTS {
        check_statement(&f, "acme", account).await;
    }
}

/// Finds an order in which the entries follow from each other, and returns what each account held.
fn replay(entries: Vec<Entry>) -> BTreeMap<AccountName, Vec<Quantity>> {
    let mut left = entries;
    let mut held: BTreeMap<AccountName, Vec<Quantity>> = BTreeMap::new();
    while !left.is_empty() {
        let version = |account: &AccountName| held.get(account).map_or(0, Vec::len) as u64;
        let next = left.iter().position(|entry| {
            entry.postings.iter().all(|posting| posting.version == version(&posting.account) + 1)
        });
        let entry = left.remove(next.expect("the entries contradict every order"));
        let mut sum = 0;
        for posting in entry.postings {
            let balances = held.entry(posting.account.clone()).or_default();
            let before = balances.last().copied().unwrap_or_default();
            assert_eq!(before.checked_add(posting.amount), Some(posting.balance));
            let floored = posting.account.as_str() != "bank";
            assert!(!floored || posting.balance >= Quantity::ZERO, "{posting:?}");
            balances.push(posting.balance);
            sum += posting.amount.units();
        }
        assert_eq!(sum, 0);
    }
    held
}

pub async fn tenants_with_equal_names_are_apart(f: Fixture) {
    for tenant in ["acme", "umbrella"] {
        create_wallet(&f, tenant).await;
    }
    let acme = entry("acme", "e1", &[("bank", "-3"), ("wallet", "3")]);
    let umbrella = entry("umbrella", "e1", &[("bank", "-5"), ("wallet", "5")]);
    let first = recorded(post(&f, acme.clone()).await);
    let second = recorded(post(&f, umbrella.clone()).await);
    assert!(first.number != second.number);
    assert_eq!((second.tenant.as_str(), second.postings[1].version), ("umbrella", 1));
    assert_eq!(post(&f, acme).await, Posted::Repeated(first.clone()));
    assert_eq!(post(&f, umbrella).await, Posted::Repeated(second));
    assert_eq!(stands(&f, "acme", "wallet").await, ("3".to_owned(), 1));
    assert_eq!(stands(&f, "umbrella", "wallet").await, ("5".to_owned(), 1));
    let own = f.store.find_entry(&tenant_id("acme"), &key("e1")).await.unwrap();
    assert_eq!(own, Some(first));
    assert_eq!(statement(&f, "acme", "wallet").await.len(), 1);
}

/// The store against the simplest model, over many tenants.
pub async fn random_entries_match_the_model(f: Fixture) {
    let mut random = Random(0x51ed_270b_9f2c_1a03);
    for history in 0..histories(&f) {
        let tenant = format!("tenant {history}");
        one_history(&f, &tenant, &mut random).await;
    }
}

async fn one_history(f: &Fixture, tenant: &str, random: &mut Random) {
    let names = ["bank", "a", "b"];
    let mut balances: BTreeMap<&str, (i128, u64)> = BTreeMap::new();
    let mut written: BTreeMap<u64, (usize, usize, u64)> = BTreeMap::new();
    for _ in 0..20 {
        let (from, step) = (random.below(3) as usize, 1 + random.below(2) as usize);
        let (to, amount, once) = ((from + step) % 3, 1 + random.below(5), random.below(12));
        let floor = |place: usize| if place == 0 { Floor::None } else { Floor::Zero };
        if random.below(3) == 0 {
            let put = f.store.put_account(new_account(tenant, names[from], floor(from)), f.now);
            let created = matches!(put.await.unwrap(), AccountPut::Created(_));
            assert_eq!(created, !balances.contains_key(names[from]));
            balances.entry(names[from]).or_default();
        }
        let (taken, given) = (format!("-{amount}"), amount.to_string());
        let postings = [(names[from], taken.as_str()), (names[to], given.as_str())];
        let posted = post(f, entry(tenant, &format!("k{once}"), &postings)).await;
        let units = i128::from(amount) * Quantity::ONE.units();
        let known = |place: usize| balances.contains_key(names[place]);
        let short = from > 0 && known(from) && balances[names[from]].0 < units;
        match posted {
            Posted::Repeated(_) => assert_eq!(written.get(&once), Some(&(from, to, amount))),
            Posted::KeyTaken(_) => {
                assert!(written.get(&once).is_some_and(|other| *other != (from, to, amount)));
            }
            Posted::Refused(PostRefusal::Unknown(_)) => {
                assert!(!written.contains_key(&once), "a known key is told of first");
                assert!(!known(from) || !known(to));
            }
            Posted::Refused(PostRefusal::BelowZero(..)) => {
                assert!(!written.contains_key(&once) && short);
            }
            Posted::Refused(refusal) => panic!("{refusal:?}"),
            Posted::Recorded(_) => {
                assert!(known(from) && known(to) && !short);
                assert_eq!(written.insert(once, (from, to, amount)), None);
                for (place, change) in [(from, -units), (to, units)] {
                    let (balance, version) = balances.get_mut(names[place]).unwrap();
                    (*balance, *version) = (*balance + change, *version + 1);
                }
            }
        }
        let listed = f.store.list_accounts(Query::first(tenant_id(tenant), 10)).await.unwrap();
        let found: BTreeMap<&str, (i128, u64)> = listed
            .iter()
            .map(|account| (account.name.as_str(), (account.balance.units(), account.version)))
            .collect();
        assert_eq!(found, balances);
        assert_eq!(found.values().map(|(balance, _)| balance).sum::<i128>(), 0);
    }
    for account in balances.keys() {
        check_statement(f, tenant, account).await;
    }
}
