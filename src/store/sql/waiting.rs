//! Usage of tenants without a customer, as it is looked at. Nothing is written here.

use super::{Done, Session, values};
use crate::rules::timestamp::Timestamp;
use crate::store::push::UnsentUsage;

/// Usage that was too old to be sent, of tenants that got their customer since then.
pub fn list_unsent(
    session: &dyn Session,
    since: Timestamp,
    limit: usize,
) -> Done<Vec<UnsentUsage>> {
    let sql = "-- list_unsent
        SELECT tenant, meter_no, unsent_pushes, unsent_quantity
        FROM unmapped_usage JOIN tenants ON tenants.tenant_no = unmapped_usage.tenant_no
        WHERE unsent_at >= $1 ORDER BY unsent_at DESC LIMIT $2";
    session.read_all(sql, values![since, limit], |row| {
        Ok(UnsentUsage {
            tenant: row.get("tenants.tenant")?,
            meter: row.get("unmapped_usage.meter_no")?,
            pushes: row.get("unmapped_usage.unsent_pushes")?,
            quantity: row.get("unmapped_usage.unsent_quantity")?,
        })
    })
}
