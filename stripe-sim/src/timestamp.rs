//! Instants: microseconds of UTC since 1970, read from and printed as RFC 3339.
//!
//! Invariant: every spelling of an instant has the same number. Digits beyond the microsecond are
//! cut off, and a leap second is refused, since it has no number of its own. A crash leaves
//! nothing.

use std::fmt;
use std::str::FromStr;

pub(crate) const MICROS_PER_SECOND: i64 = 1_000_000;
pub(crate) const MICROS_PER_HOUR: i64 = 3_600 * MICROS_PER_SECOND;
pub(crate) const MICROS_PER_DAY: i64 = 24 * MICROS_PER_HOUR;

/// More digits of a fraction than this are refused.
const FRACTION_DIGITS_MAX: usize = 12;

/// An instant, to the microsecond.
///
/// It is read from and printed as an RFC 3339 date-time.
///
/// ```
/// use stripe_sim::Timestamp;
///
/// let noon: Timestamp = "2026-11-15T14:00:00+02:00".parse()?;
/// assert_eq!(noon.to_string(), "2026-11-15T12:00:00Z");
/// assert_eq!(noon, Timestamp::from_seconds(1_794_744_000));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant this many microseconds after 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The instant this many seconds after 1970.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(MICROS_PER_SECOND))
    }

    /// Microseconds since 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(MICROS_PER_SECOND)
    }

    pub(crate) const fn saturating_add_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

impl FromStr for Timestamp {
    type Err = String;

    /// Reads a date-time with its offset.
    fn from_str(text: &str) -> Result<Self, String> {
        read(text).map(Self).ok_or_else(|| {
            format!(
                "{text} is not an RFC 3339 date-time with an offset, such as 2026-11-15T12:30:00Z"
            )
        })
    }
}

impl fmt::Display for Timestamp {
    /// `2026-11-15T12:30:00Z`, with up to six decimals where they are not zero. An instant outside
    /// the years that can be printed is printed as the nearest that can.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nearest = if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        fmt::Display::fmt(&jiff::Timestamp::from_microsecond(self.0).unwrap_or(nearest), f)
    }
}

/// jiff reads more than RFC 3339 allows: no seconds, leap seconds, names of zones. So the shape is
/// checked first.
fn read(text: &str) -> Option<i64> {
    let (local, rest) = text.split_at_checked("2026-11-15T12:30:00".len())?;
    let (fraction, offset) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("0", rest),
    };
    let is_local = has_shape(local, "0000-00-00T00:00:00")
        && !local.starts_with("0000")
        && !local.ends_with("60");
    let is_fraction = (1..=FRACTION_DIGITS_MAX).contains(&fraction.len());
    let is_offset =
        offset.eq_ignore_ascii_case("z") || (has_shape(offset, "+00:00") && offset[1..] < *"24:00");
    if !is_local || !is_fraction || !is_offset {
        return None;
    }
    let whole: jiff::Timestamp = format!("{local}{offset}").parse().ok()?;
    let micros: i64 = format!("{fraction:0<6}")[..6].parse().ok()?;
    Some(whole.as_second() * MICROS_PER_SECOND + micros)
}

/// Whether a text has digits where the pattern has `0`, and separators where it has separators.
fn has_shape(text: &str, pattern: &str) -> bool {
    let fits = |(byte, wanted): (u8, u8)| match wanted {
        b'0' => byte.is_ascii_digit(),
        b'T' => b"Tt ".contains(&byte),
        b'+' => b"+-".contains(&byte),
        other => byte == other,
    };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let found = text.parse::<Timestamp>().ok().map(|time| time.to_string());
        assert_eq!(found.as_deref(), expected, "{text}");
    }

    #[test]
    fn spellings() {
        for text in [
            "2026-11-15T12:30:00Z",
            "2026-11-15t12:30:00z",
            "2026-11-15 12:30:00Z",
            "2026-11-15T12:30:00+00:00",
            "2026-11-15T12:30:00-00:00",
            "2026-11-15T14:30:00+02:00",
            "2026-11-16T02:30:00+14:00",
            "2026-11-15T00:30:00-12:00",
            "2026-11-15T12:30:00.000Z",
            "2026-11-15T12:30:00.000000999Z",
        ] {
            check(text, Some("2026-11-15T12:30:00Z"));
        }
        check("2026-11-15T12:30:00.25Z", Some("2026-11-15T12:30:00.25Z"));
        check("2026-11-15T12:30:00.123456789012Z", Some("2026-11-15T12:30:00.123456Z"));
        check("1969-12-31T23:59:59.5Z", Some("1969-12-31T23:59:59.5Z"));
        check("2024-02-29T00:00:00Z", Some("2024-02-29T00:00:00Z"));
        check("0001-01-01T00:00:00Z", Some("0001-01-01T00:00:00Z"));
        assert_eq!(Timestamp::from_seconds(i64::MAX).to_string(), "9999-12-30T22:00:00.999999999Z");
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "2026-11-15",
            "2026-11-15T12:30:00",
            "2026-11-15T12:30Z",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-11-15T24:00:00Z",
            "2026-11-15T12:60:00Z",
            "2016-12-31T23:59:60Z",
            "0000-01-01T00:00:00Z",
            "10000-01-01T00:00:00Z",
            "2026-11-15T12:30:00.Z",
            "2026-11-15T12:30:00.1234567890123Z",
            "2026-11-15T12:30:00.5",
            "2026-11-15T12:30:00+0200",
            "2026-11-15T12:30:00+24:00",
            "2026-11-15T12:30:00+02:60",
            "2026-11-15T12:30:00[UTC]",
            "2026-11-15T12:30:00Z[UTC]",
            "1763209800",
            "2026-11-15T12:30:00Z ",
            "٢٠٢٦-11-15T12:30:00Z",
        ] {
            check(text, None);
        }
    }
}
