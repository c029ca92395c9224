//! Billing terms of a meter: how its totals are pushed to the billing provider.
//!
//! Invariant: terms that were declared never change. Only sums and counts are billed by windows:
//! they alone add up, so that the windows of a month bill what the month used.

use super::ids::{METER_SLUG_BYTES_MAX, MeterSlug, check_text};
use super::meter::Aggregation;
use super::named::named_enum;
use super::refusal::Refusal;
use super::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, Timestamp};
use super::window::{Bucket, Window};
use serde::{Deserialize, Serialize};

/// Longest name of a meter at a provider.
const EVENT_NAME_BYTES_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Billing {
    /// The name under which the provider knows the meter; the slug where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_name: Option<String>,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub granularity: Granularity,
    /// Decimal places the provider gets; the rest is carried into the next push. The meter's
    /// scale where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u32>,
    /// Usage of windows that start at this moment or later is billed (RFC 3339); the moment at
    /// which billing was declared where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

named_enum! {
    /// What a push says.
    #[derive(Default)]
    pub enum Mode {
        /// By how much the window's total has grown; the provider adds it up.
        #[default]
        Delta = "delta",
        /// The window's whole total; at the provider the last one received wins.
        Absolute = "absolute",
    }
}

/// What one push is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// An hour in UTC; a day where the meter's bucket is a day.
    #[default]
    Window,
    /// A day in UTC.
    Day,
    /// One event.
    Event,
}

impl Billing {
    pub fn check(&self, aggregation: Aggregation, meter_scale: u32) -> Result<(), Refusal> {
        let refuse = |detail: String| Err(Refusal::new("invalid_billing", detail));
        match aggregation {
            Aggregation::Sum | Aggregation::Count => {}
            Aggregation::Min | Aggregation::Max | Aggregation::Latest | Aggregation::Unique => {
                return refuse(
                    "only sum and count meters can be billed: other values of windows do not add \
                     up to that of a month"
                        .into(),
                );
            }
        }
        if let Some(name) = &self.event_name {
            check_text("event_name", "invalid_billing", name, EVENT_NAME_BYTES_MAX)?;
        }
        if self.scale.is_some_and(|scale| scale > meter_scale) {
            return refuse(format!("billing.scale is at most the meter's scale, {meter_scale}"));
        }
        if self.mode == Mode::Absolute && self.granularity == Granularity::Event {
            return refuse("absolute totals are of windows or days, not of events".into());
        }
        if let Some(from) = &self.from {
            Timestamp::parse(from)?;
        }
        Ok(())
    }

    /// Whether `given` asks for the terms that stand.
    pub fn continues_as(&self, given: &Self) -> bool {
        let same_start = given.from.is_none() || given.start() == self.start();
        same_start && Self { from: None, ..self.clone() } == Self { from: None, ..given.clone() }
    }

    /// These terms with a start: `at` where none was given.
    pub fn starting(&self, at: Timestamp) -> Self {
        let from = self.from.clone().unwrap_or_else(|| at.to_string());
        Self { from: Some(from), ..self.clone() }
    }

    /// Windows that start here or later are billed.
    pub fn start(&self) -> Timestamp {
        let parsed = self.from.as_deref().map(Timestamp::parse);
        // A declared meter has a start that was parsed before.
        parsed.and_then(Result::ok).unwrap_or_default()
    }

    pub fn event_name<'a>(&'a self, slug: &'a MeterSlug) -> &'a str {
        const { assert!(METER_SLUG_BYTES_MAX <= EVENT_NAME_BYTES_MAX) };
        self.event_name.as_deref().unwrap_or(slug.as_str())
    }

    /// The window that is billed as one and holds `at`.
    pub fn window_around(&self, at: Timestamp, bucket: Bucket) -> Window {
        let length = match (self.granularity, bucket) {
            (Granularity::Day, _) | (_, Bucket::Day) => MICROS_PER_DAY,
            (
                Granularity::Window | Granularity::Event,
                Bucket::Minute | Bucket::QuarterHour | Bucket::Hour,
            ) => MICROS_PER_HOUR,
        };
        let start = Timestamp::from_micros(at.micros().div_euclid(length) * length);
        Window { start, end: start.saturating_add_micros(length) }
    }
}
