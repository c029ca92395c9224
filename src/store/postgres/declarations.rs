//! Meters and tenants: the dictionaries, and what of them is cached; see `sql/declarations.rs`.
//!
//! Invariant: a number, once given, belongs to its name for ever; rows are never deleted. What is
//! cached here was committed before. A crash between the creation of a tenant and its first event
//! leaves a tenant without events.

use super::scalars::{SqlTimestamp, column, corrupt, damaged, read_meter_no, read_tenant_no};
use super::{Core, PostgresStore};
use crate::rules::ids::{MeterNo, MeterSlug, TenantId, TenantNo};
use crate::rules::meter::{Catalog, Meter, MeterSpec};
use crate::rules::timestamp::Timestamp;
use crate::store::sql::{SqlStore, declare_meter, put_tenant};
use crate::store::{Declaration, Declarations, Result, TenantFields, TenantPut};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use tokio_postgres::Row;

#[async_trait]
impl Declarations for PostgresStore {
    async fn declare_meter(&self, meter: Meter, at: Timestamp) -> Result<Declaration<Meter>> {
        self.in_transaction(move |session| declare_meter(session, &meter, at)).await
    }

    async fn load_catalog(&self) -> Result<Catalog> {
        Ok((*self.reload_catalog().await?).clone())
    }

    async fn put_tenant(
        &self,
        tenant: &TenantId,
        fields: TenantFields,
        at: Timestamp,
    ) -> Result<TenantPut> {
        let tenant = tenant.clone();
        self.in_transaction(move |session| put_tenant(session, &tenant, &fields, at)).await
    }
}

impl Core {
    async fn reload_catalog(&self) -> Result<Arc<Catalog>> {
        let client = self.control().await?;
        let catalog = Arc::new(read_catalog(&client).await?);
        *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&catalog);
        Ok(catalog)
    }

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
        self.reload_catalog().await
    }
}

impl PostgresStore {
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

    /// The number of a tenant, if it is known to the store.
    pub(super) async fn find_tenant(&self, tenant: &TenantId) -> Result<Option<TenantNo>> {
        self.number_tenants(std::iter::once(tenant), Creation::Never).await?;
        Ok(self.tenant_no(tenant))
    }

    /// The number of a tenant that [`Self::number_tenants`] was asked for.
    pub(super) fn tenant_no(&self, tenant: &TenantId) -> Option<TenantNo> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(tenant).copied()
    }
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

/// Reads slug and definition, in this order.
fn read_meter(row: &Row, from: usize) -> Result<Meter> {
    let slug: String = column(row, from)?;
    let definition: String = column(row, from + 1)?;
    let damaged = || corrupt(format!("meters.definition of slug '{slug}' is not valid"));
    let spec: MeterSpec = serde_json::from_str(&definition).map_err(|_| damaged())?;
    let parsed = MeterSlug::parse(&slug).map_err(|_| damaged())?;
    Meter::declare(parsed, spec).map_err(|_| damaged())
}
