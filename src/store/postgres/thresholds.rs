//! Thresholds: when a tenant's usage is worth a word.
//!
//! Invariant: one for each tenant, meter, kind and period, by the primary key; the last one set
//! holds. A crash leaves all of a call or nothing, and every call may be repeated.

use super::PostgresStore;
use super::declarations::Creation;
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_meter_no, tenant_number,
    write_limit,
};
use super::transaction::{Done, Transaction};
use crate::rules::ids::{MeterNo, TenantId};
use crate::store::Result;
use crate::store::alert::{Threshold, ThresholdKind, ThresholdPeriod, ThresholdQuery};
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

impl PostgresStore {
    pub(super) async fn set_threshold(&self, threshold: &Threshold) -> Result<()> {
        let Threshold { tenant, meter, kind, period, limit, created_at } = threshold;
        let creation = Creation::At(*created_at);
        self.number_tenants(std::iter::once(tenant), creation).await?;
        let number = self
            .tenant_no(tenant)
            .ok_or_else(|| corrupt("tenants row vanished mid-transaction"))?;
        let work = move |client: Arc<Transaction>| async move {
            let sql = "-- set_threshold
                INSERT INTO thresholds (tenant_no, meter_no, kind, period, usage_limit, created_at)
                VALUES ($1, $2, $3, $4, $5, $6)
                ON CONFLICT (tenant_no, meter_no, kind, period) DO UPDATE SET
                    usage_limit = excluded.usage_limit, created_at = excluded.created_at";
            let parameters: [&(dyn ToSql + Sync); 6] = [
                &tenant_number(number),
                &meter_number(*meter),
                &kind.name(),
                &period.name(),
                &SqlQuantity(*limit),
                &SqlTimestamp(*created_at),
            ];
            client.execute(sql, &parameters).await?;
            Ok(())
        };
        self.transact(work).await
    }
}

/// Whether there was one.
pub async fn delete_threshold(
    client: &ClientWrapper,
    (tenant, meter): (&TenantId, MeterNo),
    kind: ThresholdKind,
    period: ThresholdPeriod,
) -> Done<bool> {
    let sql = "-- delete_threshold
        DELETE FROM thresholds
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND kind = $3 AND period = $4";
    let parameters: [&(dyn ToSql + Sync); 4] =
        [&tenant.as_str(), &meter_number(meter), &kind.name(), &period.name()];
    Ok(client.execute(sql, &parameters).await? == 1)
}

pub async fn list_thresholds(
    client: &ClientWrapper,
    query: &ThresholdQuery,
) -> Result<Vec<Threshold>> {
    let sql = "-- list_thresholds
        SELECT t.tenant, h.meter_no, h.kind, h.period, h.usage_limit, h.created_at
        FROM thresholds h JOIN tenants t ON t.tenant_no = h.tenant_no
        WHERE ($1::text IS NULL
                OR h.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1))
            AND (h.tenant_no, h.meter_no, h.kind, h.period) >
                (COALESCE((SELECT tenant_no FROM tenants WHERE tenant = $2), 0), $3::int2,
                    $4::text, $5::text)
        ORDER BY h.tenant_no, h.meter_no, h.kind, h.period LIMIT $6";
    let after = query.after.as_ref();
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &query.tenant.as_ref().map(TenantId::as_str),
        &after.map(|after| after.tenant.as_str()),
        &after.map_or(0, |after| meter_number(after.meter)),
        &after.map_or("", |after| after.kind.name()),
        &after.map_or("", |after| after.period.name()),
        &write_limit(query.limit),
    ];
    let rows = client.query(sql, &parameters).await?;
    rows.iter().map(read_threshold).collect()
}

fn read_threshold(row: &Row) -> Result<Threshold> {
    let tenant: String = column(row, 0)?;
    let (kind, period): (String, String) = (column(row, 2)?, column(row, 3)?);
    let SqlQuantity(limit) = column(row, 4)?;
    Ok(Threshold {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        meter: read_meter_no(column(row, 1)?)?,
        kind: ThresholdKind::from_name(&kind).ok_or_else(|| damaged("thresholds.kind", &kind))?,
        period: ThresholdPeriod::from_name(&period)
            .ok_or_else(|| damaged("thresholds.period", &period))?,
        limit,
        created_at: instant(row, 5)?,
    })
}
