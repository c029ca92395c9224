//! API keys, on connections that no query takes; see `sql/api_keys.rs`.
//!
//! Each verb is one transaction: a crash leaves all of it or nothing.

use super::PostgresStore;
use crate::rules::timestamp::Timestamp;
use crate::store::sql::{SqlStore, create_api_key, list_api_keys, revoke_api_key};
use crate::store::{ApiKey, ApiKeys, Result};
use async_trait::async_trait;

#[async_trait]
impl ApiKeys for PostgresStore {
    fn token_secret(&self) -> [u8; 32] {
        self.token_secret
    }

    async fn create_api_key(&self, key: ApiKey) -> Result<()> {
        self.in_control(move |session| create_api_key(session, &key)).await
    }

    async fn list_api_keys(&self) -> Result<Vec<ApiKey>> {
        self.read_session(self.control().await?, list_api_keys).await
    }

    async fn revoke_api_key(&self, id: &str, at: Timestamp) -> Result<bool> {
        let id = id.to_owned();
        self.in_control(move |session| revoke_api_key(session, &id, at)).await
    }
}
