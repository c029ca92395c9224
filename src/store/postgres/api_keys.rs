//! API keys. Each verb is one statement: all of it happened or nothing.

use super::PostgresStore;
use super::failure::write_error;
use super::scalars::{SqlTimestamp, column, corrupt, damaged, instant};
use super::statements::Statements;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::Timestamp;
use crate::store::{ApiKey, ApiKeys, Result};
use async_trait::async_trait;
use tokio_postgres::Row;

#[async_trait]
impl ApiKeys for PostgresStore {
    fn token_secret(&self) -> [u8; 32] {
        self.token_secret
    }

    async fn create_api_key(&self, key: ApiKey) -> Result<()> {
        let client = self.control().await?;
        let sql = "-- create_api_key
            INSERT INTO api_keys (id, name, digest, scopes, tenant, created_at, revoked_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        client
            .execute(
                sql,
                &[
                    &key.id,
                    &key.name,
                    &key.digest.as_slice(),
                    &key.scopes,
                    &key.tenant.as_ref().map(TenantId::as_str),
                    &SqlTimestamp(key.created_at),
                    &key.revoked_at.map(SqlTimestamp),
                ],
            )
            .await
            .map_err(write_error)?;
        Ok(())
    }

    async fn list_api_keys(&self) -> Result<Vec<ApiKey>> {
        let client = self.control().await?;
        let sql = "-- list_api_keys
            SELECT id, name, digest, scopes, tenant, created_at, revoked_at
            FROM api_keys ORDER BY created_at, id";
        let rows = client.read_all(sql, &[]).await?;
        rows.iter().map(read_api_key).collect()
    }

    async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool> {
        let client = self.control().await?;
        let sql = "-- revoke_api_key
            UPDATE api_keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
        let revoked = client.execute(sql, &[&id, &SqlTimestamp(at)]).await.map_err(write_error)?;
        Ok(revoked == 1)
    }
}

fn read_api_key(row: &Row) -> Result<ApiKey> {
    let digest: Vec<u8> = column(row, 2)?;
    let tenant: Option<String> = column(row, 4)?;
    let tenant = tenant
        .map(|tenant| TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant)));
    let revoked_at: Option<SqlTimestamp> = column(row, 6)?;
    Ok(ApiKey {
        id: column(row, 0)?,
        name: column(row, 1)?,
        digest: digest.try_into().map_err(|_| corrupt("api_keys.digest is not 32 bytes long"))?,
        scopes: column(row, 3)?,
        tenant: tenant.transpose()?,
        created_at: instant(row, 5)?,
        revoked_at: revoked_at.map(|stamp| stamp.0),
    })
}
