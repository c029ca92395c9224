//! Time: what is forgotten and when, and clocks that are set forward and back.

use crate::place::{DAY, LEASE, Place, START, answer, busy, owned, request, scope};
use counterfoil_idempotency::{Claim, Claimed, Ending, Millis, Store};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

async fn claim(store: &dyn Store, key: &str) -> Claim {
    owned(store.claim(&scope("acme", key), &request(1), LEASE).await.unwrap())
}

async fn end(store: &dyn Store, key: &str, ending: Ending, keep: Duration) {
    let claim = claim(store, key).await;
    store.end(&claim, &answer(200, "done"), ending, keep).await.unwrap();
}

async fn look(store: &dyn Store, key: &str) -> Claimed {
    store.claim(&scope("acme", key), &request(1), LEASE).await.unwrap()
}

pub async fn an_ended_record_is_replayed_until_it_is_swept(place: Place) {
    let store = place.store().await;
    end(store.as_ref(), "k", Ending::Completed, DAY).await;
    place.clock.advance(YEAR);
    assert_eq!(look(store.as_ref(), "k").await, Claimed::Ended(answer(200, "done")));
    if place.sweeps() {
        assert_eq!(store.sweep(10).await.unwrap(), 1);
        assert_eq!(owned(look(store.as_ref(), "k").await).fence, 1);
    }
}

pub async fn only_what_may_be_forgotten_is_forgotten(place: Place) {
    let store = place.store().await;
    end(store.as_ref(), "completed", Ending::Completed, DAY).await;
    end(store.as_ref(), "failed", Ending::Failed, HOUR).await;
    claim(store.as_ref(), "claimed").await;
    let begun = claim(store.as_ref(), "unresolved").await;
    store.reach(&begun, "half").await.unwrap();
    store.release(&begun).await.unwrap();
    let idle = claim(store.as_ref(), "released").await;
    store.release(&idle).await.unwrap();
    if !place.sweeps() {
        assert_eq!(store.sweep(10).await.unwrap(), 0);
        return;
    }
    place.clock.advance(HOUR - Duration::from_millis(1));
    assert_eq!(store.sweep(10).await.unwrap(), 0);
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(store.sweep(1).await.unwrap(), 1, "no more than asked for");
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert_eq!(look(store.as_ref(), "completed").await, Claimed::Ended(answer(200, "done")));
    assert_eq!(owned(look(store.as_ref(), "failed").await).fence, 1);
    assert_eq!(owned(look(store.as_ref(), "released").await).fence, 1);
    place.clock.advance(DAY);
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    assert_eq!(owned(look(store.as_ref(), "completed").await).fence, 1);
    for _ in 0..10 {
        place.clock.advance(YEAR);
        assert_eq!(store.sweep(10).await.unwrap(), 0);
    }
    assert_eq!(owned(look(store.as_ref(), "claimed").await).fence, 2);
    let heir = owned(look(store.as_ref(), "unresolved").await);
    assert_eq!((heir.fence, heir.recovery_point.as_deref()), (2, Some("half")));
}

pub async fn a_clock_set_forward_forgets_nothing(place: Place) {
    let store = place.store().await;
    end(store.as_ref(), "k", Ending::Completed, DAY).await;
    store.sweep(10).await.unwrap();
    place.clock.set(Millis(START.0 + 1_000_000_000_000));
    for _ in 0..24 {
        assert_eq!(store.sweep(10).await.unwrap(), 0);
        assert_eq!(look(store.as_ref(), "k").await, Claimed::Ended(answer(200, "done")));
        place.clock.advance(HOUR - Duration::from_secs(1));
    }
    // What was kept for its time by any clock may go.
    place.clock.advance(HOUR);
    let removed = store.sweep(10).await.unwrap();
    assert_eq!(removed, u32::from(place.sweeps()));
    // A key of the time after the jump is kept by the clock of that time, and goes in the end.
    end(store.as_ref(), "later", Ending::Completed, DAY).await;
    place.clock.advance(DAY + HOUR);
    assert_eq!(look(store.as_ref(), "later").await, Claimed::Ended(answer(200, "done")));
    for _ in 0..3 {
        place.clock.advance(DAY);
        store.sweep(10).await.unwrap();
    }
    if place.sweeps() {
        assert_eq!(owned(look(store.as_ref(), "later").await).fence, 1);
    }
}

pub async fn a_clock_set_back_does_not_lock_a_key(place: Place) {
    let store = place.store().await;
    let claim = claim(store.as_ref(), "k").await;
    place.clock.set(Millis(START.0 - 1_000_000_000_000));
    assert_eq!(busy(look(store.as_ref(), "k").await), LEASE);
    place.clock.advance(LEASE / 2);
    assert_eq!(busy(look(store.as_ref(), "k").await), LEASE / 2, "it is not begun again");
    // A living owner goes on by the clock as it is now.
    store.renew(&claim, LEASE).await.unwrap();
    place.clock.advance(LEASE / 2);
    assert_eq!(busy(look(store.as_ref(), "k").await), LEASE / 2);
    // Another's shorter lease says nothing about this one.
    let key = scope("acme", "k");
    let left = busy(store.claim(&key, &request(1), LEASE / 60).await.unwrap());
    assert_eq!(left, LEASE / 2);
    place.clock.advance(LEASE / 2);
    assert_eq!(owned(look(store.as_ref(), "k").await).fence, 2);
    // An answer of before is still given.
    end(store.as_ref(), "done", Ending::Completed, DAY).await;
    place.clock.set(Millis(START.0 - 2_000_000_000_000));
    assert_eq!(store.sweep(10).await.unwrap(), 0);
    assert_eq!(look(store.as_ref(), "done").await, Claimed::Ended(answer(200, "done")));
}

/// A caller that comes as its record is swept finds it or finds nothing; it is never told that
/// somebody is at work.
pub async fn a_sweep_that_races_a_claim_is_harmless(place: Place) {
    let (store, sweeper) = (place.store().await, place.store().await);
    for round in 0..60_u32 {
        let key = scope("acme", &format!("k-{round}"));
        end(store.as_ref(), &key.key, Ending::Completed, HOUR).await;
        place.clock.advance(HOUR);
        let (swept, same, other) = tokio::join!(
            async { sweeper.sweep(10).await },
            async { store.claim(&key, &request(1), LEASE).await },
            async { sweeper.claim(&key, &request(2), LEASE).await },
        );
        swept.unwrap();
        let expected = match (same.unwrap(), other.unwrap()) {
            (Claimed::Ended(_) | Claimed::Owned(_), Claimed::Mismatch) => true,
            // Swept between the two, and the other request came first.
            (Claimed::Ended(_) | Claimed::Mismatch, Claimed::Owned(claim)) => claim.fence == 1,
            _ => false,
        };
        assert!(expected, "round {round}");
    }
}
