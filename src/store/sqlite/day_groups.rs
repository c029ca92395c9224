//! The groups of a tenant's meter on a day, in their table; see [`crate::store::groups`].
//!
//! Invariant: written in the commit that accepts the first event of a group, so a crash leaves both
//! or neither.

use super::statements::Statements;
use crate::store::Result;
use crate::store::groups::{GroupDay, KnownGroups, NewGroups};
use rusqlite::{Connection, params};

/// Makes the groups of a day known.
pub fn load_day(connection: &Connection, day: GroupDay, known: &mut KnownGroups) -> Result<()> {
    let key = params![day.tenant.0, day.meter.0, day.day];
    let groups: Vec<i64> = connection.read_all(
        "-- load_day
         SELECT grp FROM day_groups WHERE tenant_no = ? AND meter_no = ? AND day = ?",
        key,
        |row| Ok(row.get(0)?),
    )?;
    known.load(day, groups);
    Ok(())
}

pub fn insert_groups(connection: &Connection, added: &NewGroups) -> Result<()> {
    if added.is_empty() {
        return Ok(());
    }
    let mut insert = connection.prepare_cached(
        "-- insert_groups
         INSERT OR IGNORE INTO day_groups (tenant_no, meter_no, day, grp) VALUES (?, ?, ?, ?)",
    )?;
    for (day, group) in added {
        insert.execute(params![day.tenant.0, day.meter.0, day.day, group])?;
    }
    Ok(())
}
