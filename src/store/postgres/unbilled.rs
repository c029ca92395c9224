//! Adds up usage that reaches no invoice as things stand.

use super::connection::Snapshot;
use super::numeric::SqlQuantity;
use super::scalars::{SqlTimestamp, column, meter_number, read_meter_no};
use crate::rules::ids::MeterNo;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::push::UnbilledSums;
use deadpool_postgres::Object;
use std::collections::BTreeMap;
use tokio_postgres::Row;

pub async fn sum_unbilled(client: Object, meters: &[(MeterNo, Timestamp)]) -> Result<UnbilledSums> {
    let snapshot = Snapshot::begin(client).await?;
    let sql = "-- sum_unbilled
        SELECT meter_no, sum(total) FROM cuts WHERE shadow GROUP BY meter_no";
    let shadow = snapshot.query(sql, &[]).await?;
    let sql = "-- sum_unbilled
        SELECT p.meter_no, sum(p.quantity) FROM pushes p
        JOIN (SELECT tenant_no, min(held_from) AS held_from FROM holds GROUP BY tenant_no) h
            ON h.tenant_no = p.tenant_no AND h.held_from <= p.window_start
        WHERE p.state = 'observed' AND NOT p.shadow GROUP BY p.meter_no";
    let held = snapshot.query(sql, &[]).await?;
    // The second element of a group says whether it is a trial.
    let sql = "-- sum_unbilled
        SELECT r.meter_no, sum(coalesce(r.total, r.count)) FROM rollups r
        JOIN unnest($1::int2[], $2::timestamptz[]) AS given (meter_no, billed_from)
            ON given.meter_no = r.meter_no AND r.bucket_start < given.billed_from
        WHERE CASE WHEN r.grp = '' THEN true
            ELSE (coalesce(r.grp_text, r.grp)::json ->> 1) <> 'true' END
        GROUP BY r.meter_no";
    let numbers: Vec<i16> = meters.iter().map(|(meter, _)| meter_number(*meter)).collect();
    let moments: Vec<SqlTimestamp> = meters.iter().map(|(_, from)| SqlTimestamp(*from)).collect();
    let before_from = snapshot.query(sql, &[&numbers, &moments]).await?;
    snapshot.end().await?;
    let mut before_from = read_sums(&before_from)?;
    before_from.retain(|_, sum| *sum != Quantity::ZERO);
    Ok(UnbilledSums { shadow: read_sums(&shadow)?, before_from, held: read_sums(&held)? })
}

fn read_sums(rows: &[Row]) -> Result<BTreeMap<MeterNo, Quantity>> {
    let read = |row: &Row| {
        let SqlQuantity(sum) = column(row, 1)?;
        Ok((read_meter_no(column(row, 0)?)?, sum))
    };
    rows.iter().map(read).collect()
}
