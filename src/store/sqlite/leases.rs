//! Leases on jobs, one row each.
//!
//! Invariant: a fence is given to one holder only, and grows when the holder changes or gives the
//! lease back. A holder whose lease has ended keeps its fence as long as nobody else has taken the
//! lease. A crash of the holder leaves the row as it is; another takes the lease when its time is
//! over.

use super::SqliteStore;
use super::statements::Statements;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::{Lease, Leases};
use async_trait::async_trait;
use rusqlite::{Connection, params};

#[async_trait]
impl Leases for SqliteStore {
    async fn claim_lease(
        &self,
        name: &'static str,
        holder: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Lease>> {
        let holder = holder.to_owned();
        self.write(move |writer| writer.write(|c| claim_lease(c, name, &holder, now, until))).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let lease = lease.clone();
        self.write(move |writer| writer.write(|c| release_lease(c, &lease))).await
    }
}

/// Whether the lease is still its holder's, inside the caller's transaction.
pub fn holds_lease(connection: &Connection, lease: &Lease) -> Result<bool> {
    connection.read_one(
        "-- holds_lease
         SELECT EXISTS (SELECT 1 FROM leases WHERE name = ? AND fence = ? AND holder <> '')",
        params![lease.name, lease.fence],
        |row| Ok(row.get(0)?),
    )
}

fn claim_lease(
    connection: &Connection,
    name: &'static str,
    holder: &str,
    now: Timestamp,
    until: Timestamp,
) -> Result<Option<Lease>> {
    let given = params![name, holder, now.micros(), until.micros()];
    let fence: Option<u64> = connection.read_optional(
        "-- claim_lease
         INSERT INTO leases (name, holder, fence, until) VALUES (?1, ?2, 1, ?4)
         ON CONFLICT (name) DO UPDATE SET
             fence = CASE WHEN holder = excluded.holder THEN fence ELSE fence + 1 END,
             holder = excluded.holder, until = excluded.until
         WHERE holder = '' OR holder = excluded.holder OR until <= ?3
         RETURNING fence",
        given,
        |row| Ok(row.get(0)?),
    )?;
    Ok(fence.map(|fence| Lease { name, fence }))
}

fn release_lease(connection: &Connection, lease: &Lease) -> Result<()> {
    connection.run(
        "-- release_lease
         UPDATE leases SET holder = '' WHERE name = ? AND fence = ?",
        params![lease.name, lease.fence],
    )?;
    Ok(())
}
