//! Rows of cuts: where windows stand, what is carried, and the events that were cut without a push.
//!
//! Invariant: rows are locked and written in the order of their keys, inside the caller's
//! transaction, so nobody waits in a circle. A crash leaves all of that transaction or nothing.

use super::{Done, Row, Session, Value, values};
use crate::rules::cut::{PriorPushes, Revision};
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::push::{CutState, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use std::collections::{BTreeMap, BTreeSet};

/// A window's row in `cuts`, in the order of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowKey {
    pub tenant_no: TenantNo,
    pub meter: MeterNo,
    pub start: Timestamp,
}

impl WindowKey {
    /// The window of a push.
    pub fn of(found: &StoredPush) -> Self {
        let StoredPush { tenant_no, push, .. } = found;
        Self { tenant_no: *tenant_no, meter: push.meter, start: push.window.start }
    }

    pub fn values(&self) -> Vec<Value> {
        values![self.tenant_no, self.meter, self.start].to_vec()
    }

    /// Reads `tenant_no`, `meter_no` and `window_start`.
    pub fn decode(row: &Row) -> Result<Self> {
        Ok(Self {
            tenant_no: row.get("tenant_no")?,
            meter: row.get("meter_no")?,
            start: row.get("window_start")?,
        })
    }
}

/// Where windows stand.
pub type States = BTreeMap<WindowKey, CutState>;

/// What is carried, by tenant, meter and whether it is of shadow windows.
pub type Remainders = BTreeMap<(TenantNo, MeterNo, bool), Quantity>;

/// The last cuts of a tenant's windows that start in `range`.
pub fn read_cuts(
    session: &dyn Session,
    tenant: &TenantId,
    meter: MeterNo,
    range: Window,
) -> Done<Vec<(Timestamp, CutState)>> {
    let sql = "-- read_cuts
        SELECT window_start, count, total, covered, planned, revision, shadow,
            trial, outside FROM cuts
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND window_start >= $3 AND window_start < $4";
    session.read_all(sql, values![tenant, meter, range.start, range.end], |row| {
        Ok((row.get("cuts.window_start")?, decode_state(row)?))
    })
}

/// Locks the windows that were cut before, and reads where they stand.
pub fn lock_states(session: &dyn Session, windows: &BTreeSet<WindowKey>) -> Done<States> {
    let sql = "-- lock_states
        WITH given (number, meter, starts_at) AS (VALUES ($::int4, $::int2, $::timestamptz), ...)
        SELECT tenant_no, meter_no, window_start, count, total, covered, planned, revision, shadow,
            trial, outside
        FROM given JOIN cuts
            ON tenant_no = number AND meter_no = meter AND window_start = starts_at
        ORDER BY tenant_no, meter_no, window_start FOR UPDATE OF cuts";
    let found = session.read_batch(sql, windows.iter().map(WindowKey::values), |row| {
        Ok((WindowKey::decode(row)?, decode_state(row)?))
    })?;
    Ok(found.into_iter().collect())
}

fn decode_state(row: &Row) -> Result<CutState> {
    Ok(CutState {
        count: row.get("cuts.count")?,
        total: row.get("cuts.total")?,
        covered: row.get("cuts.covered")?,
        planned: row.get("cuts.planned")?,
        revision: row.get("cuts.revision")?,
        shadow: row.get("cuts.shadow")?,
        trial: row.get("cuts.trial")?,
        outside: row.get("cuts.outside")?,
    })
}

pub fn write_states(session: &dyn Session, states: &States, at: Timestamp) -> Done<()> {
    let sql = "-- write_states
        INSERT INTO cuts (tenant_no, meter_no, window_start, count, total, covered, planned,
            revision, shadow, trial, outside, cut_at)
        VALUES ($, $, $, $, $, $, $, $, $, $, $, $), ...
        ON CONFLICT (tenant_no, meter_no, window_start) DO UPDATE SET
            count = excluded.count, total = excluded.total, covered = excluded.covered,
            planned = excluded.planned, revision = excluded.revision, trial = excluded.trial,
            outside = excluded.outside, cut_at = excluded.cut_at";
    let rows = states.iter().map(|(key, state)| {
        let CutState { count, total, covered, planned, revision, shadow, trial, outside } = state;
        let values = values![count, total, covered, planned, revision, shadow, trial, outside, at];
        [&key.values()[..], values].concat()
    });
    session.run_batch(sql, rows)?;
    Ok(())
}

/// Writes the revisions of windows; the windows are not cut by that.
pub fn write_revisions(session: &dyn Session, states: &States) -> Done<()> {
    let sql = "-- write_revisions
        WITH given (number, meter, starts_at, revision) AS (
            VALUES ($::int4, $::int2, $::timestamptz, $::int4), ...
        )
        UPDATE cuts SET revision = given.revision FROM given
        WHERE tenant_no = number AND meter_no = meter AND window_start = starts_at";
    let rows =
        states.iter().map(|(key, state)| [&key.values()[..], values![state.revision]].concat());
    session.run_batch(sql, rows)?;
    Ok(())
}

/// Locks tenants and meters, and reads what is carried of each. The row of billed windows is the
/// lock of both, so it is written first where it is missing.
pub fn lock_remainders(
    session: &dyn Session,
    pairs: &BTreeSet<(TenantNo, MeterNo)>,
) -> Done<Remainders> {
    let sql = "-- lock_remainders
        INSERT INTO remainders (tenant_no, meter_no, shadow, remainder)
        VALUES ($, $, false, '0'), ... ON CONFLICT DO NOTHING";
    let rows = || pairs.iter().map(|(tenant, meter)| values![tenant, meter].to_vec());
    session.run_batch(sql, rows())?;
    let sql = "-- lock_remainders
        WITH given (number, meter) AS (VALUES ($::int4, $::int2), ...)
        SELECT tenant_no, meter_no, shadow, remainder
        FROM given JOIN remainders ON tenant_no = number AND meter_no = meter
        ORDER BY tenant_no, meter_no, shadow FOR UPDATE OF remainders";
    let found = session.read_batch(sql, rows(), |row| {
        let pair = (row.get("remainders.tenant_no")?, row.get("remainders.meter_no")?);
        let key = (pair.0, pair.1, row.get("remainders.shadow")?);
        Ok((key, row.get("remainders.remainder")?))
    })?;
    Ok(found.into_iter().collect())
}

pub fn write_remainders(session: &dyn Session, remainders: &Remainders) -> Done<()> {
    let sql = "-- write_remainders
        INSERT INTO remainders (tenant_no, meter_no, shadow, remainder)
        VALUES ($, $, $, $), ...
        ON CONFLICT (tenant_no, meter_no, shadow) DO UPDATE SET remainder = excluded.remainder";
    let rows = remainders
        .iter()
        .map(|((tenant, meter, shadow), left)| values![tenant, meter, shadow, left].to_vec());
    session.run_batch(sql, rows)?;
    Ok(())
}

/// The pushes of windows, oldest revision first. A window without a push is left out.
pub fn read_revisions(
    session: &dyn Session,
    windows: impl Iterator<Item = WindowKey>,
) -> Done<BTreeMap<WindowKey, PriorPushes>> {
    let sql = "-- read_revisions
        WITH given (number, meter, starts_at) AS (VALUES ($::int4, $::int2, $::timestamptz), ...)
        SELECT tenant_no, meter_no, window_start, revision, mode, quantity, value, state, class,
            attempts, stamped_at, created_at
        FROM given JOIN pushes /*+ INDEXED BY pushes_by_window */
            ON tenant_no = number AND meter_no = meter AND window_start = starts_at
        ORDER BY tenant_no, meter_no, window_start, revision";
    let mut found: BTreeMap<WindowKey, Vec<Revision>> = BTreeMap::new();
    session.read_batch(sql, windows.map(|key| key.values()), |row| {
        found.entry(WindowKey::decode(row)?).or_default().push(Revision {
            revision: row.get("pushes.revision")?,
            mode: row.get("pushes.mode")?,
            quantity: row.get("pushes.quantity")?,
            value: row.get("pushes.value")?,
            state: row.get("pushes.state")?,
            class: row.get("pushes.class")?,
            attempts: row.get("pushes.attempts")?,
            stamped_at: row.get("pushes.stamped_at")?,
            created_at: row.get("pushes.created_at")?,
        });
        Ok(())
    })?;
    Ok(found.into_iter().map(|(key, all)| (key, PriorPushes::All(all))).collect())
}

/// The last revision of windows that are billed by event, and so have as many pushes as events.
pub fn read_last_revisions(
    session: &dyn Session,
    windows: impl Iterator<Item = WindowKey>,
) -> Done<BTreeMap<WindowKey, PriorPushes>> {
    let sql = "-- read_last_revisions
        WITH given (tenant_no, meter_no, window_start) AS (
            VALUES ($::int4, $::int2, $::timestamptz), ...
        )
        SELECT tenant_no, meter_no, window_start, (
            SELECT revision FROM pushes /*+ INDEXED BY pushes_by_window */
            WHERE pushes.tenant_no = given.tenant_no AND pushes.meter_no = given.meter_no
                AND pushes.window_start = given.window_start
            ORDER BY revision DESC LIMIT 1
        ) AS revision
        FROM given";
    let found = session.read_batch(sql, windows.map(|key| key.values()), |row| {
        let last: Option<u32> = row.get("pushes.revision")?;
        Ok((WindowKey::decode(row)?, PriorPushes::Last(last.unwrap_or(0))))
    })?;
    Ok(found.into_iter().collect())
}

/// Marks events as cut without a push.
pub fn insert_carried(session: &dyn Session, carried: &[(WindowKey, EventId)]) -> Done<()> {
    let sql = "-- insert_carried
        INSERT INTO carried_events (tenant_no, meter_no, window_start, event_id)
        VALUES ($, $, $, $), ...";
    let rows = carried.iter().map(|(key, event)| [&key.values()[..], values![event]].concat());
    session.run_batch(sql, rows)?;
    Ok(())
}
