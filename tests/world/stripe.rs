//! A Stripe simulator behind a port, on the clock of a test, and what tests ask of it directly.

use counterfoil::clock::Clock;
use counterfoil::rules::timestamp::Timestamp;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard};
use stripe_sim::{
    Decimal, FaultKind, FaultPlan, FaultRule, ForeignUsage, Handle, Options, SimRequest, Simulator,
};

pub const EVENTS: &str = "/v1/billing/meter_events";
pub const SUMMARIES: &str = "event_summaries";

pub struct SimulatedStripe {
    pub handle: Handle,
    simulator: Arc<Mutex<Simulator>>,
}

impl SimulatedStripe {
    /// Starts a simulator that has the time of the server under test.
    pub async fn start(clock: &Clock, options: Options) -> Self {
        let clock = clock.clone();
        let simulator = Simulator::following(move || stripe_time(clock.now()), options);
        let simulator = Arc::new(Mutex::new(simulator));
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = Handle::start(listen, Arc::clone(&simulator)).await.unwrap();
        Self { handle, simulator }
    }

    pub fn lock(&self) -> MutexGuard<'_, Simulator> {
        self.simulator.lock().unwrap()
    }

    /// Posts a form as another program would.
    pub fn ask(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        self.answer(&SimRequest::form(path, fields))
    }

    /// Posts a form that creates an object; returns the object's id.
    pub fn create(&self, path: &str, fields: &[(&str, &str)]) -> String {
        id_of(&self.ask(path, fields))
    }

    pub fn get(&self, target: &str) -> Value {
        self.answer(&SimRequest::get(target))
    }

    pub fn answer(&self, request: &SimRequest) -> Value {
        let response = self.lock().handle(request);
        assert_eq!(response.status, 200, "{}: {}", request.path, response.json());
        response.json()
    }

    /// Replaces the faults under way.
    pub fn faults(&self, rules: Vec<FaultRule>) {
        self.lock().set_faults(FaultPlan::of_rules(rules));
    }

    /// So many meter events meet this fault from now on.
    pub fn fault(&self, kind: FaultKind, times: u64) {
        self.faults(vec![FaultRule::new(kind).on_path(EVENTS).times(times)]);
    }

    /// How many calls had this text in their method and path.
    pub fn calls(&self, part: &str) -> u64 {
        let calls = self.lock().calls().clone();
        calls.iter().filter(|(name, _)| name.contains(part)).map(|(_, count)| count).sum()
    }

    pub fn customer(&self) -> String {
        self.create("/v1/customers", &[])
    }

    pub fn meter(&self, event_name: &str, more: &[(&str, &str)]) -> String {
        let common = [
            ("display_name", event_name),
            ("event_name", event_name),
            ("default_aggregation[formula]", "sum"),
        ];
        self.create("/v1/billing/meters", &[&common, more].concat())
    }

    /// The id of the meter with this event name.
    pub fn find_meter(&self, event_name: &str) -> Option<String> {
        let listed = self.get("/v1/billing/meters?limit=100");
        let meters = listed["data"].as_array().unwrap();
        meters.iter().find(|meter| meter["event_name"] == event_name).map(id_of)
    }

    /// A price of so many cents a unit of a meter.
    pub fn price(&self, event_name: &str, cents: &str, interval: &str) -> String {
        self.price_of(event_name, interval, &[("unit_amount_decimal", cents)])
    }

    /// A metered price at this rate.
    pub fn price_of(&self, event_name: &str, interval: &str, rate: &[(&str, &str)]) -> String {
        let meter = self.find_meter(event_name).unwrap();
        let common = [
            ("currency", "usd"),
            ("recurring[interval]", interval),
            ("recurring[usage_type]", "metered"),
            ("recurring[meter]", &meter),
            ("product_data[name]", "Calls"),
        ];
        self.create("/v1/prices", &[&common, rate].concat())
    }

    /// A price of five dollars a month, paid in advance.
    pub fn flat_price(&self) -> String {
        let fields = [
            ("currency", "usd"),
            ("unit_amount", "500"),
            ("recurring[interval]", "month"),
            ("recurring[usage_type]", "licensed"),
            ("product_data[name]", "Plan"),
        ];
        self.create("/v1/prices", &fields)
    }

    pub fn subscribe(&self, customer: &str, price: &str) -> String {
        let fields = [("customer", customer), ("items[0][price]", price)];
        self.create("/v1/subscriptions", &fields)
    }

    /// Every invoice, oldest first.
    pub fn invoices(&self) -> Vec<Value> {
        let mut all = self.get("/v1/invoices?limit=100")["data"].as_array().unwrap().clone();
        all.reverse();
        all
    }

    /// What Stripe recorded of an hour of the meter `calls`.
    pub fn total(&self, customer: &str, hour: &str) -> String {
        let hour = stripe_time(Timestamp::parse(hour).unwrap());
        self.lock().exact_total(customer, "calls", hour).to_string()
    }

    /// What Stripe recorded of a customer.
    pub fn sum(&self, customer: &str) -> String {
        let totals = self.lock().exact_totals();
        let own = totals.into_iter().filter(|((whose, _, _), _)| whose == customer);
        own.map(|(_, total)| total).sum::<Decimal>().to_string()
    }

    /// Usage that another program reports; returns its identifier.
    pub fn foreign(&self, customer: &str, meter: &str, value: &str, timestamp: &str) -> String {
        self.lock().record_usage(ForeignUsage {
            customer: customer.to_owned(),
            event_name: meter.to_owned(),
            value: value.parse().unwrap(),
            timestamp: stripe_time(Timestamp::parse(timestamp).unwrap()),
            identifier: None,
        })
    }

    /// Removes usage that had been counted.
    pub fn lose(&self, identifier: &str) {
        assert!(self.lock().lose_usage(identifier), "{identifier}");
    }
}

/// An instant in the simulator's type.
fn stripe_time(time: Timestamp) -> stripe_sim::Timestamp {
    stripe_sim::Timestamp::from_micros(time.micros())
}

pub fn id_of(object: &Value) -> String {
    object["id"].as_str().unwrap_or_else(|| panic!("no id: {object}")).to_owned()
}
