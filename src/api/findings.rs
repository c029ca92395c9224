//! Differences between both halves, followed over passes.

use super::{Decimal, Timestamp};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::finding::{Finding, FindingKind};
use crate::rules::meter::Catalog;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One difference, followed over passes.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct FindingAnswer {
    pub id: u64,
    pub kind: FindingKind,
    pub tenant: Option<String>,
    pub meter: Option<String>,
    /// The window, `START/END`, or the provider's id of the object.
    pub subject: String,
    pub verdict: Verdict,
    pub reason: Reason,
    /// What it means, or what to do.
    pub advice: String,
    pub ledger: Decimal,
    pub provider: Decimal,
    pub detail: String,
    pub opened_at: Timestamp,
    /// How many passes saw it.
    pub passes: u32,
    pub paged_at: Option<Timestamp>,
    pub cleared_at: Option<Timestamp>,
    /// How long it was there.
    pub took_seconds: Option<i64>,
}

page!(FindingList, findings: FindingAnswer ("Newest first."), next_before: u64);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct AcceptAnswer {
    /// The finding that was cleared.
    pub id: u64,
}

impl From<(Finding, &Catalog)> for FindingAnswer {
    fn from((finding, catalog): (Finding, &Catalog)) -> Self {
        let Finding { number: id, seen, opened_at, passes, paged_at, cleared_at, .. } = finding;
        let took = |at: Timestamp| (at.micros() - opened_at.micros()) / 1_000_000;
        let meter = seen.meter.and_then(|meter| catalog.get(meter));
        Self {
            id,
            kind: seen.kind,
            tenant: seen.tenant.map(|tenant| tenant.to_string()),
            meter: meter.map(|meter| meter.slug.to_string()),
            subject: seen.subject,
            verdict: seen.verdict,
            reason: seen.reason,
            advice: seen.reason.advice().to_owned(),
            ledger: seen.ledger,
            provider: seen.provider,
            detail: seen.detail,
            opened_at,
            passes,
            paged_at,
            cleared_at,
            took_seconds: cleared_at.map(took),
        }
    }
}
