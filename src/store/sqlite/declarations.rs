//! Meters and tenants as this store keeps them in memory too; see `sql/declarations.rs`.
//!
//! Invariant: a tenant's number never changes. What is written here is part of the caller's
//! transaction.

use super::session::SqliteSession;
use super::statements::Statements;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::sql::read_catalog;
use rusqlite::{Connection, params};

pub fn load_catalog(connection: &Connection) -> Result<Catalog> {
    Ok(read_catalog(&SqliteSession::on(connection))?)
}

/// Writes a tenant that was first seen in a batch.
pub fn insert_tenant(
    connection: &Connection,
    number: TenantNo,
    tenant: &TenantId,
    at: Timestamp,
) -> Result<()> {
    connection.run(
        "-- insert_tenant
         INSERT INTO tenants (tenant_no, tenant, created_at) VALUES (?, ?, ?)",
        params![number.0, tenant.as_str(), at.micros()],
    )?;
    Ok(())
}
