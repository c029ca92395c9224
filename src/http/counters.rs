//! `GET /v1/counters`: the conservation law, hour by hour.
//!
//! Invariant: received = accepted + duplicates + conflicts + quarantined + rejected, in each row.
//! What was admitted in the hour was received before, and is beside them.

use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Query, invalid_cursor, list_query, parse_days};
use super::problem::Problem;
use crate::api::usage::{CounterAnswer, CounterList};
use crate::rules::ids::TenantId;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::rules::window::Bucket;
use crate::store::{CounterFilter, CounterRow};

list_query!(CountersQuery, "`next_after` of the page before.", after: String, {
    /// First instant (RFC 3339, or a date in UTC); a day before `to` if it is left out. At most 31
    /// days before `to`.
    #[param(example = "2026-11-15T00:00:00Z")]
    from: Option<String>,
    /// First instant that is no longer included; the end of the present hour if it is left out.
    #[param(example = "2026-11-16T00:00:00Z")]
    to: Option<String>,
});

/// Read counters
///
/// Events received from each tenant in each hour, by verdict.
#[utoipa::path(
    get, path = "/v1/counters", tag = "usage", params(CountersQuery),
    responses((status = 200, description = "A page of counters, by hour", body = CounterList))
)]
pub async fn list_counters(
    Call { app, caller }: Call,
    Query(query): Query<CountersQuery>,
) -> Answer<CounterList> {
    caller.require(Scope::Read)?;
    let next_hour = Bucket::Hour.start_of(app.clock.now()).saturating_add_micros(MICROS_PER_HOUR);
    let range = parse_days(query.from.as_deref(), query.to.as_deref(), next_hour)?;
    let limit = Limit::parse(query.limit)?;
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    let filter = CounterFilter { range, tenant: caller.bound_to().cloned() };
    let rows = app.store.list_counters(limit.query(filter, after)).await?;
    limit.page(rows, write_cursor, |row| Ok(row.into()))
}

pub fn write_cursor(row: &CounterRow) -> String {
    let tenant = row.tenant.as_ref().map_or("", TenantId::as_str);
    format!("{}/{tenant}", row.hour.micros())
}

pub fn parse_cursor(text: &str) -> Result<(Timestamp, Option<TenantId>), Problem> {
    let (hour, tenant) = text.split_once('/').ok_or_else(invalid_cursor)?;
    let hour = hour.parse().map(Timestamp::from_micros).map_err(|_| invalid_cursor())?;
    let tenant = (!tenant.is_empty()).then(|| TenantId::parse(tenant)).transpose();
    Ok((hour, tenant.map_err(|_| invalid_cursor())?))
}

impl From<CounterRow> for CounterAnswer {
    fn from(row: CounterRow) -> Self {
        let Tally { accepted: _, admitted, duplicates, conflicts, quarantined, rejected } =
            row.tally;
        Self {
            tenant: row.tenant.map(|tenant| tenant.to_string()),
            hour: row.hour,
            received: row.tally.received(),
            accepted: row.tally.accepted_at_receipt(),
            duplicates,
            conflicts,
            quarantined,
            rejected,
            admitted,
        }
    }
}
