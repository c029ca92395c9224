//! Tax rates, coupons and quotes in their tables.
//!
//! Invariant: two rates of one jurisdiction and name never hold at one moment; the writer alone
//! writes, so what it read holds when it writes. A quote is written with the use of its
//! coupon and never changes. A crash leaves a quote whole or not at all.

use super::push_rows::{get, moment, quantity_of};
use super::statements::Statements;
use super::{SqliteStore, corrupt, damaged, push_listing};
use crate::rules::ids::{OnceKey, TenantId, TenantNo};
use crate::rules::tax::{Coupon, TaxRate};
use crate::rules::timestamp::Timestamp;
use crate::store::idempotency::Completing;
use crate::store::quote::{
    CouponPut, CouponUse, QuoteRecorded, Quotes, RateKey, RatePut, StoredQuote,
};
use crate::store::{Error, Result};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

#[async_trait]
impl Quotes for SqliteStore {
    async fn put_tax_rate(&self, rate: TaxRate, at: Timestamp) -> Result<RatePut> {
        self.write(move |writer| writer.write(|c| put_tax_rate(c, &rate, at))).await
    }

    async fn end_tax_rate(
        &self,
        jurisdiction: &str,
        name: &str,
        valid_from: Timestamp,
        valid_until: Timestamp,
    ) -> Result<bool> {
        let (jurisdiction, name) = (jurisdiction.to_owned(), name.to_owned());
        self.write(move |writer| {
            writer.write(|connection| {
                end_tax_rate(connection, (&jurisdiction, &name), valid_from, valid_until)
            })
        })
        .await
    }

    async fn list_tax_rates(&self, after: Option<RateKey>, limit: usize) -> Result<Vec<TaxRate>> {
        self.read(move |_, connection| list_tax_rates(connection, after, limit)).await
    }

    async fn put_coupon(&self, coupon: Coupon, at: Timestamp) -> Result<CouponPut> {
        self.write(move |writer| writer.write(|c| put_coupon(c, &coupon, at))).await
    }

    async fn find_coupon(&self, code: &str) -> Result<Option<Coupon>> {
        let code = code.to_owned();
        self.read(move |_, connection| find_coupon(connection, &code)).await
    }

    async fn list_coupons(&self, after: Option<&str>, limit: usize) -> Result<Vec<Coupon>> {
        let after = after.unwrap_or("").to_owned();
        self.read(move |_, connection| list_coupons(connection, &after, limit)).await
    }

    async fn find_quote(&self, tenant: &TenantId, key: &OnceKey) -> Result<Option<StoredQuote>> {
        let (tenant, key) = (tenant.clone(), key.clone());
        self.read(move |shared, connection| {
            let Some(number) = shared.read_memory().tenants.find(&tenant) else { return Ok(None) };
            find_quote(connection, (number, &tenant), &key)
        })
        .await
    }

    async fn read_coupon_uses(
        &self,
        tenant: &TenantId,
        code: &str,
        cycle: Timestamp,
    ) -> Result<(Option<OnceKey>, u32)> {
        let Some(tenant) = self.shared.read_memory().tenants.find(tenant) else {
            return Ok((None, 0));
        };
        let code = code.to_owned();
        self.read(move |_, connection| {
            push_listing::begin_snapshot(connection)?;
            read_coupon_uses(connection, tenant, &code, cycle)
        })
        .await
    }

    async fn record_quote(
        &self,
        quote: StoredQuote,
        coupon: Option<CouponUse>,
        completing: Option<&Completing<QuoteRecorded>>,
    ) -> Result<QuoteRecorded> {
        let at = quote.at;
        self.write_ending(completing, at, move |writer, finish| {
            let of = quote.tenant.clone();
            writer.write_for(&of, at, |connection, tenant| {
                let recorded = record_quote(connection, tenant, quote, coupon.as_ref())?;
                finish.end(connection, recorded)
            })
        })
        .await
    }
}

fn put_tax_rate(connection: &Connection, rate: &TaxRate, at: Timestamp) -> Result<RatePut> {
    let others = rates_of_name(connection, &rate.jurisdiction, &rate.name)?;
    if others.contains(rate) {
        return Ok(RatePut::Unchanged);
    }
    if let Some(other) = others.into_iter().find(|other| other.overlaps(rate)) {
        return Ok(RatePut::Overlaps(other));
    }
    connection.run(
        "-- put_tax_rate
         INSERT INTO tax_rates (jurisdiction, name, valid_from, valid_until, percent,
                                created_at)
         VALUES (?, ?, ?, ?, ?, ?)",
        params![
            rate.jurisdiction,
            rate.name,
            rate.valid_from.micros(),
            rate.valid_until.map(Timestamp::micros),
            rate.percent.to_string(),
            at.micros()
        ],
    )?;
    Ok(RatePut::Created)
}

fn end_tax_rate(
    connection: &Connection,
    (jurisdiction, name): (&str, &str),
    valid_from: Timestamp,
    valid_until: Timestamp,
) -> Result<bool> {
    let (from, until) = (valid_from.micros(), valid_until.micros());
    let ended = connection.run(
        "-- end_tax_rate
         UPDATE tax_rates SET valid_until = ?4
         WHERE jurisdiction = ?1 AND name = ?2 AND valid_from = ?3 AND valid_from < ?4
             AND (valid_until IS NULL OR valid_until >= ?4)",
        params![jurisdiction, name, from, until],
    )?;
    Ok(ended == 1)
}

fn list_tax_rates(
    connection: &Connection,
    after: Option<RateKey>,
    limit: usize,
) -> Result<Vec<TaxRate>> {
    // Every jurisdiction is larger than the empty text.
    let (place, name, from) = after.unwrap_or_default();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection.read_all(
        "-- list_tax_rates
         SELECT jurisdiction, name, valid_from, valid_until, percent FROM tax_rates
         WHERE (jurisdiction, name, valid_from) > (?, ?, ?)
         ORDER BY jurisdiction, name, valid_from LIMIT ?",
        params![place, name, from.micros(), limit],
        decode_rate,
    )
}

fn rates_of_name(connection: &Connection, jurisdiction: &str, name: &str) -> Result<Vec<TaxRate>> {
    connection.read_all(
        "-- rates_of_name
         SELECT jurisdiction, name, valid_from, valid_until, percent FROM tax_rates
         WHERE jurisdiction = ? AND name = ? ORDER BY valid_from",
        [jurisdiction, name],
        decode_rate,
    )
}

fn decode_rate(row: &Row<'_>) -> Result<TaxRate> {
    Ok(TaxRate {
        jurisdiction: get(row, "jurisdiction")?,
        name: get(row, "name")?,
        percent: quantity_of(row, "percent")?,
        valid_from: moment(row, "valid_from")?,
        valid_until: get::<Option<i64>>(row, "valid_until")?.map(Timestamp::from_micros),
    })
}

fn put_coupon(connection: &Connection, coupon: &Coupon, at: Timestamp) -> Result<CouponPut> {
    if let Some(standing) = find_coupon(connection, &coupon.code)? {
        let same = standing == *coupon;
        return Ok(if same { CouponPut::Unchanged } else { CouponPut::Refused(standing) });
    }
    let text = serde_json::to_string(coupon)
        .map_err(|error| Error::Internal { what: error.to_string() })?;
    connection.run(
        "-- put_coupon
         INSERT INTO coupons (code, coupon, created_at) VALUES (?, ?, ?)",
        params![coupon.code, text, at.micros()],
    )?;
    Ok(CouponPut::Created)
}

fn find_coupon(connection: &Connection, code: &str) -> Result<Option<Coupon>> {
    let text: Option<String> = connection.read_optional(
        "-- find_coupon\nSELECT coupon FROM coupons WHERE code = ?",
        [code],
        |row| Ok(row.get(0)?),
    )?;
    text.as_deref().map(decode_coupon).transpose()
}

fn list_coupons(connection: &Connection, after: &str, limit: usize) -> Result<Vec<Coupon>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let texts: Vec<String> = connection.read_all(
        "-- list_coupons
         SELECT coupon FROM coupons WHERE code > ? ORDER BY code LIMIT ?",
        params![after, limit],
        |row| Ok(row.get(0)?),
    )?;
    texts.iter().map(|text| decode_coupon(text)).collect()
}

fn decode_coupon(text: &str) -> Result<Coupon> {
    serde_json::from_str(text).map_err(|_| damaged("coupons.coupon", text))
}

fn record_quote(
    connection: &Connection,
    tenant: TenantNo,
    quote: StoredQuote,
    coupon: Option<&CouponUse>,
) -> Result<QuoteRecorded> {
    if let Some(standing) = find_quote(connection, (tenant, &quote.tenant), &quote.key)? {
        let same = standing.request == quote.request;
        return Ok(match same {
            true => QuoteRecorded::Repeated(standing),
            false => QuoteRecorded::KeyTaken(standing),
        });
    }
    if let Some(coupon) = coupon {
        let (user, cycles) = read_coupon_uses(connection, tenant, &coupon.code, coupon.cycle)?;
        if user.is_some() || coupon.cycles_max.is_some_and(|most| cycles >= most) {
            return Ok(QuoteRecorded::CouponUsed(user));
        }
        insert_coupon_use(connection, tenant, coupon, &quote.key)?;
    }
    insert_quote(connection, tenant, &quote)?;
    Ok(QuoteRecorded::Recorded(quote))
}

fn find_quote(
    connection: &Connection,
    (tenant, of): (TenantNo, &TenantId),
    key: &OnceKey,
) -> Result<Option<StoredQuote>> {
    connection.read_optional(
        "-- find_quote
         SELECT request, answer, engine, at FROM quotes WHERE tenant_no = ? AND key = ?",
        params![tenant.0, key.as_str()],
        |row| {
            Ok(StoredQuote {
                tenant: of.clone(),
                key: key.clone(),
                request: get(row, "request")?,
                answer: get(row, "answer")?,
                engine: get(row, "engine")?,
                at: moment(row, "at")?,
            })
        },
    )
}

fn insert_quote(connection: &Connection, tenant: TenantNo, quote: &StoredQuote) -> Result<()> {
    let StoredQuote { key, request, answer, engine, at, .. } = quote;
    let (key, at) = (key.as_str(), at.micros());
    connection.run(
        "-- insert_quote
         INSERT INTO quotes (tenant_no, key, request, answer, engine, at)
         VALUES (?, ?, ?, ?, ?, ?)",
        params![tenant.0, key, request, answer, engine, at],
    )?;
    Ok(())
}

/// The key of the quote that used the coupon in the cycle, and in how many cycles it was used.
fn read_coupon_uses(
    connection: &Connection,
    tenant: TenantNo,
    code: &str,
    cycle: Timestamp,
) -> Result<(Option<OnceKey>, u32)> {
    let place = params![tenant.0, code, cycle.micros()];
    let user: Option<String> = connection.read_optional(
        "-- read_coupon_uses
         SELECT quote_key FROM coupon_uses WHERE tenant_no = ? AND code = ? AND cycle = ?",
        place,
        |row| Ok(row.get(0)?),
    )?;
    let cycles = connection.read_one(
        "-- read_coupon_uses
         SELECT COUNT(*) FROM coupon_uses WHERE tenant_no = ? AND code = ?",
        params![tenant.0, code],
        |row| Ok(row.get(0)?),
    )?;
    let user = user.as_deref().map(OnceKey::parse).transpose();
    Ok((user.map_err(|_| corrupt("quotes.key"))?, cycles))
}

fn insert_coupon_use(
    connection: &Connection,
    tenant: TenantNo,
    coupon: &CouponUse,
    key: &OnceKey,
) -> Result<()> {
    let cycle = coupon.cycle.micros();
    connection.run(
        "-- insert_coupon_use
         INSERT INTO coupon_uses (tenant_no, code, cycle, quote_key) VALUES (?, ?, ?, ?)",
        params![tenant.0, coupon.code, cycle, key.as_str()],
    )?;
    Ok(())
}
