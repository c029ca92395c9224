//! Usage that comes and goes without any client: what others record, and what the provider loses.
//!
//! Invariant: neither is told to anybody; only totals and summaries show it. A crash leaves
//! nothing.

use super::meter_events::{ReceivedEvent, ReceivedState};
use super::params::Params;
use super::request::ApiError;
use super::{Answer, Simulator};
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use serde_json::json;

/// An event that somebody else records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignUsage {
    /// The provider's id of the customer.
    pub customer: String,
    pub event_name: String,
    pub value: Quantity,
    pub timestamp: Timestamp,
    /// None makes one up.
    pub identifier: Option<String>,
}

impl Simulator {
    /// Counts an event that no client sent; returns its identifier.
    pub fn record_usage(&mut self, usage: ForeignUsage) -> String {
        let identifier = match usage.identifier {
            Some(identifier) => identifier,
            None => self.next_id("foreign"),
        };
        let received = self.now();
        self.meter_events.push(ReceivedEvent {
            identifier: identifier.clone(),
            event_name: usage.event_name,
            customer: usage.customer,
            value: usage.value,
            timestamp: usage.timestamp.micros().div_euclid(MICROS_PER_SECOND),
            received,
            state: ReceivedState::Counted,
        });
        identifier
    }

    /// Forgets an event that was counted; says whether there was one. Its identifier stays taken.
    pub fn lose_usage(&mut self, identifier: &str) -> bool {
        let Some(event) = self.meter_events.latest(identifier) else { return false };
        let counted = event.state == ReceivedState::Counted;
        if counted {
            event.state = ReceivedState::Lost;
        }
        counted
    }
}

pub fn record(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["customer", "event_name", "value", "timestamp", "identifier"])?;
    let event_name = params.required_text("event_name", usize::MAX)?;
    if simulator.meters.named(&event_name).is_none() {
        let message = format!("There is no meter with the event name {event_name}.");
        return Err(ApiError::parameter("event_name", message));
    }
    let text = params.required_text("value", usize::MAX)?;
    let value = Quantity::parse_stored(&text)
        .ok_or_else(|| ApiError::parameter("value", format!("Invalid decimal: {text}")))?;
    let now = simulator.now_seconds();
    let seconds = params.integer("timestamp")?.unwrap_or(now);
    let usage = ForeignUsage {
        customer: params.required_text("customer", usize::MAX)?,
        event_name,
        value,
        timestamp: Timestamp::from_micros(seconds.saturating_mul(MICROS_PER_SECOND)),
        identifier: params.text("identifier", usize::MAX)?,
    };
    Ok(json!({ "identifier": simulator.record_usage(usage) }))
}

pub fn lose(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["identifier"])?;
    let identifier = params.required_text("identifier", usize::MAX)?;
    if !simulator.lose_usage(&identifier) {
        let message = format!("No event is counted under the identifier {identifier}.");
        return Err(ApiError::parameter("identifier", message));
    }
    Ok(json!({ "identifier": identifier }))
}
