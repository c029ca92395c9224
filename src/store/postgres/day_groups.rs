//! The groups of a tenant's meter on a day, in their table; see [`crate::store::groups`].
//!
//! Invariant: written in the transaction that accepts the first event of a group, in the order of
//! the key, as every server does, so that two of them never wait for each other in a circle.

use super::failure::Failure;
use super::judgement::{SortedBatch, meter_of};
use super::scalars::{column, meter_number, read_meter_no, tenant_number};
use super::statements::Statements;
use crate::rules::ids::TenantNo;
use crate::rules::meter::Catalog;
use crate::store::groups::{GroupDay, KnownGroups, NewGroups};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;

/// Makes the days known that groups of the batch may lie in.
pub async fn load_days(
    client: &ClientWrapper,
    sorted: &SortedBatch<'_>,
    catalog: &Catalog,
    known: &mut KnownGroups,
) -> std::result::Result<(), Failure> {
    let mut days: BTreeMap<GroupDay, Vec<i64>> = BTreeMap::new();
    for (tenant, event) in sorted.events() {
        if sorted.batch.acceptance.admits(event.occurred_at).is_err() {
            continue;
        }
        let spec = &meter_of(catalog, event.meter)?.spec;
        if event.subscription.is_none() && !event.trial && spec.dimensions.is_empty() {
            continue;
        }
        let day = GroupDay::of(tenant, event.meter, spec.bucket.start_of(event.occurred_at));
        if !known.has_loaded(&day) {
            days.entry(day).or_default();
        }
    }
    if days.is_empty() {
        return Ok(());
    }
    let sql = "-- load_days
        SELECT tenant_no, meter_no, day, grp
        FROM unnest($1::int4[], $2::int2[], $3::int4[]) AS asked (tenant_no, meter_no, day)
        JOIN day_groups USING (tenant_no, meter_no, day)";
    let statement = client.prepare_cached(sql).await?;
    let (tenants, meters, numbers) = columns(days.keys());
    for row in client.query(&statement, &[&tenants, &meters, &numbers]).await? {
        let tenant = TenantNo(u32::try_from(column::<i32>(&row, 0)?).map_err(|_| no_tenant())?);
        let day =
            GroupDay { tenant, meter: read_meter_no(column(&row, 1)?)?, day: column(&row, 2)? };
        days.entry(day).or_default().push(column(&row, 3)?);
    }
    for (day, groups) in days {
        known.load(day, groups);
    }
    Ok(())
}

fn no_tenant() -> crate::store::Error {
    super::scalars::corrupt("day_groups.tenant_no is out of range")
}

/// Writes what a batch adds, inside the caller's transaction.
pub async fn insert_groups(
    client: &ClientWrapper,
    added: &NewGroups,
) -> std::result::Result<(), Failure> {
    if added.is_empty() {
        return Ok(());
    }
    let sql = "-- insert_groups
        INSERT INTO day_groups (tenant_no, meter_no, day, grp)
        SELECT * FROM unnest($1::int4[], $2::int2[], $3::int4[], $4::int8[])
        ON CONFLICT DO NOTHING";
    let (tenants, meters, days) = columns(added.iter().map(|(day, _)| day));
    let groups: Vec<i64> = added.iter().map(|(_, group)| *group).collect();
    client.run(sql, &[&tenants, &meters, &days, &groups]).await?;
    Ok(())
}

fn columns<'d>(days: impl Iterator<Item = &'d GroupDay>) -> (Vec<i32>, Vec<i16>, Vec<i32>) {
    let (mut tenants, mut meters, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for GroupDay { tenant, meter, day } in days {
        tenants.push(tenant_number(*tenant));
        meters.push(meter_number(*meter));
        numbers.push(*day);
    }
    (tenants, meters, numbers)
}
