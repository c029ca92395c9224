//! `/v1/conflicts` and `/v1/quarantine`: what was kept and not counted, for a person to look at.
//! Decisions about it are in `decisions`.
//!
//! Invariant: a key that is bound to a tenant sees that tenant's records only.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Answer, Call, Limit, Path, Query, list_query};
use super::problem::{Kind, Problem};
use super::records::raw_json;
use crate::api::inboxes::{
    ConflictAnswer, ConflictList, DecisionAnswer, QuarantineAnswer, QuarantineList,
};
use crate::rules::decision::Decision;
use crate::rules::ids::EventId;
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Quarantine;
use crate::rules::window::{Window, parse_border};
use crate::store::decision::{ConflictRecord, InboxFilter, QuarantineFilter, QuarantineRecord};
use jiff::tz::TimeZone;

/// Largest number that every JSON parser holds exactly; no store numbers so many records.
const AFTER_MAX: u64 = 9_007_199_254_740_991;

list_query!(ConflictParameters, after, {
    /// Only records of this tenant.
    tenant: Option<String>,
    /// Only records of this event id.
    id: Option<String>,
    /// Only payloads that came first at this instant or later (RFC 3339, or a date in UTC).
    #[param(example = "2026-11-01")]
    from: Option<String>,
    /// Only payloads that came first before this.
    #[param(example = "2026-12-01")]
    to: Option<String>,
    /// Only records that are decided, or that are not. All if it is left out.
    decided: Option<bool>,
});

list_query!(QuarantineParameters, after, {
    /// Only records of this tenant.
    tenant: Option<String>,
    /// Only records of this event id.
    id: Option<String>,
    /// Only events that are kept for this reason: `too_old`, `too_far_ahead` or `too_many_groups`.
    reason: Option<String>,
    /// Only payloads that came first at this instant or later (RFC 3339, or a date in UTC).
    #[param(example = "2026-11-01")]
    from: Option<String>,
    /// Only payloads that came first before this.
    #[param(example = "2026-12-01")]
    to: Option<String>,
    /// Only records that are decided, or that are not. All if it is left out.
    decided: Option<bool>,
});

/// List conflicts
///
/// Payloads that were not counted, because another payload was counted under the same id.
#[utoipa::path(
    get, path = "/v1/conflicts", tag = "inboxes", params(ConflictParameters),
    responses((status = 200, description = "A page of conflicts", body = ConflictList))
)]
pub async fn list_conflicts(
    Call { app, caller }: Call,
    Query(query): Query<ConflictParameters>,
) -> Answer<ConflictList> {
    caller.require(Scope::Read)?;
    let ConflictParameters { tenant, id, from, to, decided, after, limit } = query;
    let limit = Limit::parse(limit)?;
    let borders = (from.as_deref(), to.as_deref());
    let filter = parse_filter(&caller, tenant.as_deref(), id.as_deref(), borders, decided)?;
    let found = app.store.list_conflicts(limit.query(filter, check_after(after)?)).await?;
    let sizes = found.iter().map(|record| record.standing.len() + record.arriving.len());
    limit.fitting(sizes).page(found, |record| record.number, answer_conflict)
}

/// List quarantined events
///
/// Events that were not counted: too old, too far ahead, or beyond the limit of groups a day.
#[utoipa::path(
    get, path = "/v1/quarantine", tag = "inboxes", params(QuarantineParameters),
    responses((status = 200, description = "A page of quarantined events", body = QuarantineList))
)]
pub async fn list_quarantine(
    Call { app, caller }: Call,
    Query(query): Query<QuarantineParameters>,
) -> Answer<QuarantineList> {
    caller.require(Scope::Read)?;
    let QuarantineParameters { tenant, id, reason, from, to, decided, after, limit } = query;
    let limit = Limit::parse(limit)?;
    let borders = (from.as_deref(), to.as_deref());
    let of = parse_filter(&caller, tenant.as_deref(), id.as_deref(), borders, decided)?;
    let filter = QuarantineFilter { of, reason: parse_reason(reason.as_deref())? };
    let found = app.store.list_quarantine(limit.query(filter, check_after(after)?)).await?;
    let sizes = found.iter().map(|record| record.payload.len());
    limit.fitting(sizes).page(found, |record| record.number, answer_quarantine)
}

/// Read a conflict
#[utoipa::path(
    get, path = "/v1/conflicts/{number}", tag = "inboxes",
    params(("number" = u64, Path, description = "The record's number")),
    responses(
        (status = 200, description = "The conflict", body = ConflictAnswer),
        (status = 404, description = "There is no such conflict"),
    )
)]
pub async fn get_conflict(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<ConflictAnswer> {
    caller.require(Scope::Read)?;
    Ok(axum::Json(answer_conflict(find_conflict(&app, &caller, number).await?)?))
}

/// Read a quarantined event
#[utoipa::path(
    get, path = "/v1/quarantine/{number}", tag = "inboxes",
    params(("number" = u64, Path, description = "The record's number")),
    responses(
        (status = 200, description = "The event", body = QuarantineAnswer),
        (status = 404, description = "There is no such event in quarantine"),
    )
)]
pub async fn get_quarantined(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<QuarantineAnswer> {
    caller.require(Scope::Read)?;
    Ok(axum::Json(answer_quarantine(find_quarantined(&app, &caller, number).await?)?))
}

/// The conflict, if the caller may see it.
pub async fn find_conflict(
    app: &App,
    caller: &Caller,
    number: u64,
) -> Result<ConflictRecord, Problem> {
    let found = app.store.find_conflict(number).await?;
    let visible =
        |record: &ConflictRecord| caller.bound_to().is_none_or(|own| *own == record.tenant);
    found.filter(visible).ok_or_else(|| {
        let detail = "there is no conflict of this number; GET /v1/conflicts lists them";
        Problem::new(Kind::NotFound, "unknown_conflict", detail)
    })
}

/// The quarantined event, if the caller may see it.
pub async fn find_quarantined(
    app: &App,
    caller: &Caller,
    number: u64,
) -> Result<QuarantineRecord, Problem> {
    let found = app.store.find_quarantined(number).await?;
    let visible =
        |record: &QuarantineRecord| caller.bound_to().is_none_or(|own| *own == record.tenant);
    found.filter(visible).ok_or_else(|| {
        let detail = "there is no quarantined event of this number; GET /v1/quarantine lists them";
        Problem::new(Kind::NotFound, "unknown_quarantined", detail)
    })
}

/// What a request says of the records it means, as far as both inboxes have it.
pub fn parse_filter(
    caller: &Caller,
    tenant: Option<&str>,
    id: Option<&str>,
    (from, to): (Option<&str>, Option<&str>),
    decided: Option<bool>,
) -> Result<InboxFilter, Problem> {
    let tenant = caller.narrow(tenant)?;
    let id = id.map(EventId::parse).transpose()?;
    let border = |text: Option<&str>, otherwise: i64| match text {
        Some(text) => parse_border(text, &TimeZone::UTC),
        None => Ok(Timestamp::from_micros(otherwise)),
    };
    let range = Window { start: border(from, i64::MIN)?, end: border(to, i64::MAX)? };
    if range.end <= range.start {
        return Err(Problem::new(Kind::Invalid, "invalid_range", "from must lie before to"));
    }
    let received = (from.is_some() || to.is_some()).then_some(range);
    Ok(InboxFilter { tenant, id, received, decided })
}

pub fn parse_reason(reason: Option<&str>) -> Result<Option<Quarantine>, Problem> {
    let refuse = || {
        let detail = "reason is too_old, too_far_ahead or too_many_groups";
        Problem::new(Kind::Invalid, "invalid_reason", detail)
    };
    reason.map(|code| Quarantine::from_code(code).ok_or_else(refuse)).transpose()
}

pub fn check_after(after: Option<u64>) -> Result<Option<u64>, Problem> {
    if after.is_some_and(|after| after > AFTER_MAX) {
        return Err(Problem::new(
            Kind::Invalid,
            "invalid_after",
            "after is next_after of the page before; leave it out for the first page",
        ));
    }
    Ok(after)
}

pub fn answer_conflict(record: ConflictRecord) -> Result<ConflictAnswer, Problem> {
    Ok(ConflictAnswer {
        number: record.number,
        tenant: record.tenant.to_string(),
        id: record.id.to_string(),
        counted: raw_json(record.standing)?,
        received: raw_json(record.arriving)?,
        first_received_at: record.first_received_at,
        last_received_at: record.last_received_at,
        deliveries: record.deliveries,
        state: record.state,
        decision: record.decision.map(answer_decision),
    })
}

pub fn answer_quarantine(record: QuarantineRecord) -> Result<QuarantineAnswer, Problem> {
    Ok(QuarantineAnswer {
        number: record.number,
        tenant: record.tenant.to_string(),
        id: record.id.to_string(),
        payload: raw_json(record.payload)?,
        reason: record.reason.code().to_owned(),
        first_received_at: record.first_received_at,
        last_received_at: record.last_received_at,
        deliveries: record.deliveries,
        state: record.state,
        decision: record.decision.map(answer_decision),
    })
}

fn answer_decision(Decision { reason, author, at }: Decision) -> DecisionAnswer {
    DecisionAnswer { reason, author, decided_at: at }
}
