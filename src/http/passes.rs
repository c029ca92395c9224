//! `/v1/passes` and `/v1/findings`: comparisons of both halves, and what they found.
//!
//! Invariant: a pass is ordered here and run by the job; the order is durable when it is answered.
//! Quantities are exact decimals. For keys that are bound to no tenant: a pass speaks of all.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Json, Path, Query, parse_limit, read_json, trim_page};
use super::problem::{Kind, Problem};
use crate::rules::digest::hex;
use crate::rules::drift::{Reason, Verdict};
use crate::rules::finding::{Finding, FindingKind};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Catalog;
use crate::rules::pass::{DriftWindow, Marks, Pass, PassKind, PassOrder, PassRow, PassState};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::{Window, parse_border};
use crate::store::push::Ruling;
use crate::store::reconciliation::{FindingQuery, PassQuery, PassRowQuery};
use axum::extract::State;
use http::StatusCode;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most days of one pass: as many as the provider shows in one answer.
const DAYS_MAX: i64 = 100;

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from": "2026-11-01", "to": "2026-11-15", "apply": false}))]
pub struct PassSpec {
    /// First day (a date in UTC).
    #[schema(example = "2026-11-01")]
    from: String,
    /// First day that is no longer included.
    #[schema(example = "2026-11-15")]
    to: String,
    /// Only this tenant.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// Whether what may safely be sent again is sent, and findings are followed.
    #[serde(default)]
    apply: bool,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct PassAnswer {
    id: u64,
    kind: PassKind,
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    to: String,
    tenant: Option<String>,
    apply: bool,
    state: PassState,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    ended_at: Option<String>,
    /// Tenants and meters to look at.
    pairs: u64,
    pairs_done: u64,
    /// Tenants and meters of which the provider's totals were not read.
    pairs_unread: u64,
    /// Windows compared.
    windows: u64,
    /// Calls to the provider.
    reads: u64,
    /// Windows by verdict.
    verdicts: BTreeMap<&'static str, u64>,
    /// Pushes that were sent again.
    replayed: u64,
    /// Differences that were sent.
    corrected: u64,
    /// Over all rows that were read and the pass before, of nightly passes that have ended, in hex.
    hash: Option<String>,
    /// Why it failed, or what could not be read.
    detail: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct PassList {
    /// Newest first.
    passes: Vec<PassAnswer>,
    /// Give it as `before` for the next page; null at the end.
    next_before: Option<u64>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PassParameters {
    #[param(inline)]
    kind: Option<PassKind>,
    #[param(inline)]
    state: Option<PassState>,
    /// `next_before` of the page before.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    before: Option<u64>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RowParameters {
    /// `next_after` of the page before.
    #[param(min_length = 1, max_length = 400, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    after: Option<String>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// One tenant and meter on one day, as decimal numbers.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RowAnswer {
    tenant: String,
    meter: String,
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    to: String,
    /// What was counted, also what is not billed.
    ledger: String,
    /// What was handed to pushes and not written off.
    pushed: String,
    /// What the provider shows; null if it was not read in this pass.
    provider: Option<String>,
    /// The provider's minus what was pushed; null if it was not read.
    delta: Option<String>,
    verdict: Verdict,
    reason: Reason,
    /// What it means, or what to do.
    advice: &'static str,
    /// What a person wrote off; null if nothing.
    written_off: Option<String>,
    /// What was used before the meter's `billing.from`; null if nothing.
    not_billed: Option<String>,
    /// What was counted in shadow mode; null if nothing.
    shadow: Option<String>,
    /// Who wrote it off, and why.
    note: Option<String>,
    /// The windows that are not equal.
    windows: Vec<DriftWindow>,
    /// Of nightly passes chained to the row of the day before, in hex; null if the provider was not
    /// read.
    hash: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct RowList {
    /// In the order of tenants, meters and days.
    rows: Vec<RowAnswer>,
    /// Give it as `after` for the next page; null at the end.
    next_after: Option<String>,
}

/// Order a pass
///
/// Compares ledger and provider over a range of days. Ask for the pass until it is closed, or
/// incomplete: then the provider could not be read, and rows with the verdict `unread` show no
/// total of it.
#[utoipa::path(
    post, path = "/v1/passes", tag = "reconciliation", request_body = PassSpec,
    responses(
        (status = 202, description = "The pass is ordered", body = PassAnswer),
        (status = 409, description = "There is nothing to compare with; why"),
        (status = 422, description = "The range is refused"),
    )
)]
pub async fn post_pass(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: axum::extract::Request,
) -> Result<(StatusCode, axum::Json<PassAnswer>), Problem> {
    caller.require_unbound(Scope::Operate)?;
    let Json(spec) = read_json::<PassSpec>(request, &app).await?;
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
    let pass = app.store.find_pass(number).await?.ok_or_else(no_such_pass)?;
    Ok((StatusCode::ACCEPTED, axum::Json(pass.into())))
}

/// List passes
#[utoipa::path(
    get, path = "/v1/passes", tag = "reconciliation", params(PassParameters),
    responses((status = 200, description = "A page of passes", body = PassList))
)]
pub async fn list_passes(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<PassParameters>,
) -> Result<axum::Json<PassList>, Problem> {
    caller.require_unbound(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let PassParameters { kind, state, before, .. } = query;
    let query = PassQuery { kind, state, before, limit: limit + 1 };
    let mut found = app.store.list_passes(query).await?;
    let next_before = trim_page(&mut found, limit, |pass| pass.number);
    let passes = found.into_iter().map(PassAnswer::from).collect();
    Ok(axum::Json(PassList { passes, next_before }))
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
pub async fn get_pass(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(number): Path<u64>,
) -> Result<axum::Json<PassAnswer>, Problem> {
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
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(number): Path<u64>,
    Query(query): Query<RowParameters>,
) -> Result<axum::Json<RowList>, Problem> {
    caller.require_unbound(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    find_pass(&app, number).await?;
    let query = PassRowQuery { pass: number, after, limit: limit + 1 };
    let mut rows = app.store.list_pass_rows(query).await?;
    let next_after = trim_page(&mut rows, limit, write_cursor);
    let catalog = app.catalog.reload().await?;
    let rows = rows.into_iter().map(|row| answer_row(row, &catalog)).collect::<Result<_, _>>();
    Ok(axum::Json(RowList { rows: rows?, next_after }))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FindingParameters {
    /// Only those that are open, or only those that are cleared.
    open: Option<bool>,
    #[param(inline)]
    kind: Option<FindingKind>,
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// `next_before` of the page before.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    before: Option<u64>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// One difference, followed over passes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct FindingAnswer {
    id: u64,
    kind: FindingKind,
    tenant: Option<String>,
    meter: Option<String>,
    /// The window, `START/END`, or the provider's id of the object.
    subject: String,
    verdict: Verdict,
    reason: Reason,
    /// What it means, or what to do.
    advice: &'static str,
    ledger: String,
    provider: String,
    detail: String,
    #[schema(format = DateTime)]
    opened_at: String,
    /// How many passes saw it.
    passes: u32,
    #[schema(format = DateTime)]
    paged_at: Option<String>,
    #[schema(format = DateTime)]
    cleared_at: Option<String>,
    /// How long it was there.
    took_seconds: Option<i64>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct FindingList {
    /// Newest first.
    findings: Vec<FindingAnswer>,
    /// Give it as `before` for the next page; null at the end.
    next_before: Option<u64>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct AcceptAnswer {
    /// The finding that was cleared.
    id: u64,
}

/// List findings
#[utoipa::path(
    get, path = "/v1/findings", tag = "reconciliation", params(FindingParameters),
    responses((status = 200, description = "A page of findings", body = FindingList))
)]
pub async fn list_findings(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<FindingParameters>,
) -> Result<axum::Json<FindingList>, Problem> {
    caller.require_unbound(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let tenant = query.tenant.as_deref().map(TenantId::parse).transpose()?;
    let FindingParameters { open, kind, before, .. } = query;
    let query = FindingQuery { open, kind, tenant, before, limit: limit + 1 };
    let mut found = app.store.list_findings(query).await?;
    let next_before = trim_page(&mut found, limit, |finding| finding.number);
    let catalog = app.catalog.reload().await?;
    let findings = found.into_iter().map(|finding| answer_finding(finding, &catalog)).collect();
    Ok(axum::Json(FindingList { findings, next_before }))
}

/// Accept an unknown subscription
///
/// For a finding of a tenant's subscription that no agreement here belongs to: it is accepted as it
/// is, the finding is cleared, and no pass reports the subscription again.
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
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(number): Path<u64>,
) -> Result<axum::Json<AcceptAnswer>, Problem> {
    caller.require_unbound(Scope::Operate)?;
    let unknown = || {
        let detail = "there is no finding of this id; GET /v1/findings lists them";
        Problem::new(Kind::NotFound, "unknown_finding", detail)
    };
    if i64::try_from(number).is_err() {
        return Err(unknown());
    }
    match app.store.accept_finding(number, app.clock.now()).await? {
        Ruling::Done(_) => Ok(axum::Json(AcceptAnswer { id: number })),
        Ruling::Refused(why) => Err(Problem::new(Kind::Conflict, "finding_not_accepted", why)),
        Ruling::NotFound => Err(unknown()),
    }
}

async fn find_pass(app: &App, number: u64) -> Result<Pass, Problem> {
    let stored = i64::try_from(number).is_ok();
    let found = if stored { app.store.find_pass(number).await? } else { None };
    found.ok_or_else(no_such_pass)
}

fn no_such_pass() -> Problem {
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
    let refuse = || Problem::new(Kind::Invalid, "invalid_cursor", "after is no next_after");
    let mut parts = text.splitn(3, '/');
    let mut next = || parts.next().ok_or_else(refuse);
    let meter: u16 = next()?.parse().map_err(|_| refuse())?;
    // No store has a meter of a higher number.
    let meter = i16::try_from(meter).map(|_| MeterNo(meter)).map_err(|_| refuse())?;
    let day = next()?.parse().map(Timestamp::from_micros).map_err(|_| refuse())?;
    let tenant = TenantId::parse(next()?).map_err(|_| refuse())?;
    Ok((tenant, meter, day))
}

impl From<Pass> for PassAnswer {
    fn from(pass: Pass) -> Self {
        let Pass { number, order, state, created_at, ended_at, progress, hash, detail } = pass;
        let named = progress.verdicts.into_iter().map(|(verdict, n)| (verdict.name(), n));
        Self {
            id: number,
            kind: order.kind,
            from: order.range.start.to_string(),
            to: order.range.end.to_string(),
            tenant: order.tenant.map(|tenant| tenant.to_string()),
            apply: order.apply,
            state,
            created_at: created_at.to_string(),
            ended_at: ended_at.map(|at| at.to_string()),
            pairs: progress.pairs,
            pairs_done: progress.pairs_done,
            pairs_unread: progress.pairs_unread,
            windows: progress.windows,
            reads: progress.reads,
            verdicts: named.collect(),
            replayed: progress.replayed,
            corrected: progress.corrected,
            hash: hash.map(|hash| hex(&hash)),
            detail,
        }
    }
}

fn answer_row(row: PassRow, catalog: &Catalog) -> Result<RowAnswer, Problem> {
    let meter = catalog.get(row.meter).ok_or_else(|| Problem::corrupt("a row has no meter"))?;
    let Marks { written_off, not_billed, shadow, note } = row.marks.clone();
    let text = |quantity: Option<Quantity>| quantity.map(|quantity| quantity.to_string());
    Ok(RowAnswer {
        written_off: text(written_off),
        not_billed: text(not_billed),
        shadow: text(shadow),
        note,
        tenant: row.tenant.to_string(),
        meter: meter.slug.to_string(),
        from: row.day.start.to_string(),
        to: row.day.end.to_string(),
        ledger: row.ledger.to_string(),
        pushed: row.pushed.to_string(),
        provider: row.provider.map(|provider| provider.to_string()),
        delta: row.delta().map(|delta| delta.to_string()),
        verdict: row.verdict,
        reason: row.reason,
        advice: row.reason.advice(),
        hash: row.hash.map(|hash| hex(&hash)),
        windows: row.windows,
    })
}

fn answer_finding(finding: Finding, catalog: &Catalog) -> FindingAnswer {
    let Finding { number, seen, opened_at, passes, paged_at, cleared_at, .. } = finding;
    let took = |at: Timestamp| (at.micros() - opened_at.micros()) / 1_000_000;
    FindingAnswer {
        id: number,
        kind: seen.kind,
        tenant: seen.tenant.map(|tenant| tenant.to_string()),
        meter: seen.meter.and_then(|meter| catalog.get(meter)).map(|meter| meter.slug.to_string()),
        subject: seen.subject,
        verdict: seen.verdict,
        reason: seen.reason,
        advice: seen.reason.advice(),
        ledger: seen.ledger.to_string(),
        provider: seen.provider.to_string(),
        detail: seen.detail,
        opened_at: opened_at.to_string(),
        passes,
        paged_at: paged_at.map(|at| at.to_string()),
        cleared_at: cleared_at.map(|at| at.to_string()),
        took_seconds: cleared_at.map(took),
    }
}
