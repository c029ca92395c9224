//! The account of the key against the one that the store is bound to.

use crate::world::{Ground, World};
use counterfoil::jobs::binding::{BindingJob, Finding, Gate};
use counterfoil::jobs::{Job, Stop, Stopper};
use counterfoil::rules::alert::AlertKind;
use counterfoil::store::Query;
use counterfoil::store::alert::AlertFilter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stripe_sim::{FaultKind, FaultRule, Options};

fn binder(world: &World) -> (BindingJob, Gate) {
    BindingJob::new(&world.jobs.context, &world.provider)
}

/// Whether a job behind the gate runs by itself.
async fn is_open(gate: &Gate) -> bool {
    let ran = Arc::new(AtomicBool::new(false));
    let (stopper, stop): (Stopper, Stop) = Stopper::new();
    let job = {
        let ran = Arc::clone(&ran);
        async move { ran.store(true, Ordering::SeqCst) }
    };
    let passing = tokio::spawn(gate.clone().pass(stop, job));
    tokio::time::sleep(Duration::from_millis(50)).await;
    stopper.stop();
    passing.await.unwrap();
    ran.load(Ordering::SeqCst)
}

async fn open_alerts(world: &World) -> usize {
    let kind = Some(AlertKind::AccountChanged);
    let query = Query::first(AlertFilter { open: Some(true), kind }, 10);
    world.store.list_alerts(query).await.unwrap().len()
}

pub async fn gate_opens_for_the_account_that_the_store_is_bound_to(ground: Ground) {
    let world = World::on(ground).await;
    for _ in 0..2 {
        let (binder, gate) = binder(&world);
        assert!(!is_open(&gate).await);
        assert_eq!(binder.pass().await.unwrap(), Finding::Bound);
        assert!(is_open(&gate).await);
    }
    let binding = world.store.read_binding().await.unwrap().unwrap();
    assert_eq!(binding.number, 1);
    assert_eq!(binding.account.to_string(), "stripe account acct_1CounterfoilSim0 (test mode)");
}

pub async fn gate_stays_shut_and_an_alert_opens_for_another_account(ground: Ground) {
    let world = World::on(ground).await;
    assert_eq!(binder(&world).0.check().await.unwrap(), Finding::Bound);
    world.stripe.lock().set_account("acct_other");
    let (other, gate) = binder(&world);
    let Finding::Other(explained) = other.pass().await.unwrap() else { panic!("another account") };
    assert!(explained.contains("acct_other") && explained.contains("counterfoil store rebind"));
    assert!(!is_open(&gate).await);
    assert_eq!(open_alerts(&world).await, 1);
    world.stripe.lock().set_account("acct_1CounterfoilSim0");
    assert_eq!(other.pass().await.unwrap(), Finding::Bound);
    assert_eq!(open_alerts(&world).await, 0);
}

pub async fn gate_stays_shut_while_the_account_cannot_be_read(ground: Ground) {
    let world = World::on(ground).await;
    let (binder, gate) = binder(&world);
    world.stripe.faults(vec![FaultRule::new(FaultKind::Error503).on_path("/v1/account")]);
    assert!(matches!(binder.pass().await.unwrap(), Finding::Unread(_)));
    assert!(!is_open(&gate).await);
    assert_eq!(world.store.read_binding().await.unwrap(), None, "an unread account binds nothing");
    world.stripe.faults(Vec::new());
    assert_eq!(binder.pass().await.unwrap(), Finding::Bound);
    assert!(is_open(&gate).await);
}

pub async fn restricted_key_is_bound_by_its_mode(ground: Ground) {
    let key = "rk_test_outbound";
    let options = Options { api_key: Some(key.into()), ..Options::default() };
    let set_key = |c: &mut counterfoil::config::Config| {
        c.stripe.api_key = counterfoil::config::Secret::new(key);
    };
    let world = World::with_stripe(ground, options, set_key).await;
    assert_eq!(binder(&world).0.check().await.unwrap(), Finding::Bound);
    let binding = world.store.read_binding().await.unwrap().unwrap();
    assert_eq!((binding.account.id, binding.account.live), (None, false));
}
