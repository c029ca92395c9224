//! A copy of the store is taken while no worker runs and put back hours or days later. The producer
//! sends again everything since the copy; what was billed meanwhile may not be billed again.

use crate::orders::Order;
use crate::world::{MINUTE, World};

/// Events that are sent again after a restore must still be taken.
const LATE_MAX: u64 = 3_000;

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    world.late_max = LATE_MAX;
    world.map("late-mapped");
    world.chaos(2)?;
    for _ in 0..2 {
        world.chaos(2)?;
        world.stop_worker();
        world.place.copy(world.runtime);
        let copied = world.sent.len();
        for _ in 0..1 + world.dice.below(4) {
            let minutes = *world.dice.pick(&[7, 40, 90, 330, 700, 1_500]);
            world.advance(minutes * MINUTE);
            world.round()?;
        }
        world.stop_worker();
        world.place.restore(world.runtime);
        world.restored = true;
        world.order(&Order::Restored);
        world.send(world.sent[copied..].to_vec());
    }
    world.chaos(2)?;
    world.calm("after a restore")
}
