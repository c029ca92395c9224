//! Meters and tenants: the dictionaries.
//!
//! Invariant: a number, once given, belongs to its name for ever; rows are never deleted. What is
//! cached here was committed before. A crash between the creation of a tenant and its first event
//! leaves a tenant without events.

use super::PostgresStore;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, read_meter_no, read_tenant_no, write_limit,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use super::waiting::mark_releasing;
use crate::rules::ids::{CustomerId, MeterNo, MeterSlug, TenantId, TenantNo};
use crate::rules::meter::{Catalog, Meter, MeterSpec};
use crate::rules::timestamp::Timestamp;
use crate::store::{Declaration, Declarations, Error, Result, Tenant, TenantFields, TenantPut};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

#[async_trait]
impl Declarations for PostgresStore {
    async fn declare_meter(&self, meter: Meter, at: Timestamp) -> Result<Declaration<Meter>> {
        let meter = &meter;
        let work =
            move |client: Arc<Transaction>| async move { declare_meter(&client, meter, at).await };
        self.transact(work).await
    }

    async fn load_catalog(&self) -> Result<Catalog> {
        let client = self.control().await?;
        let catalog = read_catalog(&client).await?;
        let mut cached = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        *cached = Arc::new(catalog.clone());
        Ok(catalog)
    }

    async fn put_tenant(
        &self,
        tenant: &TenantId,
        fields: TenantFields,
        at: Timestamp,
    ) -> Result<TenantPut> {
        let fields = &fields;
        let work = move |client: Arc<Transaction>| async move {
            put_tenant(&client, tenant, fields, at).await
        };
        self.transact(work).await
    }

    async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<Tenant>> {
        let client = self.reader().await?;
        let sql = "-- find_tenant
            SELECT tenant, name, customer, created_at FROM tenants WHERE tenant = $1";
        let row = client.read_optional(sql, &[&tenant.as_str()]).await?;
        row.as_ref().map(read_tenant).transpose()
    }

    async fn find_customer(&self, customer: &CustomerId) -> Result<Option<Tenant>> {
        let client = self.reader().await?;
        let sql = "-- find_customer
            SELECT tenant, name, customer, created_at FROM tenants WHERE customer = $1";
        let row = client.read_optional(sql, &[&customer.as_str()]).await?;
        row.as_ref().map(read_tenant).transpose()
    }

    async fn list_tenants(&self, after: Option<&TenantId>, limit: usize) -> Result<Vec<Tenant>> {
        let client = self.reader().await?;
        let sql = "-- list_tenants
            SELECT tenant, name, customer, created_at FROM tenants WHERE tenant > $1
            ORDER BY tenant LIMIT $2";
        // Every id is larger than the empty text.
        let after = after.map_or("", TenantId::as_str);
        let rows = client.read_all(sql, &[&after, &write_limit(limit)]).await?;
        rows.iter().map(read_tenant).collect()
    }
}

impl PostgresStore {
    /// The catalog as last loaded, loaded anew if one of the meters is not in it: another server
    /// may have declared it.
    pub(super) async fn catalog_with(
        &self,
        mut meters: impl Iterator<Item = MeterNo>,
    ) -> Result<Arc<Catalog>> {
        let cached = Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner));
        if meters.all(|meter| cached.get(meter).is_some()) {
            return Ok(cached);
        }
        self.load_catalog().await.map(Arc::new)
    }

    /// Makes sure that [`Self::tenant_no`] knows the tenants that exist, or creates them first.
    pub(super) async fn number_tenants(
        &self,
        tenants: impl Iterator<Item = &TenantId>,
        creation: Creation,
    ) -> Result<()> {
        let mut missing: BTreeSet<&str> = {
            let known = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
            tenants.filter(|t| !known.contains_key(*t)).map(TenantId::as_str).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let client = self.control().await?;
        self.learn_tenants(&client, &mut missing).await?;
        let at = match creation {
            Creation::At(at) if !missing.is_empty() => at,
            Creation::At(_) | Creation::Never => return Ok(()),
        };
        // In the order of the unique index, like every writer, so that none waits in a circle.
        let names: Vec<&str> = missing.iter().copied().collect();
        let sql = "-- number_tenants
            INSERT INTO tenants (tenant, created_at)
            SELECT given, $2 FROM unnest($1::text[]) AS given
            ON CONFLICT (tenant) DO NOTHING";
        client.execute(sql, &[&names, &SqlTimestamp(at)]).await?;
        self.learn_tenants(&client, &mut missing).await?;
        match missing.first() {
            None => Ok(()),
            Some(_) => Err(corrupt("tenants row vanished mid-transaction")),
        }
    }

    /// Caches the numbers of those of the tenants that exist, and takes them out of `missing`.
    async fn learn_tenants(
        &self,
        client: &ClientWrapper,
        missing: &mut BTreeSet<&str>,
    ) -> Result<()> {
        let names: Vec<&str> = missing.iter().copied().collect();
        let sql = "-- learn_tenants
            SELECT tenant, tenant_no FROM tenants WHERE tenant = ANY ($1)";
        let rows = client.query(sql, &[&names]).await?;
        let mut known = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let name: String = column(&row, 0)?;
            let tenant = TenantId::parse(&name).map_err(|_| damaged("tenants.tenant", &name))?;
            known.insert(tenant, read_tenant_no(column(&row, 1)?)?);
            missing.remove(name.as_str());
        }
        Ok(())
    }

    /// The number of a tenant that [`Self::number_tenants`] was asked for.
    pub(super) fn tenant_no(&self, tenant: &TenantId) -> Option<TenantNo> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(tenant).copied()
    }
}

/// Everything but the COMMIT. Declarations wait for each other, so that what one has looked up, a
/// free event name above all, is still so when it writes. Readers of the catalog do not wait.
async fn declare_meter(
    client: &ClientWrapper,
    meter: &Meter,
    at: Timestamp,
) -> Done<Declaration<Meter>> {
    let define = |meter: &Meter| {
        serde_json::to_string(&meter.spec)
            .map_err(|error| Error::Internal { what: error.to_string() })
    };
    let sql = "-- declare_meter
        LOCK TABLE meters IN SHARE ROW EXCLUSIVE MODE";
    client.batch_execute(sql).await?;
    if let Some(other) = read_catalog(client).await?.billed_alike(meter) {
        return Ok(Declaration::EventNameTaken(other.slug.clone()));
    }
    let slug = meter.slug.as_str();
    let Some(standing) = find_meter(client, &meter.slug).await? else {
        let sql = "-- declare_meter
            INSERT INTO meters (slug, definition, created_at) VALUES ($1, $2, $3)";
        let definition = define(&meter.clone().starting(at))?;
        client.execute(sql, &[&slug, &definition, &SqlTimestamp(at)]).await?;
        return Ok(Declaration::Created);
    };
    let Some(renewed) = standing.redeclare(meter, at) else {
        return Ok(Declaration::Refused(standing));
    };
    if renewed != standing {
        let sql = "-- declare_meter
            UPDATE meters SET definition = $2 WHERE slug = $1";
        client.execute(sql, &[&slug, &define(&renewed)?]).await?;
    }
    Ok(Declaration::Updated)
}

/// Everything but the COMMIT. Two servers that give one customer to two tenants meet in the unique
/// index; the later one is redone, and finds the customer taken.
async fn put_tenant(
    client: &ClientWrapper,
    tenant: &TenantId,
    fields: &TenantFields,
    at: Timestamp,
) -> Done<TenantPut> {
    let customer = fields.customer.as_ref().map(CustomerId::as_str);
    let holder = holder_of_customer(client, customer).await?;
    if let Some(holder) = holder.filter(|holder| holder != tenant) {
        return Ok(TenantPut::CustomerTaken(holder));
    }
    // The customer that it had is kept: what was sent to it stays there.
    let update = "-- put_tenant
        WITH kept AS (
            INSERT INTO former_customers (tenant_no, customer)
            SELECT tenant_no, customer FROM tenants
            WHERE tenant = $1 AND customer IS NOT NULL AND (customer <> $3 OR $4)
            ON CONFLICT DO NOTHING
        )
        UPDATE tenants SET
            name = CASE WHEN $2::text = '' THEN NULL ELSE COALESCE($2, name) END,
            customer = CASE WHEN $4 THEN NULL ELSE COALESCE($3, customer) END
        WHERE tenant = $1
        RETURNING tenant, name, customer, created_at";
    let given: [&(dyn ToSql + Sync); 4] =
        [&tenant.as_str(), &fields.name, &customer, &fields.unmap];
    let updated = client.query_opt(update, &given).await?;
    let insert = "-- put_tenant
        INSERT INTO tenants (tenant, name, customer, created_at)
        VALUES ($1, NULLIF($2, ''), $3, $4)
        ON CONFLICT (tenant) DO UPDATE SET name = COALESCE(excluded.name, tenants.name),
            customer = COALESCE(excluded.customer, tenants.customer)
        RETURNING tenant, name, customer, created_at";
    let stored = match updated {
        Some(row) => row,
        None => {
            let at = SqlTimestamp(at);
            let given: [&(dyn ToSql + Sync); 4] = [&tenant.as_str(), &fields.name, &customer, &at];
            client.query_one(insert, &given).await?
        }
    };
    mark_releasing(client, tenant).await?;
    Ok(TenantPut::Stored(read_tenant(&stored)?))
}

/// Whether tenants that do not exist are created.
#[derive(Debug, Clone, Copy)]
pub(super) enum Creation {
    At(Timestamp),
    Never,
}

pub(super) async fn read_catalog(client: &ClientWrapper) -> Result<Catalog> {
    let sql = "-- read_catalog
        SELECT meter_no, slug, definition FROM meters";
    let mut catalog = Catalog::default();
    for row in client.query(sql, &[]).await? {
        catalog.insert(read_meter_no(column(&row, 0)?)?, Arc::new(read_meter(&row, 1)?));
    }
    Ok(catalog)
}

/// The tenant that is this customer.
async fn holder_of_customer(
    client: &ClientWrapper,
    customer: Option<&str>,
) -> Result<Option<TenantId>> {
    let Some(customer) = customer else { return Ok(None) };
    let sql = "-- holder_of_customer
        SELECT tenant FROM tenants WHERE customer = $1";
    let Some(row) = client.query_opt(sql, &[&customer]).await? else { return Ok(None) };
    let id: String = column(&row, 0)?;
    TenantId::parse(&id).map(Some).map_err(|_| corrupt("a tenant has no valid id"))
}

async fn find_meter(client: &ClientWrapper, slug: &MeterSlug) -> Result<Option<Meter>> {
    let sql = "-- find_meter
        SELECT slug, definition FROM meters WHERE slug = $1";
    let row = client.query_opt(sql, &[&slug.as_str()]).await?;
    row.map(|row| read_meter(&row, 0)).transpose()
}

/// Reads slug and definition, in this order.
fn read_meter(row: &Row, from: usize) -> Result<Meter> {
    let slug: String = column(row, from)?;
    let definition: String = column(row, from + 1)?;
    let damaged = || corrupt(format!("meters.definition of slug '{slug}' is not valid"));
    let spec: MeterSpec = serde_json::from_str(&definition).map_err(|_| damaged())?;
    let parsed = MeterSlug::parse(&slug).map_err(|_| damaged())?;
    Meter::declare(parsed, spec).map_err(|_| damaged())
}

fn read_tenant(row: &Row) -> Result<Tenant> {
    let id: String = column(row, 0)?;
    let customer: Option<String> = column(row, 2)?;
    Ok(Tenant {
        id: TenantId::parse(&id).map_err(|_| damaged("tenants.tenant", &id))?,
        name: column(row, 1)?,
        customer: customer
            .map(|id| CustomerId::parse(&id).map_err(|_| damaged("tenants.customer", &id)))
            .transpose()?,
        created_at: instant(row, 3)?,
    })
}
