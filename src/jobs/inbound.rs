//! The inbound jobs together: webhooks' effects, backfill, reconciliation, alerts.

use super::Stopper;
use super::alerts::Alerter;
use super::backfill::Backfill;
use super::binding::{Binder, Gate};
use super::clocks::ClockKeeper;
use super::ingest::Ingest;
use super::mirror::MirrorReader;
use super::notices::Messenger;
use super::outbound::random_number;
use super::reconcile::Reconciler;
use super::thresholds::ThresholdWatcher;
use super::webhook::WebhookInbox;
use crate::clock::Clock;
use crate::config::{Config, Shadow};
use crate::destinations::Destination;
use crate::provider::Provider;
use crate::store::Store;
use std::sync::Arc;
use tokio::task::JoinSet;

pub struct InboundJobs {
    stopper: Stopper,
    tasks: JoinSet<()>,
}

/// What the jobs work with.
pub struct Parts<'a> {
    pub store: &'a Arc<dyn Store>,
    pub provider: Option<&'a Arc<dyn Provider>>,
    pub clock: &'a Clock,
    pub ingest: &'a Ingest,
    pub inbox: &'a WebhookInbox,
    pub keeper: ClockKeeper,
    /// None where nothing is bound: without a provider, and in shadow mode.
    pub binder: Option<Binder>,
    pub gate: &'a Gate,
    pub destinations: Vec<Arc<dyn Destination>>,
}

impl InboundJobs {
    pub fn start(parts: Parts<'_>, config: &Config) -> Self {
        let Parts { store, provider, clock, ingest, inbox, keeper, binder, gate, destinations } =
            parts;
        let (stopper, stop) = Stopper::new();
        let mut tasks = JoinSet::new();
        let name = keeper.name().to_owned();
        tasks.spawn(keeper.run(stop.clone()));
        if let Some(binder) = binder {
            tasks.spawn(binder.run(stop.clone()));
        }
        let holder = format!("server-{:016x}", random_number());
        let names: Vec<&'static str> = destinations.iter().map(|one| one.name()).collect();
        let (watched, own_store) = (Arc::clone(ingest.watched()), || Arc::clone(store));
        let alerter = Alerter::new(own_store(), clock.clone(), holder.clone(), names.clone())
            .named(name)
            .paging_unmapped_after(config.alerts.unmapped_after);
        tasks.spawn(alerter.run(stop.clone()));
        let thresholds = ThresholdWatcher::new(own_store(), clock.clone(), watched, names);
        tasks.spawn(thresholds.run(stop.clone()));
        // Without a destination no notice is ever written.
        if !destinations.is_empty() {
            let seed = random_number();
            let messenger = Messenger::new(own_store(), clock.clone(), destinations, seed);
            tasks.spawn(messenger.run(stop.clone()));
        }
        let Some(provider) = provider else { return Self { stopper, tasks } };
        let shadow = config.provider.shadow != Shadow::Off;
        let reconciler = Reconciler::new(
            own_store(),
            Arc::clone(provider),
            clock.clone(),
            (holder.clone(), config.reconcile.clone()),
            shadow,
        );
        tasks.spawn(gate.clone().pass(stop.clone(), reconciler.run(stop.clone())));
        if provider.inbound().is_some() {
            let reader = MirrorReader::new(
                own_store(),
                Arc::clone(provider),
                clock.clone(),
                config.push.clone(),
            );
            let reading = reader.run(inbox.arrived(), stop.clone());
            tasks.spawn(gate.clone().pass(stop.clone(), reading));
            let arrived = inbox.arrived();
            let backfill =
                Backfill::new(own_store(), Arc::clone(provider), clock.clone(), (holder, arrived));
            // Without a secret no webhook is expected, so none is missed.
            if !config.stripe.webhook_secrets.is_empty() {
                tasks.spawn(gate.clone().pass(stop.clone(), backfill.run(stop)));
            }
        }
        Self { stopper, tasks }
    }

    /// Starts nothing more and waits until what is under way has ended.
    pub async fn drain(self) {
        self.stopper.stop();
        self.tasks.join_all().await;
    }
}
