//! Summaries: the provider's totals as they were last read.
//!
//! Invariant: a total's count of readings grows only while its value stays, and at most once a
//! second. A reading that is older than the one that is kept changes nothing, so servers that read
//! at once end alike. Rows are written in the order of their key, so nobody waits in a circle.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! has the same moment, and counts once.

use super::{Done, Session, values};
use crate::rules::drift::Summary;
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use crate::rules::window::Window;
use crate::store::reconciliation::SummaryReading;
use std::collections::BTreeMap;

/// Tenant, meter, length in seconds and start of a window, and the customer.
type SummaryKey<'r> = (&'r TenantId, MeterNo, i64, Timestamp, &'r CustomerId);

pub fn record_summaries(
    session: &dyn Session,
    readings: &[SummaryReading],
    read_at: Timestamp,
) -> Done<()> {
    let mut sorted: BTreeMap<SummaryKey<'_>, Quantity> = BTreeMap::new();
    for SummaryReading { tenant, meter, customer, window, value } in readings {
        let seconds = window.micros() / MICROS_PER_SECOND;
        sorted.insert((tenant, *meter, seconds, window.start, customer), *value);
    }
    // A repetition within a second is left alone altogether: were its moment kept, readings that
    // follow each other quickly would never count. Values are equal if their texts are.
    let sql = "-- record_summaries
        WITH given (tenant, meter_no, length_seconds, window_start, customer, value) AS (
            VALUES ($::text, $::int2, $::int8, $::timestamptz, $::text, $::numeric), ...
        )
        INSERT INTO summaries AS standing
            (tenant_no, meter_no, length_seconds, window_start, customer, value, read_at, since,
             reads)
        SELECT tenant_no, meter_no, length_seconds, window_start, given.customer, value,
            $1::timestamptz, $1::timestamptz, 1
        FROM given, tenants WHERE tenants.tenant = given.tenant
        ORDER BY tenant_no, meter_no, length_seconds, window_start, given.customer
        ON CONFLICT (tenant_no, meter_no, length_seconds, window_start, customer) DO UPDATE SET
            value = excluded.value,
            read_before = CASE WHEN standing.value = excluded.value THEN standing.read_at END,
            read_at = excluded.read_at,
            since = CASE WHEN standing.value = excluded.value
                THEN standing.since ELSE excluded.since END,
            reads = CASE WHEN standing.value = excluded.value THEN standing.reads + 1 ELSE 1 END
        WHERE standing.read_at
            <= CASE WHEN standing.value = excluded.value THEN $2::timestamptz ELSE $1 END";
    let a_second_ago = read_at.saturating_add_micros(-MICROS_PER_SECOND);
    let rows = sorted.into_iter().map(|((tenant, meter, seconds, start, customer), value)| {
        values![tenant, meter, seconds, start, customer, value].to_vec()
    });
    session.run_batch_with(sql, values![read_at, a_second_ago], rows)?;
    Ok(())
}

/// Totals of the customer, of windows that start in `range` and are `length_micros` long, in their
/// order.
pub fn read_summaries(
    session: &dyn Session,
    (tenant, customer): (&TenantId, &CustomerId),
    meter: MeterNo,
    range: Window,
    length_micros: i64,
) -> Done<Vec<Summary>> {
    let sql = "-- read_summaries
        SELECT window_start, value, read_at, read_before, since, reads FROM summaries
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND length_seconds = $3 AND window_start >= $4 AND window_start < $5
            AND customer = $6
        ORDER BY window_start";
    let seconds = length_micros / MICROS_PER_SECOND;
    let values = values![tenant, meter, seconds, range.start, range.end, customer];
    session.read_all(sql, values, |row| {
        let start: Timestamp = row.get("summaries.window_start")?;
        Ok(Summary {
            window: Window { start, end: start.saturating_add_micros(length_micros) },
            value: row.get("summaries.value")?,
            read_at: row.get("summaries.read_at")?,
            read_before: row.get("summaries.read_before")?,
            since: row.get("summaries.since")?,
            reads: row.get("summaries.reads")?,
        })
    })
}

/// The customer's total of one window.
pub fn find_summary(
    session: &dyn Session,
    whose: (&TenantId, &CustomerId),
    meter: MeterNo,
    window: Window,
) -> Done<Option<Summary>> {
    let only = Window::moment(window.start);
    Ok(read_summaries(session, whose, meter, only, window.micros())?.pop())
}
