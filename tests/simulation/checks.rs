//! What must hold, at every moment and in the end. The oracle is the provider's own record of what
//! it received and counted, and the sum of what the generator sent.

use crate::orders::{Audited, HourTotal, Open, Order};
use crate::world::{DAY, METERS, MINUTE, World};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Tenant, meter and hour.
pub type HourKey = (String, String, i64);
pub type Hours = BTreeMap<HourKey, Quantity>;

impl World<'_> {
    /// The provider reports a push of several attempts: one of them was refused, and another may
    /// have counted.
    pub fn report_some(&mut self) {
        let audited: Vec<Audited> = serde_json::from_str(&self.order(&Order::Audit)).unwrap();
        let again = audited.into_iter().filter(|push| push.attempts > 1);
        let keys: Vec<String> = again.map(|push| push.key).collect();
        if !keys.is_empty() {
            let key = self.dice.pick(&keys).clone();
            self.order(&Order::Report { keys: vec![key] });
        }
    }

    /// What must hold at every moment: of a window at most one push is unresolved, a key is of one
    /// push, and what is said to be at the provider came there under its key and with its value.
    pub fn audit(&mut self) -> Result<(), String> {
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
            // After a restore a push is settled when its window's total is there, sent by pushes
            // that the restored store does not know.
            if push.settled && !self.restored && there != Some(&push.value) {
                return Err(format!(
                    "push {} of {} is said to be at the provider, which has {there:?}",
                    push.number, push.value
                ));
            }
        }
        Ok(())
    }

    /// A while without faults, long enough for everything to be resolved; then both sides must
    /// agree.
    pub fn calm(&mut self, when: &str) -> Result<(), String> {
        self.set_faults(&[]);
        (self.crew.deadly, self.crew.stalling) = (false, false);
        self.kill("kill -9");
        let minutes = [31, 100, 65, 20, 70, 240, 1_300, 20, 300, 20];
        let mut open = Open::default();
        for round in 0..36 {
            self.advance(minutes[round % minutes.len()] * MINUTE);
            self.send_again();
            for order in [Order::Cut, Order::Push, Order::Confirm] {
                self.order(&order);
            }
            if self.retries || round >= 6 {
                self.order(&Order::Retry);
            }
            self.order(&Order::Reconcile);
            open = serde_json::from_str(&self.order(&Order::Open)).unwrap();
            if round >= 3 && open.is_resolved() && self.compare(when).is_ok() {
                break;
            }
        }
        if !open.is_resolved() {
            let lines: Vec<String> = serde_json::from_str(&self.order(&Order::Describe)).unwrap();
            let (lines, twice) = (lines.join("\n"), self.counted_twice().join("\n"));
            return Err(format!("{when}: pushes were never resolved: {open:?}\n{lines}\n{twice}"));
        }
        self.counters.windows += self.compare(when)?;
        self.crew.deadly = true;
        Ok(())
    }

    /// Events that the provider counted again after it had forgotten their identifiers.
    fn counted_twice(&self) -> Vec<String> {
        let simulator = self.simulator.lock().unwrap();
        let mut first = BTreeMap::new();
        let mut twice = Vec::new();
        for event in simulator.events_received() {
            let (key, at) = (event.identifier.as_str(), event.received);
            match first.get(key) {
                None => drop(first.insert(key, at)),
                Some(before) => twice.push(format!("{key} was counted at {before} and at {at}")),
            }
        }
        twice
    }

    /// How many hours are equal, if all are: sent, in the ledger and at the provider.
    pub fn compare(&mut self, when: &str) -> Result<u64, String> {
        let order = Order::Totals {
            tenants: self.tenants.iter().map(|tenant| (*tenant).to_owned()).collect(),
            meters: METERS.iter().map(|(slug, _)| (*slug).to_owned()).collect(),
            from: self.oldest - 8 * DAY,
            to: self.now + DAY,
        };
        let read: Vec<HourTotal> = serde_json::from_str(&self.order(&order)).unwrap();
        let mut ledger = add_hours(Hours::new(), read);
        ledger.retain(|hour, _| !self.written_off.contains(hour));
        // Usage is billed or covered by credits.
        let provider = self.provider_hours().map_err(|what| format!("{when}: {what}"))?;
        let provider = add_hours(provider, self.read_covered());
        if ledger == provider && ledger == self.expected {
            return Ok(u64::try_from(ledger.len()).unwrap());
        }
        let keys: BTreeSet<&HourKey> =
            ledger.keys().chain(provider.keys()).chain(self.expected.keys()).collect();
        let show = |total: Option<&Quantity>| total.map_or("nothing".into(), Quantity::to_string);
        let differences: Vec<String> = keys
            .into_iter()
            .map(|key| (key, [&self.expected, &ledger, &provider].map(|totals| totals.get(key))))
            .filter(|(_, [sent, ledger, provider])| sent != ledger || ledger != provider)
            .map(|((tenant, meter, hour), [sent, ledger, provider])| {
                let hour = Timestamp::from_micros(*hour);
                let (sent, ledger, provider) = (show(sent), show(ledger), show(provider));
                format!(
                    "{tenant} {meter} {hour}: sent {sent}, ledger {ledger}, provider {provider}"
                )
            })
            .collect();
        Err(format!("{when}: {}", differences.join("; ")))
    }

    /// What the provider counts, by tenant; an hour of a tenant lies at one customer.
    fn provider_hours(&self) -> Result<Hours, String> {
        let mut hours: BTreeMap<HourKey, (String, Quantity)> = BTreeMap::new();
        for ((customer, meter, hour), total) in self.simulator.lock().unwrap().exact_totals() {
            let total = Quantity::from_units(total.units());
            if total == Quantity::ZERO {
                continue;
            }
            let tenant = self.tenant_of(&customer);
            let key = (tenant, meter, hour.micros());
            if let Some((other, _)) = hours.get(&key) {
                return Err(format!("{key:?} is billed to {other} and to {customer}"));
            }
            hours.insert(key, (customer, total));
        }
        Ok(hours.into_iter().map(|(key, (_, total))| (key, total)).collect())
    }
}

/// Adds rows to totals; those that are zero are left out.
pub fn add_hours(mut hours: Hours, rows: Vec<HourTotal>) -> Hours {
    for row in rows {
        let amount = Quantity::parse_stored(&row.amount).unwrap();
        let total = hours.entry((row.tenant, row.meter, row.hour)).or_insert(Quantity::ZERO);
        *total = total.checked_add(amount).unwrap();
    }
    hours.retain(|_, total| *total != Quantity::ZERO);
    hours
}
