//! Adds up usage that reaches no invoice as things stand. Nothing is written here.

use super::{Done, Session};
use crate::rules::ids::MeterNo;
use crate::rules::quantity::Quantity;
use std::collections::BTreeMap;

/// Quantities by meter.
type Quantities = BTreeMap<MeterNo, Quantity>;

/// What was counted in shadow mode.
pub fn sum_shadow(session: &dyn Session) -> Done<Quantities> {
    let sql = "-- sum_shadow
        SELECT meter_no AS number, 0 AS pushes, total AS quantity
        FROM cuts /*+ INDEXED BY cuts_shadow */ WHERE shadow";
    sum(session, sql)
}

/// What was used in no subscription, and is held.
pub fn sum_outside(session: &dyn Session) -> Done<Quantities> {
    let sql = "-- sum_outside
        SELECT meter_no AS number, 0 AS pushes, outside AS quantity
        FROM cuts /*+ INDEXED BY cuts_outside */ WHERE outside <> '0'";
    sum(session, sql)
}

/// What a saga holds back.
pub fn sum_held(session: &dyn Session) -> Done<Quantities> {
    let sql = "-- sum_held
        SELECT meter_no AS number, 1 AS pushes, quantity FROM pushes
        JOIN (SELECT tenant_no AS held_no, min(held_from) AS held_from FROM holds
              GROUP BY tenant_no) AS held
            ON held_no = pushes.tenant_no AND held_from <= window_start
        WHERE state = 'observed' AND NOT shadow";
    sum(session, sql)
}

fn sum(session: &dyn Session, sql: &str) -> Done<Quantities> {
    let sums = session.sum_by_meter(sql)?.into_iter();
    Ok(sums.map(|(meter, sum)| (meter, sum.quantity)).collect())
}
