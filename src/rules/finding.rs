//! Findings: differences, each followed from the pass that found it to the one that does not.
//!
//! Invariant: at most one finding of a kind and subject is open. It pages once, when it is still
//! there at a later pass than the one that opened it, half an hour later or more; what settles
//! itself in between pages nobody, and its time is kept. Lag is no difference yet: what comes of it
//! is new to the pass that sees it, and that very pass may send it again.

use super::drift::{Reason, Verdict};
use super::ids::{MeterNo, TenantId};
use super::named::named_enum;
use super::quantity::Quantity;
use super::span::Span;
use super::timestamp::Timestamp;

named_enum! {
    /// What is compared.
    pub enum FindingKind {
        /// Totals of a window or a day.
        Usage = "usage",
        Subscription = "subscription",
        Invoice = "invoice",
    }
}

/// What a pass saw that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    pub kind: FindingKind,
    pub tenant: Option<TenantId>,
    pub meter: Option<MeterNo>,
    /// For usage the window, `START/END`; else the provider's id of the object.
    pub subject: String,
    pub verdict: Verdict,
    pub reason: Reason,
    pub ledger: Quantity,
    pub provider: Quantity,
    pub detail: String,
}

impl Observation {
    fn is_of(&self, finding: &Finding) -> bool {
        let seen = &finding.seen;
        (self.kind, &self.tenant, self.meter, &self.subject)
            == (seen.kind, &seen.tenant, seen.meter, &seen.subject)
    }
}

/// A finding as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub number: u64,
    /// As it was seen last.
    pub seen: Observation,
    pub opened_at: Timestamp,
    /// The pass that saw it first.
    pub opened_pass: u64,
    pub last_pass: u64,
    /// How many passes saw it.
    pub passes: u32,
    pub paged_at: Option<Timestamp>,
    pub cleared_at: Option<Timestamp>,
}

impl Finding {
    /// Why a person may not accept it as it is; none if they may. Only a subscription that nothing
    /// here belongs to can be accepted: usage and money have to agree.
    pub fn refuse_acceptance(&self) -> Option<&'static str> {
        let Observation { kind, tenant, reason, .. } = &self.seen;
        if *kind != FindingKind::Subscription || *reason != Reason::OneSided || tenant.is_none() {
            return Some(
                "only a subscription of a tenant without a subscription record can be accepted",
            );
        }
        self.cleared_at.is_some().then_some("it is not open any more")
    }
}

/// What a pass changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingChange {
    Open(Observation),
    Seen {
        number: u64,
        seen: Observation,
        page: bool,
    },
    /// It is not there any more.
    Clear {
        number: u64,
    },
}

/// Passes may follow each other within seconds, such as those of missed nights; that is no time
/// for anything to settle.
const SETTLES_WITHIN: Span = Span::from_minutes(30);

/// What a pass makes of the open findings it has judged, and of what it saw.
pub fn follow_findings(
    judged: &[Finding],
    observations: Vec<Observation>,
    now: Timestamp,
) -> Vec<FindingChange> {
    let mut changes = Vec::new();
    for finding in judged {
        if !observations.iter().any(|seen| seen.is_of(finding)) {
            changes.push(FindingChange::Clear { number: finding.number });
        }
    }
    for seen in observations {
        match judged.iter().find(|finding| seen.is_of(finding)) {
            Some(finding) => {
                let young = now < SETTLES_WITHIN.after(finding.opened_at);
                let waits = young || finding.seen.reason == Reason::LongLag;
                let page = finding.paged_at.is_none() && seen.verdict.is_drift() && !waits;
                changes.push(FindingChange::Seen { number: finding.number, seen, page });
            }
            None => changes.push(FindingChange::Open(seen)),
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::samples::minute as at;

    fn seen(subject: &str, verdict: Verdict) -> Observation {
        Observation {
            kind: FindingKind::Usage,
            tenant: TenantId::parse("acme").ok(),
            meter: Some(MeterNo(1)),
            subject: subject.into(),
            verdict,
            reason: Reason::Lost,
            ledger: Quantity::ONE,
            provider: Quantity::ZERO,
            detail: String::new(),
        }
    }

    fn finding(subject: &str, paged: bool) -> Finding {
        let at = Timestamp::from_micros(0);
        Finding {
            number: 7,
            seen: seen(subject, Verdict::Waiting),
            opened_at: at,
            opened_pass: 1,
            last_pass: 1,
            passes: 1,
            paged_at: paged.then_some(at),
            cleared_at: None,
        }
    }

    #[test]
    fn a_finding_pages_once_and_only_at_a_later_pass() {
        let check = |open: &[Finding], verdict: Verdict, expected: Option<bool>| {
            let changes = follow_findings(open, vec![seen("a", verdict)], at(30));
            let page = changes.iter().find_map(|change| match change {
                FindingChange::Seen { page, .. } => Some(*page),
                FindingChange::Open(_) | FindingChange::Clear { .. } => None,
            });
            assert_eq!(page, expected, "{changes:?}");
        };
        check(&[], Verdict::Bypass, None);
        check(&[finding("a", false)], Verdict::Bypass, Some(true));
        check(&[finding("a", true)], Verdict::Bypass, Some(false));
        check(&[finding("a", false)], Verdict::Waiting, Some(false));
        let mut lagging = finding("a", false);
        lagging.seen.reason = Reason::LongLag;
        check(&[lagging], Verdict::Replay, Some(false));
        let soon =
            follow_findings(&[finding("a", false)], vec![seen("a", Verdict::Bypass)], at(29));
        assert!(matches!(soon[..], [FindingChange::Seen { page: false, .. }]), "{soon:?}");
    }

    #[test]
    fn only_an_unknown_subscription_of_a_tenant_can_be_accepted() {
        let mut unknown = finding("sub_1", false);
        (unknown.seen.kind, unknown.seen.reason) = (FindingKind::Subscription, Reason::OneSided);
        assert_eq!(unknown.refuse_acceptance(), None);
        let mut cleared = unknown.clone();
        cleared.cleared_at = Some(at(1));
        let mut of_nobody = unknown.clone();
        of_nobody.seen.tenant = None;
        let mut status = unknown;
        status.seen.reason = Reason::Status;
        for other in [finding("a", true), cleared, of_nobody, status] {
            assert!(other.refuse_acceptance().is_some(), "{other:?}");
        }
    }

    #[test]
    fn what_is_gone_is_cleared() {
        let open = [finding("a", false)];
        assert_eq!(follow_findings(&open, vec![], at(60)), [FindingChange::Clear { number: 7 }]);
        let other = follow_findings(&open, vec![seen("b", Verdict::Replay)], at(60));
        assert_eq!(other.len(), 2);
    }
}
