//! Agreements: what tenants are charged by and what they may use.
//!
//! Invariant: a subscription has one open agreement at most, and a saga makes one at most. One
//! that another took the place of remembers by which saga and with which access, so that it can
//! be restored. Agreements follow the readings of their subscription, see `rules::access`. Each
//! function is part of one transaction; a crash leaves it done or not.

use super::super::statements::Statements;
use crate::faults::planted;
use crate::rules::access::AccessChange;
use crate::rules::ids::{SubscriptionId, TenantId, TenantNo};
use crate::rules::mirror::{ObjectKind, ObjectName};
use crate::rules::stamp::{Agreed, Term, find_terms};
use crate::rules::timestamp::Timestamp;
use crate::store::Result;
use crate::store::saga::{Agreement, SubscriptionReading};
use crate::store::sqlite::outbox::write_message;
use crate::store::sqlite::push_rows::{get, moment};
use crate::store::sqlite::timelines::read_timeline;
use crate::store::sqlite::{corrupt, damaged, mirrors};
use rusqlite::{Connection, Row, params};

pub fn record_agreement(
    connection: &Connection,
    tenant: TenantNo,
    agreement: &Agreement,
) -> Result<()> {
    let stands: bool = connection.read_one(
        "-- record_agreement
         SELECT EXISTS (SELECT 1 FROM agreements WHERE saga = ?)",
        [&agreement.saga],
        |row| Ok(row.get(0)?),
    )?;
    if stands {
        return Ok(());
    }
    let Agreement { subscription, saga, began_at, .. } = agreement;
    connection.run(
        "-- record_agreement
         UPDATE agreements SET ended_at = ?, ended_by = ?, access_before = access, access = 0
         WHERE subscription = ? AND ended_at IS NULL",
        params![began_at.micros(), saga, subscription.as_str()],
    )?;
    insert_agreement(connection, tenant, agreement)?;
    follow_mirror(connection, subscription)
}

fn insert_agreement(
    connection: &Connection,
    tenant: TenantNo,
    agreement: &Agreement,
) -> Result<()> {
    connection.run(
        "-- insert_agreement
         INSERT INTO agreements (saga, tenant_no, subscription, plan, prices, features, access,
                                 began_at)
         VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        params![
            agreement.saga,
            tenant.0,
            agreement.subscription.as_str(),
            agreement.plan,
            texts_json(&agreement.prices),
            texts_json(&agreement.features),
            agreement.began_at.micros()
        ],
    )?;
    Ok(())
}

pub fn charge_from(connection: &Connection, saga: &str, at: Timestamp) -> Result<()> {
    connection.run(
        "-- charge_from\nUPDATE agreements SET charged_from = ? WHERE saga = ?",
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
         SELECT subscription, began_at, charged_from, ended_at FROM agreements
         WHERE tenant_no = ?",
        [tenant.0],
        |row| {
            let subscription: String = get(row, "subscription")?;
            let subscription = SubscriptionId::parse(&subscription);
            let optional =
                |name| get::<Option<i64>>(row, name).map(|at| at.map(Timestamp::from_micros));
            Ok(Agreed {
                subscription: subscription.map_err(|_| corrupt("agreements.subscription"))?,
                began_at: moment(row, "began_at")?,
                charged_from: optional("charged_from")?,
                ended_at: optional("ended_at")?,
            })
        },
    )?;
    Ok(find_terms(&agreed, &read_timeline(connection, of)?))
}

/// One that has ended gives no access any more, whoever asks.
pub fn set_access(connection: &Connection, saga: &str, access: bool) -> Result<()> {
    connection.run(
        "-- set_access
         UPDATE agreements SET access = ? WHERE saga = ? AND ended_at IS NULL",
        params![access, saga],
    )?;
    Ok(())
}

pub fn withdraw_agreement(connection: &Connection, saga: &str) -> Result<()> {
    let withdrawn: Option<String> = connection.read_optional(
        "-- withdraw_agreement
         DELETE FROM agreements WHERE saga = ? RETURNING subscription",
        [saga],
        |row| Ok(row.get(0)?),
    )?;
    let Some(subscription) = withdrawn else { return Ok(()) };
    connection.run(
        "-- withdraw_agreement
         UPDATE agreements SET ended_at = NULL, ended_by = NULL, access = access_before
         WHERE ended_by = ?",
        [saga],
    )?;
    follow_mirror(connection, &parse_subscription(&subscription)?)
}

pub fn end_agreement(
    connection: &Connection,
    subscription: &SubscriptionId,
    at: Timestamp,
) -> Result<()> {
    connection.run(
        "-- end_agreement
         UPDATE agreements SET ended_at = ?1
         WHERE subscription = ?2 AND ended_by IS NULL
             AND (ended_at IS NULL OR ended_at > ?1)",
        params![at.micros(), subscription.as_str()],
    )?;
    Ok(())
}

/// Brings the agreements of a subscription up to what its mirror shows.
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

/// Changes the agreements of a subscription by a reading of it, and tells of each change. Those
/// that others took the place of are left as they are.
pub fn follow_reading(
    connection: &Connection,
    subscription: &SubscriptionId,
    reading: &SubscriptionReading<'_>,
) -> Result<()> {
    for (number, tenant, agreement) in list_following(connection, subscription)? {
        let Some((change, message)) = agreement.follow(reading) else { continue };
        write_change(connection, number, change)?;
        write_message(connection, &message, Some(tenant), reading.read_at)?;
    }
    Ok(())
}

fn list_following(
    connection: &Connection,
    subscription: &SubscriptionId,
) -> Result<Vec<(i64, TenantNo, Agreement)>> {
    connection.read_all(
        "-- list_following
         SELECT agreement_no, agreements.tenant_no AS number, tenant, saga, subscription, plan,
                prices, features, access, suspended, began_at, ended_at
         FROM agreements JOIN tenants ON tenants.tenant_no = agreements.tenant_no
         WHERE subscription = ? AND ended_by IS NULL ORDER BY agreement_no",
        [subscription.as_str()],
        |row| {
            let number = get(row, "agreement_no")?;
            let tenant = TenantNo(get(row, "number")?);
            Ok((number, tenant, decode_agreement(row, &tenant_of(row)?)?))
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
         UPDATE agreements SET suspended = ?2, ended_at = COALESCE(?3, ended_at)
         WHERE agreement_no = ?1",
        params![number, suspended, ended_at],
    )?;
    Ok(())
}

/// The newest one.
pub fn find_agreement(
    connection: &Connection,
    subscription: &SubscriptionId,
) -> Result<Option<Agreement>> {
    let mut select = connection.prepare_cached(
        "-- find_agreement
         SELECT tenant, saga, subscription, plan, prices, features, access, suspended,
                began_at, ended_at
         FROM agreements JOIN tenants ON tenants.tenant_no = agreements.tenant_no
         WHERE subscription = ? ORDER BY agreement_no DESC LIMIT 1",
    )?;
    let mut rows = select.query([subscription.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    decode_agreement(row, &tenant_of(row)?).map(Some)
}

fn tenant_of(row: &Row<'_>) -> Result<TenantId> {
    let tenant: String = get(row, "tenant")?;
    TenantId::parse(&tenant).map_err(|_| damaged("tenants.tenant", &tenant))
}

fn parse_subscription(text: &str) -> Result<SubscriptionId> {
    SubscriptionId::parse(text).map_err(|_| damaged("agreements.subscription", &text))
}

/// Newest first.
pub fn list_agreements(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    limit: usize,
) -> Result<Vec<Agreement>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- list_agreements
         SELECT saga, subscription, plan, prices, features, access, suspended, began_at,
                ended_at
         FROM agreements WHERE tenant_no = ? ORDER BY agreement_no DESC LIMIT ?",
        params![tenant.0, limit],
        |row| Ok(decode_agreement(row, of)?),
    )
}

fn decode_agreement(row: &Row<'_>, tenant: &TenantId) -> Result<Agreement> {
    let subscription: String = get(row, "subscription")?;
    Ok(Agreement {
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
    serde_json::from_str(&text).map_err(|_| damaged("agreements.prices or features", &text))
}
