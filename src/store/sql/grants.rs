//! Rows of grants, inside the caller's transaction.
//!
//! Invariant: a grant is locked before it is changed, grants in the order of their numbers, or
//! without waiting; its row is written only if what it has left is what was read, by the number of
//! rows affected. A crash leaves all of the caller's transaction or nothing.

use super::reconciliation::within_column;
use super::{Done, Filter, Row, Session, values};
use crate::rules::credit::{Grant, GrantTerms};
use crate::rules::grant::ledger::PlannedChange;
use crate::rules::ids::{MeterNo, OnceKey, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::credit::GrantFilter;
use crate::store::{Error, Query, Result, damaged};
use std::collections::{BTreeMap, BTreeSet};

/// The columns that [`decode_grant`] reads, for every statement that returns rows of grants.
const COLUMNS: &str = "grants.grant_no, grants.tenant_no, key, pool, unit, amount, rates, priority,
    effective_at, expires_at, memo, remaining, grants.created_at,
    (SELECT tenant FROM tenants WHERE tenants.tenant_no = grants.tenant_no) AS tenant";

/// Grants that have something left. A text, as decimals are on SQLite; PostgreSQL reads it as a
/// number. The partial indexes `grants_live` and `grants_expiring` have this very condition.
const LIVE: &str = "remaining <> '0'";

/// A grant that the transaction holds, and its tenant's number.
pub struct HeldGrant {
    pub tenant_no: TenantNo,
    pub grant: Grant,
}

/// The numbers of the tenants' grants with anything left.
pub fn live_grants(session: &dyn Session, tenants: &[TenantNo]) -> Done<Vec<u64>> {
    let sql = format!(
        "-- live_grants
        WITH given (tenant_no) AS (VALUES ($::int4), ...)
        SELECT grant_no FROM given JOIN grants ON grants.tenant_no = given.tenant_no
        WHERE {LIVE}"
    );
    let rows = tenants.iter().map(|tenant| values![tenant].to_vec());
    session.read_batch(&sql, rows, Row::only)
}

/// Locks grants and reads them.
pub fn lock_grants(session: &dyn Session, numbers: &BTreeSet<u64>) -> Done<Vec<HeldGrant>> {
    let sql = format!(
        "-- lock_grants
        WITH given (number) AS (VALUES ($::int8), ...)
        SELECT {COLUMNS} FROM given JOIN grants ON grants.grant_no = given.number
        ORDER BY grants.grant_no FOR UPDATE OF grants"
    );
    session.read_batch(&sql, numbers.iter().map(|number| values![number].to_vec()), decode_held)
}

/// Whether any grant has expired with something left.
pub fn any_expired(session: &dyn Session, expired_by: Timestamp) -> Done<bool> {
    let sql = format!(
        "-- any_expired
        SELECT grant_no FROM grants
        WHERE {LIVE} AND expires_at IS NOT NULL AND expires_at <= $1 LIMIT 1"
    );
    Ok(session.read_optional(&sql, values![expired_by], |_| Ok(()))?.is_some())
}

/// Locks grants that have expired with something left, the longest expired first; those that
/// another works on are passed over.
pub fn lock_expired(
    session: &dyn Session,
    expired_by: Timestamp,
    limit: usize,
) -> Done<Vec<HeldGrant>> {
    let sql = format!(
        "-- lock_expired
        SELECT {COLUMNS} FROM grants
        WHERE {LIVE} AND expires_at IS NOT NULL AND expires_at <= $1
        ORDER BY expires_at, grant_no LIMIT $2
        FOR UPDATE SKIP LOCKED"
    );
    session.read_all(&sql, values![expired_by, limit], decode_held)
}

pub fn find_grant(session: &dyn Session, tenant: TenantNo, key: &OnceKey) -> Done<Option<Grant>> {
    let sql = format!(
        "-- find_grant
        SELECT {COLUMNS} FROM grants WHERE tenant_no = $1 AND key = $2"
    );
    session.read_optional(&sql, values![tenant, key], decode_grant)
}

/// A tenant's grants, in the order of their numbers.
pub fn list_grants(session: &dyn Session, query: &Query<GrantFilter>) -> Done<Vec<Grant>> {
    let GrantFilter { tenant, live } = &query.filter;
    let statement = Filter::new(&format!("-- list_grants\nSELECT {COLUMNS} FROM grants"))
        .and("tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $)", tenant)
        .and("grant_no > $", within_column(query.after.unwrap_or(0)));
    let statement = if *live { statement.and_always(LIVE) } else { statement };
    let (sql, values) = statement.order("grant_no", query.limit);
    session.read_all(&sql, &values, decode_grant)
}

/// Writes a grant with nothing in it; the change that issues it fills it.
pub fn insert_grant(
    session: &dyn Session,
    tenant: TenantNo,
    terms: &GrantTerms,
    at: Timestamp,
) -> Done<u64> {
    let sql = "-- insert_grant
        INSERT INTO grants (tenant_no, key, pool, unit, amount, rates, priority, effective_at,
            expires_at, memo, remaining, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, '0', $11)
        RETURNING grant_no";
    let rates: BTreeMap<u16, Quantity> =
        terms.rates.iter().map(|(MeterNo(meter), rate)| (*meter, *rate)).collect();
    let rates = serde_json::to_string(&rates)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    let values = values![
        tenant,
        terms.key,
        terms.pool,
        terms.unit,
        terms.amount,
        rates,
        terms.priority,
        terms.effective_at,
        terms.expires_at,
        terms.memo,
        at,
    ];
    session.read_one(sql, values, Row::only)
}

/// Writes what the last change of each grant leaves, if the grant is as it was read.
pub fn write_grants(session: &dyn Session, planned: &[PlannedChange]) -> Done<()> {
    let sql = "-- write_grants
        WITH given (grant_no, tenant_no, read, remaining) AS (
            VALUES ($::int8, $::int4, $::numeric, $::numeric), ...
        )
        UPDATE grants SET remaining = given.remaining
        FROM given
        WHERE grants.grant_no = given.grant_no AND grants.tenant_no = given.tenant_no
            AND grants.remaining = given.read";
    let mut moved: BTreeMap<u64, (&PlannedChange, Quantity)> = BTreeMap::new();
    for change in planned {
        moved.entry(change.new.grant).or_insert((change, change.before)).1 = change.remaining;
    }
    let rows = moved.iter().map(|(number, (first, remaining))| {
        values![number, first.tenant_no, first.before, remaining].to_vec()
    });
    if usize::try_from(session.run_batch(sql, rows)?) == Ok(moved.len()) {
        return Ok(());
    }
    let what = "locked grants row changed mid-transaction".into();
    Err(Error::Corrupt { what }.into())
}

fn decode_held(row: &Row) -> Result<HeldGrant> {
    Ok(HeldGrant { tenant_no: row.get("grants.tenant_no")?, grant: decode_grant(row)? })
}

fn decode_grant(row: &Row) -> Result<Grant> {
    let rates: String = row.get("grants.rates")?;
    let rates: BTreeMap<u16, Quantity> =
        serde_json::from_str(&rates).map_err(|_| damaged("grants.rates", &rates))?;
    let terms = GrantTerms {
        tenant: row.get("tenants.tenant")?,
        key: row.get("grants.key")?,
        pool: row.get("grants.pool")?,
        unit: row.get("grants.unit")?,
        amount: row.get("grants.amount")?,
        rates: rates.into_iter().map(|(meter, rate)| (MeterNo(meter), rate)).collect(),
        priority: row.get("grants.priority")?,
        effective_at: row.get("grants.effective_at")?,
        expires_at: row.get("grants.expires_at")?,
        memo: row.get("grants.memo")?,
    };
    Ok(Grant {
        number: row.get("grants.grant_no")?,
        terms,
        remaining: row.get("grants.remaining")?,
        created_at: row.get("grants.created_at")?,
    })
}
