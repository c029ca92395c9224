//! Pushes of tenants without a customer, as cuts and claims of this store meet them; the rest is in
//! `sql/waiting.rs`.
//!
//! Invariant: what waits is counted in the transaction that has it wait. A crash leaves both or
//! neither.

use super::push_rows::{change_push, fetch_known};
use super::session::SqliteSession;
use super::statements::Statements;
use crate::faults::planted;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::quantity::Quantity;
use crate::rules::settlement::plan_withholding;
use crate::rules::submission::PushState;
use crate::rules::timestamp::Timestamp;
use crate::rules::waiting::judge_planned;
use crate::store::Result;
use crate::store::push::TransitionLine;
use crate::store::sql::{read_unmapped, write_unmapped};
use rusqlite::Connection;

/// The state in which a push of the tenant is written.
pub fn planned_state(connection: &Connection, tenant: TenantNo) -> Result<PushState> {
    if planted("bug.push_without_customer") {
        return Ok(PushState::Observed);
    }
    let (has_customer, releasing) = connection.read_one(
        "-- planned_state
         SELECT customer IS NOT NULL, releasing FROM tenants WHERE tenant_no = ?",
        [tenant.0],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    Ok(judge_planned(has_customer, releasing))
}

/// Adds a push that was written as waiting.
pub fn count_waiting(
    connection: &Connection,
    tenant: TenantNo,
    meter: MeterNo,
    quantity: Quantity,
) -> Result<()> {
    let session = SqliteSession::on(connection);
    let mut usage = read_unmapped(&session, tenant, meter)?;
    usage.add_waiting(quantity)?;
    Ok(write_unmapped(&session, tenant, meter, &usage)?)
}

/// Has pushes wait that were written as due before their tenant's lack of a customer was looked at.
pub fn withhold(
    connection: &Connection,
    tenants: &[TenantNo],
    at: Timestamp,
) -> Result<Vec<TransitionLine>> {
    let mut lines = Vec::new();
    for tenant in tenants {
        let numbers: Vec<u64> = connection.read_all(
            "-- withhold
             SELECT push_no FROM pushes INDEXED BY pushes_observed
             JOIN tenants ON tenants.tenant_no = pushes.tenant_no
             WHERE pushes.tenant_no = ? AND state = 'observed' AND attempts = 0
                 AND leased_until IS NULL AND tenants.customer IS NULL
             ORDER BY push_no",
            [tenant.0],
            |row| Ok(row.get(0)?),
        )?;
        for number in numbers {
            let row = fetch_known(connection, number)?;
            let push = &row.push;
            if !push.shadow {
                count_waiting(connection, row.tenant_no, push.meter, push.quantity)?;
            }
            lines.push(change_push(connection, &plan_withholding(&row, at)?, at)?);
        }
    }
    Ok(lines)
}
