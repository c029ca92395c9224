//! Findings, each followed from the pass that found it to the one that does not.
//!
//! Invariant: of a kind, tenant, meter and subject at most one finding is open, which a unique
//! index holds besides the look before each row. A pass that is run again counts once. A crash
//! leaves all changes of a call, or none.

use super::push_rows::{get, moment, quantity_of};
use super::statements::Statements;
use super::{Shared, corrupt, damaged};
use crate::rules::drift::{Reason, Verdict};
use crate::rules::finding::{Finding, FindingChange, FindingKind, Observation};
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::Ruling;
use crate::store::reconciliation::FindingQuery;
use hashbrown::HashSet;
use rusqlite::{Connection, Row, params};

/// When something was seen, and by which pass.
#[derive(Clone, Copy)]
pub struct Moment {
    pub pass: u64,
    pub at: Timestamp,
}

/// Makes one change, inside the caller's transaction.
pub fn record(
    shared: &Shared,
    connection: &Connection,
    change: &FindingChange,
    moment: Moment,
) -> Result<()> {
    match change {
        FindingChange::Open(seen) => {
            let tenant = seen.tenant.as_ref().map(|tenant| {
                let number = shared.read_memory().tenants.find(tenant);
                number.ok_or_else(|| corrupt("tenants row of a finding"))
            });
            let tenant = tenant.transpose()?;
            match find_open(connection, tenant, seen)? {
                Some(number) => follow_finding(connection, number, seen, (false, moment)),
                None => insert_finding(connection, tenant, seen, moment),
            }
        }
        FindingChange::Seen { number, seen, page } => {
            follow_finding(connection, *number, seen, (*page, moment))
        }
        FindingChange::Clear { number } => clear_finding(connection, *number, moment.at),
    }
}

fn find_open(
    connection: &Connection,
    tenant: Option<TenantNo>,
    seen: &Observation,
) -> Result<Option<u64>> {
    let (tenant, meter) = (tenant.map(|tenant| tenant.0), seen.meter.map(|meter| meter.0));
    let asked = params![seen.kind.name(), seen.subject, tenant, meter];
    connection.read_optional(
        "-- find_open
         SELECT finding_no FROM findings
         WHERE kind = ? AND subject = ? AND COALESCE(tenant_no, -1) = COALESCE(?, -1)
             AND COALESCE(meter_no, -1) = COALESCE(?, -1) AND cleared_at IS NULL",
        asked,
        |row| Ok(row.get(0)?),
    )
}

fn insert_finding(
    connection: &Connection,
    tenant: Option<TenantNo>,
    seen: &Observation,
    Moment { pass, at }: Moment,
) -> Result<()> {
    connection.run(
        "-- insert_finding
         INSERT INTO findings (kind, tenant_no, meter_no, subject, verdict, reason, ledger,
                               provider, detail, opened_at, opened_pass, last_pass, passes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, 1)",
        params![
            seen.kind.name(),
            tenant.map(|tenant| tenant.0),
            seen.meter.map(|meter| meter.0),
            seen.subject,
            seen.verdict.name(),
            seen.reason.name(),
            seen.ledger.to_string(),
            seen.provider.to_string(),
            seen.detail,
            at.micros(),
            pass
        ],
    )?;
    Ok(())
}

/// Writes what was seen now; a finding that has paged does not page again.
fn follow_finding(
    connection: &Connection,
    number: u64,
    seen: &Observation,
    (page, Moment { pass, at }): (bool, Moment),
) -> Result<()> {
    connection.run(
        "-- follow_finding
         UPDATE findings SET verdict = ?1, reason = ?2, ledger = ?3, provider = ?4,
             detail = ?5, passes = passes + (last_pass <> ?6), last_pass = ?6,
             paged_at = COALESCE(paged_at, ?7)
         WHERE finding_no = ?8 AND cleared_at IS NULL",
        params![
            seen.verdict.name(),
            seen.reason.name(),
            seen.ledger.to_string(),
            seen.provider.to_string(),
            seen.detail,
            pass,
            page.then_some(at.micros()),
            number
        ],
    )?;
    Ok(())
}

fn clear_finding(connection: &Connection, number: u64, at: Timestamp) -> Result<()> {
    connection.run(
        "-- clear_finding
         UPDATE findings SET cleared_at = ? WHERE finding_no = ? AND cleared_at IS NULL",
        params![at.micros(), number],
    )?;
    Ok(())
}

/// Remembers the subscription of a finding as accepted and clears the finding.
pub fn accept_finding(connection: &Connection, number: u64, at: Timestamp) -> Result<Ruling> {
    let query = FindingQuery { before: number.checked_add(1), limit: 1, ..FindingQuery::default() };
    let found = list_findings(connection, &query)?.pop();
    let Some(finding) = found.filter(|finding| finding.number == number) else {
        return Ok(Ruling::NotFound);
    };
    if let Some(why) = finding.refuse_acceptance() {
        return Ok(Ruling::Refused(why));
    }
    connection.run(
        "-- accept_finding
         INSERT INTO accepted_subscriptions (subscription, accepted_at) VALUES (?, ?)
         ON CONFLICT DO NOTHING",
        params![finding.seen.subject, at.micros()],
    )?;
    clear_finding(connection, number, at)?;
    Ok(Ruling::Done(None))
}

pub fn is_accepted(connection: &Connection, subscription: &str) -> Result<bool> {
    connection.read_one(
        "-- is_accepted
         SELECT EXISTS (SELECT 1 FROM accepted_subscriptions WHERE subscription = ?)",
        [subscription],
        |row| Ok(row.get(0)?),
    )
}

pub fn list_findings(connection: &Connection, query: &FindingQuery) -> Result<Vec<Finding>> {
    // Those that are open are few, and every pass asks for them.
    let sql = match query.open {
        Some(true) => {
            "-- list_findings
             SELECT finding_no, kind, tenant, meter_no, subject, verdict, reason, ledger, provider,
                    detail, opened_at, opened_pass, last_pass, passes, paged_at, cleared_at
             FROM findings INDEXED BY findings_open
                 LEFT JOIN tenants ON tenants.tenant_no = findings.tenant_no
             WHERE ?1 AND cleared_at IS NULL AND (?2 IS NULL OR kind = ?2)
                 AND (?3 IS NULL OR tenant = ?3) AND finding_no < ?4
             ORDER BY finding_no DESC LIMIT ?5"
        }
        Some(false) | None => {
            "-- list_findings
             SELECT finding_no, kind, tenant, meter_no, subject, verdict, reason, ledger, provider,
                    detail, opened_at, opened_pass, last_pass, passes, paged_at, cleared_at
             FROM findings LEFT JOIN tenants ON tenants.tenant_no = findings.tenant_no
             WHERE (?1 IS NULL OR cleared_at IS NOT NULL) AND (?2 IS NULL OR kind = ?2)
                 AND (?3 IS NULL OR tenant = ?3) AND finding_no < ?4
             ORDER BY finding_no DESC LIMIT ?5"
        }
    };
    let before = query.before.and_then(|number| i64::try_from(number).ok());
    let asked = params![
        query.open,
        query.kind.map(FindingKind::name),
        query.tenant.as_ref().map(TenantId::as_str),
        before.unwrap_or(i64::MAX),
        i64::try_from(query.limit).unwrap_or(i64::MAX)
    ];
    connection.read_all(sql, asked, decode_finding)
}

fn decode_finding(row: &Row<'_>) -> Result<Finding> {
    let optional = |column: &str| -> Result<Option<Timestamp>> {
        Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
    };
    Ok(Finding {
        number: get(row, "finding_no")?,
        seen: decode_observation(row)?,
        opened_at: moment(row, "opened_at")?,
        opened_pass: get(row, "opened_pass")?,
        last_pass: get(row, "last_pass")?,
        passes: get(row, "passes")?,
        paged_at: optional("paged_at")?,
        cleared_at: optional("cleared_at")?,
    })
}

fn decode_observation(row: &Row<'_>) -> Result<Observation> {
    let kind: String = get(row, "kind")?;
    let tenant: Option<String> = get(row, "tenant")?;
    let tenant = tenant.as_deref().map(TenantId::parse).transpose();
    let reason: String = get(row, "reason")?;
    Ok(Observation {
        kind: FindingKind::from_name(&kind).ok_or_else(|| damaged("findings.kind", &kind))?,
        tenant: tenant.map_err(|_| corrupt("findings.tenant_no"))?,
        meter: get::<Option<u16>>(row, "meter_no")?.map(MeterNo),
        subject: get(row, "subject")?,
        verdict: verdict_of(row)?,
        reason: Reason::from_name(&reason).ok_or_else(|| damaged("findings.reason", &reason))?,
        ledger: quantity_of(row, "ledger")?,
        provider: quantity_of(row, "provider")?,
        detail: get(row, "detail")?,
    })
}

fn verdict_of(row: &Row<'_>) -> Result<Verdict> {
    let verdict: String = get(row, "verdict")?;
    Verdict::from_name(&verdict).ok_or_else(|| damaged("findings.verdict", &verdict))
}

pub fn count_drifting_tenants(connection: &Connection) -> Result<u64> {
    let mut select = connection.prepare_cached(
        "-- count_drifting_tenants
         SELECT tenant_no, verdict FROM findings
         WHERE kind = 'usage' AND cleared_at IS NULL AND passes >= 2
             AND tenant_no IS NOT NULL",
    )?;
    let mut rows = select.query([])?;
    let mut drifting: HashSet<u32> = HashSet::new();
    while let Some(row) = rows.next()? {
        if verdict_of(row)?.is_drift() {
            drifting.insert(get(row, "tenant_no")?);
        }
    }
    Ok(u64::try_from(drifting.len()).expect("a length fits 64 bits"))
}
