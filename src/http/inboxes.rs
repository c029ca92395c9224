//! `/v1/conflicts` and `/v1/quarantine`: what was kept and not counted, for a person to look at.
//!
//! Invariant: a key that is bound to a tenant sees that tenant's records only.

use super::auth::{Caller, Scope};
use super::extract::{Answer, Call, Limit, Query, list_query};
use super::problem::{Kind, Problem};
use super::records::raw_json;
use crate::api::events::{ConflictAnswer, ConflictList, QuarantineAnswer, QuarantineList};
use crate::store::{ConflictRecord, InboxQuery, QuarantineRecord};

/// Largest number that every JSON parser holds exactly; no store numbers so many records.
const AFTER_MAX: u64 = 9_007_199_254_740_991;

list_query!(InboxParameters, after, {
    /// Only records of this tenant.
    tenant: Option<String>,
});

/// List conflicts
///
/// Payloads that were not counted, because another payload was counted under the same id.
#[utoipa::path(
    get, path = "/v1/conflicts", tag = "inboxes", params(InboxParameters),
    responses((status = 200, description = "A page of conflicts", body = ConflictList))
)]
pub async fn list_conflicts(
    Call { app, caller }: Call,
    Query(query): Query<InboxParameters>,
) -> Answer<ConflictList> {
    let (query, limit) = parse_inbox(&caller, query)?;
    let found = app.store.list_conflicts(query).await?;
    let sizes = found.iter().map(|(_, record)| record.standing.len() + record.arriving.len());
    limit.fitting(sizes).page(found, |(number, _)| *number, |(_, record)| answer_conflict(record))
}

/// List quarantined events
///
/// Events that were not counted: too old, too far ahead, or beyond the limit of groups a day.
#[utoipa::path(
    get, path = "/v1/quarantine", tag = "inboxes", params(InboxParameters),
    responses((status = 200, description = "A page of quarantined events", body = QuarantineList))
)]
pub async fn list_quarantine(
    Call { app, caller }: Call,
    Query(query): Query<InboxParameters>,
) -> Answer<QuarantineList> {
    let (query, limit) = parse_inbox(&caller, query)?;
    let found = app.store.list_quarantine(query).await?;
    let sizes = found.iter().map(|(_, record)| record.payload.len());
    limit.fitting(sizes).page(found, |(number, _)| *number, |(_, record)| answer_quarantine(record))
}

fn parse_inbox(caller: &Caller, query: InboxParameters) -> Result<(InboxQuery, Limit), Problem> {
    caller.require(Scope::Read)?;
    let limit = Limit::parse(query.limit)?;
    let tenant = caller.narrow(query.tenant.as_deref())?;
    if query.after.is_some_and(|after| after > AFTER_MAX) {
        return Err(Problem::new(
            Kind::Invalid,
            "invalid_after",
            "after is next_after of the page before; leave it out for the first page",
        ));
    }
    Ok((limit.query(tenant, query.after), limit))
}

pub fn answer_conflict(record: ConflictRecord) -> Result<ConflictAnswer, Problem> {
    Ok(ConflictAnswer {
        tenant: record.tenant.to_string(),
        id: record.id.to_string(),
        counted: raw_json(record.standing)?,
        received: raw_json(record.arriving)?,
        first_received_at: record.first_received_at,
        last_received_at: record.last_received_at,
        deliveries: record.deliveries,
    })
}

pub fn answer_quarantine(record: QuarantineRecord) -> Result<QuarantineAnswer, Problem> {
    Ok(QuarantineAnswer {
        tenant: record.tenant.to_string(),
        id: record.id.to_string(),
        payload: raw_json(record.payload)?,
        reason: record.reason.code().to_owned(),
        first_received_at: record.first_received_at,
        last_received_at: record.last_received_at,
        deliveries: record.deliveries,
    })
}
