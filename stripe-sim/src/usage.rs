//! Usage without a client: events that others record, and events that Stripe loses.
//!
//! Invariant: neither emits an event; only totals and summaries show it. A crash leaves nothing.

use crate::Simulator;
use crate::decimal::Decimal;
use crate::meter_events::{ReceivedEvent, ReceivedState};
use crate::params::Params;
use crate::request::{Answer, ApiError};
use crate::timestamp::Timestamp;
use serde_json::json;

/// A meter event that did not come through the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignUsage {
    /// The id of the customer.
    pub customer: String,
    /// The event name of the meter.
    pub event_name: String,
    /// The value.
    pub value: Decimal,
    /// When the usage happened.
    pub timestamp: Timestamp,
    /// The identifier; none makes a new one.
    pub identifier: Option<String>,
}

impl Simulator {
    /// Counts a meter event that no client sent; returns its identifier.
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
            timestamp: usage.timestamp.seconds(),
            received,
            state: ReceivedState::Counted,
        });
        identifier
    }

    /// Stops counting a meter event, without a report; returns whether it counted until now. Its
    /// identifier stays in use.
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
    let value = text
        .parse()
        .map_err(|_| ApiError::parameter("value", format!("Invalid decimal: {text}")))?;
    let now = simulator.now_seconds();
    let seconds = params.integer("timestamp")?.unwrap_or(now);
    let usage = ForeignUsage {
        customer: params.required_text("customer", usize::MAX)?,
        event_name,
        value,
        timestamp: Timestamp::from_seconds(seconds),
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
