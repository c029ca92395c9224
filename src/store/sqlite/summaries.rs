//! The provider's totals as they were read.
//!
//! Invariant: the count of readings grows only while the value stays, and only by readings that
//! are at least a second apart; an older reading never takes the place of a newer one. A crash
//! leaves all readings of a call, or none; they are then read again.

use super::push_rows::{get, moment, quantity_of};
use super::statements::Statements;
use super::{Shared, corrupt};
use crate::rules::drift::Summary;
use crate::rules::ids::{CustomerId, MeterNo, TenantNo};
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use crate::rules::window::Window;
use crate::store::Result;
use crate::store::reconciliation::SummaryReading;
use rusqlite::{Connection, params};

pub fn record_summaries(
    shared: &Shared,
    connection: &Connection,
    readings: &[SummaryReading],
    read_at: Timestamp,
) -> Result<()> {
    for reading in readings {
        let tenant = shared.read_memory().tenants.find(&reading.tenant);
        let tenant = tenant.ok_or_else(|| corrupt("tenants row of a summary"))?;
        record_summary(connection, tenant, reading, read_at)?;
    }
    Ok(())
}

fn record_summary(
    connection: &Connection,
    tenant: TenantNo,
    reading: &SummaryReading,
    read_at: Timestamp,
) -> Result<()> {
    connection.run(
        "-- record_summary
         INSERT INTO summaries (tenant_no, meter_no, window_start, length_seconds, value,
                                read_at, since, reads, customer)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, 1, ?8)
         ON CONFLICT DO UPDATE SET
             read_before = CASE WHEN value = excluded.value THEN read_at END,
             reads = CASE WHEN value = excluded.value THEN reads + 1 ELSE 1 END,
             since = CASE WHEN value = excluded.value THEN since ELSE excluded.since END,
             value = excluded.value, read_at = excluded.read_at
         WHERE excluded.read_at >= read_at
             AND (value <> excluded.value OR excluded.read_at >= read_at + ?7)",
        params![
            tenant.0,
            reading.meter.0,
            reading.window.start.micros(),
            reading.window.micros() / MICROS_PER_SECOND,
            reading.value.to_string(),
            read_at.micros(),
            MICROS_PER_SECOND,
            reading.customer.as_str()
        ],
    )?;
    Ok(())
}

pub fn read_summaries(
    connection: &Connection,
    (tenant, meter): (TenantNo, MeterNo),
    customer: &CustomerId,
    range: Window,
    length_micros: i64,
) -> Result<Vec<Summary>> {
    let length_seconds = length_micros / MICROS_PER_SECOND;
    let (from, to) = (range.start.micros(), range.end.micros());
    let asked = params![tenant.0, meter.0, length_seconds, from, to, customer.as_str()];
    connection.read_all(
        "-- read_summaries
         SELECT window_start, value, read_at, read_before, since, reads FROM summaries
         WHERE tenant_no = ? AND meter_no = ? AND length_seconds = ?
             AND window_start >= ? AND window_start < ? AND customer = ?
         ORDER BY window_start",
        asked,
        |row| {
            let start = moment(row, "window_start")?;
            Ok(Summary {
                window: Window { start, end: start.saturating_add_micros(length_micros) },
                value: quantity_of(row, "value")?,
                read_at: moment(row, "read_at")?,
                read_before: get::<Option<i64>>(row, "read_before")?.map(Timestamp::from_micros),
                since: moment(row, "since")?,
                reads: get(row, "reads")?,
            })
        },
    )
}

/// The customer's total of one window.
pub fn find_summary(
    connection: &Connection,
    owner: (TenantNo, MeterNo),
    customer: &CustomerId,
    window: Window,
) -> Result<Option<Summary>> {
    let only = Window { start: window.start, end: window.start.saturating_add_micros(1) };
    Ok(read_summaries(connection, owner, customer, only, window.micros())?.pop())
}
