//! The keeper of the clock: hears the clocks of others, tells a person when they contradict ours,
//! and resets what a clock that was ahead has moved.
//!
//! Answers of the provider carry its time anyway; the keeper asks when none came for a while, and
//! reads the database's clock at every look. Every server keeps its own clock: one whose clock is
//! wrong opens the alert of its own name, and ends it.
//!
//! Invariant: the keeper sends nothing and decides nothing but the alert, so it works while the
//! time is in doubt. Marks are lowered only when no clock contradicts the time. A crash leaves
//! an alert open; the next start of a server with the same name ends it, and every server ends
//! those that are a day old (a server that still has the reason opens its own again).

use super::alerts::AlertBook;
use super::{Context, Job};
use crate::clock::Clock;
use crate::provider::Provider;
use crate::rules::alert::{Alert, AlertKind, Condition, Scope};
use crate::rules::span::Span;
use crate::rules::time_source::{Doubt, Witness};
use crate::rules::timestamp::{MICROS_PER_MINUTE, MICROS_PER_SECOND, Timestamp};
use crate::store::{self, clock::Clocks};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a provider that was heard is left alone.
const HEARD_FOR_MICROS: i64 = 4 * MICROS_PER_MINUTE;
/// The same while the time is in doubt.
const HEARD_IN_DOUBT_MICROS: i64 = 20 * MICROS_PER_SECOND;
/// A provider that does not answer must not hold up the database's clock for longer.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// An alert that is older is not believed any more.
const ALERT_AGE_MAX: Span = Span::from_hours(24);

pub struct ClocksJob {
    store: Arc<dyn Clocks>,
    alerts: AlertBook,
    provider: Option<Arc<dyn Provider>>,
    clock: Clock,
    /// Tells this machine from others in alerts.
    name: String,
    /// The doubt of the last look.
    last: Mutex<Option<Doubt>>,
}

impl ClocksJob {
    /// From now on `clock` must be confirmed, if the store or the provider can confirm it.
    pub async fn start(
        context: &Context,
        provider: Option<Arc<dyn Provider>>,
    ) -> store::Result<Self> {
        let Context { store, clock, name, .. } = context.clone();
        let (alerts, last) = (AlertBook::new(context), Mutex::default());
        clock.start_after(store.high_water());
        let by_provider = provider.as_ref().is_some_and(|provider| provider.tells_time());
        if by_provider || store.read_clock().await?.is_some() {
            clock.require_confirmation();
        }
        let job = Self { store, alerts, provider, clock, name, last };
        job.hear().await?;
        Ok(job)
    }
}

impl Job for ClocksJob {
    const NAME: &'static str = "clocks";
    const PAUSE: Duration = Duration::from_secs(2);
    type Done = usize;
    type Error = store::Error;

    /// Hears the other clocks and follows what they say; returns how many alerts that changed.
    async fn pass(&self) -> store::Result<usize> {
        self.hear().await?;
        let moment = self.clock.moment();
        let in_doubt = moment.doubt.is_some();
        metrics::gauge!("counterfoil_clock_in_doubt").set(if in_doubt { 1.0 } else { 0.0 });
        if let Ok(now) = self.clock.sure()
            && self.clock.mark_is_wrong()
        {
            self.store.lower_time_marks(now).await?;
            self.clock.mark_was_lowered();
            tracing::warn!("marks that a wrong clock had moved ahead were set back to {now}");
        }
        self.tell(moment.doubt, moment.now).await
    }
}

impl ClocksJob {
    /// Reads the database's clock, and the provider's if it was not heard for a while.
    async fn hear(&self) -> store::Result<()> {
        let asked = self.clock.tick();
        if let Some(theirs) = self.store.read_clock().await? {
            self.clock.witness(Witness::Database, theirs, asked);
        }
        let Some(provider) = self.provider.as_ref().filter(|one| one.tells_time()) else {
            return Ok(());
        };
        let in_doubt = self.clock.moment().doubt.is_some();
        let enough = if in_doubt { HEARD_IN_DOUBT_MICROS } else { HEARD_FOR_MICROS };
        if self.clock.heard_age(&[Witness::Provider]).is_none_or(|age| age > enough) {
            // No answer confirms nothing.
            let _ = tokio::time::timeout(ASK_TIMEOUT, provider.ask_time()).await;
        }
        Ok(())
    }

    async fn tell(&self, doubt: Option<Doubt>, now: Timestamp) -> store::Result<usize> {
        self.log(doubt.as_ref());
        let mut open = self.alerts.list_open().await?;
        open.retain(|alert| alert.kind == AlertKind::ClockInDoubt);
        let condition = doubt.map(|doubt| Condition {
            kind: AlertKind::ClockInDoubt,
            subject: self.name.clone(),
            summary: format!(
                "{doubt}; nothing is cut, sent, decided, expired or removed by {} until the clocks \
                 agree: {}",
                self.name,
                doubt.remedy()
            ),
            command: "timedatectl".into(),
        });
        if condition.is_none() && open.is_empty() {
            return Ok(0);
        }
        let scopes = [Scope::all(AlertKind::ClockInDoubt)];
        let conditions: Vec<Condition> = condition.into_iter().collect();
        let believed = |alert: &Alert| now < ALERT_AGE_MAX.after(alert.opened_at);
        open.retain(|alert| alert.subject == self.name || !believed(alert));
        self.alerts.record(&open, &scopes, conditions, now).await
    }

    fn log(&self, doubt: Option<&Doubt>) {
        let mut last = self.last.lock().expect("no holder panics");
        match (last.as_ref(), doubt) {
            (None, Some(doubt)) => {
                let remedy = doubt.remedy();
                tracing::error!("the time is in doubt: {doubt}; {remedy}");
            }
            (Some(_), None) => tracing::warn!("the time is not in doubt any more"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        *last = doubt.cloned();
    }
}

/// The name by which a person finds the server that listens there.
pub fn server_name(listen: SocketAddr) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => listen.to_string(),
        host => format!("{host} ({listen})"),
    }
}
