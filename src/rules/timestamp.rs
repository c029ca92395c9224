//! Instants: microseconds of UTC since 1970, read from and written as RFC 3339.
//!
//! Invariant: every instant has one number, so `Z`, `+00:00` and `+02:00` spellings of one moment
//! are equal. Digits beyond the microsecond are cut off (a nanosecond stamp is common and its tail
//! never decides a bill). A leap second (`:60`) is refused: it has no number of its own.

use super::refusal::Refusal;
use std::fmt;

pub const MICROS_PER_SECOND: i64 = 1_000_000;
pub const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
pub const MICROS_PER_HOUR: i64 = 60 * MICROS_PER_MINUTE;
pub const MICROS_PER_DAY: i64 = 24 * MICROS_PER_HOUR;

/// From the first second of year 1 to the last of year 9999.
const SECONDS_SPELT: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// An instant, to the microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Seconds since 1970; none for a year that has not four digits, since it has no spelling.
    pub fn from_seconds(seconds: i64) -> Option<Self> {
        SECONDS_SPELT.contains(&seconds).then(|| Self(seconds * MICROS_PER_SECOND))
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    pub fn saturating_add_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Reads a full RFC 3339 date-time with its offset.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        Self::parse_field("an instant", text)
    }

    /// Reads the instant of a field, which a refusal names.
    pub fn parse_field(name: &str, text: &str) -> Result<Self, Refusal> {
        read(text.as_bytes()).map(Self).ok_or_else(|| {
            let detail = format!(
                "{name} must be an RFC 3339 date-time with an offset, such as \
                 2026-11-15T12:30:00Z or 2026-11-15T14:30:00.25+02:00"
            );
            Refusal::new("invalid_timestamp", detail)
        })
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|refusal| serde::de::Error::custom(refusal.detail))
    }
}

impl fmt::Display for Timestamp {
    /// `2026-11-15T12:30:00Z`, with up to six decimals where they are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.rem_euclid(MICROS_PER_SECOND);
        write_seconds(self.0, f)?;
        if micros != 0 {
            let digits = format!("{micros:06}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

/// The one spelling that fingerprints are computed from: always six decimals and `Z`.
pub struct CanonicalTimestamp(pub Timestamp);

impl fmt::Display for CanonicalTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.0.rem_euclid(MICROS_PER_SECOND);
        write_seconds(self.0.0, f)?;
        write!(f, ".{micros:06}Z")
    }
}

fn write_seconds(micros: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (year, month, day) = civil_from_days(micros.div_euclid(MICROS_PER_DAY));
    let seconds = micros.rem_euclid(MICROS_PER_DAY) / MICROS_PER_SECOND;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

fn read(text: &[u8]) -> Option<i64> {
    // Shortest: 2026-11-15T12:30:00Z. Longest: twelve decimals and a numeric offset.
    if text.len() < 20 || text.len() > 38 {
        return None;
    }
    let number = |from: usize, len: usize| -> Option<i64> {
        text.get(from..from + len)?.iter().try_fold(0i64, |value, byte| {
            let digit = byte.checked_sub(b'0').filter(|d| *d <= 9)?;
            Some(value * 10 + i64::from(digit))
        })
    };
    let separators = text[4] == b'-' && text[7] == b'-' && text[13] == b':' && text[16] == b':';
    if !separators || !matches!(text[10], b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let date_valid =
        year >= 1 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    if !date_valid || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (micros, zone_at) = read_fraction(text)?;
    let offset_minutes = read_offset(text.get(zone_at..)?)?;
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
        - offset_minutes * 60;
    Some(seconds * MICROS_PER_SECOND + micros)
}

/// The microseconds of the fraction, if there is one, and where the offset starts.
fn read_fraction(text: &[u8]) -> Option<(i64, usize)> {
    if text[19] != b'.' {
        return Some((0, 19));
    }
    let digits = text[20..].iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 || digits > 12 {
        return None;
    }
    let micros = (0..6).fold(0, |value, place| {
        let digit = if place < digits { i64::from(text[20 + place] - b'0') } else { 0 };
        value * 10 + digit
    });
    Some((micros, 20 + digits))
}

fn read_offset(zone: &[u8]) -> Option<i64> {
    match zone {
        b"Z" | b"z" => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let digits = [h1, h2, m1, m2].map(|b| i64::from(b.wrapping_sub(b'0')));
            if digits.iter().any(|d| *d > 9) {
                return None;
            }
            let (hours, minutes) = (digits[0] * 10 + digits[1], digits[2] * 10 + digits[3]);
            let total = hours * 60 + minutes;
            let valid = hours <= 23 && minutes <= 59;
            valid.then_some(if *sign == b'-' { -total } else { total })
        }
        _ => None,
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar. Years are shifted to start in March
/// so that the leap day is the last day of a year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let year_of_era = shifted_year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(
            Timestamp::parse(text).ok().map(|t| t.to_string()).as_deref(),
            expected,
            "{text}"
        );
    }

    #[test]
    fn spellings_of_one_moment() {
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
        check("2024-02-29T00:00:00Z", Some("2024-02-29T00:00:00Z"));
        check("0001-01-01T00:00:00Z", Some("0001-01-01T00:00:00Z"));
        check("9999-12-31T23:59:59.999999Z", Some("9999-12-31T23:59:59.999999Z"));
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
            "2026-11-15T12:30:00+0200",
            "2026-11-15T12:30:00+24:00",
            "2026-11-15T12:30:00+02:60",
            "2026-11-15T12:30:00[UTC]",
            "1763209800",
            "2026-11-15T12:30:00Z ",
            "٢٠٢٦-11-15T12:30:00Z",
        ] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn written_and_read_back(micros in -62_135_596_800_000_000i64..253_402_300_800_000_000) {
            let instant = Timestamp::from_micros(micros);
            prop_assert_eq!(Timestamp::parse(&instant.to_string()), Ok(instant));
            let canonical = CanonicalTimestamp(instant).to_string();
            prop_assert_eq!(Timestamp::parse(&canonical), Ok(instant));
        }

        #[test]
        fn agrees_with_jiff(micros in -62_135_596_800_000_000i64..253_402_200_000_000_000) {
            let theirs = jiff::Timestamp::from_microsecond(micros).expect("in range");
            let ours = Timestamp::parse(&theirs.to_string());
            prop_assert_eq!(ours, Ok(Timestamp::from_micros(micros)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _ = Timestamp::parse(&text);
        }
    }
}
