//! The world of sagas: prices to subscribe to, and runners that are made anew for each pass, as
//! after a restart.
//!
//! Invariant: what happened is read from the simulator's own state and from the store, never from
//! what a runner says.

pub use crate::world::{Ground, at, tenant_id};

use super::script::Script;
use super::scripted_provider::ScriptedProvider;
use crate::world::{self, CALLS, Job};
use counterfoil::jobs::Context;
use counterfoil::jobs::sagas::{SagasJob, boundary_after};
use counterfoil::provider::Provider;
use counterfoil::rules::ids::OnceKey;
use counterfoil::rules::saga::{LogLine, Saga, SagaKind, SagaState, saga_id};
use counterfoil::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use counterfoil::store::Query;
use counterfoil::store::push::{Push, PushFilter};
use counterfoil::store::saga::{Begun, NewSaga, SubscriptionRecord};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where every world begins: inside an hour, so that a window is open.
pub const BEGINNING: &str = "2026-11-15T12:20:00Z";
/// A second more than a runner's lease.
const BEYOND_LEASE_SECONDS: i64 = 181;
/// Passes after which a saga is said not to end by itself.
const PASSES_MAX: usize = 300;

pub struct World {
    base: world::World,
    /// Of the meter `calls`, at one cent, two and three.
    pub prices: [String; 3],
    /// Five dollars a month, paid in advance.
    pub flat: String,
    numbers: AtomicU64,
}

extend_world!(World);

impl World {
    pub async fn on(ground: Ground) -> Self {
        // Silence costs this much real time.
        let base = world::World::with(ground, |config| config.stripe.timeout_ms = 1_000).await;
        base.go_to(BEGINNING);
        base.meter("calls", CALLS).await;
        let prices = ["1", "2", "3"].map(|cents| base.stripe.price("calls", cents, "month"));
        let flat = base.stripe.flat_price();
        Self { base, prices, flat, numbers: AtomicU64::new(0) }
    }

    /// Stops its store and its provider.
    pub async fn close(mut self) {
        self.store.close().await;
        self.stripe.handle.stop().await.unwrap();
    }

    /// A name that nothing here has yet.
    pub fn fresh(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.numbers.fetch_add(1, Ordering::SeqCst))
    }

    /// The end of the window under way.
    pub async fn boundary(&self) -> Timestamp {
        boundary_after(&self.store.load_catalog().await.unwrap(), self.clock.now())
    }

    /// Begins a saga and returns its id.
    pub async fn begin(
        &self,
        tenant: &str,
        kind: SagaKind,
        params: &impl serde::Serialize,
    ) -> String {
        let (tenant, key) = (tenant_id(tenant), OnceKey::parse(&self.fresh("key")).unwrap());
        let id = saga_id(&self.store.token_secret(), &tenant, &key);
        let params = serde_json::to_string(params).unwrap();
        let new = NewSaga { id: id.clone(), kind, tenant, key, params };
        let begun = self.store.begin_saga(new, self.clock.now(), None).await.unwrap();
        assert!(matches!(begun, Begun::Created(_)), "{begun:?}");
        id
    }

    pub async fn saga(&self, id: &str) -> (Saga, Vec<LogLine>) {
        self.store.find_saga(id).await.unwrap().unwrap()
    }

    /// A runner as of a server that has just started; its calls meet the script's accidents.
    pub fn runner(&self, script: &Arc<Script>) -> SagasJob {
        let store = script.around(Arc::clone(&self.store));
        let (inner, script) = (Arc::clone(&self.provider), Arc::clone(script));
        let provider: Arc<dyn Provider> = Arc::new(ScriptedProvider { inner, script });
        let (clock, holder) = (self.clock.clone(), self.fresh("runner"));
        SagasJob::new(&Context::new(store, clock, &self.config, holder, 1), &provider)
    }

    /// Lets runners have the saga, one after the other, until it has ended or needs an operator.
    pub async fn drive(&self, id: &str, script: &Arc<Script>) -> SagaState {
        let mut stalled: Option<tokio::task::JoinHandle<_>> = None;
        for _ in 0..PASSES_MAX {
            let (saga, log) = self.saga(id).await;
            if !saga.state.is_moving() {
                let Some(task) = stalled.take() else { return saga.state };
                // The runner that stalled goes on, with a fence that is not current any more, after
                // the provider has forgotten its keys.
                self.clock.advance(30 * 3_600_000_000);
                script.go_on.notify_one();
                let _ = task.await.unwrap();
                assert_eq!(self.saga(id).await, (saga, log), "a stale runner has written");
                continue;
            }
            let runner = self.runner(script);
            let mut task = tokio::spawn(async move { runner.pass().await });
            tokio::select! {
                passed = &mut task => drop(passed.unwrap()),
                () = script.reached.notified() => {
                    if script.stalls() {
                        stalled = Some(task);
                    } else {
                        task.abort();
                        assert!(task.await.unwrap_err().is_cancelled());
                    }
                }
            }
            self.jobs.submitter.pass().await.unwrap();
            self.wait_for(id).await;
        }
        panic!("it does not end: {:#?}", self.saga(id).await);
    }

    /// Goes to when the saga is due, or past the lease of a runner that is gone.
    pub async fn wait_for(&self, id: &str) {
        let (saga, _) = self.saga(id).await;
        let ahead = saga.due_at.micros() - self.clock.now().micros();
        let micros = if ahead > 0 { ahead } else { BEYOND_LEASE_SECONDS * MICROS_PER_SECOND };
        if saga.state.is_moving() {
            self.clock.advance(micros);
        }
    }

    /// Drives it without accidents of the script.
    pub async fn finish(&self, id: &str) -> SagaState {
        self.drive(id, &Arc::default()).await
    }

    /// Customers at the provider that were made for a tenant.
    pub fn made_customers(&self, tenant: &str) -> Vec<Value> {
        let all = self.stripe.lock().customers();
        all.into_iter().filter(|one| one["metadata"]["counterfoil_tenant"] == tenant).collect()
    }

    pub fn customer(&self, id: &str) -> Value {
        self.stripe.lock().customers().into_iter().find(|one| one["id"] == id).unwrap()
    }

    /// What a customer has paid and did not get back, in cents; nothing else may be owed.
    pub fn kept(&self, customer: &str) -> i64 {
        let all = self.stripe.get(&format!("/v1/invoices?limit=100&customer={customer}"));
        let rows = all["data"].as_array().unwrap().iter();
        rows.map(|one| {
            let amount = |name: &str| one[name].as_i64().unwrap();
            let status = one["status"].as_str().unwrap();
            let owed = ["draft", "open"].contains(&status) && amount("amount_due") > 0;
            assert!(!owed, "{one:#}");
            amount("amount_paid") - amount("post_payment_credit_notes_amount")
        })
        .sum()
    }

    /// Subscriptions of a customer, those that have ended too.
    pub fn subscriptions(&self, customer: &str) -> Vec<Value> {
        let all = self.stripe.lock().subscriptions();
        all.into_iter().filter(|one| one["customer"] == customer).collect()
    }

    pub async fn records(&self, tenant: &str) -> Vec<SubscriptionRecord> {
        self.store.list_subscription_records(&tenant_id(tenant), 100).await.unwrap()
    }

    pub async fn mapped_to(&self, tenant: &str) -> Option<String> {
        let found = self.store.find_tenant(&tenant_id(tenant)).await.unwrap();
        found.and_then(|found| found.customer).map(|customer| customer.as_str().to_owned())
    }

    /// Kinds of the changes about a tenant's sagas, oldest first.
    pub async fn changes(&self, tenant: &str) -> Vec<String> {
        let found =
            self.store.list_changes(Query::first(Some(tenant_id(tenant)), 1_000)).await.unwrap();
        let kinds = found.into_iter().map(|change| change.kind);
        kinds.filter(|kind| kind.starts_with("saga.")).collect()
    }

    /// Every push of a tenant, oldest first.
    pub async fn pushes(&self, tenant: &str) -> Vec<Push> {
        let tenant = Some(tenant_id(tenant));
        let query = Query::first(PushFilter { tenant, ..PushFilter::default() }, 10_000);
        self.store.list_pushes(query).await.unwrap().into_iter().rev().collect()
    }
}

/// What a subscription is charged by.
pub fn prices_of(subscription: &Value) -> Vec<&str> {
    let items = subscription["items"]["data"].as_array().unwrap();
    items.iter().map(|item| item["price"]["id"].as_str().unwrap()).collect()
}
