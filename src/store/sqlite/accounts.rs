//! Stand-in.

use super::SqliteStore;
#[allow(unused_imports)]
use crate::rules::{
    account::*,
    credit::{CreditChange, Grant, GrantTerms},
    ids::*,
    saga::{LogLine, Saga},
    tax::{Coupon, TaxRate},
    timestamp::*,
};
#[allow(unused_imports)]
use crate::store::{
    Result, account::*, alert::NoticeOutcome, credit::*, idempotency::Completing, message::*,
    quote::*, saga::*,
};
use async_trait::async_trait;
#[async_trait]
#[allow(unused_variables)]
impl Accounts for SqliteStore {
    async fn put_account(&self, account: NewAccount, at: Timestamp) -> Result<AccountPut> {
        unimplemented!()
    }
    async fn find_account(&self, tenant: &TenantId, name: &AccountName) -> Result<Option<Account>> {
        unimplemented!()
    }
    async fn list_accounts(
        &self,
        tenant: &TenantId,
        after: Option<&AccountName>,
        limit: usize,
    ) -> Result<Vec<Account>> {
        unimplemented!()
    }
    async fn post_entry(
        &self,
        entry: NewEntry,
        at: Timestamp,
        completing: Option<&Completing<Posted>>,
    ) -> Result<Posted> {
        unimplemented!()
    }
    async fn find_entry(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<Entry>> {
        unimplemented!()
    }
    async fn read_statement(&self, query: StatementQuery) -> Result<Vec<StatementLine>> {
        unimplemented!()
    }
}
