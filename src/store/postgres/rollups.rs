//! Totals: what a batch adds to them, and how they are read.
//!
//! Invariant: totals change only in the transaction that counts the events they hold, by exact
//! addition in the database. Rows are always written in the order of [`RollupKey`], by every
//! server, so that two transactions never wait for each other in a circle; each row belongs to one
//! meter and so to one of the statements, which always follow each other in the same order.

use super::judgement::{Accepted, meter_of};
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_count, tenant_number,
    write_count, write_limit,
};
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::ids::{EventId, MeterNo, TenantId, TenantNo};
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::usage::{
    ANSWER_ROWS_MAX, ComposeError, Composition, Usage, UsageRow, UsageShape,
};
use crate::rules::window::Window;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use futures_util::TryStreamExt;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Longest group that is its own key: PostgreSQL's indexes hold rows of at most 2,700 bytes, and
/// a unique value comes on top.
const GROUP_BYTES_MAX: usize = 1_000;
/// Rows that a query asks for first: enough to tell an answer with too many groups.
const FIRST_ROWS_MAX: usize = 2 * ANSWER_ROWS_MAX;
/// Other requests have their turn after so many rows.
const ROWS_BETWEEN_YIELDS: usize = 256;

/// Totals by key.
pub type Totals = HashMap<RollupKey, Rollup>;

/// Adds one event to the totals.
pub fn fold_event(
    totals: &mut Totals,
    tenant: TenantNo,
    event: &Event,
    catalog: &Catalog,
) -> Result<()> {
    let meter = meter_of(catalog, event.meter)?;
    let (bucket_start, group, rollup) = Rollup::of_event(event, meter);
    match totals.entry(RollupKey { tenant, meter: event.meter, bucket_start, group }) {
        Entry::Vacant(entry) => {
            entry.insert(rollup);
        }
        Entry::Occupied(mut entry) => entry
            .get_mut()
            .fold(&rollup)
            .map_err(|error| Error::Internal { what: error.to_string() })?,
    }
    Ok(())
}

/// Adds accepted events to their totals, inside the caller's transaction.
pub async fn record_rollups(
    client: &ClientWrapper,
    accepted: &[Accepted<'_>],
    catalog: &Catalog,
) -> std::result::Result<(), super::failure::Failure> {
    let mut totals = Totals::with_capacity(accepted.len());
    for Accepted { tenant, event, .. } in accepted {
        fold_event(&mut totals, *tenant, event, catalog)?;
    }
    let mut sorted: Vec<(RollupKey, Rollup)> = totals.into_iter().collect();
    sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut sums = Columns::default();
    let mut minima = Columns::default();
    let mut maxima = Columns::default();
    let mut latest = Columns::default();
    for (key, rollup) in &sorted {
        let kind = match &rollup.value {
            Accumulator::Sum(_) | Accumulator::Count | Accumulator::Unique(_) => &mut sums,
            Accumulator::Min(_) => &mut minima,
            Accumulator::Max(_) => &mut maxima,
            Accumulator::Latest { .. } => &mut latest,
        };
        kind.push(key, rollup)?;
    }
    sums.upsert(client, UPSERT_SUMS).await?;
    minima.upsert(client, UPSERT_MINIMA).await?;
    maxima.upsert(client, UPSERT_MAXIMA).await?;
    latest.upsert(client, UPSERT_LATEST).await?;
    insert_uniques(client, &sorted).await
}

/// The statement that adds rows to totals; how a total takes in the new one is its last part.
macro_rules! upsert {
    ($name:literal, $total:literal) => {
        concat!(
            "-- ",
            $name,
            "
        INSERT INTO rollups AS standing
            (tenant_no, meter_no, bucket_start, grp, grp_text, count, total, latest_at, latest_id)
        SELECT * FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::text[], $5::text[],
            $6::int8[], $7::numeric[], $8::timestamptz[], $9::text[])
        ON CONFLICT (tenant_no, meter_no, bucket_start, grp) DO UPDATE SET
            count = standing.count + excluded.count,
            ",
            $total
        )
    };
}

const UPSERT_SUMS: &str = upsert!("upsert_sums", "total = standing.total + excluded.total");
const UPSERT_MINIMA: &str =
    upsert!("upsert_minima", "total = LEAST(standing.total, excluded.total)");
const UPSERT_MAXIMA: &str =
    upsert!("upsert_maxima", "total = GREATEST(standing.total, excluded.total)");
const UPSERT_LATEST: &str = upsert!(
    "upsert_latest",
    "(total, latest_at, latest_id) = (
                SELECT newest.total, newest.latest_at, newest.latest_id
                FROM (VALUES
                    (standing.total, standing.latest_at, standing.latest_id),
                    (excluded.total, excluded.latest_at, excluded.latest_id)
                ) AS newest (total, latest_at, latest_id)
                ORDER BY newest.latest_at DESC, newest.latest_id COLLATE \"C\" DESC
                LIMIT 1
            )"
);

type Upserted = std::result::Result<(), super::failure::Failure>;

/// Rows of `rollups`, column by column.
#[derive(Default)]
struct Columns<'r> {
    tenants: Vec<i32>,
    meters: Vec<i16>,
    bucket_starts: Vec<SqlTimestamp>,
    groups: Vec<Cow<'r, str>>,
    group_texts: Vec<Option<&'r str>>,
    counts: Vec<i64>,
    totals: Vec<Option<SqlQuantity>>,
    latest_ats: Vec<Option<SqlTimestamp>>,
    latest_ids: Vec<Option<&'r str>>,
}

impl<'r> Columns<'r> {
    fn push(&mut self, key: &'r RollupKey, rollup: &'r Rollup) -> Result<()> {
        let (total, latest) = match &rollup.value {
            Accumulator::Sum(total) | Accumulator::Min(total) | Accumulator::Max(total) => {
                (Some(*total), None)
            }
            Accumulator::Count | Accumulator::Unique(_) => (None, None),
            Accumulator::Latest { at, id, quantity } => (Some(*quantity), Some((*at, id.as_str()))),
        };
        let group = group_key(&key.group);
        self.tenants.push(tenant_number(key.tenant));
        self.meters.push(meter_number(key.meter));
        self.bucket_starts.push(SqlTimestamp(key.bucket_start));
        self.group_texts.push(matches!(group, Cow::Owned(_)).then(|| key.group.as_text()));
        self.groups.push(group);
        self.counts.push(write_count(rollup.count)?);
        self.totals.push(total.map(SqlQuantity));
        self.latest_ats.push(latest.map(|(at, _)| SqlTimestamp(at)));
        self.latest_ids.push(latest.map(|(_, id)| id));
        Ok(())
    }

    async fn upsert(&self, client: &ClientWrapper, sql: &str) -> Upserted {
        if self.tenants.is_empty() {
            return Ok(());
        }
        let groups: Vec<&str> = self.groups.iter().map(AsRef::as_ref).collect();
        let written = client
            .run(
                sql,
                &[
                    &self.tenants,
                    &self.meters,
                    &self.bucket_starts,
                    &groups,
                    &self.group_texts,
                    &self.counts,
                    &self.totals,
                    &self.latest_ats,
                    &self.latest_ids,
                ],
            )
            .await?;
        if usize::try_from(written).ok() != Some(self.tenants.len()) {
            let what = "a total was not written".into();
            return Err(Error::Internal { what }.into());
        }
        Ok(())
    }
}

async fn insert_uniques(client: &ClientWrapper, sorted: &[(RollupKey, Rollup)]) -> Upserted {
    let (mut tenants, mut meters, mut bucket_starts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut groups, mut values) = (Vec::new(), Vec::new());
    for (key, rollup) in sorted {
        let Accumulator::Unique(found) = &rollup.value else { continue };
        for value in found {
            tenants.push(tenant_number(key.tenant));
            meters.push(meter_number(key.meter));
            bucket_starts.push(SqlTimestamp(key.bucket_start));
            groups.push(group_key(&key.group));
            values.push(value.as_ref());
        }
    }
    if tenants.is_empty() {
        return Ok(());
    }
    let sql = "-- insert_uniques
        INSERT INTO rollup_uniques (tenant_no, meter_no, bucket_start, grp, value)
        SELECT * FROM unnest($1::int4[], $2::int2[], $3::timestamptz[], $4::text[], $5::text[])
        ON CONFLICT DO NOTHING";
    let groups: Vec<&str> = groups.iter().map(AsRef::as_ref).collect();
    client.run(sql, &[&tenants, &meters, &bucket_starts, &groups, &values]).await?;
    Ok(())
}

/// The totals of buckets that start in `range`, in one statement and so of one moment.
pub async fn read_usage(
    client: &ClientWrapper,
    (tenant, meter, range): (&TenantId, MeterNo, Window),
    aggregation: Aggregation,
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let sql = "-- read_usage
        SELECT r.bucket_start, COALESCE(r.grp_text, r.grp), r.count, r.total, r.latest_at,
            r.latest_id,
            CASE WHEN $5 THEN ARRAY(
                SELECT u.value FROM rollup_uniques u
                WHERE u.tenant_no = r.tenant_no AND u.meter_no = r.meter_no
                    AND u.bucket_start = r.bucket_start AND u.grp = r.grp
                LIMIT $6
            ) END
        FROM rollups r
        WHERE r.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND r.meter_no = $2 AND r.bucket_start >= $3 AND r.bucket_start < $4
        LIMIT $6";
    let statement = client.prepare_cached(sql).await?;
    let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
    let unique = matches!(aggregation, Aggregation::Unique);
    let (tenant, meter) = (tenant.as_str(), meter_number(meter));
    let beyond = write_limit(rows_max.saturating_add(1));
    let parameters: [&(dyn ToSql + Sync); 6] = [&tenant, &meter, &start, &end, &unique, &beyond];
    let found = client.query_raw(&statement, parameters).await?;
    let mut found = std::pin::pin!(found);
    let (mut rows, mut left) = (Vec::new(), rows_max);
    while let Some(row) = found.try_next().await? {
        let row = usage_row(&row, 0, aggregation)?;
        left = left.checked_sub(1 + values_of(&row.rollup)).ok_or_else(|| Error::TooLarge {
            what: format!("more than {rows_max} totals and values"),
        })?;
        rows.push(row);
    }
    Ok(rows)
}

fn values_of(rollup: &Rollup) -> usize {
    if let Accumulator::Unique(values) = &rollup.value { values.len() } else { 0 }
}

/// The same totals, composed as they come: each total, then each value of a unique meter, in one
/// statement and so of one moment.
pub async fn compose_usage(
    client: &ClientWrapper,
    (tenant, meter, range): (&TenantId, MeterNo, Window),
    shape: UsageShape,
) -> Result<Usage> {
    let sql = "-- compose_usage
        SELECT r.bucket_start, COALESCE(r.grp_text, r.grp), r.count, r.total, r.latest_at,
            r.latest_id, ARRAY[]::text[], NULL::text
        FROM rollups r
        WHERE r.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND r.meter_no = $2 AND r.bucket_start >= $3 AND r.bucket_start < $4
        UNION ALL
        SELECT r.bucket_start, COALESCE(r.grp_text, r.grp), 0, NULL, NULL, NULL, NULL, u.value
        FROM rollups r JOIN rollup_uniques u USING (tenant_no, meter_no, bucket_start, grp)
        WHERE $5 AND r.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1)
            AND r.meter_no = $2 AND r.bucket_start >= $3 AND r.bucket_start < $4
        LIMIT $6";
    let statement = client.prepare_cached(sql).await?;
    let (start, end) = (SqlTimestamp(range.start), SqlTimestamp(range.end));
    let aggregation = shape.aggregation;
    let unique = matches!(aggregation, Aggregation::Unique);
    let (tenant, meter) = (tenant.as_str(), meter_number(meter));
    // The database sends all rows of a statement, also those behind the one that makes the answer
    // too large. So most is asked for only if the first rows do not tell.
    for rows_max in [FIRST_ROWS_MAX.min(shape.rows_max), shape.rows_max] {
        let beyond = write_limit(rows_max.saturating_add(1));
        let values: [&(dyn ToSql + Sync); 6] = [&tenant, &meter, &start, &end, &unique, &beyond];
        let found = client.query_raw(&statement, values).await?;
        let mut found = std::pin::pin!(found);
        let mut composition = Composition::new(shape.clone());
        let mut rows = 0_usize;
        while let Some(row) = found.try_next().await? {
            add_row(&mut composition, &row, aggregation)?;
            rows += 1;
            if rows.is_multiple_of(ROWS_BETWEEN_YIELDS) {
                tokio::task::yield_now().await;
            }
        }
        if rows <= rows_max {
            return Ok(composition.finish()?);
        }
    }
    Err(ComposeError::TooLarge.into())
}

/// Adds a total, or one value of a unique meter's total.
fn add_row(composition: &mut Composition, row: &Row, aggregation: Aggregation) -> Result<()> {
    match column::<Option<String>>(row, 7)? {
        None => composition.add(usage_row(row, 0, aggregation)?)?,
        Some(value) => {
            let group: String = column(row, 1)?;
            composition.add_value(instant(row, 0)?, &Group::from_stored(&group), &value)?;
        }
    }
    Ok(())
}

/// Reads bucket_start, group, count, total, latest_at, latest_id and unique values, in this order.
pub fn usage_row(row: &Row, from: usize, aggregation: Aggregation) -> Result<UsageRow> {
    let group: String = column(row, from + 1)?;
    let total: Option<SqlQuantity> = column(row, from + 3)?;
    let total = || total.map(|total| total.0).ok_or_else(|| corrupt("rollups.total is null"));
    let value = match aggregation {
        Aggregation::Sum => Accumulator::Sum(total()?),
        Aggregation::Count => Accumulator::Count,
        Aggregation::Min => Accumulator::Min(total()?),
        Aggregation::Max => Accumulator::Max(total()?),
        Aggregation::Latest => {
            let id: String = column(row, from + 5)?;
            let id = EventId::parse(&id).map_err(|_| damaged("rollups.latest_id", &id))?;
            Accumulator::Latest { at: instant(row, from + 4)?, id, quantity: total()? }
        }
        Aggregation::Unique => {
            let values: Vec<String> = column(row, from + 6)?;
            Accumulator::Unique(values.into_iter().map(String::into_boxed_str).collect())
        }
    };
    Ok(UsageRow {
        bucket_start: instant(row, from)?,
        group: Group::from_stored(&group),
        rollup: Rollup { count: read_count(column(row, from + 2)?)?, value },
    })
}

/// The group as an index holds it. A group starts with `[` or is empty, so a digest is never
/// taken for one.
fn group_key(group: &Group) -> Cow<'_, str> {
    let text = group.as_text();
    if text.len() <= GROUP_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Cow::Owned(format!("sha256:{hex}"))
}
