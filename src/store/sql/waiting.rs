//! Pushes of tenants without a customer: they wait, and are released when there is one.
//!
//! A push is written as waiting while its tenant has no customer, and while earlier ones of the
//! tenant are still to be released, so that the revisions of a window are sent in their order.
//! Waiting pushes are in none of the indexes that claims walk.
//!
//! Invariant: `unmapped_usage` holds, for each tenant and meter, the number and the sum of the
//! pushes that wait and of those that were closed because they were too old; it changes in the
//! transaction that changes the pushes. `tenants.releasing` is set with the customer, and stays set
//! until no push of the tenant waits. A transaction that writes waiting pushes holds a share lock
//! on the tenant's row until its commit; a customer is given, and a release ended, under an
//! exclusive one. So no push is written as waiting after the last release of its tenant.
//!
//! A crash leaves the tenant releasing; the next call goes on.

use super::session::{PushPair, Sum};
use super::{Done, Row, Session, values};
use crate::faults::planted;
use crate::rules::fault::Fault;
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::push::StoredPush;
use crate::rules::quantity::Quantity;
use crate::rules::settlement::{Change, plan_release, plan_withholding};
use crate::rules::submission::{Class, PushState};
use crate::rules::timestamp::Timestamp;
use crate::rules::waiting::judge_planned;
use crate::store::push::{PushRelease, TransitionLine, UnmappedSum, UnsentUsage};
use crate::store::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a tenant's and meter's usage without a customer.
#[derive(Default)]
struct Unmapped {
    waiting: PushSum,
    unsent: PushSum,
    unsent_at: Option<Timestamp>,
}

/// A number of pushes and the sum of their quantities.
#[derive(Default)]
struct PushSum {
    pushes: u64,
    quantity: Quantity,
}

impl PushSum {
    fn add(&mut self, quantity: Quantity) -> Result<()> {
        let sum = self.quantity.checked_add(quantity);
        *self = Self { pushes: self.pushes + 1, quantity: sum.ok_or_else(too_large)? };
        Ok(())
    }

    fn take(&mut self, quantity: Quantity) -> Result<()> {
        let pushes = self.pushes.checked_sub(1).ok_or_else(|| Error::Corrupt {
            what: "unmapped_usage counts fewer pushes than wait".into(),
        })?;
        let sum = self.quantity.checked_sub(quantity);
        *self = Self { pushes, quantity: sum.ok_or_else(too_large)? };
        Ok(())
    }
}

fn too_large() -> Error {
    Error::Internal { what: "waiting usage is too large".into() }
}

impl Unmapped {
    /// Takes off a push that waited. One that was not sent is added to those.
    fn release(&mut self, found: &StoredPush, change: &Change, at: Timestamp) -> Result<()> {
        self.waiting.take(found.push.quantity)?;
        if change.class == Class::NotSent {
            self.unsent.add(found.push.quantity)?;
            self.unsent_at = Some(at);
        }
        Ok(())
    }
}

/// Has the pushes of a tenant released that has just got a customer.
pub fn mark_releasing(session: &dyn Session, tenant: &TenantId) -> Done<()> {
    let sql = "-- mark_releasing
        UPDATE tenants SET releasing = true
        WHERE tenant = $1 AND customer IS NOT NULL AND NOT releasing AND EXISTS (
            SELECT 1 FROM pushes /*+ INDEXED BY pushes_waiting */
            WHERE pushes.tenant_no = tenants.tenant_no AND state = 'waiting'
        )";
    session.run(sql, values![tenant])?;
    Ok(())
}

/// Whether any tenant's pushes are to be released; most of the time there is none.
pub fn is_releasing(session: &dyn Session) -> Done<bool> {
    let sql = "-- is_releasing
        SELECT EXISTS (SELECT 1 FROM tenants /*+ INDEXED BY tenants_releasing */ WHERE releasing)";
    session.read_one(sql, &[], Row::only)
}

/// Releases pushes of one tenant, oldest first. A tenant that another server works on is left to
/// it. One whose windows are to be cut again waits for that: its timeline may take pushes back.
pub fn release(session: &dyn Session, release: &PushRelease) -> Done<Vec<TransitionLine>> {
    let PushRelease { now, stamp_age_max, limit } = *release;
    let sql = "-- release
        SELECT tenant_no FROM tenants /*+ INDEXED BY tenants_releasing */ WHERE releasing
            AND NOT EXISTS (SELECT 1 FROM recuts WHERE recuts.tenant_no = tenants.tenant_no)
        ORDER BY tenant_no LIMIT 1 FOR UPDATE SKIP LOCKED";
    let tenant: Option<TenantNo> = session.read_optional(sql, &[], Row::only)?;
    let Some(tenant) = tenant else { return Ok(Vec::new()) };
    let sql = "-- release
        SELECT push_no FROM pushes /*+ INDEXED BY pushes_waiting */
        WHERE tenant_no = $1 AND state = 'waiting'
        ORDER BY push_no LIMIT $2 FOR UPDATE";
    let numbers: Vec<u64> = session.read_all(sql, values![tenant, limit], Row::only)?;
    let pushes = session.read_pushes(&numbers)?;
    let plan = |found| plan_release(found, stamp_age_max, now);
    let changes: Vec<Change> =
        pushes.iter().map(plan).collect::<std::result::Result<_, Fault>>()?;
    let lines = session.change_pushes(&changes, now)?;
    count_released(session, &pushes, &changes, now)?;
    if numbers.len() < limit {
        let sql = "-- release
            UPDATE tenants SET releasing = false WHERE tenant_no = $1";
        session.run(sql, values![tenant])?;
    }
    Ok(lines)
}

/// Takes released pushes off what waits, and adds those that were closed to what was not sent.
fn count_released(
    session: &dyn Session,
    pushes: &[StoredPush],
    changes: &[Change],
    at: Timestamp,
) -> Done<()> {
    let released = || pushes.iter().zip(changes).filter(|(found, _)| !found.push.shadow);
    let pair = |found: &StoredPush| (found.tenant_no, found.push.meter);
    let mut usages = lock_usages(session, released().map(|(found, _)| pair(found)).collect())?;
    for (found, change) in released() {
        usages.entry(pair(found)).or_default().release(found, change, at)?;
    }
    write_usages(session, &usages)
}

/// Adds pushes that are written as waiting.
pub fn count_waiting(
    session: &dyn Session,
    waiting: impl Iterator<Item = (PushPair, Quantity)>,
) -> Done<()> {
    let waiting: Vec<(PushPair, Quantity)> = waiting.collect();
    let mut usages = lock_usages(session, waiting.iter().map(|(pair, _)| *pair).collect())?;
    for (pair, quantity) in waiting {
        usages.entry(pair).or_default().waiting.add(quantity)?;
    }
    write_usages(session, &usages)
}

/// Those of the tenants whose pushes wait; these stay so until the transaction ends. It is the
/// first lock of those who take it.
pub fn lock_unmapped(
    session: &dyn Session,
    tenants: &BTreeSet<TenantNo>,
) -> Done<BTreeSet<TenantNo>> {
    if planted("bug.push_without_customer") {
        return Ok(BTreeSet::new());
    }
    // The condition is that of `judge_planned`, so that no other tenant is locked.
    let sql = "-- lock_unmapped
        WITH given (number) AS (VALUES ($::int4), ...)
        SELECT tenant_no, customer IS NOT NULL AS mapped, releasing
        FROM given JOIN tenants ON tenant_no = number
        WHERE customer IS NULL OR releasing
        ORDER BY tenant_no FOR SHARE OF tenants";
    let rows = tenants.iter().map(|tenant| values![tenant].to_vec());
    let found: Vec<(TenantNo, PushState)> = session.read_batch(sql, rows, |row| {
        let begins = judge_planned(row.get("tenants.mapped")?, row.get("tenants.releasing")?);
        Ok((row.get("tenants.tenant_no")?, begins))
    })?;
    let waiting = found.into_iter().filter(|(_, begins)| *begins == PushState::Waiting);
    Ok(waiting.map(|(tenant, _)| tenant).collect())
}

/// Has pushes wait that are due and were never sent, of tenants without a customer: their tenant
/// lost it, or they were written before such pushes waited.
pub fn withhold(
    session: &dyn Session,
    tenants: &BTreeSet<TenantNo>,
    at: Timestamp,
) -> Done<Vec<TransitionLine>> {
    let unmapped = lock_unmapped(session, tenants)?;
    let sql = "-- withhold
        WITH given (number) AS (VALUES ($::int4), ...)
        SELECT push_no FROM given
        JOIN tenants ON tenants.tenant_no = number
        JOIN pushes /*+ INDEXED BY pushes_observed */ ON pushes.tenant_no = number
        WHERE state = 'observed' AND attempts = 0 AND leased_until IS NULL
            AND tenants.customer IS NULL
        ORDER BY push_no FOR UPDATE OF pushes";
    let rows = unmapped.iter().map(|tenant| values![tenant].to_vec());
    let numbers: Vec<u64> = session.read_batch(sql, rows, Row::only)?;
    let pushes = session.read_pushes(&numbers)?;
    let changes = pushes.iter().map(|found| plan_withholding(found, at));
    let changes: Vec<Change> = changes.collect::<std::result::Result<_, Fault>>()?;
    let counted = pushes.iter().filter(|found| !found.push.shadow);
    count_waiting(
        session,
        counted.map(|found| ((found.tenant_no, found.push.meter), found.push.quantity)),
    )?;
    session.change_pushes(&changes, at)
}

type Usages = BTreeMap<PushPair, Unmapped>;

/// Locks what is known of tenants and meters. Rows that are missing are written first: two that
/// count at once could not wait for each other otherwise.
fn lock_usages(session: &dyn Session, pairs: BTreeSet<PushPair>) -> Done<Usages> {
    let sql = "-- lock_usages
        INSERT INTO unmapped_usage (tenant_no, meter_no, waiting_pushes, waiting_quantity,
            unsent_pushes, unsent_quantity)
        VALUES ($, $, 0, '0', 0, '0'), ... ON CONFLICT DO NOTHING";
    let rows = || pairs.iter().map(|(tenant, meter)| values![tenant, meter].to_vec());
    session.run_batch(sql, rows())?;
    let sql = "-- lock_usages
        WITH given (number, meter) AS (VALUES ($::int4, $::int2), ...)
        SELECT tenant_no, meter_no, waiting_pushes, waiting_quantity, unsent_pushes,
            unsent_quantity, unsent_at
        FROM given JOIN unmapped_usage ON tenant_no = number AND meter_no = meter
        ORDER BY tenant_no, meter_no FOR UPDATE OF unmapped_usage";
    let found = session.read_batch(sql, rows(), |row| {
        let pair = (row.get("unmapped_usage.tenant_no")?, row.get("unmapped_usage.meter_no")?);
        let waiting = PushSum {
            pushes: row.get("unmapped_usage.waiting_pushes")?,
            quantity: row.get("unmapped_usage.waiting_quantity")?,
        };
        let unsent = PushSum {
            pushes: row.get("unmapped_usage.unsent_pushes")?,
            quantity: row.get("unmapped_usage.unsent_quantity")?,
        };
        Ok((pair, Unmapped { waiting, unsent, unsent_at: row.get("unmapped_usage.unsent_at")? }))
    })?;
    Ok(found.into_iter().collect())
}

fn write_usages(session: &dyn Session, usages: &Usages) -> Done<()> {
    let sql = "-- write_usages
        INSERT INTO unmapped_usage (tenant_no, meter_no, waiting_pushes, waiting_quantity,
            unsent_pushes, unsent_quantity, unsent_at)
        VALUES ($, $, $, $, $, $, $), ...
        ON CONFLICT (tenant_no, meter_no) DO UPDATE SET
            waiting_pushes = excluded.waiting_pushes,
            waiting_quantity = excluded.waiting_quantity,
            unsent_pushes = excluded.unsent_pushes,
            unsent_quantity = excluded.unsent_quantity, unsent_at = excluded.unsent_at";
    let rows = usages.iter().map(|((tenant, meter), Unmapped { waiting, unsent, unsent_at })| {
        let (waits, closed) = (waiting.pushes, unsent.pushes);
        values![tenant, meter, waits, waiting.quantity, closed, unsent.quantity, unsent_at].to_vec()
    });
    session.run_batch(sql, rows)?;
    Ok(())
}

/// Sums of tenants' usage by meter.
type UnmappedSums = BTreeMap<MeterNo, UnmappedSum>;

/// By meter: what waits for customers, and what was too old to be sent.
pub fn sum_unmapped(session: &dyn Session) -> Done<(UnmappedSums, UnmappedSums)> {
    let sum = |sql: &str| -> Done<UnmappedSums> {
        let of_tenants = |(meter, sum): (MeterNo, Sum)| {
            let Sum { rows, pushes, quantity } = sum;
            (meter, UnmappedSum { tenants: rows, pushes, quantity })
        };
        Ok(session.sum_by_meter(sql)?.into_iter().map(of_tenants).collect())
    };
    let waiting = sum("-- sum_unmapped
        SELECT meter_no AS number, waiting_pushes AS pushes, waiting_quantity AS quantity
        FROM unmapped_usage WHERE waiting_pushes > 0")?;
    let unsent = sum("-- sum_unmapped
        SELECT meter_no AS number, unsent_pushes AS pushes, unsent_quantity AS quantity
        FROM unmapped_usage WHERE unsent_pushes > 0")?;
    Ok((waiting, unsent))
}

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
