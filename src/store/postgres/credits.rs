//! Stand-in.

use super::PostgresStore;
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
impl Credits for PostgresStore {
    async fn issue_grant(
        &self,
        terms: GrantTerms,
        at: Timestamp,
        completing: Option<&Completing<Issued>>,
    ) -> Result<Issued> {
        unimplemented!()
    }
    async fn take_back(
        &self,
        order: TakeBack,
        at: Timestamp,
        completing: Option<&Completing<TakenBack>>,
    ) -> Result<TakenBack> {
        unimplemented!()
    }
    async fn expire_grants(
        &self,
        expired_by: Timestamp,
        at: Timestamp,
        limit: usize,
    ) -> Result<usize> {
        unimplemented!()
    }
    async fn list_grants(
        &self,
        tenant: &TenantId,
        filter: GrantFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Grant>> {
        unimplemented!()
    }
    async fn list_credit_changes(&self, query: ChangeQuery) -> Result<Vec<CreditChange>> {
        unimplemented!()
    }
}
