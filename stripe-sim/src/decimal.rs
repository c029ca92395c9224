//! Exact decimal numbers: values of meter events, quantities, unit amounts and tax rates.
//!
//! Invariant: no value here ever was a float. A text that 12 decimal places cannot hold exactly is
//! refused, never rounded. A crash leaves nothing.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

/// Decimal places that every number is held with.
const SCALE: i64 = 12;
/// The longest text that is read. The longest that can be valid is shorter.
const TEXT_BYTES_MAX: usize = 64;
/// The magnitude, in units, from which on a number is refused: 26 digits before the point.
const UNITS_LIMIT: i128 = 10i128.pow(38);

/// An exact decimal number with up to 12 decimal places.
///
/// It is read from and printed as a decimal text. Exponents are read and never printed, so
/// `1.50`, `1.5` and `15e-1` are equal and print as `1.5`.
///
/// ```
/// use stripe_sim::Decimal;
///
/// let value: Decimal = "12.50".parse()?;
/// assert_eq!(value.to_string(), "12.5");
/// assert_eq!(value.units(), 12_500_000_000_000);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Decimal(i128);

impl Decimal {
    /// The number 0.
    pub const ZERO: Self = Self(0);
    /// The number 1.
    pub const ONE: Self = Self(1_000_000_000_000);

    /// The number of units of 10^-12.
    pub const fn units(self) -> i128 {
        self.0
    }

    /// The number that is this many units of 10^-12.
    pub const fn from_units(units: i128) -> Self {
        Self(units)
    }
}

impl Sum for Decimal {
    /// # Panics
    ///
    /// If the sum does not fit into an `i128` of units.
    fn sum<I: Iterator<Item = Self>>(numbers: I) -> Self {
        let add = |sum: i128, number: Self| sum.checked_add(number.0).expect("the sum fits");
        Self(numbers.fold(0, add))
    }
}

impl FromStr for Decimal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text).map(Self).ok_or_else(|| format!("{text} is not a decimal number in range"))
    }
}

impl fmt::Display for Decimal {
    /// Without an exponent, trailing zeros or `-0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = Self::ONE.0.unsigned_abs();
        let magnitude = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", magnitude / one)?;
        match magnitude % one {
            0 => Ok(()),
            fraction => write!(f, ".{}", format!("{fraction:012}").trim_end_matches('0')),
        }
    }
}

/// Reads the grammar of JSON numbers; returns units.
fn read(text: &str) -> Option<i128> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (mantissa, ""),
    };
    let digits = format!("{whole}{fraction}");
    let leading_zero = whole.len() > 1 && whole.starts_with('0');
    if whole.is_empty() || leading_zero || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Zeros at the end do not count as decimal places.
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let places = i64::try_from(significant.len()).ok()? - i64::try_from(whole.len()).ok()?;
    let shift = u32::try_from(SCALE + exponent - places).ok()?;
    let magnitude: i128 = significant.parse().ok()?;
    let magnitude = magnitude.checked_mul(10i128.checked_pow(shift)?)?;
    let units = if text.starts_with('-') { -magnitude } else { magnitude };
    (magnitude < UNITS_LIMIT).then_some(units)
}

fn read_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !(1..=4).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let found = text.parse::<Decimal>().ok().map(|number| number.to_string());
        assert_eq!(found.as_deref(), expected, "{text}");
    }

    #[test]
    fn spellings() {
        for text in ["1", "1.0", "1e0", "1E0", "10e-1", "0.1e1", "0.10e+1", "1.000000000000000"] {
            check(text, Some("1"));
        }
        for text in ["0", "-0", "0.0", "0e9", "-0.000", "0e-400"] {
            check(text, Some("0"));
        }
        check("1e3", Some("1000"));
        check("100", Some("100"));
        check("1002003", Some("1002003"));
        check("-12.5", Some("-12.5"));
        check("0.000000000001", Some("0.000000000001"));
        check("0.05", Some("0.05"));
        check("10.05", Some("10.05"));
        check(
            "99999999999999999999999999.999999999999",
            Some("99999999999999999999999999.999999999999"),
        );
    }

    #[test]
    fn refused() {
        let long = "9".repeat(65);
        for text in [
            "",
            "-",
            " 1",
            "1 ",
            "+1",
            "01",
            "00",
            "1_000",
            "1,5",
            "0x10",
            "NaN",
            "inf",
            ".5",
            "5.",
            "1e",
            "1e+",
            "1e+-1",
            "e5",
            "--1",
            "1.2.3",
            "1e1.5",
            "1e99999",
            "1e400",
            "1e-400",
            "0.0000000000001",
            "100000000000000000000000000",
            "½",
            "١",
            &long,
        ] {
            check(text, None);
        }
    }
}
