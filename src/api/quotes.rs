//! Tax rates, coupons, and what a bill will come to.

use super::{Decimal, Timestamp};
use crate::rules::tax::{Coupon, Off, PriceKind, TaxRate};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "jurisdiction": "de", "name": "vat", "percent": "19", "valid_from": "2021-01-01T00:00:00Z"
}))]
pub struct RateSpec {
    /// Such as `de` or `us-ny`; a place within another pays the rates of both.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9-]+$")]
    pub jurisdiction: String,
    /// What it is called on the bill.
    #[schema(min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub name: String,
    /// As a decimal number, such as 19 for 19 %.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,2})(\.[0-9]{1,6})?$")]
    pub percent: String,
    #[schema(format = DateTime)]
    pub valid_from: String,
    #[serde(default)]
    #[schema(format = DateTime)]
    pub valid_until: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RateAnswer {
    pub jurisdiction: String,
    pub name: String,
    pub percent: Decimal,
    pub valid_from: Timestamp,
    pub valid_until: Option<Timestamp>,
}

page!(RateList, rates: RateAnswer, next_after: String);

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"percent_off": "10", "valid_from": "2026-01-01T00:00:00Z"}))]
pub struct CouponSpec {
    /// Of every line, as a decimal number above 0 to 100.
    #[serde(default)]
    #[schema(pattern = r"^(0|[1-9][0-9]{0,2})(\.[0-9]{1,6})?$")]
    pub percent_off: Option<String>,
    /// Of all lines together, in `currency`.
    #[serde(default)]
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,3})?$")]
    pub amount_off: Option<String>,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 32, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    pub currency: Option<String>,
    #[schema(format = DateTime)]
    pub valid_from: String,
    #[serde(default)]
    #[schema(format = DateTime)]
    pub valid_until: Option<String>,
    /// In how many billing cycles one tenant gets it; all unless given.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub cycles_max: Option<u32>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct CouponAnswer {
    pub code: String,
    pub percent_off: Option<Decimal>,
    pub amount_off: Option<Decimal>,
    pub currency: Option<String>,
    pub valid_from: Timestamp,
    pub valid_until: Option<Timestamp>,
    pub cycles_max: Option<u32>,
}

page!(CouponList, coupons: CouponAnswer, next_after: String);

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LineSpec {
    /// The sender's name for it.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub id: String,
    /// An amount in the currency, no finer than its smallest unit, as a decimal number.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,3})?$")]
    pub amount: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "currency": "eur", "jurisdiction": "de", "prices": "exclusive",
    "lines": [{"id": "api_calls", "amount": "12.50"}]
}))]
pub struct QuoteSpec {
    #[schema(min_length = 3, max_length = 3, pattern = "^[a-z]{3}$")]
    pub currency: String,
    /// Where it is sold; a rate must hold there, of 0 percent if nothing is due.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9-]+$")]
    pub jurisdiction: String,
    /// Whether amounts include tax.
    pub prices: PriceKind,
    /// The moment whose rates hold; now unless given.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    #[schema(min_items = 1, max_items = 200)]
    pub lines: Vec<LineSpec>,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub coupon: Option<String>,
    /// Start of the billing cycle, for a coupon: it counts once in each.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub cycle: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuoteAnswer {
    /// The idempotency key it was answered under.
    pub key: String,
    /// The moment whose rates hold.
    pub at: Timestamp,
    /// Which engine answered.
    pub engine: String,
    /// Lines and sums, each a decimal number of the currency as a string.
    #[schema(value_type = Object)]
    pub quote: serde_json::Value,
    /// The coupon that was applied.
    pub coupon: Option<String>,
    /// Why the requested coupon was not applied.
    pub coupon_refused: Option<String>,
}

impl From<TaxRate> for RateAnswer {
    fn from(rate: TaxRate) -> Self {
        let TaxRate { jurisdiction, name, percent, valid_from, valid_until } = rate;
        Self { jurisdiction, name, percent, valid_from, valid_until }
    }
}

impl From<Coupon> for CouponAnswer {
    fn from(coupon: Coupon) -> Self {
        let (percent_off, amount_off) = match coupon.off {
            Off::Percent(percent) => (Some(percent), None),
            Off::Amount(amount) => (None, Some(amount)),
        };
        let Coupon { code, currency, valid_from, valid_until, cycles_max, .. } = coupon;
        Self { code, percent_off, amount_off, currency, valid_from, valid_until, cycles_max }
    }
}
