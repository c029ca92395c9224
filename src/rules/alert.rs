//! Alert kinds, severities and resolution.
//!
//! A look at stored state gives conditions, each of a kind and about a subject. Compared with the
//! alerts that are open, it says which are new, which are over, and which have other numbers by
//! now. Only the first two make notices.
//!
//! Invariant: at most one alert of a kind and subject is open, however often its condition is seen.
//! An alert of a kind that was not looked at stays as it is.

use super::named::named_enum;
use super::timestamp::Timestamp;
use serde::{Deserialize, Serialize};

named_enum! {
    /// How urgent an alert is.
    pub enum Severity {
        /// Worth knowing.
        Notice = "notice",
        /// Someone must look now: a bill may become wrong.
        Page = "page",
    }
}

named_enum! {
    /// What an alert is about; docs/operating.md has a heading for each.
    pub enum AlertKind {
        /// Pushes were not taken by the provider for more than five minutes.
        PushesObservedLong = "pushes_observed_long",
        /// Pushes were taken more than an hour ago and the provider's totals do not show them.
        PushesSubmittedLong = "pushes_submitted_long",
        /// A difference was still there after the next pass.
        DriftUnresolved = "drift_unresolved",
        /// Pushes need an operator.
        DeadLetters = "dead_letters",
        /// Usage that was counted and is not billed.
        Unbilled = "unbilled",
        /// Many events reused the key of an event with another payload.
        ConflictRate = "conflict_rate",
        /// Many events were too old or too far ahead, and are kept and not counted.
        QuarantineRate = "quarantine_rate",
        /// A tenant that was active has sent nothing for some time.
        Silence = "silence",
        /// Clocks contradict each other; nothing is sent until they agree.
        ClockInDoubt = "clock_in_doubt",
        /// The key is of another account than the one that the store is bound to.
        AccountChanged = "account_changed",
        /// An invoice is about to be fixed while usage of its period is on its way.
        FinalizationNear = "finalization_near",
        /// A subscription at the provider belongs to nobody here.
        UnknownSubscription = "unknown_subscription",
        /// An invoice does not show what was counted.
        InvoiceDrift = "invoice_drift",
        /// A customer was deleted at the provider.
        CustomerDeleted = "customer_deleted",
        /// A payment failed.
        PaymentFailed = "payment_failed",
        /// Webhooks were taken and their effects could not be made for some time.
        WebhooksWaiting = "webhooks_waiting",
        /// A tenant's usage has passed a threshold.
        UsageThreshold = "usage_threshold",
        /// A tenant's usage has reached its quota.
        QuotaReached = "quota_reached",
        /// A saga can neither go on nor back by itself.
        SagaNeedsAttention = "saga_needs_attention",
        /// Windows of a tenant cannot be cut for what is stored of them.
        CutFailing = "cut_failing",
        /// The embedded store cannot fold events into tables any more.
        FoldStopped = "fold_stopped",
        /// The embedded store's write-ahead log has outgrown what it should be.
        LogLarge = "log_large",
        /// The last day was not compared in time, or days were skipped.
        NightlyLate = "nightly_late",
        /// Usage of tenants without a customer is not billed.
        UsageUnmapped = "usage_unmapped",
        /// The same for longer than `alerts.unmapped_after`.
        UsageUnmappedLong = "usage_unmapped_long",
        /// Usage was too old to be sent when its tenant got a customer.
        UsageUnsent = "usage_unsent",
        /// A stored total or counter is not what its events add up to.
        SelfCheckMismatch = "self_check_mismatch",
        /// A part of the store could not be compared with its events, or not in time.
        SelfCheckIncomplete = "self_check_incomplete",
        /// A fact about money does not hold, and the operation that met it was refused.
        InternalFault = "internal_fault",
    }
}

impl AlertKind {
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
            | Self::SelfCheckMismatch
            | Self::SelfCheckIncomplete
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Notices of its beginning, for every destination.
    pub fn tell_opening(&self, destinations: &[&'static str]) -> Vec<NewNotice> {
        let notice = |to| self.notice(NoticeEvent::Opened, to, self.opened_at);
        destinations.iter().copied().map(notice).collect()
    }

    /// Notices of its end, which was written at `at`, for those that may have heard of its
    /// beginning; `unsent` are openings that were given up for it.
    pub fn tell_end(
        &self,
        destinations: &[&'static str],
        unsent: &[Unsent],
        at: Timestamp,
    ) -> Vec<NewNotice> {
        let own = unsent.iter().filter(|opening| opening.alert == self.number);
        let notice = |to: &'static str| {
            let due_at = match own.clone().find(|opening| opening.destination == to) {
                // It never heard of the beginning, so it need not hear of the end.
                Some(opening) if opening.attempts == 0 => return None,
                // While the opening is being sent, the end must not come before it.
                Some(opening) => opening.leased_until.map_or(at, |until| until.max(at)),
                None => at,
            };
            Some(self.notice(NoticeEvent::Resolved, to, due_at))
        };
        destinations.iter().copied().filter_map(notice).collect()
    }

    fn notice(
        &self,
        event: NoticeEvent,
        destination: &'static str,
        due_at: Timestamp,
    ) -> NewNotice {
        let (alert, kind) = (self.number, event.name());
        let id = format!("alert_{alert}_{kind}_{destination}");
        let payload = serde_json::to_string(self).expect("an alert is plain data");
        NewNotice { id, alert, event, destination, payload, due_at }
    }

    /// Whether its text is that of the condition.
    fn says(&self, condition: &Condition) -> bool {
        (&self.summary, &self.command) == (&condition.summary, &condition.command)
    }
}

named_enum! {
    /// The text of an alert.
    pub enum NoticeEvent {
        Opened = "opened",
        Resolved = "resolved",
    }
}

/// One notice of an alert for a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNotice {
    /// It is written once under it.
    pub id: String,
    pub alert: u64,
    pub event: NoticeEvent,
    pub destination: &'static str,
    /// The alert as JSON, so that every try says the same.
    pub payload: String,
    pub due_at: Timestamp,
}

/// An opening that was still waiting when its alert ended, and was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent {
    pub alert: u64,
    pub destination: String,
    /// How often it was claimed: it may have arrived all the same.
    pub attempts: u32,
    pub leased_until: Option<Timestamp>,
}

/// What changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertChange {
    Open(Condition),
    /// The condition still holds, and its numbers are others; no notice is sent.
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

named_enum! {
    pub enum ThresholdKind {
        /// Worth knowing.
        Threshold = "threshold",
        /// What the tenant may use.
        Quota = "quota",
    }
}

named_enum! {
    /// Calendar periods, in UTC.
    pub enum ThresholdPeriod {
        Day = "day",
        Month = "month",
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
    fn an_end_is_sent_to_those_that_may_have_got_the_opening() {
        let alert = alert(7, AlertKind::Silence, "acme");
        let opened = alert.tell_opening(&["slack", "email"]);
        assert_eq!(opened[0].id, "alert_7_opened_slack");
        assert_eq!((opened.len(), opened[1].due_at), (2, alert.opened_at));
        assert_eq!(serde_json::from_str::<Alert>(&opened[0].payload).expect("an alert"), alert);
        let at = Timestamp::from_micros;
        let unsent = |destination: &str, attempts: u32, until: Option<i64>| Unsent {
            alert: 7,
            destination: destination.into(),
            attempts,
            leased_until: until.map(at),
        };
        let unsent =
            [unsent("never", 0, None), unsent("failed", 2, None), unsent("sending", 1, Some(9))];
        let ended = alert.tell_end(&["never", "failed", "sending", "heard"], &unsent, at(5));
        let due: Vec<_> = ended.iter().map(|one| (one.destination, one.due_at)).collect();
        assert_eq!(due, [("failed", at(5)), ("sending", at(9)), ("heard", at(5))]);
        let other = Alert { number: 8, ..alert };
        assert_eq!(other.tell_end(&["never"], &unsent, at(5)).len(), 1);
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
}
