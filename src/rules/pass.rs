//! Passes: one comparison of both halves over a range, and the rows that stay of it.
//!
//! Invariant: a closed pass never changes. The rows of a nightly pass are chained: each holds the
//! hash of the same tenant's and meter's row of the day before, and the pass a hash over all its
//! rows and the pass before, so that a row cannot be changed or taken away without a trace. A row
//! whose provider total was not read in its own pass shows no total and is no part of the chain;
//! a pass that ended with such rows is incomplete, and a nightly one is taken up again.

use super::digest::digest_fields;
use super::drift::{Reason, Verdict};
use super::ids::{MeterNo, TenantId};
use super::named::named_enum;
use super::quantity::Quantity;
use super::timestamp::Timestamp;
use super::window::Window;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

pub type Hash = [u8; 32];

named_enum! {
    pub enum PassKind {
        /// The last two days, window by window, of whatever has moved.
        Hourly = "hourly",
        /// The day that has ended, of everyone; and the open and last closed periods, by day.
        Nightly = "nightly",
        /// Whatever a person asked for.
        OneShot = "one_shot",
    }
}

named_enum! {
    pub enum PassState {
        /// Ordered, not begun.
        Waiting = "waiting",
        Running = "running",
        /// Everything was read and compared.
        Closed = "closed",
        /// It ended, and could not read all of the provider's totals or lists.
        Incomplete = "incomplete",
        Failed = "failed",
    }
}

impl PassState {
    pub fn has_ended(self) -> bool {
        match self {
            Self::Waiting | Self::Running => false,
            Self::Closed | Self::Incomplete | Self::Failed => true,
        }
    }
}

/// What a pass is to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassOrder {
    pub kind: PassKind,
    pub range: Window,
    pub tenant: Option<TenantId>,
    /// Whether what may safely be sent again is sent.
    pub apply: bool,
}

/// A pass as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    pub number: u64,
    pub order: PassOrder,
    pub state: PassState,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub progress: PassProgress,
    /// Over all rows that were read and the pass before; of nightly passes that have ended and
    /// could read something.
    pub hash: Option<Hash>,
    /// Why it failed, or what it could not read.
    pub detail: Option<String>,
}

/// Which of the passes that are due by the clock is run: they take turns, beginning with the hourly
/// one, so that neither is kept waiting by the other however long each takes. `passed_over`: an
/// hourly pass was run while a nightly one was due.
pub fn choose_pass(hourly: bool, nightly: bool, passed_over: bool) -> Option<PassKind> {
    match (hourly, nightly) {
        (true, true) if passed_over => Some(PassKind::Nightly),
        (true, _) => Some(PassKind::Hourly),
        (false, true) => Some(PassKind::Nightly),
        (false, false) => None,
    }
}

/// How far a pass has come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PassProgress {
    /// Tenants and meters to look at.
    pub pairs: u64,
    pub pairs_done: u64,
    /// Windows compared.
    pub windows: u64,
    /// Tenants and meters of which a total of the provider's was not read.
    #[serde(default)]
    pub pairs_unread: u64,
    /// Whether the provider's subscriptions or invoices could not be listed.
    #[serde(default)]
    pub lists_unread: bool,
    /// Calls to the provider.
    pub reads: u64,
    /// Windows by verdict.
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Pushes sent again, and reissues.
    pub replayed: u64,
    pub reissued: u64,
}

impl PassProgress {
    /// What could not be read, for people; none if everything was.
    pub fn unread(&self) -> Option<String> {
        let mut missing = Vec::new();
        if self.pairs_unread > 0 {
            let (unread, pairs) = (self.pairs_unread, self.pairs);
            missing.push(format!(
                "the provider's totals of {unread} of {pairs} tenants and meters were not read"
            ));
        }
        if self.lists_unread {
            missing.push("the provider's subscriptions or invoices were not read".to_owned());
        }
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// The progress of a pass that is taken up again: what was not read is counted anew.
    pub fn without_unread(mut self) -> Self {
        let unread = self.verdicts.remove(&Verdict::Unread).unwrap_or(0);
        self.windows = self.windows.saturating_sub(unread);
        (self.pairs_unread, self.lists_unread) = (0, false);
        self
    }
}

/// One tenant and meter on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassRow {
    pub tenant: TenantId,
    pub meter: MeterNo,
    /// The day, or the part of it that was asked for.
    pub day: Window,
    /// What was counted, exactly; also what is not billed, which `marks` tells apart.
    pub ledger: Quantity,
    /// What was handed to billing and not written off.
    pub pushed: Quantity,
    /// What the provider shows; none if it was not read in this pass.
    pub provider: Option<Quantity>,
    pub verdict: Verdict,
    pub reason: Reason,
    /// The windows of the day that are not equal.
    pub windows: Vec<DriftWindow>,
    /// What of it is not billed.
    pub marks: Marks,
    /// None if the provider was not read: such a row is no part of the chain.
    pub hash: Option<Hash>,
}

/// Usage of a row that is never billed as things stand, by cause.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Marks {
    /// By a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_off: Option<Quantity>,
    /// Used before the meter's `billing.from`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_billed: Option<Quantity>,
    /// Counted in shadow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Quantity>,
    /// Used in no subscription, and held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside: Option<Quantity>,
    /// Used in a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Quantity>,
    /// Who wrote it off, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Marks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As it is stored and hashed; none if there are none.
    pub fn text(&self) -> Option<String> {
        let text = || serde_json::to_string(self).expect("marks are valid JSON");
        (!self.is_empty()).then(text)
    }
}

/// A window of a row that is not equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriftWindow {
    pub start: Timestamp,
    pub end: Timestamp,
    pub ledger: Quantity,
    pub pushed: Quantity,
    /// Null if it was not read in this pass.
    pub provider: Option<Quantity>,
    pub verdict: Verdict,
    pub reason: Reason,
    /// What was done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

impl PassRow {
    /// By how much the provider is above what was handed to billing; none if it was not read.
    pub fn delta(&self) -> Option<Quantity> {
        let delta = self.provider?.checked_sub(self.pushed);
        Some(delta.expect("stored quantities are far from the end of their range"))
    }

    /// Whether it says something that can be proved later: its provider's total was read, or it
    /// needs none.
    pub fn is_audited(&self) -> bool {
        self.provider.is_some() || self.verdict.needs_no_reading()
    }

    /// The row's hash after the row of the day before; its own `hash` plays no part. Marks are a
    /// field of their own if there are any.
    pub fn chain(&self, before: &Hash) -> Hash {
        let meter = self.meter.0.to_string();
        let windows = serde_json::to_string(&self.windows).expect("windows are valid JSON");
        let fields = [
            "counterfoil/pass-row/v1",
            self.tenant.as_str(),
            &meter,
            &self.day.start.to_string(),
            &self.day.end.to_string(),
            &self.ledger.to_string(),
            &self.pushed.to_string(),
            &self.provider.map_or_else(String::new, |provider| provider.to_string()),
            self.verdict.name(),
            self.reason.name(),
            &windows,
        ];
        let marks = self.marks.text();
        let fields = fields.into_iter().chain(marks.as_deref());
        digest_fields(fields.map(str::as_bytes).chain([before.as_slice()]))
    }
}

/// A pass's hash over its rows, in their order, after the pass before.
pub fn chain_pass(before: &Hash, rows: impl IntoIterator<Item = Hash>) -> Hash {
    let mut digest = Sha256::new();
    digest.update(b"counterfoil/pass/v1");
    digest.update(before);
    for row in rows {
        digest.update(row);
    }
    digest.finalize().into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row whose halves match.
    pub fn row() -> PassRow {
        PassRow {
            tenant: TenantId::parse("acme").expect("valid"),
            meter: MeterNo(1),
            day: Window { start: Timestamp::from_micros(0), end: Timestamp::from_micros(1) },
            ledger: Quantity::ONE,
            pushed: Quantity::ONE,
            provider: Some(Quantity::ONE),
            verdict: Verdict::Equal,
            reason: Reason::Matches,
            windows: Vec::new(),
            marks: Marks::default(),
            hash: None,
        }
    }

    #[test]
    fn hourly_and_nightly_passes_take_turns() {
        let (mut passed_over, mut run) = (false, Vec::new());
        for _ in 0..4 {
            // Each takes so long that both are due again.
            let kind = choose_pass(true, true, passed_over).expect("both are due");
            passed_over = kind == PassKind::Hourly;
            run.push(kind);
        }
        assert_eq!(run, [PassKind::Hourly, PassKind::Nightly, PassKind::Hourly, PassKind::Nightly]);
        assert_eq!(choose_pass(true, false, true), Some(PassKind::Hourly));
        assert_eq!(choose_pass(false, true, false), Some(PassKind::Nightly));
        assert_eq!(choose_pass(false, false, true), None);
    }

    #[test]
    fn every_field_is_in_the_hash() {
        let first = row().chain(&[0; 32]);
        let changes: [fn(&mut PassRow); 9] = [
            |row| row.tenant = TenantId::parse("acm").expect("valid"),
            |row| row.meter = MeterNo(2),
            |row| row.day.end = Timestamp::from_micros(2),
            |row| row.ledger = Quantity::ZERO,
            |row| row.pushed = Quantity::ZERO,
            |row| row.provider = Some(Quantity::ZERO),
            |row| row.provider = None,
            |row| row.verdict = Verdict::Bypass,
            |row| row.marks.note = Some(String::new()),
        ];
        for change in changes {
            let mut other = row();
            change(&mut other);
            assert_ne!(other.chain(&[0; 32]), first);
        }
        assert_ne!(row().chain(&[1; 32]), first);
        assert_eq!(PassRow { hash: Some([9; 32]), ..row() }.chain(&[0; 32]), first);
    }
}
