//! Summaries: the provider's totals as they were last read.
//!
//! Invariant: a total's count of readings grows only while its value stays, and at most once a
//! second. A reading that is older than the one that is kept changes nothing, so servers that read
//! at once end alike. Rows are written in the order of their key, so nobody waits in a circle.
//!
//! A crash leaves all of a call or nothing. A call that is repeated because its outcome was lost
//! has the same moment, and counts once.

use super::PostgresStore;
use super::declarations::Creation;
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, instant, instant_if_any, meter_number, read_ordinal, tenant_number,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::drift::Summary;
use crate::rules::ids::{CustomerId, MeterNo, TenantId};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use crate::rules::window::Window;
use crate::store::reconciliation::SummaryReading;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::types::ToSql;

/// Tenant, meter, length in seconds and start of a window, and the customer.
type SummaryKey<'r> = (i32, i16, i64, Timestamp, &'r str);

impl PostgresStore {
    pub(super) async fn keep_summaries(
        &self,
        readings: &[SummaryReading],
        read_at: Timestamp,
    ) -> Result<()> {
        let tenants = readings.iter().map(|reading| &reading.tenant);
        self.number_tenants(tenants, Creation::Never).await?;
        let mut sorted: BTreeMap<SummaryKey<'_>, Quantity> = BTreeMap::new();
        for SummaryReading { tenant, meter, customer, window, value } in readings {
            let number = self.tenant_no(tenant).ok_or_else(|| Error::Internal {
                what: format!("a total was read of tenant {tenant}, who is not known"),
            })?;
            let seconds = window.micros() / MICROS_PER_SECOND;
            let (number, meter) = (tenant_number(number), meter_number(*meter));
            let key = (number, meter, seconds, window.start, customer.as_str());
            sorted.insert(key, *value);
        }
        if sorted.is_empty() {
            return Ok(());
        }
        let sorted = &sorted;
        let work = move |client: Arc<Transaction>| async move {
            write_summaries(&client, sorted, read_at).await
        };
        self.transact(work).await
    }
}

async fn write_summaries(
    client: &ClientWrapper,
    sorted: &BTreeMap<SummaryKey<'_>, Quantity>,
    read_at: Timestamp,
) -> Done<()> {
    // A repetition within a second is left alone altogether: were its moment kept, readings that
    // follow each other quickly would never count.
    let sql = "-- write_summaries
        INSERT INTO summaries AS standing
            (tenant_no, meter_no, length_seconds, window_start, customer, value, read_at, since,
             reads)
        SELECT tenant_no, meter_no, length_seconds, window_start, customer, value, $7, $7, 1
        FROM unnest($1::int4[], $2::int2[], $3::int8[], $4::timestamptz[], $5::text[],
            $6::numeric[]) AS given
            (tenant_no, meter_no, length_seconds, window_start, customer, value)
        ORDER BY tenant_no, meter_no, length_seconds, window_start, customer
        ON CONFLICT (tenant_no, meter_no, length_seconds, window_start, customer) DO UPDATE SET
            value = excluded.value,
            read_before = CASE WHEN standing.value = excluded.value THEN standing.read_at END,
            read_at = excluded.read_at,
            since = CASE WHEN standing.value = excluded.value
                THEN standing.since ELSE excluded.since END,
            reads = CASE WHEN standing.value = excluded.value THEN standing.reads + 1 ELSE 1 END
            WHERE excluded.read_at >= standing.read_at
                + CASE WHEN standing.value = excluded.value
                    THEN interval '1 second' ELSE interval '0' END";
    let tenants: Vec<i32> = sorted.keys().map(|(tenant, ..)| *tenant).collect();
    let meters: Vec<i16> = sorted.keys().map(|(_, meter, ..)| *meter).collect();
    let lengths: Vec<i64> = sorted.keys().map(|(_, _, seconds, ..)| *seconds).collect();
    let starts: Vec<_> = sorted.keys().map(|(_, _, _, start, _)| SqlTimestamp(*start)).collect();
    let customers: Vec<&str> = sorted.keys().map(|(.., customer)| *customer).collect();
    let values: Vec<_> = sorted.values().map(|value| SqlQuantity(*value)).collect();
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&tenants, &meters, &lengths, &starts, &customers, &values, &SqlTimestamp(read_at)];
    client.run(sql, &parameters).await?;
    Ok(())
}

/// Totals of the customer, of windows that start in `range` and are `length_micros` long, in their
/// order.
pub async fn read_summaries(
    client: &ClientWrapper,
    (tenant, customer): (&TenantId, &CustomerId),
    meter: MeterNo,
    range: Window,
    length_micros: i64,
) -> Result<Vec<Summary>> {
    let sql = "-- read_summaries
        SELECT window_start, value, read_at, read_before, since, reads FROM summaries
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND meter_no = $2 AND length_seconds = $3 AND window_start >= $4 AND window_start < $5
            AND customer = $6
        ORDER BY window_start";
    let statement = client.prepare_cached(sql).await?;
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &tenant.as_str(),
        &meter_number(meter),
        &(length_micros / MICROS_PER_SECOND),
        &SqlTimestamp(range.start),
        &SqlTimestamp(range.end),
        &customer.as_str(),
    ];
    let mut summaries = Vec::new();
    for row in client.query(&statement, &parameters).await? {
        let (start, SqlQuantity(value)) = (instant(&row, 0)?, column(&row, 1)?);
        summaries.push(Summary {
            window: Window { start, end: start.saturating_add_micros(length_micros) },
            value,
            read_at: instant(&row, 2)?,
            read_before: instant_if_any(&row, 3)?,
            since: instant(&row, 4)?,
            reads: read_ordinal(column(&row, 5)?)?,
        });
    }
    Ok(summaries)
}

/// The customer's total of one window.
pub async fn find_summary(
    client: &ClientWrapper,
    whose: (&TenantId, &CustomerId),
    meter: MeterNo,
    window: Window,
) -> Result<Option<Summary>> {
    let only = Window { start: window.start, end: window.start.saturating_add_micros(1) };
    Ok(read_summaries(client, whose, meter, only, window.micros()).await?.pop())
}
