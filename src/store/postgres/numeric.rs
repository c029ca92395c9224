//! Quantities as PostgreSQL's NUMERIC, in its binary form, exact both ways.
//!
//! Invariant: what is written is what is read; a number that a [`Quantity`] cannot hold exactly
//! (NaN, infinity, more than twelve decimals, more than 128 bits) is refused on reading and never
//! rounded. Writing cannot fail, so a statement can never be left out of its transaction for it.
//!
//! The binary form is a run of digits to the base 10,000, the weight of the first (its power of
//! 10,000), a sign and the number of decimals. Twelve decimals are exactly three such digits.

use crate::rules::quantity::{Quantity, SCALE};
use bytes::{BufMut, BytesMut};
use std::error::Error;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

const BASE: u128 = 10_000;
/// Digits to the base 10,000 behind the decimal point.
const FRACTION_DIGITS: i16 = 3;
const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;

/// A quantity on its way to or from the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqlQuantity(pub Quantity);

impl SqlQuantity {
    /// Appends the binary form.
    pub fn write(self, out: &mut BytesMut) {
        let units = self.0.units();
        let mut rest = units.unsigned_abs();
        let mut weight = -FRACTION_DIGITS;
        // 2^127 has 39 decimal digits, so ten digits to the base 10,000 hold any magnitude.
        let mut digits = [0u16; 10];
        let mut count = 0i16;
        while rest > 0 && rest.is_multiple_of(BASE) {
            rest /= BASE;
            weight += 1;
        }
        let lowest_weight = weight;
        for digit in &mut digits {
            if rest == 0 {
                break;
            }
            *digit = u16::try_from(rest % BASE).expect("a remainder is below 10,000");
            rest /= BASE;
            count += 1;
        }
        let sign = if units < 0 { NEGATIVE } else { POSITIVE };
        out.put_i16(count);
        out.put_i16(if count == 0 { 0 } else { lowest_weight + count - 1 });
        out.put_u16(sign);
        out.put_u16(decimals(units));
        let used = usize::try_from(count).expect("at most ten digits");
        for digit in digits[..used].iter().rev() {
            out.put_u16(*digit);
        }
    }

    fn read(raw: &[u8]) -> Option<Self> {
        let word = |place: usize| -> Option<u16> {
            let bytes = raw.get(place * 2..place * 2 + 2)?;
            Some(u16::from_be_bytes([bytes[0], bytes[1]]))
        };
        let count = usize::from(word(0)?);
        let weight = word(1)?.cast_signed();
        let negative = match word(2)? {
            POSITIVE => false,
            NEGATIVE => true,
            // NaN and the infinities.
            _ => return None,
        };
        if raw.len() != 8 + count * 2 {
            return None;
        }
        let mut magnitude = 0u128;
        for place in 0..count {
            let digit = u128::from(word(4 + place)?);
            if digit == 0 {
                continue;
            }
            let power =
                i32::from(weight) + i32::from(FRACTION_DIGITS) - i32::try_from(place).ok()?;
            // A negative power is a digit beyond the twelfth decimal.
            let scaled = BASE.checked_pow(u32::try_from(power).ok()?)?.checked_mul(digit)?;
            magnitude = magnitude.checked_add(scaled)?;
        }
        let units = if negative {
            0i128.checked_sub_unsigned(magnitude)?
        } else {
            i128::try_from(magnitude).ok()?
        };
        Some(Self(Quantity::from_units(units)))
    }
}

/// Decimals that are needed to write the number of units without loss. PostgreSQL cuts off what
/// lies beyond the given number of decimals.
fn decimals(units: i128) -> u16 {
    let mut left = units;
    let mut decimals = SCALE;
    while decimals > 0 && left % 10 == 0 {
        left /= 10;
        decimals -= 1;
    }
    u16::try_from(decimals).expect("at most twelve")
}

impl ToSql for SqlQuantity {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.write(out);
        Ok(IsNull::No)
    }

    accepts!(NUMERIC);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for SqlQuantity {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Self::read(raw).ok_or_else(|| "a number cannot be held as an exact quantity".into())
    }

    accepts!(NUMERIC);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(units: i128) -> Vec<u8> {
        let mut out = BytesMut::new();
        SqlQuantity(Quantity::from_units(units)).write(&mut out);
        out.to_vec()
    }

    fn words(words: &[u16]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Words as PostgreSQL itself sends them.
    fn check(text: &str, expected: &[u16]) {
        let quantity = Quantity::parse_stored(text).expect("a quantity");
        assert_eq!(written(quantity.units()), words(expected), "{text}");
        assert_eq!(SqlQuantity::read(&words(expected)), Some(SqlQuantity(quantity)), "{text}");
    }

    #[test]
    fn binary_form() {
        let minus_one = (-1i16).cast_unsigned();
        check("0", &[0, 0, POSITIVE, 0]);
        check("1", &[1, 0, POSITIVE, 0, 1]);
        check("-1", &[1, 0, NEGATIVE, 0, 1]);
        check("0.25", &[1, minus_one, POSITIVE, 2, 2500]);
        check("10000", &[1, 1, POSITIVE, 0, 1]);
        check("12345.678", &[3, 1, POSITIVE, 3, 1, 2345, 6780]);
        check("10000.0001", &[3, 1, POSITIVE, 4, 1, 0, 1]);
        check("0.000000000001", &[1, (-3i16).cast_unsigned(), POSITIVE, 12, 1]);
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        let refused = |parts: &[u16]| assert_eq!(SqlQuantity::read(&words(parts)), None);
        refused(&[0, 0, 0xC000, 0]);
        refused(&[0, 0, 0xD000, 0]);
        refused(&[0, 0, 0xF000, 0]);
        // 10^-13, more digits than are there, and a number beyond 128 bits.
        refused(&[1, (-4i16).cast_unsigned(), POSITIVE, 13, 1000]);
        refused(&[2, 0, POSITIVE, 0, 1]);
        refused(&[1, 7, POSITIVE, 0, 1]);
        assert_eq!(SqlQuantity::read(&[]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(units: i128) {
            let expected = SqlQuantity(Quantity::from_units(units));
            prop_assert_eq!(SqlQuantity::read(&written(units)), Some(expected));
        }

        #[test]
        fn small_numbers_too(units in -10i128.pow(18)..10i128.pow(18)) {
            let expected = SqlQuantity(Quantity::from_units(units));
            prop_assert_eq!(SqlQuantity::read(&written(units)), Some(expected));
        }
    }

    #[test]
    fn the_limits() {
        for units in [i128::MIN, i128::MAX, 0, 1, -1] {
            let expected = SqlQuantity(Quantity::from_units(units));
            assert_eq!(SqlQuantity::read(&written(units)), Some(expected));
        }
    }
}
