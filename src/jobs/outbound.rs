//! The outbound jobs together: started with the server, and drained when it stops.
//!
//! Windows are cut without a provider too: credits are drawn at the cut. What they do not cover
//! waits until there is a provider, and a customer to send it for.

use super::Stopper;
use super::binding::Gate;
use super::confirm::Confirmer;
use super::cut::{CutSettings, Cutter};
use super::push::Submitter;
use super::restore::keep_alive;
use super::watch::Watcher;
use crate::clock::Clock;
use crate::config::{Config, Shadow};
use crate::provider::Provider;
use crate::store::Store;
use std::sync::Arc;
use tokio::task::JoinSet;

pub struct Outbound {
    stopper: Stopper,
    tasks: JoinSet<()>,
}

/// Significant digits of pushes that wait for a provider: what the strictest one takes.
const DIGITS_MAX: u32 = 15;

impl Outbound {
    /// Only cuts, on a server that bills through no provider.
    pub fn start_cutting(store: &Arc<dyn Store>, clock: &Clock, config: &Config) -> Self {
        let (stopper, stop) = Stopper::new();
        let holder = format!("server-{:016x}", random_number());
        let settings = CutSettings::of(config, DIGITS_MAX, holder);
        let cutter = Cutter::new(Arc::clone(store), clock.clone(), settings);
        let mut tasks = JoinSet::new();
        tasks.spawn(cutter.run(stop));
        Self { stopper, tasks }
    }

    pub fn start(
        store: &Arc<dyn Store>,
        provider: &Arc<dyn Provider>,
        gate: &Gate,
        clock: &Clock,
        config: &Config,
    ) -> Self {
        let (stopper, stop) = Stopper::new();
        let shadow = config.provider.shadow != Shadow::Off;
        // Tells this process from all others that share the store.
        let holder = format!("server-{:016x}", random_number());
        let settings = CutSettings::of(config, provider.limits().digits_max, holder.clone());
        let cutter = Cutter::new(Arc::clone(store), clock.clone(), settings);
        let submitter = Submitter::new(
            Arc::clone(store),
            Arc::clone(provider),
            clock.clone(),
            config.push.clone(),
            (shadow, random_number()),
        );
        let confirmer = Confirmer::new(
            Arc::clone(store),
            Arc::clone(provider),
            clock.clone(),
            (holder, config.push.clone()),
            shadow,
        );
        let watcher = Watcher::new(Arc::clone(store), clock.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(cutter.run(stop.clone()));
        tasks.spawn(gate.clone().pass(stop.clone(), submitter.run(stop.clone())));
        tasks.spawn(gate.clone().pass(stop.clone(), confirmer.run(stop.clone())));
        tasks.spawn(watcher.run(stop.clone()));
        tasks.spawn(keep_alive(store.clone(), clock.clone(), stop));
        Self { stopper, tasks }
    }

    /// Starts nothing more and waits until what is on its way is settled.
    pub async fn drain(self) {
        self.stopper.stop();
        self.tasks.join_all().await;
    }
}

pub(super) fn random_number() -> u64 {
    getrandom::u64().expect("the system gives random numbers")
}
