//! Long random histories of use, cuts, deliveries and restarts, against sums kept beside them.

use crate::billed::{Billed, after, window};
use crate::fixture::{Fixture, event, tenant_id};
use crate::history::Random;
use counterfoil::rules::billing::Mode;
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, Next, PushState};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::push::{ClaimedPush, Push, Ruling};
use std::collections::{BTreeMap, HashSet};

const TENANTS: [&str; 2] = ["acme", "umbrella"];
const METERS: [&str; 6] = ["tokens", "whole", "signed", "peak", "single", "clicks"];
const HOURS: i64 = 5;

/// A window: tenant, meter, start.
type Place = (String, u16, Timestamp);

struct World {
    billed: Billed,
    random: Random,
    minute: i64,
    events: u64,
    /// What was used and billable, by window.
    used: BTreeMap<Place, i128>,
    /// What the provider has, by window.
    provider: BTreeMap<Place, i128>,
}

pub async fn random_histories_bill_exactly_what_was_used(f: Fixture) {
    let billed = Billed::start(f).await;
    for tenant in TENANTS {
        billed.customer(tenant, &format!("cus_{tenant}")).await;
    }
    let (used, provider) = (BTreeMap::new(), BTreeMap::new());
    let random = Random(0x9e37_79b9_7f4a_7c15);
    let mut world = World { billed, random, minute: 0, events: 0, used, provider };
    world.billed.terms.events_max = 3;
    for round in 0..150 {
        world.minute += 1;
        match world.random.below(8) {
            0..3 => world.use_some().await,
            3..5 => world.cut_some().await,
            5..7 => world.deliver_some().await,
            _ => world.rule_on_dead().await,
        }
        if round % 25 == 24 {
            world.billed.f.restart().await;
            world.check_sums().await;
        }
    }
    world.finish().await;
    world.check_sums().await;
    world.check_end().await;
}

impl World {
    async fn use_some(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..self.random.below(20) {
            let tenant = TENANTS[self.random.below(2) as usize];
            let meter = METERS[self.random.below(6) as usize];
            let hour = self.random.below(HOURS as u64) as i64;
            let minute = self.random.below(60) as i64;
            let trial = self.random.below(8) == 0;
            let mut units = i128::from(self.random.below(3_000)) * 1_000_000_000;
            match meter {
                "clicks" => units = Quantity::ONE.units(),
                "signed" if self.random.below(3) == 0 => units = -units,
                _ => {}
            }
            self.events += 1;
            let at = after(window(hour).start, minute).to_string();
            let quantity = format!("\"{}\"", Quantity::from_units(units));
            let id = format!("e{}", self.events);
            let json = event(tenant, &id, meter, &quantity, &at, "{}");
            let stamp = format!(r#""trial":{trial},"properties""#);
            batch.push(json.replace(r#""properties""#, &stamp));
            if !trial {
                let number = self.billed.f.meter_no(meter).await;
                let place = (tenant.to_owned(), number.0, window(hour).start);
                *self.used.entry(place).or_default() += units;
            }
        }
        self.billed.f.deliver(&batch).await;
    }

    async fn cut_some(&mut self) {
        for _ in 0..6 {
            let tenant = TENANTS[self.random.below(2) as usize];
            let meter = METERS[self.random.below(6) as usize];
            let hour = self.random.below(HOURS as u64) as i64;
            self.billed.cut_of(tenant, meter, &[hour, (hour + 1) % HOURS]).await;
        }
    }

    async fn deliver_some(&mut self) {
        let claimed = self.billed.claim(self.minute).await;
        let streams: HashSet<_> =
            claimed.iter().map(|c| (c.push.tenant.clone(), c.push.meter)).collect();
        assert_eq!(streams.len(), claimed.len(), "one of a tenant and meter");
        for push in claimed {
            // Some claimants are never heard of again; their leases end.
            if self.random.below(6) > 0 && self.billed.begin(&push, self.minute).await {
                self.deliver(&push).await;
            }
        }
    }

    async fn deliver(&mut self, claimed: &ClaimedPush) {
        let counted = self.random.below(3) > 0;
        let end = match (counted, self.random.below(3)) {
            (true, _) => {
                self.count(&claimed.push);
                self.billed.accepted(self.minute)
            }
            (false, 0) => self.billed.waiting(self.minute + 2),
            (false, 1) => (Class::Absent, Next::Replaced),
            (false, _) => (Class::Refused, Next::Dead),
        };
        assert!(self.billed.settle(claimed, end, self.minute).await);
    }

    /// The provider takes a push.
    fn count(&mut self, push: &Push) {
        let place = (push.tenant.to_string(), push.meter.0, push.window.start);
        let standing = self.provider.entry(place).or_default();
        match push.mode {
            Mode::Delta => *standing += push.value.units(),
            Mode::Absolute => *standing = push.value.units(),
        }
    }

    async fn rule_on_dead(&mut self) {
        for push in self.billed.pushes().await {
            if push.state == PushState::Dead {
                let at = after(self.billed.f.now, self.minute);
                let place = (push.tenant.to_string(), push.meter.0, push.window.start);
                let total = self.provider.get(&place).copied().unwrap_or_default();
                self.billed.read_twice(&push, Quantity::from_units(total)).await;
                let ruling = self.billed.f.store.retry_push(push.number, at).await.unwrap();
                assert!(matches!(ruling, Ruling::Done(Some(_))), "{ruling:?}");
            }
        }
    }

    /// Cuts everything and delivers everything.
    async fn finish(&mut self) {
        let hours: Vec<i64> = (0..HOURS).collect();
        for tenant in TENANTS {
            for meter in METERS {
                while !self.billed.cut_of(tenant, meter, &hours).await.unfinished.is_empty() {}
                let again = self.billed.cut_of(tenant, meter, &hours).await;
                assert_eq!(again, Default::default(), "cut again, nothing changes");
            }
        }
        self.rule_on_dead().await;
        // Beyond every lease and every pause.
        self.minute += 60;
        loop {
            let claimed = self.billed.claim(self.minute).await;
            if claimed.is_empty() {
                break;
            }
            for push in claimed {
                assert!(self.billed.begin(&push, self.minute).await);
                self.count(&push.push);
                let end = self.billed.accepted(self.minute);
                assert!(self.billed.settle(&push, end, self.minute).await);
            }
        }
    }

    /// What was planned and what is carried make what was cut, whatever became of the pushes.
    async fn check_sums(&self) {
        let pushes = self.billed.pushes().await;
        let keys: HashSet<&str> = pushes.iter().map(|push| push.key.as_str()).collect();
        assert_eq!(keys.len(), pushes.len(), "no key names two pushes");
        let range = Window { start: window(0).start, end: window(HOURS).start };
        for tenant in TENANTS {
            for meter in METERS {
                let number = self.billed.f.meter_no(meter).await;
                let name = tenant_id(tenant);
                let cuts = self.billed.f.store.read_cuts(&name, number, range).await.unwrap();
                let total: i128 = cuts.iter().map(|(_, cut)| cut.total.units()).sum();
                let planned: i128 = cuts.iter().map(|(_, cut)| cut.planned.units()).sum();
                let remainder = self.billed.remainder(tenant, meter, false).await.units();
                assert_eq!(planned + remainder, total, "{tenant} {meter}");
                let standing = |push: &&Push| {
                    let own = push.tenant == name && push.meter == number;
                    // An overtaken total is part of the one that overtook it.
                    let replaced = push.state == PushState::Replaced;
                    own && (!replaced || push.class == Class::Overtaken)
                };
                let sum: i128 =
                    pushes.iter().filter(standing).map(|push| push.quantity.units()).sum();
                assert_eq!(sum + remainder, total, "{tenant} {meter}");
            }
        }
    }

    /// Everything was cut as it was used, and the provider has all that was planned.
    async fn check_end(&self) {
        for ((tenant, meter, start), used) in &self.used {
            let number = counterfoil::rules::ids::MeterNo(*meter);
            let range = Window { start: *start, end: after(*start, 1) };
            let tenant_id = tenant_id(tenant);
            let cuts = self.billed.f.store.read_cuts(&tenant_id, number, range).await.unwrap();
            let (_, cut) = cuts.first().unwrap();
            assert_eq!(cut.total.units(), *used);
            let place = (tenant.clone(), *meter, *start);
            let standing = self.provider.get(&place).copied().unwrap_or_default();
            assert_eq!(standing, cut.planned.units(), "{place:?}");
        }
        let pushes = self.billed.pushes().await;
        assert!(pushes.len() > 100);
        let resolved = |push: &Push| push.state.settled() || push.state == PushState::Replaced;
        assert!(pushes.iter().all(resolved));
    }
}
