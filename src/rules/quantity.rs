//! Exact quantities: a decimal read from its text into an integer count of 10^-12 units.
//!
//! Invariant: no value here ever was a float. Text that cannot be held exactly is refused, never
//! rounded: more decimals than the meter's scale, more digits than its precision, NaN, infinity,
//! hex, separators. `1`, `1.0`, `1e0` and `10e-1` are one quantity; `-0` is `0`.
//!
//! Headroom: a meter holds at most 15 digits before the point, so one event is below 10^27 units
//! and more than 10^11 of the largest events fit into one total before an `i128` overflows.
//! Arithmetic is checked all the same.

use super::refusal::Refusal;
use std::fmt;

/// Decimal places every quantity is held with.
pub const SCALE: u32 = 12;
/// Most digits before the decimal point.
pub const INTEGER_DIGITS_MAX: u32 = 15;
/// 10^-12 units in one.
const UNIT: u64 = 10u64.pow(SCALE);
/// Longest text read as a quantity; the longest that can be valid is far shorter.
const TEXT_BYTES_MAX: usize = 64;

/// An exact decimal number of units of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity(i128);

/// What a meter allows its quantities to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantityRange {
    /// Most digits in all, as in SQL's NUMERIC(precision, scale).
    pub precision: u32,
    /// Most digits after the decimal point.
    pub scale: u32,
    /// Whether negative quantities are allowed.
    pub signed: bool,
}

impl Quantity {
    pub const ZERO: Self = Self(0);
    pub const ONE: Self = Self(10i128.pow(SCALE));

    /// Reads a quantity, refusing whatever the range cannot hold exactly.
    pub fn parse(text: &str, range: QuantityRange) -> Result<Self, Refusal> {
        let decimal = Decimal::read(text).ok_or_else(|| {
            Refusal::new(
                "quantity_not_a_number",
                "quantity must be a plain decimal number such as 12 or \"0.25\"",
            )
        })?;
        decimal.fit(range)
    }

    /// Reads what [`Display`](fmt::Display) wrote, with the widest range.
    pub fn parse_stored(text: &str) -> Option<Self> {
        let range = QuantityRange { precision: 38, scale: SCALE, signed: true };
        Decimal::read(text)?.fit(range).ok()
    }

    /// The number of 10^-12 units; for storage only.
    pub fn units(self) -> i128 {
        self.0
    }

    pub fn from_units(units: i128) -> Self {
        Self(units)
    }

    pub fn from_count(count: u64) -> Option<Self> {
        i128::from(count).checked_mul(Self::ONE.0).map(Self)
    }

    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }
}

impl serde::Serialize for Quantity {
    /// As a text: a number of JSON may be read through a float.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refuse = || serde::de::Error::custom("not a decimal number");
        Self::parse_stored(&text).ok_or_else(refuse)
    }
}

impl fmt::Display for Quantity {
    /// The canonical text: no exponent, no trailing zeros, no `-0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        // Nearly every number fits 64 bits, which are cheaper to divide.
        let (whole, fraction) = match u64::try_from(magnitude) {
            Ok(small) => (u128::from(small / UNIT), small % UNIT),
            Err(_) => {
                let fraction = u64::try_from(magnitude % u128::from(UNIT));
                (magnitude / u128::from(UNIT), fraction.expect("less than 10^12"))
            }
        };
        if self.0 < 0 {
            f.write_str("-")?;
        }
        write!(f, "{whole}")?;
        if fraction == 0 { Ok(()) } else { write_fraction(f, fraction) }
    }
}

/// The point and the decimals, without trailing zeros.
fn write_fraction(f: &mut fmt::Formatter<'_>, fraction: u64) -> fmt::Result {
    let mut text = *b".000000000000";
    let mut rest = fraction;
    for place in text[1..].iter_mut().rev() {
        *place = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
    }
    let text = std::str::from_utf8(&text).expect("digits are ASCII");
    f.write_str(text.trim_end_matches('0'))
}

/// A number in the grammar of JSON: significant digits and a power of ten, nothing lost.
struct Decimal {
    negative: bool,
    /// The digits without leading and trailing zeros; zero is 0.
    digits: u128,
    /// Power of ten that `digits` is multiplied by.
    exponent: i64,
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, written_exponent) = match rest.find(['e', 'E']) {
            Some(at) => (&rest[..at], read_exponent(&rest[at + 1..])?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return None,
            None => (mantissa, ""),
        };
        if whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let mut digits = 0u128;
        let mut exponent = written_exponent;
        let mut pending_zeros = 0i64;
        for (place, byte) in whole.bytes().chain(fraction.bytes()).enumerate() {
            let digit = byte.checked_sub(b'0').filter(|d| *d <= 9)?;
            if place >= whole.len() {
                exponent -= 1;
            }
            if digit == 0 && digits != 0 {
                pending_zeros += 1;
            } else if digit != 0 {
                // Zeros between digits count only once a further digit follows; so `1` and
                // `1.000` reach the same digits and exponent.
                for _ in 0..pending_zeros {
                    digits = digits.checked_mul(10)?;
                }
                pending_zeros = 0;
                digits = digits.checked_mul(10)?.checked_add(u128::from(digit))?;
            }
        }
        Some(Self { negative, digits, exponent: exponent + pending_zeros })
    }

    fn fit(&self, range: QuantityRange) -> Result<Quantity, Refusal> {
        if self.digits == 0 {
            return Ok(Quantity::ZERO);
        }
        if self.exponent < -i64::from(range.scale.min(SCALE)) {
            return Err(Refusal::new(
                "quantity_too_precise",
                format!("quantity has more than the meter's {} decimal places", range.scale),
            ));
        }
        let whole_digits = range.precision.saturating_sub(range.scale);
        let out_of_range = || {
            Refusal::new(
                "quantity_out_of_range",
                format!(
                    "quantity has more than the meter's {whole_digits} digits before the point"
                ),
            )
        };
        let shift = u32::try_from(self.exponent + i64::from(SCALE)).map_err(|_| out_of_range())?;
        let magnitude = power_of_ten(shift)
            .and_then(|power| i128::try_from(self.digits).ok()?.checked_mul(power))
            .ok_or_else(out_of_range)?;
        let bound = power_of_ten(whole_digits + SCALE);
        if bound.is_some_and(|bound| magnitude >= bound) {
            return Err(out_of_range());
        }
        if self.negative && !range.signed {
            return Err(Refusal::new(
                "quantity_negative",
                "quantity is negative and the meter is not signed; declare a meter with \
                 \"signed\": true under another slug for usage that can be reversed",
            ));
        }
        Ok(Quantity(if self.negative { -magnitude } else { magnitude }))
    }
}

/// None if it is too large to be held.
fn power_of_ten(exponent: u32) -> Option<i128> {
    const POWERS: [i128; 39] = {
        let mut powers = [1; 39];
        let mut place = 1;
        while place < powers.len() {
            powers[place] = powers[place - 1] * 10;
            place += 1;
        }
        powers
    };
    POWERS.get(usize::try_from(exponent).ok()?).copied()
}

fn read_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude: i64 = digits.parse().ok()?;
    Some(if text.starts_with('-') { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USUAL: QuantityRange = QuantityRange { precision: 18, scale: 6, signed: false };
    const SIGNED: QuantityRange = QuantityRange { precision: 18, scale: 6, signed: true };

    fn check(range: QuantityRange, text: &str, expected: Result<&str, &str>) {
        let found = Quantity::parse(text, range).map(|q| q.to_string()).map_err(|r| r.code);
        assert_eq!(found.as_deref().map_err(|c| *c), expected, "{text}");
    }

    #[test]
    fn same_number_same_quantity() {
        for text in ["1", "1.0", "1e0", "1E0", "10e-1", "0.1e1", "0.10e+1", "1.000000000000000"] {
            check(USUAL, text, Ok("1"));
        }
        for text in ["0", "-0", "0.0", "0e9", "-0.000", "0e-400"] {
            check(USUAL, text, Ok("0"));
        }
        check(USUAL, "1e3", Ok("1000"));
        check(USUAL, "0.000001", Ok("0.000001"));
        check(USUAL, "999999999999.999999", Ok("999999999999.999999"));
        check(USUAL, "1002003", Ok("1002003"));
        check(SIGNED, "-12.5", Ok("-12.5"));
    }

    #[test]
    fn refused_texts() {
        let ten_thousand_digits = "9".repeat(10_000);
        for text in [
            "",
            " 1",
            "1 ",
            "+1",
            "01",
            "00",
            "1_000",
            "1,5",
            "0x10",
            "NaN",
            "nan",
            "Infinity",
            "-Infinity",
            "inf",
            ".5",
            "5.",
            "1e",
            "1e+",
            "e5",
            "--1",
            "1.2.3",
            "1e1.5",
            "1e99999",
            "١",
            "½",
            &ten_thousand_digits,
        ] {
            check(USUAL, text, Err("quantity_not_a_number"));
        }
    }

    #[test]
    fn out_of_range() {
        check(USUAL, "0.0000001", Err("quantity_too_precise"));
        check(USUAL, "1e-400", Err("quantity_too_precise"));
        check(USUAL, "4e-7", Err("quantity_too_precise"));
        check(USUAL, "1000000000000", Err("quantity_out_of_range"));
        check(USUAL, "1e400", Err("quantity_out_of_range"));
        check(USUAL, "1e38", Err("quantity_out_of_range"));
        check(USUAL, "170141183460469231731687303715884105728", Err("quantity_out_of_range"));
        check(USUAL, "-1", Err("quantity_negative"));
        let whole = QuantityRange { precision: 15, scale: 0, signed: false };
        check(whole, "1.5", Err("quantity_too_precise"));
        check(whole, "999999999999999", Ok("999999999999999"));
        let fine = QuantityRange { precision: 27, scale: 12, signed: false };
        check(fine, "999999999999999.999999999999", Ok("999999999999999.999999999999"));
    }

    #[test]
    fn a_million_tenths() {
        let tenth = Quantity::parse("0.1", USUAL).expect("valid");
        let mut total = Quantity::ZERO;
        for _ in 0..1_000_000 {
            total = total.checked_add(tenth).expect("fits");
        }
        assert_eq!(total.to_string(), "100000");
    }

    proptest! {
        #[test]
        fn display_reads_back(units in any::<i64>()) {
            let quantity = Quantity::from_units(i128::from(units));
            prop_assert_eq!(Quantity::parse_stored(&quantity.to_string()), Some(quantity));
        }

        #[test]
        fn display_is_the_canonical_text(units in any::<i128>(), shift in 0u32..120) {
            let units = units >> shift;
            let (magnitude, unit) = (units.unsigned_abs(), 10u128.pow(SCALE));
            let text = format!("{}.{:012}", magnitude / unit, magnitude % unit);
            let sign = if units < 0 { "-" } else { "" };
            let expected = format!("{sign}{}", text.trim_end_matches('0').trim_end_matches('.'));
            prop_assert_eq!(Quantity::from_units(units).to_string(), expected);
        }

        #[test]
        fn powers_of_ten_are_exact(exponent in 0u32..60) {
            prop_assert_eq!(power_of_ten(exponent), 10i128.checked_pow(exponent));
        }

        #[test]
        fn shifting_the_point_changes_nothing(digits in 1u64..1_000_000_000, places in 0u32..=6) {
            let plain = format!("{digits}e-{places}");
            let whole = digits / 10u64.pow(places);
            let fraction = digits % 10u64.pow(places);
            let width = usize::try_from(places).expect("small");
            let pointed = if places == 0 { whole.to_string() } else { format!("{whole}.{fraction:0width$}") };
            prop_assert_eq!(Quantity::parse(&plain, USUAL), Quantity::parse(&pointed, USUAL));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _ = Quantity::parse(&text, SIGNED);
        }
    }
}
