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
impl Quotes for PostgresStore {
    async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut> {
        unimplemented!()
    }
    async fn end_tax_rate(
        &self,
        jurisdiction: &str,
        name: &str,
        valid_from: Timestamp,
        valid_until: Timestamp,
    ) -> Result<bool> {
        unimplemented!()
    }
    async fn list_tax_rates(&self) -> Result<Vec<TaxRate>> {
        unimplemented!()
    }
    async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut> {
        unimplemented!()
    }
    async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>> {
        unimplemented!()
    }
    async fn list_coupons(&self, after: Option<&str>, limit: usize) -> Result<Vec<Coupon>> {
        unimplemented!()
    }
    async fn find_quote(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<StoredQuote>> {
        unimplemented!()
    }
    async fn read_coupon_uses(
        &self,
        tenant: &TenantId,
        code: &str,
        cycle: Timestamp,
    ) -> Result<(Option<OnceKey>, u32)> {
        unimplemented!()
    }
    async fn record_quote(
        &self,
        quote: StoredQuote,
        coupon: Option<CouponUse>,
        completing: Option<&Completing<QuoteRecorded>>,
    ) -> Result<QuoteRecorded> {
        unimplemented!()
    }
}
