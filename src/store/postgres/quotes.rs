//! Tax rates, coupons and quotes.
//!
//! Invariant: a writer of a tax rate locks the table against other writers, so that what it
//! compared with still holds when it writes. A writer of a quote locks its tenant, so that no
//! other quote of the tenant takes the key or uses the coupon meanwhile. Readers wait for neither.
//!
//! A crash leaves a quote with the use of its coupon, or nothing. What is written again because its
//! outcome was lost is found as it is.

use super::PostgresStore;
use super::declarations::hold_tenant;
use super::entries::read_quantity;
use super::idempotency::end_request;
use super::numeric::SqlQuantity;
use super::scalars::{
    SqlTimestamp, column, corrupt, damaged, instant, instant_if_any, write_limit,
};
use super::statements::Statements;
use super::transaction::{Done, Transaction};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::tax::{Coupon, TaxRate};
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::Completing;
use crate::store::quote::{
    CouponPut, CouponUse, QuoteRecorded, Quotes, RateKey, RatePut, StoredQuote,
};
use crate::store::{Error, Result};
use async_trait::async_trait;
use deadpool_postgres::ClientWrapper;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

#[async_trait]
impl Quotes for PostgresStore {
    async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut> {
        let rate = &rate;
        let work = move |client: Arc<Transaction>| async move { put_rate(&client, rate, at).await };
        self.transact(work).await
    }

    async fn end_tax_rate(
        &self,
        jurisdiction: &str,
        name: &str,
        valid_from: Timestamp,
        valid_until: Timestamp,
    ) -> Result<bool> {
        let work = move |client: Arc<Transaction>| async move {
            let sql = "-- end_tax_rate
                UPDATE tax_rates SET valid_until = $4
                WHERE jurisdiction = $1 AND name = $2 AND valid_from = $3 AND valid_from < $4
                    AND (valid_until IS NULL OR valid_until >= $4)";
            let (from, until) = (SqlTimestamp(valid_from), SqlTimestamp(valid_until));
            Ok(client.execute(sql, &[&jurisdiction, &name, &from, &until]).await? == 1)
        };
        self.transact(work).await
    }

    async fn list_tax_rates(&self, after: Option<RateKey>, limit: usize) -> Result<Vec<TaxRate>> {
        let client = self.reader().await?;
        let sql = "-- list_tax_rates
            SELECT jurisdiction, name, percent, valid_from, valid_until FROM tax_rates
            WHERE (jurisdiction, name, valid_from) > ($1::text, $2::text, $3::timestamptz)
            ORDER BY jurisdiction, name, valid_from LIMIT $4";
        // Every jurisdiction is larger than the empty text.
        let (place, name, from) = after.unwrap_or_default();
        let limit = write_limit(limit);
        let rows = client.query(sql, &[&place, &name, &SqlTimestamp(from), &limit]).await?;
        rows.iter().map(tax_rate).collect()
    }

    async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut> {
        let coupon = &coupon;
        let work =
            move |client: Arc<Transaction>| async move { put_coupon(&client, coupon, at).await };
        self.transact(work).await
    }

    async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>> {
        let client = self.reader().await?;
        find_coupon(&client, code).await
    }

    async fn list_coupons(&self, after: Option<&str>, limit: usize) -> Result<Vec<Coupon>> {
        let client = self.reader().await?;
        let sql = "-- list_coupons
            SELECT coupon FROM coupons WHERE code > $1 ORDER BY code LIMIT $2";
        // Every code is larger than the empty text.
        let after = after.unwrap_or("");
        let rows = client.read_all(sql, &[&after, &write_limit(limit)]).await?;
        rows.iter().map(read_coupon).collect()
    }

    async fn find_quote(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<StoredQuote>> {
        let client = self.reader().await?;
        find_quote(&client, tenant, key).await
    }

    async fn read_coupon_uses(
        &self,
        tenant: &TenantId,
        code: &str,
        cycle: Timestamp,
    ) -> Result<(Option<OnceKey>, u32)> {
        let client = self.reader().await?;
        read_uses(&client, tenant, code, cycle).await
    }

    async fn record_quote(
        &self,
        quote: StoredQuote,
        coupon: Option<CouponUse>,
        completing: Option<&Completing<QuoteRecorded>>,
    ) -> Result<QuoteRecorded> {
        let (quote, coupon) = (&quote, coupon.as_ref());
        let work = move |client: Arc<Transaction>| async move {
            let recorded = record(&client, quote, coupon).await?;
            end_request(&client, completing, &recorded, quote.at).await?;
            Ok(recorded)
        };
        self.transact(work).await
    }
}

/// Everything but the COMMIT.
async fn put_rate(client: &ClientWrapper, rate: &TaxRate, at: Timestamp) -> Done<RatePut> {
    // Rates are written a few times a year.
    client.batch_execute("-- put_rate\nLOCK TABLE tax_rates IN SHARE ROW EXCLUSIVE MODE").await?;
    let sql = "-- put_rate
        SELECT jurisdiction, name, percent, valid_from, valid_until FROM tax_rates
        WHERE jurisdiction = $1 AND name = $2 ORDER BY valid_from";
    for row in client.query(sql, &[&rate.jurisdiction, &rate.name]).await? {
        let standing = tax_rate(&row)?;
        if standing == *rate {
            return Ok(RatePut::Unchanged);
        }
        if standing.overlaps(rate) {
            return Ok(RatePut::Overlaps(standing));
        }
    }
    let sql = "-- put_rate
        INSERT INTO tax_rates (jurisdiction, name, valid_from, valid_until, percent, created_at)
        VALUES ($1, $2, $3, $4, $5, $6)";
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &rate.jurisdiction,
        &rate.name,
        &SqlTimestamp(rate.valid_from),
        &rate.valid_until.map(SqlTimestamp),
        &SqlQuantity(rate.percent),
        &SqlTimestamp(at),
    ];
    client.execute(sql, &parameters).await?;
    Ok(RatePut::Created)
}

/// Everything but the COMMIT.
async fn put_coupon(client: &ClientWrapper, coupon: &Coupon, at: Timestamp) -> Done<CouponPut> {
    let sql = "-- put_coupon
        INSERT INTO coupons (code, coupon, created_at) VALUES ($1, $2, $3)
        ON CONFLICT (code) DO NOTHING";
    let written = serde_json::to_string(coupon)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    if client.execute(sql, &[&coupon.code, &written, &SqlTimestamp(at)]).await? == 1 {
        return Ok(CouponPut::Created);
    }
    let standing = find_coupon(client, &coupon.code).await?;
    let standing = standing.ok_or_else(|| corrupt("coupons row vanished mid-transaction"))?;
    Ok(match standing == *coupon {
        true => CouponPut::Unchanged,
        false => CouponPut::Refused(standing),
    })
}

async fn find_coupon(client: &ClientWrapper, code: &str) -> Result<Option<Coupon>> {
    let sql = "-- find_coupon
        SELECT coupon FROM coupons WHERE code = $1";
    let row = client.read_optional(sql, &[&code]).await?;
    row.as_ref().map(read_coupon).transpose()
}

async fn find_quote(
    client: &ClientWrapper,
    tenant: &TenantId,
    key: &OnceKey,
) -> Result<Option<StoredQuote>> {
    let sql = "-- find_quote
        SELECT request, answer, engine, at FROM quotes
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND key = $2";
    let row = client.read_optional(sql, &[&tenant.as_str(), &key.as_str()]).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(StoredQuote {
        tenant: tenant.clone(),
        key: key.clone(),
        request: column(&row, 0)?,
        answer: column(&row, 1)?,
        engine: column(&row, 2)?,
        at: instant(&row, 3)?,
    }))
}

/// The quote that used the coupon in the cycle, and in how many cycles it was used.
async fn read_uses(
    client: &ClientWrapper,
    tenant: &TenantId,
    code: &str,
    cycle: Timestamp,
) -> Result<(Option<OnceKey>, u32)> {
    let sql = "-- read_uses
        SELECT max(quote_key) FILTER (WHERE cycle = $3), count(*) FROM coupon_uses
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND code = $2";
    let row = client.read_one(sql, &[&tenant.as_str(), &code, &SqlTimestamp(cycle)]).await?;
    let (key, cycles): (Option<String>, i64) = (column(&row, 0)?, column(&row, 1)?);
    let key = key.map(|key| OnceKey::parse(&key)).transpose();
    let cycles =
        u32::try_from(cycles).map_err(|_| corrupt("coupon_uses has more rows than u32 holds"))?;
    Ok((key.map_err(|_| corrupt("quotes.key is not valid"))?, cycles))
}

/// Everything but the end of the request and the COMMIT.
async fn record(
    client: &ClientWrapper,
    quote: &StoredQuote,
    coupon: Option<&CouponUse>,
) -> Done<QuoteRecorded> {
    let tenant_no = hold_tenant(client, &quote.tenant, quote.at).await?;
    if let Some(standing) = find_quote(client, &quote.tenant, &quote.key).await? {
        return Ok(match standing.request == quote.request {
            true => QuoteRecorded::Repeated(standing),
            false => QuoteRecorded::KeyTaken(standing),
        });
    }
    if let Some(CouponUse { code, cycle, cycles_max }) = coupon {
        let (used_by, cycles) = read_uses(client, &quote.tenant, code, *cycle).await?;
        if used_by.is_some() || cycles_max.is_some_and(|max| cycles >= max) {
            return Ok(QuoteRecorded::CouponUsed(used_by));
        }
        let sql = "-- record
            INSERT INTO coupon_uses (tenant_no, code, cycle, quote_key) VALUES ($1, $2, $3, $4)";
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&tenant_no, code, &SqlTimestamp(*cycle), &quote.key.as_str()];
        client.execute(sql, &parameters).await?;
    }
    let sql = "-- record
        INSERT INTO quotes (tenant_no, key, request, answer, engine, at)
        VALUES ($1, $2, $3, $4, $5, $6)";
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &tenant_no,
        &quote.key.as_str(),
        &quote.request,
        &quote.answer,
        &quote.engine,
        &SqlTimestamp(quote.at),
    ];
    client.execute(sql, &parameters).await?;
    Ok(QuoteRecorded::Recorded(quote.clone()))
}

fn tax_rate(row: &Row) -> Result<TaxRate> {
    Ok(TaxRate {
        jurisdiction: column(row, 0)?,
        name: column(row, 1)?,
        percent: read_quantity(row, 2)?,
        valid_from: instant(row, 3)?,
        valid_until: instant_if_any(row, 4)?,
    })
}

fn read_coupon(row: &Row) -> Result<Coupon> {
    let coupon: String = column(row, 0)?;
    serde_json::from_str(&coupon).map_err(|_| damaged("coupons.coupon", &coupon))
}
