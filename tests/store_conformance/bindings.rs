//! Bindings of a store to accounts of the provider.

use crate::billed::{Billed, after};
use crate::fixture::Fixture;
use counterfoil::rules::binding::{BillingAccount, Unbinding};

fn account(id: Option<&str>, live: bool) -> BillingAccount {
    BillingAccount { provider: "stripe".into(), id: id.map(str::to_owned), live }
}

pub async fn the_first_account_is_bound(mut f: Fixture) {
    assert_eq!(f.store.read_binding().await.unwrap(), None);
    let first = f.store.bind(&account(None, true), f.now).await.unwrap();
    assert_eq!((first.number, first.bound_at), (1, f.now));
    // Another mode does not take its place.
    let later = after(f.now, 1);
    let other = account(Some("acct_1"), false);
    assert_eq!(f.store.bind(&other, later).await.unwrap(), first);
    // An id that was not known is kept, and then holds.
    let known = f.store.bind(&account(Some("acct_1"), true), later).await.unwrap();
    assert_eq!((known.number, known.bound_at), (1, f.now));
    assert_eq!(known.account.id.as_deref(), Some("acct_1"));
    assert_eq!(f.store.bind(&account(Some("acct_2"), true), later).await.unwrap(), known);
    assert_eq!(f.store.bind(&account(None, true), later).await.unwrap(), known);
    f.restart().await;
    assert_eq!(f.store.read_binding().await.unwrap(), Some(known));
}

pub async fn an_ended_binding_is_followed_by_the_next(f: Fixture) {
    assert_eq!(f.store.end_binding(f.now).await.unwrap(), Unbinding::Unbound);
    let first = f.store.bind(&account(Some("acct_1"), false), f.now).await.unwrap();
    let later = after(f.now, 1);
    assert_eq!(f.store.end_binding(later).await.unwrap(), Unbinding::Ended(first));
    assert_eq!(f.store.read_binding().await.unwrap(), None);
    let second = f.store.bind(&account(Some("acct_2"), true), later).await.unwrap();
    assert_eq!((second.number, second.bound_at), (2, later));
}

pub async fn a_binding_does_not_end_while_pushes_are_on_their_way(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "7", 0).await;
    let store = &billed.f.store;
    let first = store.bind(&account(Some("acct_1"), false), billed.f.now).await.unwrap();
    let claimed = billed.claim_one(1).await;
    assert!(billed.begin(&claimed, 1).await);
    assert_eq!(store.end_binding(billed.f.now).await.unwrap(), Unbinding::Unsettled(1));
    assert_eq!(store.read_binding().await.unwrap(), Some(first));
}

pub async fn two_that_bind_at_once_find_one_binding(f: Fixture) {
    let (a, b) = (account(Some("acct_1"), true), account(Some("acct_2"), true));
    let (one, other) = tokio::join!(f.store.bind(&a, f.now), f.store.bind(&b, f.now));
    assert_eq!(one.unwrap(), other.unwrap());
}
