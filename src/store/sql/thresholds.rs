//! Thresholds of tenants' usage.
//!
//! Invariant: one for each tenant, meter, kind and period, by the primary key; the last one set
//! holds. A crash leaves all of a call or nothing, and every call may be repeated.

use super::{Done, Row, Session, values};
use crate::rules::ids::TenantId;
use crate::store::alert::{Threshold, ThresholdKey};
use crate::store::{Query, Result};

pub fn put_threshold(session: &dyn Session, threshold: &Threshold) -> Done<()> {
    let Threshold { tenant, meter, kind, period, limit, created_at } = threshold;
    let tenant = session.number_tenant(tenant, *created_at)?;
    let sql = "-- put_threshold
        INSERT INTO thresholds (tenant_no, meter_no, kind, period, usage_limit, created_at)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (tenant_no, meter_no, kind, period) DO UPDATE SET
            usage_limit = excluded.usage_limit, created_at = excluded.created_at";
    session.run(sql, values![tenant, meter, kind, period, limit, created_at])?;
    Ok(())
}

pub fn list_thresholds(
    session: &dyn Session,
    query: &Query<Option<TenantId>, ThresholdKey>,
) -> Done<Vec<Threshold>> {
    let after = query.after.as_ref();
    let sql = "-- list_thresholds
        SELECT tenant, meter_no, kind, period, usage_limit, thresholds.created_at AS created_at
        FROM thresholds JOIN tenants ON tenants.tenant_no = thresholds.tenant_no
        WHERE ($1::text IS NULL
                OR thresholds.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1))
            AND (thresholds.tenant_no, meter_no, kind, period) >
                (COALESCE((SELECT tenant_no FROM tenants WHERE tenant = $2), 0), $3::smallint,
                    $4::text, $5::text)
        ORDER BY thresholds.tenant_no, meter_no, kind, period LIMIT $6";
    let values = values![
        query.filter,
        after.map(|after| &after.tenant),
        after.map_or(0u16, |after| after.meter.0),
        after.map_or("", |after| after.kind.name()),
        after.map_or("", |after| after.period.name()),
        query.limit,
    ];
    session.read_all(sql, values, decode_threshold)
}

fn decode_threshold(row: &Row) -> Result<Threshold> {
    Ok(Threshold {
        tenant: row.get("tenants.tenant")?,
        meter: row.get("thresholds.meter_no")?,
        kind: row.get("thresholds.kind")?,
        period: row.get("thresholds.period")?,
        limit: row.get("thresholds.usage_limit")?,
        created_at: row.get("thresholds.created_at")?,
    })
}
