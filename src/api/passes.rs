//! Comparisons of both halves, and their rows.

use super::{Decimal, Timestamp};
use crate::rules::digest::hex;
use crate::rules::drift::{Reason, Verdict};
use crate::rules::meter::Meter;
use crate::rules::pass::{self, Pass, PassKind, PassRow, PassState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from": "2026-11-01", "to": "2026-11-15", "apply": false}))]
pub struct PassSpec {
    /// First day (a date in UTC).
    #[schema(example = "2026-11-01")]
    pub from: String,
    /// First day that is no longer included.
    #[schema(example = "2026-11-15")]
    pub to: String,
    /// Only this tenant.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub tenant: Option<String>,
    /// Whether what may safely be sent again is sent, and findings are followed.
    #[serde(default)]
    pub apply: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct PassAnswer {
    pub id: u64,
    pub kind: PassKind,
    pub from: Timestamp,
    pub to: Timestamp,
    pub tenant: Option<String>,
    pub apply: bool,
    pub state: PassState,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Tenants and meters to look at.
    pub pairs: u64,
    pub pairs_done: u64,
    /// Tenants and meters of which the provider's totals were not read.
    pub pairs_unread: u64,
    /// Windows compared.
    pub windows: u64,
    /// Calls to the provider.
    pub reads: u64,
    /// Windows by verdict.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Pushes that were sent again.
    pub replayed: u64,
    /// Windows whose shortfall was sent as a new push.
    pub reissued: u64,
    /// The hash of a completed nightly pass, over the rows that it read and the pass before, in
    /// hex.
    pub hash: Option<String>,
    /// Why it failed, or what could not be read.
    pub detail: Option<String>,
}

page!(PassList, passes: PassAnswer ("Newest first."), next_before: u64);

/// One tenant and meter on one day, as decimal numbers.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct RowAnswer {
    pub tenant: String,
    pub meter: String,
    pub from: Timestamp,
    pub to: Timestamp,
    /// What was counted, also what is not billed.
    pub ledger: Decimal,
    /// What was handed to pushes and not written off.
    pub pushed: Decimal,
    /// What the provider shows; null if it was not read in this pass.
    pub provider: Option<Decimal>,
    /// The provider's minus what was pushed; null if it was not read.
    pub delta: Option<Decimal>,
    pub verdict: Verdict,
    pub reason: Reason,
    /// What it means, or what to do.
    pub advice: String,
    /// Usage that an operator wrote off; null if none.
    pub written_off: Option<Decimal>,
    /// Usage before the meter's `billing.from`; null if none.
    pub not_billed: Option<Decimal>,
    /// Usage that was counted in shadow mode; null if none.
    pub shadow: Option<Decimal>,
    /// Usage in no subscription that is held; null if none.
    pub outside: Option<Decimal>,
    /// Usage in a trial, which is never billed and no part of `ledger`; null if none.
    pub trial: Option<Decimal>,
    /// Who wrote it off, and why.
    pub note: Option<String>,
    /// The windows that are not equal.
    pub windows: Vec<DriftWindow>,
    /// Of nightly passes chained to the row of the day before, in hex; null if the provider was not
    /// read.
    pub hash: Option<String>,
}

page!(RowList, rows: RowAnswer ("In the order of tenants, meters and days."), next_after: String);

/// A window of a row that is not equal.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct DriftWindow {
    pub start: Timestamp,
    pub end: Timestamp,
    pub ledger: Decimal,
    pub pushed: Decimal,
    /// Null if it was not read in this pass.
    pub provider: Option<Decimal>,
    pub verdict: Verdict,
    pub reason: Reason,
    /// What was done about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

impl From<Pass> for PassAnswer {
    fn from(pass: Pass) -> Self {
        let Pass { number: id, order, state, created_at, ended_at, progress, hash, detail } = pass;
        Self {
            id,
            kind: order.kind,
            from: order.range.start,
            to: order.range.end,
            tenant: order.tenant.map(|tenant| tenant.to_string()),
            apply: order.apply,
            state,
            created_at,
            ended_at,
            pairs: progress.pairs,
            pairs_done: progress.pairs_done,
            pairs_unread: progress.pairs_unread,
            windows: progress.windows,
            reads: progress.reads,
            verdicts: progress.verdicts,
            replayed: progress.replayed,
            reissued: progress.reissued,
            hash: hash.map(|hash| hex(&hash)),
            detail,
        }
    }
}

impl From<(PassRow, &Meter)> for RowAnswer {
    fn from((row, meter): (PassRow, &Meter)) -> Self {
        let delta = row.delta();
        let PassRow { tenant, day, ledger, pushed, provider, verdict, reason, .. } = row;
        let pass::Marks { written_off, not_billed, shadow, outside, trial, note } = row.marks;
        Self {
            tenant: tenant.to_string(),
            meter: meter.slug.to_string(),
            from: day.start,
            to: day.end,
            ledger,
            pushed,
            provider,
            delta,
            verdict,
            reason,
            advice: reason.advice().to_owned(),
            written_off,
            not_billed,
            shadow,
            outside,
            trial,
            note,
            windows: row.windows.into_iter().map(DriftWindow::from).collect(),
            hash: row.hash.map(|hash| hex(&hash)),
        }
    }
}

impl From<pass::DriftWindow> for DriftWindow {
    fn from(window: pass::DriftWindow) -> Self {
        let pass::DriftWindow { start, end, ledger, pushed, provider, verdict, reason, action } =
            window;
        Self { start, end, ledger, pushed, provider, verdict, reason, action }
    }
}
