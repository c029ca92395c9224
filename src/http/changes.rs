//! `/v1/changes`: what others are told, for those who rather ask.
//!
//! Invariant: numbers grow, and what was read once is never changed: whoever remembers the last
//! number it has seen misses nothing and sees nothing twice.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Query, parse_limit};
use super::problem::Problem;
use crate::rules::ids::TenantId;
use crate::store::outbox::Message;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ChangeFeedParameters {
    /// Only changes of this tenant.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// The last number that was seen.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    after: Option<u64>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct MessageAnswer {
    number: u64,
    /// The same here and in every delivery.
    id: String,
    /// Such as `credits.issued` or `saga.completed`.
    kind: String,
    tenant: Option<String>,
    #[schema(value_type = Object)]
    data: serde_json::Value,
    #[schema(format = DateTime)]
    at: String,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ChangeFeed {
    /// Oldest first.
    changes: Vec<MessageAnswer>,
    /// Give it as `after` to go on, now or later; null if there was nothing.
    last: Option<u64>,
}

/// List what has changed
///
/// Kept for 30 days, those of dunning for longer. With `alerts.webhook_changes` the same is sent to
/// the webhook.
#[utoipa::path(
    get, path = "/v1/changes", tag = "changes", params(ChangeFeedParameters),
    responses((status = 200, description = "Changes in their order", body = ChangeFeed))
)]
pub async fn list_changes(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<ChangeFeedParameters>,
) -> Result<axum::Json<ChangeFeed>, Problem> {
    caller.require(Scope::Read)?;
    let asked = query.tenant.as_deref().map(TenantId::parse).transpose()?;
    let tenant = caller.narrow(asked)?;
    let (after, limit) = (query.after.unwrap_or(0), parse_limit(query.limit)?);
    let found = app.store.list_messages(tenant.as_ref(), after, limit).await?;
    let last = found.last().map(|message| message.number);
    let changes = found.into_iter().map(MessageAnswer::from).collect();
    Ok(axum::Json(ChangeFeed { changes, last }))
}

impl From<Message> for MessageAnswer {
    fn from(message: Message) -> Self {
        Self {
            number: message.number,
            id: message.id,
            kind: message.kind,
            tenant: message.tenant.map(|tenant| tenant.to_string()),
            data: serde_json::from_str(&message.payload).unwrap_or_default(),
            at: message.at.to_string(),
        }
    }
}
