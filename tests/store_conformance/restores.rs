//! Epochs, and windows of a restored store that are compared with what the provider holds.

use crate::billed::{Billed, after, quantity, told};
use crate::fixture::Fixture;
use counterfoil::rules::restore::{Cause, Reading, judge_start};
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::store::push::ClaimedPush;

/// Has the window of the one push that is due compared with this total.
async fn compare(billed: &Billed, total: &str, minute: i64) -> ClaimedPush {
    let claimed = billed.claim_one(minute).await;
    assert!(claimed.uncompared.is_some());
    let look_at = after(billed.f.now, minute + 15);
    let next = Next::Compared { total: quantity(total), look_at };
    assert!(billed.settle(&claimed, (Class::Unknown, next), minute).await);
    claimed
}

pub async fn a_store_knows_its_life(mut f: Fixture) {
    let life = f.store.read_life().await.unwrap();
    assert_eq!((life.own.number, life.alive_at), (0, None));
    assert_eq!(f.store.read_epoch().await.unwrap(), None);
    f.store.record_alive(f.now).await.unwrap();
    f.restart().await;
    let again = f.store.read_life().await.unwrap();
    assert_eq!((again.own.store.clone(), again.alive_at), (life.own.store, Some(f.now)));
    assert!(again.own.number > 0);
    assert_eq!(judge_start(&again, after(f.now, 1)), None, "{again:?}");
    let first = f.store.record_restore(&Cause::known("one"), f.now).await.unwrap();
    let second = f.store.record_restore(&Cause::known("two"), after(f.now, 1)).await.unwrap();
    assert_eq!((first.number, second.number), (1, 2));
    f.restart().await;
    assert_eq!(f.store.read_epoch().await.unwrap(), Some(second));
}

pub async fn after_a_restore_the_rest_is_sent(f: Fixture) {
    let billed = Billed::with_acme(f).await;
    for (minute, meter) in [(0, "tokens"), (20, "peak")] {
        billed.planned("acme", &format!("{meter}1"), meter, "7", 0).await;
        billed.planned("acme", &format!("{meter}2"), meter, "5", 0).await;
        let at = after(billed.f.now, minute);
        billed.f.store.record_restore(&Cause::known("test"), at).await.unwrap();
        let before = billed.pushes().await.len();
        let claimed = compare(&billed, "10", minute + 1).await;
        assert_eq!(billed.push(claimed.push.number).await.state, PushState::Replaced);
        let pushes = billed.pushes().await.split_off(before);
        let stands: Vec<_> = pushes.iter().map(|push| (push.state, push.class)).collect();
        let adopted = (PushState::Confirmed, Class::Adopted);
        assert_eq!(stands, [adopted, (PushState::Observed, Class::Cut)]);
        let rest = if meter == "tokens" { "2" } else { "12" };
        let expected = told(&[(3, "10", "10"), (4, "2", rest)]);
        assert_eq!(billed.told().await.split_off(before), expected);
        // The rest is compared, too, and goes out under a key of this epoch.
        let claimed = compare(&billed, "10", minute + 2).await;
        let push = billed.push(claimed.push.number).await;
        assert_eq!((push.state, push.class), (PushState::Observed, Class::Absent));
        let claimed = billed.claim_one(minute + 3).await;
        assert_eq!(claimed.uncompared, None);
        billed.finish(&claimed, billed.accepted(minute + 3), minute + 3).await;
        assert_eq!(billed.state(meter, 0).await.unwrap().planned, quantity("12"));
    }
}

pub async fn after_a_restore_what_is_there_is_not_sent(f: Fixture) {
    let mut billed = Billed::with_acme(f).await;
    billed.planned("acme", "e1", "tokens", "5", 0).await;
    billed.f.store.record_restore(&Cause::known("test"), after(billed.f.now, -60)).await.unwrap();
    let claimed = billed.claim_one(1).await;
    let next = Next::Looked { total: quantity("5"), until: after(billed.f.now, 9) };
    assert!(billed.settle(&claimed, (Class::Unknown, next), 2).await);
    billed.f.restart().await;
    let last = billed.claim_one(9).await.uncompared.unwrap().last;
    assert_eq!(last, Some(Reading { total: quantity("5"), at: after(billed.f.now, 2) }));
    // More than was planned: wait for events that come again.
    let waiting = compare(&billed, "9", 30).await.push.number;
    let push = billed.push(waiting).await;
    assert_eq!((push.state, push.class), (PushState::Observed, Class::Unknown));
    assert_eq!(push.due_at, after(billed.f.now, 45));
    compare(&billed, "5", 45).await;
    let push = billed.push(waiting).await;
    assert_eq!((push.state, push.class), (PushState::Submitted, Class::Present));
    // A window that began after the restore is sent at once.
    billed.planned("acme", "e2", "tokens", "5", 83).await;
    assert_eq!(billed.claim_one(46).await.uncompared, None);
}
