//! Accounts, entries and statements.
//!
//! Invariant: an entry is written under its key once, with all its postings and the new balances
//! and versions of its accounts, in one transaction. Each account's row is written only if its
//! version is the one that was read (rows affected are checked); otherwise everything is read and
//! judged again, a bounded number of times. A crash leaves an entry whole or not at all.

pub use crate::rules::account::{AccountPut, NewAccount, Posted, StatementLine};

use super::faulty::verbs;
use super::idempotency::Completing;
use super::{Query, Result};
use crate::rules::account::{Account, Entry, NewEntry};
use crate::rules::ids::{AccountName, OnceKey, TenantId};
use crate::rules::timestamp::Timestamp;

verbs! {
    pub trait Accounts: Send + Sync {
        /// Creates an account; the tenant is created if it is not known.
        async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut>;
        async fn find_account(
            &self,
            tenant: &TenantId,
            name: &AccountName,
        ) -> Result<Option<Account>>;
        /// A tenant's accounts in the order of their names' bytes.
        async fn list_accounts(
            &self,
            query: Query<TenantId, AccountName>,
        ) -> Result<Vec<Account>>;
        /// Writes an entry, as `rules::account::plan_entry` plans it. With `completing`, the claim
        /// of its request ends in the same transaction, whatever the outcome of the entry.
        async fn post_entry(
            &self,
            entry: NewEntry,
            at: Timestamp,
            completing: Option<&Completing<Posted>>,
        ) -> Result<Posted>;
        async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>>;
        /// An account's postings, newest first; the cursor is the version of a line.
        async fn read_statement(
            &self,
            query: Query<(TenantId, AccountName)>,
        ) -> Result<Vec<StatementLine>>;
    }
}
