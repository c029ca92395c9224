//! Walks over tenants: leases that are renewed by time, and tenants that cannot be cut.

use crate::world::{CALLS, Ground, World};
use counterfoil::jobs::cut::read_failures;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const HOURS: [&str; 2] = ["2026-11-15T11:30:00Z", "2026-11-15T10:30:00Z"];

/// Lets the clock run, a large part of the lease at each step, for as long as the guard lives.
struct Running(Arc<AtomicBool>);

impl Running {
    fn start(world: &World, micros: i64) -> Self {
        let (going, clock) = (Arc::new(AtomicBool::new(true)), world.clock.clone());
        let own = Arc::clone(&going);
        tokio::spawn(async move {
            while own.load(Ordering::SeqCst) {
                clock.advance(micros);
                tokio::task::yield_now().await;
            }
        });
        Self(going)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

pub async fn a_walk_longer_than_its_lease_cuts_every_tenant_and_meter(ground: Ground) {
    let world = World::with(ground, |config| config.push.lease_ms = 200).await;
    // The second meter comes later in the order of slugs.
    world.meter("calls", CALLS).await;
    world.meter("later", CALLS).await;
    for number in 0..300 {
        let tenant = format!("tenant-{number:03}");
        world.tenant(&tenant).await;
        for hour in HOURS {
            world.used(&tenant, "1", hour).await;
        }
    }
    world.used_of("later", "tenant-299", "5", HOURS[0]).await;
    world.pass_hours(2);
    let pass = {
        let _running = Running::start(&world, 150_000);
        world.cut().await
    };
    assert_eq!((pass.windows, pass.pushes), (601, 601));
    assert_eq!(world.store.read_cut_marks().await.unwrap().len(), 2, "both marks have moved");
}

pub async fn a_window_that_cannot_be_cut_stops_neither_its_batch_nor_the_pass(ground: Ground) {
    let world = World::on(ground).await;
    world.meter("calls", CALLS).await;
    for tenant in ["acme", "globex", "hooli"] {
        world.tenant(tenant).await;
        for hour in HOURS {
            world.used(tenant, "1", hour).await;
        }
    }
    world.pass_hours(2);
    let globex = "NEW.tenant_no = (SELECT tenant_no FROM tenants WHERE tenant = 'globex')";
    world.ground.break_writes("BEFORE INSERT ON pushes", globex).await;
    assert_eq!(world.cut().await.pushes, 4);
    assert!(world.pushes().await.iter().all(|push| push.tenant.as_str() != "globex"));
    let failures = read_failures(&*world.store).await.unwrap();
    let named: Vec<_> = failures.iter().map(|one| (&*one.tenant, &*one.meter)).collect();
    assert_eq!(named, [("globex", "calls")]);
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 0, "it still cannot be cut");
    world.ground.repair_writes().await;
    world.pass_hours(1);
    assert_eq!(world.cut().await.pushes, 2, "both windows are cut as soon as they can be");
    assert_eq!(read_failures(&*world.store).await.unwrap(), []);
}
