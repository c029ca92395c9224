//! Conservation counters, from their table and from the segments that are not folded yet.
//!
//! Invariant: the same as for totals: one moment, nothing missing, nothing twice.

use super::{Shared, corrupt, sql_error};
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Tally;
use crate::rules::window::Window;
use crate::store::{CounterRow, Result};
use hashbrown::HashMap;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;

/// The counters of every tenant in hours that start in `range`.
pub fn read_counters(
    shared: &Shared,
    connection: &Connection,
    range: Window,
) -> Result<Vec<CounterRow>> {
    let inside = |hour: &Timestamp| (range.start..range.end).contains(hour);
    let (snapshot, (open, names)) = shared.consistent_snapshot(connection, |memory| {
        let open: Vec<_> = memory
            .open
            .counters()
            .iter()
            .filter(|((_, hour), _)| inside(hour))
            .map(|(key, tally)| (*key, *tally))
            .collect();
        (open, memory.tenants.names())
    })?;
    let mut totals: BTreeMap<(TenantNo, Timestamp), Tally> = BTreeMap::new();
    let left = snapshot.folding.iter().flat_map(|c| c.counters_left(snapshot.steps_done));
    let left = left.filter(|((_, hour), _)| inside(hour)).copied();
    for (key, tally) in left.chain(open).chain(read_table(connection, range)?) {
        totals.entry(key).or_default().merge(&tally);
    }
    totals
        .into_iter()
        .map(|((tenant, hour), tally)| {
            Ok(CounterRow { tenant: tenant_name(tenant, &names)?, hour, tally })
        })
        .collect()
}

fn tenant_name(number: TenantNo, names: &HashMap<TenantNo, TenantId>) -> Result<Option<TenantId>> {
    if number.0 == 0 {
        return Ok(None);
    }
    names.get(&number).cloned().map(Some).ok_or_else(|| corrupt("a counter's tenant"))
}

pub fn read_table(
    connection: &Connection,
    range: Window,
) -> Result<Vec<((TenantNo, Timestamp), Tally)>> {
    connection
        .prepare_cached(
            "-- read_table
             SELECT tenant_no, hour, accepted, duplicates, conflicts, quarantined, rejected
             FROM counters WHERE hour >= ? AND hour < ?",
        )
        .and_then(|mut select| {
            select
                .query_map(params![range.start.micros(), range.end.micros()], |row| {
                    let tally = Tally {
                        accepted: row.get(2)?,
                        duplicates: row.get(3)?,
                        conflicts: row.get(4)?,
                        quarantined: row.get(5)?,
                        rejected: row.get(6)?,
                    };
                    Ok(((TenantNo(row.get(0)?), Timestamp::from_micros(row.get(1)?)), tally))
                })?
                .collect()
        })
        .map_err(sql_error)
}
