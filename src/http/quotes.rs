//! `/v1/tenants/{id}/quotes`, `/v1/tax/rates` and `/v1/coupons`: what a bill will come to.
//!
//! Invariant: a quote is answered once under its idempotency key and kept for ever: a repeat gets
//! the same figures and no engine is asked, whatever rates hold by then. A coupon is used by one
//! quote of a tenant in each billing cycle.

use super::App;
use super::accounts::key_taken;
use super::auth::Scope;
use super::extract::{
    Answer, Call, Limit, Path, Query, Request, invalid_cursor, list_query, parse_amount,
    parse_instant, read_json,
};
use super::idempotency::Once;
use super::problem::{Kind, Problem};
use crate::api::quotes::{
    CouponAnswer, CouponList, CouponSpec, LineSpec, QuoteAnswer, QuoteSpec, RateAnswer, RateList,
    RateSpec,
};
use crate::rules::digest::{digest_fields, hex};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::tax::{Coupon, Off, Quote, QuoteLine, QuoteRequest, TaxRate, discounts};
use crate::rules::timestamp::Timestamp;
use crate::store;
use crate::store::quote::{CouponPut, CouponUse, QuoteRecorded, RateKey, RatePut, StoredQuote};
use crate::tax::NoQuote;
use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};

/// Set a tax rate
///
/// An open-ended rate is ended by sending it again with `valid_until`.
#[utoipa::path(
    put, path = "/v1/tax/rates", tag = "tax", request_body = RateSpec,
    responses(
        (status = 200, description = "The rate as it is", body = RateAnswer),
        (status = 409, description = "The rate overlaps another one of the same name"),
        (status = 422, description = "The place, the percent or a date is refused"),
    )
)]
pub async fn put_rate(Call { app, caller }: Call, request: Request) -> Answer<RateAnswer> {
    caller.require_unbound(Scope::Operate)?;
    let spec = read_json::<RateSpec>(request, &app).await?;
    let rate = TaxRate {
        percent: parse_amount(&spec.percent)?,
        valid_from: parse_instant(&spec.valid_from)?,
        valid_until: spec.valid_until.as_deref().map(parse_instant).transpose()?,
        jurisdiction: spec.jurisdiction,
        name: spec.name,
    };
    rate.check().map_err(Problem::refused)?;
    match app.store.put_tax_rate(rate.clone(), app.clock.now()).await? {
        RatePut::Created | RatePut::Unchanged => Ok(axum::Json(rate.into())),
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

/// Whether it is the stored one, with an end.
fn ends(rate: &TaxRate, standing: &TaxRate) -> bool {
    let open = TaxRate { valid_until: None, ..rate.clone() };
    rate.valid_until.is_some() && open == *standing
}

list_query!(RateParameters, "`next_after` of the page before.", after: String, {});

/// List tax rates
#[utoipa::path(
    get, path = "/v1/tax/rates", tag = "tax", params(RateParameters),
    responses((status = 200, description = "A page of rates, also past ones", body = RateList))
)]
pub async fn list_rates(
    Call { app, caller }: Call,
    Query(query): Query<RateParameters>,
) -> Answer<RateList> {
    caller.require(Scope::Read)?;
    let limit = Limit::parse(query.limit)?;
    let after = query.after.as_deref().map(parse_rate_cursor).transpose()?;
    let found = app.store.list_tax_rates(limit.query((), after)).await?;
    limit.page(found, write_rate_cursor, |rate| Ok(rate.into()))
}

fn write_rate_cursor(last: &TaxRate) -> String {
    format!("{}/{}/{}", last.valid_from.micros(), last.jurisdiction, last.name)
}

pub fn parse_rate_cursor(text: &str) -> Result<RateKey, Problem> {
    let mut parts = text.splitn(3, '/');
    let mut next = || parts.next().filter(|part| !part.contains('\0')).ok_or_else(invalid_cursor);
    let from = next()?.parse().map(Timestamp::from_micros).map_err(|_| invalid_cursor())?;
    Ok((next()?.to_owned(), next()?.to_owned(), from))
}

/// Create a coupon
#[utoipa::path(
    put, path = "/v1/coupons/{code}", tag = "tax", request_body = CouponSpec,
    params(("code" = String, Path)),
    responses(
        (status = 200, description = "The coupon as it is", body = CouponAnswer),
        (status = 409, description = "Another coupon has this code"),
        (status = 422, description = "The discount is invalid"),
    )
)]
pub async fn put_coupon(
    Call { app, caller }: Call,
    Path(code): Path<String>,
    request: Request,
) -> Answer<CouponAnswer> {
    caller.require_unbound(Scope::Operate)?;
    let spec = read_json::<CouponSpec>(request, &app).await?;
    let coupon = read_coupon(code, spec)?;
    coupon.check().map_err(Problem::refused)?;
    match app.store.put_coupon(coupon.clone(), app.clock.now()).await? {
        CouponPut::Created | CouponPut::Unchanged => Ok(axum::Json(coupon.into())),
        CouponPut::Refused(standing) => Err(Problem::new(
            Kind::Conflict,
            "coupon_differs",
            format!("another coupon has the code {}; use a new code", standing.code),
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
    Ok(Coupon {
        code,
        off,
        currency: spec.currency,
        valid_from: parse_instant(&spec.valid_from)?,
        valid_until: spec.valid_until.as_deref().map(parse_instant).transpose()?,
        cycles_max: spec.cycles_max,
    })
}

list_query!(CouponParameters, "The last code of the page before.", after: String
    (min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"), {});

/// List coupons
#[utoipa::path(
    get, path = "/v1/coupons", tag = "tax", params(CouponParameters),
    responses((status = 200, description = "A page, in the order of codes", body = CouponList))
)]
pub async fn list_coupons(
    Call { app, caller }: Call,
    Query(query): Query<CouponParameters>,
) -> Answer<CouponList> {
    caller.require_unbound(Scope::Read)?;
    let limit = Limit::parse(query.limit)?;
    query.after.as_deref().map(OnceKey::parse).transpose()?;
    let found = app.store.list_coupons(limit.query((), query.after)).await?;
    limit.page(found, |coupon| coupon.code.clone(), |coupon| Ok(coupon.into()))
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
        (status = 409, description = "Another quote has this key"),
        (status = 422, description = "An amount, the coupon or a place without a rate is refused"),
    )
)]
pub async fn post_quote(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.tenant_for(Scope::Operate, &tenant)?;
    let (once, spec) = Once::read::<QuoteSpec>(request, &app).await?;
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
    let rates = app.store.list_tax_rates(store::Query::first((), usize::MAX)).await?;
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
/// it is the caller's mistake, not an expired coupon.
async fn find_coupon(
    app: &App,
    request: &QuoteRequest,
    key: &OnceKey,
) -> Result<Option<Result<Coupon, String>>, Problem> {
    let (Some(code), Some(cycle)) = (&request.coupon, request.cycle) else { return Ok(None) };
    OnceKey::parse(code).map_err(Problem::refused)?;
    let coupon = app.store.find_coupon(code).await?.ok_or_else(|| {
        let detail = format!("there is no coupon {code}; GET /v1/coupons lists them");
        Problem::new(Kind::Refused, "unknown_coupon", detail)
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
        at: kept.at,
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
    Call { app, caller }: Call,
    Path((tenant, key)): Path<(String, String)>,
) -> Answer<QuoteAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let found = app.store.find_quote(&tenant, &OnceKey::parse(&key)?).await?;
    let unknown = || Problem::new(Kind::NotFound, "unknown_quote", "there is no such quote");
    Ok(axum::Json(answer_quote(&found.ok_or_else(unknown)?)?))
}
