//! The queue's lanes: one for each tenant that waits, taken from in turn.
//!
//! Invariant: `turns` names exactly the lanes that hold something, each once.

use super::SubmitError;
use crate::rules::event::Event;
use crate::rules::ids::TenantId;
use crate::rules::verdict::Verdict;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use tokio::sync::oneshot;

/// Events a lane may take in one turn, and of which a submission has no more. Few: a commit holds
/// at least one turn, and events for an inbox or of new groups cost 0.1 ms each on PostgreSQL.
pub const TURN_EVENTS: usize = 16;

/// What one request gave to one partition, or a piece of it.
pub struct Submission {
    pub events: Vec<Event>,
    pub refused: Vec<(Option<TenantId>, u64)>,
    pub reply: oneshot::Sender<Result<Vec<Verdict>, SubmitError>>,
}

#[derive(Default)]
pub struct Lanes {
    hasher: RandomState,
    lanes: HashMap<LaneKey, TenantLane>,
    turns: VecDeque<LaneKey>,
}

/// The hash of a submission's one tenant; none if it has several. Tenants whose hashes are equal
/// share a lane.
type LaneKey = Option<u64>;

#[derive(Default)]
struct TenantLane {
    waiting: VecDeque<Submission>,
    events: usize,
}

impl Lanes {
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether a lane has room for these events. An empty lane takes anything; the lane of mixed
    /// submissions is bounded by the whole queue only.
    pub fn admits(&self, events: &[Event], lane_events_max: usize) -> bool {
        let key = self.lane_key(events);
        let lane = if key.is_some() { self.lanes.get(&key) } else { None };
        lane.is_none_or(|lane| lane.events + events.len() <= lane_events_max)
    }

    pub fn push(&mut self, submission: Submission) {
        let key = self.lane_key(&submission.events);
        let lane = self.lanes.entry(key).or_default();
        if lane.waiting.is_empty() {
            self.turns.push_back(key);
        }
        lane.events += submission.events.len();
        lane.waiting.push_back(submission);
    }

    /// Takes submissions for one commit, from the lanes in turn, until it holds `events_max`.
    pub fn take_group(&mut self, events_max: usize) -> Vec<Submission> {
        let mut group = Vec::new();
        let mut events = 0;
        while events < events_max
            && let Some(key) = self.turns.pop_front()
        {
            let lane = self.lanes.get_mut(&key).expect("a lane with a turn exists");
            let mut taken = 0;
            while taken < TURN_EVENTS
                && let Some(submission) = lane.waiting.pop_front()
            {
                // A submission of refused items only still takes a little of the turn.
                taken += submission.events.len().max(1);
                lane.events -= submission.events.len();
                group.push(submission);
            }
            if lane.waiting.is_empty() {
                self.lanes.remove(&key);
            } else {
                self.turns.push_back(key);
            }
            events += taken;
        }
        group
    }

    fn lane_key(&self, events: &[Event]) -> LaneKey {
        let first = &events.first()?.tenant;
        let only_one = events.iter().all(|event| event.tenant == *first);
        only_one.then(|| self.hasher.hash_one(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ids::{EventId, MeterNo};
    use crate::rules::properties::Properties;
    use crate::rules::quantity::Quantity;
    use crate::rules::timestamp::Timestamp;

    fn submission(tenants: &[&str]) -> Submission {
        let event = |tenant: &&str| Event {
            tenant: TenantId::parse(tenant).expect("valid"),
            id: EventId::parse("e").expect("valid"),
            meter: MeterNo(1),
            quantity: Quantity::ONE,
            occurred_at: Timestamp::default(),
            properties: Properties::default(),
            subscription: None,
            trial: false,
        };
        let events = tenants.iter().map(event).collect();
        Submission { events, refused: Vec::new(), reply: oneshot::channel().0 }
    }

    fn first_tenants(group: &[Submission]) -> Vec<String> {
        group.iter().map(|s| s.events[0].tenant.to_string()).collect()
    }

    #[test]
    fn a_storm_waits_behind_its_neighbours() {
        let mut lanes = Lanes::default();
        for _ in 0..10 {
            lanes.push(submission(&["storm"; 400]));
        }
        lanes.push(submission(&["quiet"]));
        lanes.push(submission(&["calm"]));
        let group = lanes.take_group(1_000);
        assert_eq!(first_tenants(&group)[..4], ["storm", "quiet", "calm", "storm"]);
        assert!(!lanes.is_empty());
    }

    #[test]
    fn everything_is_taken_once_and_in_order() {
        let mut lanes = Lanes::default();
        for count in 1..=20 {
            lanes.push(submission(&vec!["a"; count]));
            lanes.push(submission(&["a", "b"]));
        }
        let mut taken = Vec::new();
        while !lanes.is_empty() {
            taken.extend(lanes.take_group(50).iter().map(|s| s.events.len()));
        }
        assert_eq!(taken.iter().sum::<usize>(), 20 * 21 / 2 + 40);
        assert!(lanes.take_group(50).is_empty());
    }

    #[test]
    fn a_lane_is_bounded_and_others_are_not() {
        let mut lanes = Lanes::default();
        assert!(lanes.admits(&submission(&["a"; 50]).events, 10), "an empty lane takes anything");
        lanes.push(submission(&["a"; 8]));
        assert!(lanes.admits(&submission(&["a"; 2]).events, 10));
        assert!(!lanes.admits(&submission(&["a"; 3]).events, 10));
        assert!(lanes.admits(&submission(&["b"; 3]).events, 10));
    }
}
