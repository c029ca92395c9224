//! `/v1/keys`: making and revoking keys. For admins, with keys that are bound to no tenant.
//!
//! Invariant: a token is shown once, in the answer that made it. A revoked key is refused here at
//! once and by other servers within two seconds.

use super::App;
use super::auth::{Scope, new_key_id, new_token};
use super::extract::{Answer, Call, Path, Request, read_json};
use super::problem::{Kind, Problem};
use crate::api::keys::{KeyAnswer, KeyList, KeySpec, NewKeyAnswer};
use crate::rules::ids::TenantId;
use crate::store::ApiKey;
use http::StatusCode;

/// Longest name of a key, in bytes of UTF-8.
const NAME_BYTES_MAX: usize = 100;

/// Create a key
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", request_body = KeySpec,
    responses(
        (status = 201, description = "The key, with its token", body = NewKeyAnswer),
        (status = 422, description = "The key is refused"),
    )
)]
pub async fn post_key(
    Call { app, caller }: Call,
    request: Request,
) -> Result<(StatusCode, axum::Json<NewKeyAnswer>), Problem> {
    caller.require_unbound(Scope::Admin)?;
    let spec = read_json::<KeySpec>(request, &app).await?;
    let token = new_token();
    let key = check_spec(&app, spec, app.keys.digest(&token))?;
    app.store.create_api_key(key.clone()).await?;
    app.keys.reload().await;
    tracing::info!(key = key.id, by = caller.key_id(), "a key was made");
    Ok((StatusCode::CREATED, axum::Json(NewKeyAnswer { token, key: key.into() })))
}

/// List keys
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys",
    responses((status = 200, description = "Every key, without its token", body = KeyList))
)]
pub async fn list_keys(Call { app, caller }: Call) -> Answer<KeyList> {
    caller.require_unbound(Scope::Admin)?;
    let keys = app.store.list_api_keys().await?.into_iter().map(KeyAnswer::from).collect();
    Ok(axum::Json(KeyList { keys }))
}

/// Revoke a key
#[utoipa::path(
    delete, path = "/v1/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "The key's id, not its token")),
    responses(
        (status = 204, description = "It is revoked"),
        (status = 404, description = "There is no such key, or it was revoked before"),
    )
)]
pub async fn delete_key(
    Call { app, caller }: Call,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    caller.require_unbound(Scope::Admin)?;
    // Ids are made here; PostgreSQL would refuse a NUL, and no id has one.
    let revoked = !id.contains('\0') && app.store.revoke_api_key(&id, app.clock.now()).await?;
    if !revoked {
        return Err(Problem::new(
            Kind::NotFound,
            "unknown_key",
            "there is no such key, or it was revoked before; GET /v1/keys lists them",
        ));
    }
    app.keys.reload().await;
    tracing::info!(key = id, by = caller.key_id(), "a key was revoked");
    Ok(StatusCode::NO_CONTENT)
}

fn check_spec(app: &App, spec: KeySpec, digest: [u8; 32]) -> Result<ApiKey, Problem> {
    let refuse = |detail: &'static str| Problem::new(Kind::Refused, "invalid_key", detail);
    let KeySpec { name, mut scopes, tenant } = spec;
    let control = name.chars().any(char::is_control);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || control {
        return Err(refuse("name has 1 to 100 bytes and no control characters"));
    }
    if scopes.is_empty() || scopes.len() > 4 {
        return Err(refuse("scopes names 1 to 4 of ingest, read, operate, admin"));
    }
    scopes.sort_by_key(|scope| scope.name());
    scopes.dedup();
    let tenant = tenant.as_deref().map(TenantId::parse).transpose().map_err(Problem::refused)?;
    if tenant.is_some() && scopes.contains(&Scope::Admin) {
        return Err(refuse("a key that is bound to a tenant cannot have the scope admin"));
    }
    Ok(ApiKey {
        id: new_key_id(),
        name,
        digest,
        scopes: scopes.iter().map(|scope| scope.name().to_owned()).collect(),
        tenant,
        created_at: app.clock.now(),
        revoked_at: None,
    })
}

impl From<ApiKey> for KeyAnswer {
    fn from(key: ApiKey) -> Self {
        let ApiKey { id, name, scopes, tenant, created_at, revoked_at, .. } = key;
        let tenant = tenant.map(|tenant| tenant.to_string());
        Self { id, name, scopes, tenant, created_at, revoked_at }
    }
}
