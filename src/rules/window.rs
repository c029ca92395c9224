//! Buckets, in which totals are kept, and windows, in which they are asked for.
//!
//! Invariant: both are half-open, `[start, end)`. Every instant lies in exactly one bucket of a
//! grain. A window is answered only if whole buckets make it up exactly; a zone or a range that
//! would cut a bucket in two is refused with the reason.

use super::refusal::Refusal;
use super::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MINUTE, Timestamp};
use jiff::tz::TimeZone;
use jiff::{ToSpan, Zoned};
use serde::{Deserialize, Serialize};

/// Most windows in one answer.
pub const WINDOWS_MAX: usize = 10_000;

/// The grain at which a meter's totals are kept, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Bucket {
    #[serde(rename = "1m")]
    Minute,
    #[serde(rename = "15m")]
    QuarterHour,
    #[default]
    #[serde(rename = "1h")]
    Hour,
    #[serde(rename = "1d")]
    Day,
}

impl Bucket {
    pub const fn micros(self) -> i64 {
        match self {
            Self::Minute => MICROS_PER_MINUTE,
            Self::QuarterHour => 15 * MICROS_PER_MINUTE,
            Self::Hour => MICROS_PER_HOUR,
            Self::Day => MICROS_PER_DAY,
        }
    }

    /// The start of the bucket that `at` lies in.
    pub fn start_of(self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.micros().div_euclid(self.micros()) * self.micros())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Minute => "a minute",
            Self::QuarterHour => "a quarter of an hour",
            Self::Hour => "an hour",
            Self::Day => "a UTC day",
        }
    }
}

/// How a range is cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Grain {
    Hour,
    Day,
    /// From Monday to Monday.
    Week,
    Month,
    /// The whole range is one window.
    #[default]
    None,
}

/// A half-open interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Window {
    pub start: Timestamp,
    pub end: Timestamp,
}

impl Window {
    /// The shortest window that holds a moment.
    pub fn moment(at: Timestamp) -> Self {
        Self { start: at, end: at.saturating_add_micros(1) }
    }

    /// The moment that its total is stamped with.
    pub fn middle(self) -> Timestamp {
        self.start.saturating_add_micros(self.micros() / 2)
    }

    pub fn contains(self, at: Timestamp) -> bool {
        (self.start..self.end).contains(&at)
    }

    pub fn micros(self) -> i64 {
        self.end.micros() - self.start.micros()
    }
}

/// Cuts `range` at the grain's borders in `zone`; the first and last window may be shorter.
pub fn plan_windows(
    range: Window,
    grain: Grain,
    zone: &TimeZone,
    bucket: Bucket,
) -> Result<Vec<Window>, Refusal> {
    if range.end <= range.start {
        return Err(Refusal::new("invalid_range", "from must lie before to"));
    }
    let mut windows = Vec::new();
    let mut start = range.start;
    while start < range.end {
        if windows.len() == WINDOWS_MAX {
            return Err(Refusal::new(
                "too_many_windows",
                format!(
                    "the range has more than {WINDOWS_MAX} windows; ask for a shorter range or a coarser window"
                ),
            ));
        }
        let end =
            next_border(start, grain, zone)?.map_or(range.end, |border| border.min(range.end));
        windows.push(Window { start, end });
        start = end;
    }
    let borders = windows.iter().map(|w| w.start).chain([range.end]);
    for border in borders {
        if bucket.start_of(border) != border {
            return Err(Refusal::new(
                "window_not_exact",
                format!(
                    "a window would start or end at {border}, inside {} this meter keeps totals by; \
                     move from and to, choose another tz, or use a meter with a finer bucket",
                    bucket.name()
                ),
            ));
        }
    }
    Ok(windows)
}

/// The start of the calendar month that `now` lies in, and of the next one.
pub fn month_around(now: Timestamp, zone: &TimeZone) -> Result<Window, Refusal> {
    let zoned = to_zoned(now, zone)?;
    let start = zoned.first_of_month().and_then(|day| day.start_of_day());
    let start = start.map_err(out_of_calendar)?;
    let end = start.checked_add(1.month()).and_then(|day| day.start_of_day());
    Ok(Window { start: from_zoned(&start), end: from_zoned(&end.map_err(out_of_calendar)?) })
}

/// Reads an instant (RFC 3339) or a date, which means its first moment in `zone`.
pub fn parse_border(text: &str, zone: &TimeZone) -> Result<Timestamp, Refusal> {
    if text.len() == 10
        && let Ok(date) = text.parse::<jiff::civil::Date>()
    {
        return date.to_zoned(zone.clone()).map(|z| from_zoned(&z)).map_err(out_of_calendar);
    }
    Timestamp::parse(text).map_err(|_| {
        Refusal::new(
            "invalid_range",
            "from and to are RFC 3339 instants such as 2026-11-01T00:00:00Z (write + as %2B in a \
             URL) or dates such as 2026-11-01",
        )
    })
}

/// The first border after `start`, or none where the range is one window.
fn next_border(
    start: Timestamp,
    grain: Grain,
    zone: &TimeZone,
) -> Result<Option<Timestamp>, Refusal> {
    let zoned = to_zoned(start, zone)?;
    let border = match grain {
        Grain::None => return Ok(None),
        Grain::Hour => return Ok(Some(next_hour(start, &zoned))),
        Grain::Day => zoned.checked_add(1.day()).and_then(|day| day.start_of_day()),
        Grain::Week => {
            let days_left = 7 - i64::from(zoned.weekday().to_monday_zero_offset());
            zoned.checked_add(days_left.days()).and_then(|day| day.start_of_day())
        }
        Grain::Month => zoned
            .first_of_month()
            .and_then(|day| day.checked_add(1.month()))
            .and_then(|day| day.start_of_day()),
    };
    border.map(|border| Some(from_zoned(&border))).map_err(out_of_calendar)
}

/// The next full hour on the zone's clock. An hour repeated at the end of summer time is two
/// windows, since they are different hours of usage.
fn next_hour(start: Timestamp, zoned: &Zoned) -> Timestamp {
    let offset = i64::from(zoned.offset().seconds()) * 1_000_000;
    let local = start.micros() + offset;
    let next_local = (local.div_euclid(MICROS_PER_HOUR) + 1) * MICROS_PER_HOUR;
    Timestamp::from_micros(next_local - offset)
}

fn to_zoned(at: Timestamp, zone: &TimeZone) -> Result<Zoned, Refusal> {
    let instant = jiff::Timestamp::from_microsecond(at.micros()).map_err(out_of_calendar)?;
    Ok(instant.to_zoned(zone.clone()))
}

fn from_zoned(zoned: &Zoned) -> Timestamp {
    Timestamp::from_micros(zoned.timestamp().as_microsecond())
}

fn out_of_calendar(_: jiff::Error) -> Refusal {
    Refusal::new("invalid_range", "the range leaves the years 1 to 9999")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(
        from: &str,
        to: &str,
        grain: Grain,
        zone: &str,
        bucket: Bucket,
    ) -> Result<Vec<String>, &'static str> {
        let zone = TimeZone::get(zone).expect("known zone");
        let range = Window {
            start: parse_border(from, &zone).expect("valid"),
            end: parse_border(to, &zone).expect("valid"),
        };
        let windows = plan_windows(range, grain, &zone, bucket).map_err(|r| r.code)?;
        assert!(windows.windows(2).all(|two| two[0].end == two[1].start));
        Ok(windows.iter().map(|w| w.start.to_string()).collect())
    }

    #[test]
    fn days_in_new_york_over_the_end_of_summer_time() {
        let starts = plan("2026-10-31", "2026-11-03", Grain::Day, "America/New_York", Bucket::Hour);
        let expected = ["2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"];
        assert_eq!(starts.expect("exact"), expected);
        let hours = plan("2026-11-01", "2026-11-02", Grain::Hour, "America/New_York", Bucket::Hour);
        assert_eq!(hours.expect("exact").len(), 25);
    }

    #[test]
    fn months_and_weeks() {
        let starts = plan("2026-01-15", "2026-04-01", Grain::Month, "UTC", Bucket::Day);
        let expected = ["2026-01-15T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"];
        assert_eq!(starts.expect("exact"), expected);
        let starts = plan("2026-11-15", "2026-11-24", Grain::Week, "UTC", Bucket::Hour);
        let expected = ["2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"];
        assert_eq!(starts.expect("exact"), expected);
    }

    #[test]
    fn what_buckets_cannot_express_is_refused() {
        let day =
            |zone, bucket| plan("2026-11-01", "2026-11-02", Grain::Day, zone, bucket).map(|_| ());
        assert_eq!(day("Asia/Kolkata", Bucket::Hour), Err("window_not_exact"));
        assert_eq!(day("Asia/Kolkata", Bucket::QuarterHour), Ok(()));
        assert_eq!(day("Asia/Kathmandu", Bucket::QuarterHour), Ok(()));
        assert_eq!(day("Europe/Paris", Bucket::Day), Err("window_not_exact"));
        assert_eq!(day("Europe/Paris", Bucket::Hour), Ok(()));
        let empty = plan("2026-11-02", "2026-11-02", Grain::None, "UTC", Bucket::Hour);
        assert_eq!(empty, Err("invalid_range"));
        let endless = plan("2000-01-01", "2026-01-01", Grain::Hour, "UTC", Bucket::Hour);
        assert_eq!(endless, Err("too_many_windows"));
    }

    #[test]
    fn the_month_around_now() {
        let zone = TimeZone::get("Europe/Berlin").expect("known zone");
        let now = Timestamp::parse("2026-10-31T23:30:00Z").expect("valid");
        let month = month_around(now, &zone).expect("in calendar");
        assert_eq!(month.start.to_string(), "2026-10-31T23:00:00Z");
        assert_eq!(month.end.to_string(), "2026-11-30T23:00:00Z");
    }

    proptest! {
        #[test]
        fn windows_of_any_grain_cover_the_range_once(
            start_hour in 0i64..500_000, hours in 1i64..2_000, grain in 0usize..5, zone in 0usize..4
        ) {
            let grain = [Grain::Hour, Grain::Day, Grain::Week, Grain::Month, Grain::None][grain];
            let zone = ["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"][zone];
            let zone = TimeZone::get(zone).expect("known zone");
            let start = Timestamp::from_micros(start_hour * MICROS_PER_HOUR);
            let range = Window { start, end: start.saturating_add_micros(hours * MICROS_PER_HOUR) };
            let windows = plan_windows(range, grain, &zone, Bucket::Minute).expect("minutes express all");
            prop_assert_eq!(windows[0].start, range.start);
            prop_assert_eq!(windows[windows.len() - 1].end, range.end);
            prop_assert!(windows.windows(2).all(|two| two[0].end == two[1].start));
            prop_assert!(windows.iter().all(|w| w.start < w.end));
        }

        #[test]
        fn an_instant_lies_in_one_bucket(micros in any::<i32>(), scale in 1i64..1_000_000) {
            let at = Timestamp::from_micros(i64::from(micros) * scale);
            for bucket in [Bucket::Minute, Bucket::QuarterHour, Bucket::Hour, Bucket::Day] {
                let start = bucket.start_of(at);
                prop_assert!(start <= at && at.micros() < start.micros() + bucket.micros());
                prop_assert_eq!(bucket.start_of(start), start);
            }
        }
    }
}
