//! Keys of requests, and how they end with the effect: both are there, or neither.

use crate::accounts::{account, create_wallet, entry, key};
use crate::billed::after;
use crate::credits::{issued, taking, terms};
use crate::fixture::{Fixture, at_once, tenant_id};
use crate::quotes::quote;
use crate::sagas::new_saga;
use counterfoil::clock::Clock;
use counterfoil::store::account::Posted;
use counterfoil::store::credit::{GrantFilter, Issued, Voided};
use counterfoil::store::idempotency::{Completing, Ended};
use counterfoil::store::quote::QuoteRecorded;
use counterfoil::store::saga::Begun;
use counterfoil::store::{Error, Query};
use counterfoil_idempotency::{Answer, Claim, Claimed, Ending, Fingerprint, Scope, StoreError};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn scope(tenant: &str, once: &str) -> Scope {
    Scope { tenant: tenant.to_owned(), route: "POST /things".to_owned(), key: once.to_owned() }
}

fn print(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

fn ended(body: String) -> Ended {
    let headers = vec![("content-type".to_owned(), b"text/plain".to_vec())];
    let answer = Answer { status: 201, headers, body: body.into() };
    Ended { answer, ending: Ending::Completed, keep: DAY }
}

/// The keys of requests, at so many minutes.
fn keys(f: &Fixture, minute: i64) -> Arc<dyn counterfoil_idempotency::Store> {
    Arc::clone(&f.store).request_keys(Clock::by_hand(after(f.now, minute)))
}

async fn claim(f: &Fixture, once: &str, minute: i64) -> Claimed {
    keys(f, minute).claim(&scope("acme", once), &print(1), MINUTE).await.unwrap()
}

async fn end(f: &Fixture, claim: &Claim, body: &str, minute: i64) -> Result<(), StoreError> {
    let Ended { answer, ending, keep } = ended(body.to_owned());
    keys(f, minute).end(claim, &answer, ending, keep).await
}

async fn owned(f: &Fixture, once: &str, minute: i64) -> Claim {
    match claim(f, once, minute).await {
        Claimed::Owned(claim) => claim,
        other => panic!("{other:?}"),
    }
}

/// Answers with the outcome in words.
fn telling<T: Debug + 'static>(claim: Claim) -> Completing<T> {
    Completing::new(claim, |outcome: &T| ended(format!("{outcome:?}")))
}

/// The answer that is kept under a key.
async fn kept(f: &Fixture, once: &str) -> String {
    match claim(f, once, 60).await {
        Claimed::Ended(answer) => {
            assert_eq!(answer.status, 201);
            assert_eq!(answer.headers, ended(String::new()).answer.headers);
            String::from_utf8(answer.body.to_vec()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Runs a verb under the next key: the key ends with the outcome, which begins with this word.
async fn check_ends_with<T: Debug + 'static>(
    f: &Fixture,
    expected: &str,
    verb: impl AsyncFnOnce(&Completing<T>) -> Result<T, Error>,
) -> T {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let once = format!("verb-{}", KEYS.fetch_add(1, Ordering::SeqCst));
    let completing = telling::<T>(owned(f, &once, 0).await);
    let outcome = verb(&completing).await.unwrap();
    assert!(format!("{outcome:?}").starts_with(expected), "{outcome:?}");
    assert_eq!(kept(f, &once).await, format!("{outcome:?}"));
    outcome
}

pub async fn a_key_has_one_owner(mut f: Fixture) {
    let first = owned(&f, "k", 0).await;
    assert_eq!((first.fence, first.recovery_point.as_deref()), (1, None));
    let busy = claim(&f, "k", 0).await;
    assert_eq!(busy, Claimed::Busy { retry_after: MINUTE });
    let other = keys(&f, 0).claim(&scope("acme", "k"), &print(2), MINUTE).await.unwrap();
    assert_eq!(other, Claimed::Mismatch);
    let theirs = keys(&f, 0).claim(&scope("umbrella", "k"), &print(2), MINUTE).await;
    assert!(matches!(theirs.unwrap(), Claimed::Owned(_)), "another tenant's key is another");
    keys(&f, 0).reach(&first, "half way").await.unwrap();
    keys(&f, 1).renew(&first, MINUTE).await.unwrap();
    f.restart().await;
    let busy = claim(&f, "k", 1).await;
    assert_eq!(busy, Claimed::Busy { retry_after: MINUTE }, "it was renewed");
    // Its owner is not heard of again: another goes on where it was.
    let second = owned(&f, "k", 2).await;
    assert_eq!((second.fence, second.recovery_point.as_deref()), (2, Some("half way")));
    let fenced = [
        keys(&f, 0).renew(&first, MINUTE).await,
        keys(&f, 0).reach(&first, "further").await,
        end(&f, &first, "late", 0).await,
        keys(&f, 0).release(&first).await,
        keys(&f, 0).forget(&first).await,
    ];
    assert_eq!(fenced, [(); 5].map(|()| Err(StoreError::Fenced)));
    keys(&f, 2).release(&second).await.unwrap();
    let third = owned(&f, "k", 2).await;
    assert_eq!((third.fence, third.recovery_point.as_deref()), (3, Some("half way")));
    end(&f, &third, "done", 2).await.unwrap();
    assert_eq!(kept(&f, "k").await, "done");
    let again = end(&f, &third, "late", 0).await;
    assert_eq!(again, Err(StoreError::Fenced), "it has ended");
    // A request that never began leaves its key unused.
    let unused = owned(&f, "unused", 2).await;
    keys(&f, 2).forget(&unused).await.unwrap();
    assert_eq!(owned(&f, "unused", 2).await.fence, 1);
}

pub async fn claimants_at_once_are_one(f: Fixture) {
    let f = Arc::new(f);
    for round in 0..5 {
        let claim = |f: Arc<Fixture>, _| async move { claim(&f, &format!("k{round}"), 0).await };
        let mut owners = 0;
        for claimed in at_once(&f, 0..6, claim).await {
            match claimed {
                Claimed::Owned(_) => owners += 1,
                Claimed::Busy { retry_after } => assert_eq!(retry_after, MINUTE),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(owners, 1);
    }
}

pub async fn what_is_kept_long_enough_is_swept(f: Fixture) {
    for n in 0..3 {
        let claim = owned(&f, &format!("k{n}"), 0).await;
        end(&f, &claim, "done", 0).await.unwrap();
    }
    let held = owned(&f, "held", 0).await;
    let day = 24 * 60;
    let sweep = async |limit, minute| keys(&f, minute).sweep(limit).await;
    assert_eq!(sweep(10, day - 1).await.unwrap(), 0);
    assert_eq!(kept(&f, "k0").await, "done");
    assert_eq!(sweep(2, day).await.unwrap(), 2);
    assert_eq!(sweep(2, day).await.unwrap(), 1);
    assert_eq!(sweep(10, 100 * day).await.unwrap(), 0, "what is claimed is never swept");
    keys(&f, 0).renew(&held, MINUTE).await.unwrap();
    assert_eq!(owned(&f, "k0", day).await.fence, 1, "it is forgotten");
}

/// Each verb, with every kind of outcome: the key ends with it.
pub async fn a_key_ends_with_its_effect(f: Fixture) {
    create_wallet(&f, "acme").await;
    let good = entry("acme", "e1", &[("bank", "-5"), ("wallet", "5")]);
    let other = entry("acme", "e1", &[("bank", "-6"), ("wallet", "6")]);
    let refused = entry("acme", "e2", &[("wallet", "-9"), ("bank", "9")]);
    for (new, expected) in
        [(good.clone(), "Recorded"), (good, "Repeated"), (other, "KeyTaken"), (refused, "Refused")]
    {
        let post = async |key: &Completing<Posted>| f.store.post_entry(new, f.now, Some(key)).await;
        check_ends_with(&f, expected, post).await;
    }
    let terms = terms(&f, "acme", "g1", "5").await;
    let issue =
        async |key: &Completing<Issued>| f.store.issue_grant(terms.clone(), f.now, Some(key)).await;
    let issued = check_ends_with(&f, "Created", &issue).await;
    let Issued::Created(grant) = issued else { panic!("it is the first") };
    check_ends_with(&f, "Repeated", issue).await;
    for (once, amount, expected) in [
        ("t1", "2", "Done"),
        ("t1", "2", "Repeated"),
        ("t1", "3", "KeyTaken"),
        ("t2", "9", "TooLittle"),
    ] {
        let order = taking("acme", grant.number, once, Some(amount));
        let take =
            async |key: &Completing<Voided>| f.store.void_grant(order, f.now, Some(key)).await;
        check_ends_with(&f, expected, take).await;
    }
    for (saga, expected) in [("s1", "Created"), ("s1", "Repeated"), ("s2", "Busy")] {
        let new = new_saga("acme", saga);
        let begin = async |key: &Completing<Begun>| f.store.begin_saga(new, f.now, Some(key)).await;
        check_ends_with(&f, expected, begin).await;
    }
    for expected in ["Recorded", "Repeated"] {
        let quote = quote(&f, "acme", "q1");
        let record = async |key: &Completing<QuoteRecorded>| {
            f.store.record_quote(quote, None, Some(key)).await
        };
        check_ends_with(&f, expected, record).await;
    }
}

/// Another has taken the request over: what the first would have done does not happen.
pub async fn a_fenced_claim_undoes_the_effect(f: Fixture) {
    create_wallet(&f, "acme").await;
    let grant = issued(&f, "acme", "g1", "5").await;
    let stale = owned(&f, "k", 0).await;
    let current = owned(&f, "k", 5).await;
    let unavailable = |error: Error| assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let new = entry("acme", "e1", &[("bank", "-5"), ("wallet", "5")]);
    let completing = telling::<Posted>(stale.clone());
    unavailable(f.store.post_entry(new.clone(), f.now, Some(&completing)).await.unwrap_err());
    assert_eq!(f.store.find_entry(&tenant_id("acme"), &key("e1")).await.unwrap(), None);
    assert_eq!(account(&f, "acme", "wallet").await.unwrap().version, 0);
    // A tenant that would have been created with it is not there either.
    let terms = terms(&f, "fresh", "g2", "5").await;
    let completing = telling::<Issued>(stale.clone());
    unavailable(f.store.issue_grant(terms.clone(), f.now, Some(&completing)).await.unwrap_err());
    assert_eq!(f.store.find_tenant(&tenant_id("fresh")).await.unwrap(), None);
    let completing = telling::<Voided>(stale.clone());
    let order = taking("acme", grant.number, "t1", None);
    unavailable(f.store.void_grant(order.clone(), f.now, Some(&completing)).await.unwrap_err());
    let all = Query::first(GrantFilter { tenant: tenant_id("acme"), live: false }, 10);
    let grants = f.store.list_grants(all).await.unwrap();
    assert_eq!(grants, [grant]);
    let completing = telling::<Begun>(stale.clone());
    let saga = new_saga("fresh", "s1");
    unavailable(f.store.begin_saga(saga.clone(), f.now, Some(&completing)).await.unwrap_err());
    assert_eq!(f.store.find_saga(&saga.id).await.unwrap(), None);
    let completing = telling::<QuoteRecorded>(stale);
    let quote = quote(&f, "fresh", "q1");
    unavailable(f.store.record_quote(quote.clone(), None, Some(&completing)).await.unwrap_err());
    assert_eq!(f.store.find_quote(&tenant_id("fresh"), &key("q1")).await.unwrap(), None);
    let changes = f.store.list_changes(Query::first(None, 10)).await.unwrap();
    assert_eq!(changes.len(), 1, "only of the grant that stands");
    // Everything can still be done, by whoever has the key.
    let completing = telling::<Posted>(current);
    let posted = f.store.post_entry(new, f.now, Some(&completing)).await.unwrap();
    assert!(matches!(posted, Posted::Recorded(_)), "{posted:?}");
    assert_eq!(kept(&f, "k").await, format!("{posted:?}"));
    let issued = f.store.issue_grant(terms, f.now, None).await.unwrap();
    assert!(matches!(issued, Issued::Created(_)), "{issued:?}");
    let taken = f.store.void_grant(order, f.now, None).await.unwrap();
    assert!(matches!(taken, Voided::Done(_)), "{taken:?}");
    let begun = f.store.begin_saga(saga, f.now, None).await.unwrap();
    assert!(matches!(begun, Begun::Created(_)), "{begun:?}");
    let recorded = f.store.record_quote(quote, None, None).await.unwrap();
    assert!(matches!(recorded, QuoteRecorded::Recorded(_)), "{recorded:?}");
}

/// Two owners of one request in turn, at once: one of them has its effect, with its answer.
pub async fn owners_at_once_have_one_effect(f: Fixture) {
    create_wallet(&f, "acme").await;
    for round in 0..5 {
        let once = format!("k{round}");
        let (stale, current) = (owned(&f, &once, 0).await, owned(&f, &once, 5).await);
        let new = |amount: &str| {
            let taken = format!("-{amount}");
            let mut new =
                entry("acme", &format!("e{round}"), &[("bank", &taken), ("wallet", amount)]);
            new.memo = amount.to_owned();
            new
        };
        let (first, second) = (telling::<Posted>(stale), telling::<Posted>(current));
        let (lost, won) = tokio::join!(
            f.store.post_entry(new("1"), f.now, Some(&first)),
            f.store.post_entry(new("2"), f.now, Some(&second)),
        );
        assert!(matches!(lost, Err(Error::Unavailable { .. })), "{lost:?}");
        let won = won.unwrap();
        assert!(matches!(won, Posted::Recorded(_)), "{won:?}");
        assert_eq!(kept(&f, &once).await, format!("{won:?}"));
    }
    let wallet = account(&f, "acme", "wallet").await.unwrap();
    assert_eq!((wallet.balance.to_string(), wallet.version), ("10".to_owned(), 5));
}

/// Whoever asked went away while it waited: the key and the effect still agree.
pub async fn a_caller_that_leaves_leaves_no_half(f: Fixture) {
    create_wallet(&f, "acme").await;
    for round in 0..20 {
        let once = format!("k{round}");
        let completing = telling::<Posted>(owned(&f, &once, 0).await);
        let new = entry("acme", &once, &[("bank", "-1"), ("wallet", "1")]);
        let (store, now) = (Arc::clone(&f.store), f.now);
        let posting =
            tokio::spawn(async move { store.post_entry(new, now, Some(&completing)).await });
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        posting.abort();
        let _ = posting.await;
        // On PostgreSQL what was abandoned may still be under way: whoever takes over waits for it.
        let found = claim(&f, &once, 60).await;
        let entry = f.store.find_entry(&tenant_id("acme"), &key(&once)).await.unwrap();
        match found {
            Claimed::Ended(_) => assert!(entry.is_some(), "an answer without its effect"),
            Claimed::Owned(_) => assert_eq!(entry, None, "an effect without its answer"),
            other => panic!("{other:?}"),
        }
    }
}
