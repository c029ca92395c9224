//! Tenants are mapped to other customers while windows are open, sent and corrected: every window
//! must lie whole at one customer.

use crate::checks::HourKey;
use crate::orders::Order;
use crate::world::{AMOUNTS, DAY, HOUR, METERS, TENANTS, World};

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    for _ in 0..3 {
        world.chaos(2)?;
        let tenant = *world.dice.pick(&TENANTS);
        world.map(tenant);
        // Late usage of windows that the customer before may have been billed for.
        let recent = world.now - 5 * DAY;
        let own = |key: &&HourKey| key.0 == tenant && key.2 > recent;
        let billed: Vec<HourKey> = world.expected.keys().filter(own).cloned().collect();
        let mut late = Vec::new();
        for (_, meter, hour) in billed {
            let quantity = *world.dice.pick(&AMOUNTS);
            late.push(world.make_event((tenant, &meter), quantity, hour, false));
        }
        world.send(late);
        world.chaos(1)?;
    }
    world.map("late-mapped");
    world.calm("after changes of customers")?;
    map_too_late(world);
    world.drop_some();
    world.calm("after dropped events")
}

/// A tenant uses for weeks without a customer. Once it has one, what the provider still takes is
/// sent, and the rest is closed.
fn map_too_late(world: &mut World<'_>) {
    let tenant = "unmapped";
    world.order(&Order::Tenant { id: tenant.into(), customer: None });
    let mut used = Vec::new();
    for (meter, _) in METERS {
        used.push(world.make_event((tenant, meter), "3", world.now - HOUR, false));
    }
    world.send(used);
    world.advance(2 * HOUR);
    world.order(&Order::Cut);
    world.advance(36 * DAY);
    let own = world.expected.keys().filter(|(of, ..)| of == tenant);
    world.written_off = own.cloned().collect();
    world.expected.retain(|(of, ..), _| of != tenant);
    world.tenants.push(tenant);
    let used = world.make_event((tenant, "adding"), "4", world.now - HOUR, false);
    world.send(vec![used]);
    world.map(tenant);
}
