//! One seed: a life of some weeks, told by dice.
//!
//! Events are sent, some twice and some late; windows are cut, pushed and looked for; the provider
//! fails in every way it can, stops for hours and archives a meter; the worker dies at named points
//! and by plain kill -9; the clock jumps past a day, and past 35; the provider loses what it had
//! counted, and passes find it. In between and at the end the faults cease, and then every push
//! must be resolved and every hour of every customer must hold at the provider exactly what the
//! ledger counted.

use crate::dice::Dice;
use crate::place::Place;
use crate::worker::{Audited, Open, Order, Totals};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::simulator::{FaultKind, FaultPlan, Handle, Options, SimRequest, Simulator};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

const MINUTE: i64 = 60_000_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// 2026-01-01T00:00:00Z
const EPOCH: i64 = 1_767_225_600_000_000;

const TENANTS: [&str; 3] = ["acme", "globex", "late-mapped"];
/// One meter for each mode, and one billed by event.
const METERS: [(&str, &str); 3] = [
    ("adding", r#"{"mode":"delta"}"#),
    ("standing", r#"{"mode":"absolute"}"#),
    ("single", r#"{"mode":"delta","granularity":"event"}"#),
];
/// Few different amounts, so that equal pushes meet in one window.
const AMOUNTS: [&str; 6] = ["1", "1", "2", "0.1", "0.25", "1000000.000001"];

/// Where the worker is made to die.
const CRASH_POINTS: [&str; 11] = [
    "cut.before",
    "cut.after",
    "cut.before_mark",
    "push.claimed",
    "push.before_send",
    "push.after_send",
    "push.before_settle",
    "push.summary_read",
    "confirm.before_settle",
    "reconcile.before_rows",
    "reconcile.before_close",
];

/// What befalls a call while the provider is unwell, in thousandths.
const CHANCES: [(FaultKind, u64); 15] = [
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
    seed: u64,
    bug: Option<&'a str>,
    place: &'a Place,
    runtime: &'a Runtime,
    dice: Dice,
    now: i64,
    simulator: Arc<Mutex<Simulator>>,
    handle: Handle,
    worker: Option<Worker>,
    /// Whether workers are made to die.
    deadly: bool,
    sent: Vec<String>,
    oldest: i64,
    pub counters: Counters,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    planned: Option<&'static str>,
}

impl<'a> World<'a> {
    pub fn new(seed: u64, bug: Option<&'a str>, place: &'a Place, runtime: &'a Runtime) -> Self {
        let mut dice = Dice::new(seed);
        let now = EPOCH + i64::try_from(dice.below(1_440)).unwrap() * MINUTE;
        let simulator = Simulator::new(Timestamp::from_micros(now), Options::default());
        let simulator = Arc::new(Mutex::new(simulator));
        let listen = "127.0.0.1:0".parse().unwrap();
        let handle = runtime.block_on(Handle::start(listen, Arc::clone(&simulator))).unwrap();
        let (sent, counters) = (Vec::new(), Counters::default());
        let (worker, deadly, oldest) = (None, false, now);
        Self {
            seed,
            bug,
            place,
            runtime,
            dice,
            now,
            simulator,
            handle,
            worker,
            deadly,
            sent,
            oldest,
            counters,
        }
    }

    /// Lives the whole life; an error says what was violated.
    pub fn live(&mut self) -> Result<(), String> {
        self.set_up();
        self.deadly = true;
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

    fn set_up(&mut self) {
        for tenant in TENANTS {
            let request = SimRequest::form("/v1/customers", &[("name", tenant)]);
            let made = self.simulator.lock().unwrap().handle(&request).json();
            let customer = made["id"].as_str().unwrap().to_owned();
            let customer = (tenant != "late-mapped").then_some(customer);
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
        self.order(&Order::Exit);
        if let Some(mut worker) = self.worker.take() {
            worker.child.wait().unwrap();
        }
        self.place.prepare(self.seed, self.bug, self.runtime);
    }

    /// A while in which everything goes wrong.
    fn chaos(&mut self, rounds: u64) -> Result<(), String> {
        for _ in 0..rounds {
            let minutes = *self.dice.pick(&[7, 7, 40, 40, 90, 150, 330, 700, 1_400, 1_500, 1_700]);
            self.advance(minutes * MINUTE);
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
            self.send_some();
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
                self.order(&Order::Retry);
            }
            if self.dice.percent(40) {
                self.order(&Order::Reconcile);
            }
            if outage {
                self.runtime.block_on(self.handle.restart()).unwrap();
            }
            if let Some((slug, _)) = archived {
                self.switch_meter(slug, "reactivate");
            }
            if self.dice.percent(15) {
                self.kill("kill -9");
            }
            self.audit()?;
        }
        Ok(())
    }

    /// What must hold at every moment: of a window at most one push is unresolved, a key is of one
    /// push, and what is said to be at the provider came there under its key and with its value.
    fn audit(&mut self) -> Result<(), String> {
        let audited: Vec<Audited> = serde_json::from_str(&self.order(&Order::Audit)).unwrap();
        let simulator = self.simulator.lock().unwrap();
        let received: BTreeMap<&str, String> = simulator
            .events_received()
            .iter()
            .map(|event| (event.identifier.as_str(), event.value.to_string()))
            .collect();
        let (mut unresolved, mut keys) = (BTreeMap::new(), BTreeMap::new());
        for push in &audited {
            if push.unresolved
                && let Some(other) = unresolved.insert(&push.window, push.number)
            {
                return Err(format!("pushes {other} and {} are both unresolved", push.number));
            }
            if let Some(other) = keys.insert(&push.key, push.number) {
                return Err(format!("pushes {other} and {} have one key", push.number));
            }
            let there = received.get(push.key.as_str());
            if push.settled && there != Some(&push.value) {
                return Err(format!(
                    "push {} of {} is said to be at the provider, which has {there:?}",
                    push.number, push.value
                ));
            }
        }
        Ok(())
    }

    /// Usage that the provider takes and drops afterwards.
    fn drop_some(&mut self) {
        for _ in 0..3 {
            self.advance(90 * MINUTE);
            self.set_faults(&[(FaultKind::AsyncRejection, 250)]);
            self.send_some();
            self.order(&Order::Cut);
            self.order(&Order::Push);
        }
    }

    /// The provider loses some of what it has counted of the last hours.
    fn lose_some(&mut self) {
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

    /// A while without faults, long enough for everything to be resolved; then both sides must
    /// agree.
    fn calm(&mut self, when: &str) -> Result<(), String> {
        self.set_faults(&[]);
        self.deadly = false;
        self.kill("kill -9");
        let minutes = [31, 100, 65, 20, 70, 240, 1_300, 20, 300, 20];
        let mut open = Open::default();
        for round in 0..36 {
            self.advance(minutes[round % minutes.len()] * MINUTE);
            for order in [Order::Cut, Order::Push, Order::Confirm, Order::Retry, Order::Reconcile] {
                self.order(&order);
            }
            open = serde_json::from_str(&self.order(&Order::Open)).unwrap();
            let resolved = open.observed + open.submitted + open.dead == 0;
            if round >= 3 && resolved && self.compare(when).is_ok() {
                break;
            }
        }
        if open.observed + open.submitted + open.dead > 0 {
            let lines: Vec<String> = serde_json::from_str(&self.order(&Order::Describe)).unwrap();
            let lines = lines.join("\n");
            return Err(format!("{when}: pushes were never resolved: {open:?}\n{lines}"));
        }
        self.counters.windows += self.compare(when)?;
        self.deadly = true;
        Ok(())
    }

    /// How many hours are equal, if all are.
    fn compare(&mut self, when: &str) -> Result<u64, String> {
        let order = Order::Totals {
            tenants: TENANTS.iter().map(|tenant| (*tenant).to_owned()).collect(),
            meters: METERS.iter().map(|(slug, _)| (*slug).to_owned()).collect(),
            from: self.oldest - 8 * DAY,
            to: self.now + DAY,
        };
        let ledger: Totals = serde_json::from_str(&self.order(&order)).unwrap();
        let mut provider = self.simulator.lock().unwrap().exact_totals();
        provider.retain(|_, total| *total != Quantity::ZERO);
        let mut ours = BTreeMap::new();
        for (tenant, meter, hour, total) in ledger {
            let total = Quantity::parse_stored(&total).unwrap();
            if total != Quantity::ZERO {
                let hour = Timestamp::from_micros(hour);
                ours.insert((customer_of(&tenant), meter, hour), total);
            }
        }
        if ours == provider {
            return Ok(u64::try_from(ours.len()).unwrap());
        }
        let keys: std::collections::BTreeSet<_> = ours.keys().chain(provider.keys()).collect();
        let show = |total: Option<&Quantity>| total.map_or("nothing".into(), Quantity::to_string);
        let differences: Vec<String> = keys
            .into_iter()
            .filter(|key| ours.get(*key) != provider.get(*key))
            .map(|key @ (customer, meter, hour)| {
                let (ledger, provider) = (show(ours.get(key)), show(provider.get(key)));
                format!("{customer} {meter} {hour}: ledger {ledger}, provider {provider}")
            })
            .collect();
        Err(format!("{when}: {}", differences.join("; ")))
    }

    fn send_some(&mut self) {
        let mut events = Vec::new();
        for _ in 0..self.dice.below(7) {
            let again = !self.sent.is_empty() && self.dice.percent(15);
            if again {
                events.push(self.dice.pick(&self.sent).clone());
                continue;
            }
            let late = match self.dice.below(20) {
                0 => self.dice.below(9_900),
                1..=4 => self.dice.below(1_800),
                _ => self.dice.below(50),
            };
            let occurred_at = self.now - i64::try_from(late).unwrap() * MINUTE;
            let at = Timestamp::from_micros(occurred_at);
            self.oldest = self.oldest.min(occurred_at);
            let tenant = self.dice.pick(&TENANTS);
            let (meter, _) = self.dice.pick(&METERS);
            let quantity = self.dice.pick(&AMOUNTS);
            let trial = self.dice.percent(10);
            let id = self.sent.len();
            let event = format!(
                r#"{{"tenant":"{tenant}","id":"e{id}","meter":"{meter}","quantity":"{quantity}","occurred_at":"{at}","trial":{trial}}}"#
            );
            self.sent.push(event.clone());
            events.push(event);
        }
        if !events.is_empty() {
            self.counters.events += u64::try_from(events.len()).unwrap();
            self.order(&Order::Send { events });
        }
    }

    fn map_late_tenant(&mut self) {
        let customer = Some(customer_of("late-mapped"));
        self.order(&Order::Tenant { id: "late-mapped".into(), customer });
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

    fn set_faults(&mut self, chances: &[(FaultKind, u64)]) {
        let plan = FaultPlan {
            seed: self.dice.next(),
            per_mille: chances.iter().copied().collect(),
            ..FaultPlan::default()
        };
        let mut simulator = self.simulator.lock().unwrap();
        simulator.set_faults(plan);
        let lag = if chances.is_empty() { 0 } else { 600 };
        simulator.set_summary_lag(lag);
    }

    fn advance(&mut self, micros: i64) {
        self.now += micros;
        self.simulator.lock().unwrap().set_clock(Timestamp::from_micros(self.now));
        self.order(&Order::Clock { at: self.now });
    }

    /// Has the order done; where the worker dies, the next one does it again.
    fn order(&mut self, order: &Order) -> String {
        loop {
            let mut worker = match self.worker.take() {
                Some(worker) => worker,
                None => self.spawn(),
            };
            if let Some(answer) = worker.ask(order) {
                self.worker = Some(worker);
                return answer;
            }
            let status = worker.child.wait().unwrap();
            let planned = worker.planned.unwrap_or("nothing");
            assert!(
                worker.planned.is_some(),
                "seed {}: the worker died of itself: {status}, planned {planned}, at {order:?}",
                self.seed
            );
            *self.counters.crashes.entry(planned.to_owned()).or_default() += 1;
            // Its leases end meanwhile.
            self.now += 3 * MINUTE;
            self.simulator.lock().unwrap().set_clock(Timestamp::from_micros(self.now));
        }
    }

    fn spawn(&mut self) -> Worker {
        let mut points: Vec<String> =
            self.bug.iter().map(|bug| format!("bug.{bug}=return")).collect();
        let store_points = self.place.crash_points();
        let planned = (self.deadly && self.dice.percent(75)).then(|| {
            let all: Vec<&'static str> =
                CRASH_POINTS.iter().chain(store_points.iter()).copied().collect();
            *self.dice.pick(&all)
        });
        if let Some(point) = planned {
            let busy = store_points.contains(&point);
            let hits = self.dice.below(if busy { 25 } else { 4 });
            points.push(format!("{point}={hits}*off->return"));
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["worker", &self.place.store(), &self.handle.url(), &self.now.to_string()])
            .env("FAILPOINTS", points.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.place.log())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Worker { child, input, output, planned }
    }

    fn kill(&mut self, how: &str) {
        if let Some(mut worker) = self.worker.take() {
            worker.child.kill().unwrap();
            worker.child.wait().unwrap();
            *self.counters.crashes.entry(how.to_owned()).or_default() += 1;
        }
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

impl World<'_> {
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

impl Worker {
    /// None if it died before it answered.
    fn ask(&mut self, order: &Order) -> Option<String> {
        let line = serde_json::to_string(order).unwrap();
        writeln!(self.input, "{line}").and_then(|()| self.input.flush()).ok()?;
        let mut answer = String::new();
        let read = self.output.read_line(&mut answer).ok()?;
        (read > 0 && answer.ends_with('\n')).then(|| answer.trim_end().to_owned())
    }
}

/// The simulator numbers customers in the order in which they were made.
fn customer_of(tenant: &str) -> String {
    let place = TENANTS.iter().position(|known| *known == tenant).unwrap();
    format!("cus_{:014}", place + 1)
}
