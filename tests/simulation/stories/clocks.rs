//! A worker's clock is hours or years off for a while, by a step while it runs or from its start;
//! the provider's clock is right. On a store that takes two workers the other one's is right too.
//! Nothing may be sent twice meanwhile, and once the clock is right everything must converge.

use crate::world::{DAY, HOUR, MINUTE, World};

const STEPS: [i64; 5] = [27 * HOUR, 27 * HOUR, -27 * HOUR, 3 * HOUR, 3_650 * DAY];

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    world.map("late-mapped");
    // Events that are refused while the time is in doubt must still be taken later.
    world.late_max = 3_000;
    for _ in 0..4 {
        world.chaos(2)?;
        // Some usage has just been sent, and the totals do not show it yet.
        world.lag = HOUR / 1_000_000;
        world.advance(40 * MINUTE);
        world.round()?;
        if world.place.takes_two() && world.dice.percent(50) {
            world.switch_worker();
        }
        if world.dice.percent(40) {
            world.kill("kill -9");
        }
        let step = *world.dice.pick(&STEPS);
        world.set_ahead(step);
        for _ in 0..1 + world.dice.below(3) {
            let minutes = *world.dice.pick(&[1, 7, 40]);
            world.advance(minutes * MINUTE);
            world.round()?;
            if world.place.takes_two() && world.dice.percent(30) {
                world.switch_worker();
                world.round()?;
                world.switch_worker();
            }
        }
        if world.dice.percent(40) {
            world.kill("kill -9");
        }
        world.set_ahead(0);
        world.lag = 0;
    }
    world.calm("after wrong clocks")
}
