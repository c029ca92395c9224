//! Owners that die: a whole runtime is ended at a chosen moment, with everything that was running
//! in it. Afterwards the key works again as soon as the lease is over, and money has moved once.

use crate::app::{App, Call, Provider};
use crate::place::Place;
use async_trait::async_trait;
use axum::http::StatusCode;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Scope, Settings, Store, StoreError,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Short, since heartbeats go by the real time.
const LEASE: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    AfterClaim,
    AfterHeartbeat,
    BeforeTheEffect,
    AfterTheEffect,
    AfterItsRecoveryPoint,
    BeforeTheEnd,
    AfterTheEnd,
}

/// Each death, and how often the provider is asked in all: only where the effect happened and was
/// not noted is it asked again, under the same key.
const DEATHS: [(Death, u32); 7] = [
    (Death::AfterClaim, 1),
    (Death::AfterHeartbeat, 1),
    (Death::BeforeTheEffect, 1),
    (Death::AfterTheEffect, 2),
    (Death::AfterItsRecoveryPoint, 1),
    (Death::BeforeTheEnd, 1),
    (Death::AfterTheEnd, 1),
];

fn settings() -> Settings {
    Settings { lease: LEASE, ..Settings::default() }
}

pub async fn an_owner_may_die_anywhere(place: Place) {
    let place = Arc::new(place);
    for (death, asked_expected) in DEATHS {
        let provider = Arc::new(Provider::default());
        let call = Call::new("acme", &format!("{death:?}"), "{}");
        die(&place, &provider, call.clone(), death).await;
        let app = App::charging_at(Arc::clone(&provider), place.store().await, settings());
        if death == Death::AfterTheEnd {
            let reply = app.call(call).await;
            assert_eq!((reply.status, reply.replayed()), (StatusCode::CREATED, true));
        } else {
            place.clock.advance(LEASE - Duration::from_millis(1));
            let reply = app.call(call.clone()).await;
            assert_eq!((reply.status, reply.retry_after()), (StatusCode::CONFLICT, Some(1)));
            place.clock.advance(Duration::from_millis(1));
            let reply = app.call(call.clone()).await;
            assert_eq!((reply.status, reply.replayed()), (StatusCode::CREATED, false), "{death:?}");
            assert!(app.call(call).await.replayed());
        }
        assert_eq!(provider.charges(), 1, "{death:?}");
        assert_eq!(provider.asked(), asked_expected, "{death:?}");
    }
}

/// Calls in a runtime of its own and ends that at the moment of death.
async fn die(place: &Arc<Place>, provider: &Arc<Provider>, call: Call, death: Death) {
    let doomed =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let reached = Arc::new(Notify::new());
    let (place, provider, signal) = (Arc::clone(place), Arc::clone(provider), Arc::clone(&reached));
    doomed.spawn(async move {
        let store = Arc::new(Dying { inner: place.store().await, death, reached: signal });
        App::charging_at(provider, store, settings()).call(call).await
    });
    let there = tokio::time::timeout(Duration::from_secs(30), reached.notified()).await;
    assert!(there.is_ok(), "it did not come to {death:?}");
    doomed.shutdown_background();
}

/// Stops for ever at the moment of death, and says that it is there.
struct Dying {
    inner: Arc<dyn Store>,
    death: Death,
    reached: Arc<Notify>,
}

impl Dying {
    async fn at(&self, death: Death) {
        if self.death == death {
            self.reached.notify_one();
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Store for Dying {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let claimed = self.inner.claim(scope, fingerprint, lease).await;
        self.at(Death::AfterClaim).await;
        claimed
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        let renewed = self.inner.renew(claim, lease).await;
        self.at(Death::AfterHeartbeat).await;
        renewed
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        if self.death == Death::AfterHeartbeat {
            // The handler waits, so that there is a heartbeat.
            std::future::pending().await
        }
        if point.starts_with("charged") {
            self.at(Death::AfterTheEffect).await;
        }
        let reached = self.inner.reach(claim, point).await;
        if point.starts_with("charged") {
            self.at(Death::AfterItsRecoveryPoint).await;
        } else {
            self.at(Death::BeforeTheEffect).await;
        }
        reached
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        self.at(Death::BeforeTheEnd).await;
        let ended = self.inner.end(claim, answer, ending, keep).await;
        self.at(Death::AfterTheEnd).await;
        ended
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.inner.release(claim).await
    }

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        self.inner.forget(claim).await
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        self.inner.sweep(limit).await
    }
}
