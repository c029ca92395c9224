//! A slice of the ledger: its events, its totals and its counters, read in one short snapshot and
//! handed to the comparison.
//!
//! Invariant: what a batch adds to totals and counters is in the transaction that writes its
//! events, and a fold moves it in one transaction. So a snapshot has for each event all of what it
//! adds, or nothing of the event. A row that cannot be read ends the slice with an error; nothing
//! is passed over. Nothing is written.

use super::check_claims::ClaimsCheck;
use super::connection::Snapshot;
use super::declarations::read_catalog;
use super::events::stored_event;
use super::rollups::usage_row;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, meter_number, read_count, read_meter_no,
    read_tenant_no,
};
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::meter::{Aggregation, Catalog};
use crate::rules::rollup::{FoldError, Group, RollupKey};
use crate::rules::self_check::{Comparison, Slice, SliceReport};
use crate::store::{CheckReport, Error, Result, StoredEvent};
use deadpool_postgres::{ClientWrapper, Object};
use futures_util::TryStreamExt;
use std::collections::HashMap;
use tokio_postgres::types::ToSql;

/// Events that are read at once.
const PAGE_EVENTS: usize = 10_000;
/// A statement of a slice is given up after this time, in seconds.
const STATEMENT_SECONDS: u32 = 600;

/// How the keys of events are looked for, where they are.
pub struct KeyCheck<'c> {
    pub fingerprinter: &'c Fingerprinter,
    pub report: &'c mut CheckReport,
}

/// Compares a slice; `rows_max` bounds what is held in memory.
pub async fn check_slice(
    client: Object,
    slice: Slice,
    rows_max: usize,
    keys: Option<&mut KeyCheck<'_>>,
) -> Result<SliceReport> {
    let snapshot = begin(client).await?;
    let catalog = read_catalog(&snapshot).await?;
    let tenants = read_tenants(&snapshot, slice).await?;
    let comparison = Comparison::new(rows_max);
    let reading = Reading { client: &snapshot, slice, catalog, tenants, comparison, rows: 0 };
    let report = reading.run(keys).await?;
    snapshot.end().await?;
    Ok(report)
}

pub async fn begin(client: Object) -> Result<Snapshot> {
    let snapshot = Snapshot::begin(client).await?;
    let patience = format!("-- begin\nSET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'");
    snapshot.batch_execute(&patience).await?;
    Ok(snapshot)
}

type SliceTenants = HashMap<TenantNo, TenantId>;

async fn read_tenants(client: &ClientWrapper, slice: Slice) -> Result<SliceTenants> {
    let sql = "-- read_tenants
        SELECT tenant_no, tenant FROM tenants WHERE tenant_no BETWEEN $1 AND $2";
    let mut tenants = SliceTenants::new();
    let (first, last) = numbers(slice);
    for row in client.query(sql, &[&first, &last]).await? {
        let name: String = column(&row, 1)?;
        let tenant = TenantId::parse(&name).map_err(|_| damaged("tenants.tenant", &name))?;
        tenants.insert(read_tenant_no(column(&row, 0)?)?, tenant);
    }
    Ok(tenants)
}

/// Tenants' numbers; the first slice has all that are lower than any should be.
fn numbers(slice: Slice) -> (i32, i32) {
    let first = if slice.first.0 == 0 { i32::MIN } else { narrow(slice.first) };
    (first, narrow(slice.last))
}

fn narrow(tenant: TenantNo) -> i32 {
    i32::try_from(tenant.0).unwrap_or(i32::MAX)
}

/// The bounds of a slice, as its statements take them.
struct Bounds {
    first: i32,
    last: i32,
    from: SqlTimestamp,
    until: SqlTimestamp,
    meter: Option<i16>,
}

impl Bounds {
    fn of(slice: Slice) -> Self {
        let (first, last) = numbers(slice);
        let (from, until) = (SqlTimestamp(slice.times.start), SqlTimestamp(slice.times.end));
        Self { first, last, from, until, meter: slice.meter.map(meter_number) }
    }

    fn values(&self) -> [&(dyn ToSql + Sync); 5] {
        [&self.first, &self.last, &self.from, &self.until, &self.meter]
    }
}

/// A slice in its snapshot.
struct Reading<'c> {
    client: &'c ClientWrapper,
    slice: Slice,
    catalog: Catalog,
    tenants: SliceTenants,
    comparison: Comparison,
    rows: u64,
}

impl Reading<'_> {
    async fn run(mut self, mut keys: Option<&mut KeyCheck<'_>>) -> Result<SliceReport> {
        let bounds = Bounds::of(self.slice);
        let events = loop {
            // Keys are looked for once, however often the slice is read.
            let events = self.add_events(&bounds, keys.take()).await?;
            self.add_totals(&bounds).await?;
            self.add_values(&bounds).await?;
            if self.slice.counters {
                self.add_counters(&bounds).await?;
            }
            if !self.comparison.next_pass() {
                break events;
            }
        };
        let Self { comparison, catalog, tenants, rows, .. } = self;
        let name = |tenant| tenants.get(&tenant).map(ToString::to_string);
        let report = SliceReport::of(comparison.finish(), &catalog, name);
        Ok(SliceReport { events, rows, ..report })
    }

    async fn add_events(
        &mut self,
        bounds: &Bounds,
        mut keys: Option<&mut KeyCheck<'_>>,
    ) -> Result<u64> {
        if !self.slice.has_totals() {
            return Ok(0);
        }
        let sql = "-- add_events
            DECLARE checked NO SCROLL CURSOR FOR
            SELECT tenant_no, event_no, meter_no, trial, occurred_at, received_at, quantity, id,
                properties, subscription
            FROM events
            WHERE tenant_no BETWEEN $1 AND $2 AND occurred_at >= $3 AND occurred_at < $4
                AND ($5::int2 IS NULL OR meter_no = $5)";
        self.client.execute(sql, &bounds.values()).await?;
        let fetch = self.client.prepare(&format!("FETCH {PAGE_EVENTS} FROM checked")).await?;
        let mut events = 0;
        loop {
            let rows = self.client.query(&fetch, &[]).await?;
            let mut claims = ClaimsCheck::default();
            for row in &rows {
                let number = read_tenant_no(column(row, 0)?)?;
                let Some(tenant) = self.tenants.get(&number) else {
                    let what = format!("an event belongs to no tenant (number {})", number.0);
                    return Err(corrupt(what));
                };
                let stored = stored_event(row, tenant.clone())?;
                if let Some(keys) = &keys {
                    let home = keys.fingerprinter.event_key(number, &stored.event.id);
                    claims.expect(number, home, column(row, 1)?, &stored);
                }
                self.add_event(number, &stored)?;
                events += 1;
            }
            if let Some(keys) = &mut keys {
                claims.check(self.client, keys.report).await?;
            }
            if rows.len() < PAGE_EVENTS {
                self.client.batch_execute("CLOSE checked").await?;
                self.rows += events;
                return Ok(events);
            }
        }
    }

    fn add_event(&mut self, number: TenantNo, stored: &StoredEvent) -> Result<()> {
        let event = &stored.event;
        let Some(meter) = self.catalog.get(event.meter) else {
            let (id, tenant) = (event.id.as_str(), event.tenant.as_str());
            return Err(corrupt(format!("event {id} of {tenant} belongs to no meter")));
        };
        if self.slice.is_whole() {
            self.comparison.add_received(number, stored.received_at, 1).map_err(unfit)?;
        }
        self.comparison.add_event(number, event, meter).map_err(unfit)
    }

    /// The totals that are stored, with what is not folded into them yet; unique values of those
    /// that are folded come apart, one in a row.
    async fn add_totals(&mut self, bounds: &Bounds) -> Result<()> {
        let sql = "-- add_totals
            SELECT * FROM (SELECT tenant_no, meter_no, bucket_start, COALESCE(grp_text, grp),
                count, total, latest_at, latest_id, ARRAY[]::text[]
            FROM rollups
            WHERE tenant_no BETWEEN $1 AND $2 AND bucket_start >= $3 AND bucket_start < $4
                AND ($5::int2 IS NULL OR meter_no = $5)
            UNION ALL
            SELECT tenant_no, meter_no, bucket_start, grp, count, total, latest_at, latest_id,
                COALESCE(found, ARRAY[]::text[])
            FROM rollup_deltas
            WHERE tenant_no BETWEEN $1 AND $2 AND bucket_start >= $3 AND bucket_start < $4
                AND ($5::int2 IS NULL OR meter_no = $5)) AS t";
        let statement = self.client.prepare_cached(sql).await?;
        let found = self.client.query_raw(&statement, bounds.values()).await?;
        let mut found = std::pin::pin!(found);
        while let Some(row) = found.try_next().await? {
            let tenant = read_tenant_no(column(&row, 0)?)?;
            let meter = read_meter_no(column(&row, 1)?)?;
            let aggregation = match self.catalog.get(meter) {
                Some(definition) => definition.spec.aggregation,
                // No event has such a meter; what is stored of it is a difference.
                None => Aggregation::Count,
            };
            let stored = usage_row(&row, 2, aggregation)?;
            let (bucket_start, group) = (stored.bucket_start, stored.group);
            let key = RollupKey { tenant, meter, bucket_start, group };
            self.comparison.add_stored(key, stored.rollup).map_err(unfit)?;
            self.rows += 1;
        }
        Ok(())
    }

    /// The unique values of totals that are folded; one without a total is a difference too.
    async fn add_values(&mut self, bounds: &Bounds) -> Result<()> {
        let sql = "-- add_values
            SELECT u.tenant_no, u.meter_no, u.bucket_start, COALESCE(r.grp_text, u.grp), u.value
            FROM rollup_uniques u LEFT JOIN rollups r
                ON r.tenant_no = u.tenant_no AND r.meter_no = u.meter_no
                    AND r.bucket_start = u.bucket_start AND r.grp = u.grp
            WHERE u.tenant_no BETWEEN $1 AND $2 AND u.bucket_start >= $3 AND u.bucket_start < $4
                AND ($5::int2 IS NULL OR u.meter_no = $5)";
        let statement = self.client.prepare_cached(sql).await?;
        let found = self.client.query_raw(&statement, bounds.values()).await?;
        let mut found = std::pin::pin!(found);
        while let Some(row) = found.try_next().await? {
            let group: String = column(&row, 3)?;
            let key = RollupKey {
                tenant: read_tenant_no(column(&row, 0)?)?,
                meter: read_meter_no(column(&row, 1)?)?,
                bucket_start: instant(&row, 2)?,
                group: Group::from_stored(&group),
            };
            let value: String = column(&row, 4)?;
            self.comparison.add_stored_value(key, value.into_boxed_str()).map_err(unfit)?;
            self.rows += 1;
        }
        Ok(())
    }

    /// The counters of accepted events and, of one tenant with very many events, how many there are
    /// of each hour, which the database counts.
    async fn add_counters(&mut self, bounds: &Bounds) -> Result<()> {
        let sql = "-- add_counters
            SELECT tenant_no, hour, sum(accepted)::int8, sum(events)::int8 FROM (
                SELECT tenant_no, hour, accepted, 0 AS events FROM counters
                WHERE tenant_no BETWEEN $1 AND $2
                UNION ALL
                SELECT tenant_no, hour, accepted, 0 FROM counter_deltas
                WHERE tenant_no BETWEEN $1 AND $2
                UNION ALL
                SELECT tenant_no, date_trunc('hour', received_at, 'UTC') AS hour, 0, count(*)
                FROM events WHERE $3 AND tenant_no BETWEEN $1 AND $2 GROUP BY 1, 2
            ) AS parts
            GROUP BY tenant_no, hour";
        let statement = self.client.prepare_cached(sql).await?;
        let counts_events = !self.slice.is_whole();
        let values: [&(dyn ToSql + Sync); 3] = [&bounds.first, &bounds.last, &counts_events];
        let mut found = std::pin::pin!(self.client.query_raw(&statement, values).await?);
        while let Some(row) = found.try_next().await? {
            let (tenant, hour) = (read_tenant_no(column(&row, 0)?)?, instant(&row, 1)?);
            let (accepted, events) = (read_count(column(&row, 2)?)?, read_count(column(&row, 3)?)?);
            self.comparison.add_counter(tenant, hour, accepted).map_err(unfit)?;
            if events > 0 {
                self.comparison.add_received(tenant, hour, events).map_err(unfit)?;
            }
            self.rows += 1 + events;
        }
        Ok(())
    }
}

fn unfit(error: FoldError) -> Error {
    Error::Corrupt { what: error.to_string() }
}
