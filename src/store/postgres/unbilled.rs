//! Adds up usage that reaches no invoice as things stand.

use super::connection::{Connector, Snapshot};
use super::numeric::SqlQuantity;
use super::scalars::{SqlTimestamp, column, meter_number, read_meter_no};
use super::session::read_snapshot;
use crate::rules::ids::MeterNo;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::UnbilledSums;
use crate::store::sql::{Session, sum_held, sum_outside, sum_shadow};
use deadpool_postgres::Object;
use std::collections::BTreeMap;
use tokio_postgres::Row;

pub async fn sum_unbilled(
    client: Object,
    connector: &Connector,
    meters: &[(MeterNo, Timestamp)],
) -> Result<UnbilledSums> {
    let snapshot = Snapshot::begin(client).await?;
    // The second element of a group says whether it is a trial.
    let sql = "-- sum_unbilled
        SELECT meter_no, sum(used) FROM (
            SELECT meter_no, sum(used) AS used FROM (
                SELECT tenant_no, meter_no, bucket_start, coalesce(grp_text, grp) AS grp,
                    coalesce(total, count) AS used
                FROM rollups
                UNION ALL
                SELECT tenant_no, meter_no, bucket_start, grp, coalesce(total, count)
                FROM rollup_deltas
            ) AS parts
            JOIN unnest($1::int2[], $2::timestamptz[]) AS given (meter, billed_from)
                ON meter = meter_no AND bucket_start < billed_from
            WHERE CASE WHEN grp = '' THEN true ELSE (grp::json ->> 1) <> 'true' END
            GROUP BY tenant_no, meter_no
        ) AS of_tenants
        GROUP BY meter_no";
    let numbers: Vec<i16> = meters.iter().map(|(meter, _)| meter_number(*meter)).collect();
    let moments: Vec<SqlTimestamp> = meters.iter().map(|(_, from)| SqlTimestamp(*from)).collect();
    let before_from = snapshot.query(sql, &[&numbers, &moments]).await?;
    let mut before_from = read_sums(&before_from)?;
    before_from.retain(|_, sum| *sum != Quantity::ZERO);
    let sum = |session: &dyn Session| {
        Ok((sum_shadow(session)?, sum_held(session)?, sum_outside(session)?))
    };
    let (shadow, held, outside) = read_snapshot(snapshot, connector, sum).await?;
    Ok(UnbilledSums { shadow, before_from, held, outside })
}

fn read_sums(rows: &[Row]) -> Result<BTreeMap<MeterNo, Quantity>> {
    let read = |row: &Row| {
        let SqlQuantity(sum) = column(row, 1)?;
        Ok((read_meter_no(column(row, 0)?)?, sum))
    };
    rows.iter().map(read).collect()
}
