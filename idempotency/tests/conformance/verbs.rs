//! The verbs of a store, one fact a test.

use crate::place::{DAY, LEASE, Place, answer, busy, owned, request, scope};
use bytes::Bytes;
use counterfoil_idempotency::{Answer, Claim, Claimed, Ending, Store, StoreError};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::time::Duration;

pub async fn a_key_is_claimed_once(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!((claim.fence, claim.recovery_point.clone()), (1, None));
    assert_eq!(claim.scope, key);
    place.clock.advance(Duration::from_secs(20));
    let left = busy(place.store().await.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!(left, Duration::from_secs(40));
    let other = store.claim(&key, &request(2), LEASE).await.unwrap();
    assert_eq!(other, Claimed::Mismatch, "another request is no retry of this one");
}

pub async fn an_end_is_kept_byte_for_byte(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    let header = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let all: Vec<u8> = (0..=255).collect();
    let answer = Answer {
        status: 201,
        headers: vec![
            header("content-type", b"application/octet-stream"),
            header("link", b"<a>; title=\"\xe4\xff\""),
            header("link", b"<b>\t;"),
        ],
        body: Bytes::from(all),
    };
    store.end(&claim, &answer, Ending::Completed, DAY).await.unwrap();
    let again = place.store().await.claim(&key, &request(1), LEASE).await.unwrap();
    assert_eq!(again, Claimed::Ended(answer.clone()));
    assert_eq!(store.claim(&key, &request(2), LEASE).await.unwrap(), Claimed::Mismatch);
    let twice = store.end(&claim, &answer, Ending::Completed, DAY).await;
    assert_eq!(twice, Err(StoreError::Fenced), "an effect run twice must not end twice");
}

fn any_answer() -> impl Strategy<Value = Answer> {
    let value = prop::collection::vec(prop_oneof![32_u8..127, 128_u8..=255], 0..20);
    let headers = prop::collection::vec(("[a-z][a-z0-9-]{0,8}", value), 0..4);
    let body = prop::collection::vec(any::<u8>(), 0..3000);
    (200_u16..600, headers, body).prop_map(|(status, headers, body)| Answer {
        status,
        headers,
        body: Bytes::from(body),
    })
}

pub async fn any_answer_comes_back_as_it_was(place: Place) {
    let store = place.store().await;
    let mut runner = TestRunner::default();
    let strategy = (any_answer(), "[!-~]{1,255}", "\\PC{0,40}", "\\PC{1,40}");
    for _ in 0..24 {
        let (answer, key, tenant, point) = strategy.new_tree(&mut runner).unwrap().current();
        let scope = scope(&tenant, &key);
        let claim = owned(store.claim(&scope, &request(1), LEASE).await.unwrap());
        store.reach(&claim, &point).await.unwrap();
        store.release(&claim).await.unwrap();
        let claim = owned(store.claim(&scope, &request(1), LEASE).await.unwrap());
        assert_eq!(claim.recovery_point, Some(point));
        store.end(&claim, &answer, Ending::Failed, DAY).await.unwrap();
        let again = store.claim(&scope, &request(1), LEASE).await.unwrap();
        assert_eq!(again, Claimed::Ended(answer));
    }
}

pub async fn an_answer_that_could_not_be_given_again_is_refused(place: Place) {
    let store = place.store().await;
    let claim = owned(store.claim(&scope("acme", "k"), &request(1), LEASE).await.unwrap());
    let with = |name: &str, value: &str| Answer {
        headers: vec![(name.to_owned(), value.as_bytes().to_vec())],
        ..answer(200, "fine")
    };
    let bad = [answer(100, ""), answer(600, ""), with("a b", "c"), with("a", "b\r\nc: d")];
    for answer in bad {
        let ended = store.end(&claim, &answer, Ending::Completed, DAY).await;
        assert!(matches!(ended, Err(StoreError::Unreadable(_))), "{ended:?} for {answer:?}");
    }
    store.end(&claim, &answer(200, "fine"), Ending::Completed, DAY).await.unwrap();
}

pub async fn a_dead_owner_is_taken_over_and_shut_out(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let dead = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    store.reach(&dead, "charged ch_1").await.unwrap();
    place.clock.advance(LEASE - Duration::from_millis(1));
    assert_eq!(
        busy(store.claim(&key, &request(1), LEASE).await.unwrap()),
        Duration::from_millis(1)
    );
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(store.claim(&key, &request(2), LEASE).await.unwrap(), Claimed::Mismatch);
    let heir = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!((heir.fence, heir.recovery_point.as_deref()), (2, Some("charged ch_1")));
    assert_ne!(heir.owner, dead.owner);
    every_verb_is_fenced(store.as_ref(), &dead).await;
    // One number alone must not be enough, whichever it is.
    every_verb_is_fenced(store.as_ref(), &Claim { fence: heir.fence, ..dead.clone() }).await;
    every_verb_is_fenced(store.as_ref(), &Claim { owner: heir.owner, ..dead.clone() }).await;
    assert_eq!(busy(store.claim(&key, &request(1), LEASE).await.unwrap()), LEASE);
    // The heir dies too, and has noted nothing: what was noted before it still stands.
    place.clock.advance(LEASE);
    let heir = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!((heir.fence, heir.recovery_point.as_deref()), (3, Some("charged ch_1")));
    store.end(&heir, &answer(201, "heir"), Ending::Completed, DAY).await.unwrap();
    every_verb_is_fenced(store.as_ref(), &dead).await;
    every_verb_is_fenced(store.as_ref(), &heir).await;
    let again = store.claim(&key, &request(1), LEASE).await.unwrap();
    assert_eq!(again, Claimed::Ended(answer(201, "heir")));
}

async fn every_verb_is_fenced(store: &dyn Store, claim: &Claim) {
    let stale = answer(500, "stale");
    assert_eq!(store.renew(claim, LEASE * 100).await, Err(StoreError::Fenced));
    assert_eq!(store.reach(claim, "stale").await, Err(StoreError::Fenced));
    assert_eq!(store.end(claim, &stale, Ending::Failed, DAY).await, Err(StoreError::Fenced));
    assert_eq!(store.release(claim).await, Err(StoreError::Fenced));
    assert_eq!(store.forget(claim).await, Err(StoreError::Fenced));
}

pub async fn a_lease_that_is_renewed_holds(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    for _ in 0..5 {
        place.clock.advance(LEASE / 2);
        store.renew(&claim, LEASE).await.unwrap();
    }
    assert_eq!(busy(store.claim(&key, &request(1), LEASE).await.unwrap()), LEASE);
    // An owner that is late and that nobody has replaced still owns it.
    place.clock.advance(LEASE * 2);
    store.renew(&claim, LEASE).await.unwrap();
    assert_eq!(busy(store.claim(&key, &request(1), LEASE).await.unwrap()), LEASE);
}

pub async fn a_released_key_goes_to_the_next_at_once(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let first = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    store.release(&first).await.unwrap();
    every_verb_is_fenced(store.as_ref(), &first).await;
    let second = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!((second.fence, second.recovery_point.as_deref()), (2, None));
    every_verb_is_fenced(store.as_ref(), &first).await;
    store.reach(&second, "half").await.unwrap();
    store.release(&second).await.unwrap();
    let third = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!((third.fence, third.recovery_point.as_deref()), (3, Some("half")));
    assert_eq!(busy(store.claim(&key, &request(1), LEASE).await.unwrap()), LEASE);
}

pub async fn a_forgotten_key_is_as_if_never_used(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let first = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    store.forget(&first).await.unwrap();
    every_verb_is_fenced(store.as_ref(), &first).await;
    let second = owned(store.claim(&key, &request(2), LEASE).await.unwrap());
    assert_eq!(second.fence, 1, "another request takes it");
    every_verb_is_fenced(store.as_ref(), &first).await;
    // An owner before this one may have begun: the key stays with its request.
    place.clock.advance(LEASE * 2);
    let third = owned(store.claim(&key, &request(2), LEASE).await.unwrap());
    store.forget(&third).await.unwrap();
    assert_eq!(store.claim(&key, &request(3), LEASE).await.unwrap(), Claimed::Mismatch);
    assert_eq!(owned(store.claim(&key, &request(2), LEASE).await.unwrap()).fence, 3);
    // And so it does after a recovery point.
    let key = scope("acme", "k-2");
    let begun = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    store.reach(&begun, "half").await.unwrap();
    store.forget(&begun).await.unwrap();
    assert_eq!(store.claim(&key, &request(2), LEASE).await.unwrap(), Claimed::Mismatch);
    let next = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!(next.recovery_point.as_deref(), Some("half"));
}

pub async fn tenants_routes_and_keys_are_apart(place: Place) {
    let store = place.store().await;
    let mut scopes = vec![scope("acme", "k"), scope("Acme", "k"), scope("acme", "K")];
    scopes.extend([scope("acme ", "k"), scope("ac", "mek"), scope("a\u{e9}", "k")]);
    scopes.extend([scope("ae\u{301}", "k"), scope("", "k"), scope("acme:", ":k")]);
    let mut other_route = scope("acme", "k");
    other_route.route = "POST /refunds".to_owned();
    scopes.push(other_route);
    for (scope, number) in scopes.iter().zip(1_u8..) {
        let claim = owned(store.claim(scope, &request(number), LEASE).await.unwrap());
        assert_eq!(claim.fence, 1, "{scope:?} was taken for another");
        let answer = Answer { status: 200, headers: vec![], body: vec![number].into() };
        store.end(&claim, &answer, Ending::Completed, DAY).await.unwrap();
    }
    for (scope, number) in scopes.iter().zip(1_u8..) {
        let answer = Answer { status: 200, headers: vec![], body: vec![number].into() };
        let again = store.claim(scope, &request(number), LEASE).await.unwrap();
        assert_eq!(again, Claimed::Ended(answer), "of {scope:?}");
    }
}

pub async fn of_many_claims_at_once_one_is_granted(place: Place) {
    let stores = [place.store().await, place.store().await];
    for round in 0..5_u8 {
        let key = scope("acme", &format!("k-{round}"));
        let mut claims = tokio::task::JoinSet::new();
        for number in 0..40 {
            let (store, key) = (stores[number % 2].clone(), key.clone());
            claims.spawn(async move { store.claim(&key, &request(1), LEASE).await.unwrap() });
        }
        let claims = claims.join_all().await;
        let granted = claims.iter().filter(|claimed| matches!(claimed, Claimed::Owned(_))).count();
        assert_eq!(granted, 1);
        // And of many heirs, one.
        place.clock.advance(LEASE);
        let mut heirs = tokio::task::JoinSet::new();
        for number in 0..40 {
            let (store, key) = (stores[number % 2].clone(), key.clone());
            heirs.spawn(async move { store.claim(&key, &request(1), LEASE).await.unwrap() });
        }
        let heirs = heirs.join_all().await;
        let granted: Vec<i64> = heirs
            .iter()
            .filter_map(|claimed| match claimed {
                Claimed::Owned(claim) => Some(claim.fence),
                Claimed::Busy { .. } => None,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(granted, [2]);
    }
}

pub async fn a_recovery_point_has_a_length(place: Place) {
    let store = place.store().await;
    let key = scope("acme", "k-1");
    let claim = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert!(store.reach(&claim, "").await.is_err());
    assert!(store.reach(&claim, &"\u{e9}".repeat(1025)).await.is_err());
    let longest = "\u{e9}".repeat(1024);
    store.reach(&claim, &longest).await.unwrap();
    store.release(&claim).await.unwrap();
    let next = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    assert_eq!(next.recovery_point, Some(longest));
}
