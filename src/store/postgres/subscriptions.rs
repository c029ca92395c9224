//! Subscription records: what tenants have agreed to, one open one for each subscription.
//!
//! Invariant: a subscription record that has ended gives no access. One that another took the place
//! of knows by whom and what access it gave, so that it can be as it was when that one is
//! withdrawn. The unique index `subscription_records_open` decides between two at once; the loser
//! looks again. Subscription records follow the readings of their subscription, see
//! `rules::access`: what writes one holds the lock of the subscription's mirror, so that it and a
//! reading do not miss each other.
//!
//! A crash leaves all of a call or nothing, and every call may be repeated.

use super::declarations::hold_tenant;
use super::mirrors::lock_subscription;
use super::outbox::append_changes;
use super::scalars::{SqlTimestamp, column, corrupt, instant, instant_if_any, write_limit};
use super::statements::Statements;
use super::timelines::read_timelines;
use super::transaction::Done;
use crate::faults::planted;
use crate::rules::access::AccessChange;
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::stamp::{Agreed, Term, find_terms};
use crate::rules::timestamp::Timestamp;
use crate::store::outbox::FeedChange;
use crate::store::saga::{SubscriptionReading, SubscriptionRecord};
use crate::store::webhook::Mirror;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Writes the subscription record of a saga, in the place of the one that is open.
pub async fn record(client: &ClientWrapper, record: &SubscriptionRecord) -> Done<()> {
    let mirror = lock_subscription(client, &record.subscription).await?;
    let tenant_no = hold_tenant(client, &record.tenant, record.began_at).await?;
    let sql = "-- record
        SELECT FROM subscription_records WHERE saga = $1";
    if client.query_opt(sql, &[&record.saga]).await?.is_some() {
        return Ok(());
    }
    let sql = "-- record
        UPDATE subscription_records SET ended_at = $2, ended_by = $3, access_before = access, access = false
        WHERE subscription = $1 AND ended_at IS NULL";
    let (subscription, began_at) = (record.subscription.as_str(), SqlTimestamp(record.began_at));
    client.execute(sql, &[&subscription, &began_at, &record.saga]).await?;
    let sql = "-- record
        INSERT INTO subscription_records
            (saga, tenant_no, subscription, plan, prices, features, access, began_at)
        VALUES ($1, $2, $3, $4, $5, $6, false, $7)";
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &record.saga,
        &tenant_no,
        &subscription,
        &record.plan,
        &write_texts(&record.prices)?,
        &write_texts(&record.features)?,
        &began_at,
    ];
    client.execute(sql, &parameters).await?;
    follow_mirror(client, mirror.as_ref()).await
}

pub async fn charge_from(client: &ClientWrapper, saga: &str, at: Timestamp) -> Done<()> {
    let sql = "-- charge_from
        UPDATE subscription_records SET charged_from = $2 WHERE saga = $1";
    client.execute(sql, &[&saga, &SqlTimestamp(at)]).await?;
    Ok(())
}

/// Under which subscriptions the usage of each of these tenants is charged.
pub async fn read_terms(
    client: &ClientWrapper,
    numbers: &[i32],
) -> Result<BTreeMap<i32, Vec<Term>>> {
    if planted("bug.stamp_outside_subscription") {
        return Ok(BTreeMap::new());
    }
    let sql = "-- read_terms
        SELECT tenant_no, subscription, began_at, charged_from, ended_at FROM subscription_records
        WHERE tenant_no = ANY($1)";
    let statement = client.prepare_cached(sql).await?;
    let mut agreed: BTreeMap<i32, Vec<Agreed>> = BTreeMap::new();
    for row in client.query(&statement, &[&numbers]).await? {
        let subscription: String = column(&row, 1)?;
        agreed.entry(column(&row, 0)?).or_default().push(Agreed {
            subscription: SubscriptionId::parse(&subscription)
                .map_err(|_| corrupt("a subscription has no valid id"))?,
            began_at: instant(&row, 2)?,
            charged_from: instant_if_any(&row, 3)?,
            ended_at: instant_if_any(&row, 4)?,
        });
    }
    let mut timelines = read_timelines(client, numbers).await?;
    let mut terms = BTreeMap::new();
    for number in numbers {
        let (agreed, timeline) = (agreed.remove(number), timelines.remove(number));
        let found = find_terms(&agreed.unwrap_or_default(), &timeline.unwrap_or_default());
        terms.insert(*number, found);
    }
    Ok(terms)
}

/// Opens or closes the features; those of a subscription record that has ended stay closed.
pub async fn set_access(client: &ClientWrapper, saga: &str, access: bool) -> Done<()> {
    let sql = "-- set_access
        UPDATE subscription_records SET access = $2 WHERE saga = $1 AND ended_at IS NULL";
    client.execute(sql, &[&saga, &access]).await?;
    Ok(())
}

/// Withdraws the subscription record of a saga. The one that it ended goes on from there: it is
/// open again, or ended by what has ended the one that is withdrawn.
pub async fn withdraw(client: &ClientWrapper, saga: &str) -> Done<()> {
    let sql = "-- withdraw
        SELECT subscription FROM subscription_records WHERE saga = $1";
    let Some(row) = client.query_opt(sql, &[&saga]).await? else { return Ok(()) };
    let mirror = lock_subscription(client, &read_subscription(&row, 0)?).await?;
    let sql = "-- withdraw
        DELETE FROM subscription_records WHERE saga = $1 RETURNING ended_at, ended_by";
    let Some(row) = client.query_opt(sql, &[&saga]).await? else { return Ok(()) };
    let ended_at = instant_if_any(&row, 0)?.map(SqlTimestamp);
    let ended_by: Option<String> = column(&row, 1)?;
    let sql = "-- withdraw
        UPDATE subscription_records SET ended_at = $2, ended_by = $3,
            access = access_before AND $2::timestamptz IS NULL,
            access_before = access_before AND $2::timestamptz IS NOT NULL
        WHERE ended_by = $1";
    client.execute(sql, &[&saga, &ended_at, &ended_by]).await?;
    follow_mirror(client, mirror.as_ref()).await
}

pub async fn end(client: &ClientWrapper, subscription: &SubscriptionId, at: Timestamp) -> Done<()> {
    let sql = "-- end
        UPDATE subscription_records SET ended_at = $2
        WHERE subscription = $1 AND ended_by IS NULL AND (ended_at IS NULL OR ended_at > $2)";
    client.execute(sql, &[&subscription.as_str(), &SqlTimestamp(at)]).await?;
    Ok(())
}

/// Brings the subscription records of a subscription up to what its mirror shows, and tells of it.
async fn follow_mirror(client: &ClientWrapper, mirror: Option<&Mirror>) -> Done<()> {
    let Some(mirror) = mirror else { return Ok(()) };
    let Some(reading) = SubscriptionReading::of_mirror(mirror) else { return Ok(()) };
    let subscription = SubscriptionId::parse(&mirror.name.id)
        .map_err(|_| corrupt("a subscription has no valid id"))?;
    let changes = follow_reading(client, &subscription, &reading).await?;
    append_changes(client, &changes, reading.read_at).await?;
    Ok(())
}

/// Changes the subscription records of a subscription by a reading of it; the changes that tell of
/// it. Those that others took the place of are left as they are. The caller holds the mirror's
/// lock.
pub async fn follow_reading(
    client: &ClientWrapper,
    subscription: &SubscriptionId,
    reading: &SubscriptionReading<'_>,
) -> Done<Vec<FeedChange>> {
    let sql = "-- follow_reading
        SELECT t.tenant, a.subscription, a.plan, a.prices, a.features, a.access, a.saga,
            a.began_at, a.ended_at, a.suspended, a.record_no
        FROM subscription_records a JOIN tenants t ON t.tenant_no = a.tenant_no
        WHERE a.subscription = $1 AND a.ended_by IS NULL
        ORDER BY a.record_no
        FOR UPDATE OF a";
    let statement = client.prepare_cached(sql).await?;
    let mut changes = Vec::new();
    for row in client.query(&statement, &[&subscription.as_str()]).await? {
        let Some((change, published)) = decode_record(&row)?.follow(reading) else { continue };
        write_change(client, column(&row, 10)?, change).await?;
        changes.push(published);
    }
    Ok(changes)
}

async fn write_change(client: &ClientWrapper, number: i64, change: AccessChange) -> Done<()> {
    let (suspended, ended_at) = match change {
        AccessChange::Suspend => (true, None),
        AccessChange::Resume => (false, None),
        AccessChange::End { at } => (false, Some(SqlTimestamp(at))),
    };
    let sql = "-- write_change
        UPDATE subscription_records SET suspended = $2, ended_at = COALESCE($3, ended_at)
        WHERE record_no = $1";
    client.run(sql, &[&number, &suspended, &ended_at]).await?;
    Ok(())
}

/// The newest one.
pub async fn find(
    client: &ClientWrapper,
    subscription: &SubscriptionId,
) -> Result<Option<SubscriptionRecord>> {
    let sql = "-- find
        SELECT t.tenant, a.subscription, a.plan, a.prices, a.features, a.access, a.saga,
            a.began_at, a.ended_at, a.suspended
        FROM subscription_records a JOIN tenants t ON t.tenant_no = a.tenant_no
        WHERE a.subscription = $1
        ORDER BY a.record_no DESC LIMIT 1";
    let row = client.read_optional(sql, &[&subscription.as_str()]).await?;
    row.as_ref().map(decode_record).transpose()
}

pub async fn list(
    client: &ClientWrapper,
    tenant: &TenantId,
    limit: usize,
) -> Result<Vec<SubscriptionRecord>> {
    let sql = "-- list
        SELECT t.tenant, a.subscription, a.plan, a.prices, a.features, a.access, a.saga,
            a.began_at, a.ended_at, a.suspended
        FROM tenants t JOIN subscription_records a ON a.tenant_no = t.tenant_no
        WHERE t.tenant = $1
        ORDER BY a.record_no DESC LIMIT $2";
    let rows = client.read_all(sql, &[&tenant.as_str(), &write_limit(limit)]).await?;
    rows.iter().map(decode_record).collect()
}

fn decode_record(row: &Row) -> Result<SubscriptionRecord> {
    let tenant: String = column(row, 0)?;
    Ok(SubscriptionRecord {
        tenant: TenantId::parse(&tenant).map_err(|_| corrupt("a tenant has no valid id"))?,
        subscription: read_subscription(row, 1)?,
        plan: column(row, 2)?,
        prices: read_texts(row, 3)?,
        features: read_texts(row, 4)?,
        access: column(row, 5)?,
        saga: column(row, 6)?,
        began_at: instant(row, 7)?,
        ended_at: instant_if_any(row, 8)?,
        suspended: column(row, 9)?,
    })
}

fn read_subscription(row: &Row, place: usize) -> Result<SubscriptionId> {
    let id: String = column(row, place)?;
    SubscriptionId::parse(&id).map_err(|_| corrupt("a subscription has no valid id"))
}

fn write_texts(texts: &[String]) -> Result<String> {
    serde_json::to_string(texts).map_err(|error| Error::Internal { what: error.to_string() })
}

fn read_texts(row: &Row, place: usize) -> Result<Vec<String>> {
    let texts: String = column(row, place)?;
    serde_json::from_str(&texts)
        .map_err(|_| corrupt("a list of a subscription record is not valid"))
}
