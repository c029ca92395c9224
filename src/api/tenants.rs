//! Tenants, and their subscriptions, invoices and credits as the provider shows them.

use super::Timestamp;
use crate::rules::given::Given;
use crate::rules::invoice::Dunning;
use crate::rules::subscription::{Stamp, Stretch};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "Acme Inc.", "customer": "cus_9s6XKzkNRiz8i3"}))]
pub struct TenantSpec {
    /// For people; without control characters. Left out, it stays as it is; null takes it away.
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub name: Given<String>,
    /// The provider's customer id for this tenant. Left out, it stays as it is; null removes it,
    /// and pushes that were not sent yet wait for the next one.
    #[serde(default)]
    #[schema(
        value_type = Option<String>, min_length = 1, max_length = 255,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"
    )]
    pub customer: Given<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TenantAnswer {
    pub id: String,
    pub name: Option<String>,
    /// The provider's customer id for this tenant.
    pub customer: Option<String>,
    pub created_at: Timestamp,
}

page!(TenantList, tenants: TenantAnswer, next_after: String);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TimelineAnswer {
    pub tenant: String,
    pub at: Timestamp,
    /// The subscriptions that were in force then.
    pub stamps: Vec<StampAnswer>,
    /// All that is known, in the order of subscriptions and time.
    pub stretches: Vec<StretchAnswer>,
    /// In the order of ids.
    pub invoices: Vec<InvoiceAnswer>,
    /// Stripe's credit grants; those of this server are at `/v1/tenants/{tenant}/grants`.
    pub credit_grants: Vec<CreditGrantAnswer>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct StampAnswer {
    pub subscription: String,
    pub status: String,
    /// The plan: the prices it is made of.
    pub prices: Vec<String>,
    pub trial: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct StretchAnswer {
    pub subscription: String,
    pub from: Timestamp,
    /// Null: until now.
    pub until: Option<Timestamp>,
    pub status: String,
    pub prices: Vec<String>,
    pub trial_start: Option<Timestamp>,
    pub trial_end: Option<Timestamp>,
}

/// Amounts are of the currency's smallest unit.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct InvoiceAnswer {
    pub id: String,
    pub status: String,
    pub from: Timestamp,
    pub to: Timestamp,
    pub currency: String,
    /// Before tax.
    pub subtotal: i64,
    pub tax: i64,
    pub total: i64,
    /// The state of its payment.
    pub dunning: Dunning,
    /// When a draft is fixed.
    pub finalizes_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct CreditGrantAnswer {
    pub id: String,
    /// paid or promotional.
    pub category: String,
    pub currency: String,
    pub amount: i64,
    pub status: String,
    pub expires_at: Option<Timestamp>,
}

impl From<Stamp> for StampAnswer {
    fn from(stamp: Stamp) -> Self {
        let Stamp { subscription, status, prices, trial } = stamp;
        Self { subscription: subscription.to_string(), status, prices, trial }
    }
}

impl From<Stretch> for StretchAnswer {
    fn from(stretch: Stretch) -> Self {
        let Stretch { subscription, from, until, status, prices, trial } = stretch;
        let (trial_start, trial_end) = trial.map(|trial| (trial.start, trial.end)).unzip();
        let subscription = subscription.to_string();
        Self { subscription, from, until, status, prices, trial_start, trial_end }
    }
}
