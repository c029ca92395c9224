//! API keys in their table. A revoked key stays, as a record of when it was valid.

use super::{corrupt, sql_error};
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;
use crate::store::{ApiKey, Result};
use rusqlite::{Connection, Row, params};

pub fn create_api_key(connection: &Connection, key: &ApiKey) -> Result<()> {
    connection
        .prepare_cached(
            "-- create_api_key
             INSERT INTO api_keys (key_id, name, digest, scopes, tenant, created_at, revoked_at)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                key.id,
                key.name,
                key.digest,
                key.scopes.join(" "),
                key.tenant.as_ref().map(TenantId::as_str),
                key.created_at.micros(),
                key.revoked_at.map(Timestamp::micros)
            ])
        })
        .map_err(sql_error)?;
    Ok(())
}

pub fn list_api_keys(connection: &Connection) -> Result<Vec<ApiKey>> {
    let mut select = connection
        .prepare_cached(
            "-- list_api_keys
             SELECT key_id, name, digest, scopes, tenant, created_at, revoked_at FROM api_keys
             ORDER BY created_at, key_id",
        )
        .map_err(sql_error)?;
    let mut rows = select.query([]).map_err(sql_error)?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next().map_err(sql_error)? {
        keys.push(decode_api_key(row)?);
    }
    Ok(keys)
}

pub fn revoke_api_key(connection: &Connection, id: &str, at: Timestamp) -> Result<bool> {
    let changed = connection
        .prepare_cached(
            "-- revoke_api_key
             UPDATE api_keys SET revoked_at = ? WHERE key_id = ? AND revoked_at IS NULL",
        )
        .and_then(|mut update| update.execute(params![at.micros(), id]))
        .map_err(sql_error)?;
    Ok(changed == 1)
}

fn decode_api_key(row: &Row<'_>) -> Result<ApiKey> {
    let scopes: String = row.get(3).map_err(sql_error)?;
    let tenant: Option<String> = row.get(4).map_err(sql_error)?;
    let tenant = tenant.map(|tenant| TenantId::parse(&tenant)).transpose();
    Ok(ApiKey {
        id: row.get(0).map_err(sql_error)?,
        name: row.get(1).map_err(sql_error)?,
        digest: row.get(2).map_err(sql_error)?,
        scopes: scopes.split_whitespace().map(str::to_owned).collect(),
        tenant: tenant.map_err(|_| corrupt("api_keys.tenant"))?,
        created_at: Timestamp::from_micros(row.get(5).map_err(sql_error)?),
        revoked_at: row.get::<_, Option<i64>>(6).map_err(sql_error)?.map(Timestamp::from_micros),
    })
}
