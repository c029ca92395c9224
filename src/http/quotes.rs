//! `/v1/tenants/{id}/quotes`, `/v1/tax/rates` and `/v1/coupons`: what a bill will come to.
//!
//! Invariant: a quote is answered once under its idempotency key and kept for ever: a repeat gets
//! the same figures and no engine is asked, whatever rates hold by then. A coupon is used by one
//! quote of a tenant in each billing cycle.

use super::App;
use super::accounts::{key_taken, readable};
use super::auth::{Caller, Scope};
use super::extract::{Json, Path, Query, parse_amount, parse_limit, read_json, trim_page};
use super::idempotency::Once;
use super::problem::{Kind, Problem};
use crate::rules::digest::{digest_fields, hex};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::tax::{
    Coupon, Off, PriceKind, Quote, QuoteLine, QuoteRequest, TaxRate, discounts,
};
use crate::rules::timestamp::Timestamp;
use crate::store::quote::{CouponPut, CouponUse, QuoteRecorded, RateKey, RatePut, StoredQuote};
use crate::tax::NoQuote;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "jurisdiction": "de", "name": "vat", "percent": "19", "valid_from": "2021-01-01T00:00:00Z"
}))]
pub struct RateSpec {
    /// Such as `de` or `us-ny`; a place within another pays the rates of both.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9-]+$")]
    jurisdiction: String,
    /// What it is called on the bill.
    #[schema(min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    name: String,
    /// As a decimal number, such as 19 for 19 %.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,2})(\.[0-9]{1,6})?$")]
    percent: String,
    #[schema(format = DateTime)]
    valid_from: String,
    #[serde(default)]
    #[schema(format = DateTime)]
    valid_until: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct RateAnswer {
    jurisdiction: String,
    name: String,
    percent: String,
    #[schema(format = DateTime)]
    valid_from: String,
    #[schema(format = DateTime)]
    valid_until: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct RateList {
    rates: Vec<RateAnswer>,
    /// Give it as `after` for the next page; null at the end.
    next_after: Option<String>,
}

/// Set a tax rate
///
/// A rate that stands until further notice is ended by sending it again with `valid_until`.
#[utoipa::path(
    put, path = "/v1/tax/rates", tag = "tax", request_body = RateSpec,
    responses(
        (status = 200, description = "The rate as it is", body = RateAnswer),
        (status = 409, description = "Another rate of the name holds at the same time"),
        (status = 422, description = "The place, the percent or a date is refused"),
    )
)]
pub async fn put_rate(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: axum::extract::Request,
) -> Result<axum::Json<RateAnswer>, Problem> {
    caller.require_unbound(Scope::Operate)?;
    let Json(spec) = read_json::<RateSpec>(request, &app).await?;
    let instant = |text: &String| Timestamp::parse(text).map_err(Problem::refused);
    let rate = TaxRate {
        percent: parse_amount(&spec.percent)?,
        valid_from: instant(&spec.valid_from)?,
        valid_until: spec.valid_until.as_ref().map(instant).transpose()?,
        jurisdiction: spec.jurisdiction,
        name: spec.name,
    };
    rate.check().map_err(Problem::refused)?;
    match app.store.put_tax_rate(rate.clone(), app.clock.now()).await? {
        RatePut::Created | RatePut::Stands => Ok(axum::Json(rate.into())),
        RatePut::Overlaps(standing) if ends(&rate, &standing) => {
            let TaxRate { jurisdiction, name, valid_from, valid_until, .. } = &rate;
            let end = valid_until.unwrap_or(*valid_from);
            app.store.end_tax_rate(jurisdiction, name, *valid_from, end).await?;
            Ok(axum::Json(rate.into()))
        }
        RatePut::Overlaps(standing) => Err(Problem::new(
            Kind::Conflict,
            "rate_overlaps",
            format!(
                "{} in {} is {} % from {}; end that rate first by sending it again with \
                 valid_until",
                standing.name, standing.jurisdiction, standing.percent, standing.valid_from
            ),
        )),
    }
}

/// Whether it is the one that stands, with an end.
fn ends(rate: &TaxRate, standing: &TaxRate) -> bool {
    let open = TaxRate { valid_until: None, ..rate.clone() };
    rate.valid_until.is_some() && open == *standing
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RateParameters {
    /// `next_after` of the page before.
    after: Option<String>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// List tax rates
#[utoipa::path(
    get, path = "/v1/tax/rates", tag = "tax", params(RateParameters),
    responses((status = 200, description = "A page of rates, also past ones", body = RateList))
)]
pub async fn list_rates(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<RateParameters>,
) -> Result<axum::Json<RateList>, Problem> {
    caller.require(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let after = query.after.as_deref().map(parse_rate_cursor).transpose()?;
    let mut found = app.store.list_tax_rates(after, limit + 1).await?;
    let next_after = trim_page(&mut found, limit, write_rate_cursor);
    let rates = found.into_iter().map(RateAnswer::from).collect();
    Ok(axum::Json(RateList { rates, next_after }))
}

fn write_rate_cursor(last: &TaxRate) -> String {
    format!("{}/{}/{}", last.valid_from.micros(), last.jurisdiction, last.name)
}

pub fn parse_rate_cursor(text: &str) -> Result<RateKey, Problem> {
    let refuse = || Problem::new(Kind::Invalid, "invalid_cursor", "after is no next_after");
    let mut parts = text.splitn(3, '/');
    let mut next = || parts.next().filter(|part| !part.contains('\0')).ok_or_else(refuse);
    let from = next()?.parse().map(Timestamp::from_micros).map_err(|_| refuse())?;
    Ok((next()?.to_owned(), next()?.to_owned(), from))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"percent_off": "10", "valid_from": "2026-01-01T00:00:00Z"}))]
pub struct CouponSpec {
    /// Of every line, as a decimal number above 0 to 100.
    #[serde(default)]
    #[schema(pattern = r"^(0|[1-9][0-9]{0,2})(\.[0-9]{1,6})?$")]
    percent_off: Option<String>,
    /// Of all lines together, in `currency`.
    #[serde(default)]
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,3})?$")]
    amount_off: Option<String>,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 32, pattern = "^[a-z0-9][a-z0-9_.-]*$")]
    currency: Option<String>,
    #[schema(format = DateTime)]
    valid_from: String,
    #[serde(default)]
    #[schema(format = DateTime)]
    valid_until: Option<String>,
    /// In how many billing cycles one tenant gets it; all unless given.
    #[serde(default)]
    #[schema(minimum = 1)]
    cycles_max: Option<u32>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct CouponAnswer {
    code: String,
    percent_off: Option<String>,
    amount_off: Option<String>,
    currency: Option<String>,
    #[schema(format = DateTime)]
    valid_from: String,
    #[schema(format = DateTime)]
    valid_until: Option<String>,
    cycles_max: Option<u32>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct CouponList {
    coupons: Vec<CouponAnswer>,
    /// Give it as `after` for the next page; null at the end.
    next_after: Option<String>,
}

/// Create a coupon
#[utoipa::path(
    put, path = "/v1/coupons/{code}", tag = "tax", request_body = CouponSpec,
    params(("code" = String, Path)),
    responses(
        (status = 200, description = "The coupon as it is", body = CouponAnswer),
        (status = 409, description = "Another coupon stands under the code"),
        (status = 422, description = "What it takes off is refused"),
    )
)]
pub async fn put_coupon(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(code): Path<String>,
    request: axum::extract::Request,
) -> Result<axum::Json<CouponAnswer>, Problem> {
    caller.require_unbound(Scope::Operate)?;
    let Json(spec) = read_json::<CouponSpec>(request, &app).await?;
    let coupon = read_coupon(code, spec)?;
    coupon.check().map_err(Problem::refused)?;
    match app.store.put_coupon(coupon.clone(), app.clock.now()).await? {
        CouponPut::Created | CouponPut::Stands => Ok(axum::Json(coupon.into())),
        CouponPut::Refused(standing) => Err(Problem::new(
            Kind::Conflict,
            "coupon_differs",
            format!("another coupon stands under {}; use a new code", standing.code),
        )),
    }
}

fn read_coupon(code: String, spec: CouponSpec) -> Result<Coupon, Problem> {
    let off = match (&spec.percent_off, &spec.amount_off) {
        (Some(percent), None) => Off::Percent(parse_amount(percent)?),
        (None, Some(amount)) => Off::Amount(parse_amount(amount)?),
        (Some(_), Some(_)) | (None, None) => {
            let detail = "give either percent_off or amount_off";
            return Err(Problem::new(Kind::Refused, "invalid_coupon", detail));
        }
    };
    let instant = |text: &String| Timestamp::parse(text).map_err(Problem::refused);
    Ok(Coupon {
        code,
        off,
        currency: spec.currency,
        valid_from: instant(&spec.valid_from)?,
        valid_until: spec.valid_until.as_ref().map(instant).transpose()?,
        cycles_max: spec.cycles_max,
    })
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CouponParameters {
    /// The last code of the page before.
    #[param(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    after: Option<String>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// List coupons
#[utoipa::path(
    get, path = "/v1/coupons", tag = "tax", params(CouponParameters),
    responses((status = 200, description = "A page, in the order of codes", body = CouponList))
)]
pub async fn list_coupons(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(query): Query<CouponParameters>,
) -> Result<axum::Json<CouponList>, Problem> {
    caller.require_unbound(Scope::Read)?;
    let limit = parse_limit(query.limit)?;
    let after = query.after.as_deref().map(OnceKey::parse).transpose()?;
    let after = after.as_ref().map(OnceKey::as_str);
    let mut found = app.store.list_coupons(after, limit + 1).await?;
    let next_after = trim_page(&mut found, limit, |coupon| coupon.code.clone());
    let coupons = found.into_iter().map(CouponAnswer::from).collect();
    Ok(axum::Json(CouponList { coupons, next_after }))
}

#[derive(Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LineSpec {
    /// The sender's name for it.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    id: String,
    /// A whole number of the currency's smallest unit, as a decimal number of the currency.
    #[schema(pattern = r"^(0|[1-9][0-9]{0,14})(\.[0-9]{1,3})?$")]
    amount: String,
}

#[derive(Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "currency": "eur", "jurisdiction": "de", "prices": "exclusive",
    "lines": [{"id": "api_calls", "amount": "12.50"}]
}))]
pub struct QuoteSpec {
    #[schema(min_length = 3, max_length = 3, pattern = "^[a-z]{3}$")]
    currency: String,
    /// Where it is sold; a rate must hold there, of 0 percent if nothing is due.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9-]+$")]
    jurisdiction: String,
    /// Whether amounts hold their tax.
    prices: PriceKind,
    /// The moment whose rates hold; now unless given.
    #[serde(default)]
    #[schema(format = DateTime)]
    at: Option<String>,
    #[schema(min_items = 1, max_items = 200)]
    lines: Vec<LineSpec>,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    coupon: Option<String>,
    /// Start of the billing cycle, for a coupon: it counts once in each.
    #[serde(default)]
    #[schema(format = DateTime)]
    cycle: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct QuoteAnswer {
    /// The idempotency key it was answered under.
    key: String,
    /// The moment whose rates hold.
    #[schema(format = DateTime)]
    at: String,
    /// Which engine answered.
    engine: String,
    /// Lines and sums, each a decimal number of the currency as a string.
    #[schema(value_type = Object)]
    quote: serde_json::Value,
    /// The coupon that was taken off.
    coupon: Option<String>,
    /// Why the coupon that was asked for was not.
    coupon_refused: Option<String>,
}

/// What is kept of an answer.
#[derive(Serialize, Deserialize)]
struct KeptAnswer {
    at: Timestamp,
    quote: Quote,
    coupon: Option<String>,
    coupon_refused: Option<String>,
}

/// Quote a bill: discount, tax and total
///
/// The same request under the same `Idempotency-Key` always has the same answer.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/quotes", tag = "tax", request_body = QuoteSpec,
    params(("tenant" = String, Path)),
    responses(
        (status = 200, description = "The quote", body = QuoteAnswer),
        (status = 409, description = "Another quote stands under the key"),
        (status = 422, description = "An amount, the coupon or a place without a rate is refused"),
    )
)]
pub async fn post_quote(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(tenant): Path<String>,
    once: Once,
    request: axum::extract::Request,
) -> Result<Response<Body>, Problem> {
    caller.require(Scope::Operate)?;
    let tenant = TenantId::parse(&tenant)?;
    caller.require_tenant(&tenant)?;
    let Json(spec) = read_json::<QuoteSpec>(request, &app).await?;
    if spec.coupon.is_some() {
        app.admission.try_coupon(&caller)?;
    }
    // As it was asked: the moment that we fill in is no part of the question.
    let text = serde_json::to_string(&spec).expect("a request is plain JSON");
    let (quote, coupon) = match app.store.find_quote(&tenant, &once.key).await? {
        // It was answered before the key was forgotten; no engine is asked.
        Some(standing) => (StoredQuote { request: text, ..standing }, None),
        None => ask(&app, &once.key, tenant, spec, text).await?,
    };
    let completing = once.completing(answer_recorded);
    let recorded = app.store.record_quote(quote, coupon, Some(&completing)).await?;
    Ok(Once::respond(&completing, &recorded))
}

/// Has the engine quote, and says which coupon that uses.
async fn ask(
    app: &App,
    key: &OnceKey,
    tenant: TenantId,
    spec: QuoteSpec,
    text: String,
) -> Result<(StoredQuote, Option<CouponUse>), Problem> {
    let now = app.clock.now();
    let request = read_request(tenant, spec, now)?;
    request.check().map_err(Problem::refused)?;
    let (coupon, refused) = match find_coupon(app, &request, key).await? {
        Some(Ok(coupon)) => (Some(coupon), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let taken = discounts(&request, coupon.as_ref()).map_err(Problem::refused)?;
    let rates = app.store.list_tax_rates(None, usize::MAX).await?;
    let quoted = app.taxes.quote(&request, &taken, &rates, &engine_key(&request.tenant, key)).await;
    let quote = quoted.map_err(|none| match none {
        NoQuote::Refused(refusal) => Problem::refused(refusal),
        NoQuote::Unavailable(why) => Problem::tax_engine_unavailable(why),
    })?;
    let kept = KeptAnswer {
        at: request.at,
        quote,
        coupon: coupon.as_ref().map(|coupon| coupon.code.clone()),
        coupon_refused: refused,
    };
    let stored = StoredQuote {
        tenant: request.tenant,
        key: key.clone(),
        request: text,
        answer: serde_json::to_string(&kept).expect("an answer is plain JSON"),
        engine: app.taxes.name().to_owned(),
        at: now,
    };
    let used = coupon.zip(request.cycle).map(|(coupon, cycle)| CouponUse {
        code: coupon.code,
        cycle,
        cycles_max: coupon.cycles_max,
    });
    Ok((stored, used))
}

fn read_request(
    tenant: TenantId,
    spec: QuoteSpec,
    now: Timestamp,
) -> Result<QuoteRequest, Problem> {
    let instant = |name: &str, text: Option<&String>| {
        let parsed = text.map(|text| Timestamp::parse_field(name, text)).transpose();
        parsed.map_err(Problem::refused)
    };
    let mut lines = Vec::with_capacity(spec.lines.len());
    for LineSpec { id, amount } in spec.lines {
        OnceKey::parse(&id).map_err(Problem::refused)?;
        lines.push(QuoteLine { id, amount: parse_amount(&amount)? });
    }
    Ok(QuoteRequest {
        tenant,
        currency: spec.currency,
        jurisdiction: spec.jurisdiction,
        prices: spec.prices,
        at: instant("at", spec.at.as_ref())?.unwrap_or(now),
        lines,
        coupon: spec.coupon,
        cycle: instant("cycle", spec.cycle.as_ref())?,
    })
}

/// The coupon that a quote may use, or why it may not. One that does not exist is refused outright:
/// it is a mistake of whoever asks, not a coupon that has had its day.
async fn find_coupon(
    app: &App,
    request: &QuoteRequest,
    key: &OnceKey,
) -> Result<Option<Result<Coupon, String>>, Problem> {
    let (Some(code), Some(cycle)) = (&request.coupon, request.cycle) else { return Ok(None) };
    OnceKey::parse(code).map_err(Problem::refused)?;
    let coupon = app.store.find_coupon(code).await?.ok_or_else(|| {
        let detail = format!("there is no coupon {code}; GET /v1/coupons lists them");
        Problem::new(Kind::Refused, "coupon_unknown", detail)
    })?;
    if !coupon.holds_at(request.at) {
        return Ok(Some(Err("it does not hold at that moment".into())));
    }
    if coupon.currency.as_ref().is_some_and(|currency| *currency != request.currency) {
        return Ok(Some(Err("it is of another currency".into())));
    }
    let (used_by, cycles) = app.store.read_coupon_uses(&request.tenant, code, cycle).await?;
    match used_by {
        Some(other) if other != *key => {
            return Ok(Some(Err(format!("it was used in this cycle by quote {other}"))));
        }
        Some(_) => {}
        None if coupon.cycles_max.is_some_and(|most| cycles >= most) => {
            return Ok(Some(Err(format!(
                "it was used in {cycles} cycles, which is all it may be"
            ))));
        }
        None => {}
    }
    Ok(Some(Ok(coupon)))
}

/// Tells the engine a repeat from another question.
fn engine_key(tenant: &TenantId, key: &OnceKey) -> String {
    let digest = digest_fields([
        b"counterfoil quote v1".as_slice(),
        tenant.as_str().as_bytes(),
        key.as_str().as_bytes(),
    ]);
    format!("cfq1-{}", hex(&digest[..20]))
}

fn answer_recorded(recorded: &QuoteRecorded) -> Result<(StatusCode, QuoteAnswer), Problem> {
    match recorded {
        QuoteRecorded::Recorded(quote) | QuoteRecorded::Repeated(quote) => {
            Ok((StatusCode::OK, answer_quote(quote)?))
        }
        QuoteRecorded::KeyTaken(quote) => Err(key_taken("quote", &quote.key)),
        QuoteRecorded::CouponUsed(_) => Err(Problem::new(
            Kind::Conflict,
            "coupon_used",
            "the coupon was used for another quote at the same moment; ask again with a new key",
        )),
    }
}

fn answer_quote(stored: &StoredQuote) -> Result<QuoteAnswer, Problem> {
    let kept: KeptAnswer = serde_json::from_str(&stored.answer)
        .map_err(|_| Problem::corrupt("a quote's answer cannot be read"))?;
    Ok(QuoteAnswer {
        key: stored.key.to_string(),
        at: kept.at.to_string(),
        engine: stored.engine.clone(),
        quote: serde_json::to_value(&kept.quote).expect("a quote is plain JSON"),
        coupon: kept.coupon,
        coupon_refused: kept.coupon_refused,
    })
}

/// Read a quote
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/quotes/{key}", tag = "tax",
    params(("tenant" = String, Path), ("key" = String, Path)),
    responses(
        (status = 200, description = "The quote", body = QuoteAnswer),
        (status = 404, description = "There is no such quote"),
    )
)]
pub async fn get_quote(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((tenant, key)): Path<(String, String)>,
) -> Result<axum::Json<QuoteAnswer>, Problem> {
    let tenant = readable(&caller, &tenant)?;
    let found = app.store.find_quote(&tenant, &OnceKey::parse(&key)?).await?;
    let unknown = || Problem::new(Kind::NotFound, "quote_unknown", "there is no such quote");
    Ok(axum::Json(answer_quote(&found.ok_or_else(unknown)?)?))
}

impl From<TaxRate> for RateAnswer {
    fn from(rate: TaxRate) -> Self {
        Self {
            jurisdiction: rate.jurisdiction,
            name: rate.name,
            percent: rate.percent.to_string(),
            valid_from: rate.valid_from.to_string(),
            valid_until: rate.valid_until.map(|at| at.to_string()),
        }
    }
}

impl From<Coupon> for CouponAnswer {
    fn from(coupon: Coupon) -> Self {
        let (percent_off, amount_off) = match coupon.off {
            Off::Percent(percent) => (Some(percent.to_string()), None),
            Off::Amount(amount) => (None, Some(amount.to_string())),
        };
        Self {
            code: coupon.code,
            percent_off,
            amount_off,
            currency: coupon.currency,
            valid_from: coupon.valid_from.to_string(),
            valid_until: coupon.valid_until.map(|at| at.to_string()),
            cycles_max: coupon.cycles_max,
        }
    }
}
