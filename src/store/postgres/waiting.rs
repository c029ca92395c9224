//! Pushes of tenants without a customer, as cuts of this store meet them; the rest is in
//! `sql/waiting.rs`.
//!
//! Invariant: a cut that writes waiting pushes holds a share lock on the tenant's row until its
//! commit ([`lock_unmapped`]), and counts them in the same transaction. A crash leaves both or
//! neither.

use super::scalars::{column, write_count};
use super::statements::Statements;
use super::transaction::Done;
use crate::faults::planted;
use crate::rules::submission::PushState;
use crate::store::Result;
use crate::store::push::TransitionLine;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeSet;

/// Those of the tenants whose pushes must wait; these keep their lack of a customer until the
/// caller's transaction ends. It is the first lock of those who take it.
pub async fn lock_unmapped(client: &ClientWrapper, tenants: &[i32]) -> Done<BTreeSet<i32>> {
    if planted("bug.push_without_customer") {
        return Ok(BTreeSet::new());
    }
    let sql = "-- lock_unmapped
        SELECT tenant_no FROM tenants
        WHERE tenant_no = ANY ($1) AND (customer IS NULL OR releasing)
        ORDER BY tenant_no FOR SHARE";
    let rows = client.read_all(sql, &[&tenants]).await?;
    Ok(rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?)
}

/// Adds pushes that were just written as waiting.
pub async fn count_waiting(client: &ClientWrapper, lines: &[TransitionLine]) -> Done<()> {
    let waiting = lines.iter().filter(|line| line.state == PushState::Waiting);
    let numbers: Vec<i64> = waiting.map(|line| write_count(line.push)).collect::<Result<_>>()?;
    if numbers.is_empty() {
        return Ok(());
    }
    let sql = "-- count_waiting
        INSERT INTO unmapped_usage AS known (tenant_no, meter_no, waiting_pushes,
            waiting_quantity, unsent_pushes, unsent_quantity)
        SELECT tenant_no, meter_no, count(*), sum(quantity), 0, 0 FROM pushes
        WHERE push_no = ANY ($1) AND NOT shadow
        GROUP BY tenant_no, meter_no ORDER BY tenant_no, meter_no
        ON CONFLICT (tenant_no, meter_no) DO UPDATE SET
            waiting_pushes = known.waiting_pushes + excluded.waiting_pushes,
            waiting_quantity = known.waiting_quantity + excluded.waiting_quantity";
    client.run(sql, &[&numbers]).await?;
    Ok(())
}
