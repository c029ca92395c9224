//! Tax rates, coupons and quotes.
//!
//! Invariant: a quote is kept under its tenant's key for ever as it was answered, with the use of
//! its coupon in one transaction; a tenant uses a coupon in one cycle for one quote. Two rates of
//! one jurisdiction and name never hold at one moment. A crash leaves a quote whole or not at all.

use super::faulty::verbs;
use super::idempotency::Completing;
use super::{Query, Result};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::tax::{Coupon, TaxRate};
use crate::rules::timestamp::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RatePut {
    Created,
    /// The same one is stored.
    Unchanged,
    /// It would hold together with this one.
    Overlaps(TaxRate),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CouponPut {
    Created,
    Unchanged,
    /// Another one has this code.
    Refused(Coupon),
}

/// A quote as it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredQuote {
    pub tenant: TenantId,
    pub key: OnceKey,
    /// The request as JSON in one form, which distinguishes a repeat from a reuse of the key.
    pub request: String,
    /// The answer as JSON.
    pub answer: String,
    /// Which engine answered.
    pub engine: String,
    pub at: Timestamp,
}

/// A coupon that a quote uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CouponUse {
    pub code: String,
    /// Start of the cycle.
    pub cycle: Timestamp,
    pub cycles_max: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuoteRecorded {
    Recorded(StoredQuote),
    /// It was answered before, under this key.
    Repeated(StoredQuote),
    /// Another request has this key; nothing was written.
    KeyTaken(StoredQuote),
    /// The coupon was used in this cycle by the quote of this key, or in as many cycles as it may
    /// be; nothing was written.
    CouponUsed(Option<OnceKey>),
}

/// A rate's jurisdiction, name and beginning, of which there is one.
pub type RateKey = (String, String, Timestamp);

verbs! {
    pub trait Quotes: Send + Sync {
        async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut>;
        /// Ends a rate: sets its `valid_until`, which must lie after its `valid_from` and not after
        /// its own end. False if there is no such rate.
        async fn end_tax_rate(
            &self,
            jurisdiction: &str,
            name: &str,
            valid_from: Timestamp,
            valid_until: Timestamp,
        ) -> Result<bool>;
        /// By jurisdiction, name and beginning.
        async fn list_tax_rates(&self, query: Query<(), RateKey>) -> Result<Vec<TaxRate>>;
        async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut>;
        async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>>;
        /// In the order of codes' bytes.
        async fn list_coupons(&self, query: Query<(), String>) -> Result<Vec<Coupon>>;
        async fn find_quote(&self, tenant: &TenantId, key: &OnceKey)
        -> Result<Option<StoredQuote>>;
        /// The key of the quote for which a tenant used a coupon in a cycle, and in how many cycles
        /// the tenant has used it.
        async fn read_coupon_uses(
            &self,
            tenant: &TenantId,
            code: &str,
            cycle: Timestamp,
        ) -> Result<(Option<OnceKey>, u32)>;
        async fn record_quote(
            &self,
            quote: StoredQuote,
            coupon: Option<CouponUse>,
            completing: Option<&Completing<QuoteRecorded>>,
        ) -> Result<QuoteRecorded>;
    }
}
