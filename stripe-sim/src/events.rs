//! Events: snapshots of version 1, thin events of version 2, and the lists of both.
//!
//! Invariant: every event has a snapshot and a thin event that names the snapshot, except for error
//! reports about meter events, which are thin only. An update has an event only if it changed a
//! value, and the event has the previous values. A webhook has a thin event without its data. Both
//! kinds are listed for 30 days, whether or not their webhooks arrived. A crash leaves nothing.

use crate::Simulator;
use crate::lists::{PAGING, Range, page_of};
use crate::params::Params;
use crate::request::{API_VERSION, Answer, ApiError, encode};
use crate::timestamp::{MICROS_PER_DAY, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const KEPT_MICROS: i64 = 30 * MICROS_PER_DAY;
const TYPES_MAX: usize = 20;
const THIN_PAGE_DEFAULT: i64 = 20;

#[derive(Debug, Clone)]
struct Logged {
    id: String,
    kind: String,
    created: Timestamp,
    event: Value,
}

/// Events of one style in the order of creation, with the position of each.
#[derive(Debug, Default)]
struct Log {
    all: Vec<Logged>,
    places: BTreeMap<String, usize>,
}

impl Log {
    fn push(&mut self, logged: Logged) {
        self.places.insert(logged.id.clone(), self.all.len());
        self.all.push(logged);
    }

    fn get(&self, id: &str, now: Timestamp) -> Answer {
        let found = self.places.get(id).map(|place| &self.all[*place]);
        let found = found.filter(|logged| logged.created >= oldest(now));
        found.map(|logged| logged.event.clone()).ok_or_else(|| ApiError::missing("event", id))
    }
}

/// Events from before this instant are no longer listed.
fn oldest(now: Timestamp) -> Timestamp {
    now.saturating_add_micros(-KEPT_MICROS)
}

#[derive(Debug, Default)]
pub struct EventLog {
    snapshots: Log,
    /// With their data.
    thin: Log,
}

impl Simulator {
    /// Emits an event about an object, in both styles. Returns the id of the snapshot.
    pub(crate) fn emit(&mut self, kind: &str, object: &Value) -> String {
        self.log_snapshot(kind, json!({ "object": object }))
    }

    /// Emits an event about an update, with the previous values, unless nothing changed.
    pub(crate) fn emit_change(&mut self, kind: &str, before: &Value, after: &Value) {
        let previous = previous(before, after);
        if previous.as_object().is_some_and(|changed| !changed.is_empty()) {
            self.log_snapshot(kind, json!({ "object": after, "previous_attributes": previous }));
        }
    }

    /// Emits an event that has no snapshot.
    pub(crate) fn emit_thin(&mut self, kind: &str, data: Value, related: Value) {
        self.log_thin(kind, data, related, None);
    }

    fn log_snapshot(&mut self, kind: &str, data: Value) -> String {
        let id = self.next_id("evt");
        let object = &data["object"];
        let (object_id, object_type) = (text(&object["id"]), text(&object["object"]));
        let url = format!("/v1/{}s/{object_id}", object_type.replace('.', "/"));
        let related = json!({ "id": object_id, "type": object_type, "url": url });
        let event = json!({
            "id": id, "object": "event", "api_version": API_VERSION,
            "created": self.now_seconds(), "data": data, "livemode": false,
            "pending_webhooks": 0, "request": { "id": null, "idempotency_key": null },
            "type": kind,
        });
        self.queue_snapshot(kind, &id, &event);
        let created = self.now();
        let logged = Logged { id: id.clone(), kind: kind.to_owned(), created, event };
        self.events.snapshots.push(logged);
        self.log_thin(&format!("v1.{kind}"), Value::Null, related, Some(&id));
        id
    }

    fn log_thin(&mut self, kind: &str, data: Value, related: Value, snapshot: Option<&str>) {
        let (id, created) = (self.next_id("evt_test"), self.now());
        let mut event = json!({
            "id": id, "object": "v2.core.event", "type": kind, "livemode": false,
            "created": created.to_string(), "context": null, "reason": null,
            "related_object": related,
        });
        if let Some(snapshot) = snapshot {
            event["snapshot_event"] = snapshot.into();
        }
        self.queue_thin(kind, &id, &event);
        if !data.is_null() {
            event["data"] = data;
        }
        self.events.thin.push(Logged { id, kind: kind.to_owned(), created, event });
    }
}

/// The previous values of what differs. Objects are compared field by field, lists as a whole; a
/// new field was null.
fn previous(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return before.clone() };
    let mut changed = Map::new();
    for (name, value) in old {
        let now = new.get(name).unwrap_or(&Value::Null);
        if now != value {
            changed.insert(name.clone(), previous(value, now));
        }
    }
    for name in new.keys().filter(|name| !old.contains_key(*name)) {
        changed.insert(name.clone(), Value::Null);
    }
    Value::Object(changed)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn list_snapshots(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["type", "types", "created", "delivery_success"]].concat())?;
    let mut types = types(params)?;
    types.extend(params.text("type", usize::MAX)?);
    let delivered = params.boolean("delivery_success")?;
    let created = Range::read(params, "created")?;
    let oldest = oldest(simulator.now());
    let wanted = |logged: &&Logged| {
        logged.created >= oldest
            && created.contains(logged.created.seconds())
            && is_of_any(&types, &logged.kind)
            && delivered.is_none_or(|wanted| simulator.webhooks.all_delivered(&logged.id) == wanted)
    };
    let found: Vec<&Logged> = simulator.events.snapshots.all.iter().rev().filter(wanted).collect();
    page_of(&found, |logged| &logged.id, |logged| logged.event.clone(), params, "/v1/events")
}

pub fn retrieve_snapshot(simulator: &Simulator, id: &str) -> Answer {
    simulator.events.snapshots.get(id, simulator.now())
}

pub fn retrieve_thin(simulator: &Simulator, id: &str) -> Answer {
    simulator.events.thin.get(id, simulator.now())
}

/// The latest first. A page begins at a position in the log, so new events do not shift the pages.
pub fn list_thin(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&["limit", "page", "object_id", "types", "created"])?;
    let types = types(params)?;
    let object_id = params.text("object_id", usize::MAX)?;
    let limit = params.integer("limit")?.unwrap_or(THIN_PAGE_DEFAULT).clamp(1, 100);
    let limit = usize::try_from(limit).unwrap_or(1);
    let begin = params.integer("page")?.and_then(|page| usize::try_from(page).ok());
    let created = match params.nested("created")? {
        Some(bounds) => Range::of_bounds(&bounds, instant)?,
        None => Range::all(),
    };
    let oldest = oldest(simulator.now());
    let wanted = |(_, logged): &(usize, &Logged)| {
        let object = &logged.event["related_object"]["id"];
        logged.created >= oldest
            && created.contains(logged.created.micros())
            && object_id.as_ref().is_none_or(|id| *object == id.as_str())
            && is_of_any(&types, &logged.kind)
    };
    let log = &simulator.events.thin.all;
    let end = begin.map_or(log.len(), |begin| log.len().min(begin + 1));
    let mut found = log[..end].iter().enumerate().rev().filter(wanted);
    let data: Vec<&Value> = found.by_ref().take(limit).map(|(_, logged)| &logged.event).collect();
    let next = found.next().map(|(place, _)| next_page_url(params, limit, place));
    Ok(json!({ "data": data, "next_page_url": next, "previous_page_url": null }))
}

/// A bound in microseconds.
fn instant(bounds: &Params, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = bounds.text(name, usize::MAX)? else { return Ok(None) };
    let parsed = text.parse::<Timestamp>();
    let refused = |_| {
        let name = format!("created[{name}]");
        ApiError::parameter(&name, format!("Invalid {name}: must be an RFC 3339 date-time"))
    };
    Ok(Some(parsed.map_err(refused)?.micros()))
}

/// The same query for the next page.
fn next_page_url(params: &Params, limit: usize, place: usize) -> String {
    let mut query = format!("limit={limit}&page={place}");
    for (name, value) in params.pairs() {
        if name != "limit" && name != "page" {
            query.push_str(&format!("&{}={}", encode(&name), encode(&value)));
        }
    }
    format!("/v2/core/events?{query}")
}

/// Whether the kind is one of these; `invoice.*` matches its whole group, and no type matches all.
fn is_of_any(types: &[String], kind: &str) -> bool {
    let is_of = |wanted: &String| match wanted.strip_suffix('*') {
        Some(start) => kind.starts_with(start),
        None => kind == wanted,
    };
    types.is_empty() || types.iter().any(is_of)
}

fn types(params: &Params) -> Result<Vec<String>, ApiError> {
    let types = params.texts("types")?;
    if types.len() > TYPES_MAX {
        return Err(ApiError::parameter("types", format!("at most {TYPES_MAX} types")));
    }
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before() {
        let check = |before: Value, after: Value, expected: Value| {
            assert_eq!(previous(&before, &after), expected, "{before} {after}");
        };
        check(json!({ "a": 1, "b": 2 }), json!({ "a": 1, "b": 3 }), json!({ "b": 2 }));
        check(json!({ "a": { "x": 1, "y": 2 } }), json!({ "a": { "x": 1, "y": 3 } }), {
            json!({ "a": { "y": 2 } })
        });
        check(json!({ "a": [1, 2] }), json!({ "a": [1, 3] }), json!({ "a": [1, 2] }));
        check(json!({}), json!({ "a": 1 }), json!({ "a": null }));
        check(json!({ "a": { "x": 1 } }), json!({ "a": null }), json!({ "a": { "x": 1 } }));
        check(json!({ "a": null }), json!({ "a": { "x": 1 } }), json!({ "a": null }));
        check(json!({ "a": 1 }), json!({ "a": 1 }), json!({}));
    }
}
