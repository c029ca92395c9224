//! Whether a Stripe account is ready for our meters, and what is missing.
//!
//! Invariant: looking changes nothing; only `create_meter` does, and only what is missing. A meter
//! that exists and does not fit is reported, never touched.

use super::client::{StripeClient, StripeMeter};
use super::form;
use crate::rules::billing::{Billing, Granularity, Mode};
use crate::rules::meter::Meter;
use crate::rules::window::Bucket;

/// What is wrong, or right, with one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fitness {
    Fits,
    /// It is not there; it can be made.
    Missing,
    /// It is there and does not fit; what to do.
    Unfit(String),
}

/// Whether Stripe's meters fit ours.
pub fn judge_meter(meter: &Meter, billing: &Billing, at_stripe: &[StripeMeter]) -> Fitness {
    let event_name = billing.event_name(&meter.slug);
    let Some(found) = at_stripe.iter().find(|found| found.event_name == event_name) else {
        return Fitness::Missing;
    };
    let wanted_window = wanted_event_time_window(billing, meter.spec.bucket);
    let unfit = |what: String| Fitness::Unfit(format!("meter {} at Stripe {what}", found.id));
    if found.status != "active" {
        return unfit(format!("is {}; reactivate it", found.status));
    }
    if found.default_aggregation.formula != "sum" {
        let formula = &found.default_aggregation.formula;
        return unfit(format!(
            "has the formula {formula}; totals add up only with sum, and a formula cannot be \
             changed: use another event_name"
        ));
    }
    if found.event_time_window.as_deref() != wanted_window {
        let name = |window: Option<&str>| window.map_or("none", |window| window).to_owned();
        return unfit(format!(
            "has the event_time_window {}, and mode {} needs {}; it cannot be changed: use another \
             event_name, or the other mode",
            name(found.event_time_window.as_deref()),
            billing.mode.name(),
            name(wanted_window),
        ));
    }
    if found.customer_mapping.event_payload_key != "stripe_customer_id"
        || found.value_settings.event_payload_key != "value"
    {
        return unfit("does not use the payload keys stripe_customer_id and value".into());
    }
    Fitness::Fits
}

/// A meter of that window length overwrites instead of adding, which absolute totals need.
fn wanted_event_time_window(billing: &Billing, bucket: Bucket) -> Option<&'static str> {
    match (billing.mode, billing.granularity, bucket) {
        (Mode::Delta, _, _) => None,
        (Mode::Absolute, Granularity::Day, _) | (Mode::Absolute, _, Bucket::Day) => Some("day"),
        (
            Mode::Absolute,
            Granularity::Window | Granularity::Event,
            Bucket::Minute | Bucket::QuarterHour | Bucket::Hour,
        ) => Some("hour"),
    }
}

impl StripeClient {
    /// Makes the meter at Stripe; returns its id.
    pub async fn create_meter(&self, meter: &Meter, billing: &Billing) -> Result<String, String> {
        let event_name = billing.event_name(&meter.slug);
        let mut pairs = vec![
            ("display_name", meter.slug.as_str()),
            ("event_name", event_name),
            ("default_aggregation[formula]", "sum"),
            ("customer_mapping[type]", "by_id"),
            ("customer_mapping[event_payload_key]", "stripe_customer_id"),
            ("value_settings[event_payload_key]", "value"),
        ];
        let window = wanted_event_time_window(billing, meter.spec.bucket);
        pairs.extend(window.map(|window| ("event_time_window", window)));
        let body = form::encode(&pairs).into_bytes();
        // Asking twice for the same meter is answered with an error by Stripe: it belongs to one
        // event name.
        let reply = self.post("/v1/billing/meters", body, None).await?;
        if reply.status != 200 {
            return Err(format!("Stripe answered {}", reply.describe()));
        }
        let made: StripeMeter = serde_json::from_slice(&reply.body)
            .map_err(|error| format!("Stripe's answer cannot be read: {error}"))?;
        Ok(made.id)
    }
}
