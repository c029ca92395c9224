//! A signed HTTP sink: each push is a POST to an address of the user's own, signed as Standard
//! Webhooks asks (`webhook-id`, `webhook-timestamp`, `webhook-signature: v1,…`).
//!
//! Invariant: `webhook-id` is the push's key, the same in every attempt, and the receiver counts an
//! id once; so a push may be sent again at any age. A 2xx is the receiver's word that it is durable
//! there: there are no totals to read back.

use super::{Answer, Limits, Provider, PushFacts, Request, TotalsQuery, Unreadable};
use crate::clock::Clock;
use crate::config::SinkConfig;
use crate::rules::quantity::Quantity;
use crate::rules::signature::SigningKey;
use crate::rules::span::Span;
use crate::rules::submission::{Horizons, Resend, SubmitOutcome};
use crate::rules::timestamp::MICROS_PER_SECOND;
use async_trait::async_trait;
use std::time::Duration;

/// Longest pause, in seconds, that a Retry-After is followed for.
const RETRY_AFTER_MAX: u32 = 3_600;

pub struct Sink {
    client: reqwest::Client,
    url: String,
    key: SigningKey,
    clock: Clock,
}

impl Sink {
    pub fn connect(config: &SinkConfig) -> Result<Self, String> {
        if config.url.is_empty() || config.secret.is_empty() {
            return Err(
                "provider.kind is \"sink\": set sink.url, and sink.secret, which signs what \
                        is sent"
                    .into(),
            );
        }
        let url = config.url.clone();
        let key = SigningKey::read(config.secret.expose()).ok_or(
            "sink.secret is base64 of at least 16 bytes, with or without whsec_ before it",
        )?;
        // It can only be installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(Duration::from_millis(config.timeout_ms))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("cannot make an HTTP client: {error}"))?;
        Ok(Self { client, url, key, clock: Clock::system() })
    }

    /// Signatures carry this clock's time.
    pub fn timed_by(self, clock: &Clock) -> Self {
        Self { clock: clock.clone(), ..self }
    }
}

#[async_trait]
impl Provider for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn limits(&self) -> Limits {
        let horizons = Horizons { resend: None, decide: Span::from_hours(0), stamp_age_max: None };
        Limits { horizons, digits_max: 27, shows_totals: false, sends: true }
    }

    fn encode(&self, facts: &PushFacts<'_>) -> Vec<u8> {
        serde_json::json!({
            "type": "counterfoil.push",
            "timestamp": facts.stamped_at.to_string(),
            "data": {
                "key": facts.key,
                "customer": facts.customer.as_str(),
                "event_name": facts.event_name,
                "value": facts.value.to_string(),
            },
        })
        .to_string()
        .into_bytes()
    }

    async fn send_push(&self, request: &Request) -> Answer {
        let timestamp = self.clock.now().micros() / MICROS_PER_SECOND;
        let sent = self
            .client
            .post(&self.url)
            .header("content-type", "application/json")
            .header("webhook-id", &request.key)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", self.key.sign(&request.key, timestamp, &request.body))
            .body(request.body.clone())
            .send()
            .await;
        let outcome = match sent {
            Ok(response) => {
                let retry_after = response.headers().get("retry-after");
                let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
                judge_status(response.status().as_u16(), seconds)
            }
            Err(error) => SubmitOutcome::Unknown {
                message: format!("no answer: {}", error.without_url()),
                resend: Resend::Same,
                retry_after: None,
            },
        };
        Answer { outcome, request_id: None }
    }

    async fn read_totals(&self, _: &TotalsQuery<'_>) -> Result<Vec<Quantity>, Unreadable> {
        Err(Unreadable { message: "a sink shows no totals".into() })
    }
}

fn judge_status(status: u16, retry_after_seconds: Option<u32>) -> SubmitOutcome {
    match status {
        200..=299 => SubmitOutcome::Accepted,
        400 | 410 | 413 | 422 => {
            SubmitOutcome::Refused { message: format!("the receiver answered {status}") }
        }
        _ => {
            let message = format!("the receiver answered {status}");
            let wait = |seconds: u32| Span::from_seconds(seconds.min(RETRY_AFTER_MAX));
            let retry_after = retry_after_seconds.map(wait);
            SubmitOutcome::Unknown { message, resend: Resend::Same, retry_after }
        }
    }
}
