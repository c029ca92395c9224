//! What an operation needs of a request's key, as a table with a row for every operation. Of what
//! changes something it is checked before anything of the request is read, claimed or written; the
//! handlers check it all the same.
//!
//! Invariant: a row asks for no less than its handler does, and no operation lacks a row: the
//! description of the interface, which is made at start, names the row of each, and
//! `tests/it/http_api/permissions.rs` tries every operation with every kind of key.

use super::App;
use super::auth::{Caller, Scope};
use super::problem::Problem;
use crate::rules::ids::TenantId;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::Method;
use http::request::Parts;
use std::sync::Arc;

/// Which keys of the scope an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All: nothing of it belongs to a tenant.
    All,
    /// Those that are bound to no tenant.
    Unbound,
    /// Those that are bound to the tenant in the path, or to none.
    TenantInPath,
    /// Those that are bound to the tenant in the query, or to none. Where the query names none,
    /// a bound key gets what belongs to its own tenant.
    TenantInQuery,
    /// Those that are bound to the tenant in the body, or to none.
    TenantInBody,
    /// All: what belongs to another tenant is answered as if it did not exist.
    OwnById,
}

impl Reach {
    /// As the description of the interface names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Unbound => "unbound",
            Self::TenantInPath => "tenant_in_path",
            Self::TenantInQuery => "tenant_in_query",
            Self::TenantInBody => "tenant_in_body",
            Self::OwnById => "own_by_id",
        }
    }
}

/// Method, route, scope and reach; without a scope, no key is needed.
type Row = (Method, &'static str, Option<Scope>, Reach);

const OPEN: Option<Scope> = None;
const INGEST: Option<Scope> = Some(Scope::Ingest);
const READ: Option<Scope> = Some(Scope::Read);
const OPERATE: Option<Scope> = Some(Scope::Operate);
const ADMIN: Option<Scope> = Some(Scope::Admin);

const ROWS: &[Row] = &[
    (Method::POST, "/v1/events", INGEST, Reach::TenantInBody),
    (Method::GET, "/v1/events", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/events/{tenant}/{id}", READ, Reach::TenantInPath),
    (Method::GET, "/v1/usage", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/usage/totals", READ, Reach::Unbound),
    (Method::GET, "/v1/counters", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/latency", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/conflicts", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/conflicts/{number}", READ, Reach::OwnById),
    (Method::POST, "/v1/conflicts/{number}/keep-standing", OPERATE, Reach::OwnById),
    (Method::POST, "/v1/conflicts/{number}/dismiss", OPERATE, Reach::OwnById),
    (Method::POST, "/v1/conflicts/decide", OPERATE, Reach::TenantInBody),
    (Method::GET, "/v1/quarantine", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/quarantine/{number}", READ, Reach::OwnById),
    (Method::POST, "/v1/quarantine/{number}/admit", OPERATE, Reach::OwnById),
    (Method::POST, "/v1/quarantine/{number}/discard", OPERATE, Reach::OwnById),
    (Method::POST, "/v1/quarantine/decide", OPERATE, Reach::TenantInBody),
    (Method::GET, "/v1/meters", READ, Reach::All),
    (Method::GET, "/v1/meters/{slug}", READ, Reach::All),
    (Method::PUT, "/v1/meters/{slug}", ADMIN, Reach::Unbound),
    (Method::GET, "/v1/tenants", READ, Reach::Unbound),
    (Method::GET, "/v1/tenants/{id}", READ, Reach::Unbound),
    (Method::PUT, "/v1/tenants/{id}", ADMIN, Reach::Unbound),
    (Method::GET, "/v1/pushes", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/pushes/{push}", READ, Reach::OwnById),
    (Method::POST, "/v1/pushes/{push}/retry", OPERATE, Reach::Unbound),
    (Method::POST, "/v1/pushes/{push}/discard", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/health/billing", READ, Reach::Unbound),
    (Method::GET, "/v1/comparison", READ, Reach::Unbound),
    (Method::POST, "/webhooks/stripe", OPEN, Reach::All),
    (Method::GET, "/v1/webhooks", READ, Reach::Unbound),
    (Method::GET, "/v1/webhooks/{webhook}", READ, Reach::Unbound),
    (Method::POST, "/v1/webhooks/{webhook}/replay", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/timeline", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/passes", READ, Reach::Unbound),
    (Method::POST, "/v1/passes", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/passes/{pass}", READ, Reach::Unbound),
    (Method::GET, "/v1/passes/{pass}/rows", READ, Reach::Unbound),
    (Method::GET, "/v1/findings", READ, Reach::Unbound),
    (Method::POST, "/v1/findings/{finding}/accept", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/alerts", READ, Reach::Unbound),
    (Method::GET, "/v1/thresholds", READ, Reach::TenantInQuery),
    (Method::PUT, "/v1/thresholds", OPERATE, Reach::TenantInBody),
    (Method::DELETE, "/v1/thresholds", OPERATE, Reach::TenantInQuery),
    (Method::GET, "/v1/tenants/{tenant}/accounts", READ, Reach::TenantInPath),
    (Method::GET, "/v1/tenants/{tenant}/accounts/{account}", READ, Reach::TenantInPath),
    (Method::PUT, "/v1/tenants/{tenant}/accounts/{account}", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/tenants/{tenant}/accounts/{account}/statement", READ, Reach::TenantInPath),
    (Method::GET, "/v1/tenants/{tenant}/entries/{key}", READ, Reach::TenantInPath),
    (Method::POST, "/v1/tenants/{tenant}/entries", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/tenants/{tenant}/credits", READ, Reach::TenantInPath),
    (Method::GET, "/v1/tenants/{tenant}/credits/changes", READ, Reach::TenantInPath),
    (Method::GET, "/v1/tenants/{tenant}/entitlements/{meter}", READ, Reach::TenantInPath),
    (Method::GET, "/v1/tenants/{tenant}/grants", READ, Reach::TenantInPath),
    (Method::POST, "/v1/tenants/{tenant}/grants", OPERATE, Reach::Unbound),
    (Method::POST, "/v1/tenants/{tenant}/grants/{grant}/void", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/sagas", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/sagas/{saga}", READ, Reach::OwnById),
    (Method::POST, "/v1/sagas/{saga}/resume", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/tenants/{tenant}/subscriptions", READ, Reach::TenantInPath),
    (Method::POST, "/v1/tenants/{tenant}/subscriptions", OPERATE, Reach::Unbound),
    (
        Method::POST,
        "/v1/tenants/{tenant}/subscriptions/{subscription}/plan",
        OPERATE,
        Reach::Unbound,
    ),
    (
        Method::POST,
        "/v1/tenants/{tenant}/subscriptions/{subscription}/cancel",
        OPERATE,
        Reach::Unbound,
    ),
    (Method::GET, "/v1/tax/rates", READ, Reach::All),
    (Method::PUT, "/v1/tax/rates", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/coupons", READ, Reach::Unbound),
    (Method::PUT, "/v1/coupons/{code}", OPERATE, Reach::Unbound),
    (Method::GET, "/v1/tenants/{tenant}/quotes/{key}", READ, Reach::TenantInPath),
    (Method::POST, "/v1/tenants/{tenant}/quotes", OPERATE, Reach::TenantInPath),
    (Method::GET, "/v1/changes", READ, Reach::TenantInQuery),
    (Method::GET, "/v1/keys", ADMIN, Reach::Unbound),
    (Method::POST, "/v1/keys", ADMIN, Reach::Unbound),
    (Method::DELETE, "/v1/keys/{id}", ADMIN, Reach::Unbound),
    (Method::GET, "/healthz", OPEN, Reach::All),
    (Method::GET, "/readyz", OPEN, Reach::All),
    (Method::GET, "/metrics", READ, Reach::Unbound),
    (Method::GET, "/openapi.json", OPEN, Reach::All),
    (Method::GET, "/docs", OPEN, Reach::All),
];

/// What an operation needs; none if it has no row.
pub fn find(method: &Method, route: &str) -> Option<(Option<Scope>, Reach)> {
    let row = ROWS.iter().find(|(known, path, ..)| known == method && *path == route);
    row.map(|(_, _, scope, reach)| (*scope, *reach))
}

/// Refuses a caller whose key does not allow the request, as far as method and path tell.
pub async fn check(caller: &Caller, parts: &mut Parts, app: &Arc<App>) -> Result<(), Problem> {
    let Some(path) = parts.extensions.get::<MatchedPath>().cloned() else { return Ok(()) };
    let Some((Some(scope), reach)) = find(&parts.method, path.as_str()) else { return Ok(()) };
    match reach {
        Reach::Unbound => caller.require_unbound(scope),
        Reach::TenantInPath => {
            caller.require(scope)?;
            match tenant_in_path(parts, app).await {
                Some(tenant) => caller.require_tenant(&tenant),
                // The handler says what is wrong with the name.
                None => Ok(()),
            }
        }
        Reach::All | Reach::TenantInQuery | Reach::TenantInBody | Reach::OwnById => {
            caller.require(scope)
        }
    }
}

async fn tenant_in_path(parts: &mut Parts, app: &Arc<App>) -> Option<TenantId> {
    let names = RawPathParams::from_request_parts(parts, app).await.ok()?;
    let tenant = names.iter().find(|(name, _)| *name == "tenant")?.1;
    TenantId::parse(tenant).ok()
}
