//! Meters and tenants in their tables.
//!
//! Invariant: a meter's definition never changes but for its description; a tenant's number never
//! changes. Each write is one transaction of the writer.

use super::damaged;
use super::statements::Statements;
use crate::rules::ids::{CustomerId, MeterNo, MeterSlug, TenantId, TenantNo};
use crate::rules::meter::{Catalog, Meter, MeterSpec};
use crate::rules::timestamp::Timestamp;
use crate::store::{Declaration, Error, Result, Tenant, TenantFields};
use rusqlite::{Connection, Row, params};
use std::sync::Arc;

/// Declares a meter inside the caller's transaction.
pub fn declare_meter(
    connection: &Connection,
    catalog: &Catalog,
    meter: &Meter,
    at: Timestamp,
) -> Result<Declaration<Meter>> {
    if let Some(other) = catalog.billed_alike(meter) {
        return Ok(Declaration::EventNameTaken(other.slug.clone()));
    }
    let known = catalog.find(meter.slug.as_str());
    let declared = match known {
        Some((_, standing)) => match standing.redeclare(meter, at) {
            Some(renewed) => renewed,
            None => return Ok(Declaration::Refused(standing.as_ref().clone())),
        },
        None => meter.clone().starting(at),
    };
    let definition = serde_json::to_string(&declared.spec)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    connection.run(
        "-- declare_meter
         INSERT INTO meters (slug, definition, created_at) VALUES (?, ?, ?)
         ON CONFLICT (slug) DO UPDATE SET definition = excluded.definition",
        params![meter.slug.as_str(), definition, at.micros()],
    )?;
    Ok(if known.is_some() { Declaration::Updated } else { Declaration::Created })
}

pub fn load_catalog(connection: &Connection) -> Result<Catalog> {
    let mut catalog = Catalog::default();
    let mut select = connection
        .prepare_cached("-- load_catalog\nSELECT meter_no, slug, definition FROM meters")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (number, slug, definition): (u16, String, String) = row.try_into()?;
        let slug = MeterSlug::parse(&slug).map_err(|_| damaged("meters.slug", &slug))?;
        let spec: MeterSpec = serde_json::from_str(&definition)
            .map_err(|_| damaged("meters.definition", &definition))?;
        catalog.insert(MeterNo(number), Arc::new(Meter { slug, spec }));
    }
    Ok(catalog)
}

/// The tenant that is this customer.
pub fn holder_of_customer(
    connection: &Connection,
    customer: Option<&CustomerId>,
) -> Result<Option<TenantId>> {
    let Some(customer) = customer else { return Ok(None) };
    let holder: Option<String> = connection.read_optional(
        "-- holder_of_customer\nSELECT tenant FROM tenants WHERE customer = ?",
        [customer.as_str()],
        |row| Ok(row.get(0)?),
    )?;
    holder.map(|id| TenantId::parse(&id).map_err(|_| damaged("tenants.tenant", &id))).transpose()
}

/// Creates a tenant or changes what is known of it, inside the caller's transaction. The customer
/// that it had is kept: what was sent to it stays there.
pub fn put_tenant(
    connection: &Connection,
    tenant: &TenantId,
    fields: &TenantFields,
    at: Timestamp,
) -> Result<(TenantNo, Tenant)> {
    let customer = fields.customer.as_ref().map(CustomerId::as_str);
    connection.run(
        "-- keep_customer
         INSERT OR IGNORE INTO former_customers (tenant_no, customer)
         SELECT tenant_no, customer FROM tenants
         WHERE tenant = ?1 AND customer IS NOT NULL AND (customer <> ?2 OR ?3)",
        params![tenant.as_str(), customer, fields.unmap],
    )?;
    let given = params![tenant.as_str(), fields.name, customer, at.micros(), fields.unmap];
    connection.read_one(
        "-- put_tenant
         INSERT INTO tenants (tenant, name, customer, created_at)
         VALUES (?1, NULLIF(?2, ''), ?3, ?4)
         ON CONFLICT (tenant) DO UPDATE SET
             name = CASE WHEN ?2 = '' THEN NULL ELSE COALESCE(?2, name) END,
             customer = CASE WHEN ?5 THEN NULL ELSE COALESCE(?3, customer) END
         RETURNING tenant_no, tenant, name, customer, created_at",
        given,
        |row| Ok(decode_tenant(row)),
    )?
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

pub fn find_tenant(connection: &Connection, tenant: &TenantId) -> Result<Option<Tenant>> {
    let sql = "-- find_tenant
        SELECT tenant_no, tenant, name, customer, created_at FROM tenants WHERE tenant = ?";
    find_one(connection, sql, tenant.as_str())
}

pub fn find_customer(connection: &Connection, customer: &CustomerId) -> Result<Option<Tenant>> {
    let sql = "-- find_customer
        SELECT tenant_no, tenant, name, customer, created_at FROM tenants WHERE customer = ?";
    find_one(connection, sql, customer.as_str())
}

fn find_one(connection: &Connection, sql: &str, name: &str) -> Result<Option<Tenant>> {
    let found = connection.read_optional(sql, [name], |row| Ok(decode_tenant(row)))?;
    found.transpose().map(|found| found.map(|(_, tenant)| tenant))
}

pub fn list_tenants(
    connection: &Connection,
    after: Option<&TenantId>,
    limit: usize,
) -> Result<Vec<(TenantNo, Tenant)>> {
    connection.read_all(
        "-- list_tenants
         SELECT tenant_no, tenant, name, customer, created_at FROM tenants
         WHERE ?1 IS NULL OR tenant > ?1 ORDER BY tenant LIMIT ?2",
        params![after.map(TenantId::as_str), limit],
        decode_tenant,
    )
}

fn decode_tenant(row: &Row<'_>) -> Result<(TenantNo, Tenant)> {
    let id: String = row.get(1)?;
    let customer: Option<String> = row.get(3)?;
    let tenant = Tenant {
        id: TenantId::parse(&id).map_err(|_| damaged("tenants.tenant", &id))?,
        name: row.get(2)?,
        customer: customer
            .map(|id| CustomerId::parse(&id).map_err(|_| damaged("tenants.customer", &id)))
            .transpose()?,
        created_at: Timestamp::from_micros(row.get(4)?),
    };
    Ok((TenantNo(row.get(0)?), tenant))
}
