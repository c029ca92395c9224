//! Thresholds and quotas: says so within a second when a tenant's usage passes one.
//!
//! Commits mark the tenants and meters that have thresholds (`ingest::Watched`); this job reads
//! the marked ones' exact totals and opens or ends alerts.
//!
//! Invariant: usage is never refused here; a quota alerts and does not enforce. A threshold alerts
//! once in each of its periods. A crash forgets the marks; every threshold is looked at after a
//! start, and once a minute, so nothing is missed for long.

use super::alerts::AlertBook;
use super::ingest::Watched;
use super::{Context, Job, Stop};
use crate::clock::Clock;
use crate::rules::alert::{AlertKind, Condition, Scope};
use crate::rules::command::shell_option;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Meter;
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::usage::UsageShape;
use crate::rules::window::{Window, month_around};
use crate::store::alert::{Alerts, Threshold, ThresholdKind, ThresholdPeriod};
use crate::store::{self, Declarations, Queries, Query};
use jiff::tz::TimeZone;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often all thresholds are looked at.
const ALL_EVERY: Span = Span::from_minutes(1);
/// How often to look whether thresholds were changed, by this server or another.
const RELOAD_EVERY: Span = Span::from_seconds(5);

pub struct ThresholdsJob {
    thresholds: Arc<dyn Alerts>,
    declarations: Arc<dyn Declarations>,
    usage: Arc<dyn Queries>,
    alerts: AlertBook,
    clock: Clock,
    watched: Arc<Watched>,
    memory: Mutex<ThresholdMemory>,
}

#[derive(Default)]
struct ThresholdMemory {
    known: Vec<Threshold>,
    reloaded_at: Option<Timestamp>,
    all_at: Option<Timestamp>,
}

impl Job for ThresholdsJob {
    const NAME: &'static str = "thresholds";
    /// How soon after a mark its usage is read; marks in between are read together.
    const PAUSE: Duration = Duration::from_millis(250);
    type Done = usize;
    type Error = store::Error;

    async fn rest(&self, _changed: Option<&usize>, stop: &mut Stop) {
        tokio::select! {
            () = self.watched.marked() => {}
            () = stop.wait(Duration::from_secs(1)) => {}
        }
        stop.wait(Self::PAUSE).await;
    }

    /// Looks at what was marked; returns how many alerts that changed.
    async fn pass(&self) -> store::Result<usize> {
        let now = self.clock.now();
        let (known, all) = self.refresh(now).await?;
        let touched = self.watched.take();
        let due: Vec<&Threshold> = known
            .iter()
            .filter(|one| all || touched.contains(&(one.tenant.clone(), one.meter)))
            .collect();
        if due.is_empty() && !all {
            return Ok(0);
        }
        let looked = self.look(&due, all, now).await;
        if looked.is_err() {
            // They are looked at again.
            self.watched.mark(touched);
        }
        looked
    }
}

impl ThresholdsJob {
    pub fn new(context: &Context, watched: Arc<Watched>) -> Self {
        let Context { store, clock, .. } = context.clone();
        Self {
            thresholds: store.clone(),
            declarations: store.clone(),
            usage: store,
            alerts: AlertBook::new(context),
            clock,
            watched,
            memory: Mutex::default(),
        }
    }

    async fn look(&self, due: &[&Threshold], all: bool, now: Timestamp) -> store::Result<usize> {
        let catalog = self.declarations.load_catalog().await?;
        let mut used: BTreeMap<(TenantId, MeterNo, ThresholdPeriod), Quantity> = BTreeMap::new();
        let (mut conditions, mut scopes) = (Vec::new(), Vec::new());
        for threshold in due {
            let Some(meter) = catalog.get(threshold.meter) else { continue };
            let Threshold { tenant, kind, period, limit, .. } = threshold;
            let window = period_around(*period, now);
            let key = (tenant.clone(), threshold.meter, *period);
            let of = (threshold.meter, &**meter);
            let usage = match used.get(&key) {
                Some(usage) => *usage,
                None => read_used(&*self.usage, tenant, of, window, usize::MAX).await?,
            };
            used.insert(key, usage);
            let (alert, series) = name(threshold, meter.slug.as_str());
            if usage >= *limit {
                let slug = &meter.slug;
                let what = match kind {
                    ThresholdKind::Threshold => "passed the threshold",
                    ThresholdKind::Quota => "reached its quota",
                };
                conditions.push(Condition {
                    kind: alert,
                    subject: format!("{series}/{}", window.start),
                    summary: format!("{tenant} has {what} of {limit} {slug}: {usage} so far"),
                    command: format!(
                        "counterfoil usage {} --meter {slug}",
                        shell_option("--tenant", tenant.as_str())
                    ),
                });
            }
            scopes.push(Scope { kind: alert, series: Some(series) });
        }
        if all {
            // Those whose threshold was taken away end too.
            scopes = [AlertKind::UsageThreshold, AlertKind::QuotaReached].map(Scope::all).into();
        }
        let open = self.alerts.list_open().await?;
        self.alerts.record(&open, &scopes, conditions, now).await
    }

    /// The thresholds there are, and whether it is time to look at all of them.
    async fn refresh(&self, now: Timestamp) -> store::Result<(Vec<Threshold>, bool)> {
        let due = {
            let memory = self.memory.lock().expect("no holder panics");
            memory.reloaded_at.is_none_or(|at| RELOAD_EVERY.after(at) <= now)
        };
        let loaded = if due {
            Some(self.thresholds.list_thresholds(Query::first(None, usize::MAX)).await?)
        } else {
            None
        };
        let mut memory = self.memory.lock().expect("no holder panics");
        let mut all = memory.all_at.is_none_or(|at| ALL_EVERY.after(at) <= now);
        if let Some(loaded) = loaded {
            // One that is new may have been passed long ago.
            all |= loaded != memory.known;
            let pairs = loaded.iter().map(|one| (one.tenant.clone(), one.meter));
            self.watched.watch(pairs.collect::<HashSet<_>>());
            memory.known = loaded;
            memory.reloaded_at = Some(now);
        }
        if all {
            memory.all_at = Some(now);
        }
        Ok((memory.known.clone(), all))
    }
}

/// What was used in a period, trials included.
pub async fn read_used(
    store: &dyn Queries,
    tenant: &TenantId,
    (number, meter): (MeterNo, &Meter),
    window: Window,
    rows_max: usize,
) -> store::Result<Quantity> {
    let (windows, group_by) = (vec![window], Vec::new());
    let shape = UsageShape { windows, group_by, aggregation: meter.spec.aggregation, rows_max };
    Ok(store.compose_usage(tenant, number, window, shape).await?.total)
}

/// The kind of alert, and the series that its subjects are of.
fn name(threshold: &Threshold, slug: &str) -> (AlertKind, String) {
    let (kind, period) = match (threshold.kind, threshold.period) {
        (ThresholdKind::Threshold, ThresholdPeriod::Day) => (AlertKind::UsageThreshold, "day"),
        (ThresholdKind::Threshold, ThresholdPeriod::Month) => (AlertKind::UsageThreshold, "month"),
        (ThresholdKind::Quota, ThresholdPeriod::Day) => (AlertKind::QuotaReached, "day"),
        (ThresholdKind::Quota, ThresholdPeriod::Month) => (AlertKind::QuotaReached, "month"),
    };
    (kind, format!("{}/{slug}/{period}", threshold.tenant))
}

/// The period that a moment lies in.
pub fn period_around(period: ThresholdPeriod, now: Timestamp) -> Window {
    let day = now.micros().div_euclid(MICROS_PER_DAY) * MICROS_PER_DAY;
    let day = Window {
        start: Timestamp::from_micros(day),
        end: Timestamp::from_micros(day + MICROS_PER_DAY),
    };
    match period {
        ThresholdPeriod::Day => day,
        // The clock's own moment lies in the calendar.
        ThresholdPeriod::Month => month_around(now, &TimeZone::UTC).unwrap_or(day),
    }
}
