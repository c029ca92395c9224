//! Work that goes on beside requests. A job takes no input: it looks at what is stored, does what
//! is due, and may be run again at once, on any number of servers.

pub mod alerts;
pub mod backfill;
pub mod binding;
pub mod clocks;
pub mod confirm;
pub mod credits;
pub mod cut;
pub mod dunning;
pub mod ingest;
mod keeper;
pub mod mirror;
pub mod outbox;
pub mod push;
pub mod reconcile;
pub mod restore;
pub mod sagas;
pub mod self_check;
pub mod sweep;
pub mod thresholds;
pub mod unbilled;
pub mod watch;
pub mod webhook;

use crate::clock::Clock;
use crate::config::Config;
use crate::destinations::{ChangeWebhook, Destination};
use crate::provider::Provider;
use crate::rules::timestamp::Timestamp;
use crate::store::{self, Store};
use binding::{BindingJob, Gate};
use clocks::ClocksJob;
use ingest::Ingest;
use outbox::{OutboxJob, Receivers};
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use webhook::WebhookInbox;

/// Significant digits of pushes that wait for a provider: what the strictest one takes.
const DIGITS_MAX: u32 = 15;

/// What jobs work with.
#[derive(Clone)]
pub struct Context {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub config: Arc<Config>,
    /// Holds leases; tells this process from all others that share the store.
    pub holder: String,
    /// Tells this server from others in alerts. The next start of the server has it again, and ends
    /// the alerts of the one before.
    pub name: String,
    /// Where notices of alerts go.
    pub destinations: Vec<&'static str>,
    /// Spreads pauses over servers.
    pub jitter_seed: u64,
}

impl Context {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        config: &Config,
        holder: String,
        jitter_seed: u64,
    ) -> Self {
        let (config, name) = (Arc::new(config.clone()), holder.clone());
        Self { store, clock, config, holder, name, destinations: Vec::new(), jitter_seed }
    }
}

/// Work that is done again and again while the server runs.
pub trait Job: Send + Sync {
    /// As the log and the metrics have it.
    const NAME: &'static str;
    /// Between two passes.
    const PAUSE: Duration;
    type Done: Send + Sync;
    type Error: Display + Send + Sync;

    /// Does what is due by what is stored, and says what that was.
    fn pass(&self) -> impl Future<Output = Result<Self::Done, Self::Error>> + Send;

    /// Waits after a pass until the next one is due, or the server stops. A pass that failed has
    /// done nothing.
    fn rest(&self, _done: Option<&Self::Done>, stop: &mut Stop) -> impl Future<Output = ()> + Send {
        stop.wait(Self::PAUSE)
    }

    /// Runs until the server stops. What is under way then ends first.
    fn run(&self, stop: Stop) -> impl Future<Output = ()> + Send {
        repeat(self, stop)
    }
}

/// Runs passes until the server stops. A failure is logged here and nowhere else; the next pass
/// sees what is stored then.
async fn repeat<J: Job + ?Sized>(job: &J, mut stop: Stop) {
    let name = J::NAME;
    while !stop.is_requested() {
        let done = job.pass().await.inspect_err(|error| {
            tracing::warn!(job = name, %error, "the job {name} failed and will run again");
        });
        job.rest(done.as_ref().ok(), &mut stop).await;
    }
}

/// The jobs of a server: started together, and drained before the store is closed.
pub struct Jobs {
    stopper: Stopper,
    stop: Stop,
    tasks: JoinSet<()>,
}

/// What the jobs are started with.
pub struct Parts {
    pub context: Context,
    /// None on a server that bills through no provider.
    pub provider: Option<Arc<dyn Provider>>,
    pub gate: Gate,
    /// None where nothing is bound: without a provider, and in shadow mode.
    pub binding: Option<BindingJob>,
    pub clocks: ClocksJob,
    pub ingest: Arc<Ingest>,
    pub inbox: Arc<WebhookInbox>,
    pub destinations: Vec<Arc<dyn Destination>>,
    pub changes: Option<ChangeWebhook>,
}

impl Default for Jobs {
    fn default() -> Self {
        let (stopper, stop) = Stopper::new();
        Self { stopper, stop, tasks: JoinSet::new() }
    }
}

impl Jobs {
    pub fn start(parts: Parts) -> Self {
        let Parts { context, provider, gate, binding, clocks, ingest, inbox, .. } = parts;
        let mut jobs = Self::default();
        jobs.spawn(clocks);
        if let Some(binding) = binding {
            jobs.spawn(binding);
        }
        jobs.spawn(alerts::AlertsJob::new(&context));
        jobs.spawn(thresholds::ThresholdsJob::new(&context, Arc::clone(ingest.watched())));
        jobs.spawn(credits::CreditsJob::new(&context));
        jobs.spawn(dunning::DunningJob::new(&context));
        jobs.spawn(sweep::SweepJob::new(&context));
        jobs.spawn(self_check::SelfCheckJob::new(&context));
        // Without a destination no notice is ever written.
        if !parts.destinations.is_empty() {
            jobs.spawn(OutboxJob::new(&context, Receivers::Alerts(parts.destinations)));
        }
        if let Some(webhook) = parts.changes {
            jobs.spawn(OutboxJob::new(&context, Receivers::Changes(webhook)));
        }
        match &provider {
            Some(provider) => jobs.start_billing(&context, provider, &gate, &inbox),
            // Credits are drawn at the cut. What they do not cover waits until there is a provider.
            None => jobs.spawn(cut::CutJob::new(&context, DIGITS_MAX)),
        }
        jobs
    }

    /// Those that work with the provider. What calls it waits behind the gate.
    pub fn start_billing(
        &mut self,
        context: &Context,
        provider: &Arc<dyn Provider>,
        gate: &Gate,
        inbox: &WebhookInbox,
    ) {
        self.spawn(cut::CutJob::new(context, provider.limits().digits_max));
        self.spawn(watch::WatchJob::new(context));
        self.spawn(restore::RestoreJob::new(context));
        self.spawn_behind(gate, push::PushJob::new(context, provider));
        self.spawn_behind(gate, confirm::ConfirmJob::new(context, provider));
        self.spawn_behind(gate, reconcile::ReconcileJob::new(context, provider));
        if provider.operations().is_some() {
            self.spawn_behind(gate, sagas::SagasJob::new(context, provider));
        }
        if provider.inbound().is_some() {
            self.spawn_behind(gate, mirror::MirrorJob::new(context, provider, inbox.arrived()));
            // Without a secret no webhook is expected, so none is missed.
            if !context.config.stripe.webhook_secrets.is_empty() {
                let backfill = backfill::BackfillJob::new(context, provider, inbox.arrived());
                self.spawn_behind(gate, backfill);
            }
        }
    }

    fn spawn(&mut self, job: impl Job + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { job.run(stop).await });
    }

    fn spawn_behind(&mut self, gate: &Gate, job: impl Job + 'static) {
        let (gate, stop) = (gate.clone(), self.stop.clone());
        self.tasks.spawn(async move { gate.pass(stop.clone(), job.run(stop)).await });
    }

    /// Starts nothing more and waits until what is under way has ended.
    pub async fn drain(self) {
        self.stopper.stop();
        self.tasks.join_all().await;
    }
}

/// Signals to jobs that the server stops.
#[derive(Debug, Clone)]
pub struct Stop(channel::Receiver<bool>);

/// Tells them.
#[derive(Debug)]
pub struct Stopper(channel::Sender<bool>);

impl Stopper {
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = channel::channel(false);
        (Self(sender), Stop(receiver))
    }

    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the server stops, at most for the given time.
    pub async fn wait(&mut self, pause: Duration) {
        let requested = self.0.wait_for(|stop| *stop);
        let _ = tokio::time::timeout(pause, requested).await;
    }
}

/// A number for a gauge. Metrics are doubles by their nature; the exact number is in the API.
pub(crate) fn gauge(number: impl Display) -> f64 {
    number.to_string().parse().unwrap_or(f64::NAN)
}

/// The time, for a job that sends, decides, expires or removes anything; none while clocks
/// contradict each other, or while no other clock has confirmed ours lately. The job then does
/// nothing, and looks again at its next turn. [`ClocksJob`] says why.
pub(crate) fn sure_time(clock: &Clock, job: &'static str) -> Option<Timestamp> {
    match clock.sure() {
        Ok(now) => Some(now),
        Err(doubt) => {
            metrics::counter!("counterfoil_jobs_held_total", "job" => job).increment(1);
            tracing::debug!(job, %doubt, "the job {job} waits: {doubt}");
            None
        }
    }
}

/// The outcome of a verb that a job does for one row of many. A fault in that row is logged and
/// shown by the store; the job leaves the row out and goes on with the others.
pub(crate) fn unless_fault<T>(outcome: store::Result<T>) -> store::Result<Option<T>> {
    match outcome {
        Err(store::Error::Internal { .. }) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Does a verb for a batch. If it is refused for what is stored of some row, that row is found by
/// halving and left out; the others are done. Returns the answers of all batches that were done.
pub(crate) async fn do_all_but_faulty<T: Clone, R, F>(
    batch: Vec<T>,
    verb: impl Fn(Vec<T>) -> F,
) -> store::Result<Vec<R>>
where
    F: Future<Output = store::Result<R>>,
{
    let (mut batches, mut done) = (vec![batch], Vec::new());
    while let Some(mut batch) = batches.pop() {
        match verb(batch.clone()).await {
            Ok(answer) => done.push(answer),
            Err(error) if error.is_of_data() => {
                let rest = batch.split_off(batch.len() / 2);
                if batch.is_empty() {
                    tracing::warn!(%error, "a row was left out of its batch: {error}");
                } else {
                    batches.extend([rest, batch]);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
