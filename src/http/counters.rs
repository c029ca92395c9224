//! `GET /v1/counters`: the conservation law, hour by hour.
//!
//! Invariant: received = accepted + duplicates + conflicts + quarantined + rejected, in each row.

use super::App;
use super::auth::{Caller, Scope};
use super::extract::{Query, parse_days, parse_limit, trim_page};
use super::problem::{Kind, Problem};
use crate::rules::ids::TenantId;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::window::Bucket;
use crate::store::{CounterQuery, CounterRow};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CountersQuery {
    /// First instant (RFC 3339, or a date in UTC); a day before `to` if it is left out. At most 31
    /// days before `to`.
    #[param(example = "2026-11-15T00:00:00Z")]
    from: Option<String>,
    /// First instant that is no longer included; the end of the present hour if it is left out.
    #[param(example = "2026-11-16T00:00:00Z")]
    to: Option<String>,
    /// `next_after` of the page before.
    after: Option<String>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// What was received of a tenant in an hour, and what became of it.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CounterAnswer {
    /// Null: the tenant could not be read from what was rejected.
    tenant: Option<String>,
    /// The start of the hour in which it was received.
    #[schema(format = DateTime)]
    hour: String,
    /// The sum of the other five.
    received: u64,
    accepted: u64,
    duplicates: u64,
    conflicts: u64,
    quarantined: u64,
    rejected: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct CounterList {
    counters: Vec<CounterAnswer>,
    /// Give it as `after` for the next page, with the same `from` and `to`; null at the end.
    next_after: Option<String>,
}

/// Read counters
///
/// What was received of each tenant in each hour, and what became of it.
#[utoipa::path(
    get, path = "/v1/counters", tag = "usage", params(CountersQuery),
    responses((status = 200, description = "A page of counters, by hour", body = CounterList))
)]
pub async fn list_counters(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<CountersQuery>,
) -> Result<axum::Json<CounterList>, Problem> {
    caller.require(Scope::Read)?;
    let next_hour = Bucket::Hour.start_of(app.clock.now()).saturating_add_micros(MICROS_PER_HOUR);
    let range = parse_days(query.from.as_deref(), query.to.as_deref(), next_hour)?;
    let limit = parse_limit(query.limit)?;
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    let tenant = caller.bound_to().cloned();
    let query = CounterQuery { range, tenant, after, limit: limit + 1 };
    let mut rows = app.store.list_counters(query).await?;
    let next_after = trim_page(&mut rows, limit, write_cursor);
    let counters = rows.into_iter().map(CounterAnswer::from).collect();
    Ok(axum::Json(CounterList { counters, next_after }))
}

pub fn write_cursor(row: &CounterRow) -> String {
    let tenant = row.tenant.as_ref().map_or("", TenantId::as_str);
    format!("{}/{tenant}", row.hour.micros())
}

pub fn parse_cursor(text: &str) -> Result<(Timestamp, Option<TenantId>), Problem> {
    let refuse = || Problem::new(Kind::Invalid, "invalid_cursor", "after is no next_after");
    let (hour, tenant) = text.split_once('/').ok_or_else(refuse)?;
    let hour = hour.parse().map(Timestamp::from_micros).map_err(|_| refuse())?;
    let tenant = (!tenant.is_empty()).then(|| TenantId::parse(tenant)).transpose();
    Ok((hour, tenant.map_err(|_| refuse())?))
}

impl From<CounterRow> for CounterAnswer {
    fn from(row: CounterRow) -> Self {
        Self {
            tenant: row.tenant.map(|tenant| tenant.to_string()),
            hour: row.hour.to_string(),
            received: row.tally.received(),
            accepted: row.tally.accepted,
            duplicates: row.tally.duplicates,
            conflicts: row.tally.conflicts,
            quarantined: row.tally.quarantined,
            rejected: row.tally.rejected,
        }
    }
}
