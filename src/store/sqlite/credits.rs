//! Credits: grants that are issued, taken back and expire.
//!
//! Invariant: whatever changes a grant goes through `rows::change_grant`: the grant's row, the
//! change that explains it, the entry between the tenant's credit accounts and the message that
//! tells of it are written in one transaction. A crash leaves a change whole or not at all.

mod covering;
mod rows;

pub use covering::{Credit, Usage};

use super::{SqliteStore, corrupt, sql_error};
use crate::rules::credit::{
    ChangeKind, CreditChange, GRANTS_MAX, Grant, GrantTerms, Pool, plan_taking_back,
};
use crate::rules::ids::{OnceKey, TenantId, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::credit::{ChangeQuery, Credits, GrantFilter, Issued, TakeBack, TakenBack};
use crate::store::idempotency::Completing;
use async_trait::async_trait;
use rows::{NewChange, change_grant, find_grant, find_grant_by_key, insert_grant};
use rusqlite::{Connection, params};
use std::sync::Arc;

#[async_trait]
impl Credits for SqliteStore {
    async fn issue_grant(
        &self,
        terms: GrantTerms,
        at: Timestamp,
        completing: Option<&Completing<Issued>>,
    ) -> Result<Issued> {
        self.write_ending(completing, at, move |writer, finish| {
            let of = terms.tenant.clone();
            writer.write_for(&of, at, |connection, tenant| {
                let issued = issue_grant(connection, tenant, terms, at)?;
                finish.end(connection, issued)
            })
        })
        .await
    }

    async fn take_back(
        &self,
        order: TakeBack,
        at: Timestamp,
        completing: Option<&Completing<TakenBack>>,
    ) -> Result<TakenBack> {
        self.write_ending(completing, at, move |writer, finish| {
            let tenant = writer.shared.read_memory().tenants.find(&order.tenant);
            writer.write(|connection| {
                let taken = match tenant {
                    Some(tenant) => take_back(connection, tenant, &order, at)?,
                    None => TakenBack::NotFound,
                };
                finish.end(connection, taken)
            })
        })
        .await
    }

    async fn expire_grants(
        &self,
        expired_by: Timestamp,
        at: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        // A reader looks first, so that finding nothing costs no transaction.
        let found = self.read(move |_, c| find_expired(c, expired_by, limit)).await?;
        if found.is_empty() {
            return Ok(0);
        }
        self.write(move |writer| {
            let shared = Arc::clone(&writer.shared);
            writer.write(|connection| {
                let expired = find_expired(connection, expired_by, limit)?;
                for (grant, tenant) in &expired {
                    let name = shared.read_memory().tenants.name(*tenant)?.clone();
                    expire_grant(connection, (*tenant, &name), *grant, at)?;
                }
                Ok(expired.len())
            })
        })
        .await
    }

    async fn list_grants(
        &self,
        tenant: &TenantId,
        filter: GrantFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Grant>> {
        let tenant = tenant.clone();
        self.read(move |shared, connection| {
            let Some(number) = shared.read_memory().tenants.find(&tenant) else {
                return Ok(Vec::new());
            };
            let of = (number, &tenant);
            match filter {
                GrantFilter::Live => rows::list_live_grants(connection, of, after, limit),
                GrantFilter::All => rows::list_grants(connection, of, after, limit),
            }
        })
        .await
    }

    async fn list_credit_changes(&self, query: ChangeQuery) -> Result<Vec<CreditChange>> {
        self.read(move |shared, connection| {
            let tenant = shared.read_memory().tenants.find(&query.tenant);
            let Some(tenant) = tenant else { return Ok(Vec::new()) };
            rows::list_changes(connection, tenant, &query)
        })
        .await
    }
}

fn issue_grant(
    connection: &Connection,
    tenant: TenantNo,
    terms: GrantTerms,
    at: Timestamp,
) -> Result<Issued> {
    if let Some(grant) = find_grant_by_key(connection, (tenant, &terms.tenant), &terms.key)? {
        let same = grant.terms.says(&terms);
        return Ok(if same { Issued::Repeated(grant) } else { Issued::KeyTaken(grant) });
    }
    let of = (tenant, &terms.tenant);
    if rows::list_live_grants(connection, of, 0, GRANTS_MAX)?.len() >= GRANTS_MAX {
        return Ok(Issued::TooMany);
    }
    let number = insert_grant(connection, tenant, &terms, at)?;
    let mut grant = Grant { number, terms, remaining: Quantity::ZERO, created_at: at };
    let (amount, memo) = (grant.terms.amount, grant.terms.memo.clone());
    let change =
        NewChange { kind: ChangeKind::Issued, amount, covered: None, key: None, memo: &memo };
    change_grant(connection, tenant, &mut grant, change, at)?;
    Ok(Issued::Created(grant))
}

fn take_back(
    connection: &Connection,
    tenant: TenantNo,
    order: &TakeBack,
    at: Timestamp,
) -> Result<TakenBack> {
    if let Some(change) = rows::find_change(connection, (tenant, &order.tenant), &order.key)? {
        let same = is_same(order, &change);
        return Ok(if same { TakenBack::Repeated(change) } else { TakenBack::KeyTaken(change) });
    }
    let found = find_grant(connection, (tenant, &order.tenant), order.grant)?;
    let Some(mut grant) = found else { return Ok(TakenBack::NotFound) };
    let amount = match plan_taking_back(&grant, order.reserved, order.amount) {
        Ok(amount) => amount,
        Err(left) => return Ok(TakenBack::TooLittle(left)),
    };
    let kind = match grant.terms.pool {
        Pool::Purchased => ChangeKind::Refunded,
        Pool::Granted => ChangeKind::Voided,
    };
    let change =
        NewChange { kind, amount, covered: None, key: Some(&order.key), memo: &order.memo };
    change_grant(connection, tenant, &mut grant, change, at).map(TakenBack::Done)
}

/// Whether a change is what the order asks for. How much all was, only the change knows.
fn is_same(order: &TakeBack, change: &CreditChange) -> bool {
    let amount = order.amount.is_none_or(|amount| amount == change.amount);
    amount && order.grant == change.grant && order.memo == change.memo
}

/// Grants that expired by then and have anything left, with whose they are.
fn find_expired(
    connection: &Connection,
    expired_by: Timestamp,
    limit: usize,
) -> Result<Vec<(u64, TenantNo)>> {
    connection
        .prepare_cached(
            "-- find_expired
             SELECT grant_no, tenant_no FROM grants
             WHERE remaining <> '0' AND expires_at NOT NULL AND expires_at <= ?
             ORDER BY expires_at, grant_no LIMIT ?",
        )
        .and_then(|mut select| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            select
                .query_map(params![expired_by.micros(), limit], |row| {
                    Ok((row.get(0)?, TenantNo(row.get(1)?)))
                })?
                .collect()
        })
        .map_err(sql_error)
}

fn expire_grant(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    number: u64,
    at: Timestamp,
) -> Result<()> {
    let found = find_grant(connection, (tenant, of), number)?;
    let mut grant = found.ok_or_else(|| corrupt("a grant's number"))?;
    let (amount, memo) = (grant.remaining, "it expired");
    let change = NewChange { kind: ChangeKind::Expired, amount, covered: None, key: None, memo };
    change_grant(connection, tenant, &mut grant, change, at).map(drop)
}

fn parse_key(text: &str) -> Result<OnceKey> {
    OnceKey::parse(text).map_err(|_| corrupt("a key"))
}
