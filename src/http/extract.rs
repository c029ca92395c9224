//! What requests carry in their path, query and body, with refusals that are problems.
//!
//! Invariant: nothing of a request is read without a limit, and a name that is not known is
//! refused, so that a misspelt filter never widens an answer.

use super::App;
use super::auth::Caller;
use super::problem::{Kind, Problem};
use crate::api::Page;
use crate::rules::quantity::{Quantity, QuantityRange, SCALE};
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::{Window, parse_border};
use crate::store;
use axum::extract::FromRequestParts;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Uri};
use jiff::tz::TimeZone;
use serde::de::DeserializeOwned;
use std::sync::Arc;

pub use axum::extract::Request;

/// What a handler answers with.
pub type Answer<T> = Result<axum::Json<T>, Problem>;

/// What handlers of requests with a key work with: the server, and whose key it is.
pub struct Call {
    pub app: Arc<App>,
    pub caller: Caller,
}

impl FromRequestParts<Arc<App>> for Call {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        Ok(Self { app: Arc::clone(app), caller })
    }
}

/// Records on a page unless asked otherwise.
pub const LIMIT_DEFAULT: usize = 100;
/// Most records on a page.
pub const LIMIT_MAX: usize = 1000;

/// Bytes of records after which a page ends, however many were asked for.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Defines the query of a list: its filters, where the page begins, and how many records it has.
/// Numbers are bounded by what every JSON parser holds exactly; no store numbers so many records.
macro_rules! list_query {
    ($name:ident, before, { $($filters:tt)* }) => {
        list_query!($name, "`next_before` of the page before.", before: u64
            (minimum = 0, maximum = 9_007_199_254_740_991i64), { $($filters)* });
    };
    ($name:ident, after, { $($filters:tt)* }) => {
        list_query!($name, "`next_after` of the page before.", after: u64
            (minimum = 0, maximum = 9_007_199_254_740_991i64), { $($filters)* });
    };
    ($name:ident, $doc:tt, $at:ident: $type:ident $(($($bounds:tt)*))?, { $($filters:tt)* }) => {
        #[derive(serde::Deserialize, utoipa::IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub struct $name {
            $($filters)*
            #[doc = $doc]
            $(#[param($($bounds)*)])?
            $at: Option<$type>,
            #[param(minimum = 1, maximum = 1000, default = 100)]
            limit: Option<usize>,
        }
    };
}

pub(super) use list_query;

/// How many records a page shall have.
#[derive(Clone, Copy)]
pub struct Limit(usize);

impl Limit {
    pub fn parse(limit: Option<usize>) -> Result<Self, Problem> {
        Self::within(limit, LIMIT_DEFAULT, LIMIT_MAX)
    }

    /// Of a list with other bounds than most.
    pub fn within(limit: Option<usize>, default: usize, max: usize) -> Result<Self, Problem> {
        let limit = limit.unwrap_or(default);
        if (1..=max).contains(&limit) {
            return Ok(Self(limit));
        }
        let detail = format!("limit is 1 to {max}; ask for the next page with the cursor");
        Err(Problem::new(Kind::Invalid, "invalid_limit", detail))
    }

    /// Asks the store for one record more than a page holds: it tells whether a page follows.
    pub fn query<F, C>(self, filter: F, after: Option<C>) -> store::Query<F, C> {
        store::Query { filter, after, limit: self.0 + 1 }
    }

    pub fn get(self) -> usize {
        self.0
    }

    /// As many of these records as fit on a page by their sizes; at least one if there is any.
    pub fn fitting(self, sizes: impl IntoIterator<Item = usize>) -> Self {
        let mut bytes = 0_usize;
        let fits = |size: &usize| {
            let first = bytes == 0;
            bytes = bytes.saturating_add((*size).max(1));
            first || bytes <= PAGE_BYTES_MAX
        };
        Self(sizes.into_iter().take(self.0).take_while(fits).count())
    }

    /// Trims what was found to a page and returns the cursor of the next one.
    pub fn trim<T, C>(self, found: &mut Vec<T>, cursor: impl FnOnce(&T) -> C) -> Option<C> {
        let more = found.len() > self.0;
        found.truncate(self.0);
        found.last().filter(|_| more).map(cursor)
    }

    /// The page that answers with what was found.
    pub fn page<T, P: Page>(
        self,
        mut found: Vec<T>,
        cursor: impl FnOnce(&T) -> P::Cursor,
        answer: impl FnMut(T) -> Result<P::Item, Problem>,
    ) -> Result<axum::Json<P>, Problem> {
        let next = self.trim(&mut found, cursor);
        let items = found.into_iter().map(answer).collect::<Result<_, _>>()?;
        Ok(axum::Json(P::new(items, next)))
    }
}

/// A cursor that no page ended with.
pub fn invalid_cursor() -> Problem {
    Problem::new(Kind::Invalid, "invalid_cursor", "after is no next_after")
}

/// The query of the request's URL.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        Self::read(&parts.uri)
    }
}

impl<T: DeserializeOwned> Query<T> {
    pub fn read(uri: &Uri) -> Result<Self, Problem> {
        check_unicode(uri.query().unwrap_or_default())?;
        let query = axum::extract::Query::<T>::try_from_uri(uri)?;
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

/// Reads a JSON body of one object, after the caller was found to be allowed to send it.
pub async fn read_json<T: DeserializeOwned>(request: Request, app: &App) -> Result<T, Problem> {
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
    Ok(read)
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

/// An instant of a request's body.
pub fn parse_instant(text: &str) -> Result<Timestamp, Problem> {
    Timestamp::parse(text).map_err(Problem::refused)
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
