//! Accounts, entries and statements.
//!
//! Invariant: an entry is written under its key once, with all its postings and the new balances
//! and versions of its accounts, in one transaction. Each account's row is written only if its
//! version is the one that was read (rows affected are checked); otherwise everything is read and
//! judged again, a bounded number of times. A crash leaves an entry whole or not at all.

use super::Result;
use super::faulty::verbs;
use super::idempotency::Completing;
use crate::rules::account::{Account, Entry, Floor, NewEntry, PostRefusal};
use crate::rules::ids::{AccountName, OnceKey, TenantId, Unit};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;

/// What an account is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAccount {
    pub tenant: TenantId,
    pub name: AccountName,
    pub unit: Unit,
    pub floor: Floor,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountPut {
    Created(Account),
    /// It stands already, and is the same.
    Stands(Account),
    /// One of another unit or floor stands under the name.
    Refused(Account),
}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    Recorded(Entry),
    /// It was written before, under this key.
    Repeated(Entry),
    /// Another entry stands under the key; nothing was written.
    KeyTaken(Entry),
    /// Nothing was written.
    Refused(PostRefusal),
}

/// Asks for an account's postings, newest first.
#[derive(Debug, Clone)]
pub struct StatementQuery {
    pub tenant: TenantId,
    pub account: AccountName,
    /// The version of the last line of the page before.
    pub before: Option<u64>,
    pub limit: usize,
}

/// One line of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementLine {
    /// The account's version after it: lines of an account are numbered without gaps.
    pub version: u64,
    pub entry: u64,
    pub key: OnceKey,
    pub memo: String,
    pub amount: Quantity,
    pub balance: Quantity,
    pub at: Timestamp,
}

verbs! {
    pub trait Accounts: Send + Sync {
        /// Creates an account; the tenant is created if it is not known.
        async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut>;
        async fn find_account(
            &self,
            tenant: &TenantId,
            name: &AccountName,
        ) -> Result<Option<Account>>;
        /// A tenant's accounts in the order of their names' bytes, after `after`.
        async fn list_accounts(
            &self,
            tenant: &TenantId,
            after: Option<&AccountName>,
            limit: usize,
        ) -> Result<Vec<Account>>;
        /// Writes an entry, judged by `rules::account::judge_entry`. With `completing`, the claim
        /// of its request ends in the same transaction, whatever became of the entry.
        async fn post_entry(
            &self,
            entry: NewEntry,
            at: Timestamp,
            completing: Option<&Completing<Posted>>,
        ) -> Result<Posted>;
        async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>>;
        async fn read_statement(&self, query: StatementQuery) -> Result<Vec<StatementLine>>;
    }
}
