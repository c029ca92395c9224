//! Alerts: looks at what is stored and says what a person should know.
//!
//! Invariant: one holder of the lease looks at a time. What it finds is compared with the alerts
//! that are open; opening and ending are written together with their notices. A look changes
//! nothing else. A crash leaves alerts as they are; the next look goes on.

mod conditions;

use super::{Context, Job, gauge};
use crate::clock::Clock;
use crate::rules::alert::{Alert, AlertKind, Condition, Scope, Severity, judge_alerts};
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::store::alert::{AlertFilter, Alerts, PageCounts};
use crate::store::list::read_all;
use crate::store::{self, Store};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEASE: &str = "alerts";
const LEASE_SPAN: Span = Span::from_minutes(1);
/// How often the counters of a day are read, which takes longer than the rest.
const ACTIVITY_EVERY: Span = Span::from_minutes(5);
/// The alert of a fault that another server met is not believed for longer.
const FAULT_AGE_MAX: Span = Span::from_hours(24);

pub struct AlertsJob {
    store: Arc<dyn Store>,
    clock: Clock,
    holder: String,
    /// Tells this server from others in alerts of its own faults.
    name: String,
    alerts: AlertBook,
    /// How long usage may be without a customer before somebody is called; zero for ever.
    unmapped_after: Span,
    memory: Mutex<AlertMemory>,
}

/// What a look remembers of those before.
#[derive(Default)]
struct AlertMemory {
    activity_at: Option<Timestamp>,
}

impl Job for AlertsJob {
    const NAME: &'static str = "alerts";
    const PAUSE: Duration = Duration::from_secs(5);
    type Done = usize;
    type Error = store::Error;

    /// Opens and ends alerts; returns how many changes were made.
    async fn pass(&self) -> store::Result<usize> {
        let now = self.clock.now();
        let faults = self.tell_faults(now).await?;
        let until = LEASE_SPAN.after(now);
        let Some(lease) = self.store.claim_lease(LEASE, &self.holder, now, until).await? else {
            return Ok(faults);
        };
        let open = self.alerts.list_open().await?;
        let mut conditions = Vec::new();
        let mut scopes: Vec<Scope> = LOOKED_AT.into_iter().map(Scope::all).collect();
        conditions.extend(self.pushes(now, &open).await?);
        conditions.extend(self.findings().await?);
        conditions.extend(self.invoices(now).await?);
        conditions.extend(self.customers().await?);
        conditions.extend(self.webhooks(now).await?);
        conditions.extend(self.sagas().await?);
        conditions.extend(self.cuts().await?);
        conditions.extend(self.nights(now).await?);
        conditions.extend(self.self_check(now).await?);
        conditions.extend(conditions::store_health(&self.store.health()));
        if self.activity_due(now) {
            conditions.extend(self.activity(now, &open).await?);
            let kinds = [AlertKind::ConflictRate, AlertKind::QuarantineRate, AlertKind::Silence];
            scopes.extend(kinds.map(Scope::all));
        }
        let changed = self.alerts.record(&open, &scopes, conditions, now).await?;
        show_pages(self.store.count_pages(now).await?);
        let drifting = self.store.count_drifting_tenants().await?;
        metrics::gauge!("counterfoil_drifting_tenants").set(gauge(drifting));
        self.store.release_lease(&lease).await?;
        Ok(faults + changed)
    }
}

impl AlertsJob {
    pub fn new(context: &Context) -> Self {
        let Context { store, clock, config, holder, name, .. } = context.clone();
        let (alerts, memory) = (AlertBook::new(context), Mutex::default());
        let unmapped_after = config.alerts.unmapped_after;
        Self { store, clock, holder, name, alerts, unmapped_after, memory }
    }

    /// Opens the alerts of faults that this process has met, and ends those of the process before
    /// it. Every server does so for itself; what a server that is gone has left ends after a day.
    async fn tell_faults(&self, now: Timestamp) -> store::Result<usize> {
        let mut open = self.alerts.list_open().await?;
        let own = format!("{}/", self.name);
        open.retain(|alert| {
            let old = FAULT_AGE_MAX.after(alert.opened_at) <= now;
            alert.kind == AlertKind::InternalFault && (alert.subject.starts_with(&own) || old)
        });
        let conditions = conditions::faults(&self.name, &self.store.health());
        let scopes = [Scope::all(AlertKind::InternalFault)];
        self.alerts.record(&open, &scopes, conditions, now).await
    }

    fn activity_due(&self, now: Timestamp) -> bool {
        let mut memory = self.memory.lock().expect("no holder panics");
        let due = memory.activity_at.is_none_or(|at| at > now || ACTIVITY_EVERY.after(at) <= now);
        if due {
            memory.activity_at = Some(now);
        }
        due
    }
}

/// Kinds that every look judges. Thresholds are judged where usage is counted, clocks and faults by
/// each server for itself.
const LOOKED_AT: [AlertKind; 21] = [
    AlertKind::SelfCheckMismatch,
    AlertKind::SelfCheckIncomplete,
    AlertKind::UsageUnmapped,
    AlertKind::UsageUnmappedLong,
    AlertKind::UsageUnsent,
    AlertKind::CutFailing,
    AlertKind::SagaNeedsAttention,
    AlertKind::PushesObservedLong,
    AlertKind::PushesSubmittedLong,
    AlertKind::DriftUnresolved,
    AlertKind::DeadLetters,
    AlertKind::Unbilled,
    AlertKind::FinalizationNear,
    AlertKind::UnknownSubscription,
    AlertKind::InvoiceDrift,
    AlertKind::CustomerDeleted,
    AlertKind::PaymentFailed,
    AlertKind::WebhooksWaiting,
    AlertKind::FoldStopped,
    AlertKind::LogLarge,
    AlertKind::NightlyLate,
];

/// The alerts of the store, and where their notices go.
pub struct AlertBook {
    store: Arc<dyn Alerts>,
    destinations: Vec<&'static str>,
}

impl AlertBook {
    pub fn new(context: &Context) -> Self {
        let Context { store, destinations, .. } = context.clone();
        Self { store, destinations }
    }

    /// All alerts that are open.
    pub async fn list_open(&self) -> store::Result<Vec<Alert>> {
        let open = AlertFilter { open: Some(true), kind: None };
        read_all(open, |alert: &Alert| alert.number, |query| self.store.list_alerts(query)).await
    }

    /// Writes down what a look changes, and says so.
    pub async fn record(
        &self,
        open: &[Alert],
        scopes: &[Scope],
        conditions: Vec<Condition>,
        now: Timestamp,
    ) -> store::Result<usize> {
        let changes = judge_alerts(open, scopes, conditions);
        if changes.is_empty() {
            return Ok(0);
        }
        let changed = self.store.record_alerts(changes.clone(), &self.destinations, now).await?;
        changes.iter().for_each(|change| log_change(open, change));
        Ok(changed)
    }
}

fn log_change(open: &[Alert], change: &crate::rules::alert::AlertChange) {
    use crate::rules::alert::AlertChange::{Open, Resolve, Restate};
    match change {
        Open(Condition { kind, subject, summary, command }) => {
            let name = kind.name();
            if kind.severity() == Severity::Page {
                metrics::counter!("counterfoil_pages_total", "kind" => name).increment(1);
                tracing::warn!(alert = name, subject, "{summary}: {command}");
            } else {
                tracing::info!(alert = name, subject, "{summary}: {command}");
            }
        }
        Restate(..) => {}
        Resolve(number) => {
            let Some(alert) = open.iter().find(|alert| alert.number == *number) else { return };
            let (name, subject) = (alert.kind.name(), &alert.subject);
            tracing::info!(alert = name, subject, "over: {}", alert.summary);
        }
    }
}

/// How often somebody was called, and the trend.
fn show_pages(counts: PageCounts) {
    let PageCounts { open, day, week, week_before } = counts;
    for (period, count) in
        [("open", open), ("day", day), ("week", week), ("week_before", week_before)]
    {
        metrics::gauge!("counterfoil_pages", "period" => period).set(gauge(count));
    }
}
