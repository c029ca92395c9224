//! Conservation counters: events received from a tenant in an hour, by verdict.
//!
//! Invariant: they change only in the transaction that gives the verdicts they count, so received
//! is always the sum of the five outcomes and `accepted` is always the number of events.

use super::failure::Failure;
use super::scalars::{
    NO_TENANT, SqlTimestamp, column, damaged, instant, read_count, tenant_number, write_count,
    write_limit,
};
use super::statements::Statements;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::rules::window::Window;
use crate::store::{CounterQuery, CounterRow, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Adds the tallies to the hour they were received in, inside the caller's transaction. The map
/// keeps the order of the primary key, so that two writers never wait in a circle.
pub async fn record_counters(
    client: &ClientWrapper,
    tallies: &BTreeMap<Option<TenantNo>, Tally>,
    received_at: Timestamp,
) -> std::result::Result<(), Failure> {
    if tallies.is_empty() {
        return Ok(());
    }
    let tenants: Vec<i32> =
        tallies.keys().map(|tenant| tenant.map_or(NO_TENANT, tenant_number)).collect();
    let count = |of: fn(&Tally) -> u64| -> Result<Vec<i64>> {
        tallies.values().map(|tally| write_count(of(tally))).collect()
    };
    let (accepted, duplicates) = (count(|t| t.accepted)?, count(|t| t.duplicates)?);
    let (conflicts, quarantined) = (count(|t| t.conflicts)?, count(|t| t.quarantined)?);
    let rejected = count(|t| t.rejected)?;
    let hour_start = received_at.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR;
    let hour = SqlTimestamp(Timestamp::from_micros(hour_start));
    let sql = "-- record_counters
        INSERT INTO counters AS standing
            (tenant_no, accepted, duplicates, conflicts, quarantined, rejected, hour)
        SELECT given.*, $7::timestamptz FROM unnest($1::int4[], $2::int8[], $3::int8[],
            $4::int8[], $5::int8[], $6::int8[]) AS given
        ON CONFLICT (hour, tenant_no) DO UPDATE SET
            accepted = standing.accepted + excluded.accepted,
            duplicates = standing.duplicates + excluded.duplicates,
            conflicts = standing.conflicts + excluded.conflicts,
            quarantined = standing.quarantined + excluded.quarantined,
            rejected = standing.rejected + excluded.rejected";
    client
        .run(sql, &[&tenants, &accepted, &duplicates, &conflicts, &quarantined, &rejected, &hour])
        .await?;
    Ok(())
}

pub async fn read_counters(client: &ClientWrapper, range: Window) -> Result<Vec<CounterRow>> {
    let sql = "-- read_counters
        SELECT t.tenant, c.hour, c.accepted, c.duplicates, c.conflicts, c.quarantined, c.rejected
        FROM counters c LEFT JOIN tenants t USING (tenant_no)
        WHERE c.hour >= $1 AND c.hour < $2";
    let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
    let rows = client.read_all(sql, &[&start, &end]).await?;
    rows.iter().map(counter_row).collect()
}

/// A page of counters, by hour and then by the tenant's number.
pub async fn list_counters(
    client: &ClientWrapper,
    query: &CounterQuery,
) -> Result<Vec<CounterRow>> {
    // A tenant that is not known has no rows, and its hour is done.
    let all = "-- list_counters
        SELECT t.tenant, c.hour, c.accepted, c.duplicates, c.conflicts, c.quarantined, c.rejected
        FROM counters c LEFT JOIN tenants t USING (tenant_no)
        WHERE c.hour >= $1 AND c.hour < $2
            AND (c.hour, c.tenant_no) > ($3::timestamptz, CASE WHEN $4::text IS NULL THEN $5::int4
                ELSE COALESCE((SELECT tenant_no FROM tenants WHERE tenant = $4), 2147483647) END)
        ORDER BY c.hour, c.tenant_no LIMIT $6";
    // The table is in the order of hours: one tenant's row is looked up in each of them.
    let of_tenant = "-- list_counters
        SELECT t.tenant, c.hour, c.accepted, c.duplicates, c.conflicts, c.quarantined, c.rejected
        FROM tenants t
        CROSS JOIN generate_series(
            date_trunc('hour', $1::timestamptz, 'UTC'), $2::timestamptz, '1 hour') AS h (hour)
        JOIN counters c ON c.hour = h.hour AND c.tenant_no = t.tenant_no
        WHERE t.tenant = $3 AND c.hour >= $1 AND c.hour < $2
        ORDER BY c.hour LIMIT $4";
    let Window { mut start, end } = query.filter.range;
    let after = query.after.as_ref().filter(|(hour, _)| *hour >= start);
    let (end, limit) = (SqlTimestamp(end), write_limit(query.limit));
    let rows = match &query.filter.tenant {
        None => {
            let (hour, name) = after.map_or((start, None), |(hour, name)| (*hour, name.as_ref()));
            // No tenant at all is number 0, and its row comes first.
            let none = if after.is_some() { NO_TENANT } else { NO_TENANT - 1 };
            let name = name.map(TenantId::as_str);
            let (start, hour) = (SqlTimestamp(start), SqlTimestamp(hour));
            client.read_all(all, &[&start, &end, &hour, &name, &none, &limit]).await?
        }
        Some(tenant) => {
            if let Some((hour, _)) = after {
                start = hour.saturating_add_micros(1);
            }
            let values: [&(dyn ToSql + Sync); 4] =
                [&SqlTimestamp(start), &end, &tenant.as_str(), &limit];
            client.read_all(of_tenant, &values).await?
        }
    };
    rows.iter().map(counter_row).collect()
}

fn counter_row(row: &Row) -> Result<CounterRow> {
    let tenant: Option<String> = column(row, 0)?;
    let tenant = tenant
        .map(|tenant| TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant)));
    let count = |place: usize| read_count(column(row, place)?);
    Ok(CounterRow {
        tenant: tenant.transpose()?,
        hour: instant(row, 1)?,
        tally: Tally {
            accepted: count(2)?,
            duplicates: count(3)?,
            conflicts: count(4)?,
            quarantined: count(5)?,
            rejected: count(6)?,
        },
    })
}
