//! `GET /v1/usage`: exact totals in calendar windows of any zone.
//!
//! Invariant: values leave as decimal strings and never pass through a float. The total and its
//! windows are of one moment. What the stored buckets cannot express exactly is refused, and so is
//! what would read or hold more than one answer may.

use super::App;
use super::auth::Scope;
use super::extract::{Answer, Call, Query};
use super::problem::{Kind, Problem};
use crate::api::usage::{UsageAnswer, WindowAnswer};
use crate::rules::meter::{Aggregation, Meter};
use crate::rules::usage::{GroupBy, UsageShape, UsageWindow};
use crate::rules::window::{Grain, Window, month_around, parse_border, plan_windows};
use crate::rules::window_life::WindowState;
use jiff::tz::TimeZone;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most names in group_by: the dimensions of a meter, subscription and trial.
const GROUP_BY_MAX: usize = crate::rules::meter::DIMENSIONS_MAX + 2;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    tenant: String,
    /// The meter's slug.
    meter: String,
    /// First instant (RFC 3339, or a date, which is its first moment in `tz`). With neither `from`
    /// nor `to`, the current month in `tz`; `from` and `to` come together.
    #[param(example = "2026-11-01")]
    from: Option<String>,
    /// First instant that is no longer included.
    #[param(example = "2026-12-01")]
    to: Option<String>,
    /// How the range is divided into windows; one window if it is left out.
    #[serde(default)]
    #[param(inline)]
    window: Grain,
    /// IANA time zone in which days, weeks and months begin.
    #[param(default = "UTC", example = "Europe/Paris")]
    tz: Option<String>,
    /// Comma-separated: dimensions of the meter, `subscription`, `trial`.
    #[param(example = "region")]
    group_by: Option<String>,
}

/// Read usage
///
/// Exact totals of one tenant and meter, with every event acknowledged before the request.
#[utoipa::path(
    get, path = "/v1/usage", tag = "usage", params(UsageQuery),
    responses(
        (status = 200, description = "The usage", body = UsageAnswer),
        (status = 404, description = "There is no such meter"),
        (status = 422, description = "The answer would be too large"),
    )
)]
pub async fn get_usage(
    Call { app, caller }: Call,
    Query(query): Query<UsageQuery>,
) -> Answer<UsageAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &query.tenant)?;
    let zone = parse_zone(query.tz.as_deref())?;
    let range = parse_range(&app, query.from.as_deref(), query.to.as_deref(), &zone)?;
    let (number, meter) = app.catalog.find(&query.meter).await?;
    let group_by = parse_group_by(query.group_by.as_deref(), &meter)?;
    let windows = plan_windows(range, query.window, &zone, meter.spec.bucket)?;
    let shape = UsageShape {
        windows,
        group_by: group_by.clone(),
        aggregation: meter.spec.aggregation,
        rows_max: app.query_rows_max,
    };
    let usage = app.store.compose_usage(&tenant, number, range, shape).await?;
    let has_value = usage.count > 0 || nothing_is_zero(meter.spec.aggregation);
    let known = usage.count > 0 || app.store.find_tenant(&tenant).await?.is_some();
    Ok(axum::Json(UsageAnswer {
        tenant: query.tenant,
        meter: query.meter,
        from: range.start,
        to: range.end,
        total: has_value.then_some(usage.total),
        count: usage.count,
        known,
        windows: usage
            .windows
            .into_iter()
            .map(|part| {
                let state = meter.window_life().state(part.window.end, app.clock.now());
                answer_window(part, state, &group_by)
            })
            .collect(),
    }))
}

pub fn parse_zone(name: Option<&str>) -> Result<TimeZone, Problem> {
    let Some(name) = name else { return Ok(TimeZone::UTC) };
    TimeZone::get(name).map_err(|_| {
        Problem::new(
            Kind::Invalid,
            "unknown_zone",
            "tz is an IANA time zone such as Europe/Paris or UTC",
        )
    })
}

pub fn parse_range(
    app: &App,
    from: Option<&str>,
    to: Option<&str>,
    zone: &TimeZone,
) -> Result<Window, Problem> {
    match (from, to) {
        (None, None) => Ok(month_around(app.clock.now(), zone)?),
        (Some(from), Some(to)) => {
            Ok(Window { start: parse_border(from, zone)?, end: parse_border(to, zone)? })
        }
        (Some(_), None) | (None, Some(_)) => Err(Problem::new(
            Kind::Invalid,
            "invalid_range",
            "give both from and to, or neither for the current month",
        )),
    }
}

fn parse_group_by(names: Option<&str>, meter: &Meter) -> Result<Vec<GroupBy>, Problem> {
    let mut group_by: Vec<GroupBy> = Vec::new();
    for name in names.into_iter().flat_map(|names| names.split(',')) {
        let by = GroupBy::parse(name, meter)?;
        if group_by.contains(&by) || group_by.len() == GROUP_BY_MAX {
            return Err(Problem::new(
                Kind::Invalid,
                "duplicate_dimension",
                "group_by names each dimension once",
            ));
        }
        group_by.push(by);
    }
    Ok(group_by)
}

fn nothing_is_zero(aggregation: Aggregation) -> bool {
    match aggregation {
        Aggregation::Sum | Aggregation::Count | Aggregation::Unique => true,
        Aggregation::Min | Aggregation::Max | Aggregation::Latest => false,
    }
}

fn answer_window(part: UsageWindow, state: WindowState, group_by: &[GroupBy]) -> WindowAnswer {
    let group = (!group_by.is_empty()).then(|| {
        group_by.iter().map(|by| by.name().to_owned()).zip(part.group).collect::<BTreeMap<_, _>>()
    });
    let UsageWindow { window: Window { start, end }, value, count, .. } = part;
    WindowAnswer { start, end, value, count, state, group }
}
