//! `/v1/pushes`: submissions to the billing provider, their states, and dead letters.
//!
//! Invariant: a key that is bound to a tenant sees that tenant's pushes only. A push is retried
//! only if that cannot bill twice; if it is refused, the answer says why.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Answer, Call, Limit, Path, Query, Request, list_query, read_json};
use super::problem::{Kind, Problem};
use super::records::raw_json;
use crate::api::pushes::{DiscardSpec, PushAnswer, PushList, PushTraceAnswer, RulingAnswer};
use crate::rules::meter::Catalog;
use crate::rules::submission::{Class, PushState};
use crate::rules::window::{Window, parse_border};
use crate::store::push::{Push, PushFilter, PushTrace, Ruling};
use jiff::tz::TimeZone;

/// Longest reason for a discard, in bytes of UTF-8.
const REASON_BYTES_MAX: usize = 500;

list_query!(PushParameters, before, {
    /// Only pushes of this tenant.
    tenant: Option<String>,
    /// Only pushes of this meter.
    meter: Option<String>,
    #[param(inline)]
    state: Option<PushState>,
    #[param(inline)]
    class: Option<Class>,
    /// Only windows that start here or later (RFC 3339, or a date in UTC); with `to`.
    #[param(example = "2026-11-01")]
    from: Option<String>,
    /// Only windows that start before this.
    #[param(example = "2026-12-01")]
    to: Option<String>,
});

/// List pushes
#[utoipa::path(
    get, path = "/v1/pushes", tag = "pushes", params(PushParameters),
    responses(
        (status = 200, description = "A page of pushes", body = PushList),
        (status = 404, description = "There is no such meter"),
    )
)]
pub async fn list_pushes(
    Call { app, caller }: Call,
    Query(query): Query<PushParameters>,
) -> Answer<PushList> {
    caller.require(Scope::Read)?;
    let tenant = caller.narrow(query.tenant.as_deref())?;
    let meter = match &query.meter {
        Some(slug) => Some(app.catalog.find(slug).await?.0),
        None => None,
    };
    let range = parse_range(query.from.as_deref(), query.to.as_deref())?;
    let limit = Limit::parse(query.limit)?;
    let filter = PushFilter { tenant, meter, state: query.state, class: query.class, range };
    let found = app.store.list_pushes(limit.query(filter, query.before)).await?;
    let catalog = app.catalog.reload().await?;
    limit.page(found, |push| push.number, |push| answer_push(push, &catalog))
}

/// Read a push
///
/// The push and all that happened to it: every attempt with its time, class and request id.
#[utoipa::path(
    get, path = "/v1/pushes/{push}", tag = "pushes",
    params(("push" = u64, Path, description = "The push's id")),
    responses(
        (status = 200, description = "The push", body = PushTraceAnswer),
        (status = 404, description = "There is no such push"),
    )
)]
pub async fn get_push(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<PushTraceAnswer> {
    caller.require(Scope::Read)?;
    let PushTrace { push, transitions } = find_push(&app, &caller, number).await?;
    let push = answer_push(push, &*app.catalog.reload().await?)?;
    Ok(axum::Json(PushTraceAnswer { push, transitions }))
}

/// Retry a dead push
///
/// Sends it again as a new revision, if it is certain that it was never counted.
#[utoipa::path(
    post, path = "/v1/pushes/{push}/retry", tag = "pushes",
    params(("push" = u64, Path, description = "The push's id")),
    responses(
        (status = 200, description = "A new push takes its place", body = RulingAnswer),
        (status = 404, description = "There is no such push"),
        (status = 409, description = "It is not safe to send it again; `detail` says why"),
    )
)]
pub async fn retry_push(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<RulingAnswer> {
    caller.require_unbound(Scope::Operate)?;
    find_push(&app, &caller, number).await?;
    let ruling = app.store.retry_push(number, app.clock.now()).await?;
    answer_ruling(number, ruling, "push_not_retried")
}

/// Discard a dead push
///
/// Writes it off: its state is `discarded`, and its quantity is no longer shown as unbilled.
#[utoipa::path(
    post, path = "/v1/pushes/{push}/discard", tag = "pushes", request_body = DiscardSpec,
    params(("push" = u64, Path, description = "The push's id")),
    responses(
        (status = 200, description = "It is written off", body = RulingAnswer),
        (status = 404, description = "There is no such push"),
        (status = 409, description = "Only a dead push can be discarded"),
        (status = 422, description = "The reason is refused"),
    )
)]
pub async fn discard_push(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
    request: Request,
) -> Answer<RulingAnswer> {
    caller.require_unbound(Scope::Operate)?;
    let DiscardSpec { reason } = read_json(request, &app).await?;
    let plain = !reason.chars().any(char::is_control);
    if reason.trim().is_empty() || reason.len() > REASON_BYTES_MAX || !plain {
        return Err(Problem::new(
            Kind::Refused,
            "invalid_reason",
            format!("a reason has 1 to {REASON_BYTES_MAX} bytes and no control characters"),
        ));
    }
    find_push(&app, &caller, number).await?;
    let reason = format!("{reason} (by {})", caller.key_id());
    let ruling = app.store.discard_push(number, &reason, app.clock.now()).await?;
    answer_ruling(number, ruling, "push_not_discarded")
}

/// The push, if the caller may see it.
async fn find_push(app: &App, caller: &Caller, number: u64) -> Result<PushTrace, Problem> {
    let found = app.store.trace_push(number).await?;
    let visible = |trace: &PushTrace| caller.bound_to().is_none_or(|own| *own == trace.push.tenant);
    found.filter(visible).ok_or_else(unknown_push)
}

fn unknown_push() -> Problem {
    let detail = "there is no push of this id; GET /v1/pushes lists them";
    Problem::new(Kind::NotFound, "unknown_push", detail)
}

fn answer_ruling(id: u64, ruling: Ruling, code: &'static str) -> Answer<RulingAnswer> {
    let replacement = Problem::unless_ruled(ruling, code, unknown_push)?;
    Ok(axum::Json(RulingAnswer { id, replacement }))
}

fn parse_range(from: Option<&str>, to: Option<&str>) -> Result<Option<Window>, Problem> {
    let border = |text| parse_border(text, &TimeZone::UTC);
    match (from, to) {
        (None, None) => Ok(None),
        (Some(from), Some(to)) => Ok(Some(Window { start: border(from)?, end: border(to)? })),
        (Some(_), None) | (None, Some(_)) => {
            let detail = "give both from and to, or neither";
            Err(Problem::new(Kind::Invalid, "invalid_range", detail))
        }
    }
}

fn answer_push(push: Push, catalog: &Catalog) -> Result<PushAnswer, Problem> {
    let meter = catalog.get(push.meter).ok_or_else(|| Problem::corrupt("a push has no meter"))?;
    let dead = push.state == PushState::Dead && !push.shadow;
    Ok(PushAnswer {
        id: push.number,
        tenant: push.tenant.to_string(),
        customer: push.customer.map(|customer| customer.to_string()),
        meter: meter.slug.to_string(),
        window_start: push.window.start,
        window_end: push.window.end,
        revision: push.revision,
        mode: push.mode,
        quantity: push.quantity,
        value: push.value,
        key: push.key,
        stamped_at: push.stamped_at,
        subscriptions: raw_json(push.subscriptions)?,
        event: push.event.map(|event| event.to_string()),
        shadow: push.shadow,
        state: push.state,
        class: push.class,
        detail: push.detail,
        unbilled: dead.then_some(push.quantity),
        attempts: push.attempts,
        first_attempt_at: push.first_attempt_at,
        due_at: push.due_at,
        created_at: push.created_at,
        state_at: push.state_at,
    })
}
