//! Adds up usage that reaches no invoice as things stand.

use super::Shared;
use super::push_rows::{get, quantity_of};
use super::rollups::sum_before;
use super::segment::overflow;
use crate::rules::ids::MeterNo;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::UnbilledSums;
use rusqlite::Connection;
use std::collections::BTreeMap;

pub fn sum_unbilled(
    shared: &Shared,
    connection: &Connection,
    meters: &[(MeterNo, Timestamp)],
) -> Result<UnbilledSums> {
    // It begins the transaction that the others read in.
    let before_from = sum_before(shared, connection, meters)?;
    let shadow = sum(
        connection,
        "-- sum_unbilled
         SELECT meter_no, total AS quantity FROM cuts INDEXED BY cuts_shadow WHERE shadow = 1",
    )?;
    let held = sum(
        connection,
        "-- sum_unbilled
         SELECT meter_no, quantity FROM pushes
         JOIN (SELECT tenant_no AS held_no, MIN(held_from) AS held_from FROM holds
               GROUP BY tenant_no)
             ON held_no = pushes.tenant_no AND held_from <= window_start
         WHERE state = 'observed' AND NOT shadow",
    )?;
    Ok(UnbilledSums { shadow, before_from, held })
}

fn sum(connection: &Connection, sql: &str) -> Result<BTreeMap<MeterNo, Quantity>> {
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    let mut sums: BTreeMap<MeterNo, Quantity> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let sum = sums.entry(MeterNo(get(row, "meter_no")?)).or_default();
        *sum = sum.checked_add(quantity_of(row, "quantity")?).ok_or_else(overflow)?;
    }
    Ok(sums)
}
