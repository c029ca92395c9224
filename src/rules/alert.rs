//! Alerts: what a person is told, and when it is over.
//!
//! A look at stored state gives conditions, each of a kind and about a subject. Compared with the
//! alerts that are open, it says which are new, which are over, and which have other numbers by
//! now. Only the first two make notices.
//!
//! Invariant: at most one alert of a kind and subject is open, however often its condition is seen.
//! An alert of a kind that was not looked at stays as it is.

use super::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

/// How urgent an alert is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Notice,
    /// Someone must look now: a bill may become wrong.
    Page,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Page => "page",
        }
    }
}

/// What an alert is about; docs/operating.md has a heading for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// Pushes were not taken by the provider for more than five minutes.
    PushesObservedLong,
    /// Pushes were taken more than an hour ago and the provider's totals do not show them.
    PushesSubmittedLong,
    /// A difference was still there after the next pass.
    DriftUnresolved,
    /// Pushes need a person.
    DeadLetters,
    /// Usage that was counted and is not billed.
    Unbilled,
    /// Many events came under keys that other payloads hold.
    ConflictRate,
    /// Many events were too old or too far ahead, and are kept and not counted.
    QuarantineRate,
    /// A tenant that was active has sent nothing for some time.
    Silence,
    /// Clocks contradict each other, and money stands still until they agree.
    ClockInDoubt,
    /// The key is of another account than the one that the store is bound to.
    AccountChanged,
    /// An invoice is about to be fixed while usage of its period is on its way.
    FinalizationNear,
    /// A subscription at the provider belongs to nobody here.
    UnknownSubscription,
    /// An invoice does not show what was counted.
    InvoiceDrift,
    /// A customer was deleted at the provider.
    CustomerDeleted,
    /// A payment failed.
    PaymentFailed,
    /// Webhooks were taken and their effects could not be made for some time.
    WebhooksWaiting,
    /// A tenant's usage has passed a threshold.
    UsageThreshold,
    /// A tenant's usage has reached its quota.
    QuotaReached,
    /// A saga can neither go on nor back by itself.
    SagaNeedsAttention,
    /// Windows of a tenant cannot be cut for what is stored of them.
    CutFailing,
    /// The embedded store cannot fold events into tables any more.
    FoldStopped,
    /// The embedded store's write-ahead log has outgrown what it should be.
    LogLarge,
    /// The last day was not compared in time, or days were skipped.
    NightlyLate,
    /// Usage of tenants without a customer is billed to nobody.
    UsageUnmapped,
    /// The same for longer than `alerts.unmapped_after`.
    UsageUnmappedLong,
    /// Usage was too old to be sent when its tenant got a customer.
    UsageUnsent,
    /// A fact about money does not hold, and the operation that met it was refused.
    InternalFault,
}

impl AlertKind {
    pub const ALL: [Self; 27] = [
        Self::PushesObservedLong,
        Self::PushesSubmittedLong,
        Self::DriftUnresolved,
        Self::DeadLetters,
        Self::Unbilled,
        Self::ConflictRate,
        Self::QuarantineRate,
        Self::Silence,
        Self::ClockInDoubt,
        Self::AccountChanged,
        Self::FinalizationNear,
        Self::UnknownSubscription,
        Self::InvoiceDrift,
        Self::CustomerDeleted,
        Self::PaymentFailed,
        Self::WebhooksWaiting,
        Self::UsageThreshold,
        Self::QuotaReached,
        Self::SagaNeedsAttention,
        Self::CutFailing,
        Self::FoldStopped,
        Self::LogLarge,
        Self::NightlyLate,
        Self::UsageUnmapped,
        Self::UsageUnmappedLong,
        Self::UsageUnsent,
        Self::InternalFault,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::PushesObservedLong => "pushes_observed_long",
            Self::PushesSubmittedLong => "pushes_submitted_long",
            Self::DriftUnresolved => "drift_unresolved",
            Self::DeadLetters => "dead_letters",
            Self::Unbilled => "unbilled",
            Self::ConflictRate => "conflict_rate",
            Self::QuarantineRate => "quarantine_rate",
            Self::Silence => "silence",
            Self::ClockInDoubt => "clock_in_doubt",
            Self::AccountChanged => "account_changed",
            Self::FinalizationNear => "finalization_near",
            Self::UnknownSubscription => "unknown_subscription",
            Self::InvoiceDrift => "invoice_drift",
            Self::CustomerDeleted => "customer_deleted",
            Self::PaymentFailed => "payment_failed",
            Self::WebhooksWaiting => "webhooks_waiting",
            Self::UsageThreshold => "usage_threshold",
            Self::QuotaReached => "quota_reached",
            Self::SagaNeedsAttention => "saga_needs_attention",
            Self::CutFailing => "cut_failing",
            Self::FoldStopped => "fold_stopped",
            Self::LogLarge => "log_large",
            Self::NightlyLate => "nightly_late",
            Self::UsageUnmapped => "usage_unmapped",
            Self::UsageUnmappedLong => "usage_unmapped_long",
            Self::UsageUnsent => "usage_unsent",
            Self::InternalFault => "internal_fault",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn severity(self) -> Severity {
        match self {
            Self::PushesObservedLong
            | Self::PushesSubmittedLong
            | Self::DriftUnresolved
            | Self::DeadLetters
            | Self::ClockInDoubt
            | Self::AccountChanged
            | Self::FinalizationNear
            | Self::UnknownSubscription
            | Self::InvoiceDrift
            | Self::CustomerDeleted
            | Self::WebhooksWaiting
            | Self::SagaNeedsAttention
            | Self::CutFailing
            | Self::FoldStopped
            | Self::NightlyLate
            | Self::UsageUnmappedLong
            | Self::InternalFault => Severity::Page,
            Self::Unbilled
            | Self::ConflictRate
            | Self::QuarantineRate
            | Self::Silence
            | Self::PaymentFailed
            | Self::UsageThreshold
            | Self::QuotaReached
            | Self::LogLarge
            | Self::UsageUnmapped
            | Self::UsageUnsent => Severity::Notice,
        }
    }
}

/// Something that holds now and that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: AlertKind,
    /// What it is about, such as a tenant, an invoice or a finding; empty where there is one only.
    pub subject: String,
    /// One sentence with the numbers that matter.
    pub summary: String,
    /// The command that shows more.
    pub command: String,
}

/// An alert as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    pub number: u64,
    pub kind: AlertKind,
    pub subject: String,
    pub summary: String,
    pub command: String,
    pub opened_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
}

impl Alert {
    /// Whether its text is that of the condition.
    fn says(&self, condition: &Condition) -> bool {
        (&self.summary, &self.command) == (&condition.summary, &condition.command)
    }
}

/// What a person is told about an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeEvent {
    Opened,
    Resolved,
}

impl NoticeEvent {
    pub const ALL: [Self; 2] = [Self::Opened, Self::Resolved];

    pub fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Resolved => "resolved",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name() == name)
    }
}

/// What changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertChange {
    Open(Condition),
    /// The condition still holds, and its numbers are others; nobody is told again.
    Restate(u64, Condition),
    Resolve(u64),
}

/// Which alerts a look has judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub kind: AlertKind,
    /// Only subjects of this series; all without one. A subject's series is what comes before its
    /// last slash. Prefixes would not do: a tenant's name may hold slashes, and begin with
    /// another's.
    pub series: Option<String>,
}

impl Scope {
    pub fn all(kind: AlertKind) -> Self {
        Self { kind, series: None }
    }

    fn holds(&self, alert: &Alert) -> bool {
        let of = alert.subject.rsplit_once('/').map(|(series, _)| series);
        let inside = self.series.is_none() || self.series.as_deref() == of;
        self.kind == alert.kind && inside
    }
}

/// What a look changes, given the alerts that are open.
pub fn judge_alerts(
    open: &[Alert],
    scopes: &[Scope],
    conditions: Vec<Condition>,
) -> Vec<AlertChange> {
    let holds = |alert: &Alert| {
        conditions.iter().any(|c| c.kind == alert.kind && c.subject == alert.subject)
    };
    let over = open
        .iter()
        .filter(|alert| scopes.iter().any(|scope| scope.holds(alert)) && !holds(alert))
        .map(|alert| AlertChange::Resolve(alert.number));
    let mut changes: Vec<AlertChange> = over.collect();
    for condition in conditions {
        let same =
            |kind: AlertKind, subject: &str| kind == condition.kind && subject == condition.subject;
        let twice = changes.iter().any(|change| match change {
            AlertChange::Open(other) | AlertChange::Restate(_, other) => {
                same(other.kind, &other.subject)
            }
            AlertChange::Resolve(_) => false,
        });
        if twice {
            continue;
        }
        match open.iter().find(|alert| same(alert.kind, &alert.subject)) {
            None => changes.push(AlertChange::Open(condition)),
            Some(alert) if !alert.says(&condition) => {
                changes.push(AlertChange::Restate(alert.number, condition));
            }
            Some(_) => {}
        }
    }
    changes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThresholdKind {
    /// Worth knowing.
    Threshold,
    /// What the tenant may use.
    Quota,
}

impl ThresholdKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Threshold => "threshold",
            Self::Quota => "quota",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Threshold, Self::Quota].into_iter().find(|kind| kind.name() == name)
    }
}

/// Calendar periods, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThresholdPeriod {
    Day,
    Month,
}

impl ThresholdPeriod {
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Day, Self::Month].into_iter().find(|period| period.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: AlertKind, subject: &str) -> Condition {
        let (subject, text) = (subject.to_owned(), String::new());
        Condition { kind, subject, summary: text.clone(), command: text }
    }

    fn alert(number: u64, kind: AlertKind, subject: &str) -> Alert {
        let condition = condition(kind, subject);
        let Condition { kind, subject, summary, command } = condition;
        let opened_at = Timestamp::from_micros(0);
        Alert { number, kind, subject, summary, command, opened_at, resolved_at: None }
    }

    #[test]
    fn an_alert_opens_once_and_ends_once() {
        let kind = AlertKind::Silence;
        let scopes = [Scope::all(kind)];
        let twice = vec![condition(kind, "acme"), condition(kind, "acme")];
        let opened = judge_alerts(&[], &scopes, twice);
        assert_eq!(opened, [AlertChange::Open(condition(kind, "acme"))]);
        let open = [alert(1, kind, "acme")];
        assert_eq!(judge_alerts(&open, &scopes, vec![condition(kind, "acme")]), []);
        assert_eq!(judge_alerts(&open, &scopes, vec![]), [AlertChange::Resolve(1)]);
    }

    #[test]
    fn an_open_alert_follows_the_numbers_of_its_condition() {
        let kind = AlertKind::UsageUnmapped;
        let more = Condition { summary: "12 of calls".into(), ..condition(kind, "calls") };
        let changes =
            judge_alerts(&[alert(1, kind, "calls")], &[Scope::all(kind)], vec![more.clone()]);
        assert_eq!(changes, [AlertChange::Restate(1, more)]);
    }

    #[test]
    fn what_was_not_looked_at_stays() {
        let open = [
            alert(1, AlertKind::UsageThreshold, "acme/calls/1"),
            alert(2, AlertKind::UsageThreshold, "globex/calls/1"),
            alert(3, AlertKind::Silence, "acme/calls/1"),
            alert(4, AlertKind::UsageThreshold, "acme/calls/b/calls/1"),
        ];
        let series = Some("acme/calls".into());
        let scope = Scope { kind: AlertKind::UsageThreshold, series };
        assert_eq!(judge_alerts(&open, &[scope], vec![]), [AlertChange::Resolve(1)]);
    }

    #[test]
    fn names_are_read_back() {
        for kind in AlertKind::ALL {
            assert_eq!(AlertKind::from_name(kind.name()), Some(kind));
        }
        for event in NoticeEvent::ALL {
            assert_eq!(NoticeEvent::from_name(event.name()), Some(event));
        }
    }
}
