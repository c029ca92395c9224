//! Accounts, entries and statements in their tables.
//!
//! Invariant: an entry is written with all its postings and the new balances and versions of its
//! accounts. Each account is written only if its version is the one that was read. The writer alone
//! writes, and reads in the same transaction, so nobody can have come between: a row that was not
//! written is a contradiction and not a contest. A crash leaves an entry whole or not at all.

use super::push_rows::{get, moment, quantity_of};
use super::statements::Statements;
use super::{SqliteStore, corrupt, damaged, push_listing};
use crate::rules::account::{
    Account, Entry, Floor, NewEntry, POSTINGS_MAX, Posting, answer_put, answer_standing,
    answer_unknown_tenant, check_statement, plan_entry,
};
use crate::rules::ids::{AccountName, OnceKey, TenantId, TenantNo, Unit};
use crate::rules::plan::Plan;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::account::{
    AccountPut, Accounts, NewAccount, Posted, StatementLine, StatementQuery,
};
use crate::store::idempotency::Completing;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::BTreeMap;

#[async_trait]
impl Accounts for SqliteStore {
    async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut> {
        self.write(move |writer| {
            writer.write_for(&account.tenant, at, |connection, tenant| {
                put_account(connection, tenant, &account, at)
            })
        })
        .await
    }

    async fn find_account(&self, tenant: &TenantId, name: &AccountName) -> Result<Option<Account>> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.read(move |shared, connection| {
            let Some(number) = shared.read_memory().tenants.find(&tenant) else { return Ok(None) };
            let found = find_account(connection, (number, &tenant), &name)?;
            Ok(found.map(|(_, account)| account))
        })
        .await
    }

    async fn list_accounts(
        &self,
        tenant: &TenantId,
        after: Option<&AccountName>,
        limit: usize,
    ) -> Result<Vec<Account>> {
        let (tenant, after) = (tenant.clone(), after.cloned());
        self.read(move |shared, connection| {
            let Some(number) = shared.read_memory().tenants.find(&tenant) else {
                return Ok(Vec::new());
            };
            list_accounts(connection, (number, &tenant), after.as_ref(), limit)
        })
        .await
    }

    async fn post_entry(
        &self,
        entry: NewEntry,
        at: Timestamp,
        completing: Option<&Completing<Posted>>,
    ) -> Result<Posted> {
        self.write_ending(completing, at, move |writer, finish| {
            let tenant = writer.shared.read_memory().tenants.find(&entry.tenant);
            writer.write(|connection| {
                let posted = match tenant {
                    Some(tenant) => post_in(connection, tenant, &entry, at)?,
                    None => answer_unknown_tenant(&entry)?,
                };
                finish.end(connection, posted)
            })
        })
        .await
    }

    async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>> {
        let (tenant, key) = (tenant.clone(), key.clone());
        self.read(move |shared, connection| {
            let Some(number) = shared.read_memory().tenants.find(&tenant) else { return Ok(None) };
            push_listing::begin_snapshot(connection)?;
            find_entry(connection, (number, &tenant), &key)
        })
        .await
    }

    async fn read_statement(&self, query: StatementQuery) -> Result<Vec<StatementLine>> {
        self.read(move |shared, connection| {
            let tenant = shared.read_memory().tenants.find(&query.tenant);
            let Some(tenant) = tenant else { return Ok(Vec::new()) };
            let lines = read_statement(connection, tenant, &query)?;
            check_statement(&query.account, &lines)?;
            Ok(lines)
        })
        .await
    }
}

/// Writes an entry inside the caller's transaction.
pub fn post_in(
    connection: &Connection,
    tenant: TenantNo,
    new: &NewEntry,
    at: Timestamp,
) -> Result<Posted> {
    if let Some(entry) = find_entry(connection, (tenant, &new.tenant), &new.key)? {
        return Ok(answer_standing(entry, new)?);
    }
    let (mut accounts, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    // More than that are refused before any account is looked at.
    for posting in new.postings.iter().take(POSTINGS_MAX) {
        let name = &posting.account;
        if let Some((number, account)) = find_account(connection, (tenant, &new.tenant), name)? {
            accounts.insert(name.clone(), account);
            numbers.insert(name.clone(), number);
        }
    }
    let postings = match plan_entry(&accounts, new)? {
        Plan::Write(postings) => postings,
        Plan::Answer(refusal) => return Ok(Posted::Refused(refusal)),
    };
    let number = insert_entry(connection, tenant, new, at)?;
    for (line, posting) in postings.iter().enumerate() {
        let account = numbers[&posting.account];
        write_balance(connection, account, posting)?;
        insert_posting(connection, (number, line), account, posting)?;
    }
    let (tenant, key, memo) = (new.tenant.clone(), new.key.clone(), new.memo.clone());
    Ok(Posted::Recorded(Entry { number, tenant, key, memo, postings, at }))
}

/// Creates an account that a change of credits moves through, unless it exists.
pub fn ensure_account(
    connection: &Connection,
    tenant: TenantNo,
    account: &NewAccount,
    at: Timestamp,
) -> Result<()> {
    insert_account(connection, tenant, account, at).map(drop)
}

fn put_account(
    connection: &Connection,
    tenant: TenantNo,
    new: &NewAccount,
    at: Timestamp,
) -> Result<AccountPut> {
    let created = insert_account(connection, tenant, new, at)?;
    let found = find_account(connection, (tenant, &new.tenant), &new.name)?;
    let (_, account) = found.ok_or_else(|| corrupt("accounts row of this transaction"))?;
    Ok(answer_put(new, account, created)?)
}

/// Whether it was written: one of its name may stand.
fn insert_account(
    connection: &Connection,
    tenant: TenantNo,
    account: &NewAccount,
    at: Timestamp,
) -> Result<bool> {
    let NewAccount { name, unit, floor, .. } = account;
    let (name, unit, floor) = (name.as_str(), unit.as_str(), floor.name());
    let written = connection.run(
        "-- insert_account
         INSERT INTO accounts (tenant_no, name, unit, floor, balance, version, created_at)
         VALUES (?, ?, ?, ?, '0', 0, ?)
         ON CONFLICT DO NOTHING",
        params![tenant.0, name, unit, floor, at.micros()],
    )?;
    Ok(written == 1)
}

/// An account with its number.
fn find_account(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    name: &AccountName,
) -> Result<Option<(i64, Account)>> {
    connection.read_optional(
        "-- find_account
         SELECT account_no, name, unit, floor, balance, version, created_at FROM accounts
         WHERE tenant_no = ? AND name = ?",
        params![tenant.0, name.as_str()],
        |row| Ok((get(row, "account_no")?, decode_account(row, of)?)),
    )
}

fn list_accounts(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    after: Option<&AccountName>,
    limit: usize,
) -> Result<Vec<Account>> {
    // No name is empty.
    let after = after.map_or("", AccountName::as_str);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- list_accounts
         SELECT name, unit, floor, balance, version, created_at FROM accounts
         WHERE tenant_no = ? AND name > ? ORDER BY name LIMIT ?",
        params![tenant.0, after, limit],
        |row| decode_account(row, of),
    )
}

fn decode_account(row: &Row<'_>, tenant: &TenantId) -> Result<Account> {
    let floor: String = get(row, "floor")?;
    Ok(Account {
        tenant: tenant.clone(),
        name: name_of(row)?,
        unit: unit_of(row)?,
        floor: Floor::from_name(&floor).ok_or_else(|| damaged("accounts.floor", &floor))?,
        balance: quantity_of(row, "balance")?,
        version: get(row, "version")?,
        created_at: moment(row, "created_at")?,
    })
}

fn name_of(row: &Row<'_>) -> Result<AccountName> {
    let name: String = get(row, "name")?;
    AccountName::parse(&name).map_err(|_| damaged("accounts.name", &name))
}

pub fn unit_of(row: &Row<'_>) -> Result<Unit> {
    let unit: String = get(row, "unit")?;
    Unit::parse(&unit).map_err(|_| damaged("accounts.unit", &unit))
}

fn insert_entry(
    connection: &Connection,
    tenant: TenantNo,
    new: &NewEntry,
    at: Timestamp,
) -> Result<u64> {
    connection.run(
        "-- insert_entry
         INSERT INTO entries (tenant_no, key, memo, at) VALUES (?, ?, ?, ?)",
        params![tenant.0, new.key.as_str(), new.memo, at.micros()],
    )?;
    Ok(u64::try_from(connection.last_insert_rowid()).expect("numbers begin at 1"))
}

/// Writes what a posting leaves on its account, if the account is as it was read.
fn write_balance(connection: &Connection, account: i64, posting: &Posting) -> Result<()> {
    let before = posting.version - 1;
    let written = connection.run(
        "-- write_balance
         UPDATE accounts SET balance = ?, version = version + 1
         WHERE account_no = ? AND version = ?",
        params![posting.balance.to_string(), account, before],
    )?;
    match written {
        1 => Ok(()),
        _ => Err(corrupt("accounts row locked by this transaction")),
    }
}

fn insert_posting(
    connection: &Connection,
    (entry, line): (u64, usize),
    account: i64,
    posting: &Posting,
) -> Result<()> {
    let Posting { amount, balance, version, .. } = posting;
    let (amount, balance) = (amount.to_string(), balance.to_string());
    connection.run(
        "-- insert_posting
         INSERT INTO postings (entry_no, line, account_no, amount, balance, version)
         VALUES (?, ?, ?, ?, ?, ?)",
        params![entry, line, account, amount, balance, version],
    )?;
    Ok(())
}

fn find_entry(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    key: &OnceKey,
) -> Result<Option<Entry>> {
    let found: Option<(u64, String, i64)> = connection
        .prepare_cached(
            "-- find_entry
             SELECT entry_no, memo, at FROM entries WHERE tenant_no = ? AND key = ?",
        )
        .and_then(|mut select| {
            select.query_row(params![tenant.0, key.as_str()], |row| row.try_into()).optional()
        })?;
    let Some((number, memo, at)) = found else { return Ok(None) };
    let (tenant, key, at) = (of.clone(), key.clone(), Timestamp::from_micros(at));
    let postings = read_postings(connection, number)?;
    Ok(Some(Entry { number, tenant, key, memo, postings, at }))
}

fn read_postings(connection: &Connection, entry: u64) -> Result<Vec<Posting>> {
    connection.read_all(
        "-- read_postings
         SELECT name, unit, amount, postings.balance AS left, postings.version AS after
         FROM postings JOIN accounts ON accounts.account_no = postings.account_no
         WHERE entry_no = ? ORDER BY line",
        [entry],
        |row| {
            Ok(Posting {
                account: name_of(row)?,
                unit: unit_of(row)?,
                amount: quantity_of(row, "amount")?,
                balance: quantity_of(row, "left")?,
                version: get(row, "after")?,
            })
        },
    )
}

fn read_statement(
    connection: &Connection,
    tenant: TenantNo,
    query: &StatementQuery,
) -> Result<Vec<StatementLine>> {
    let before = query.before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let asked = params![tenant.0, query.account.as_str(), before, limit];
    connection.read_all(
        "-- read_statement
         SELECT postings.version AS after, entries.entry_no, key, memo, amount,
                postings.balance AS left, at
         FROM accounts
         JOIN postings ON postings.account_no = accounts.account_no
         JOIN entries ON entries.entry_no = postings.entry_no
         WHERE accounts.tenant_no = ? AND name = ? AND postings.version < ?
         ORDER BY postings.version DESC LIMIT ?",
        asked,
        |row| {
            let key: String = get(row, "key")?;
            let amount: Quantity = quantity_of(row, "amount")?;
            Ok(StatementLine {
                version: get(row, "after")?,
                entry: get(row, "entry_no")?,
                key: OnceKey::parse(&key).map_err(|_| damaged("entries.key", &key))?,
                memo: get(row, "memo")?,
                amount,
                balance: quantity_of(row, "left")?,
                at: moment(row, "at")?,
            })
        },
    )
}
