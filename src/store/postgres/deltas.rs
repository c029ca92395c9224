//! What a batch adds to totals and counters: rows that are only inserted, in the transaction that
//! counts the batch's events, and folded later (`fold`).
//!
//! No row is changed on the way in. So batches of several servers never wait for each other's
//! totals, and a snapshot that somebody holds makes nothing slower.

use super::copy::CopyRows;
use super::counters::hour_of;
use super::failure::Failure;
use super::judgement::Accepted;
use super::rollups::{Totals, fold_event};
use super::scalars::{NO_TENANT, meter_number, tenant_number, write_count};
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::rules::rollup::{Accumulator, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Tally;
use crate::store::Result;
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Statement;

/// Rows of `rollup_deltas` that the accepted events of a batch make.
pub fn encode_totals(
    accepted: &[Accepted<'_>],
    catalog: &Catalog,
    batch_no: i64,
) -> Result<CopyRows> {
    let mut totals = Totals::with_capacity(accepted.len());
    for Accepted { tenant, event, .. } in accepted {
        fold_event(&mut totals, *tenant, event, catalog)?;
    }
    let mut sorted: Vec<(RollupKey, Rollup)> = totals.into_iter().collect();
    sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut rows = CopyRows::with_capacity(sorted.len(), 120);
    for (key, rollup) in &sorted {
        rows.row(10);
        rows.int8(batch_no);
        rows.instant(key.bucket_start);
        rows.int8(write_count(rollup.count)?);
        if let Accumulator::Latest { at, .. } = &rollup.value {
            rows.instant(*at);
        } else {
            rows.null();
        }
        rows.int4(tenant_number(key.tenant));
        rows.int2(meter_number(key.meter));
        match &rollup.value {
            Accumulator::Sum(total) | Accumulator::Min(total) | Accumulator::Max(total) => {
                rows.quantity(*total)?;
            }
            Accumulator::Latest { quantity, .. } => rows.quantity(*quantity)?,
            Accumulator::Count | Accumulator::Unique(_) => rows.null(),
        }
        rows.text(key.group.as_text())?;
        if let Accumulator::Latest { id, .. } = &rollup.value {
            rows.text(id.as_str())?;
        } else {
            rows.null();
        }
        if let Accumulator::Unique(values) = &rollup.value {
            rows.texts(values.iter().map(AsRef::as_ref))?;
        } else {
            rows.null();
        }
    }
    Ok(rows)
}

/// Rows of `counter_deltas`.
pub fn encode_tallies(
    tallies: &BTreeMap<Option<TenantNo>, Tally>,
    received_at: Timestamp,
    batch_no: i64,
) -> Result<CopyRows> {
    let mut rows = CopyRows::with_capacity(tallies.len(), 100);
    let hour = hour_of(received_at);
    for (tenant, tally) in tallies {
        rows.row(8);
        rows.int8(batch_no);
        rows.instant(hour);
        for count in
            [tally.accepted, tally.duplicates, tally.conflicts, tally.quarantined, tally.rejected]
        {
            rows.int8(write_count(count)?);
        }
        rows.int4(tenant.map_or(NO_TENANT, tenant_number));
    }
    Ok(rows)
}

/// The COPY of each of the two tables.
pub async fn prepare(client: &ClientWrapper) -> std::result::Result<[Statement; 2], Failure> {
    let totals = "-- insert_rollup_deltas
        COPY rollup_deltas (batch_no, bucket_start, count, latest_at, tenant_no, meter_no, total,
            grp, latest_id, found)
        FROM STDIN (FORMAT binary)";
    let tallies = "-- insert_counter_deltas
        COPY counter_deltas (batch_no, hour, accepted, duplicates, conflicts, quarantined, rejected,
            tenant_no)
        FROM STDIN (FORMAT binary)";
    Ok([client.prepare_cached(totals).await?, client.prepare_cached(tallies).await?])
}
