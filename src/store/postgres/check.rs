//! The check: every total and counter recomputed from the events, by the same rules, and every
//! event found again by its key. It reads only; memory holds the totals of a slice, never the
//! events.
//!
//! It is done in slices, each in a snapshot of its own that ends soon, so that the database need
//! not keep what others delete and change meanwhile. A slice is a range of tenants or, of a tenant
//! with many events, a range of days of use. Every event and every total belongs to one slice: no
//! bucket is longer than a day. The slices cover all numbers and all times, so nothing lies beside
//! them.

use super::check_claims::ClaimsCheck;
use super::connection::{Connector, Snapshot};
use super::declarations::read_catalog;
use super::events::stored_event;
use super::rollups::{Totals, fold_event, fold_total, usage_row};
use super::scalars::{
    SqlTimestamp, column, damaged, instant, read_count, read_meter_no, read_tenant_no,
};
use super::session::read_snapshot;
use crate::rules::fingerprint::Fingerprinter;
use crate::rules::ids::{TenantId, TenantNo};
use crate::rules::meter::Catalog;
use crate::rules::rollup::RollupKey;
use crate::rules::timestamp::Timestamp;
use crate::store::sql::verify_passes;
use crate::store::{CheckReport, Progress, Result};
use deadpool_postgres::{ClientWrapper, Pool};
use std::collections::HashMap;
use tokio_postgres::types::ToSql;

/// Events of a slice, about. A day of one tenant is never cut into several.
const SLICE_EVENTS: u64 = 200_000;
/// Events that are read at once.
const PAGE_EVENTS: usize = 10_000;

/// Compares totals and counters with the events.
pub async fn check(
    pool: &Pool,
    connector: &Connector,
    fingerprinter: &Fingerprinter,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let snapshot = begin(pool).await?;
    let slices = plan_slices(&snapshot).await?;
    snapshot.end().await?;
    for slice in slices {
        let snapshot = begin(pool).await?;
        let catalog = read_catalog(&snapshot).await?;
        let tenants = read_tenants(&snapshot, slice).await?;
        let mut checked =
            SliceCheck { client: &snapshot, slice, catalog, tenants, report: &mut report };
        checked.run(fingerprinter, progress).await?;
        snapshot.end().await?;
    }
    report.audit = read_snapshot(begin(pool).await?, connector, verify_passes).await?;
    if let Some(broken) = report.audit.broken.clone() {
        report.add(|| format!("the chain of nightly passes is broken: {broken}"));
    }
    Ok(report)
}

async fn begin(pool: &Pool) -> Result<Snapshot> {
    let snapshot = Snapshot::begin(pool.get().await?).await?;
    snapshot.batch_execute("-- check\nSET LOCAL statement_timeout = 0").await?;
    Ok(snapshot)
}

/// A part of the store: tenants by their numbers, and times of use.
#[derive(Debug, Clone, Copy)]
struct Slice {
    first: i32,
    last: i32,
    from: SqlTimestamp,
    until: SqlTimestamp,
    /// Whether claims and counters, which have no time of use, are compared with this slice.
    whole: bool,
}

const EVER: (SqlTimestamp, SqlTimestamp) = (
    SqlTimestamp(Timestamp::from_micros(i64::MIN)),
    SqlTimestamp(Timestamp::from_micros(i64::MAX)),
);

impl Slice {
    fn of_tenants(first: i32, last: i32) -> Self {
        Self { first, last, from: EVER.0, until: EVER.1, whole: true }
    }

    fn place(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.first, &self.last, &self.from, &self.until]
    }
}

async fn plan_slices(client: &ClientWrapper) -> Result<Vec<Slice>> {
    let sql = "-- plan_slices
        SELECT tenant_no, sum(accepted)::int8 FROM (
            SELECT tenant_no, accepted FROM counters
            UNION ALL SELECT tenant_no, accepted FROM counter_deltas
        ) AS parts
        GROUP BY tenant_no ORDER BY tenant_no";
    let mut slices = Vec::new();
    let (mut first, mut events) = (i32::MIN, 0);
    for row in client.query(sql, &[]).await? {
        let tenant: i32 = column(&row, 0)?;
        let accepted = read_count(column(&row, 1)?)?;
        let before = tenant.saturating_sub(1);
        if events + accepted > SLICE_EVENTS && first <= before {
            slices.push(Slice::of_tenants(first, before));
            (first, events) = (tenant, 0);
        }
        if accepted > SLICE_EVENTS {
            slices.extend(plan_days(client, tenant).await?);
            first = tenant.saturating_add(1);
            continue;
        }
        events += accepted;
    }
    slices.push(Slice::of_tenants(first, i32::MAX));
    Ok(slices)
}

/// Slices of one tenant: ranges of days, and in the end what has no day.
async fn plan_days(client: &ClientWrapper, tenant: i32) -> Result<Vec<Slice>> {
    let sql = "-- plan_days
        SELECT date_trunc('day', bucket_start, 'UTC') AS day, sum(count)::int8 FROM (
            SELECT bucket_start, count FROM rollups WHERE tenant_no = $1
            UNION ALL SELECT bucket_start, count FROM rollup_deltas WHERE tenant_no = $1
        ) AS parts
        GROUP BY day ORDER BY day";
    let slice =
        |from, until| Slice { from, until, whole: false, ..Slice::of_tenants(tenant, tenant) };
    let mut slices = Vec::new();
    let (mut from, mut events) = (EVER.0, 0);
    for row in client.query(sql, &[&tenant]).await? {
        let (day, counted) = (SqlTimestamp(instant(&row, 0)?), read_count(column(&row, 1)?)?);
        if events + counted > SLICE_EVENTS && events > 0 {
            slices.push(slice(from, day));
            (from, events) = (day, 0);
        }
        events += counted;
    }
    slices.push(slice(from, EVER.1));
    // Nothing was used at no time, so this one reads no events.
    let nothing = Slice { from: EVER.0, until: EVER.0, ..Slice::of_tenants(tenant, tenant) };
    slices.push(nothing);
    Ok(slices)
}

type CheckedTenants = HashMap<TenantNo, TenantId>;

async fn read_tenants(client: &ClientWrapper, slice: Slice) -> Result<CheckedTenants> {
    let sql = "-- read_tenants
        SELECT tenant_no, tenant FROM tenants WHERE tenant_no BETWEEN $1 AND $2";
    let mut tenants = CheckedTenants::new();
    for row in client.query(sql, &[&slice.first, &slice.last]).await? {
        let name: String = column(&row, 1)?;
        let tenant = TenantId::parse(&name).map_err(|_| damaged("tenants.tenant", &name))?;
        tenants.insert(read_tenant_no(column(&row, 0)?)?, tenant);
    }
    Ok(tenants)
}

/// One slice in its snapshot.
struct SliceCheck<'c> {
    client: &'c ClientWrapper,
    slice: Slice,
    catalog: Catalog,
    tenants: CheckedTenants,
    report: &'c mut CheckReport,
}

impl SliceCheck<'_> {
    async fn run(&mut self, fingerprinter: &Fingerprinter, progress: Progress<'_>) -> Result<()> {
        let computed = self.recompute(fingerprinter, progress).await?;
        let stored = self.read_totals().await?;
        self.compare_totals(computed, stored);
        self.compare_uniques().await?;
        if self.slice.whole {
            self.compare_counts().await?;
        }
        Ok(())
    }

    /// Adds up the events, and looks for each by its key.
    async fn recompute(
        &mut self,
        fingerprinter: &Fingerprinter,
        progress: Progress<'_>,
    ) -> Result<Totals> {
        let sql = "-- recompute
            DECLARE checked NO SCROLL CURSOR FOR
            SELECT tenant_no, event_no, meter_no, trial, occurred_at, received_at, quantity, id,
                properties, subscription
            FROM events
            WHERE tenant_no BETWEEN $1 AND $2 AND occurred_at >= $3 AND occurred_at < $4";
        let mut totals = Totals::new();
        self.client.execute(sql, &self.slice.place()).await?;
        let fetch = self.client.prepare(&format!("FETCH {PAGE_EVENTS} FROM checked")).await?;
        loop {
            let rows = self.client.query(&fetch, &[]).await?;
            let mut claims = ClaimsCheck::default();
            for row in &rows {
                self.report.events += 1;
                let number = read_tenant_no(column(row, 0)?)?;
                let Some(tenant) = self.tenants.get(&number) else {
                    self.report
                        .add(|| format!("an event belongs to no tenant (number {})", number.0));
                    continue;
                };
                let stored = stored_event(row, tenant.clone())?;
                let home = fingerprinter.event_key(number, &stored.event.id);
                claims.expect(number, home, column(row, 1)?, &stored);
                if self.catalog.get(stored.event.meter).is_none() {
                    let id = &stored.event.id;
                    self.report.add(|| format!("event {id} of {tenant} belongs to no meter"));
                    continue;
                }
                fold_event(&mut totals, number, &stored.event, &self.catalog)?;
            }
            claims.check(self.client, self.report).await?;
            progress(self.report.events);
            if rows.len() < PAGE_EVENTS {
                self.client.batch_execute("CLOSE checked").await?;
                return Ok(totals);
            }
        }
    }

    /// The totals that are stored, with what is not folded into them yet.
    async fn read_totals(&mut self) -> Result<Totals> {
        let sql = "-- read_totals
            SELECT * FROM (SELECT r.tenant_no, r.meter_no, r.bucket_start, COALESCE(r.grp_text, r.grp), r.count,
                r.total, r.latest_at, r.latest_id,
                ARRAY(
                    SELECT u.value FROM rollup_uniques u
                    WHERE u.tenant_no = r.tenant_no AND u.meter_no = r.meter_no
                        AND u.bucket_start = r.bucket_start AND u.grp = r.grp
                )
            FROM rollups r
            WHERE tenant_no BETWEEN $1 AND $2 AND bucket_start >= $3 AND bucket_start < $4
            UNION ALL
            SELECT tenant_no, meter_no, bucket_start, grp, count, total, latest_at, latest_id,
                COALESCE(found, ARRAY[]::text[])
            FROM rollup_deltas
            WHERE tenant_no BETWEEN $1 AND $2 AND bucket_start >= $3 AND bucket_start < $4) AS t";
        let mut totals = Totals::new();
        for row in self.client.query(sql, &self.slice.place()).await? {
            let tenant = read_tenant_no(column(&row, 0)?)?;
            let meter = read_meter_no(column(&row, 1)?)?;
            let Some(definition) = self.catalog.get(meter) else {
                self.report.add(|| format!("a total belongs to no meter (number {})", meter.0));
                continue;
            };
            let stored = usage_row(&row, 2, definition.spec.aggregation)?;
            let (bucket_start, group) = (stored.bucket_start, stored.group);
            let key = RollupKey { tenant, meter, bucket_start, group };
            fold_total(&mut totals, key, stored.rollup)?;
        }
        Ok(totals)
    }

    fn compare_totals(&mut self, mut computed: Totals, stored: Totals) {
        let Self { catalog, tenants, report, .. } = self;
        for (key, rollup) in stored {
            report.rollups += 1;
            let name = || describe(&key, catalog, tenants);
            match computed.remove(&key) {
                None => report.add(|| format!("{} has a total and no events", name())),
                Some(events) if events != rollup => {
                    report.add(|| format!("{} is {rollup:?}, its events give {events:?}", name()))
                }
                Some(_) => {}
            }
        }
        let mut missing: Vec<&RollupKey> = computed.keys().collect();
        missing.sort_unstable();
        for key in missing {
            report.add(|| format!("{} has events and no total", describe(key, catalog, tenants)));
        }
    }

    async fn compare_uniques(&mut self) -> Result<()> {
        let sql = "-- compare_uniques
            SELECT count(*) FROM rollup_uniques u
            WHERE tenant_no BETWEEN $1 AND $2 AND bucket_start >= $3 AND bucket_start < $4
                AND NOT EXISTS (
                    SELECT FROM rollups r
                    WHERE r.tenant_no = u.tenant_no AND r.meter_no = u.meter_no
                        AND r.bucket_start = u.bucket_start AND r.grp = u.grp
                )";
        let row = self.client.query_one(sql, &self.slice.place()).await?;
        let surplus: i64 = column(&row, 0)?;
        if surplus > 0 {
            self.report.add(|| format!("{surplus} unique values belong to no total"));
        }
        Ok(())
    }

    /// Each tenant has as many events as its counters say, and as many claims.
    async fn compare_counts(&mut self) -> Result<()> {
        let sql = "-- compare_counts
            SELECT tenant_no, sum(accepted)::int8, sum(claims)::int8, sum(events)::int8 FROM (
                SELECT tenant_no, accepted, 0 AS claims, 0 AS events FROM counters
                WHERE tenant_no BETWEEN $1 AND $2
                UNION ALL
                SELECT tenant_no, accepted, 0, 0 FROM counter_deltas
                WHERE tenant_no BETWEEN $1 AND $2
                UNION ALL
                SELECT tenant_no, 0, count(*), 0 FROM event_claims
                WHERE tenant_no BETWEEN $1 AND $2 GROUP BY tenant_no
                UNION ALL
                SELECT tenant_no, 0, 0, count(*) FROM events
                WHERE tenant_no BETWEEN $1 AND $2 GROUP BY tenant_no
            ) AS parts
            GROUP BY tenant_no ORDER BY tenant_no";
        for row in self.client.query(sql, &[&self.slice.first, &self.slice.last]).await? {
            let number = read_tenant_no(column(&row, 0)?)?;
            let count = |place: usize| read_count(column(&row, place)?);
            let (accepted, claims, events) = (count(1)?, count(2)?, count(3)?);
            let name = || match self.tenants.get(&number) {
                Some(name) => format!("tenant {name}"),
                None => "no tenant".to_owned(),
            };
            if accepted != events {
                self.report.add(|| {
                    let name = name();
                    format!("counters of {name} say {accepted} accepted, there are {events} events")
                });
            }
            if claims != events {
                self.report.add(|| format!("{} has {events} events and {claims} keys", name()));
            }
        }
        Ok(())
    }
}

fn describe(key: &RollupKey, catalog: &Catalog, tenants: &CheckedTenants) -> String {
    let tenant = tenants.get(&key.tenant).map_or("?", TenantId::as_str);
    let meter = catalog.get(key.meter).map_or("?", |meter| meter.slug.as_str());
    let (bucket_start, group) = (key.bucket_start, key.group.as_text());
    format!("the total of tenant {tenant}, meter {meter}, bucket {bucket_start}, group {group:?}")
}
