//! The jobs of one server, run step by step.

use super::recorder::{Recorded, Recorder};
use counterfoil::clock::Clock;
use counterfoil::config::Config;
use counterfoil::destinations::Destination;
use counterfoil::jobs::Context;
use counterfoil::jobs::alerts::AlertsJob;
use counterfoil::jobs::backfill::BackfillJob;
use counterfoil::jobs::confirm::ConfirmJob;
use counterfoil::jobs::cut::CutJob;
use counterfoil::jobs::mirror::MirrorJob;
use counterfoil::jobs::outbox::{OutboxJob, Receivers};
use counterfoil::jobs::push::PushJob;
use counterfoil::jobs::reconcile::ReconcileJob;
use counterfoil::jobs::watch::WatchJob;
use counterfoil::provider::{self, Provider};
use counterfoil::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Jobs {
    pub context: Context,
    pub cutter: CutJob,
    pub submitter: PushJob,
    pub confirmer: ConfirmJob,
    pub watcher: WatchJob,
    pub mirror: MirrorJob,
    pub backfill: BackfillJob,
    pub reconciler: ReconcileJob,
    pub alerter: AlertsJob,
    pub messenger: OutboxJob,
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
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        let holder = format!("server-{}", SERVERS.fetch_add(1, Ordering::SeqCst));
        let destinations: Vec<Arc<dyn Destination>> = vec![
            Arc::new(Recorded("pagerduty", Arc::clone(&recorders.pager))),
            Arc::new(Recorded("email", Arc::clone(&recorders.mail))),
        ];
        let context = Context {
            destinations: destinations.iter().map(|one| one.name()).collect(),
            ..Context::new(Arc::clone(store), clock.clone(), config, holder, 1)
        };
        Self {
            cutter: CutJob::new(&context, provider.limits().digits_max),
            submitter: PushJob::new(&context, provider),
            confirmer: ConfirmJob::new(&context, provider),
            watcher: WatchJob::new(&context),
            mirror: MirrorJob::new(&context, provider, Arc::default()),
            backfill: BackfillJob::new(&context, provider, Arc::default()),
            reconciler: ReconcileJob::new(&context, provider),
            alerter: AlertsJob::new(&context),
            messenger: OutboxJob::new(&context, Receivers::Alerts(destinations)),
            context,
        }
    }
}

/// The provider of these settings, which tells the clock its time.
pub fn connect(config: &Config, clock: &Clock) -> Arc<dyn Provider> {
    let Config { provider, stripe, sink, .. } = config;
    provider::connect_heard_by(provider, stripe, sink, clock).unwrap().unwrap()
}
