//! Pages of lists, and the filter by time that several lists have.
//!
//! Invariant: pages of one list, followed by `starting_after`, give each row once. Only the rows of
//! the requested page are rendered, so that a long list can be read page by page. A crash leaves
//! nothing.

use crate::params::Params;
use crate::request::{Answer, ApiError};
use serde_json::{Value, json};

const LIMIT_DEFAULT: i64 = 10;
const LIMIT_MAX: i64 = 100;

/// The parameters of every list besides its own filters.
pub const PAGING: [&str; 3] = ["limit", "starting_after", "ending_before"];

/// The requested page of these rows.
pub fn page(rows: &[Value], params: &Params, url: &str) -> Answer {
    page_of(rows, |row| row["id"].as_str().unwrap_or_default(), Value::clone, params, url)
}

/// The same for rows that are rendered only if they are on the page.
pub fn page_of<T>(
    rows: &[T],
    id: impl Fn(&T) -> &str,
    show: impl Fn(&T) -> Value,
    params: &Params,
    url: &str,
) -> Answer {
    let limit = limit(params)?;
    let cursor = |name: &str| -> Result<Option<usize>, ApiError> {
        let Some(wanted) = params.text(name, usize::MAX)? else { return Ok(None) };
        let place = rows.iter().position(|row| id(row) == wanted);
        let missing = || ApiError::parameter(name, format!("No such object: '{wanted}'"));
        place.map(Some).ok_or_else(|| missing().with_code("resource_missing"))
    };
    let (after, before) = (cursor("starting_after")?, cursor("ending_before")?);
    let (first, last) = match (after, before) {
        (Some(_), Some(_)) => {
            let message = "You cannot parameterize both starting_after and ending_before.";
            return Err(ApiError::parameter("starting_after", message));
        }
        (Some(after), None) => (after + 1, rows.len().min(after + 1 + limit)),
        (None, Some(before)) => (before.saturating_sub(limit), before),
        (None, None) => (0, rows.len().min(limit)),
    };
    let has_more = if before.is_some() { first > 0 } else { last < rows.len() };
    let data: Vec<Value> = rows[first..last].iter().map(show).collect();
    Ok(json!({ "object": "list", "data": data, "has_more": has_more, "url": url }))
}

fn limit(params: &Params) -> Result<usize, ApiError> {
    let limit = params.integer("limit")?.unwrap_or(LIMIT_DEFAULT);
    let out_of_range = || {
        let message = format!("Invalid limit: must be between 1 and {LIMIT_MAX}");
        ApiError::parameter("limit", message)
    };
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(out_of_range());
    }
    usize::try_from(limit).map_err(|_| out_of_range())
}

/// `created=5`, `created[gte]=5` and so on, in the unit of the reader.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    from: i64,
    to: i64,
}

impl Range {
    /// A range of whole seconds.
    pub fn read(params: &Params, name: &str) -> Result<Self, ApiError> {
        let Ok(Some(bounds)) = params.nested(name) else {
            let exact = params.integer(name)?;
            return Ok(Self { from: exact.unwrap_or(i64::MIN), to: exact.unwrap_or(i64::MAX) });
        };
        Self::of_bounds(&bounds, Params::integer)
    }

    /// A range whose bounds are read in this way. All given bounds apply.
    pub fn of_bounds(
        bounds: &Params,
        read: impl Fn(&Params, &str) -> Result<Option<i64>, ApiError>,
    ) -> Result<Self, ApiError> {
        bounds.only(&["gt", "gte", "lt", "lte"])?;
        let above = read(bounds, "gt")?.map_or(i64::MIN, |bound| bound.saturating_add(1));
        let below = read(bounds, "lt")?.map_or(i64::MAX, |bound| bound.saturating_sub(1));
        Ok(Self {
            from: read(bounds, "gte")?.unwrap_or(i64::MIN).max(above),
            to: read(bounds, "lte")?.unwrap_or(i64::MAX).min(below),
        })
    }

    pub fn all() -> Self {
        Self { from: i64::MIN, to: i64::MAX }
    }

    pub fn contains(&self, time: i64) -> bool {
        (self.from..=self.to).contains(&time)
    }
}
