//! Who may do what: bearer tokens, their scopes and the tenant they may be bound to.
//!
//! Invariant: a token is never stored, logged or answered again; only its HMAC under the store's
//! secret is kept. A request is let in only on the word of the store, at most
//! `STALE_MAX` old; when the store cannot be asked for longer, the answer is 503 and not a guess.
//! Digests are compared in constant time.

use super::App;
use super::problem::{Kind, Problem};
pub use crate::api::keys::Scope;
use crate::clock::Clock;
use crate::rules::ids::TenantId;
use crate::store::{self, ApiKey, ApiKeys};
use axum::extract::FromRequestParts;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use sha2::Sha256;
use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// A cache younger than this is used as it is; a revocation elsewhere is seen after it.
const FRESH_MAX: Duration = Duration::from_secs(2);
/// A cache older than this is not used, even if the store cannot be asked.
const STALE_MAX: Duration = Duration::from_secs(30);
/// Shortest first admin key an operator may choose.
pub const ADMIN_KEY_CHARACTERS_MIN: usize = 16;
/// The name of the key that the environment gives.
const GIVEN_ADMIN_KEY: &str = "COUNTERFOIL_ADMIN_KEY";

/// The key a request came with.
#[derive(Debug)]
pub struct Grant {
    key_id: String,
    digest: [u8; 32],
    scopes: Vec<Scope>,
    tenant: Option<TenantId>,
}

/// The sender of the request, with a valid key.
#[derive(Debug, Clone)]
pub struct Caller(Arc<Grant>);

impl Caller {
    /// The sender of a request with these headers.
    pub async fn find(headers: &HeaderMap, app: &App) -> Result<Self, Problem> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let token = match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().and_then(bearer_token),
            (None, _) | (Some(_), Some(_)) => None,
        };
        let token = token.ok_or_else(|| {
            unauthenticated("send the header `Authorization: Bearer` followed by your key")
        })?;
        app.keys.find(token).await
    }

    pub fn require(&self, needed: Scope) -> Result<(), Problem> {
        if self.0.scopes.iter().any(|scope| scope.includes(needed)) {
            return Ok(());
        }
        Err(Problem::new(
            Kind::Forbidden,
            "scope_missing",
            format!("this needs a key with the scope {}; ask an admin for one", needed.name()),
        ))
    }

    /// For what concerns all tenants.
    pub fn require_unbound(&self, needed: Scope) -> Result<(), Problem> {
        self.require(needed)?;
        match self.0.tenant {
            None => Ok(()),
            Some(_) => Err(Problem::new(
                Kind::Forbidden,
                "tenant_forbidden",
                "this key is bound to a tenant; use a key that is not",
            )),
        }
    }

    /// Whose idempotency keys a request uses: what the key may reach, and nothing that tells one
    /// key from another of the same rights, since keys are exchanged while requests are retried.
    pub fn principal(&self) -> String {
        let mut scopes: Vec<&str> = self.0.scopes.iter().map(|scope| scope.name()).collect();
        scopes.sort_unstable();
        let scopes = scopes.join("+");
        match &self.0.tenant {
            Some(tenant) => format!("{scopes} of {tenant}"),
            None => scopes,
        }
    }

    /// Whose part of the server's memory and connections a request takes: the tenant's that the key
    /// is bound to, or the key's own.
    pub fn holder(&self) -> String {
        match &self.0.tenant {
            Some(tenant) => format!("tenant {tenant}"),
            None => format!("key {}", self.0.key_id),
        }
    }

    /// The key's id, for the log.
    pub fn key_id(&self) -> &str {
        &self.0.key_id
    }

    /// The one tenant this key may name, if it is bound.
    pub fn bound_to(&self) -> Option<&TenantId> {
        self.0.tenant.as_ref()
    }

    /// The same answer whether the other tenant exists or not.
    pub fn require_tenant(&self, tenant: &TenantId) -> Result<(), Problem> {
        match self.bound_to() {
            Some(bound) if bound != tenant => Err(Problem::new(
                Kind::Forbidden,
                "tenant_forbidden",
                "this key is bound to another tenant; name that tenant or use another key",
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The tenant a list is about: the one asked for, if it is allowed, else the bound one.
    pub fn narrow(&self, asked: Option<&str>) -> Result<Option<TenantId>, Problem> {
        let Some(asked) = asked else { return Ok(self.bound_to().cloned()) };
        let tenant = TenantId::parse(asked)?;
        self.require_tenant(&tenant)?;
        Ok(Some(tenant))
    }

    /// The tenant of this name, if the caller may do this with every tenant.
    pub fn any_tenant_for(&self, needed: Scope, name: &str) -> Result<TenantId, Problem> {
        self.require_unbound(needed)?;
        Ok(TenantId::parse(name)?)
    }

    /// The tenant of this name, if the caller may do this with it.
    pub fn tenant_for(&self, needed: Scope, name: &str) -> Result<TenantId, Problem> {
        self.require(needed)?;
        let tenant = TenantId::parse(name)?;
        self.require_tenant(&tenant)?;
        Ok(tenant)
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        match parts.extensions.get::<Self>() {
            Some(caller) => Ok(caller.clone()),
            None => Self::find(&parts.headers, app).await,
        }
    }
}

fn bearer_token(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn unauthenticated(detail: &'static str) -> Problem {
    Problem::new(Kind::Unauthenticated, "unauthenticated", detail)
}

/// All keys that are not revoked, as last read from the store.
pub struct KeyCache {
    store: Arc<dyn ApiKeys>,
    hasher: Hmac<Sha256>,
    loaded: RwLock<Option<LoadedKeys>>,
    /// Held while the store is asked, so that it is asked once.
    loading: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct LoadedKeys {
    at: Instant,
    /// By the first bytes of the digest; the rest is compared in constant time.
    grants: Arc<HashMap<[u8; 8], Vec<Arc<Grant>>>>,
}

impl LoadedKeys {
    fn find(&self, digest: &[u8; 32]) -> Option<Arc<Grant>> {
        let grants = self.grants.get(&prefix(digest))?;
        grants.iter().find(|grant| grant.digest.ct_eq(digest).into()).cloned()
    }
}

/// What a cache of some age is good for.
#[derive(Debug, PartialEq, Eq)]
enum Age {
    Fresh,
    /// Ask the store; if it does not answer, this will do.
    Stale,
    Expired,
}

fn judge_age(age: Option<Duration>) -> Age {
    match age {
        Some(age) if age < FRESH_MAX => Age::Fresh,
        Some(age) if age < STALE_MAX => Age::Stale,
        Some(_) | None => Age::Expired,
    }
}

impl KeyCache {
    pub fn new(store: Arc<dyn ApiKeys>) -> Self {
        let hasher = new_hasher(&*store);
        Self { store, hasher, loaded: RwLock::new(None), loading: tokio::sync::Mutex::new(()) }
    }

    pub fn digest(&self, token: &str) -> [u8; 32] {
        digest(&self.hasher, token)
    }

    /// Asks the store again after a change made here, which has to count at once. Waits for a
    /// question in progress, whose answer may be from before the change.
    pub async fn reload(&self) {
        let _loading = self.loading.lock().await;
        if self.load().await.is_err() {
            *self.loaded.write().expect("no holder of the keys panics") = None;
        }
    }

    async fn find(&self, token: &str) -> Result<Caller, Problem> {
        let digest = self.digest(token);
        let (loaded, age) = self.current().await?;
        let mut found = loaded.find(&digest);
        if found.is_none() && age != Age::Fresh {
            // The key may have been made since: only the store knows.
            found = self.fresh().await?.find(&digest);
        }
        found.map(Caller).ok_or_else(|| {
            unauthenticated("this key is unknown or revoked; ask an admin for another")
        })
    }

    fn loaded(&self) -> (Option<LoadedKeys>, Age) {
        let loaded = self.loaded.read().expect("no holder of the keys panics").clone();
        let age = judge_age(loaded.as_ref().map(|loaded| loaded.at.elapsed()));
        (loaded, age)
    }

    /// What is known, renewed if it is stale and the store answers.
    async fn current(&self) -> store::Result<(LoadedKeys, Age)> {
        let loaded = match self.loaded() {
            (Some(loaded), Age::Fresh) => return Ok((loaded, Age::Fresh)),
            (Some(loaded), Age::Stale) => loaded,
            (_, Age::Fresh | Age::Stale | Age::Expired) => {
                return Ok((self.fresh().await?, Age::Fresh));
            }
        };
        let Ok(_loading) = self.loading.try_lock() else {
            // Another request asks the store already.
            return Ok((loaded, Age::Stale));
        };
        match self.load().await {
            Ok(loaded) => Ok((loaded, Age::Fresh)),
            Err(error) => {
                tracing::warn!(%error, "keys cannot be read; those known are used for now");
                Ok((loaded, Age::Stale))
            }
        }
    }

    /// The store's word, at most [`FRESH_MAX`] old.
    async fn fresh(&self) -> store::Result<LoadedKeys> {
        let _loading = self.loading.lock().await;
        match self.loaded() {
            (Some(loaded), Age::Fresh) => Ok(loaded),
            (_, Age::Fresh | Age::Stale | Age::Expired) => self.load().await,
        }
    }

    async fn load(&self) -> store::Result<LoadedKeys> {
        // The age counts from before the question: what changes meanwhile is not in the answer.
        let at = Instant::now();
        let mut grants: HashMap<[u8; 8], Vec<Arc<Grant>>> = HashMap::new();
        for key in self.store.list_api_keys().await? {
            if key.revoked_at.is_none() {
                let scopes = key.scopes.iter().filter_map(|name| Scope::from_name(name)).collect();
                let grant =
                    Grant { key_id: key.id, digest: key.digest, scopes, tenant: key.tenant };
                grants.entry(prefix(&key.digest)).or_default().push(Arc::new(grant));
            }
        }
        let loaded = LoadedKeys { at, grants: Arc::new(grants) };
        *self.loaded.write().expect("no holder of the keys panics") = Some(loaded.clone());
        Ok(loaded)
    }
}

fn prefix(digest: &[u8; 32]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    [a, b, c, d, e, f, g, h]
}

fn new_hasher(store: &dyn ApiKeys) -> Hmac<Sha256> {
    Hmac::new_from_slice(&store.token_secret()).expect("HMAC takes a secret of any length")
}

fn digest(hasher: &Hmac<Sha256>, token: &str) -> [u8; 32] {
    let mut hasher = hasher.clone();
    hasher.update(token.as_bytes());
    hasher.finalize().into_bytes().into()
}

/// A new token: `cf_` and 32 random bytes in hex.
pub fn new_token() -> String {
    format!("cf_{}", random_hex::<32>())
}

/// A new name for a key, by which it can be revoked.
pub fn new_key_id() -> String {
    format!("key_{}", random_hex::<12>())
}

fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why the first admin key could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AdminKeyError {
    #[error(
        "COUNTERFOIL_ADMIN_KEY must have at least {ADMIN_KEY_CHARACTERS_MIN} characters, all \
         visible ASCII without spaces"
    )]
    Unusable,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Makes sure that there is a key to begin with. Returns the token of a key that was made here,
/// to be shown once; a given key is known to its giver and is never returned. A given key
/// that is not known yet becomes an admin key, in place of those that were given before; one that
/// was revoked stays revoked.
pub async fn create_first_admin_key(
    store: &dyn ApiKeys,
    clock: &Clock,
    given: Option<String>,
) -> Result<Option<String>, AdminKeyError> {
    if let Some(token) = &given
        && (token.len() < ADMIN_KEY_CHARACTERS_MIN || !token.bytes().all(|b| b.is_ascii_graphic()))
    {
        return Err(AdminKeyError::Unusable);
    }
    let keys = store.list_api_keys().await?;
    let hasher = new_hasher(store);
    let admin_key = |name: &str, token: &str| ApiKey {
        id: new_key_id(),
        name: name.to_owned(),
        digest: digest(&hasher, token),
        scopes: vec![Scope::Admin.name().to_owned()],
        tenant: None,
        created_at: clock.now(),
        revoked_at: None,
    };
    match given {
        Some(token) => {
            let key = admin_key(GIVEN_ADMIN_KEY, &token);
            let given = key.digest;
            match keys.iter().find(|known| known.digest.ct_eq(&key.digest).into()) {
                None => store.create_api_key(key).await?,
                Some(known) if known.revoked_at.is_some() => {
                    tracing::warn!("COUNTERFOIL_ADMIN_KEY was revoked and stays so");
                }
                Some(_) => {}
            }
            end_former_admin_keys(store, clock, &keys, &given).await?;
            Ok(None)
        }
        None if keys.is_empty() => {
            let token = new_token();
            store.create_api_key(admin_key("first admin key", &token)).await?;
            Ok(Some(token))
        }
        None => Ok(None),
    }
}

/// Ends the keys that COUNTERFOIL_ADMIN_KEY gave before, so that a leaked one is ended by giving
/// another. A given key that is revoked ends nothing: nobody could come in any more.
async fn end_former_admin_keys(
    store: &dyn ApiKeys,
    clock: &Clock,
    keys: &[ApiKey],
    given: &[u8; 32],
) -> store::Result<()> {
    let is_given = |key: &ApiKey| bool::from(key.digest.ct_eq(given));
    if keys.iter().any(|key| is_given(key) && key.revoked_at.is_some()) {
        return Ok(());
    }
    let former = keys
        .iter()
        .filter(|key| key.name == GIVEN_ADMIN_KEY && key.revoked_at.is_none() && !is_given(key));
    for key in former {
        if store.revoke_api_key(&key.id, clock.now()).await? {
            tracing::warn!(
                key = key.id,
                "COUNTERFOIL_ADMIN_KEY has another value: {}, which it gave before, is revoked",
                key.id
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_include_each_other_as_documented() {
        for scope in Scope::ALL {
            assert!(Scope::Admin.includes(scope) && scope.includes(scope));
        }
        assert!(Scope::Operate.includes(Scope::Read));
        assert!(!Scope::Operate.includes(Scope::Ingest));
        assert!(!Scope::Read.includes(Scope::Operate));
        assert!(!Scope::Ingest.includes(Scope::Read));
    }

    #[test]
    fn old_keys_are_not_trusted() {
        assert_eq!(judge_age(None), Age::Expired);
        assert_eq!(judge_age(Some(Duration::from_millis(1_999))), Age::Fresh);
        assert_eq!(judge_age(Some(Duration::from_secs(2))), Age::Stale);
        assert_eq!(judge_age(Some(Duration::from_secs(30))), Age::Expired);
    }

    #[test]
    fn bearer_tokens() {
        assert_eq!(bearer_token("Bearer abc"), Some("abc"));
        assert_eq!(bearer_token("bearer  abc "), Some("abc"));
        assert_eq!(bearer_token("Basic abc"), None);
        assert_eq!(bearer_token("Bearer "), None);
        assert_eq!(bearer_token("abc"), None);
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, two) = (new_token(), new_token());
        assert_eq!(one.len(), 67);
        assert_ne!(one, two);
    }
}
