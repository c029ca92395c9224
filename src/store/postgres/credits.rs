//! Credits: grants that are issued, voided and expire, as their verbs.
//!
//! Invariant: `rules::grant` plans and `credit_changes` writes. Locks are taken in the order of
//! tenant, grants by number, accounts, changes, the request's key; expiry takes no tenant, and
//! grants that another works on are left to its next round. Issuing and voiding hold the tenant
//! first, so what they look up (keys, the number of live grants) holds until they have written.
//!
//! A crash leaves a change whole or not at all. What is issued or voided again because its
//! outcome was lost is found under its key; expiry that is repeated finds nothing left.

use super::PostgresStore;
use super::credit_changes::write_changes;
use super::credit_rows::{
    change, find_change, find_grant, grant, list_expired, live_grants, lock_grants, read_last,
};
use super::declarations::{Creation, hold_tenant, lock_tenant};
use super::idempotency::end_request;
use super::numeric::SqlQuantity;
use super::scalars::{SqlTimestamp, column, corrupt, read_count, tenant_number, write_limit};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::credit::{CreditChange, Grant, GrantTerms};
use crate::rules::grant::ledger::Ledger;
use crate::rules::grant::{check_history, plan_expiries, plan_issue, plan_void};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::plan::Plan;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::credit::{ChangeQuery, Credits, GrantFilter, Issued, VoidGrant, Voided};
use crate::store::idempotency::Completing;
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::types::ToSql;

#[async_trait]
impl Credits for PostgresStore {
    async fn issue_grant(
        &self,
        terms: GrantTerms,
        at: Timestamp,
        completing: Option<&Completing<Issued>>,
    ) -> Result<Issued> {
        let terms = &terms;
        let work = move |client: Arc<Transaction>| async move {
            let issued = issue(&client, terms, at).await?;
            end_request(&client, completing, &issued, at).await?;
            Ok(issued)
        };
        self.transact(work).await
    }

    async fn void_grant(
        &self,
        order: VoidGrant,
        at: Timestamp,
        completing: Option<&Completing<Voided>>,
    ) -> Result<Voided> {
        self.number_tenants(std::iter::once(&order.tenant), Creation::Never).await?;
        let tenant_no = self.tenant_no(&order.tenant).map(tenant_number);
        let order = &order;
        let work = move |client: Arc<Transaction>| async move {
            let taken = match tenant_no {
                Some(tenant_no) => void_grant(&client, tenant_no, order, at).await?,
                None => Voided::NotFound,
            };
            end_request(&client, completing, &taken, at).await?;
            Ok(taken)
        };
        self.transact(work).await
    }

    async fn expire_grants(
        &self,
        expired_by: Timestamp,
        at: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        let work = move |client: Arc<Transaction>| async move {
            expire(&client, expired_by, at, limit).await
        };
        self.transact(work).await
    }

    async fn list_grants(
        &self,
        tenant: &TenantId,
        filter: GrantFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Grant>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_grants
            SELECT g.grant_no, t.tenant, g.key, g.pool, g.unit, g.amount, g.rates, g.priority,
                g.effective_at, g.expires_at, g.memo, g.remaining, g.created_at
            FROM tenants t JOIN grants g ON g.tenant_no = t.tenant_no
            WHERE t.tenant = $1 AND g.grant_no > $2 AND ($3 OR g.remaining <> 0)
            ORDER BY g.grant_no LIMIT $4";
        // No grant has a number that no column can hold.
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let all = match filter {
            GrantFilter::Live => false,
            GrantFilter::All => true,
        };
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&tenant.as_str(), &after, &all, &write_limit(limit)];
        client.query(sql, &parameters).await?.iter().map(|row| grant(row, 0)).collect()
    }

    async fn list_credit_changes(&self, query: ChangeQuery) -> Result<Vec<CreditChange>> {
        let client = self.reader().await?;
        // Not kept prepared: planned for what is asked, each question can use its own index.
        let sql = "-- list_credit_changes
            SELECT c.change_no, t.tenant, c.grant_no, c.kind, c.amount, c.remaining, c.meter_no,
                c.window_start, c.window_end, c.quantity, c.key, c.memo, c.at
            FROM tenants t JOIN credit_changes c ON c.tenant_no = t.tenant_no
            WHERE t.tenant = $1 AND ($2::int8 IS NULL OR c.grant_no = $2) AND c.change_no < $3
            ORDER BY c.change_no DESC LIMIT $4";
        // No row has a number that no column can hold; no grant has the number -1.
        let grant = query.grant.map(|grant| i64::try_from(grant).unwrap_or(-1));
        let before = query.before.and_then(|before| i64::try_from(before).ok());
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &query.tenant.as_str(),
            &grant,
            &before.unwrap_or(i64::MAX),
            &write_limit(query.limit),
        ];
        let rows = client.query(sql, &parameters).await?;
        let changes: Vec<_> = rows.iter().map(change).collect::<Result<_>>()?;
        check_history(&changes)?;
        Ok(changes)
    }
}

/// Everything but the end of the request and the COMMIT.
async fn issue(client: &ClientWrapper, terms: &GrantTerms, at: Timestamp) -> Done<Issued> {
    let tenant_no = hold_tenant(client, &terms.tenant, at).await?;
    let standing = find_grant(client, tenant_no, &terms.key).await?;
    let live = live_grants(client, &[tenant_no]).await?.len();
    let terms = match plan_issue(terms.clone(), standing, live)? {
        Plan::Write(terms) => terms,
        Plan::Answer(issued) => return Ok(issued),
    };
    let number = insert_grant(client, tenant_no, &terms, at).await?;
    let mut ledger = Ledger::default();
    let grant = ledger.issue(tenant_no, number, terms, at)?;
    write_changes(client, ledger.take_planned(), at).await?;
    Ok(Issued::Created(grant))
}

async fn insert_grant(
    client: &ClientWrapper,
    tenant_no: i32,
    terms: &GrantTerms,
    at: Timestamp,
) -> Done<u64> {
    let sql = "-- insert_grant
        INSERT INTO grants (tenant_no, key, pool, unit, amount, rates, priority, effective_at,
            expires_at, memo, remaining, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, $11)
        RETURNING grant_no";
    let rates: BTreeMap<u16, Quantity> =
        terms.rates.iter().map(|(MeterNo(meter), rate)| (*meter, *rate)).collect();
    let rates = serde_json::to_string(&rates)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &tenant_no,
        &terms.key.as_str(),
        &terms.pool.name(),
        &terms.unit.as_str(),
        &SqlQuantity(terms.amount),
        &rates,
        &i32::from(terms.priority),
        &SqlTimestamp(terms.effective_at),
        &terms.expires_at.map(SqlTimestamp),
        &terms.memo,
        &SqlTimestamp(at),
    ];
    let row = client.read_one(sql, &parameters).await?;
    Ok(read_count(column(&row, 0)?)?)
}

/// Everything but the end of the request and the COMMIT.
async fn void_grant(
    client: &ClientWrapper,
    tenant_no: i32,
    order: &VoidGrant,
    at: Timestamp,
) -> Done<Voided> {
    lock_tenant(client, tenant_no).await?;
    let standing = find_change(client, tenant_no, &order.key).await?;
    // No grant has a number that no column can hold.
    let number: Vec<i64> = i64::try_from(order.grant).into_iter().collect();
    let mut held = lock_grants(client, &number).await?;
    held.retain(|(of_tenant, _)| *of_tenant == tenant_no);
    let last = read_last(client, &held).await?;
    let found = held.first().map(|(_, grant)| (grant, last.get(&grant.number).copied()));
    let change = match plan_void(order, standing, found)? {
        Plan::Write(change) => change,
        Plan::Answer(taken) => return Ok(taken),
    };
    let mut ledger = Ledger::default();
    for (tenant_no, grant) in held {
        ledger.hold(tenant_no, grant)?;
    }
    ledger.plan(tenant_no, change)?;
    let written = write_changes(client, ledger.take_planned(), at).await?.pop();
    Ok(Voided::Done(written.ok_or_else(|| corrupt("credit_changes row vanished mid-transaction"))?))
}

/// Everything but the COMMIT.
async fn expire(
    client: &ClientWrapper,
    expired_by: Timestamp,
    at: Timestamp,
    limit: usize,
) -> Done<usize> {
    let held = list_expired(client, expired_by, limit).await?;
    let last = read_last(client, &held).await?;
    let with_last = |(tenant_no, grant): (i32, Grant)| {
        let left = last.get(&grant.number).copied();
        (tenant_no, grant, left)
    };
    let expired = held.into_iter().map(with_last).collect();
    let mut ledger = Ledger::default();
    for fault in plan_expiries(&mut ledger, expired, expired_by) {
        tracing::error!("an expired grant stays as it is: {fault}");
    }
    Ok(write_changes(client, ledger.take_planned(), at).await?.len())
}
