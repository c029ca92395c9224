//! Pushes of tenants without a customer: they wait, and are released when there is one.
//!
//! A push is written as waiting while its tenant has no customer, and while earlier ones of the
//! tenant are still to be released, so that the revisions of a window are sent in their order.
//! Waiting pushes are in none of the indexes that claims walk.
//!
//! Invariant: `unmapped_usage` holds, for each tenant and meter, the number and the sum of the
//! pushes that wait and of those that were closed because they were too old; it changes in the
//! transaction that changes the pushes. `tenants.releasing` is set with the customer, and stays set
//! until no push of the tenant waits. A cut that writes waiting pushes holds a share lock on the
//! tenant's row until its commit ([`lock_unmapped`]); a customer is given, and a release ended,
//! under an exclusive one. So no push is written as waiting after the last release of its tenant.
//!
//! A crash leaves the tenant releasing; the next call goes on.

use super::numeric::SqlQuantity;
use super::push_rows::{change_pushes, read_pushes};
use super::scalars::{
    SqlTimestamp, column, corrupt, meter_number, read_count, read_meter_no, tenant_number,
    write_count, write_limit,
};
use super::statements::Statements;
use super::transaction::Done;
use crate::faults::planted;
use crate::rules::fault::Fault;
use crate::rules::ids::{MeterNo, TenantId};
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{Change, plan_release};
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::store::push::{PushRelease, TransitionLine, UnmappedSum};
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::ToSql;

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

/// Has the pushes of a tenant released that has just got a customer.
pub async fn mark_releasing(client: &ClientWrapper, tenant: &TenantId) -> Done<()> {
    let sql = "-- mark_releasing
        UPDATE tenants t SET releasing = true
        WHERE t.tenant = $1 AND t.customer IS NOT NULL AND NOT t.releasing AND EXISTS (
            SELECT FROM pushes p WHERE p.tenant_no = t.tenant_no AND p.state = 'waiting'
        )";
    client.run(sql, &[&tenant.as_str()]).await?;
    Ok(())
}

/// Whether any tenant's pushes are to be released; most of the time there is none.
pub async fn is_releasing(client: &ClientWrapper) -> Result<bool> {
    let sql = "-- is_releasing
        SELECT EXISTS (SELECT FROM tenants WHERE releasing)";
    column(&client.read_one(sql, &[]).await?, 0)
}

/// Releases pushes of one tenant, oldest first. A tenant that another server works on is left to
/// it.
pub async fn release(client: &ClientWrapper, release: &PushRelease) -> Done<Vec<TransitionLine>> {
    let sql = "-- release
        SELECT tenant_no FROM tenants WHERE releasing
        ORDER BY tenant_no LIMIT 1 FOR UPDATE SKIP LOCKED";
    let Some(row) = client.query_opt(sql, &[]).await? else { return Ok(Vec::new()) };
    let tenant_no: i32 = column(&row, 0)?;
    let sql = "-- release
        SELECT push_no FROM pushes WHERE tenant_no = $1 AND state = 'waiting'
        ORDER BY push_no LIMIT $2 FOR UPDATE";
    let rows = client.query(sql, &[&tenant_no, &write_limit(release.limit)]).await?;
    let numbers: Vec<i64> = rows.iter().map(|row| column(row, 0)).collect::<Result<_>>()?;
    let pushes = read_pushes(client, &numbers).await?;
    let plan = |found| plan_release(found, release.stamp_age_max, release.now);
    let changes: Vec<Change> =
        pushes.iter().map(plan).collect::<std::result::Result<_, Fault>>()?;
    let lines = change_pushes(client, &changes, release.now).await?;
    count_released(client, &pushes, &changes, release.now).await?;
    if numbers.len() < release.limit {
        let sql = "-- release
            UPDATE tenants SET releasing = false WHERE tenant_no = $1";
        client.execute(sql, &[&tenant_no]).await?;
    }
    Ok(lines)
}

/// Takes released pushes off what waits, and adds those that were closed to what was not sent.
async fn count_released(
    client: &ClientWrapper,
    pushes: &[StoredPush],
    changes: &[Change],
    at: Timestamp,
) -> Done<()> {
    type Sum = (i64, Quantity);
    let mut sums: BTreeMap<(i32, MeterNo), (Sum, Sum)> = BTreeMap::new();
    let add = |sum: &mut Sum, quantity: Quantity| -> Result<()> {
        let what = || Error::Internal { what: "waiting usage is too large".into() };
        *sum = (sum.0 + 1, sum.1.checked_add(quantity).ok_or_else(what)?);
        Ok(())
    };
    for (found, change) in pushes.iter().zip(changes).filter(|(found, _)| !found.push.shadow) {
        let place = (tenant_number(found.tenant_no), found.push.meter);
        let (waited, unsent) = sums.entry(place).or_default();
        add(waited, found.push.quantity)?;
        if change.class == Class::NotSent {
            add(unsent, found.push.quantity)?;
        }
    }
    let sql = "-- count_released
        UPDATE unmapped_usage SET waiting_pushes = waiting_pushes - $3,
            waiting_quantity = waiting_quantity - $4, unsent_pushes = unsent_pushes + $5,
            unsent_quantity = unsent_quantity + $6,
            unsent_at = CASE WHEN $5 > 0 THEN $7 ELSE unsent_at END
        WHERE tenant_no = $1 AND meter_no = $2";
    let statement = client.prepare_cached(sql).await?;
    for ((tenant_no, meter), (waited, unsent)) in sums {
        let given: [&(dyn ToSql + Sync); 7] = [
            &tenant_no,
            &meter_number(meter),
            &waited.0,
            &SqlQuantity(waited.1),
            &unsent.0,
            &SqlQuantity(unsent.1),
            &SqlTimestamp(at),
        ];
        if client.execute(&statement, &given).await? != 1 {
            return Err(corrupt("unmapped_usage row vanished mid-transaction").into());
        }
    }
    Ok(())
}

/// By meter: what waits for customers, and what was too old to be sent.
pub async fn sum_unmapped(
    client: &ClientWrapper,
) -> Result<(BTreeMap<MeterNo, UnmappedSum>, BTreeMap<MeterNo, UnmappedSum>)> {
    let sql = "-- sum_unmapped
        SELECT meter_no, count(*) FILTER (WHERE waiting_pushes > 0), sum(waiting_pushes)::int8,
            sum(waiting_quantity), count(*) FILTER (WHERE unsent_pushes > 0),
            sum(unsent_pushes)::int8, sum(unsent_quantity)
        FROM unmapped_usage GROUP BY meter_no";
    let (mut waiting, mut unsent) = (BTreeMap::new(), BTreeMap::new());
    for row in client.query(sql, &[]).await? {
        let meter = read_meter_no(column(&row, 0)?)?;
        for (sums, from) in [(&mut waiting, 1), (&mut unsent, 4)] {
            let (tenants, pushes) =
                (read_count(column(&row, from)?)?, read_count(column(&row, from + 1)?)?);
            let SqlQuantity(quantity) = column(&row, from + 2)?;
            if pushes > 0 {
                sums.insert(meter, UnmappedSum { tenants, pushes, quantity });
            }
        }
    }
    Ok((waiting, unsent))
}
