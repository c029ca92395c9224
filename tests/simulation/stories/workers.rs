//! Two workers. On PostgreSQL they work at one time and one of them stalls in the middle of an
//! order, so that its leases end and the other takes over before it continues, often a day later.
//! On SQLite they take turns, and one that stalls continues by itself.

use crate::world::World;

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    world.map("late-mapped");
    world.crew.takes_turns = world.place.takes_two();
    for _ in 0..3 {
        world.crew.stalling = true;
        world.chaos(4)?;
        world.continue_stalled();
        if !world.place.takes_two() {
            world.switch_worker();
        }
    }
    world.crew.takes_turns = false;
    world.calm("after two workers")?;
    world.drop_some();
    world.calm("after dropped events")
}
