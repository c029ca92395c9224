//! Two servers on one fresh PostgreSQL database, with a billed meter.

use crate::fixture::{Fixture, event};
use counterfoil::rules::attribution::Outside;
use counterfoil::rules::ids::{MeterNo, TenantId};
use counterfoil::rules::quantity::Quantity;
use counterfoil::rules::timestamp::Timestamp;
use counterfoil::rules::window::Window;
use counterfoil::store::Store;
use counterfoil::store::push::{CutOrder, CutTerms};
use std::sync::Arc;

pub const HOUR_MICROS: i64 = 3_600_000_000;
/// How long ago the first window begins.
const HOURS: i64 = 5;

pub struct Pair {
    pub stores: [Arc<dyn Store>; 2],
    pub meter: MeterNo,
    pub now: Timestamp,
    pub fixture: Fixture,
}

impl Pair {
    /// With the meter `billed`.
    pub async fn open(spec: &str) -> Option<Self> {
        let fixture = Fixture::postgres().await?;
        fixture.declare("billed", spec).await;
        let stores = [Arc::clone(&fixture.store), fixture.second_server().await];
        let meter = fixture.meter_no("billed").await;
        Some(Self { stores, meter, now: fixture.now, fixture })
    }

    pub fn window(&self, hour: i64) -> Window {
        let start = self.now.saturating_add_micros((hour - HOURS) * HOUR_MICROS);
        Window { start, end: start.saturating_add_micros(HOUR_MICROS) }
    }

    /// One event in each of these windows.
    pub async fn deliver(
        &self,
        windows: impl Iterator<Item = (TenantId, i64)>,
        round: usize,
        quantity: &str,
    ) {
        let write = |(tenant, hour): (TenantId, i64)| {
            let (id, at) = (format!("e{round}-{hour}"), self.window(hour).start.to_string());
            event(tenant.as_str(), &id, "billed", quantity, &at, "{}")
        };
        self.fixture.deliver(&windows.map(write).collect::<Vec<_>>()).await;
    }

    /// Cuts these windows on one of the servers, under a lease of its own; returns the pushes.
    pub async fn cut(&self, server: usize, windows: impl Iterator<Item = (TenantId, i64)>) -> u64 {
        let store = &self.stores[server];
        let name = ["cut on the first", "cut on the second"][server];
        let until = self.now.saturating_add_micros(HOUR_MICROS);
        let lease = store.claim_lease(name, "test", self.now, until).await.unwrap().unwrap();
        let order = |(tenant, hour)| {
            let (meter, window) = (self.meter, self.window(hour));
            CutOrder { tenant, meter, window, recut: false }
        };
        let mut orders: Vec<CutOrder> = windows.map(order).collect();
        if server == 1 {
            orders.reverse();
        }
        let terms = CutTerms {
            at: self.now,
            shadow: false,
            digits_max: 15,
            events_max: 100,
            draw_order: Default::default(),
            outside: Outside::Push,
        };
        let report = store.record_cuts(&lease, orders, terms).await.unwrap();
        assert!(!report.lease_lost);
        report.pushes
    }

    pub async fn carried(&self, tenant: &TenantId) -> Quantity {
        self.fixture.remainder(tenant, self.meter, false).await
    }

    pub async fn close(&self) {
        for store in &self.stores {
            store.close().await;
        }
    }
}
