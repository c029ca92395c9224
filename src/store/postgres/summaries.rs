//! The provider's totals, as corrections and retries look at them; the rest is in `sql/summaries`.
//! Nothing is written here, so a crash leaves nothing.

use super::numeric::SqlQuantity;
use super::scalars::{SqlTimestamp, column, instant, instant_if_any, meter_number, read_ordinal};
use super::statements::Statements;
use crate::rules::drift::Summary;
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::timestamp::MICROS_PER_SECOND;
use crate::rules::window::Window;
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::ToSql;

/// The customer's total of one window.
pub async fn find_summary(
    client: &ClientWrapper,
    (tenant, customer): (&TenantId, &CustomerId),
    meter: MeterNo,
    window: Window,
) -> Result<Option<Summary>> {
    let sql = "-- find_summary
        SELECT value, read_at, read_before, since, reads FROM summaries
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND length_seconds = $3 AND window_start = $4 AND customer = $5";
    let parameters: [&(dyn ToSql + Sync); 5] = [
        &tenant.as_str(),
        &meter_number(meter),
        &(window.micros() / MICROS_PER_SECOND),
        &SqlTimestamp(window.start),
        &customer.as_str(),
    ];
    let Some(row) = client.read_optional(sql, &parameters).await? else { return Ok(None) };
    let SqlQuantity(value) = column(&row, 0)?;
    Ok(Some(Summary {
        window,
        value,
        read_at: instant(&row, 1)?,
        read_before: instant_if_any(&row, 2)?,
        since: instant(&row, 3)?,
        reads: read_ordinal(column(&row, 4)?)?,
    }))
}
