//! What requests carry in their path, query and body, with refusals that are problems.
//!
//! Invariant: nothing of a request is read without a limit, and a name that is not known is
//! refused, so that a misspelt filter never widens an answer.

use super::App;
use super::problem::{Kind, Problem};
use crate::rules::quantity::{Quantity, QuantityRange, SCALE};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::{Window, parse_border};
use axum::extract::{FromRequestParts, Request};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use jiff::tz::TimeZone;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Records on a page unless asked otherwise.
pub const LIMIT_DEFAULT: usize = 100;
/// Most records on a page.
pub const LIMIT_MAX: usize = 1000;

/// Bytes of records after which a page ends, however many were asked for.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// How many records fit on a page, given their sizes; at least one if there is any.
pub fn fit_page(sizes: impl IntoIterator<Item = usize>, limit: usize) -> usize {
    let mut bytes = 0_usize;
    let fits = |size: &usize| {
        let first = bytes == 0;
        bytes = bytes.saturating_add((*size).max(1));
        first || bytes <= PAGE_BYTES_MAX
    };
    sizes.into_iter().take(limit).take_while(fits).count()
}

/// Trims what was found to a page and returns the cursor of the next one. The store is asked for
/// one record more than a page holds: only if it found that one, another page follows.
pub fn trim_page<T, C>(
    found: &mut Vec<T>,
    limit: usize,
    cursor: impl FnOnce(&T) -> C,
) -> Option<C> {
    let more = found.len() > limit;
    found.truncate(limit);
    found.last().filter(|_| more).map(cursor)
}

/// The query of the request's URL.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        check_unicode(parts.uri.query().unwrap_or_default())?;
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri)?;
        Ok(Self(query.0))
    }
}

/// The decoder replaces bytes that are not UTF-8 silently, and would ask about another name.
fn check_unicode(query: &str) -> Result<(), Problem> {
    let mut decoded = Vec::with_capacity(query.len());
    let mut rest = query.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (byte, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(escaped)) => {
                decoded.push(escaped);
                rest = &after[2..];
            }
            (byte, _) => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    std::str::from_utf8(&decoded).map(|_| ()).map_err(|_| {
        Problem::new(
            Kind::Invalid,
            "invalid_query",
            "the query is not UTF-8; write names percent-encoded",
        )
    })
}

/// The names in the request's path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, app).await?;
        Ok(Self(path.0))
    }
}

/// A JSON body of one object.
pub struct Json<T>(pub T);

/// Reads the body after the caller was found to be allowed to send it.
pub async fn read_json<T: DeserializeOwned>(
    request: Request,
    app: &App,
) -> Result<Json<T>, Problem> {
    let (parts, body) = request.into_parts();
    if !matches!(media_type(&parts.headers).as_deref(), None | Some("application/json")) {
        return Err(Problem::new(
            Kind::UnsupportedType,
            "unsupported_type",
            "Content-Type must be application/json; with curl, use --json",
        ));
    }
    let body = app.bodies.read(&parts, body).await?;
    let read = serde_json::from_slice(&body.bytes).map_err(|error| invalid_body(&error))?;
    // Positional arrays are read as objects otherwise, and mean something else after a change.
    if !body.bytes.trim_ascii_start().starts_with(b"{") {
        let detail = "the body must be a JSON object; see /docs";
        return Err(Problem::new(Kind::Refused, "invalid_body", detail));
    }
    Ok(Json(read))
}

fn invalid_body(error: &serde_json::Error) -> Problem {
    match error.classify() {
        serde_json::error::Category::Data => {
            Problem::new(Kind::Refused, "invalid_body", format!("{error}; see /docs"))
        }
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => {
            Problem::new(Kind::Invalid, "invalid_json", format!("the body is not JSON: {error}"))
        }
    }
}

/// The type of the body in lower case, without its parameters.
pub fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?;
    // A value that is not text is some type that nobody knows.
    let text = value.to_str().unwrap_or("unreadable");
    let name = text.split_once(';').map_or(text, |(name, _)| name);
    Some(name.trim().to_ascii_lowercase())
}

/// Amounts that an account or a grant can hold.
const AMOUNT_RANGE: QuantityRange = QuantityRange { precision: 27, scale: SCALE, signed: true };

/// Reads an amount from its text: digits and a point, as the description says.
pub fn parse_amount(text: &str) -> Result<Quantity, Problem> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b".-".contains(&byte));
    let amount = Quantity::parse(text, AMOUNT_RANGE).ok().filter(|_| plain);
    amount.ok_or_else(|| {
        let detail = "an amount is a decimal number of at most 15 digits and 12 decimals, as a \
                      string such as \"25\" or \"-0.50\"";
        Problem::new(Kind::Refused, "invalid_amount", detail)
    })
}

/// Checks how many records a page shall have.
pub fn parse_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(Problem::new(
            Kind::Invalid,
            "invalid_limit",
            format!("limit is 1 to {LIMIT_MAX}; ask for the next page with the cursor"),
        )),
    }
}

/// Longest range of days that one answer covers, which bounds it.
pub const RANGE_DAYS_MAX: i64 = 31;

/// A range of days in UTC: up to `end` unless asked otherwise, and from a day before.
pub fn parse_days(from: Option<&str>, to: Option<&str>, end: Timestamp) -> Result<Window, Problem> {
    let border = |text: &str| parse_border(text, &TimeZone::UTC);
    let end = to.map(border).transpose()?.unwrap_or(end);
    let start = from.map(border).transpose()?;
    let start = start.unwrap_or_else(|| end.saturating_add_micros(-MICROS_PER_DAY));
    let refuse = |detail: String| Err(Problem::new(Kind::Invalid, "invalid_range", detail));
    if end <= start {
        return refuse("from must lie before to, which is no longer included".into());
    }
    if start.saturating_add_micros(RANGE_DAYS_MAX * MICROS_PER_DAY) < end {
        return refuse(format!("a range has at most {RANGE_DAYS_MAX} days: ask for each part"));
    }
    Ok(Window { start, end })
}
