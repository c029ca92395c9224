//! Webhooks: endpoints, deliveries that are due, signatures.
//!
//! Invariant: a delivery is attempted until a 2xx or until three days are over by the simulator's
//! clock, with growing pauses and a new signature each time. A delivery that a fault lost is never
//! attempted. Due deliveries are found by an index, so that the number of old ones does not matter.
//! `serve` sends them. A crash leaves nothing.

use crate::Simulator;
use crate::faults::FaultKind;
use crate::lists::{PAGING, page};
use crate::params::Params;
use crate::request::{Answer, ApiError};
use crate::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use std::collections::{BTreeMap, BTreeSet};

const TRIED_FOR_MICROS: i64 = 3 * MICROS_PER_DAY;
/// The first pause; each further one is four times as long, up to the longest.
const PAUSE_FIRST_MICROS: i64 = 60 * MICROS_PER_SECOND;
const PAUSE_MAX_MICROS: i64 = 12 * MICROS_PER_HOUR;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Snapshot,
    Thin,
}

#[derive(Debug)]
struct Endpoint {
    style: Style,
    url: String,
    secret: String,
    enabled: Vec<String>,
    object: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    InFlight,
    Delivered,
    GivenUp,
}

#[derive(Debug)]
struct Delivery {
    event_id: String,
    url: String,
    secret: String,
    body: String,
    queued: Timestamp,
    due: Timestamp,
    attempts: u32,
    progress: Progress,
}

/// A webhook to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The number to pass to [`Simulator::webhook_answered`].
    pub delivery: usize,
    /// Where to post it.
    pub url: String,
    /// The value of `Stripe-Signature`.
    pub signature: String,
    /// The body, which is JSON.
    pub body: String,
}

#[derive(Debug, Default)]
pub struct Webhooks {
    endpoints: Vec<Endpoint>,
    deliveries: Vec<Delivery>,
    /// Due time and number of the deliveries that wait.
    waiting: BTreeSet<(Timestamp, usize)>,
    in_flight: usize,
    /// The number of undelivered webhooks of an event.
    missed: BTreeMap<String, usize>,
}

impl Webhooks {
    /// Whether all endpoints have received this event.
    pub fn all_delivered(&self, event_id: &str) -> bool {
        !self.missed.contains_key(event_id)
    }

    /// Deliveries that wait or are in flight.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    fn push(&mut self, delivery: Delivery) {
        let number = self.deliveries.len();
        if delivery.progress == Progress::Waiting {
            self.waiting.insert((delivery.due, number));
        }
        *self.missed.entry(delivery.event_id.clone()).or_default() += 1;
        self.deliveries.push(delivery);
    }

    /// Counts a delivery of the event.
    fn arrived(&mut self, event_id: &str) {
        if let Some(missed) = self.missed.get_mut(event_id) {
            *missed -= 1;
            if *missed == 0 {
                self.missed.remove(event_id);
            }
        }
    }
}

impl Simulator {
    /// The webhooks that are due. Each is in flight until
    /// [`webhook_answered`](Self::webhook_answered). A simulator behind a port sends them by
    /// itself.
    pub fn due_webhooks(&mut self) -> Vec<Outgoing> {
        self.due_webhooks_max(usize::MAX)
    }

    /// The same, with at most this many in flight.
    pub fn due_webhooks_max(&mut self, in_flight_max: usize) -> Vec<Outgoing> {
        let seconds = self.now_seconds();
        let mut outgoing = Vec::new();
        for (due, number) in self.choose_due(in_flight_max) {
            self.webhooks.waiting.remove(&(due, number));
            self.webhooks.in_flight += 1;
            let delivery = &mut self.webhooks.deliveries[number];
            delivery.progress = Progress::InFlight;
            delivery.attempts += 1;
            outgoing.push(Outgoing {
                delivery: number,
                url: delivery.url.clone(),
                signature: sign(&delivery.secret, seconds, &delivery.body),
                body: delivery.body.clone(),
            });
        }
        outgoing
    }

    /// The number of webhooks that wait or are in flight.
    pub fn webhooks_outstanding(&self) -> usize {
        self.webhooks.outstanding()
    }

    fn choose_due(&self, in_flight_max: usize) -> Vec<(Timestamp, usize)> {
        let room = in_flight_max.saturating_sub(self.webhooks.in_flight);
        let due = self.webhooks.waiting.range(..=(self.now(), usize::MAX)).copied();
        if !self.faults.plan().webhooks_shuffled {
            return due.take(room).collect();
        }
        let mut due: Vec<(Timestamp, usize)> = due.collect();
        due.sort_by_cached_key(|(_, number)| {
            let delivery = &self.webhooks.deliveries[*number];
            (self.faults.place(&delivery.event_id, delivery.attempts), *number)
        });
        due.truncate(room);
        due
    }

    /// Records the status that a webhook was answered with, or none if there was no response.
    pub fn webhook_answered(&mut self, number: usize, status: Option<u16>) {
        let now = self.now();
        let webhooks = &mut self.webhooks;
        let Some(delivery) = webhooks.deliveries.get_mut(number) else { return };
        if delivery.progress != Progress::InFlight {
            return;
        }
        webhooks.in_flight -= 1;
        if status.is_some_and(|status| (200..300).contains(&status)) {
            delivery.progress = Progress::Delivered;
            let event_id = delivery.event_id.clone();
            webhooks.arrived(&event_id);
            return;
        }
        let pause = 4i64
            .saturating_pow(delivery.attempts.saturating_sub(1))
            .saturating_mul(PAUSE_FIRST_MICROS)
            .min(PAUSE_MAX_MICROS);
        delivery.due = now.saturating_add_micros(pause);
        let over = delivery.due > delivery.queued.saturating_add_micros(TRIED_FOR_MICROS);
        delivery.progress = if over { Progress::GivenUp } else { Progress::Waiting };
        if !over {
            webhooks.waiting.insert((delivery.due, number));
        }
    }

    pub(crate) fn queue_snapshot(&mut self, kind: &str, event_id: &str, event: &Value) {
        self.queue(Style::Snapshot, kind, event_id, event);
    }

    pub(crate) fn queue_thin(&mut self, kind: &str, event_id: &str, event: &Value) {
        self.queue(Style::Thin, kind, event_id, event);
    }

    fn queue(&mut self, style: Style, kind: &str, event_id: &str, event: &Value) {
        let wants = |endpoint: &&Endpoint| {
            let enabled = |wanted: &String| wanted == "*" || wanted == kind;
            endpoint.style == style && endpoint.enabled.iter().any(enabled)
        };
        let wanting: Vec<(String, String)> = self
            .webhooks
            .endpoints
            .iter()
            .filter(wants)
            .map(|endpoint| (endpoint.url.clone(), endpoint.secret.clone()))
            .collect();
        if wanting.is_empty() {
            return;
        }
        let fault = self.faults.decide_webhook(event_id);
        if let Some(kind) = fault {
            self.faults.count(kind);
        }
        let queued = self.now();
        let mut due = queued;
        if fault == Some(FaultKind::WebhookDelayed) {
            let seconds = self.faults.plan().webhook_delay_seconds;
            due = due.saturating_add_micros(seconds.saturating_mul(MICROS_PER_SECOND));
        }
        let lost = fault == Some(FaultKind::WebhookLost);
        let progress = if lost { Progress::GivenUp } else { Progress::Waiting };
        let copies = if fault == Some(FaultKind::WebhookDuplicated) { 2 } else { 1 };
        for (url, secret) in wanting {
            for _ in 0..copies {
                self.webhooks.push(Delivery {
                    event_id: event_id.to_owned(),
                    url: url.clone(),
                    secret: secret.clone(),
                    body: event.to_string(),
                    queued,
                    due,
                    attempts: 0,
                    progress,
                });
            }
        }
    }
}

/// The value of `Stripe-Signature`. The key is the whole secret, its prefix included.
pub fn sign(secret: &str, seconds: i64, body: &str) -> String {
    let mut mac: Hmac<Sha256> =
        Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("{seconds}.{body}").as_bytes());
    let digest = mac.finalize().into_bytes();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={seconds},v1={hex}")
}

pub fn create_endpoint(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["url", "enabled_events", "description", "metadata", "api_version", "connect"])?;
    let url = params.required_text("url", usize::MAX)?;
    let enabled = params.texts("enabled_events")?;
    if enabled.is_empty() {
        return Err(params.missing("enabled_events"));
    }
    let (id, secret) = (simulator.next_id("we"), simulator.next_id("whsec"));
    let object = json!({
        "id": id, "object": "webhook_endpoint", "created": simulator.now_seconds(),
        "enabled_events": enabled, "livemode": false, "status": "enabled", "url": url,
        "metadata": params.text_map("metadata")?,
    });
    let mut shown = object.clone();
    shown["secret"] = secret.as_str().into();
    let endpoint = Endpoint { style: Style::Snapshot, url, secret, enabled, object };
    simulator.webhooks.endpoints.push(endpoint);
    Ok(shown)
}

pub fn list_endpoints(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&PAGING)?;
    let of_version_1 = |endpoint: &&Endpoint| endpoint.object["object"] == "webhook_endpoint";
    let found = simulator.webhooks.endpoints.iter().rev().filter(of_version_1);
    let rows: Vec<Value> = found.map(|endpoint| endpoint.object.clone()).collect();
    page(&rows, params, "/v1/webhook_endpoints")
}

pub fn delete_endpoint(simulator: &mut Simulator, id: &str) -> Answer {
    let endpoints = &mut simulator.webhooks.endpoints;
    let place = endpoints.iter().position(|endpoint| endpoint.object["id"] == id);
    let place = place.ok_or_else(|| ApiError::missing("webhook endpoint", id))?;
    endpoints.remove(place);
    Ok(json!({ "id": id, "object": "webhook_endpoint", "deleted": true }))
}

pub fn create_destination(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[
        "name",
        "type",
        "event_payload",
        "enabled_events",
        "webhook_endpoint",
        "description",
        "events_from",
        "include",
        "metadata",
        "snapshot_api_version",
    ])?;
    let name = params.required_text("name", usize::MAX)?;
    let payload = params.choice("event_payload", &["thin", "snapshot"])?;
    let style = match payload.as_deref() {
        Some("thin") => Style::Thin,
        Some(_) => Style::Snapshot,
        None => return Err(params.missing("event_payload")),
    };
    params.choice("type", &["webhook_endpoint"])?.ok_or_else(|| params.missing("type"))?;
    let url = params.required_nested("webhook_endpoint")?.required_text("url", usize::MAX)?;
    let enabled = params.texts("enabled_events")?;
    let (id, secret) = (simulator.next_id("ed_test"), simulator.next_id("whsec"));
    let mut object = json!({
        "id": id, "object": "v2.core.event_destination", "created": simulator.now().to_string(),
        "updated": simulator.now().to_string(), "name": name, "description": "",
        "enabled_events": enabled, "event_payload": payload, "livemode": false, "metadata": {},
        "status": "enabled", "type": "webhook_endpoint", "webhook_endpoint": {},
    });
    // Secret and URL are returned only on request.
    for included in params.texts("include")? {
        match included.as_str() {
            "webhook_endpoint.signing_secret" => {
                object["webhook_endpoint"]["signing_secret"] = secret.as_str().into();
            }
            "webhook_endpoint.url" => object["webhook_endpoint"]["url"] = url.as_str().into(),
            _ => return Err(ApiError::parameter("include", format!("cannot include {included}"))),
        }
    }
    let shown = object.clone();
    simulator.webhooks.endpoints.push(Endpoint { style, url, secret, enabled, object });
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_signature() {
        let expected = "t=1700000000,v1=\
                        c89214b5b5da833daed6f0b8c5bb6bd58cea9022bd80ccc78230f3942d632925";
        assert_eq!(sign("whsec_test", 1_700_000_000, r#"{"id":"evt_1"}"#), expected);
    }
}
