//! Accounts, entries and statements, as their verbs.
//!
//! Invariant: see `entries`, which reads, judges and writes. An entry that loses a race is judged
//! again from a fresh look; after the first look the accounts are locked before they are read, so
//! that the same race is not lost again. Locks are taken in the order of accounts by number, the
//! entry's key, the request's key; creating an account holds its tenant first.
//!
//! A crash leaves an entry whole or not at all. An entry that is sent again because its outcome was
//! lost is found under its key.

use super::entries::{Book, find_entry};
use super::reconciliation::within_column;
use super::{Done, Failure, Row, Session, SqlStore, values};
use crate::rules::account::{
    Account, Entry, NewEntry, POSTINGS_MAX, answer_put, answer_standing, answer_unknown_tenant,
    check_statement,
};
use crate::rules::ids::{AccountName, OnceKey, TenantId, TenantNo};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use crate::store::account::{AccountPut, Accounts, NewAccount, Posted, StatementLine};
use crate::store::idempotency::Completing;
use crate::store::{Error, Query, Result};
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often an entry is judged anew because another changed its accounts meanwhile.
const POST_TRIES_MAX: u32 = 8;

/// The columns that [`decode_account`] reads, for every statement that returns rows of accounts.
pub const COLUMNS: &str = "accounts.account_no, accounts.tenant_no, accounts.name, accounts.unit,
    accounts.floor, accounts.balance, accounts.version, accounts.created_at,
    (SELECT tenant FROM tenants WHERE tenants.tenant_no = accounts.tenant_no) AS tenant";

/// How accounts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Others may change them before they are written, which is then noticed.
    Free,
    /// Nobody changes them before the transaction ends.
    Locked,
}

#[async_trait]
impl<S: SqlStore> Accounts for S {
    async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut> {
        self.in_transaction(move |session| put_account(session, &account, at)).await
    }

    async fn find_account(&self, tenant: &TenantId, name: &AccountName) -> Result<Option<Account>> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.in_reader(move |session| find_account(session, &tenant, &name)).await
    }

    async fn list_accounts(&self, query: Query<TenantId, AccountName>) -> Result<Vec<Account>> {
        self.in_reader(move |session| {
            // Every name is larger than the empty text.
            let after = query.after.as_ref().map_or("", AccountName::as_str);
            let sql = format!(
                "-- list_accounts
                SELECT {COLUMNS} FROM accounts
                WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND name > $2
                ORDER BY name LIMIT $3"
            );
            session.read_all(&sql, values![query.filter, after, query.limit], decode_account)
        })
        .await
    }

    async fn post_entry(
        &self,
        entry: NewEntry,
        at: Timestamp,
        completing: Option<&Completing<Posted>>,
    ) -> Result<Posted> {
        let tries = AtomicU32::new(0);
        self.in_transaction_ending(completing, at, move |session| {
            let tried = tries.fetch_add(1, Ordering::Relaxed);
            let look = if tried == 0 { Look::Free } else { Look::Locked };
            match post_entry(session, &entry, at, look) {
                Err(Failure::Again(what)) if tried + 1 >= POST_TRIES_MAX => {
                    let what = format!("the accounts are contended; tried {tried} times: {what}");
                    Err(Error::Unavailable { what }.into())
                }
                posted => posted,
            }
        })
        .await
    }

    async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>> {
        let (tenant, key) = (tenant.clone(), key.clone());
        self.in_reader(move |session| find_entry(session, &tenant, &key)).await
    }

    async fn read_statement(
        &self,
        query: Query<(TenantId, AccountName)>,
    ) -> Result<Vec<StatementLine>> {
        self.in_reader(move |session| {
            let lines = read_statement(session, &query)?;
            check_statement(&query.filter.1, &lines)?;
            Ok(lines)
        })
        .await
    }
}

fn put_account(session: &dyn Session, new: &NewAccount, at: Timestamp) -> Done<AccountPut> {
    let tenant = session.hold_tenant(&new.tenant, at)?;
    let created = insert_accounts(session, &[(tenant, new)], at)? == 1;
    let standing = find_account(session, &new.tenant, &new.name)?;
    let standing = standing
        .ok_or_else(|| Error::Corrupt { what: "accounts row vanished mid-transaction".into() })?;
    Ok(answer_put(new, standing, created)?)
}

/// Writes accounts in their order, those without a namesake; returns how many.
pub fn insert_accounts(
    session: &dyn Session,
    accounts: &[(TenantNo, &NewAccount)],
    at: Timestamp,
) -> Done<u64> {
    let sql = "-- insert_accounts
        INSERT INTO accounts (tenant_no, name, unit, floor, balance, version, created_at)
        VALUES ($, $, $, $, '0', 0, $), ...
        ON CONFLICT (tenant_no, name) DO NOTHING";
    let rows = accounts.iter().map(|(tenant, new)| {
        let NewAccount { name, unit, floor, .. } = new;
        values![tenant, name, unit, floor, at].to_vec()
    });
    session.run_batch(sql, rows)
}

fn find_account(
    session: &dyn Session,
    tenant: &TenantId,
    name: &AccountName,
) -> Done<Option<Account>> {
    let sql = format!(
        "-- find_account
        SELECT {COLUMNS} FROM accounts
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND name = $2"
    );
    session.read_optional(&sql, values![tenant, name], decode_account)
}

/// Everything but the end of the request and the commit.
fn post_entry(session: &dyn Session, new: &NewEntry, at: Timestamp, look: Look) -> Done<Posted> {
    let Some(tenant) = session.find_tenant(&new.tenant)? else {
        return Ok(answer_unknown_tenant(new)?);
    };
    if let Some(standing) = find_entry(session, &new.tenant, &new.key)? {
        return Ok(answer_standing(standing, new)?);
    }
    // An entry of more postings is refused before any account is looked at.
    let postings = new.postings.iter().take(POSTINGS_MAX);
    let names: BTreeSet<_> = postings.map(|posting| (tenant, &posting.account)).collect();
    let mut book = Book::read_accounts(session, &names)?;
    if look == Look::Locked {
        book = book.lock_accounts(session)?;
    }
    if let Plan::Answer(refusal) = book.plan(tenant, new.clone())? {
        // The accounts may show what this very entry has done, sent twice at once.
        return Ok(match find_entry(session, &new.tenant, &new.key)? {
            Some(standing) => answer_standing(standing, new)?,
            None => Posted::Refused(refusal),
        });
    }
    let written = book.write(session, at)?.pop();
    Ok(Posted::Recorded(
        written.ok_or_else(|| Error::Corrupt {
            what: "entries row vanished mid-transaction".into(),
        })?,
    ))
}

fn read_statement(
    session: &dyn Session,
    query: &Query<(TenantId, AccountName)>,
) -> Done<Vec<StatementLine>> {
    let sql = "-- read_statement
        SELECT postings.version AS after, entries.entry_no, key, memo, amount,
            postings.balance AS balance_after, at
        FROM accounts
        JOIN postings ON postings.account_no = accounts.account_no
        JOIN entries ON entries.entry_no = postings.entry_no
        WHERE accounts.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND name = $2 AND postings.version < $3
        ORDER BY postings.version DESC LIMIT $4";
    let (tenant, account) = &query.filter;
    let before = query.after.map_or(i64::MAX, within_column);
    session.read_all(sql, values![tenant, account, before, query.limit], |row| {
        Ok(StatementLine {
            version: row.get("postings.after")?,
            entry: row.get("entries.entry_no")?,
            key: row.get("entries.key")?,
            memo: row.get("entries.memo")?,
            amount: row.get("postings.amount")?,
            balance: row.get("postings.balance_after")?,
            at: row.get("entries.at")?,
        })
    })
}

pub fn decode_account(row: &Row) -> Result<Account> {
    Ok(Account {
        tenant: row.get("tenants.tenant")?,
        name: row.get("accounts.name")?,
        unit: row.get("accounts.unit")?,
        floor: row.get("accounts.floor")?,
        balance: row.get("accounts.balance")?,
        version: row.get("accounts.version")?,
        created_at: row.get("accounts.created_at")?,
    })
}
