//! Webhooks: who wants which events, what is due, and its signature.
//!
//! Invariant: a delivery is tried until it is answered with 2xx or three days are over by the
//! simulator's clock, with growing pauses, and signed anew each time; one that an accident lost is
//! never tried. Whoever waits for something to be due looks at that alone and not at all that ever
//! was. Sending is the shell's work; here is only what is due. A crash leaves nothing.

use super::faults::FaultKind;
use super::lists::{PAGING, page};
use super::params::Params;
use super::request::ApiError;
use super::{Answer, Simulator};
use crate::rules::timestamp::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_SECOND, Timestamp};
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
    UnderWay,
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

/// A request for the shell to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Given back with the result.
    pub delivery: usize,
    pub url: String,
    /// The value of `Stripe-Signature`.
    pub signature: String,
    pub body: String,
}

#[derive(Debug, Default)]
pub struct Webhooks {
    endpoints: Vec<Endpoint>,
    deliveries: Vec<Delivery>,
    /// When and which of those that wait.
    waiting: BTreeSet<(Timestamp, usize)>,
    under_way: usize,
    /// How many deliveries of an event have not arrived.
    missed: BTreeMap<String, usize>,
}

impl Webhooks {
    /// Whether no endpoint still misses this event.
    pub fn all_delivered(&self, event_id: &str) -> bool {
        !self.missed.contains_key(event_id)
    }

    /// Deliveries that wait or are under way.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.under_way
    }

    fn push(&mut self, delivery: Delivery) {
        let number = self.deliveries.len();
        if delivery.progress == Progress::Waiting {
            self.waiting.insert((delivery.due, number));
        }
        *self.missed.entry(delivery.event_id.clone()).or_default() += 1;
        self.deliveries.push(delivery);
    }

    /// Takes one off those that its event misses.
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
    /// The webhooks to send now; each is under way until its result is told.
    pub fn due_webhooks(&mut self) -> Vec<Outgoing> {
        self.due_webhooks_max(usize::MAX)
    }

    /// The same, as long as no more than this many are under way.
    pub fn due_webhooks_max(&mut self, under_way_max: usize) -> Vec<Outgoing> {
        let seconds = self.now_seconds();
        let mut outgoing = Vec::new();
        for (due, number) in self.choose_due(under_way_max) {
            self.webhooks.waiting.remove(&(due, number));
            self.webhooks.under_way += 1;
            let delivery = &mut self.webhooks.deliveries[number];
            delivery.progress = Progress::UnderWay;
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

    /// Webhooks that wait or are under way.
    pub fn webhooks_outstanding(&self) -> usize {
        self.webhooks.outstanding()
    }

    fn choose_due(&self, under_way_max: usize) -> Vec<(Timestamp, usize)> {
        let room = under_way_max.saturating_sub(self.webhooks.under_way);
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

    /// What became of a webhook; `status` is none where nobody answered.
    pub fn webhook_answered(&mut self, number: usize, status: Option<u16>) {
        let now = self.now();
        let webhooks = &mut self.webhooks;
        let Some(delivery) = webhooks.deliveries.get_mut(number) else { return };
        if delivery.progress != Progress::UnderWay {
            return;
        }
        webhooks.under_way -= 1;
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

    pub(super) fn queue_snapshot(&mut self, kind: &str, event_id: &str, event: &Value) {
        self.queue(Style::Snapshot, kind, event_id, event);
    }

    pub(super) fn queue_thin(&mut self, kind: &str, event_id: &str, event: &Value) {
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
        let accident = self.faults.decide_webhook(event_id);
        if let Some(kind) = accident {
            self.faults.count(kind);
        }
        let queued = self.now();
        let mut due = queued;
        if accident == Some(FaultKind::WebhookDelayed) {
            let seconds = self.faults.plan().webhook_delay_seconds;
            due = due.saturating_add_micros(seconds.saturating_mul(MICROS_PER_SECOND));
        }
        let lost = accident == Some(FaultKind::WebhookLost);
        let progress = if lost { Progress::GivenUp } else { Progress::Waiting };
        let copies = if accident == Some(FaultKind::WebhookDuplicated) { 2 } else { 1 };
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
    // Secret and URL are shown only to those who ask for them to be included.
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
