//! Agreements: what tenants have agreed to, one open one for each subscription.
//!
//! Invariant: an agreement that has ended gives no access. One that another took the place of knows
//! by whom and what access it gave, so that it can be as it was when that one is taken back. The
//! unique index `agreements_open` decides between two at once; whoever loses looks again.
//!
//! A crash leaves all of a call or nothing, and every call may be repeated.

use super::declarations::hold_tenant;
use super::scalars::{SqlTimestamp, column, corrupt, instant, instant_if_any, write_limit};
use super::timelines::read_timelines;
use super::transaction::Done;
use crate::faults::planted;
use crate::rules::ids::{SubscriptionId, TenantId};
use crate::rules::stamp::{Agreed, Term, find_terms};
use crate::rules::timestamp::Timestamp;
use crate::store::saga::Agreement;
use crate::store::{Error, Result};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Writes the agreement of a saga, in the place of the one that is open.
pub async fn record(client: &ClientWrapper, agreement: &Agreement) -> Done<()> {
    let tenant_no = hold_tenant(client, &agreement.tenant, agreement.began_at).await?;
    let sql = "-- record
        SELECT FROM agreements WHERE saga = $1";
    if client.query_opt(sql, &[&agreement.saga]).await?.is_some() {
        return Ok(());
    }
    let sql = "-- record
        UPDATE agreements SET ended_at = $2, ended_by = $3, access_before = access, access = false
        WHERE subscription = $1 AND ended_at IS NULL";
    let (subscription, began_at) =
        (agreement.subscription.as_str(), SqlTimestamp(agreement.began_at));
    client.execute(sql, &[&subscription, &began_at, &agreement.saga]).await?;
    let sql = "-- record
        INSERT INTO agreements
            (saga, tenant_no, subscription, plan, prices, features, access, began_at)
        VALUES ($1, $2, $3, $4, $5, $6, false, $7)";
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &agreement.saga,
        &tenant_no,
        &subscription,
        &agreement.plan,
        &write_texts(&agreement.prices)?,
        &write_texts(&agreement.features)?,
        &began_at,
    ];
    client.execute(sql, &parameters).await?;
    Ok(())
}

pub async fn charge_from(client: &ClientWrapper, saga: &str, at: Timestamp) -> Done<()> {
    let sql = "-- charge_from
        UPDATE agreements SET charged_from = $2 WHERE saga = $1";
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
        SELECT tenant_no, subscription, began_at, charged_from, ended_at FROM agreements
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

/// Opens or closes the features; those of an agreement that has ended stay closed.
pub async fn set_access(client: &ClientWrapper, saga: &str, access: bool) -> Done<()> {
    let sql = "-- set_access
        UPDATE agreements SET access = $2 WHERE saga = $1 AND ended_at IS NULL";
    client.execute(sql, &[&saga, &access]).await?;
    Ok(())
}

/// Takes back the agreement of a saga. The one that it ended goes on from there: it is open again,
/// or ended by what has ended the one that is taken back.
pub async fn withdraw(client: &ClientWrapper, saga: &str) -> Done<()> {
    let sql = "-- withdraw
        DELETE FROM agreements WHERE saga = $1 RETURNING ended_at, ended_by";
    let Some(row) = client.query_opt(sql, &[&saga]).await? else { return Ok(()) };
    let ended_at = instant_if_any(&row, 0)?.map(SqlTimestamp);
    let ended_by: Option<String> = column(&row, 1)?;
    let sql = "-- withdraw
        UPDATE agreements SET ended_at = $2, ended_by = $3,
            access = access_before AND $2::timestamptz IS NULL,
            access_before = access_before AND $2::timestamptz IS NOT NULL
        WHERE ended_by = $1";
    client.execute(sql, &[&saga, &ended_at, &ended_by]).await?;
    Ok(())
}

pub async fn end(client: &ClientWrapper, subscription: &SubscriptionId, at: Timestamp) -> Done<()> {
    let sql = "-- end
        UPDATE agreements SET ended_at = $2 WHERE subscription = $1 AND ended_at IS NULL";
    client.execute(sql, &[&subscription.as_str(), &SqlTimestamp(at)]).await?;
    Ok(())
}

pub async fn list(
    client: &ClientWrapper,
    tenant: &TenantId,
    limit: usize,
) -> Result<Vec<Agreement>> {
    let sql = "-- list
        SELECT t.tenant, a.subscription, a.plan, a.prices, a.features, a.access, a.saga,
            a.began_at, a.ended_at
        FROM tenants t JOIN agreements a ON a.tenant_no = t.tenant_no
        WHERE t.tenant = $1
        ORDER BY a.agreement_no DESC LIMIT $2";
    let statement = client.prepare_cached(sql).await?;
    let rows = client.query(&statement, &[&tenant.as_str(), &write_limit(limit)]).await?;
    rows.iter().map(agreement).collect()
}

fn agreement(row: &Row) -> Result<Agreement> {
    let (tenant, subscription): (String, String) = (column(row, 0)?, column(row, 1)?);
    Ok(Agreement {
        tenant: TenantId::parse(&tenant).map_err(|_| corrupt("a tenant has no valid id"))?,
        subscription: SubscriptionId::parse(&subscription)
            .map_err(|_| corrupt("a subscription has no valid id"))?,
        plan: column(row, 2)?,
        prices: read_texts(row, 3)?,
        features: read_texts(row, 4)?,
        access: column(row, 5)?,
        saga: column(row, 6)?,
        began_at: instant(row, 7)?,
        ended_at: instant_if_any(row, 8)?,
    })
}

fn write_texts(texts: &[String]) -> Result<String> {
    serde_json::to_string(texts).map_err(|error| Error::Internal { what: error.to_string() })
}

fn read_texts(row: &Row, place: usize) -> Result<Vec<String>> {
    let texts: String = column(row, place)?;
    serde_json::from_str(&texts).map_err(|_| corrupt("a list of an agreement is not valid"))
}
