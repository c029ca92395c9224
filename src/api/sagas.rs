//! Subscriptions that are created, changed and ended by sagas, and what a tenant may use.

use super::Timestamp;
use crate::rules::saga::{LogLine, Mark, Saga, SagaKind, SagaState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a tenant is charged by and what it may use.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "plan": "pro", "prices": ["price_1Q"], "features": ["exports"], "email": "billing@acme.example"
}))]
pub struct SubscriptionSpec {
    /// Its name here.
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub plan: String,
    /// The provider's prices.
    #[schema(min_items = 1, max_items = 20)]
    pub prices: Vec<String>,
    /// What may be used while it lasts.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub features: Vec<String>,
    /// For a customer that has to be created.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub name: Option<String>,
    /// For a customer that has to be created.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub email: Option<String>,
    /// Whether billing periods are counted from the next end of a window (an hour, or a day of UTC
    /// if a meter is billed by day), so that no window lies in two periods. Flat prices are charged
    /// from then on.
    #[serde(default)]
    pub align: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"plan": "scale", "prices": ["price_2R"], "features": ["sso"]}))]
pub struct PlanSpec {
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub plan: String,
    #[schema(min_items = 1, max_items = 20)]
    pub prices: Vec<String>,
    #[serde(default)]
    #[schema(max_items = 100)]
    pub features: Vec<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"when": "period_end"}))]
pub struct CancelSpec {
    pub when: CancelMoment,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelMoment {
    /// When the current window has ended and its usage has gone out.
    Now,
    PeriodEnd,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct SagaAnswer {
    pub id: String,
    pub kind: SagaKind,
    pub tenant: String,
    pub state: SagaState,
    /// Grows with each new start after everything was undone.
    pub generation: u32,
    /// What it waits for, or what went wrong last.
    pub detail: Option<String>,
    /// When it goes on, while it is under way.
    pub due_at: Option<Timestamp>,
    pub created_at: Timestamp,
    /// When it came into its state.
    pub state_at: Timestamp,
}

page!(SagaList, sagas: SagaAnswer ("Newest first."), next_before: u64);

#[derive(Serialize, Deserialize, ToSchema)]
pub struct LineAnswer {
    pub generation: u32,
    pub step: String,
    pub mark: Mark,
    /// The output of the step, which later steps use.
    #[schema(value_type = Option<Object>)]
    pub result: Option<serde_json::Value>,
    pub detail: Option<String>,
    pub at: Timestamp,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct SagaStory {
    pub saga: SagaAnswer,
    /// What it was asked for.
    #[schema(value_type = Object)]
    pub params: serde_json::Value,
    /// Every step, oldest first.
    pub log: Vec<LineAnswer>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct SubscriptionAnswer {
    pub subscription: String,
    pub plan: String,
    pub prices: Vec<String>,
    pub features: Vec<String>,
    /// Whether the features may be used now.
    pub access: bool,
    /// Whether the provider's subscription suspends them: it is unpaid or paused.
    pub suspended: bool,
    /// The saga that made it.
    pub saga: String,
    pub began_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct SubscriptionList {
    /// Newest first.
    pub subscriptions: Vec<SubscriptionAnswer>,
    /// What the tenant may use now.
    pub features: Vec<String>,
}

impl From<&Saga> for SagaAnswer {
    fn from(saga: &Saga) -> Self {
        let Saga { kind, state, generation, created_at, state_at, .. } = *saga;
        Self {
            id: saga.id.clone(),
            kind,
            tenant: saga.tenant.to_string(),
            state,
            generation,
            detail: saga.detail.clone(),
            due_at: state.is_moving().then_some(saga.due_at),
            created_at,
            state_at,
        }
    }
}

impl From<LogLine> for LineAnswer {
    fn from(line: LogLine) -> Self {
        let LogLine { generation, name: step, mark, result, detail, at, .. } = line;
        let result = result.and_then(|text| serde_json::from_str(&text).ok());
        Self { generation, step, mark, result, detail, at }
    }
}
