//! Credits: grants that are issued, voided and expire.
//!
//! Invariant: `rules::grant` plans every change and `rows::write_changes` applies it: the grant's
//! row, the change that explains it, the entry between the tenant's credit accounts and the change
//! are written in one transaction. A crash leaves a change whole or not at all.

mod covering;
mod rows;

pub use covering::{Credit, Usage};

use super::{SqliteStore, corrupt, damaged, sql_error};
use crate::rules::credit::{CreditChange, GRANTS_MAX, Grant, GrantTerms};
use crate::rules::grant::ledger::Ledger;
use crate::rules::grant::{check_history, plan_expiries, plan_issue, plan_void};
use crate::rules::ids::{OnceKey, TenantId, TenantNo};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::credit::{ChangeQuery, Credits, GrantFilter, Issued, VoidGrant, Voided};
use crate::store::idempotency::Completing;
use async_trait::async_trait;
use rows::{find_grant, find_grant_by_key, insert_grant, read_last, write_changes};
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

    async fn void_grant(
        &self,
        order: VoidGrant,
        at: Timestamp,
        completing: Option<&Completing<Voided>>,
    ) -> Result<Voided> {
        self.write_ending(completing, at, move |writer, finish| {
            let tenant = writer.shared.read_memory().tenants.find(&order.tenant);
            writer.write(|connection| {
                let taken = match tenant {
                    Some(tenant) => void_grant(connection, tenant, &order, at)?,
                    None => Voided::NotFound,
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
                let mut expired = Vec::new();
                for (number, tenant) in find_expired(connection, expired_by, limit)? {
                    let name = shared.read_memory().tenants.name(tenant)?.clone();
                    let found = find_grant(connection, (tenant, &name), number)?;
                    let grant = found.ok_or_else(|| corrupt("grants row"))?;
                    expired.push((tenant, grant, read_last(connection, number)?));
                }
                let mut ledger = Ledger::default();
                for fault in plan_expiries(&mut ledger, expired, expired_by) {
                    tracing::error!("an expired grant stays as it is: {fault}");
                }
                Ok(write_changes(connection, ledger.take_planned(), at)?.len())
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
            let changes = rows::list_changes(connection, tenant, &query)?;
            check_history(&changes)?;
            Ok(changes)
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
    let of = (tenant, &terms.tenant);
    let standing = find_grant_by_key(connection, of, &terms.key)?;
    let live = rows::list_live_grants(connection, of, 0, GRANTS_MAX)?.len();
    let terms = match plan_issue(terms, standing, live)? {
        Plan::Write(terms) => terms,
        Plan::Answer(issued) => return Ok(issued),
    };
    let number = insert_grant(connection, tenant, &terms, at)?;
    let mut ledger = Ledger::default();
    let grant = ledger.issue(tenant, number, terms, at)?;
    write_changes(connection, ledger.take_planned(), at)?;
    Ok(Issued::Created(grant))
}

fn void_grant(
    connection: &Connection,
    tenant: TenantNo,
    order: &VoidGrant,
    at: Timestamp,
) -> Result<Voided> {
    let of = (tenant, &order.tenant);
    let standing = rows::find_change(connection, of, &order.key)?;
    let grant = find_grant(connection, of, order.grant)?;
    let last = read_last(connection, order.grant)?;
    let found = grant.as_ref().map(|grant| (grant, last));
    let change = match plan_void(order, standing, found)? {
        Plan::Write(change) => change,
        Plan::Answer(taken) => return Ok(taken),
    };
    let mut ledger = Ledger::default();
    if let Some(grant) = grant {
        ledger.hold(tenant, grant)?;
    }
    ledger.plan(tenant, change)?;
    let written = write_changes(connection, ledger.take_planned(), at)?.pop();
    Ok(Voided::Done(written.ok_or_else(|| corrupt("credit_changes row of this transaction"))?))
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

fn parse_key(text: &str) -> Result<OnceKey> {
    OnceKey::parse(text).map_err(|_| damaged("grants.key", text))
}
