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

use super::{Done, Row, Session, SqlStore, values};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Lease, Leases};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> Leases for S {
    async fn claim_lease(
        &self,
        name: &'static str,
        holder: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Lease>> {
        let holder = holder.to_owned();
        self.in_control(move |session| {
            let sql = "-- claim_lease
                INSERT INTO leases AS standing (name, holder, fence, until) VALUES ($1, $2, 1, $4)
                ON CONFLICT (name) DO UPDATE SET
                    holder = excluded.holder,
                    until = excluded.until,
                    fence = CASE WHEN standing.holder = excluded.holder
                        THEN standing.fence ELSE standing.fence + 1 END
                    WHERE standing.holder IN ('', excluded.holder) OR standing.until <= $3
                RETURNING fence";
            let claimed =
                session.read_optional(sql, values![name, holder, now, until], Row::only)?;
            Ok(claimed.map(|fence| Lease { name, fence }))
        })
        .await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let lease = lease.clone();
        self.in_control(move |session| {
            let sql = "-- release_lease
                UPDATE leases SET holder = '', until = $3 WHERE name = $1 AND fence = $2";
            session.run(sql, values![lease.name, lease.fence, Timestamp::default()])?;
            Ok(())
        })
        .await
    }
}

/// Whether the lease is still this one; then nobody else gets it before the caller's transaction
/// has ended.
pub fn hold_lease(session: &dyn Session, lease: &Lease) -> Done<bool> {
    let sql = "-- hold_lease
        SELECT fence FROM leases WHERE name = $1 AND holder <> '' FOR UPDATE";
    let fence: Option<u64> = session.read_optional(sql, values![lease.name], Row::only)?;
    Ok(fence == Some(lease.fence))
}
