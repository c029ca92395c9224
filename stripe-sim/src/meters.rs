//! Billing meters.
//!
//! Invariant: an event name belongs to one meter for good; only the display name of a meter
//! changes. A crash leaves nothing.

use crate::Simulator;
use crate::lists::{PAGING, page_of};
use crate::params::Params;
use crate::request::{Answer, ApiError};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const EVENT_NAME_CHARACTERS_MAX: usize = 100;
const DISPLAY_NAME_CHARACTERS_MAX: usize = 250;
const PAYLOAD_KEY_CHARACTERS_MAX: usize = 100;

/// How events become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formula {
    Sum,
    Count,
    Last,
}

/// The interval of which only the last received event counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTimeWindow {
    Hour,
    Day,
}

impl EventTimeWindow {
    pub fn seconds(self) -> i64 {
        match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Meter {
    pub id: String,
    pub event_name: String,
    pub formula: Formula,
    /// None: every event counts.
    pub window: Option<EventTimeWindow>,
    pub customer_key: String,
    pub value_key: String,
    display_name: String,
    created: i64,
    updated: i64,
    deactivated_at: Option<i64>,
}

impl Meter {
    pub fn is_active(&self) -> bool {
        self.deactivated_at.is_none()
    }

    pub fn to_json(&self) -> Value {
        let formula = match self.formula {
            Formula::Sum => "sum",
            Formula::Count => "count",
            Formula::Last => "last",
        };
        json!({
            "id": self.id, "object": "billing.meter", "livemode": false,
            "created": self.created, "updated": self.updated,
            "display_name": self.display_name, "event_name": self.event_name,
            "event_time_window": self.window.map(EventTimeWindow::name),
            "default_aggregation": { "formula": formula },
            "customer_mapping": { "event_payload_key": self.customer_key, "type": "by_id" },
            "value_settings": { "event_payload_key": self.value_key },
            "status": if self.is_active() { "active" } else { "inactive" },
            "status_transitions": { "deactivated_at": self.deactivated_at },
        })
    }
}

/// Meters by id; ids ascend with time.
#[derive(Debug, Default)]
pub struct Meters {
    all: BTreeMap<String, Meter>,
    by_event_name: BTreeMap<String, String>,
}

impl Meters {
    pub fn get(&self, id: &str) -> Result<&Meter, ApiError> {
        self.all.get(id).ok_or_else(|| ApiError::missing("meter", id))
    }

    pub fn named(&self, event_name: &str) -> Option<&Meter> {
        self.all.get(self.by_event_name.get(event_name)?)
    }

    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Meter> {
        self.all.values()
    }
}

pub fn create(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[
        "default_aggregation",
        "display_name",
        "event_name",
        "customer_mapping",
        "value_settings",
        "event_time_window",
    ])?;
    let mut meter = read(params)?;
    if simulator.meters.by_event_name.contains_key(&meter.event_name) {
        let message = format!("A meter with the event name {} already exists.", meter.event_name);
        return Err(ApiError::refused(message).with_param("event_name"));
    }
    meter.id = simulator.next_id("mtr_test");
    meter.created = simulator.now_seconds();
    meter.updated = meter.created;
    simulator.meters.by_event_name.insert(meter.event_name.clone(), meter.id.clone());
    Ok(store(simulator, meter, "billing.meter.created"))
}

fn read(params: &Params) -> Result<Meter, ApiError> {
    let aggregation = params.required_nested("default_aggregation")?;
    aggregation.only(&["formula"])?;
    let formula = match aggregation.choice("formula", &["sum", "count", "last"])?.as_deref() {
        Some("sum") => Formula::Sum,
        Some("count") => Formula::Count,
        Some(_) => Formula::Last,
        None => return Err(aggregation.missing("formula")),
    };
    let window = match params.choice("event_time_window", &["hour", "day"])?.as_deref() {
        Some("hour") => Some(EventTimeWindow::Hour),
        Some(_) => Some(EventTimeWindow::Day),
        None => None,
    };
    Ok(Meter {
        id: String::new(),
        event_name: params.required_text("event_name", EVENT_NAME_CHARACTERS_MAX)?,
        formula,
        window,
        customer_key: payload_key(params, "customer_mapping", "stripe_customer_id")?,
        value_key: payload_key(params, "value_settings", "value")?,
        display_name: params.required_text("display_name", DISPLAY_NAME_CHARACTERS_MAX)?,
        created: 0,
        updated: 0,
        deactivated_at: None,
    })
}

fn payload_key(params: &Params, name: &str, default: &str) -> Result<String, ApiError> {
    let Some(nested) = params.nested(name)? else { return Ok(default.to_owned()) };
    nested.only(if name == "customer_mapping" {
        &["event_payload_key", "type"]
    } else {
        &["event_payload_key"]
    })?;
    nested.choice("type", &["by_id"])?;
    nested.required_text("event_payload_key", PAYLOAD_KEY_CHARACTERS_MAX)
}

pub fn retrieve(simulator: &Simulator, id: &str) -> Answer {
    Ok(simulator.meters.get(id)?.to_json())
}

pub fn update(simulator: &mut Simulator, id: &str, params: &Params) -> Answer {
    params.only(&["display_name"])?;
    let mut meter = simulator.meters.get(id)?.clone();
    if let Some(name) = params.text("display_name", DISPLAY_NAME_CHARACTERS_MAX)? {
        meter.display_name = name;
    }
    meter.updated = simulator.now_seconds();
    Ok(store(simulator, meter, "billing.meter.updated"))
}

pub fn deactivate(simulator: &mut Simulator, id: &str) -> Answer {
    let mut meter = simulator.meters.get(id)?.clone();
    if !meter.is_active() {
        return Err(ApiError::refused("This meter is already deactivated."));
    }
    meter.deactivated_at = Some(simulator.now_seconds());
    Ok(store(simulator, meter, "billing.meter.deactivated"))
}

pub fn reactivate(simulator: &mut Simulator, id: &str) -> Answer {
    let mut meter = simulator.meters.get(id)?.clone();
    if meter.is_active() {
        return Err(ApiError::refused("This meter is already active."));
    }
    meter.deactivated_at = None;
    Ok(store(simulator, meter, "billing.meter.reactivated"))
}

pub fn list(simulator: &Simulator, params: &Params) -> Answer {
    params.only(&[&PAGING[..], &["status"]].concat())?;
    let status = params.choice("status", &["active", "inactive"])?;
    let wanted = |meter: &&Meter| {
        status.as_deref().is_none_or(|status| meter.is_active() == (status == "active"))
    };
    let rows: Vec<&Meter> = simulator.meters.all().rev().filter(wanted).collect();
    page_of(&rows, |meter| &meter.id, |meter| meter.to_json(), params, "/v1/billing/meters")
}

fn store(simulator: &mut Simulator, meter: Meter, event: &str) -> Value {
    let json = meter.to_json();
    let before = simulator.meters.all.insert(meter.id.clone(), meter);
    match before {
        Some(before) if event.ends_with(".updated") => {
            simulator.emit_change(event, &before.to_json(), &json);
        }
        Some(_) | None => {
            simulator.emit(event, &json);
        }
    }
    json
}
