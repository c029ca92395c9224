//! A stand-in for Stripe: stateful, deterministic, with accidents on demand.
//!
//! [`Simulator`] is a state machine without input or output: a request goes in, a response comes
//! out, and time passes only when its clock says so. [`Handle`] puts it behind a port and carries
//! out what befalls an answer on its way. Both serve tests, `counterfoil stripe-sim` and the demo.
//!
//! Invariant: ids come from counters and accidents from the plan, so the same calls give the same
//! answers. Everything is in memory: a crash leaves nothing.

mod account;
mod credit_grants;
mod credit_notes;
mod customers;
mod events;
mod faults;
mod idempotency;
mod inspect;
mod invoices;
mod limits;
mod lists;
mod metadata;
mod meter_events;
mod meters;
mod params;
mod payments;
mod prices;
mod rates;
mod request;
mod routes;
mod schedule;
mod serve;
mod subscriptions;
mod summaries;
mod tax;
mod usage;
mod webhooks;

pub use faults::{FaultKind, FaultPlan, FaultRule};
pub use limits::{RateClock, RateLimit};
pub use meter_events::{CustomerCheck, ReceivedEvent, ReceivedState};
pub use payments::PaymentOutcome;
pub use request::{SimRequest, SimResponse, TEST_KEY, Transport};
pub use serve::{Handle, serve};
pub use usage::ForeignUsage;
pub use webhooks::{Outgoing, sign};

use crate::clock::Clock;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::{MICROS_PER_SECOND, Timestamp};
use faults::{Faults, Subject};
use idempotency::{Idempotency, KeyedCall, Known};
use limits::Limits;
use params::Params;
use request::{ApiError, Stage};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The version that is assumed where a request names none.
const API_VERSION: &str = "2026-10-28.dahlia";

type Answer = Result<Value, ApiError>;

/// How long the provider takes to aggregate an event, unless the options say otherwise. It promises
/// nothing; others poll for up to two minutes.
const AGGREGATION_SECONDS: i64 = 30;

/// The account that keys belong to, unless the options say otherwise.
const ACCOUNT: &str = "acct_1CounterfoilSim0";

/// What a simulator is told once.
#[derive(Debug, Clone)]
pub struct Options {
    /// The only key that is taken; none means every key that begins with `sk_test_`.
    pub api_key: Option<String>,
    pub rate: Option<RateLimit>,
    /// How long an event that was received is not aggregated: no summary shows it and no invoice
    /// bills it.
    pub summary_lag_seconds: i64,
    pub customer_check: CustomerCheck,
    /// How long each call takes, by the machine's clock.
    pub latency_ms: u64,
    /// The account that every key belongs to.
    pub account: String,
    /// Ids count on from here, so that those of two simulators need not be the same.
    pub ids_after: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            api_key: None,
            rate: None,
            summary_lag_seconds: AGGREGATION_SECONDS,
            customer_check: CustomerCheck::default(),
            latency_ms: 0,
            account: ACCOUNT.to_owned(),
            ids_after: 0,
        }
    }
}

/// Calls that asked again for what had been done; none of them counted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repeats {
    /// Answered as the first time, by their Idempotency-Key.
    pub replayed: u64,
    /// Refused, by the event's identifier.
    pub refused: u64,
}

/// Marks of a call that is under way; they are given back by [`Simulator::end`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ticket {
    call: Option<KeyedCall>,
    /// Customer and event name.
    pair: Option<(String, String)>,
}

#[derive(Debug)]
enum SimClock {
    /// Stands still until it is moved.
    Standing(Timestamp),
    /// Goes with the machine's clock, this many microseconds ahead.
    Following { machine: Clock, ahead_micros: i64 },
}

/// A time as HTTP spells it; none for a year that it cannot spell.
fn date_of(now: Timestamp) -> Option<String> {
    let at = jiff::Timestamp::from_microsecond(now.micros()).ok()?;
    jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
}

/// The stand-in.
#[derive(Debug)]
pub struct Simulator {
    options: Options,
    clock: SimClock,
    ids: BTreeMap<&'static str, u64>,
    calls: BTreeMap<String, u64>,
    repeats: Repeats,
    /// The accident of the call that is being answered, until it has happened.
    fault: Option<FaultKind>,
    faults: Faults,
    idempotency: Idempotency,
    limits: Limits,
    customers: customers::Customers,
    meters: meters::Meters,
    meter_events: meter_events::MeterEvents,
    events: events::EventLog,
    webhooks: webhooks::Webhooks,
    prices: prices::Prices,
    subscriptions: subscriptions::Subscriptions,
    payments: payments::Payments,
    schedule: schedule::Schedule,
    invoices: invoices::Invoices,
    credit_grants: credit_grants::CreditGrants,
    credit_notes: credit_notes::CreditNotes,
}

impl Simulator {
    /// With a clock that stands still until it is moved.
    pub fn new(now: Timestamp, options: Options) -> Self {
        Self::with_clock(SimClock::Standing(now), options)
    }

    /// With a clock that goes with the machine's.
    pub fn following(machine: Clock, options: Options) -> Self {
        Self::with_clock(SimClock::Following { machine, ahead_micros: 0 }, options)
    }

    fn with_clock(clock: SimClock, options: Options) -> Self {
        Self {
            clock,
            ids: BTreeMap::new(),
            calls: BTreeMap::new(),
            repeats: Repeats::default(),
            fault: None,
            faults: Faults::default(),
            idempotency: Idempotency::default(),
            limits: Limits::new(options.rate),
            customers: customers::Customers::default(),
            meters: meters::Meters::default(),
            meter_events: meter_events::MeterEvents::default(),
            events: events::EventLog::default(),
            webhooks: webhooks::Webhooks::default(),
            prices: prices::Prices::default(),
            subscriptions: subscriptions::Subscriptions::default(),
            payments: payments::Payments::default(),
            schedule: schedule::Schedule::default(),
            invoices: invoices::Invoices::default(),
            credit_grants: credit_grants::CreditGrants::default(),
            credit_notes: credit_notes::CreditNotes::default(),
            options,
        }
    }

    /// Answers a call that takes no time.
    pub fn handle(&mut self, request: &SimRequest) -> SimResponse {
        let (response, ticket) = self.begin(request);
        self.end(&ticket);
        response
    }

    /// Answers a call that is under way until its ticket is given back.
    pub fn begin(&mut self, request: &SimRequest) -> (SimResponse, Ticket) {
        let mut ticket = Ticket::default();
        if request.path.starts_with("/_sim/") {
            return (inspect::answer(self, request), ticket);
        }
        self.tick();
        let subject = routes::subject(self, request);
        *self.calls.entry(subject.call.clone()).or_default() += 1;
        self.fault = self.faults.decide(&subject);
        let mut response = match self.fault_before(request) {
            Some(response) => response,
            None => self.admit(request, &subject, &mut ticket).unwrap_or_else(|e| e.response()),
        };
        self.fault_after(&mut response);
        self.fault = None;
        let request_id = self.next_id("req");
        response.headers.push(("request-id", request_id));
        let version = request.header("stripe-version").unwrap_or(API_VERSION);
        response.headers.push(("stripe-version", version.to_owned()));
        response.headers.extend(date_of(self.now()).map(|date| ("date", date)));
        (response, ticket)
    }

    /// Gives a ticket back; the call is no longer under way.
    pub fn end(&mut self, ticket: &Ticket) {
        if let Some(call) = &ticket.call {
            self.idempotency.end(call);
        }
        if let Some(pair) = &ticket.pair {
            self.limits.end(pair);
        }
    }

    pub fn now(&self) -> Timestamp {
        match &self.clock {
            SimClock::Standing(now) => *now,
            SimClock::Following { machine, ahead_micros } => {
                machine.now().saturating_add_micros(*ahead_micros)
            }
        }
    }

    /// Sets the clock, forwards or back, and does what is due by then.
    pub fn set_clock(&mut self, now: Timestamp) {
        match &mut self.clock {
            SimClock::Standing(standing) => *standing = now,
            SimClock::Following { machine, ahead_micros } => {
                *ahead_micros = now.micros().saturating_sub(machine.now().micros());
            }
        }
        self.tick();
    }

    pub fn advance(&mut self, micros: i64) {
        self.set_clock(self.now().saturating_add_micros(micros));
    }

    /// Begins a plan of accidents, in place of the one there was.
    pub fn set_faults(&mut self, plan: FaultPlan) {
        self.faults.set_plan(plan);
    }

    pub fn faults(&self) -> &FaultPlan {
        self.faults.plan()
    }

    /// How many accidents of each kind have happened.
    pub fn faults_injected(&self) -> &BTreeMap<FaultKind, u64> {
        self.faults.injected()
    }

    pub fn set_summary_lag(&mut self, seconds: i64) {
        self.options.summary_lag_seconds = seconds;
    }

    pub fn set_account(&mut self, account: &str) {
        self.options.account = account.to_owned();
    }

    pub fn set_customer_check(&mut self, check: CustomerCheck) {
        self.options.customer_check = check;
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Forgets everything but options and clock.
    pub fn reset(&mut self) {
        let clock = std::mem::replace(&mut self.clock, SimClock::Standing(Timestamp::default()));
        *self = Self::with_clock(clock, self.options.clone());
    }

    /// What the provider really holds for a customer, an event name and a UTC hour.
    pub fn exact_total(&self, customer: &str, event_name: &str, hour_start: Timestamp) -> Quantity {
        summaries::exact_total(self, customer, event_name, hour_start)
    }

    /// The same for every customer, event name and UTC hour with events.
    pub fn exact_totals(&self) -> BTreeMap<(String, String, Timestamp), Quantity> {
        summaries::exact_totals(self)
    }

    /// Events that were taken and count.
    pub fn accepted_events(&self) -> usize {
        let counted = |event: &&ReceivedEvent| event.state == ReceivedState::Counted;
        self.meter_events.all().iter().filter(counted).count()
    }

    /// Every event that was taken, in the order of arrival.
    pub fn events_received(&self) -> &[ReceivedEvent] {
        self.meter_events.all()
    }

    /// Calls by method and path, ids left out.
    pub fn calls(&self) -> &BTreeMap<String, u64> {
        &self.calls
    }

    /// Every customer as it is shown, with its metadata; those that were deleted as well.
    pub fn customers(&self) -> Vec<Value> {
        self.customers.all().cloned().collect()
    }

    /// Every subscription as it is shown, with its metadata; those that have ended as well.
    pub fn subscriptions(&self) -> Vec<Value> {
        self.subscriptions.all().map(subscriptions::Subscription::to_json).collect()
    }

    pub fn repeats(&self) -> Repeats {
        self.repeats
    }

    /// Does what the clock has made due.
    pub fn tick(&mut self) {
        schedule::tick(self);
    }

    fn now_seconds(&self) -> i64 {
        self.now().micros().div_euclid(MICROS_PER_SECOND)
    }

    fn next_id(&mut self, prefix: &'static str) -> String {
        let number = self.ids.entry(prefix).or_insert(self.options.ids_after);
        *number += 1;
        format!("{prefix}_{number:014}")
    }

    /// Whether this accident is to happen now; if so it is counted.
    fn take_fault(&mut self, kind: FaultKind) -> bool {
        let hit = self.fault == Some(kind);
        if hit {
            self.fault = None;
            self.faults.count(kind);
        }
        hit
    }

    /// Accidents that keep a call from being looked at.
    fn fault_before(&mut self, request: &SimRequest) -> Option<SimResponse> {
        let response = match self.fault? {
            FaultKind::LostBefore => unanswered(Transport::Closed),
            FaultKind::HangBefore => unanswered(Transport::Silent),
            FaultKind::Error502 => page(502, "Bad Gateway"),
            FaultKind::Error503 => page(503, "Service Unavailable"),
            FaultKind::Error504 => page(504, "Gateway Timeout"),
            FaultKind::RateLimited429 => {
                let retry_after = self.faults.plan().retry_after_seconds.to_string();
                let limited = limits::rate_limited("global-rate");
                limited.with_header("retry-after", retry_after).response()
            }
            FaultKind::LockTimeout429 => limits::lock_timeout().response(),
            FaultKind::Conflict409 => {
                let key = request.header("idempotency-key").filter(|_| request.method == "POST")?;
                idempotency::in_use(key).response()
            }
            FaultKind::LostAfter
            | FaultKind::HangAfter
            | FaultKind::ResetMidBody
            | FaultKind::Error500Executed
            | FaultKind::Error500NotExecuted
            | FaultKind::Garbage200
            | FaultKind::SlowBytes
            | FaultKind::Delayed
            | FaultKind::AsyncRejection
            | FaultKind::SummaryLag
            | FaultKind::WebhookDuplicated
            | FaultKind::WebhookDelayed
            | FaultKind::WebhookLost => return None,
        };
        if let Some(kind) = self.fault.take() {
            self.faults.count(kind);
        }
        Some(response)
    }

    /// Accidents on the way back.
    fn fault_after(&mut self, response: &mut SimResponse) {
        if self.take_fault(FaultKind::LostAfter) {
            response.transport = Transport::Closed;
        } else if self.take_fault(FaultKind::HangAfter) {
            response.transport = Transport::Silent;
        } else if self.take_fault(FaultKind::ResetMidBody) {
            response.transport = Transport::Half;
        } else if self.take_fault(FaultKind::SlowBytes) {
            response.transport = Transport::Trickle;
        } else if self.take_fault(FaultKind::Delayed) {
            response.transport = Transport::Delayed;
        } else if self.take_fault(FaultKind::Garbage200) {
            *response = page(200, "It works!");
        }
    }

    /// Who may call, how often, and whether the call was made before.
    fn admit(
        &mut self,
        request: &SimRequest,
        subject: &Subject,
        ticket: &mut Ticket,
    ) -> Result<SimResponse, ApiError> {
        self.authenticate(request)?;
        let now = self.now();
        self.limits.take(now)?;
        let params = Params::of(request)?;
        let call = keyed_call(request, &params);
        if let Some(call) = &call {
            match self.idempotency.look_up(call, now) {
                Known::Nothing => {}
                Known::Replay(response) => {
                    self.repeats.replayed += u64::from(response.status == 200);
                    return Ok(response);
                }
                Known::Refused(error) => return Err(error),
            }
        }
        if routes::is_meter_event(request)
            && let (Some(customer), Some(event_name)) = (&subject.customer, &subject.event_name)
        {
            let pair = (customer.clone(), event_name.clone());
            self.limits.begin(&pair)?;
            ticket.pair = Some(pair);
        }
        if let Some(call) = &call {
            self.idempotency.begin(call);
            ticket.call = Some(call.clone());
        }
        let response = self.execute(request, &params)?;
        if let Some(call) = &call {
            self.idempotency.keep(call, &response, now);
        }
        Ok(response)
    }

    /// Executes a call. An error here is a refusal that was made before anything was executed.
    fn execute(&mut self, request: &SimRequest, params: &Params) -> Result<SimResponse, ApiError> {
        if self.take_fault(FaultKind::Error500NotExecuted) {
            return Ok(server_error().response());
        }
        let response = match routes::route(self, request, params) {
            Ok(body) => SimResponse::of(200, &body),
            Err(error) => match error.stage {
                Stage::BeforeExecution => return Err(error),
                Stage::Executing => error.response(),
            },
        };
        if self.take_fault(FaultKind::Error500Executed) {
            return Ok(server_error().response());
        }
        Ok(response)
    }

    fn authenticate(&self, request: &SimRequest) -> Result<(), ApiError> {
        if routes::is_stream(request) {
            return meter_events::check_session(self, request);
        }
        let Some(key) = request.api_key() else {
            return Err(unauthorized(
                "You did not provide an API key. You need to provide your API key in the \
                 Authorization header, using Bearer auth (e.g. 'Authorization: Bearer \
                 YOUR_SECRET_KEY').",
            ));
        };
        let known = match &self.options.api_key {
            Some(only) => key == *only,
            None => key.starts_with("sk_test_"),
        };
        if known { Ok(()) } else { Err(unauthorized("Invalid API Key provided.")) }
    }
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(401, "invalid_request_error", message)
}

fn server_error() -> ApiError {
    ApiError::new(500, "api_error", "An unknown error occurred.")
}

fn unanswered(transport: Transport) -> SimResponse {
    SimResponse { status: 0, headers: Vec::new(), body: Vec::new(), transport }
}

/// What something that is not the API says.
fn page(status: u16, title: &str) -> SimResponse {
    SimResponse {
        status,
        headers: vec![("content-type", "text/html".to_owned())],
        body: format!("<html><body><h1>{title}</h1></body></html>").into_bytes(),
        transport: Transport::Whole,
    }
}

/// The call under its Idempotency-Key, if it has one that counts.
fn keyed_call(request: &SimRequest, params: &Params) -> Option<KeyedCall> {
    let v2 = request.is_v2();
    let counts = request.method == "POST" || (v2 && request.method == "DELETE");
    let key = request.header("idempotency-key").filter(|key| counts && !key.is_empty())?;
    let asked = json!([request.method, request.path, params.spelling()]).to_string();
    Some(KeyedCall { v2, key: key.to_owned(), asked })
}
