//! `GET /v1/latency`: how late events come, and whether windows wait long enough for them.
//!
//! Invariant: a percentile is at most an eighth too high and never too low. The numbers are of this
//! server alone, since it started.

use super::auth::Scope;
use super::extract::{Answer, Call, Query};
use crate::api::usage::{LatencyAnswer, LatencyList};
use serde::Deserialize;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LatencyQuery {
    /// Only this tenant's; of all tenants together if it is left out.
    tenant: Option<String>,
}

/// Read delivery latencies
///
/// How late events come, by meter, since this server started.
#[utoipa::path(
    get, path = "/v1/latency", tag = "usage", params(LatencyQuery),
    responses((status = 200, description = "Meters of which events came", body = LatencyList))
)]
pub async fn list_latencies(
    Call { app, caller }: Call,
    Query(query): Query<LatencyQuery>,
) -> Answer<LatencyList> {
    caller.require(Scope::Read)?;
    let tenant = caller.narrow(query.tenant.as_deref())?;
    let catalog = app.catalog.reload().await?;
    let mut latencies = Vec::new();
    for (number, found) in app.ingest.latencies().read(tenant.as_ref()) {
        let Some(meter) = catalog.get(number) else { continue };
        let (late_until, recommended) = (meter.spec.late_until, found.recommended_late_until());
        let warning = (late_until < recommended).then(|| {
            format!(
                "late_until is {late_until} and one event in a hundred comes later than half of \
                 {recommended}: many windows will be revised after they are final; declare the \
                 meter with a late_until of at least {recommended}"
            )
        });
        latencies.push(LatencyAnswer {
            meter: meter.slug.to_string(),
            samples: found.samples,
            p50_ms: found.p50_ms,
            p95_ms: found.p95_ms,
            p99_ms: found.p99_ms,
            late_until: late_until.to_string(),
            recommended_late_until: recommended.to_string(),
            warning,
        });
    }
    latencies.sort_by(|a, b| a.meter.cmp(&b.meter));
    Ok(axum::Json(LatencyList { since: app.started_at, latencies }))
}
