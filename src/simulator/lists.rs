//! Lists as the provider pages them.
//!
//! Invariant: pages of one list, followed by `starting_after`, give each row once. A crash leaves
//! nothing.

use super::params::Params;
use super::request::ApiError;
use serde_json::{Value, json};

const LIMIT_DEFAULT: i64 = 10;
const LIMIT_MAX: i64 = 100;

/// What every list takes besides its own filters.
pub const PAGING: [&str; 3] = ["limit", "starting_after", "ending_before"];

/// The page of these rows that was asked for.
pub fn page(rows: Vec<Value>, params: &Params, url: &str) -> Result<Value, ApiError> {
    let limit = limit(params)?;
    let after = cursor(&rows, params, "starting_after")?;
    let before = cursor(&rows, params, "ending_before")?;
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
    let data: Vec<Value> = rows.into_iter().skip(first).take(last - first).collect();
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

fn cursor(rows: &[Value], params: &Params, name: &str) -> Result<Option<usize>, ApiError> {
    let Some(id) = params.text(name, usize::MAX)? else { return Ok(None) };
    let place = rows.iter().position(|row| row["id"] == id.as_str());
    let missing = || ApiError::parameter(name, format!("No such object: '{id}'"));
    place.map(Some).ok_or_else(|| missing().with_code("resource_missing"))
}
