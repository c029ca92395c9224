//! The submitter: sends pushes that are due, and settles what becomes of them.
//!
//! For each push: claim (a lease in the store), write the attempt down with its bytes, send, settle
//! by the answer. Many are on their way at one time, never two of one customer and meter, and no
//! more a second than the pace allows. A push whose key the provider may have forgotten is not
//! sent: the provider's summary is asked, and the answer is settled like any other. After a restore
//! of the store the summary is asked before the first attempt, too (`rules::restore`).
//!
//! Invariant: bytes leave only after the transaction that holds them. Whatever is not known is
//! settled as unknown and tried again under the same key and bytes while that is safe.
//!
//! What a crash leaves: before the attempt is written, nothing was sent; after it, an attempt with
//! an unknown outcome. In both cases the lease ends, and any server takes the push over.

use super::{Context, Job, Stop, do_all_but_faulty, sure_time, unless_fault};
use crate::clock::Clock;
use crate::config::PushConfig;
use crate::faults::{crash_point, planted};
use crate::provider::{Answer, Provider, PushFacts, Request, TotalsQuery, deadline};
use crate::rules::billing::Mode;
use crate::rules::evidence::{LAG, read_twice_from};
use crate::rules::ids::MeterNo;
use crate::rules::meter::Meter;
use crate::rules::pace::Pace;
use crate::rules::quantity::Quantity;
use crate::rules::restore::{Reading, judge_reading};
use crate::rules::submission::{
    Act, Class, Next, Progress, Question, Shown, SubmitOutcome, judge_due, judge_outcome,
    judge_summary, judge_unreadable,
};
use crate::rules::timestamp::{MICROS_PER_MINUTE, Timestamp};
use crate::rules::window::Window;
use crate::store::epoch::Uncompared;
use crate::store::push::{AttemptIntent, ClaimedPush, PushClaim, PushRelease, Right, Settlement};
use crate::store::reconciliation::SummaryReading;
use crate::store::{self, Store};
use siphasher::sip::SipHasher13;
use std::collections::HashSet;
use std::hash::Hasher;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// Pushes claimed by one transaction.
const CLAIM_MAX: usize = 128;
/// Pushes released by one transaction when their tenant gets a customer.
const RELEASE_MAX: usize = 500;
/// Such transactions before a claim.
const RELEASES_MAX: usize = 20;

#[derive(Clone)]
pub struct PushJob {
    store: Arc<dyn Store>,
    provider: Arc<dyn Provider>,
    clock: Clock,
    settings: PushConfig,
    shadow: bool,
    pace: Arc<Mutex<Pace>>,
    /// Spreads pauses; what a push gets depends on this, its number and its attempts alone.
    jitter_seed: u64,
}

/// Pushes on their way.
type Flights = JoinSet<Settlement>;

impl Job for PushJob {
    const NAME: &'static str = "push";
    /// When the pace allows no call now: a few calls' worth at Stripe's rates. Else it is
    /// `push.poll_ms`.
    const PAUSE: Duration = Duration::from_millis(5);
    type Done = usize;
    type Error = store::Error;

    /// Sends what is due until the server stops; what is on its way then is settled first.
    async fn run(&self, mut stop: Stop) {
        let poll = Duration::from_millis(self.settings.poll_ms);
        let mut flights = Flights::new();
        loop {
            let pause = if self.calls_allowed() == 0 { Self::PAUSE.min(poll) } else { poll };
            let launched =
                if stop.is_requested() { Ok(0) } else { self.launch(&mut flights).await };
            match launched {
                Ok(0) if flights.is_empty() && stop.is_requested() => return,
                Ok(0) if flights.is_empty() => stop.wait(pause).await,
                Ok(launched) => {
                    let patience = if launched > 0 { Duration::ZERO } else { pause };
                    self.settle(&mut flights, patience).await;
                }
                Err(error) => {
                    tracing::warn!(job = "push", %error, "could not claim pushes; trying again");
                    self.settle(&mut flights, pause).await;
                    stop.wait(pause).await;
                }
            }
        }
    }

    /// Sends everything that is due by now and settles it; returns how many were settled.
    async fn pass(&self) -> store::Result<usize> {
        let mut flights = Flights::new();
        let mut settled = 0;
        loop {
            let launched = self.launch(&mut flights).await?;
            if launched == 0 && flights.is_empty() {
                return Ok(settled);
            }
            settled += self.settle(&mut flights, Duration::from_secs(60)).await;
        }
    }
}

impl PushJob {
    pub fn new(context: &Context, provider: &Arc<dyn Provider>) -> Self {
        let Context { store, clock, config, jitter_seed, .. } = context.clone();
        let (settings, shadow) = (config.push.clone(), config.provider.is_shadow());
        let pace = Pace::new(settings.rate_per_second, clock.monotonic());
        let (provider, pace) = (Arc::clone(provider), Arc::new(Mutex::new(pace)));
        Self { store, provider, clock, settings, shadow, pace, jitter_seed }
    }

    fn calls_allowed(&self) -> usize {
        self.pace.lock().expect("no holder panics").available(self.clock.monotonic())
    }

    /// Claims what is due and sends it on its way; returns how many were claimed.
    async fn launch(&self, flights: &mut Flights) -> store::Result<usize> {
        let Some(now) = sure_time(&self.clock, "push") else { return Ok(0) };
        let room = self.settings.concurrency_max.saturating_sub(flights.len());
        let limit = room.min(self.calls_allowed()).min(CLAIM_MAX);
        if limit == 0 {
            return Ok(0);
        }
        self.release(now).await?;
        let lease_micros = i64::from(self.settings.lease_ms) * 1_000;
        let lease_until = now.saturating_add_micros(lease_micros);
        let held_until = self.clock.monotonic().saturating_add_micros(lease_micros);
        let shadow = self.shadow;
        let claimed =
            self.store.claim_pushes(PushClaim { now, lease_until, limit, shadow }).await?;
        crash_point("push.claimed");
        if claimed.is_empty() {
            return Ok(0);
        }
        let count = claimed.len();
        self.pace.lock().expect("no holder panics").take(count);
        let catalog = self.store.load_catalog().await?;
        let mut settlements = Vec::new();
        let mut sendings = Vec::new();
        for claimed in claimed {
            let Some(meter) = catalog.get(claimed.push.meter).map(Arc::clone) else {
                return Err(unknown_meter(claimed.push.meter));
            };
            let act = self.due_act(&claimed);
            if let Some(window) = self.must_compare(&claimed, act) {
                let this = self.clone();
                flights.spawn(async move { this.compare(claimed, &meter, window).await });
                continue;
            }
            match act {
                Act::Send => sendings.push(self.prepare(claimed, &meter)),
                Act::Decide => {
                    let this = self.clone();
                    flights.spawn(async move { this.decide(claimed, &meter).await });
                }
                Act::Wait { until } => settlements.push(wait(&claimed, until)),
                Act::Refuse => settlements.push(refuse_old(&claimed)),
            }
        }
        if !settlements.is_empty() {
            self.settle_all(settlements, now).await?;
        }
        self.send_all(sendings, held_until, flights).await?;
        Ok(count)
    }

    /// Makes pushes due whose tenants have got a customer; what is left is released with the next
    /// claim.
    async fn release(&self, now: Timestamp) -> store::Result<()> {
        let stamp_age_max = self.provider.limits().horizons.stamp_age_max;
        let release = PushRelease { now, stamp_age_max, limit: RELEASE_MAX };
        for _ in 0..RELEASES_MAX {
            // A push that contradicts itself keeps its tenant waiting, and nobody from sending.
            match unless_fault(self.store.release_pushes(release).await)? {
                None | Some(0) => break,
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn due_act(&self, claimed: &ClaimedPush) -> Act {
        if planted("bug.resend_past_24h") {
            return Act::Send;
        }
        // How long the provider remembers a key is measured by its clock.
        judge_due(progress(claimed), self.provider.limits().horizons, self.clock.provider_now())
    }

    /// After a restore: nothing of a window is sent for the first time, and no lost outcome is
    /// decided, before the window was compared with the provider's total.
    fn must_compare(&self, claimed: &ClaimedPush, act: Act) -> Option<Uncompared> {
        let first = claimed.push.attempts == 0 && act == Act::Send;
        let due = first || act == Act::Decide;
        let limits = self.provider.limits();
        // Where no total can be compared, the unchanged key protects as long as nothing but a long
        // stop speaks for a restore.
        let comparable = |window: &Uncompared| limits.shows_totals || !window.suspected;
        claimed.uncompared.clone().filter(|window| due && limits.sends && comparable(window))
    }

    /// Reads the window's total of a push of a restored store, and has it compared once it was
    /// read often enough.
    async fn compare(&self, claimed: ClaimedPush, meter: &Meter, window: Uncompared) -> Settlement {
        if !self.provider.limits().shows_totals {
            let detail = "the store was restored, and the destination shows no totals: nobody \
                          knows whether it was sent before; compare by hand and discard it";
            let (class, next) = (Class::Undecidable, Next::Dead);
            return settlement(&claimed, class, next, None, Some(detail.into()));
        }
        let total = self.read_total(&claimed, meter).await;
        crash_point("push.compared");
        let now = self.clock.now();
        if let Some(doubt) = self.wait_for_the_clock(&claimed, now) {
            return doubt;
        }
        let total = match total {
            Ok(total) => total,
            Err(said) => return self.unreadable(&claimed, &said, now),
        };
        let restored_at = window.restored_at;
        match judge_reading(
            (restored_at, window.suspected),
            window.last,
            Reading { total, at: now },
        ) {
            Some(until) => {
                let was = if window.suspected { "may have been" } else { "was" };
                let detail = format!(
                    "the store {was} restored at {restored_at}, so it is not known whether this was \
                     sent before; the provider's total is {total} and is read again at {until}"
                );
                let next = Next::Looked { total, until };
                settlement(&claimed, Class::Unknown, next, None, Some(detail))
            }
            None => {
                let look_at = self.settings.look_after.after(now);
                let next = Next::Compared { total, look_at };
                settlement(&claimed, Class::Unknown, next, None, None)
            }
        }
    }

    /// A wait if the provider's answer has shown that our clock is wrong.
    fn wait_for_the_clock(&self, claimed: &ClaimedPush, now: Timestamp) -> Option<Settlement> {
        let doubt = self.clock.sure().err()?;
        let until = now.saturating_add_micros(MICROS_PER_MINUTE);
        let next = Next::Wait { until, fresh_request_key: false };
        Some(settlement(claimed, Class::Unknown, next, None, Some(doubt.to_string())))
    }

    /// What the provider has counted of a push's window, or why that cannot be read.
    async fn read_total(&self, claimed: &ClaimedPush, meter: &Meter) -> Result<Quantity, String> {
        let windows = [claimed.push.window];
        let query = TotalsQuery::new(&claimed.customer, meter, &windows);
        let totals = self.provider.read_totals(&query).await.map_err(|error| error.message)?;
        totals.first().copied().ok_or_else(|| "the window is missing".to_owned())
    }

    /// The push with the bytes it goes out with: those of its first attempt, or new ones.
    fn prepare(&self, claimed: ClaimedPush, meter: &Meter) -> PushSending {
        let encode = |key: &str| {
            let event_name = meter.event_name();
            let push = &claimed.push;
            let (customer, value, stamped_at) = (&claimed.customer, push.value, push.stamped_at);
            self.provider.encode(&PushFacts { key, customer, event_name, value, stamped_at })
        };
        let mut key = claimed.push.key.clone();
        let mut body = match &claimed.request {
            Some(stored) => stored.clone(),
            None => encode(&key),
        };
        if planted("bug.random_key_per_try") {
            key = format!("{key}-{}", claimed.push.attempts);
            body = encode(&key);
        }
        if planted("bug.new_key_after_500") && claimed.request_keys > 0 {
            key = format!("{key}-{}", claimed.request_keys);
            body = encode(&key);
        }
        let request = Request { key, request_keys: claimed.request_keys, body };
        PushSending { claimed, request }
    }

    /// Writes the attempts down, and then sends them.
    async fn send_all(
        &self,
        sendings: Vec<PushSending>,
        held_until: Timestamp,
        flights: &mut Flights,
    ) -> store::Result<()> {
        if sendings.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        if !self.provider.limits().sends {
            let settlements = sendings.iter().map(|sending| not_sent(&sending.claimed)).collect();
            return self.settle_all(settlements, now).await.map(drop);
        }
        let intents = sendings.iter().map(PushSending::intent).collect();
        let begin = |intents| self.store.begin_attempts(intents, now);
        let begun: HashSet<u64> =
            do_all_but_faulty(intents, begin).await?.into_iter().flatten().collect();
        if planted("bug.state_saved_before_send") {
            let premature = sendings.iter().map(|sending| {
                let next = Next::Submitted { look_at: self.settings.look_after.after(now) };
                settlement(&sending.claimed, Class::Accepted, next, None, None)
            });
            self.store.settle_pushes(premature.collect(), now).await?;
        }
        crash_point("push.before_send");
        for sending in sendings.into_iter().filter(|s| begun.contains(&s.claimed.push.number)) {
            let this = self.clone();
            flights.spawn(async move {
                let sent = this.send(sending, now);
                deadline::within(&this.clock, held_until, sent).await
            });
        }
        Ok(())
    }

    async fn send(&self, sending: PushSending, begun_at: Timestamp) -> Settlement {
        let PushSending { claimed, request } = sending;
        let Answer { outcome, request_id } = self.provider.send_push(&request).await;
        crash_point("push.after_send");
        let limits = self.provider.limits();
        let mut progress = progress(&claimed);
        progress.attempts += 1;
        progress.first_attempt_at.get_or_insert(begun_at);
        let settings = &self.settings;
        let (class, mut next) = judge_outcome(
            &outcome,
            progress,
            limits.horizons,
            (settings.backoff(), jitter(self.jitter_seed, claimed.push.number, progress.attempts)),
            (self.clock.now(), settings.look_after),
        );
        if !limits.shows_totals && matches!(next, Next::Submitted { .. }) {
            // Its word is all there will be.
            next = Next::Confirmed;
        }
        metrics::counter!("counterfoil_push_answers_total", "class" => class.name()).increment(1);
        let detail = match outcome {
            SubmitOutcome::Accepted | SubmitOutcome::AlreadyThere => None,
            SubmitOutcome::Refused { message } | SubmitOutcome::Unknown { message, .. } => {
                Some(message)
            }
        };
        settlement(&claimed, class, next, request_id, detail)
    }

    /// Asks the provider's summary whether a push has counted.
    async fn decide(&self, claimed: ClaimedPush, meter: &Meter) -> Settlement {
        let push = &claimed.push;
        let read_at = self.clock.now();
        let summary = self.read_total(&claimed, meter).await;
        crash_point("push.summary_read");
        let now = self.clock.now();
        if let Some(doubt) = self.wait_for_the_clock(&claimed, now) {
            return doubt;
        }
        let summary = match summary {
            Ok(summary) => summary,
            Err(said) => return self.unreadable(&claimed, &said, now),
        };
        let question = Question {
            mode: push.mode,
            quantity: push.quantity,
            value: push.value,
            settled: claimed.settled,
            doubtful: claimed.doubtful,
        };
        let shown = judge_summary(question, summary);
        if shown == Shown::Absent && !self.is_absence_proved(&claimed, summary, read_at).await {
            let next = Next::Wait { until: LAG.after(now), fresh_request_key: false };
            let detail = format!("the provider's total is {summary}; another reading decides");
            return settlement(&claimed, Class::Unknown, next, None, Some(detail));
        }
        let class = shown.class();
        let next = shown.next(self.settings.look_after.after(now));
        metrics::counter!("counterfoil_push_decisions_total", "class" => class.name()).increment(1);
        let detail = format!(
            "the provider's total of the window is {summary}; {} of other pushes, {} of this one",
            claimed.settled, push.quantity
        );
        settlement(&claimed, class, next, None, Some(detail))
    }

    /// Settles a push whose summary could not be read, with what the provider said.
    fn unreadable(&self, claimed: &ClaimedPush, said: &str, now: Timestamp) -> Settlement {
        let (stamped_at, since) = (claimed.push.stamped_at, claimed.unreadable_since);
        let horizons = self.provider.limits().horizons;
        let (class, next) = judge_unreadable(stamped_at, since, horizons, now);
        let detail = match (class, since) {
            (Class::Unreadable, Some(since)) => format!(
                "the provider's summary could not be read since {since}, so it is unknown whether \
                 it counted: {said}; fix the cause and retry it to have the summary read again, \
                 or compare by hand and discard it"
            ),
            (_, _) => format!("the provider's summary could not be read: {said}"),
        };
        settlement(claimed, class, next, None, Some(detail))
    }

    /// Keeps a total that lacks the push as a reading; true if it is the second since the provider
    /// may have forgotten the key. An absolute total that is sent again can only make it right.
    async fn is_absence_proved(
        &self,
        claimed: &ClaimedPush,
        value: Quantity,
        read_at: Timestamp,
    ) -> bool {
        let push = &claimed.push;
        if push.mode == Mode::Absolute || planted("bug.resend_on_stale_reading") {
            return true;
        }
        let (whose, meter) = ((&push.tenant, &claimed.customer), push.meter);
        let reading = SummaryReading {
            tenant: push.tenant.clone(),
            meter,
            customer: claimed.customer.clone(),
            window: push.window,
            value,
        };
        let first = push.first_attempt_at.unwrap_or(read_at);
        let from = self.provider.limits().horizons.decide.after(first);
        let start = push.window.start;
        let only = Window { start, end: start.saturating_add_micros(1) };
        let read = async {
            self.store.record_summaries(vec![reading], read_at).await?;
            self.store.read_summaries(whose, meter, only, push.window.micros()).await
        };
        match read.await {
            Ok(read) => read.first().is_some_and(|summary| read_twice_from(summary, from)),
            Err(error) => {
                tracing::warn!(job = "push", %error, "a reading could not be kept");
                false
            }
        }
    }

    /// Settles all but those of which what is stored contradicts itself: their leases end.
    async fn settle_all(
        &self,
        settlements: Vec<Settlement>,
        at: Timestamp,
    ) -> store::Result<usize> {
        let settle = |batch| self.store.settle_pushes(batch, at);
        Ok(do_all_but_faulty(settlements, settle).await?.into_iter().sum())
    }

    /// Waits for the first that lands, takes those that have landed with it, and settles them in
    /// one transaction.
    async fn settle(&self, flights: &mut Flights, patience: Duration) -> usize {
        let mut landed = Vec::new();
        if let Ok(Some(first)) = tokio::time::timeout(patience, flights.join_next()).await {
            landed.push(first);
        }
        while let Some(next) = flights.try_join_next() {
            landed.push(next);
        }
        let settlements: Vec<Settlement> = landed.into_iter().filter_map(Result::ok).collect();
        if settlements.is_empty() {
            return 0;
        }
        crash_point("push.before_settle");
        match self.settle_all(settlements, self.clock.now()).await {
            Ok(settled) => settled,
            Err(error) => {
                // Their leases end, and they are sent again under the same keys.
                tracing::warn!(job = "push", %error, "answers could not be written down");
                0
            }
        }
    }
}

/// A push that is about to be sent.
struct PushSending {
    claimed: ClaimedPush,
    request: Request,
}

impl PushSending {
    fn intent(&self) -> AttemptIntent {
        AttemptIntent {
            push: self.claimed.push.number,
            fence: self.claimed.fence,
            customer: self.claimed.customer.clone(),
            request: self.request.body.clone(),
        }
    }
}

fn progress(claimed: &ClaimedPush) -> Progress {
    let push = &claimed.push;
    let (attempts, first_attempt_at) = (push.attempts, push.first_attempt_at);
    Progress { stamped_at: push.stamped_at, attempts, first_attempt_at }
}

fn settlement(
    claimed: &ClaimedPush,
    class: Class,
    next: Next,
    request_id: Option<String>,
    detail: Option<String>,
) -> Settlement {
    let (push, right) = (claimed.push.number, Right::Lease(claimed.fence));
    Settlement { push, right, class, next, request_id, detail }
}

fn wait(claimed: &ClaimedPush, until: Timestamp) -> Settlement {
    let next = Next::Wait { until, fresh_request_key: false };
    let detail =
        "past the time in which it may be resent; the provider's summary decides".to_owned();
    settlement(claimed, Class::Unknown, next, None, Some(detail))
}

fn refuse_old(claimed: &ClaimedPush) -> Settlement {
    let detail = "it lies further back than the provider takes; it was not sent".to_owned();
    settlement(claimed, Class::TooOld, Next::Dead, None, Some(detail))
}

fn not_sent(claimed: &ClaimedPush) -> Settlement {
    settlement(claimed, Class::NotSent, Next::Confirmed, None, None)
}

fn unknown_meter(meter: MeterNo) -> store::Error {
    store::Error::Corrupt { what: format!("a push has meter number {}, which is unknown", meter.0) }
}

/// A number that differs from push to push and from attempt to attempt.
fn jitter(seed: u64, push: u64, attempts: u32) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed, push);
    hasher.write_u32(attempts);
    hasher.finish()
}
