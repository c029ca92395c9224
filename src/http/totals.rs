//! `GET /v1/usage/totals`: what every tenant used, for billing outside.
//!
//! Invariant: values leave as decimal strings and never pass through a float. One answer covers a
//! bounded number of tenants; each total is of one moment, and the page as a whole is not.

use super::App;
use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Query};
use super::problem::Problem;
use super::usage::{parse_range, parse_zone};
use crate::api::usage::{TotalAnswer, TotalList};
use crate::rules::ids::TenantId;
use crate::rules::usage::UsageShape;
use crate::rules::window::{Grain, Window, plan_windows};
use crate::store::Tenant;
use serde::Deserialize;

/// Most tenants of one answer: each is read with every meter.
const TENANTS_MAX: usize = 100;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TotalsQuery {
    /// First instant (RFC 3339, or a date, which is its first moment in `tz`). With neither `from`
    /// nor `to`, the current month in `tz`; `from` and `to` come together.
    #[param(example = "2026-11-01")]
    from: Option<String>,
    /// First instant that is no longer included.
    #[param(example = "2026-12-01")]
    to: Option<String>,
    /// IANA time zone in which days and months begin.
    #[param(default = "UTC", example = "Europe/Paris")]
    tz: Option<String>,
    /// The last tenant of the page before.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f]+$")]
    after: Option<String>,
    /// Tenants of a page.
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<usize>,
}

/// Read the usage of all tenants
///
/// Exact totals of every tenant and meter over a range, by pages of tenants.
#[utoipa::path(
    get, path = "/v1/usage/totals", tag = "usage", params(TotalsQuery),
    responses(
        (status = 200, description = "A page, in the order of tenants", body = TotalList),
        (status = 422, description = "More totals would be read than one query may"),
    )
)]
pub async fn list_totals(
    Call { app, caller }: Call,
    Query(query): Query<TotalsQuery>,
) -> Answer<TotalList> {
    caller.require_unbound(Scope::Read)?;
    let limit = Limit::within(query.limit, TENANTS_MAX, TENANTS_MAX)?;
    let zone = parse_zone(query.tz.as_deref())?;
    let range = parse_range(&app, query.from.as_deref(), query.to.as_deref(), &zone)?;
    let after = query.after.as_deref().map(TenantId::parse).transpose()?;
    let mut tenants = app.store.list_tenants(limit.query((), after)).await?;
    let next_after = limit.trim(&mut tenants, |tenant| tenant.id.to_string());
    let mut totals = Vec::new();
    for tenant in &tenants {
        add_totals(&app, tenant, range, &mut totals).await?;
    }
    Ok(axum::Json(TotalList { from: range.start, to: range.end, totals, next_after }))
}

/// A row for each meter of which the tenant had events.
async fn add_totals(
    app: &App,
    tenant: &Tenant,
    range: Window,
    totals: &mut Vec<TotalAnswer>,
) -> Result<(), Problem> {
    let catalog = app.catalog.current().await?;
    for meter in catalog.list() {
        let Some((number, _)) = catalog.find(meter.slug.as_str()) else { continue };
        let zone = jiff::tz::TimeZone::UTC;
        let windows = plan_windows(range, Grain::None, &zone, meter.spec.bucket)?;
        let (aggregation, rows_max) = (meter.spec.aggregation, app.query_rows_max);
        let shape = UsageShape { windows, group_by: Vec::new(), aggregation, rows_max };
        let usage = app.store.compose_usage(&tenant.id, number, range, shape).await?;
        if usage.count == 0 {
            continue;
        }
        totals.push(TotalAnswer {
            tenant: tenant.id.to_string(),
            name: tenant.name.clone(),
            customer: tenant.customer.as_ref().map(ToString::to_string),
            meter: meter.slug.to_string(),
            total: usage.total,
            count: usage.count,
        });
    }
    Ok(())
}
