//! What the clock makes due: ends of periods, finalizations, further attempts at a payment.
//!
//! Invariant: what is due is done in the order of time, and at one instant a period ends before an
//! invoice is finalized. A task that has lost its object or its hour does nothing, so nobody needs
//! to take one back. A crash leaves nothing.

use super::{Simulator, invoices, payments, subscriptions};
use std::collections::BTreeSet;

/// Something to be done, by the id of its object. The order is that of tasks at one instant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    EndPeriod(String),
    Finalize(String),
    Collect(String),
}

/// Tasks with the seconds at which they are due.
#[derive(Debug, Default)]
pub struct Schedule {
    tasks: BTreeSet<(i64, Task)>,
}

impl Schedule {
    pub fn add(&mut self, at: i64, task: Task) {
        self.tasks.insert((at, task));
    }

    fn next(&mut self, now: i64) -> Option<(i64, Task)> {
        let due = self.tasks.first().is_some_and(|(at, _)| *at <= now);
        if due { self.tasks.pop_first() } else { None }
    }
}

/// Does everything that is due.
pub fn tick(simulator: &mut Simulator) {
    let now = simulator.now_seconds();
    while let Some((at, task)) = simulator.schedule.next(now) {
        match task {
            Task::EndPeriod(id) => subscriptions::end_period(simulator, &id, at),
            Task::Finalize(id) => invoices::finalize_or_wait(simulator, &id, at),
            Task::Collect(id) => payments::collect_again(simulator, &id, at),
        }
    }
}
