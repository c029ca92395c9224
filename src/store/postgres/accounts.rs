//! Accounts and the entries between them, as their verbs.
//!
//! Invariant: see `entries`, which reads, judges and writes. An entry that loses a race is judged
//! again from a fresh look; after the first look the accounts are locked before they are read, so
//! that the same race is not lost again. Locks are taken in the order of accounts by number, the
//! entry's key, the request's key.
//!
//! A crash leaves an entry whole or not at all. An entry that is sent again because its outcome was
//! lost is found under its key.

use super::PostgresStore;
use super::declarations::{Creation, hold_tenant};
use super::entries::{Book, Look, account, find_entry, read_quantity};
use super::failure::Failure;
use super::idempotency::end_request;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, read_count, tenant_number, write_limit,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::account::{
    Account, Entry, NewEntry, answer_put, answer_standing, answer_unknown_tenant, check_statement,
};
use crate::rules::ids::{AccountName, OnceKey, TenantId};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use crate::store::account::{
    AccountPut, Accounts, NewAccount, Posted, StatementLine, StatementQuery,
};
use crate::store::idempotency::Completing;
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// How often an entry is judged anew because another changed its accounts meanwhile.
const POST_TRIES_MAX: u32 = 8;

#[async_trait]
impl Accounts for PostgresStore {
    async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut> {
        let account = &account;
        let work =
            move |client: Arc<Transaction>| async move { put_account(&client, account, at).await };
        self.transact(work).await
    }

    async fn find_account(&self, tenant: &TenantId, name: &AccountName) -> Result<Option<Account>> {
        let client = self.reader().await?;
        find_account(&client, tenant, name).await
    }

    async fn list_accounts(
        &self,
        tenant: &TenantId,
        after: Option<&AccountName>,
        limit: usize,
    ) -> Result<Vec<Account>> {
        let client = self.reader().await?;
        let sql = "-- list_accounts
            SELECT t.tenant, a.name, a.unit, a.floor, a.balance, a.version, a.created_at
            FROM tenants t JOIN accounts a ON a.tenant_no = t.tenant_no
            WHERE t.tenant = $1 AND a.name > $2
            ORDER BY a.name LIMIT $3";
        // Every name is larger than the empty text.
        let after = after.map_or("", AccountName::as_str);
        let rows = client.read_all(sql, &[&tenant.as_str(), &after, &write_limit(limit)]).await?;
        rows.iter().map(|row| account(row, 0)).collect()
    }

    async fn post_entry(
        &self,
        entry: NewEntry,
        at: Timestamp,
        completing: Option<&Completing<Posted>>,
    ) -> Result<Posted> {
        self.number_tenants(std::iter::once(&entry.tenant), Creation::Never).await?;
        let tenant_no = self.tenant_no(&entry.tenant).map(tenant_number);
        let (entry, tries) = (&entry, &AtomicU32::new(0));
        let work = move |client: Arc<Transaction>| async move {
            let tried = tries.fetch_add(1, Ordering::Relaxed);
            let look = if tried == 0 { Look::Free } else { Look::Locked };
            let posted = match post(&client, tenant_no, entry, at, look).await {
                Err(Failure::Again(what)) if tried + 1 >= POST_TRIES_MAX => {
                    let what = format!("the accounts are contended; tried {tried} times: {what}");
                    return Err(Error::Unavailable { what }.into());
                }
                tried => tried?,
            };
            end_request(&client, completing, &posted, at).await?;
            Ok(posted)
        };
        self.transact(work).await
    }

    async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>> {
        self.number_tenants(std::iter::once(tenant), Creation::Never).await?;
        let Some(number) = self.tenant_no(tenant) else { return Ok(None) };
        let client = self.reader().await?;
        find_entry(&client, (tenant_number(number), tenant), key).await.map_err(Failure::into_error)
    }

    async fn read_statement(&self, query: StatementQuery) -> Result<Vec<StatementLine>> {
        let client = self.reader().await?;
        let sql = "-- read_statement
            SELECT p.version, e.entry_no, e.key, e.memo, p.amount, p.balance, e.at
            FROM tenants t
            JOIN accounts a ON a.tenant_no = t.tenant_no
            JOIN postings p ON p.account_no = a.account_no
            JOIN entries e ON e.entry_no = p.entry_no
            WHERE t.tenant = $1 AND a.name = $2 AND p.version < $3
            ORDER BY p.version DESC LIMIT $4";
        // No line has a number that no column can hold.
        let before = query.before.and_then(|before| i64::try_from(before).ok());
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &query.tenant.as_str(),
            &query.account.as_str(),
            &before.unwrap_or(i64::MAX),
            &write_limit(query.limit),
        ];
        let rows = client.read_all(sql, &parameters).await?;
        let lines: Vec<_> = rows.iter().map(statement_line).collect::<Result<_>>()?;
        check_statement(&query.account, &lines)?;
        Ok(lines)
    }
}

async fn put_account(client: &ClientWrapper, new: &NewAccount, at: Timestamp) -> Done<AccountPut> {
    let NewAccount { tenant, name, unit, floor } = new;
    let tenant_no = hold_tenant(client, tenant, at).await?;
    let sql = "-- put_account
        INSERT INTO accounts (tenant_no, name, unit, floor, balance, version, created_at)
        VALUES ($1, $2, $3, $4, 0, 0, $5)
        ON CONFLICT (tenant_no, name) DO NOTHING";
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&tenant_no, &name.as_str(), &unit.as_str(), &floor.name(), &SqlTimestamp(at)];
    let created = client.execute(sql, &parameters).await? == 1;
    let standing = find_account(client, tenant, name).await?;
    let standing = standing.ok_or_else(|| corrupt("accounts row vanished mid-transaction"))?;
    Ok(answer_put(new, standing, created)?)
}

async fn find_account(
    client: &ClientWrapper,
    tenant: &TenantId,
    name: &AccountName,
) -> Result<Option<Account>> {
    let sql = "-- find_account
        SELECT t.tenant, a.name, a.unit, a.floor, a.balance, a.version, a.created_at
        FROM tenants t JOIN accounts a ON a.tenant_no = t.tenant_no
        WHERE t.tenant = $1 AND a.name = $2";
    let row = client.read_optional(sql, &[&tenant.as_str(), &name.as_str()]).await?;
    row.map(|row| account(&row, 0)).transpose()
}

/// Everything but the end of the request and the COMMIT.
async fn post(
    client: &ClientWrapper,
    tenant_no: Option<i32>,
    new: &NewEntry,
    at: Timestamp,
    look: Look,
) -> Done<Posted> {
    let Some(tenant_no) = tenant_no else { return Ok(answer_unknown_tenant(new)?) };
    let whose = (tenant_no, &new.tenant);
    if let Some(standing) = find_entry(client, whose, &new.key).await? {
        return Ok(answer_standing(standing, new)?);
    }
    let names: BTreeSet<(i32, &AccountName)> =
        new.postings.iter().map(|posting| (tenant_no, &posting.account)).collect();
    let mut book = Book::open(client, &names, look).await?;
    if let Plan::Answer(refusal) = book.plan(tenant_no, new.clone())? {
        // The accounts may show what this very entry has done, sent twice at once.
        let standing = find_entry(client, whose, &new.key).await?;
        return Ok(match standing {
            Some(standing) => answer_standing(standing, new)?,
            None => Posted::Refused(refusal),
        });
    }
    let written = book.write(client, at).await?.pop();
    Ok(Posted::Recorded(written.ok_or_else(|| corrupt("entries row vanished mid-transaction"))?))
}

fn statement_line(row: &Row) -> Result<StatementLine> {
    let key: String = column(row, 2)?;
    Ok(StatementLine {
        version: read_count(column(row, 0)?)?,
        entry: read_count(column(row, 1)?)?,
        key: OnceKey::parse(&key).map_err(|_| damaged("entries.key", &key))?,
        memo: column(row, 3)?,
        amount: read_quantity(row, 4)?,
        balance: read_quantity(row, 5)?,
        at: instant(row, 6)?,
    })
}
