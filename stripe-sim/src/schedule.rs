//! Work that is due by the clock: ends of periods, finalizations, retries of payments.
//!
//! Invariant: tasks run in the order of time, and at one instant a period ends before an invoice is
//! finalized. A task whose object is gone or was postponed does nothing, so tasks need not be
//! removed. A crash leaves nothing.

use crate::{Simulator, invoices, payments, subscriptions};
use std::collections::BTreeSet;

/// A task, with the id of its object. The order of variants is the order at one instant.
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

/// Runs everything that is due.
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
