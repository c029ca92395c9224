//! The worker's orders about credits and sagas.

use super::Worker;
use crate::orders::{HourTotal, SagaParams};
use counterfoil::jobs::credits::{Balance, BalanceSettings, CreditsJob, read_balance};
use counterfoil::jobs::sagas::{CancelParams, ChangeParams, CreateParams, PlanTerms};
use counterfoil::jobs::{Context, Job};
use counterfoil::rules::credit::{ChangeKind, GrantTerms, Pool};
use counterfoil::rules::ids::{OnceKey, SubscriptionId, TenantId, Unit};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::saga::{SagaKind, saga_id};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store;
use counterfoil::store::Query;
use counterfoil::store::credit::{ChangeFilter, Issued, VoidGrant, Voided};
use counterfoil::store::saga::{Begun, NewSaga};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 1_000;
/// Between the moments at which a balance reads grants and usage.
const GRANTS_READ: &str = "credits.grants_read";

impl Worker {
    pub(super) async fn grant(
        &self,
        (tenant, key): (&str, &str),
        amount: &str,
        (effective_at, expires_at): (i64, Option<i64>),
    ) -> String {
        let catalog = self.store.load_catalog().await.unwrap();
        let rates = catalog.billed().into_iter().map(|(number, _)| (number, Quantity::ONE));
        let terms = GrantTerms {
            tenant: TenantId::parse(tenant).unwrap(),
            key: OnceKey::parse(key).unwrap(),
            pool: Pool::Purchased,
            unit: Unit::parse("credits").unwrap(),
            amount: Quantity::parse_stored(amount).unwrap(),
            rates: rates.collect(),
            priority: 0,
            effective_at: Timestamp::from_micros(effective_at),
            expires_at: expires_at.map(Timestamp::from_micros),
            memo: String::new(),
        };
        match self.store.issue_grant(terms, self.clock.now(), None).await.unwrap() {
            Issued::Created(grant) | Issued::Repeated(grant) => grant.number.to_string(),
            refused => panic!("{refused:?}"),
        }
    }

    fn balance_settings(&self) -> BalanceSettings {
        BalanceSettings {
            now: self.clock.now(),
            order: Default::default(),
            accept_horizon_hours: self.config.ingest.accept_horizon_hours,
            shadow: false,
            usage_rows_max: usize::MAX,
        }
    }

    async fn read_balance(&self, tenant: &TenantId) -> store::Result<Balance> {
        let catalog = self.store.load_catalog().await.unwrap();
        read_balance(&*self.store, &catalog, tenant, self.balance_settings()).await
    }

    pub(super) async fn void_grant(&self, tenant: &str, key: &str, grant: u64) -> String {
        let (tenant, key) = (TenantId::parse(tenant).unwrap(), OnceKey::parse(key).unwrap());
        let reserved = self.read_balance(&tenant).await.unwrap().reserved(grant);
        let memo = String::new();
        let order = VoidGrant { tenant, grant, key, amount: None, reserved, memo };
        match self.store.void_grant(order, self.clock.now(), None).await.unwrap() {
            Voided::Done(change) | Voided::Repeated(change) => change.amount.to_string(),
            Voided::TooLittle(_) => "0".to_owned(),
            refused => panic!("{refused:?}"),
        }
    }

    pub(super) async fn expire(&self) -> String {
        let (store, clock) = (Arc::clone(&self.store), self.clock.clone());
        let context = Context::new(store, clock, &self.config, "expirer".into(), 1);
        CreditsJob::new(&context).pass().await.unwrap().to_string()
    }

    pub(super) async fn balance(&self, tenant: &str, during_cut: bool) -> String {
        if during_cut {
            self.cut_between_reads();
        }
        let balance = self.read_balance(&TenantId::parse(tenant).unwrap()).await;
        fail::remove(GRANTS_READ);
        let Ok(balance) = balance else { return String::new() };
        let available = balance
            .pools
            .values()
            .fold(Quantity::ZERO, |sum, pool| sum.checked_add(pool.available).unwrap());
        available.to_string()
    }

    /// The balance that is read next waits for a whole cut after it has read the grants.
    fn cut_between_reads(&self) {
        let (cutter, runtime) = (Arc::clone(&self.cutter), tokio::runtime::Handle::current());
        let begun = AtomicBool::new(false);
        let cut = move || {
            if begun.swap(true, Ordering::SeqCst) {
                return;
            }
            let (done, wait) = std::sync::mpsc::channel();
            let cutter = Arc::clone(&cutter);
            runtime.spawn(async move {
                cutter.pass().await.unwrap();
                done.send(()).unwrap();
            });
            wait.recv().unwrap();
        };
        fail::cfg_callback(GRANTS_READ, cut).unwrap();
    }

    pub(super) async fn covered(&self, tenants: &[String]) -> Vec<HourTotal> {
        let catalog = self.store.load_catalog().await.unwrap();
        let mut hours = BTreeMap::new();
        for id in tenants {
            let tenant = TenantId::parse(id).unwrap();
            let mut before = None;
            loop {
                let filter = ChangeFilter { tenant: tenant.clone(), grant: None };
                let query = Query { filter, after: before, limit: PAGE };
                let page = self.store.list_credit_changes(query).await.unwrap();
                let Some(last) = page.last() else { break };
                before = Some(last.number);
                for change in page {
                    let Some(covered) = change.covered else { continue };
                    let meter = catalog.get(covered.meter).unwrap().slug.to_string();
                    let key = (id.clone(), meter, covered.window.start.micros());
                    let sum = hours.entry(key).or_insert(Quantity::ZERO);
                    *sum = match change.kind {
                        ChangeKind::Drawn => sum.checked_add(covered.quantity).unwrap(),
                        _ => sum.checked_sub(covered.quantity).unwrap(),
                    };
                }
            }
        }
        let rows = hours.into_iter().map(|((tenant, meter, hour), sum)| HourTotal {
            tenant,
            meter,
            hour,
            amount: sum.to_string(),
        });
        rows.collect()
    }

    pub(super) async fn begin(&self, tenant: &str, key: &str, saga: SagaParams) -> String {
        let (kind, params) = match saga {
            SagaParams::Create { prices } => {
                let terms = PlanTerms { plan: "pro".into(), prices, features: Vec::new() };
                let params = CreateParams { terms, name: None, email: None, anchor: None };
                (SagaKind::CreateSubscription, serde_json::to_string(&params))
            }
            SagaParams::Change { subscription, prices, boundary } => {
                let subscription = SubscriptionId::parse(&subscription).unwrap();
                let terms = PlanTerms { plan: "scale".into(), prices, features: Vec::new() };
                let boundary = Timestamp::from_micros(boundary);
                let params = ChangeParams { subscription, terms, boundary };
                (SagaKind::ChangePlan, serde_json::to_string(&params))
            }
            SagaParams::Cancel { subscription, boundary } => {
                let subscription = SubscriptionId::parse(&subscription).unwrap();
                let boundary = Some(Timestamp::from_micros(boundary));
                let params = CancelParams { subscription, boundary };
                (SagaKind::CancelSubscription, serde_json::to_string(&params))
            }
        };
        let (tenant, key) = (TenantId::parse(tenant).unwrap(), OnceKey::parse(key).unwrap());
        let id = saga_id(&self.store.token_secret(), &tenant, &key);
        let new = NewSaga { id: id.clone(), kind, tenant, key, params: params.unwrap() };
        match self.store.begin_saga(new, self.clock.now(), None).await.unwrap() {
            Begun::Created(_) | Begun::Repeated(_) => id,
            refused @ (Begun::KeyTaken(_) | Begun::Busy(_)) => panic!("{refused:?}"),
        }
    }

    pub(super) async fn saga_state(&self, id: &str) -> String {
        let (saga, log) = self.store.find_saga(id).await.unwrap().unwrap();
        let log: Vec<String> = log.iter().map(|line| format!("{line:?}")).collect();
        serde_json::to_string(&(saga.state.name(), log)).unwrap()
    }

    pub(super) async fn resume(&self, id: &str) -> String {
        format!("{:?}", self.store.resume_saga(id, self.clock.now()).await.unwrap())
            .replace('\n', " ")
    }
}
