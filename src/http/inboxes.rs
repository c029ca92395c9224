//! `/v1/conflicts` and `/v1/quarantine`: what was kept and not counted, for a person to look at.
//!
//! Invariant: a key that is bound to a tenant sees that tenant's records only.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Query, fit_page, parse_limit};
use super::problem::{Kind, Problem};
use super::records::raw_json;
use crate::rules::ids::TenantId;
use crate::store::{ConflictRecord, InboxPage, InboxQuery, QuarantineRecord};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;

/// Largest number that every JSON parser holds exactly; no store numbers so many records.
const AFTER_MAX: u64 = 9_007_199_254_740_991;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InboxParameters {
    /// Only records of this tenant.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// `next_after` of the page before.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    after: Option<u64>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// A payload that came under an id another payload holds.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ConflictAnswer {
    tenant: String,
    id: String,
    /// The payload that was counted.
    #[schema(value_type = Object)]
    standing: Box<RawValue>,
    /// The payload that was not.
    #[schema(value_type = Object)]
    arriving: Box<RawValue>,
    #[schema(format = DateTime)]
    first_received_at: String,
    #[schema(format = DateTime)]
    last_received_at: String,
    /// How often it came.
    deliveries: u64,
}

/// An event that was kept and not counted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct QuarantineAnswer {
    tenant: String,
    id: String,
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    /// `too_old`, `too_far_ahead` or `too_many_groups`.
    reason: &'static str,
    #[schema(format = DateTime)]
    first_received_at: String,
    #[schema(format = DateTime)]
    last_received_at: String,
    /// How often it came.
    deliveries: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ConflictList {
    /// Oldest first.
    conflicts: Vec<ConflictAnswer>,
    /// Give it as `after` for the next page; null at the end.
    next_after: Option<u64>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct QuarantineList {
    /// Oldest first.
    quarantined: Vec<QuarantineAnswer>,
    /// Give it as `after` for the next page; null at the end.
    next_after: Option<u64>,
}

/// List conflicts
///
/// Payloads that came under an id which another payload holds.
#[utoipa::path(
    get, path = "/v1/conflicts", tag = "inboxes", params(InboxParameters),
    responses((status = 200, description = "A page of conflicts", body = ConflictList))
)]
pub async fn list_conflicts(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<InboxParameters>,
) -> Result<axum::Json<ConflictList>, Problem> {
    let (query, limit) = parse_inbox(&caller, query)?;
    let (page, next_after) = {
        let size = |record: &ConflictRecord| record.standing.len() + record.arriving.len();
        cut_page(app.store.list_conflicts(query).await?, limit, size)
    };
    let conflicts = page.into_iter().map(ConflictAnswer::of).collect::<Result<_, _>>()?;
    Ok(axum::Json(ConflictList { conflicts, next_after }))
}

/// List quarantined events
///
/// Events that were too old or too far ahead to be counted, or of one group too many.
#[utoipa::path(
    get, path = "/v1/quarantine", tag = "inboxes", params(InboxParameters),
    responses((status = 200, description = "A page of quarantined events", body = QuarantineList))
)]
pub async fn list_quarantine(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<InboxParameters>,
) -> Result<axum::Json<QuarantineList>, Problem> {
    let (query, limit) = parse_inbox(&caller, query)?;
    let (page, next_after) = {
        let size = |record: &QuarantineRecord| record.payload.len();
        cut_page(app.store.list_quarantine(query).await?, limit, size)
    };
    let quarantined = page.into_iter().map(QuarantineAnswer::of).collect::<Result<_, _>>()?;
    Ok(axum::Json(QuarantineList { quarantined, next_after }))
}

/// The store is asked for one record more than the page has, which tells whether there is more.
fn parse_inbox(caller: &Caller, query: InboxParameters) -> Result<(InboxQuery, usize), Problem> {
    caller.require(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let asked = query.tenant.as_deref().map(TenantId::parse).transpose()?;
    let tenant = caller.narrow(asked)?;
    let after = query.after.unwrap_or(0);
    if after > AFTER_MAX {
        return Err(Problem::new(
            Kind::Invalid,
            "invalid_after",
            "after is next_after of the page before; leave it out for the first page",
        ));
    }
    Ok((InboxQuery { tenant, after, limit: limit + 1 }, limit))
}

fn cut_page<T>(
    mut page: InboxPage<T>,
    limit: usize,
    size: impl Fn(&T) -> usize,
) -> (Vec<T>, Option<u64>) {
    let fitting = fit_page(page.iter().map(|(_, record)| size(record)), limit);
    let more = page.len() > fitting;
    page.truncate(fitting);
    let next_after = page.last().filter(|_| more).map(|(number, _)| *number);
    (page.into_iter().map(|(_, record)| record).collect(), next_after)
}

impl ConflictAnswer {
    pub fn of(record: ConflictRecord) -> Result<Self, Problem> {
        Ok(Self {
            tenant: record.tenant.to_string(),
            id: record.id.to_string(),
            standing: raw_json(record.standing)?,
            arriving: raw_json(record.arriving)?,
            first_received_at: record.first_received_at.to_string(),
            last_received_at: record.last_received_at.to_string(),
            deliveries: record.deliveries,
        })
    }
}

impl QuarantineAnswer {
    pub fn of(record: QuarantineRecord) -> Result<Self, Problem> {
        Ok(Self {
            tenant: record.tenant.to_string(),
            id: record.id.to_string(),
            payload: raw_json(record.payload)?,
            reason: record.reason.code(),
            first_received_at: record.first_received_at.to_string(),
            last_received_at: record.last_received_at.to_string(),
            deliveries: record.deliveries,
        })
    }
}
