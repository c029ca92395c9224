//! Tenants are mapped to other customers while windows are open, sent and corrected: every window
//! must lie whole at one customer.

use crate::world::{AMOUNTS, HOUR, METERS, TENANTS, World};

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    for _ in 0..3 {
        world.chaos(2)?;
        let tenant = *world.dice.pick(&TENANTS);
        world.map(tenant);
        // Late usage of windows that the customer before has been billed for.
        let mut late = Vec::new();
        for (meter, _) in METERS {
            let hours = 1 + i64::try_from(world.dice.below(20)).unwrap();
            let quantity = *world.dice.pick(&AMOUNTS);
            late.push(world.make_event((tenant, meter), quantity, world.now - hours * HOUR, false));
        }
        world.send(late);
        world.chaos(1)?;
    }
    world.map("late-mapped");
    world.calm("after changes of customers")?;
    world.drop_some();
    world.calm("after dropped events")
}
