//! What the self-check knows: one row with its progress, and the windows that do not agree.
//!
//! Invariant: a mismatch keeps its number until a slice with its window agrees, so the first of
//! them stay the first. A crash leaves all of a slice's transaction or nothing.

use super::leases::hold_lease;
use super::{Done, Row, Session, SqlStore, values};
use crate::rules::ids::{MeterNo, TenantId, TenantNo};
use crate::rules::self_check::{Mismatch, SelfCheck, Slice};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::push::Lease;
use crate::store::self_check::{KeptMismatch, MISMATCHES_MAX, SelfChecks};
use crate::store::{Error, Result, damaged};
use async_trait::async_trait;

#[async_trait]
impl<S: SqlStore> SelfChecks for S {
    async fn read_self_check(&self) -> Result<SelfCheck> {
        self.in_reader(read_self_check).await
    }

    async fn record_self_check(
        &self,
        lease: &Lease,
        check: SelfCheck,
        compared: Vec<(Slice, Vec<Mismatch>)>,
        at: Timestamp,
    ) -> Result<bool> {
        let lease = lease.clone();
        self.in_transaction(move |session| {
            let held = hold_lease(session, &lease)?;
            if held {
                write_self_check(session, &check)?;
                for (slice, mismatches) in &compared {
                    write_mismatches(session, *slice, mismatches, at)?;
                }
                crate::faults::crash_point("self_check.before_commit");
            }
            Ok(held)
        })
        .await
    }

    async fn list_mismatches(&self, limit: usize) -> Result<Vec<KeptMismatch>> {
        let sql = "-- list_mismatches
            SELECT mismatch_no, tenant_no, tenant, meter_no, meter, window_start, window_end, grp,
                stored, events, found_at
            FROM self_check_mismatches ORDER BY mismatch_no LIMIT $1";
        self.in_reader(move |session| session.read_all(sql, values![limit], read_mismatch)).await
    }

    async fn count_mismatches(&self) -> Result<u64> {
        self.in_reader(count_mismatches).await
    }

    async fn name_tenant(&self, number: TenantNo) -> Result<Option<TenantId>> {
        let sql = "-- name_tenant\nSELECT tenant FROM tenants WHERE tenant_no = $1";
        self.in_reader(move |session| session.read_optional(sql, values![number], Row::only)).await
    }

    async fn last_tenant(&self) -> Result<TenantNo> {
        let sql = "-- last_tenant\nSELECT max(tenant_no) FROM tenants";
        let last: Option<TenantNo> =
            self.in_reader(move |session| session.read_one(sql, &[], Row::only)).await?;
        Ok(last.unwrap_or(TenantNo(0)))
    }
}

fn read_self_check(session: &dyn Session) -> Done<SelfCheck> {
    let sql = "-- read_self_check\nSELECT state FROM self_checks";
    let state: Option<String> = session.read_optional(sql, &[], Row::only)?;
    let Some(state) = state else { return Ok(SelfCheck::default()) };
    Ok(serde_json::from_str(&state).map_err(|_| damaged("self_checks.state", &state))?)
}

fn write_self_check(session: &dyn Session, check: &SelfCheck) -> Done<()> {
    let internal = |error: serde_json::Error| Error::Internal { what: error.to_string() };
    let state = serde_json::to_string(check).map_err(internal)?;
    let sql = "-- write_self_check
        INSERT INTO self_checks (one, state) VALUES (1, $1)
        ON CONFLICT (one) DO UPDATE SET state = excluded.state";
    session.run(sql, values![state])?;
    Ok(())
}

fn count_mismatches(session: &dyn Session) -> Done<u64> {
    let sql = "-- count_mismatches\nSELECT count(*) AS kept FROM self_check_mismatches";
    session.read_one(sql, &[], |row| row.get("kept"))
}

fn read_mismatch(row: &Row) -> Result<KeptMismatch> {
    let mismatch = Mismatch {
        tenant_no: row.get("self_check_mismatches.tenant_no")?,
        tenant: row.get("self_check_mismatches.tenant")?,
        meter_no: row.get("self_check_mismatches.meter_no")?,
        meter: row.get("self_check_mismatches.meter")?,
        window: Window {
            start: row.get("self_check_mismatches.window_start")?,
            end: row.get("self_check_mismatches.window_end")?,
        },
        group: row.get("self_check_mismatches.grp")?,
        stored: row.get("self_check_mismatches.stored")?,
        events: row.get("self_check_mismatches.events")?,
    };
    let number = row.get("self_check_mismatches.mismatch_no")?;
    Ok(KeptMismatch { number, mismatch, found_at: row.get("self_check_mismatches.found_at")? })
}

/// What tells one mismatch from others: its tenant, meter, window and group.
type MismatchKey = (TenantNo, Option<MeterNo>, Timestamp, String);

fn key_of(mismatch: &Mismatch) -> MismatchKey {
    let Mismatch { tenant_no, meter_no, window, group, .. } = mismatch;
    (*tenant_no, *meter_no, window.start, group.clone())
}

/// Those of the slice that agree now are removed, others get their new numbers, and new ones are
/// kept while there is room.
fn write_mismatches(
    session: &dyn Session,
    slice: Slice,
    found: &[Mismatch],
    at: Timestamp,
) -> Done<()> {
    let standing = read_standing(session, slice)?;
    for (number, key) in &standing {
        if !found.iter().any(|mismatch| key_of(mismatch) == *key) {
            let sql = "-- write_mismatches
                DELETE FROM self_check_mismatches WHERE mismatch_no = $1";
            session.run(sql, values![number])?;
        }
    }
    let mut kept = usize::try_from(count_mismatches(session)?).unwrap_or(usize::MAX);
    for mismatch in found {
        let key = key_of(mismatch);
        let Mismatch { stored, events, .. } = mismatch;
        if let Some((number, _)) = standing.iter().find(|(_, other)| *other == key) {
            let sql = "-- write_mismatches
                UPDATE self_check_mismatches SET stored = $2, events = $3 WHERE mismatch_no = $1";
            session.run(sql, values![number, stored, events])?;
        } else if kept < MISMATCHES_MAX {
            insert_mismatch(session, mismatch, at)?;
            kept += 1;
        }
    }
    Ok(())
}

fn insert_mismatch(session: &dyn Session, mismatch: &Mismatch, at: Timestamp) -> Done<()> {
    let Mismatch { tenant_no, tenant, meter_no, meter, window, group, stored, events } = mismatch;
    let sql = "-- insert_mismatch
        INSERT INTO self_check_mismatches
            (tenant_no, tenant, meter_no, meter, window_start, window_end, grp, stored, events,
             found_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let (start, end) = (window.start, window.end);
    let given = values![tenant_no, tenant, meter_no, meter, start, end, group, stored, events, at];
    session.run(sql, given)?;
    Ok(())
}

/// The mismatches that were kept of a slice.
fn read_standing(session: &dyn Session, slice: Slice) -> Done<Vec<(u64, MismatchKey)>> {
    let sql = "-- read_standing
        SELECT mismatch_no, tenant_no, meter_no, window_start, grp FROM self_check_mismatches
        WHERE tenant_no >= $1 AND tenant_no <= $2 ORDER BY mismatch_no";
    let rows = session.read_all(sql, values![slice.first, slice.last], |row| {
        let tenant: TenantNo = row.get("self_check_mismatches.tenant_no")?;
        let meter: Option<MeterNo> = row.get("self_check_mismatches.meter_no")?;
        let start: Timestamp = row.get("self_check_mismatches.window_start")?;
        let group: String = row.get("self_check_mismatches.grp")?;
        let number: u64 = row.get("self_check_mismatches.mismatch_no")?;
        Ok((number, (tenant, meter, start, group)))
    })?;
    let own = |(_, (_, meter, start, _)): &(u64, MismatchKey)| slice.has_window(*meter, *start);
    Ok(rows.into_iter().filter(own).collect())
}
