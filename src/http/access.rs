//! What a request that changes something needs of its key, as a table: known before anything of the
//! request is read, claimed or written.
//!
//! Invariant: a row asks for no less than its handler does. A route without a row is judged by its
//! handler alone; `tests/http_api/idempotency.rs` tries every operation, so that none lacks one.

use super::App;
use super::auth::{Caller, Scope};
use super::problem::Problem;
use crate::rules::ids::TenantId;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::Method;
use http::request::Parts;
use std::sync::Arc;

/// Which keys of the scope a route takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All; what the request names is judged by its handler.
    Any,
    /// Those that are bound to no tenant.
    Unbound,
    /// Those that are bound to the tenant in the path, or to none.
    TenantInPath,
}

/// Method, route, scope and reach.
type Row = (Method, &'static str, Scope, Reach);

const ROWS: [Row; 23] = [
    (Method::POST, "/v1/events", Scope::Ingest, Reach::Any),
    (Method::PUT, "/v1/meters/{slug}", Scope::Admin, Reach::Unbound),
    (Method::PUT, "/v1/tenants/{id}", Scope::Admin, Reach::Unbound),
    (Method::POST, "/v1/keys", Scope::Admin, Reach::Unbound),
    (Method::DELETE, "/v1/keys/{id}", Scope::Admin, Reach::Unbound),
    (Method::POST, "/v1/pushes/{push}/retry", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/pushes/{push}/discard", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/webhooks/{webhook}/replay", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/passes", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/findings/{finding}/accept", Scope::Operate, Reach::Unbound),
    (Method::PUT, "/v1/thresholds", Scope::Operate, Reach::Any),
    (Method::DELETE, "/v1/thresholds", Scope::Operate, Reach::Any),
    (Method::PUT, "/v1/tenants/{tenant}/accounts/{account}", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/tenants/{tenant}/entries", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/tenants/{tenant}/grants", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/tenants/{tenant}/grants/{grant}/take-back", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/tenants/{tenant}/subscriptions", Scope::Operate, Reach::Unbound),
    (
        Method::POST,
        "/v1/tenants/{tenant}/subscriptions/{subscription}/plan",
        Scope::Operate,
        Reach::Unbound,
    ),
    (
        Method::POST,
        "/v1/tenants/{tenant}/subscriptions/{subscription}/cancel",
        Scope::Operate,
        Reach::Unbound,
    ),
    (Method::POST, "/v1/sagas/{saga}/revive", Scope::Operate, Reach::Unbound),
    (Method::POST, "/v1/tenants/{tenant}/quotes", Scope::Operate, Reach::TenantInPath),
    (Method::PUT, "/v1/tax/rates", Scope::Operate, Reach::Unbound),
    (Method::PUT, "/v1/coupons/{code}", Scope::Operate, Reach::Unbound),
];

/// Refuses a caller whose key does not allow the request.
pub async fn check(caller: &Caller, parts: &mut Parts, app: &Arc<App>) -> Result<(), Problem> {
    let Some(path) = parts.extensions.get::<MatchedPath>().cloned() else { return Ok(()) };
    let row =
        ROWS.iter().find(|(method, route, ..)| *method == parts.method && *route == path.as_str());
    let Some((_, _, scope, reach)) = row else { return Ok(()) };
    match reach {
        Reach::Any => caller.require(*scope),
        Reach::Unbound => caller.require_unbound(*scope),
        Reach::TenantInPath => {
            caller.require(*scope)?;
            match tenant_in_path(parts, app).await {
                Some(tenant) => caller.require_tenant(&tenant),
                // The handler says what is wrong with the name.
                None => Ok(()),
            }
        }
    }
}

async fn tenant_in_path(parts: &mut Parts, app: &Arc<App>) -> Option<TenantId> {
    let names = RawPathParams::from_request_parts(parts, app).await.ok()?;
    let tenant = names.iter().find(|(name, _)| *name == "tenant")?.1;
    TenantId::parse(tenant).ok()
}
