//! Credits are issued, used, voided and expire. What is used is covered or billed, never both
//! and never neither; a balance never shows more than is there.
//!
//! Grants are larger than all usage and begin and end with an hour. So the model is plain: an event
//! is covered if a grant of its tenant holds in its hour and was not voided before the event
//! came.

use crate::orders::{HourTotal, Order};
use crate::world::{HOUR, METERS, MINUTE, TENANTS, World};
use counterfoil::rules::quantity::Quantity;
use std::collections::BTreeMap;

const AMOUNT: &str = "1000000000000";

/// What the model says about credits.
#[derive(Debug, Default)]
pub struct Wallets {
    grants: BTreeMap<&'static str, Vec<Held>>,
    /// What the tenants' events have used of credits.
    covered: BTreeMap<String, Quantity>,
    /// What was issued and not voided.
    issued: BTreeMap<String, Quantity>,
    keys: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    number: u64,
    effective_at: i64,
    expires_at: Option<i64>,
}

impl World<'_> {
    /// Counts an event that is being sent.
    pub fn cover(&mut self, tenant: &str, occurred_at: i64, quantity: Quantity) {
        let holds = |held: &Held| {
            held.effective_at <= occurred_at && held.expires_at.is_none_or(|end| occurred_at < end)
        };
        if self.wallets.grants.get(tenant).is_some_and(|grants| grants.iter().any(holds)) {
            add(&mut self.wallets.covered, tenant, quantity);
        }
    }

    /// What the store's history of credits says was covered.
    pub fn read_covered(&mut self) -> Vec<HourTotal> {
        if self.wallets.keys == 0 {
            return Vec::new();
        }
        let tenants = TENANTS.iter().map(|tenant| (*tenant).to_owned()).collect();
        serde_json::from_str(&self.order(&Order::Covered { tenants })).unwrap()
    }

    fn key(&mut self) -> String {
        self.wallets.keys += 1;
        format!("key-{}", self.wallets.keys)
    }

    /// Issues a grant that holds from the next hour on, for so many hours.
    fn issue(&mut self, tenant: &'static str, hours: Option<i64>) {
        let effective_at = (self.now.div_euclid(HOUR) + 1) * HOUR;
        let expires_at = hours.map(|hours| effective_at + hours * HOUR);
        let (key, amount) = (self.key(), AMOUNT.to_owned());
        let order = Order::Grant { tenant: tenant.into(), key, amount, effective_at, expires_at };
        let number = self.order(&order).parse().unwrap();
        let held = Held { number, effective_at, expires_at };
        self.wallets.grants.entry(tenant).or_default().push(held);
        add(&mut self.wallets.issued, tenant, Quantity::parse_stored(AMOUNT).unwrap());
    }

    fn void_grant(&mut self, tenant: &'static str) {
        let Some(held) = self.wallets.grants.get_mut(tenant).and_then(Vec::pop) else { return };
        let (key, grant) = (self.key(), held.number);
        let taken = self.order(&Order::VoidGrant { tenant: tenant.into(), key, grant });
        let taken = Quantity::ZERO.checked_sub(Quantity::parse_stored(&taken).unwrap()).unwrap();
        add(&mut self.wallets.issued, tenant, taken);
    }

    /// A balance is what was issued less what was voided and used.
    fn check_balance(&mut self, tenant: &'static str) -> Result<(), String> {
        let during_cut = self.dice.percent(50);
        let shown = self.order(&Order::Balance { tenant: tenant.into(), during_cut });
        let Some(shown) = Quantity::parse_stored(&shown) else { return Ok(()) };
        let amount = |of: &BTreeMap<String, Quantity>| of.get(tenant).copied().unwrap_or_default();
        let (issued, used) = (amount(&self.wallets.issued), amount(&self.wallets.covered));
        let left = issued.checked_sub(used).unwrap();
        if shown > left {
            return Err(format!("{tenant} is shown {shown} credits and has {left}"));
        }
        Ok(())
    }

    fn check_covered(&mut self, when: &str) -> Result<(), String> {
        let mut covered: BTreeMap<String, Quantity> = BTreeMap::new();
        for row in self.read_covered() {
            add(&mut covered, &row.tenant, Quantity::parse_stored(&row.amount).unwrap());
        }
        covered.retain(|_, sum| *sum != Quantity::ZERO);
        if covered != self.wallets.covered {
            let expected = &self.wallets.covered;
            return Err(format!("{when}: credits have covered {covered:?}, expected {expected:?}"));
        }
        Ok(())
    }
}

fn add(sums: &mut BTreeMap<String, Quantity>, tenant: &str, amount: Quantity) {
    let sum = sums.entry(tenant.to_owned()).or_insert(Quantity::ZERO);
    *sum = sum.checked_add(amount).unwrap();
}

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    world.map("late-mapped");
    world.chaos(2)?;
    for _ in 0..2 {
        world.issue("acme", Some(5));
        world.issue("globex", None);
        world.advance(61 * MINUTE);
        for _ in 0..3 {
            world.send_some();
            world.check_balance("globex")?;
            let minutes = *world.dice.pick(&[7, 40, 90, 330]);
            world.advance(minutes * MINUTE);
            world.round()?;
        }
        // Usage that is not cut yet stays covered.
        world.send_some();
        world.void_grant("globex");
        world.check_balance("globex")?;
        world.chaos(1)?;
        late_usage(world);
        world.chaos(1)?;
    }
    world.calm("after credits")?;
    world.check_covered("after credits")
}

/// A day after the grant has expired, usage from before still comes.
fn late_usage(world: &mut World<'_>) {
    let newest = world.wallets.grants.get("acme").and_then(|grants| grants.last());
    let Some(end) = newest.and_then(|held| held.expires_at) else { return };
    world.advance((end + 30 * HOUR - world.now).max(0));
    world.order(&Order::Cut);
    world.order(&Order::Expire);
    let mut late = Vec::new();
    for (meter, _) in METERS {
        let hours = 1 + i64::try_from(world.dice.below(4)).unwrap();
        late.push(world.make_event(("acme", meter), "2", end - hours * HOUR + MINUTE, false));
    }
    world.send(late);
}
