//! Rows of grants and of their changes, read and locked.
//!
//! Invariant: a grant is locked before it is changed, grants in the order of their numbers, or
//! without waiting. What is read of a window's draws holds while the caller locks the window.

use super::cuts::WindowKey;
use super::entries::{read_quantity, read_unit};
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, instant_if_any, meter_number, read_count,
    read_meter_no, write_count, write_limit,
};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::credit::covering::Draw;
use crate::rules::credit::{ChangeKind, Covered, CreditChange, Grant, GrantTerms, Pool};
use crate::rules::ids::{MeterNo, OnceKey, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::Row;

/// A window's draws and what was given back of them, oldest first.
pub type WindowChanges = BTreeMap<WindowKey, Vec<(ChangeKind, Draw)>>;

/// The numbers of the tenants' grants with anything left.
pub async fn live_grants(client: &ClientWrapper, tenants: &[i32]) -> Done<Vec<i64>> {
    let sql = "-- live_grants
        SELECT grant_no FROM grants WHERE tenant_no = ANY ($1) AND remaining <> 0";
    let rows = client.read_all(sql, &[&tenants]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}

/// Locks grants and reads them, each with its tenant's number.
pub async fn lock_grants(client: &ClientWrapper, numbers: &[i64]) -> Done<Vec<(i32, Grant)>> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "-- lock_grants
        SELECT g.tenant_no, g.grant_no, t.tenant, g.key, g.pool, g.unit, g.amount, g.rates,
            g.priority, g.effective_at, g.expires_at, g.memo, g.remaining, g.created_at
        FROM grants g JOIN tenants t ON t.tenant_no = g.tenant_no
        WHERE g.grant_no = ANY ($1)
        ORDER BY g.grant_no
        FOR UPDATE OF g";
    let rows = client.read_all(sql, &[&numbers]).await?;
    Ok(rows.iter().map(held_grant).collect::<Result<_>>()?)
}

/// Locks grants that have expired with something left, the longest expired first; those that
/// another works on are passed over.
pub async fn list_expired(
    client: &ClientWrapper,
    expired_by: Timestamp,
    limit: usize,
) -> Done<Vec<(i32, Grant)>> {
    let sql = "-- list_expired
        SELECT g.tenant_no, g.grant_no, t.tenant, g.key, g.pool, g.unit, g.amount, g.rates,
            g.priority, g.effective_at, g.expires_at, g.memo, g.remaining, g.created_at
        FROM grants g JOIN tenants t ON t.tenant_no = g.tenant_no
        WHERE g.remaining <> 0 AND g.expires_at IS NOT NULL AND g.expires_at <= $1
        ORDER BY g.expires_at, g.grant_no LIMIT $2
        FOR UPDATE OF g SKIP LOCKED";
    let rows = client.read_all(sql, &[&SqlTimestamp(expired_by), &write_limit(limit)]).await?;
    Ok(rows.iter().map(held_grant).collect::<Result<_>>()?)
}

pub async fn find_grant(
    client: &ClientWrapper,
    tenant_no: i32,
    key: &OnceKey,
) -> Done<Option<Grant>> {
    let sql = "-- find_grant
        SELECT g.grant_no, t.tenant, g.key, g.pool, g.unit, g.amount, g.rates, g.priority,
            g.effective_at, g.expires_at, g.memo, g.remaining, g.created_at
        FROM grants g JOIN tenants t ON t.tenant_no = g.tenant_no
        WHERE g.tenant_no = $1 AND g.key = $2";
    let row = client.read_optional(sql, &[&tenant_no, &key.as_str()]).await?;
    Ok(row.map(|row| grant(&row, 0)).transpose()?)
}

/// The change that was made under a key.
pub async fn find_change(
    client: &ClientWrapper,
    tenant_no: i32,
    key: &OnceKey,
) -> Done<Option<CreditChange>> {
    let sql = "-- find_change
        SELECT c.change_no, t.tenant, c.grant_no, c.kind, c.amount, c.remaining, c.meter_no,
            c.window_start, c.window_end, c.quantity, c.key, c.memo, c.at
        FROM credit_changes c JOIN tenants t ON t.tenant_no = c.tenant_no
        WHERE c.tenant_no = $1 AND c.key = $2";
    let row = client.read_optional(sql, &[&tenant_no, &key.as_str()]).await?;
    Ok(row.as_ref().map(change).transpose()?)
}

/// What the last change of each grant left of it. The caller holds the grants.
pub async fn read_last(
    client: &ClientWrapper,
    grants: &[(i32, Grant)],
) -> Done<BTreeMap<u64, Quantity>> {
    if grants.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = "-- read_last
        SELECT given.grant_no, last.remaining
        FROM unnest($1::int8[]) AS given (grant_no)
        CROSS JOIN LATERAL (
            SELECT c.remaining FROM credit_changes c WHERE c.grant_no = given.grant_no
            ORDER BY c.change_no DESC LIMIT 1
        ) last";
    let numbers: Vec<i64> =
        grants.iter().map(|(_, grant)| write_count(grant.number)).collect::<Result<_>>()?;
    let rows = client.read_all(sql, &[&numbers]).await?;
    let last = |row: &Row| Ok((read_count(column(row, 0)?)?, read_quantity(row, 1)?));
    Ok(rows.iter().map(last).collect::<Result<_>>()?)
}

/// What windows have drawn and given back.
pub async fn read_window_changes(
    client: &ClientWrapper,
    windows: &BTreeSet<WindowKey>,
) -> Done<WindowChanges> {
    let mut changes = WindowChanges::new();
    if windows.is_empty() {
        return Ok(changes);
    }
    let sql = "-- read_window_changes
        SELECT c.tenant_no, c.meter_no, c.window_start, c.kind, c.grant_no, c.quantity, c.amount
        FROM unnest($1::int4[], $2::int2[], $3::timestamptz[])
            AS given (tenant_no, meter_no, window_start)
        JOIN credit_changes c ON c.tenant_no = given.tenant_no AND c.meter_no = given.meter_no
            AND c.window_start = given.window_start
        ORDER BY c.change_no";
    let statement = client.prepare_cached(sql).await?;
    let tenants: Vec<i32> = windows.iter().map(|window| window.tenant_no).collect();
    let meters: Vec<i16> = windows.iter().map(|window| meter_number(window.meter)).collect();
    let starts: Vec<_> = windows.iter().map(|window| SqlTimestamp(window.start)).collect();
    for row in client.query(&statement, &[&tenants, &meters, &starts]).await? {
        let (tenant_no, start) = (column(&row, 0)?, instant(&row, 2)?);
        let window = WindowKey { tenant_no, meter: read_meter_no(column(&row, 1)?)?, start };
        let draw = Draw {
            grant: read_count(column(&row, 4)?)?,
            quantity: read_quantity(&row, 5)?,
            cost: read_quantity(&row, 6)?,
        };
        changes.entry(window).or_default().push((change_kind(&row, 3)?, draw));
    }
    Ok(changes)
}

/// Reads the tenant's number and the grant.
fn held_grant(row: &Row) -> Result<(i32, Grant)> {
    Ok((column(row, 0)?, grant(row, 1)?))
}

/// Reads number, tenant, key, pool, unit, amount, rates, priority, beginning, end, memo, what is
/// left and time of creation, in this order.
pub fn grant(row: &Row, from: usize) -> Result<Grant> {
    let (tenant, key): (String, String) = (column(row, from + 1)?, column(row, from + 2)?);
    let (pool, rates): (String, String) = (column(row, from + 3)?, column(row, from + 6)?);
    let priority: i32 = column(row, from + 7)?;
    let rates: BTreeMap<u16, Quantity> =
        serde_json::from_str(&rates).map_err(|_| damaged("grants.rates", &rates))?;
    let terms = GrantTerms {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        key: OnceKey::parse(&key).map_err(|_| damaged("grants.key", &key))?,
        pool: Pool::from_name(&pool).ok_or_else(|| damaged("grants.pool", &pool))?,
        unit: read_unit(row, from + 4)?,
        amount: read_quantity(row, from + 5)?,
        rates: rates.into_iter().map(|(meter, rate)| (MeterNo(meter), rate)).collect(),
        priority: u8::try_from(priority).map_err(|_| damaged("grants.priority", priority))?,
        effective_at: instant(row, from + 8)?,
        expires_at: instant_if_any(row, from + 9)?,
        memo: column(row, from + 10)?,
    };
    Ok(Grant {
        number: read_count(column(row, from)?)?,
        terms,
        remaining: read_quantity(row, from + 11)?,
        created_at: instant(row, from + 12)?,
    })
}

/// Reads number, tenant, grant, kind, amount, what is left, meter, start and end of the window,
/// quantity, key, memo and time, in this order, from the first column on.
pub fn change(row: &Row) -> Result<CreditChange> {
    let (tenant, key): (String, Option<String>) = (column(row, 1)?, column(row, 10)?);
    let key = key.map(|key| OnceKey::parse(&key)).transpose();
    Ok(CreditChange {
        number: read_count(column(row, 0)?)?,
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        grant: read_count(column(row, 2)?)?,
        kind: change_kind(row, 3)?,
        amount: read_quantity(row, 4)?,
        remaining: read_quantity(row, 5)?,
        covered: covered(row, 6)?,
        key: key.map_err(|_| corrupt("credit_changes.key is not valid"))?,
        memo: column(row, 11)?,
        at: instant(row, 12)?,
    })
}

/// Reads meter, start and end of the window and quantity, in this order; none where there is no
/// meter.
fn covered(row: &Row, from: usize) -> Result<Option<Covered>> {
    let meter: Option<i16> = column(row, from)?;
    let Some(meter) = meter else { return Ok(None) };
    let window = Window { start: instant(row, from + 1)?, end: instant(row, from + 2)? };
    let quantity = read_quantity(row, from + 3)?;
    Ok(Some(Covered { meter: read_meter_no(meter)?, window, quantity }))
}

fn change_kind(row: &Row, place: usize) -> Result<ChangeKind> {
    let kind: String = column(row, place)?;
    ChangeKind::from_name(&kind).ok_or_else(|| damaged("credit_changes.kind", &kind))
}
