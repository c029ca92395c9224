//! Meter events: accepted one by one or as a stream, refused, cancelled, dropped and reported.
//!
//! Invariant: at most one event of an identifier is accepted within 24 hours by the simulator's
//! clock. After that the identifier is forgotten, and the event counts again. Values are exact. A
//! crash leaves nothing.

use crate::Simulator;
use crate::decimal::Decimal;
use crate::faults::FaultKind;
use crate::meters::Meter;
use crate::params::Params;
use crate::request::{Answer, ApiError, SimRequest};
use crate::timestamp::{MICROS_PER_DAY, MICROS_PER_SECOND, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const NAME_CHARACTERS_MAX: usize = 100;
const PAST_SECONDS_MAX: i64 = 35 * 86_400;
const FUTURE_SECONDS_MAX: i64 = 5 * 60;
/// A double cannot hold more; that is Stripe's reason.
const SIGNIFICANT_DIGITS_MAX: usize = 15;
/// How long an identifier is remembered, and how long an event can be cancelled.
const IDENTIFIER_KEPT_MICROS: i64 = MICROS_PER_DAY;
const STREAM_EVENTS_MAX: usize = 100;
const SESSION_MICROS: i64 = 15 * 60 * MICROS_PER_SECOND;
/// Failures of this many seconds are reported together.
const VALIDATION_SECONDS: i64 = 10;

/// The state of a meter event that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedState {
    /// It counts.
    Counted,
    /// A meter event adjustment cancelled it.
    Cancelled,
    /// It got a success, was dropped, and was reported by a thin event.
    Dropped,
    /// It counted and then disappeared without a report.
    Lost,
}

/// When a meter event of an unknown customer is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CustomerCheck {
    /// In the response.
    #[default]
    Synchronous,
    /// Later, by a thin event; the response is a success.
    Asynchronous,
}

/// A meter event that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedEvent {
    /// The identifier that the client gave, or a new one.
    pub identifier: String,
    /// The event name of the meter.
    pub event_name: String,
    /// The id of the customer.
    pub customer: String,
    /// The value, exactly as sent.
    pub value: Decimal,
    /// When the usage happened, in seconds since 1970.
    pub timestamp: i64,
    /// When it was received, by the simulator's clock.
    pub received: Timestamp,
    /// What happened to it since.
    pub state: ReceivedState,
}

/// Events in the order of arrival, with two indexes.
#[derive(Debug, Default)]
pub struct MeterEvents {
    all: Vec<ReceivedEvent>,
    /// Positions by customer and event name, then by timestamp and position.
    by_series: BTreeMap<(String, String), BTreeSet<(i64, usize)>>,
    /// When an identifier was last used, and the event's position.
    identifiers: BTreeMap<String, (Timestamp, usize)>,
    /// Ends of streaming sessions by token.
    sessions: BTreeMap<String, Timestamp>,
}

impl MeterEvents {
    pub fn all(&self) -> &[ReceivedEvent] {
        &self.all
    }

    pub fn series(&self) -> impl Iterator<Item = &(String, String)> {
        self.by_series.keys()
    }

    /// Events of a customer and a meter with timestamps in the half-open interval, with the
    /// positions in the order of arrival.
    pub fn between(
        &self,
        series: &(String, String),
        start: i64,
        end: i64,
    ) -> impl Iterator<Item = (usize, &ReceivedEvent)> {
        let positions = self.by_series.get(series);
        let range = positions.map(|positions| positions.range((start, 0)..(end, 0)));
        range.into_iter().flatten().map(|(_, position)| (*position, &self.all[*position]))
    }

    fn taken(&self, identifier: &str, now: Timestamp) -> Option<usize> {
        let (received, position) = self.identifiers.get(identifier)?;
        let forgotten = received.saturating_add_micros(IDENTIFIER_KEPT_MICROS);
        (now < forgotten).then_some(*position)
    }

    /// The event that was received last under this identifier.
    pub fn latest(&mut self, identifier: &str) -> Option<&mut ReceivedEvent> {
        let (_, position) = self.identifiers.get(identifier)?;
        self.all.get_mut(*position)
    }

    pub fn push(&mut self, event: ReceivedEvent) {
        let position = self.all.len();
        let series = (event.customer.clone(), event.event_name.clone());
        self.by_series.entry(series).or_default().insert((event.timestamp, position));
        self.identifiers.insert(event.identifier.clone(), (event.received, position));
        self.all.push(event);
    }
}

/// An event as the client sent it.
struct Submission {
    event_name: String,
    identifier: Option<String>,
    timestamp: Option<i64>,
    payload: Map<String, Value>,
}

impl Submission {
    fn read(params: &Params, timestamp: Option<i64>) -> Result<Self, ApiError> {
        params.only(&["event_name", "payload", "identifier", "timestamp"])?;
        params.required_nested("payload")?;
        Ok(Self {
            event_name: params.required_text("event_name", NAME_CHARACTERS_MAX)?,
            identifier: params.text("identifier", NAME_CHARACTERS_MAX)?,
            timestamp,
            payload: params.text_map("payload")?,
        })
    }

    fn payload(&self, key: &str) -> Option<&str> {
        self.payload.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
    }
}

/// Why an event does not count, with the code of error reports.
struct Flaw {
    code: &'static str,
    message: String,
    param: &'static str,
}

impl Flaw {
    fn new(code: &'static str, param: &'static str, message: String) -> Self {
        Self { code, message, param }
    }

    /// Refuses in the response. The code is included only where Stripe was seen to include it.
    fn refuse(self) -> ApiError {
        let refused = ApiError::refused(self.message).with_param(self.param);
        match self.code {
            "meter_event_customer_not_found" => refused.with_code("resource_missing"),
            "timestamp_too_far_in_past" | "timestamp_in_future" | "archived_meter" => {
                refused.with_code(self.code)
            }
            _ => refused,
        }
    }
}

pub fn create_v1(simulator: &mut Simulator, params: &Params) -> Answer {
    let submission = Submission::read(params, params.integer("timestamp")?)?;
    let event = take(simulator, submission)?;
    Ok(json!({
        "object": "billing.meter_event", "created": event.received.seconds(),
        "event_name": event.event_name,
        "identifier": event.identifier, "livemode": false, "payload": params_payload(params),
        "timestamp": event.timestamp,
    }))
}

pub fn create_v2(simulator: &mut Simulator, params: &Params) -> Answer {
    let submission = Submission::read(params, timestamp_v2(params)?)?;
    let event = take(simulator, submission)?;
    let timestamp = Timestamp::from_seconds(event.timestamp);
    Ok(json!({
        "object": "v2.billing.meter_event", "created": event.received.to_string(),
        "event_name": event.event_name, "identifier": event.identifier, "livemode": false,
        "payload": params_payload(params), "timestamp": timestamp.to_string(),
    }))
}

fn params_payload(params: &Params) -> Value {
    params.text_map("payload").map_or(Value::Null, Value::Object)
}

fn timestamp_v2(params: &Params) -> Result<Option<i64>, ApiError> {
    let Some(text) = params.text("timestamp", usize::MAX)? else { return Ok(None) };
    let parsed = text.parse::<Timestamp>();
    let parsed = parsed.map_err(|_| {
        let message = "Invalid timestamp: must be an RFC 3339 date-time";
        ApiError::parameter("timestamp", message)
    })?;
    Ok(Some(parsed.seconds()))
}

/// Validates an event and records it.
fn take(simulator: &mut Simulator, submission: Submission) -> Result<ReceivedEvent, ApiError> {
    let (mut event, flaw) = match judge(simulator, &submission).map_err(Flaw::refuse)? {
        Judged::Counts(event) => (event, None),
        Judged::NoCustomer(event, flaw) => match simulator.options.customer_check {
            CustomerCheck::Synchronous => return Err(flaw.refuse()),
            CustomerCheck::Asynchronous => (event, Some(flaw)),
        },
    };
    if simulator.meter_events.taken(&event.identifier, event.received).is_some() {
        simulator.repeats.refused += 1;
        let message = format!("An event already exists with identifier {}.", event.identifier);
        return Err(ApiError::refused(message).with_header("stripe-should-retry", "false"));
    }
    let dropped = if let Some(flaw) = flaw {
        Some((flaw.code.to_owned(), flaw.message))
    } else if simulator.take_fault(FaultKind::AsyncRejection) {
        let code = simulator.faults.plan().rejection_code.clone();
        let message = format!("The event was dropped while it was processed: {code}.");
        Some((code, message))
    } else {
        None
    };
    if let Some((code, message)) = dropped {
        event.state = ReceivedState::Dropped;
        let failed = Failed { identifier: event.identifier.clone(), message, code };
        let meter = simulator.meters.named(&event.event_name).map(|meter| meter.id.clone());
        report(simulator, meter, &[failed]);
    }
    simulator.meter_events.push(event.clone());
    Ok(event)
}

enum Judged {
    Counts(ReceivedEvent),
    /// The customer is unknown, and nothing else is wrong.
    NoCustomer(ReceivedEvent, Flaw),
}

/// Validates an event without recording it.
fn judge(simulator: &mut Simulator, submission: &Submission) -> Result<Judged, Flaw> {
    let now = simulator.now();
    let meter = find_meter(simulator, &submission.event_name)?;
    let customer = submission.payload(&meter.customer_key).ok_or_else(|| {
        let message = format!("The payload has no {}.", meter.customer_key);
        Flaw::new("meter_event_no_customer_defined", "payload", message)
    })?;
    let value = read_value(&meter, submission)?;
    let timestamp = check_timestamp(submission.timestamp, now)?;
    let identifier = match &submission.identifier {
        Some(identifier) => identifier.clone(),
        None => simulator.next_id("identifier"),
    };
    let event = ReceivedEvent {
        identifier,
        event_name: submission.event_name.clone(),
        customer: customer.to_owned(),
        value,
        timestamp,
        received: now,
        state: ReceivedState::Counted,
    };
    if simulator.customers.is_live(customer) {
        return Ok(Judged::Counts(event));
    }
    let message = format!("No such customer: '{customer}'");
    let flaw = Flaw::new("meter_event_customer_not_found", "payload", message);
    Ok(Judged::NoCustomer(event, flaw))
}

fn find_meter(simulator: &Simulator, event_name: &str) -> Result<Meter, Flaw> {
    match simulator.meters.named(event_name) {
        Some(meter) if meter.is_active() => Ok(meter.clone()),
        Some(_) => {
            let message = format!("The meter with the event name {event_name} is not active.");
            Err(Flaw::new("archived_meter", "event_name", message))
        }
        None => {
            let message = format!("No active meter found with the event name {event_name}.");
            Err(Flaw::new("no_meter", "event_name", message))
        }
    }
}

fn read_value(meter: &Meter, submission: &Submission) -> Result<Decimal, Flaw> {
    let Some(text) = submission.payload(&meter.value_key) else {
        if meter.formula == crate::meters::Formula::Count {
            return Ok(Decimal::ONE);
        }
        let message = format!("The payload has no {}.", meter.value_key);
        return Err(Flaw::new("meter_event_value_not_found", "payload", message));
    };
    if significant_digits(text) > SIGNIFICANT_DIGITS_MAX {
        let message =
            format!("The value {text} has more than {SIGNIFICANT_DIGITS_MAX} significant digits.");
        return Err(Flaw::new("meter_event_value_too_many_digits", "payload", message));
    }
    // A decimal may be written with an exponent, which Stripe does not accept.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    let value = text.parse::<Decimal>().ok().filter(|_| plain);
    value.ok_or_else(|| {
        let message = format!("The value {text} is not a plain decimal number.");
        Flaw::new("meter_event_invalid_value", "payload", message)
    })
}

/// Digits from the first that is not zero, without zeros at the end of a fraction.
fn significant_digits(text: &str) -> usize {
    let text = if text.contains('.') { text.trim_end_matches('0') } else { text };
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').len()
}

fn check_timestamp(given: Option<i64>, now: Timestamp) -> Result<i64, Flaw> {
    let now = now.seconds();
    let timestamp = given.unwrap_or(now);
    let oldest = now - PAST_SECONDS_MAX;
    if timestamp < oldest {
        let message = format!(
            "The timestamp {timestamp} is more than 35 calendar days in the past. The minimum \
             acceptable timestamp is {oldest}."
        );
        return Err(Flaw::new("timestamp_too_far_in_past", "timestamp", message));
    }
    if timestamp > now + FUTURE_SECONDS_MAX {
        let message = format!("The timestamp {timestamp} is more than 5 minutes in the future.");
        return Err(Flaw::new("timestamp_in_future", "timestamp", message));
    }
    Ok(timestamp)
}

pub fn create_session(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&[])?;
    let now = simulator.now();
    let (id, token) = (simulator.next_id("mes"), simulator.next_id("token"));
    let expires = now.saturating_add_micros(SESSION_MICROS);
    simulator.meter_events.sessions.insert(token.clone(), expires);
    Ok(json!({
        "id": id, "object": "v2.billing.meter_event_session", "livemode": false,
        "authentication_token": token, "created": now.to_string(),
        "expires_at": expires.to_string(),
    }))
}

/// Refuses the token of a stream if it is unknown or expired.
pub fn check_session(simulator: &Simulator, request: &SimRequest) -> Result<(), ApiError> {
    let token = request.bearer().unwrap_or_default();
    match simulator.meter_events.sessions.get(token) {
        Some(expires) if simulator.now() < *expires => Ok(()),
        Some(_) => {
            let message = "The meter event session has expired; create another one.";
            let expired = ApiError::new(400, "temporary_session_expired", message);
            Err(expired.with_code("billing_meter_event_session_expired"))
        }
        None => Err(ApiError::unauthorized("Invalid meter event session token.")),
    }
}

/// Accepts a stream. Errors of its events are only reported later.
pub fn create_stream(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["events"])?;
    let items = params.objects("events")?;
    if items.is_empty() || items.len() > STREAM_EVENTS_MAX {
        let message = format!("events must hold between 1 and {STREAM_EVENTS_MAX} events");
        return Err(ApiError::parameter("events", message).with_code("invalid_fields"));
    }
    let submissions: Vec<Submission> = items
        .iter()
        .map(|item| Submission::read(item, timestamp_v2(item)?))
        .collect::<Result<_, _>>()?;
    let mut failures: BTreeMap<Option<String>, Vec<Failed>> = BTreeMap::new();
    for submission in submissions {
        match judge(simulator, &submission) {
            Ok(Judged::Counts(event)) => {
                let known = simulator.meter_events.taken(&event.identifier, event.received);
                if known.is_none() {
                    simulator.meter_events.push(event);
                }
            }
            Ok(Judged::NoCustomer(_, flaw)) | Err(flaw) => {
                let meter = simulator.meters.named(&submission.event_name);
                let failed = Failed {
                    identifier: submission.identifier.unwrap_or_default(),
                    code: flaw.code.to_owned(),
                    message: flaw.message,
                };
                failures.entry(meter.map(|meter| meter.id.clone())).or_default().push(failed);
            }
        }
    }
    for (meter, failed) in failures {
        report(simulator, meter, &failed);
    }
    Ok(json!({}))
}

/// An event that got a success and does not count.
struct Failed {
    identifier: String,
    code: String,
    message: String,
}

/// Reports failures by a thin event, of the meter or of no meter.
fn report(simulator: &mut Simulator, meter: Option<String>, failures: &[Failed]) {
    let mut by_code: BTreeMap<&str, Vec<&Failed>> = BTreeMap::new();
    for failed in failures {
        by_code.entry(&failed.code).or_default().push(failed);
    }
    let sample = |failed: &&Failed| {
        json!({
            "error_message": failed.message, "request": { "identifier": failed.identifier },
        })
    };
    let error_types: Vec<Value> = by_code
        .into_iter()
        .map(|(code, failed)| {
            let samples: Vec<Value> = failed.iter().map(sample).collect();
            json!({ "code": code, "error_count": failed.len(), "sample_errors": samples })
        })
        .collect();
    let now = simulator.now_seconds();
    let start = now - now.rem_euclid(VALIDATION_SECONDS);
    let instant = |seconds: i64| Timestamp::from_seconds(seconds).to_string();
    let count = failures.len();
    let data = json!({
        "developer_message_summary": format!("There is {count} invalid event"),
        "validation_start": instant(start), "validation_end": instant(start + VALIDATION_SECONDS),
        "reason": { "error_count": count, "error_types": error_types },
    });
    match meter {
        Some(id) => {
            let related = json!({
                "id": id, "type": "billing.meter", "url": format!("/v1/billing/meters/{id}"),
            });
            simulator.emit_thin("v1.billing.meter.error_report_triggered", data, related);
        }
        None => simulator.emit_thin("v1.billing.meter.no_meter_found", data, Value::Null),
    }
}

pub fn adjust_v1(simulator: &mut Simulator, params: &Params) -> Answer {
    let mut adjustment = adjust(simulator, params)?;
    adjustment["object"] = "billing.meter_event_adjustment".into();
    Ok(adjustment)
}

pub fn adjust_v2(simulator: &mut Simulator, params: &Params) -> Answer {
    let mut adjustment = adjust(simulator, params)?;
    adjustment["object"] = "v2.billing.meter_event_adjustment".into();
    adjustment["id"] = simulator.next_id("mtr_event_adj_test").into();
    adjustment["created"] = simulator.now().to_string().into();
    Ok(adjustment)
}

/// Cancels one event, within 24 hours of its receipt.
fn adjust(simulator: &mut Simulator, params: &Params) -> Answer {
    params.only(&["event_name", "type", "cancel"])?;
    let event_name = params.required_text("event_name", NAME_CHARACTERS_MAX)?;
    params.choice("type", &["cancel"])?.ok_or_else(|| params.missing("type"))?;
    let cancel = params.required_nested("cancel")?;
    cancel.only(&["identifier"])?;
    let identifier = cancel.required_text("identifier", NAME_CHARACTERS_MAX)?;
    find_meter(simulator, &event_name).map_err(Flaw::refuse)?;
    let now = simulator.now();
    let event = simulator.meter_events.latest(&identifier);
    let Some(event) = event.filter(|event| event.event_name == event_name) else {
        let message = format!("No event was found with identifier {identifier}.");
        return Err(ApiError::refused(message).with_param("cancel[identifier]"));
    };
    if event.received.saturating_add_micros(IDENTIFIER_KEPT_MICROS) <= now {
        let message = format!(
            "The event with identifier {identifier} was received more than 24 hours ago and \
             cannot be cancelled."
        );
        return Err(ApiError::refused(message).with_param("cancel[identifier]"));
    }
    if event.state == ReceivedState::Counted {
        event.state = ReceivedState::Cancelled;
    }
    Ok(json!({
        "cancel": { "identifier": identifier }, "event_name": event_name, "livemode": false,
        "status": "pending", "type": "cancel",
    }))
}
