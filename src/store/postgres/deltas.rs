//! What a batch adds to totals and counters: rows that are only inserted, in the transaction that
//! counts the batch's events, and folded later (`fold`).
//!
//! A row of `deltas` is what a batch adds to one tenant: its five counts, and its totals in arrays,
//! a place for each. A unique total has a place for each of its values: the first has its number of
//! events, the others 0, so that they add up to what it is.
//!
//! No row is changed on the way in. So batches of several servers never wait for each other's
//! totals, and a snapshot that somebody holds makes nothing slower. A crash leaves all rows of a
//! batch or none, with its events.

use super::copy::CopyRows;
use super::counters::{hour_of, read_tally};
use super::failure::Failure;
use super::judgement::Accepted;
use super::numeric::SqlQuantity;
use super::rollups::{StoredValue, Totals, fold_event};
use super::scalars::{
    NO_TENANT, SqlTimestamp, column, corrupt, instant, meter_number, read_count, read_meter_no,
    tenant_number, write_count,
};
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::quantity::Quantity;
use crate::rules::rollup::{Accumulator, Group, Rollup, RollupKey};
use crate::rules::timestamp::Timestamp;
use crate::rules::verdict::Tally;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use std::iter;
use tokio_postgres::types::{FromSqlOwned, Type};
use tokio_postgres::{Row, Statement};

/// Places of one row: with ids and groups of usual length it fits its page, so that nothing of it
/// is compressed or stored elsewhere.
const ROW_PLACES_MAX: usize = 64;

/// What is the same for all rows of a batch.
pub struct Batch<'c> {
    pub batch_no: i64,
    pub received_at: Timestamp,
    pub catalog: &'c Catalog,
}

/// Rows for the tallies of tenants and their accepted events, which are in the order of tenants.
pub fn encode(
    batch: &Batch<'_>,
    tallies: &BTreeMap<Option<TenantNo>, Tally>,
    accepted: &[Accepted<'_>],
) -> Result<CopyRows> {
    let mut rows = CopyRows::with_capacity(tallies.len(), 320);
    let mut left = accepted;
    for (tenant, tally) in tallies {
        let own = left.iter().take_while(|accepted| Some(accepted.tenant) == *tenant).count();
        let (own, others) = left.split_at(own);
        left = others;
        let mut totals = Totals::with_capacity(own.len());
        for Accepted { tenant, event, .. } in own {
            fold_event(&mut totals, *tenant, event, batch.catalog)?;
        }
        let mut places: Vec<Place<'_>> = Vec::with_capacity(totals.len());
        totals.iter().for_each(|(key, rollup)| Place::add_of(key, rollup, &mut places));
        let (first, further) = places.split_at(places.len().min(ROW_PLACES_MAX));
        encode_row(&mut rows, batch, (*tenant, tally), first)?;
        for places in further.chunks(ROW_PLACES_MAX) {
            encode_row(&mut rows, batch, (*tenant, &Tally::default()), places)?;
        }
    }
    if left.is_empty() {
        return Ok(rows);
    }
    let what = format!("{} accepted events are not in the tallies of their tenants", left.len());
    Err(Error::Internal { what })
}

/// The COPY of what [`encode`] makes.
pub async fn prepare(client: &ClientWrapper) -> std::result::Result<Statement, Failure> {
    let sql = "-- insert_deltas
        COPY deltas (batch_no, hour, accepted, duplicates, conflicts, quarantined, rejected,
            tenant_no, meter_nos, bucket_starts, counts, totals, grps, latest_ats, latest_ids,
            found)
        FROM STDIN (FORMAT binary)";
    Ok(client.prepare_cached(sql).await?)
}

/// One place of the arrays.
struct Place<'t> {
    key: &'t RollupKey,
    count: u64,
    value: &'t Accumulator,
    /// A value of a unique total.
    found: Option<&'t str>,
}

impl<'t> Place<'t> {
    /// Adds the places of a total.
    fn add_of(key: &'t RollupKey, Rollup { count, value }: &'t Rollup, places: &mut Vec<Self>) {
        let place = |count, found| Place { key, count, value, found };
        match value {
            Accumulator::Unique(values) => {
                let mut values = values.iter().map(AsRef::as_ref);
                places.push(place(*count, values.next()));
                places.extend(values.map(|value| place(0, Some(value))));
            }
            Accumulator::Sum(_)
            | Accumulator::Count
            | Accumulator::Min(_)
            | Accumulator::Max(_)
            | Accumulator::Latest { .. } => places.push(place(*count, None)),
        }
    }

    fn total(&self) -> Option<Quantity> {
        match self.value {
            Accumulator::Sum(total) | Accumulator::Min(total) | Accumulator::Max(total) => {
                Some(*total)
            }
            Accumulator::Latest { quantity, .. } => Some(*quantity),
            Accumulator::Count | Accumulator::Unique(_) => None,
        }
    }

    fn latest(&self) -> Option<(Timestamp, &'t str)> {
        match self.value {
            Accumulator::Latest { at, id, .. } => Some((*at, id.as_str())),
            Accumulator::Sum(_)
            | Accumulator::Count
            | Accumulator::Min(_)
            | Accumulator::Max(_)
            | Accumulator::Unique(_) => None,
        }
    }

    fn group(&self) -> Option<&'t str> {
        Some(self.key.group.as_text()).filter(|group| !group.is_empty())
    }
}

fn encode_row(
    rows: &mut CopyRows,
    batch: &Batch<'_>,
    (tenant, tally): (Option<TenantNo>, &Tally),
    places: &[Place<'_>],
) -> Result<()> {
    rows.row(16);
    rows.int8(batch.batch_no);
    rows.instant(hour_of(batch.received_at));
    let Tally { accepted, duplicates, conflicts, quarantined, rejected } = *tally;
    for count in [accepted, duplicates, conflicts, quarantined, rejected] {
        rows.int8(write_count(count)?);
    }
    rows.int4(tenant.map_or(NO_TENANT, tenant_number));
    let places = places.iter();
    let instant = |rows: &mut CopyRows, at| {
        rows.instant(at);
        Ok(())
    };
    let meters = places.clone().map(|place| Some(place.key.meter));
    rows.array(&Type::INT2, meters, |rows, meter| {
        rows.int2(meter_number(meter));
        Ok(())
    })?;
    let bucket_starts = places.clone().map(|place| Some(place.key.bucket_start));
    rows.array(&Type::TIMESTAMPTZ, bucket_starts, instant)?;
    rows.array(&Type::INT8, places.clone().map(|place| Some(place.count)), |rows, count| {
        rows.int8(write_count(count)?);
        Ok(())
    })?;
    rows.array(&Type::NUMERIC, places.clone().map(Place::total), CopyRows::quantity)?;
    rows.array(&Type::TEXT, places.clone().map(Place::group), CopyRows::text)?;
    let latest_ats = places.clone().map(|place| place.latest().map(|(at, _)| at));
    rows.array(&Type::TIMESTAMPTZ, latest_ats, instant)?;
    let latest_ids = places.clone().map(|place| place.latest().map(|(_, id)| id));
    rows.array(&Type::TEXT, latest_ids, CopyRows::text)?;
    rows.array(&Type::TEXT, places.map(|place| place.found), CopyRows::text)
}

/// What [`Delta`] is read from, in its order.
pub const DELTA_COLUMNS: &str = "hour, tenant_no, accepted, duplicates, conflicts, quarantined,
    rejected, meter_nos, bucket_starts, counts, totals, grps, latest_ats, latest_ids, found";

/// A row of `deltas`, but for its totals.
pub struct Delta {
    pub hour: Timestamp,
    pub tenant: i32,
    pub tally: Tally,
}

/// A total of it.
pub struct DeltaTotal {
    pub meter: MeterNo,
    pub bucket_start: Timestamp,
    pub group: Group,
    pub count: u64,
    pub value: StoredValue,
}

impl Delta {
    pub fn read(row: &Row) -> Result<Self> {
        Ok(Self { hour: instant(row, 0)?, tenant: column(row, 1)?, tally: read_tally(row, 2)? })
    }

    /// Its totals.
    pub fn totals(row: &Row) -> Result<impl Iterator<Item = Result<DeltaTotal>>> {
        let meters: Vec<i16> = column::<Option<_>>(row, 7)?.unwrap_or_default();
        let length = meters.len();
        let mut bucket_starts = array::<SqlTimestamp>(row, 8, length)?;
        let mut counts = array::<i64>(row, 9, length)?;
        let mut totals = array::<SqlQuantity>(row, 10, length)?;
        let mut groups = array::<String>(row, 11, length)?;
        let mut latest_ats = array::<SqlTimestamp>(row, 12, length)?;
        let mut latest_ids = array::<String>(row, 13, length)?;
        let mut found = array::<String>(row, 14, length)?;
        let missing = |name: &str| corrupt(format!("deltas.{name} has a null"));
        Ok(meters.into_iter().map(move |meter| {
            let bucket_start = bucket_starts.next().flatten();
            let count = counts.next().flatten();
            let group = groups.next().flatten().unwrap_or_default();
            let value = StoredValue {
                total: totals.next().flatten(),
                latest_at: latest_ats.next().flatten(),
                latest_id: latest_ids.next().flatten(),
                found: found.next().flatten().into_iter().collect(),
            };
            Ok(DeltaTotal {
                meter: read_meter_no(meter)?,
                bucket_start: bucket_start.ok_or_else(|| missing("bucket_starts"))?.0,
                group: Group::from_stored(&group),
                count: read_count(count.ok_or_else(|| missing("counts"))?)?,
                value,
            })
        }))
    }
}

/// The values of an array; nulls without end if the array itself is null.
fn array<T: FromSqlOwned>(
    row: &Row,
    place: usize,
    length: usize,
) -> Result<impl Iterator<Item = Option<T>>> {
    let values: Option<Vec<Option<T>>> = column(row, place)?;
    if values.as_ref().is_some_and(|values| values.len() != length) {
        let name = row.columns().get(place).map_or("?", |column| column.name());
        return Err(corrupt(format!("deltas.{name} has another length than deltas.meter_nos")));
    }
    Ok(values.unwrap_or_default().into_iter().chain(iter::repeat_with(|| None)))
}
