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
impl Messages for PostgresStore {
    async fn record_messages(&self, messages: Vec<NewMessage>, at: Timestamp) -> Result<usize> {
        unimplemented!()
    }
    async fn list_messages(
        &self,
        tenant: Option<&TenantId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Message>> {
        unimplemented!()
    }
    async fn claim_messages(
        &self,
        now: Timestamp,
        lease_until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ClaimedMessage>> {
        unimplemented!()
    }
    async fn settle_message(
        &self,
        number: u64,
        fence: u64,
        outcome: NoticeOutcome,
        at: Timestamp,
    ) -> Result<bool> {
        unimplemented!()
    }
    async fn prune_messages(&self, before: Timestamp, limit: usize) -> Result<usize> {
        unimplemented!()
    }
}
