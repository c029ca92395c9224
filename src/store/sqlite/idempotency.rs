//! Stand-in.

use super::SqliteStore;
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::{Ended, RequestKeys};
use async_trait::async_trait;
use counterfoil_idempotency::{Claim, Claimed, Fingerprint, Scope, StoreError};
use std::time::Duration;
#[async_trait]
#[allow(unused_variables)]
impl RequestKeys for SqliteStore {
    async fn claim_key(
        &self,
        scope: &Scope,
        fingerprint: &Fingerprint,
        lease: Duration,
        at: Timestamp,
    ) -> Result<Claimed, StoreError> {
        unimplemented!()
    }
    async fn renew_key(
        &self,
        claim: &Claim,
        lease: Duration,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn reach_key(&self, claim: &Claim, point: &str) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn end_key(&self, claim: &Claim, ended: &Ended, at: Timestamp) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn release_key(&self, claim: &Claim, at: Timestamp) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn sweep_keys(&self, limit: u32, at: Timestamp) -> Result<u32, StoreError> {
        unimplemented!()
    }
}
