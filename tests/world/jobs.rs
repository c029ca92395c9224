//! The jobs of one server, run step by step.

use super::recorder::{Recorded, Recorder};
use counterfoil::clock::Clock;
use counterfoil::config::{Config, Shadow};
use counterfoil::destinations::Destination;
use counterfoil::jobs::alerts::Alerter;
use counterfoil::jobs::backfill::Backfill;
use counterfoil::jobs::confirm::Confirmer;
use counterfoil::jobs::cut::{CutSettings, Cutter};
use counterfoil::jobs::mirror::MirrorReader;
use counterfoil::jobs::notices::Messenger;
use counterfoil::jobs::push::Submitter;
use counterfoil::jobs::reconcile::Reconciler;
use counterfoil::jobs::watch::Watcher;
use counterfoil::provider::{self, Provider};
use counterfoil::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Jobs {
    pub cutter: Cutter,
    pub submitter: Arc<Submitter>,
    pub confirmer: Confirmer,
    pub watcher: Watcher,
    pub mirror: MirrorReader,
    pub backfill: Backfill,
    pub reconciler: Reconciler,
    pub alerter: Alerter,
    pub messenger: Messenger,
}

/// The destinations of a world's alerts.
#[derive(Clone, Default)]
pub struct Recorders {
    pub pager: Arc<Recorder>,
    pub mail: Arc<Recorder>,
}

impl Jobs {
    pub fn new(
        provider: &Arc<dyn Provider>,
        store: &Arc<dyn Store>,
        clock: &Clock,
        config: &Config,
        recorders: &Recorders,
    ) -> Self {
        let (own_store, own_provider) = (|| Arc::clone(store), || Arc::clone(provider));
        let (own_clock, push) = (|| clock.clone(), || config.push.clone());
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        let number = SERVERS.fetch_add(1, Ordering::SeqCst);
        let holder = || format!("server-{number}");
        let shadow = config.provider.shadow != Shadow::Off;
        let destinations: Vec<Arc<dyn Destination>> = vec![
            Arc::new(Recorded("pagerduty", Arc::clone(&recorders.pager))),
            Arc::new(Recorded("email", Arc::clone(&recorders.mail))),
        ];
        let names = destinations.iter().map(|one| one.name()).collect();
        let cutting = cut_settings(config, &**provider, holder());
        let reconciling = (holder(), config.reconcile.clone());
        let backfilling = (holder(), Arc::default());
        let confirming = (holder(), push());
        Self {
            cutter: Cutter::new(own_store(), own_clock(), cutting),
            submitter: Submitter::new(
                own_store(),
                own_provider(),
                own_clock(),
                push(),
                (shadow, 1),
            ),
            confirmer: Confirmer::new(own_store(), own_provider(), own_clock(), confirming, shadow),
            watcher: Watcher::new(own_store(), own_clock()),
            mirror: MirrorReader::new(own_store(), own_provider(), own_clock(), push()),
            backfill: Backfill::new(own_store(), own_provider(), own_clock(), backfilling),
            reconciler: Reconciler::new(
                own_store(),
                own_provider(),
                own_clock(),
                reconciling,
                shadow,
            ),
            alerter: Alerter::new(own_store(), own_clock(), holder(), names),
            messenger: Messenger::new(own_store(), own_clock(), destinations, 1),
        }
    }
}

/// The provider of these settings, which tells the clock its time.
pub fn connect(config: &Config, clock: &Clock) -> Arc<dyn Provider> {
    let Config { provider, stripe, sink, .. } = config;
    provider::connect_heard_by(provider, stripe, sink, clock).unwrap().unwrap()
}

pub fn cut_settings(config: &Config, provider: &dyn Provider, holder: String) -> CutSettings {
    CutSettings {
        holder,
        accept_horizon_hours: config.ingest.accept_horizon_hours,
        shadow: config.provider.shadow != Shadow::Off,
        digits_max: provider.limits().digits_max,
        draw_order: Default::default(),
        lease_ms: config.push.lease_ms,
    }
}
