//! Leases on jobs, and what a lost one may still write.

use crate::billed::{Billed, after, window};
use crate::fixture::{Fixture, at_once};
use counterfoil::store::push::{CutOrder, Lease};
use std::sync::Arc;

pub async fn a_lease_has_one_holder(mut f: Fixture) {
    let claim = async |f: &Fixture, holder: &str, minute: i64| {
        let (now, until) = (after(f.now, minute), after(f.now, minute + 10));
        let lease = f.store.claim_lease("cut", holder, now, until).await.unwrap();
        lease.map(|lease| lease.fence)
    };
    let lease = |fence| Lease { name: "cut", fence };
    assert_eq!(claim(&f, "a", 0).await, Some(1));
    assert_eq!(claim(&f, "b", 1).await, None);
    assert_eq!(claim(&f, "a", 5).await, Some(1), "the holder's own is prolonged");
    assert_eq!(claim(&f, "b", 14).await, None);
    f.restart().await;
    assert_eq!(claim(&f, "b", 15).await, Some(2), "it ended");
    assert_eq!(claim(&f, "a", 16).await, None);
    f.store.release_lease(&lease(1)).await.unwrap();
    assert_eq!(claim(&f, "a", 16).await, None, "an earlier fence gives nothing back");
    f.store.release_lease(&lease(2)).await.unwrap();
    assert_eq!(claim(&f, "a", 16).await, Some(3));
    f.store.release_lease(&lease(3)).await.unwrap();
    assert_eq!(claim(&f, "a", 17).await, Some(4), "given back is given up");
    assert_eq!(claim(&f, "a", 27).await, Some(4), "it ended, and nobody else took it");
    assert_eq!(claim(&f, "b", 37).await, Some(5), "another took it after its end");
    assert_eq!(claim(&f, "a", 47).await, Some(6), "somebody else had it in between");
    let (now, until) = (f.now, after(f.now, 1));
    let other = f.store.claim_lease("other", "b", now, until).await.unwrap();
    assert_eq!(other, Some(Lease { name: "other", fence: 1 }));
}

pub async fn three_cutters_at_once(f: Fixture) {
    let billed = Billed::start(f).await;
    let hours: Vec<i64> = (0..20).collect();
    for hour in &hours {
        billed.used(&format!("e{hour}"), "tokens", "1.5", *hour).await;
    }
    billed.f.store.release_lease(&billed.lease).await.unwrap();
    let orders = billed.orders("acme", "tokens", &hours).await;
    let billed = Arc::new(billed);
    let holders = ["a", "b", "c"].map(|holder| (holder, orders.clone()));
    let cut = |billed: Arc<Billed>, (holder, orders): (&'static str, Vec<CutOrder>)| async move {
        let store = &billed.f.store;
        let (now, until) = (billed.f.now, after(billed.f.now, 10));
        let mut rounds = 0;
        while rounds < 3 {
            let claimed = store.claim_lease("cut", holder, now, until).await.unwrap();
            let Some(lease) = claimed else {
                tokio::task::yield_now().await;
                continue;
            };
            for part in orders.chunks(7) {
                let report = store.record_cuts(&lease, part.to_vec(), billed.terms).await;
                assert!(!report.unwrap().lease_lost);
            }
            store.release_lease(&lease).await.unwrap();
            rounds += 1;
        }
    };
    at_once(&billed, holders, cut).await;
    let pushes = billed.pushes().await;
    let starts: Vec<_> = pushes.iter().map(|push| push.window.start).collect();
    assert_eq!(starts, hours.iter().map(|hour| window(*hour).start).collect::<Vec<_>>());
    assert!(pushes.iter().all(|push| push.revision == 1));
}

pub async fn a_stale_fence_writes_nothing(f: Fixture) {
    let mut billed = Billed::start(f).await;
    let outbound = billed.f.store.clone();
    billed.used("e1", "tokens", "1", 0).await;
    let stale = billed.lease.clone();
    let late = after(billed.f.now, 60 * 24);
    let taken = outbound.claim_lease("cut", "b", late, after(late, 10)).await.unwrap().unwrap();
    assert!(taken.fence > stale.fence);
    let meter = billed.f.meter_no("tokens").await;
    let check_lost = async |lease: &Lease| {
        let orders = billed.orders("acme", "tokens", &[0]).await;
        let report = outbound.record_cuts(lease, orders, billed.terms).await.unwrap();
        assert!(report.lease_lost && report.pushes == 0);
        assert!(!outbound.record_cut_mark(lease, meter, late).await.unwrap());
        assert_eq!(billed.state("tokens", 0).await, None);
        assert_eq!(billed.told().await, []);
        assert_eq!(outbound.read_cut_marks().await.unwrap(), []);
    };
    check_lost(&stale).await;
    outbound.release_lease(&taken).await.unwrap();
    check_lost(&taken).await;
    check_lost(&stale).await;
    billed.lease = outbound.claim_lease("cut", "c", late, after(late, 10)).await.unwrap().unwrap();
    assert_eq!(billed.cut("tokens", &[0]).await, 1);
}
