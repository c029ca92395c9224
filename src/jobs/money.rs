//! The jobs around operations on money, together: sagas, the end of grants, dunning, what others
//! are told of changes, and what is forgotten.

use super::Stopper;
use super::binding::Gate;
use super::credits::GrantExpirer;
use super::cut::CutSettings;
use super::dunning::Dunner;
use super::messages::{ChangeTeller, Sweeper};
use super::outbound::random_number;
use super::sagas::SagaRunner;
use crate::clock::Clock;
use crate::config::Config;
use crate::destinations::ChangeWebhook;
use crate::provider::Provider;
use crate::store::Store;
use std::sync::Arc;
use tokio::task::JoinSet;

pub struct MoneyJobs {
    stopper: Stopper,
    tasks: JoinSet<()>,
}

impl MoneyJobs {
    pub fn start(
        store: &Arc<dyn Store>,
        provider: Option<(&Arc<dyn Provider>, &Gate)>,
        clock: &Clock,
        changes: Option<ChangeWebhook>,
        config: &Config,
    ) -> Self {
        let (stopper, stop) = Stopper::new();
        let mut tasks = JoinSet::new();
        let own_store = || Arc::clone(store);
        let horizon_hours = config.ingest.accept_horizon_hours;
        let expirer = GrantExpirer::new(own_store(), clock.clone(), horizon_hours);
        tasks.spawn(expirer.run(stop.clone()));
        tasks.spawn(Sweeper::new(own_store(), clock.clone()).run(stop.clone()));
        tasks.spawn(Dunner::new(own_store(), clock.clone()).run(stop.clone()));
        if let Some(webhook) = changes {
            let teller = ChangeTeller::new(own_store(), clock.clone(), webhook, random_number());
            tasks.spawn(teller.run(stop.clone()));
        }
        let operating = provider.filter(|(provider, _)| provider.operations().is_some());
        if let Some((provider, gate)) = operating {
            let holder = format!("saga-{:016x}", random_number());
            let cutting = CutSettings::of(config, provider.limits().digits_max, holder);
            let runner = SagaRunner::new(own_store(), Arc::clone(provider), clock.clone(), cutting)
                .with_lease_ms(config.sagas.lease_ms);
            tasks.spawn(gate.clone().pass(stop.clone(), runner.run(stop)));
        }
        Self { stopper, tasks }
    }

    /// Starts nothing more and waits until what is under way has ended.
    pub async fn drain(self) {
        self.stopper.stop();
        self.tasks.join_all().await;
    }
}
