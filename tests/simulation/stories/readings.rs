//! The provider shows totals a day late and then catches up, passes may read one to three totals an
//! hour, and some usage is dropped: what passes send again must really be missing. A person
//! retries a push only when passes have read the totals again.

use crate::orders::Order;
use crate::world::{HOUR, MINUTE, World};
use stripe_sim::FaultKind;

/// As long as a push that was taken is looked for, and an hour more.
const LAG_SECONDS: i64 = 27 * 3_600;

pub fn live(world: &mut World<'_>) -> Result<(), String> {
    world.map("late-mapped");
    world.retries = false;
    for _ in 0..2 {
        world.crew.reads_per_hour = 0;
        world.chaos(2)?;
        // An attempt with an unknown outcome is decided by one reading after 26 hours: there are
        // none while totals are later than that.
        world.calm("before late totals")?;
        // What the totals have shown stays visible.
        world.advance(27 * HOUR);
        world.crew.deadly = false;
        world.kill("kill -9");
        world.crew.reads_per_hour = 1 + u32::try_from(world.dice.below(3)).unwrap();
        world.lag = LAG_SECONDS;
        world.set_faults(&[(FaultKind::AsyncRejection, 100)]);
        world.advance(50 * MINUTE);
        world.send_some();
        world.advance(95 * MINUTE);
        for order in [Order::Cut, Order::Push, Order::Confirm] {
            world.order(&order);
        }
        look_every_hour(world, 27);
        world.audit()?;
        world.lag = 0;
        world.set_faults(&[]);
        look_every_hour(world, 4);
        world.audit()?;
    }
    world.crew.reads_per_hour = 0;
    world.calm("after old readings")
}

fn look_every_hour(world: &mut World<'_>, hours: u64) {
    for _ in 0..hours {
        world.advance(HOUR + MINUTE);
        if world.dice.percent(20) {
            world.send_some();
        }
        for order in [Order::Cut, Order::Confirm, Order::Reconcile, Order::Push] {
            world.order(&order);
        }
    }
}
