//! Entries and the accounts they move, inside the caller's transaction.
//!
//! Invariant: an entry's row, its postings and the balances and versions of its accounts are
//! written together, after `rules::account` has judged them; an account's row is written only if
//! its version is the one that was read, by the number of rows affected. Accounts that are missing
//! are created first, in the order of tenant and name; then rows are locked in the order of their
//! numbers; then entries take their keys. Every writer keeps to this, and none goes back, so none
//! waits in a circle.
//!
//! A crash leaves all of the caller's transaction or nothing.

use super::failure::Failure;
use super::numeric::SqlQuantity;
use super::push_rows::each;
use super::scalars::{SqlTimestamp, column, corrupt, damaged, instant, read_count, write_count};
use super::statements::Statements;
use super::transaction::Done;
use crate::rules::account::{Account, Entry, Floor, NewEntry, PostRefusal, Posting, plan_entry};
use crate::rules::fault::Fault;
use crate::rules::ids::{AccountName, OnceKey, TenantId, Unit};
use crate::rules::plan::Plan;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::account::NewAccount;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// How accounts are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Others may change them before they are written, which is then noticed.
    Free,
    /// Nobody changes them before the transaction ends.
    Locked,
}

/// Accounts as they were read, and the entries that are planned between them.
#[derive(Default)]
pub struct Book {
    /// By tenant and name, as the planned entries leave them.
    accounts: BTreeMap<i32, BTreeMap<AccountName, Account>>,
    /// Number and version as they were read.
    read: BTreeMap<(i32, AccountName), (i64, u64)>,
    planned: Vec<Planned>,
}

struct Planned {
    tenant_no: i32,
    entry: NewEntry,
    /// What the entry leaves, in its order.
    postings: Vec<Posting>,
}

impl Book {
    /// Reads those of the accounts that exist.
    pub async fn open(
        client: &ClientWrapper,
        names: &BTreeSet<(i32, &AccountName)>,
        look: Look,
    ) -> Done<Self> {
        let tenants: Vec<i32> = names.iter().map(|(tenant_no, _)| *tenant_no).collect();
        let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
        let rows = match look {
            Look::Free => read_accounts(client, &tenants, &names).await?,
            Look::Locked => lock_accounts(client, &tenants, &names).await?,
        };
        let mut book = Self::default();
        for row in rows {
            let (number, tenant_no) = (column(&row, 0)?, column(&row, 1)?);
            let account = account(&row, 2)?;
            book.read.insert((tenant_no, account.name.clone()), (number, account.version));
            let of_tenant = book.accounts.entry(tenant_no).or_default();
            of_tenant.insert(account.name.clone(), account);
        }
        Ok(book)
    }

    /// Plans an entry after those that were planned before it.
    pub fn plan(
        &mut self,
        tenant_no: i32,
        entry: NewEntry,
    ) -> std::result::Result<Plan<(), PostRefusal>, Fault> {
        let accounts = self.accounts.entry(tenant_no).or_default();
        let postings = match plan_entry(accounts, &entry)? {
            Plan::Write(postings) => postings,
            Plan::Answer(refusal) => return Ok(Plan::Answer(refusal)),
        };
        for posting in &postings {
            let account = accounts.get_mut(&posting.account).expect("it was judged by this one");
            (account.balance, account.version) = (posting.balance, posting.version);
        }
        self.planned.push(Planned { tenant_no, entry, postings });
        Ok(Plan::Write(()))
    }

    /// Writes what is planned, and everything that belongs to it; the entries are in the order in
    /// which they were planned. If an account has moved on or a key is taken, the transaction is to
    /// be done again.
    pub async fn write(self, client: &ClientWrapper, at: Timestamp) -> Done<Vec<Entry>> {
        if self.planned.is_empty() {
            return Ok(Vec::new());
        }
        self.write_accounts(client).await?;
        let numbers = self.insert_entries(client, at).await?;
        self.insert_postings(client, &numbers).await?;
        let mut entries = Vec::with_capacity(numbers.len());
        for (number, planned) in numbers.into_iter().zip(self.planned) {
            let Planned { entry: NewEntry { tenant, key, memo, .. }, postings, .. } = planned;
            let number = read_count(number)?;
            entries.push(Entry { number, tenant, key, memo, postings, at });
        }
        Ok(entries)
    }

    async fn write_accounts(&self, client: &ClientWrapper) -> Done<()> {
        let sql = "-- write_accounts
            WITH held AS MATERIALIZED (
                SELECT a.account_no, given.entries, given.balance
                FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::numeric[])
                    AS given (account_no, version, entries, balance)
                JOIN accounts a ON a.account_no = given.account_no AND a.version = given.version
                ORDER BY a.account_no
                FOR UPDATE OF a
            )
            UPDATE accounts a SET balance = held.balance, version = a.version + held.entries
            FROM held WHERE a.account_no = held.account_no";
        let statement = client.prepare_cached(sql).await?;
        let (mut numbers, mut versions) = (Vec::new(), Vec::new());
        let (mut entries, mut balances) = (Vec::new(), Vec::new());
        for ((tenant_no, name), (number, read)) in &self.read {
            let account = self.accounts.get(tenant_no).and_then(|accounts| accounts.get(name));
            let Some(moved) = account.filter(|account| account.version != *read) else { continue };
            numbers.push(*number);
            versions.push(write_count(*read)?);
            entries.push(write_count(moved.version - *read)?);
            balances.push(SqlQuantity(moved.balance));
        }
        let written =
            client.execute(&statement, &[&numbers, &versions, &entries, &balances]).await?;
        if usize::try_from(written) == Ok(numbers.len()) {
            return Ok(());
        }
        Err(Failure::Again("an account has moved on".into()))
    }

    async fn insert_entries(&self, client: &ClientWrapper, at: Timestamp) -> Done<Vec<i64>> {
        let sql = "-- insert_entries
            INSERT INTO entries (tenant_no, key, memo, at)
            SELECT tenant_no, key, memo, $4
            FROM unnest($1::int4[], $2::text[], $3::text[])
                WITH ORDINALITY AS given (tenant_no, key, memo, place)
            ORDER BY place
            ON CONFLICT (tenant_no, key) DO NOTHING
            RETURNING entry_no, key";
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &each(&self.planned, |planned| planned.tenant_no),
            &each(&self.planned, |planned| planned.entry.key.as_str()),
            &each(&self.planned, |planned| planned.entry.memo.as_str()),
            &SqlTimestamp(at),
        ];
        let rows = client.read_all(sql, &parameters).await?;
        if rows.len() != self.planned.len() {
            return Err(Failure::Again("the key of an entry was taken meanwhile".into()));
        }
        let mut numbers = Vec::with_capacity(rows.len());
        for (row, planned) in rows.iter().zip(&self.planned) {
            let key: String = column(row, 1)?;
            if key != planned.entry.key.as_str() {
                let what = "entries were not written in their order".into();
                return Err(Error::Internal { what }.into());
            }
            numbers.push(column(row, 0)?);
        }
        Ok(numbers)
    }

    async fn insert_postings(&self, client: &ClientWrapper, entries: &[i64]) -> Done<()> {
        let sql = "-- insert_postings
            INSERT INTO postings (entry_no, line, account_no, amount, balance, version)
            SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::numeric[], $5::numeric[],
                $6::int8[])";
        let statement = client.prepare_cached(sql).await?;
        let (mut numbers, mut lines, mut accounts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut amounts, mut balances, mut versions) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, planned) in entries.iter().zip(&self.planned) {
            for (line, posting) in (0i64..).zip(&planned.postings) {
                let read = self.read.get(&(planned.tenant_no, posting.account.clone()));
                let (account, _) = read.ok_or_else(|| corrupt("accounts row was not read"))?;
                numbers.push(*entry);
                lines.push(line);
                accounts.push(*account);
                amounts.push(SqlQuantity(posting.amount));
                balances.push(SqlQuantity(posting.balance));
                versions.push(write_count(posting.version)?);
            }
        }
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&numbers, &lines, &accounts, &amounts, &balances, &versions];
        client.execute(&statement, &parameters).await?;
        Ok(())
    }
}

/// Creates those of the accounts that are missing.
pub async fn create_accounts(
    client: &ClientWrapper,
    accounts: &[(i32, NewAccount)],
    at: Timestamp,
) -> Done<()> {
    let sql = "-- create_accounts
        INSERT INTO accounts (tenant_no, name, unit, floor, balance, version, created_at)
        SELECT given.tenant_no, given.name, given.unit, given.floor, 0, 0, $5
        FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[])
            AS given (tenant_no, name, unit, floor)
        WHERE NOT EXISTS (
            SELECT FROM accounts a WHERE a.tenant_no = given.tenant_no AND a.name = given.name
        )
        ORDER BY given.tenant_no, given.name COLLATE \"C\"
        ON CONFLICT (tenant_no, name) DO NOTHING";
    let parameters: [&(dyn ToSql + Sync); 5] = [
        &each(accounts, |(tenant_no, _)| *tenant_no),
        &each(accounts, |(_, new)| new.name.as_str()),
        &each(accounts, |(_, new)| new.unit.as_str()),
        &each(accounts, |(_, new)| new.floor.name()),
        &SqlTimestamp(at),
    ];
    client.run(sql, &parameters).await?;
    Ok(())
}

async fn read_accounts(client: &ClientWrapper, tenants: &[i32], names: &[&str]) -> Done<Vec<Row>> {
    let sql = "-- read_accounts
        SELECT a.account_no, a.tenant_no, t.tenant, a.name, a.unit, a.floor, a.balance, a.version,
            a.created_at
        FROM unnest($1::int4[], $2::text[]) AS given (tenant_no, name)
        JOIN accounts a ON a.tenant_no = given.tenant_no AND a.name = given.name
        JOIN tenants t ON t.tenant_no = a.tenant_no";
    Ok(client.read_all(sql, &[&tenants, &names]).await?)
}

async fn lock_accounts(client: &ClientWrapper, tenants: &[i32], names: &[&str]) -> Done<Vec<Row>> {
    let sql = "-- lock_accounts
        SELECT a.account_no, a.tenant_no, t.tenant, a.name, a.unit, a.floor, a.balance, a.version,
            a.created_at
        FROM unnest($1::int4[], $2::text[]) AS given (tenant_no, name)
        JOIN accounts a ON a.tenant_no = given.tenant_no AND a.name = given.name
        JOIN tenants t ON t.tenant_no = a.tenant_no
        ORDER BY a.account_no
        FOR UPDATE OF a";
    Ok(client.read_all(sql, &[&tenants, &names]).await?)
}

pub async fn find_entry(
    client: &ClientWrapper,
    (tenant_no, tenant): (i32, &TenantId),
    key: &OnceKey,
) -> Done<Option<Entry>> {
    let sql = "-- find_entry
        SELECT e.entry_no, e.memo, e.at, a.name, a.unit, p.amount, p.balance, p.version
        FROM entries e
        JOIN postings p ON p.entry_no = e.entry_no
        JOIN accounts a ON a.account_no = p.account_no
        WHERE e.tenant_no = $1 AND e.key = $2
        ORDER BY p.line";
    let rows = client.read_all(sql, &[&tenant_no, &key.as_str()]).await?;
    let Some(first) = rows.first() else { return Ok(None) };
    Ok(Some(Entry {
        number: read_count(column(first, 0)?)?,
        tenant: tenant.clone(),
        key: key.clone(),
        memo: column(first, 1)?,
        postings: rows.iter().map(posting).collect::<Result<_>>()?,
        at: instant(first, 2)?,
    }))
}

fn posting(row: &Row) -> Result<Posting> {
    Ok(Posting {
        account: account_name(row, 3)?,
        unit: read_unit(row, 4)?,
        amount: read_quantity(row, 5)?,
        balance: read_quantity(row, 6)?,
        version: read_count(column(row, 7)?)?,
    })
}

/// Reads tenant, name, unit, floor, balance, version and time of creation, in this order.
pub fn account(row: &Row, from: usize) -> Result<Account> {
    let (tenant, floor): (String, String) = (column(row, from)?, column(row, from + 3)?);
    Ok(Account {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        name: account_name(row, from + 1)?,
        unit: read_unit(row, from + 2)?,
        floor: Floor::from_name(&floor).ok_or_else(|| damaged("accounts.floor", &floor))?,
        balance: read_quantity(row, from + 4)?,
        version: read_count(column(row, from + 5)?)?,
        created_at: instant(row, from + 6)?,
    })
}

fn account_name(row: &Row, place: usize) -> Result<AccountName> {
    let name: String = column(row, place)?;
    AccountName::parse(&name).map_err(|_| damaged("accounts.name", &name))
}

pub fn read_unit(row: &Row, place: usize) -> Result<Unit> {
    let unit: String = column(row, place)?;
    Unit::parse(&unit).map_err(|_| damaged("accounts.unit", &unit))
}

pub fn read_quantity(row: &Row, place: usize) -> Result<Quantity> {
    Ok(column::<SqlQuantity>(row, place)?.0)
}
