//! API keys in their table. A revoked key stays, as a record of when it was valid.
//!
//! Each function is one statement: a crash leaves all of it or nothing.

use super::{Done, Session, values};
use crate::rules::timestamp::Timestamp;
use crate::store::ApiKey;

pub fn create_api_key(session: &dyn Session, key: &ApiKey) -> Done<()> {
    let ApiKey { id, name, digest, scopes, tenant, created_at, revoked_at } = key;
    let sql = "-- create_api_key
        INSERT INTO api_keys (key_id, name, digest, scopes, tenant, created_at, revoked_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let scopes = scopes.join(" ");
    session.run(sql, values![id, name, digest, scopes, tenant, created_at, revoked_at])?;
    Ok(())
}

pub fn list_api_keys(session: &dyn Session) -> Done<Vec<ApiKey>> {
    let sql = "-- list_api_keys
        SELECT key_id, name, digest, scopes, tenant, created_at, revoked_at FROM api_keys
        ORDER BY created_at, key_id";
    session.read_all(sql, &[], |row| {
        let scopes: String = row.get("api_keys.scopes")?;
        Ok(ApiKey {
            id: row.get("api_keys.key_id")?,
            name: row.get("api_keys.name")?,
            digest: row.get("api_keys.digest")?,
            scopes: scopes.split_whitespace().map(str::to_owned).collect(),
            tenant: row.get("api_keys.tenant")?,
            created_at: row.get("api_keys.created_at")?,
            revoked_at: row.get("api_keys.revoked_at")?,
        })
    })
}

/// Returns false if there is no such key, or it was revoked before.
pub fn revoke_api_key(session: &dyn Session, id: &str, at: Timestamp) -> Done<bool> {
    let sql = "-- revoke_api_key
        UPDATE api_keys SET revoked_at = $2 WHERE key_id = $1 AND revoked_at IS NULL";
    Ok(session.run(sql, values![id, at])? == 1)
}
