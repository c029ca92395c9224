//! Stores that are away: before a verb, after it, and for real. The caller is told the truth, and
//! money moves once.

use crate::app::{App, Call, Provider};
use crate::place::{Address, LEASE, Place};
use async_trait::async_trait;
use axum::response::IntoResponse;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, Scope, Settings, Store, StoreError,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Claim,
    Reach,
    End,
    Release,
}

/// Whether the verb was done when its answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Before,
    After,
}

struct Case {
    /// Faults in the order in which they strike.
    faults: &'static [(Verb, Lost)],
    /// The status for the caller who met them, for the next at once, and after the lease.
    statuses: [u16; 3],
    /// Whether the answer at once and after the lease were given before.
    replayed: [bool; 2],
}

const CASES: [Case; 8] = [
    Case {
        faults: &[(Verb::Claim, Lost::Before)],
        statuses: [503, 201, 201],
        replayed: [false, true],
    },
    Case {
        faults: &[(Verb::Claim, Lost::After)],
        statuses: [503, 409, 201],
        replayed: [false, false],
    },
    // The handler stops, and its claim is released.
    Case {
        faults: &[(Verb::Reach, Lost::Before)],
        statuses: [502, 201, 201],
        replayed: [false, true],
    },
    Case {
        faults: &[(Verb::Reach, Lost::After)],
        statuses: [502, 201, 201],
        replayed: [false, true],
    },
    Case {
        faults: &[(Verb::Reach, Lost::After), (Verb::Release, Lost::Before)],
        statuses: [502, 409, 201],
        replayed: [false, false],
    },
    // A short outage is waited for.
    Case {
        faults: &[(Verb::End, Lost::Before), (Verb::End, Lost::Before)],
        statuses: [201, 201, 201],
        replayed: [true, true],
    },
    Case { faults: &[(Verb::End, Lost::After)], statuses: [409, 201, 201], replayed: [true, true] },
    Case {
        faults: &[
            (Verb::End, Lost::Before),
            (Verb::End, Lost::Before),
            (Verb::End, Lost::Before),
            (Verb::End, Lost::Before),
        ],
        statuses: [503, 409, 201],
        replayed: [false, false],
    },
];

pub async fn a_store_that_fails_before_or_after_each_verb(place: Place) {
    for (case, number) in CASES.iter().zip(1..) {
        let provider = Arc::new(Provider::default());
        let faults = Mutex::new(case.faults.to_vec());
        let failing = Arc::new(Failing { inner: place.store().await, faults });
        let first = App::charging_at(Arc::clone(&provider), failing, Settings::default());
        let then =
            App::charging_at(Arc::clone(&provider), place.store().await, Settings::default());
        let call = Call::new("acme", &format!("k-{number}"), "{}");
        let met = first.call(call.clone()).await;
        let at_once = then.call(call.clone()).await;
        place.clock.advance(LEASE);
        let after = then.call(call).await;
        let statuses = [&met, &at_once, &after].map(|reply| reply.status.as_u16());
        assert_eq!(statuses, case.statuses, "after {:?}", case.faults);
        let replayed = [&at_once, &after].map(|reply| reply.replayed());
        assert_eq!(replayed, case.replayed, "after {:?}", case.faults);
        assert_eq!(provider.asked(), 1, "after {:?}", case.faults);
        if met.status.as_u16() == 503 {
            assert_eq!(met.code(), "idempotency_unavailable");
            assert!(met.retry_after().is_some());
        }
    }
}

/// Every connection of the pool is cut while the handler runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_may_lose_its_connections_between_claim_and_end() {
    let Some(place) = Place::postgres().await else { return };
    let place = Arc::new(place);
    let cutter = Arc::clone(&place);
    let app = App::new(place.store().await, Settings::default(), move |_, _| {
        let place = Arc::clone(&cutter);
        async move {
            let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid()";
            let pool = crate::place::pool(url);
            assert!(!pool.get().await.unwrap().query(cut, &[]).await.unwrap().is_empty());
            "done".into_response()
        }
    });
    let call = Call::new("acme", "k-1", "{}");
    let (first, second) = (app.call(call.clone()).await, app.call(call).await);
    assert_eq!((first.status.as_u16(), first.replayed()), (200, false));
    assert_eq!((second.status.as_u16(), second.replayed()), (200, true));
}

struct Failing {
    inner: Arc<dyn Store>,
    faults: Mutex<Vec<(Verb, Lost)>>,
}

impl Failing {
    /// The next fault, if it is one of this verb.
    fn strikes(&self, verb: Verb) -> Option<Lost> {
        let mut faults = self.faults.lock().unwrap();
        let (due, lost) = faults.first().copied()?;
        (due == verb).then(|| {
            faults.remove(0);
            lost
        })
    }

    fn lost<T>() -> Result<T, StoreError> {
        Err(StoreError::Unavailable("planted".to_owned()))
    }
}

#[async_trait]
impl Store for Failing {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        match self.strikes(Verb::Claim) {
            Some(Lost::Before) => Self::lost(),
            Some(Lost::After) => {
                self.inner.claim(scope, fingerprint, lease).await?;
                Self::lost()
            }
            None => self.inner.claim(scope, fingerprint, lease).await,
        }
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.inner.renew(claim, lease).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        match self.strikes(Verb::Reach) {
            Some(Lost::Before) => Self::lost(),
            Some(Lost::After) => {
                self.inner.reach(claim, point).await?;
                Self::lost()
            }
            None => self.inner.reach(claim, point).await,
        }
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        match self.strikes(Verb::End) {
            Some(Lost::Before) => Self::lost(),
            Some(Lost::After) => {
                self.inner.end(claim, answer, ending, keep).await?;
                Self::lost()
            }
            None => self.inner.end(claim, answer, ending, keep).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        match self.strikes(Verb::Release) {
            Some(Lost::Before) => Self::lost(),
            Some(Lost::After) => {
                self.inner.release(claim).await?;
                Self::lost()
            }
            None => self.inner.release(claim).await,
        }
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        self.inner.sweep(limit).await
    }
}
