//! Grants of credits, every change of them, and what a tenant may still use.

use super::{Decimal, Timestamp};
use crate::rules::alert::ThresholdPeriod;
use crate::rules::credit::{ChangeKind, CreditChange, Grant, Pool};
use crate::rules::meter::Catalog;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "pool": "purchased", "unit": "eur", "amount": "100", "rates": {"api_calls": "0.002"},
    "memo": "top-up, invoice 2026-117"
}))]
pub struct GrantSpec {
    /// `purchased`: paid by the tenant (Stripe: `paid`). `granted`: given free of charge (Stripe:
    /// `promotional`).
    pub pool: Pool,
    /// A currency or another unit, such as `eur` or `credits`.
    #[schema(min_length = 1, max_length = 32, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    pub unit: String,
    /// As a decimal number above 0.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$")]
    pub amount: String,
    /// What one unit of usage costs, for each meter it applies to.
    pub rates: BTreeMap<String, String>,
    /// 0 is drawn first, 100 last; 50 unless given.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 100, default = 50)]
    pub priority: Option<u8>,
    /// Usage at or after this instant is covered; now unless given.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub effective_at: Option<String>,
    /// Usage at or after this instant is not covered.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// Why, for readers of the history.
    #[serde(default)]
    #[schema(max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub memo: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct GrantAnswer {
    pub id: u64,
    /// The idempotency key it was issued under.
    pub key: String,
    pub pool: Pool,
    pub unit: String,
    pub amount: Decimal,
    /// What the last cuts left of it.
    pub remaining: Decimal,
    pub rates: BTreeMap<String, Decimal>,
    pub priority: u8,
    pub effective_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub memo: String,
    pub created_at: Timestamp,
}

page!(GrantList, grants: GrantAnswer ("Oldest first."), next_after: u64);

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"amount": "40", "memo": "refund of the rest"}))]
pub struct VoidSpec {
    /// As a decimal number above 0; all that is left unless given.
    #[serde(default)]
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$")]
    pub amount: Option<String>,
    #[serde(default)]
    #[schema(max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    pub memo: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct CoveredAnswer {
    pub meter: String,
    pub window_start: Timestamp,
    pub window_end: Timestamp,
    /// In units of the meter.
    pub quantity: Decimal,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct ChangeAnswer {
    pub number: u64,
    pub grant: u64,
    pub kind: ChangeKind,
    /// In the grant's unit, never negative: the kind gives the direction.
    pub amount: Decimal,
    /// What it left of the grant.
    pub remaining: Decimal,
    /// The usage that a draw covered, or that a later revision returned.
    pub covered: Option<CoveredAnswer>,
    pub memo: String,
    pub at: Timestamp,
}

page!(ChangeList, changes: ChangeAnswer ("Newest first."), next_before: u64);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct PoolAnswer {
    pub unit: String,
    pub pool: Pool,
    /// What the last cuts left.
    pub remaining: Decimal,
    /// What usage that was counted and not cut yet will draw.
    pub pending: Decimal,
    /// What usage of this moment can draw.
    pub available: Decimal,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct CreditsAnswer {
    pub pools: Vec<PoolAnswer>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuotaAnswer {
    pub period: ThresholdPeriod,
    pub limit: Decimal,
    pub used: Decimal,
    /// Never negative.
    pub remaining: Decimal,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct EntitlementAnswer {
    pub meter: String,
    /// Whether the tenant is known here: its first event creates it. False where the name may be
    /// misspelt.
    pub known: bool,
    /// False if a quota is used up; the caller enforces it. Events are counted all the same.
    pub allowed: bool,
    pub quotas: Vec<QuotaAnswer>,
    /// How much more usage the credits cover, in units of the meter.
    pub covered: Decimal,
}

impl From<(&Grant, &Catalog)> for GrantAnswer {
    fn from((grant, catalog): (&Grant, &Catalog)) -> Self {
        let terms = grant.terms.clone();
        let slug = |(meter, rate)| Some((catalog.get(meter)?.slug.to_string(), rate));
        Self {
            id: grant.number,
            key: terms.key.to_string(),
            pool: terms.pool,
            unit: terms.unit.to_string(),
            amount: terms.amount,
            remaining: grant.remaining,
            rates: terms.rates.into_iter().filter_map(slug).collect(),
            priority: terms.priority,
            effective_at: terms.effective_at,
            expires_at: terms.expires_at,
            memo: terms.memo,
            created_at: grant.created_at,
        }
    }
}

impl From<(&CreditChange, &Catalog)> for ChangeAnswer {
    fn from((change, catalog): (&CreditChange, &Catalog)) -> Self {
        let covered = change.covered.as_ref().map(|covered| CoveredAnswer {
            meter: catalog.get(covered.meter).map_or_else(String::new, |m| m.slug.to_string()),
            window_start: covered.window.start,
            window_end: covered.window.end,
            quantity: covered.quantity,
        });
        let CreditChange { number, grant, kind, amount, remaining, at, .. } = *change;
        Self { number, grant, kind, amount, remaining, covered, memo: change.memo.clone(), at }
    }
}
