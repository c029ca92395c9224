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

use super::mirrors::lock_subscription;
use super::outbox::append_changes;
use super::timelines::read_timelines;
use super::{Done, Row, Session, values};
use crate::faults::planted;
use crate::rules::access::AccessChange;
use crate::rules::attribution::Attribution;
use crate::rules::ids::{SubscriptionId, TenantId, TenantNo};
use crate::rules::stamp::Agreed;
use crate::rules::timestamp::Timestamp;
use crate::store::outbox::FeedChange;
use crate::store::saga::{SubscriptionReading, SubscriptionRecord};
use crate::store::webhook::Mirror;
use crate::store::{Error, Result, damaged};
use std::collections::{BTreeMap, BTreeSet};

/// What [`decode_record`] reads.
const RECORDS: &str = "SELECT record_no, saga, subscription, plan, prices, features, access,
        suspended, began_at, ended_at, tenant
    FROM subscription_records JOIN tenants ON tenants.tenant_no = subscription_records.tenant_no";

/// Writes the subscription record of a saga, in the place of the one that is open.
pub fn record_subscription(session: &dyn Session, record: &SubscriptionRecord) -> Done<()> {
    let SubscriptionRecord { tenant, subscription, plan, saga, began_at, .. } = record;
    let mirror = lock_subscription(session, subscription)?;
    let tenant = session.hold_tenant(tenant, *began_at)?;
    let sql = "-- record_subscription
        SELECT record_no FROM subscription_records WHERE saga = $1";
    if session.read_optional(sql, values![saga], |_| Ok(()))?.is_some() {
        return Ok(());
    }
    let sql = "-- record_subscription
        UPDATE subscription_records SET ended_at = $2, ended_by = $3, access_before = access,
            access = false
        WHERE subscription = $1 AND ended_at IS NULL";
    session.run(sql, values![subscription, began_at, saga])?;
    let sql = "-- record_subscription
        INSERT INTO subscription_records
            (saga, tenant_no, subscription, plan, prices, features, access, began_at)
        VALUES ($1, $2, $3, $4, $5, $6, false, $7)";
    let (prices, features) = (write_texts(&record.prices)?, write_texts(&record.features)?);
    session.run(sql, values![saga, tenant, subscription, plan, prices, features, began_at])?;
    follow_mirror(session, subscription, mirror)
}

pub fn charge_from(session: &dyn Session, saga: &str, at: Timestamp) -> Done<()> {
    let sql = "-- charge_from
        UPDATE subscription_records SET charged_from = $2 WHERE saga = $1";
    session.run(sql, values![saga, at])?;
    Ok(())
}

/// Opens or closes the features; those of a subscription record that has ended stay closed.
pub fn set_access(session: &dyn Session, saga: &str, access: bool) -> Done<()> {
    let sql = "-- set_access
        UPDATE subscription_records SET access = $2 WHERE saga = $1 AND ended_at IS NULL";
    session.run(sql, values![saga, access])?;
    Ok(())
}

/// Withdraws the subscription record of a saga. The one that it ended goes on from there: it is
/// open again, or ended by what has ended the one that is withdrawn.
pub fn withdraw_subscription(session: &dyn Session, saga: &str) -> Done<()> {
    let sql = "-- withdraw_subscription
        SELECT subscription FROM subscription_records WHERE saga = $1";
    let made = session.read_optional(sql, values![saga], |row| {
        row.get::<SubscriptionId>("subscription_records.subscription")
    })?;
    let Some(subscription) = made else { return Ok(()) };
    let mirror = lock_subscription(session, &subscription)?;
    let sql = "-- withdraw_subscription
        DELETE FROM subscription_records WHERE saga = $1 RETURNING ended_at, ended_by";
    let withdrawn = session.read_optional(sql, values![saga], |row| {
        let ended_at: Option<Timestamp> = row.get("subscription_records.ended_at")?;
        Ok((ended_at, row.get::<Option<String>>("subscription_records.ended_by")?))
    })?;
    let Some((ended_at, ended_by)) = withdrawn else { return Ok(()) };
    let sql = "-- withdraw_subscription
        UPDATE subscription_records SET ended_at = $2, ended_by = $3,
            access = access_before AND $2::timestamptz IS NULL,
            access_before = access_before AND $2::timestamptz IS NOT NULL
        WHERE ended_by = $1";
    session.run(sql, values![saga, ended_at, ended_by])?;
    follow_mirror(session, &subscription, mirror)
}

/// One that another took the place of, or that ends earlier, is left as it is.
pub fn end_subscription(
    session: &dyn Session,
    subscription: &SubscriptionId,
    at: Timestamp,
) -> Done<()> {
    let sql = "-- end_subscription
        UPDATE subscription_records SET ended_at = $2
        WHERE subscription = $1 AND ended_by IS NULL AND (ended_at IS NULL OR ended_at > $2)";
    session.run(sql, values![subscription, at])?;
    Ok(())
}

/// Brings the subscription records of a subscription up to what its mirror shows, and tells of it.
fn follow_mirror(
    session: &dyn Session,
    subscription: &SubscriptionId,
    mirror: Option<Mirror>,
) -> Done<()> {
    let Some(reading) = mirror.as_ref().and_then(SubscriptionReading::of_mirror) else {
        return Ok(());
    };
    let changes = follow_reading(session, subscription, &reading)?;
    append_changes(session, &changes, reading.read_at)?;
    Ok(())
}

/// Changes the subscription records of a subscription by a reading of it; the changes that tell of
/// it. Those that others took the place of are left as they are. The caller holds the mirror's
/// lock.
pub fn follow_reading(
    session: &dyn Session,
    subscription: &SubscriptionId,
    reading: &SubscriptionReading<'_>,
) -> Done<Vec<FeedChange>> {
    let sql = format!(
        "-- follow_reading\n{RECORDS}
        WHERE subscription = $1 AND ended_by IS NULL
        ORDER BY record_no FOR UPDATE OF subscription_records"
    );
    let records = session.read_all(&sql, values![subscription], |row| {
        Ok((row.get::<u64>("subscription_records.record_no")?, decode_record(row)?))
    })?;
    let mut changes = Vec::new();
    for (number, record) in records {
        let Some((change, published)) = record.follow(reading) else { continue };
        let (suspended, ended_at) = match change {
            AccessChange::Suspend => (true, None),
            AccessChange::Resume => (false, None),
            AccessChange::End { at } => (false, Some(at)),
        };
        let sql = "-- follow_reading
            UPDATE subscription_records SET suspended = $2, ended_at = COALESCE($3, ended_at)
            WHERE record_no = $1";
        session.run(sql, values![number, suspended, ended_at])?;
        changes.push(published);
    }
    Ok(changes)
}

/// Under which subscriptions and trials the usage of each of these tenants falls.
pub fn read_attributions(
    session: &dyn Session,
    tenants: &BTreeSet<TenantNo>,
) -> Done<BTreeMap<TenantNo, Attribution>> {
    if planted("bug.stamp_outside_subscription") {
        return Ok(BTreeMap::new());
    }
    let agreed = read_agreed(session, tenants)?;
    let mut timelines = read_timelines(session, tenants)?;
    if planted("bug.trials_are_billed") {
        timelines.values_mut().flatten().for_each(|entry| entry.state.trial = None);
    }
    let attribution = |tenant: &TenantNo| {
        let agreed = agreed.get(tenant).map_or(&[][..], Vec::as_slice);
        let timeline = timelines.get(tenant).map_or(&[][..], Vec::as_slice);
        (*tenant, Attribution::new(agreed, timeline))
    };
    Ok(tenants.iter().map(attribution).collect())
}

/// What the records of these tenants say of their subscriptions.
pub fn read_agreed(
    session: &dyn Session,
    tenants: &BTreeSet<TenantNo>,
) -> Done<BTreeMap<TenantNo, Vec<Agreed>>> {
    let sql = "-- read_agreed
        WITH given (number) AS (VALUES ($::int4), ...)
        SELECT tenant_no, subscription, began_at, charged_from, ended_at
        FROM given JOIN subscription_records ON tenant_no = number";
    let mut agreed: BTreeMap<TenantNo, Vec<Agreed>> = BTreeMap::new();
    let rows = tenants.iter().map(|tenant| values![tenant].to_vec());
    session.read_batch(sql, rows, |row| {
        agreed.entry(row.get("subscription_records.tenant_no")?).or_default().push(Agreed {
            subscription: row.get("subscription_records.subscription")?,
            began_at: row.get("subscription_records.began_at")?,
            charged_from: row.get("subscription_records.charged_from")?,
            ended_at: row.get("subscription_records.ended_at")?,
        });
        Ok(())
    })?;
    Ok(agreed)
}

/// The newest one.
pub fn find_subscription_record(
    session: &dyn Session,
    subscription: &SubscriptionId,
) -> Done<Option<SubscriptionRecord>> {
    let sql = format!(
        "-- find_subscription_record\n{RECORDS}
        WHERE subscription = $1 ORDER BY record_no DESC LIMIT 1"
    );
    session.read_optional(&sql, values![subscription], decode_record)
}

/// Newest first.
pub fn list_subscription_records(
    session: &dyn Session,
    tenant: &TenantId,
    limit: usize,
) -> Done<Vec<SubscriptionRecord>> {
    let sql = format!(
        "-- list_subscription_records\n{RECORDS}
        WHERE tenant = $1 ORDER BY record_no DESC LIMIT $2"
    );
    session.read_all(&sql, values![tenant, limit], decode_record)
}

fn decode_record(row: &Row) -> Result<SubscriptionRecord> {
    Ok(SubscriptionRecord {
        tenant: row.get("tenants.tenant")?,
        subscription: row.get("subscription_records.subscription")?,
        plan: row.get("subscription_records.plan")?,
        prices: read_texts(row, "subscription_records.prices")?,
        features: read_texts(row, "subscription_records.features")?,
        access: row.get("subscription_records.access")?,
        suspended: row.get("subscription_records.suspended")?,
        saga: row.get("subscription_records.saga")?,
        began_at: row.get("subscription_records.began_at")?,
        ended_at: row.get("subscription_records.ended_at")?,
    })
}

fn write_texts(texts: &[String]) -> Result<String> {
    serde_json::to_string(texts).map_err(|error| Error::Internal { what: error.to_string() })
}

fn read_texts(row: &Row, column: &str) -> Result<Vec<String>> {
    let texts: String = row.get(column)?;
    serde_json::from_str(&texts).map_err(|_| damaged(column, &texts))
}
