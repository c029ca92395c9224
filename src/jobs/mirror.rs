//! Mirrors: reads the provider's objects that webhooks name, and does what follows.
//!
//! Invariant: a reading is begun after its ticket was taken, so it shows at least what the webhooks
//! up to that ticket describe. What a report of refused pushes means is done before the report is
//! written down as read; both may be done twice and change nothing the second time.
//!
//! A crash leaves objects leased; they are read again when the lease ends, or by a webhook's next
//! ticket.

use super::{Context, Job, Stop, unless_fault};
use crate::clock::Clock;
use crate::config::PushConfig;
use crate::faults::crash_point;
use crate::provider::{Inbound, Provider};
use crate::rules::mirror::{ErrorReport, ObjectKind, Snapshot};
use crate::rules::span::Span;
use crate::rules::window::Window;
use crate::store::list::read_all;
use crate::store::push::PushChanges;
use crate::store::webhook::{
    Mirror, MirrorClaim, MirrorFilter, MirrorReading, Mirrored, Mirrors, Rejection, WantedMirror,
};
use crate::store::{self, Declarations};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Objects read at one time.
const CONCURRENCY_MAX: usize = 16;
/// Objects of one claim, and of one commit.
const CLAIM_MAX: usize = 128;
/// A report names when pushes were refused; they were taken a little before.
const REPORT_MARGIN: Span = Span::from_minutes(10);
/// How soon a report is looked at again whose push is being sent just now.
const BUSY_PAUSE: Span = Span::from_seconds(5);

pub struct MirrorJob {
    store: Arc<dyn Mirrors>,
    declarations: Arc<dyn Declarations>,
    pushes: Arc<dyn PushChanges>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    settings: PushConfig,
    arrived: Arc<Notify>,
}

/// What came of one object.
enum ReadOutcome {
    Read(Box<MirrorReading>),
    PutOff(WantedMirror, Span, String),
}

impl Job for MirrorJob {
    const NAME: &'static str = "mirror";
    /// How often to look for objects that are due again.
    const PAUSE: Duration = Duration::from_millis(500);
    type Done = usize;
    type Error = store::Error;

    async fn rest(&self, read: Option<&usize>, stop: &mut Stop) {
        // Nothing was due: wait for a webhook, or for what was put off.
        if !matches!(read, Some(1..)) {
            tokio::select! {
                () = self.arrived.notified() => {}
                () = stop.wait(Self::PAUSE) => {}
            }
        }
    }

    /// Reads what is due; returns how many objects that was.
    async fn pass(&self) -> store::Result<usize> {
        let Some(inbound) = self.provider.inbound() else { return Ok(0) };
        let now = self.clock.now();
        let lease_until = now.saturating_add_micros(i64::from(self.settings.lease_ms) * 1_000);
        let claim = MirrorClaim { now, lease_until, limit: CLAIM_MAX };
        let claimed = self.store.claim_mirrors(claim).await?;
        let count = claimed.len();
        let mut wanted = claimed.into_iter();
        let mut reading = FuturesUnordered::new();
        let (mut read, mut failure) = (Vec::new(), None);
        loop {
            while reading.len() < CONCURRENCY_MAX
                && let Some(one) = wanted.next()
            {
                reading.push(self.read(inbound, one));
            }
            match reading.next().await {
                None => break,
                Some(Ok(ReadOutcome::Read(one))) => read.push(*one),
                Some(Ok(ReadOutcome::PutOff(one, pause, detail))) => {
                    let until = pause.after(self.clock.now());
                    self.store.put_off_mirror(&one, until, &detail).await?;
                }
                Some(Err(error)) => failure = Some(error),
            }
        }
        crash_point("mirror.before_record");
        self.record(read).await?;
        match failure {
            Some(error) => Err(error),
            None => Ok(count),
        }
    }
}

impl MirrorJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>, arrived: Arc<Notify>) -> Self {
        let Context { store, clock, config, .. } = context.clone();
        let (provider, settings) = (Arc::clone(provider), config.push.clone());
        let (declarations, pushes) = (store.clone(), store.clone());
        Self { store, declarations, pushes, provider, clock, settings, arrived }
    }

    async fn read(
        &self,
        inbound: &dyn Inbound,
        wanted: WantedMirror,
    ) -> store::Result<ReadOutcome> {
        let read_at = self.clock.now();
        let snapshot = match inbound.read_object(&wanted.name).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let backoff = self.settings.backoff();
                // The bound itself: objects are few, and order among them does not matter.
                let micros = backoff.pause_micros(wanted.attempts + 1, u64::MAX).unsigned_abs();
                let seconds = u32::try_from(micros / 1_000_000).unwrap_or(u32::MAX).max(1);
                let pause = Span::from_seconds(seconds);
                return Ok(ReadOutcome::PutOff(wanted, pause, error.to_string()));
            }
        };
        if let Snapshot::ErrorReport(report) = &snapshot {
            let detail = match unless_fault(self.reject(report).await)? {
                Some(0) => None,
                Some(_) => Some("a push that it names is being sent"),
                None => Some("what is stored of a push that it names contradicts itself"),
            };
            if let Some(detail) = detail {
                return Ok(ReadOutcome::PutOff(wanted, BUSY_PAUSE, detail.into()));
            }
        }
        let WantedMirror { name, ticket, .. } = wanted;
        Ok(ReadOutcome::Read(Box::new(MirrorReading { name, ticket, snapshot, read_at })))
    }

    /// Does what a report of refused pushes asks for; returns how many are busy.
    async fn reject(&self, report: &ErrorReport) -> store::Result<u64> {
        let catalog = self.declarations.load_catalog().await?;
        let named = report.event_name.as_deref().and_then(|name| catalog.find_billed(name));
        let Window { start, end } = report.validated_in;
        let taken_in = Window { start: REPORT_MARGIN.before(start), end: REPORT_MARGIN.after(end) };
        let describe =
            |code: &str, message: &str| format!("refused after it was taken: {code}: {message}");
        let samples = &report.samples;
        let rejection = Rejection {
            samples: samples
                .iter()
                .map(|sample| (sample.key.clone(), describe(&sample.code, &sample.message)))
                .collect(),
            recheck: named.map(|(meter, _)| (meter, taken_in)),
        };
        let done = self.pushes.reject_pushes(rejection, self.clock.now()).await?;
        if done.rejected > 0 {
            let rejected = done.rejected;
            tracing::warn!(rejected, "the provider refused {rejected} pushes after it took them");
        }
        Ok(done.busy)
    }

    async fn record(&self, readings: Vec<MirrorReading>) -> store::Result<()> {
        if readings.is_empty() {
            return Ok(());
        }
        let done = self.store.record_mirrors(readings, self.clock.now()).await?;
        let stale = done.iter().filter(|one| matches!(one, Mirrored::Stale)).count();
        let written = u64::try_from(done.len() - stale).unwrap_or(u64::MAX);
        metrics::counter!("counterfoil_mirror_readings_total").increment(written);
        Ok(())
    }
}

/// All mirrors of a kind that were read, or those of one status.
pub async fn list_all(
    store: &dyn Mirrors,
    kind: ObjectKind,
    status: Option<&str>,
) -> store::Result<Vec<Mirror>> {
    let filter = MirrorFilter { kind, status: status.map(str::to_owned), customer: None };
    let id = |mirror: &Mirror| mirror.name.id.clone();
    read_all(filter, id, |query| store.list_mirrors(query)).await
}
