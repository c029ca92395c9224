//! Alerts, and the thresholds by which usage raises some.

use super::{Decimal, Timestamp};
use crate::rules::alert::{Alert, AlertKind, Severity, ThresholdKind, ThresholdPeriod};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct AlertAnswer {
    pub id: u64,
    pub kind: AlertKind,
    pub severity: Severity,
    /// The object of the alert; empty if the kind has only one.
    pub subject: String,
    pub summary: String,
    /// The command that shows more.
    pub command: String,
    pub opened_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
}

page!(AlertList, alerts: AlertAnswer ("Newest first."), next_before: u64);

/// A limit of a tenant's usage that opens an alert.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "tenant": "acme", "meter": "api_calls", "kind": "quota", "period": "month", "limit": "1000000"
}))]
pub struct ThresholdSpec {
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub tenant: String,
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    pub meter: String,
    pub kind: ThresholdKind,
    /// In UTC.
    pub period: ThresholdPeriod,
    /// The usage of a period from which on an alert is opened, as a decimal number.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$")]
    pub limit: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ThresholdAnswer {
    pub tenant: String,
    pub meter: String,
    pub kind: ThresholdKind,
    pub period: ThresholdPeriod,
    pub limit: Decimal,
    pub created_at: Timestamp,
}

page!(ThresholdList, thresholds: ThresholdAnswer, next_after: String);

impl From<Alert> for AlertAnswer {
    fn from(alert: Alert) -> Self {
        let Alert { number: id, kind, subject, summary, command, opened_at, resolved_at } = alert;
        let severity = kind.severity();
        Self { id, kind, severity, subject, summary, command, opened_at, resolved_at }
    }
}
