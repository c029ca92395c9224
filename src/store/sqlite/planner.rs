//! The fold plan of a sealed segment, made beside the writer: sorting a full segment takes tens of
//! milliseconds, and no commit should wait for it.
//!
//! Invariant: at most one plan is in the making, of the sealed segment. Nothing here is durable: a
//! crash leaves the segment's rows in the journal, where recovery finds them as part of the open
//! segment.

use super::segment::{FoldPlan, PLAN, Segment};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// A smaller segment is planned faster than a thread starts.
const IN_PLACE_EVENTS_MAX: usize = 4096;

/// A plan that is ready, or will be.
pub struct PendingPlan(Receiver<FoldPlan>);

impl PendingPlan {
    pub fn start(sealed: Arc<Segment>) -> Self {
        let (reply, plan) = channel();
        let in_place = sealed.len() <= IN_PLACE_EVENTS_MAX;
        let make = move || {
            let plan = sealed.plan_fold(PLAN);
            // The writer takes the segment apart once it has the plan.
            drop(sealed);
            let _ = reply.send(plan);
        };
        if in_place {
            make();
        } else {
            let thread = std::thread::Builder::new().name("fold-plan".into());
            thread.spawn(make).expect("a process may have threads");
        }
        Self(plan)
    }

    /// The plan, if it is ready.
    pub fn poll(&self) -> Option<FoldPlan> {
        match self.0.try_recv() {
            Ok(plan) => Some(plan),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("planning a fold panicked"),
        }
    }

    /// Waits for the plan.
    pub fn wait(&self) -> FoldPlan {
        self.0.recv().expect("planning a fold does not panic")
    }
}
