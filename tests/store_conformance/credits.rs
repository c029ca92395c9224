//! Credits: issued, drawn on by cuts, given back, voided, expired; nothing made, nothing lost.

use crate::accounts::{histories, key};
use crate::billed::{Billed, after, quantity, window};
use crate::fixture::{Fixture, at_once, event, in_pages, tenant_id};
use crate::history::Random;
use counterfoil::rules::credit::{
    ChangeKind, CreditChange, DrawOrder, GRANTS_MAX, Grant, GrantTerms, Pool,
};
use counterfoil::rules::ids::{MeterNo, TenantId, Unit};
use counterfoil::rules::push::CutState;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::Query;
use counterfoil::store::credit::{ChangeFilter, GrantFilter, Issued, VoidGrant, Voided};
use counterfoil::store::outbox::{FeedChange, Message};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// What most tests issue: credits that pay for calls and tokens, one for one.
pub async fn terms(f: &Fixture, tenant: &str, once: &str, amount: &str) -> GrantTerms {
    let mut rates = BTreeMap::from([(f.meter_no("calls").await, Quantity::ONE)]);
    let catalog = f.catalog().await;
    rates.extend(catalog.find("tokens").map(|(number, _)| (number, Quantity::ONE)));
    GrantTerms {
        tenant: tenant_id(tenant),
        key: key(once),
        pool: Pool::Granted,
        unit: Unit::parse("credits").unwrap(),
        amount: quantity(amount),
        rates,
        priority: 10,
        effective_at: window(0).start,
        expires_at: None,
        memo: format!("about {once}"),
    }
}

pub async fn issue(f: &Fixture, terms: GrantTerms) -> Grant {
    match f.store.issue_grant(terms, f.now, None).await.unwrap() {
        Issued::Created(grant) => grant,
        other => panic!("{other:?}"),
    }
}

pub async fn issued(f: &Fixture, tenant: &str, once: &str, amount: &str) -> Grant {
    issue(f, terms(f, tenant, once, amount).await).await
}

pub fn taking(tenant: &str, grant: u64, once: &str, amount: Option<&str>) -> VoidGrant {
    let (tenant, key, amount) = (tenant_id(tenant), key(once), amount.map(quantity));
    VoidGrant {
        tenant,
        grant,
        key,
        amount,
        reserved: Quantity::ZERO,
        memo: "not wanted".to_owned(),
    }
}

async fn take(f: &Fixture, order: VoidGrant) -> Voided {
    f.store.void_grant(order, f.now, None).await.unwrap()
}

fn done(taken: Voided) -> CreditChange {
    match taken {
        Voided::Done(change) => change,
        other => panic!("{other:?}"),
    }
}

/// All grants of a tenant, read in pages of three.
async fn grants(f: &Fixture, tenant: &str, live: bool) -> Vec<Grant> {
    let read = async |last: Option<&Grant>| {
        let after = last.map(|grant| grant.number);
        let filter = GrantFilter { tenant: tenant_id(tenant), live };
        f.store.list_grants(Query { filter, after, limit: 3 }).await.unwrap()
    };
    in_pages(3, read).await
}

/// What is left of a tenant's grants, in the order in which they were issued.
pub async fn left(f: &Fixture, tenant: &str) -> Vec<String> {
    let grants = grants(f, tenant, false).await;
    grants.into_iter().map(|grant| grant.remaining.to_string()).collect()
}

/// All changes of a tenant or of one grant, oldest first, read in pages of five.
pub async fn changes(f: &Fixture, tenant: &str, grant: Option<u64>) -> Vec<CreditChange> {
    let read = async |last: Option<&CreditChange>| {
        let after = last.map(|change| change.number);
        let filter = ChangeFilter { tenant: tenant_id(tenant), grant };
        let query = Query { filter, after, limit: 5 };
        f.store.list_credit_changes(query).await.unwrap()
    };
    let mut changes = in_pages(5, read).await;
    changes.reverse();
    changes
}

/// Kind, grant and amount of a tenant's changes after the first so many.
async fn moves(f: &Fixture, tenant: &str, after: usize) -> Vec<(ChangeKind, u64, String)> {
    let changes = changes(f, tenant, None).await;
    let moved = |change: CreditChange| (change.kind, change.grant, change.amount.to_string());
    changes.into_iter().skip(after).map(moved).collect()
}

async fn published_of(f: &Fixture, tenant: &str) -> Vec<Message> {
    f.store.list_changes(Query::first(Some(tenant_id(tenant)), 10_000)).await.unwrap()
}

async fn kinds_of_published(f: &Fixture, tenant: &str) -> Vec<String> {
    published_of(f, tenant).await.into_iter().map(|published| published.kind).collect()
}

/// A change tells of its change, under its key.
fn check_published(published: &Message, kind: &str, change: &CreditChange, unit: &str) {
    let key = format!("credit:{}", change.number);
    let expected = FeedChange { key, kind: "any", tenant: None, payload: String::new() };
    assert_eq!((published.id.as_str(), published.kind.as_str()), (expected.id().as_str(), kind));
    assert_eq!((published.tenant.as_ref(), published.at), (Some(&change.tenant), change.at));
    let payload: serde_json::Value = serde_json::from_str(&published.payload).unwrap();
    let expected = serde_json::json!({
        "tenant": change.tenant.as_str(),
        "grant": change.grant,
        "kind": change.kind.name(),
        "amount": change.amount.to_string(),
        "remaining": change.remaining.to_string(),
        "unit": unit,
        "at": change.at.to_string(),
    });
    assert_eq!(payload, expected);
}

/// Whether a change adds to its grant or takes from it.
pub fn direction(kind: ChangeKind) -> i128 {
    match kind {
        ChangeKind::Issued | ChangeKind::GivenBack => 1,
        ChangeKind::Drawn | ChangeKind::Expired | ChangeKind::Refunded | ChangeKind::Voided => -1,
    }
}

/// Nothing is made and nothing is lost: changes explain grants, grants explain the pools' accounts,
/// and the accounts of each unit sum to zero, each as its statement says.
pub async fn check_conserved(f: &Fixture, tenant: &str) {
    let (grants, changes) = (grants(f, tenant, false).await, changes(f, tenant, None).await);
    let mut pools: BTreeMap<String, i128> = BTreeMap::new();
    for grant in &grants {
        let mut remaining = 0i128;
        for change in changes.iter().filter(|change| change.grant == grant.number) {
            let amount = change.amount.units();
            assert!(amount > 0, "{change:?}");
            remaining += amount * direction(change.kind);
            assert_eq!(change.remaining.units(), remaining, "{change:?}");
            assert!((0..=grant.terms.amount.units()).contains(&remaining), "{change:?}");
        }
        assert_eq!(grant.remaining.units(), remaining, "{grant:?}");
        let pool = format!("credits.{}.{}", grant.terms.unit, grant.terms.pool.name());
        *pools.entry(pool).or_default() += remaining;
    }
    let accounts = f.store.list_accounts(Query::first(tenant_id(tenant), 1_000)).await.unwrap();
    let mut sums: BTreeMap<Unit, i128> = BTreeMap::new();
    let mut versions = 0;
    for account in accounts.iter().filter(|a| a.name.as_str().starts_with("credits.")) {
        *sums.entry(account.unit.clone()).or_default() += account.balance.units();
        versions += account.version;
        let pool = pools.remove(account.name.as_str());
        let expected = pool.unwrap_or(account.balance.units());
        assert_eq!(account.balance.units(), expected, "{account:?}");
    }
    assert_eq!(pools, BTreeMap::new(), "each pool has its account");
    assert!(sums.values().all(|sum| *sum == 0), "{sums:?}");
    assert_eq!(versions, 2 * changes.len() as u64, "each change is one entry of two postings");
}

/// How much of an hour of a meter is covered, and how much was planned.
async fn covered(b: &Billed, tenant: &str, meter: &str, hour: i64) -> (String, String) {
    let number = b.f.meter_no(meter).await;
    let cuts = b.f.store.read_cuts(&tenant_id(tenant), number, window(hour)).await.unwrap();
    let (_, CutState { covered, planned, .. }) = cuts.into_iter().next().unwrap();
    (covered.to_string(), planned.to_string())
}

fn pair(covered: &str, planned: &str) -> (String, String) {
    (covered.to_owned(), planned.to_owned())
}

pub async fn a_grant_is_issued_once(mut f: Fixture) {
    let wanted = GrantTerms {
        pool: Pool::Purchased,
        unit: Unit::parse("eur").unwrap(),
        expires_at: Some(window(9).start),
        ..terms(&f, "fresh", "order-1", "12.5").await
    };
    let grant = issue(&f, wanted.clone()).await;
    assert!(f.store.find_tenant(&tenant_id("fresh")).await.unwrap().is_some());
    assert_eq!((&grant.terms, grant.remaining), (&wanted, quantity("12.5")));
    assert_eq!(grant.created_at, f.now);
    f.restart().await;
    let later = after(f.now, 7);
    let again = async |terms| f.store.issue_grant(terms, later, None).await.unwrap();
    assert_eq!(again(wanted.clone()).await, Issued::Repeated(grant.clone()));
    let others = [
        GrantTerms { amount: quantity("12.6"), ..wanted.clone() },
        GrantTerms { pool: Pool::Granted, ..wanted.clone() },
        GrantTerms { expires_at: None, ..wanted.clone() },
        GrantTerms { priority: 11, ..wanted.clone() },
        GrantTerms { rates: BTreeMap::from([(MeterNo(1), quantity("2"))]), ..wanted.clone() },
        GrantTerms { memo: "other".to_owned(), ..wanted.clone() },
    ];
    for other in others {
        assert_eq!(again(other).await, Issued::KeyTaken(grant.clone()));
    }
    assert_eq!(grants(&f, "fresh", false).await, vec![grant.clone()]);
    let changes = changes(&f, "fresh", None).await;
    let expected = CreditChange {
        number: changes[0].number,
        tenant: tenant_id("fresh"),
        grant: grant.number,
        kind: ChangeKind::Issued,
        amount: quantity("12.5"),
        remaining: quantity("12.5"),
        covered: None,
        key: None,
        memo: changes[0].memo.clone(),
        at: f.now,
    };
    assert_eq!(changes, vec![expected.clone()]);
    let told = published_of(&f, "fresh").await;
    assert_eq!(told.len(), 1);
    check_published(&told[0], "credits.issued", &expected, "eur");
    // A grant that was used up is still the same grant.
    done(take(&f, taking("fresh", grant.number, "all", None)).await);
    let Issued::Repeated(used_up) = again(wanted).await else { panic!("it was issued before") };
    assert_eq!((used_up.number, used_up.remaining), (grant.number, Quantity::ZERO));
    check_conserved(&f, "fresh").await;
}

pub async fn issuers_at_once_issue_one(f: Fixture) {
    let wanted = terms(&f, "acme", "order-1", "10").await;
    let f = Arc::new(f);
    let issue = |f: Arc<Fixture>, wanted| async move {
        f.store.issue_grant(wanted, f.now, None).await.unwrap()
    };
    let mut created = 0;
    for issued in at_once(&f, vec![wanted; 20], issue).await {
        match issued {
            Issued::Created(_) => created += 1,
            Issued::Repeated(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((created, left(&f, "acme").await), (1, vec!["10".to_owned()]));
    assert_eq!(kinds_of_published(&f, "acme").await, ["credits.issued"]);
    check_conserved(&f, "acme").await;
}

pub async fn live_grants_have_a_limit(f: Fixture) {
    let mut last = 0;
    for n in 0..GRANTS_MAX {
        last = issued(&f, "acme", &format!("g{n}"), "1").await.number;
    }
    let more = terms(&f, "acme", "more", "1").await;
    let outcome = f.store.issue_grant(more.clone(), f.now, None).await.unwrap();
    assert_eq!(outcome, Issued::TooMany);
    let first = terms(&f, "acme", "g0", "1").await;
    let repeated = f.store.issue_grant(first, f.now, None).await.unwrap();
    assert!(matches!(repeated, Issued::Repeated(_)), "what stands is no more");
    issued(&f, "umbrella", "more", "1").await;
    done(take(&f, taking("acme", last, "gone", None)).await);
    issue(&f, more).await;
    let live = grants(&f, "acme", true).await;
    assert_eq!(live.len(), GRANTS_MAX);
    assert!(live.iter().all(|grant| grant.number != last));
    assert_eq!(grants(&f, "acme", false).await.len(), GRANTS_MAX + 1);
    check_conserved(&f, "acme").await;
}

pub async fn void_keeps_what_is_reserved(f: Fixture) {
    let bought = issued(&f, "acme", "bought", "10").await;
    let reserving = |once: &str, amount: Option<&str>| VoidGrant {
        reserved: quantity("8"),
        ..taking("acme", bought.number, once, amount)
    };
    let refused = take(&f, reserving("t1", Some("2.000001"))).await;
    assert_eq!(refused, Voided::TooLittle(quantity("2")));
    let all = done(take(&f, reserving("t2", None)).await);
    assert_eq!((all.amount, all.remaining), (quantity("2"), quantity("8")));
    let nothing = take(&f, reserving("t3", None)).await;
    assert_eq!(nothing, Voided::TooLittle(Quantity::ZERO));
    check_conserved(&f, "acme").await;
}

pub async fn what_is_left_is_voided_once(mut f: Fixture) {
    let given = issued(&f, "acme", "given", "10").await;
    let bought = GrantTerms { pool: Pool::Purchased, ..terms(&f, "acme", "bought", "4").await };
    let bought = issue(&f, bought).await;
    let part = done(take(&f, taking("acme", given.number, "void-1", Some("3"))).await);
    assert_eq!((part.kind, part.amount, part.remaining), {
        (ChangeKind::Voided, quantity("3"), quantity("7"))
    });
    assert_eq!((part.key.as_ref(), part.memo.as_str()), (Some(&key("void-1")), "not wanted"));
    let all = done(take(&f, taking("acme", bought.number, "refund-1", None)).await);
    assert_eq!((all.kind, all.amount, all.remaining), {
        (ChangeKind::Refunded, quantity("4"), Quantity::ZERO)
    });
    f.restart().await;
    let again = take(&f, taking("acme", given.number, "void-1", Some("3"))).await;
    assert_eq!(again, Voided::Repeated(part.clone()));
    let again = take(&f, taking("acme", bought.number, "refund-1", None)).await;
    assert_eq!(again, Voided::Repeated(all.clone()));
    let others = [
        taking("acme", given.number, "void-1", Some("4")),
        taking("acme", bought.number, "void-1", Some("3")),
        VoidGrant { memo: "other".into(), ..taking("acme", given.number, "void-1", Some("3")) },
    ];
    for other in others {
        assert_eq!(take(&f, other).await, Voided::KeyTaken(part.clone()));
    }
    let too_much = take(&f, taking("acme", given.number, "void-2", Some("7.000001"))).await;
    assert_eq!(too_much, Voided::TooLittle(quantity("7")));
    let nothing = take(&f, taking("acme", bought.number, "void-2", None)).await;
    assert_eq!(nothing, Voided::TooLittle(Quantity::ZERO));
    let unknown = take(&f, taking("acme", bought.number + 9, "void-2", None)).await;
    assert_eq!(unknown, Voided::NotFound);
    let stranger = take(&f, taking("umbrella", given.number, "void-2", None)).await;
    assert_eq!(stranger, Voided::NotFound, "a grant of another tenant");
    assert_eq!(left(&f, "acme").await, ["7", "0"]);
    let told = published_of(&f, "acme").await;
    check_published(&told[2], "credits.voided", &part, "credits");
    check_published(&told[3], "credits.voided", &all, "credits");
    assert_eq!(told.len(), 4);
    let of_one = changes(&f, "acme", Some(given.number)).await;
    assert_eq!(of_one.last(), Some(&part));
    assert_eq!(of_one.len(), 2);
    check_conserved(&f, "acme").await;
}

pub async fn takers_at_once_never_overdraw(f: Fixture) {
    let grant = issued(&f, "acme", "ten", "10").await.number;
    let f = Arc::new(f);
    let orders = (0..50).map(|n| taking("acme", grant, &format!("t{n}"), Some("1")));
    let (mut taken, mut refused) = (0, 0);
    for outcome in at_once(&f, orders, |f, order| async move { take(&f, order).await }).await {
        match outcome {
            Voided::Done(change) => {
                assert_eq!(change.amount, Quantity::ONE);
                taken += 1;
            }
            Voided::TooLittle(left) => {
                assert_eq!(left, Quantity::ZERO);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((taken, refused), (10, 40));
    assert_eq!(left(&f, "acme").await, ["0"]);
    check_conserved(&f, "acme").await;
}

pub async fn what_expired_is_taken_once(f: Fixture) {
    let expiring =
        |terms: GrantTerms, hour: i64| GrantTerms { expires_at: Some(window(hour).start), ..terms };
    let soon = issue(&f, expiring(terms(&f, "acme", "soon", "5").await, 2)).await;
    let later = issue(&f, expiring(terms(&f, "acme", "later", "6").await, 5)).await;
    issued(&f, "acme", "never", "7").await;
    let other = issue(&f, expiring(terms(&f, "umbrella", "soon", "8").await, 3)).await;
    done(take(&f, taking("acme", soon.number, "some", Some("2"))).await);
    let expire = async |at: Timestamp, limit| f.store.expire_grants(at, f.now, limit).await;
    let just_before = window(2).start.saturating_add_micros(-1);
    assert_eq!(expire(just_before, 10).await.unwrap(), 0);
    assert_eq!(expire(window(4).start, 1).await.unwrap(), 1, "no more than asked for");
    assert_eq!(expire(window(4).start, 10).await.unwrap(), 1);
    assert_eq!(expire(window(4).start, 10).await.unwrap(), 0);
    assert_eq!(left(&f, "acme").await, ["0", "6", "7"]);
    assert_eq!(left(&f, "umbrella").await, ["0"]);
    let gone = changes(&f, "acme", Some(soon.number)).await.pop().unwrap();
    assert_eq!((gone.kind, gone.amount, gone.remaining), {
        (ChangeKind::Expired, quantity("3"), Quantity::ZERO)
    });
    check_published(
        published_of(&f, "acme").await.last().unwrap(),
        "credits.expired",
        &gone,
        "credits",
    );
    let gone = changes(&f, "umbrella", Some(other.number)).await.pop().unwrap();
    assert_eq!((gone.kind, gone.amount), (ChangeKind::Expired, quantity("8")));
    assert_eq!(expire(window(5).start, 10).await.unwrap(), 1, "at its moment it is over");
    assert_eq!(changes(&f, "acme", Some(later.number)).await.len(), 2);
    check_conserved(&f, "acme").await;
    check_conserved(&f, "umbrella").await;
}

pub async fn expirers_at_once_take_once(f: Fixture) {
    for n in 0..20 {
        let expires_at = Some(window(1).start);
        let terms = terms(&f, "acme", &format!("g{n}"), "1").await;
        issue(&f, GrantTerms { expires_at, ..terms }).await;
    }
    let f = Arc::new(f);
    let expire =
        |f: Arc<Fixture>, _| async move { f.store.expire_grants(f.now, f.now, 100).await.unwrap() };
    assert_eq!(at_once(&f, 0..4, expire).await.iter().sum::<usize>(), 20);
    assert_eq!(left(&f, "acme").await, vec!["0"; 20]);
    check_conserved(&f, "acme").await;
}

pub async fn usage_is_covered_before_it_is_billed(f: Fixture) {
    let b = Billed::start(f).await;
    let grant = issued(&b.f, "acme", "ten", "10").await.number;
    b.planned("acme", "e1", "tokens", "4", 0).await;
    assert_eq!(covered(&b, "acme", "tokens", 0).await, pair("4", "0"));
    assert_eq!(b.pushes().await, [], "all of it is covered");
    b.planned("acme", "e2", "tokens", "9.5", 1).await;
    assert_eq!(covered(&b, "acme", "tokens", 1).await, pair("6", "3.5"));
    b.planned("acme", "e3", "tokens", "2", 2).await;
    assert_eq!(covered(&b, "acme", "tokens", 2).await, pair("0", "2"));
    let told: Vec<String> = b.pushes().await.iter().map(|push| push.value.to_string()).collect();
    assert_eq!(told, ["3.5", "2"]);
    let changes = changes(&b.f, "acme", None).await;
    let draw = changes[2].covered.as_ref().unwrap();
    assert_eq!((draw.meter, draw.window), (b.f.meter_no("tokens").await, window(1)));
    assert_eq!((draw.quantity, changes[2].grant), (quantity("6"), grant));
    assert_eq!(changes.len(), 3);
    // Draws are told of only when nothing is left.
    let told = published_of(&b.f, "acme").await;
    let kinds: Vec<&str> = told.iter().map(|published| published.kind.as_str()).collect();
    assert_eq!(kinds, ["credits.issued", "credits.exhausted"]);
    check_published(&told[1], "credits.exhausted", &changes[2], "credits");
    // Cut again, nothing changes.
    b.cut("tokens", &[0, 1, 2]).await;
    assert_eq!(moves(&b.f, "acme", 3).await, []);
    // What comes later does not cover what was billed, only what is used from then on.
    issued(&b.f, "acme", "more", "10").await;
    b.planned("acme", "e4", "tokens", "1", 2).await;
    assert_eq!(covered(&b, "acme", "tokens", 2).await, pair("1", "2"));
    check_conserved(&b.f, "acme").await;
}

pub async fn windows_of_one_call_see_each_other(f: Fixture) {
    let b = Billed::start(f).await;
    issued(&b.f, "acme", "ten", "10").await;
    issued(&b.f, "umbrella", "five", "5").await;
    for tenant in ["acme", "umbrella"] {
        for hour in 0..4 {
            b.used_by(tenant, &format!("e{hour}"), "tokens", "3", hour).await;
        }
    }
    let mut orders = b.orders("acme", "tokens", &[0, 1, 2, 3]).await;
    orders.extend(b.orders("umbrella", "tokens", &[0, 1, 2, 3]).await);
    let report = b.f.store.record_cuts(&b.lease, orders, b.terms).await.unwrap();
    assert_eq!(report.pushes, 1 + 3);
    assert_eq!((left(&b.f, "acme").await, left(&b.f, "umbrella").await), {
        (vec!["0".to_owned()], vec!["0".to_owned()])
    });
    assert_eq!(covered(&b, "acme", "tokens", 3).await, pair("1", "2"));
    assert_eq!(covered(&b, "umbrella", "tokens", 1).await, pair("2", "1"));
    check_conserved(&b.f, "acme").await;
    check_conserved(&b.f, "umbrella").await;
}

pub async fn cuts_at_once_never_overdraw(f: Fixture) {
    let b = Billed::start(f).await;
    issued(&b.f, "acme", "ten", "10").await;
    for hour in 0..50 {
        b.used(&format!("e{hour}"), "tokens", "1", hour).await;
    }
    let b = Arc::new(b);
    let cut = |b: Arc<Billed>, hour| async move { b.cut("tokens", &[hour]).await };
    assert_eq!(at_once(&b, 0..50, cut).await.iter().sum::<u64>(), 40);
    let range = Window { start: window(0).start, end: window(50).start };
    let number = b.f.meter_no("tokens").await;
    let cuts = b.f.store.read_cuts(&tenant_id("acme"), number, range).await.unwrap();
    let sum = |of: fn(&CutState) -> Quantity| cuts.iter().map(|(_, cut)| of(cut).units()).sum();
    let (covered, planned): (i128, i128) = (sum(|cut| cut.covered), sum(|cut| cut.planned));
    let one = Quantity::ONE.units();
    assert_eq!((cuts.len(), covered, planned), (50, 10 * one, 40 * one));
    assert_eq!(left(&b.f, "acme").await, ["0"]);
    check_conserved(&b.f, "acme").await;
}

/// A taker and cuts on one grant: whoever comes first has it.
pub async fn a_taker_and_cuts_share_a_grant(f: Fixture) {
    let b = Billed::start(f).await;
    let grant = issued(&b.f, "acme", "ten", "10").await.number;
    for hour in 0..12 {
        b.used(&format!("e{hour}"), "tokens", "1", hour).await;
    }
    let b = Arc::new(b);
    let cut = |b: Arc<Billed>, hour| async move { b.cut("tokens", &[hour]).await };
    let take_one = |b: Arc<Billed>, n| async move {
        let order = taking("acme", grant, &format!("t{n}"), Some("1"));
        u64::from(matches!(take(&b.f, order).await, Voided::Done(_)))
    };
    let (pushed, taken) = tokio::join!(at_once(&b, 0..12, cut), at_once(&b, 0..12, take_one));
    let (pushed, taken): (u64, u64) = (pushed.iter().sum(), taken.iter().sum());
    assert_eq!(taken + (12 - pushed), 10);
    assert_eq!(left(&b.f, "acme").await, ["0"]);
    check_conserved(&b.f, "acme").await;
}

/// Issues five grants of one unit each to a tenant, and returns their names in the order in which
/// a cut draws on them.
async fn draw_on_all_kinds(b: &Billed, tenant: &str) -> Vec<&'static str> {
    let base = terms(&b.f, tenant, "any", "1").await;
    let kinds = [
        ("bought", Pool::Purchased, 10, None),
        ("bought, expiring", Pool::Purchased, 10, Some(40)),
        ("given", Pool::Granted, 10, None),
        ("given, expiring", Pool::Granted, 10, Some(60)),
        ("given, urgent", Pool::Granted, 0, None),
    ];
    let mut names = BTreeMap::new();
    for (name, pool, priority, hour) in kinds {
        let expires_at = hour.map(|hour| window(hour).start);
        let terms = GrantTerms { key: key(name), pool, priority, expires_at, ..base.clone() };
        names.insert(issue(&b.f, terms).await.number, name);
    }
    b.planned(tenant, "e", "tokens", "5", 0).await;
    assert_eq!(covered(b, tenant, "tokens", 0).await, pair("5", "0"));
    check_conserved(&b.f, tenant).await;
    moves(&b.f, tenant, 5).await.iter().map(|(_, grant, _)| names[grant]).collect()
}

pub async fn grants_are_drawn_in_the_order_that_is_set(f: Fixture) {
    let mut b = Billed::start(f).await;
    assert_eq!(b.terms.draw_order, DrawOrder::GrantedFirst);
    let (given, urgent, expiring) = ("given", "given, urgent", "given, expiring");
    let (bought, bought_expiring) = ("bought", "bought, expiring");
    // Priority comes before expiry in every order.
    for (tenant, order, expected) in [
        ("a", DrawOrder::GrantedFirst, [urgent, expiring, given, bought_expiring, bought]),
        ("b", DrawOrder::PurchasedFirst, [bought_expiring, bought, urgent, expiring, given]),
        ("c", DrawOrder::SoonestFirst, [urgent, bought_expiring, expiring, bought, given]),
    ] {
        b.terms.draw_order = order;
        assert_eq!(draw_on_all_kinds(&b, tenant).await, expected, "{order:?}");
    }
}

pub async fn only_what_holds_at_the_window_covers_it(f: Fixture) {
    let b = Billed::start(f).await;
    let base = terms(&b.f, "acme", "any", "100").await;
    let (first, last) = (Some(window(1).start), Some(window(3).start));
    let holds = GrantTerms { effective_at: first.unwrap(), expires_at: last, ..base.clone() };
    issue(&b.f, holds).await;
    let other_meter = BTreeMap::from([(b.f.meter_no("whole").await, Quantity::ONE)]);
    issue(&b.f, GrantTerms { key: key("whole"), rates: other_meter, ..base }).await;
    for hour in 0..4 {
        b.used(&format!("e{hour}"), "tokens", "1", hour).await;
    }
    b.cut("tokens", &[0, 1, 2, 3]).await;
    let mut found = Vec::new();
    for hour in 0..4 {
        found.push(covered(&b, "acme", "tokens", hour).await.0);
    }
    assert_eq!(found, ["0", "1", "1", "0"]);
    // It is the window's moment that counts, not the cut's: usage may come in late.
    b.planned("acme", "late", "tokens", "1", 2).await;
    assert_eq!(covered(&b, "acme", "tokens", 2).await, pair("2", "0"));
    check_conserved(&b.f, "acme").await;
}

pub async fn a_window_that_shrinks_gives_back_in_reverse(f: Fixture) {
    let b = Billed::start(f).await;
    let meter = b.f.meter_no("signed").await;
    let rates = BTreeMap::from([(meter, Quantity::ONE)]);
    let base = GrantTerms { rates, ..terms(&b.f, "acme", "a", "4").await };
    let a = issue(&b.f, GrantTerms { priority: 1, ..base.clone() }).await.number;
    let c = GrantTerms { key: key("c"), priority: 2, amount: quantity("3"), ..base };
    let c = issue(&b.f, c).await.number;
    b.planned("acme", "e1", "signed", "10", 0).await;
    let (drawn, back) = (ChangeKind::Drawn, ChangeKind::GivenBack);
    let row = |kind, grant, amount: &str| (kind, grant, amount.to_owned());
    assert_eq!(moves(&b.f, "acme", 2).await, [row(drawn, a, "4"), row(drawn, c, "3")]);
    assert_eq!(covered(&b, "acme", "signed", 0).await, pair("7", "3"));
    // First what was billed shrinks.
    b.planned("acme", "e2", "signed", "-2", 0).await;
    assert_eq!(covered(&b, "acme", "signed", 0).await, pair("7", "1"));
    assert_eq!(moves(&b.f, "acme", 4).await, []);
    // Then what was drawn last is given back first.
    b.planned("acme", "e3", "signed", "-3", 0).await;
    assert_eq!(covered(&b, "acme", "signed", 0).await, pair("5", "0"));
    assert_eq!(moves(&b.f, "acme", 4).await, [row(back, c, "2")]);
    b.planned("acme", "e4", "signed", "-3", 0).await;
    assert_eq!(moves(&b.f, "acme", 5).await, [row(back, c, "1"), row(back, a, "2")]);
    assert_eq!(covered(&b, "acme", "signed", 0).await, pair("2", "0"));
    check_conserved(&b.f, "acme").await;
    // And up again, from what was given back.
    b.planned("acme", "e5", "signed", "4", 0).await;
    assert_eq!(moves(&b.f, "acme", 7).await, [row(drawn, a, "2"), row(drawn, c, "2")]);
    // Below nothing, all of it is given back, and the rest is the provider's.
    b.planned("acme", "e6", "signed", "-9", 0).await;
    assert_eq!(covered(&b, "acme", "signed", 0).await, pair("0", "-3"));
    let given = [row(back, c, "2"), row(back, a, "2"), row(back, a, "2")];
    assert_eq!(moves(&b.f, "acme", 9).await, given);
    assert_eq!(left(&b.f, "acme").await, ["4", "3"]);
    check_conserved(&b.f, "acme").await;
}

pub async fn what_is_given_back_after_expiry_expires(f: Fixture) {
    let b = Billed::start(f).await;
    let rates = BTreeMap::from([(b.f.meter_no("signed").await, Quantity::ONE)]);
    let expires_at = Some(window(5).start);
    let base = GrantTerms { rates, expires_at, ..terms(&b.f, "acme", "a", "9").await };
    let grant = issue(&b.f, base).await.number;
    b.planned("acme", "e1", "signed", "4", 0).await;
    assert_eq!(b.f.store.expire_grants(b.f.now, b.f.now, 10).await.unwrap(), 1);
    assert_eq!(left(&b.f, "acme").await, ["0"]);
    b.planned("acme", "e2", "signed", "-3", 0).await;
    assert_eq!(left(&b.f, "acme").await, ["3"]);
    assert_eq!(b.f.store.expire_grants(b.f.now, b.f.now, 10).await.unwrap(), 1);
    let rows = moves(&b.f, "acme", 1).await;
    let row = |kind, amount: &str| (kind, grant, amount.to_owned());
    let expected = [
        row(ChangeKind::Drawn, "4"),
        row(ChangeKind::Expired, "5"),
        row(ChangeKind::GivenBack, "3"),
        row(ChangeKind::Expired, "3"),
    ];
    assert_eq!(rows, expected);
    check_conserved(&b.f, "acme").await;
}

pub async fn rates_are_exact(f: Fixture) {
    let b = Billed::start(f).await;
    let tokens = b.f.meter_no("tokens").await;
    let rated = |terms: GrantTerms, rate: &str| GrantTerms {
        rates: BTreeMap::from([(tokens, quantity(rate))]),
        ..terms
    };
    let dear = rated(terms(&b.f, "acme", "dear", "10").await, "3");
    let dear = issue(&b.f, GrantTerms { priority: 1, ..dear }).await.number;
    let cheap = rated(terms(&b.f, "acme", "cheap", "1").await, "0.25");
    let cheap = issue(&b.f, cheap).await.number;
    b.planned("acme", "e1", "tokens", "8", 0).await;
    // 10 pay for 3.333333 at 3 each and a rest that pays for nothing; 1 pays for 4 at 0.25.
    let row = |grant, amount: &str| (ChangeKind::Drawn, grant, amount.to_owned());
    assert_eq!(moves(&b.f, "acme", 2).await, [row(dear, "9.999999"), row(cheap, "1")]);
    assert_eq!(covered(&b, "acme", "tokens", 0).await, pair("7.333333", "0.666667"));
    assert_eq!(left(&b.f, "acme").await, ["0.000001", "0"]);
    check_conserved(&b.f, "acme").await;
}

pub async fn single_events_are_covered(f: Fixture) {
    let b = Billed::start(f).await;
    let (single, clicks) = (b.f.meter_no("single").await, b.f.meter_no("clicks").await);
    let rates = BTreeMap::from([(single, Quantity::ONE), (clicks, quantity("2"))]);
    let (from, until) = (after(window(0).start, 30), Some(after(window(0).start, 40)));
    let base = GrantTerms { rates, ..terms(&b.f, "acme", "a", "9").await };
    issue(&b.f, GrantTerms { effective_at: from, expires_at: until, ..base }).await;
    let mut batch = Vec::new();
    // Each event's own moment decides: 29 is too early and 40 is too late.
    for (minute, quantity) in [(29, "5"), (31, "4"), (39, "3"), (40, "6")] {
        let at = after(window(0).start, minute).to_string();
        let quantity = format!("\"{quantity}\"");
        batch.push(event("acme", &format!("s{minute}"), "single", &quantity, &at, "{}"));
    }
    b.f.deliver(&batch).await;
    b.cut("single", &[0]).await;
    assert_eq!(covered(&b, "acme", "single", 0).await, pair("7", "11"));
    let values: Vec<String> = b.pushes().await.iter().map(|push| push.value.to_string()).collect();
    assert_eq!(values, ["5", "6"]);
    assert_eq!(left(&b.f, "acme").await, ["2"]);
    // Two units left pay for one click of the two.
    for minute in [32, 33] {
        let at = after(window(0).start, minute).to_string();
        b.f.deliver_one(&event("acme", &format!("c{minute}"), "clicks", "1", &at, "{}")).await;
    }
    b.cut("clicks", &[0]).await;
    assert_eq!(covered(&b, "acme", "clicks", 0).await, pair("1", "1"));
    let changes_before = changes(&b.f, "acme", None).await;
    assert_eq!((b.cut("single", &[0]).await, b.cut("clicks", &[0]).await), (0, 0));
    assert_eq!(changes(&b.f, "acme", None).await, changes_before, "cut again, nothing changes");
    check_conserved(&b.f, "acme").await;
}

pub async fn absolute_totals_leave_out_what_is_covered(f: Fixture) {
    let b = Billed::start(f).await;
    let rates = BTreeMap::from([(b.f.meter_no("peak").await, Quantity::ONE)]);
    issue(&b.f, GrantTerms { rates, ..terms(&b.f, "acme", "a", "3").await }).await;
    b.planned("acme", "e1", "peak", "5", 0).await;
    b.planned("acme", "e2", "peak", "2.5", 0).await;
    let values: Vec<String> = b.pushes().await.iter().map(|push| push.value.to_string()).collect();
    assert_eq!(values, ["2", "4.5"]);
    assert_eq!(covered(&b, "acme", "peak", 0).await, pair("3", "4.5"));
}

pub async fn shadow_windows_draw_nothing(f: Fixture) {
    let mut b = Billed::start(f).await;
    issued(&b.f, "acme", "ten", "10").await;
    b.terms.shadow = true;
    b.planned("acme", "e1", "tokens", "4", 0).await;
    assert_eq!(covered(&b, "acme", "tokens", 0).await, pair("0", "4"));
    // First cut as shadow, it is only followed now.
    b.terms.shadow = false;
    b.planned("acme", "e2", "tokens", "1", 0).await;
    assert_eq!(covered(&b, "acme", "tokens", 0).await, pair("0", "4"));
    b.planned("acme", "e3", "tokens", "2", 1).await;
    assert_eq!(covered(&b, "acme", "tokens", 1).await, pair("2", "0"));
    b.terms.shadow = true;
    b.planned("acme", "e4", "tokens", "3", 1).await;
    assert_eq!(covered(&b, "acme", "tokens", 1).await, pair("2", "0"), "only followed");
    assert_eq!(left(&b.f, "acme").await, ["8"]);
    check_conserved(&b.f, "acme").await;
}

pub async fn tenants_with_equal_keys_are_apart(f: Fixture) {
    let b = Billed::start(f).await;
    let first = issued(&b.f, "acme", "order", "10").await.number;
    let second = issued(&b.f, "umbrella", "order", "20").await.number;
    assert_ne!(first, second);
    let found = async |tenant: &str, once: &str| {
        let grant = b.f.store.find_grant(&tenant_id(tenant), &key(once)).await.unwrap();
        grant.map(|grant| grant.number)
    };
    assert_eq!((found("acme", "order").await, found("acme", "other").await), (Some(first), None));
    assert_eq!((found("umbrella", "order").await, found("nobody", "order").await), {
        (Some(second), None)
    });
    b.planned("acme", "e", "tokens", "3", 0).await;
    b.planned("umbrella", "e", "tokens", "30", 0).await;
    assert_eq!((left(&b.f, "acme").await, left(&b.f, "umbrella").await), {
        (vec!["7".to_owned()], vec!["0".to_owned()])
    });
    done(take(&b.f, taking("acme", first, "back", Some("1"))).await);
    let theirs = take(&b.f, taking("umbrella", second, "back", Some("1"))).await;
    assert_eq!(theirs, Voided::TooLittle(Quantity::ZERO), "the key is free there");
    let nobody: Vec<CreditChange> = changes(&b.f, "acme", Some(second)).await;
    assert_eq!(nobody, [], "changes of another tenant's grant");
    for tenant in ["acme", "umbrella"] {
        let all = changes(&b.f, tenant, None).await;
        assert!(all.iter().all(|change| change.tenant == tenant_id(tenant)));
        check_conserved(&b.f, tenant).await;
    }
    assert_eq!(grants(&b.f, "nobody", false).await, []);
}

// ---------------------------------------------------------------------------------------------
// Random histories

const HOURS: i64 = 3;
/// Rates as ratios, so that the model needs no decimals.
const RATES: [(&str, i128, i128); 4] = [("1", 1, 1), ("0.5", 1, 2), ("3", 3, 1), ("1.25", 5, 4)];

struct ModelGrant {
    number: u64,
    terms: GrantTerms,
    ratio: (i128, i128),
    remaining: i128,
}

#[derive(Default)]
struct ModelWindow {
    used: i128,
    events: u64,
    cut: i128,
    cut_events: u64,
    covered: i128,
    /// Grant, usage and cost of what stands, oldest first.
    drawn: Vec<(usize, i128, i128)>,
}

/// What the store must do, in its simplest form; one tenant and one signed meter.
struct Model {
    tenant: TenantId,
    meter: MeterNo,
    order: DrawOrder,
    grants: Vec<ModelGrant>,
    windows: Vec<ModelWindow>,
    keys: HashSet<String>,
    events: u64,
}

impl Model {
    fn cut(&mut self, hour: usize) {
        let (used, events) = (self.windows[hour].used, self.windows[hour].events);
        if events == self.windows[hour].cut_events {
            return;
        }
        let (before, now) = (self.windows[hour].cut.max(0), used.max(0));
        self.windows[hour].cut = used;
        self.windows[hour].cut_events = events;
        let covered = self.windows[hour].covered;
        if now < covered {
            self.give_back(hour, covered - now);
        } else if now > before {
            self.draw(hour, now - before);
        }
    }

    fn draw(&mut self, hour: usize, mut due: i128) {
        let middle = after(window(hour as i64).start, 30);
        let mut order: Vec<usize> = (0..self.grants.len()).collect();
        order.sort_by_key(|place| {
            let terms = &self.grants[*place].terms;
            let pool = match self.order {
                DrawOrder::GrantedFirst => terms.pool == Pool::Purchased,
                DrawOrder::PurchasedFirst => terms.pool == Pool::Granted,
                DrawOrder::SoonestFirst => false,
            };
            let end = terms.expires_at.map_or(i64::MAX, Timestamp::micros);
            (pool, terms.priority, end, terms.effective_at, *place)
        });
        // The meter has six decimals, amounts twelve.
        let step = 1_000_000;
        for place in order {
            let grant = &mut self.grants[place];
            let terms = &grant.terms;
            let holds =
                terms.effective_at <= middle && terms.expires_at.is_none_or(|end| middle < end);
            let price = step * grant.ratio.0 / grant.ratio.1;
            let steps = (grant.remaining / price).min(due / step);
            if holds && steps > 0 {
                grant.remaining -= steps * price;
                due -= steps * step;
                self.windows[hour].covered += steps * step;
                self.windows[hour].drawn.push((place, steps * step, steps * price));
            }
        }
    }

    fn give_back(&mut self, hour: usize, mut surplus: i128) {
        let window = &mut self.windows[hour];
        window.covered -= surplus;
        while surplus > 0 {
            let (place, usage, cost) = window.drawn.pop().unwrap();
            let part = usage.min(surplus);
            let back = cost / (usage / 1_000_000) * (part / 1_000_000);
            self.grants[place].remaining += back;
            surplus -= part;
            if part < usage {
                window.drawn.push((place, usage - part, cost - back));
            }
        }
    }
}

pub async fn random_histories_match_the_model(f: Fixture) {
    let mut b = Billed::start(f).await;
    let meter = b.f.meter_no("signed").await;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for history in 0..histories(&b.f) {
        let orders = [DrawOrder::GrantedFirst, DrawOrder::PurchasedFirst, DrawOrder::SoonestFirst];
        let mut model = Model {
            tenant: tenant_id(&format!("tenant {history}")),
            meter,
            order: orders[random.below(3) as usize],
            grants: Vec::new(),
            windows: (0..HOURS).map(|_| ModelWindow::default()).collect(),
            keys: HashSet::new(),
            events: 0,
        };
        b.terms.draw_order = model.order;
        for _ in 0..16 {
            match random.below(10) {
                0..3 => issue_some(&b, &mut model, &mut random).await,
                3..6 => use_some(&b, &mut model, &mut random).await,
                6..8 => cut_some(&b, &mut model, &mut random).await,
                8 => take_some(&b, &mut model, &mut random).await,
                _ => expire_some(&b, &mut model, &mut random).await,
            }
            check_model(&b, &model).await;
        }
    }
}

async fn issue_some(b: &Billed, model: &mut Model, random: &mut Random) {
    let (rate, numerator, denominator) = RATES[random.below(4) as usize];
    let pool = [Pool::Granted, Pool::Purchased][random.below(2) as usize];
    let expires_at = [None, Some(window(1).start), Some(window(2).start)][random.below(3) as usize];
    // A key may come again, with the same terms or with others.
    let once = format!("g{}", random.below(8));
    let terms = GrantTerms {
        tenant: model.tenant.clone(),
        key: key(&once),
        pool,
        unit: Unit::parse(["credits", "eur"][random.below(2) as usize]).unwrap(),
        amount: Quantity::from_units(i128::from(1 + random.below(60)) * 250_000_000_000),
        rates: BTreeMap::from([(model.meter, quantity(rate))]),
        priority: random.below(3) as u8,
        effective_at: window(0).start,
        expires_at,
        memo: String::new(),
    };
    let known = model.grants.iter().find(|grant| grant.terms.key == terms.key);
    match b.f.store.issue_grant(terms.clone(), b.f.now, None).await.unwrap() {
        Issued::Created(grant) => {
            assert!(known.is_none() && grant.terms == terms);
            let (number, remaining) = (grant.number, terms.amount.units());
            let ratio = (numerator, denominator);
            model.grants.push(ModelGrant { number, terms, ratio, remaining });
        }
        Issued::Repeated(_) => assert!(known.is_some_and(|grant| grant.terms == terms)),
        Issued::KeyTaken(_) => assert!(known.is_some_and(|grant| grant.terms != terms)),
        Issued::TooMany => panic!("there are few"),
    }
}

async fn use_some(b: &Billed, model: &mut Model, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let hour = random.below(HOURS as u64);
        let mut units = i128::from(1 + random.below(40)) * 125_000_000_000;
        if random.below(3) == 0 {
            units = -units;
        }
        let window = &mut model.windows[hour as usize];
        (window.used, window.events) = (window.used + units, window.events + 1);
        model.events += 1;
        let (id, used) = (format!("e{}", model.events), Quantity::from_units(units).to_string());
        b.used_by(model.tenant.as_str(), &id, "signed", &used, hour as i64).await;
    }
}

async fn cut_some(b: &Billed, model: &mut Model, random: &mut Random) {
    let first = random.below(HOURS as u64) as i64;
    let hours: Vec<i64> = (first..HOURS).collect();
    b.cut_of(model.tenant.as_str(), "signed", &hours).await;
    hours.into_iter().for_each(|hour| model.cut(hour as usize));
}

async fn take_some(b: &Billed, model: &mut Model, random: &mut Random) {
    if model.grants.is_empty() {
        return;
    }
    let place = random.below(model.grants.len() as u64) as usize;
    let once = format!("t{}", random.below(6));
    let grant = &mut model.grants[place];
    let amount = i128::from(1 + random.below(8)) * 500_000_000_000;
    let amount = (random.below(4) > 0).then_some(amount);
    let order = VoidGrant {
        amount: amount.map(Quantity::from_units),
        ..taking(model.tenant.as_str(), grant.number, &once, None)
    };
    match b.f.store.void_grant(order, b.f.now, None).await.unwrap() {
        Voided::Done(change) => {
            assert!(model.keys.insert(once));
            let taken = amount.unwrap_or(grant.remaining);
            assert_eq!(change.amount.units(), taken);
            grant.remaining -= taken;
            assert!(grant.remaining >= 0);
        }
        Voided::Repeated(_) | Voided::KeyTaken(_) => assert!(model.keys.contains(&once)),
        Voided::TooLittle(left) => {
            assert!(!model.keys.contains(&once));
            assert_eq!(left.units(), grant.remaining);
            assert!(amount.map_or(grant.remaining == 0, |amount| amount > grant.remaining));
        }
        Voided::NotFound => panic!("it was issued"),
    }
}

async fn expire_some(b: &Billed, model: &mut Model, random: &mut Random) {
    let by = window(random.below(HOURS as u64) as i64).start;
    // Those of histories before may be among them.
    b.f.store.expire_grants(by, b.f.now, 10_000).await.unwrap();
    for grant in &mut model.grants {
        if grant.terms.expires_at.is_some_and(|end| end <= by) {
            grant.remaining = 0;
        }
    }
}

async fn check_model(b: &Billed, model: &Model) {
    let tenant = model.tenant.as_str();
    let stored: Vec<(u64, i128)> = grants(&b.f, tenant, false)
        .await
        .iter()
        .map(|grant| (grant.number, grant.remaining.units()))
        .collect();
    let expected: Vec<(u64, i128)> =
        model.grants.iter().map(|grant| (grant.number, grant.remaining)).collect();
    assert_eq!(stored, expected, "{tenant}");
    check_conserved(&b.f, tenant).await;
    let range = Window { start: window(0).start, end: window(HOURS).start };
    let cuts = b.f.store.read_cuts(&model.tenant, model.meter, range).await.unwrap();
    let (mut planned, mut billable) = (0, 0);
    for (hour, expected) in (0..).zip(&model.windows) {
        let cut = cuts.iter().find(|(start, _)| *start == window(hour).start);
        let Some((_, cut)) = cut else {
            assert_eq!(expected.cut_events, 0);
            continue;
        };
        let found = (cut.total.units(), cut.covered.units(), cut.count);
        assert_eq!(found, (expected.cut, expected.covered, expected.cut_events), "{tenant}");
        planned += cut.planned.units();
        billable += expected.cut - expected.covered;
    }
    let remainder = b.remainder(tenant, "signed", false).await.units();
    assert_eq!(planned + remainder, billable, "{tenant}");
}
