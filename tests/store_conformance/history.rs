//! Long random histories against a small model, and the laws of order and batching.

use crate::fixture::{Fixture, call, deliver_to, event, tenant_id};
use crate::listing::query;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::verdict::{Tally, Verdict};
use counterfoil::rules::window::Window;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A small generator of random numbers; the seed is printed by each failure.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What the store must do, in its simplest form.
#[derive(Default)]
struct Model {
    counted: HashMap<(String, String), (u64, u64)>,
    tally: Tally,
}

impl Model {
    fn judge(&mut self, tenant: &str, id: &str, quantity: u64, minute: u64, late: bool) -> Verdict {
        let key = (tenant.to_owned(), id.to_owned());
        let verdict = match self.counted.get(&key) {
            Some((q, m)) if *q == quantity => {
                Verdict::Duplicate { restamped: *m != minute || late }
            }
            Some((_, m)) => {
                let mut differing = vec!["quantity"];
                if *m != minute || late {
                    differing.push("occurred_at");
                }
                Verdict::Conflict { differing }
            }
            None if late => Verdict::Quarantined(counterfoil::rules::verdict::Quarantine::TooOld),
            None => {
                self.counted.insert(key, (quantity, minute));
                Verdict::Accepted
            }
        };
        self.tally.add(&verdict);
        verdict
    }

    fn total(&self, tenant: &str) -> u64 {
        self.counted.iter().filter(|((t, _), _)| t == tenant).map(|(_, (q, _))| q).sum()
    }
}

const TENANTS: [&str; 3] = ["acme", "umbrella", "initech"];

pub async fn random_histories_match_the_model(mut f: Fixture) {
    for seed in [1u64, 2, 3] {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut model = Model::default();
        let before: Vec<u64> = totals(&f).await;
        for _ in 0..60 {
            let mut batch = Vec::new();
            let mut expected = Vec::new();
            for _ in 0..random.below(25) {
                let tenant = TENANTS[random.below(3) as usize];
                let id = format!("s{seed}-{}", random.below(300));
                let quantity = 1 + random.below(3) / 2;
                let (minute, late) = (random.below(4) / 3, random.below(20) == 0);
                let date = if late { "2026-09-01" } else { "2026-11-15" };
                let at = format!("{date}T10:{minute:02}:00Z");
                batch.push(event(tenant, &id, "calls", &quantity.to_string(), &at, "{}"));
                expected.push(model.judge(tenant, &id, quantity, minute, late));
            }
            assert_eq!(f.deliver(&batch).await, expected, "seed {seed}");
            if random.below(10) == 0 {
                f.restart().await;
            }
            let tenant = TENANTS[random.below(3) as usize];
            let place = TENANTS.iter().position(|t| *t == tenant).unwrap();
            let expected = (before[place] + model.total(tenant)).to_string();
            assert_eq!(f.total(tenant, "calls").await, expected, "seed {seed}");
        }
        f.check().await;
    }
    let mut listed = 0;
    for tenant in TENANTS {
        let mut query = query(5000);
        query.filter.tenant = tenant_id(tenant);
        listed += f.store.list_events(query).await.unwrap().events.len();
    }
    let hour = Timestamp::parse("2026-11-15T12:00:00Z").unwrap();
    let range = Window { start: hour, end: hour.saturating_add_micros(1) };
    let rows = f.store.read_counters(range).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.tally.accepted).sum::<u64>(), listed as u64);
}

async fn totals(f: &Fixture) -> Vec<u64> {
    let mut found = Vec::new();
    for tenant in TENANTS {
        found.push(f.total(tenant, "calls").await.parse().unwrap());
    }
    found
}

pub async fn order_and_batching_do_not_matter(f: Fixture) {
    let all: Vec<String> = (0..120)
        .map(|n| {
            let at = format!("2026-11-15T{:02}:{:02}:00Z", n % 5, n % 60);
            event("acme", &format!("e{n}"), "calls", &format!("\"{n}.{n}\""), &at, "{}")
        })
        .collect();
    f.deliver(&all).await;
    let whole = f.usage("acme", "calls").await;
    let mut random = Random(42);
    for tenant in ["umbrella", "initech"] {
        let mut shuffled: Vec<String> = all.iter().map(|e| e.replace("acme", tenant)).collect();
        for place in (1..shuffled.len()).rev() {
            shuffled.swap(place, random.below(place as u64 + 1) as usize);
        }
        while !shuffled.is_empty() {
            let length = (1 + random.below(17) as usize).min(shuffled.len());
            let part = shuffled.split_off(shuffled.len() - length);
            let events = f.events(&part).await;
            deliver_to(f.store.as_ref(), f.batch(events)).await;
        }
        assert_eq!(f.usage(tenant, "calls").await, whole);
    }
    f.check().await;
}

/// While events arrive and are folded, every answer lies between what was acknowledged before the
/// question and what was sent before the answer.
pub async fn readers_never_see_a_wrong_total(f: Fixture) {
    let f = Arc::new(f);
    let (sent, acknowledged) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (f, sent, acknowledged) =
            (Arc::clone(&f), Arc::clone(&sent), Arc::clone(&acknowledged));
        tokio::spawn(async move {
            for batch in 0..150u64 {
                let json: Vec<String> =
                    (0..10).map(|n| call(&format!("e{batch}-{n}"), "1")).collect();
                sent.fetch_add(10, Ordering::SeqCst);
                f.deliver(&json).await;
                acknowledged.fetch_add(10, Ordering::SeqCst);
            }
        })
    };
    let (mut reads, mut last) = (0, 0);
    while last < 1500 {
        let before = acknowledged.load(Ordering::SeqCst);
        let total: u64 = f.total("acme", "calls").await.parse().unwrap();
        let listed = f.store.list_events(query(2000)).await.unwrap().events.len() as u64;
        let after = sent.load(Ordering::SeqCst);
        assert!(before <= total && total <= after, "{before} <= {total} <= {after}");
        assert!(before <= listed && listed <= after, "{before} <= {listed} <= {after}");
        assert!(last <= total, "a total went back from {last} to {total}");
        (reads, last) = (reads + 1, total);
    }
    writer.await.unwrap();
    assert!(reads > 10, "only {reads} reads");
    f.check().await;
}
