//! Instants, fingerprints and short numbers in PostgreSQL's binary forms.
//!
//! Invariant: every conversion is exact or refused. Writing cannot fail, so a statement can never
//! be left out of its transaction for it.

use super::partitions::Day;
use crate::rules::ids::{MeterNo, TenantNo};
use crate::rules::timestamp::Timestamp;
pub(in crate::store) use crate::store::damaged;
use crate::store::{Error, Result};
use bytes::{BufMut, BytesMut};
use std::error::Error as StdError;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, FromSqlOwned, IsNull, ToSql, Type, accepts, to_sql_checked};

/// Microseconds from 1970 to 2000, where PostgreSQL starts to count.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// PostgreSQL's earliest instant, in 4713 BC. Its latest lies beyond any 64-bit count from 1970.
const EARLIEST: i64 = -211_813_488_000_000_000;

/// An instant as TIMESTAMPTZ. What lies before PostgreSQL's calendar is written as -infinity: that
/// is right for the bounds of a query, and no event or bucket is that far away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqlTimestamp(pub Timestamp);

impl SqlTimestamp {
    pub fn to_wire(self) -> i64 {
        match self.0.micros().saturating_sub(EPOCH_MICROS) {
            early if early < EARLIEST => i64::MIN,
            micros => micros,
        }
    }
}

impl ToSql for SqlTimestamp {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_i64(self.to_wire());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for SqlTimestamp {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> std::result::Result<Self, Box<dyn StdError + Sync + Send>> {
        let wire = i64::from_be_bytes(raw.try_into()?);
        let finite = Some(wire).filter(|wire| *wire >= EARLIEST);
        // Infinity is the largest number and overflows here.
        let micros = finite.and_then(|wire| wire.checked_add(EPOCH_MICROS));
        micros
            .map(|micros| Self(Timestamp::from_micros(micros)))
            .ok_or_else(|| "an instant is infinite".into())
    }

    accepts!(TIMESTAMPTZ);
}

/// 128 bits as UUID. PostgreSQL orders UUIDs by their bytes, so big-endian keeps the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlHash(pub u128);

impl ToSql for SqlHash {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_u128(self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for SqlHash {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> std::result::Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(u128::from_be_bytes(raw.try_into()?)))
    }

    accepts!(UUID);
}

/// A day as DATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqlDay(pub Day);

impl<'a> FromSql<'a> for SqlDay {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> std::result::Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(Day::from_wire(i32::from_be_bytes(raw.try_into()?))))
    }

    accepts!(DATE);
}

/// In `counters`: deliveries of no known tenant.
pub const NO_TENANT: i32 = 0;

pub fn tenant_number(tenant: TenantNo) -> i32 {
    i32::try_from(tenant.0).expect("tenant numbers come from an integer column")
}

pub fn meter_number(meter: MeterNo) -> i16 {
    i16::try_from(meter.0).expect("meter numbers come from a smallint column")
}

pub fn read_tenant_no(number: i32) -> Result<TenantNo> {
    u32::try_from(number).map(TenantNo).map_err(|_| damaged("tenant_no", number))
}

pub fn read_meter_no(number: i16) -> Result<MeterNo> {
    u16::try_from(number).map(MeterNo).map_err(|_| damaged("meter_no", number))
}

pub fn read_count(count: i64) -> Result<u64> {
    u64::try_from(count).map_err(|_| damaged("a count", count))
}

pub fn write_count(count: u64) -> Result<i64> {
    i64::try_from(count).map_err(|_| Error::Internal { what: "a count outgrew 63 bits".into() })
}

/// A limit of rows; larger than any table is as good as the largest.
pub fn write_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads a column; whatever does not have the form it was stored in is damage.
pub fn column<T: FromSqlOwned>(row: &Row, place: usize) -> Result<T> {
    row.try_get(place).map_err(|error| {
        let name = row.columns().get(place).map_or("?", |column| column.name());
        let cause = error.into_source().map_or_else(String::new, |source| source.to_string());
        corrupt(format!("column {name}: {cause}"))
    })
}

/// Reads an instant.
pub fn instant(row: &Row, place: usize) -> Result<Timestamp> {
    column::<SqlTimestamp>(row, place).map(|stamp| stamp.0)
}

/// Reads an instant that may be missing.
pub fn instant_if_any(row: &Row, place: usize) -> Result<Option<Timestamp>> {
    Ok(column::<Option<SqlTimestamp>>(row, place)?.map(|stamp| stamp.0))
}

pub fn corrupt(what: impl Into<String>) -> Error {
    Error::Corrupt { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_keep_their_number() {
        let check = |text: &str, wire: i64| {
            let stamp = SqlTimestamp(Timestamp::parse(text).expect("an instant"));
            assert_eq!(stamp.to_wire(), wire);
            let read = SqlTimestamp::from_sql(&Type::TIMESTAMPTZ, &wire.to_be_bytes());
            assert_eq!(read.expect("finite"), stamp);
        };
        check("2000-01-01T00:00:00Z", 0);
        check("1970-01-01T00:00:00Z", -EPOCH_MICROS);
        check("2026-11-15T12:30:00.000001Z", 848_061_000_000_001);
        check("0001-01-01T00:00:00Z", -63_082_281_600_000_000);
    }

    #[test]
    fn instants_beyond_the_calendar_bound_a_query_and_are_never_read() {
        let wire = |micros| SqlTimestamp(Timestamp::from_micros(micros)).to_wire();
        assert_eq!(wire(i64::MIN), i64::MIN);
        assert_eq!(wire(i64::MAX), i64::MAX - EPOCH_MICROS);
        for infinite in [i64::MIN, i64::MAX] {
            let bytes = infinite.to_be_bytes();
            assert!(SqlTimestamp::from_sql(&Type::TIMESTAMPTZ, &bytes).is_err());
        }
    }

    #[test]
    fn hashes_keep_their_order() {
        let bytes = |hash: u128| {
            let mut out = BytesMut::new();
            SqlHash(hash).to_sql(&Type::UUID, &mut out).expect("never fails");
            out
        };
        assert!(bytes(1) < bytes(256) && bytes(256) < bytes(u128::MAX));
        let read = SqlHash::from_sql(&Type::UUID, &bytes(77)).expect("16 bytes");
        assert_eq!(read, SqlHash(77));
    }
}
