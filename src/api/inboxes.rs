//! What was kept and not counted: conflicts and quarantined events, and decisions about them.

use super::{Decimal, Timestamp};
use crate::rules::decision::{ConflictRuling, ConflictState, QuarantineRuling, QuarantineState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Why, by whom and when a record was decided.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct DecisionAnswer {
    pub reason: String,
    pub author: String,
    pub decided_at: Timestamp,
}

/// A payload that was not counted, because another one was counted under the same id.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ConflictAnswer {
    /// The number of this record; decisions name it.
    pub number: u64,
    pub tenant: String,
    pub id: String,
    /// The payload that was counted.
    #[schema(value_type = Object)]
    pub counted: Box<RawValue>,
    /// The payload that was not.
    #[schema(value_type = Object)]
    pub received: Box<RawValue>,
    pub first_received_at: Timestamp,
    pub last_received_at: Timestamp,
    /// How often it came.
    pub deliveries: u64,
    pub state: ConflictState,
    /// Null while it is undecided.
    pub decision: Option<DecisionAnswer>,
}

/// An event that was kept and not counted.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuarantineAnswer {
    /// The number of this record; decisions name it.
    pub number: u64,
    pub tenant: String,
    pub id: String,
    #[schema(value_type = Object)]
    pub payload: Box<RawValue>,
    /// `too_old`, `too_far_ahead` or `too_many_groups`.
    pub reason: String,
    pub first_received_at: Timestamp,
    pub last_received_at: Timestamp,
    /// How often it came.
    pub deliveries: u64,
    pub state: QuarantineState,
    /// Null while it is undecided.
    pub decision: Option<DecisionAnswer>,
}

page!(ConflictList, conflicts: ConflictAnswer ("Oldest first."), next_after: u64);
page!(QuarantineList, quarantined: QuarantineAnswer ("Oldest first."), next_after: u64);

/// Why a record is decided, and by whom.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "the outage of 3 November; real usage", "author": "Zoe Ng"}))]
pub struct DecisionSpec {
    /// Kept with the record
    #[schema(min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub reason: String,
    /// The person who decides; kept with the record
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub author: String,
}

/// Which undecided records are meant; `{}` means all of them.
#[derive(Serialize, Deserialize, ToSchema, Default, Clone)]
#[serde(deny_unknown_fields)]
pub struct QuarantineSelection {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tenant: Option<String>,
    /// Why they were quarantined: `too_old`, `too_far_ahead` or `too_many_groups`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// The event's id
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
    /// First received at this instant or later (RFC 3339, or a date in UTC)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<String>,
    /// First received before this
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub to: Option<String>,
}

/// Which undecided records are meant; `{}` means all of them.
#[derive(Serialize, Deserialize, ToSchema, Default, Clone)]
#[serde(deny_unknown_fields)]
pub struct ConflictSelection {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tenant: Option<String>,
    /// The event's id
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
    /// First received at this instant or later (RFC 3339, or a date in UTC)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<String>,
    /// First received before this
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub to: Option<String>,
}

/// Decides many quarantined events.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "ruling": "admit", "filter": {"tenant": "acme", "reason": "too_old"}, "dry_run": true,
    "reason": "the outage of 3 November; real usage", "author": "Zoe Ng"
}))]
pub struct QuarantineDecideSpec {
    pub ruling: QuarantineRuling,
    pub filter: QuarantineSelection,
    /// Kept with each record
    #[schema(min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub reason: String,
    /// The person who decides; kept with each record
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub author: String,
    /// Only says what would be decided
    #[serde(default)]
    pub dry_run: bool,
    /// Most records of one request
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 500, default = 100, nullable = false)]
    pub limit: Option<usize>,
    /// `next_after` of the answer before
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991i64, nullable = false)]
    pub after: Option<u64>,
}

/// Decides many conflicts.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "ruling": "keep_standing", "filter": {"tenant": "acme"}, "dry_run": true,
    "reason": "the producer sent an estimate after the count", "author": "Zoe Ng"
}))]
pub struct ConflictDecideSpec {
    pub ruling: ConflictRuling,
    pub filter: ConflictSelection,
    /// Kept with each record
    #[schema(min_length = 1, max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub reason: String,
    /// The person who decides; kept with each record
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub author: String,
    /// Only says what would be decided
    #[serde(default)]
    pub dry_run: bool,
    /// Most records of one request
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 500, default = 100, nullable = false)]
    pub limit: Option<usize>,
    /// `next_after` of the answer before
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991i64, nullable = false)]
    pub after: Option<u64>,
}

/// What quarantined events of a tenant and meter add up to.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuarantineTotal {
    pub tenant: String,
    pub meter: String,
    pub events: u64,
    /// The sum of their quantities.
    pub quantity: Decimal,
}

/// What conflicts of a tenant and meter add up to.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ConflictTotal {
    pub tenant: String,
    /// The meter of the counted payloads.
    pub meter: String,
    pub conflicts: u64,
    /// The sum of the quantities that were counted.
    pub counted: Decimal,
    /// The sum of the quantities that came later and were not, whatever their meter.
    pub received: Decimal,
}

/// An event that stays undecided.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct LeftAnswer {
    pub number: u64,
    pub tenant: String,
    pub id: String,
    /// Why, for programs
    pub code: String,
    /// Why, for people
    pub detail: String,
}

/// The outcome for the quarantined events of one request.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuarantineDecided {
    pub dry_run: bool,
    /// Undecided events that the filter found
    pub selected: u64,
    /// Counted by this request
    pub admitted: u64,
    /// To be admitted, and counted before
    pub duplicates: u64,
    /// To be admitted, and another payload was counted under their ids
    pub conflicts: u64,
    pub discarded: u64,
    /// Those that cannot be admitted now, and stay undecided
    pub left: Vec<LeftAnswer>,
    /// What was selected, by tenant and meter
    pub totals: Vec<QuarantineTotal>,
    /// Give it as `after` for the rest; null at the end
    pub next_after: Option<u64>,
}

/// The outcome for the conflicts of one request.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ConflictsDecided {
    pub dry_run: bool,
    /// Undecided conflicts that the filter found
    pub selected: u64,
    /// Decided by this request
    pub decided: u64,
    /// What was selected, by tenant and meter
    pub totals: Vec<ConflictTotal>,
    /// Give it as `after` for the rest; null at the end
    pub next_after: Option<u64>,
}
