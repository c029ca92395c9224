//! `/v1/tenants/{id}/grants`, `/credits` and `/entitlements`: what was paid for or given in
//! advance, and what is left of it.
//!
//! Invariant: a grant is issued, and voided, once under its idempotency key. A balance holds
//! usage that was acknowledged before the request, also if no cut has seen it.

use super::App;
use super::accounts::{key_taken, parse_memo};
use super::auth::Scope;
use super::extract::{
    Answer, Call, Limit, Path, Query, Request, list_query, parse_amount, parse_instant,
};
use super::idempotency::Once;
use super::problem::{Kind, Problem};
use crate::api::credits::{
    ChangeAnswer, ChangeList, CreditsAnswer, EntitlementAnswer, GrantAnswer, GrantList, GrantSpec,
    PoolAnswer, QuotaAnswer, VoidSpec,
};
use crate::jobs::credits::{Balance, BalanceSettings, PoolBalance, coverable, read_balance};
use crate::jobs::thresholds::{period_around, read_used};
use crate::rules::credit::{GRANTS_MAX, GrantTerms};
use crate::rules::ids::{MeterNo, TenantId, Unit};
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store;
use crate::store::alert::{Threshold, ThresholdKind};
use crate::store::credit::{ChangeFilter, GrantFilter, Issued, VoidGrant, Voided};
use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use std::collections::BTreeMap;

/// Drawn after those of a lower and before those of a higher one.
const PRIORITY_DEFAULT: u8 = 50;

/// Issue credits: a top-up, or a gift
///
/// Usage draws granted credits before purchased ones, then by priority, then by expiry. Only usage
/// that credits do not cover is pushed to the provider.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/grants", tag = "credits", request_body = GrantSpec,
    params(("tenant" = String, Path)),
    responses(
        (status = 201, description = "The grant", body = GrantAnswer),
        (status = 409, description = "Another grant has this key"),
        (status = 422, description = "The amount, a rate or a date is refused"),
    )
)]
pub async fn post_grant(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.any_tenant_for(Scope::Operate, &tenant)?;
    let (once, spec) = Once::read::<GrantSpec>(request, &app).await?;
    let catalog = app.catalog.reload().await?;
    let now = app.clock.now();
    let starts_now = spec.effective_at.is_none();
    let terms = read_terms(spec, tenant, &once, &catalog, now)?;
    let scale = |meter: MeterNo| catalog.get(meter).map(|meter| meter.usage_scale());
    if let Err(refusal) = terms.check(scale) {
        // A grant that has expired since it was asked for is still the answer to a repeat.
        if !starts_now || app.store.find_grant(&terms.tenant, &terms.key).await?.is_none() {
            return Err(Problem::refused(refusal));
        }
    }
    let asked = terms.clone();
    let completing = once.completing(move |issued: &Issued| match issued {
        // The same request at another moment is the same grant.
        Issued::KeyTaken(grant) if starts_now && asked.says_later(&grant.terms) => {
            Ok((StatusCode::CREATED, (grant, &*catalog).into()))
        }
        Issued::Created(_) | Issued::Repeated(_) | Issued::KeyTaken(_) | Issued::TooMany => {
            answer_issued(issued, &catalog)
        }
    });
    let issued = app.store.issue_grant(terms, now, Some(&completing)).await?;
    Ok(Once::respond(&completing, &issued))
}

fn read_terms(
    spec: GrantSpec,
    tenant: TenantId,
    once: &Once,
    catalog: &Catalog,
    begun: Timestamp,
) -> Result<GrantTerms, Problem> {
    let mut rates = BTreeMap::new();
    for (slug, rate) in &spec.rates {
        let (number, _) = catalog.find(slug).ok_or_else(|| {
            let detail = format!("there is no meter {slug}; GET /v1/meters lists them");
            Problem::new(Kind::Refused, "unknown_meter", detail)
        })?;
        rates.insert(number, parse_amount(rate)?);
    }
    Ok(GrantTerms {
        tenant,
        key: once.key.clone(),
        pool: spec.pool,
        unit: Unit::parse(&spec.unit).map_err(Problem::refused)?,
        amount: parse_amount(&spec.amount)?,
        rates,
        priority: spec.priority.unwrap_or(PRIORITY_DEFAULT),
        effective_at: spec.effective_at.as_deref().map(parse_instant).transpose()?.unwrap_or(begun),
        expires_at: spec.expires_at.as_deref().map(parse_instant).transpose()?,
        memo: parse_memo(spec.memo)?,
    })
}

fn answer_issued(issued: &Issued, catalog: &Catalog) -> Result<(StatusCode, GrantAnswer), Problem> {
    match issued {
        Issued::Created(grant) | Issued::Repeated(grant) => {
            Ok((StatusCode::CREATED, (grant, catalog).into()))
        }
        Issued::KeyTaken(grant) => Err(key_taken("grant", &grant.terms.key)),
        Issued::TooMany => Err(Problem::new(
            Kind::Refused,
            "too_many_grants",
            format!("the tenant has the maximum of {GRANTS_MAX} open grants; void one first"),
        )),
    }
}

list_query!(GrantParameters, after, {
    /// Only grants with something left.
    live: Option<bool>,
});

/// List a tenant's grants
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/grants", tag = "credits",
    params(("tenant" = String, Path), GrantParameters),
    responses((status = 200, description = "A page of grants", body = GrantList))
)]
pub async fn list_grants(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    Query(query): Query<GrantParameters>,
) -> Answer<GrantList> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let limit = Limit::parse(query.limit)?;
    let filter = GrantFilter { tenant, live: query.live.unwrap_or(false) };
    let found = app.store.list_grants(limit.query(filter, query.after)).await?;
    let catalog = app.catalog.reload().await?;
    limit.page(found, |grant| grant.number, |grant| Ok((&grant, &*catalog).into()))
}

/// Void what is left of a grant, or a part of it
///
/// Voiding a purchased grant records a refund; no money moves at the provider. Drawn credits stay
/// drawn, and credits that counted usage will draw at its cut are reserved for it.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/grants/{grant}/void", tag = "credits",
    request_body = VoidSpec,
    params(("tenant" = String, Path), ("grant" = u64, Path)),
    responses(
        (status = 200, description = "What was done", body = ChangeAnswer),
        (status = 404, description = "There is no such grant"),
        (status = 409, description = "The key is in use for something else"),
        (status = 422, description = "Less is left than was asked for"),
    )
)]
pub async fn void_grant(
    Call { app, caller }: Call,
    Path((tenant, grant)): Path<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.any_tenant_for(Scope::Operate, &tenant)?;
    let grant = grant.parse().map_err(|_| unknown_grant())?;
    let (once, VoidSpec { amount, memo }) = Once::read(request, &app).await?;
    let amount = amount.as_deref().map(parse_amount).transpose()?;
    if amount.is_some_and(|amount| amount <= Quantity::ZERO) {
        let detail = "amount must be above 0; leave it out for all that is left";
        return Err(Problem::new(Kind::Refused, "invalid_amount", detail));
    }
    let (key, memo) = (once.key.clone(), parse_memo(memo)?);
    let catalog = app.catalog.reload().await?;
    // What usage will draw is needed whole, however much of it there is.
    let balance_settings = BalanceSettings { usage_rows_max: usize::MAX, ..app.balance_settings() };
    let balance = read_balance(&*app.store, &catalog, &tenant, balance_settings).await?;
    let reserved = balance.reserved(grant);
    let order = VoidGrant { tenant, grant, key, amount, reserved, memo };
    let completing = once.completing(move |taken: &Voided| answer_taken(taken, &catalog));
    let taken = app.store.void_grant(order, app.clock.now(), Some(&completing)).await?;
    Ok(Once::respond(&completing, &taken))
}

fn unknown_grant() -> Problem {
    let detail = "the tenant has no such grant; GET /v1/tenants/{id}/grants lists them";
    Problem::new(Kind::NotFound, "unknown_grant", detail)
}

fn answer_taken(taken: &Voided, catalog: &Catalog) -> Result<(StatusCode, ChangeAnswer), Problem> {
    match taken {
        Voided::Done(change) | Voided::Repeated(change) => {
            Ok((StatusCode::OK, (change, catalog).into()))
        }
        Voided::KeyTaken(change) => {
            let key = change.key.as_ref();
            Err(key.map_or_else(unknown_grant, |key| key_taken("change", key)))
        }
        Voided::TooLittle(left) => Err(Problem::new(
            Kind::Refused,
            "too_little_left",
            format!(
                "only {left} can be voided, and the rest is reserved for usage; nothing was voided"
            ),
        )),
        Voided::NotFound => Err(unknown_grant()),
    }
}

list_query!(ChangeParameters, before, {
    /// Only changes of this grant.
    #[param(minimum = 0, maximum = 9_007_199_254_740_991i64)]
    grant: Option<u64>,
});

/// Explain a tenant's credits: every change, with the usage it covered
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/credits/changes", tag = "credits",
    params(("tenant" = String, Path), ChangeParameters),
    responses((status = 200, description = "A page of changes", body = ChangeList))
)]
pub async fn list_credit_changes(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    Query(query): Query<ChangeParameters>,
) -> Answer<ChangeList> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let ChangeParameters { grant, before, limit } = query;
    let limit = Limit::parse(limit)?;
    let asked = limit.query(ChangeFilter { tenant, grant }, before);
    let found = app.store.list_credit_changes(asked).await?;
    let catalog = app.catalog.reload().await?;
    limit.page(found, |change| change.number, |change| Ok((&change, &*catalog).into()))
}

/// Read what is left of a tenant's credits, with usage up to this moment
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/credits", tag = "credits", params(("tenant" = String, Path)),
    responses(
        (status = 200, description = "By unit and pool", body = CreditsAnswer),
        (status = 422, description = "More totals would be read than one query may"),
    )
)]
pub async fn get_credits(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
) -> Answer<CreditsAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let catalog = app.catalog.current().await?;
    let Balance { pools, .. } =
        read_balance(&*app.store, &catalog, &tenant, app.balance_settings()).await?;
    let pools = pools.into_iter().map(|((unit, pool), balance)| {
        let PoolBalance { remaining, pending, available } = balance;
        PoolAnswer { unit: unit.to_string(), pool, remaining, pending, available }
    });
    Ok(axum::Json(CreditsAnswer { pools: pools.collect() }))
}

impl App {
    fn balance_settings(&self) -> BalanceSettings {
        BalanceSettings {
            now: self.clock.now(),
            order: self.draw_order,
            accept_horizon_hours: self.accept_horizon_hours,
            shadow: self.shadow,
            usage_rows_max: self.query_rows_max,
        }
    }
}

/// Read a tenant's entitlement: what quotas and credits leave of a meter
///
/// Exact as of every event that was acknowledged before. Stripe's feature entitlements are the
/// `features` of a subscription record here.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/entitlements/{meter}", tag = "credits",
    params(("tenant" = String, Path), ("meter" = String, Path)),
    responses(
        (status = 200, description = "What is left", body = EntitlementAnswer),
        (status = 404, description = "There is no such meter"),
        (status = 422, description = "More totals would be read than one query may"),
    )
)]
pub async fn get_entitlement(
    Call { app, caller }: Call,
    Path((tenant, slug)): Path<(String, String)>,
) -> Answer<EntitlementAnswer> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let (number, meter) = app.catalog.find(&slug).await?;
    let all = store::Query::first(Some(tenant.clone()), usize::MAX);
    let thresholds = app.store.list_thresholds(all).await?;
    let own =
        |threshold: &Threshold| threshold.kind == ThresholdKind::Quota && threshold.meter == number;
    let mut quotas = Vec::new();
    let mut allowed = true;
    for quota in thresholds.into_iter().filter(own) {
        let window = period_around(quota.period, app.clock.now());
        let (of, rows_max) = ((number, &*meter), app.query_rows_max);
        let used = read_used(&*app.store, &tenant, of, window, rows_max).await?;
        let Threshold { period, limit, .. } = quota;
        let remaining = limit.checked_sub(used).unwrap_or_default().max(Quantity::ZERO);
        allowed &= remaining > Quantity::ZERO;
        quotas.push(QuotaAnswer { period, limit, used, remaining });
    }
    let catalog = app.catalog.current().await?;
    let balance_settings = app.balance_settings();
    let balance = read_balance(&*app.store, &catalog, &tenant, balance_settings).await?;
    let covered = coverable(&balance, (number, &meter), balance_settings)?;
    let known = app.store.find_tenant(&tenant).await?.is_some();
    Ok(axum::Json(EntitlementAnswer { meter: slug, known, allowed, quotas, covered }))
}
