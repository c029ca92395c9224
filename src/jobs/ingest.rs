//! Ingest: one bounded queue for all sources, group commit, and fair shares by tenant.
//!
//! Every source (HTTP, later brokers) submits its deliveries here and waits for verdicts. What
//! waits is committed together: the first commit carries one request, and while it syncs the next
//! one fills. A verdict is given only after the commit that holds it.
//!
//! Fairness: submissions wait in one lane per tenant (those of several tenants share a lane), and
//! a commit takes from the lanes in turn, so a tenant's storm delays itself and not its neighbours.
//! A large request is submitted in pieces, which may be in several commits, and a commit takes no
//! more events than it records in a short time: expensive ones, such as those for an inbox, come in
//! small groups. A request that is answered with an error may be counted in part; sending it again
//! is safe, as always.
//! Bounds: the whole queue, and a tenant's part of it, are limited in events; beyond, the submitter
//! gets an error and retries later.
//!
//! A crash loses the queue; no sender got an answer for it, so each sends again.

pub mod admissions;
mod lanes;
mod latencies;
mod pace;
mod watched;

use crate::clock::{Clock, Moment};
use crate::config::IngestConfig;
use crate::faults::planted;
use crate::rules::event::{Event, RefusedItem};
use crate::rules::ids::TenantId;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::{Acceptance, Verdict};
use crate::store::throttle::Throttle;
use crate::store::{self, Deliveries, DeliveryBatch, Store};
use lanes::{Lanes, Submission, TURN_EVENTS};
pub use latencies::Latencies;
use latencies::Samples;
use pace::Pace;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::{Notify, oneshot};
pub use watched::Watched;

/// Why deliveries got no verdicts. Nothing is known to be counted; sending again is safe.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error("the queue is full")]
    QueueFull,
    #[error("the server is stopping")]
    Stopping,
    /// An event lies where one clock accepts it and another does not, or where a clock that nothing
    /// has confirmed does not accept it.
    #[error("the time is in doubt")]
    ClockInDoubt,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// The queue in front of the store.
pub struct Ingest {
    store: Arc<dyn Deliveries>,
    clock: Clock,
    settings: IngestConfig,
    strict_tenants: bool,
    partitions: Vec<Partition>,
    events_waiting: AtomicUsize,
    stopping: AtomicBool,
    idle: Notify,
    groups_running: AtomicUsize,
    latencies: Arc<Latencies>,
    watched: Arc<Watched>,
    warnings: Throttle,
}

#[derive(Default)]
struct Partition {
    lanes: Mutex<Lanes>,
    filled: Notify,
    pace: Pace,
}

impl Ingest {
    /// Starts the workers that commit what is submitted.
    pub fn start(
        store: Arc<dyn Store>,
        clock: Clock,
        settings: IngestConfig,
        strict_tenants: bool,
    ) -> Arc<Self> {
        let latencies = Arc::<Latencies>::default();
        tokio::spawn(Arc::clone(&latencies).watch(store.clone()));
        let ingest = Arc::new(Self {
            partitions: (0..store.partitions()).map(|_| Partition::default()).collect(),
            store,
            clock,
            settings,
            strict_tenants,
            events_waiting: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            idle: Notify::new(),
            groups_running: AtomicUsize::new(0),
            latencies,
            watched: Arc::default(),
            warnings: Throttle::default(),
        });
        for partition in 0..ingest.partitions.len() {
            spawn_or_stop(Arc::clone(&ingest).commit_groups(partition));
        }
        ingest
    }

    /// Events that wait for their commit.
    pub fn waiting(&self) -> usize {
        self.events_waiting.load(Ordering::SeqCst)
    }

    /// How late events come.
    pub fn latencies(&self) -> &Arc<Latencies> {
        &self.latencies
    }

    /// Whose usage has thresholds.
    pub fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Waits for the verdict of every delivery, in order. Refused items are counted too.
    pub async fn submit(
        &self,
        deliveries: Vec<Result<Event, RefusedItem>>,
    ) -> Result<Vec<Verdict>, SubmitError> {
        let total = deliveries.len();
        let mut shares: Vec<QueueShare> =
            (0..self.partitions.len()).map(|_| QueueShare::default()).collect();
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(total);
        let mut refused: BTreeMap<Option<TenantId>, u64> = BTreeMap::new();
        for (place, delivery) in deliveries.into_iter().enumerate() {
            verdicts.push(match delivery {
                Ok(event) => {
                    let share = &mut shares[self.partition_of(&event.tenant)];
                    share.places.push(place);
                    share.events.push(event);
                    None
                }
                Err(item) => {
                    // An unreadable tenant is counted under no tenant.
                    let tenant = item.tenant.and_then(|tenant| TenantId::parse(&tenant).ok());
                    *refused.entry(tenant).or_default() += 1;
                    Some(Verdict::Rejected(item.refusal))
                }
            });
        }
        shares[0].refused = refused.into_iter().collect();
        let waiting = self.enqueue(shares)?;
        for (places, reply) in waiting {
            let judged = reply.await.map_err(|_| SubmitError::Stopping)??;
            for (place, verdict) in places.into_iter().zip(judged) {
                verdicts[place] = Some(verdict);
            }
        }
        Ok(verdicts.into_iter().map(|v| v.expect("every delivery was judged")).collect())
    }

    /// Takes no more submissions and waits until all that were taken are answered.
    pub async fn drain(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        loop {
            let settled = self.idle.notified();
            let idle = self.events_waiting.load(Ordering::SeqCst) == 0
                && self.groups_running.load(Ordering::SeqCst) == 0
                && self.partitions.iter().all(|p| lock(&p.lanes).is_empty());
            if idle {
                return;
            }
            settled.await;
        }
    }

    /// Queues every share or none of them.
    fn enqueue(&self, shares: Vec<QueueShare>) -> Result<Vec<WaitingEvents>, SubmitError> {
        if self.stopping.load(Ordering::SeqCst) {
            return Err(SubmitError::Stopping);
        }
        let events: usize = shares.iter().map(|share| share.events.len()).sum();
        let before = self.events_waiting.fetch_add(events, Ordering::SeqCst);
        // An empty queue takes any request: the request's own limit bounds it.
        let full = before > 0 && before + events > self.settings.queue_events_max;
        let lane_max = self.settings.queue_events_max * self.settings.queue_tenant_percent / 100;
        let storm = |(partition, share): (&Partition, &QueueShare)| {
            !share.events.is_empty() && !lock(&partition.lanes).admits(&share.events, lane_max)
        };
        if full || self.partitions.iter().zip(&shares).any(storm) {
            self.events_waiting.fetch_sub(events, Ordering::SeqCst);
            metrics::counter!("counterfoil_ingest_queue_full_total").increment(1);
            return Err(SubmitError::QueueFull);
        }
        let mut waiting = Vec::new();
        for (partition, share) in self.partitions.iter().zip(shares) {
            if share.events.is_empty() && share.refused.is_empty() {
                continue;
            }
            partition.pace.note_request(share.events.len());
            let mut lanes = lock(&partition.lanes);
            for QueueShare { places, events, refused } in share.into_pieces() {
                let (reply, answer) = oneshot::channel();
                lanes.push(Submission { events, refused, reply });
                waiting.push((places, answer));
            }
            partition.filled.notify_one();
        }
        Ok(waiting)
    }

    /// The partition's worker: takes what waits, commits it, answers; for ever. One group at a
    /// time, so that while it syncs the next one fills.
    async fn commit_groups(self: Arc<Self>, number: usize) {
        let partition = &self.partitions[number];
        loop {
            let group = {
                let mut lanes = lock(&partition.lanes);
                let writers = self.partitions.len();
                let events_max = self.settings.group_events_max.saturating_mul(writers);
                let group = lanes.take_group(partition.pace.limit(events_max, writers));
                if !group.is_empty() {
                    self.groups_running.fetch_add(1, Ordering::SeqCst);
                }
                group
            };
            if group.is_empty() {
                partition.filled.notified().await;
                continue;
            }
            self.commit_group(number, group).await;
            self.groups_running.fetch_sub(1, Ordering::SeqCst);
            self.idle.notify_waiters();
        }
    }

    async fn commit_group(&self, partition: usize, group: Vec<Submission>) {
        assert!(!planted("ingest.group_panics"), "planted");
        let moment = self.clock.moment();
        let mut group = self.refuse_doubtful(group, &moment);
        if group.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(group.iter().map(|s| s.events.len()).sum());
        let mut refused = Vec::new();
        let mut lengths = Vec::with_capacity(group.len());
        for submission in &mut group {
            lengths.push(submission.events.len());
            events.append(&mut submission.events);
            refused.append(&mut submission.refused);
        }
        let total = events.len();
        let samples = Samples::of(&events);
        let watched = self.watched.among(&events);
        let acceptance = self.acceptance(moment.now);
        let strict_tenants = self.strict_tenants;
        let groups_per_day = self.settings.groups_per_day;
        let batch = DeliveryBatch { events, refused, acceptance, strict_tenants, groups_per_day };
        let started = Instant::now();
        let outcome = self.store.record_deliveries(partition, batch).await;
        self.events_waiting.fetch_sub(total, Ordering::SeqCst);
        let spent = started.elapsed();
        self.partitions[partition].pace.record(total, spent);
        metrics::histogram!("counterfoil_commit_seconds").record(spent.as_secs_f64());
        match outcome {
            Ok(verdicts) => {
                assert_eq!(verdicts.len(), total, "one verdict for each event");
                self.latencies.record(samples, &verdicts, acceptance.now);
                self.watched.mark(watched);
                let mut verdicts = verdicts.into_iter();
                for (submission, length) in group.into_iter().zip(lengths) {
                    // A submitter that went away does not undo what was counted.
                    let _ = submission.reply.send(Ok(verdicts.by_ref().take(length).collect()));
                }
            }
            Err(error) => {
                if let Some(left_out) = self.warnings.admit() {
                    let events = total;
                    tracing::warn!(%error, events, left_out, "could not record deliveries");
                }
                for submission in group {
                    let _ = submission.reply.send(Err(error.clone().into()));
                }
            }
        }
    }

    fn acceptance(&self, now: Timestamp) -> Acceptance {
        let horizon_micros = i64::from(self.settings.accept_horizon_hours) * MICROS_PER_HOUR;
        Acceptance { now, horizon_micros }
    }

    /// While the time is not certain, keeps the submissions whose events every time that may be
    /// right accepts. The others are to be sent again: nothing is put into quarantine by a clock
    /// that may be wrong.
    fn refuse_doubtful(&self, group: Vec<Submission>, moment: &Moment) -> Vec<Submission> {
        let mut times = vec![moment.now];
        match &moment.doubt {
            Some(doubt) => times.extend(&doubt.candidates),
            None if moment.unheard => {}
            None => return group,
        }
        let accepted = |event: &Event| {
            times.iter().all(|time| self.acceptance(*time).admits(event.occurred_at).is_ok())
        };
        let certain = |submission: &Submission| submission.events.iter().all(accepted);
        let (kept, refused): (Vec<_>, Vec<_>) = group.into_iter().partition(certain);
        for submission in refused {
            self.events_waiting.fetch_sub(submission.events.len(), Ordering::SeqCst);
            let _ = submission.reply.send(Err(SubmitError::ClockInDoubt));
        }
        kept
    }

    fn partition_of(&self, tenant: &TenantId) -> usize {
        if self.partitions.len() == 1 {
            return 0;
        }
        // Only this process needs to agree with itself: another server's writers are kept apart
        // from ours by the database.
        let mut hasher = DefaultHasher::new();
        tenant.hash(&mut hasher);
        let partitions = u64::try_from(self.partitions.len()).expect("few partitions");
        usize::try_from(hasher.finish() % partitions).expect("less than the partitions")
    }
}

/// Runs a partition's worker. If it panics, its tenants would wait for ever: the process stops.
fn spawn_or_stop(worker: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::spawn(worker);
    tokio::spawn(async move {
        if task.await.is_err_and(|error| error.is_panic()) {
            store::stop_process("a worker of the queue met a fault of this program");
        }
    });
}

/// What one partition gets of a submission, and where its verdicts belong.
#[derive(Default)]
struct QueueShare {
    places: Vec<usize>,
    events: Vec<Event>,
    refused: Vec<(Option<TenantId>, u64)>,
}

impl QueueShare {
    /// Pieces of a turn each, in order.
    fn into_pieces(self) -> impl Iterator<Item = Self> {
        let (whole, rest) = match self.events.len() <= TURN_EVENTS {
            true => (Some(self), Self::default()),
            false => (None, self),
        };
        let (mut places, mut events) = (rest.places.into_iter(), rest.events.into_iter());
        let mut refused = rest.refused;
        whole.into_iter().chain(std::iter::from_fn(move || {
            let piece = Self {
                places: places.by_ref().take(TURN_EVENTS).collect(),
                events: events.by_ref().take(TURN_EVENTS).collect(),
                refused: std::mem::take(&mut refused),
            };
            (!piece.events.is_empty()).then_some(piece)
        }))
    }
}

/// Where the verdicts of a share belong, and where they will come from.
type WaitingEvents = (Vec<usize>, oneshot::Receiver<Result<Vec<Verdict>, SubmitError>>);

fn lock(lanes: &Mutex<Lanes>) -> MutexGuard<'_, Lanes> {
    lanes.lock().expect("no holder of the queue panics")
}
