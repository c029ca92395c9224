//! Stores that are away: before a verb, after it, and for real. The caller is told the truth, and
//! money moves once.

use crate::app::{App, Call, Provider};
use crate::place::{Address, LEASE, Place};
use async_trait::async_trait;
use axum::response::IntoResponse;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Ending, Fingerprint, PostgresStore, Scope, Settings, Store, StoreError,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

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

/// A server that takes everything and says nothing, and a pool of which every connection is taken:
/// neither is waited for for ever. Time passes by itself while all wait.
#[tokio::test]
async fn a_silent_postgres_is_not_waited_for() {
    let Some(place) = Place::postgres().await else { return };
    let Address::Postgres(url) = &place.address else { panic!("it is PostgreSQL") };
    let (address, silent) = proxy(url).await;
    let through = url.replacen(&server_of(url), &address.to_string(), 1);
    let pool = crate::place::pool(&through);
    let store = PostgresStore::new(pool.clone(), place.clock.clone());
    let key = crate::place::scope("acme", "k-1");
    let request = crate::place::request(1);
    let claim = crate::place::owned(store.claim(&key, &request, LEASE).await.unwrap());
    silent.store(true, Ordering::SeqCst);
    tokio::time::pause();
    let lost = store.renew(&claim, LEASE).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    assert_eq!(pool.status().size, 0, "the silent connection must not be used again");
    tokio::time::resume();
    silent.store(false, Ordering::SeqCst);
    store.renew(&claim, LEASE).await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < pool.status().max_size {
        taken.push(pool.get().await.unwrap());
    }
    tokio::time::pause();
    let lost = store.renew(&claim, LEASE).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    tokio::time::resume();
    drop(taken);
    store.renew(&claim, LEASE).await.unwrap();
}

/// The host and port in a URL.
fn server_of(url: &str) -> String {
    url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned()
}

/// Passes everything on, until it is silent: then what comes is dropped.
async fn proxy(url: &str) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, server) = (listener.local_addr().unwrap(), server_of(url));
    let silent = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&silent);
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(&server).await.unwrap();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(pass_on(from_client, to_server, Arc::clone(&switch)));
            tokio::spawn(pass_on(from_server, to_client, Arc::clone(&switch)));
        }
    });
    (address, silent)
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, silent: Arc<AtomicBool>) {
    let mut bytes = vec![0; 65_536];
    while let Ok(read) = from.read(&mut bytes).await {
        let ended = read == 0
            || (!silent.load(Ordering::SeqCst) && to.write_all(&bytes[..read]).await.is_err());
        if ended {
            return;
        }
    }
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

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        self.inner.forget(claim).await
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        self.inner.sweep(limit).await
    }
}
