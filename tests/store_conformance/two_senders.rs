//! Two servers on one PostgreSQL database that cut and claim at once.

use crate::database::create_database;
use crate::fixture::{NOW, event, remainder_in, tenant_id};
use counterfoil::config::PostgresConfig;
use counterfoil::rules::delivery::{Class, Next};
use counterfoil::rules::event::{Item, parse_event};
use counterfoil::rules::ids::{CustomerId, MeterNo, MeterSlug, TenantId};
use counterfoil::rules::meter::{Meter, MeterSpec};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::verdict::Acceptance;
use counterfoil::rules::window::Window;
use counterfoil::store::postgres::PostgresStore;
use counterfoil::store::push::{
    AttemptIntent, ClaimedPush, CutOrder, CutTerms, Cuts, Leases, Push, PushClaim, PushQuery,
    Pushes, Right, Settlement,
};
use counterfoil::store::{Declarations, Deliveries, DeliveryBatch, Store, TenantFields};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

const TENANTS: usize = 12;
const HOURS: i64 = 5;
const HOUR_MICROS: i64 = 3_600_000_000;

/// Two servers on one fresh database, with a meter that is billed and tenants with customers.
struct Pair {
    stores: [Arc<PostgresStore>; 2],
    meter: MeterNo,
    now: Timestamp,
    url: String,
}

impl Pair {
    async fn open() -> Option<Self> {
        let url = create_database("two_senders").await?;
        let settings = PostgresConfig {
            writers: 2,
            readers: 2,
            request_writers: 4,
            job_connections: 2,
            timeout_ms: 20_000,
            query_timeout_ms: 30_000,
        };
        let stores = [
            PostgresStore::open(&url, &settings).await.unwrap(),
            PostgresStore::open(&url, &settings).await.unwrap(),
        ];
        let now = Timestamp::parse(NOW).unwrap();
        let spec = r#"{"aggregation":"sum","billing":{"from":"2020-01-01T00:00:00Z","scale":0}}"#;
        let spec: MeterSpec = serde_json::from_str(spec).unwrap();
        let meter = Meter::declare(MeterSlug::parse("billed").unwrap(), spec).unwrap();
        stores[0].declare_meter(meter, now).await.unwrap();
        for tenant in 0..TENANTS {
            let customer = Some(CustomerId::parse(&format!("cus_{tenant}")).unwrap());
            let fields = TenantFields { customer, ..TenantFields::default() };
            stores[0].put_tenant(&tenant_of(tenant), fields, now).await.unwrap();
        }
        let meter = stores[0].load_catalog().await.unwrap().find("billed").unwrap().0;
        Some(Self { stores, meter, now, url })
    }

    fn window(&self, hour: i64) -> Window {
        let start = self.now.saturating_add_micros((hour - HOURS) * HOUR_MICROS);
        Window { start, end: start.saturating_add_micros(HOUR_MICROS) }
    }

    /// One event of 1.5 in each window.
    async fn deliver(&self, round: usize) {
        let catalog = self.stores[0].load_catalog().await.unwrap();
        let mut events = Vec::new();
        for (tenant, hour) in every_window() {
            let at = self.window(hour).start.to_string();
            let (name, id) = (format!("tenant-{tenant}"), format!("e{round}-{hour}"));
            let json = event(&name, &id, "billed", "1.5", &at, "{}");
            let item: Item<'_> = serde_json::from_str(&json).unwrap();
            events.push(parse_event(&item, &catalog).unwrap());
        }
        let acceptance = Acceptance { now: self.now, horizon_micros: 24 * HOUR_MICROS };
        let refused = Vec::new();
        let batch = DeliveryBatch {
            events,
            refused,
            acceptance,
            strict_tenants: false,
            groups_per_day: 100_000,
        };
        self.stores[0].record_deliveries(0, batch).await.unwrap();
    }

    /// Cuts every window on one of the servers, under a lease of its own.
    async fn cut(&self, server: usize) -> u64 {
        let store = &self.stores[server];
        let name = ["cut on the first", "cut on the second"][server];
        let until = self.now.saturating_add_micros(HOUR_MICROS);
        let lease = store.claim_lease(name, "test", self.now, until).await.unwrap().unwrap();
        let mut orders: Vec<CutOrder> = every_window()
            .map(|(tenant, hour)| CutOrder {
                tenant: tenant_of(tenant),
                meter: self.meter,
                window: self.window(hour),
            })
            .collect();
        if server == 1 {
            orders.reverse();
        }
        let terms = CutTerms {
            at: self.now,
            shadow: false,
            digits_max: 15,
            events_max: 100,
            draw_order: Default::default(),
        };
        let report = store.record_cuts(&lease, orders, terms).await.unwrap();
        assert!(!report.lease_lost);
        report.pushes
    }

    async fn pushes(&self) -> Vec<Push> {
        let query = PushQuery { limit: 10_000, ..PushQuery::default() };
        self.stores[0].list_pushes(query).await.unwrap()
    }

    async fn close(&self) {
        for store in &self.stores {
            store.close().await;
        }
    }
}

fn every_window() -> impl Iterator<Item = (usize, i64)> {
    (0..TENANTS).flat_map(|tenant| (0..HOURS).map(move |hour| (tenant, hour)))
}

fn tenant_of(number: usize) -> TenantId {
    tenant_id(&format!("tenant-{number}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_cut_at_once_are_cut_once() {
    const ROUNDS: usize = 6;
    let Some(pair) = Pair::open().await else { return };
    let mut written = 0;
    for round in 0..ROUNDS {
        pair.deliver(round).await;
        let (a, b) = tokio::join!(pair.cut(0), pair.cut(1));
        written += a + b;
    }
    assert_eq!(pair.cut(0).await, 0);
    let pushes = pair.pushes().await;
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
        let carried = remainder_in(&pair.url, &tenant, pair.meter, false).await;
        assert_eq!(carried, Quantity::ZERO);
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
async fn send_all(store: Arc<PostgresStore>, at_work: Arc<AtWork>, now: Timestamp) -> Vec<u64> {
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
    let Some(pair) = Pair::open().await else { return };
    for round in 0..4 {
        pair.deliver(round).await;
        pair.cut(0).await;
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
    let mut expected: Vec<u64> = pair.pushes().await.iter().map(|push| push.number).collect();
    expected.sort_unstable();
    assert_eq!(sent, expected);
    pair.close().await;
}
