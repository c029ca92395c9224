//! `/v1/alerts`: alerts and their notices; `/v1/thresholds`: usage that raises alerts.
//!
//! Invariant: a threshold is one for each tenant, meter, kind and period. Usage is never refused
//! by one. A key that is bound to a tenant sees and sets that tenant's only.

use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Query, Request, invalid_cursor, list_query, read_json};
use super::problem::{Kind, Problem};
use crate::api::alerts::{AlertList, ThresholdAnswer, ThresholdList, ThresholdSpec};
use crate::rules::alert::AlertKind;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::meter::Meter;
use crate::rules::quantity::{Quantity, QuantityRange, SCALE};
use crate::store::alert::{AlertFilter, Threshold, ThresholdKey, ThresholdKind, ThresholdPeriod};
use http::StatusCode;
use serde::Deserialize;

/// Limits that a total can reach.
const LIMIT_RANGE: QuantityRange = QuantityRange { precision: 27, scale: SCALE, signed: false };

list_query!(AlertParameters, before, {
    /// Only those that are open, or only those that are over.
    open: Option<bool>,
    #[param(inline)]
    kind: Option<AlertKind>,
});

/// List alerts
#[utoipa::path(
    get, path = "/v1/alerts", tag = "alerts", params(AlertParameters),
    responses((status = 200, description = "A page of alerts", body = AlertList))
)]
pub async fn list_alerts(
    Call { app, caller }: Call,
    Query(query): Query<AlertParameters>,
) -> Answer<AlertList> {
    caller.require_unbound(Scope::Read)?;
    let AlertParameters { open, kind, before, limit } = query;
    let limit = Limit::parse(limit)?;
    let found = app.store.list_alerts(limit.query(AlertFilter { open, kind }, before)).await?;
    limit.page(found, |alert| alert.number, |alert| Ok(alert.into()))
}

list_query!(ThresholdListParameters, "`next_after` of the page before.", after: String, {
    /// Only thresholds of this tenant.
    tenant: Option<String>,
});

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ThresholdName {
    tenant: String,
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
    Call { app, caller }: Call,
    request: Request,
) -> Answer<ThresholdAnswer> {
    caller.require(Scope::Operate)?;
    let spec = read_json::<ThresholdSpec>(request, &app).await?;
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
    Call { app, caller }: Call,
    Query(query): Query<ThresholdListParameters>,
) -> Answer<ThresholdList> {
    caller.require(Scope::Read)?;
    let tenant = caller.narrow(query.tenant.as_deref())?;
    let limit = Limit::parse(query.limit)?;
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    let found = app.store.list_thresholds(limit.query(tenant, after)).await?;
    let catalog = app.catalog.reload().await?;
    limit.page(found, write_cursor, |threshold| {
        let meter = catalog.get(threshold.meter);
        let meter = meter.ok_or_else(|| Problem::corrupt("a threshold has no meter"))?;
        Ok(answer_threshold(threshold, meter))
    })
}

fn write_cursor(last: &Threshold) -> String {
    format!("{}/{}/{}/{}", last.meter.0, last.kind.name(), last.period.name(), last.tenant)
}

pub fn parse_cursor(text: &str) -> Result<ThresholdKey, Problem> {
    let mut parts = text.splitn(4, '/');
    let mut next = || parts.next().ok_or_else(invalid_cursor);
    // No store has a meter of a higher number.
    let meter = next()?.parse::<i16>().ok().and_then(|meter| u16::try_from(meter).ok());
    Ok(ThresholdKey {
        meter: MeterNo(meter.ok_or_else(invalid_cursor)?),
        kind: ThresholdKind::from_name(next()?).ok_or_else(invalid_cursor)?,
        period: ThresholdPeriod::from_name(next()?).ok_or_else(invalid_cursor)?,
        tenant: TenantId::parse(next()?).map_err(|_| invalid_cursor())?,
    })
}

/// Delete a threshold
#[utoipa::path(
    delete, path = "/v1/thresholds", tag = "alerts", params(ThresholdName),
    responses(
        (status = 204, description = "The threshold is deleted"),
        (status = 404, description = "There is no such threshold or meter"),
    )
)]
pub async fn delete_threshold(
    Call { app, caller }: Call,
    Query(name): Query<ThresholdName>,
) -> Result<StatusCode, Problem> {
    let tenant = caller.tenant_for(Scope::Operate, &name.tenant)?;
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
    let Threshold { tenant, kind, period, limit, created_at, .. } = threshold;
    let (tenant, meter) = (tenant.to_string(), meter.slug.to_string());
    ThresholdAnswer { tenant, meter, kind, period, limit, created_at }
}
