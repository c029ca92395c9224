//! `/v1/alerts`: what a person was told; and `/v1/thresholds`, by which usage raises some.
//!
//! Invariant: a threshold is one for each tenant, meter, kind and period. Usage is never refused
//! by one. A key that is bound to a tenant sees and sets that tenant's only.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Json, Query, parse_limit, read_json, trim_page};
use super::problem::{Kind, Problem};
use crate::rules::alert::{Alert, AlertKind, Severity};
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Meter;
use crate::rules::quantity::{Quantity, QuantityRange, SCALE};
use crate::store::alert::{
    AlertQuery, Threshold, ThresholdKey, ThresholdKind, ThresholdPeriod, ThresholdQuery,
};
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Limits that a total can reach.
const LIMIT_RANGE: QuantityRange = QuantityRange { precision: 27, scale: SCALE, signed: false };

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AlertParameters {
    /// Only those that are open, or only those that are over.
    open: Option<bool>,
    #[param(inline)]
    kind: Option<AlertKind>,
    /// `next_before` of the page before.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    before: Option<u64>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct AlertAnswer {
    id: u64,
    kind: AlertKind,
    severity: Severity,
    /// What it is about; empty where there is one only.
    subject: String,
    summary: String,
    /// The command that shows more.
    command: String,
    #[schema(format = DateTime)]
    opened_at: String,
    #[schema(format = DateTime)]
    resolved_at: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct AlertList {
    /// Newest first.
    alerts: Vec<AlertAnswer>,
    /// Give it as `before` for the next page; null at the end.
    next_before: Option<u64>,
}

/// List alerts
#[utoipa::path(
    get, path = "/v1/alerts", tag = "alerts", params(AlertParameters),
    responses((status = 200, description = "A page of alerts", body = AlertList))
)]
pub async fn list_alerts(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<AlertParameters>,
) -> Result<axum::Json<AlertList>, Problem> {
    caller.require_unbound(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let AlertParameters { open, kind, before, .. } = query;
    let query = AlertQuery { open, kind, before, limit: limit + 1 };
    let mut found = app.store.list_alerts(query).await?;
    let next_before = trim_page(&mut found, limit, |alert| alert.number);
    let alerts = found.into_iter().map(AlertAnswer::from).collect();
    Ok(axum::Json(AlertList { alerts, next_before }))
}

/// When a tenant's usage is worth a word.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "tenant": "acme", "meter": "api_calls", "kind": "quota", "period": "month", "limit": "1000000"
}))]
pub struct ThresholdSpec {
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: String,
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    meter: String,
    kind: ThresholdKind,
    /// In UTC.
    period: ThresholdPeriod,
    /// The usage of a period from which on an alert is opened, as a decimal number.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$")]
    limit: String,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ThresholdAnswer {
    tenant: String,
    meter: String,
    kind: ThresholdKind,
    period: ThresholdPeriod,
    limit: String,
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ThresholdList {
    thresholds: Vec<ThresholdAnswer>,
    /// Give it as `after` for the next page; null at the end.
    next_after: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ThresholdListParameters {
    /// Only thresholds of this tenant.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// `next_after` of the page before.
    after: Option<String>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ThresholdName {
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: String,
    #[param(min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    meter: String,
    #[param(inline)]
    kind: ThresholdKind,
    #[param(inline)]
    period: ThresholdPeriod,
}

/// Set a threshold or a quota
///
/// An alert is opened within a second of the usage that passes it, once in each period.
#[utoipa::path(
    put, path = "/v1/thresholds", tag = "alerts", request_body = ThresholdSpec,
    responses(
        (status = 200, description = "The threshold as it is now", body = ThresholdAnswer),
        (status = 404, description = "There is no such meter"),
        (status = 422, description = "The tenant or the limit is refused"),
    )
)]
pub async fn put_threshold(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: axum::extract::Request,
) -> Result<axum::Json<ThresholdAnswer>, Problem> {
    caller.require(Scope::Operate)?;
    let Json(spec) = read_json::<ThresholdSpec>(request, &app).await?;
    let tenant = TenantId::parse(&spec.tenant).map_err(Problem::refused)?;
    caller.require_tenant(&tenant)?;
    app.admission.change_threshold(&caller)?;
    let (number, meter) = app.catalog.find(&spec.meter).await?;
    // Digits and a point only, as the description says.
    let plain = spec.limit.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let limit = Quantity::parse(&spec.limit, LIMIT_RANGE).ok();
    let limit = limit.filter(|limit| plain && *limit > Quantity::ZERO).ok_or_else(|| {
        let detail = "limit is a positive decimal number of at most 15 digits and 12 decimals, \
                      such as \"1000000\" or \"0.5\"";
        Problem::new(Kind::Refused, "invalid_limit", detail)
    })?;
    let threshold = Threshold {
        tenant,
        meter: number,
        kind: spec.kind,
        period: spec.period,
        limit,
        created_at: app.clock.now(),
    };
    app.store.put_threshold(threshold.clone()).await?;
    Ok(axum::Json(answer_threshold(threshold, &meter)))
}

/// List thresholds
#[utoipa::path(
    get, path = "/v1/thresholds", tag = "alerts", params(ThresholdListParameters),
    responses((status = 200, description = "A page of thresholds", body = ThresholdList))
)]
pub async fn list_thresholds(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<ThresholdListParameters>,
) -> Result<axum::Json<ThresholdList>, Problem> {
    caller.require(Scope::Read)?;
    let asked = query.tenant.as_deref().map(TenantId::parse).transpose()?;
    let tenant = caller.narrow(asked)?;
    let limit = parse_limit(query.limit)?;
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    let query = ThresholdQuery { tenant, after, limit: limit + 1 };
    let mut found = app.store.list_thresholds(query).await?;
    let next_after = trim_page(&mut found, limit, write_cursor);
    let catalog = app.catalog.reload().await?;
    let answer = |threshold: Threshold| {
        let meter = catalog.get(threshold.meter)?;
        Some(answer_threshold(threshold, meter))
    };
    let thresholds = found.into_iter().filter_map(answer).collect();
    Ok(axum::Json(ThresholdList { thresholds, next_after }))
}

fn write_cursor(last: &Threshold) -> String {
    format!("{}/{}/{}/{}", last.meter.0, last.kind.name(), last.period.name(), last.tenant)
}

pub fn parse_cursor(text: &str) -> Result<ThresholdKey, Problem> {
    let refuse = || Problem::new(Kind::Invalid, "invalid_cursor", "after is no next_after");
    let mut parts = text.splitn(4, '/');
    let mut next = || parts.next().ok_or_else(refuse);
    // No store has a meter of a higher number.
    let meter = next()?.parse::<i16>().ok().and_then(|meter| u16::try_from(meter).ok());
    Ok(ThresholdKey {
        meter: MeterNo(meter.ok_or_else(refuse)?),
        kind: ThresholdKind::from_name(next()?).ok_or_else(refuse)?,
        period: ThresholdPeriod::from_name(next()?).ok_or_else(refuse)?,
        tenant: TenantId::parse(next()?).map_err(|_| refuse())?,
    })
}

/// Take a threshold away
#[utoipa::path(
    delete, path = "/v1/thresholds", tag = "alerts", params(ThresholdName),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "There is no such threshold or meter"),
    )
)]
pub async fn delete_threshold(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(name): Query<ThresholdName>,
) -> Result<StatusCode, Problem> {
    caller.require(Scope::Operate)?;
    let tenant = TenantId::parse(&name.tenant)?;
    caller.require_tenant(&tenant)?;
    app.admission.change_threshold(&caller)?;
    let (meter, _) = app.catalog.find(&name.meter).await?;
    if app.store.delete_threshold(&tenant, meter, name.kind, name.period).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let detail = "there is no such threshold; GET /v1/thresholds lists them";
        Err(Problem::new(Kind::NotFound, "unknown_threshold", detail))
    }
}

fn answer_threshold(threshold: Threshold, meter: &Meter) -> ThresholdAnswer {
    ThresholdAnswer {
        tenant: threshold.tenant.to_string(),
        meter: meter.slug.to_string(),
        kind: threshold.kind,
        period: threshold.period,
        limit: threshold.limit.to_string(),
        created_at: threshold.created_at.to_string(),
    }
}

impl From<Alert> for AlertAnswer {
    fn from(alert: Alert) -> Self {
        Self {
            id: alert.number,
            severity: alert.kind.severity(),
            kind: alert.kind,
            subject: alert.subject,
            summary: alert.summary,
            command: alert.command,
            opened_at: alert.opened_at.to_string(),
            resolved_at: alert.resolved_at.map(|at| at.to_string()),
        }
    }
}
