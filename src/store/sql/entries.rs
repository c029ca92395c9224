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

use super::accounts::{COLUMNS, decode_account, insert_accounts};
use super::{Done, Failure, Row, Session, Value, values};
use crate::rules::account::{
    Account, Entry, NewAccount, NewEntry, PostRefusal, Posting, plan_entry,
};
use crate::rules::fault::Fault;
use crate::rules::ids::{AccountName, OnceKey, TenantId, TenantNo};
use crate::rules::plan::Plan;
use crate::rules::timestamp::Timestamp;
use crate::store::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Accounts as they were read, and the entries that are planned between them.
#[derive(Default)]
pub struct Book {
    /// By tenant and name, as the planned entries leave them.
    accounts: BTreeMap<TenantNo, BTreeMap<AccountName, Account>>,
    read: BTreeMap<(TenantNo, AccountName), ReadAccount>,
    planned: Vec<PlannedEntry>,
}

/// An account as it was read.
#[derive(Clone, Copy)]
struct ReadAccount {
    number: u64,
    version: u64,
}

struct PlannedEntry {
    tenant: TenantNo,
    entry: NewEntry,
    /// What the entry leaves, in its order.
    postings: Vec<Posting>,
}

impl Book {
    /// Reads those of the accounts that exist. Others may change them before they are written,
    /// which is then noticed.
    pub fn read_accounts(
        session: &dyn Session,
        names: &BTreeSet<(TenantNo, &AccountName)>,
    ) -> Done<Self> {
        let sql = format!(
            "-- read_accounts
            WITH given (tenant_no, name) AS (VALUES ($::int4, $::text), ...)
            SELECT {COLUMNS} FROM given JOIN accounts
                ON accounts.tenant_no = given.tenant_no AND accounts.name = given.name"
        );
        let rows = names.iter().map(|(tenant, name)| values![tenant, name].to_vec());
        Self::of(session, &sql, rows)
    }

    /// The same accounts, which nobody else changes from here to the end of the transaction.
    pub fn lock_accounts(self, session: &dyn Session) -> Done<Self> {
        let sql = format!(
            "-- lock_accounts
            WITH given (account_no) AS (VALUES ($::int8), ...)
            SELECT {COLUMNS} FROM given JOIN accounts ON accounts.account_no = given.account_no
            ORDER BY accounts.account_no FOR UPDATE OF accounts"
        );
        let numbers: BTreeSet<u64> = self.read.values().map(|read| read.number).collect();
        Self::of(session, &sql, numbers.iter().map(|number| values![number].to_vec()))
    }

    /// Reads and locks accounts; those that are missing are created.
    pub fn hold(
        session: &dyn Session,
        wanted: &BTreeMap<(TenantNo, &AccountName), &NewAccount>,
        at: Timestamp,
    ) -> Done<Self> {
        let names: BTreeSet<_> = wanted.keys().copied().collect();
        let mut book = Self::read_accounts(session, &names)?;
        // Not tried before they are looked for: each try takes a number.
        let missing: Vec<_> = wanted
            .iter()
            .filter(|((tenant, name), _)| !book.read.contains_key(&(*tenant, (*name).clone())))
            .map(|((tenant, _), new)| (*tenant, *new))
            .collect();
        if !missing.is_empty() {
            insert_accounts(session, &missing, at)?;
            book = Self::read_accounts(session, &names)?;
        }
        book.lock_accounts(session)
    }

    fn of(
        session: &dyn Session,
        sql: &str,
        rows: impl IntoIterator<Item = Vec<Value>>,
    ) -> Done<Self> {
        let found = session.read_batch(sql, rows, |row| {
            let tenant: TenantNo = row.get("accounts.tenant_no")?;
            Ok((tenant, row.get("accounts.account_no")?, decode_account(row)?))
        })?;
        let mut book = Self::default();
        for (tenant, number, account) in found {
            let read = ReadAccount { number, version: account.version };
            book.read.insert((tenant, account.name.clone()), read);
            book.accounts.entry(tenant).or_default().insert(account.name.clone(), account);
        }
        Ok(book)
    }

    /// Plans an entry after those that were planned before it.
    pub fn plan(
        &mut self,
        tenant: TenantNo,
        entry: NewEntry,
    ) -> std::result::Result<Plan<(), PostRefusal>, Fault> {
        let accounts = self.accounts.entry(tenant).or_default();
        let postings = match plan_entry(accounts, &entry)? {
            Plan::Write(postings) => postings,
            Plan::Answer(refusal) => return Ok(Plan::Answer(refusal)),
        };
        for posting in &postings {
            let account = accounts.get_mut(&posting.account).expect("it was judged by this one");
            (account.balance, account.version) = (posting.balance, posting.version);
        }
        self.planned.push(PlannedEntry { tenant, entry, postings });
        Ok(Plan::Write(()))
    }

    /// Writes what is planned, and everything that belongs to it; the entries are in the order in
    /// which they were planned. If an account has moved on or a key is taken, the transaction is to
    /// be done again.
    pub fn write(self, session: &dyn Session, at: Timestamp) -> Done<Vec<Entry>> {
        self.write_accounts(session)?;
        let numbers = self.insert_entries(session, at)?;
        self.insert_postings(session, &numbers)?;
        let entry = |(number, planned): (u64, PlannedEntry)| {
            let PlannedEntry { entry: NewEntry { tenant, key, memo, .. }, postings, .. } = planned;
            Entry { number, tenant, key, memo, postings, at }
        };
        Ok(numbers.into_iter().zip(self.planned).map(entry).collect())
    }

    /// Writes the accounts that have moved, in the order of their numbers, if they are as they were
    /// read.
    fn write_accounts(&self, session: &dyn Session) -> Done<()> {
        let sql = "-- write_accounts
            WITH given (account_no, read, version, balance) AS (
                VALUES ($::int8, $::int8, $::int8, $::numeric), ...
            ), held AS MATERIALIZED (
                SELECT accounts.account_no, given.version, given.balance
                FROM given JOIN accounts
                    ON accounts.account_no = given.account_no AND accounts.version = given.read
                ORDER BY accounts.account_no FOR UPDATE OF accounts
            )
            UPDATE accounts SET balance = held.balance, version = held.version
            FROM held WHERE accounts.account_no = held.account_no";
        let mut moved = BTreeMap::new();
        for ((tenant, name), read) in &self.read {
            let account = self.accounts.get(tenant).and_then(|accounts| accounts.get(name));
            if let Some(account) = account.filter(|account| account.version != read.version) {
                let Account { version, balance, .. } = account;
                let row = values![read.number, read.version, version, balance].to_vec();
                moved.insert(read.number, row);
            }
        }
        let expected = moved.len();
        match usize::try_from(session.run_batch(sql, moved.into_values())?) == Ok(expected) {
            true => Ok(()),
            false => Err(Failure::Again("an account has moved on".into())),
        }
    }

    fn insert_entries(&self, session: &dyn Session, at: Timestamp) -> Done<Vec<u64>> {
        let sql = "-- insert_entries
            INSERT INTO entries (tenant_no, key, memo, at) VALUES ($, $, $, $), ...
            ON CONFLICT (tenant_no, key) DO NOTHING
            RETURNING entry_no, key";
        let rows = self.planned.iter().map(|PlannedEntry { tenant, entry, .. }| {
            values![tenant, entry.key, entry.memo, at].to_vec()
        });
        let written = session.read_batch(sql, rows, |row| {
            Ok((row.get("entries.entry_no")?, row.get::<OnceKey>("entries.key")?))
        })?;
        if written.len() != self.planned.len() {
            return Err(Failure::Again("the key of an entry was taken meanwhile".into()));
        }
        let keys = written.iter().map(|(_, key)| key);
        if !keys.eq(self.planned.iter().map(|planned| &planned.entry.key)) {
            let what = "entries were not written in their order".into();
            return Err(Error::Internal { what }.into());
        }
        Ok(written.into_iter().map(|(number, _)| number).collect())
    }

    fn insert_postings(&self, session: &dyn Session, entries: &[u64]) -> Done<()> {
        let sql = "-- insert_postings
            INSERT INTO postings (entry_no, line, account_no, amount, balance, version)
            VALUES ($, $, $, $, $, $), ...";
        let mut rows = Vec::new();
        for (entry, planned) in entries.iter().zip(&self.planned) {
            for (line, posting) in (0i64..).zip(&planned.postings) {
                let Posting { account, amount, balance, version, .. } = posting;
                let read = self.read.get(&(planned.tenant, account.clone()));
                let number = read
                    .map(|read| read.number)
                    .ok_or_else(|| Error::Corrupt { what: "accounts row was not read".into() })?;
                rows.push(values![entry, line, number, amount, balance, version].to_vec());
            }
        }
        session.run_batch(sql, rows)?;
        Ok(())
    }
}

pub fn find_entry(session: &dyn Session, tenant: &TenantId, key: &OnceKey) -> Done<Option<Entry>> {
    let sql = "-- find_entry
        SELECT entries.entry_no, memo, at, name, unit, amount, postings.balance AS balance_after,
            postings.version AS after
        FROM entries
        JOIN postings ON postings.entry_no = entries.entry_no
        JOIN accounts ON accounts.account_no = postings.account_no
        WHERE entries.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND key = $2
        ORDER BY line";
    let rows = session.rows(sql, values![tenant, key])?;
    let Some(first) = rows.first() else { return Ok(None) };
    Ok(Some(Entry {
        number: first.get("entries.entry_no")?,
        tenant: tenant.clone(),
        key: key.clone(),
        memo: first.get("entries.memo")?,
        postings: rows.iter().map(decode_posting).collect::<Result<_>>()?,
        at: first.get("entries.at")?,
    }))
}

fn decode_posting(row: &Row) -> Result<Posting> {
    Ok(Posting {
        account: row.get("accounts.name")?,
        unit: row.get("accounts.unit")?,
        amount: row.get("postings.amount")?,
        balance: row.get("postings.balance_after")?,
        version: row.get("postings.after")?,
    })
}
