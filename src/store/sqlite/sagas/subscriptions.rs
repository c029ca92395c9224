//! Subscription records: what tenants are charged by and what they may use.
//!
//! Invariant: a subscription has one open subscription record at most, and a saga makes one at
//! most. One that another took the place of remembers by which saga and with which access, so that
//! it can be restored. Subscription records follow the readings of their subscription, see
//! `rules::access`. Each function is part of one transaction; a crash leaves it done or not.

use super::super::statements::Statements;
use crate::faults::planted;
use crate::rules::access::AccessChange;
use crate::rules::ids::{SubscriptionId, TenantId, TenantNo};
use crate::rules::mirror::{ObjectKind, ObjectName};
use crate::rules::stamp::{Agreed, Term, find_terms};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::saga::{SubscriptionReading, SubscriptionRecord};
use crate::store::sqlite::outbox::append_change;
use crate::store::sqlite::push_rows::{get, moment};
use crate::store::sqlite::timelines::read_timeline;
use crate::store::sqlite::{corrupt, damaged, mirrors};
use rusqlite::{Connection, Row, params};

pub fn record_subscription(
    connection: &Connection,
    tenant: TenantNo,
    record: &SubscriptionRecord,
) -> Result<()> {
    let exists: bool = connection.read_one(
        "-- record_subscription
         SELECT EXISTS (SELECT 1 FROM subscription_records WHERE saga = ?)",
        [&record.saga],
        |row| Ok(row.get(0)?),
    )?;
    if exists {
        return Ok(());
    }
    let SubscriptionRecord { subscription, saga, began_at, .. } = record;
    connection.run(
        "-- record_subscription
         UPDATE subscription_records SET ended_at = ?, ended_by = ?, access_before = access, access = 0
         WHERE subscription = ? AND ended_at IS NULL",
        params![began_at.micros(), saga, subscription.as_str()],
    )?;
    insert_subscription_record(connection, tenant, record)?;
    follow_mirror(connection, subscription)
}

fn insert_subscription_record(
    connection: &Connection,
    tenant: TenantNo,
    record: &SubscriptionRecord,
) -> Result<()> {
    connection.run(
        "-- insert_subscription_record
         INSERT INTO subscription_records (saga, tenant_no, subscription, plan, prices, features, access,
                                 began_at)
         VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        params![
            record.saga,
            tenant.0,
            record.subscription.as_str(),
            record.plan,
            texts_json(&record.prices),
            texts_json(&record.features),
            record.began_at.micros()
        ],
    )?;
    Ok(())
}

pub fn charge_from(connection: &Connection, saga: &str, at: Timestamp) -> Result<()> {
    connection.run(
        "-- charge_from\nUPDATE subscription_records SET charged_from = ? WHERE saga = ?",
        params![at.micros(), saga],
    )?;
    Ok(())
}

/// Under which subscriptions a tenant's usage is charged.
pub fn read_terms(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
) -> Result<Vec<Term>> {
    if planted("bug.stamp_outside_subscription") {
        return Ok(Vec::new());
    }

    let agreed = connection.read_all(
        "-- read_terms
         SELECT subscription, began_at, charged_from, ended_at FROM subscription_records
         WHERE tenant_no = ?",
        [tenant.0],
        |row| {
            let subscription: String = get(row, "subscription")?;
            let subscription = SubscriptionId::parse(&subscription);
            let optional =
                |name| get::<Option<i64>>(row, name).map(|at| at.map(Timestamp::from_micros));
            Ok(Agreed {
                subscription: subscription
                    .map_err(|_| corrupt("subscription_records.subscription"))?,
                began_at: moment(row, "began_at")?,
                charged_from: optional("charged_from")?,
                ended_at: optional("ended_at")?,
            })
        },
    )?;
    Ok(find_terms(&agreed, &read_timeline(connection, of)?))
}

/// One that has ended gives no access any more.
pub fn set_access(connection: &Connection, saga: &str, access: bool) -> Result<()> {
    connection.run(
        "-- set_access
         UPDATE subscription_records SET access = ? WHERE saga = ? AND ended_at IS NULL",
        params![access, saga],
    )?;
    Ok(())
}

pub fn withdraw_subscription(connection: &Connection, saga: &str) -> Result<()> {
    let withdrawn: Option<String> = connection.read_optional(
        "-- withdraw_subscription
         DELETE FROM subscription_records WHERE saga = ? RETURNING subscription",
        [saga],
        |row| Ok(row.get(0)?),
    )?;
    let Some(subscription) = withdrawn else { return Ok(()) };
    connection.run(
        "-- withdraw_subscription
         UPDATE subscription_records SET ended_at = NULL, ended_by = NULL, access = access_before
         WHERE ended_by = ?",
        [saga],
    )?;
    follow_mirror(connection, &parse_subscription(&subscription)?)
}

pub fn end_subscription(
    connection: &Connection,
    subscription: &SubscriptionId,
    at: Timestamp,
) -> Result<()> {
    connection.run(
        "-- end_subscription
         UPDATE subscription_records SET ended_at = ?1
         WHERE subscription = ?2 AND ended_by IS NULL
             AND (ended_at IS NULL OR ended_at > ?1)",
        params![at.micros(), subscription.as_str()],
    )?;
    Ok(())
}

/// Brings the subscription records of a subscription up to what its mirror shows.
fn follow_mirror(connection: &Connection, subscription: &SubscriptionId) -> Result<()> {
    let (kind, id) = (ObjectKind::Subscription, subscription.as_str().to_owned());
    let Some(mirror) = mirrors::find_mirror(connection, &ObjectName { kind, id })? else {
        return Ok(());
    };
    match SubscriptionReading::of_mirror(&mirror) {
        Some(reading) => follow_reading(connection, subscription, &reading),
        None => Ok(()),
    }
}

/// Changes the subscription records of a subscription by a reading of it, and tells of each change.
/// Those that others took the place of are left as they are.
pub fn follow_reading(
    connection: &Connection,
    subscription: &SubscriptionId,
    reading: &SubscriptionReading<'_>,
) -> Result<()> {
    for (number, tenant, record) in list_following(connection, subscription)? {
        let Some((change, published)) = record.follow(reading) else { continue };
        write_change(connection, number, change)?;
        append_change(connection, &published, Some(tenant), reading.read_at)?;
    }
    Ok(())
}

fn list_following(
    connection: &Connection,
    subscription: &SubscriptionId,
) -> Result<Vec<(i64, TenantNo, SubscriptionRecord)>> {
    connection.read_all(
        "-- list_following
         SELECT record_no, subscription_records.tenant_no AS number, tenant, saga, subscription, plan,
                prices, features, access, suspended, began_at, ended_at
         FROM subscription_records JOIN tenants ON tenants.tenant_no = subscription_records.tenant_no
         WHERE subscription = ? AND ended_by IS NULL ORDER BY record_no",
        [subscription.as_str()],
        |row| {
            let number = get(row, "record_no")?;
            let tenant = TenantNo(get(row, "number")?);
            Ok((number, tenant, decode_subscription_record(row, &tenant_of(row)?)?))
        },
    )
}

fn write_change(connection: &Connection, number: i64, change: AccessChange) -> Result<()> {
    let (suspended, ended_at) = match change {
        AccessChange::Suspend => (true, None),
        AccessChange::Resume => (false, None),
        AccessChange::End { at } => (false, Some(at.micros())),
    };
    connection.run(
        "-- write_change
         UPDATE subscription_records SET suspended = ?2, ended_at = COALESCE(?3, ended_at)
         WHERE record_no = ?1",
        params![number, suspended, ended_at],
    )?;
    Ok(())
}

/// The newest one.
pub fn find_subscription_record(
    connection: &Connection,
    subscription: &SubscriptionId,
) -> Result<Option<SubscriptionRecord>> {
    let mut select = connection.prepare_cached(
        "-- find_subscription_record
         SELECT tenant, saga, subscription, plan, prices, features, access, suspended,
                began_at, ended_at
         FROM subscription_records JOIN tenants ON tenants.tenant_no = subscription_records.tenant_no
         WHERE subscription = ? ORDER BY record_no DESC LIMIT 1",
    )?;
    let mut rows = select.query([subscription.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    decode_subscription_record(row, &tenant_of(row)?).map(Some)
}

fn tenant_of(row: &Row<'_>) -> Result<TenantId> {
    let tenant: String = get(row, "tenant")?;
    TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))
}

fn parse_subscription(text: &str) -> Result<SubscriptionId> {
    SubscriptionId::parse(text).map_err(|_| damaged("subscription_records.subscription", text))
}

/// Newest first.
pub fn list_subscription_records(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    limit: usize,
) -> Result<Vec<SubscriptionRecord>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- list_subscription_records
         SELECT saga, subscription, plan, prices, features, access, suspended, began_at,
                ended_at
         FROM subscription_records WHERE tenant_no = ? ORDER BY record_no DESC LIMIT ?",
        params![tenant.0, limit],
        |row| decode_subscription_record(row, of),
    )
}

fn decode_subscription_record(row: &Row<'_>, tenant: &TenantId) -> Result<SubscriptionRecord> {
    let subscription: String = get(row, "subscription")?;
    Ok(SubscriptionRecord {
        tenant: tenant.clone(),
        subscription: parse_subscription(&subscription)?,
        plan: get(row, "plan")?,
        prices: texts_of(row, "prices")?,
        features: texts_of(row, "features")?,
        access: get(row, "access")?,
        suspended: get(row, "suspended")?,
        saga: get(row, "saga")?,
        began_at: moment(row, "began_at")?,
        ended_at: get::<Option<i64>>(row, "ended_at")?.map(Timestamp::from_micros),
    })
}

fn texts_json(texts: &[String]) -> String {
    serde_json::to_string(texts).expect("texts are valid JSON")
}

fn texts_of(row: &Row<'_>, column: &str) -> Result<Vec<String>> {
    let text: String = get(row, column)?;
    serde_json::from_str(&text)
        .map_err(|_| damaged("subscription_records.prices or features", &text))
}
