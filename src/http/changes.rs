//! `/v1/changes`: the change feed, for receivers that poll.
//!
//! Invariant: numbers grow, and what was read once never changes: a reader that keeps the last
//! number it has seen misses nothing and sees nothing twice.

use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Query, list_query};
use crate::api::changes::{ChangeFeed, PublishedChange};
use crate::store::{self, outbox::Message};

list_query!(ChangeFeedParameters, "The last number that was seen.", after: u64
    (minimum = 0, maximum = 9_007_199_254_740_991i64), {
    /// Only changes of this tenant.
    tenant: Option<String>,
});

/// List published changes
///
/// Kept for 30 days, those of dunning for longer. With `alerts.webhook_changes` the same is sent to
/// the webhook that receives alerts.
#[utoipa::path(
    get, path = "/v1/changes", tag = "changes", params(ChangeFeedParameters),
    responses((status = 200, description = "Changes in their order", body = ChangeFeed))
)]
pub async fn list_changes(
    Call { app, caller }: Call,
    Query(query): Query<ChangeFeedParameters>,
) -> Answer<ChangeFeed> {
    caller.require(Scope::Read)?;
    let tenant = caller.narrow(query.tenant.as_deref())?;
    let limit = Limit::parse(query.limit)?.get();
    let asked = store::Query { filter: tenant, after: query.after, limit };
    let found = app.store.list_changes(asked).await?;
    let last = found.last().map(|change| change.number);
    let changes = found.into_iter().map(PublishedChange::from).collect();
    Ok(axum::Json(ChangeFeed { changes, last }))
}

impl From<Message> for PublishedChange {
    fn from(change: Message) -> Self {
        let Message { number, id, kind, tenant, payload, at, .. } = change;
        let tenant = tenant.map(|tenant| tenant.to_string());
        let data = serde_json::from_str(&payload).unwrap_or_default();
        Self { number, id, kind, tenant, data, at }
    }
}
