//! What Stripe's webhooks say: events of version 1 with a snapshot of their object, and thin events
//! of version 2 that only name it.
//!
//! Invariant: an event without an id is refused; none is ever made up. The two styles of one fact
//! share a name: the thin one names its snapshot twin. Two events that Stripe made for one thing
//! share the name of their content.

use super::objects;
use crate::rules::digest::{digest_fields, hex};
use crate::rules::mirror::{ObjectKind, ObjectName, Snapshot};
use crate::rules::refusal::Refusal;
use crate::rules::subscription::{Origin, TimelineEntry};
use crate::rules::timestamp::Timestamp;
use crate::rules::webhook::{CONTENT_PREFIX, WebhookFacts};
use serde::Deserialize;
use serde_json::Value;

/// Reports of meter events that were refused after they had been taken; they have no snapshot.
pub const ERROR_REPORTS: [&str; 2] =
    ["v1.billing.meter.error_report_triggered", "v1.billing.meter.no_meter_found"];
/// Longest id or type that is kept.
const NAME_BYTES_MAX: usize = 255;

#[derive(Deserialize)]
struct Envelope {
    id: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    created: Option<Value>,
    data: Option<Value>,
    related_object: Option<Related>,
    snapshot_event: Option<String>,
}

#[derive(Deserialize)]
struct Related {
    id: String,
    #[serde(rename = "type")]
    object_type: String,
}

/// Reads a webhook whose signature was good.
pub fn parse_webhook(body: &[u8]) -> Result<WebhookFacts, Refusal> {
    let refuse = |why: String| {
        Refusal::new("invalid_webhook", format!("this is not an event of Stripe's: {why}"))
    };
    // Of members that are not read nothing else looks at the bytes, and the log shows them all.
    let text = std::str::from_utf8(body).map_err(|error| refuse(error.to_string()))?;
    let envelope: Envelope =
        serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let event_id = plain(envelope.id).ok_or_else(|| {
        Refusal::new(
            "webhook_without_id",
            "an event needs the id that the provider gave it; without one a repeat cannot be \
             detected, so nothing was stored",
        )
    })?;
    let event_type = plain(envelope.event_type)
        .ok_or_else(|| Refusal::new("invalid_webhook", "an event needs a type"))?;
    let created_at = envelope.created.as_ref().and_then(read_instant).ok_or_else(|| {
        Refusal::new("invalid_webhook", "an event needs the moment at which it was created")
    })?;
    let object = envelope.data.as_ref().map(|data| &data["object"]).filter(|o| o.is_object());
    let name = name_object(&event_id, &event_type, object, envelope.related_object.as_ref());
    let mut names = vec![event_id.clone()];
    names.extend(plain(envelope.snapshot_event));
    if let (Some(name), Some(object)) = (&name, object) {
        names.push(name_content(&event_type, name, created_at, object));
    }
    let snapshot = name.as_ref().zip(object).and_then(|(name, object)| match name.kind {
        // What an event about a customer's end shows is the customer before it.
        ObjectKind::ErrorReport | ObjectKind::Customer => None,
        ObjectKind::Subscription | ObjectKind::Invoice | ObjectKind::CreditGrant => {
            objects::read_snapshot(name.kind, object)
        }
    });
    let timeline = timeline_entry(&event_type, name.as_ref(), snapshot.as_ref(), created_at);
    Ok(WebhookFacts { event_id, event_type, created_at, names, object: name, snapshot, timeline })
}

/// A text that may become a name: not empty, not too long, and without control characters.
fn plain(text: Option<String>) -> Option<String> {
    text.filter(|text| is_plain(text))
}

pub fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control)
}

/// Seconds since 1970 in version 1, RFC 3339 in version 2.
fn read_instant(created: &Value) -> Option<Timestamp> {
    match created {
        Value::Number(seconds) => Timestamp::from_seconds(seconds.as_i64()?),
        Value::String(text) => Timestamp::parse(text).ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The object that the event is about, if it is one of those that are mirrored.
fn name_object(
    event_id: &str,
    event_type: &str,
    object: Option<&Value>,
    related: Option<&Related>,
) -> Option<ObjectName> {
    if ERROR_REPORTS.contains(&event_type) {
        return Some(ObjectName { kind: ObjectKind::ErrorReport, id: event_id.to_owned() });
    }
    let (id, object_type) = match (object, related) {
        (Some(object), _) => (object["id"].as_str()?, object["object"].as_str()?),
        (None, Some(related)) => (related.id.as_str(), related.object_type.as_str()),
        (None, None) => return None,
    };
    let kind = match object_type {
        "subscription" => ObjectKind::Subscription,
        "invoice" => ObjectKind::Invoice,
        "billing.credit_grant" => ObjectKind::CreditGrant,
        // Of customers only their end matters here.
        "customer" if event_type.ends_with("customer.deleted") => ObjectKind::Customer,
        _ => return None,
    };
    Some(ObjectName { kind, id: plain(Some(id.to_owned()))? })
}

/// Type, object and content: the same for two events that were made for one thing.
fn name_content(kind: &str, name: &ObjectName, created_at: Timestamp, object: &Value) -> String {
    let (created_at, content) = (created_at.to_string(), object.to_string());
    let fields = [kind, name.kind.name(), &name.id, &created_at, &content];
    format!("{CONTENT_PREFIX}{}", hex(&digest_fields(fields.map(str::as_bytes))))
}

fn timeline_entry(
    event_type: &str,
    name: Option<&ObjectName>,
    snapshot: Option<&Snapshot>,
    at: Timestamp,
) -> Option<TimelineEntry> {
    let Some(Snapshot::Subscription(state)) = snapshot else { return None };
    let origin = if event_type.ends_with(".created") {
        Origin::Created
    } else if event_type.ends_with(".deleted") {
        Origin::Ended
    } else {
        Origin::Updated
    };
    let subscription = crate::rules::ids::SubscriptionId::parse(&name?.id).ok()?;
    Some(TimelineEntry { subscription, at, origin, version: 0, state: state.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(event: &Value) -> Result<WebhookFacts, Refusal> {
        parse_webhook(event.to_string().as_bytes())
    }

    fn subscription() -> Value {
        json!({
            "id": "sub_1", "object": "subscription", "customer": "cus_1", "status": "active",
            "cancel_at_period_end": false, "items": {"data": [{"price": {"id": "price_1"}}]},
        })
    }

    #[test]
    fn twins_share_a_name() {
        let snapshot = parse(&json!({
            "id": "evt_1", "object": "event", "type": "customer.subscription.updated",
            "created": 1_700_000_000, "data": {"object": subscription()},
        }))
        .expect("valid");
        let thin = parse(&json!({
            "id": "evt_test_9", "object": "v2.core.event",
            "type": "v1.customer.subscription.updated", "created": "2023-11-14T22:13:20.5Z",
            "snapshot_event": "evt_1", "related_object": {"id": "sub_1", "type": "subscription"},
        }))
        .expect("valid");
        assert_eq!(snapshot.object, thin.object);
        assert!(thin.names.contains(&snapshot.event_id));
        let entry = snapshot.timeline.expect("a subscription has a timeline");
        assert_eq!(entry.state.prices, ["price_1"]);
        assert_eq!(entry.origin, Origin::Updated);
        assert!(thin.timeline.is_none());
    }

    #[test]
    fn two_events_of_one_thing_share_a_name_and_two_changes_do_not() {
        let event = |id: &str, created: i64, status: &str| {
            let mut object = subscription();
            object["status"] = status.into();
            let event = json!({
                "id": id, "type": "customer.subscription.updated", "created": created,
                "data": {"object": object},
            });
            parse(&event).expect("valid").names[1].clone()
        };
        assert_eq!(event("evt_1", 5, "active"), event("evt_2", 5, "active"));
        assert_ne!(event("evt_1", 5, "active"), event("evt_2", 5, "past_due"));
        assert_ne!(event("evt_1", 5, "active"), event("evt_2", 6, "active"));
    }

    #[test]
    fn what_is_refused_and_what_is_only_kept() {
        let refused = |event: Value, code: &str| {
            assert_eq!(parse(&event).expect_err("refused").code, code, "{event}");
        };
        refused(json!({"type": "a", "created": 1}), "webhook_without_id");
        refused(json!({"id": "", "type": "a", "created": 1}), "webhook_without_id");
        refused(json!({"id": "a\nb", "type": "a", "created": 1}), "webhook_without_id");
        refused(json!({"id": 5, "type": "a", "created": 1}), "invalid_webhook");
        refused(json!({"id": "evt_1", "created": 1}), "invalid_webhook");
        refused(json!({"id": "evt_1", "type": "a"}), "invalid_webhook");
        refused(json!([]), "invalid_webhook");
        let kept = |event: Value| assert_eq!(parse(&event).expect("valid").object, None, "{event}");
        kept(json!({"id": "evt_1", "type": "charge.refunded", "created": 1,
            "data": {"object": {"id": "ch_1", "object": "charge"}}}));
        kept(json!({"id": "evt_1", "type": "invoice.upcoming", "created": 1,
            "data": {"object": {"object": "invoice"}}}));
        kept(json!({"id": "evt_1", "type": "customer.updated", "created": 1,
            "data": {"object": {"id": "cus_1", "object": "customer"}}}));
        let report = parse(&json!({"id": "evt_7", "created": "2026-01-01T00:00:00Z",
            "type": ERROR_REPORTS[0], "related_object": {"id": "mtr_1", "type": "billing.meter"}}));
        let expected = ObjectName { kind: ObjectKind::ErrorReport, id: "evt_7".into() };
        assert_eq!(report.expect("valid").object, Some(expected));
    }
}
