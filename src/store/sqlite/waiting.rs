//! Pushes of tenants without a customer: they wait, and are released when there is one.
//!
//! A push is written as waiting while its tenant has no customer, and while earlier ones of the
//! tenant are still to be released, so that the revisions of a window are sent in their order.
//! Waiting pushes are in none of the indexes that claims walk.
//!
//! Invariant: `unmapped_usage` holds, for each tenant and meter, the number and the sum of the
//! pushes that wait and of those that were closed because they were too old; it changes in the
//! transaction that changes the pushes. `tenants.releasing` is set with the customer, and stays set
//! until no push of the tenant waits. A crash leaves the tenant releasing; the next call goes on.

use super::push_rows::{change_push, fetch_known, get, quantity_of};
use super::segment::overflow;
use super::statements::Statements;
use super::{corrupt, sql_error};
use crate::faults::planted;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{plan_release, plan_withholding};
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::rules::waiting::judge_planned;
use crate::store::Result;
use crate::store::push::{PushRelease, TransitionLine, UnmappedSum};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;

/// What is known of a tenant's and meter's usage without a customer.
#[derive(Default)]
struct Unmapped {
    waiting: (u64, Quantity),
    unsent: (u64, Quantity),
    unsent_at: Option<Timestamp>,
}

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

/// Has the pushes of a tenant released that has just got a customer.
pub fn mark_releasing(connection: &Connection, tenant: TenantNo) -> Result<()> {
    connection.run(
        "-- mark_releasing
         UPDATE tenants SET releasing = 1
         WHERE tenant_no = ?1 AND customer IS NOT NULL AND EXISTS (
             SELECT 1 FROM pushes INDEXED BY pushes_waiting
             WHERE tenant_no = ?1 AND state = 'waiting'
         )",
        [tenant.0],
    )?;
    Ok(())
}

/// Adds a push that was written as waiting.
pub fn count_waiting(
    connection: &Connection,
    place: (TenantNo, MeterNo),
    quantity: Quantity,
) -> Result<()> {
    let mut usage = read_unmapped(connection, place)?;
    usage.waiting = add(usage.waiting, quantity)?;
    write_unmapped(connection, place, &usage)
}

/// Whether any tenant's pushes are to be released; most of the time there is none.
pub fn find_releasing(connection: &Connection) -> Result<Option<TenantNo>> {
    connection
        .prepare_cached(
            "-- find_releasing
             SELECT tenant_no FROM tenants INDEXED BY tenants_releasing
             WHERE releasing = 1 ORDER BY tenant_no LIMIT 1",
        )
        .and_then(|mut select| select.query_row([], |row| row.get(0)).optional())
        .map(|found| found.map(TenantNo))
        .map_err(sql_error)
}

/// Releases pushes of one tenant, oldest first.
pub fn release(connection: &Connection, release: &PushRelease) -> Result<Vec<TransitionLine>> {
    let Some(tenant) = find_releasing(connection)? else { return Ok(Vec::new()) };
    let numbers: Vec<u64> = connection
        .prepare_cached(
            "-- release
             SELECT push_no FROM pushes INDEXED BY pushes_waiting
             WHERE tenant_no = ? AND state = 'waiting' ORDER BY push_no LIMIT ?",
        )
        .and_then(|mut select| {
            let limit = i64::try_from(release.limit).unwrap_or(i64::MAX);
            select.query_map(params![tenant.0, limit], |row| row.get(0))?.collect()
        })?;
    let mut lines = Vec::with_capacity(numbers.len());
    for number in &numbers {
        lines.push(release_one(connection, &fetch_known(connection, *number)?, release)?);
    }
    if numbers.len() < release.limit {
        connection
            .run("-- release\nUPDATE tenants SET releasing = 0 WHERE tenant_no = ?", [tenant.0])?;
    }
    Ok(lines)
}

fn release_one(
    connection: &Connection,
    row: &StoredPush,
    release: &PushRelease,
) -> Result<TransitionLine> {
    let (push, now) = (&row.push, release.now);
    let change = plan_release(row, release.stamp_age_max, now)?;
    if !push.shadow {
        let place = (row.tenant_no, push.meter);
        let mut usage = read_unmapped(connection, place)?;
        let left = usage.waiting.0.checked_sub(1).ok_or_else(|| corrupt("unmapped_usage row"))?;
        let sum = usage.waiting.1.checked_sub(push.quantity).ok_or_else(overflow)?;
        usage.waiting = (left, sum);
        if change.class == Class::NotSent {
            usage.unsent = add(usage.unsent, push.quantity)?;
            usage.unsent_at = Some(now);
        }
        write_unmapped(connection, place, &usage)?;
    }
    change_push(connection, &change, now)
}

fn add((pushes, sum): (u64, Quantity), quantity: Quantity) -> Result<(u64, Quantity)> {
    Ok((pushes + 1, sum.checked_add(quantity).ok_or_else(overflow)?))
}

fn read_unmapped(connection: &Connection, place: (TenantNo, MeterNo)) -> Result<Unmapped> {
    let mut select = connection.prepare_cached(
        "-- read_unmapped
         SELECT waiting_pushes, waiting_quantity, unsent_pushes, unsent_quantity, unsent_at
         FROM unmapped_usage WHERE tenant_no = ? AND meter_no = ?",
    )?;
    let mut rows = select.query(params![place.0.0, place.1.0])?;
    let Some(row) = rows.next()? else { return Ok(Unmapped::default()) };
    let unsent_at: Option<i64> = get(row, "unsent_at")?;
    Ok(Unmapped {
        waiting: (get(row, "waiting_pushes")?, quantity_of(row, "waiting_quantity")?),
        unsent: (get(row, "unsent_pushes")?, quantity_of(row, "unsent_quantity")?),
        unsent_at: unsent_at.map(Timestamp::from_micros),
    })
}

fn write_unmapped(
    connection: &Connection,
    (tenant, meter): (TenantNo, MeterNo),
    usage: &Unmapped,
) -> Result<()> {
    connection.run(
        "-- write_unmapped
         INSERT INTO unmapped_usage (tenant_no, meter_no, waiting_pushes, waiting_quantity,
             unsent_pushes, unsent_quantity, unsent_at) VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET waiting_pushes = excluded.waiting_pushes,
             waiting_quantity = excluded.waiting_quantity,
             unsent_pushes = excluded.unsent_pushes,
             unsent_quantity = excluded.unsent_quantity, unsent_at = excluded.unsent_at",
        params![
            tenant.0,
            meter.0,
            usage.waiting.0,
            usage.waiting.1.to_string(),
            usage.unsent.0,
            usage.unsent.1.to_string(),
            usage.unsent_at.map(|at| at.micros())
        ],
    )?;
    Ok(())
}

/// By meter: what waits for customers, and what was too old to be sent.
pub fn sum_unmapped(
    connection: &Connection,
) -> Result<(BTreeMap<MeterNo, UnmappedSum>, BTreeMap<MeterNo, UnmappedSum>)> {
    let mut select = connection.prepare_cached(
        "-- sum_unmapped
         SELECT meter_no, waiting_pushes, waiting_quantity, unsent_pushes, unsent_quantity
         FROM unmapped_usage",
    )?;
    let mut rows = select.query([])?;
    let (mut waiting, mut unsent) = (BTreeMap::new(), BTreeMap::new());
    while let Some(row) = rows.next()? {
        let meter = MeterNo(get(row, "meter_no")?);
        let columns = [
            (&mut waiting, "waiting_pushes", "waiting_quantity"),
            (&mut unsent, "unsent_pushes", "unsent_quantity"),
        ];
        for (sums, pushes, quantity) in columns {
            let pushes: u64 = get(row, pushes)?;
            if pushes > 0 {
                let sum: &mut UnmappedSum = sums.entry(meter).or_default();
                let quantity = quantity_of(row, quantity)?;
                sum.quantity = sum.quantity.checked_add(quantity).ok_or_else(overflow)?;
                (sum.tenants, sum.pushes) = (sum.tenants + 1, sum.pushes + pushes);
            }
        }
    }
    Ok((waiting, unsent))
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
                count_waiting(connection, (row.tenant_no, push.meter), push.quantity)?;
            }
            lines.push(change_push(connection, &plan_withholding(&row, at)?, at)?);
        }
    }
    Ok(lines)
}
