//! Lengths of time as people write them: `90s`, `10m`, `4h`, `7d`.
//!
//! Invariant: a span is a whole number of seconds, not negative, and at most a hundred days, so
//! that it can be added to any instant of the calendar in use.

use super::refusal::Refusal;
use super::timestamp::{MICROS_PER_SECOND, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

const SECONDS_MAX: i64 = 100 * 86_400;
const UNITS: [(char, i64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span {
    seconds: i64,
}

impl Span {
    pub const fn from_seconds(seconds: u32) -> Self {
        // Lossless; `From` is not const.
        #[expect(clippy::as_conversions, reason = "u32 to i64 loses nothing")]
        Self { seconds: seconds as i64 }
    }

    pub const fn from_minutes(minutes: u32) -> Self {
        Self::from_seconds(minutes * 60)
    }

    pub const fn from_hours(hours: u32) -> Self {
        Self::from_minutes(hours * 60)
    }

    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = || {
            Refusal::new(
                "invalid_span",
                "a length of time is a number and a unit, such as 90s, 10m, 4h or 7d, at most 100d",
            )
        };
        let unit = text.chars().last().ok_or_else(refuse)?;
        let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
        let digits = &text[..text.len() - 1];
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refuse());
        }
        let number: i64 = digits.parse().map_err(|_| refuse())?;
        let seconds = number.checked_mul(seconds).filter(|s| *s <= SECONDS_MAX);
        seconds.map(|seconds| Self { seconds }).ok_or_else(refuse)
    }

    pub const fn micros(self) -> i64 {
        self.seconds * MICROS_PER_SECOND
    }

    pub fn after(self, at: Timestamp) -> Timestamp {
        at.saturating_add_micros(self.micros())
    }

    pub fn before(self, at: Timestamp) -> Timestamp {
        at.saturating_add_micros(-self.micros())
    }
}

impl fmt::Display for Span {
    /// In the largest unit that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.into_iter().find(|(_, seconds)| self.seconds % seconds == 0);
        let (unit, seconds) = exact.filter(|_| self.seconds > 0).unwrap_or(('s', 1));
        write!(f, "{}{unit}", self.seconds / seconds)
    }
}

impl TryFrom<String> for Span {
    type Error = Refusal;

    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_write() {
        let check = |text: &str, written: &str| {
            assert_eq!(Span::parse(text).map(|s| s.to_string()).ok().as_deref(), Some(written));
        };
        check("90s", "90s");
        check("60m", "1h");
        check("48h", "2d");
        check("0s", "0s");
        for text in ["", "h", "1", "-1h", "1.5h", "1 h", "1w", "101d", "99999999999999999999s", "é"]
        {
            assert!(Span::parse(text).is_err(), "{text}");
        }
    }
}
