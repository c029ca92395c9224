//! Holding a lease in transactions that are written for PostgreSQL; see `sql/leases.rs`.

use super::scalars::{column, read_count};
use super::statements::Statements;
use super::transaction::Done;
use crate::store::push::Lease;
use deadpool_postgres::ClientWrapper;

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
