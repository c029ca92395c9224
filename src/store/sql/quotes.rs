//! Tax rates, coupons and quotes.
//!
//! Invariant: two rates of one jurisdiction and name never hold at one moment. Who puts one holds a
//! lock, so that what it compared with still holds when it writes; who ends one only makes it
//! shorter. A writer of a quote holds its tenant, so that no other quote of the tenant takes the
//! key or uses the coupon meanwhile; a quote is written with the use of its coupon and never
//! changes.
//!
//! A crash leaves a quote with the use of its coupon, or nothing. What is written again because its
//! outcome was lost is found as it is.

use super::{Done, Row, Session, SqlStore, values};
use crate::rules::ids::{OnceKey, TenantId};
use crate::rules::tax::{Coupon, TaxRate};
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::Completing;
use crate::store::quote::{
    CouponPut, CouponUse, QuoteRecorded, Quotes, RateKey, RatePut, StoredQuote,
};
use crate::store::{Error, Query, Result, damaged};
use async_trait::async_trait;

/// Any number, as long as every version of this program takes the same one, and no other lock does.
const RATES_LOCK: i64 = 0x7461_7872_6174_6573;

const FIND_COUPON: &str = "-- find_coupon\nSELECT coupon FROM coupons WHERE code = $1";

#[async_trait]
impl<S: SqlStore> Quotes for S {
    async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut> {
        self.in_transaction(move |session| put_rate(session, &rate, at)).await
    }

    async fn end_tax_rate(
        &self,
        jurisdiction: &str,
        name: &str,
        valid_from: Timestamp,
        valid_until: Timestamp,
    ) -> Result<bool> {
        let (jurisdiction, name) = (jurisdiction.to_owned(), name.to_owned());
        self.in_transaction(move |session| {
            let sql = "-- end_tax_rate
                UPDATE tax_rates SET valid_until = $4
                WHERE jurisdiction = $1 AND name = $2 AND valid_from = $3 AND valid_from < $4
                    AND (valid_until IS NULL OR valid_until >= $4)";
            Ok(session.run(sql, values![jurisdiction, name, valid_from, valid_until])? == 1)
        })
        .await
    }

    async fn list_tax_rates(&self, query: Query<(), RateKey>) -> Result<Vec<TaxRate>> {
        // Every jurisdiction is larger than the empty text.
        let (place, name, from) = query.after.unwrap_or_default();
        self.in_reader(move |session| {
            let sql = "-- list_tax_rates
                SELECT jurisdiction, name, percent, valid_from, valid_until FROM tax_rates
                WHERE (jurisdiction, name, valid_from) > ($1::text, $2::text, $3::timestamptz)
                ORDER BY jurisdiction, name, valid_from LIMIT $4";
            session.read_all(sql, values![place, name, from, query.limit], decode_rate)
        })
        .await
    }

    async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut> {
        self.in_transaction(move |session| put_coupon(session, &coupon, at)).await
    }

    async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>> {
        let code = code.to_owned();
        self.in_reader(move |session| {
            session.read_optional(FIND_COUPON, values![code], decode_coupon)
        })
        .await
    }

    async fn list_coupons(&self, query: Query<(), String>) -> Result<Vec<Coupon>> {
        // Every code is larger than the empty text.
        let after = query.after.unwrap_or_default();
        self.in_reader(move |session| {
            let sql = "-- list_coupons
                SELECT coupon FROM coupons WHERE code > $1 ORDER BY code LIMIT $2";
            session.read_all(sql, values![after, query.limit], decode_coupon)
        })
        .await
    }

    async fn find_quote(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<StoredQuote>> {
        let (tenant, key) = (tenant.clone(), key.clone());
        self.in_reader(move |session| find_quote(session, &tenant, &key)).await
    }

    async fn read_coupon_uses(
        &self,
        tenant: &TenantId,
        code: &str,
        cycle: Timestamp,
    ) -> Result<(Option<OnceKey>, u32)> {
        let (tenant, code) = (tenant.clone(), code.to_owned());
        self.in_reader(move |session| read_uses(session, &tenant, &code, cycle)).await
    }

    async fn record_quote(
        &self,
        quote: StoredQuote,
        coupon: Option<CouponUse>,
        completing: Option<&Completing<QuoteRecorded>>,
    ) -> Result<QuoteRecorded> {
        self.in_transaction_ending(completing, quote.at, move |session| {
            record_quote(session, &quote, coupon.as_ref())
        })
        .await
    }
}

fn put_rate(session: &dyn Session, rate: &TaxRate, at: Timestamp) -> Done<RatePut> {
    let TaxRate { jurisdiction, name, percent, valid_from, valid_until } = rate;
    // Rates are written a few times a year.
    session.lock(RATES_LOCK)?;
    let sql = "-- put_rate
        SELECT jurisdiction, name, percent, valid_from, valid_until FROM tax_rates
        WHERE jurisdiction = $1 AND name = $2 ORDER BY valid_from";
    let others = session.read_all(sql, values![jurisdiction, name], decode_rate)?;
    if others.contains(rate) {
        return Ok(RatePut::Unchanged);
    }
    if let Some(other) = others.into_iter().find(|other| other.overlaps(rate)) {
        return Ok(RatePut::Overlaps(other));
    }
    let sql = "-- put_rate
        INSERT INTO tax_rates (jurisdiction, name, valid_from, valid_until, percent, created_at)
        VALUES ($1, $2, $3, $4, $5, $6)";
    session.run(sql, values![jurisdiction, name, valid_from, valid_until, percent, at])?;
    Ok(RatePut::Created)
}

fn decode_rate(row: &Row) -> Result<TaxRate> {
    Ok(TaxRate {
        jurisdiction: row.get("tax_rates.jurisdiction")?,
        name: row.get("tax_rates.name")?,
        percent: row.get("tax_rates.percent")?,
        valid_from: row.get("tax_rates.valid_from")?,
        valid_until: row.get("tax_rates.valid_until")?,
    })
}

fn put_coupon(session: &dyn Session, coupon: &Coupon, at: Timestamp) -> Done<CouponPut> {
    let sql = "-- put_coupon
        INSERT INTO coupons (code, coupon, created_at) VALUES ($1, $2, $3)
        ON CONFLICT (code) DO NOTHING";
    let written = serde_json::to_string(coupon)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    if session.run(sql, values![coupon.code, written, at])? == 1 {
        return Ok(CouponPut::Created);
    }
    let standing = session.read_one(FIND_COUPON, values![coupon.code], decode_coupon)?;
    Ok(match standing == *coupon {
        true => CouponPut::Unchanged,
        false => CouponPut::Refused(standing),
    })
}

fn decode_coupon(row: &Row) -> Result<Coupon> {
    let coupon: String = row.get("coupons.coupon")?;
    serde_json::from_str(&coupon).map_err(|_| damaged("coupons.coupon", &coupon))
}

fn find_quote(
    session: &dyn Session,
    tenant: &TenantId,
    key: &OnceKey,
) -> Done<Option<StoredQuote>> {
    let sql = "-- find_quote
        SELECT request, answer, engine, at FROM quotes
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND key = $2";
    session.read_optional(sql, values![tenant, key], |row| {
        Ok(StoredQuote {
            tenant: tenant.clone(),
            key: key.clone(),
            request: row.get("quotes.request")?,
            answer: row.get("quotes.answer")?,
            engine: row.get("quotes.engine")?,
            at: row.get("quotes.at")?,
        })
    })
}

/// The quote that used the coupon in the cycle, and in how many cycles it was used.
fn read_uses(
    session: &dyn Session,
    tenant: &TenantId,
    code: &str,
    cycle: Timestamp,
) -> Done<(Option<OnceKey>, u32)> {
    let sql = "-- read_uses
        SELECT max(quote_key) FILTER (WHERE cycle = $3) AS quote_key, count(*) AS cycles
        FROM coupon_uses
        WHERE tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = $1) AND code = $2";
    session.read_one(sql, values![tenant, code, cycle], |row| {
        Ok((row.get("coupon_uses.quote_key")?, row.get("coupon_uses.cycles")?))
    })
}

fn record_quote(
    session: &dyn Session,
    quote: &StoredQuote,
    coupon: Option<&CouponUse>,
) -> Done<QuoteRecorded> {
    let StoredQuote { tenant, key, request, answer, engine, at } = quote;
    let tenant_no = session.hold_tenant(tenant, *at)?;
    if let Some(standing) = find_quote(session, tenant, key)? {
        return Ok(match standing.request == *request {
            true => QuoteRecorded::Repeated(standing),
            false => QuoteRecorded::KeyTaken(standing),
        });
    }
    if let Some(CouponUse { code, cycle, cycles_max }) = coupon {
        let (used_by, cycles) = read_uses(session, tenant, code, *cycle)?;
        if used_by.is_some() || cycles_max.is_some_and(|max| cycles >= max) {
            return Ok(QuoteRecorded::CouponUsed(used_by));
        }
        let sql = "-- record_quote
            INSERT INTO coupon_uses (tenant_no, code, cycle, quote_key) VALUES ($1, $2, $3, $4)";
        session.run(sql, values![tenant_no, code, cycle, key])?;
    }
    let sql = "-- record_quote
        INSERT INTO quotes (tenant_no, key, request, answer, engine, at)
        VALUES ($1, $2, $3, $4, $5, $6)";
    session.run(sql, values![tenant_no, key, request, answer, engine, at])?;
    Ok(QuoteRecorded::Recorded(quote.clone()))
}
