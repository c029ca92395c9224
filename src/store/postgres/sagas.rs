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
impl Sagas for PostgresStore {
    async fn begin_saga(
        &self,
        new: NewSaga,
        at: Timestamp,
        completing: Option<&Completing<Begun>>,
    ) -> Result<Begun> {
        unimplemented!()
    }
    async fn claim_sagas(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedSaga>> {
        unimplemented!()
    }
    async fn record_saga(
        &self,
        claim: (u64, u64),
        lines: Vec<LogLine>,
        standing: Standing,
        messages: Vec<NewMessage>,
        at: Timestamp,
    ) -> Result<bool> {
        unimplemented!()
    }
    async fn find_saga(&self, id: &str) -> Result<Option<(Saga, Vec<LogLine>)>> {
        unimplemented!()
    }
    async fn list_sagas(&self, query: SagaQuery) -> Result<Vec<Saga>> {
        unimplemented!()
    }
    async fn revive_saga(&self, id: &str, at: Timestamp) -> Result<Revived> {
        unimplemented!()
    }
    async fn put_hold(
        &self,
        tenant: &TenantId,
        saga: &str,
        from: Timestamp,
        at: Timestamp,
    ) -> Result<()> {
        unimplemented!()
    }
    async fn release_hold(&self, saga: &str) -> Result<bool> {
        unimplemented!()
    }
    async fn count_pushes_before(&self, tenant: &TenantId, before: Timestamp) -> Result<u64> {
        unimplemented!()
    }
    async fn record_agreement(&self, agreement: Agreement) -> Result<()> {
        unimplemented!()
    }
    async fn set_access(&self, saga: &str, access: bool) -> Result<()> {
        unimplemented!()
    }
    async fn withdraw_agreement(&self, saga: &str) -> Result<()> {
        unimplemented!()
    }
    async fn end_agreement(&self, subscription: &SubscriptionId, at: Timestamp) -> Result<()> {
        unimplemented!()
    }
    async fn list_agreements(&self, tenant: &TenantId, limit: usize) -> Result<Vec<Agreement>> {
        unimplemented!()
    }
}
