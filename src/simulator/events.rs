//! Events: snapshots of version 1, thin events of version 2, and the lists of both.
//!
//! Invariant: every fact has one snapshot and one thin twin that names it, except for reports about
//! meter events, which are thin only. A thin event is posted without its data. Both are listed for
//! 30 days. A crash leaves nothing.

use super::lists::{PAGING, page};
use super::params::Params;
use super::request::ApiError;
use super::{API_VERSION, Answer, Simulator};
use serde_json::{Value, json};

const KEPT_SECONDS: i64 = 30 * 86_400;
const TYPES_MAX: usize = 20;
const THIN_PAGE_DEFAULT: i64 = 20;

#[derive(Debug, Clone)]
struct Logged {
    created: i64,
    event: Value,
}

#[derive(Debug, Default)]
pub struct EventLog {
    snapshots: Vec<Logged>,
    /// With their data.
    thin: Vec<Logged>,
}

impl Simulator {
    /// Tells of a change of an object, in both styles. Returns the id of the snapshot.
    pub(super) fn emit(&mut self, kind: &str, object: &Value) -> String {
        let created = self.now_seconds();
        let id = self.next_id("evt");
        let event = json!({
            "id": id, "object": "event", "api_version": API_VERSION, "created": created,
            "data": { "object": object }, "livemode": false, "pending_webhooks": 0,
            "request": { "id": null, "idempotency_key": null }, "type": kind,
        });
        self.events.snapshots.push(Logged { created, event: event.clone() });
        self.queue_snapshot(kind, &id, &event);
        let thin_kind = format!("v1.{kind}");
        let (object_id, object_type) = (text(&object["id"]), text(&object["object"]));
        let url = format!("/v1/{}s/{object_id}", object_type.replace('.', "/"));
        let related = json!({ "id": object_id, "type": object_type, "url": url });
        self.log_thin(&thin_kind, Value::Null, related, Some(&id));
        id
    }

    /// Tells of something that has no snapshot.
    pub(super) fn emit_thin(&mut self, kind: &str, data: Value, related: Value) {
        self.log_thin(kind, data, related, None);
    }

    fn log_thin(&mut self, kind: &str, data: Value, related: Value, snapshot: Option<&str>) {
        let id = self.next_id("evt_test");
        let mut event = json!({
            "id": id, "object": "v2.core.event", "type": kind, "livemode": false,
            "created": self.now().to_string(), "context": null, "reason": null,
            "related_object": related,
        });
        if let Some(snapshot) = snapshot {
            event["snapshot_event"] = snapshot.into();
        }
        self.queue_thin(kind, &id, &event);
        if !data.is_null() {
            event["data"] = data;
        }
        self.events.thin.push(Logged { created: self.now_seconds(), event });
    }
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
    let oldest = simulator.now_seconds() - KEPT_SECONDS;
    let wanted = |logged: &&Logged| {
        let id = text(&logged.event["id"]);
        logged.created >= oldest
            && created.contains(logged.created)
            && (types.is_empty() || types.iter().any(|wanted| is_of(wanted, &logged.event)))
            && delivered.is_none_or(|wanted| simulator.webhooks.all_delivered(id) == wanted)
    };
    let found = simulator.events.snapshots.iter().rev().filter(wanted);
    page(found.map(|logged| logged.event.clone()).collect(), params, "/v1/events")
}

pub fn retrieve_snapshot(simulator: &Simulator, id: &str) -> Answer {
    retrieve(simulator, &simulator.events.snapshots, id)
}

pub fn retrieve_thin(simulator: &Simulator, id: &str) -> Answer {
    retrieve(simulator, &simulator.events.thin, id)
}

fn retrieve(simulator: &Simulator, log: &[Logged], id: &str) -> Answer {
    let oldest = simulator.now_seconds() - KEPT_SECONDS;
    let found = log.iter().find(|logged| logged.event["id"] == id && logged.created >= oldest);
    found.map(|logged| logged.event.clone()).ok_or_else(|| ApiError::missing("event", id))
}

pub fn list_thin(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&["limit", "page", "object_id", "types", "created"])?;
    let types = types(params)?;
    let object_id = params.text("object_id", usize::MAX)?;
    let limit = params.integer("limit")?.unwrap_or(THIN_PAGE_DEFAULT).clamp(1, 100);
    let limit = usize::try_from(limit).unwrap_or(1);
    let first = params.integer("page")?.and_then(|page| usize::try_from(page).ok()).unwrap_or(0);
    let oldest = simulator.now_seconds() - KEPT_SECONDS;
    let wanted = |logged: &&Logged| {
        let object = &logged.event["related_object"]["id"];
        logged.created >= oldest
            && object_id.as_ref().is_none_or(|id| *object == id.as_str())
            && (types.is_empty() || types.iter().any(|wanted| is_of(wanted, &logged.event)))
    };
    let found: Vec<&Logged> = simulator.events.thin.iter().rev().filter(wanted).collect();
    let next = first + limit;
    let data: Vec<&Value> =
        found.iter().skip(first).take(limit).map(|logged| &logged.event).collect();
    let next_page =
        (next < found.len()).then(|| format!("/v2/core/events?limit={limit}&page={next}"));
    Ok(json!({ "data": data, "next_page_url": next_page, "previous_page_url": null }))
}

/// Whether the event is of this type; `invoice.*` stands for all of that group.
fn is_of(wanted: &str, event: &Value) -> bool {
    let kind = text(&event["type"]);
    match wanted.strip_suffix('*') {
        Some(start) => kind.starts_with(start),
        None => kind == wanted,
    }
}

fn types(params: &Params) -> Result<Vec<String>, ApiError> {
    let types = params.texts("types")?;
    if types.len() > TYPES_MAX {
        return Err(ApiError::parameter("types", format!("at most {TYPES_MAX} types")));
    }
    Ok(types)
}

/// `created=5` or `created[gte]=5` and its like.
struct Range {
    from: i64,
    to: i64,
}

impl Range {
    fn read(params: &Params, name: &str) -> Result<Self, ApiError> {
        let Ok(Some(bounds)) = params.nested(name) else {
            let exact = params.integer(name)?;
            return Ok(Self { from: exact.unwrap_or(i64::MIN), to: exact.unwrap_or(i64::MAX) });
        };
        bounds.only(&["gt", "gte", "lt", "lte"])?;
        let above = bounds.integer("gt")?.map(|bound| bound.saturating_add(1));
        let below = bounds.integer("lt")?.map(|bound| bound.saturating_sub(1));
        Ok(Self {
            from: bounds.integer("gte")?.or(above).unwrap_or(i64::MIN),
            to: bounds.integer("lte")?.or(below).unwrap_or(i64::MAX),
        })
    }

    fn contains(&self, seconds: i64) -> bool {
        (self.from..=self.to).contains(&seconds)
    }
}
