//! The self-check: compares stored totals and counters with the events, continuously. Each hour it
//! takes a sample, each night it walks through everything.
//!
//! A pass does one step: one slice of a walk, or one window of a sample. Between steps it rests as
//! long as the read budget asks, so that ingest is not slowed.
//!
//! The sample of an hour has `check.sample_windows` windows, about. Half of them are of tenants and
//! meters in their order, from where the last sample ended: those that were looked at longest ago.
//! The other half are of tenants that were active in the last two hours, likewise in turn. Of each
//! tenant and meter it takes the newest window, and one of the others by chance. Windows that did
//! not agree come first, so that what was fixed is known within the hour.
//!
//! Invariant: one holder of the lease works at a time, and what it writes is refused once another
//! has the lease. Progress and mismatches change with the slice that they come from. What could not
//! be read is kept as not checked. A crash leaves the walk's cursor before the slice, which is
//! checked again; a sample begins anew.

use super::keeper::{Keeper, LeaseTerms};
use super::{Context, Job, Stop, gauge};
use crate::clock::Clock;
use crate::config::CheckConfig;
use crate::faults::crash_point;
use crate::rules::digest::digest_fields;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::self_check::{
    Due, Mismatch, Parts, Sampled, Schedule, SelfCheck, Slice, SliceReport, Unchecked,
    choose_windows,
};
use crate::rules::span::Span;
use crate::rules::timestamp::{MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use crate::store::push::Lease;
use crate::store::self_check::TotalsPair;
use crate::store::{self, CHECK_ROWS_MAX, Error, Store};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEASE: &str = "self_check";
/// Longer than the longest rest, so that servers do not take turns and read more than the budget.
const LEASE_SPAN: Span = Span::from_minutes(15);
const REST_MAX: Duration = Duration::from_secs(300);
/// Slices that are planned at once.
const PLANNED_SLICES: usize = 256;
/// Meters of an active tenant that a sample looks at.
const ACTIVE_METERS: usize = 4;
/// No meter has a higher number on either store.
const METER_LAST: u16 = i16::MAX.unsigned_abs();
const ACTIVE_SPAN: Span = Span::from_hours(2);

pub struct SelfCheckJob {
    store: Arc<dyn Store>,
    clock: Clock,
    holder: String,
    settings: CheckConfig,
    memory: Mutex<Plans>,
}

/// What is planned. Forgotten in a crash, and planned anew.
#[derive(Default)]
struct Plans {
    /// Of the walk that began then.
    walk: Option<(Timestamp, VecDeque<Slice>)>,
    sample: Option<Sample>,
}

/// A sample that goes on.
#[derive(Clone)]
struct Sample {
    windows: VecDeque<Slice>,
    taken: Sampled,
}

/// What a pass has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// What was read.
    pub rows: u64,
    /// Slices that were compared, or could not be.
    pub slices: u64,
}

impl Job for SelfCheckJob {
    const NAME: &'static str = "self_check";
    const PAUSE: Duration = Duration::from_secs(20);
    type Done = Step;
    type Error = store::Error;

    /// Does the next step of what is due.
    async fn pass(&self) -> store::Result<Step> {
        let terms =
            LeaseTerms { name: LEASE, holder: &self.holder, span_micros: LEASE_SPAN.micros() };
        let store: &dyn Store = &*self.store;
        let Some(keeper) = Keeper::claim(store, &self.clock, terms).await? else {
            self.plans().walk = None;
            return Ok(Step::default());
        };
        let stepped = self.step(keeper.lease()).await;
        if let Err(error) = &stepped {
            let what = if error.is_of_data() { "corrupt" } else { "unavailable" };
            metrics::counter!("counterfoil_self_check_failures_total", "error" => what)
                .increment(1);
        }
        stepped
    }

    /// Rests until the rows that were read fit the budget.
    async fn rest(&self, done: Option<&Step>, stop: &mut Stop) {
        let pause = match done {
            Some(step) if step.slices > 0 => {
                let millis = step.rows.saturating_mul(1_000) / self.settings.rows_per_second.max(1);
                Duration::from_millis(millis).min(REST_MAX)
            }
            Some(_) | None => Self::PAUSE,
        };
        stop.wait(pause).await;
    }
}

impl SelfCheckJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, config, holder, .. } = context.clone();
        let settings = config.check.clone();
        Self { store, clock, holder, settings, memory: Mutex::default() }
    }

    fn plans(&self) -> std::sync::MutexGuard<'_, Plans> {
        self.memory.lock().expect("no holder panics")
    }

    async fn step(&self, lease: &Lease) -> store::Result<Step> {
        let now = self.clock.now();
        let mut check = self.store.read_self_check().await?;
        if check.since.is_none() {
            check.since = Some(now);
        }
        let schedule = Schedule { walk_hour: self.settings.walk_hour };
        let done = match schedule.due(&check, now) {
            Due::Sample => self.sample(lease, &mut check, now).await?,
            Due::BeginWalk => {
                check.begin_walk(now);
                self.record(lease, &check, Vec::new()).await?;
                self.walk(lease, &mut check).await?
            }
            Due::Walk => self.walk(lease, &mut check).await?,
            Due::Nothing => Step::default(),
        };
        show(&check, self.store.count_mismatches().await?, now);
        Ok(done)
    }

    /// Compares the next slice of the walk.
    async fn walk(&self, lease: &Lease, check: &mut SelfCheck) -> store::Result<Step> {
        let Some(slice) = self.next_slice(check).await? else { return Ok(Step::default()) };
        let mut step = Step { rows: 0, slices: 1 };
        let (mut parts, mut compared) = (Parts::of(slice), Vec::new());
        let Some(walk) = &mut check.walk else { return Ok(step) };
        while let Some(part) = parts.pop() {
            match self.compare(part, &mut parts).await? {
                Outcome::Compared(report) => {
                    step.rows += report.rows;
                    walk.add(&report);
                    compared.push((part, report.mismatches));
                }
                Outcome::Divided => {}
                Outcome::LeftOut(unchecked) => walk.leave_out(unchecked),
            }
        }
        walk.pass(&slice, self.clock.now());
        check.end_walk();
        crash_point("self_check.before_record");
        self.record(lease, check, compared).await?;
        if let Some((_, slices)) = &mut self.plans().walk {
            slices.pop_front();
        }
        Ok(step)
    }

    /// The slice at the walk's cursor.
    async fn next_slice(&self, check: &SelfCheck) -> store::Result<Option<Slice>> {
        let Some(walk) = check.walk.as_ref().filter(|walk| walk.ended_at.is_none()) else {
            return Ok(None);
        };
        let planned = match &self.plans().walk {
            Some((of, slices)) if *of == walk.started_at => slices.front().copied(),
            Some(_) | None => None,
        };
        // Where another server went on meanwhile, the plan is of an older cursor.
        if let Some(slice) = planned.filter(|slice| slice.starts_at(walk.next)) {
            return Ok(Some(slice));
        }
        let slices = self.store.plan_slices(walk.next, PLANNED_SLICES).await?;
        let first = slices.first().copied();
        self.plans().walk = Some((walk.started_at, slices.into()));
        Ok(first)
    }

    async fn compare(&self, part: Slice, parts: &mut Parts) -> store::Result<Outcome> {
        match self.store.check_slice(part, CHECK_ROWS_MAX).await {
            Ok(report) => {
                note(&report);
                Ok(Outcome::Compared(report))
            }
            Err(error @ Error::Corrupt { .. }) => {
                let catalog = self.store.load_catalog().await?;
                if parts.split(part, &catalog, self.store.last_tenant().await?) {
                    return Ok(Outcome::Divided);
                }
                let part = self.describe(part, &catalog).await?;
                tracing::warn!(%error, part, "a part of the ledger could not be checked");
                metrics::counter!("counterfoil_self_check_unchecked_total").increment(1);
                Ok(Outcome::LeftOut(Unchecked { part, why: error.to_string() }))
            }
            Err(error) => Err(error),
        }
    }

    async fn describe(&self, part: Slice, catalog: &Catalog) -> store::Result<String> {
        // A name that cannot be read must not keep the part from being shown.
        let name = match self.store.name_tenant(part.first).await {
            Ok(name) => name.map(|name| name.to_string()),
            Err(error) if error.is_of_data() => None,
            Err(error) => return Err(error),
        };
        Ok(part.describe(name.as_deref(), catalog))
    }

    /// Compares the next window of the sample.
    async fn sample(
        &self,
        lease: &Lease,
        check: &mut SelfCheck,
        now: Timestamp,
    ) -> store::Result<Step> {
        let planned = self.plans().sample.clone();
        let mut sample = match planned {
            Some(sample) => sample,
            None => match self.plan_sample(check, now).await {
                // Windows cannot be chosen, and the walk must find out why all the same.
                Err(error) if error.is_of_data() => {
                    let part = "the list of totals".to_owned();
                    let unchecked = vec![Unchecked { part, why: error.to_string() }];
                    let taken = Sampled { unchecked, ..Sampled::default() };
                    Sample { windows: VecDeque::new(), taken }
                }
                planned => planned?,
            },
        };
        let (mut step, mut compared) = (Step { rows: 0, slices: 1 }, Vec::new());
        if let Some(window) = sample.windows.pop_front() {
            match self.compare(window, &mut Parts::of(window)).await? {
                Outcome::Compared(report) => {
                    step.rows = report.rows;
                    compared.push((window, report.mismatches));
                    sample.taken.windows += 1;
                }
                // Never: a window has no parts.
                Outcome::Divided => {}
                Outcome::LeftOut(unchecked) => sample.taken.unchecked.push(unchecked),
            }
        }
        let ended = sample.windows.is_empty();
        if ended {
            check.sample = Sampled { at: Some(now), ..sample.taken.clone() };
        }
        self.record(lease, check, compared).await?;
        self.plans().sample = (!ended).then_some(sample);
        Ok(step)
    }

    async fn plan_sample(&self, check: &SelfCheck, now: Timestamp) -> store::Result<Sample> {
        let (mut windows, mut chosen) = (VecDeque::new(), BTreeSet::new());
        let limit = self.settings.sample_windows;
        for kept in self.store.list_mismatches(limit).await? {
            let mismatch = kept.mismatch;
            let tenant = mismatch.tenant_no;
            windows.push_back(match mismatch.meter_no {
                Some(meter) => Slice::of_window(tenant, meter, mismatch.window),
                None => Slice::of_counters(tenant),
            });
        }
        let catalog = self.store.load_catalog().await?;
        let after = (TenantNo(check.sample.last.0), MeterNo(check.sample.last.1));
        // Two windows of each: half of the sample is a quarter of it in pairs.
        let pairs = limit.div_ceil(4);
        let rotating = self.store.list_pairs(after, pairs).await?;
        let mut taken = Sampled::default();
        if let Some(pair) = rotating.last().filter(|_| rotating.len() == pairs) {
            taken.last = (pair.tenant.0, pair.meter.0);
        }
        let active = self.active_pairs(check.sample.active, now, pairs).await?;
        taken.active = active.last().map_or(0, |pair| pair.tenant.0);
        let hour = now.micros().div_euclid(MICROS_PER_HOUR);
        for pair in rotating.into_iter().chain(active) {
            let TotalsPair { tenant, meter, first, last } = pair;
            let Some(definition) = catalog.get(meter) else { continue };
            let chance = chance([hour, tenant.0.into(), meter.0.into()]);
            for window in choose_windows(definition.spec.bucket, (first, last), chance) {
                if chosen.insert((tenant, meter, window)) {
                    windows.push_back(Slice::of_window(tenant, meter, window));
                }
            }
        }
        Ok(Sample { windows, taken })
    }

    /// Pairs of tenants that were active lately, from the one after `after` on and round again.
    async fn active_pairs(
        &self,
        after: u32,
        now: Timestamp,
        limit: usize,
    ) -> store::Result<Vec<TotalsPair>> {
        let since = ACTIVE_SPAN.before(now);
        let mut tenants = self.store.list_active(since, TenantNo(after), limit).await?;
        if tenants.len() < limit {
            let round = self.store.list_active(since, TenantNo(0), limit).await?;
            tenants.extend(round.into_iter().filter(|tenant| tenant.0 <= after));
        }
        let mut pairs = Vec::new();
        for tenant in tenants {
            let before = (TenantNo(tenant.0.saturating_sub(1)), MeterNo(METER_LAST));
            let found = self.store.list_pairs(before, ACTIVE_METERS).await?;
            pairs.extend(found.into_iter().filter(|pair| pair.tenant == tenant));
            if pairs.len() >= limit {
                break;
            }
        }
        pairs.truncate(limit);
        Ok(pairs)
    }

    async fn record(
        &self,
        lease: &Lease,
        check: &SelfCheck,
        compared: Vec<(Slice, Vec<Mismatch>)>,
    ) -> store::Result<()> {
        let now = self.clock.now();
        let written = self.store.record_self_check(lease, check.clone(), compared, now).await?;
        if !written {
            return Err(Error::Unavailable { what: "another server checks the store now".into() });
        }
        Ok(())
    }
}

enum Outcome {
    Compared(SliceReport),
    /// It could not be read, and its parts are compared one by one.
    Divided,
    LeftOut(Unchecked),
}

/// A number that follows from these and from nothing else.
fn chance(of: [i64; 3]) -> u64 {
    let bytes = of.map(i64::to_le_bytes);
    let digest = digest_fields(bytes.iter().map(<[u8; 8]>::as_slice));
    digest.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

fn note(report: &SliceReport) {
    let found = u64::try_from(report.mismatches.len()).unwrap_or(u64::MAX) + report.more;
    metrics::counter!("counterfoil_self_check_totals_total").increment(report.totals);
    metrics::counter!("counterfoil_self_check_events_total").increment(report.events);
    metrics::counter!("counterfoil_self_check_mismatches_total").increment(found);
}

fn show(check: &SelfCheck, mismatches: u64, now: Timestamp) {
    let age = |at: Timestamp| (now.micros() - at.micros()) / MICROS_PER_SECOND;
    metrics::gauge!("counterfoil_self_check_mismatches_open").set(gauge(mismatches));
    let done = u8::from(check.not_done(now).is_none());
    metrics::gauge!("counterfoil_self_check_done").set(gauge(done));
    // Everything was compared after this moment, so nothing is unchecked for longer.
    if let Some(begun) = check.complete.as_ref().map(|walk| walk.started_at).or(check.since) {
        metrics::gauge!("counterfoil_self_check_oldest_seconds").set(gauge(age(begun)));
    }
    if let Some(ended) = check.complete.as_ref().and_then(|walk| walk.ended_at) {
        metrics::gauge!("counterfoil_self_check_last_walk_seconds").set(gauge(age(ended)));
    }
}
