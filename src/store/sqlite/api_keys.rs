//! API keys in their table. A revoked key stays, as a record of when it was valid.

use super::corrupt;
use super::statements::Statements;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;
use crate::store::{ApiKey, Result};
use rusqlite::{Connection, Row, params};

pub fn create_api_key(connection: &Connection, key: &ApiKey) -> Result<()> {
    connection.run(
        "-- create_api_key
         INSERT INTO api_keys (key_id, name, digest, scopes, tenant, created_at, revoked_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        params![
            key.id,
            key.name,
            key.digest,
            key.scopes.join(" "),
            key.tenant.as_ref().map(TenantId::as_str),
            key.created_at.micros(),
            key.revoked_at.map(Timestamp::micros)
        ],
    )?;
    Ok(())
}

pub fn list_api_keys(connection: &Connection) -> Result<Vec<ApiKey>> {
    connection.read_all(
        "-- list_api_keys
         SELECT key_id, name, digest, scopes, tenant, created_at, revoked_at FROM api_keys
         ORDER BY created_at, key_id",
        [],
        decode_api_key,
    )
}

pub fn revoke_api_key(connection: &Connection, id: &str, at: Timestamp) -> Result<bool> {
    let changed = connection.run(
        "-- revoke_api_key
         UPDATE api_keys SET revoked_at = ? WHERE key_id = ? AND revoked_at IS NULL",
        params![at.micros(), id],
    )?;
    Ok(changed == 1)
}

fn decode_api_key(row: &Row<'_>) -> Result<ApiKey> {
    let scopes: String = row.get(3)?;
    let tenant: Option<String> = row.get(4)?;
    let tenant = tenant.map(|tenant| TenantId::parse(&tenant)).transpose();
    Ok(ApiKey {
        id: row.get(0)?,
        name: row.get(1)?,
        digest: row.get(2)?,
        scopes: scopes.split_whitespace().map(str::to_owned).collect(),
        tenant: tenant.map_err(|_| corrupt("api_keys.tenant"))?,
        created_at: Timestamp::from_micros(row.get(5)?),
        revoked_at: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_micros),
    })
}
