//! Subscriptions that are created, changed and ended by sagas; `/v1/sagas` tells how they go.
//!
//! Invariant: a saga is begun once under its idempotency key. The answer comes at once; what
//! becomes of it is read from `/v1/sagas/{id}`, whose log says every step.

use super::App;
use super::accounts::key_taken;
use super::auth::Scope;
use super::extract::{Answer, Call, Limit, Path, Query, Request, list_query};
use super::idempotency::Once;
use super::problem::{Kind, Problem};
use crate::api::sagas::{
    CancelMoment, CancelSpec, LineAnswer, PlanSpec, SagaAnswer, SagaList, SagaStory,
    SubscriptionAnswer, SubscriptionList, SubscriptionSpec,
};
use crate::jobs::sagas::{CancelParams, ChangeParams, CreateParams, PlanTerms, boundary_after};
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::saga::{Saga, SagaKind, SagaState, saga_id};
use crate::rules::span::Span;
use crate::rules::timestamp::Timestamp;
use crate::store::saga::{Begun, NewSaga, Resumed, SagaFilter, SubscriptionRecord};
use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use std::collections::BTreeSet;

/// Prices of a plan; Stripe takes as many items.
const PRICES_MAX: usize = 20;
const FEATURES_MAX: usize = 100;
const NAME_BYTES_MAX: usize = 200;
/// A subscription is made at least so long before the window's end that it is aligned to.
const ANCHOR_MARGIN: Span = Span::from_minutes(5);
/// Subscription records that are answered.
const SUBSCRIPTIONS_LISTED_MAX: usize = 1_000;

/// Create a subscription
///
/// Creates the customer if the tenant has none, then the subscription, its subscription
/// record, and access to the features. If a step is refused, the steps before it are undone.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/subscriptions", tag = "sagas",
    request_body = SubscriptionSpec, params(("tenant" = String, Path)),
    responses(
        (status = 202, description = "The saga that was started", body = SagaAnswer),
        (status = 409, description = "Another saga of the tenant is open, or the key was used"),
        (status = 422, description = "A name is refused, or there is no provider"),
    )
)]
pub async fn create_subscription(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.any_tenant_for(Scope::Operate, &tenant)?;
    let (once, spec) = Once::read::<SubscriptionSpec>(request, &app).await?;
    let SubscriptionSpec { plan, prices, features, name, email, align } = spec;
    let terms = check_plan(PlanTerms { plan, prices, features })?;
    [&name, &email].into_iter().flatten().try_for_each(|text| check_name(text))?;
    let anchor = match align {
        true => Some(next_boundary(&app, &tenant, &once, ANCHOR_MARGIN).await?),
        false => None,
    };
    let params = CreateParams { terms, name, email, anchor };
    begin(&app, &once, tenant, SagaKind::CreateSubscription, &params).await
}

/// Change what a subscription is charged by
///
/// At the end of the current window: usage up to then is sent first, later usage waits until the
/// prices have changed.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/subscriptions/{subscription}/plan", tag = "sagas",
    request_body = PlanSpec,
    params(("tenant" = String, Path), ("subscription" = String, Path)),
    responses(
        (status = 202, description = "The saga that was started", body = SagaAnswer),
        (status = 409, description = "Another saga of the tenant is open, or the key was used"),
        (status = 422, description = "A name is refused, or there is no provider"),
    )
)]
pub async fn change_plan(
    Call { app, caller }: Call,
    Path((tenant, subscription)): Path<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.any_tenant_for(Scope::Operate, &tenant)?;
    let subscription = SubscriptionId::parse(&subscription)?;
    let (once, PlanSpec { plan, prices, features }) = Once::read(request, &app).await?;
    let terms = check_plan(PlanTerms { plan, prices, features })?;
    let boundary = next_boundary(&app, &tenant, &once, Span::from_seconds(0)).await?;
    let params = ChangeParams { subscription, terms, boundary };
    begin(&app, &once, tenant, SagaKind::ChangePlan, &params).await
}

/// End a subscription
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/subscriptions/{subscription}/cancel", tag = "sagas",
    request_body = CancelSpec,
    params(("tenant" = String, Path), ("subscription" = String, Path)),
    responses(
        (status = 202, description = "The saga that was started", body = SagaAnswer),
        (status = 409, description = "Another saga of the tenant is open, or the key was used"),
        (status = 422, description = "There is no provider"),
    )
)]
pub async fn cancel_subscription(
    Call { app, caller }: Call,
    Path((tenant, subscription)): Path<(String, String)>,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let tenant = caller.any_tenant_for(Scope::Operate, &tenant)?;
    let subscription = SubscriptionId::parse(&subscription)?;
    let (once, CancelSpec { when }) = Once::read(request, &app).await?;
    let boundary = match when {
        CancelMoment::Now => {
            Some(next_boundary(&app, &tenant, &once, Span::from_seconds(0)).await?)
        }
        CancelMoment::PeriodEnd => None,
    };
    let params = CancelParams { subscription, boundary };
    begin(&app, &once, tenant, SagaKind::CancelSubscription, &params).await
}

fn check_plan(terms: PlanTerms) -> Result<PlanTerms, Problem> {
    let PlanTerms { plan, prices, features } = &terms;
    let within = (1..=PRICES_MAX).contains(&prices.len()) && features.len() <= FEATURES_MAX;
    let distinct = |names: &[String]| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    if !within || !distinct(prices) || !distinct(features) {
        let detail = format!(
            "a plan has 1 to {PRICES_MAX} different prices and at most {FEATURES_MAX} different \
             features"
        );
        return Err(Problem::new(Kind::Refused, "invalid_plan", detail));
    }
    check_name(plan)?;
    prices.iter().chain(features).try_for_each(|name| check_name(name))?;
    Ok(terms)
}

fn check_name(text: &str) -> Result<(), Problem> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let detail = format!(
            "plans, prices, features, names and addresses have 1 to {NAME_BYTES_MAX} bytes and no \
             control characters"
        );
        return Err(Problem::new(Kind::Refused, "invalid_name", detail));
    }
    Ok(())
}

/// The end of the current windows; for a repeat, the one that its saga was begun with.
async fn next_boundary(
    app: &App,
    tenant: &TenantId,
    once: &Once,
    margin: Span,
) -> Result<Timestamp, Problem> {
    let id = saga_id(&app.store.token_secret(), tenant, &once.key);
    let begun = app.store.find_saga(&id).await?;
    let at = begun.map_or_else(|| app.clock.now(), |(saga, _)| saga.created_at);
    Ok(boundary_after(&*app.catalog.reload().await?, margin.after(at)))
}

async fn begin(
    app: &App,
    once: &Once,
    tenant: TenantId,
    kind: SagaKind,
    params: &impl Serialize,
) -> Result<Response<Body>, Problem> {
    if app.provider.as_ref().and_then(|provider| provider.operations()).is_none() {
        let detail = "no provider with subscriptions is set up; set provider.kind = \"stripe\"";
        return Err(Problem::new(Kind::Refused, "provider_missing", detail));
    }
    let new = NewSaga {
        id: saga_id(&app.store.token_secret(), &tenant, &once.key),
        kind,
        tenant,
        key: once.key.clone(),
        params: serde_json::to_string(params).expect("parameters are plain JSON"),
    };
    let completing = once.completing(answer_begun);
    let begun = app.store.begin_saga(new, app.clock.now(), Some(&completing)).await?;
    Ok(Once::respond(&completing, &begun))
}

fn answer_begun(begun: &Begun) -> Result<(StatusCode, SagaAnswer), Problem> {
    match begun {
        Begun::Created(saga) | Begun::Repeated(saga) => Ok((StatusCode::ACCEPTED, saga.into())),
        Begun::KeyTaken(saga) => Err(key_taken("saga", &saga.key)),
        Begun::Busy(saga) => Err(busy(saga)),
    }
}

fn busy(saga: &Saga) -> Problem {
    let (id, state) = (&saga.id, saga.state.name());
    let detail = format!(
        "saga {id} of this tenant is {state}; GET /v1/sagas/{id} has the details; when it has ended, send \
         this again under a new key"
    );
    Problem::new(Kind::Conflict, "saga_open", detail)
}

list_query!(SagaParameters, before, {
    /// Only sagas of this tenant.
    tenant: Option<String>,
    #[param(inline)]
    state: Option<SagaState>,
});

/// List sagas
#[utoipa::path(
    get, path = "/v1/sagas", tag = "sagas", params(SagaParameters),
    responses((status = 200, description = "A page of sagas", body = SagaList))
)]
pub async fn list_sagas(
    Call { app, caller }: Call,
    Query(query): Query<SagaParameters>,
) -> Answer<SagaList> {
    caller.require(Scope::Read)?;
    let tenant = caller.narrow(query.tenant.as_deref())?;
    let SagaParameters { state, before, limit, .. } = query;
    let limit = Limit::parse(limit)?;
    let found = app.store.list_sagas(limit.query(SagaFilter { tenant, state }, before)).await?;
    limit.page(found, |saga| saga.number, |saga| Ok((&saga).into()))
}

/// Read a saga and its log
#[utoipa::path(
    get, path = "/v1/sagas/{saga}", tag = "sagas", params(("saga" = String, Path)),
    responses(
        (status = 200, description = "The saga and its log", body = SagaStory),
        (status = 404, description = "There is no such saga"),
    )
)]
pub async fn get_saga(Call { app, caller }: Call, Path(id): Path<String>) -> Answer<SagaStory> {
    caller.require(Scope::Read)?;
    check_id(&id)?;
    let found = app.store.find_saga(&id).await?;
    // The same answer whether another tenant has it or nobody.
    let allowed = |saga: &Saga| caller.bound_to().is_none_or(|tenant| *tenant == saga.tenant);
    let (saga, log) = found.filter(|(saga, _)| allowed(saga)).ok_or_else(unknown_saga)?;
    Ok(axum::Json(SagaStory {
        params: serde_json::from_str(&saga.params).unwrap_or_default(),
        log: log.into_iter().map(LineAnswer::from).collect(),
        saga: (&saga).into(),
    }))
}

/// No saga has such a name, and no store is asked with a text it may not hold.
fn check_id(id: &str) -> Result<(), Problem> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if plain { Ok(()) } else { Err(unknown_saga()) }
}

fn unknown_saga() -> Problem {
    Problem::new(Kind::NotFound, "unknown_saga", "there is no such saga; GET /v1/sagas lists them")
}

/// Resume a saga
///
/// A saga that needs attention continues where it stopped; a compensated one restarts.
#[utoipa::path(
    post, path = "/v1/sagas/{saga}/resume", tag = "sagas", params(("saga" = String, Path)),
    responses(
        (status = 200, description = "The saga as it is now", body = SagaAnswer),
        (status = 404, description = "There is no such saga"),
        (status = 409, description = "The saga is not stopped, or another saga of the tenant is open"),
    )
)]
pub async fn resume_saga(Call { app, caller }: Call, Path(id): Path<String>) -> Answer<SagaAnswer> {
    caller.require_unbound(Scope::Operate)?;
    check_id(&id)?;
    match app.store.resume_saga(&id, app.clock.now()).await? {
        Resumed::Done(saga) => Ok(axum::Json((&saga).into())),
        Resumed::Refused(why) => {
            let detail = format!("saga {id} cannot be resumed: {why}");
            Err(Problem::new(Kind::Conflict, "saga_not_resumable", detail))
        }
        Resumed::Busy(other) => Err(busy(&other)),
        Resumed::NotFound => Err(unknown_saga()),
    }
}

/// List a tenant's subscription records and feature access
///
/// Access follows the provider: a subscription record ends when its subscription is canceled or has
/// expired there, and is suspended while it is unpaid or paused. While it is past due the access
/// stays.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/subscriptions", tag = "sagas", params(("tenant" = String, Path)),
    responses((status = 200, description = "Its subscription records", body = SubscriptionList))
)]
pub async fn list_subscription_records(
    Call { app, caller }: Call,
    Path(tenant): Path<String>,
) -> Answer<SubscriptionList> {
    let tenant = caller.tenant_for(Scope::Read, &tenant)?;
    let now = app.clock.now();
    let found = app.store.list_subscription_records(&tenant, SUBSCRIPTIONS_LISTED_MAX).await?;
    let holding = found.iter().filter(|record| record.grants_access_at(now));
    let features: BTreeSet<&String> = holding.flat_map(|record| &record.features).collect();
    let features = features.into_iter().cloned().collect();
    let subscriptions = found.iter().map(|record| answer_subscription(record, now)).collect();
    Ok(axum::Json(SubscriptionList { subscriptions, features }))
}

fn answer_subscription(record: &SubscriptionRecord, now: Timestamp) -> SubscriptionAnswer {
    SubscriptionAnswer {
        subscription: record.subscription.to_string(),
        plan: record.plan.clone(),
        prices: record.prices.clone(),
        features: record.features.clone(),
        access: record.grants_access_at(now),
        suspended: record.suspended,
        saga: record.saga.clone(),
        began_at: record.began_at,
        ended_at: record.ended_at,
    }
}
