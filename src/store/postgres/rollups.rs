//! Totals: how they are added up, and how they are read.
//!
//! Invariant: a total is its row in `rollups` and every row of it in `rollup_deltas`, read in one
//! statement. A batch only inserts deltas (`deltas`); rows of `rollups` change only in the
//! transaction that deletes the deltas they take in (`fold`), by exact addition in the database, in
//! the order of [`RollupKey`].

use super::judgement::meter_of;
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_count, tenant_number,
    write_count, write_limit,
};
use super::statements::Statements;
use crate::rules::event::Event;
use crate::rules::ids::{EventId, MeterNo, TenantNo};
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
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
use std::collections::{BTreeMap, btree_map};
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
    fold_total(totals, RollupKey { tenant, meter: event.meter, bucket_start, group }, rollup)
}

/// Adds a total to that of its key.
pub fn fold_total(totals: &mut Totals, key: RollupKey, rollup: Rollup) -> Result<()> {
    match totals.entry(key) {
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

/// Adds totals to those that are stored, inside the caller's transaction.
pub async fn add_totals(
    client: &ClientWrapper,
    totals: Totals,
) -> std::result::Result<(), super::failure::Failure> {
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

/// Totals of a tenant and meter whose buckets start in a range: what is not folded yet, the totals
/// that are, and their unique values, in one statement and so of one moment.
const READ_TOTALS: &str = "-- read_totals
    SELECT d.bucket_start, d.grp, d.count, d.total, d.latest_at, d.latest_id,
        COALESCE(d.found, ARRAY[]::text[]), NULL::text, true
    FROM rollup_deltas d
    WHERE d.tenant_no = $1 AND d.meter_no = $2 AND d.bucket_start >= $3 AND d.bucket_start < $4
    UNION ALL
    (SELECT r.bucket_start, COALESCE(r.grp_text, r.grp), r.count, r.total, r.latest_at,
        r.latest_id, ARRAY[]::text[], NULL::text, false
    FROM rollups r
    WHERE r.tenant_no = $1 AND r.meter_no = $2 AND r.bucket_start >= $3 AND r.bucket_start < $4
    LIMIT $6)
    UNION ALL
    (SELECT r.bucket_start, COALESCE(r.grp_text, r.grp), 0, NULL, NULL, NULL, NULL, u.value, false
    FROM rollups r JOIN rollup_uniques u ON u.tenant_no = r.tenant_no AND u.meter_no = r.meter_no
        AND u.bucket_start = r.bucket_start AND u.grp = r.grp
    WHERE $5 AND r.tenant_no = $1 AND r.meter_no = $2
        AND r.bucket_start >= $3 AND r.bucket_start < $4
    LIMIT $6)";

/// Which totals are read: of a tenant, of a meter and how it adds up, of a range.
#[derive(Debug, Clone, Copy)]
pub struct TotalsQuery {
    pub tenant: TenantNo,
    pub meter: MeterNo,
    pub aggregation: Aggregation,
    pub range: Window,
}

/// A row of [`READ_TOTALS`].
enum TotalRow {
    /// What is not folded yet.
    Open(UsageRow),
    Folded(UsageRow),
    /// A unique value of a total that is folded.
    Value(Timestamp, Group, String),
}

impl TotalsQuery {
    /// Calls `take` with each row; at most `folded_max` and one more are totals that are folded,
    /// and as many are values of them. Returns whether there are no more than `folded_max`.
    async fn read(
        self,
        client: &ClientWrapper,
        folded_max: usize,
        mut take: impl FnMut(TotalRow) -> Result<()>,
    ) -> Result<bool> {
        let statement = client.prepare_cached(READ_TOTALS).await?;
        let unique = matches!(self.aggregation, Aggregation::Unique);
        let (tenant, meter) = (tenant_number(self.tenant), meter_number(self.meter));
        let (start, end) = (SqlTimestamp(self.range.start), SqlTimestamp(self.range.end));
        let beyond = write_limit(folded_max.saturating_add(1));
        let values: [&(dyn ToSql + Sync); 6] = [&tenant, &meter, &start, &end, &unique, &beyond];
        let mut found = std::pin::pin!(client.query_raw(&statement, values).await?);
        let (mut rows, mut folded, mut values) = (0_usize, 0_usize, 0_usize);
        while let Some(row) = found.try_next().await? {
            let value: Option<String> = column(&row, 7)?;
            let open: bool = column(&row, 8)?;
            take(match value {
                None if open => TotalRow::Open(usage_row(&row, 0, self.aggregation)?),
                None => {
                    folded += 1;
                    TotalRow::Folded(usage_row(&row, 0, self.aggregation)?)
                }
                Some(value) => {
                    values += 1;
                    let group: String = column(&row, 1)?;
                    TotalRow::Value(instant(&row, 0)?, Group::from_stored(&group), value)
                }
            })?;
            rows += 1;
            if rows.is_multiple_of(ROWS_BETWEEN_YIELDS) {
                tokio::task::yield_now().await;
            }
        }
        Ok(folded <= folded_max && values <= folded_max)
    }
}

/// Totals that are being added up, by bucket and group.
type OpenTotals = BTreeMap<(Timestamp, Group), Rollup>;

fn add_total(totals: &mut OpenTotals, row: UsageRow) -> Result<()> {
    match totals.entry((row.bucket_start, row.group)) {
        btree_map::Entry::Vacant(entry) => drop(entry.insert(row.rollup)),
        btree_map::Entry::Occupied(mut entry) => entry
            .get_mut()
            .fold(&row.rollup)
            .map_err(|error| Error::Internal { what: error.to_string() })?,
    }
    Ok(())
}

fn unique_row(bucket_start: Timestamp, group: Group, value: &str) -> UsageRow {
    let value = Accumulator::Unique(std::iter::once(value.into()).collect());
    UsageRow { bucket_start, group, rollup: Rollup { count: 0, value } }
}

/// The totals, one for each bucket and group.
pub async fn read_usage(
    client: &ClientWrapper,
    query: TotalsQuery,
    rows_max: usize,
) -> Result<Vec<UsageRow>> {
    let mut totals = OpenTotals::new();
    let add = |row| match row {
        TotalRow::Open(row) | TotalRow::Folded(row) => add_total(&mut totals, row),
        TotalRow::Value(bucket_start, group, value) => {
            add_total(&mut totals, unique_row(bucket_start, group, &value))
        }
    };
    let complete = query.read(client, rows_max, add).await?;
    let found: usize = totals.values().map(|rollup| 1 + values_of(rollup)).sum();
    if !complete || found > rows_max {
        let what = format!("more than {rows_max} totals and values");
        return Err(Error::TooLarge { what });
    }
    let row = |((bucket_start, group), rollup)| UsageRow { bucket_start, group, rollup };
    Ok(totals.into_iter().map(row).collect())
}

fn values_of(rollup: &Rollup) -> usize {
    if let Accumulator::Unique(values) = &rollup.value { values.len() } else { 0 }
}

/// The same totals, composed as they come. Those of which a part is not folded yet are added up
/// first, so that each counts once.
pub async fn compose_usage(
    client: &ClientWrapper,
    query: TotalsQuery,
    shape: UsageShape,
) -> Result<Usage> {
    // The database sends all rows of a statement, also those behind the one that makes the answer
    // too large. So most is asked for only if the first rows do not tell.
    for rows_max in [FIRST_ROWS_MAX.min(shape.rows_max), shape.rows_max] {
        let mut composition = Composition::new(shape.clone());
        let mut open = OpenTotals::new();
        let add = |row| match row {
            TotalRow::Open(row) => add_total(&mut open, row),
            TotalRow::Folded(row) => {
                if open.contains_key(&(row.bucket_start, row.group.clone())) {
                    return add_total(&mut open, row);
                }
                Ok(composition.add(row)?)
            }
            TotalRow::Value(bucket_start, group, value) => {
                if open.contains_key(&(bucket_start, group.clone())) {
                    return add_total(&mut open, unique_row(bucket_start, group, &value));
                }
                Ok(composition.add_value(bucket_start, &group, &value)?)
            }
        };
        let complete = query.read(client, rows_max, add).await?;
        for ((bucket_start, group), rollup) in open {
            composition.add(UsageRow { bucket_start, group, rollup })?;
        }
        if complete {
            return Ok(composition.finish()?);
        }
    }
    Err(ComposeError::TooLarge.into())
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
