//! The groups of a tenant's meter on a day, in their table; see [`crate::store::groups`].
//!
//! Invariant: written in the commit that accepts the first event of a group, so a crash leaves both
//! or neither.

use super::sql_error;
use crate::store::Result;
use crate::store::groups::{GroupDay, KnownGroups, NewGroups};
use rusqlite::{Connection, params};

/// Makes the groups of a day known.
pub fn load_day(connection: &Connection, day: GroupDay, known: &mut KnownGroups) -> Result<()> {
    let groups: Vec<i64> = connection
        .prepare_cached(
            "-- load_day
             SELECT grp FROM day_groups WHERE tenant_no = ? AND meter_no = ? AND day = ?",
        )
        .and_then(|mut select| {
            let key = params![day.tenant.0, day.meter.0, day.day];
            select.query_map(key, |row| row.get(0))?.collect()
        })
        .map_err(sql_error)?;
    known.load(day, groups);
    Ok(())
}

pub fn insert_groups(connection: &Connection, added: &NewGroups) -> Result<()> {
    if added.is_empty() {
        return Ok(());
    }
    let mut insert = connection
        .prepare_cached(
            "-- insert_groups
             INSERT OR IGNORE INTO day_groups (tenant_no, meter_no, day, grp) VALUES (?, ?, ?, ?)",
        )
        .map_err(sql_error)?;
    for (day, group) in added {
        insert.execute(params![day.tenant.0, day.meter.0, day.day, group]).map_err(sql_error)?;
    }
    Ok(())
}
