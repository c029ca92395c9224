//! Thresholds of tenants' usage.
//!
//! Invariant: a tenant, meter, kind and period have one limit. A tenant that is first heard of here
//! is created in the same transaction, and known in memory after its commit; a crash leaves both
//! rows or neither.

use super::damaged;
use super::push_rows::{get, moment, quantity_of};
use super::statements::Statements;
use super::writer::Writer;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::store::Result;
use crate::store::alert::{Threshold, ThresholdKind, ThresholdPeriod, ThresholdQuery};
use rusqlite::{Connection, Row, params};

impl Writer {
    pub fn put_threshold(&mut self, threshold: &Threshold) -> Result<()> {
        self.write_for(&threshold.tenant, threshold.created_at, |connection, number| {
            write_threshold(connection, number, threshold)
        })
    }
}

fn write_threshold(connection: &Connection, tenant: TenantNo, threshold: &Threshold) -> Result<()> {
    connection.run(
        "-- write_threshold
         INSERT INTO thresholds (tenant_no, meter_no, kind, period, usage_limit, created_at)
         VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET usage_limit = excluded.usage_limit,
             created_at = excluded.created_at",
        params![
            tenant.0,
            threshold.meter.0,
            threshold.kind.name(),
            threshold.period.name(),
            threshold.limit.to_string(),
            threshold.created_at.micros()
        ],
    )?;
    Ok(())
}

pub fn delete_threshold(
    connection: &Connection,
    (tenant, meter): (TenantNo, MeterNo),
    kind: ThresholdKind,
    period: ThresholdPeriod,
) -> Result<bool> {
    let deleted = connection.run(
        "-- delete_threshold
         DELETE FROM thresholds
         WHERE tenant_no = ? AND meter_no = ? AND kind = ? AND period = ?",
        params![tenant.0, meter.0, kind.name(), period.name()],
    )?;
    Ok(deleted == 1)
}

pub fn list_thresholds(connection: &Connection, query: &ThresholdQuery) -> Result<Vec<Threshold>> {
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    let after = query.after.as_ref();
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- list_thresholds
         SELECT tenant, meter_no, kind, period, usage_limit, thresholds.created_at AS set_at
         FROM thresholds JOIN tenants ON tenants.tenant_no = thresholds.tenant_no
         WHERE (?1 IS NULL
                 OR thresholds.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = ?1))
             AND (thresholds.tenant_no, meter_no, kind, period) >
                 (COALESCE((SELECT tenant_no FROM tenants WHERE tenant = ?2), 0), ?3, ?4, ?5)
         ORDER BY thresholds.tenant_no, meter_no, kind, period LIMIT ?6",
        params![
            tenant,
            after.map(|after| after.tenant.as_str()),
            after.map_or(0, |after| after.meter.0),
            after.map_or("", |after| after.kind.name()),
            after.map_or("", |after| after.period.name()),
            limit
        ],
        decode_threshold,
    )
}

fn decode_threshold(row: &Row<'_>) -> Result<Threshold> {
    let tenant: String = get(row, "tenant")?;
    let (kind, period): (String, String) = (get(row, "kind")?, get(row, "period")?);
    Ok(Threshold {
        tenant: TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))?,
        meter: MeterNo(get(row, "meter_no")?),
        kind: ThresholdKind::from_name(&kind).ok_or_else(|| damaged("thresholds.kind", &kind))?,
        period: ThresholdPeriod::from_name(&period)
            .ok_or_else(|| damaged("thresholds.period", &period))?,
        limit: quantity_of(row, "usage_limit")?,
        created_at: moment(row, "set_at")?,
    })
}
