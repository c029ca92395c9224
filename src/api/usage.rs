//! Usage of one tenant and of all, and how events came: their counts and their delays.

use super::{Decimal, Timestamp};
use crate::rules::window_life::WindowState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Events received from a tenant in an hour, by verdict.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct CounterAnswer {
    /// Null: the tenant could not be read from what was rejected.
    pub tenant: Option<String>,
    /// The start of the hour in which it was received.
    pub hour: Timestamp,
    /// The sum of the next five.
    pub received: u64,
    pub accepted: u64,
    pub duplicates: u64,
    pub conflicts: u64,
    pub quarantined: u64,
    pub rejected: u64,
    /// Events that were received and quarantined before, and admitted by a person in this hour.
    /// The events that were counted in it are `accepted` and these.
    #[serde(default)]
    pub admitted: u64,
}

page!(CounterList, counters: CounterAnswer, next_after: String,
    "Give it as `after` for the next page, with the same `from` and `to`; null at the end.");

/// How long after their time of use a meter's events are received.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct LatencyAnswer {
    pub meter: String,
    /// Events measured lately; some of all that came.
    pub samples: u64,
    pub p50_ms: u64,
    pub p95_ms: u64,
    pub p99_ms: u64,
    /// How long after a window's end the meter expects late events.
    pub late_until: String,
    /// At least twice p99.
    pub recommended_late_until: String,
    /// Present if `late_until` is shorter than recommended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub warning: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct LatencyList {
    /// When this server started: events that came before are in no number here.
    pub since: Timestamp,
    pub latencies: Vec<LatencyAnswer>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TotalAnswer {
    pub tenant: String,
    pub name: Option<String>,
    /// The provider's customer id for this tenant.
    pub customer: Option<String>,
    pub meter: String,
    /// A decimal number.
    pub total: Decimal,
    /// The number of events.
    pub count: u64,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TotalList {
    pub from: Timestamp,
    pub to: Timestamp,
    /// A row for each tenant and meter with an event in the range.
    pub totals: Vec<TotalAnswer>,
    /// Give it as `after` for the next page; null at the end.
    pub next_after: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct UsageAnswer {
    pub tenant: String,
    pub meter: String,
    pub from: Timestamp,
    pub to: Timestamp,
    /// A decimal number; null where there is no event and the meter takes min, max or latest.
    pub total: Option<Decimal>,
    /// The number of events.
    pub count: u64,
    /// Whether the tenant is known here; false where the name may be misspelt.
    pub known: bool,
    pub windows: Vec<WindowAnswer>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct WindowAnswer {
    pub start: Timestamp,
    /// First instant that is no longer included.
    pub end: Timestamp,
    /// A decimal number.
    pub value: Decimal,
    /// The number of events.
    pub count: u64,
    /// Whether events are still expected: open, then settling, then final.
    pub state: WindowState,
    /// The value of each name in group_by; null where events did not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub group: Option<BTreeMap<String, Option<String>>>,
}
