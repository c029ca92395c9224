//! The simulator's state, and the path that every call takes through it.
//!
//! Invariant: ids come from counters and faults from the plan, so the same calls give the same
//! answers. There is no input or output here, and time passes only when the clock says so. A crash
//! leaves nothing.

use crate::clock::Clock;
use crate::decimal::Decimal;
use crate::faults::{FaultKind, FaultPlan, Faults, Subject};
use crate::idempotency::{self, Idempotency, KeyedCall, Known};
use crate::limits::{self, Limits};
use crate::meter_events::{self, CustomerCheck, ReceivedEvent, ReceivedState};
use crate::options::Options;
use crate::params::Params;
use crate::request::{API_VERSION, ApiError, SimRequest, SimResponse, Stage, Transport};
use crate::timestamp::Timestamp;
use crate::{
    credit_grants, credit_notes, customers, events, inspect, invoices, meters, payments, prices,
    routes, schedule, subscriptions, summaries, webhooks,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Numbers of calls that repeated an earlier call and had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repeats {
    /// Calls with a known Idempotency-Key, which got the first response again.
    pub replayed: u64,
    /// Meter events with a known identifier, which were refused.
    pub refused: u64,
}

/// A call in progress, from [`Simulator::begin`] to [`Simulator::end`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ticket {
    call: Option<KeyedCall>,
    /// Customer and event name.
    pair: Option<(String, String)>,
}

/// A Stripe account in memory, with its API.
///
/// It answers requests one at a time and does no input or output itself. [`Handle`](crate::Handle)
/// puts it behind a port.
///
/// ```
/// use stripe_sim::{Options, SimRequest, Simulator, Timestamp};
///
/// let mut simulator = Simulator::new(Timestamp::from_seconds(1_794_744_000), Options::default());
/// let response = simulator.handle(&SimRequest::form("/v1/customers", &[("name", "Ada")]));
/// assert_eq!(response.status, 200);
/// assert_eq!(response.json()["name"], "Ada");
/// ```
#[derive(Debug)]
pub struct Simulator {
    pub(crate) options: Options,
    clock: Clock,
    ids: BTreeMap<&'static str, u64>,
    calls: BTreeMap<String, u64>,
    pub(crate) repeats: Repeats,
    /// The fault of the call that is being answered, until it has happened.
    fault: Option<FaultKind>,
    pub(crate) faults: Faults,
    idempotency: Idempotency,
    limits: Limits,
    pub(crate) customers: customers::Customers,
    pub(crate) meters: meters::Meters,
    pub(crate) meter_events: meter_events::MeterEvents,
    pub(crate) events: events::EventLog,
    pub(crate) webhooks: webhooks::Webhooks,
    pub(crate) prices: prices::Prices,
    pub(crate) subscriptions: subscriptions::Subscriptions,
    pub(crate) payments: payments::Payments,
    pub(crate) schedule: schedule::Schedule,
    pub(crate) invoices: invoices::Invoices,
    pub(crate) credit_grants: credit_grants::CreditGrants,
    pub(crate) credit_notes: credit_notes::CreditNotes,
}

impl Simulator {
    /// A simulator whose clock stays at `now` until [`set_clock`](Self::set_clock) or
    /// [`advance`](Self::advance) moves it.
    pub fn new(now: Timestamp, options: Options) -> Self {
        Self::with_clock(Clock::Stopped(now), options)
    }

    /// A simulator whose clock follows another clock: [`Timestamp::now`] for the machine's, or a
    /// clock of the program under test. `clock` is called while the simulator is locked.
    pub fn following(
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
        options: Options,
    ) -> Self {
        Self::with_clock(Clock::Following { source: Box::new(clock), ahead_micros: 0 }, options)
    }

    fn with_clock(clock: Clock, options: Options) -> Self {
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

    /// Answers a request.
    pub fn handle(&mut self, request: &SimRequest) -> SimResponse {
        let (response, ticket) = self.begin(request);
        self.end(&ticket);
        response
    }

    /// Answers a request whose call stays in progress until [`end`](Self::end). Meanwhile another
    /// call with its Idempotency-Key is refused with 409, and another meter event of its customer
    /// and meter with 429.
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

    /// Ends a call that [`begin`](Self::begin) began.
    pub fn end(&mut self, ticket: &Ticket) {
        if let Some(call) = &ticket.call {
            self.idempotency.end(call);
        }
        if let Some(pair) = &ticket.pair {
            self.limits.end(pair);
        }
    }

    /// The time of the simulator's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Sets the clock, forwards or back, and does what is due by then.
    pub fn set_clock(&mut self, now: Timestamp) {
        self.clock.set(now);
        self.tick();
    }

    /// Moves the clock forwards, and does what is due by then.
    pub fn advance(&mut self, duration: Duration) {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        self.set_clock(self.now().saturating_add_micros(micros));
    }

    /// Replaces the plan of faults. Rules and seed of the new plan start from their beginning.
    pub fn set_faults(&mut self, plan: FaultPlan) {
        self.faults.set_plan(plan);
    }

    /// The plan of faults.
    pub fn faults(&self) -> &FaultPlan {
        self.faults.plan()
    }

    /// How many faults of each kind have happened.
    pub fn faults_injected(&self) -> &BTreeMap<FaultKind, u64> {
        self.faults.injected()
    }

    /// Sets [`Options::summary_lag_seconds`].
    pub fn set_summary_lag(&mut self, seconds: i64) {
        self.options.summary_lag_seconds = seconds;
    }

    /// Sets [`Options::account`].
    pub fn set_account(&mut self, account: &str) {
        self.options.account = account.to_owned();
    }

    /// Sets [`Options::customer_check`].
    pub fn set_customer_check(&mut self, check: CustomerCheck) {
        self.options.customer_check = check;
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Removes all objects, events, keys, counters and faults. Settings and clock stay.
    pub fn reset(&mut self) {
        let clock = std::mem::replace(&mut self.clock, Clock::Stopped(Timestamp::default()));
        *self = Self::with_clock(clock, self.options.clone());
    }

    /// The exact total of a customer, an event name and a UTC hour, without aggregation lag.
    pub fn exact_total(&self, customer: &str, event_name: &str, hour_start: Timestamp) -> Decimal {
        summaries::exact_total(self, customer, event_name, hour_start)
    }

    /// The exact totals of all customers, event names and UTC hours that have events.
    pub fn exact_totals(&self) -> BTreeMap<(String, String, Timestamp), Decimal> {
        summaries::exact_totals(self)
    }

    /// The number of meter events that count.
    pub fn accepted_events(&self) -> usize {
        let counted = |event: &&ReceivedEvent| event.state == ReceivedState::Counted;
        self.meter_events.all().iter().filter(counted).count()
    }

    /// All meter events that were answered with success, in the order of arrival.
    pub fn events_received(&self) -> &[ReceivedEvent] {
        self.meter_events.all()
    }

    /// The number of calls by method and path, such as `GET /v1/customers/:id`.
    pub fn calls(&self) -> &BTreeMap<String, u64> {
        &self.calls
    }

    /// All customers as the API returns them, deleted ones included.
    pub fn customers(&self) -> Vec<Value> {
        self.customers.all().cloned().collect()
    }

    /// All subscriptions as the API returns them, ended ones included.
    pub fn subscriptions(&self) -> Vec<Value> {
        self.subscriptions.all().map(subscriptions::Subscription::to_json).collect()
    }

    /// How many calls repeated an earlier one.
    pub fn repeats(&self) -> Repeats {
        self.repeats
    }

    /// Does what is due by the clock: ends of periods, invoices, payments. A simulator behind a
    /// port does this by itself.
    pub fn tick(&mut self) {
        schedule::tick(self);
    }

    pub(crate) fn now_seconds(&self) -> i64 {
        self.now().seconds()
    }

    pub(crate) fn next_id(&mut self, prefix: &'static str) -> String {
        let number = self.ids.entry(prefix).or_insert(self.options.ids_after);
        *number += 1;
        format!("{prefix}_{number:014}")
    }

    /// Whether this fault is to happen now; if so it is counted.
    pub(crate) fn take_fault(&mut self, kind: FaultKind) -> bool {
        let hit = self.fault == Some(kind);
        if hit {
            self.fault = None;
            self.faults.count(kind);
        }
        hit
    }

    /// Faults that happen before a call is read.
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

    /// Faults on the way back.
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

    /// Checks key, limits and Idempotency-Key, then executes.
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

    /// Executes a call. An error is a refusal from before anything was executed.
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
            return Err(ApiError::unauthorized(
                "You did not provide an API key. You need to provide your API key in the \
                 Authorization header, using Bearer auth (e.g. 'Authorization: Bearer \
                 YOUR_SECRET_KEY').",
            ));
        };
        let known = match &self.options.api_key {
            Some(only) => key == *only,
            None => key.starts_with("sk_test_"),
        };
        if known { Ok(()) } else { Err(ApiError::unauthorized("Invalid API Key provided.")) }
    }
}

fn server_error() -> ApiError {
    ApiError::new(500, "api_error", "An unknown error occurred.")
}

fn unanswered(transport: Transport) -> SimResponse {
    SimResponse { status: 0, headers: Vec::new(), body: Vec::new(), transport }
}

/// What a proxy in front of the API answers.
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

/// The value of a Date header; none for a year that it cannot spell.
fn date_of(now: Timestamp) -> Option<String> {
    let at = jiff::Timestamp::from_microsecond(now.micros()).ok()?;
    jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
}
