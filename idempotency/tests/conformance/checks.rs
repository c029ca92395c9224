//! What must hold of every store under the layer, as checks that report a violation, so that the
//! checks themselves can be tried on stores with planted bugs (see `planted.rs`).

use crate::app::{App, Call};
use crate::place::{DAY, LEASE, answer, owned, request, scope};
use async_trait::async_trait;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use counterfoil_idempotency::{
    Answer, Claim, Claimed, Clock, Ending, Fingerprint, Scope, Settings, Store, StoreError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// A store to be checked, the clock it goes by, and a switch that takes it away.
pub struct Subject {
    pub store: Arc<dyn Store>,
    clock: Clock,
    down: Arc<AtomicBool>,
}

impl Subject {
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self::wrapped(store, clock, |store| store)
    }

    /// With something between the layer and the switch.
    pub fn wrapped(
        store: Arc<dyn Store>,
        clock: Clock,
        wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Self {
        let down = Arc::new(AtomicBool::new(false));
        let switched = Arc::new(Switched { inner: store, down: Arc::clone(&down) });
        Self { store: wrap(switched), clock, down }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    NothingRunsWithoutItsStore,
    AStaleOwnerEndsNothing,
    TheEndIsOnRecordBeforeTheAnswer,
    ARefusalIsFinal,
    TenantsShareNothing,
}

pub const ALL: [Check; 5] = [
    Check::NothingRunsWithoutItsStore,
    Check::AStaleOwnerEndsNothing,
    Check::TheEndIsOnRecordBeforeTheAnswer,
    Check::ARefusalIsFinal,
    Check::TenantsShareNothing,
];

impl Check {
    pub async fn run(self, subject: &Subject) -> Result<(), String> {
        match self {
            Self::NothingRunsWithoutItsStore => nothing_runs_without_its_store(subject).await,
            Self::AStaleOwnerEndsNothing => a_stale_owner_ends_nothing(subject).await,
            Self::TheEndIsOnRecordBeforeTheAnswer => the_end_is_on_record(subject).await,
            Self::ARefusalIsFinal => a_refusal_is_final(subject).await,
            Self::TenantsShareNothing => tenants_share_nothing(subject).await,
        }
    }
}

fn ensure(holds: bool, violation: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(violation()) }
}

async fn nothing_runs_without_its_store(subject: &Subject) -> Result<(), String> {
    let app = App::charging(Arc::clone(&subject.store), Settings::default());
    subject.down.store(true, Ordering::SeqCst);
    let reply = app.call(Call::new("acme", "down", "{}")).await;
    subject.down.store(false, Ordering::SeqCst);
    ensure(reply.status == StatusCode::SERVICE_UNAVAILABLE, || format!("{reply:?}"))?;
    ensure(reply.code() == "idempotency_unavailable", || reply.code())?;
    ensure(app.provider.asked() == 0, || "it ran".to_owned())
}

async fn a_stale_owner_ends_nothing(subject: &Subject) -> Result<(), String> {
    let (store, key) = (&subject.store, scope("acme", "stale"));
    let stale = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    subject.clock.advance(LEASE);
    let heir = owned(store.claim(&key, &request(1), LEASE).await.unwrap());
    let ended = store.end(&stale, &answer(200, "stale"), Ending::Completed, DAY).await;
    ensure(ended == Err(StoreError::Fenced), || format!("the stale owner's end: {ended:?}"))?;
    let ended = store.end(&heir, &answer(200, "heir"), Ending::Completed, DAY).await;
    ensure(ended.is_ok(), || format!("the heir's end: {ended:?}"))?;
    let replay = store.claim(&key, &request(1), LEASE).await.unwrap();
    ensure(replay == Claimed::Ended(answer(200, "heir")), || format!("{replay:?}"))
}

async fn the_end_is_on_record(subject: &Subject) -> Result<(), String> {
    let app = App::charging(Arc::clone(&subject.store), Settings::default());
    let call = Call::new("acme", "awaited", "{}");
    let first = app.call(call.clone()).await;
    let second = app.call(call).await;
    ensure(first.status == StatusCode::CREATED, || format!("{first:?}"))?;
    ensure(second.replayed() && second.body == first.body, || format!("{second:?}"))?;
    ensure(app.provider.asked() == 1, || format!("asked {} times", app.provider.asked()))
}

async fn a_refusal_is_final(subject: &Subject) -> Result<(), String> {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let app = App::new(Arc::clone(&subject.store), Settings::default(), move |_, _| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move { (StatusCode::PAYMENT_REQUIRED, format!("run {run}")).into_response() }
    });
    for _ in 0..3 {
        let reply = app.call(Call::new("acme", "refused", "{}")).await;
        ensure(reply.status == StatusCode::PAYMENT_REQUIRED, || format!("{reply:?}"))?;
        ensure(reply.body == "run 0", || format!("{reply:?}"))?;
    }
    let runs = runs.load(Ordering::SeqCst);
    ensure(runs == 1, || format!("it ran {runs} times"))
}

async fn tenants_share_nothing(subject: &Subject) -> Result<(), String> {
    let app = App::charging(Arc::clone(&subject.store), Settings::default());
    for tenant in ["acme", "globex"] {
        let reply = app.call(Call::new(tenant, "shared", "{}")).await;
        ensure(reply.status == StatusCode::CREATED && !reply.replayed(), || format!("{reply:?}"))?;
        let own = format!("ch_{tenant}_shared\n");
        ensure(reply.body == own, || format!("{tenant} was given {reply:?}"))?;
    }
    // Another body under the other's key tells nothing about it either.
    let reply = app.call(Call::new("initech", "shared", "{\"other\":1}")).await;
    ensure(reply.status == StatusCode::CREATED, || format!("{reply:?}"))
}

/// Says that it is unavailable while it is down.
struct Switched {
    inner: Arc<dyn Store>,
    down: Arc<AtomicBool>,
}

impl Switched {
    fn up(&self) -> Result<&dyn Store, StoreError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("switched off".to_owned()));
        }
        Ok(self.inner.as_ref())
    }
}

#[async_trait]
impl Store for Switched {
    async fn claim(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        self.up()?.claim(scope, fingerprint, lease).await
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<(), StoreError> {
        self.up()?.renew(claim, lease).await
    }

    async fn reach(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        self.up()?.reach(claim, point).await
    }

    async fn end(
        &self,
        claim: &Claim,
        answer: &Answer,
        ending: Ending,
        keep: Duration,
    ) -> Result<(), StoreError> {
        self.up()?.end(claim, answer, ending, keep).await
    }

    async fn release(&self, claim: &Claim) -> Result<(), StoreError> {
        self.up()?.release(claim).await
    }

    async fn forget(&self, claim: &Claim) -> Result<(), StoreError> {
        self.up()?.forget(claim).await
    }

    async fn sweep(&self, limit: u32) -> Result<u32, StoreError> {
        self.up()?.sweep(limit).await
    }
}
