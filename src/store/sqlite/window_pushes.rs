//! Pushes by window: as a pass compares them, and whose a window is.
//!
//! Invariant: each answer is of one moment, since it is one query, and looks only at rows that an
//! index names. Nothing is written here, so a crash leaves nothing.

use super::push_rows::{class_of, get, moment, quantity_of, state_of};
use super::statements::Statements;
use super::{corrupt, damaged};
use crate::rules::billing::Mode;
use crate::rules::drift::WindowPush;
use crate::rules::ids::{CustomerId, MeterNo, TenantNo};
use crate::rules::timestamp::Timestamp;
use crate::rules::window::Window;
use crate::store::Result;
use rusqlite::{Connection, Row, params};

pub fn read_window_pushes(
    connection: &Connection,
    (tenant, meter): (TenantNo, MeterNo),
    range: Window,
) -> Result<Vec<WindowPush>> {
    let asked = params![tenant.0, meter.0, range.start.micros(), range.end.micros()];
    connection.read_all(
        "-- read_window_pushes
         SELECT push_no, window_start, window_end, revision, shadow, mode, quantity, value,
                stamped_at, state, class, customer, attempts, state_at
         FROM pushes INDEXED BY pushes_by_window
         WHERE tenant_no = ? AND meter_no = ? AND window_start >= ? AND window_start < ?
         ORDER BY window_start, revision",
        asked,
        decode_window_push,
    )
}

fn decode_window_push(row: &Row<'_>) -> Result<WindowPush> {
    let mode: String = get(row, "mode")?;
    let customer: Option<String> = get(row, "customer")?;
    let customer = customer.as_deref().map(CustomerId::parse).transpose();
    Ok(WindowPush {
        number: get(row, "push_no")?,
        window: Window { start: moment(row, "window_start")?, end: moment(row, "window_end")? },
        revision: get(row, "revision")?,
        shadow: get(row, "shadow")?,
        mode: Mode::from_name(&mode).ok_or_else(|| damaged("pushes.mode", &mode))?,
        quantity: quantity_of(row, "quantity")?,
        value: quantity_of(row, "value")?,
        stamped_at: moment(row, "stamped_at")?,
        state: state_of(row)?,
        class: class_of(row)?,
        customer: customer.map_err(|_| corrupt("pushes.customer"))?,
        attempts: get(row, "attempts")?,
        state_at: moment(row, "state_at")?,
    })
}

/// The customer that the window of a push belongs to, as `rules::customer::customer_of_window` has
/// it; the first push of the window mostly tells.
pub fn customer_of_window(
    connection: &Connection,
    (tenant, meter): (TenantNo, MeterNo),
    window_start: Timestamp,
) -> Result<Option<CustomerId>> {
    let asked = params![tenant.0, meter.0, window_start.micros()];
    let customer: Option<String> = connection.read_optional(
        "-- customer_of_window
         SELECT customer FROM pushes INDEXED BY pushes_by_window
         WHERE tenant_no = ? AND meter_no = ? AND window_start = ? AND customer IS NOT NULL
             AND (state IN ('submitted', 'confirmed', 'reconciled')
                 OR (state = 'observed' AND attempts > 0)
                 OR (state = 'dead' AND class IN ('undecidable', 'unreadable', 'absent'))
                 OR state = 'discarded'
                 OR (state = 'dead' AND class = 'refused' AND attempts > 1))
         ORDER BY revision LIMIT 1",
        asked,
        |row| Ok(row.get(0)?),
    )?;
    let customer = customer.as_deref().map(CustomerId::parse).transpose();
    customer.map_err(|_| corrupt("pushes.customer"))
}
