//! `/v1/passes` and `/v1/findings`: comparisons of both halves, and what they found.
//!
//! Invariant: a pass is ordered here and run by the job; the order is durable when it is answered.
//! Quantities are exact decimals. For keys that are bound to no tenant: a pass speaks of all.

use super::App;
use super::auth::Scope;
use super::extract::{
    Answer, Call, Limit, Path, Query, Request, invalid_cursor, list_query, read_json,
};
use super::problem::{Kind, Problem};
use crate::api::findings::{AcceptAnswer, FindingList};
use crate::api::passes::{PassAnswer, PassList, PassSpec, RowList};
use crate::rules::finding::FindingKind;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::pass::{Pass, PassKind, PassOrder, PassRow, PassState};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::{Window, parse_border};
use crate::store::reconciliation::{FindingFilter, PassFilter};
use http::StatusCode;
use jiff::tz::TimeZone;

/// Most days of one pass: as many as the provider shows in one answer.
const DAYS_MAX: i64 = 100;

list_query!(PassParameters, before, {
    #[param(inline)]
    kind: Option<PassKind>,
    #[param(inline)]
    state: Option<PassState>,
});

list_query!(RowParameters, "`next_after` of the page before.", after: String
    (min_length = 1, max_length = 400, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"), {});

/// Start a pass
///
/// Compares ledger and provider over a range of days. Poll the pass until it is `closed` or
/// `incomplete`. In an incomplete pass, rows with the verdict `unread` have no provider total.
#[utoipa::path(
    post, path = "/v1/passes", tag = "reconciliation", request_body = PassSpec,
    responses(
        (status = 202, description = "The pass is queued", body = PassAnswer),
        (status = 409, description = "There is nothing to compare with; `detail` says why"),
        (status = 422, description = "The range is refused"),
    )
)]
pub async fn post_pass(
    Call { app, caller }: Call,
    request: Request,
) -> Result<(StatusCode, axum::Json<PassAnswer>), Problem> {
    caller.require_unbound(Scope::Operate)?;
    let spec = read_json::<PassSpec>(request, &app).await?;
    let shows = app.provider.as_ref().is_some_and(|provider| provider.limits().shows_totals);
    if !shows {
        let detail = "there is no billing provider that shows totals; set provider.kind in the \
                      settings";
        return Err(Problem::new(Kind::Conflict, "nothing_to_compare", detail));
    }
    let tenant = spec.tenant.as_deref().map(TenantId::parse).transpose();
    let tenant = tenant.map_err(Problem::refused)?;
    let range = parse_days(&spec.from, &spec.to)?;
    let order = PassOrder { kind: PassKind::OneShot, range, tenant, apply: spec.apply };
    let number = app.store.create_pass(order, app.clock.now()).await?;
    let pass = app.store.find_pass(number).await?.ok_or_else(unknown_pass)?;
    Ok((StatusCode::ACCEPTED, axum::Json(pass.into())))
}

/// List passes
#[utoipa::path(
    get, path = "/v1/passes", tag = "reconciliation", params(PassParameters),
    responses((status = 200, description = "A page of passes", body = PassList))
)]
pub async fn list_passes(
    Call { app, caller }: Call,
    Query(query): Query<PassParameters>,
) -> Answer<PassList> {
    caller.require_unbound(Scope::Read)?;
    let PassParameters { kind, state, before, limit } = query;
    let limit = Limit::parse(limit)?;
    let found = app.store.list_passes(limit.query(PassFilter { kind, state }, before)).await?;
    limit.page(found, |pass| pass.number, |pass| Ok(pass.into()))
}

/// Read a pass
#[utoipa::path(
    get, path = "/v1/passes/{pass}", tag = "reconciliation",
    params(("pass" = u64, Path, description = "The pass's id")),
    responses(
        (status = 200, description = "The pass", body = PassAnswer),
        (status = 404, description = "There is no such pass"),
    )
)]
pub async fn get_pass(Call { app, caller }: Call, Path(number): Path<u64>) -> Answer<PassAnswer> {
    caller.require_unbound(Scope::Read)?;
    Ok(axum::Json(find_pass(&app, number).await?.into()))
}

/// List the rows of a pass
#[utoipa::path(
    get, path = "/v1/passes/{pass}/rows", tag = "reconciliation",
    params(("pass" = u64, Path, description = "The pass's id"), RowParameters),
    responses(
        (status = 200, description = "A page of rows", body = RowList),
        (status = 404, description = "There is no such pass"),
    )
)]
pub async fn list_rows(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
    Query(query): Query<RowParameters>,
) -> Answer<RowList> {
    caller.require_unbound(Scope::Read)?;
    let limit = Limit::parse(query.limit)?;
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    find_pass(&app, number).await?;
    let rows = app.store.list_pass_rows(limit.query(number, after)).await?;
    let catalog = app.catalog.reload().await?;
    limit.page(rows, write_cursor, |row| {
        let meter = catalog.get(row.meter).ok_or_else(|| Problem::corrupt("a row has no meter"))?;
        Ok((row, &**meter).into())
    })
}

list_query!(FindingParameters, before, {
    /// Only those that are open, or only those that are cleared.
    open: Option<bool>,
    #[param(inline)]
    kind: Option<FindingKind>,
    tenant: Option<String>,
});

/// List findings
#[utoipa::path(
    get, path = "/v1/findings", tag = "reconciliation", params(FindingParameters),
    responses((status = 200, description = "A page of findings", body = FindingList))
)]
pub async fn list_findings(
    Call { app, caller }: Call,
    Query(query): Query<FindingParameters>,
) -> Answer<FindingList> {
    caller.require_unbound(Scope::Read)?;
    let FindingParameters { open, kind, tenant, before, limit } = query;
    let limit = Limit::parse(limit)?;
    let tenant = tenant.as_deref().map(TenantId::parse).transpose()?;
    let filter = FindingFilter { open, kind, tenant };
    let found = app.store.list_findings(limit.query(filter, before)).await?;
    let catalog = app.catalog.reload().await?;
    limit.page(found, |finding| finding.number, |finding| Ok((finding, &*catalog).into()))
}

/// Accept an unknown subscription
///
/// For a finding of a tenant's subscription that no subscription record here belongs to: it is
/// accepted as it is, the finding is cleared, and no pass reports the subscription again.
#[utoipa::path(
    post, path = "/v1/findings/{finding}/accept", tag = "reconciliation",
    params(("finding" = u64, Path, description = "The finding's id")),
    responses(
        (status = 200, description = "The subscription is accepted", body = AcceptAnswer),
        (status = 404, description = "There is no such finding"),
        (status = 409, description = "A finding of this kind cannot be accepted; why"),
    )
)]
pub async fn accept_finding(
    Call { app, caller }: Call,
    Path(number): Path<u64>,
) -> Answer<AcceptAnswer> {
    caller.require_unbound(Scope::Operate)?;
    let unknown = || {
        let detail = "there is no finding of this id; GET /v1/findings lists them";
        Problem::new(Kind::NotFound, "unknown_finding", detail)
    };
    let ruling = app.store.accept_finding(number, app.clock.now()).await?;
    Problem::unless_ruled(ruling, "finding_not_accepted", unknown)?;
    Ok(axum::Json(AcceptAnswer { id: number }))
}

async fn find_pass(app: &App, number: u64) -> Result<Pass, Problem> {
    app.store.find_pass(number).await?.ok_or_else(unknown_pass)
}

fn unknown_pass() -> Problem {
    let detail = "there is no pass of this id; GET /v1/passes lists them";
    Problem::new(Kind::NotFound, "unknown_pass", detail)
}

/// Whole days in UTC.
fn parse_days(from: &str, to: &str) -> Result<Window, Problem> {
    let border = |text: &str| parse_border(text, &TimeZone::UTC).map_err(Problem::refused);
    let range = Window { start: border(from)?, end: border(to)? };
    let whole = |at: Timestamp| at.micros().rem_euclid(MICROS_PER_DAY) == 0;
    let refuse = |detail: String| Err(Problem::new(Kind::Refused, "invalid_range", detail));
    if range.end <= range.start {
        return refuse(format!(
            "to is the first day that is no longer included, so it must be after from; {from} is \
             not before {to}"
        ));
    }
    if !whole(range.start) || !whole(range.end) {
        return refuse("a pass compares whole days in UTC: give two dates".into());
    }
    let days = range.micros() / MICROS_PER_DAY;
    if days > DAYS_MAX {
        return refuse(format!(
            "these are {days} days, and a pass compares at most {DAYS_MAX}: order one for each part"
        ));
    }
    Ok(range)
}

/// Meter, day and tenant of a row; the tenant last, since it may hold anything.
fn write_cursor(row: &PassRow) -> String {
    format!("{}/{}/{}", row.meter.0, row.day.start.micros(), row.tenant)
}

pub fn parse_cursor(text: &str) -> Result<(TenantId, MeterNo, Timestamp), Problem> {
    let mut parts = text.splitn(3, '/');
    let mut next = || parts.next().ok_or_else(invalid_cursor);
    let meter: u16 = next()?.parse().map_err(|_| invalid_cursor())?;
    // No store has a meter of a higher number.
    let meter = i16::try_from(meter).map(|_| MeterNo(meter)).map_err(|_| invalid_cursor())?;
    let day = next()?.parse().map(Timestamp::from_micros).map_err(|_| invalid_cursor())?;
    let tenant = TenantId::parse(next()?).map_err(|_| invalid_cursor())?;
    Ok((tenant, meter, day))
}
