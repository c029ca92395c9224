//! Findings: differences, each followed from the pass that found it to the one that does not.
//!
//! Invariant: at most one finding of a kind, tenant, meter and subject is open, by a unique index;
//! who opens it a second time follows it instead. A pass that sees a finding twice, because it was
//! begun anew, counts once.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! follows what it opened, by the same pass, and finds the cleared ones cleared.

use super::PostgresStore;
use super::declarations::Creation;
use super::leases::hold_lease;
use super::numeric::SqlQuantity;
use super::passes::{read_reason, read_verdict};
use super::push_rows::each;
use super::scalars::{
    SqlTimestamp, column, damaged, instant, instant_if_any, meter_number, read_count,
    read_meter_no, read_ordinal, tenant_number, write_count, write_limit,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::drift::Verdict;
use crate::rules::finding::{Finding, FindingChange, FindingKind, Observation};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::timestamp::Timestamp;
use crate::store::push::{Lease, Ruling};
use crate::store::reconciliation::FindingQuery;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// What tells open findings apart.
type FindingKey<'o> = (FindingKind, &'o str, Option<i32>, Option<MeterNo>);

/// Changes, sorted by what they do; each finding once.
#[derive(Default)]
struct FindingChanges<'o> {
    /// With the numbers of their tenants, in the order of the first of each.
    opened: Vec<(Option<i32>, &'o Observation)>,
    /// With whether somebody is called.
    seen: BTreeMap<i64, (&'o Observation, bool)>,
    cleared: Vec<i64>,
}

impl PostgresStore {
    pub(super) async fn follow(
        &self,
        lease: &Lease,
        pass: u64,
        changes: &[FindingChange],
        at: Timestamp,
    ) -> Result<bool> {
        let observed = changes.iter().filter_map(|change| match change {
            FindingChange::Open(seen) | FindingChange::Seen { seen, .. } => seen.tenant.as_ref(),
            FindingChange::Clear { .. } => None,
        });
        self.number_tenants(observed, Creation::Never).await?;
        let (pass, sorted) = (write_count(pass)?, &self.sort_changes(changes)?);
        let work = move |client: Arc<Transaction>| async move {
            if !hold_lease(&client, lease).await? {
                return Ok(false);
            }
            // What is over goes first: the same may have begun again.
            clear_findings(&client, &sorted.cleared, at).await?;
            follow_findings(&client, &sorted.seen, pass, at).await?;
            open_findings(&client, &sorted.opened, pass, at).await?;
            Ok(true)
        };
        self.transact(work).await
    }

    pub(super) async fn accept(&self, number: u64, at: Timestamp) -> Result<Ruling> {
        let work = move |client: Arc<Transaction>| async move {
            accept_finding(&client, number, at).await
        };
        self.transact(work).await
    }

    fn sort_changes<'o>(&self, changes: &'o [FindingChange]) -> Result<FindingChanges<'o>> {
        let mut sorted = FindingChanges::default();
        let mut places: BTreeMap<FindingKey<'o>, usize> = BTreeMap::new();
        for change in changes {
            match change {
                FindingChange::Open(seen) => {
                    let tenant = self.number_of(seen)?;
                    let key = (seen.kind, seen.subject.as_str(), tenant, seen.meter);
                    let place = *places.entry(key).or_insert(sorted.opened.len());
                    match sorted.opened.get_mut(place) {
                        Some(opened) => *opened = (tenant, seen),
                        None => sorted.opened.push((tenant, seen)),
                    }
                }
                FindingChange::Seen { number, seen, page } => {
                    sorted.seen.insert(write_count(*number)?, (seen, *page));
                }
                FindingChange::Clear { number } => sorted.cleared.push(write_count(*number)?),
            }
        }
        Ok(sorted)
    }

    fn number_of(&self, seen: &Observation) -> Result<Option<i32>> {
        let Some(tenant) = &seen.tenant else { return Ok(None) };
        let number = self.tenant_no(tenant).ok_or_else(|| Error::Internal {
            what: format!("a finding is about tenant {tenant}, who is not known"),
        })?;
        Ok(Some(tenant_number(number)))
    }
}

async fn clear_findings(client: &ClientWrapper, cleared: &[i64], at: Timestamp) -> Done<()> {
    if cleared.is_empty() {
        return Ok(());
    }
    let sql = "-- clear_findings
        UPDATE findings SET cleared_at = $2
        WHERE finding_no = ANY ($1) AND cleared_at IS NULL";
    client.run(sql, &[&cleared, &SqlTimestamp(at)]).await?;
    Ok(())
}

async fn follow_findings(
    client: &ClientWrapper,
    seen: &BTreeMap<i64, (&Observation, bool)>,
    pass: i64,
    at: Timestamp,
) -> Done<()> {
    if seen.is_empty() {
        return Ok(());
    }
    let sql = "-- follow_findings
        UPDATE findings f SET verdict = given.verdict, reason = given.reason,
            ledger = given.ledger, provider = given.provider, detail = given.detail,
            passes = f.passes + CASE WHEN f.last_pass = $8 THEN 0 ELSE 1 END, last_pass = $8,
            paged_at = CASE WHEN given.page THEN COALESCE(f.paged_at, $9) ELSE f.paged_at END
        FROM unnest($1::int8[], $2::text[], $3::text[], $4::numeric[], $5::numeric[], $6::text[],
            $7::bool[]) AS given (finding_no, verdict, reason, ledger, provider, detail, page)
        WHERE f.finding_no = given.finding_no AND f.cleared_at IS NULL";
    let numbers: Vec<i64> = seen.keys().copied().collect();
    let seen: Vec<(&Observation, bool)> = seen.values().copied().collect();
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &numbers,
        &each(&seen, |(seen, _)| seen.verdict.name()),
        &each(&seen, |(seen, _)| seen.reason.name()),
        &each(&seen, |(seen, _)| SqlQuantity(seen.ledger)),
        &each(&seen, |(seen, _)| SqlQuantity(seen.provider)),
        &each(&seen, |(seen, _)| seen.detail.as_str()),
        &each(&seen, |(_, page)| *page),
        &pass,
        &SqlTimestamp(at),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

async fn open_findings(
    client: &ClientWrapper,
    opened: &[(Option<i32>, &Observation)],
    pass: i64,
    at: Timestamp,
) -> Done<()> {
    if opened.is_empty() {
        return Ok(());
    }
    // Numbers are given in the order in which they came, and rows are written in the order of the
    // index, so that servers with other leases do not wait in a circle.
    let sql = "-- open_findings
        WITH given AS (
            SELECT * FROM unnest($1::text[], $2::int4[], $3::int2[], $4::text[], $5::text[],
                $6::text[], $7::numeric[], $8::numeric[], $9::text[]) WITH ORDINALITY
                AS given (kind, tenant_no, meter_no, subject, verdict, reason, ledger, provider,
                detail, place)
            ORDER BY place
        ), numbered AS MATERIALIZED (
            SELECT nextval(pg_get_serial_sequence('findings', 'finding_no')) AS finding_no, given.*
            FROM given
        )
        INSERT INTO findings AS standing (finding_no, kind, tenant_no, meter_no, subject, verdict,
            reason, ledger, provider, detail, opened_at, opened_pass, last_pass, passes)
        OVERRIDING SYSTEM VALUE
        SELECT finding_no, kind, tenant_no, meter_no, subject, verdict, reason, ledger, provider,
            detail, $11, $10, $10, 1
        FROM numbered
        ORDER BY kind COLLATE \"C\", subject COLLATE \"C\", COALESCE(tenant_no, -1),
            COALESCE(meter_no, -1)
        ON CONFLICT (kind, subject, COALESCE(tenant_no, -1), COALESCE(meter_no, -1))
            WHERE cleared_at IS NULL
        DO UPDATE SET verdict = excluded.verdict, reason = excluded.reason,
            ledger = excluded.ledger, provider = excluded.provider, detail = excluded.detail,
            passes = standing.passes
                + CASE WHEN standing.last_pass = excluded.last_pass THEN 0 ELSE 1 END,
            last_pass = excluded.last_pass";
    let (tenants, seen): (Vec<Option<i32>>, Vec<&Observation>) = opened.iter().copied().unzip();
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &each(&seen, |seen| seen.kind.name()),
        &tenants,
        &each(&seen, |seen| seen.meter.map(meter_number)),
        &each(&seen, |seen| seen.subject.as_str()),
        &each(&seen, |seen| seen.verdict.name()),
        &each(&seen, |seen| seen.reason.name()),
        &each(&seen, |seen| SqlQuantity(seen.ledger)),
        &each(&seen, |seen| SqlQuantity(seen.provider)),
        &each(&seen, |seen| seen.detail.as_str()),
        &pass,
        &SqlTimestamp(at),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// Remembers the subscription of a finding as accepted and clears the finding.
async fn accept_finding(client: &ClientWrapper, number: u64, at: Timestamp) -> Done<Ruling> {
    // A number that no column can hold names no finding.
    let Ok(stored) = write_count(number) else { return Ok(Ruling::NotFound) };
    let sql = "-- accept_finding
        SELECT FROM findings WHERE finding_no = $1 FOR UPDATE";
    client.query_opt(sql, &[&stored]).await?;
    let query = FindingQuery { before: number.checked_add(1), limit: 1, ..FindingQuery::default() };
    let found = list_findings(client, &query).await?.pop();
    let Some(finding) = found.filter(|finding| finding.number == number) else {
        return Ok(Ruling::NotFound);
    };
    if let Some(why) = finding.refuse_acceptance() {
        return Ok(Ruling::Refused(why));
    }
    let sql = "-- accept_finding
        INSERT INTO accepted_subscriptions (subscription, accepted_at) VALUES ($1, $2)
        ON CONFLICT DO NOTHING";
    client.execute(sql, &[&finding.seen.subject, &SqlTimestamp(at)]).await?;
    clear_findings(client, &[stored], at).await?;
    Ok(Ruling::Done(None))
}

pub async fn is_accepted(client: &ClientWrapper, subscription: &str) -> Result<bool> {
    let sql = "-- is_accepted
        SELECT EXISTS (SELECT FROM accepted_subscriptions WHERE subscription = $1)";
    column(&client.read_one(sql, &[&subscription]).await?, 0)
}

pub async fn list_findings(client: &ClientWrapper, query: &FindingQuery) -> Result<Vec<Finding>> {
    // Not kept prepared: planned for what is asked, each question can use its own index.
    let sql = "-- list_findings
        SELECT f.finding_no, f.kind, t.tenant, f.meter_no, f.subject, f.verdict, f.reason,
            f.ledger, f.provider, f.detail, f.opened_at, f.opened_pass, f.last_pass, f.passes,
            f.paged_at, f.cleared_at
        FROM findings f LEFT JOIN tenants t ON t.tenant_no = f.tenant_no
        WHERE ($1::bool IS NULL OR (f.cleared_at IS NULL) = $1)
            AND ($2::text IS NULL OR f.kind = $2)
            AND ($3::text IS NULL OR t.tenant = $3)
            AND ($4::int8 IS NULL OR f.finding_no < $4)
        ORDER BY f.finding_no DESC LIMIT $5";
    let before = query.before.and_then(|number| write_count(number).ok());
    let parameters: [&(dyn ToSql + Sync); 5] = [
        &query.open,
        &query.kind.map(FindingKind::name),
        &query.tenant.as_ref().map(TenantId::as_str),
        &before,
        &write_limit(query.limit),
    ];
    client.query(sql, &parameters).await?.iter().map(read_finding).collect()
}

pub async fn count_drifting_tenants(client: &ClientWrapper) -> Result<u64> {
    let sql = "-- count_drifting_tenants
        SELECT count(DISTINCT tenant_no) FROM findings
        WHERE cleared_at IS NULL AND kind = 'usage' AND passes >= 2 AND verdict = ANY ($1)";
    let drift: Vec<&str> =
        Verdict::ALL.into_iter().filter(|verdict| verdict.is_drift()).map(Verdict::name).collect();
    let row = client.query_one(sql, &[&drift]).await?;
    read_count(column(&row, 0)?)
}

fn read_finding(row: &Row) -> Result<Finding> {
    let (kind, tenant): (String, Option<String>) = (column(row, 1)?, column(row, 2)?);
    let meter: Option<i16> = column(row, 3)?;
    let SqlQuantity(ledger) = column(row, 7)?;
    let SqlQuantity(provider) = column(row, 8)?;
    let seen = Observation {
        kind: FindingKind::from_name(&kind).ok_or_else(|| damaged("findings.kind", &kind))?,
        tenant: tenant
            .map(|id| TenantId::parse(&id).map_err(|_| damaged("tenants.tenant", &id)))
            .transpose()?,
        meter: meter.map(read_meter_no).transpose()?,
        subject: column(row, 4)?,
        verdict: read_verdict(row, 5)?,
        reason: read_reason(row, 6)?,
        ledger,
        provider,
        detail: column(row, 9)?,
    };
    Ok(Finding {
        number: read_count(column(row, 0)?)?,
        seen,
        opened_at: instant(row, 10)?,
        opened_pass: read_count(column(row, 11)?)?,
        last_pass: read_count(column(row, 12)?)?,
        passes: read_ordinal(column(row, 13)?)?,
        paged_at: instant_if_any(row, 14)?,
        cleared_at: instant_if_any(row, 15)?,
    })
}
