//! A fresh store for each test, with the means to deliver to it and to start it again.

use crate::ground::Ground;
use counterfoil::rules::event::{Event, Item, parse_event};
use counterfoil::rules::ids::{CustomerId, EventId, MeterNo, MeterSlug, TenantId};
use counterfoil::rules::meter::{Catalog, Meter, MeterSpec};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::usage::{Composition, Usage, UsageShape};
use counterfoil::rules::verdict::{Acceptance, Verdict};
use counterfoil::rules::window::Window;
use counterfoil::store::{DeliveryBatch, Store, TenantFields, TenantPut};
use rusqlite::{Connection, OptionalExtension};
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

pub const NOW: &str = "2026-11-15T12:00:00Z";
pub const HORIZON_MICROS: i64 = 7 * 24 * 3_600_000_000;

pub struct Fixture {
    pub store: Arc<dyn Store>,
    ground: Ground,
    colliding_bits: Option<u32>,
    pub now: Timestamp,
    pub groups_per_day: usize,
}

/// Does all this work at once, each in a task of its own; returns what came of it, in its order.
pub async fn in_tasks<T, F>(works: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = works.into_iter().map(tokio::spawn).collect();
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

/// Does the same work with each of these values at once, on what all of it shares.
pub async fn at_once<S, N, T, F>(
    shared: &Arc<S>,
    each: impl IntoIterator<Item = N>,
    work: impl Fn(Arc<S>, N) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    in_tasks(each.into_iter().map(|one| work(Arc::clone(shared), one))).await
}

/// Four claimants at once and one after them, each until it finds nothing more; returns what they
/// got, which none of them shares.
pub async fn claim_at_once<T, F>(f: Fixture, claim: fn(Arc<Fixture>) -> F) -> Vec<T>
where
    T: Clone + Eq + Hash + Send + 'static,
    F: Future<Output = Vec<T>> + Send + 'static,
{
    let claim_all = move |f: Arc<Fixture>, _| async move {
        let mut found = Vec::new();
        loop {
            let claimed = claim(Arc::clone(&f)).await;
            if claimed.is_empty() {
                return found;
            }
            found.extend(claimed);
        }
    };
    let f = Arc::new(f);
    let mut found = at_once(&f, 0..4, claim_all).await.concat();
    // Whoever met only rows that others were taking has stopped.
    found.extend(claim_all(f, 4).await);
    let distinct: HashSet<&T> = found.iter().collect();
    assert_eq!(distinct.len(), found.len());
    found
}

/// A whole list, read in pages: each begins after the last row of those before.
pub async fn in_pages<T>(limit: usize, read: impl AsyncFn(Option<&T>) -> Vec<T>) -> Vec<T> {
    let mut rows = Vec::new();
    loop {
        let page = read(rows.last()).await;
        assert!(page.len() <= limit);
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
    }
}

impl Fixture {
    pub async fn sqlite() -> Self {
        Self::start(Ground::sqlite()).await
    }

    /// None, with a printed line, if there is no PostgreSQL to test on.
    pub async fn postgres() -> Option<Self> {
        Some(Self::start(Ground::postgres().await?).await)
    }

    async fn start(ground: Ground) -> Self {
        let store = ground.open(None).await;
        let now = Timestamp::parse(NOW).unwrap();
        let fixture = Self { store, ground, colliding_bits: None, now, groups_per_day: 100_000 };
        for (slug, spec) in [
            ("calls", r#"{"aggregation":"sum"}"#),
            ("logins", r#"{"aggregation":"count"}"#),
            ("lowest", r#"{"aggregation":"min","signed":true}"#),
            ("highest", r#"{"aggregation":"max","signed":true}"#),
            ("seats", r#"{"aggregation":"latest"}"#),
            ("users", r#"{"aggregation":"unique","unique_property":"user"}"#),
            ("traffic", r#"{"aggregation":"sum","dimensions":["region","tier"]}"#),
            ("wide", r#"{"aggregation":"sum","scale":12,"precision":27}"#),
        ] {
            fixture.declare(slug, spec).await;
        }
        fixture
    }

    pub async fn declare(&self, slug: &str, spec: &str) {
        let spec: MeterSpec = serde_json::from_str(spec).unwrap();
        let meter = Meter::declare(MeterSlug::parse(slug).unwrap(), spec).unwrap();
        self.store.declare_meter(meter, self.now).await.unwrap();
    }

    /// Gives a tenant a customer.
    pub async fn customer(&self, tenant: &str, customer: &str) {
        let customer = Some(customer_id(customer));
        let fields = TenantFields { customer, ..TenantFields::default() };
        let put = self.store.put_tenant(&tenant_id(tenant), fields, self.now).await.unwrap();
        assert!(matches!(put, TenantPut::Stored(_)), "{put:?}");
    }

    /// Closes the store and opens it again, as a restart of the server does.
    pub async fn restart(&mut self) {
        self.store.close().await;
        self.store = self.ground.open(self.colliding_bits).await;
    }

    /// Opens the store again with event keys of few bits.
    pub async fn restart_colliding(&mut self, bits: u32) {
        self.colliding_bits = Some(bits);
        self.restart().await;
    }

    /// Changes rows behind the store's back; the statements must suit both stores.
    pub async fn plant(&self, sql: &str) {
        self.ground.plant(sql).await;
    }

    /// Where the PostgreSQL database is.
    pub fn url(&self) -> &str {
        match &self.ground {
            Ground::Database(url) => url,
            Ground::Directory(_) => panic!("a directory has no URL"),
        }
    }

    /// A second server on the same PostgreSQL database.
    pub async fn second_server(&self) -> Arc<dyn Store> {
        self.ground.open(self.colliding_bits).await
    }

    pub async fn catalog(&self) -> Catalog {
        self.store.load_catalog().await.unwrap()
    }

    pub async fn meter_no(&self, slug: &str) -> MeterNo {
        self.catalog().await.find(slug).unwrap().0
    }

    pub async fn events(&self, json: &[String]) -> Vec<Event> {
        let catalog = self.catalog().await;
        let parse = |text: &String| {
            let item: Item<'_> = serde_json::from_str(text).unwrap();
            parse_event(&item, &catalog).unwrap()
        };
        json.iter().map(parse).collect()
    }

    pub fn batch(&self, events: Vec<Event>) -> DeliveryBatch {
        let acceptance = Acceptance { now: self.now, horizon_micros: HORIZON_MICROS };
        DeliveryBatch {
            events,
            refused: Vec::new(),
            acceptance,
            strict_tenants: false,
            groups_per_day: self.groups_per_day,
        }
    }

    /// Delivers events of one partition each, and returns their verdicts in order.
    pub async fn deliver(&self, json: &[String]) -> Vec<Verdict> {
        let events = self.events(json).await;
        deliver_to(self.store.as_ref(), self.batch(events)).await
    }

    pub async fn deliver_one(&self, json: &str) -> Verdict {
        self.deliver(&[json.to_owned()]).await.remove(0)
    }

    /// The meter's value over all time, for one tenant.
    pub async fn total(&self, tenant: &str, meter: &str) -> String {
        self.usage(tenant, meter).await.total.to_string()
    }

    pub async fn usage(&self, tenant: &str, meter: &str) -> Usage {
        let range = between("2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z");
        let catalog = self.catalog().await;
        let (number, meter) = catalog.find(meter).unwrap();
        let aggregation = meter.spec.aggregation;
        let (windows, group_by, rows_max) = (vec![range], Vec::new(), usize::MAX);
        let shape = UsageShape { windows, group_by, aggregation, rows_max };
        let tenant = tenant_id(tenant);
        let before = self.store.compose_usage(&tenant, number, range, shape.clone()).await.unwrap();
        // What jobs read is the same, unless somebody sends meanwhile.
        let mut composition = Composition::new(shape.clone());
        for row in self.store.read_usage(&tenant, number, range, usize::MAX).await.unwrap() {
            composition.add(row).unwrap();
        }
        let usage = composition.finish().unwrap();
        let after = self.store.compose_usage(&tenant, number, range, shape).await.unwrap();
        assert!(before.count <= usage.count && usage.count <= after.count);
        if before == after {
            assert_eq!(usage, before);
        }
        usage
    }

    /// What the provider cannot hold of a tenant's usage yet. No verb reads it, so it is read from
    /// its table.
    pub async fn remainder(&self, tenant: &TenantId, meter: MeterNo, shadow: bool) -> Quantity {
        if let Ground::Database(url) = &self.ground {
            return remainder_in(url, tenant, meter, shadow).await;
        }
        let connection = Connection::open(self.ground.data().join("counterfoil.db")).unwrap();
        let sql = "SELECT remainder FROM remainders JOIN tenants USING (tenant_no)
            WHERE tenant = ? AND meter_no = ? AND shadow = ?";
        let key = (tenant.as_str(), meter.0, shadow);
        let found = connection.query_row(sql, key, |row| row.get(0)).optional().unwrap();
        parse_remainder(found)
    }

    /// Recomputes all totals from the events.
    pub async fn check(&self) {
        let report = self.store.check(&|_| {}).await.unwrap();
        assert_eq!(report.findings, Vec::<String>::new());
    }
}

/// The same, in a PostgreSQL database.
async fn remainder_in(url: &str, tenant: &TenantId, meter: MeterNo, shadow: bool) -> Quantity {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT trim_scale(remainder)::text FROM remainders JOIN tenants USING (tenant_no)
        WHERE tenant = $1 AND meter_no = $2 AND shadow = $3";
    let meter = i16::try_from(meter.0).unwrap();
    let found = client.query_opt(sql, &[&tenant.as_str(), &meter, &shadow]).await.unwrap();
    parse_remainder(found.map(|row| row.get(0)))
}

fn parse_remainder(found: Option<String>) -> Quantity {
    found.map_or(Quantity::ZERO, |text| Quantity::parse_stored(&text).unwrap())
}

/// All events of a batch go to the partition of their tenant, as the queue would send them; the
/// tests' tenants may all use the first partition.
pub async fn deliver_to(store: &dyn Store, batch: DeliveryBatch) -> Vec<Verdict> {
    store.record_deliveries(0, batch).await.unwrap()
}

pub fn between(start: &str, end: &str) -> Window {
    Window { start: Timestamp::parse(start).unwrap(), end: Timestamp::parse(end).unwrap() }
}

pub fn tenant_id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

pub fn customer_id(text: &str) -> CustomerId {
    CustomerId::parse(text).unwrap()
}

pub fn event_id(text: &str) -> EventId {
    EventId::parse(text).unwrap()
}

/// An event of tenant acme and meter calls, one minute before now.
pub fn call(id: &str, quantity: &str) -> String {
    event("acme", id, "calls", quantity, "2026-11-15T11:59:00Z", "{}")
}

pub fn event(
    tenant: &str,
    id: &str,
    meter: &str,
    quantity: &str,
    at: &str,
    properties: &str,
) -> String {
    let (tenant, id) = (serde_json::to_string(tenant).unwrap(), serde_json::to_string(id).unwrap());
    format!(
        r#"{{"tenant":{tenant},"id":{id},"meter":"{meter}","quantity":{quantity},"occurred_at":"{at}","properties":{properties}}}"#
    )
}
