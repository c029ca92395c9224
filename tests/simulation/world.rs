//! One seed: a life of some weeks, decided by dice.
//!
//! Events are sent, some twice and some late; windows are cut, pushed and confirmed; the provider
//! fails in every way it can, stops for hours and archives a meter; workers die at named points and
//! by plain kill -9. Each seed adds one kind of accident (`stories`). In between and at the end the
//! faults cease, and then every push must be resolved and every hour of every customer must hold at
//! the provider exactly what was sent and what the ledger counted (`checks`).

use crate::checks::{HourKey, Hours};
use crate::crew::Crew;
use crate::dice::Dice;
use crate::orders::Order;
use crate::place::Place;
use crate::stories::credits::Wallets;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use stripe_sim::{FaultKind, FaultPlan, Handle, Options, SimRequest, Simulator};
use tokio::runtime::Runtime;

pub const MINUTE: i64 = 60_000_000;
pub const HOUR: i64 = 60 * MINUTE;
pub const DAY: i64 = 24 * HOUR;
/// 2026-01-01T00:00:00Z
const EPOCH: i64 = 1_767_225_600_000_000;

pub const TENANTS: [&str; 3] = ["acme", "globex", "late-mapped"];
/// One meter for each mode, and one billed by event.
pub const METERS: [(&str, &str); 3] = [
    ("adding", r#"{"mode":"delta"}"#),
    ("standing", r#"{"mode":"absolute"}"#),
    ("single", r#"{"mode":"delta","granularity":"event"}"#),
];
/// Few different amounts, so that equal pushes meet in one window.
pub const AMOUNTS: [&str; 6] = ["1", "1", "2", "0.1", "0.25", "1000000.000001"];

/// Chances of a fault for each call while the provider is unwell, in thousandths.
pub const CHANCES: [(FaultKind, u64); 15] = [
    (FaultKind::LostBefore, 60),
    (FaultKind::LostAfter, 120),
    (FaultKind::HangBefore, 2),
    (FaultKind::HangAfter, 3),
    (FaultKind::ResetMidBody, 30),
    (FaultKind::Error500Executed, 60),
    (FaultKind::Error500NotExecuted, 30),
    (FaultKind::Error502, 20),
    (FaultKind::Error503, 20),
    (FaultKind::Error504, 20),
    (FaultKind::Garbage200, 20),
    (FaultKind::SlowBytes, 2),
    (FaultKind::RateLimited429, 30),
    (FaultKind::LockTimeout429, 20),
    (FaultKind::Conflict409, 20),
];

/// What a run has done, for the record.
#[derive(Debug, Default, Clone)]
pub struct Counters {
    pub events: u64,
    pub crashes: BTreeMap<String, u64>,
    pub faults: BTreeMap<&'static str, u64>,
    pub accepted: u64,
    pub windows: u64,
    /// Events that the provider lost after it had counted them.
    pub lost: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.accepted += other.accepted;
        self.windows += other.windows;
        self.lost += other.lost;
        for (name, count) in &other.crashes {
            *self.crashes.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }
}

pub struct World<'a> {
    pub seed: u64,
    pub bug: Option<&'a str>,
    pub place: &'a Place,
    pub runtime: &'a Runtime,
    pub dice: Dice,
    /// The true time, which is the provider's.
    pub now: i64,
    pub simulator: Arc<Mutex<Simulator>>,
    pub handle: Handle,
    pub crew: Crew,
    pub sent: Vec<String>,
    /// Sent, and not taken yet; the producer sends them again.
    untaken: Vec<String>,
    /// The sum of what was sent and is billed.
    pub expected: Hours,
    /// Hours that nobody can be billed for any more.
    pub written_off: BTreeSet<HourKey>,
    pub tenants: Vec<&'static str>,
    pub oldest: i64,
    /// How late events may be, in minutes.
    pub late_max: u64,
    /// The provider's customers, with their tenants.
    pub customers: BTreeMap<String, &'static str>,
    /// How late totals show what was received, in seconds.
    pub lag: i64,
    /// Whether a person retries dead pushes at once.
    pub retries: bool,
    pub wallets: Wallets,
    /// Whether the store was put back from a copy.
    pub restored: bool,
    pub counters: Counters,
}

impl<'a> World<'a> {
    pub fn new(seed: u64, bug: Option<&'a str>, place: &'a Place, runtime: &'a Runtime) -> Self {
        let mut dice = Dice::new(seed);
        let now = EPOCH + i64::try_from(dice.below(1_440)).unwrap() * MINUTE;
        let simulator = Simulator::new(stripe_sim::Timestamp::from_micros(now), Options::default());
        let simulator = Arc::new(Mutex::new(simulator));
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = runtime.block_on(Handle::start(listen, Arc::clone(&simulator))).unwrap();
        Self {
            seed,
            bug,
            place,
            runtime,
            dice,
            now,
            simulator,
            handle,
            crew: Crew::default(),
            sent: Vec::new(),
            untaken: Vec::new(),
            expected: Hours::new(),
            written_off: BTreeSet::new(),
            tenants: TENANTS.to_vec(),
            oldest: now,
            late_max: 9_900,
            customers: BTreeMap::new(),
            lag: 0,
            retries: true,
            wallets: Wallets::default(),
            restored: false,
            counters: Counters::default(),
        }
    }

    /// The provider's faults, dropped and lost usage, and more than 35 days.
    pub fn live_plainly(&mut self) -> Result<(), String> {
        self.chaos(14)?;
        self.map_late_tenant();
        self.calm("after the faults")?;
        self.drop_some();
        self.calm("after dropped events")?;
        self.lose_some();
        self.calm("after lost usage")?;
        self.advance(36 * DAY);
        self.chaos(5)?;
        self.calm("after 35 days")
    }

    pub fn set_up(&mut self) {
        for tenant in TENANTS {
            let customer = (tenant != "late-mapped").then(|| self.make_customer(tenant));
            self.order(&Order::Tenant { id: tenant.into(), customer });
        }
        for (slug, billing) in METERS {
            let mut fields = vec![
                ("display_name", slug),
                ("event_name", slug),
                ("default_aggregation[formula]", "sum"),
            ];
            if slug == "standing" {
                fields.push(("event_time_window", "hour"));
            }
            let request = SimRequest::form("/v1/billing/meters", &fields);
            let made = self.simulator.lock().unwrap().handle(&request);
            assert_eq!(made.status, 200, "{}", made.json());
            let from = Timestamp::from_micros(EPOCH - 30 * DAY);
            let billing = billing.replacen('{', &format!(r#"{{"from":"{from}","#), 1);
            let spec = format!(
                r#"{{"aggregation":"sum","settle_after":"30m","late_until":"2h","cut_every":"1s","billing":{billing}}}"#
            );
            self.order(&Order::Meter { slug: slug.into(), spec });
        }
        self.stop_worker();
        self.place.prepare(self.seed, self.bug, self.runtime);
        self.crew.deadly = true;
    }

    /// A customer of the provider for a tenant, who is not mapped to it yet.
    pub fn make_customer(&mut self, tenant: &'static str) -> String {
        let request = SimRequest::form("/v1/customers", &[("name", tenant)]);
        let mut simulator = self.simulator.lock().unwrap();
        let plan = simulator.faults().clone();
        simulator.set_faults(FaultPlan::default());
        let customer = simulator.handle(&request).json()["id"].as_str().unwrap().to_owned();
        simulator.set_faults(plan);
        self.customers.insert(customer.clone(), tenant);
        customer
    }

    pub fn map(&mut self, tenant: &'static str) {
        let customer = Some(self.make_customer(tenant));
        self.order(&Order::Tenant { id: tenant.into(), customer });
    }

    pub fn tenant_of(&self, customer: &str) -> String {
        self.customers.get(customer).map_or_else(|| customer.to_owned(), |it| (*it).to_owned())
    }

    /// A while in which everything goes wrong.
    pub fn chaos(&mut self, rounds: u64) -> Result<(), String> {
        for _ in 0..rounds {
            let minutes = *self.dice.pick(&[7, 7, 40, 40, 90, 150, 330, 700, 1_400, 1_500, 1_700]);
            self.advance(minutes * MINUTE);
            self.round()?;
        }
        Ok(())
    }

    /// One round of events and jobs, with faults.
    pub fn round(&mut self) -> Result<(), String> {
        let quiet = self.dice.percent(20);
        self.set_faults(if quiet { &[] } else { &CHANCES });
        let outage = self.dice.percent(8);
        if outage {
            self.runtime.block_on(self.handle.stop()).unwrap();
        }
        let archived = self.dice.percent(8).then(|| *self.dice.pick(&METERS));
        if let Some((slug, _)) = archived {
            self.switch_meter(slug, "deactivate");
        }
        self.send_again();
        self.send_some();
        self.work();
        if outage {
            self.runtime.block_on(self.handle.restart()).unwrap();
        }
        if let Some((slug, _)) = archived {
            self.switch_meter(slug, "reactivate");
        }
        if self.dice.percent(15) {
            self.kill("kill -9");
        }
        self.audit()
    }

    /// The jobs, once or twice each.
    pub fn work(&mut self) {
        for _ in 0..2 {
            self.order(&Order::Cut);
            self.order(&Order::Push);
            if self.dice.percent(40) {
                self.advance(2 * MINUTE);
                self.order(&Order::Push);
            }
            if self.dice.percent(50) {
                self.order(&Order::Confirm);
            }
        }
        if self.dice.percent(30) {
            self.report_some();
        }
        if self.retries && self.dice.percent(30) {
            self.order(&Order::Retry);
        }
        if self.dice.percent(40) {
            self.order(&Order::Reconcile);
        }
    }

    /// Usage that the provider takes and drops afterwards.
    pub fn drop_some(&mut self) {
        for _ in 0..3 {
            self.advance(90 * MINUTE);
            self.set_faults(&[(FaultKind::AsyncRejection, 250)]);
            self.send_some();
            self.order(&Order::Cut);
            self.order(&Order::Push);
        }
    }

    /// The provider loses some of what it has counted in the last hours.
    pub fn lose_some(&mut self) {
        for _ in 0..3 {
            self.advance(50 * MINUTE);
            self.send_some();
        }
        self.advance(120 * MINUTE);
        for order in [Order::Cut, Order::Push] {
            self.order(&order);
        }
        self.advance(20 * MINUTE);
        self.order(&Order::Confirm);
        let mut simulator = self.simulator.lock().unwrap();
        let lately = self.now - 8 * HOUR;
        let counted: Vec<String> = simulator
            .events_received()
            .iter()
            .filter(|event| event.timestamp * 1_000_000 > lately)
            .map(|event| event.identifier.clone())
            .collect();
        for identifier in counted {
            if self.dice.percent(40) {
                self.counters.lost += u64::from(simulator.lose_usage(&identifier));
            }
        }
    }

    pub fn send_some(&mut self) {
        let mut events = Vec::new();
        for _ in 0..self.dice.below(7) {
            let again = !self.sent.is_empty() && self.dice.percent(15);
            if again {
                events.push(self.dice.pick(&self.sent).clone());
                continue;
            }
            let late = match self.dice.below(20) {
                0 => self.dice.below(self.late_max),
                1..=4 => self.dice.below(1_800),
                _ => self.dice.below(50),
            };
            let occurred_at = self.now - i64::try_from(late).unwrap() * MINUTE;
            let tenant = *self.dice.pick(&TENANTS);
            let (meter, _) = *self.dice.pick(&METERS);
            let quantity = *self.dice.pick(&AMOUNTS);
            let trial = self.dice.percent(10);
            events.push(self.make_event((tenant, meter), quantity, occurred_at, trial));
        }
        self.send(events);
    }

    /// An event, which is expected to be billed from now on unless it is marked as a trial.
    pub fn make_event(
        &mut self,
        (tenant, meter): (&str, &str),
        quantity: &str,
        occurred_at: i64,
        trial: bool,
    ) -> String {
        let event = self.write_event((tenant, meter), quantity, occurred_at, trial);
        if !trial {
            self.cover(tenant, occurred_at, Quantity::parse_stored(quantity).unwrap());
            let hour = occurred_at.div_euclid(HOUR) * HOUR;
            let key = (tenant.to_owned(), meter.to_owned(), hour);
            let total = self.expected.entry(key).or_insert(Quantity::ZERO);
            *total = total.checked_add(Quantity::parse_stored(quantity).unwrap()).unwrap();
        }
        event
    }

    /// An event that is not to be billed, though nothing in it says so.
    pub fn make_unbilled_event(
        &mut self,
        whose: (&str, &str),
        quantity: &str,
        occurred_at: i64,
    ) -> String {
        self.write_event(whose, quantity, occurred_at, false)
    }

    fn write_event(
        &mut self,
        (tenant, meter): (&str, &str),
        quantity: &str,
        occurred_at: i64,
        trial: bool,
    ) -> String {
        let at = Timestamp::from_micros(occurred_at);
        self.oldest = self.oldest.min(occurred_at);
        let id = self.sent.len();
        let event = format!(
            r#"{{"tenant":"{tenant}","id":"e{id}","meter":"{meter}","quantity":"{quantity}","occurred_at":"{at}","trial":{trial}}}"#
        );
        self.sent.push(event.clone());
        event
    }

    /// Sends events; those that are not taken are sent again later.
    pub fn send(&mut self, events: Vec<String>) {
        if events.is_empty() {
            return;
        }
        self.counters.events += u64::try_from(events.len()).unwrap();
        let answer = self.order(&Order::Send { events: events.clone() });
        let refused: Vec<usize> = serde_json::from_str(&answer).unwrap();
        self.untaken.extend(refused.into_iter().map(|place| events[place].clone()));
    }

    pub fn send_again(&mut self) {
        let events = std::mem::take(&mut self.untaken);
        self.send(events);
    }

    fn map_late_tenant(&mut self) {
        self.map("late-mapped");
    }

    fn switch_meter(&mut self, event_name: &str, verb: &str) {
        let mut simulator = self.simulator.lock().unwrap();
        let plan = simulator.faults().clone();
        simulator.set_faults(FaultPlan::default());
        let listed = simulator.handle(&SimRequest::get("/v1/billing/meters?limit=100")).json();
        let meters = listed["data"].as_array().unwrap();
        let meter = meters.iter().find(|meter| meter["event_name"] == event_name).unwrap();
        let path = format!("/v1/billing/meters/{}/{verb}", meter["id"].as_str().unwrap());
        assert_eq!(simulator.handle(&SimRequest::form(&path, &[])).status, 200);
        simulator.set_faults(plan);
    }

    pub fn set_faults(&mut self, chances: &[(FaultKind, u64)]) {
        let plan = FaultPlan {
            seed: self.dice.next(),
            per_mille: chances.iter().copied().collect(),
            ..FaultPlan::default()
        };
        let mut simulator = self.simulator.lock().unwrap();
        simulator.set_faults(plan);
        let lag = if chances.is_empty() { self.lag } else { self.lag.max(600) };
        simulator.set_summary_lag(lag);
    }

    pub fn advance(&mut self, micros: i64) {
        self.now += micros;
        self.simulator.lock().unwrap().set_clock(stripe_sim::Timestamp::from_micros(self.now));
    }

    /// What was done, once it is over.
    pub fn count(&mut self) -> Counters {
        let simulator = self.simulator.lock().unwrap();
        self.counters.accepted = u64::try_from(simulator.accepted_events()).unwrap();
        for (kind, count) in simulator.faults_injected() {
            self.counters.faults.insert(kind.name(), *count);
        }
        self.counters.clone()
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        self.kill("the end");
        self.counters.crashes.remove("the end");
        let mut simulator = self.simulator.lock().unwrap_or_else(|e| e.into_inner());
        simulator.tick();
    }
}
