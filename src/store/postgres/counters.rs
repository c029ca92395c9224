//! Conservation counters: events received from a tenant in an hour, by verdict.
//!
//! Invariant: what a batch adds is inserted into `counter_deltas` in the transaction that gives the
//! verdicts it counts, and folded into `counters` later (`fold`). Both are read in one statement.
//! So received is always the sum of the five outcomes, and `accepted` the number of events. How
//! many of those a person admitted is written to `counters` at once: admissions are rare.

use super::failure::Failure;
use super::scalars::{
    NO_TENANT, SqlTimestamp, column, damaged, instant, read_count, write_count, write_limit,
};
use super::statements::Statements;
use crate::rules::ids::TenantId;
use crate::rules::timestamp::{MICROS_PER_HOUR, Timestamp};
use crate::rules::verdict::Tally;
use crate::rules::window::Window;
use crate::store::sql::{Admissions, Done, Session, values};
use crate::store::{CounterQuery, CounterRow, Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Tallies by hour and tenant, in the order of the primary key.
pub type Tallies = BTreeMap<(Timestamp, i32), Tally>;

/// The hour that a moment lies in.
pub fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros().div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR)
}

/// Adds tallies to those that are stored, inside the caller's transaction.
pub async fn add_tallies(
    client: &ClientWrapper,
    tallies: &Tallies,
) -> std::result::Result<(), Failure> {
    if tallies.is_empty() {
        return Ok(());
    }
    let hours: Vec<SqlTimestamp> = tallies.keys().map(|(hour, _)| SqlTimestamp(*hour)).collect();
    let tenants: Vec<i32> = tallies.keys().map(|(_, tenant)| *tenant).collect();
    let count = |of: fn(&Tally) -> u64| -> Result<Vec<i64>> {
        tallies.values().map(|tally| write_count(of(tally))).collect()
    };
    let (accepted, duplicates) = (count(|t| t.accepted)?, count(|t| t.duplicates)?);
    let (conflicts, quarantined) = (count(|t| t.conflicts)?, count(|t| t.quarantined)?);
    let rejected = count(|t| t.rejected)?;
    let sql = "-- add_tallies
        INSERT INTO counters AS standing
            (hour, tenant_no, accepted, duplicates, conflicts, quarantined, rejected)
        SELECT * FROM unnest($1::timestamptz[], $2::int4[], $3::int8[], $4::int8[], $5::int8[],
            $6::int8[], $7::int8[])
        ON CONFLICT (hour, tenant_no) DO UPDATE SET
            accepted = standing.accepted + excluded.accepted,
            duplicates = standing.duplicates + excluded.duplicates,
            conflicts = standing.conflicts + excluded.conflicts,
            quarantined = standing.quarantined + excluded.quarantined,
            rejected = standing.rejected + excluded.rejected";
    let values: [&(dyn ToSql + Sync); 7] =
        [&hours, &tenants, &accepted, &duplicates, &conflicts, &quarantined, &rejected];
    client.run(sql, &values).await?;
    Ok(())
}

/// Counts events that were admitted, among those that the transaction counts as accepted.
pub fn add_admitted(session: &dyn Session, admissions: &Admissions, admitted: u64) -> Done<()> {
    let sql = "-- add_admitted
        INSERT INTO counters AS standing
            (hour, tenant_no, accepted, duplicates, conflicts, quarantined, rejected, admitted)
        VALUES ($1, $2, 0, 0, 0, 0, 0, $3)
        ON CONFLICT (hour, tenant_no) DO UPDATE SET
            admitted = standing.admitted + excluded.admitted";
    let missing = || Error::Internal { what: "an admission has no tenant".into() };
    let tenant = session.find_tenant(&admissions.tenant)?.ok_or_else(missing)?;
    session.run(sql, values![hour_of(admissions.decision.at), tenant, admitted])?;
    Ok(())
}

/// Counters and what is not folded into them yet, each row once, as `c`; the conditions that
/// `rows` names hold for both.
macro_rules! counters {
    ($rows:literal) => {
        concat!(
            "(SELECT tenant_no, hour, sum(accepted)::int8 AS accepted,
                sum(duplicates)::int8 AS duplicates, sum(conflicts)::int8 AS conflicts,
                sum(quarantined)::int8 AS quarantined, sum(rejected)::int8 AS rejected,
                sum(admitted)::int8 AS admitted
            FROM (
                SELECT tenant_no, hour, accepted, duplicates, conflicts, quarantined, rejected,
                    admitted
                FROM counters WHERE ",
            $rows,
            " UNION ALL
                SELECT tenant_no, hour, accepted, duplicates, conflicts, quarantined, rejected,
                    0::int8
                FROM counter_deltas WHERE ",
            $rows,
            ") AS parts
            GROUP BY tenant_no, hour) AS c"
        )
    };
}

pub async fn read_counters(client: &ClientWrapper, range: Window) -> Result<Vec<CounterRow>> {
    let sql = concat!(
        "-- read_counters
        SELECT t.tenant, c.hour, c.accepted, c.duplicates, c.conflicts, c.quarantined, c.rejected,
            c.admitted
        FROM ",
        counters!("hour >= $1 AND hour < $2"),
        " LEFT JOIN tenants t USING (tenant_no)"
    );
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
    let all = concat!(
        "-- list_counters
        SELECT t.tenant, c.hour, c.accepted, c.duplicates, c.conflicts, c.quarantined, c.rejected,
            c.admitted
        FROM ",
        counters!(
            "hour >= $1 AND hour < $2 AND (hour, tenant_no) > ($3::timestamptz,
                CASE WHEN $4::text IS NULL THEN $5::int4
                ELSE COALESCE((SELECT tenant_no FROM tenants WHERE tenant = $4), 2147483647) END)"
        ),
        " LEFT JOIN tenants t USING (tenant_no)
        ORDER BY c.hour, c.tenant_no LIMIT $6"
    );
    // The table is in the order of hours: one tenant's row is looked up in each of them.
    let of_tenant = concat!(
        "-- list_counters
        SELECT t.tenant, c.hour, c.accepted, c.duplicates, c.conflicts, c.quarantined, c.rejected,
            c.admitted
        FROM ",
        counters!(
            "tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $3)
                AND hour = ANY (ARRAY(SELECT generate_series(
                    date_trunc('hour', $1::timestamptz, 'UTC'), $2::timestamptz, '1 hour')))
                AND hour >= $1 AND hour < $2"
        ),
        " JOIN tenants t USING (tenant_no)
        ORDER BY c.hour LIMIT $4"
    );
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
            admitted: count(7)?,
        },
    })
}
