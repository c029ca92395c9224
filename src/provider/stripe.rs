//! Stripe Billing Meters: totals go out as meter events, and come back as event summaries.
//!
//! Invariant: a push's key is its event's `identifier`, which Stripe counts once for at least a
//! day; the `Idempotency-Key` header is the same text, with a suffix only where Stripe would repeat
//! a stored failure. Values are sent as plain decimals. Totals come back as doubles and are rounded
//! to the decimals that were sent, which is exact up to 14 digits.

mod answers;
mod client;
mod form;
mod inbound;
mod objects;
mod operations;
pub mod setup;
pub mod signature;
pub mod webhook;

pub use client::StripeClient;

use super::{
    Answer, Inbound, Limits, Operations, Provider, PushFacts, Request, TotalsQuery, Unreadable,
};
use crate::clock::Clock;
use crate::config::{Secret, StripeConfig};
use crate::rules::binding::BillingAccount;
use crate::rules::quantity::Quantity;
use crate::rules::span::Span;
use crate::rules::submission::{Horizons, Resend, SubmitOutcome};
use crate::rules::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use crate::rules::window::Window;
use answers::judge_reply;
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Mutex;

/// Stripe remembers identifiers for at least 24 hours. Resending ends two hours before, and the
/// summary is asked two hours after, so that neither a slow clock nor a late arrival matters.
const HORIZONS: Horizons = Horizons {
    resend: Some(Span::from_hours(22)),
    decide: Span::from_hours(26),
    // Stripe takes 35 days; a day of margin.
    stamp_age_max: Some(Span::from_hours(34 * 24)),
};
const DIGITS_MAX: u32 = 15;
/// What customers and subscriptions that sagas made or changed carry.
const METADATA_TENANT: &str = "counterfoil_tenant";
const METADATA_SAGA: &str = "counterfoil_saga";
const METADATA_STATE: &str = "counterfoil_state";
/// Most rows of one page of summaries.
const PAGE_ROWS: usize = 100;

pub struct Stripe {
    client: StripeClient,
    /// Ids of meters by their event names; they never change.
    meters: Mutex<HashMap<String, String>>,
    /// What never changes about a price, by its id.
    prices: Mutex<HashMap<String, PriceFacts>>,
}

#[derive(Debug, Clone, Default)]
struct PriceFacts {
    /// The event name of its meter; none for prices that are not metered.
    event_name: Option<String>,
    /// Whether a line of an invoice may bill one tier only, or a tier's flat amount.
    tiered: bool,
}

impl Stripe {
    pub fn connect(config: &StripeConfig) -> Result<Self, String> {
        let client = StripeClient::connect(config)?;
        Ok(Self { client, meters: Mutex::default(), prices: Mutex::default() })
    }

    /// From now on the clock hears the time of every answer.
    pub fn heard_by(self, clock: &Clock) -> Self {
        Self { client: self.client.heard_by(clock), ..self }
    }

    async fn meter_id(&self, event_name: &str) -> Result<String, Unreadable> {
        let known = self.meters.lock().expect("no holder panics").get(event_name).cloned();
        if let Some(id) = known {
            return Ok(id);
        }
        self.load_meters().await?;
        let meters = self.meters.lock().expect("no holder panics");
        meters.get(event_name).cloned().ok_or_else(|| Unreadable {
            message: format!("Stripe has no meter for event_name {event_name}"),
        })
    }
}

impl Stripe {
    async fn load_meters(&self) -> Result<(), Unreadable> {
        let listed = self.client.list_meters().await.map_err(|message| Unreadable { message })?;
        let mut meters = self.meters.lock().expect("no holder panics");
        meters.extend(listed.into_iter().map(|meter| (meter.event_name, meter.id)));
        Ok(())
    }
}

#[async_trait]
impl Provider for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn limits(&self) -> Limits {
        Limits { horizons: HORIZONS, digits_max: DIGITS_MAX, shows_totals: true, sends: true }
    }

    fn tells_time(&self) -> bool {
        true
    }

    async fn ask_time(&self) {
        self.client.ask_time().await;
    }

    async fn read_account(&self) -> Result<BillingAccount, Unreadable> {
        let id = self.client.read_account_id().await.map_err(|message| Unreadable { message })?;
        // Stripe shows the account of both modes under one id; the key tells the mode.
        Ok(BillingAccount { provider: self.name().to_owned(), id, live: self.client.is_live() })
    }

    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8> {
        let (value, stamp) = (facts.value.to_string(), seconds(facts.stamped_at).to_string());
        form::encode(&[
            ("event_name", facts.event_name),
            ("identifier", facts.key),
            ("payload[stripe_customer_id]", facts.customer.as_str()),
            ("payload[value]", &value),
            ("timestamp", &stamp),
        ])
        .into_bytes()
    }

    async fn send_push(&self, request: &Request) -> Answer {
        let request_key = match request.request_keys {
            0 => request.key.clone(),
            fresh => format!("{}.{fresh}", request.key),
        };
        let body = request.body.clone();
        match self.client.post("/v1/billing/meter_events", body, Some(&request_key)).await {
            Ok(reply) => {
                Answer { outcome: judge_reply(&reply, &request.key), request_id: reply.request_id }
            }
            Err(message) => Answer {
                outcome: SubmitOutcome::Unknown {
                    message,
                    resend: Resend::Same,
                    retry_after: None,
                },
                request_id: None,
            },
        }
    }

    fn inbound(&self) -> Option<&dyn Inbound> {
        Some(self)
    }

    fn operations(&self) -> Option<&dyn Operations> {
        Some(self)
    }

    async fn read_totals(&self, query: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable> {
        let (Some(first), Some(last)) = (query.windows.first(), query.windows.last()) else {
            return Ok(Vec::new());
        };
        let meter = self.meter_id(query.event_name).await?;
        let length = first.end.micros() - first.start.micros();
        let grouping = match length {
            // One window is one total.
            _ if query.windows.len() == 1 => None,
            MICROS_PER_HOUR => Some("hour"),
            MICROS_PER_DAY => Some("day"),
            _ => return Err(Unreadable { message: "windows are hours or days".into() }),
        };
        let span = Window { start: first.start, end: last.end };
        let rows = self.read_summaries(&meter, query.customer.as_str(), span, grouping).await?;
        let mut totals = Vec::with_capacity(query.windows.len());
        for window in query.windows {
            let mut total = Quantity::ZERO;
            // Where nothing was counted there may be no row.
            for row in rows.iter().filter(|row| row.start_time == seconds(window.start)) {
                let value = round_double(row.aggregated_value.get(), query.scale);
                total = value.and_then(|value| total.checked_add(value)).ok_or_else(unreadable)?;
            }
            totals.push(total);
        }
        Ok(totals)
    }
}

#[derive(Deserialize)]
struct Summaries {
    data: Vec<StripeSummary>,
    has_more: bool,
}

#[derive(Deserialize)]
struct StripeSummary {
    id: String,
    start_time: i64,
    /// Kept as its text; a number of JSON may be anything.
    aggregated_value: Box<RawValue>,
}

impl Stripe {
    async fn read_summaries(
        &self,
        meter: &str,
        customer: &str,
        span: Window,
        grouping: Option<&str>,
    ) -> Result<Vec<StripeSummary>, Unreadable> {
        let path = format!("/v1/billing/meters/{meter}/event_summaries");
        let (start, end) = (seconds(span.start).to_string(), seconds(span.end).to_string());
        let limit = PAGE_ROWS.to_string();
        let mut rows: Vec<StripeSummary> = Vec::new();
        loop {
            let mut pairs = vec![
                ("customer", customer),
                ("start_time", &start),
                ("end_time", &end),
                ("limit", &limit),
            ];
            pairs.extend(grouping.map(|grouping| ("value_grouping_window", grouping)));
            pairs.extend(rows.last().map(|row| ("starting_after", row.id.as_str())));
            let page: Summaries = self
                .client
                .get(&path, &form::encode(&pairs))
                .await
                .map_err(|message| Unreadable { message })?;
            let ended = !page.has_more || page.data.is_empty();
            rows.extend(page.data);
            if ended {
                return Ok(rows);
            }
        }
    }
}

/// Whether a key moves real money.
pub fn is_live(key: &Secret) -> bool {
    !key.expose().contains("_test_")
}

fn seconds(at: Timestamp) -> i64 {
    at.micros().div_euclid(MICROS_PER_SECOND)
}

fn unreadable() -> Unreadable {
    Unreadable { message: "a total of Stripe's is not a number we can hold".into() }
}

/// The decimal that a double represents, rounded to the decimals that were sent. Formatting rounds
/// the double's exact value; no arithmetic is done with it.
fn round_double(text: &str, scale: u32) -> Option<Quantity> {
    let double: f64 = text.parse().ok()?;
    let places = usize::try_from(scale).ok()?;
    Quantity::parse_stored(&format!("{double:.places$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_rounded_to_what_was_sent() {
        let check = |text: &str, scale: u32, expected: Option<&str>| {
            let found = round_double(text, scale).map(|quantity| quantity.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check("0.30000000000000004", 6, Some("0.3"));
        check("12345678.123457", 6, Some("12345678.123457"));
        check("99999999.999999", 6, Some("99999999.999999"));
        check("-12.5", 2, Some("-12.5"));
        check("1e3", 0, Some("1000"));
        check("-0.0000001", 6, Some("0"));
        check("null", 6, None);
        check("1e300", 6, None);
    }

    #[test]
    fn bytes_are_those_of_the_official_clients() {
        let config = StripeConfig {
            api_key: Secret::new("sk_test_1"),
            api_base: "http://127.0.0.1:1".into(),
            timeout_ms: 1,
            webhook_secrets: Secret::new(""),
        };
        let stripe = Stripe::connect(&config).expect("valid");
        let customer = crate::rules::ids::CustomerId::parse("cus_1").expect("valid");
        let facts = PushFacts {
            key: "cf1-a",
            customer: &customer,
            event_name: "api_calls",
            value: Quantity::parse_stored("12.5").expect("valid"),
            stamped_at: Timestamp::parse("2023-11-14T22:13:20Z").expect("valid"),
        };
        let bytes = stripe.encode(&facts);
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            "event_name=api_calls&identifier=cf1-a&payload[stripe_customer_id]=cus_1\
             &payload[value]=12.5&timestamp=1700000000"
        );
        assert_eq!(bytes, stripe.encode(&facts));
        assert!(is_live(&Secret::new("sk_live_1")) && !is_live(&Secret::new("rk_test_1")));
    }
}
