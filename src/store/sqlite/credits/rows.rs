//! Rows of grants and of their changes.
//!
//! Invariant: a grant changes only here, as `rules::grant` planned it, together with the change
//! that explains it, its entry and its change, in the caller's transaction. What a grant has left
//! is read in the same transaction that writes it. A crash before the commit leaves none of it.

use super::super::statements::Statements;
use super::parse_key;
use crate::rules::credit::covering::Draw;
use crate::rules::credit::{ChangeKind, Covered, CreditChange, Grant, GrantTerms, Pool};
use crate::rules::grant::ledger::{PlannedChange, RecordedChange, WrittenChange, record_changes};
use crate::rules::ids::{MeterNo, OnceKey, TenantId, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::account::Posted;
use crate::store::credit::ChangeQuery;
use crate::store::sql::append_changes;
use crate::store::sqlite::accounts::{ensure_account, post_in, unit_of};
use crate::store::sqlite::push_rows::{get, moment, quantity_of};
use crate::store::sqlite::session::SqliteSession;
use crate::store::sqlite::{corrupt, damaged};
use rusqlite::{Connection, Row, params};
use std::collections::BTreeMap;

/// Writes planned changes and all that belongs to them, in their order.
pub fn write_changes(
    connection: &Connection,
    planned: Vec<PlannedChange<TenantNo>>,
    at: Timestamp,
) -> Result<Vec<CreditChange>> {
    let mut written = Vec::with_capacity(planned.len());
    for change in &planned {
        write_remaining(connection, change)?;
        let number = insert_change(connection, change, at)?;
        written.push(WrittenChange { number, grant: change.new.grant });
    }
    let mut changes = Vec::with_capacity(planned.len());
    for recorded in record_changes(planned, &written, at)? {
        post_change(connection, &recorded)?;
        if let Some(published) = &recorded.published {
            let session = SqliteSession::on(connection);
            append_changes(&session, std::slice::from_ref(published), at)?;
        }
        changes.push(recorded.change);
    }
    Ok(changes)
}

/// Writes the entry of a change between the tenant's credit accounts.
fn post_change(connection: &Connection, recorded: &RecordedChange<TenantNo>) -> Result<()> {
    let (tenant, at) = (recorded.tenant_no, recorded.change.at);
    for account in &recorded.accounts {
        ensure_account(connection, tenant, account, at)?;
    }
    match post_in(connection, tenant, &recorded.entry, at)? {
        Posted::Recorded(entry) => Ok(recorded.check_entry(&entry)?),
        Posted::Repeated(_) | Posted::KeyTaken(_) => {
            Err(corrupt("entries row of a new credit_changes row"))
        }
        Posted::Refused(_) => Err(corrupt("accounts rows of a grant")),
    }
}

/// Writes a grant with nothing in it; the change that issues it fills it.
pub fn insert_grant(
    connection: &Connection,
    tenant: TenantNo,
    terms: &GrantTerms,
    at: Timestamp,
) -> Result<u64> {
    let rates: BTreeMap<u16, String> =
        terms.rates.iter().map(|(meter, rate)| (meter.0, rate.to_string())).collect();
    let rates = serde_json::to_string(&rates).expect("numbers and texts are valid JSON");
    connection.run(
        "-- insert_grant
         INSERT INTO grants (tenant_no, key, pool, unit, amount, rates, priority, effective_at,
             expires_at, memo, remaining, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '0', ?)",
        params![
            tenant.0,
            terms.key.as_str(),
            terms.pool.name(),
            terms.unit.as_str(),
            terms.amount.to_string(),
            rates,
            terms.priority,
            terms.effective_at.micros(),
            terms.expires_at.map(Timestamp::micros),
            terms.memo,
            at.micros()
        ],
    )?;
    Ok(u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1"))
}

/// Writes what a change leaves of its grant, if the grant is as it was read.
fn write_remaining(connection: &Connection, change: &PlannedChange<TenantNo>) -> Result<()> {
    let (before, after) = (change.before.to_string(), change.remaining.to_string());
    let written = connection.run(
        "-- write_remaining
         UPDATE grants SET remaining = ?
         WHERE grant_no = ? AND tenant_no = ? AND remaining = ?",
        params![after, change.new.grant, change.tenant_no.0, before],
    )?;
    match written {
        1 => Ok(()),
        _ => Err(corrupt("grants row locked by this transaction")),
    }
}

fn insert_change(
    connection: &Connection,
    change: &PlannedChange<TenantNo>,
    at: Timestamp,
) -> Result<u64> {
    let PlannedChange { new, remaining, .. } = change;
    let covered = new.covered.as_ref();
    connection.run(
        "-- insert_change
         INSERT INTO credit_changes (tenant_no, grant_no, kind, amount, remaining, meter_no,
             window_start, window_end, quantity, key, memo, at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            change.tenant_no.0,
            new.grant,
            new.kind.name(),
            new.amount.to_string(),
            remaining.to_string(),
            covered.map(|covered| covered.meter.0),
            covered.map(|covered| covered.window.start.micros()),
            covered.map(|covered| covered.window.end.micros()),
            covered.map(|covered| covered.quantity.to_string()),
            new.key.as_ref().map(OnceKey::as_str),
            new.memo,
            at.micros()
        ],
    )?;
    Ok(u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1"))
}

pub fn find_grant(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    number: u64,
) -> Result<Option<Grant>> {
    // No row has a number that is larger than it can hold.
    let Ok(number) = i64::try_from(number) else { return Ok(None) };
    connection.read_optional(
        "-- find_grant
         SELECT grant_no, key, pool, unit, amount, rates, priority, effective_at, expires_at,
                memo, remaining, created_at
         FROM grants WHERE grant_no = ? AND tenant_no = ?",
        params![number, tenant.0],
        |row| decode_grant(row, of),
    )
}

pub fn find_grant_by_key(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    key: &OnceKey,
) -> Result<Option<Grant>> {
    connection.read_optional(
        "-- find_grant_by_key
         SELECT grant_no, key, pool, unit, amount, rates, priority, effective_at, expires_at,
                memo, remaining, created_at
         FROM grants WHERE tenant_no = ? AND key = ?",
        params![tenant.0, key.as_str()],
        |row| decode_grant(row, of),
    )
}

pub fn list_grants(
    connection: &Connection,
    of: (TenantNo, &TenantId),
    after: u64,
    limit: usize,
) -> Result<Vec<Grant>> {
    let sql = "-- list_grants
        SELECT grant_no, key, pool, unit, amount, rates, priority, effective_at, expires_at, memo,
               remaining, created_at
        FROM grants WHERE tenant_no = ? AND grant_no > ? ORDER BY grant_no LIMIT ?";
    collect_grants(connection, sql, of, after, limit)
}

/// Grants with anything left, in the order of their numbers.
pub fn list_live_grants(
    connection: &Connection,
    of: (TenantNo, &TenantId),
    after: u64,
    limit: usize,
) -> Result<Vec<Grant>> {
    let sql = "-- list_live_grants
        SELECT grant_no, key, pool, unit, amount, rates, priority, effective_at, expires_at, memo,
               remaining, created_at
        FROM grants INDEXED BY grants_live
        WHERE tenant_no = ? AND remaining <> '0' AND grant_no > ? ORDER BY grant_no LIMIT ?";
    collect_grants(connection, sql, of, after, limit)
}

fn collect_grants(
    connection: &Connection,
    sql: &str,
    (tenant, of): (TenantNo, &TenantId),
    after: u64,
    limit: usize,
) -> Result<Vec<Grant>> {
    // Nothing comes after the highest number that a row can have.
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.read_all(sql, params![tenant.0, after, limit], |row| decode_grant(row, of))
}

fn decode_grant(row: &Row<'_>, tenant: &TenantId) -> Result<Grant> {
    let (key, pool): (String, String) = (get(row, "key")?, get(row, "pool")?);
    let terms = GrantTerms {
        tenant: tenant.clone(),
        key: parse_key(&key)?,
        pool: Pool::from_name(&pool).ok_or_else(|| damaged("grants.pool", &pool))?,
        unit: unit_of(row)?,
        amount: quantity_of(row, "amount")?,
        rates: rates_of(row)?,
        priority: get(row, "priority")?,
        effective_at: moment(row, "effective_at")?,
        expires_at: get::<Option<i64>>(row, "expires_at")?.map(Timestamp::from_micros),
        memo: get(row, "memo")?,
    };
    Ok(Grant {
        number: get(row, "grant_no")?,
        terms,
        remaining: quantity_of(row, "remaining")?,
        created_at: moment(row, "created_at")?,
    })
}

fn rates_of(row: &Row<'_>) -> Result<BTreeMap<MeterNo, Quantity>> {
    let text: String = get(row, "rates")?;
    let rates: BTreeMap<u16, Quantity> =
        serde_json::from_str(&text).map_err(|_| damaged("grants.rates", &text))?;
    Ok(rates.into_iter().map(|(meter, rate)| (MeterNo(meter), rate)).collect())
}

/// What was done under a key.
pub fn find_change(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    key: &OnceKey,
) -> Result<Option<CreditChange>> {
    connection.read_optional(
        "-- find_change
         SELECT change_no, grant_no, kind, amount, remaining, meter_no, window_start,
                window_end, quantity, key, memo, at
         FROM credit_changes WHERE tenant_no = ? AND key = ?",
        params![tenant.0, key.as_str()],
        |row| decode_change(row, of),
    )
}

/// What the last change of a grant left of it.
pub fn read_last(connection: &Connection, grant: u64) -> Result<Option<Quantity>> {
    let mut select = connection.prepare_cached(
        "-- read_last
         SELECT remaining FROM credit_changes INDEXED BY credit_changes_by_grant
         WHERE grant_no = ? ORDER BY change_no DESC LIMIT 1",
    )?;
    // No row has a number that is larger than it can hold.
    let Ok(grant) = i64::try_from(grant) else { return Ok(None) };
    let mut rows = select.query([grant])?;
    let last = rows.next()?;
    last.map(|row| quantity_of(row, "remaining")).transpose()
}

pub fn list_changes(
    connection: &Connection,
    tenant: TenantNo,
    query: &ChangeQuery,
) -> Result<Vec<CreditChange>> {
    let before = query.before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    // No row has a number that is larger than it can hold, nor one below 0.
    let grant = query.grant.map(|grant| i64::try_from(grant).unwrap_or(-1));
    let asked = params![tenant.0, before, limit, grant];
    connection.read_all(
        match query.grant {
            Some(_) => {
                "-- list_changes
                 SELECT change_no, grant_no, kind, amount, remaining, meter_no, window_start,
                        window_end, quantity, key, memo, at
                 FROM credit_changes INDEXED BY credit_changes_by_grant
                 WHERE tenant_no = ?1 AND change_no < ?2 AND grant_no = ?4
                 ORDER BY change_no DESC LIMIT ?3"
            }
            None => {
                "-- list_changes
                 SELECT change_no, grant_no, kind, amount, remaining, meter_no, window_start,
                        window_end, quantity, key, memo, at
                 FROM credit_changes
                 WHERE tenant_no = ?1 AND change_no < ?2 AND ?4 IS NULL
                 ORDER BY change_no DESC LIMIT ?3"
            }
        },
        asked,
        |row| decode_change(row, &query.tenant),
    )
}

fn decode_change(row: &Row<'_>, tenant: &TenantId) -> Result<CreditChange> {
    let key: Option<String> = get(row, "key")?;
    let meter: Option<u16> = get(row, "meter_no")?;
    let covered = match meter {
        None => None,
        Some(meter) => Some(Covered {
            meter: MeterNo(meter),
            window: Window { start: moment(row, "window_start")?, end: moment(row, "window_end")? },
            quantity: quantity_of(row, "quantity")?,
        }),
    };
    Ok(CreditChange {
        number: get(row, "change_no")?,
        tenant: tenant.clone(),
        grant: get(row, "grant_no")?,
        kind: kind_of(row)?,
        amount: quantity_of(row, "amount")?,
        remaining: quantity_of(row, "remaining")?,
        covered,
        key: key.as_deref().map(parse_key).transpose()?,
        memo: get(row, "memo")?,
        at: moment(row, "at")?,
    })
}

fn kind_of(row: &Row<'_>) -> Result<ChangeKind> {
    let kind: String = get(row, "kind")?;
    ChangeKind::from_name(&kind).ok_or_else(|| damaged("credit_changes.kind", &kind))
}

/// What a window drew and gave back, oldest first.
pub fn read_draws(
    connection: &Connection,
    (tenant, meter, window_start): (TenantNo, MeterNo, Timestamp),
) -> Result<Vec<(ChangeKind, Draw)>> {
    let window = params![tenant.0, meter.0, window_start.micros()];
    connection.read_all(
        "-- read_draws
         SELECT kind, grant_no, quantity, amount FROM credit_changes
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ? ORDER BY change_no",
        window,
        |row| {
            let grant = get(row, "grant_no")?;
            let (quantity, cost) = (quantity_of(row, "quantity")?, quantity_of(row, "amount")?);
            Ok((kind_of(row)?, Draw { grant, quantity, cost }))
        },
    )
}
