//! Findings: differences, each followed from the pass that found it to the one that does not.
//!
//! Invariant: at most one finding of a kind, tenant, meter and subject is open, by a unique index;
//! who opens it a second time follows it instead. A pass that sees a finding twice, because it was
//! begun anew, counts once. Those who record findings hold one lease, so they follow each other.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! follows what it opened, by the same pass, and finds the cleared ones cleared.

use super::leases::hold_lease;
use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, values};
use crate::rules::drift::Verdict;
use crate::rules::finding::{Finding, FindingChange, FindingKind, Observation};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::store::push::{Lease, Ruling};
use crate::store::reconciliation::FindingFilter;
use crate::store::{Error, Query, Result};
use std::collections::BTreeSet;

const FINDINGS: &str = "-- findings
    SELECT finding_no, kind, tenant, meter_no, subject, verdict, reason, ledger, provider, detail,
        opened_at, opened_pass, last_pass, passes, paged_at, cleared_at
    FROM findings LEFT JOIN tenants ON tenants.tenant_no = findings.tenant_no";

pub fn record_findings(
    session: &dyn Session,
    lease: &Lease,
    pass: u64,
    changes: &[FindingChange],
    at: Timestamp,
) -> Done<bool> {
    if !hold_lease(session, lease)? {
        return Ok(false);
    }
    // What is over goes first: the same may have begun again.
    let mut sorted: Vec<&FindingChange> = changes.iter().collect();
    sorted.sort_by_key(|change| match change {
        FindingChange::Clear { number } => (0, *number),
        FindingChange::Seen { number, .. } => (1, *number),
        FindingChange::Open(_) => (2, 0),
    });
    for change in sorted {
        match change {
            FindingChange::Clear { number } => clear_finding(session, *number, at)?,
            FindingChange::Seen { number, seen, page } => {
                follow_finding(session, *number, seen, pass, page.then_some(at))?;
            }
            FindingChange::Open(seen) => open_finding(session, seen, pass, at)?,
        }
    }
    Ok(true)
}

fn clear_finding(session: &dyn Session, number: u64, at: Timestamp) -> Done<()> {
    let sql = "-- clear_finding
        UPDATE findings SET cleared_at = $2 WHERE finding_no = $1 AND cleared_at IS NULL";
    session.run(sql, values![number, at])?;
    Ok(())
}

/// Writes what was seen now; a finding that has paged does not page again.
fn follow_finding(
    session: &dyn Session,
    number: u64,
    seen: &Observation,
    pass: u64,
    paged_at: Option<Timestamp>,
) -> Done<()> {
    let Observation { verdict, reason, ledger, provider, detail, .. } = seen;
    let sql = "-- follow_finding
        UPDATE findings SET verdict = $2, reason = $3, ledger = $4, provider = $5, detail = $6,
            passes = passes + CASE WHEN last_pass = $7 THEN 0 ELSE 1 END, last_pass = $7,
            paged_at = COALESCE(paged_at, $8)
        WHERE finding_no = $1 AND cleared_at IS NULL";
    session.run(sql, values![number, verdict, reason, ledger, provider, detail, pass, paged_at])?;
    Ok(())
}

/// Opens a finding, or follows the one that is open.
fn open_finding(session: &dyn Session, seen: &Observation, pass: u64, at: Timestamp) -> Done<()> {
    let Observation { kind, tenant, meter, subject, verdict, reason, ledger, provider, detail } =
        seen;
    let tenant = tenant.as_ref().map(|tenant| number_known(session, tenant)).transpose()?;
    let sql = "-- open_finding
        INSERT INTO findings AS standing (kind, tenant_no, meter_no, subject, verdict, reason,
            ledger, provider, detail, opened_at, opened_pass, last_pass, passes)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, 1)
        ON CONFLICT (kind, subject, COALESCE(tenant_no, -1), COALESCE(meter_no, -1))
            WHERE cleared_at IS NULL
        DO UPDATE SET verdict = excluded.verdict, reason = excluded.reason,
            ledger = excluded.ledger, provider = excluded.provider, detail = excluded.detail,
            passes = standing.passes
                + CASE WHEN standing.last_pass = excluded.last_pass THEN 0 ELSE 1 END,
            last_pass = excluded.last_pass";
    let values =
        values![kind, tenant, meter, subject, verdict, reason, ledger, provider, detail, at, pass,];
    session.run(sql, values)?;
    Ok(())
}

fn number_known(session: &dyn Session, tenant: &TenantId) -> Done<TenantNo> {
    Ok(session.find_tenant(tenant)?.ok_or_else(|| Error::Internal {
        what: format!("a finding is about tenant {tenant}, who is not known"),
    })?)
}

/// Remembers the subscription of a finding as accepted and clears the finding.
pub fn accept_finding(session: &dyn Session, number: u64, at: Timestamp) -> Done<Ruling> {
    let sql = format!("{FINDINGS} WHERE finding_no = $1 FOR UPDATE OF findings");
    let found = session.read_optional(&sql, values![within_column(number)], decode_finding)?;
    let Some(finding) = found else { return Ok(Ruling::NotFound) };
    if let Some(why) = finding.refuse_acceptance() {
        return Ok(Ruling::Refused(why));
    }
    let sql = "-- accept_finding
        INSERT INTO accepted_subscriptions (subscription, accepted_at) VALUES ($1, $2)
        ON CONFLICT (subscription) DO NOTHING";
    session.run(sql, values![finding.seen.subject, at])?;
    clear_finding(session, number, at)?;
    Ok(Ruling::Done(None))
}

pub fn is_accepted(session: &dyn Session, subscription: &str) -> Done<bool> {
    let sql = "-- is_accepted
        SELECT EXISTS (SELECT 1 FROM accepted_subscriptions WHERE subscription = $1) AS accepted";
    session.read_one(sql, values![subscription], |row| row.get("accepted"))
}

pub fn list_findings(session: &dyn Session, query: &Query<FindingFilter>) -> Done<Vec<Finding>> {
    let FindingFilter { open, kind, tenant } = &query.filter;
    let mut filter = Filter::new(FINDINGS)
        .and_if("kind = $", *kind)
        .and_if("tenant = $", tenant.as_ref())
        .and_if("finding_no < $", query.after.map(within_column));
    filter = match open {
        // Those that are open are few, and every pass asks for them: with the kinds named, SQLite
        // too searches their index, whose first column is the kind.
        Some(true) => {
            let kinds = FindingKind::ALL.map(|kind| format!("'{}'", kind.name())).join(", ");
            filter.and_always(&format!("cleared_at IS NULL AND kind IN ({kinds})"))
        }
        Some(false) => filter.and_always("cleared_at IS NOT NULL"),
        None => filter,
    };
    let (sql, values) = filter.order("finding_no DESC", query.limit);
    session.read_all(&sql, &values, decode_finding)
}

pub fn count_drifting_tenants(session: &dyn Session) -> Done<u64> {
    let sql = "-- count_drifting_tenants
        SELECT DISTINCT tenant_no, verdict FROM findings
        WHERE cleared_at IS NULL AND kind = 'usage' AND passes >= 2 AND tenant_no IS NOT NULL";
    let seen: Vec<(TenantNo, Verdict)> = session.read_all(sql, &[], |row| {
        Ok((row.get("findings.tenant_no")?, row.get("findings.verdict")?))
    })?;
    let drifting: BTreeSet<TenantNo> =
        seen.into_iter().filter(|(_, verdict)| verdict.is_drift()).map(|(no, _)| no).collect();
    Ok(u64::try_from(drifting.len()).expect("a length fits 64 bits"))
}

fn decode_finding(row: &Row) -> Result<Finding> {
    let seen = Observation {
        kind: row.get("findings.kind")?,
        tenant: row.get("tenants.tenant")?,
        meter: row.get("findings.meter_no")?,
        subject: row.get("findings.subject")?,
        verdict: row.get("findings.verdict")?,
        reason: row.get("findings.reason")?,
        ledger: row.get("findings.ledger")?,
        provider: row.get("findings.provider")?,
        detail: row.get("findings.detail")?,
    };
    Ok(Finding {
        number: row.get("findings.finding_no")?,
        seen,
        opened_at: row.get("findings.opened_at")?,
        opened_pass: row.get("findings.opened_pass")?,
        last_pass: row.get("findings.last_pass")?,
        passes: row.get("findings.passes")?,
        paged_at: row.get("findings.paged_at")?,
        cleared_at: row.get("findings.cleared_at")?,
    })
}
