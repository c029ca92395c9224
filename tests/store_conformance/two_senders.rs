//! Two servers on one PostgreSQL database that cut and claim at once.

use crate::fixture::tenant_id;
use crate::pair::{HOUR_MICROS, Pair};
use counterfoil::rules::ids::{CustomerId, TenantId};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::submission::{Class, Next};
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::store::push::{
    AttemptIntent, ClaimedPush, Push, PushClaim, PushFilter, Right, Settlement,
};
use counterfoil::store::{Query, Store, TenantFields};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

const TENANTS: usize = 12;
const HOURS: i64 = 5;
const BILLED: &str = r#"{"aggregation":"sum","billing":{"from":"2020-01-01T00:00:00Z","scale":0}}"#;

/// With tenants that have customers.
async fn open() -> Option<Pair> {
    let pair = Pair::open(BILLED).await?;
    for tenant in 0..TENANTS {
        let customer = Some(CustomerId::parse(&format!("cus_{tenant}")).unwrap());
        let fields = TenantFields { customer, ..TenantFields::default() };
        pair.stores[0].put_tenant(&tenant_of(tenant), fields, pair.now).await.unwrap();
    }
    Some(pair)
}

async fn pushes(pair: &Pair) -> Vec<Push> {
    let query = Query::first(PushFilter::default(), 10_000);
    pair.stores[0].list_pushes(query).await.unwrap()
}

fn every_window() -> impl Iterator<Item = (TenantId, i64)> {
    (0..TENANTS).flat_map(|tenant| (0..HOURS).map(move |hour| (tenant_of(tenant), hour)))
}

fn tenant_of(number: usize) -> TenantId {
    tenant_id(&format!("tenant-{number}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_cut_at_once_are_cut_once() {
    const ROUNDS: usize = 6;
    let Some(pair) = open().await else { return };
    let mut written = 0;
    for round in 0..ROUNDS {
        pair.deliver(every_window(), round, "1.5").await;
        let (a, b) = tokio::join!(pair.cut(0, every_window()), pair.cut(1, every_window()));
        written += a + b;
    }
    assert_eq!(pair.cut(0, every_window()).await, 0);
    let pushes = pushes(&pair).await;
    assert_eq!(u64::try_from(pushes.len()).unwrap(), written);
    let mut revisions = HashSet::new();
    let mut sums: HashMap<TenantId, Quantity> = HashMap::new();
    for push in pushes {
        assert!(revisions.insert((push.tenant.clone(), push.window.start, push.revision)));
        let sum = sums.entry(push.tenant).or_default();
        *sum = sum.checked_add(push.quantity).unwrap();
    }
    for tenant in (0..TENANTS).map(tenant_of) {
        // 5 windows of 6 events of 1.5 each: an even number of halves, so nothing is carried.
        assert_eq!(sums[&tenant].to_string(), "45");
        assert_eq!(pair.carried(&tenant).await, Quantity::ZERO);
    }
    pair.close().await;
}

/// What is being worked on, by push and by tenant: nothing may be there twice.
#[derive(Default)]
struct AtWork(Mutex<HashSet<String>>);

impl AtWork {
    fn begin(&self, claimed: &ClaimedPush) {
        let mut at_work = self.0.lock().unwrap();
        assert!(at_work.insert(format!("push {}", claimed.push.number)), "a push claimed twice");
        assert!(at_work.insert(format!("of {}", claimed.push.tenant)), "two of one tenant");
    }

    fn end(&self, claimed: &ClaimedPush) {
        let mut at_work = self.0.lock().unwrap();
        at_work.remove(&format!("push {}", claimed.push.number));
        at_work.remove(&format!("of {}", claimed.push.tenant));
    }
}

/// Claims, begins and settles until nothing is due; returns the numbers of what it submitted.
async fn send_all(store: Arc<dyn Store>, at_work: Arc<AtWork>, now: Timestamp) -> Vec<u64> {
    let lease_until = now.saturating_add_micros(HOUR_MICROS);
    let mut sent = Vec::new();
    let mut idle = 0;
    while idle < 20 {
        let claim = PushClaim { now, lease_until, limit: 5, shadow: false };
        let claimed = store.claim_pushes(claim).await.unwrap();
        if claimed.is_empty() {
            idle += 1;
            tokio::task::yield_now().await;
            continue;
        }
        idle = 0;
        claimed.iter().for_each(|claimed| at_work.begin(claimed));
        let intent = |claimed: &ClaimedPush| AttemptIntent {
            push: claimed.push.number,
            fence: claimed.fence,
            customer: claimed.customer.clone(),
            request: claimed.push.key.clone().into_bytes(),
        };
        let intents: Vec<AttemptIntent> = claimed.iter().map(intent).collect();
        let begun = store.begin_attempts(intents, now).await.unwrap();
        assert_eq!(begun.len(), claimed.len());
        claimed.iter().for_each(|claimed| at_work.end(claimed));
        let settle = |claimed: &ClaimedPush| Settlement {
            push: claimed.push.number,
            right: Right::Lease(claimed.fence),
            class: Class::Accepted,
            next: Next::Submitted { look_at: lease_until },
            request_id: None,
            detail: None,
        };
        let settlements = claimed.iter().map(settle).collect();
        assert_eq!(store.settle_pushes(settlements, now).await.unwrap(), claimed.len());
        sent.extend(begun);
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_claimed_at_once_are_claimed_once() {
    let Some(pair) = open().await else { return };
    for round in 0..4 {
        pair.deliver(every_window(), round, "1.5").await;
        pair.cut(0, every_window()).await;
    }
    let at_work = Arc::new(AtWork::default());
    let senders: Vec<_> = [0, 1, 0, 1]
        .into_iter()
        .map(|server| {
            let store = Arc::clone(&pair.stores[server]);
            tokio::spawn(send_all(store, Arc::clone(&at_work), pair.now))
        })
        .collect();
    let mut sent = Vec::new();
    for sender in senders {
        sent.extend(sender.await.unwrap());
    }
    sent.sort_unstable();
    let mut expected: Vec<u64> = pushes(&pair).await.iter().map(|push| push.number).collect();
    expected.sort_unstable();
    assert_eq!(sent, expected);
    pair.close().await;
}
