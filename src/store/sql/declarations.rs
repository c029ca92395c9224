//! Meters and tenants in their tables.
//!
//! Invariant: a number, once given, belongs to its name for ever; rows are never deleted. What a
//! meter counts never changes. A customer is of one tenant, by a unique index.
//!
//! A crash leaves all of a call or nothing, and every call may be repeated.

use super::timelines::follow_mapping;
use super::waiting::mark_releasing;
use super::{Done, Row, Session, SqlStore, values};
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::meter::{Catalog, Meter, MeterSpec};
use crate::rules::timestamp::Timestamp;
use crate::store::{
    Declaration, Error, Query, Result, Tenant, TenantFields, TenantPut, Tenants, damaged,
};
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Declarations wait for each other, so that what one has looked up, a free event name above all,
/// is still so when it writes. Readers of the catalog do not wait.
const METERS_LOCK: i64 = 0x006d_6574_6572_7300;

const TENANTS: &str = "-- tenants
    SELECT tenant, name, customer, created_at FROM tenants";

#[async_trait]
impl<S: SqlStore> Tenants for S {
    async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>> {
        let tenant = tenant.clone();
        let sql = format!("{TENANTS} WHERE tenant = $1");
        self.in_reader(move |session| session.read_optional(&sql, values![tenant], decode_tenant))
            .await
    }

    async fn find_customer(&self, customer: &CustomerId) -> Result<Option<Tenant>> {
        let customer = customer.clone();
        self.in_reader(move |session| find_customer(session, &customer)).await
    }

    async fn list_tenants(&self, query: Query<(), TenantId>) -> Result<Vec<Tenant>> {
        // Every id is larger than the empty text.
        let sql = format!("{TENANTS} WHERE tenant > $1 ORDER BY tenant LIMIT $2");
        self.in_reader(move |session| {
            let after = query.after.as_ref().map_or("", TenantId::as_str);
            session.read_all(&sql, values![after, query.limit], decode_tenant)
        })
        .await
    }
}

fn find_customer(session: &dyn Session, customer: &CustomerId) -> Done<Option<Tenant>> {
    let sql = format!("{TENANTS} WHERE customer = $1");
    session.read_optional(&sql, values![customer], decode_tenant)
}

fn decode_tenant(row: &Row) -> Result<Tenant> {
    Ok(Tenant {
        id: row.get("tenants.tenant")?,
        name: row.get("tenants.name")?,
        customer: row.get("tenants.customer")?,
        created_at: row.get("tenants.created_at")?,
    })
}

/// Creates a tenant or changes what is known of it. Two servers that give one customer to two
/// tenants meet in the unique index; the later one is redone, and finds the customer taken.
pub fn put_tenant(
    session: &dyn Session,
    tenant: &TenantId,
    fields: &TenantFields,
    at: Timestamp,
) -> Done<TenantPut> {
    let TenantFields { name, customer, unmap } = fields;
    if let Some(customer) = customer
        && let Some(holder) = find_customer(session, customer)?
        && holder.id != *tenant
    {
        return Ok(TenantPut::CustomerTaken(holder.id));
    }
    let number = session.hold_tenant(tenant, at)?;
    let sql = "-- find_mapping\nSELECT customer FROM tenants WHERE tenant_no = $1";
    let before: Option<CustomerId> = session.read_one(sql, values![number], Row::only)?;
    // The customer that it had is kept: what was sent to it stays there.
    let sql = "-- keep_customer
        INSERT INTO former_customers (tenant_no, customer)
        SELECT tenant_no, customer FROM tenants
        WHERE tenant_no = $1 AND customer IS NOT NULL AND (customer <> $2::text OR $3::bool)
        ON CONFLICT DO NOTHING";
    session.run(sql, values![number, customer, unmap])?;
    let sql = "-- put_tenant
        UPDATE tenants SET
            name = CASE WHEN $2::text = '' THEN NULL ELSE COALESCE($2, name) END,
            customer = CASE WHEN $4::bool THEN NULL ELSE COALESCE($3::text, customer) END
        WHERE tenant_no = $1
        RETURNING tenant, name, customer, created_at";
    let stored = session.read_one(sql, values![number, name, customer, unmap], decode_tenant)?;
    mark_releasing(session, tenant)?;
    if stored.customer != before {
        follow_mapping(session, number, at)?;
    }
    Ok(TenantPut::Stored(stored))
}

/// Declares a meter, or updates the mutable fields of one that counts the same.
pub fn declare_meter(
    session: &dyn Session,
    meter: &Meter,
    at: Timestamp,
) -> Done<Declaration<Meter>> {
    session.lock(METERS_LOCK)?;
    let catalog = read_catalog(session)?;
    if let Some(other) = catalog.billed_alike(meter) {
        return Ok(Declaration::EventNameTaken(other.slug.clone()));
    }
    let Some((_, standing)) = catalog.find(meter.slug.as_str()) else {
        let sql = "-- declare_meter
            INSERT INTO meters (slug, definition, created_at) VALUES ($1, $2, $3)";
        let definition = define(&meter.clone().starting(at))?;
        session.run(sql, values![meter.slug, definition, at])?;
        return Ok(Declaration::Created);
    };
    let Some(renewed) = standing.redeclare(meter, at) else {
        return Ok(Declaration::Refused(standing.as_ref().clone()));
    };
    if renewed != **standing {
        let sql = "-- declare_meter
            UPDATE meters SET definition = $2 WHERE slug = $1";
        session.run(sql, values![meter.slug, define(&renewed)?])?;
    }
    Ok(Declaration::Updated)
}

fn define(meter: &Meter) -> Result<String> {
    serde_json::to_string(&meter.spec).map_err(|error| Error::Internal { what: error.to_string() })
}

/// All meters.
pub fn read_catalog(session: &dyn Session) -> Done<Catalog> {
    let sql = "-- read_catalog\nSELECT meter_no, slug, definition FROM meters";
    Ok(catalog_of(session.read_all(sql, &[], decode_meter)?))
}

/// Those of the meters that exist.
pub fn read_meters(session: &dyn Session, numbers: &BTreeSet<MeterNo>) -> Done<Catalog> {
    let sql = "-- read_meters
        WITH given (number) AS (VALUES ($::int2), ...)
        SELECT meter_no, slug, definition FROM given JOIN meters ON meter_no = number";
    let rows = numbers.iter().map(|number| values![number].to_vec());
    Ok(catalog_of(session.read_batch(sql, rows, decode_meter)?))
}

fn decode_meter(row: &Row) -> Result<(MeterNo, Meter)> {
    let definition: String = row.get("meters.definition")?;
    let spec: MeterSpec =
        serde_json::from_str(&definition).map_err(|_| damaged("meters.definition", &definition))?;
    Ok((row.get("meters.meter_no")?, Meter { slug: row.get("meters.slug")?, spec }))
}

fn catalog_of(meters: Vec<(MeterNo, Meter)>) -> Catalog {
    let mut catalog = Catalog::default();
    for (number, meter) in meters {
        catalog.insert(number, Arc::new(meter));
    }
    catalog
}
