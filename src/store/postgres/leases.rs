//! Leases: the right to run a job that runs once at a time.
//!
//! Invariant: each job has one row. Its fence grows when the holder changes or gives the lease
//! back, never otherwise: a holder whose lease has ended keeps its fence as long as nobody else has
//! taken the lease. A job that writes under a lease locks its row first ([`hold_lease`]), so that a
//! new holder waits for the last write of the one before, and later ones are refused.
//!
//! A crash leaves the lease as it is; it ends by itself. A claim that is repeated because its
//! outcome was lost finds the lease its own and prolongs it; a repeated release finds it given
//! back and changes nothing.

use super::PostgresStore;
use super::scalars::{SqlTimestamp, column, read_count, write_count};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Lease, Leases};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;

#[async_trait]
impl Leases for PostgresStore {
    async fn claim_lease(
        &self,
        name: &'static str,
        holder: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Lease>> {
        let work = move |client: Arc<Transaction>| async move {
            claim_lease(&client, name, holder, now, until).await
        };
        self.transact_on(&self.control, work).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let work =
            move |client: Arc<Transaction>| async move { release_lease(&client, lease).await };
        self.transact_on(&self.control, work).await
    }
}

async fn claim_lease(
    client: &ClientWrapper,
    name: &'static str,
    holder: &str,
    now: Timestamp,
    until: Timestamp,
) -> Done<Option<Lease>> {
    let sql = "-- claim_lease
        INSERT INTO leases AS standing (name, holder, fence, until) VALUES ($1, $2, 1, $4)
        ON CONFLICT (name) DO UPDATE SET
            holder = excluded.holder,
            until = excluded.until,
            fence = CASE WHEN standing.holder = excluded.holder
                THEN standing.fence ELSE standing.fence + 1 END
            WHERE standing.until <= $3 OR standing.holder = excluded.holder
        RETURNING fence";
    let (now, until) = (SqlTimestamp(now), SqlTimestamp(until));
    let Some(row) = client.read_optional(sql, &[&name, &holder, &now, &until]).await? else {
        return Ok(None);
    };
    Ok(Some(Lease { name, fence: read_count(column(&row, 0)?)? }))
}

async fn release_lease(client: &ClientWrapper, lease: &Lease) -> Done<()> {
    let sql = "-- release_lease
        UPDATE leases SET holder = '', until = '-infinity' WHERE name = $1 AND fence = $2";
    client.execute(sql, &[&lease.name, &write_count(lease.fence)?]).await?;
    Ok(())
}

/// Whether the lease is still this one; then nobody else gets it before the caller's transaction
/// has ended.
pub async fn hold_lease(client: &ClientWrapper, lease: &Lease) -> Done<bool> {
    let sql = "-- hold_lease
        SELECT fence FROM leases WHERE name = $1 AND holder <> '' FOR UPDATE";
    let Some(row) = client.read_optional(sql, &[&lease.name]).await? else {
        return Ok(false);
    };
    Ok(read_count(column(&row, 0)?)? == lease.fence)
}
